"""Detection of data-dependent control flow, which tracing would record for one batch and repeat for all."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
from types import FrameType
from typing import Any, Callable, Iterator, List

import torch

from .errors import Error

# Parts of PyTorch have no types.
_untyped: Any = torch
#: The methods that convert a tensor to Python numbers.
_METHODS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist")
#: Trace nodes that query sizes, which each plan fixes.
_SIZES = frozenset(["aten::size", "aten::dim", "aten::numel", "aten::len", "aten::_shape_as_tensor", "onnx::Shape", "prim::shape"])
_PYTORCH = os.path.dirname(torch.__file__) + os.sep
_lock = threading.RLock()


class OneWayError(Error):
    """A module has data-dependent control flow."""


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
        if not caller.f_code.co_filename.startswith(_PYTORCH) and _untyped.jit.is_tracing() and _is_computed(tensor):
            raise OneWayError(
                f"the module converts a tensor to a Python number {_place(caller)}. Its export records a single path: what an `if`, a "
                "loop or `item()` decides for one batch would apply to all of them. Use torch.where or other operations on tensors instead, "
                "or compile the parts between the decisions with forebay.torch.compile"
            )
        return method(tensor, *arguments, **named)

    return watched


def _is_computed(tensor: torch.Tensor) -> bool:
    """Returns whether a traced tensor is computed from the values, not just the sizes, of an input or a parameter."""
    try:
        values: List[Any] = [_untyped._C._get_value_trace(tensor)]
    except RuntimeError:  # It is not part of the trace.
        return False
    seen = set()
    while values:
        value = values.pop()
        if value.unique() in seen:
            continue
        seen.add(value.unique())
        node = value.node()
        if node.kind() == "prim::Param":
            return True
        if node.kind() not in _SIZES:
            values.extend(node.inputs())
    return False


def _place(frame: FrameType) -> str:
    """Describes the source location of a frame."""
    code, line = frame.f_code, linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"in {code.co_name}, {code.co_filename}, line {frame.f_lineno}" + (f" (`{line}`)" if line else "")
