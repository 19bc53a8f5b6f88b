"""Detection of data-dependent control flow, which tracing would record for one batch and repeat for all."""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
import warnings
from types import FrameType
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

from . import _torch_functions
from ._torch_gradients import FinalError, Places, frame_of_the_module, is_computed, is_pytorchs_or_ours, place, writing_gradients
from ._torch_states import States, untraced
from .errors import Error

# Parts of PyTorch have no types.
_untyped: Any = torch
#: The methods that convert a tensor to Python numbers or to an array of them.
_METHODS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "__array__")
#: Those that use its first size as a Python number.
_LENGTHS = ("__len__", "__iter__")
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
    with warnings.catch_warnings(record=True) as caught, _untyped.random.fork_rng(devices=[]), _quiet():
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
def _quiet() -> Iterator[None]:
    """A context manager in which an exporter that fails does not print its graph to standard output. PyTorch has a flag for this, but turns it
    on."""
    compiled: Any = _untyped._C
    turn_on = getattr(compiled, "_jit_set_onnx_log_enabled", None)
    if turn_on is None:
        yield
        return
    was_on = compiled._jit_is_onnx_log_enabled()
    turn_on(False)
    compiled._jit_set_onnx_log_enabled = lambda _: None
    try:
        yield
    finally:
        compiled._jit_set_onnx_log_enabled = turn_on
        turn_on(was_on)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """A context manager in which what ``torch.compile`` has compiled runs as it was written, so that it can be exported."""
    if not hasattr(torch, "compiler") or not hasattr(torch.compiler, "set_stance"):
        # Before PyTorch 2.6.
        yield
        return
    with _untyped.compiler.set_stance("force_eager"):
        yield


class Conversion(NamedTuple):
    """A size that a module converts to a Python number while it is traced."""

    #: The number, as text.
    number: str
    #: Where the module does so.
    place: str


@contextlib.contextmanager
def one_way() -> Iterator[List[Conversion]]:
    """A context manager in which tracing a module fails if the module converts a tensor that depends on its inputs or parameters to a
    Python number, as an ``if`` or a loop does. Returns the list to which conversions of sizes are added.

    Raises:
        forebay.Error: The module does so; the message says where.
    """
    sizes: List[Conversion] = []
    with _lock:
        own = {name: vars(torch.Tensor).get(name) for name in (*_METHODS, *_LENGTHS)}
        for name in own:
            setattr(torch.Tensor, name, _watched(getattr(torch.Tensor, name), name in _LENGTHS, sizes))
        try:
            yield sizes
        finally:
            for name, method in own.items():
                if method is None:
                    delattr(torch.Tensor, name)
                else:
                    setattr(torch.Tensor, name, method)


def _watched(method: Callable[..., Any], is_length: bool, sizes: List[Conversion]) -> Callable[..., Any]:
    """Wraps a method so that it first checks what its tensor is computed from."""

    def watched(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        caller = sys._getframe(1)
        # PyTorch's own layers trace as they should.
        is_counted = caller.f_globals.get("__name__") == _torch_functions.__name__ or not is_pytorchs_or_ours(caller)
        if not is_counted or not _untyped.jit.is_tracing():
            return method(tensor, *arguments, **named)
        where = place(frame_of_the_module())
        if is_length:
            sizes.append(Conversion(str(untraced(lambda: tensor.shape[:1])), where))
        elif is_computed(tensor):
            raise FinalError(
                f"the module converts a tensor to a Python number {where}. Its export records a single path: what an `if`, a "
                "loop or `item()` decides for one batch would apply to all of them. Use torch.where or other operations on tensors instead, "
                "or compile the parts between the decisions with forebay.torch.compile"
            )
        elif not _is_text(caller):
            sizes.append(Conversion(str(untraced(tensor.tolist)), where))
        return method(tensor, *arguments, **named)

    return watched


def _is_text(frame: FrameType) -> bool:
    """Returns whether a frame makes a part of an f-string, as assertions about shapes do."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(("FORMAT", "CONVERT"))


def depends_on_batch(module: nn.Module, inputs: Tuple[torch.Tensor, ...], sizes: Sequence[Conversion], states: States) -> Optional[str]:
    """Returns where a module converts sizes to other numbers if the batch has another size, as its export would not, or ``None`` if the numbers are
    the same or PyTorch cannot run other batches."""
    if not sizes:
        return None

    def conversions(given: Tuple[torch.Tensor, ...]) -> List[Conversion]:
        with one_way() as found, writing_gradients(module, True, Places(), states):
            _untyped.jit._get_trace_graph(module, given)
        return found

    count = int(inputs[0].shape[0])
    # Modules can do something else while they are exported, so this is not ``sizes``.
    own = conversions(inputs)
    for others in ([*range(count)] * 2, [*range(count), 0], [0]):
        given = tuple(value.detach()[others].clone() for value in inputs)
        try:
            with torch.no_grad():
                module(*given)
        except Exception:
            continue
        found = conversions(given)
        for before, now in zip(own, found):
            if before != now:
                return before.place
        if len(own) != len(found):
            return max(own, found, key=len)[min(len(own), len(found))].place
    return None
