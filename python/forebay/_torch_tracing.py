"""Detection of data-dependent control flow, which tracing would record for one batch and repeat for all."""

from __future__ import annotations

import contextlib
import linecache
import mmap
import os
import sys
import threading
import warnings
from types import FrameType
from typing import Any, Callable, Iterator, List, Optional, cast

import torch

from .errors import Error

# Parts of PyTorch have no types.
_untyped: Any = torch
#: The methods that convert a tensor to Python numbers or to an array of them.
_METHODS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "__array__")
#: Trace nodes that query sizes, which each plan fixes.
_SIZES = frozenset(["aten::size", "aten::dim", "aten::numel", "aten::len", "aten::_shape_as_tensor", "onnx::Shape", "prim::shape"])
_PYTORCH = os.path.dirname(torch.__file__) + os.sep
_lock = threading.RLock()
#: The domain of the operator that marks detached tensors.
_DETACHED = "forebay.detached"


class OneWayError(Error):
    """A module has data-dependent control flow."""


def refuse_detached(place: Optional[str]) -> None:
    """Rejects gradients of a module that detaches a tensor."""
    if place is not None:
        raise OneWayError(
            f"the module detaches a tensor {place}. Its export cannot, so gradients would be wrong. Compute what is detached outside the "
            "module and pass it as an input, or compile the parts before and after it with forebay.torch.compile"
        )


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


def write_one_way(path: str, write: Callable[[], None], places: List[str]) -> Optional[str]:
    """Exports a module to a file by tracing. Returns where the module detaches a tensor on which its outputs depend, if it does: ONNX
    cannot express this, so gradients would pass there. ``places`` becomes all places where it detaches one, even if the export fails.

    Raises:
        forebay.Error: The module has data-dependent control flow; the message says where.
    """
    with _one_way(places):
        write()
    if not places:
        return None
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        is_used = contents.find(_DETACHED.encode()) >= 0
    if not is_used:
        return None
    with _one_way(None):
        write()
    return places[0]


class _Detached(torch.autograd.Function):
    """Marks a detached tensor in an export."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.mark_non_differentiable(value)
        return value.clone()

    @staticmethod
    def symbolic(graph: Any, value: Any) -> Any:
        """Returns the node that marks it."""
        return graph.op(f"{_DETACHED}::Identity", value).setType(value.type())


def _detaching(method: Callable[..., Any], places: List[str]) -> Callable[..., Any]:
    """Wraps ``detach`` so that it is seen in an export."""

    def detach(tensor: torch.Tensor) -> Any:
        needs_gradient = tensor.requires_grad or not torch.is_grad_enabled()
        if needs_gradient and tensor.is_floating_point() and _untyped.jit.is_tracing() and _is_computed(tensor):
            places.append(_place(sys._getframe(1)))
            return cast(Any, _Detached).apply(tensor)
        return method(tensor)

    return detach


@contextlib.contextmanager
def _one_way(detached: Optional[List[str]]) -> Iterator[None]:
    """A context manager in which tracing a module fails if the module converts a tensor that depends on its inputs or parameters to a
    Python number, as an ``if`` or a loop does. The places where it detaches one are added to ``detached``, and marked in the export.

    Raises:
        forebay.Error: The module does so; the message says where.
    """
    with _lock:
        own = {name: vars(torch.Tensor).get(name) for name in (*_METHODS, "detach")}
        for name in _METHODS:
            setattr(torch.Tensor, name, _watched(getattr(torch.Tensor, name)))
        if detached is not None:
            setattr(torch.Tensor, "detach", _detaching(torch.Tensor.detach, detached))
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
