"""Batches from any iterable, read ahead on a thread, and progress."""

from __future__ import annotations

import queue
import sys
import threading
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional, Tuple, TypeVar, cast

from ._session import by_name
from .errors import InvalidArgument

T = TypeVar("T")

#: Batches that are read ahead.
_AHEAD = 2


def split_batch(batch: Any, inputs: List[str], labels: str) -> Tuple[Mapping[str, Any], Any]:
    """A batch as inputs by name, and labels: of a pair ``(inputs, labels)``, of a longer sequence whose last element are the labels, or of
    a mapping that has the labels under their name, under ``labels`` or under ``label``."""
    if isinstance(batch, Mapping):
        named = dict(cast("Mapping[str, Any]", batch))
        for name in (labels, "labels", "label", "targets", "target", "y"):
            if name in named and name not in inputs:
                return named, named.pop(name)
        raise InvalidArgument(f"a batch has no labels: it has {', '.join(named)}, and {labels!r} is missing")
    if isinstance(batch, (list, tuple)):
        values: List[Any] = list(cast("List[Any]", batch))
        if len(values) == 2:
            return by_name(values[0], inputs), values[1]
        if len(values) == len(inputs) + 1:
            return dict(zip(inputs, values)), values[-1]
    raise InvalidArgument(f"a batch is a pair (inputs, labels) or a mapping by name; the inputs are {', '.join(inputs)}")


def read_ahead(items: Iterable[T], prepare: Callable[[Any], T]) -> Iterator[T]:
    """What ``prepare`` makes of each item, in order, a few of them ahead of their use, on a thread that ends with the iterator."""
    ready: "queue.Queue[Tuple[str, Any]]" = queue.Queue(maxsize=_AHEAD)
    ended = threading.Event()

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
            for item in items:
                if not put(("item", prepare(item))):
                    return
            put(("end", None))
        except BaseException as error:  # The caller gets it.
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
        # One that waits for its data ends when they come.
        thread.join(timeout=0.5)


class Progress:
    """A bar of tqdm where that is there and standard error is a terminal, else a line for each epoch."""

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
        """Another step is done."""
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{loss:.4g}", refresh=False)
            self._bar.update(1)

    def note(self, text: str) -> None:
        """Something to be told while the epoch goes on."""
        if self._bar is not None:
            self._bar.write(f"{self._title}: {text}", file=sys.stderr)
        elif self._show:
            print(f"{self._title}: {text}", file=sys.stderr, flush=True)

    def end(self, summary: str) -> None:
        """The epoch is done."""
        if self._bar is not None:
            self._bar.set_postfix_str(summary)
            self._bar.close()
        else:
            self.note(summary)

    def stop(self) -> None:
        """The epoch ends early."""
        if self._bar is not None:
            self._bar.close()
