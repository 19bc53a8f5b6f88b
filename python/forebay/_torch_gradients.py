"""What autograd does in a module and ONNX does not express: gradients that end, gradients that a module defines, and normalizations whose
statistics stay as they are. While a module is traced, each is written in operators of the domain ``forebay``."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import sys
from types import BuiltinFunctionType, BuiltinMethodType, FrameType, FunctionType, MethodDescriptorType, MethodType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, cast

import torch
import torch.utils.checkpoint
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from ._torch_aliases import Aliases, traced_copy, keep_gradient
from ._torch_constants import Constants
from ._torch_dropping import FUNCTIONS
from ._torch_functions import EXPORTED
from ._torch_mathematics import ended
from ._torch_states import FinalError, States, changes_first, counted, notes_statistics, overwrite_, run_following, stand_for, traced, untraced

# Parts of PyTorch have no types.
_untyped: Any = torch
_tree: Any = _pytree
_batch_norm: Any = _untyped.nn.functional.batch_norm
_OWN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.abspath(__file__)) + os.sep)
#: The names of functions that draw random numbers, apart from dropout.
_RANDOM = frozenset(
    [f"{name}{end}" for name in ("rand", "randn", "randint") for end in ("", "_like")]
    + [f"{name}{end}" for name in ("bernoulli", "normal", "uniform", "exponential", "random", "geometric") for end in ("", "_")]
    + ["multinomial", "poisson", "randperm", "gumbel_softmax"]
)
#: Attributes that the exporter does not know.
_ADJOINTS: Tuple[Any, ...] = (torch.Tensor.H, torch.Tensor.mH, torch.Tensor.mT)
#: How ``Function.apply`` is defined.
_APPLY: Any = vars(torch.autograd.Function)["apply"]


#: Functions that only take the type or the sizes of their second operand.
_LIKE_ANOTHER = frozenset(["to", "type_as", "expand_as", "view_as", "reshape_as"])
#: Functions that return what they are given, in other shapes.
_ONE_BY_ONE = frozenset(["broadcast_tensors", "meshgrid", "atleast_1d", "atleast_2d", "atleast_3d"])


class _Normalization(torch.autograd.Function):
    """Batch normalization in evaluation mode."""

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> torch.Tensor:
        x, weight, bias, mean, variance, epsilon = operands
        return cast(torch.Tensor, _batch_norm(x, mean, variance, weight, bias, False, 0.0, epsilon))

    @staticmethod
    def symbolic(graph: Any, *operands: Any) -> Any:
        """Returns the node of the normalization."""
        return graph.op("forebay::BatchNormalization", *operands[:5], epsilon_f=operands[5]).setType(operands[0].type())


class _Context:
    """What the ``forward`` of an ``autograd.Function`` is given when it is called like any other function."""

    def __init__(self, needs: Tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.saved_tensors: Tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keeps tensors for ``backward``."""
        self.saved_tensors = tensors

    def mark_dirty(self, *_: Any) -> None:
        """Means nothing here, like the following ones."""

    def mark_non_differentiable(self, *_: Any) -> None:
        """See :meth:`mark_dirty`."""

    def set_materialize_grads(self, _: bool) -> None:
        """See :meth:`mark_dirty`."""


class Places:
    """Where a module does what only one exporter can write."""

    def __init__(self) -> None:
        self._found: List[str] = []
        #: Where it draws random numbers other than those of dropout.
        self.draws: List[str] = []
        #: The tensors of others that it uses.
        self.constants = Constants()

    def add(self, what: str) -> None:
        """Adds the line of the module's code that is being run."""
        self._found.append(f"{what} {place(frame_of_the_module())}")

    def refuse(self) -> None:
        """Rejects the module if there are any.

        Raises:
            forebay.Error: There are.
        """
        if self._found:
            raise FinalError(
                f"the module {self._found[0]}, and uses operators that only PyTorch's newer exporter has, which cannot express this. Compute one of "
                "the two outside the module"
            )


class _Noting(TorchFunctionMode):
    """Sees every operation of a module, and notes what only one exporter can write."""

    def __init__(self, trains: bool, places: Places, states: States) -> None:
        super().__init__()
        self._trains = trains
        self._places = places
        self._states = states


class _Watch(_Noting):
    """Sees a module that is traced."""

    def __init__(self, trains: bool, places: Places, states: States) -> None:
        super().__init__(trains, places, states)
        self._aliases = Aliases()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Optional[Dict[str, Any]] = None) -> Any:
        named = kwargs or {}
        if not _untyped.jit.is_tracing():
            return func(*args, **named)
        # Otherwise, the trace would hold the numbers of the example.
        func = counted(func, args)
        notes_statistics(func, args, named, self._states)
        if func is _batch_norm and self._trains:
            func = self._normalize
        elif isinstance(func, (FunctionType, BuiltinFunctionType, MethodDescriptorType)):
            func = EXPORTED.get(func, FUNCTIONS.get(func, func))
        elif getattr(func, "__self__", None) in _ADJOINTS and not args[0].is_complex():
            func = _transposed
        out = named.get("out")
        if isinstance(out, torch.Tensor) and not self._states.sharing(out):
            # The trace would take it for something else.
            result = self.__torch_function__(func, types, args, {key: value for key, value in named.items() if key != "out"})
            if result.shape != out.shape:
                untraced(lambda: out.resize_(result.shape).copy_(result))
                stand_for(out, result)
                return out
            return self.__torch_function__(torch.Tensor.copy_, types, (out, result))
        name = getattr(func, "__name__", "")
        if name in _RANDOM:
            self._places.draws.append(place(frame_of_the_module()))
        if name == "register_hook":
            _refuse_hook()
        target = args[0] if args and isinstance(args[0], torch.Tensor) else None
        before = None if target is None else target._version
        operands = [each for each in _tree.tree_leaves((args, named)) if isinstance(each, torch.Tensor)]
        for each in operands:
            if _is_constant(each):
                self._places.constants.note(each, lambda: place(frame_of_the_module()))
        given = _sources_of_gradients(func, args, named)
        if any(traced(each) is None and not _has_function(each) for each in given):
            raise FinalError(
                f"the module uses a parameter that is not one of its own {place(frame_of_the_module())}. Register what has it (as an attribute, or in an "
                "nn.ModuleList), or call requires_grad_(False) if it is a constant"
            )
        for each in operands:
            self._aliases.use(each)
        # Whether autograd will not see a change of a tensor that has a gradient.
        may_keep = target is not None and target.requires_grad and (func is overwrite_ or not torch.is_grad_enabled() and changes_first(func))
        own = traced_copy(target) if target is not None and may_keep else None
        result = run_following(func, args, named, self._states.target(func, args, named), self._states)
        if target is not None and target._version != before and not self._states.sharing(target):
            self._aliases.follow(target)
        found = [value for value in _tree.tree_leaves(result) if isinstance(value, torch.Tensor)]
        for value in found:
            self._aliases.note(value)
        if given:
            if target is not None and target._version != before and not any(value is target for value in found):
                # It was changed in place.
                found.append(target)
            for value in found:
                # A view that is made without gradients says that it requires one, but has no function for it.
                has_gradient = value.requires_grad and (_has_function(value) or any(value is one for one in given))
                if not has_gradient and value.is_floating_point() and is_computed(value):
                    self._end(value)
        if target is not None and own is not None and target._version != before and not self._states.sharing(target):
            keep_gradient(target, own)
        return result

    def _end(self, value: torch.Tensor) -> None:
        """Lets no gradient pass a tensor. It stays the same object, which others may share."""
        self._places.add("lets no gradient pass")
        marked = ended(value)
        _untyped._C._set_value_trace(value, traced(marked))

    def _normalize(
        self,
        x: torch.Tensor,
        mean: Optional[torch.Tensor],
        variance: Optional[torch.Tensor],
        weight: Optional[torch.Tensor] = None,
        bias: Optional[torch.Tensor] = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        if mean is None or variance is None or _takes_statistics(x, mean, variance, weight, bias, training):
            return _batch_norm(x, mean, variance, weight, bias, training, momentum, eps)
        self._places.add("normalizes with statistics that stay as they are")
        weight = torch.ones_like(mean) if weight is None else weight
        bias = torch.zeros_like(mean) if bias is None else bias
        return cast(Any, _Normalization).apply(x, weight, bias, mean, variance, eps)


class _Look(_Noting):
    """Sees a module without an export."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Optional[Dict[str, Any]] = None) -> Any:
        named = kwargs or {}
        given = _sources_of_gradients(func, args, named)
        if getattr(func, "__name__", "") == "register_hook":
            _refuse_hook()
        func = counted(func, args)
        notes_statistics(func, args, named, self._states)
        self._states.target(func, args, named)
        result = func(*args, **named)
        is_normalization = func is _batch_norm and self._trains
        if is_normalization and not _takes_statistics(*args, **named):
            self._places.add("normalizes with statistics that stay as they are")
        name = getattr(func, "__name__", "")
        takes_values = not name.endswith("_like") and not name.startswith("new_")
        for value in _tree.tree_leaves(result) if given and takes_values else ():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and not value.requires_grad:
                self._places.add("lets no gradient pass")
        return result


def _has_function(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has a gradient function. A view that was changed without gradients, in which it was made, does not say."""
    try:
        return tensor.grad_fn is not None
    except RuntimeError:
        return False


def _is_constant(tensor: torch.Tensor) -> bool:
    """Returns whether the trace has a tensor's values."""
    value = traced(tensor)
    return value is None or value.node().kind() == "prim::Constant"


def _refuse_hook() -> None:
    raise FinalError(
        f"the module adds a hook to a gradient {place(frame_of_the_module())}, which its export does not have; remove it, or compute the gradient "
        "that it makes in an autograd.Function"
    )


def _transposed(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.transpose(-2, -1)


def _takes_statistics(
    x: Any, mean: Any, variance: Any, weight: Any = None, bias: Any = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5
) -> bool:
    """Returns whether batch normalization with these arguments takes its statistics from the batch."""
    return training or mean is None or variance is None


def look(module: nn.Module, inputs: Tuple[Any, ...], trains: bool, places: Places, states: States) -> None:
    """Runs a module and notes what the newer exporter cannot express."""
    with torch.enable_grad(), _Look(trains, places, states):
        module(*inputs)


class _Draws(TorchFunctionMode):
    """Sees where a module draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: List[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Optional[Dict[str, Any]] = None) -> Any:
        if getattr(func, "__name__", "") in _RANDOM:
            self.found.append(place(frame_of_the_module()))
        return func(*args, **(kwargs or {}))


def drawn_only_in_training(module: nn.Module, inputs: Tuple[Any, ...], places: Places) -> Optional[str]:
    """Puts a module in evaluation mode, and returns where it draws random numbers in training but not then."""
    if not places.draws:
        return None
    module.eval()
    draws = _Draws()
    with torch.no_grad(), draws:
        module(*inputs)
    return next((each for each in places.draws if each not in draws.found), None)


@contextlib.contextmanager
def writing_gradients(module: nn.Module, trains: bool, places: Places, states: States) -> Iterator[None]:
    """A context manager in which tracing a module also records where gradients end, and, if it ``trains``, which normalizations keep their
    statistics. Parameters and buffers that it changes stand for their new values from then on. Gradients that the module defines are recorded
    as functions of its operations.

    Raises:
        forebay.Error: The module defines a gradient that cannot be recorded.
    """
    function: Any = torch.autograd.Function
    function.apply = classmethod(_applied)
    kept = _kept_applies(module)
    for names, name, apply in kept:
        names[name] = functools.partial(_applied, apply.__self__)
    try:
        with torch.enable_grad(), _Watch(trains, places, states):
            yield
    finally:
        function.apply = _APPLY
        for names, name, apply in kept:
            names[name] = apply


def _kept_applies(module: nn.Module) -> List[Tuple[Dict[str, Any], str, Any]]:
    """Returns where a module or its source files keep ``apply`` of an ``autograd.Function`` under another name."""
    parts = list(module.modules())
    sources = {kind.__module__ for part in parts for kind in type(part).__mro__ if not kind.__module__.startswith("torch.")}
    places = [vars(sys.modules[source]) for source in sorted(sources) if source in sys.modules]
    places += [vars(part) for part in parts]

    def is_apply(value: Any) -> bool:
        # Other objects can be ones that import a package once they are looked at.
        is_method = type(value) in (MethodType, BuiltinMethodType)
        return is_method and value.__name__ == "apply" and isinstance(value.__self__, type(torch.autograd.Function))

    return [(place, name, value) for place in places for name, value in place.items() if is_apply(value)]


#: Trace nodes that query sizes, which each plan fixes, or that take nothing but the sizes of their operand.
_SIZES = frozenset(
    ["aten::size", "aten::dim", "aten::numel", "aten::len", "aten::_shape_as_tensor", "onnx::Shape", "prim::shape"]
    + [f"aten::{name}_like" for name in ("zeros", "ones", "empty", "rand", "randn", "randint")]
    + [f"aten::new_{name}" for name in ("zeros", "ones", "empty")]
)


def is_computed(tensor: torch.Tensor) -> bool:
    """Returns whether a traced tensor is computed from the values, not just the sizes, of an input or a parameter."""
    return any(value.node().kind() == "prim::Param" for value in sources(tensor))


def keep_input(result: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Returns the result of a module that is traced, so that it depends on an input even if the module does not use it: exporters drop such
    inputs."""
    wanted = traced(given)
    if wanted is None or traced(result) is None or any(value.unique() == wanted.unique() for value in sources(result)):
        return result
    first = given.reshape(-1)[0]
    return result + (first != first).to(result.dtype) * 0


def sources(tensor: torch.Tensor) -> Iterator[Any]:
    """Returns the traced values of which a tensor is computed, except those of which it only has the sizes."""
    values: List[Any] = [traced(tensor)]
    seen = set()
    while values:
        value = values.pop()
        if value is None or value.unique() in seen:
            continue
        seen.add(value.unique())
        yield value
        node = value.node()
        if node.kind() != "prim::Param" and node.kind() not in _SIZES:
            values.extend(node.inputs())


def place(frame: Optional[FrameType]) -> str:
    """Describes the source location of a frame."""
    if frame is None:
        return "in code that is not known"
    code, line = frame.f_code, linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"in {code.co_name}, {code.co_filename}, line {frame.f_lineno}" + (f" (`{line}`)" if line else "")


def frame_of_the_module() -> Optional[FrameType]:
    """Returns the innermost frame that is neither PyTorch's nor ours."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and is_pytorchs_or_ours(frame):
        frame = frame.f_back
    return frame


def is_pytorchs_or_ours(frame: FrameType) -> bool:
    """Returns whether a frame belongs to PyTorch or to this package."""
    return frame.f_code.co_filename.startswith(_OWN)


def _with_gradient(values: Any) -> List[torch.Tensor]:
    """Returns the tensors that require a gradient."""
    return [value for value in _tree.tree_leaves(values) if isinstance(value, torch.Tensor) and value.requires_grad]


def _sources_of_gradients(func: Any, args: Tuple[Any, ...], named: Dict[str, Any]) -> List[torch.Tensor]:
    """Returns the operands that require a gradient and on whose values all results of a function depend."""
    name = getattr(func, "__name__", "")
    return [] if name in _ONE_BY_ONE else _with_gradient(args[:1] if name in _LIKE_ANOTHER else (args, named))


def _applied(kind: Any, *operands: Any, **named: Any) -> Any:
    """Takes the place of the ``apply`` of every ``autograd.Function``."""

    def apply(*given: Any) -> Any:
        return _APPLY.__get__(None, kind)(*given, **named)

    if kind is torch.utils.checkpoint.CheckpointFunction:
        # It computes twice what it is given.
        return operands[0](*operands[2:])
    if not _untyped.jit.is_tracing() or hasattr(kind, "symbolic") or not torch.is_grad_enabled() or not _with_gradient(operands):
        return apply(*operands)
    factors = untraced(lambda: _factors(kind, apply, operands))
    if factors is None:
        return _forward(kind, operands)[0]
    # The result has the gradients of products with factors that do not depend on anything.
    with torch.no_grad():
        result, context = _forward(kind, operands)
        gradients = _backward(kind, context, torch.ones_like(result))
    for operand, gradient, has_factor in zip(operands, gradients, factors):
        if has_factor:
            product = operand * gradient
            result = result + (product - product.detach())
    return result


def _factors(kind: Any, apply: Callable[..., Any], operands: Tuple[Any, ...]) -> Optional[List[bool]]:
    """Returns whether each operand has a gradient, if the gradients that a function defines are products with the gradient of its result, or
    ``None`` if they are the gradients of its operations.

    Raises:
        forebay.Error: They are neither.
    """

    def given() -> Tuple[Any, ...]:
        # A product, so that it can be changed in place.
        is_float = [isinstance(each, torch.Tensor) and each.requires_grad for each in operands]
        return tuple(each.detach().clone().requires_grad_() if is_one else each for each, is_one in zip(operands, is_float))

    def gradients(run: Callable[..., Any], cotangents: Optional[List[torch.Tensor]] = None) -> Tuple[List[Any], List[torch.Tensor]]:
        own = given()
        result = run(*(each * 1 if isinstance(each, torch.Tensor) and each.requires_grad else each for each in own))
        outputs = _with_gradient(result)
        sources = [each for each in own if isinstance(each, torch.Tensor) and each.requires_grad]
        cotangents = cotangents or [torch.randn_like(output) for output in outputs]
        found = iter(torch.autograd.grad(outputs, sources, cotangents, allow_unused=True))
        return [next(found) if isinstance(each, torch.Tensor) and each.requires_grad else None for each in own], cotangents

    defined, cotangents = gradients(apply)
    try:
        computed, _ = gradients(lambda *own: _forward(kind, own)[0], cotangents)
    except RuntimeError:
        # Its operations have no gradient.
        computed = [None] * len(defined)
    if all(_is_close(one, other) for one, other in zip(defined, computed)):
        return None
    if len(cotangents) == 1 and isinstance(apply(*operands), torch.Tensor):
        factors, _ = gradients(apply, [torch.ones_like(cotangents[0])])
        shape = cotangents[0].shape
        products = [None if each is None or each.shape != shape else each * cotangents[0] for each in factors]
        if all(_is_close(one, other) for one, other in zip(defined, products)):
            return [each is not None for each in factors]
    raise FinalError(
        f"the module defines the gradient of {kind.__name__}, {place(frame_of_the_module())}, which is neither that of its operations nor the "
        "gradient of its result times a factor for each element; an export cannot express it. Compute this part outside the module, or let "
        "autograd compute its gradient"
    )


def _is_close(one: Optional[torch.Tensor], other: Optional[torch.Tensor]) -> bool:
    if one is None or other is None:
        return all(each is None or not bool(each.any()) for each in (one, other))
    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True))


def _forward(kind: Any, operands: Tuple[Any, ...]) -> Tuple[Any, _Context]:
    """Computes the result of an ``autograd.Function`` by its operations."""
    context = _Context(tuple(isinstance(each, torch.Tensor) and each.requires_grad for each in operands))
    if kind.setup_context is torch.autograd.Function.setup_context:
        return kind.forward(context, *operands), context
    result = kind.forward(*operands)
    kind.setup_context(context, operands, result)
    return result, context


def _backward(kind: Any, context: _Context, cotangent: torch.Tensor) -> Tuple[Any, ...]:
    gradients = kind.backward(context, cotangent)
    return gradients if isinstance(gradients, tuple) else (gradients,)
