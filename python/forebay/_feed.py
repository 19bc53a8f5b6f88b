"""Reading batches ahead from any iterable on a thread, and showing progress."""

from __future__ import annotations

import queue
import sys
import threading
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional, Tuple, TypeVar, cast

from ._session import by_name
from ._streams import streams_of_this_thread
from .errors import InvalidArgument

T = TypeVar("T")

#: The number of batches that are read ahead.
_AHEAD = 2


def split_batch(batch: Any, inputs: List[str], labels: str) -> Tuple[Mapping[str, Any], Any]:
    """Splits a batch into inputs by name and labels. A batch is a pair ``(inputs, labels)``, a longer sequence whose last element is the
    labels, or a mapping that holds the labels under their name or under a usual one such as ``labels`` or ``label``."""
    if isinstance(batch, Mapping):
        named = dict(cast("Mapping[str, Any]", batch))
        for name in (labels, "labels", "label", "targets", "target", "y"):
            if name in named and name not in inputs:
                return named, named.pop(name)
        raise InvalidArgument(f"a batch has no labels; it has {', '.join(named)}, but {labels!r} is missing")
    if isinstance(batch, (list, tuple)):
        values: List[Any] = list(cast("List[Any]", batch))
        if len(values) == 2:
            return by_name(values[0], inputs), values[1]
        if len(values) == len(inputs) + 1:
            return dict(zip(inputs, values)), values[-1]
    raise InvalidArgument(f"a batch must be a pair (inputs, labels) or a mapping by name; the inputs are {', '.join(inputs)}")


def read_ahead(items: Iterable[T], prepare: Callable[[Any], T]) -> Iterator[T]:
    """Applies ``prepare`` to each item in order, a few items ahead of their use, on a thread that ends with the iterator. The thread has
    the current context and streams of the caller."""
    ready: "queue.Queue[Tuple[str, Any]]" = queue.Queue(maxsize=_AHEAD)
    ended = threading.Event()
    take_streams = streams_of_this_thread()

    def put(what: Tuple[str, Any]) -> bool:
        while not ended.is_set():
            try:
                ready.put(what, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def read() -> None:
        try:
            take_streams()
            for item in items:
                if not put(("item", prepare(item))):
                    return
            put(("end", None))
        except BaseException as error:  # Raised in the caller.
            put(("error", error))

    thread = threading.Thread(target=read, name="forebay-data", daemon=True)
    thread.start()
    try:
        while True:
            try:
                kind, value = ready.get(timeout=0.5)
            except queue.Empty:
                continue
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        ended.set()
        # A thread that is waiting for data ends when the data arrives.
        thread.join(timeout=0.5)


class Progress:
    """A tqdm bar if tqdm is installed and standard error is a terminal, otherwise one line per epoch."""

    def __init__(self, show: bool, epoch: int, epochs: int, total: Optional[int]) -> None:
        self._show = show
        self._title = f"epoch {epoch + 1}/{epochs}"
        self._bar: Any = None
        if show and sys.stderr.isatty():
            try:
                from tqdm.auto import tqdm  # type: ignore[import-not-found, import-untyped, unused-ignore]  # pyright: ignore

                self._bar = tqdm(total=total, desc=self._title, unit="step")
            except ImportError:
                pass

    def step(self, loss: float) -> None:
        """Records that another step is done."""
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{loss:.4g}", refresh=False)
            self._bar.update(1)

    def note(self, text: str) -> None:
        """Prints a message while the epoch goes on."""
        if self._bar is not None:
            self._bar.write(f"{self._title}: {text}", file=sys.stderr)
        elif self._show:
            print(f"{self._title}: {text}", file=sys.stderr, flush=True)

    def end(self, summary: str) -> None:
        """Ends the epoch with a summary."""
        if self._bar is not None:
            self._bar.set_postfix_str(summary)
            self._bar.close()
        else:
            self.note(summary)

    def stop(self) -> None:
        """Ends the epoch early."""
        if self._bar is not None:
            self._bar.close()
