"""Training a model."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import _forebay, _options
from ._arrays import Native, all_from_native, copy_of, from_native, labels_to_native, named_to_native, to_native
from ._checks import optional, whole
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
from ._windows import Windows, windows_given
from .errors import InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Unpack


class Trainer:
    """Trains a model within a memory budget, with bit-identical results to training without one.

    Everything is planned before the first step: what stays on the device, what moves to host memory or disk and back, and what is
    recomputed. Memory is allocated at the first step. A trainer can be shared by several threads, which take turns. Ctrl-C raises
    ``KeyboardInterrupt`` within a second; a step in progress then runs to completion, and the next call waits for it. A process forked
    from this one (:mod:`multiprocessing` does so on Linux before Python 3.14) cannot use it and creates its own.

    Args:
        model: A :class:`forebay.Model`, a path, bytes, or an ``onnx.ModelProto``.
        loss: ``"softmax_cross_entropy"``, ``"soft_cross_entropy"``, ``"mse"``, ``"bce"``, ``"l1"``, ``"huber"``, ``"smooth_l1"``, ``"kl"``, ``"cosine"``,
            ``"focal"``, ``"binary_focal"``, ``"dice"``, ``"dice_ce"``, ``"tversky"``, ``"output"``, or an instance of one of
            their classes, such as :class:`forebay.SoftmaxCrossEntropy` and :class:`forebay.Dice`, which have parameters.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"``, ``"adam8bit"``, ``"adamw8bit"``, ``"rmsprop"``, ``"adagrad"``, ``"lion"``, ``"lamb"``,
            ``"adafactor"``, or an instance of one of their classes, such as :class:`forebay.SGD` and :class:`forebay.AdamW`.
        learning_rate: The step size, if the optimizer is given by name.
        device: ``"host"`` (the CPU), ``"vulkan"`` or ``"vulkan:0"`` (a GPU), ``"null"`` (plans, but computes nothing).
        device_memory: The budget: ``"192MiB"``, or ``"50%"`` of what a step takes without one. On the host it bounds the whole process,
            including Python, if the process can stay within it; otherwise only the tensors (see :attr:`budget_excludes_process`).
        batch_size: The batch size, if the model leaves it open or to override it.
        sizes: Other sizes that the model leaves open, by symbol or as ``input[dimension]``.
        loss_output: The output that the loss is computed from, if the model has several.
        loss_weight: The factor of this loss if there are others. The default is 1.
        terms: Losses of other outputs to add, each a :class:`forebay.LossTerm`.
        decay: Which parameters decay: ``"all"`` or ``"matrices"``. The default is matrices for AdamW, AdamW8bit,
            Lion, LAMB and Adafactor, otherwise all.
        freeze: Patterns (``*``, ``?``) for names of parameters that are not trained.
        seed: The seed of dropout.
        on_nan: What to do when the loss is not finite: ``"stop"`` (the step fails with :class:`forebay.NotFinite`), ``"continue"``, or
            ``"skip"`` (the update is skipped; also checks the gradients).
        precision: ``"bf16"`` or ``"f16"``: matrix products, convolutions and the operations that follow them compute in 16 bits;
            parameters, normalizations and the loss stay float32. Gradients of ``"f16"`` are scaled; a step whose gradients are not finite
            makes no update.
        float32: Patterns for names of nodes, outputs and weights that stay float32 in that case.
        schedule: How the learning rate changes from step to step, a :class:`forebay.Schedule`.
        clip_value: Clips each element of a gradient to the range from the negative of this number to this number.
        clip_norm: Scales down each parameter's gradient if its norm exceeds this number.
        clip_global_norm: Scales down all gradients if their global norm exceeds this number.
        gradient_norm: Whether each step reports the global norm even if nothing else needs it.
        groups: Parameters with their own training settings, each a :class:`forebay.ParameterGroup`.
        layer_decay: A factor by which the learning rate falls from layer to layer, from the last layer towards the inputs. Layers are
            identified by the numbers in names, as in ``blocks.3.attn.weight``; settings of ``groups`` take precedence.
        accumulate: The number of parts, each of ``batch_size`` samples, that a step processes one after the other, with the activation
            memory of one part and the bits of the whole batch. Batch normalization uses the statistics of each part.
        average: The decay of an exponential moving average of the parameters; see :meth:`save_average`.
        maximize: Whether steps raise the loss instead of lowering it.
        lora: Low-rank adapters to train instead of the weights, a :class:`forebay.LoRA`. :meth:`save` merges them into the weights.
        **options: See :class:`forebay.EngineOptions`: ``host_memory``, ``memory_limit``, ``spill_dir``, ``threads`` and others.

    Raises:
        forebay.OutOfBudget: No plan fits the budget; ``least`` is the smallest sufficient budget in bytes.
        forebay.UnsupportedOperator: The model uses an operator that Forebay does not support or that has no gradient.

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
        maximize: bool = False,
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
                    maximize,
                ),
            ),
        )
        self._types = {name: dtype for name, dtype, _ in self._native.inputs()}
        self._labels = TensorInfo._of(self._native.labels())

    def __repr__(self) -> str:
        return f"<Trainer of {self._model.name} with {self._loss} and {self._optimizer}>"

    # Inputs.

    @property
    def inputs(self) -> List[TensorInfo]:
        """The inputs of a batch, without the labels, at the planned batch size."""
        return infos(self._native.inputs())

    @property
    def labels(self) -> TensorInfo:
        """The labels, at the planned batch size."""
        return self._labels

    @property
    def step_count(self) -> int:
        """The number of steps done, including those before a restored checkpoint."""
        return self._native.step_count()

    # Steps.

    def step(self, inputs: Any, labels: Any, *, gradients: bool = False) -> StepReport:
        """Trains on one batch. Sizes that the model leaves open can differ from the planned ones.

        Args:
            inputs: A dictionary of arrays by name, or a single array if there is one input. An array is a NumPy array or an object that
                supports DLPack, like PyTorch tensors, or the buffer protocol.
            labels: An array of the type and shape of :attr:`labels`; class numbers can have any integer type. Lists of numbers must fit
                the type.
            gradients: Whether the report includes the gradients. Such a step has a separate plan, within the same budgets and with the same
                bits, and is slower. The arrays take as much memory as the parameters, in addition to the budgets.

        Raises:
            forebay.InvalidArgument: Inputs or labels do not match the model.
            forebay.NotFinite: The loss is not finite; parameters are unchanged.
            forebay.OutOfBudget: No plan that keeps the gradients fits the budget; :meth:`plan_gradients` detects this before any step.

        >>> import forebay, numpy as np
        >>> trainer = forebay.Trainer(digits, batch_size=10)
        >>> report = trainer.step(np.ones((10, 1, 8, 8), np.float32), np.arange(10), gradients=True)
        >>> sorted(report.gradients) == sorted(trainer.parameters())
        True
        """
        return self._prepared_step(*self._batch(inputs, labels), gradients)

    def plan_gradients(self) -> None:
        """Makes the plan for steps that return gradients, so that a budget that is too small is detected before any training."""
        self._native.plan_gradients()

    def evaluate(self, inputs: Any, labels: Any, windows: Optional[Windows] = None) -> Evaluation:
        """Runs the model on one batch in evaluation mode, with the current parameters, which do not change.

        Args:
            inputs: As for :meth:`step`.
            labels: As for :meth:`step`.
            windows: How to run the model on samples larger than its input. The first input with more axes than a window determines the
                sizes of samples; everything with the same last axes is cut in the same way, including the labels. The loss is that of the
                merged predictions, or the mean over the windows if the loss needs several predictions or the model computes it.
        """
        loss, logits = self._evaluate(*self._batch(inputs, labels), windows)
        return Evaluation(loss, from_native(logits))

    def _evaluate(self, batch: Dict[str, Native], labels: Native, windows: Optional[Windows]) -> Tuple[float, Native]:
        if windows is None:
            return self._native.evaluate(batch, labels)
        return self._native.evaluate_windows(batch, labels, windows_given(windows))

    def plan_windows(self, sample: Sequence[int], windows: Windows) -> None:
        """Makes the plans of :meth:`evaluate` with ``windows`` for samples of these sizes along their last axes, one sample at a time, so
        that budgets that are too small are detected before any training. If labels have a different shape, plans are made when they are
        needed.

        Raises:
            forebay.OutOfBudget: The plans do not fit the budget.
            forebay.InvalidArgument: The model does not accept such windows, or ``sample`` does not have the number of axes of a window.
        """
        self._native.plan_windows([whole("a size of sample", size) for size in sample], windows_given(windows))

    def observe(self, loss: float) -> None:
        """Passes a loss to a ``"plateau"`` schedule. :meth:`fit` does so after each epoch, with the validation loss or else the mean."""
        self._native.observe(loss)

    def validate(self, data: Iterable[Any]) -> float:
        """Returns the loss of all samples of an iterable of batches together, in evaluation mode. Batches are as for :meth:`fit`."""
        return float(self.measure(data)["loss"])

    def measure(
        self, data: Iterable[Any], metrics: Sequence[str] = (), windows: Optional[Windows] = None
    ) -> Dict[str, Any]:
        """Measures the model on all samples of an iterable of batches, in evaluation mode. Batches are as for :meth:`fit`.

        Args:
            data: The batches.
            metrics: What to measure besides the loss. For classes: ``"accuracy"``, ``"top5"`` (any number), ``"f1"``, ``"auc"``, ``"iou"``,
                ``"dice"``, ``"perplexity"`` and ``"confusion"``; for decisions (the loss ``"bce"``): ``"accuracy"``, ``"f1"``, ``"auc"``,
                ``"iou"`` and ``"dice"``; for numbers: ``"mae"``. They are defined as in scikit-learn.
            windows: How to run the model on samples larger than its input; see :meth:`evaluate`.

        Returns:
            ``"loss"``, that of all samples together, and each metric by name: a number, or for the confusion matrix its rows, one per
            label. A metric is ``None`` if it is not defined, or would take too much memory: ``"auc"`` of more than 2**25 scores,
            ``"confusion"`` of more than 1000 classes.

        Raises:
            forebay.InvalidArgument: A metric does not exist or does not fit the loss.

        >>> import forebay, numpy as np
        >>> trainer = forebay.Trainer(digits, batch_size=10)
        >>> batch = np.ones((10, 1, 8, 8), np.float32), np.full(10, 3)
        >>> sorted(trainer.measure([batch], ["accuracy", "top3"]))
        ['accuracy', 'loss', 'top3']
        """
        return self._measure(data, metrics, windows)[0]

    def _measure(
        self, data: Iterable[Any], metrics: Sequence[str], windows: Optional[Windows]
    ) -> Tuple[Dict[str, Any], int]:
        """Returns what :meth:`measure` does, and the number of batches."""
        measured = self._metrics(metrics)
        total, count, batches = 0.0, 0.0, 0
        for batch, labels in read_ahead(data, self._preparing(data)):
            batches += 1
            loss, predictions = self._evaluate(batch, labels, windows)
            if metrics:
                measured.add(predictions, labels)
            # A batch's loss is a mean, so the loss of the whole set weights each batch by what it counted.
            weight = measured.weight(labels)
            if weight > 0:
                total, count = total + loss * weight, count + weight
        return {"loss": total / count if count else math.nan, **measured.values()}, batches

    def _metrics(self, names: Sequence[str]) -> _forebay.Metrics:
        """Creates metrics by name, before anything is measured."""
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
        """Trains on batches from an iterable: a list, a generator (for one epoch) or a PyTorch ``DataLoader``. A thread reads ahead, and
        copies the batches of anything but a list or a tuple, so that a generator can use the same arrays for every batch.

        Args:
            data: Batches: pairs ``(inputs, labels)`` as for :meth:`step`, sequences with the labels last, or dictionaries with the labels
                among them. A generator can only be read once, so it needs ``epochs=1``.
            epochs: The number of passes through ``data``.
            callbacks: Called after each step with the trainer and the step's report; one that returns ``False`` ends the training.
            gradients_every: The number of steps after which the report includes the gradients; see :meth:`step`.
            validation: Batches on which the model is measured after each epoch.
            validate_every: The number of steps after which it is measured instead.
            metrics: What to measure besides the loss; see :meth:`measure`.
            windows: How to run the model on samples of ``validation`` that are larger than its input; see :meth:`evaluate`.
            patience: Ends the training after this many consecutive validations without a lower loss.
            min_delta: The amount by which a loss must be lower.
            best_checkpoint: Another folder than ``checkpoint``, for a checkpoint of the step with the lowest loss of all validations.
            checkpoint: A folder for checkpoints, which are written after each epoch and at the end. No other trainer may write to it.
            checkpoint_every: The number of steps after which another one is written.
            resume: Whether to resume from the checkpoint in that folder, if there is one. The batches of the epoch that are already done
                are skipped, so ``data`` must return the same batches again.
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
            callbacks=list(callbacks) if isinstance(callbacks, Iterable) and not callable(callbacks) else [callbacks],
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
        # Unknown metrics are rejected before the first step.
        self._metrics(metrics)
        history = Fit(self, settings, self._preparing(data), self._prepared_step).run(data)
        self._after_fit()
        return history

    # Hooks for subclasses.

    def _before_step(self) -> None:
        """Called before each step."""

    def _after_fit(self) -> None:
        """Called when :meth:`fit` ends without an error."""

    def _prepared_step(self, batch: Dict[str, Native], labels: Native, gradients: bool) -> StepReport:
        """Runs a step on arrays that are converted for the native module."""
        self._before_step()
        if not gradients:
            return StepReport(*self._native.step(batch, labels))
        numbers, found = self._native.step_with_gradients(batch, labels)
        return StepReport(*numbers, gradients=all_from_native(found))

    def _batch(self, inputs: Any, labels: Any) -> Tuple[Dict[str, Native], Native]:
        given = by_name(inputs, list(self._types))
        batch = {name: named_to_native(name, value, self._types.get(name)) for name, value in given.items()}
        try:
            return batch, labels_to_native(labels, self._labels.dtype, len(self._labels.shape))
        except (InvalidArgument, ValueError) as error:
            raise InvalidArgument(f"labels: {error}") from error

    def _preparing(self, data: Iterable[Any]) -> Callable[[Any], Tuple[Dict[str, Native], Native]]:
        """Returns the conversion of batches for :func:`read_ahead`. The batches of a list exist side by side; anything else may write each
        batch to the same arrays, so these are copied."""

        def prepare(batch: Any) -> Tuple[Dict[str, Native], Native]:
            return self._batch(*split_batch(batch, list(self._types), self._labels.name))

        def copied(batch: Any) -> Tuple[Dict[str, Native], Native]:
            inputs, labels = prepare(batch)
            return {name: copy_of(native) for name, native in inputs.items()}, copy_of(labels)

        return prepare if isinstance(data, (list, tuple)) else copied

    # Learned values.

    def parameters(self) -> Dict[str, npt.NDArray[Any]]:
        """Returns copies of the trained parameters by name."""
        return all_from_native(self._native.parameters())

    def parameter(self, name: str) -> npt.NDArray[Any]:
        """Returns one trained parameter."""
        native = self._native.parameter(name)
        if native is None:
            raise InvalidArgument(f"no trained parameter is named {name!r}")
        return from_native(native)

    def state(self) -> Dict[str, npt.NDArray[Any]]:
        """Returns everything else that steps change: running statistics and, for each parameter, the optimizer's ``NAME.velocity``, or
        ``NAME.first_moment`` and ``NAME.second_moment``."""
        return all_from_native(self._native.state())

    def set_values(self, values: Mapping[str, Any], *, step_count: Optional[int] = None) -> None:
        """Replaces parameters and state by name, and leaves all others unchanged.

        Args:
            values: Arrays, each with the type and shape of the value that it replaces.
            step_count: The number of steps done, for Adam's bias correction and the random numbers of dropout. None of them counts as
                skipped then.

        >>> import forebay, numpy as np
        >>> trainer = forebay.Trainer(digits, batch_size=8)
        >>> name, value = next(iter(trainer.parameters().items()))
        >>> trainer.set_values({name: np.zeros_like(value)})
        >>> bool((trainer.parameter(name) == 0).all())
        True
        """
        steps = optional(whole, "step_count", step_count)
        self._native.set_values({name: to_native(value) for name, value in values.items()}, steps)

    def save(self, path: PathLike) -> None:
        """Writes the trained model as ONNX. The file is replaced atomically.

        With several processes (``processes=...``), all of them make this call and the first one writes, as with every method that writes
        files. The others find the file after :meth:`Processes.barrier`.
        """
        self._native.save(os.fspath(path))

    def save_average(self, path: PathLike) -> None:
        """Writes the trained model with the moving averages of its parameters instead of the parameters (``average=...``)."""
        self._native.save_average(os.fspath(path))

    def save_adapters(self, folder: PathLike) -> None:
        """Writes only the adapters (``lora=...``), in PEFT's format: ``adapter_model.safetensors`` and ``adapter_config.json``."""
        self._native.save_adapters(os.fspath(folder))

    # Checkpoints.

    def save_checkpoint(self, folder: PathLike, position: Any = None) -> None:
        """Writes a checkpoint into a folder. An existing checkpoint there stays complete until the new one is.

        Args:
            folder: The folder, which is created if necessary. From then on, only this trainer writes to it (to the last 64 folders, if
                there are more).
            position: The position in the data, as any JSON-serializable value of your choice.
        """
        self._native.save_checkpoint(os.fspath(folder), _position_text(position))

    def restore(self, folder: PathLike) -> Any:
        """Restores a checkpoint. The next step is bit for bit the same as in the run that wrote it, whatever the budgets.

        Returns:
            The position that was saved with it.

        Raises:
            forebay.FileError: There is no checkpoint.
            forebay.Error: It belongs to another model or optimizer.
        """
        position = json.loads(self._native.restore(os.fspath(folder)))
        return json.loads(position[_AS_TEXT]) if _is_text(position) else position

    # Settings.

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer. Setting another one of the same kind changes the learning rate, momentum and decay from the next step on.

        >>> import dataclasses, forebay
        >>> trainer = forebay.Trainer(digits, optimizer=forebay.AdamW(1e-3), batch_size=8)
        >>> trainer.optimizer = dataclasses.replace(trainer.optimizer, learning_rate=1e-4)
        """
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        self._native.set_optimizer(optimizer_given(optimizer), None)
        self._optimizer = optimizer

    def set_device_memory(self, size: Optional[Size]) -> None:
        """Sets another budget from the next step on, or no limit for ``None``. Results stay the same."""
        self._native.set_device_memory(_options.size_text(size))

    @property
    def memory_limit(self) -> Optional[int]:
        """The process memory limit that the plan stays within, in bytes: given by the caller or chosen by the free memory."""
        return self._native.memory_limit()

    @property
    def budget_excludes_process(self) -> bool:
        """Whether the budget bounds only the tensors, because the whole process cannot stay within it."""
        return self._native.budget_excludes_process()

    @property
    def device_peak_bytes(self) -> int:
        """The peak device memory of the trainer, in bytes."""
        return self._native.heap_peak_bytes()

    # Inspection.

    def plan(self) -> Plan:
        """Returns the current plan of a step."""
        return Plan(self._native.plan(f"device memory of {self._model.name} over a step"), subject=self._model.name)

    @property
    def predicted_seconds(self) -> float:
        """The seconds that a step takes, as predicted from the durations measured in the latest steps."""
        return self._native.predicted_seconds()

    def save_costs(self, path: PathLike) -> None:
        """Writes the durations measured in steps, for ``costs=...`` of another trainer or plan."""
        self._native.save_costs(os.fspath(path))

    def trace(self) -> Any:
        """Returns when every command ran, in the format of Perfetto and ``chrome://tracing``; empty unless ``trace=True``."""
        return json.loads(self._native.trace())


#: The only key of a position that a checkpoint holds as text. The native module knows it as well.
_AS_TEXT = "json_text"


def _is_text(position: Any) -> bool:
    """Whether a position in a checkpoint is held as text."""
    return isinstance(position, dict) and list(position) == [_AS_TEXT] and isinstance(position[_AS_TEXT], str)


def _position_text(position: Any) -> str:
    """Returns a position as JSON for the native module, which would round integers of more than 64 bits, such as those in the states of
    random generators. A position with an integer of more than 63 bits is held as text."""
    text = json.dumps(position)
    bits: List[int] = [0]
    json.loads(text, parse_int=lambda digits: bits.append(int(digits).bit_length()))
    return json.dumps({_AS_TEXT: text}) if max(bits) > 63 or _is_text(position) else text
