"""Modules that Forebay runs inside larger PyTorch programs."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, cast

import torch
from torch import nn
from torch.utils import _pytree

from . import _forebay, _options
from ._arrays import Native, from_native, to_native
from ._model import native_model, of_module
from ._options import EngineOptions, Size
from ._torch_attributes import constants, kept, warn_about
from ._torch_constants import Constants
from ._torch_embeddings import padding_rows_stay
from ._torch_gradients import Places, look, writing_gradients
from ._torch_states import NEXT, Carried, FinalError, Noticing, States, add_to_names, averages_are_computed, refused, slots, version
from ._torch_tracing import as_written, exporting, one_way
from .errors import Error, InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Parts of PyTorch have no types.
_untyped: Any = torch
_tree: Any = _pytree
_OPSET = 18
_PREFIX = "module."
_STEP = "forebay.step"
_COUNTER = "num_batches_tracked"
_GRADIENT = "gradient:"
#: Threads that share a module take turns at updating it, because counters are read before they are written.
_updating = threading.Lock()
_HALF = (torch.float16, torch.bfloat16)
#: The number of kinds of calls for which a module keeps its plans. Each has an export with all weights on disk.
_PASSES_MAX = 16


class CompiledModule(nn.Module):
    """A module whose forward and backward passes Forebay runs within a memory budget (:func:`forebay.torch.compile`).

    It is called like the original module, with tensors, and returns the same outputs. The original is :attr:`module`. Each call reads its
    parameters and buffers, accumulates gradients in them and updates running statistics in them, so optimizers, ``state_dict`` and other
    layers notice no difference.
    """

    module: nn.Module

    def __init__(self, module: nn.Module, engine: Dict[str, Any], seed: int) -> None:
        super().__init__()
        self.module = module
        self._engine = engine
        self._seed = seed
        self._calls = _Calls()
        self._passes: Dict[Any, _Passes] = {}

    def __getstate__(self) -> Dict[str, Any]:
        """Returns the state to copy or pickle: everything but the plans, which are made again."""
        return {**self.__dict__, "_passes": {}}

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Runs the module."""
        if _untyped.jit.is_tracing():
            # It is part of a module that is exported.
            return self.module(*arguments, **named)
        if _untyped._C._functorch.peek_interpreter_stack() is not None:
            raise InvalidArgument("a compiled module does not run within the transforms of torch.func, such as vmap; use the module itself there")
        call = _Call(arguments, named)
        if any(value.numel() == 0 for value in call.tensors):
            # There is nothing to compute, and kernels have no empty tensors.
            return self.module(*arguments, **named)
        inputs = tuple(_travelling(value) for value in call.tensors)
        refuse_parts(self.module)
        if torch.is_grad_enabled():
            _refuse_other_gradients(self.module, inputs)
        # What autocast converts is part of the plans.
        parts = tuple(id(each) for each in _untyped.nn.Module.modules(self.module))
        key = (constants(self.module), _autocast(), tuple((value.dtype, value.requires_grad) for value in inputs), call.key, parts)
        passes = self._passes.get(key)
        if passes is None or passes.is_stale(self.module):
            # Hooks on saved tensors, such as those of checkpoints, are not to see those of the export. Changes of tensors are only counted outside of
            # inference mode.
            with torch.inference_mode(False), torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged):
                passes = _Passes(self.module, call, inputs, self._engine)
        # The plans used last come last, and the first ones go. A call keeps its plans for its backward pass.
        self._passes.pop(key, None)
        self._passes[key] = passes
        while len(self._passes) > _PASSES_MAX:
            self._passes.pop(next(iter(self._passes)), None)
        self._calls.count += 1
        step = torch.tensor([self._calls.count, self._seed], dtype=torch.int64)
        tensors = passes.tensors(self.module, inputs, step)
        statistics: Dict[str, torch.Tensor] = {}
        outputs: Tuple[torch.Tensor, ...] = cast(Any, _Run).apply(passes, statistics, *tensors)
        needs_gradients = torch.is_grad_enabled() and any(value.requires_grad for value in tensors)
        if needs_gradients and any(output.dtype == torch.float64 for output in outputs):
            raise InvalidArgument(
                "the module returns float64, but a compiled module only has gradients in float32; convert the output (.float()), or call it "
                "within torch.no_grad()"
            )
        passes.update_statistics(self.module, statistics)
        return passes.restore(outputs)


class _Calls:
    """The number of calls of a compiled module, which is not an attribute of a module like those that plans depend on."""

    def __init__(self) -> None:
        self.count = 0


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Run(torch.autograd.Function):
    """Runs the forward pass by one plan and the backward pass by another, which recomputes the forward pass."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        passes: _Passes = arguments[0]
        tensors: Tuple[torch.Tensor, ...] = arguments[2:]
        outputs, statistics = passes.forwards(tensors)
        arguments[1].update(statistics)
        ctx.passes = passes
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(output for output in outputs if output.dtype != torch.float32))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        passes: _Passes = ctx.passes
        tensors: Tuple[torch.Tensor, ...] = ctx.saved_tensors
        with torch.no_grad():
            found = passes.backwards(tensors, gradients, ctx.needs_input_grad[2:])
        if torch.is_grad_enabled():
            # They can be used, but not differentiated.
            found = [None if each is None else cast(Any, _Once).apply(each, *tensors, *gradients) for each in found]
        return (None, None, *found)


class _Once(torch.autograd.Function):
    """Returns its first operand, and rejects gradients of it."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *_: Any) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise InvalidArgument(
            "a compiled module has no gradients of gradients, as gradient penalties and Hessians need; use the module itself for them"
        )


class _Call:
    """The arguments of a module: tensors, which are inputs of its plans, and other values, which are constants of the plans."""

    def __init__(self, arguments: Tuple[Any, ...], named: Dict[str, Any]) -> None:
        self._leaves, self._arrangement = _tree.tree_flatten((arguments, named))
        for value in self._leaves:
            if value is not None and not isinstance(value, (torch.Tensor, bool, int, float, str, torch.dtype, torch.device)):
                raise InvalidArgument(
                    f"a compiled module accepts tensors, numbers and strings, in tuples, lists and dictionaries, not {type(value).__name__}"
                )
        #: The tensors, in order.
        self.tensors: Tuple[torch.Tensor, ...] = tuple(value for value in self._leaves if isinstance(value, torch.Tensor))
        if not self.tensors:
            kinds = ", ".join(type(value).__name__ for value in self._leaves)
            raise InvalidArgument(f"a compiled module requires at least one tensor, but was given {kinds or 'nothing'}")
        described = [
            (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else (type(value), value) for value in self._leaves
        ]
        #: The key of the plans for these arguments.
        self.key: Any = (repr(self._arrangement), tuple(described))

    def arguments(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Returns the positional and named arguments with other tensors."""
        left = iter(tensors)
        leaves = [next(left) if isinstance(value, torch.Tensor) else value for value in self._leaves]
        return _tree.tree_unflatten(leaves, self._arrangement)

    def without_tensors(self) -> _Call:
        """Returns a copy that keeps no tensors, for use with other ones."""
        call = _Call.__new__(_Call)
        kept = [torch.empty(0) if isinstance(value, torch.Tensor) else value for value in self._leaves]
        call._leaves, call._arrangement, call.tensors, call.key = kept, self._arrangement, (), self.key
        return call


class _Flat(nn.Module):
    """A wrapper that makes a module take tensors and return a flat tuple of tensors, both as they travel between PyTorch and the plans."""

    def __init__(self, module: nn.Module, call: _Call, types: Sequence[torch.dtype]) -> None:
        super().__init__()
        self.module = module
        self.call = call
        self.types = list(types)
        #: What the module returned the last time, with the types of tensors in their place.
        self.outputs: List[Any] = []
        self.arrangement: Any = None
        #: What the module changes, with its parameters and buffers, while it is traced.
        self.carried: Tuple[List[str], Optional[States]] = ([], None)

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Returns what the exporter takes names from, with buffers that are not saved."""
        found = super().state_dict(*arguments, **named)
        names, states = self.carried
        if states is not None:
            add_to_names(found, named.get("prefix", ""), names, states)
        return found

    def forward(self, *inputs: Any) -> Any:
        names, states = self.carried
        carried = None if states is None else Carried(names, states)
        own = [value if value.dtype == dtype else value.to(dtype) for value, dtype in zip(inputs, self.types)]
        arguments, named = self.call.arguments(own)
        outputs, arrangement = _tree.tree_flatten(self.module(*arguments, **named))
        if _untyped.jit.is_tracing() and len(outputs) == len(self.outputs):
            # A trace has tensors for sizes, which are numbers otherwise, as in the run before.
            outputs = [output if isinstance(before, torch.dtype) else before for output, before in zip(outputs, self.outputs)]
        self.arrangement = arrangement
        for output in outputs:
            if output is not None and not isinstance(output, (torch.Tensor, bool, int, float, str)):
                raise InvalidArgument(
                    f"a compiled module must return tensors, in tuples, lists or dictionaries, not {type(output).__name__}"
                )
        tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
        if not tensors:
            raise InvalidArgument("a compiled module must return at least one tensor")
        self.outputs = [output.dtype if isinstance(output, torch.Tensor) else output for output in outputs]
        travelling = tuple(output.float() if output.dtype in _HALF else output for output in tensors)
        return travelling if carried is None else (*travelling, *carried.next())


class _Passes:
    """The plans of a module for arguments of certain sizes."""

    def __init__(
        self, module: nn.Module, call: _Call, inputs: Tuple[torch.Tensor, ...], engine: Dict[str, Any]
    ) -> None:
        self._engine = engine
        self._training = is_training(module)
        folder = tempfile.mkdtemp(prefix="forebay-")
        # Weights can be read from the file for as long as plans exist.
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        flat = _Flat(module, call.without_tensors(), [value.dtype for value in call.tensors])
        path = os.path.join(folder, "module.onnx")
        self._inputs = [f"input_{index}" for index in range(len(inputs))]
        exported = _export(flat, inputs, self._inputs, path)
        self._outputs, self._counts, self._lost = exported.outputs, exported.counts, exported.lost
        self._carried = frozenset(exported.carried)
        self._arrangement, self._template = flat.arrangement, flat.outputs
        self._model = of_module(path)
        self._forwards = self._session("forwards")
        self._backwards: Optional[_forebay.Session] = None
        #: The inputs of the plans, in the order in which tensors are passed.
        self._names = [name for name, _, _ in self._forwards.inputs()]
        own = dict(module.named_parameters(remove_duplicate=False))
        buffers = dict(module.named_buffers(remove_duplicate=False))
        for name in self._names:
            known = name in self._inputs or name == _STEP or name[len(_PREFIX) :] in own or name[len(_PREFIX) :] in buffers
            if not known or (name not in self._inputs and name != _STEP and not name.startswith(_PREFIX)):
                raise exported.failure or Error(
                    f"the export has a weight '{name}', which is neither a parameter nor a buffer of the module; the exporter changed "
                    "it, and its gradient could not be passed back"
                )
        unused = [name for name, parameter in own.items() if parameter.requires_grad and _PREFIX + name not in self._names]
        shared = {id(own[name[len(_PREFIX) :]]) for name in self._names if name[len(_PREFIX) :] in own}
        unused = [name for name in unused if id(own[name]) not in shared]
        if unused:
            warnings.warn(f"the outputs do not depend on {', '.join(unused)}: these parameters get no gradients", stacklevel=4)
        # Other buffers are constants of the plans, except for counters, which no output depends on.
        taken = {name[len(_PREFIX) :] for name in self._names}
        is_constant = {name: name not in taken and not name.endswith(_COUNTER) for name in buffers}
        self._constants = {name: version(buffer) for name, buffer in buffers.items() if is_constant[name]}
        self._others = exported.constants
        updated = {name[len(NEXT) + len(_PREFIX) :] for name, _, _ in self._forwards.outputs() if name.startswith(NEXT)}
        refuse_unchanged([name[len(_PREFIX) :] for name in exported.changed if name[len(_PREFIX) :] not in updated])

    def _session(self, part: str) -> _forebay.Session:
        return _forebay.Session(native_model(self._model), self._engine, _options.open_sizes(None, None), part, self._training)

    def is_stale(self, module: nn.Module) -> bool:
        """Returns whether a buffer, or a tensor of others, that the plans hold as a constant has changed."""
        buffers = dict(module.named_buffers(remove_duplicate=False))
        is_changed = any(name not in buffers or version(buffers[name]) != state for name, state in self._constants.items())
        return is_changed or self._others.changed() is not None

    def tensors(self, module: nn.Module, inputs: Tuple[Any, ...], step: torch.Tensor) -> List[torch.Tensor]:
        """Returns the current inputs of the plans."""
        parameters = dict(module.named_parameters(remove_duplicate=False))
        buffers = dict(module.named_buffers(remove_duplicate=False))
        given: Dict[str, torch.Tensor] = {**dict(zip(self._inputs, inputs)), _STEP: step}
        found: List[torch.Tensor] = []
        for name in self._names:
            own = name[len(_PREFIX) :]
            if name in given:
                found.append(given[name])
            elif own in parameters and name not in self._carried:
                found.append(parameters[own])
            else:
                # A copy, because it changes before the backward pass reads it.
                found.append((parameters if own in parameters else buffers)[own].detach().clone())
        return found

    def forwards(self, tensors: Sequence[torch.Tensor]) -> Tuple[Tuple[torch.Tensor, ...], Dict[str, torch.Tensor]]:
        """Runs the forward pass and returns the module's outputs and the next values of running statistics."""
        found = _run(self._forwards, dict(zip(self._names, tensors)))
        statistics = {name: tensor for name, tensor in found.items() if name.startswith(NEXT)}
        like = next((tensor for name, tensor in zip(self._names, tensors) if name != _STEP), None)
        outputs = tuple(found[name] for name in self._outputs)
        return outputs if like is None else tuple(output.to(like.device) for output in outputs), statistics

    def backwards(
        self, tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], needed: Sequence[bool]
    ) -> List[Optional[torch.Tensor]]:
        """Returns the gradients of the inputs of the plans, given those of the outputs."""
        self._lost.refuse()
        if self._backwards is None:
            self._backwards = self._session("backwards")
        wanted = {name for name, _, _ in self._backwards.inputs()}
        given = dict(zip(self._names, tensors))
        given.update({_GRADIENT + name: gradient for name, gradient in zip(self._outputs, gradients)})
        found = _run(self._backwards, {name: tensor for name, tensor in given.items() if name in wanted})
        results: List[Optional[torch.Tensor]] = []
        for name, tensor, is_needed in zip(self._names, tensors, needed):
            gradient = found.get(_GRADIENT + name) if is_needed else None
            results.append(None if gradient is None else gradient.to(tensor.device))
        return results

    def update_statistics(self, module: nn.Module, statistics: Dict[str, torch.Tensor]) -> None:
        """Updates running statistics to their next values."""
        if not statistics:
            return
        places = slots(module)
        owners: Dict[str, None] = {}
        with _updating, torch.no_grad():
            for name, tensor in statistics.items():
                own = name[len(NEXT) :]
                places[own[len(_PREFIX) :]].get().copy_(tensor)
                if own not in self._carried:
                    owners[own[len(_PREFIX) :].rpartition(".")[0]] = None
            add_counts(module, owners, self._counts, _PREFIX)

    def restore(self, outputs: Sequence[torch.Tensor]) -> Any:
        """Restores the structure and the types of the module's outputs."""
        left = iter(outputs)
        leaves = [next(left).to(value) if isinstance(value, torch.dtype) else value for value in self._template]
        return _tree.tree_unflatten(leaves, self._arrangement)


def _travelling(tensor: torch.Tensor) -> torch.Tensor:
    """Returns an input as plans take it: in float32 if it has 16 bits and needs a gradient."""
    return tensor.float() if tensor.dtype in _HALF and tensor.requires_grad and torch.is_grad_enabled() else tensor


def _autocast() -> Tuple[Any, ...]:
    """Returns the types to which autocast converts, by kind of device."""
    if hasattr(torch, "get_autocast_dtype"):
        return tuple(_untyped.is_autocast_enabled(kind) and _untyped.get_autocast_dtype(kind) for kind in ("cpu", "cuda"))
    # Before PyTorch 2.4.
    cpu = _untyped.is_autocast_cpu_enabled() and _untyped.get_autocast_cpu_dtype()
    return cpu, _untyped.is_autocast_enabled() and _untyped.get_autocast_gpu_dtype()


def is_training(module: nn.Module) -> bool:
    """Returns whether any part of a module is in training mode."""
    return any(each.training for each in module.modules())


def _refuse_other_gradients(module: nn.Module, inputs: Sequence[torch.Tensor]) -> None:
    """Rejects gradients of types other than float32, which would silently be missing."""
    named = [(f"'{name}'", parameter) for name, parameter in module.named_parameters()]
    for name, tensor in [*named, *((f"input {place}", value) for place, value in enumerate(inputs))]:
        if tensor.requires_grad and tensor.dtype != torch.float32:
            kind = str(tensor.dtype).rpartition(".")[2]
            raise InvalidArgument(
                f"{name} is {kind} and requires a gradient, but a compiled module only has gradients in float32; convert it (module.float()), or "
                "call it within torch.no_grad()"
            )


def _run(session: _forebay.Session, given: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    found = session.run({name: to_native(tensor) for name, tensor in given.items()})
    return {name: _to_torch(native) for name, native in found.items()}


def _to_torch(native: Native) -> torch.Tensor:
    name, shape, data = native
    if name != "bfloat16":
        return cast(torch.Tensor, _untyped.from_numpy(from_native(native)))
    halves: torch.Tensor = _untyped.from_numpy(data.view("int16"))
    return halves.view(torch.bfloat16).reshape(shape)


class _Exported(NamedTuple):
    """What is known of a module that was exported."""

    #: The names of its outputs.
    outputs: List[str]
    #: The names of the parameters and buffers that a call changes.
    changed: List[str]
    #: Those among them that the module changes in another way than normalizations change their statistics.
    carried: List[str]
    #: By how much a call raises counters of batches.
    counts: Dict[str, int]
    #: Where its gradients are not those of the export.
    lost: Places
    #: The tensors of others whose values it has.
    constants: Constants
    #: Why the exporter that is tried first could not export it.
    failure: Optional[Error]


def _export(flat: _Flat, inputs: Tuple[Any, ...], names: List[str], path: str) -> _Exported:
    """Writes a module as ONNX. The module is left unchanged."""
    trains = is_training(flat.module)
    modes = [(each, each.training) for each in flat.modules()]
    states = States(flat)
    watched = tuple(value.detach().clone().requires_grad_(value.requires_grad) for value in inputs)
    mode = torch.onnx.TrainingMode.PRESERVE

    def write(**way: Any) -> None:
        named = [*outputs, *(f"{NEXT}{name}" for name in carried)]
        with exporting():
            _untyped.onnx.export(
                flat, watched, path, training=mode, opset_version=_OPSET, input_names=names, output_names=named, **way
            )

    try:
        with kept(flat.module), as_written(), padding_rows_stay(flat, True), averages_are_computed(flat):
            # In evaluation mode, the exporter would merge parameters that happen to be equal into one initializer. So the module keeps its
            # mode, but its wrapper does not.
            flat.training = True
            # Run once to find the number of outputs.
            own = tuple(value.detach().clone() for value in inputs)
            versions = [value._version for value in own]
            with exporting(), torch.no_grad(), Noticing(states), kept(flat.module) as attributes:
                outputs = [f"output_{index}" for index in range(len(flat(*own)))]
                counting = attributes.check(lambda: flat(*own))
            warn_about(counting)
            if versions != [value._version for value in own]:
                raise InvalidArgument(
                    "the module changes its input in place, which its export does not; use operations that are not in place, such as "
                    "nn.ReLU(inplace=False)"
                )
            carried, counts = states.carried(), states.counts()
            changed = [name for name in states.changed() if name not in counts]
            states.restore()
            states = States(flat)
            flat.carried = carried, states if carried else None
            places, lost = Places(), Places()
            failure: Optional[Error] = None
            try:
                with one_way(), writing_gradients(flat, trains, places, states):
                    write(dynamo=False, do_constant_folding=False)
            except (InvalidArgument, FinalError, MemoryError):
                raise
            except Exception as error:
                flat.carried = [], None
                look(flat, watched, trains, places, states)
                if carried:
                    # The other exporter cannot express what a module changes.
                    raise
                if trains:
                    places.refuse()
                # The other exporter has more operators.
                try:
                    write(dynamo=True, optimize=False, verbose=False)
                except Exception:
                    raise error from None
                lost = places
                failure = error if isinstance(error, Error) else Error(f"PyTorch cannot export the module: {error}")
    except (Error, MemoryError):
        raise
    except Exception as error:
        raise Error(f"PyTorch cannot export the module: {error}") from error
    finally:
        for each, was in modes:
            each.training = was
        states.restore()
    places.constants.settle(flat.module)
    return _Exported(outputs, changed, carried, counts, lost, places.constants, failure)


def counters(module: nn.Module, owners: Iterable[str]) -> List[Tuple[str, torch.Tensor]]:
    """Returns the counters of batches of normalizations, with the names of these."""
    found = [(owner, getattr(module.get_submodule(owner), _COUNTER, None)) for owner in owners]
    return [(owner, counter) for owner, counter in found if counter is not None]


def add_counts(module: nn.Module, owners: Iterable[str], counts: Dict[str, int], prefix: str, calls: int = 1) -> None:
    """Raises the counters of batches of normalizations. One that is used several times in a call counts each time."""
    for owner, counter in counters(module, owners):
        counter += calls * counts.get(prefix + f"{owner}.{_COUNTER}".lstrip("."), 1)


def refuse_unchanged(names: Sequence[str]) -> None:
    """Rejects a module that changes parameters or buffers that its export does not change."""
    if names:
        raise refused(names, "but no result depends on what changes them in its export")


def refuse_others(module: Any) -> None:
    """Rejects anything that is not a module."""
    if not isinstance(module, nn.Module):
        raise InvalidArgument(f"expected a PyTorch module, not {type(module).__name__}")


def refuse_hook(name: str, parameter: nn.Parameter) -> None:
    """Rejects a parameter with a hook on its gradient, which a step of a trainer does not call."""
    untyped: Any = parameter
    if untyped._backward_hooks or getattr(untyped, "_post_accumulate_grad_hooks", None):
        raise InvalidArgument(
            f"'{name}' has a hook on its gradient, which a trainer does not call; remove it, or compile the module (forebay.torch.compile)"
        )


def refuse_parts(module: nn.Module) -> None:
    """Rejects a module with parts that an export does not reproduce."""
    untyped: Any = module
    for name, each in untyped.named_modules():
        label = f"'{name}'" if name else "the module"
        values = [value for value in [*each._parameters.values(), *each._buffers.values()] if value is not None]
        if any(_untyped.nn.parameter.is_lazy(value) for value in values):
            raise InvalidArgument(f"{label} has parameters without sizes; call the module once, which creates them")
        if any(value.is_inference() for value in values):
            raise InvalidArgument(f"{label} was created within torch.inference_mode(), so its changes are not noticed; create it outside, or copy it")
        if isinstance(each, torch.jit.ScriptModule):
            raise InvalidArgument(f"{label} was compiled by torch.jit; pass the module that it was made from")
        if each._backward_hooks or each._backward_pre_hooks:
            raise InvalidArgument(
                f"{label} has a hook for its backward pass, which its export does not have; remove it, or compute the gradient that it makes in "
                "an autograd.Function"
            )
        if isinstance(each, (nn.Embedding, nn.EmbeddingBag)):
            refused = [] if each.max_norm is None else ["max_norm"]
            refused += ["scale_grad_by_freq"] if each.scale_grad_by_freq and each.weight.requires_grad else []
            if refused:
                raise InvalidArgument(f"'{name}' is an {type(each).__name__} with {refused[0]}, which ONNX does not have; leave it out")


def compile(
    module: nn.Module, *, device_memory: Optional[Size] = None, device: str = "host", seed: int = 0, **options: Unpack[EngineOptions]
) -> CompiledModule:
    """Returns a module whose forward and backward passes Forebay runs inside a larger PyTorch program, so that only a layer that does not
    fit is offloaded and the rest stays.

    At the first call with inputs of new sizes or other constants, the module is exported to ONNX and planned: once for the forward pass and
    once for the backward pass, which recomputes the forward pass instead of keeping its results. The plans of the last 16 kinds of calls
    are kept. Higher-order gradients are not supported.

    Args:
        module: The module. It takes tensors, which are inputs, and numbers, strings, booleans and ``None``, which are constants of its
            plans, by position or name, also nested in tuples, lists and dictionaries. It returns the same, with at least one tensor.
            Parameters with a gradient are float32; inputs and outputs with one can also have 16 bits, as within ``torch.autocast``.
        device_memory: The budget of each of the two passes. On the host it bounds the whole process, including PyTorch, if the process can
            stay within it; otherwise only the tensors (``simulate_device`` bounds only these).
        device: ``"host"`` (the CPU), ``"vulkan"`` (a GPU).
        seed: The seed of dropout and other random numbers, which are a function of the seed and the number of the call.
        **options: See :class:`forebay.EngineOptions`.

    Raises:
        forebay.OutOfBudget: At a call, if no plan fits the budget; ``least`` is the smallest sufficient budget.
        forebay.Error: At a call, if the module cannot be exported, its parameters cannot be identified in the export, or its control flow
            depends on the values of tensors (``if x.sum() > 0``); the message says why and where.

    >>> import torch, forebay.torch
    >>> large = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 8), forebay.torch.compile(large, simulate_device="64KiB"))
    >>> net(torch.randn(16, 8)).square().sum().backward()
    >>> all(parameter.grad is not None for parameter in net.parameters())
    True
    """
    refuse_others(module)
    return CompiledModule(module, _options.engine(device, device_memory, options), seed)
