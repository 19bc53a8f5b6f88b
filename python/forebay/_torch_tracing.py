"""Detection of data-dependent control flow, which tracing would record for one batch and repeat for all."""

from __future__ import annotations

import contextlib
import dis
import mmap
import os
import pickle
import random
import sys
import tempfile
import threading
import warnings
from itertools import zip_longest
from types import FrameType
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from . import _torch_functions
from ._torch_gradients import frame_of_the_module, is_computed, is_pytorchs_or_ours, place
from ._torch_states import FinalError, untraced
from .errors import Error, InvalidArgument

# Parts of PyTorch have no types.
_untyped: Any = torch
#: The methods that convert a tensor to Python numbers or to an array of them.
_METHODS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "__array__")
#: Those that use its first size as a Python number.
_LENGTHS = ("__len__", "__iter__")
#: The least number of samples in a batch of which a half is tried first.
_HALVED_MIN = 8
_lock = threading.RLock()


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """A context manager in which a module can be exported: random numbers stay as they are, and attention is computed from operators that
    exporters know.

    Raises:
        forebay.InvalidArgument: The module draws random numbers that its export would repeat.
        forebay.Error: The exporter warned that its result computes something else.
    """
    drawn = pickle.dumps((random.getstate(), np.random.get_state(legacy=False)))
    fast: Any = _untyped.backends.mha
    was_fast = fast.get_fastpath_enabled()
    with warnings.catch_warnings(record=True) as caught, _untyped.random.fork_rng(devices=[]), _quiet():
        warnings.simplefilter("always")
        fast.set_fastpath_enabled(False)
        try:
            yield
        finally:
            fast.set_fastpath_enabled(was_fast)
            now = pickle.dumps((random.getstate(), np.random.get_state(legacy=False)))
            if now != drawn:
                of_python, of_numpy = pickle.loads(drawn)
                random.setstate(of_python)
                np.random.set_state(of_numpy)
    if now != drawn:
        raise InvalidArgument(
            "the module draws random numbers with Python's random or with NumPy when it runs, but its export has those of one run; draw them with "
            "torch, or pass them as inputs"
        )
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


def depends_on_batch(
    module: nn.Module,
    inputs: Tuple[torch.Tensor, ...],
    path: str,
    is_open: bool,
    own: Sequence[Conversion],
    write: Callable[[Tuple[torch.Tensor, ...], str], Sequence[Conversion]],
) -> Optional[str]:
    """Returns how the export of a module depends on the size of the batch, or ``None`` if it does not or PyTorch cannot run other batches.

    Args:
        module: The module.
        inputs: The inputs that it was exported with.
        path: The export.
        is_open: Whether it is for all sizes. Otherwise, its constants are those of one size.
        own: The conversions while it was exported.
        write: Exports it with other inputs to another path and returns the conversions.
    """
    count = int(inputs[0].shape[0])
    # Half of a batch takes less memory.
    halves = [[*range(count // 2)]] if count >= _HALVED_MIN else []
    for others in (*halves, [*range(count)] * 2, [*range(count), 0], [0]):
        given = tuple(value.detach()[others].clone() for value in inputs)
        try:
            with torch.no_grad():
                module(*given)
        except Exception:
            continue
        with tempfile.TemporaryDirectory(prefix="forebay-") as folder:
            other = os.path.join(folder, "module.onnx")
            found = write(given, other)
            if len(own) != len(found):
                return _as_number(max(own, found, key=len)[min(len(own), len(found))])
            for before, now in zip(own, found):
                if before != now:
                    return _as_number(before)
            difference = _difference(path, other, is_open)
        if difference is not None:
            return f"for {len(others)} samples, the export has another node '{difference}', because the module uses a number that depends on it"
        if not own:
            # No decision can depend on the number.
            break
    return None


def _as_number(conversion: Conversion) -> str:
    return f"the module uses it as a Python number {conversion.place}"


def _difference(one: str, other: str, with_constants: bool) -> Optional[str]:
    """Returns the name of the first node in which two ONNX files differ."""
    for left, right in zip_longest(_nodes(one, with_constants), _nodes(other, with_constants), fillvalue=b""):
        if left != right:
            return _text(left or right, _NAME_OF_NODE)
    return None


#: The numbers of fields in ONNX files: ``ModelProto.graph``, ``GraphProto.node``, ``NodeProto.name`` and ``NodeProto.op_type``.
_GRAPH, _NODE, _NAME_OF_NODE, _KIND_OF_NODE = 7, 1, 3, 4


def _nodes(path: str, with_constants: bool) -> Iterator[bytes]:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents, memoryview(contents) as whole:
        for graph in _fields(whole, _GRAPH):
            with graph:
                for node in _fields(graph, _NODE):
                    with node:
                        found = bytes(node)
                    if with_constants or _text(found, _KIND_OF_NODE) != "Constant":
                        yield found


def _text(message: bytes, number: int) -> str:
    return next((bytes(field).decode(errors="replace") for field in _fields(memoryview(message), number)), "")


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Returns the fields of a serialized message that have a number and a length."""
    place = 0

    def number() -> int:
        nonlocal place
        found, shift = 0, 0
        while True:
            byte = message[place]
            place += 1
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found

    while place < len(message):
        tag = number()
        kind = tag & 7
        if kind == _VARYING:
            number()
            continue
        size = number() if kind == _OF_A_LENGTH else _FIXED[kind]
        place += size
        if kind == _OF_A_LENGTH and tag >> 3 == wanted:
            yield message[place - size : place]


#: Kinds of fields: with a number of varying size, with a length, and with a fixed number of bytes.
_VARYING, _OF_A_LENGTH = 0, 2
_FIXED = {1: 8, 5: 4}
