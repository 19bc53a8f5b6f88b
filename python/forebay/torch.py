"""Training PyTorch modules in place, within a memory budget.

Requires PyTorch (``pip install forebay[torch]``), which ``import forebay.torch`` imports.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union, cast

import numpy as np
import torch
from torch import nn

from . import _plan
from ._arrays import Native
from ._fit import StepReport
from ._model import of_module
from ._optimizers import SGD, Adam8bit, AdamW8bit, NAdam, Optimizer, optimizer_given, optimizer_named
from ._options import EngineOptions, PathLike, Size
from ._recipe import ParameterGroup
from ._torch_export import OUTPUT, Export, LossLike, OptimizerLike
from ._torch_module import CompiledModule, add_counts, compile, counters, refuse_hook, refuse_unchanged
from ._torch_states import Slot, slots, version
from ._torch_optimizers import (
    QUANTIZED_MIN,
    counts_steps,
    maximizes,
    momentum_product,
    of_torch,
    refuse_change,
    refuse_state,
    states,
    steps_done,
    to_torch,
)
from ._trainer import Trainer as _Trainer
from ._windows import Windows
from .errors import Error, InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Parts of PyTorch have no types.
_untyped: Any = torch


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
            ``NAdam``, ``RAdam``, ``RMSprop``, ``Adagrad`` or ``Adadelta``, or bitsandbytes' ``Adam8bit`` or ``AdamW8bit``, whose state is
            taken over; or as for :class:`forebay.Trainer`. Parameter groups can differ in numbers, but not in flags.
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
        #: The settings of the PyTorch optimizer's groups.
        self._of_groups: List[Optimizer] = []
        self._maximizes = False
        named: Optimizer
        if isinstance(optimizer, torch.optim.Optimizer):
            if learning_rate is not None:
                raise InvalidArgument("the optimizer already has a learning rate; leave out learning_rate")
            self.torch_optimizer = optimizer
            self._of_groups, self._maximizes = of_torch(optimizer), maximizes(optimizer)
            named = self._of_groups[0]
            # PyTorch's weight decay applies to all parameters of the optimizer.
            decay = decay or "all"
        else:
            named = optimizer_named(optimizer, learning_rate)
            # Before an export, whose errors are those of the module.
            optimizer_given(named)
        export = Export(module, example_inputs, loss, example_labels)
        self._export = export
        patterns = [freeze] if isinstance(freeze, str) else list(freeze)
        begin = super().__init__

        def make(path: str) -> None:
            if export.carried and options.get("processes") is not None:
                raise InvalidArgument(
                    f"the module changes {', '.join(export.carried)} when it runs, with what each process knows; train it by one process"
                )
            if batch_size is not None:
                export.refuse_size(batch_size)
            begin(
                of_module(path),
                export.loss,
                named,
                device=device,
                device_memory=device_memory,
                batch_size=export.batch_size if batch_size is None else batch_size,
                loss_output=OUTPUT if export.carried else None,
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
                maximize=self._maximizes,
                **options,
            )
            self._match()

        export.first_that(make)
        #: The number of steps after which the module had the counters of batches that it has.
        self._steps_before = 0
        # Each part of a step is a batch.
        self._parts = max(accumulate, 1)
        self._read_module()

    # Matching with the module.

    def _groups(self) -> List[ParameterGroup]:
        """Returns the parameters that the settings of the PyTorch optimizer's first group do not apply to, or that have made fewer steps than
        others."""
        #: The group of the PyTorch optimizer that each parameter belongs to, and the number of steps that it has made less than others.
        self._places: Dict[int, Tuple[int, int]] = {}
        #: The group of the PyTorch optimizer that each group of Forebay's belongs to.
        self._grouped: List[int] = []
        if self.torch_optimizer is None:
            return []
        named = {self._prefix + name: each for name, each in self.module.named_parameters(remove_duplicate=False)}
        named = {name: each for name, each in named.items() if name in self._used()}
        done: Dict[int, Tuple[int, int]] = {}
        for number, (ours, group) in enumerate(zip(self._of_groups, self.torch_optimizer.param_groups)):
            for parameter in group["params"]:
                steps = steps_done(ours, self.torch_optimizer.state.get(parameter, {})) if counts_steps(ours) else 0
                done[id(parameter)] = number, steps
        most = max((done[id(each)][1] for each in named.values() if each.requires_grad and id(each) in done), default=0)
        groups: Dict[Tuple[int, int], List[str]] = {}
        for name, parameter in named.items():
            if id(parameter) in done:
                number, steps = done[id(parameter)]
                self._places[id(parameter)] = number, max(most - steps, 0)
                groups.setdefault(self._places[id(parameter)], []).append(name)
        groups.pop((0, 0), None)
        self._grouped = [number for number, _ in groups]
        return [ParameterGroup(names, optimizer=self._of_groups[number], updates_before=before) for (number, before), names in groups.items()]

    def _settings_of(self, name: str) -> Tuple[Optimizer, int]:
        """Returns the optimizer's settings for a parameter, and the number of steps that it has made less than others."""
        number, before = self._places.get(id(self._parameters[name]), (0, 0))
        return (self._of_groups[number] if self._of_groups else self.optimizer), before

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
        places = slots(self.module)
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
        #: The buffers, and parameters without gradients, that steps change. A module can replace them by others.
        self._buffers: Dict[str, Slot] = {}
        averages = {f"{name}.average" for name in self._parameters}
        for name in self.state():
            if name in of_optimizer or name in averages:
                continue
            place = places.get(name[len(self._prefix) :] if name.startswith(self._prefix) else "")
            if place is None:
                raise Error(f"steps change '{name}' of the export, which is not a buffer of the module")
            self._buffers[name] = place
        refuse_unchanged([name for name in self._export.changed if self._prefix + name not in self._buffers])
        #: The module's parameters and buffers by their names in the export.
        self._held: Dict[str, Slot] = {name: places[name[len(self._prefix) :]] for name in self._parameters}
        self._held.update(self._buffers)
        for name, place in places.items():
            if self._prefix + name in self._used():
                self._held.setdefault(self._prefix + name, place)
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
        """Takes over parameters, buffers and the optimizer's state, and remembers what does not change."""
        values: Dict[str, Any] = {name: parameter.detach() for name, parameter in self._parameters.items()}
        values.update((name, place.get().detach()) for name, place in self._buffers.items())
        self._take(values, self.torch_optimizer, True)
        places = {name: place.get() for name, place in self._held.items() if name not in self._parameters}
        #: Parameters that the optimizer could train if they required gradients.
        self._frozen = {name: value for name, value in places.items() if isinstance(value, nn.Parameter) and not value.requires_grad}

    def _take(self, values: Dict[str, Any], optimizer: Optional[torch.optim.Optimizer], is_first: bool = False) -> None:
        """Takes over values, and the state of an optimizer if there is one."""
        steps = None if optimizer is None else self._add_state(values, optimizer, is_first)
        pending = self.step_count - self._steps_before
        self.set_values(values, step_count=steps)
        self._steps_before = self.step_count - pending
        self._note_versions()

    def _add_state(self, values: Dict[str, Any], optimizer: torch.optim.Optimizer, is_first: bool) -> Optional[int]:
        """Adds the state of an optimizer to values by name, and returns its number of steps if it has one."""
        done: Dict[str, int] = {}
        missing: List[str] = []
        for name, (parameter, theirs) in self._optimizer_states().items():
            state = optimizer.state.get(self._parameters[parameter], {})
            if state.get(theirs) is None:
                missing.append(name)
            else:
                values[name] = state[theirs]
            ours, before = self._settings_of(parameter)
            done[parameter] = steps_done(ours, state) + before
            refuse_state(ours, state)
        if missing and not is_first:
            # PyTorch creates it with zeros.
            now = self.state()
            values.update((name, np.zeros_like(now[name])) for name in missing)
        steps = max(done.values(), default=0)
        behind = [name for name, count in done.items() if count < steps]
        if behind and counts_steps(self.optimizer):
            raise InvalidArgument(
                f"the optimizer's number of steps with '{behind[0]}' differs from those with other parameters in another way than when the trainer "
                "was made; make another trainer, which takes over the optimizer's state"
            )
        if isinstance(self.optimizer, SGD) and (steps > 0 or not counts_steps(self.optimizer)):
            # It only knows whether it has made any. Random numbers depend on their number.
            return max(steps, self.step_count)
        return steps

    def _note_versions(self) -> None:
        """Remembers the module and the optimizer's state as they are now, to notice changes."""
        self._versions = {name: version(place.get()) for name, place in self._held.items()}
        self._states = self._states_now()
        self._counters = self._counters_now()

    def _states_now(self) -> List[Tuple[Any, int]]:
        """Returns the state of the PyTorch optimizer, with the versions of its tensors."""
        states = {} if self.torch_optimizer is None else self.torch_optimizer.state
        values = [value for each in self._parameters.values() for value in states.get(each, {}).values()]
        return [(value, value._version if isinstance(value, torch.Tensor) else 0) for value in values]

    def _counters_now(self) -> List[Tuple[int, ...]]:
        """Returns the versions of the counters of batches."""
        return [version(counter) for _, counter in counters(self.module, self._owners())]

    def _owners(self) -> List[str]:
        """Returns the names of the parts whose running statistics steps change."""
        carried = {self._prefix + name for name in self._export.carried}
        return sorted({name[len(self._prefix) :].rpartition(".")[0] for name in self._buffers if name not in carried})

    # Around steps.

    def _before_step(self) -> None:
        self._export.refuse_changes()
        self._refuse_other_gradients()
        self._follow_module()
        self._follow_optimizer()

    def _prepared_step(self, batch: Dict[str, Native], labels: Native, gradients: bool) -> StepReport:
        self._refuse_sizes(batch)
        return super()._prepared_step(batch, labels, gradients)

    def _refuse_sizes(self, batch: Dict[str, Native]) -> None:
        for _, shape, _ in batch.values():
            if shape:
                self._export.refuse_size(shape[0], self._parts)

    def _refuse_other_gradients(self) -> None:
        """Rejects parameters that require gradients now if they did not before, or the other way around, or that have hooks."""
        has = {id(each) for group in self.torch_optimizer.param_groups for each in group["params"]} if self.torch_optimizer is not None else None
        for name, parameter in self._parameters.items():
            if not parameter.requires_grad:
                raise InvalidArgument(
                    f"'{name}' does not require a gradient any more, but this trainer trains it; make another trainer, which takes over the "
                    "optimizer's state"
                )
            refuse_hook(name, parameter)
        for name, parameter in self._frozen.items():
            if parameter.requires_grad and (has is None or id(parameter) in has):
                raise InvalidArgument(
                    f"'{name}' requires a gradient, but did not when the trainer was made, which does not train it; make another trainer, which takes "
                    "over the optimizer's state"
                )

    def _batch(self, inputs: Any, labels: Any) -> Any:
        # As losses of PyTorch do: targets can be numbers of any type.
        if isinstance(inputs, Mapping):
            # Batches can have more than a module takes, such as the numbers of samples.
            inputs = {name: value for name, value in inputs.items() if name in self._types or self._export.takes(name)}
        is_target = isinstance(labels, torch.Tensor) and self._labels.dtype == "float32" and not labels.is_complex()
        if is_target and labels.dtype != torch.float32 and labels.dim() == len(self._labels.shape):
            labels = labels.float()
        return super()._batch(inputs, labels)

    def _follow_module(self, is_strict: bool = True) -> None:
        """Takes over what has changed in the module and in the optimizer's state since they were read or written.

        Raises:
            forebay.InvalidArgument: ``is_strict``, and something has changed that is not trained.
        """
        changed = [name for name, place in self._held.items() if self._versions[name] != version(place.get())]
        constant = [name for name in changed if name not in self._parameters and name not in self._buffers]
        if constant and is_strict:
            raise InvalidArgument(
                f"'{constant[0]}', which this trainer does not train, has changed since the trainer was made; make another one after such a change, or "
                "compile the module (forebay.torch.compile), which reads its values at each call"
            )
        if self._counters_now() != self._counters:
            # They count the steps so far. PyTorch's normalizations do not count the changes of their statistics.
            self._steps_before = self.step_count
            changed += list(self._buffers)
        before, now = self._states, self._states_now()
        is_same = len(before) == len(now) and all(one is other and version == its for (one, version), (other, its) in zip(before, now))
        if (changed or not is_same) and self.step_count == self._steps_before:
            changed += [*self._parameters, *self._buffers]
        values = {name: self._held[name].get().detach() for name in changed if name not in constant}
        if values or not is_same:
            self._take(values, None if is_same else self.torch_optimizer)

    def _after_fit(self) -> None:
        self.write_back()

    def _follow_optimizer(self) -> None:
        if self.torch_optimizer is not None:
            self._follow_groups(of_torch(self.torch_optimizer))
            # PyTorch's schedulers warn about an optimizer that made no step; here, Forebay makes the steps.
            setattr(self.torch_optimizer, "_opt_called", True)

    def _follow_groups(self, now: List[Optimizer]) -> None:
        """Takes over the settings of the PyTorch optimizer's groups."""
        before, untyped = self._of_groups, cast(Any, self.torch_optimizer)
        if len(now) != len(before) or maximizes(untyped) != self._maximizes:
            what = "maximizes" if len(now) == len(before) else f"has {len(now)} parameter groups instead of {len(before)}"
            raise InvalidArgument(
                f"the optimizer {what}, unlike when the trainer was made; make another trainer, which takes over the optimizer's state"
            )
        if now == before:
            return
        if self.step_count > 0:
            for one, other in zip(before, now):
                refuse_change(one, other)
        if now[0] != before[0]:
            self.optimizer = now[0]
        for place, number in enumerate(self._grouped):
            if now[number] != before[number]:
                self._native.set_optimizer(optimizer_given(now[number]), place)
        self._of_groups = now

    def write_back(self) -> None:
        """Copies parameters, running statistics and the optimizer's state into the module and its ``torch.optim`` optimizer."""
        self._follow_module(False)
        steps = self.step_count
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(_tensor(self.parameter(name)))
            state = self.state()
            for name, place in self._buffers.items():
                place.get().copy_(_tensor(state[name]))
            add_counts(self.module, self._owners(), self._export.counts, "", (steps - self._steps_before) * self._parts)
        if self.torch_optimizer is not None:
            self._write_state(self.torch_optimizer, state)
        self._steps_before = steps
        self._note_versions()

    def _evaluate(self, batch: Dict[str, Native], labels: Native, windows: Optional[Windows]) -> Tuple[float, Native]:
        if windows is None:
            self._refuse_sizes(batch)
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

    def save_average(self, path: PathLike) -> None:
        """Writes the model with the moving averages of its parameters; see :meth:`forebay.Trainer.save_average`.

        Raises:
            forebay.InvalidArgument: As for :meth:`save`.
        """
        self._export.refuse_evaluation()
        self._follow_module()
        super().save_average(path)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Returns a PyTorch optimizer over the trained parameters, with the current state, so that PyTorch can continue training.

        It is a ``torch.optim`` optimizer or, for :class:`forebay.Adam8bit` and :class:`forebay.AdamW8bit`, a bitsandbytes optimizer.

        Raises:
            forebay.InvalidArgument: PyTorch and bitsandbytes have no such optimizer, or bitsandbytes is not installed.
        """
        groups: Dict[int, List[nn.Parameter]] = {}
        for parameter in self._parameters.values():
            groups.setdefault(self._places.get(id(parameter), (0, 0))[0], []).append(parameter)
        made: Optional[torch.optim.Optimizer] = None
        for number in sorted(groups):
            ours = self._of_groups[number] if self._of_groups else self.optimizer
            of_group = to_torch(ours, groups[number])
            if made is None:
                made = of_group
            else:
                made.add_param_group(of_group.param_groups[0])
        assert made is not None, "something is trained"
        for group in made.param_groups if self._maximizes else ():
            group["maximize"] = True
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
            ours, before = self._settings_of(of)
            own = steps - before
            if own == 0:
                continue
            kept = optimizer.state[parameter]
            kept[theirs] = _tensor(state[name]).to(device=parameter.device, dtype=parameter.dtype)
            if not isinstance(self.optimizer, SGD):
                kept["step"] = torch.tensor(float(own))
            if isinstance(ours, NAdam):
                kept["mu_product"] = torch.tensor(momentum_product(ours, own))

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
            kept["step"] = steps - self._settings_of(of)[1]

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
    export = Export(module, example_inputs, loss, example_labels)
    return export.first_that(
        lambda path: _plan.plan(
            of_module(path),
            export.loss if train else None,
            ours if train else None,
            train=train,
            device=device,
            device_memory=budget,
            loss_output=OUTPUT if train and export.carried else None,
            freeze=export.frozen(optimizer) if train else (),
            batch_size=export.batch_size if batch_size is None else batch_size,
            **options,
        )
    )


def _tensor(array: "np.ndarray[Any, Any]") -> torch.Tensor:
    if str(array.dtype) == "bfloat16":
        array = array.astype(np.float32)
    tensor: torch.Tensor = _untyped.from_numpy(array)
    return tensor


__all__ = ["CompiledModule", "Trainer", "compile", "plan"]
