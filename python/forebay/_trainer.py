"""Training a model."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Sized, Tuple, Union

from . import _forebay, _options
from ._arrays import Native, all_from_native, from_native, labels_to_native, to_native
from ._feed import Progress, read_ahead, split_batch
from ._model import Model, ModelLike, TensorInfo, as_model, infos, native_model
from ._options import EngineOptions, Loss, Optimizer, PathLike, Size
from ._plan import Plan
from ._recipe import ParameterGroup, Schedule, recipe
from ._session import by_name
from .errors import InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import TypeAlias, Unpack


@dataclass(frozen=True)
class StepReport:
    """What a training step did."""

    #: Which step it was, from 1.
    step: int
    #: The loss before the step's update.
    loss: float
    #: Seconds from the first command to the last.
    seconds: float
    #: The part of them in which no kernel ran.
    stall_seconds: float
    #: Copies to the device that kernels had to wait for.
    late_copies: int
    #: The part of ``stall_seconds`` that those cost.
    late_seconds: float
    #: Whether a better plan, made with measured durations, takes over at the next step.
    replanned: bool
    #: The learning rate of the step.
    learning_rate: float
    #: The norm of all gradients before they were limited, where it is asked for or needed.
    gradient_norm: Optional[float]
    #: Whether the update was left out, because the loss or a gradient is not finite.
    skipped: bool


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of a batch, in evaluation mode."""

    #: The loss.
    loss: float
    #: What the loss is computed from: the model's output.
    logits: npt.NDArray[Any]


@dataclass
class History:
    """What :meth:`Trainer.fit` did."""

    #: The loss of every step.
    losses: List[float] = field(default_factory=lambda: [])
    #: The mean loss of every epoch.
    epoch_losses: List[float] = field(default_factory=lambda: [])
    #: The loss over the validation data after every epoch.
    validation_losses: List[float] = field(default_factory=lambda: [])
    #: Whether a callback ended the training.
    stopped: bool = False


#: Called after each step with the trainer and its report; ``False`` ends the training.
Callback: TypeAlias = "Callable[[Trainer, StepReport], Optional[bool]]"


class Trainer:
    """A model in training, within a memory budget, with the same results, bit for bit, as without one.

    Everything is planned before the first step: what stays on the device, what moves to host memory or to disk and back, what is computed
    a second time. Memory is taken at the first step. Several threads may use a trainer: they take turns. Ctrl-C raises
    ``KeyboardInterrupt`` within a second; a step that is under way then goes on to its end, and the next call waits for it.

    Args:
        model: A :class:`forebay.Model`, a path, bytes, or an ``onnx.ModelProto``.
        loss: ``"softmax_cross_entropy"``, ``"mse"``, ``"output"``, or :class:`forebay.SoftmaxCrossEntropy`,
            :class:`forebay.MeanSquaredError`, :class:`forebay.OutputLoss`.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"``, or :class:`forebay.SGD`, :class:`forebay.Adam`, :class:`forebay.AdamW`.
        learning_rate: The step size, where the optimizer is given by name.
        device: ``"host"`` (the CPU), ``"vulkan"`` or ``"vulkan:0"`` (a GPU), ``"null"`` (plans, computes nothing).
        device_memory: The budget: ``"192MiB"``, or ``"50%"`` of what a step takes without one. On the host it bounds the whole process,
            Python included, as long as the process can keep to it; else the tensors (see :attr:`budget_excludes_process`).
        batch_size: The batch size, where the model leaves it open or another one is wanted.
        sizes: Other sizes that the model leaves open, by symbol or as ``input[dimension]``.
        loss_output: The output that the loss takes, where the model has several.
        decay: Which parameters decay: ``"all"`` or ``"matrices"``; matrices only for AdamW, else all, where not given.
        freeze: Patterns (``*``, ``?``) over names of parameters that do not train.
        seed: The seed of dropout.
        on_nan: What happens when the loss is not finite: ``"stop"`` (the step fails, with :class:`forebay.NotFinite`),
            ``"continue"``, or ``"skip"`` (the update is left out; looks at the gradients, too).
        schedule: How the learning rate changes from step to step, a :class:`forebay.Schedule`.
        clip_value: Limits each element of a gradient to this number and its negative.
        clip_norm: Scales a parameter's gradient down whose norm exceeds this number.
        clip_global_norm: Scales all gradients down where their common norm exceeds this number.
        gradient_norm: Whether each step reports that norm, also where nothing needs it.
        groups: Parameters that train with numbers of their own, each a :class:`forebay.ParameterGroup`.
        accumulate: In how many parts of ``batch_size`` samples a step goes through its batch, one after the other.
        average: The decay of an exponential moving average of the parameters: see :meth:`save_average`.
        **options: See :class:`forebay.EngineOptions`: ``host_memory``, ``memory_limit``, ``spill_dir``, ``threads`` and others.

    Raises:
        forebay.OutOfBudget: No plan fits the budget; ``least`` says what would do, in bytes.
        forebay.UnsupportedOperator: An operator that Forebay does not have, or without a gradient.

    >>> import forebay, numpy as np
    >>> trainer = forebay.Trainer(digits, optimizer=forebay.SGD(0.05), batch_size=32, simulate_device="50%")
    >>> x, labels = np.ones((32, 1, 8, 8), np.float32), np.arange(32) % 10
    >>> first = trainer.step(x, labels)
    >>> trainer.step({"x": x}, labels).loss < first.loss
    True
    """

    def __init__(
        self,
        model: ModelLike,
        loss: Union[str, Loss] = "softmax_cross_entropy",
        optimizer: Union[None, str, Optimizer] = None,
        *,
        learning_rate: Optional[float] = None,
        device: str = "host",
        device_memory: Optional[Size] = None,
        batch_size: Optional[int] = None,
        sizes: Optional[Mapping[str, int]] = None,
        loss_output: Optional[str] = None,
        decay: Optional[str] = None,
        freeze: Union[str, Sequence[str]] = (),
        seed: int = 0,
        on_nan: str = "stop",
        schedule: Optional[Schedule] = None,
        clip_value: Optional[float] = None,
        clip_norm: Optional[float] = None,
        clip_global_norm: Optional[float] = None,
        gradient_norm: bool = False,
        groups: Sequence[ParameterGroup] = (),
        accumulate: int = 1,
        average: Optional[float] = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self._model: Model = as_model(model)
        self._optimizer: Optimizer = _options.optimizer_named(optimizer, learning_rate)
        self._native = _forebay.Trainer(
            native_model(self._model),
            _options.engine(device, device_memory, options),
            _options.open_sizes(batch_size, sizes),
            _options.training(
                _options.loss_named(loss),
                self._optimizer,
                loss_output=loss_output,
                decay=decay,
                freeze=freeze,
                seed=seed,
                on_nan=on_nan,
                recipe=recipe(
                    schedule, clip_value, clip_norm, clip_global_norm, gradient_norm, groups, accumulate, average
                ),
            ),
        )
        self._types = {name: dtype for name, dtype, _ in self._native.inputs()}
        self._labels = TensorInfo._of(self._native.labels())

    # What it takes.

    @property
    def inputs(self) -> List[TensorInfo]:
        """What a batch holds next to the labels, at the planned batch size."""
        return infos(self._native.inputs())

    @property
    def labels(self) -> TensorInfo:
        """The labels, at the planned batch size."""
        return self._labels

    @property
    def step_count(self) -> int:
        """Steps done, those before a restored checkpoint included."""
        return self._native.step_count()

    # Steps.

    def step(self, inputs: Any, labels: Any) -> StepReport:
        """Trains on one batch. Where the model leaves sizes open, they may be others than the planned ones.

        Args:
            inputs: A dictionary of arrays by name; an array alone where there is one input. Arrays are NumPy's, or of whatever speaks
                DLPack (PyTorch's tensors do) or the buffer protocol.
            labels: An array of the type and shape of :attr:`labels`; class numbers may be of any integer type.

        Raises:
            forebay.InvalidArgument: Inputs or labels that do not fit.
            forebay.NotFinite: The loss is no number; parameters are as before.
        """
        return StepReport(*self._native.step(*self._batch(inputs, labels)))

    def evaluate(self, inputs: Any, labels: Any) -> Evaluation:
        """Runs the model on one batch in evaluation mode, with the current parameters, which stay as they are."""
        loss, logits = self._native.evaluate(*self._batch(inputs, labels))
        return Evaluation(loss, from_native(logits))

    def observe(self, loss: float) -> None:
        """Tells a schedule ``"plateau"`` of a loss. :meth:`fit` does, after each epoch: of that of the validation data, else of the mean."""
        self._native.observe(loss)

    def validate(self, data: Iterable[Any]) -> float:
        """The mean loss over all samples of an iterable of batches, in evaluation mode; batches are as for :meth:`fit`."""
        total, count = 0.0, 0
        for batch, labels in read_ahead(data, self._prepare):
            loss, _ = self._native.evaluate(batch, labels)
            samples = labels[1][0] if labels[1] else 1
            total, count = total + loss * samples, count + samples
        return total / count if count else math.nan

    def fit(
        self,
        data: Iterable[Any],
        epochs: int = 1,
        callbacks: Union[Callback, Sequence[Callback]] = (),
        *,
        validation: Optional[Iterable[Any]] = None,
        checkpoint: Optional[PathLike] = None,
        checkpoint_every: Optional[int] = None,
        resume: bool = False,
        progress: bool = True,
    ) -> History:
        """Trains on batches of an iterable: a list, a generator (for one epoch), a PyTorch ``DataLoader``. They are read ahead on a thread.

        Args:
            data: Batches: pairs ``(inputs, labels)`` as for :meth:`step`, sequences with the labels last, or dictionaries with the labels
                among them.
            epochs: How often to go through ``data``.
            callbacks: Called after each step with the trainer and the step's report; one that returns ``False`` ends the training.
            validation: Batches whose loss is computed after each epoch.
            checkpoint: A folder for checkpoints: one after each epoch, and at the end.
            checkpoint_every: Steps after which there is another one.
            resume: Whether to go on from the checkpoint in that folder, where there is one: the batches of the epoch that are done are
                left out, so ``data`` has to give the same ones again.
            progress: Whether to show progress on standard error.

        >>> import forebay, numpy as np
        >>> trainer = forebay.Trainer(digits, "softmax_cross_entropy", "adam", batch_size=16)
        >>> batches = [(np.full((16, 1, 8, 8), i, np.float32), np.full(16, i)) for i in range(4)]
        >>> history = trainer.fit(batches, epochs=2, progress=False)
        >>> len(history.losses), history.epoch_losses[1] < history.epoch_losses[0]
        (8, True)
        """
        called: List[Callback] = [callbacks] if callable(callbacks) else list(callbacks)
        folder = None if checkpoint is None else os.fspath(checkpoint)
        if folder is None and (resume or checkpoint_every is not None):
            raise InvalidArgument("name a folder for checkpoints: checkpoint=...")
        first_epoch, done = 0, 0
        if resume and folder is not None and os.path.exists(os.path.join(folder, "checkpoint.json")):
            first_epoch, done = _place(self.restore(folder))
        history = History()
        for epoch in range(first_epoch, epochs):
            bar = Progress(progress, epoch, epochs, len(data) if isinstance(data, Sized) else None)
            losses: List[float] = []
            try:
                for number, (batch, labels) in enumerate(read_ahead(data, self._prepare)):
                    if number < done:
                        continue
                    report = StepReport(*self._native.step(batch, labels))
                    losses.append(report.loss)
                    history.losses.append(report.loss)
                    bar.step(report.loss)
                    # All of them are called, also those after one that ends the training.
                    ends = [callback(self, report) is False for callback in called]
                    history.stopped = any(ends)
                    at = {"epoch": epoch, "batch": number + 1}
                    is_due = checkpoint_every is not None and report.step % checkpoint_every == 0
                    if folder is not None and (is_due or history.stopped):
                        self.save_checkpoint(folder, at)
                    if history.stopped:
                        return history
            finally:
                bar.stop()
            done = 0
            history.epoch_losses.append(sum(losses) / len(losses) if losses else math.nan)
            summary = f"loss {history.epoch_losses[-1]:.4g}"
            if validation is not None:
                history.validation_losses.append(self.validate(validation))
                summary += f", validation {history.validation_losses[-1]:.4g}"
            self.observe(history.validation_losses[-1] if validation is not None else history.epoch_losses[-1])
            bar.end(summary)
            if folder is not None:
                self.save_checkpoint(folder, {"epoch": epoch + 1, "batch": 0})
        return history

    def _batch(self, inputs: Any, labels: Any) -> Tuple[Dict[str, Native], Native]:
        given = by_name(inputs, list(self._types))
        batch = {name: to_native(value, self._types.get(name)) for name, value in given.items()}
        return batch, labels_to_native(labels, self._labels.dtype)

    def _prepare(self, batch: Any) -> Tuple[Dict[str, Native], Native]:
        return self._batch(*split_batch(batch, list(self._types), self._labels.name))

    # What it learned.

    def parameters(self) -> Dict[str, npt.NDArray[Any]]:
        """The trained parameters by name, as arrays of the caller's own."""
        return all_from_native(self._native.parameters())

    def parameter(self, name: str) -> npt.NDArray[Any]:
        """One trained parameter."""
        native = self._native.parameter(name)
        if native is None:
            raise InvalidArgument(f"no parameter that trains is named {name!r}")
        return from_native(native)

    def state(self) -> Dict[str, npt.NDArray[Any]]:
        """Everything else that steps change: running statistics, and the optimizer's ``NAME.velocity``, or ``NAME.first_moment`` and
        ``NAME.second_moment``, of each parameter."""
        return all_from_native(self._native.state())

    def set_values(self, values: Mapping[str, Any], *, step_count: Optional[int] = None) -> None:
        """Replaces parameters and state by name; all others stay as they are.

        Args:
            values: Arrays, each of the type and shape of what it replaces.
            step_count: The number of steps done, for Adam's bias correction and the random numbers of dropout.

        >>> import forebay, numpy as np
        >>> trainer = forebay.Trainer(digits, batch_size=8)
        >>> name, value = next(iter(trainer.parameters().items()))
        >>> trainer.set_values({name: np.zeros_like(value)})
        >>> bool((trainer.parameter(name) == 0).all())
        True
        """
        self._native.set_values({name: to_native(value) for name, value in values.items()}, step_count)

    def save(self, path: PathLike) -> None:
        """Writes the trained model as ONNX. The file is replaced as a whole or not at all."""
        self._native.save(os.fspath(path))

    def save_average(self, path: PathLike) -> None:
        """Writes the trained model with the moving averages of its parameters in their place (``average=...``)."""
        self._native.save_average(os.fspath(path))

    # Stop and go on.

    def save_checkpoint(self, folder: PathLike, position: Any = None) -> None:
        """Writes a checkpoint into a folder; the one that was there stays complete until the new one is.

        Args:
            folder: The folder, which is made if need be, and which this trainer alone then writes to.
            position: The position in the data, in your own terms: anything that JSON can hold.
        """
        self._native.save_checkpoint(os.fspath(folder), json.dumps(position))

    def restore(self, folder: PathLike) -> Any:
        """Goes on from a checkpoint: the next step is what it would have been in the run that wrote it, bit for bit, whatever the budgets.

        Returns:
            The position that was saved with it.

        Raises:
            forebay.Error: A checkpoint of another model or optimizer, or none at all.
        """
        return json.loads(self._native.restore(os.fspath(folder)))

    # Settings.

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer. Setting another of the same kind changes the learning rate, momentum, decay from the next step on.

        >>> import dataclasses, forebay
        >>> trainer = forebay.Trainer(digits, optimizer=forebay.AdamW(1e-3), batch_size=8)
        >>> trainer.optimizer = dataclasses.replace(trainer.optimizer, learning_rate=1e-4)
        """
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        self._native.set_optimizer(_options.optimizer_given(optimizer))
        self._optimizer = optimizer

    def set_device_memory(self, size: Optional[Size]) -> None:
        """Another budget from the next step on; none for as much as it takes. All results stay the same."""
        self._native.set_device_memory(_options.size_text(size))

    @property
    def memory_limit(self) -> Optional[int]:
        """The limit on the process that the plan keeps to, in bytes: one that was given, or that was chosen by what is free."""
        return self._native.memory_limit()

    @property
    def budget_excludes_process(self) -> bool:
        """Whether the budget bounds tensors alone, because the whole process cannot stay within it."""
        return self._native.budget_excludes_process()

    @property
    def device_peak_bytes(self) -> int:
        """The most bytes of device memory that the trainer had at once."""
        return self._native.heap_peak_bytes()

    # What it does.

    def plan(self) -> Plan:
        """The plan of a step, as it is now."""
        return Plan(self._native.plan(f"device memory of {self._model.name} over a step"), subject=self._model.name)

    @property
    def predicted_seconds(self) -> float:
        """Seconds that a step takes, as predicted with the durations that the latest steps measured."""
        return self._native.predicted_seconds()

    def save_costs(self, path: PathLike) -> None:
        """Writes the durations that steps measured, for ``costs=...`` of another trainer or plan."""
        self._native.save_costs(os.fspath(path))

    def trace(self) -> Any:
        """When every command ran, as data in the format of Perfetto and ``chrome://tracing``; empty unless ``trace=True``."""
        return json.loads(self._native.trace())


def _place(position: Any) -> Tuple[int, int]:
    """Epoch and batch of a checkpoint of :meth:`Trainer.fit`."""
    try:
        return int(position["epoch"]), int(position["batch"])
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument(f"the checkpoint is at {position!r}: it was not written by fit") from None
