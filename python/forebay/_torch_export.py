"""The export of a PyTorch module to ONNX: each way in which PyTorch can write it is tried until one succeeds."""

from __future__ import annotations

import inspect
import mmap
import os
import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree

from . import _losses
from ._losses import Loss, OutputLoss, loss_named
from ._optimizers import Optimizer
from ._torch_attributes import Attributes, Fixed, kept, warn_about
from ._torch_dropping import paths_drop
from ._torch_embeddings import padding_rows_stay
from ._torch_gradients import Places, drawn_only_in_training, keep_input, look, sources, writing_gradients
from ._torch_module import is_training, refuse_hook, refuse_others, refuse_parts
from ._torch_states import (
    NEXT,
    Carried,
    FinalError,
    Noticing,
    States,
    add_to_names,
    averages_are_computed,
    evaluates_otherwise,
    refused,
    slots,
    version,
)
from ._torch_tracing import Conversion, as_written, depends_on_batch, exporting, one_way
from .errors import Error, InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import TypeAlias

#: A Forebay loss by name or value, ``nn.CrossEntropyLoss``, ``nn.MSELoss``, or any function of outputs and labels.
LossLike: TypeAlias = "Union[str, Loss, nn.Module, Callable[..., torch.Tensor]]"
#: A Forebay optimizer by name or value, or a ``torch.optim`` optimizer over the module's parameters (:class:`Trainer`).
OptimizerLike: TypeAlias = "Union[None, str, Optimizer, torch.optim.Optimizer]"

# Parts of PyTorch have no types.
_untyped: Any = torch
_tree: Any = _pytree
_OPSET = 18
#: The name of a module's only output.
OUTPUT = "output"
_LABELS = "labels"
# Losses that become Forebay's own.
_CONVERTED = (nn.CrossEntropyLoss, nn.MSELoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss, nn.BCEWithLogitsLoss, nn.KLDivLoss)
_T = TypeVar("_T")


class _Wrapper(nn.Module):
    """A wrapper whose parameters and buffers have the names that they have in the module."""

    module: nn.Module

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Returns what the exporter takes names from."""
        return self.module.state_dict(*arguments, **named)


class _InOrder(_Wrapper):
    """A wrapper without optional inputs, which the exporter would add as tensors."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)


class _ByName(_Wrapper):
    """A wrapper that takes a module's inputs in order and passes them on by name."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module = module
        self.names = list(names)

    def forward(self, *inputs: Any) -> Any:
        return self.module(**dict(zip(self.names, inputs)))


def _refuse_narrow(module: nn.Module) -> None:
    """Rejects trainable parameters that are not float32."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            kind = str(parameter.dtype).rpartition(".")[2]
            raise InvalidArgument(
                f"'{name}' is {kind}, but trained parameters must be float32; convert the module (module.float()), or for 16-bit computation "
                "with float32 parameters pass precision='bf16' to the Trainer"
            )


def _order(module: nn.Module, inputs: Mapping[str, Any]) -> List[str]:
    """Returns the names of inputs in the order of the module's ``forward``."""
    taken = sorted({OUTPUT, _LABELS} & set(inputs))
    if taken or not inputs:
        raise InvalidArgument(f"an input cannot be named '{taken[0]}' here; pass the inputs in order" if taken else "there are no example inputs")
    known = list(inspect.signature(module.forward).parameters)
    return sorted(inputs, key=lambda name: known.index(name) if name in known else len(known))


class _WithLoss(_Wrapper):
    """A module and its loss, whose tensors are constants."""

    def __init__(self, module: nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.module = module
        self.loss = loss

    def forward(self, *arguments: Any) -> torch.Tensor:
        *inputs, labels = arguments
        return keep_input(self.loss(self.module(*inputs), labels), labels)


class _Carrying(_Wrapper):
    """A wrapper that also returns the next values of what the module changes."""

    def __init__(self, module: nn.Module, names: Sequence[str], states: States) -> None:
        super().__init__()
        self.module = module
        self.names, self.states = list(names), states
        #: A name whose next value the module's results depend on.
        self.reached: Optional[str] = None

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Returns what the exporter takes names from, with buffers that are not saved."""
        found = super().state_dict(*arguments, **named)
        add_to_names(found, named.get("prefix", ""), self.names, self.states)
        return found

    def forward(self, *inputs: Any) -> Any:
        carried = Carried(self.names, self.states)
        results = self.module(*inputs)
        tensors = [each for each in _tree.tree_leaves(results) if isinstance(each, torch.Tensor)]
        self.reached = carried.reaches(value for each in tensors for value in sources(each))
        return (results, *carried.next())


class _Folder:
    """The folder of an export, which is read for as long as the trainer exists, and the names in the export."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="forebay-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = os.path.join(folder, "module.onnx")
        self.names: "frozenset[str]" = frozenset()


class Export:
    """The export of a module to ONNX."""

    def __init__(
        self, module: nn.Module, example_inputs: Any, loss: LossLike, example_labels: Optional[torch.Tensor]
    ) -> None:
        refuse_others(module)
        refuse_parts(module)
        for name, parameter in module.named_parameters():
            refuse_hook(name, parameter)
        self.folder = _Folder()
        #: What names in the latest export begin with, before those of the module.
        self.prefix = ""
        #: The parameters and buffers that a call of the module changes, by their names in the module.
        self.changed: List[str] = []
        #: Those among them whose next values are outputs of the latest export.
        self.carried: List[str] = []
        #: By how much a call raises counters of batches, by their names in the module.
        self.counts: Dict[str, int] = {}
        self._places = Places()
        self._drawn: Optional[str] = None
        self._reached: Optional[str] = None
        self._counting: List[str] = []
        #: Why the latest export is only for the batch size of the examples, or ``None`` if it is for all.
        self.one_size: Optional[str] = None
        self._own = self._module = module
        self._loss = loss if isinstance(loss, nn.Module) else nn.Module()
        self._fixed = [Fixed(module, "module"), Fixed(self._loss, "loss")]
        own = {id(place.get()) for place in slots(module).values()}
        #: Buffers and parameters of the loss that are not those of the module.
        self._of_loss = {name: place for name, place in slots(self._loss).items() if id(place.get()) not in own}
        self._loss_versions = self._versions_of_loss()
        _refuse_narrow(module)
        if not isinstance(example_inputs, (torch.Tensor, tuple, list, Mapping)):
            kind = type(example_inputs).__name__
            raise InvalidArgument(f"example inputs must be a tensor, a tuple of tensors, or a dictionary of tensors by name, not {kind}")
        inputs: Tuple[Any, ...] = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
        if isinstance(example_inputs, Mapping):
            self._names = _order(module, example_inputs)
            inputs = tuple(example_inputs[name] for name in self._names)
            self._module = _ByName(module, self._names)
        else:
            self._names = _input_names(module, len(inputs))
            if len(inspect.signature(module.forward).parameters) > len(inputs):
                self._module = _InOrder(module)
        for name, value in zip(self._names, inputs):
            if not isinstance(value, torch.Tensor):
                raise InvalidArgument(f"example inputs must be tensors, but '{name}' is {type(value).__name__}; bind it to the module first")
        # Copies, because a module can change what it is given.
        inputs = tuple(value.detach().clone().requires_grad_(value.requires_grad) for value in inputs)
        self._inputs = inputs
        if example_labels is not None and not isinstance(example_labels, torch.Tensor):
            raise InvalidArgument(
                f"example labels must be a tensor, not {type(example_labels).__name__}; further labels can be inputs of the module that it returns"
            )
        ours = _loss(loss, example_labels)
        if ours is None:
            if example_labels is None:
                raise InvalidArgument("this loss is exported with the module; pass example_labels, too")
            function: Any = loss
            if isinstance(loss, nn.Module) and any(each.requires_grad for each in loss.parameters()):
                names = ", ".join(name for name, each in loss.named_parameters() if each.requires_grad)
                raise InvalidArgument(f"the loss has parameters of its own ({names}); make it a part of the module, or freeze them")
            self._module = _WithLoss(self._module, function)
            self._inputs = (*inputs, example_labels.detach().clone())
            self._names = [*self._names, _LABELS]
            ours = OutputLoss(_LABELS)
        self.loss: Loss = ours
        sizes = {int(value.shape[0]) if value.dim() else 0 for value in self._inputs}
        self._wrappers = [each for each in self._module.modules() if isinstance(each, _Wrapper)]
        self.batch_size: Optional[int] = sizes.pop() if len(sizes) == 1 and 0 not in sizes else None

    def first_that(self, make: Callable[[str], _T]) -> _T:
        """Exports the module in one way after the other until ``make`` succeeds with the path of the file, and returns its result.

        Raises:
            forebay.Error: No way succeeds; this is the error of the first.
        """
        first: Optional[Exception] = None
        for attempt in self._attempts():
            try:
                path = attempt()
                warn_about(self._counting)
                return make(path)
            except MemoryError:
                raise
            except Exception as error:
                if self._is_final(error):
                    raise error from first
                first = first or error
        if isinstance(first, Error):
            raise first
        raise Error(f"PyTorch cannot export the module: {first}") from first

    def frozen(self, optimizer: OptimizerLike) -> List[str]:
        """Returns the names in the latest export of parameters and buffers that are not trained."""
        module = self._own
        trains = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
        if isinstance(optimizer, torch.optim.Optimizer):
            has = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            strangers = has - {id(parameter) for parameter in module.parameters()}
            if strangers:
                raise InvalidArgument(f"the optimizer has {len(strangers)} parameters that do not belong to the module")
            trains &= has
        named: List[Tuple[str, torch.Tensor]] = [*module.named_parameters(remove_duplicate=False)]
        named += [(name, buffer) for name, buffer in module.named_buffers(remove_duplicate=False) if buffer.is_floating_point()]
        names = [self.prefix + name for name, tensor in named if id(tensor) not in trains]
        return [name for name in names if name in self.folder.names]

    def _attempts(self) -> List[Callable[[], str]]:
        """Returns ways to export, the best first; each returns the path of the file."""
        ways: List[Callable[[], str]] = []
        if self.batch_size is not None:
            ways.append(lambda: self._write(dynamo=False, open_batch=True))
        ways.append(lambda: self._write(dynamo=False, open_batch=False))
        if self.batch_size is not None and hasattr(_untyped, "export"):
            ways.append(lambda: self._write(dynamo=True, open_batch=True))
        ways.append(lambda: self._write(dynamo=True, open_batch=False))
        return ways

    @staticmethod
    def _is_final(error: Exception) -> bool:
        """Returns whether no other way of exporting can help."""
        return isinstance(error, (InvalidArgument, FinalError))

    def _write(self, *, dynamo: bool, open_batch: bool) -> str:
        before = self.carried
        try:
            self._write_once(dynamo, open_batch)
        except Exception as error:
            if self._is_final(error) or self.carried == before:
                raise
        if self.carried != before:
            # Now it is known what the module changes.
            before = self.carried
            self._refuse_trained()
            self._write_once(dynamo, open_batch)
        if self.carried != before:
            raise refused(self.carried, "but not always the same ones")
        return self.folder.path

    def _write_once(self, dynamo: bool, open_batch: bool) -> None:
        states, states_of_loss = States(self._own), States(self._loss)
        carrying = _Carrying(self._module, self.carried, states)
        module = carrying if self.carried else self._module
        keywords: Dict[str, Any] = {"dynamo": False, "do_constant_folding": False}
        if dynamo:
            # The exporter's optimizer would fuse batch normalizations into convolutions.
            keywords = {"dynamo": True, "optimize": False, "verbose": False}
        if "dynamo" not in inspect.signature(_untyped.onnx.export).parameters:
            keywords.pop("dynamo")
        if open_batch and dynamo:
            of_each = tuple({0: _untyped.export.Dim("batch")} for _ in self._inputs)
            takes_any = any(each.kind == inspect.Parameter.VAR_POSITIONAL for each in inspect.signature(module.forward).parameters.values())
            keywords["dynamic_shapes"] = (of_each,) if takes_any else of_each
        elif open_batch:
            named = [*self._names] if isinstance(self.loss, OutputLoss) else [*self._names, OUTPUT]
            keywords["dynamic_axes"] = {name: {0: "batch"} for name in named}
        # This exporter takes names from the attributes that lead to a tensor.
        self.prefix = "module." * len(self._wrappers) if dynamo else ""
        modes = [(each, each.training) for each in module.modules()]
        hooks: List[Any] = []
        try:
            writing = (padding_rows_stay(module), paths_drop(module), averages_are_computed(module))
            with kept(self._own) as attributes, kept(self._loss), as_written(), exporting(), writing[0], writing[1], writing[2]:
                # A wrapper in evaluation mode would merge parameters that happen to be equal.
                for wrapper in [*self._wrappers, carrying]:
                    wrapper.training = True
                if not is_training(self._own):
                    module.train()
                if not isinstance(self.loss, OutputLoss):
                    hooks.append(self._module.register_forward_hook(self._refuse_several))
                begin = [Attributes(self._own), Attributes(self._loss)]
                if dynamo:
                    # This exporter does not run the module, so what a run changes is found here.
                    look(self._module, self._inputs, True, self._places, states)
                    self._note_changes(states)

                def write(inputs: Tuple[torch.Tensor, ...], path: str, with_values: bool = True) -> None:
                    _untyped.onnx.export(
                        module,
                        inputs,
                        path,
                        export_params=with_values,
                        training=torch.onnx.TrainingMode.PRESERVE,
                        opset_version=_OPSET,
                        input_names=self._names,
                        output_names=[OUTPUT, *(f"{NEXT}{name}" for name in self.carried)],
                        **keywords,
                    )

                if dynamo:
                    if self.carried:
                        raise Error("PyTorch's newer exporter cannot express what a module changes")
                    self._places.refuse()
                    write(self._inputs, self.folder.path)
                else:
                    self._places = Places()
                    try:
                        with one_way() as sizes, writing_gradients(module, True, self._places, states):
                            write(self._inputs, self.folder.path)
                    finally:
                        self._note_changes(states)
                    others = [name for name in self.carried if evaluates_otherwise(states.slot(name))]
                    self._reached = next(iter(others), carrying.reached)
                self._refuse_states(states_of_loss)
                for fixed in self._fixed:
                    fixed.exempt_changes()
                self._places.constants.settle(self._own, self._loss)
                self._counting = attributes.check(lambda: self._module(*self._inputs))
                if not dynamo and (open_batch or self.batch_size is not None and self.one_size is None):

                    def write_other(inputs: Tuple[torch.Tensor, ...], path: str) -> List[Conversion]:
                        states.restore()
                        for each in begin:
                            each.restore()
                        carrying.states = States(self._own)
                        with one_way() as found, writing_gradients(module, True, Places(), carrying.states):
                            write(inputs, path, False)
                        return found

                    self.one_size = depends_on_batch(self._module, self._inputs, self.folder.path, open_batch, sizes, write_other)
                if dynamo and open_batch:
                    self.one_size = None
                elif dynamo and self.batch_size is not None:
                    self.one_size = "PyTorch's newer exporter, which this module needs, writes it into the export"
                if open_batch and self.one_size is not None:
                    raise Error(f"the export is for one batch size: {self.one_size}")
                self._drawn = drawn_only_in_training(self._module, self._inputs, self._places)
        finally:
            for hook in hooks:
                hook.remove()
            for each, training in modes:
                each.training = training
            # Tracing runs the module once, which changes running statistics.
            states.restore()
            states_of_loss.restore()
            self._loss_versions = self._versions_of_loss()
        tensors = [*self._own.named_parameters(remove_duplicate=False), *self._own.named_buffers(remove_duplicate=False)]
        self.folder.names = _names_in(self.folder.path, [self.prefix + name for name, _ in tensors])

    def _note_changes(self, states: States) -> None:
        self.carried, self.counts = states.carried(), states.counts()
        self.changed = [name for name in states.changed() if name not in self.counts]

    def _refuse_states(self, states: States) -> None:
        """Rejects a loss that changes buffers or parameters of its own."""
        changed = [name for name in states.changed() if name in self._of_loss]
        if changed:
            raise InvalidArgument(
                f"the loss changes its buffer or parameter {changed[0]} when it runs, which its export does not; make the loss a part of the module, "
                "which can change its buffers"
            )

    def _versions_of_loss(self) -> Dict[str, Tuple[int, ...]]:
        return {name: version(place.get()) for name, place in self._of_loss.items()}

    def refuse_changes(self) -> None:
        """Rejects a module and a loss that are not what the export is of.

        Raises:
            forebay.InvalidArgument: Something has changed; the message says what.
        """
        for fixed in self._fixed:
            fixed.refuse_changes()
        now = self._versions_of_loss()
        changed = [name for name in now if now[name] != self._loss_versions.get(name)]
        if changed:
            raise InvalidArgument(
                f"'{changed[0]}' of the loss has changed since the trainer was made, but its export has the former values; make another trainer, which "
                "takes over the optimizer's state"
            )
        self._places.constants.refuse_changes()

    def refuse_size(self, count: int, parts: int = 1) -> None:
        """Rejects a batch size that the latest export is not for.

        Args:
            count: The batch size.
            parts: The number of parts that a batch can have instead of one.

        Raises:
            forebay.InvalidArgument: The export has another one.
        """
        if self.one_size is not None and self.batch_size is not None and count not in (self.batch_size, self.batch_size * parts):
            raise InvalidArgument(
                f"a batch of {count} samples is not one of {self.batch_size}, which is the only batch size of this module's export: {self.one_size}. "
                "Leave out other batches (drop_last=True of a DataLoader), or make another trainer for them; x.shape[0], unlike len(x) and int(...), "
                "can have any value in operations on tensors"
            )

    def _refuse_trained(self) -> None:
        """Rejects a module that changes parameters that have gradients."""
        names = {id(each): name for name, each in self._own.named_parameters() if each.requires_grad}
        if not set(names.values()) & set(self.carried):
            return
        states = States(self._own)
        modes = [(each, each.training) for each in self._module.modules()]
        parameters = [each for each in self._own.parameters() if names.get(id(each)) in self.carried]
        try:
            if not is_training(self._own):
                self._module.train()
            with torch.enable_grad(), Noticing(states):
                results = [each for each in _tree.tree_leaves(self._module(*self._inputs)) if isinstance(each, torch.Tensor)]
            total: Any = sum(each.sum() for each in results if each.requires_grad)
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        finally:
            for each, training in modes:
                each.training = training
            states.restore()
        trained = [names[id(each)] for each, gradient in zip(parameters, gradients) if gradient is not None]
        if trained:
            raise refused(trained, "which the optimizer changes as well")

    def takes(self, name: str) -> bool:
        """Returns whether the module can be given an input of this name."""
        parameters = inspect.signature(self._own.forward).parameters
        return name in parameters or any(each.kind == inspect.Parameter.VAR_KEYWORD for each in parameters.values())

    def refuse_evaluation(self) -> None:
        """Rejects evaluation of a module that does something else in training, which the export repeats.

        Raises:
            forebay.InvalidArgument: It draws random numbers in training only, or its results depend on what it changes.
        """
        if self._reached is not None:
            raise InvalidArgument(
                f"the module's results depend on '{self._reached}', which it changes when it runs, and in evaluation mode it may not. Call write_back() "
                "and evaluate or export the module itself"
            )
        if self._drawn is not None:
            raise InvalidArgument(
                f"the module draws random numbers {self._drawn}, in training mode only, but its export draws them always. Call write_back() and "
                "evaluate or export the module itself; dropout and stochastic depth have no such limit"
            )

    def _refuse_several(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Rejects several outputs, because Forebay's losses take one."""
        count = sum(isinstance(value, torch.Tensor) for value in _tree.tree_leaves(outputs))
        if count != 1:
            several = f"{count} tensors ({type(outputs).__name__})" if count > 1 else type(outputs).__name__
            raise InvalidArgument(
                f"the module returns {several}, but this loss accepts only one tensor; pass a loss that is a function of what the module returns "
                "and of labels, and example_labels"
            )


def _names_in(path: str, names: Sequence[str]) -> "frozenset[str]":
    """Returns which of these are names of initializers in an ONNX file: field 8 of a ``TensorProto``."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        return frozenset(name for name in names if contents.find(_name_field(name)) >= 0)


def _name_field(name: str) -> bytes:
    text = name.encode()
    length, count = bytearray(), len(text)
    while count >= 128:
        length.append(count & 127 | 128)
        count >>= 7
    return bytes([8 << 3 | 2, *length, count]) + text


def _input_names(module: nn.Module, count: int) -> List[str]:
    """Returns the names of a module's inputs: those in its ``forward`` if each names a single argument."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [each.name for each in inspect.signature(module.forward).parameters.values() if each.kind in kinds]
    taken = {OUTPUT, _LABELS}
    if len(parameters) >= count and not taken & set(parameters[:count]):
        return parameters[:count]
    return [f"input_{index}" for index in range(count)]


def _loss(loss: LossLike, labels: Optional[torch.Tensor]) -> Optional[Loss]:
    """Returns the equivalent Forebay loss for labels like these, or ``None`` if there is none."""
    if isinstance(loss, (str, *_losses.KINDS)):
        return loss_named(loss)
    # A subclass that computes something else is a function like any other.
    for kind in _CONVERTED:
        if isinstance(loss, kind) and any(getattr(type(loss), name) is not getattr(kind, name) for name in ("forward", "__call__")):
            return None
    if getattr(loss, "reduction", None) == "mean":
        if isinstance(loss, nn.CrossEntropyLoss):
            weights = _numbers(loss.weight)
            if labels is not None and labels.is_floating_point():
                return _losses.SoftCrossEntropy(1, weights, loss.label_smoothing)
            return _losses.SoftmaxCrossEntropy(1, loss.ignore_index, weights, loss.label_smoothing)
        if isinstance(loss, nn.MSELoss):
            return _losses.MeanSquaredError()
        if isinstance(loss, nn.L1Loss):
            return _losses.MeanAbsoluteError()
        if isinstance(loss, nn.HuberLoss):
            return _losses.Huber(loss.delta)
        if isinstance(loss, nn.SmoothL1Loss):
            return _losses.SmoothL1(loss.beta)
        if isinstance(loss, nn.BCEWithLogitsLoss) and loss.weight is None:
            weight = loss.pos_weight
            if weight is None or weight.numel() == 1:
                return _losses.BinaryCrossEntropy(_numbers(weight))
    if isinstance(loss, nn.KLDivLoss) and loss.reduction in ("mean", "batchmean"):
        return _losses.KLDivergence(None, loss.log_target, loss.reduction == "mean")
    return None


def _numbers(weights: Optional[torch.Tensor]) -> Tuple[float, ...]:
    """Converts class weights."""
    if weights is None:
        return ()
    flat: npt.NDArray[np.float64] = weights.detach().cpu().double().flatten().numpy()
    return tuple(float(weight) for weight in flat)
