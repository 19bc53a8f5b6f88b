"""Detection of data-dependent control flow, which tracing would record for one batch and repeat for all."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from typing import Any, Callable, Iterator

import torch

from ._torch_gradients import FinalError, is_computed, is_pytorchs_or_ours, place
from .errors import Error

# Parts of PyTorch have no types.
_untyped: Any = torch
#: The methods that convert a tensor to Python numbers or to an array of them.
_METHODS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "__array__")
_lock = threading.RLock()


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """A context manager in which a module can be exported: random numbers stay as they are, and attention is computed from operators that
    exporters know.

    Raises:
        forebay.Error: The exporter warned that its result computes something else.
    """
    fast: Any = _untyped.backends.mha
    was_fast = fast.get_fastpath_enabled()
    with warnings.catch_warnings(record=True) as caught, _untyped.random.fork_rng(devices=[]):
        warnings.simplefilter("always")
        fast.set_fastpath_enabled(False)
        try:
            yield
        finally:
            fast.set_fastpath_enabled(was_fast)
    if any("duplicated values" in str(each.message) for each in caught):
        raise Error(
            "PyTorch cannot export the module: index_add and index_put would lose all but one of the values that are added "
            "at the same place; use scatter_add"
        )


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """A context manager in which what ``torch.compile`` has compiled runs as it was written, so that it can be exported."""
    if not hasattr(torch, "compiler") or not hasattr(torch.compiler, "set_stance"):
        # Before PyTorch 2.6.
        yield
        return
    with _untyped.compiler.set_stance("force_eager"):
        yield


@contextlib.contextmanager
def one_way() -> Iterator[None]:
    """A context manager in which tracing a module fails if the module converts a tensor that depends on its inputs or parameters to a
    Python number, as an ``if`` or a loop does.

    Raises:
        forebay.Error: The module does so; the message says where.
    """
    with _lock:
        own = {name: vars(torch.Tensor).get(name) for name in _METHODS}
        for name in _METHODS:
            setattr(torch.Tensor, name, _watched(getattr(torch.Tensor, name)))
        try:
            yield
        finally:
            for name, method in own.items():
                if method is None:
                    delattr(torch.Tensor, name)
                else:
                    setattr(torch.Tensor, name, method)


def _watched(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method so that it first checks what its tensor is computed from."""

    def watched(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        caller = sys._getframe(1)
        # PyTorch's own layers trace as they should.
        if not is_pytorchs_or_ours(caller) and _untyped.jit.is_tracing() and is_computed(tensor):
            raise FinalError(
                f"the module converts a tensor to a Python number {place(caller)}. Its export records a single path: what an `if`, a "
                "loop or `item()` decides for one batch would apply to all of them. Use torch.where or other operations on tensors instead, "
                "or compile the parts between the decisions with forebay.torch.compile"
            )
        return method(tensor, *arguments, **named)

    return watched
