"""Training PyTorch modules in place, within a memory budget.

Requires PyTorch (``pip install forebay[torch]``), which ``import forebay.torch`` imports.
"""

from __future__ import annotations

import inspect
import mmap
import os
import shutil
import tempfile
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree

from . import _losses, _plan
from ._losses import Loss, OutputLoss, loss_named
from ._optimizers import SGD, Adam8bit, AdamW8bit, NAdam, Optimizer, optimizer_named
from ._options import EngineOptions, PathLike, Size
from ._torch_dropping import paths_drop
from ._torch_embeddings import padding_rows_stay
from ._recipe import ParameterGroup, Schedule
from ._torch_gradients import FinalError, Places, drawn_only_in_training, keep_input, look, writing_gradients
from ._torch_module import (
    CompiledModule,
    add_counts,
    changed_buffers,
    compile,
    refuse_changed,
    refuse_other_changes,
    refuse_others,
    refuse_parts,
)
from ._torch_optimizers import QUANTIZED_MIN, counts_steps, momentum_product, of_torch, states, steps_done, to_torch
from ._torch_tracing import exporting, one_way
from ._trainer import Trainer as _Trainer
from ._windows import Windows
from .errors import Error, InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import TypeAlias, Unpack

#: A Forebay loss by name or value, ``nn.CrossEntropyLoss``, ``nn.MSELoss``, or any function of outputs and labels.
LossLike: TypeAlias = "Union[str, Loss, nn.Module, Callable[..., torch.Tensor]]"
#: A Forebay optimizer by name or value, or a ``torch.optim`` optimizer over the module's parameters (:class:`Trainer`).
OptimizerLike: TypeAlias = "Union[None, str, Optimizer, torch.optim.Optimizer]"

# Parts of PyTorch have no types.
_untyped: Any = torch
_tree: Any = _pytree
_OPSET = 18
_OUTPUT = "output"
_LABELS = "labels"
# Losses that become Forebay's own.
_CONVERTED = (nn.CrossEntropyLoss, nn.MSELoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss, nn.BCEWithLogitsLoss, nn.KLDivLoss)
_T = TypeVar("_T")


class Trainer(_Trainer):
    """Trains a PyTorch module within a memory budget and writes the results back into it.

    The module is exported to ONNX, its parameters and buffers are matched one to one with those of the export, and Forebay runs the steps.
    :meth:`write_back`, which is called at the end of :meth:`fit` and of a ``with`` block, copies parameters, running statistics and the
    optimizer's state into the module and the optimizer, so that PyTorch can continue from there. Each step uses the current learning rate
    of the ``torch.optim`` optimizer, so PyTorch's schedulers work.

    Args:
        module: The module. Parameters that do not require gradients or that the optimizer does not hold are not trained.
        example_inputs: A tensor, a tuple for ``module(*example_inputs)``, or a dictionary for ``module(**example_inputs)``; their leading
            size is the batch size.
        loss: ``nn.CrossEntropyLoss``, ``MSELoss``, ``L1Loss``, ``HuberLoss``, ``SmoothL1Loss``, ``KLDivLoss`` and ``BCEWithLogitsLoss`` are
            converted to Forebay's losses. Any other function of the module's outputs and labels, such as a subclass of one of these with
            its own ``forward``, is exported with the module, which requires ``example_labels``.
        optimizer: A ``torch.optim`` optimizer over the module's parameters, ``SGD``, ``Adam``, ``AdamW``, ``Adamax``,
            ``NAdam``, ``RAdam``, ``RMSprop``, ``Adagrad`` or ``Adadelta`` with settings that are the same for all groups but learning rate
            and weight decay, or bitsandbytes' ``Adam8bit`` or
            ``AdamW8bit``, whose state is taken over; or as for :class:`forebay.Trainer`.
        example_labels: Labels for a loss that is exported, and for ``nn.CrossEntropyLoss`` if they are probabilities of classes.
        device_memory: The budget. For this and all further arguments, see :class:`forebay.Trainer`.

    Raises:
        forebay.Error: The module cannot be exported, or its parameters cannot be identified in the export; the message says why.

    >>> import torch, forebay.torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    >>> optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    >>> x, labels = torch.randn(32, 8), torch.arange(32) % 4
    >>> trainer = forebay.torch.Trainer(module, x, loss=torch.nn.CrossEntropyLoss(), optimizer=optimizer, simulate_device="128KiB")
    >>> losses = [trainer.step(x, labels).loss for _ in range(20)]
    >>> trainer.write_back()
    >>> bool(torch.nn.functional.cross_entropy(module(x), labels) < losses[0])
    True
    """

    def __init__(
        self,
        module: nn.Module,
        example_inputs: Any,
        loss: LossLike = "softmax_cross_entropy",
        optimizer: OptimizerLike = None,
        *,
        example_labels: Optional[torch.Tensor] = None,
        learning_rate: Optional[float] = None,
        device: str = "host",
        device_memory: Optional[Size] = None,
        batch_size: Optional[int] = None,
        freeze: Union[str, Sequence[str]] = (),
        decay: Optional[str] = None,
        seed: int = 0,
        on_nan: str = "stop",
        precision: Optional[str] = None,
        float32: Union[str, Sequence[str]] = (),
        clip_value: Optional[float] = None,
        clip_norm: Optional[float] = None,
        clip_global_norm: Optional[float] = None,
        gradient_norm: bool = False,
        accumulate: int = 1,
        average: Optional[float] = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        if options.get("shard") is not None:
            raise InvalidArgument(
                "forebay.torch.Trainer does not take shard, because each process writes whole values back to its module; leave out shard, or "
                "export the module to ONNX and use forebay.Trainer"
            )
        self.module = module
        self.torch_optimizer: Optional[torch.optim.Optimizer] = None
        self._rates_and_decays: List[Tuple[float, float]] = []
        named: Optimizer
        if isinstance(optimizer, torch.optim.Optimizer):
            if learning_rate is not None:
                raise InvalidArgument("the optimizer already has a learning rate; leave out learning_rate")
            self.torch_optimizer = optimizer
            named, self._rates_and_decays = of_torch(optimizer)
            # PyTorch's weight decay applies to all parameters of the optimizer.
            decay = decay or "all"
        else:
            named = optimizer_named(optimizer, learning_rate)
        export = _Export(module, example_inputs, loss, example_labels)
        self._export = export
        patterns = [freeze] if isinstance(freeze, str) else list(freeze)
        begin = super().__init__

        def make(path: str) -> None:
            begin(
                path,
                export.loss,
                named,
                device=device,
                device_memory=device_memory,
                batch_size=export.batch_size if batch_size is None else batch_size,
                freeze=patterns + export.frozen(optimizer),
                groups=self._groups(),
                decay=decay,
                seed=seed,
                on_nan=on_nan,
                precision=precision,
                float32=float32,
                clip_value=clip_value,
                clip_norm=clip_norm,
                clip_global_norm=clip_global_norm,
                gradient_norm=gradient_norm,
                accumulate=accumulate,
                average=average,
                **options,
            )
            self._match()

        export.first_that(make)
        self._steps_before = 0
        # Each part of a step is a batch.
        self._parts = max(accumulate, 1)
        self._read_module()

    # Matching with the module.

    def _groups(self) -> List[ParameterGroup]:
        """Returns the groups of the PyTorch optimizer but the first, whose settings are those of the optimizer, and but those without
        parameters on which the outputs depend."""
        if self.torch_optimizer is None:
            return []
        named = [(name, id(each)) for name, each in self.module.named_parameters(remove_duplicate=False)]
        found: List[ParameterGroup] = []
        self._grouped: List[int] = []
        for number, group in list(enumerate(self.torch_optimizer.param_groups))[1:]:
            has = {id(parameter) for parameter in group["params"]}
            names = [self._prefix + name for name, each in named if each in has and self._prefix + name in self._used()]
            if names:
                rate, decay = self._rates_and_decays[number]
                self._grouped.append(number)
                found.append(ParameterGroup(names, weight_decay=decay, schedule=Schedule("table", table=[(1, rate)])))
        return found

    @property
    def _prefix(self) -> str:
        """What the names of the latest export begin with, before those of the module."""
        return self._export.prefix

    def _used(self) -> "frozenset[str]":
        """Returns the names in the latest export."""
        return self._export.folder.names

    def _match(self) -> None:
        """Matches trained values with the module's parameters, and other values that steps change with its buffers, one to one.

        Raises:
            forebay.Error: Something has no counterpart.
        """
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        buffers = dict(self.module.named_buffers(remove_duplicate=False))
        infos: Dict[str, Tuple[int, ...]] = {name: array.shape for name, array in self.parameters().items()}
        self._parameters: Dict[str, nn.Parameter] = {}
        for name, shape in infos.items():
            parameter = parameters.get(name[len(self._prefix) :] if name.startswith(self._prefix) else "")
            if parameter is None or tuple(parameter.shape) != tuple(shape):
                raise Error(
                    f"the export trains '{name}' {list(shape)}, which is not a parameter of the module; the exporter changed it, "
                    "and its trained values could not be written back"
                )
            self._parameters[name] = parameter
        matched = {id(parameter) for parameter in self._parameters.values()}
        if len(matched) != len(self._parameters):
            raise Error("the export contains a parameter that is used in several places more than once, and would train each copy separately")
        of_optimizer = self._optimizer_states()
        self._buffers: Dict[str, torch.Tensor] = {}
        for name in self.state():
            if name in of_optimizer:
                continue
            buffer = buffers.get(name[len(self._prefix) :] if name.startswith(self._prefix) else "")
            if buffer is None:
                raise Error(f"steps change '{name}' of the export, which is not a buffer of the module")
            self._buffers[name] = buffer
        refuse_changed([name for name in self._export.changed if self._prefix + name not in self._buffers])
        #: The module's parameters and buffers by their names in the export.
        self._held: Dict[str, torch.Tensor] = {**self._parameters, **self._buffers}
        for name, tensor in [*parameters.items(), *buffers.items()]:
            if self._prefix + name in self._used():
                self._held.setdefault(self._prefix + name, tensor)
        unused = [
            name
            for name, parameter in parameters.items()
            if parameter.requires_grad and id(parameter) not in matched and self._prefix + name not in self._used()
        ]
        if unused:
            warnings.warn(f"the outputs do not depend on {', '.join(unused)}: these parameters are not trained", stacklevel=5)

    def _optimizer_states(self) -> Dict[str, Tuple[str, str]]:
        """Returns the parameter and PyTorch's name for each value of the optimizer's state."""
        if isinstance(self.optimizer, (Adam8bit, AdamW8bit)):
            return self._states_of_8_bit()
        return {f"{name}.{ours}": (name, theirs) for name in self._parameters for ours, theirs in states(self.optimizer).items()}

    def _states_of_8_bit(self) -> Dict[str, Tuple[str, str]]:
        """Returns the same for 8-bit moments, with bitsandbytes' names: codes and scales, or float32 if the parameter is small."""
        found: Dict[str, Tuple[str, str]] = {}
        for name, parameter in self._parameters.items():
            is_large = parameter.numel() >= QUANTIZED_MIN
            for number, moment in ((1, "first_moment"), (2, "second_moment")):
                found[f"{name}.{moment}_codes" if is_large else f"{name}.{moment}"] = (name, f"state{number}")
                if is_large:
                    found[f"{name}.{moment}_scales"] = (name, f"absmax{number}")
        return found

    def _read_module(self) -> None:
        """Takes over parameters, buffers and the optimizer's state as they are now."""
        values: Dict[str, Any] = {name: parameter.detach() for name, parameter in self._parameters.items()}
        values.update(self._buffers)
        steps = 0
        if self.torch_optimizer is not None:
            done: Dict[str, int] = {}
            for name, (parameter, theirs) in self._optimizer_states().items():
                state = self.torch_optimizer.state.get(self._parameters[parameter], {})
                if state.get(theirs) is not None:
                    values[name] = state[theirs]
                done[parameter] = steps_done(self.optimizer, state)
            steps = max(done.values(), default=0)
            behind = [name for name, count in done.items() if count < steps]
            if behind and counts_steps(self.optimizer):
                raise InvalidArgument(
                    f"the optimizer has made {steps} steps with some parameters, but {done[behind[0]]} with '{behind[0]}'; a trainer has one "
                    "number of steps. Create the optimizer anew when more parameters begin to train"
                )
        self.set_values(values, step_count=steps)
        self._steps_before = steps
        self._note_versions()

    def _note_versions(self) -> None:
        """Remembers the module as it is now, to notice changes."""
        self._versions = {name: _version(tensor) for name, tensor in self._held.items()}

    # Around steps.

    def _before_step(self) -> None:
        self._follow_module()
        self._follow_optimizer()

    def _follow_module(self) -> None:
        """Takes over what has changed in the module since it was read or written: all of it, with the optimizer's state, if that was after the
        last step.

        Raises:
            forebay.InvalidArgument: Something has changed that is not trained.
        """
        changed = [name for name, tensor in self._held.items() if self._versions[name] != _version(tensor)]
        if not changed:
            return
        constant = [name for name in changed if name not in self._parameters and name not in self._buffers]
        if constant:
            raise InvalidArgument(
                f"'{constant[0]}', which this trainer does not train, has changed since the trainer was made; make another one after such a change, or "
                "compile the module (forebay.torch.compile), which reads its values at each call"
            )
        if self.step_count == self._steps_before:
            self._read_module()
            return
        self.set_values({name: self._held[name].detach() for name in changed})
        self._note_versions()

    def _after_fit(self) -> None:
        self.write_back()

    def _follow_optimizer(self) -> None:
        if self.torch_optimizer is not None:
            now, rates_and_decays = of_torch(self.torch_optimizer)
            if now != self.optimizer:
                self.optimizer = now
            if rates_and_decays != self._rates_and_decays:
                self._follow_groups(rates_and_decays)
            # PyTorch's schedulers warn about an optimizer that made no step; here, Forebay makes the steps.
            setattr(self.torch_optimizer, "_opt_called", True)

    def _follow_groups(self, now: List[Tuple[float, float]]) -> None:
        """Takes over the learning rates of the optimizer's groups."""
        before = self._rates_and_decays
        if [decay for _, decay in now[1:]] != [decay for _, decay in before[1:]]:
            raise InvalidArgument(
                "the optimizer has other groups, or a group but the first has another weight decay, than when the trainer was made; make "
                "another trainer, which takes over the optimizer's state"
            )
        self._native.set_group_rates([now[number][0] for number in self._grouped])
        self._rates_and_decays = now

    def write_back(self) -> None:
        """Copies parameters, running statistics and the optimizer's state into the module and its ``torch.optim`` optimizer."""
        steps = self.step_count
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(_tensor(self.parameter(name)))
            state = self.state()
            for name, buffer in self._buffers.items():
                buffer.copy_(_tensor(state[name]))
            owners = {name[len(self._prefix) :].rpartition(".")[0] for name in self._buffers}
            add_counts(self.module, owners, self._export.counts, "", (steps - self._steps_before) * self._parts)
        self._note_versions()
        if self.torch_optimizer is not None:
            self._write_state(self.torch_optimizer, state)
        self._steps_before = steps

    def _evaluate(self, batch: Dict[str, Any], labels: Any, windows: Optional[Windows]) -> Tuple[float, Any]:
        self._export.refuse_evaluation()
        self._follow_module()
        return super()._evaluate(batch, labels, windows)

    def save(self, path: PathLike) -> None:
        """Writes the trained model as ONNX, for evaluation; see :meth:`forebay.Trainer.save`.

        Raises:
            forebay.InvalidArgument: The module draws random numbers other than those of dropout in training mode only.
        """
        self._export.refuse_evaluation()
        self._follow_module()
        super().save(path)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Returns a PyTorch optimizer over the trained parameters, with the current state, so that PyTorch can continue training.

        It is a ``torch.optim`` optimizer or, for :class:`forebay.Adam8bit` and :class:`forebay.AdamW8bit`, a bitsandbytes optimizer.

        Raises:
            forebay.InvalidArgument: PyTorch and bitsandbytes have no such optimizer, or bitsandbytes is not installed.
        """
        made = to_torch(self.optimizer, list(self._parameters.values()))
        self._write_state(made, self.state())
        return made

    def _write_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        # Like PyTorch's GradScaler, without the steps whose update was skipped.
        steps = self.step_count - self._native.skipped_count()
        if steps == 0:
            return
        if isinstance(self.optimizer, (Adam8bit, AdamW8bit)):
            self._write_8_bit(optimizer, state, steps)
            return
        for name, (of, theirs) in self._optimizer_states().items():
            parameter = self._parameters[of]
            kept = optimizer.state[parameter]
            kept[theirs] = _tensor(state[name]).to(device=parameter.device, dtype=parameter.dtype)
            if not isinstance(self.optimizer, SGD):
                kept["step"] = torch.tensor(float(steps))
            if isinstance(self.optimizer, NAdam):
                kept["mu_product"] = torch.tensor(momentum_product(self.optimizer, steps))

    def _write_8_bit(self, optimizer: Any, state: Mapping[str, Any], steps: int) -> None:
        # The optimizer creates its state, including the code maps; the values in it are then overwritten.
        optimizer.check_overrides()
        if not optimizer.initialized:
            optimizer.to_gpu()
            optimizer.initialized = True
        for group_number, group in enumerate(optimizer.param_groups):
            for number, parameter in enumerate(group["params"]):
                if any(parameter is own for own in self._parameters.values()) and not optimizer.state[parameter]:
                    optimizer.init_state(group, parameter, group_number, number)
        for name, (of, theirs) in self._optimizer_states().items():
            kept = optimizer.state[self._parameters[of]]
            kept[theirs].copy_(_tensor(state[name]))
            kept["step"] = steps

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.write_back()


def plan(
    module: nn.Module,
    example_inputs: Any,
    budget: Optional[Size] = None,
    loss: LossLike = "softmax_cross_entropy",
    optimizer: OptimizerLike = None,
    *,
    example_labels: Optional[torch.Tensor] = None,
    train: bool = True,
    device: str = "host",
    batch_size: Optional[int] = None,
    **options: Unpack[EngineOptions],
) -> _plan.Plan:
    """Plans a step within a budget of device memory, to find whether a module fits and at what cost before anything runs.

    Args:
        module: The module.
        example_inputs: As for :class:`Trainer`.
        budget: Device memory: ``"8GiB"``, or ``"50%"`` of what a step takes without a budget.
        loss: As for :class:`Trainer`.
        optimizer: As for :class:`Trainer`.
        example_labels: As for :class:`Trainer`.
        train: Whether to plan a training step; otherwise a run in evaluation mode.
        device: As for :class:`Trainer`.
        batch_size: A batch size other than that of the examples.
        **options: See :class:`forebay.EngineOptions`; ``machine="laptop-8gb"`` plans for another machine.

    >>> import torch, forebay.torch
    >>> plan = forebay.torch.plan(torch.nn.Linear(8, 4), torch.zeros(16, 8), "8GiB")
    >>> plan.fits("8GiB"), plan.largest_batch("1MiB") > 16
    (True, True)
    """
    ours = of_torch(optimizer)[0] if isinstance(optimizer, torch.optim.Optimizer) else optimizer
    export = _Export(module, example_inputs, loss, example_labels)
    return export.first_that(
        lambda path: _plan.plan(
            path,
            export.loss if train else None,
            ours if train else None,
            train=train,
            device=device,
            device_memory=budget,
            freeze=export.frozen(optimizer) if train else (),
            batch_size=export.batch_size if batch_size is None else batch_size,
            **options,
        )
    )


def _version(tensor: torch.Tensor) -> Tuple[int, int]:
    """Returns a value that changes when a tensor is overwritten or replaced."""
    return tensor._version, tensor.data_ptr()


def _tensor(array: "np.ndarray[Any, Any]") -> torch.Tensor:
    if str(array.dtype) == "bfloat16":
        array = array.astype(np.float32)
    tensor: torch.Tensor = _untyped.from_numpy(array)
    return tensor


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
    taken = sorted({_OUTPUT, _LABELS} & set(inputs))
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


class _Folder:
    """The folder of an export, which is read for as long as the trainer exists, and the names in the export."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="forebay-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = os.path.join(folder, "module.onnx")
        self.names: "frozenset[str]" = frozenset()


class _Export:
    """The export of a module to ONNX."""

    def __init__(
        self, module: nn.Module, example_inputs: Any, loss: LossLike, example_labels: Optional[torch.Tensor]
    ) -> None:
        refuse_others(module)
        refuse_parts(module)
        self.folder = _Folder()
        #: What names in the latest export begin with, before those of the module.
        self.prefix = ""
        #: The buffers that a call of the module changes, by their names in the module.
        self.changed: List[str] = []
        #: By how much a call raises counters of batches, by their names in the module.
        self.counts: Dict[str, int] = {}
        self._places = Places()
        self._drawn: Optional[str] = None
        self._own = self._module = module
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
        self._inputs = inputs
        ours = _loss(loss, example_labels)
        if ours is None:
            if example_labels is None:
                raise InvalidArgument("this loss is exported with the module; pass example_labels, too")
            function: Any = loss
            if isinstance(loss, nn.Module) and any(each.requires_grad for each in loss.parameters()):
                names = ", ".join(name for name, each in loss.named_parameters() if each.requires_grad)
                raise InvalidArgument(f"the loss has parameters of its own ({names}); make it a part of the module, or freeze them")
            self._module = _WithLoss(self._module, function)
            self._inputs = (*inputs, example_labels)
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
                return make(attempt())
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
        ways.append(lambda: self._write(dynamo=True, open_batch=False))
        return ways

    @staticmethod
    def _is_final(error: Exception) -> bool:
        """Returns whether no other way of exporting can help."""
        return isinstance(error, (InvalidArgument, FinalError))

    def _write(self, *, dynamo: bool, open_batch: bool) -> str:
        module = self._module
        keywords: Dict[str, Any] = {"dynamo": False, "do_constant_folding": False}
        if dynamo:
            # The exporter's optimizer would fuse batch normalizations into convolutions.
            keywords = {"dynamo": True, "optimize": False, "verbose": False}
        if "dynamo" not in inspect.signature(_untyped.onnx.export).parameters:
            keywords.pop("dynamo")
        if open_batch:
            named = [*self._names] if isinstance(self.loss, OutputLoss) else [*self._names, _OUTPUT]
            keywords["dynamic_axes"] = {name: {0: "batch"} for name in named}
        # This exporter takes names from the attributes that lead to a tensor.
        self.prefix = "module." * len(self._wrappers) if dynamo else ""
        modes = [(each, each.training) for each in module.modules()]
        kept = {name: buffer.detach().clone() for name, buffer in self._own.named_buffers()}
        hooks: List[Any] = []
        try:
            with exporting(), padding_rows_stay(module), paths_drop(module):
                # A wrapper in evaluation mode would merge parameters that happen to be equal.
                for wrapper in self._wrappers:
                    wrapper.training = True
                if not any(each.training for each in self._own.modules()):
                    module.train()
                if not isinstance(self.loss, OutputLoss):
                    hooks.append(module.register_forward_hook(self._refuse_several))
                if dynamo:
                    # This exporter does not run the module, so what a run changes is found here.
                    look(module, self._inputs, True, self._places)
                    self.changed, self.counts = changed_buffers(self._own, kept)

                def write() -> None:
                    _untyped.onnx.export(
                        module,
                        self._inputs,
                        self.folder.path,
                        training=torch.onnx.TrainingMode.PRESERVE,
                        opset_version=_OPSET,
                        input_names=self._names,
                        output_names=[_OUTPUT],
                        **keywords,
                    )

                if dynamo:
                    refuse_other_changes(self.changed)
                    self._places.refuse()
                    write()
                else:
                    self._places = Places()
                    with one_way(), writing_gradients(module, True, self._places):
                        write()
                self._drawn = drawn_only_in_training(module, self._inputs, self._places)
        finally:
            for hook in hooks:
                hook.remove()
            # Tracing runs the module once, which changes running statistics.
            for each, training in modes:
                each.training = training
            if not dynamo:
                self.changed, self.counts = changed_buffers(self._own, kept)
            with torch.no_grad():
                for name, buffer in self._own.named_buffers():
                    buffer.copy_(kept[name])
        tensors = [*self._own.named_parameters(remove_duplicate=False), *self._own.named_buffers(remove_duplicate=False)]
        self.folder.names = _names_in(self.folder.path, [self.prefix + name for name, _ in tensors])
        return self.folder.path

    def refuse_evaluation(self) -> None:
        """Rejects evaluation of a module that does something else in training, which the export repeats.

        Raises:
            forebay.InvalidArgument: It draws random numbers in training only.
        """
        if self._drawn is not None:
            raise InvalidArgument(
                f"the module draws random numbers {self._drawn}, in training mode only, but its export draws them always. Call write_back() and "
                "evaluate or export the module itself; dropout and stochastic depth have no such limit"
            )

    def _refuse_several(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Rejects several outputs, because Forebay's losses take one."""
        count = sum(isinstance(value, torch.Tensor) for value in _tree.tree_leaves(outputs))
        if count > 1:
            raise InvalidArgument(
                f"the module returns {count} tensors ({type(outputs).__name__}), but this loss accepts only one; pass a loss that is a function of what the "
                "module returns and of labels, and example_labels"
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
    taken = {_OUTPUT, _LABELS}
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


__all__ = ["CompiledModule", "Trainer", "compile", "plan"]
