"""Training a model."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import _forebay, _options
from ._arrays import Native, all_from_native, from_native, labels_to_native, to_native
from ._feed import read_ahead, split_batch
from ._fit import Callback, Evaluation, Fit, FitSettings, History, StepReport
from ._lora import LoRA, with_adapters
from ._losses import Loss, LossTerm, loss_given, loss_named
from ._model import Model, ModelLike, TensorInfo, as_model, infos, native_model
from ._optimizers import Optimizer, optimizer_given, optimizer_named
from ._options import EngineOptions, PathLike, Size
from ._plan import Plan
from ._recipe import ParameterGroup, Schedule, recipe
from ._session import by_name
from ._windows import Windows
from .errors import InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Unpack


class Trainer:
    """A model in training, within a memory budget, with the same results, bit for bit, as without one.

    Everything is planned before the first step: what stays on the device, what moves to host memory or to disk and back, what is computed
    a second time. Memory is taken at the first step. Several threads may use a trainer: they take turns. Ctrl-C raises
    ``KeyboardInterrupt`` within a second; a step that is under way then goes on to its end, and the next call waits for it.

    Args:
        model: A :class:`forebay.Model`, a path, bytes, or an ``onnx.ModelProto``.
        loss: ``"softmax_cross_entropy"``, ``"soft_cross_entropy"``, ``"mse"``, ``"bce"``, ``"l1"``, ``"huber"``, ``"smooth_l1"``, ``"kl"``, ``"cosine"``,
            ``"focal"``, ``"binary_focal"``, ``"dice"``, ``"dice_ce"``, ``"tversky"``, ``"output"``, or one of their classes such as
            :class:`forebay.SoftmaxCrossEntropy` and :class:`forebay.Dice`, which take numbers.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"``, ``"adam8bit"``, ``"adamw8bit"``, ``"rmsprop"``, ``"adagrad"``, ``"lion"``, ``"lamb"``,
            ``"adafactor"``, or one of their classes such as :class:`forebay.SGD` and :class:`forebay.AdamW`.
        learning_rate: The step size, where the optimizer is given by name.
        device: ``"host"`` (the CPU), ``"vulkan"`` or ``"vulkan:0"`` (a GPU), ``"null"`` (plans, computes nothing).
        device_memory: The budget: ``"192MiB"``, or ``"50%"`` of what a step takes without one. On the host it bounds the whole process,
            Python included, as long as the process can keep to it; else the tensors (see :attr:`budget_excludes_process`).
        batch_size: The batch size, where the model leaves it open or another one is wanted.
        sizes: Other sizes that the model leaves open, by symbol or as ``input[dimension]``.
        loss_output: The output that the loss takes, where the model has several.
        loss_weight: The factor of that loss next to others; 1 where not given.
        terms: Losses of other outputs, which are added, each a :class:`forebay.LossTerm`.
        decay: Which parameters decay: ``"all"`` or ``"matrices"``; matrices only for AdamW, else all, where not given.
        freeze: Patterns (``*``, ``?``) over names of parameters that do not train.
        seed: The seed of dropout.
        on_nan: What happens when the loss is not finite: ``"stop"`` (the step fails, with :class:`forebay.NotFinite`),
            ``"continue"``, or ``"skip"`` (the update is left out; looks at the gradients, too).
        precision: ``"bf16"`` or ``"f16"``: products, convolutions and what follows them compute in 16 bits; parameters, normalisations and the
            loss stay float32. Gradients of ``"f16"`` are scaled; a step in which they are not finite updates nothing.
        float32: Patterns over names of nodes, outputs and weights that stay float32 then.
        schedule: How the learning rate changes from step to step, a :class:`forebay.Schedule`.
        clip_value: Limits each element of a gradient to this number and its negative.
        clip_norm: Scales a parameter's gradient down whose norm exceeds this number.
        clip_global_norm: Scales all gradients down where their common norm exceeds this number.
        gradient_norm: Whether each step reports that norm, also where nothing needs it.
        groups: Parameters that train with numbers of their own, each a :class:`forebay.ParameterGroup`.
        layer_decay: A factor by which the learning rate falls from layer to layer, from the last towards the inputs. Layers are what names
            number, as in ``blocks.3.attn.weight``; parameters of ``groups`` have what those say.
        accumulate: In how many parts of ``batch_size`` samples a step goes through its batch, one after the other, with the memory for the
            activations of one part and the bits of the batch as a whole. Batch normalisation takes the statistics of each part.
        average: The decay of an exponential moving average of the parameters: see :meth:`save_average`.
        lora: Low-rank adapters that train instead of the weights, a :class:`forebay.LoRA`. :meth:`save` merges them into the weights.
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
        loss_weight: Optional[float] = None,
        terms: Sequence[LossTerm] = (),
        decay: Optional[str] = None,
        freeze: Union[str, Sequence[str]] = (),
        seed: int = 0,
        on_nan: str = "stop",
        precision: Optional[str] = None,
        float32: Union[str, Sequence[str]] = (),
        schedule: Optional[Schedule] = None,
        clip_value: Optional[float] = None,
        clip_norm: Optional[float] = None,
        clip_global_norm: Optional[float] = None,
        gradient_norm: bool = False,
        groups: Sequence[ParameterGroup] = (),
        layer_decay: Optional[float] = None,
        accumulate: int = 1,
        average: Optional[float] = None,
        lora: Optional[LoRA] = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self._model: Model = as_model(model) if lora is None else with_adapters(model, lora)
        self._loss: Loss = loss_named(loss)
        self._optimizer: Optimizer = optimizer_named(optimizer, learning_rate)
        self._native = _forebay.Trainer(
            native_model(self._model),
            _options.engine(device, device_memory, options),
            _options.open_sizes(batch_size, sizes),
            _options.training(
                self._loss,
                self._optimizer,
                loss_output=loss_output,
                loss_weight=loss_weight,
                terms=terms,
                decay=decay,
                freeze=freeze,
                seed=seed,
                on_nan=on_nan,
                precision=precision,
                float32=float32,
                recipe=recipe(
                    schedule,
                    clip_value,
                    clip_norm,
                    clip_global_norm,
                    gradient_norm,
                    groups,
                    accumulate,
                    average,
                    layer_decay,
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

    def step(self, inputs: Any, labels: Any, *, gradients: bool = False) -> StepReport:
        """Trains on one batch. Where the model leaves sizes open, they may be others than the planned ones.

        Args:
            inputs: A dictionary of arrays by name; an array alone where there is one input. Arrays are NumPy's, or of whatever speaks
                DLPack (PyTorch's tensors do) or the buffer protocol.
            labels: An array of the type and shape of :attr:`labels`; class numbers may be of any integer type.
            gradients: Whether the report has the gradients, too. Such a step has a plan of its own, within the same budgets and with the same
                bits, and is slower. The arrays take as much memory as the parameters, next to the budgets.

        Raises:
            forebay.InvalidArgument: Inputs or labels that do not fit.
            forebay.NotFinite: The loss is no number; parameters are as before.
            forebay.OutOfBudget: No plan that keeps the gradients fits the budget; :meth:`plan_gradients` finds that before any step.

        >>> import forebay, numpy as np
        >>> trainer = forebay.Trainer(digits, batch_size=10)
        >>> report = trainer.step(np.ones((10, 1, 8, 8), np.float32), np.arange(10), gradients=True)
        >>> sorted(report.gradients) == sorted(trainer.parameters())
        True
        """
        return self._prepared_step(*self._batch(inputs, labels), gradients)

    def plan_gradients(self) -> None:
        """Makes the plan of steps that give gradients, so that a budget which is too small for it is found before any training."""
        self._native.plan_gradients()

    def evaluate(self, inputs: Any, labels: Any, windows: Optional[Windows] = None) -> Evaluation:
        """Runs the model on one batch in evaluation mode, with the current parameters, which stay as they are.

        Args:
            inputs: As for :meth:`step`.
            labels: As for :meth:`step`.
            windows: How the model goes over samples that are larger than what it takes. The first input with more axes than a window says what
                the sizes of samples are; whatever has the same last axes is cut alike, the labels too. The loss is that of the merged predictions;
                of a loss that needs several predictions, or that the model computes itself, the mean of the windows' losses.
        """
        loss, logits = self._evaluate(*self._batch(inputs, labels), windows)
        return Evaluation(loss, from_native(logits))

    def _evaluate(self, batch: Dict[str, Native], labels: Native, windows: Optional[Windows]) -> Tuple[float, Native]:
        if windows is None:
            return self._native.evaluate(batch, labels)
        return self._native.evaluate_windows(batch, labels, windows._given())

    def plan_windows(self, sample: Sequence[int], windows: Windows) -> None:
        """Makes the plans of :meth:`evaluate` with ``windows`` for samples of these sizes along their last axes, one at a time, so that budgets
        which are too small for them are found before any training. Where labels have a shape of their own, plans are made when they are
        needed.

        Raises:
            forebay.OutOfBudget: The plans need more.
            forebay.InvalidArgument: The model does not take such windows, or ``sample`` has another number of axes than a window.
        """
        self._native.plan_windows([int(size) for size in sample], windows._given())

    def observe(self, loss: float) -> None:
        """Tells a schedule ``"plateau"`` of a loss. :meth:`fit` does, after each epoch: of that of the validation data, else of the mean."""
        self._native.observe(loss)

    def validate(self, data: Iterable[Any]) -> float:
        """The mean loss over all samples of an iterable of batches, in evaluation mode; batches are as for :meth:`fit`."""
        return float(self.measure(data)["loss"])

    def measure(
        self, data: Iterable[Any], metrics: Sequence[str] = (), windows: Optional[Windows] = None
    ) -> Dict[str, Any]:
        """How well the model does on all samples of an iterable of batches, in evaluation mode; batches are as for :meth:`fit`.

        Args:
            data: The batches.
            metrics: What to measure next to the loss: ``"accuracy"``, ``"top5"`` (any number), ``"f1"``, ``"auc"``, ``"iou"``, ``"dice"``,
                ``"perplexity"`` and ``"confusion"`` of classes; of these ``"accuracy"``, ``"f1"``, ``"auc"``, ``"iou"`` and ``"dice"`` of
                decisions (the loss ``"bce"``); ``"mae"`` of numbers. They are defined as in scikit-learn.
            windows: How the model goes over samples that are larger than what it takes: see :meth:`evaluate`.

        Returns:
            ``"loss"``, the mean over all samples, and each metric by its name: a number, ``None`` where it is not defined; of the confusion
            matrix the rows, one for each label.

        Raises:
            forebay.InvalidArgument: A metric that there is not, or that does not fit the loss.

        >>> import forebay, numpy as np
        >>> trainer = forebay.Trainer(digits, batch_size=10)
        >>> batch = np.ones((10, 1, 8, 8), np.float32), np.full(10, 3)
        >>> sorted(trainer.measure([batch], ["accuracy", "top3"]))
        ['accuracy', 'loss', 'top3']
        """
        measured = self._metrics(metrics)
        total, count = 0.0, 0
        for batch, labels in read_ahead(data, self._prepare):
            loss, predictions = self._evaluate(batch, labels, windows)
            if metrics:
                measured.add(predictions, labels)
            samples = labels[1][0] if labels[1] else 1
            total, count = total + loss * samples, count + samples
        return {"loss": total / count if count else math.nan, **measured.values()}

    def _metrics(self, names: Sequence[str]) -> _forebay.Metrics:
        """Metrics by name, before anything was measured."""
        chosen = [names] if isinstance(names, str) else list(names)
        return _forebay.Metrics(loss_given(self._loss), chosen)

    def fit(
        self,
        data: Iterable[Any],
        epochs: int = 1,
        callbacks: Union[Callback, Sequence[Callback]] = (),
        *,
        gradients_every: Optional[int] = None,
        validation: Optional[Iterable[Any]] = None,
        validate_every: Optional[int] = None,
        metrics: Sequence[str] = (),
        windows: Optional[Windows] = None,
        patience: Optional[int] = None,
        min_delta: float = 0.0,
        best_checkpoint: Optional[PathLike] = None,
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
            gradients_every: Steps after which the report has the gradients, too: see :meth:`step`.
            validation: Batches that the model is measured on after each epoch.
            validate_every: Steps after which it is measured instead.
            metrics: What to measure next to the loss: see :meth:`measure`.
            windows: How the model goes over samples of ``validation`` that are larger than what it takes: see :meth:`evaluate`.
            patience: Ends the training when as many validations in a row found no lower loss.
            min_delta: How much lower it has to be.
            best_checkpoint: A folder for a checkpoint of the step with the lowest loss of all validations.
            checkpoint: A folder for checkpoints: one after each epoch, and at the end.
            checkpoint_every: Steps after which there is another one.
            resume: Whether to go on from the checkpoint in that folder, where there is one: the batches of the epoch that are done are
                left out, so ``data`` has to give the same ones again.
            progress: Whether to show progress on standard error.

        >>> import forebay, numpy as np
        >>> trainer = forebay.Trainer(digits, "softmax_cross_entropy", "adam", batch_size=16)
        >>> batches = [(np.full((16, 1, 8, 8), i, np.float32), np.full(16, i)) for i in range(4)]
        >>> history = trainer.fit(batches, epochs=2, validation=batches, metrics=["accuracy"], patience=1, progress=False)
        >>> len(history.losses), history.epoch_losses[1] < history.epoch_losses[0], len(history.validations)
        (8, True, 2)
        """
        settings = FitSettings(
            epochs=epochs,
            callbacks=[callbacks] if callable(callbacks) else list(callbacks),
            gradients_every=gradients_every,
            validation=validation,
            validate_every=validate_every,
            metrics=metrics,
            windows=windows,
            patience=patience,
            min_delta=min_delta,
            best_checkpoint=None if best_checkpoint is None else os.fspath(best_checkpoint),
            checkpoint=None if checkpoint is None else os.fspath(checkpoint),
            checkpoint_every=checkpoint_every,
            resume=resume,
            progress=progress,
        )
        # Metrics that there are not are refused before the first step.
        self._metrics(metrics)
        history = Fit(self, settings, self._prepare, self._prepared_step).run(data)
        self._after_fit()
        return history

    # What a subclass does around steps.

    def _before_step(self) -> None:
        """Called before each step."""

    def _after_fit(self) -> None:
        """Called when :meth:`fit` ends without an error."""

    def _prepared_step(self, batch: Dict[str, Native], labels: Native, gradients: bool) -> StepReport:
        """A step on arrays as the native module takes them."""
        self._before_step()
        if not gradients:
            return StepReport(*self._native.step(batch, labels))
        numbers, found = self._native.step_with_gradients(batch, labels)
        return StepReport(*numbers, gradients=all_from_native(found))

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
        """Writes the trained model as ONNX. The file is replaced as a whole or not at all.

        Of several processes (``processes=...``), all call it, and the first one writes; so with all that writes. The others find the file
        after :meth:`Processes.barrier`.
        """
        self._native.save(os.fspath(path))

    def save_average(self, path: PathLike) -> None:
        """Writes the trained model with the moving averages of its parameters in their place (``average=...``)."""
        self._native.save_average(os.fspath(path))

    def save_adapters(self, folder: PathLike) -> None:
        """Writes the adapters alone (``lora=...``), as PEFT does: ``adapter_model.safetensors`` and ``adapter_config.json``."""
        self._native.save_adapters(os.fspath(folder))

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
        self._native.set_optimizer(optimizer_given(optimizer))
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
