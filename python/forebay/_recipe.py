"""Learning-rate schedules, limits of gradients, groups of parameters, and what else a recipe of training has."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Optional, Sequence, Tuple

from .errors import InvalidArgument


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes from step to step, from the optimizer's own rate on; formulas are those of
    ``torch.optim.lr_scheduler``, with a ``scheduler.step()`` after each step.

    >>> import forebay
    >>> forebay.Schedule("cosine", steps=900, warmup=100, min_rate=1e-5).curve
    'cosine'
    """

    #: ``"constant"``, ``"step"``, ``"multi_step"``, ``"exponential"``, ``"polynomial"``, ``"cosine"``, ``"cosine_restarts"``,
    #: ``"one_cycle"``, ``"plateau"`` (of the losses that :meth:`forebay.Trainer.observe` is told), or ``"table"``.
    curve: str = "constant"
    #: Steps of polynomial, cosine and one_cycle, after the warm-up; between two changes of step; of the first cycle of cosine_restarts.
    steps: Optional[int] = None
    #: The smallest rate of polynomial, cosine, cosine_restarts and plateau.
    min_rate: float = 0.0
    #: The factor of step, multi_step, exponential and plateau.
    gamma: float = 0.1
    #: Steps after which multi_step changes.
    milestones: Sequence[int] = ()
    #: The power of polynomial.
    power: float = 1.0
    #: How many times as long each further cycle of cosine_restarts is.
    restart_factor: int = 1
    #: The part of one_cycle in which the rate rises.
    pct_start: float = 0.3
    #: The highest rate of one_cycle over its first.
    div_factor: float = 25.0
    #: The first rate of one_cycle over its last.
    final_div_factor: float = 1e4
    #: Losses in a row that may be no better before plateau acts.
    patience: int = 10
    #: The part by which a loss must be below the best one to be better.
    threshold: float = 1e-4
    #: Losses after a reduction that plateau does not count as worse.
    cooldown: int = 0
    #: Rates by the steps from which on they hold.
    table: Sequence[Tuple[int, float]] = ()
    #: Steps before all that in which the rate rises in a straight line.
    warmup: int = 0
    #: The part of the rate with which they begin.
    warmup_start: float = 0.0


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that train with numbers of their own. A parameter belongs to the first group that matches its name.

    >>> import forebay
    >>> forebay.ParameterGroup("conv*", rate_factor=0.1, weight_decay=0.0).pattern
    'conv*'
    """

    #: A pattern (``*``, ``?``) over names.
    pattern: str
    #: The learning rate over that of the optimizer.
    rate_factor: float = 1.0
    #: Weight decay instead of the optimizer's.
    weight_decay: Optional[float] = None
    #: Whether they stay as they are.
    frozen: bool = False
    #: How their learning rate changes, instead of that of all others; not ``"plateau"``.
    schedule: Optional[Schedule] = None


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
) -> Dict[str, Any]:
    """A recipe as the native module takes it."""
    limits = {"value": clip_value, "norm": clip_norm, "global_norm": clip_global_norm}
    given = [(kind, limit) for kind, limit in limits.items() if limit is not None]
    if len(given) > 1:
        raise InvalidArgument("give one of clip_value, clip_norm and clip_global_norm")
    return {
        "schedule": _given(schedule or Schedule()),
        "clipping": given[0] if given else None,
        "gradient_norm": gradient_norm,
        "groups": [
            (
                group.pattern,
                group.rate_factor,
                group.weight_decay,
                group.frozen,
                None if group.schedule is None else _given(group.schedule),
            )
            for group in groups
        ],
        "accumulate": accumulate,
        "average": average,
        "layer_decay": layer_decay,
    }


def _given(schedule: Schedule) -> Dict[str, Any]:
    curve = asdict(schedule)
    curve["milestones"], curve["table"] = list(curve["milestones"]), [tuple(row) for row in curve["table"]]
    return curve
