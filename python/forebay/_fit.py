"""Training over epochs: validation, checkpoints, and stopping criteria."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Sized, Tuple, Union

import numpy as np

from ._arrays import Native
from ._checks import number, whole
from ._feed import Progress, read_ahead
from ._windows import Windows
from .errors import InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import TypeAlias

    from ._trainer import Trainer

    _Batch: TypeAlias = Tuple[Dict[str, Native], Native]


@dataclass(frozen=True)
class StepReport:
    """What a training step did."""

    #: The number of the step, from 1.
    step: int
    #: The loss before the step's update.
    loss: float
    #: Seconds from the first command to the last.
    seconds: float
    #: The part of ``seconds`` in which no kernel ran.
    stall_seconds: float
    #: The number of copies to the device that kernels had to wait for.
    late_copies: int
    #: The part of ``stall_seconds`` spent on those copies.
    late_seconds: float
    #: Whether a better plan, made with measured durations, takes over at the next step.
    replanned: bool
    #: The learning rate of the step.
    learning_rate: float
    #: The norm of all gradients before clipping, if it was requested or needed.
    gradient_norm: Optional[float]
    #: Whether the update was skipped because the loss or a gradient is not finite.
    skipped: bool
    #: The gradient of each trainable parameter, before clipping; ``None`` unless the step was asked for gradients.
    gradients: Optional[Dict[str, npt.NDArray[Any]]] = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Evaluation:
    """The result of running a model on a batch in evaluation mode."""

    #: The loss.
    loss: float
    #: The model output that the loss is computed from.
    logits: npt.NDArray[Any]


@dataclass
class History:
    """The results of :meth:`Trainer.fit`."""

    #: The loss of every step.
    losses: List[float] = field(default_factory=lambda: [])
    #: The mean loss of every epoch, including the steps before a restored checkpoint, without steps skipped because of their loss.
    epoch_losses: List[float] = field(default_factory=lambda: [])
    #: The results of every validation: the step after which it ran, as ``"step"``, the loss and the metrics.
    validations: List[Dict[str, Any]] = field(default_factory=lambda: [])
    #: The lowest loss of all validations, including those before a restored checkpoint.
    best_loss: Optional[float] = None
    #: The step after which the lowest loss was found.
    best_step: Optional[int] = None
    #: Whether a callback or ``patience`` ended the training.
    stopped: bool = False

    @property
    def validation_losses(self) -> List[float]:
        """The loss of every validation."""
        return [validation["loss"] for validation in self.validations]


#: How to read data more than once.
_READ_AGAIN = "pass a list or a DataLoader instead of an iterator, or epochs=1"
#: What is wrong with empty validation data.
_NO_VALIDATION = "validation has no batches; pass data that can be measured, or leave validation out"

#: Called after each step with the trainer and its report; ``False`` ends the training.
Callback: TypeAlias = Callable[["Trainer", StepReport], Union[bool, np.bool_, None]]


@dataclass(frozen=True)
class FitSettings:
    """The settings of :meth:`Trainer.fit`, which documents them under the same names."""

    epochs: int
    callbacks: Sequence[Callback]
    gradients_every: Optional[int]
    validation: Optional[Iterable[Any]]
    validate_every: Optional[int]
    metrics: Sequence[str]
    windows: Optional[Windows]
    patience: Optional[int]
    min_delta: float
    best_checkpoint: Optional[str]
    checkpoint: Optional[str]
    checkpoint_every: Optional[int]
    resume: bool
    progress: bool

    def check(self) -> None:
        """Rejects settings that contradict each other."""
        if self.checkpoint is None and (self.resume or self.checkpoint_every is not None):
            raise InvalidArgument("a folder for checkpoints is required; pass checkpoint=...")
        whole("epochs", self.epochs)
        for callback in self.callbacks:
            if not callable(callback):
                raise TypeError(f"a callback must be a function of the trainer and the step's report, but is {callback!r}")
        for name, count in (
            ("gradients_every", self.gradients_every),
            ("validate_every", self.validate_every),
            ("checkpoint_every", self.checkpoint_every),
            ("patience", self.patience),
        ):
            if count is not None:
                whole(name, count, 1)
        if not number("min_delta", self.min_delta) >= 0:
            raise InvalidArgument(f"min_delta must be at least 0, but is {self.min_delta}")
        best, folder = self.best_checkpoint, self.checkpoint
        if best is not None and folder is not None and os.path.realpath(best) == os.path.realpath(folder):
            raise InvalidArgument(
                f"best_checkpoint and checkpoint are the same folder {folder!r}, so the best checkpoint would be overwritten; pass two folders"
            )
        if self.validation is None:
            needed = {
                "validate_every": self.validate_every is not None,
                "metrics": len(self.metrics) > 0,
                "windows": self.windows is not None,
                "patience": self.patience is not None,
                "best_checkpoint": self.best_checkpoint is not None,
            }
            for name in (name for name, is_given in needed.items() if is_given):
                raise InvalidArgument(f"{name} needs validation data; pass validation=...")
        elif _length(self.validation) == 0:
            raise InvalidArgument(_NO_VALIDATION)
        elif isinstance(self.validation, Iterator) and (self.epochs > 1 or self.validate_every is not None):
            raise InvalidArgument("validation is read more than once; pass a list or a DataLoader instead of an iterator")

    def check_data(self, data: Iterable[Any]) -> None:
        """Rejects data that can be read only once if there are several epochs."""
        # Other iterators may begin again when they are read again.
        reads_once = isinstance(data, (GeneratorType, enumerate, map, zip, filter))
        if self.epochs > 1 and reads_once:
            raise InvalidArgument(f"data is read in each of {self.epochs} epochs; {_READ_AGAIN}")


class Fit:
    """One call of :meth:`Trainer.fit`: its position in the data and its results."""

    def __init__(
        self,
        trainer: Trainer,
        settings: FitSettings,
        prepare: Callable[[Any], _Batch],
        step: Callable[[Dict[str, Native], Native, bool], StepReport],
    ) -> None:
        settings.check()
        self._trainer = trainer
        self._prepare = prepare
        self._step = step
        self._settings = settings
        self._history = History()
        self._epoch = 0
        #: The number of batches done in this epoch.
        self._done = 0
        #: The sum and the number of the losses of this epoch, without those of steps skipped because of them.
        self._sum, self._count = 0.0, 0
        #: The number of consecutive validations without a lower loss.
        self._worse = 0

    def run(self, data: Iterable[Any]) -> History:
        """Trains until all epochs are done or something ends the training."""
        self._settings.check_data(data)
        # Fails before the first step if another trainer writes there.
        for held in (self._settings.best_checkpoint, self._settings.checkpoint):
            if held is not None:
                self._trainer._native.lock_folder(held)
        folder = self._settings.checkpoint
        if self._settings.resume and folder is not None and os.path.exists(os.path.join(folder, "checkpoint.json")):
            self._go_on_from(self._trainer.restore(folder))
        if self._settings.gradients_every is not None:
            # Fails before the first step if the budget is too small.
            self._trainer.plan_gradients()
        while self._epoch < self._settings.epochs and not self._history.stopped:
            self._run_epoch(data)
        return self._history

    def _run_epoch(self, data: Iterable[Any]) -> None:
        settings, trainer, history = self._settings, self._trainer, self._history
        bar = Progress(settings.progress and self._trainer._native.writes(), self._epoch, settings.epochs, _length(data))
        skipped, found = self._done, 0
        try:
            for found, (batch, labels) in enumerate(read_ahead(data, self._prepare), 1):
                if found <= skipped:
                    continue
                every = settings.gradients_every
                report = self._step(batch, labels, every is not None and (trainer.step_count + 1) % every == 0)
                if math.isfinite(report.loss) or not report.skipped:
                    self._sum, self._count = self._sum + report.loss, self._count + 1
                history.losses.append(report.loss)
                bar.step(report.loss)
                self._done = found
                # All callbacks run, even after one that ends the training.
                ends = [_is_false(callback(trainer, report)) for callback in settings.callbacks]
                if settings.validate_every is not None and report.step % settings.validate_every == 0:
                    bar.note(self._validate(report.step))
                history.stopped = history.stopped or any(ends)
                every = settings.checkpoint_every
                if settings.checkpoint is not None and (history.stopped or (every and report.step % every == 0)):
                    trainer.save_checkpoint(settings.checkpoint, self._position())
                if history.stopped:
                    return
        finally:
            bar.stop()
        if found == 0:
            again = f"; {_READ_AGAIN}" if isinstance(data, Iterator) else ""
            raise InvalidArgument(f"data has no batches in epoch {self._epoch + 1} of {settings.epochs}{again}")
        if found < skipped:
            raise InvalidArgument(
                f"data has only {found} batches, but the checkpoint was written after batch {skipped} of the epoch; pass the same data"
            )
        self._end_epoch(bar)

    def _end_epoch(self, bar: Progress) -> None:
        settings, trainer, history = self._settings, self._trainer, self._history
        # There may be none: all steps were skipped, or done before a checkpoint of an older version, which has no losses.
        loss = self._sum / self._count if self._count else math.nan
        history.epoch_losses.append(loss)
        summary = f"loss {loss:.4g}"
        observes = self._count > 0
        self._epoch, self._done, self._sum, self._count = self._epoch + 1, 0, 0.0, 0
        if settings.validation is not None and settings.validate_every is None:
            summary += ", " + self._validate(trainer.step_count)
        elif settings.validation is None and observes:
            trainer.observe(loss)
        bar.end(summary)
        if settings.checkpoint is not None:
            trainer.save_checkpoint(settings.checkpoint, self._position())

    def _validate(self, step: int) -> str:
        """Measures the model and returns a summary of the results."""
        settings, trainer, history = self._settings, self._trainer, self._history
        data = () if settings.validation is None else settings.validation
        found, count = trainer._measure(data, settings.metrics, settings.windows)
        if count == 0:
            raise InvalidArgument(_NO_VALIDATION)
        history.validations.append({"step": step, **found})
        loss = float(found["loss"])
        trainer.observe(loss)
        best = history.best_loss
        # The first loss is the lowest, unless it is NaN.
        if not math.isnan(loss) and (best is None or loss < best - settings.min_delta):
            history.best_loss, history.best_step, self._worse = loss, step, 0
            if settings.best_checkpoint is not None:
                trainer.save_checkpoint(settings.best_checkpoint, self._position())
        else:
            self._worse += 1
        history.stopped = history.stopped or self._has_waited()
        numbers = {name: value for name, value in found.items() if isinstance(value, float) and name != "loss"}
        return ", ".join([f"validation {loss:.4g}", *(f"{name} {value:.4g}" for name, value in numbers.items())])

    def _position(self) -> Dict[str, Any]:
        """Returns the training position in the form stored in checkpoints."""
        best_loss = self._history.best_loss
        # JSON has no infinity. Any finite loss is lower, as without a best loss.
        finite = best_loss if best_loss is not None and math.isfinite(best_loss) else None
        best = {"loss": finite, "step": self._history.best_step, "worse": self._worse}
        # In hexadecimal, every float comes back with its bits.
        losses = {"sum": float(self._sum).hex(), "count": self._count}
        return {"epoch": self._epoch, "batch": self._done, "losses": losses, "best": best}

    def _go_on_from(self, position: Any) -> None:
        try:
            self._epoch, self._done = int(position["epoch"]), int(position["batch"])
            losses: Dict[str, Any] = position.get("losses") or {"sum": "0", "count": 0}
            self._sum, self._count = float.fromhex(losses["sum"]), int(losses["count"])
        except (KeyError, TypeError, ValueError):
            raise InvalidArgument(f"the position in the checkpoint is {position!r}; it was not written by fit") from None
        best: Dict[str, Any] = position.get("best") or {}
        self._history.best_loss, self._history.best_step = best.get("loss"), best.get("step")
        self._worse = int(best.get("worse", 0))
        self._history.stopped = self._has_waited()

    def _has_waited(self) -> bool:
        """Whether ``patience`` consecutive validations found no lower loss."""
        return self._settings.patience is not None and self._worse >= self._settings.patience


def _length(data: Iterable[Any]) -> Optional[int]:
    """Returns the number of batches if it is known. For a ``DataLoader`` of an ``IterableDataset``, ``len`` raises ``TypeError``."""
    try:
        return len(data) if isinstance(data, Sized) else None
    except (TypeError, NotImplementedError):
        return None


def _is_false(answer: Any) -> bool:
    """Whether a callback ends the training: with ``False``, also NumPy's, but not with ``None`` or 0."""
    return isinstance(answer, (bool, np.bool_)) and not answer
