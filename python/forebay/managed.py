"""Managed memory: tensors that are larger than device memory.

A :class:`ManagedTensor` has addresses for all of its bytes and device memory for some of them. Before an operation runs, the parts that it
uses are fetched to the device and others are evicted to make room, as in CUDA Unified Memory.

>>> import forebay, numpy as np
>>> memory = forebay.managed.Memory(device_memory="1MiB", policy="touch")
>>> a = forebay.managed.empty((8, 1 << 16), np.float32, memory=memory)  # 2 MiB
>>> for row in range(8):
...     a[row] = np.full(1 << 16, row, np.float32)
>>> sum(part.sum().item() for part in a) / (1 << 16)
28.0
>>> a.nbytes > memory.device_memory, memory.statistics().evictions > 0
(True, True)
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Sequence, Tuple, Type, Union, cast

import numpy as np
import numpy.typing as npt

from . import _forebay, _indexing
from ._arrays import from_native
from ._checks import integer
from ._dtypes import DTypeLike, item_bytes, type_name
from ._options import PathLike, Size, path_text
from ._streams import Context, current_context, size_bytes
from ._tensor import Shape, Tensor, given, sizes_of
from ._tensor import empty as unmanaged
from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Finding", "ManagedTensor", "Memory", "Statistics", "Touch", "empty", "probe"]

#: The alignment of tensors in a buffer.
_ALIGNMENT_BYTES = 256


@dataclass(frozen=True)
class Statistics:
    """What a managed memory has moved and waited for so far."""

    #: Units that were not on the device when work needed them and were brought there, with or without a copy.
    faults: int
    #: Units that left the device to make room for others.
    evictions: int
    #: Bytes copied from the host to the device, for work and for prefetches.
    fetched_bytes: int
    #: Bytes copied from the device to the host.
    copied_back_bytes: int
    #: Bytes that came to the device without a copy because they held no data.
    mapped_bytes: int
    #: Bytes that left the device without a copy because the host had them or nothing needed them.
    dropped_bytes: int
    #: Units that were prefetched.
    prefetches: int
    #: Bytes copied from the host to spill files.
    spilled_bytes: int
    #: Bytes copied from spill files to the host.
    unspilled_bytes: int
    #: The number of times a thread waited for the device.
    stalls: int
    #: Bytes of units that are currently on the device.
    resident_bytes: int
    #: Device memory that is currently held, in bytes.
    device_bytes: int
    #: Host memory that is currently held, in bytes.
    host_bytes: int
    #: Bytes of spill files that currently hold data.
    file_bytes: int
    #: How long threads waited for the device, in seconds.
    stall_seconds: float


class Memory:
    """A part of device memory shared by tensors larger than it. Within a ``with`` block, :func:`empty` uses it by default.

    Args:
        device_memory: The most device memory that its tensors take together; by default, half of what the context can take or the device
            has.
        policy: What is evicted first: ``"driver"`` (least recently fetched or prefetched), ``"touch"`` (least recently used) or
            ``"planned"`` (used furthest in the future, according to :meth:`set_next_uses`).
        growth: Whether device memory is allocated on demand. Otherwise, all of it is allocated at the start.
        host_memory: The most host memory for data that is not on the device; by default, as much as there is.
        spill_dir: A folder for data that exceeds ``host_memory``. Without one, exceeding it is an error.
        unit_size: The size of the units that move as a whole, in bytes.
        context: The context; by default, the thread's current one.

    Raises:
        forebay.InvalidArgument: The budget is below one unit.
    """

    def __init__(
        self,
        device_memory: Optional[Size] = None,
        policy: str = "driver",
        *,
        growth: bool = True,
        host_memory: Optional[Size] = None,
        spill_dir: Optional[PathLike] = None,
        unit_size: Optional[Size] = None,
        context: Optional[Context] = None,
    ) -> None:
        self.context: Context = current_context() if context is None else context
        budget = size_bytes(device_memory)
        if budget is None:
            budget = (self.context.device_memory or self.context._native.device_memory()) // 2
        self._made = _forebay.ManagedMemory(
            self.context._native,
            {
                "device_memory": budget,
                "policy": policy,
                "growth": growth,
                "host_memory": size_bytes(host_memory),
                "spill_dir": path_text(spill_dir),
                "unit_size": size_bytes(unit_size),
            },
        )

    @property
    def _native(self) -> _forebay.ManagedMemory:
        self.context._check_process()
        return self._made

    @property
    def device_memory(self) -> int:
        """The most device memory that its tensors take together, in bytes: the budget in whole units."""
        return self._native.described()[0]

    @property
    def unit_size(self) -> Optional[int]:
        """The size of the units that move as a whole, in bytes; ``None`` on a device without tiles, where whole tensors move."""
        return self._native.described()[1]

    @property
    def policy(self) -> str:
        """The eviction policy."""
        return self._native.described()[2]

    def empty(self, shape: Shape, dtype: DTypeLike = "float32") -> ManagedTensor:
        """Returns a tensor in this memory; see :func:`empty`."""
        return empty(shape, dtype, memory=self)

    def set_next_uses(self, uses: Sequence[Sequence[ManagedTensor]]) -> None:
        """Sets the tensors that each future operation will use, in order, for the policy ``"planned"``. Replaces earlier calls."""
        self._native.set_next_uses([[tensor._buffer for tensor in operation] for operation in uses])

    def statistics(self) -> Statistics:
        """Returns what was moved and waited for so far."""
        return Statistics(**self._native.statistics())

    def synchronize(self) -> None:
        """Waits until no prefetch is queued and all copies are complete."""
        self._native.synchronize()

    def __enter__(self) -> Self:
        _thread.entered.append(self)
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        for place in range(len(_thread.entered) - 1, -1, -1):
            if _thread.entered[place] is self:
                del _thread.entered[place]
                return

    def __repr__(self) -> str:
        return f"Memory(device_memory={self.device_memory}, policy={self.policy!r})"


class ManagedTensor(Tensor):
    """A tensor in managed memory (:func:`empty`).

    Its rows are views: ``a[2:5]`` is a tensor that shares the memory of these rows, and ``a[2:5] = array`` overwrites them. An operation on
    a view needs only the view to fit on the device; an operation on the whole tensor needs all of it to fit at once.

    Ranges for :meth:`prefetch`, :meth:`advise` and :meth:`discard` are rows as well: a number, a slice, or ``None`` for all rows.
    """

    _memory: Memory
    _buffer: _forebay.ManagedBuffer

    @property
    def memory(self) -> Memory:
        """The memory that the tensor is in."""
        return self._memory

    @property
    def resident_bytes(self) -> int:
        """The number of its bytes that are on the device, in whole units."""
        return self._buffer.resident_bytes()

    def prefetch(self, rows: Union[int, slice, None] = None, to: str = "device") -> None:
        """Requests a copy of rows on ``"device"`` or ``"host"``, without waiting for it."""
        self._buffer.prefetch(*self._range(rows), to)

    def cancel_prefetch(self, rows: Union[int, slice, None] = None) -> int:
        """Cancels prefetches that have not started, and returns the number of units canceled."""
        return self._buffer.cancel_prefetch(*self._range(rows))

    def advise(self, advice: str, place: Optional[str] = None, rows: Union[int, slice, None] = None) -> None:
        """Advises how rows will be used: ``"read_mostly"``, ``"preferred_location"`` or ``"accessed_by"``, the latter two with a place,
        ``"device"`` (the default) or ``"host"``."""
        self._buffer.advise(*self._range(rows), advice, place)

    def withdraw_advice(self, advice: str, place: Optional[str] = None, rows: Union[int, slice, None] = None) -> None:
        """Withdraws advice."""
        self._buffer.withdraw_advice(*self._range(rows), advice, place)

    def discard(self, rows: Union[int, slice, None] = None) -> None:
        """Declares that the contents of rows are no longer needed, so that they are not copied in either direction. Their values are then
        undefined. Units that are only partly in the range keep their data."""
        self._buffer.discard(*self._range(rows))

    def fill_(self, value: Union[int, float, bool]) -> ManagedTensor:
        """Overwrites all elements with a number, part by part, and returns the tensor."""
        pattern = np.tile(given(value, self._type)[2], 4)[:4] if item_bytes(self._type) <= 4 else None
        wide = given(value, self._type)[2]
        if pattern is None and bytes(wide[:4]) == bytes(wide[4:]):
            pattern = wide[:4]
        if pattern is None and not self._shape:
            self.copy_(value)
        elif pattern is None:
            for rows in self._parts():
                self._view(rows.start, rows.stop).fill_(value)
        else:
            self._buffer.fill(self._context.current_stream()._native, [int(byte) for byte in pattern])
        return self

    def numpy(self) -> npt.NDArray[Any]:
        """Copies the tensor to the host, after all submitted work that writes it."""
        self._context._check_process()
        return from_native(self._buffer.read(self._type, self._shape, 0))

    def copy_(self, other: Any) -> ManagedTensor:
        """Overwrites the tensor with a tensor or an array of the same shape, and returns it."""
        self[...] = other
        return self

    def __getitem__(self, key: Any) -> Tensor:
        """Returns a part. Indexing the first dimension returns a view of rows; further indices work as for any tensor."""
        if isinstance(key, (Tensor, np.ndarray, list)):
            return super().__getitem__(key)
        keys = _indexing.keys_of(key)
        _indexing.part(self._shape, keys)  # Rejects invalid indices.
        first: Any = keys[0] if keys else Ellipsis
        if first is None or first is Ellipsis:
            whole = Tensor._of(self._context, self._native)
            return whole[keys] if keys and keys != (Ellipsis,) else self
        if not isinstance(first, slice):
            row = self._view(range(len(self))[int(first)], None)
            return row[keys[1:]] if len(keys) > 1 else row
        start, stop, step = first.indices(len(self))
        if step < 0:
            return super().__getitem__(keys)
        rest = (slice(None, None, step), *keys[1:])
        view = self._view(start, stop)
        return view if step == 1 and len(keys) == 1 else view[rest]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Overwrites rows, after all submitted work that uses them: ``a[2:5] = array``."""
        if key is Ellipsis and self._shape:
            key = slice(None)
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            shape: Tuple[int, ...] = (max(stop - start, 0), *self._shape[1:])
        else:
            row = _indexing.part(self._shape[:1], key)
            if row.shape:
                raise InvalidArgument("only consecutive rows can be overwritten; use a number or a slice with step 1")
            # The only row of a tensor, or a tensor without dimensions, is all of it, which has no start.
            start, step, shape = (row.starts[0] if row.starts else 0), 1, self._shape[1:]
        if step != 1:
            raise InvalidArgument("only consecutive rows can be overwritten; use a number or a slice with step 1")
        value = value.numpy() if isinstance(value, Tensor) else value
        array = np.broadcast_to(np.asarray(value), shape) if self._type != "bfloat16" else value
        native = given(array, self._type)
        if tuple(native[1]) != shape:
            raise InvalidArgument(f"{native[1]} cannot be written to rows of {shape}")
        self._context._check_process()
        self._buffer.write(start * self._row_bytes(), native)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"ManagedTensor(shape={self._shape}, dtype={self._type}, {self.resident_bytes} of {self.nbytes} bytes on the device)"

    def _row_bytes(self) -> int:
        return int(np.prod(self._shape[1:], dtype=np.int64)) * item_bytes(self._type)

    def _range(self, rows: Union[int, slice, None]) -> Tuple[int, int]:
        """Converts rows to a byte range."""
        if rows is None or not self._shape:
            return 0, self.nbytes
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                raise InvalidArgument("a range must be a slice with step 1")
            return start * self._row_bytes(), max(start, stop) * self._row_bytes()
        rows = integer("rows", rows)
        if not -len(self) <= rows < len(self):
            raise IndexError(f"row {rows} is out of range for {len(self)} rows")
        row = range(len(self))[rows]
        return row * self._row_bytes(), (row + 1) * self._row_bytes()

    def _parts(self) -> Iterator[slice]:
        """Splits the rows into parts of which several fit on the device at once."""
        count = max(1, self._memory.device_memory // 4 // max(1, self._row_bytes()))
        return (slice(start, min(start + count, len(self))) for start in range(0, len(self), count))

    def _view(self, start: int, stop: Optional[int]) -> Tensor:
        """Returns a view of rows, or of one row without its dimension if ``stop`` is ``None``. Unaligned rows are copied from a view that
        starts at the aligned offset before them."""
        shape = self._shape[1:] if stop is None else (max(stop - start, 0), *self._shape[1:])
        if 0 in shape:
            return unmanaged(shape, self._type, context=self._context)
        offset = start * self._row_bytes()
        before = offset % _ALIGNMENT_BYTES
        if before == 0:
            return Tensor._of(self._context, self._buffer.tensor(self._type, shape, offset))
        count, skipped = int(np.prod(shape)), before // item_bytes(self._type)
        flat = Tensor._of(self._context, self._buffer.tensor(self._type, [skipped + count], offset - before))
        return flat[skipped:].reshape(*shape)


class _Thread(threading.local):
    """The memories that a thread has entered and not left."""

    def __init__(self) -> None:
        self.entered: List[Memory] = []


_thread = _Thread()
_defaults_lock = threading.Lock()


def _memory_of(context: Context) -> Memory:
    """Returns the memory entered last, or else the one that the context keeps."""
    for memory in reversed(_thread.entered):
        if memory.context is context:
            return memory
    with _defaults_lock:
        if context._managed is None:
            context._managed = Memory(context=context)
        return cast(Memory, context._managed)


def empty(
    shape: Shape,
    dtype: DTypeLike = "float32",
    *,
    memory: Optional[Memory] = None,
    context: Optional[Context] = None,
) -> ManagedTensor:
    """Returns a tensor in managed memory, of any size. It reserves addresses now and takes memory when it is used. Its values are undefined
    until it is overwritten.

    Args:
        shape: The sizes of the dimensions.
        dtype: The element type.
        memory: The memory; by default, that of the innermost ``with`` block, or else one that the context keeps, with half of its device
            memory.
        context: The context, if no memory is given.
    """
    if memory is None:
        memory = _memory_of(current_context() if context is None else context)
    name, sizes = type_name(dtype), sizes_of(shape)
    count = 1
    for size in sizes:
        count *= size
    byte_count = count * item_bytes(name)
    if byte_count >= 1 << 63:
        raise InvalidArgument(f"{tuple(sizes)} is larger than the address space")
    # Rounded up to a multiple of four bytes, like all tensors on the device. One without elements takes the place of one.
    buffer = memory._native.buffer((max(byte_count, item_bytes(name)) + 3) // 4 * 4)
    tensor = ManagedTensor.__new__(ManagedTensor)
    tensor._set(memory.context, buffer.tensor(name, sizes, 0))
    tensor._memory, tensor._buffer = memory, buffer
    return tensor


@dataclass(frozen=True)
class Touch:
    """How long it took to use a chunk."""

    #: Whether it was on the device.
    resident: bool
    #: The time in seconds.
    seconds: float


@dataclass(frozen=True)
class Finding:
    """The result of the experiment for one action."""

    #: The number of the action in the paper.
    number: int
    #: What is done between filling the device and requesting more memory.
    action: str
    #: Chunks that were not entirely on the device right after one more was created.
    evicted: List[int]
    #: The chunk that the paper found evicted on a GPU, if any.
    measured: Optional[int]
    #: How long it took to create one more chunk, in seconds.
    overcommit_seconds: float
    #: How long it then took to use each of the first chunks.
    touches: List[Touch]

    @property
    def is_as_measured(self) -> bool:
        """Whether the result agrees with the paper."""
        return self.evicted == ([] if self.measured is None else [self.measured])


def probe(
    device: str = "host", *, policy: str = "driver", chunk_size: Size = "8MiB", chunk_count: int = 14, growth: bool = True
) -> List[Finding]:
    """Determines the eviction order of managed memory with the experiment of Negishi et al. (2018). Chunks fill the device; then one of ten
    actions is performed, one more chunk is created, and the chunks that were evicted are reported.

    >>> import forebay
    >>> findings = forebay.managed.probe(policy="touch", chunk_size="128KiB", chunk_count=6)
    >>> findings[0].action, findings[0].evicted
    ('use chunk 0', [1])
    """
    found = _forebay.probe(device, policy, size_bytes(chunk_size) or 0, chunk_count, growth)
    return [
        Finding(number, action, evicted, measured, seconds, [Touch(*touch) for touch in touches])
        for number, action, evicted, measured, seconds, touches in found
    ]
