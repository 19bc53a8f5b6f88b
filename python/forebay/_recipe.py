"""Learning-rate schedules, gradient clipping, parameter groups, and the rest of a training recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from ._checks import checked, flag, instance, number, optional, text, whole
from ._optimizers import Optimizer, optimizer_given
from .errors import InvalidArgument


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes from step to step, starting from the optimizer's rate. The formulas are those of
    ``torch.optim.lr_scheduler``, with a ``scheduler.step()`` after each step.

    >>> import forebay
    >>> forebay.Schedule("cosine", steps=900, warmup=100, min_rate=1e-5).curve
    'cosine'
    """

    #: ``"constant"``, ``"step"``, ``"multi_step"``, ``"exponential"``, ``"polynomial"``, ``"cosine"``, ``"cosine_restarts"``,
    #: ``"one_cycle"``, ``"plateau"`` (of the losses passed to :meth:`forebay.Trainer.observe`), or ``"table"``.
    curve: str = "constant"
    #: The number of steps: of polynomial, cosine and one_cycle after the warm-up; between changes for step; of the first cycle for
    #: cosine_restarts.
    steps: Optional[int] = None
    #: The smallest rate of polynomial, cosine, cosine_restarts and plateau.
    min_rate: float = 0.0
    #: The factor of step, multi_step, exponential and plateau.
    gamma: float = 0.1
    #: The steps after which multi_step changes the rate.
    milestones: Sequence[int] = ()
    #: The power of polynomial.
    power: float = 1.0
    #: The factor by which each further cycle of cosine_restarts is longer.
    restart_factor: int = 1
    #: The fraction of one_cycle in which the rate rises.
    pct_start: float = 0.3
    #: The highest rate of one_cycle divided by its first.
    div_factor: float = 25.0
    #: The first rate of one_cycle divided by its last.
    final_div_factor: float = 1e4
    #: The number of consecutive losses without improvement that plateau tolerates.
    patience: int = 10
    #: The fraction by which a loss must be below the best one to count as an improvement.
    threshold: float = 1e-4
    #: The number of losses after a reduction that plateau does not count as worse.
    cooldown: int = 0
    #: Rates with the steps from which they apply.
    table: Sequence[Tuple[int, float]] = ()
    #: The number of steps before the curve in which the rate rises linearly.
    warmup: int = 0
    #: The fraction of the rate at which the warm-up begins.
    warmup_start: float = 0.0


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with their own training settings. A parameter belongs to the first group that matches its name.

    >>> import forebay
    >>> forebay.ParameterGroup("conv*", rate_factor=0.1, weight_decay=0.0).pattern
    'conv*'
    """

    #: A pattern (``*``, ``?``) for names, or several.
    pattern: Union[str, Sequence[str]]
    #: The factor applied to the optimizer's learning rate.
    rate_factor: float = 1.0
    #: Weight decay, overriding the optimizer's.
    weight_decay: Optional[float] = None
    #: Whether the parameters are not trained.
    frozen: bool = False
    #: A learning-rate schedule for this group; not ``"plateau"``.
    schedule: Optional[Schedule] = None
    #: An optimizer of the same kind, whose numbers replace those of the trainer's optimizer.
    optimizer: Optional[Optimizer] = None
    #: The number of steps before the first one of these parameters, if they were frozen until then. Optimizers that depend on the number of a
    #: step count from there.
    updates_before: int = 0


def recipe(
    schedule: Optional[Schedule] = None,
    clip_value: Optional[float] = None,
    clip_norm: Optional[float] = None,
    clip_global_norm: Optional[float] = None,
    gradient_norm: bool = False,
    groups: Sequence[ParameterGroup] = (),
    accumulate: int = 1,
    average: Optional[float] = None,
    layer_decay: Optional[float] = None,
    maximize: bool = False,
) -> Dict[str, Any]:
    """Converts a recipe for the native module."""
    limits = {"value": clip_value, "norm": clip_norm, "global_norm": clip_global_norm}
    given = [(kind, number(f"clip_{kind}", limit)) for kind, limit in limits.items() if limit is not None]
    if len(given) > 1:
        raise InvalidArgument("pass only one of clip_value, clip_norm and clip_global_norm")
    return {
        "schedule": _given(Schedule() if schedule is None else schedule),
        "clipping": given[0] if given else None,
        "gradient_norm": flag("gradient_norm", gradient_norm),
        "groups": [_group_given(group) for group in groups],
        "accumulate": whole("accumulate", accumulate, 1),
        "average": optional(number, "average", average),
        "layer_decay": optional(number, "layer_decay", layer_decay),
        "maximize": flag("maximize", maximize),
    }


def _group_given(group: ParameterGroup) -> Any:
    instance("groups", group, (ParameterGroup,), "a sequence of forebay.ParameterGroup, such as [forebay.ParameterGroup('conv*')]")
    patterns = group.pattern if isinstance(group.pattern, (list, tuple)) else [group.pattern]
    return {
        "patterns": [text("pattern of ParameterGroup", pattern) for pattern in patterns],
        "rate_factor": number("rate_factor of ParameterGroup", group.rate_factor),
        "weight_decay": optional(number, "weight_decay of ParameterGroup", group.weight_decay),
        "frozen": flag("frozen of ParameterGroup", group.frozen),
        "schedule": None if group.schedule is None else _given(group.schedule),
        "optimizer": None if group.optimizer is None else optimizer_given(group.optimizer),
        "updates_before": whole("updates_before of ParameterGroup", group.updates_before),
    }


def _given(schedule: Schedule) -> Dict[str, Any]:
    instance("schedule", schedule, (Schedule,), "a forebay.Schedule, such as forebay.Schedule('cosine', steps=1000)")
    curve = checked(schedule)
    curve["milestones"] = [whole("a milestone of Schedule", step) for step in curve["milestones"]]
    try:
        rows = [(step, rate) for step, rate in curve["table"]]
    except (TypeError, ValueError):
        raise InvalidArgument("the table of Schedule must consist of pairs (step, rate)") from None
    curve["table"] = [
        (whole("a step in the table of Schedule", step), number("a rate in the table of Schedule", rate)) for step, rate in rows
    ]
    return curve
