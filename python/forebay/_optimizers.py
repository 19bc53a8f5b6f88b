"""Optimizers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Dict, Optional, Type, Union

from ._checks import checked, instance
from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import TypeAlias


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent. The first step's velocity is the gradient itself, as in PyTorch.

    >>> import forebay
    >>> forebay.SGD(0.05, momentum=0.9).learning_rate
    0.05
    """

    #: Step size.
    learning_rate: float = 0.01
    #: Momentum; 0 for none.
    momentum: float = 0.0
    #: Nesterov's variant.
    nesterov: bool = False
    #: L2 penalty, added to the gradient.
    weight_decay: float = 0.0
    #: The part of a gradient that the velocity does not take, except in the first step.
    dampening: float = 0.0


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction. Epsilon is added outside the square root; weight decay is added to the gradient."""

    #: Step size.
    learning_rate: float = 0.001
    #: Decay of the first moment.
    beta1: float = 0.9
    #: Decay of the second moment.
    beta2: float = 0.999
    #: Added to the square root of the second moment.
    epsilon: float = 1e-8
    #: Weight decay, added to the gradient.
    weight_decay: float = 0.0
    #: Whether a step uses the largest second moment so far.
    amsgrad: bool = False


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay, by default of matrices only (``decay="all"`` for all parameters, as in PyTorch)."""

    #: Step size.
    learning_rate: float = 0.001
    #: Decay of the first moment.
    beta1: float = 0.9
    #: Decay of the second moment.
    beta2: float = 0.999
    #: Added to the square root of the second moment.
    epsilon: float = 1e-8
    #: Weight decay of the parameters.
    weight_decay: float = 0.01
    #: Whether a step uses the largest second moment so far.
    amsgrad: bool = False


@dataclass(frozen=True)
class Adam8bit(Adam):
    """:class:`Adam` with 8-bit moments in blocks of 256 elements, as in bitsandbytes: a quarter of the state. Parameters with fewer than
    4096 elements keep float32 moments.
    """


@dataclass(frozen=True)
class AdamW8bit(AdamW):
    """:class:`AdamW` with 8-bit moments in blocks of 256 elements, as in bitsandbytes: a quarter of the state. Parameters with fewer than
    4096 elements keep float32 moments.

    >>> import forebay
    >>> forebay.AdamW8bit(3e-4).weight_decay
    0.01
    """


@dataclass(frozen=True)
class RMSprop:
    """RMSprop as in PyTorch: the gradient divided by the root mean square of past gradients.

    >>> import forebay
    >>> forebay.RMSprop(0.01, momentum=0.9).decay_rate
    0.99
    """

    #: Step size.
    learning_rate: float = 0.01
    #: Decay of the mean square: PyTorch's ``alpha``.
    decay_rate: float = 0.99
    #: Added to the square root.
    epsilon: float = 1e-8
    #: Weight decay, added to the gradient.
    weight_decay: float = 0.0
    #: Momentum; 0 for none.
    momentum: float = 0.0
    #: Whether to use squares of deviations from the mean gradient.
    centered: bool = False


@dataclass(frozen=True)
class Adagrad:
    """Adagrad as in PyTorch: the gradient divided by the square root of the sum of its squares."""

    #: Step size.
    learning_rate: float = 0.01
    #: In step t, the step size is divided by 1 + (t - 1) times this value: PyTorch's ``lr_decay``.
    rate_decay: float = 0.0
    #: Weight decay, added to the gradient.
    weight_decay: float = 0.0
    #: Added to the square root.
    epsilon: float = 1e-10


@dataclass(frozen=True)
class Adamax:
    """AdaMax as in PyTorch: Adam with the largest gradient, which decays, in place of the root of the second moment."""

    #: Step size.
    learning_rate: float = 0.002
    #: Decay of the first moment.
    beta1: float = 0.9
    #: Decay of the largest gradient.
    beta2: float = 0.999
    #: Added to the size of a gradient.
    epsilon: float = 1e-8
    #: Weight decay, added to the gradient.
    weight_decay: float = 0.0


@dataclass(frozen=True)
class NAdam:
    """NAdam as in PyTorch: Adam with Nesterov's momentum.

    >>> import forebay
    >>> forebay.NAdam(0.001).momentum_decay
    0.004
    """

    #: Step size.
    learning_rate: float = 0.002
    #: Decay of the first moment.
    beta1: float = 0.9
    #: Decay of the second moment.
    beta2: float = 0.999
    #: Added to the square root of the second moment.
    epsilon: float = 1e-8
    #: Weight decay.
    weight_decay: float = 0.0
    #: The momentum of step t is ``beta1 * (1 - 0.96**(t * momentum_decay) / 2)``.
    momentum_decay: float = 0.004
    #: Whether weight decay acts on the parameters instead of the gradients: PyTorch's ``decoupled_weight_decay``.
    decoupled: bool = False


@dataclass(frozen=True)
class RAdam:
    """RAdam as in PyTorch: Adam that divides by the root of the second moment only once the variance of it is known."""

    #: Step size.
    learning_rate: float = 0.001
    #: Decay of the first moment.
    beta1: float = 0.9
    #: Decay of the second moment.
    beta2: float = 0.999
    #: Added to the square root of the second moment.
    epsilon: float = 1e-8
    #: Weight decay.
    weight_decay: float = 0.0
    #: Whether weight decay acts on the parameters instead of the gradients: PyTorch's ``decoupled_weight_decay``.
    decoupled: bool = False


@dataclass(frozen=True)
class Adadelta:
    """Adadelta as in PyTorch: the gradient times the root mean square of past steps, divided by that of past gradients."""

    #: Factor of each step.
    learning_rate: float = 1.0
    #: Decay of both mean squares: PyTorch's ``rho``.
    decay_rate: float = 0.9
    #: Added inside the square roots.
    epsilon: float = 1e-6
    #: Weight decay, added to the gradient.
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Lion:
    """Lion: the sign of an averaged gradient. Weight decay is decoupled, by default of matrices only."""

    #: Step size.
    learning_rate: float = 1e-4
    #: Weight of the moment in its average with the gradient.
    beta1: float = 0.9
    #: Decay of the moment.
    beta2: float = 0.99
    #: Weight decay of the parameters.
    weight_decay: float = 0.0


@dataclass(frozen=True)
class LAMB:
    """LAMB: AdamW with the step scaled to the size of each parameter. By default, only matrices decay."""

    #: Step size.
    learning_rate: float = 0.001
    #: Decay of the first moment.
    beta1: float = 0.9
    #: Decay of the second moment.
    beta2: float = 0.999
    #: Added to the square root of the second moment.
    epsilon: float = 1e-6
    #: Weight decay, which is part of the scaled step.
    weight_decay: float = 0.01


@dataclass(frozen=True)
class Adafactor:
    """Adafactor as in PyTorch: little state, and steps relative to the size of each parameter."""

    #: Largest relative step size.
    learning_rate: float = 0.01
    #: Step t keeps ``1 - t**beta2_decay`` of the mean squares.
    beta2_decay: float = -0.8
    #: The smallest size of a parameter assumed for its relative step.
    epsilon: float = 1e-3
    #: Largest root mean square of a step before it is scaled: PyTorch's ``d``.
    threshold: float = 1.0
    #: Weight decay of the parameters, by default of matrices only.
    weight_decay: float = 0.0


Optimizer: TypeAlias = Union[
    SGD, Adam, AdamW, Adam8bit, AdamW8bit, RMSprop, Adagrad, Adamax, NAdam, RAdam, Adadelta, Lion, LAMB, Adafactor
]

_KINDS: Dict[str, Type[Optimizer]] = {
    kind.__name__.lower(): kind
    for kind in (SGD, Adam, AdamW, Adam8bit, AdamW8bit, RMSprop, Adagrad, Adamax, NAdam, RAdam, Adadelta, Lion, LAMB, Adafactor)
}


def optimizer_named(optimizer: Union[None, str, Optimizer], learning_rate: Optional[float]) -> Optimizer:
    """Returns the optimizer with a name; an optimizer is returned unchanged."""
    if optimizer is not None and not isinstance(optimizer, str):
        if learning_rate is not None:
            raise InvalidArgument("the optimizer already has a learning rate; leave out learning_rate")
        return optimizer
    kind = _KINDS.get((optimizer or "sgd").lower())
    if kind is None:
        raise InvalidArgument(f"unknown optimizer {optimizer!r}; the optimizers are {', '.join(_KINDS)}")
    return kind() if learning_rate is None else kind(learning_rate)


def optimizer_given(optimizer: Optimizer) -> Dict[str, Any]:
    """Converts an optimizer for the native module, with the options of all optimizers."""
    instance("optimizer", optimizer, tuple(_KINDS.values()), "an optimizer such as forebay.Adam()")
    given: Dict[str, Any] = {field.name: field.default for kind in _KINDS.values() for field in fields(kind)}
    # A subclass is of the kind of its base.
    given["kind"] = next(name for kind in type(optimizer).__mro__ for name in _KINDS if _KINDS[name] is kind)
    given.update(checked(optimizer))
    # Rules with other states are other kinds for the native module.
    if given["dampening"] != 0:
        if given["nesterov"]:
            raise InvalidArgument("SGD with nesterov has no dampening, as in PyTorch; leave out one of them")
        given["kind"] = "dampedsgd"
    if given.pop("amsgrad"):
        if isinstance(optimizer, (Adam8bit, AdamW8bit)):
            raise InvalidArgument(f"{type(optimizer).__name__} has no amsgrad; use forebay.Adam or forebay.AdamW, or leave it out")
        given.update(kind="amsgrad", decoupled=isinstance(optimizer, AdamW))
    return given
