"""Optimizers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Dict, Optional, Type, Union

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


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction; epsilon is added outside the square root, and decay to the gradient."""

    #: Step size.
    learning_rate: float = 0.001
    #: Decay of the first moment.
    beta1: float = 0.9
    #: Decay of the second moment.
    beta2: float = 0.999
    #: Added to the root of the second moment.
    epsilon: float = 1e-8
    #: Weight decay, added to the gradient.
    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdamW:
    """Adam with decay of the parameters themselves: by default of matrices alone (``decay="all"`` for all, as PyTorch does)."""

    #: Step size.
    learning_rate: float = 0.001
    #: Decay of the first moment.
    beta1: float = 0.9
    #: Decay of the second moment.
    beta2: float = 0.999
    #: Added to the root of the second moment.
    epsilon: float = 1e-8
    #: Weight decay of the parameters.
    weight_decay: float = 0.01


@dataclass(frozen=True)
class Adam8bit(Adam):
    """:class:`Adam` with moments of 8 bits in blocks of 256 elements, as bitsandbytes has it: a quarter of its state. Parameters of fewer than
    4096 elements keep moments of float32.
    """


@dataclass(frozen=True)
class AdamW8bit(AdamW):
    """:class:`AdamW` with moments of 8 bits in blocks of 256 elements, as bitsandbytes has it: a quarter of its state. Parameters of fewer
    than 4096 elements keep moments of float32.

    >>> import forebay
    >>> forebay.AdamW8bit(3e-4).weight_decay
    0.01
    """


@dataclass(frozen=True)
class RMSprop:
    """RMSprop, as PyTorch has it: the gradient by the root of the mean of its squares.

    >>> import forebay
    >>> forebay.RMSprop(0.01, momentum=0.9).decay_rate
    0.99
    """

    #: Step size.
    learning_rate: float = 0.01
    #: Decay of the mean of squares: PyTorch's ``alpha``.
    decay_rate: float = 0.99
    #: Added to the root.
    epsilon: float = 1e-8
    #: Weight decay, added to the gradient.
    weight_decay: float = 0.0
    #: Momentum; 0 for none.
    momentum: float = 0.0
    #: Whether squares are those of distances to the mean gradient.
    centered: bool = False


@dataclass(frozen=True)
class Adagrad:
    """Adagrad, as PyTorch has it: the gradient by the root of the sum of its squares."""

    #: Step size.
    learning_rate: float = 0.01
    #: Step number t has the step size divided by 1 + (t - 1) times this: PyTorch's ``lr_decay``.
    rate_decay: float = 0.0
    #: Weight decay, added to the gradient.
    weight_decay: float = 0.0
    #: Added to the root.
    epsilon: float = 1e-10


@dataclass(frozen=True)
class Lion:
    """Lion: the sign of an averaged gradient. Weight decay acts on the parameters, by default on matrices alone."""

    #: Step size.
    learning_rate: float = 1e-4
    #: Weight of the moment in the average with the gradient.
    beta1: float = 0.9
    #: Decay of the moment.
    beta2: float = 0.99
    #: Weight decay of the parameters.
    weight_decay: float = 0.0


@dataclass(frozen=True)
class LAMB:
    """LAMB: AdamW whose step is scaled to the size of each parameter. Weight decay is of matrices alone by default."""

    #: Step size.
    learning_rate: float = 0.001
    #: Decay of the first moment.
    beta1: float = 0.9
    #: Decay of the second moment.
    beta2: float = 0.999
    #: Added to the root of the second moment.
    epsilon: float = 1e-6
    #: Weight decay, part of the step that is scaled.
    weight_decay: float = 0.01


@dataclass(frozen=True)
class Adafactor:
    """Adafactor, as PyTorch has it: little state, and steps relative to the size of each parameter."""

    #: Largest relative step size.
    learning_rate: float = 0.01
    #: Step number t keeps ``1 - t**beta2_decay`` of the mean squares.
    beta2_decay: float = -0.8
    #: Least size of a parameter, for the step relative to it.
    epsilon: float = 1e-3
    #: Largest root mean square of a step before it is scaled: PyTorch's ``d``.
    threshold: float = 1.0
    #: Weight decay of the parameters, by default of matrices alone.
    weight_decay: float = 0.0


Optimizer: TypeAlias = Union[SGD, Adam, AdamW, Adam8bit, AdamW8bit, RMSprop, Adagrad, Lion, LAMB, Adafactor]

_KINDS: Dict[str, Type[Optimizer]] = {
    kind.__name__.lower(): kind
    for kind in (SGD, Adam, AdamW, Adam8bit, AdamW8bit, RMSprop, Adagrad, Lion, LAMB, Adafactor)
}


def optimizer_named(optimizer: Union[None, str, Optimizer], learning_rate: Optional[float]) -> Optimizer:
    """An optimizer, by its name or as it is."""
    if optimizer is not None and not isinstance(optimizer, str):
        if learning_rate is not None:
            raise InvalidArgument("the optimizer has a learning rate of its own; leave learning_rate out")
        return optimizer
    kind = _KINDS.get((optimizer or "sgd").lower())
    if kind is None:
        raise InvalidArgument(f"there is no optimizer {optimizer!r}; there are {', '.join(_KINDS)}")
    return kind() if learning_rate is None else kind(learning_rate)


def optimizer_given(optimizer: Optimizer) -> Dict[str, Any]:
    """An optimizer as the native module takes it: with all that any optimizer takes."""
    given: Dict[str, Any] = {
        "kind": type(optimizer).__name__.lower(),
        "momentum": 0.0,
        "nesterov": False,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "decay_rate": 0.99,
        "centered": False,
        "rate_decay": 0.0,
        "beta2_decay": -0.8,
        "threshold": 1.0,
    }
    given.update(asdict(optimizer))
    return given
