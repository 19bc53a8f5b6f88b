"""Contexts, streams and events, for launching work one operation at a time."""

from __future__ import annotations

import json
import os
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple, Type, Union

from . import _forebay
from ._options import Size, size_text
from .errors import Error, InvalidArgument, RaceError

if TYPE_CHECKING:
    from typing_extensions import Self


def size_bytes(size: Optional[Size]) -> Optional[int]:
    """Returns a size in bytes."""
    text = size_text(size)
    return None if text is None else _forebay.parse_size(text)


class Context:
    """A device with its streams and its memory.

    By default, work goes to a context on the host that the package creates when it is first needed. Within a ``with`` block, a context
    replaces this default for the current thread. A process forked from this one has a default context of its own, and cannot use other
    contexts, streams and tensors of this process.

    Args:
        device: ``"host"`` (the CPU), ``"vulkan"`` or ``"vulkan:0"`` (a GPU), ``"null"`` (computes nothing).
        device_memory: The most memory that tensors can take; by default, all memory of the device.
        record: Whether to record submissions and waits, for :meth:`check`. This takes memory for every operation.
        threads: The total number of threads for kernels and copies; by default, as many as the machine runs at once.
        growth: Whether device memory is allocated on demand. Otherwise, all of ``device_memory`` is allocated at the start.
        extend_lifetimes: Whether memory that is freed while another stream uses it is kept until that use is complete. Turn this off only
            to demonstrate what goes wrong without it.
        memory_history: The number of freed blocks whose owners and lifetimes are kept for :meth:`memory_picture`.
        tile_size: The unit in which memory is mapped, in bytes.
        tiled: Whether memory is mapped tile by tile if the device supports it.
        link_bytes_per_second: A limit on the speed of copies, for experiments.

    >>> import forebay, numpy as np
    >>> with forebay.Context(record=True) as context:
    ...     a = forebay.Tensor(np.ones((2, 2), np.float32))
    ...     print((a @ a).sum().item())
    ...     context.check()
    8.0
    """

    def __init__(
        self,
        device: str = "host",
        *,
        device_memory: Optional[Size] = None,
        record: bool = False,
        threads: Optional[int] = None,
        growth: bool = True,
        extend_lifetimes: bool = True,
        memory_history: int = 0,
        tile_size: Optional[int] = None,
        tiled: bool = True,
        link_bytes_per_second: Optional[int] = None,
    ) -> None:
        self.device: str = device
        self.device_memory: Optional[int] = size_bytes(device_memory)
        self._recording = record
        #: The managed memory that the context keeps (:func:`forebay.managed.empty`).
        self._managed: Any = None
        self._made = _forebay.Context(
            {
                "device": device,
                "threads": threads,
                "device_memory": self.device_memory,
                "growth": growth,
                "tile_size": tile_size,
                "tiled": tiled,
                "link_bytes_per_second": link_bytes_per_second,
                "record": record,
                "extend_lifetimes": extend_lifetimes,
                "memory_history": memory_history,
            }
        )
        # Not a :class:`Stream`, which would keep the context in a cycle, and its memory until Python looks for cycles.
        self._default_stream = self._made.default_stream()

    def _check_process(self) -> None:
        """Fails in a fork of the process that made the context."""
        self._made.check_process()

    @property
    def _native(self) -> _forebay.Context:
        self._check_process()
        return self._made

    def default_stream(self) -> Stream:
        """Returns the stream that work goes to if no other stream is entered."""
        return Stream._of(self, self._default_stream)

    def current_stream(self) -> Stream:
        """Returns the stream that this thread's work goes to."""
        for context, stream in reversed(_thread.entered):
            if context is self and stream is not None:
                return stream
        native, priority = _thread.chosen.get(self, (self._default_stream, 0))
        return Stream._of(self, native, priority)

    def synchronize(self) -> None:
        """Waits until all work submitted to any stream is complete."""
        self._native.synchronize()

    def start_recording(self) -> None:
        """Starts recording submissions for :meth:`check`, and discards earlier recordings."""
        self._native.start_recording()
        self._recording = True

    def check(self) -> None:
        """Checks everything recorded so far for races: two operations that use the same bytes, at least one of them writing, without an
        order between them. It checks what could happen, not what happened.

        Raises:
            forebay.RaceError: ``error.races`` has a sentence for each: both operations, their streams, the bytes, and what is missing.
            forebay.InvalidArgument: Nothing was recorded.

        >>> import forebay, numpy as np
        >>> with forebay.Context(record=True) as context:
        ...     a = forebay.Tensor(np.ones((20, 20), np.float32))
        ...     b = a @ a
        ...     with forebay.stream(forebay.Stream()):
        ...         c = b.sum()  # nothing says that it comes after the product
        ...     try:
        ...         context.check()
        ...     except forebay.RaceError as error:
        ...         print(len(error.races), "MatMul" in error.races[0], "ReduceSum" in error.races[0])
        1 True True
        """
        if not self._recording:
            raise InvalidArgument(
                "nothing was recorded, so there is nothing to check; create the context with record=True, or call start_recording() first"
            )
        races = self._native.races()
        if races:
            raise RaceError("\n".join(races), races)

    def trim(self) -> int:
        """Waits for all work, returns unused memory to the device, and returns the number of bytes released."""
        return self._native.trim()

    def memory(self) -> Dict[str, Any]:
        """Returns device memory statistics (``in_use_bytes``, ``in_use_peak_bytes``, ``reserved_bytes``, ...) and, in ``segments``, every
        block with its owner and stream.

        >>> import forebay, numpy as np
        >>> with forebay.Context() as context:
        ...     a = forebay.Tensor(np.zeros(1000, np.float32))
        ...     print(context.memory()["requested_bytes"])
        4000
        """
        found: Dict[str, Any] = json.loads(self._native.memory())
        return found

    def reset_peaks(self) -> None:
        """Resets the memory peaks to the current values."""
        self._native.reset_peaks()

    def memory_picture(self, title: str = "device memory") -> str:
        """Returns an SVG picture of who owned which bytes when.

        Raises:
            forebay.InvalidArgument: The context keeps no history (``memory_history``).
        """
        picture = self._native.memory_picture(title)
        if picture is None:
            raise InvalidArgument("the context keeps no history of its memory; create it with memory_history=1000, the number of blocks")
        return picture

    def __enter__(self) -> Self:
        _thread.entered.append((self, None))
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        _leave(self, None)

    def __repr__(self) -> str:
        return f"Context({self.device!r})"


class Stream:
    """An ordered queue of work on a device. Work in a stream runs in the order in which it was submitted; streams run concurrently unless
    they wait for each other. Creating one is cheap.

    Args:
        context: The context; by default, the thread's current one. An integer is taken as the priority.
        priority: The priority. Waiting work in streams with lower numbers starts first, if the device supports priorities.

    >>> import forebay, numpy as np
    >>> s = forebay.Stream()
    >>> a = forebay.Tensor(np.ones((20, 20), np.float32))
    >>> b = a @ a
    >>> s.wait_stream(forebay.current_stream())
    >>> with forebay.StreamCtx(s):
    ...     c = b.sum()
    >>> s.synchronize()
    >>> s.query()
    True
    """

    context: Context
    priority: int
    _made: _forebay.Stream

    def __init__(self, context: Union[Context, int, None] = None, priority: int = 0) -> None:
        self.priority = context if isinstance(context, int) else priority
        self.context = current_context() if context is None or isinstance(context, int) else context
        self._made = _forebay.Stream(self.context._native, self.priority)

    @classmethod
    def _of(cls, context: Context, native: _forebay.Stream, priority: int = 0) -> Stream:
        stream = cls.__new__(cls)
        stream.context, stream.priority, stream._made = context, priority, native
        return stream

    @property
    def _native(self) -> _forebay.Stream:
        self.context._check_process()
        return self._made

    def wait_stream(self, stream: Stream) -> None:
        """Makes later work in this stream wait until all work submitted to ``stream`` so far is complete."""
        self._native.wait_stream(stream._native)

    def wait_event(self, event: Event) -> None:
        """Makes later work in this stream wait for the event's latest record. An event that was never recorded has no effect."""
        event.wait(self)

    def record_event(self, event: Optional[Event] = None) -> Event:
        """Records an event in this stream, a new one if none is given, and returns it."""
        recorded = Event() if event is None else event
        recorded.record(self)
        return recorded

    def query(self) -> bool:
        """Returns whether all work submitted to the stream is complete. Does not wait."""
        return self._native.query()

    def synchronize(self) -> None:
        """Waits until all work submitted to the stream is complete."""
        self._native.synchronize()

    def __enter__(self) -> Self:
        _thread.entered.append((self.context, self))
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        _leave(self.context, self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.context is other.context and self._made.number() == other._made.number()

    def __hash__(self) -> int:
        return hash((id(self.context), self._made.number()))

    def __repr__(self) -> str:
        return f"Stream({self._made.number()} of {self.context!r}, priority={self.priority})"


class Event:
    """A point in a stream. It can be recorded any number of times; waiting for it waits for the latest record.

    An event belongs to the context of the stream in which it is first recorded. As in PyTorch and MindSpore, an event that was never
    recorded counts as complete, so waiting for it returns at once.

    Args:
        enable_timing: Whether to measure when the event completes, for :meth:`elapsed_time`.
        blocking: Accepted for compatibility with other libraries. Waiting takes no processor time either way.

    >>> import forebay, numpy as np
    >>> start, end = forebay.Event(enable_timing=True), forebay.Event(enable_timing=True)
    >>> start.record()
    >>> a = forebay.Tensor(np.ones((20, 20), np.float32)).exp()
    >>> end.record()
    >>> end.synchronize()
    >>> start.elapsed_time(end) >= 0.0
    True
    """

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.enable_timing = enable_timing
        self.blocking = blocking
        self._made: Optional[_forebay.Event] = None
        #: The context of the stream in which the event was first recorded.
        self._context: Optional[Context] = None

    @property
    def _native(self) -> Optional[_forebay.Event]:
        if self._context is not None:
            self._context._check_process()
        return self._made

    def record(self, stream: Optional[Stream] = None) -> None:
        """Records the event in a stream, by default the current one."""
        stream = current_stream() if stream is None else stream
        if self._made is None:
            self._made, self._context = _forebay.Event(stream.context._native, self.enable_timing), stream.context
        self._made.record(stream._native)

    def wait(self, stream: Optional[Stream] = None) -> None:
        """Makes later work in a stream (by default the current one) wait for the event's latest record."""
        if self._native is not None:
            self._native.wait((current_stream() if stream is None else stream)._native)

    def query(self) -> bool:
        """Returns whether all work before the event's latest record is complete. Does not wait."""
        return self._native is None or self._native.query()

    def synchronize(self) -> None:
        """Waits until all work before the event's latest record is complete."""
        if self._native is not None:
            self._native.synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Returns the milliseconds from this event to ``end_event``, on the device's clock. Both must be complete.

        Raises:
            forebay.Error: An event was never recorded, is not complete yet, or was created without ``enable_timing=True``.
        """
        if self._native is None or end_event._native is None:
            raise Error("cannot measure the time between events if one was never recorded; record both first")
        if not (self.enable_timing and end_event.enable_timing):
            raise InvalidArgument("an event was created without timing; create both with Event(enable_timing=True)")
        return self._native.elapsed_time(end_event._native)

    def __repr__(self) -> str:
        state = "never recorded" if self._native is None else "complete" if self.query() else "recorded"
        return f"Event({state}, enable_timing={self.enable_timing})"


class StreamCtx:
    """A context manager that makes a stream the thread's current one. With ``None``, it has no effect.

    >>> import forebay
    >>> s = forebay.Stream()
    >>> with forebay.StreamCtx(s):
    ...     forebay.current_stream() == s
    True
    >>> forebay.current_stream() == s
    False
    """

    def __init__(self, ctx_stream: Optional[Stream]) -> None:
        if ctx_stream is not None and not isinstance(ctx_stream, Stream):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgument(f"expected a stream, not {type(ctx_stream).__name__}")
        self.stream = ctx_stream

    def __enter__(self) -> Optional[Stream]:
        return self.stream if self.stream is None else self.stream.__enter__()

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, error, trace)


class _Thread(threading.local):
    """The contexts and streams that a thread has entered and not left, and the streams it has set permanently."""

    def __init__(self) -> None:
        self.entered: List[Tuple[Context, Optional[Stream]]] = []
        # A :class:`Stream` would keep its context, and the entry, for ever.
        self.chosen: weakref.WeakKeyDictionary[Context, Tuple[_forebay.Stream, int]] = weakref.WeakKeyDictionary()


_thread = _Thread()
_default: Optional[Context] = None
#: The defaults of the processes that this one was forked from, kept because ending them would wait for threads that do not exist here.
_inherited: List[Context] = []
_default_lock = threading.Lock()


def _begin_fork() -> None:
    """Forgets the default context in a fork, which cannot use it, and replaces the lock, which a thread that does not exist there may
    hold."""
    global _default, _default_lock
    if _default is not None:
        _inherited.append(_default)
    _default, _default_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_fork)


def streams_of_this_thread() -> Callable[[], None]:
    """Returns a function that gives the thread that calls it the contexts and streams that this thread has now."""
    entered, chosen = list(_thread.entered), dict(_thread.chosen)

    def take() -> None:
        _thread.entered[:] = entered
        _thread.chosen.update(chosen)

    return take


def _leave(context: Context, stream: Optional[Stream]) -> None:
    """Removes the latest matching entry."""
    entered = _thread.entered
    for place in range(len(entered) - 1, -1, -1):
        if entered[place][0] is context and entered[place][1] is stream:
            del entered[place]
            return


def current_context() -> Context:
    """Returns the context that this thread's work goes to: that of the last context or stream entered, or else the default on the host."""
    global _default
    if _thread.entered:
        return _thread.entered[-1][0]
    default = _default
    if default is None:
        with _default_lock:
            default = _default
            if default is None:
                default = _default = Context()
    return default


def stream(stream: Optional[Stream]) -> StreamCtx:
    """Returns a context manager that makes a stream the thread's current one: :class:`StreamCtx`."""
    return StreamCtx(stream)


def current_stream(context: Optional[Context] = None) -> Stream:
    """Returns the stream that this thread's work goes to: the one entered last, or else the default stream."""
    return (current_context() if context is None else context).current_stream()


def default_stream(context: Optional[Context] = None) -> Stream:
    """Returns the stream that work goes to if no other stream is entered."""
    return (current_context() if context is None else context).default_stream()


def set_current_stream(stream: Stream) -> None:
    """Makes a stream the thread's current one permanently, outside of ``with`` blocks that override it."""
    _thread.chosen[stream.context] = (stream._made, stream.priority)


def synchronize(context: Optional[Context] = None) -> None:
    """Waits until all work submitted to any stream of the context is complete."""
    (current_context() if context is None else context).synchronize()
