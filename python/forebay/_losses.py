"""Losses.

Labels that are *classes* are integers, of the prediction's shape without the class axis; *targets* are numbers of the prediction's shape. A
class axis counts from the end where negative; it is 1 where not given.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Tuple, Union

from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import TypeAlias


@dataclass(frozen=True)
class SoftmaxCrossEntropy:
    """Mean over all labels of ``-log softmax(logits)[label]``. Labels are classes.

    >>> import forebay
    >>> forebay.SoftmaxCrossEntropy(class_axis=1, ignore_index=255).label_smoothing
    0.0
    """

    #: The class axis of the logits, from the end where negative; 1 where not given.
    class_axis: Optional[int] = None
    #: A label that does not count.
    ignore_index: Optional[int] = None
    #: A weight for each class, which weigh the mean, too; all alike where there are none.
    class_weights: Tuple[float, ...] = ()
    #: What all classes share of each label's probability.
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class SoftCrossEntropy:
    """Mean over positions of ``-(target * log_softmax(logits)).sum()`` over classes. Labels are soft: targets are the probabilities of the classes at
    a position, float32 of the logits' shape; or they are classes, each as the only one that is possible.

    >>> import forebay
    >>> forebay.SoftCrossEntropy(label_smoothing=0.1).class_weights
    ()
    """

    #: The class axis of the logits, from the end where negative; 1 where not given.
    class_axis: Optional[int] = None
    #: A factor for each class, which does not weigh the mean; all alike where there are none.
    class_weights: Tuple[float, ...] = ()
    #: What all classes share of each label's probability.
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class MeanSquaredError:
    """Mean of ``(prediction - target)**2``. Targets are of the prediction's type and shape."""


@dataclass(frozen=True)
class MeanAbsoluteError:
    """Mean of ``abs(prediction - target)``."""


@dataclass(frozen=True)
class Huber:
    """Mean of half the squared difference to the targets up to ``delta``, and of ``delta * (difference - delta / 2)`` beyond."""

    #: Where squares end.
    delta: float = 1.0


@dataclass(frozen=True)
class SmoothL1:
    """Mean of half the squared difference to the targets, divided by ``beta``, up to ``beta``; of ``difference - beta / 2`` beyond."""

    #: Where squares end; 0: nowhere squares.
    beta: float = 1.0


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Mean binary cross-entropy of logits and targets from 0 to 1: each number is a decision of its own.

    >>> import forebay
    >>> forebay.BinaryCrossEntropy(positive_weights=(3.0,)).positive_weights
    (3.0,)
    """

    #: Weights of positive targets: one for all, or one for each class; none: 1.
    positive_weights: Tuple[float, ...] = ()
    #: The axis along which the weights lie; 1 where not given.
    class_axis: Optional[int] = None


@dataclass(frozen=True)
class KLDivergence:
    """Sum of ``target * (log(target) - prediction)`` by the number of samples. The prediction is log probabilities."""

    #: The class axis of a prediction that is logits: their log-softmax is taken.
    class_axis: Optional[int] = None
    #: Whether targets are log probabilities, too.
    log_targets: bool = False
    #: Whether the sum is divided by the number of elements instead.
    elementwise_mean: bool = False


@dataclass(frozen=True)
class CosineEmbedding:
    """Mean of ``1 - cos(prediction, target)``; or of pairs of outputs, with labels 1 (alike) and -1 (``max(0, cos - margin)``)."""

    #: The axis along which a vector lies; 1 where not given.
    class_axis: Optional[int] = None
    #: Cosine from which on pairs labelled -1 cost something.
    margin: float = 0.0
    #: The output with the other vectors; the targets are these where not given.
    other_output: Optional[str] = None


@dataclass(frozen=True)
class Focal:
    """Mean of ``-(1 - p)**gamma * log(p)``, where ``p`` is the softmax's probability of the label. Labels are classes."""

    #: How much less sure predictions count.
    gamma: float = 2.0
    #: A weight for each class, which weigh the mean, too; all alike where there are none.
    class_weights: Tuple[float, ...] = ()
    #: The class axis of the logits; 1 where not given.
    class_axis: Optional[int] = None
    #: A label that does not count.
    ignore_index: Optional[int] = None


@dataclass(frozen=True)
class BinaryFocal:
    """Mean focal loss of binary decisions, as torchvision's ``sigmoid_focal_loss``. Labels are targets."""

    #: Weight of positive targets, from 0 to 1; negative ones have the rest. None: both count alike.
    alpha: Optional[float] = 0.25
    #: How much less sure predictions count.
    gamma: float = 2.0


@dataclass(frozen=True)
class Dice:
    """Mean over samples and classes of one minus their Dice score, as MONAI's ``DiceLoss``: classes along axis 1, any places behind.

    >>> import forebay
    >>> forebay.Dice(include_background=False).activation
    'softmax'
    """

    #: How the prediction becomes shares of classes: ``"softmax"``, ``"sigmoid"`` or ``"none"``.
    activation: str = "softmax"
    #: Whether labels are targets, one for each class and place, instead of classes.
    multi_label: bool = False
    #: Whether class 0 counts.
    include_background: bool = True
    #: Whether all samples of a batch are one region.
    batch: bool = False
    #: Whether what is predicted and labelled are sums of squares.
    squared: bool = False
    #: A label that does not count, where labels are classes.
    ignore_index: Optional[int] = None
    #: A weight for each class, class 0 included; all alike where there are none.
    class_weights: Tuple[float, ...] = ()
    #: Added above and below the line.
    smooth: float = 1e-5


@dataclass(frozen=True)
class DiceCrossEntropy(Dice):
    """Dice plus cross-entropy, as MONAI's ``DiceCELoss``; for targets, plus binary cross-entropy."""

    #: Factor of Dice.
    dice_weight: float = 1.0
    #: Factor of cross-entropy.
    cross_entropy_weight: float = 1.0


@dataclass(frozen=True)
class Tversky(Dice):
    """Mean over samples and classes of one minus their Tversky score, as MONAI's ``TverskyLoss``."""

    #: Weight of what is wrongly predicted.
    alpha: float = 0.5
    #: Weight of what is missed.
    beta: float = 0.5


@dataclass(frozen=True)
class CTC:
    """Connectionist temporal classification, as PyTorch's ``CTCLoss`` with its mean: the output is logits or log probabilities ``[samples,
    positions, classes]``; labels are classes ``[samples, label_length]``, with -1 behind the last one of a sample.

    >>> import forebay
    >>> forebay.CTC(label_length=16, zero_infinity=True).blank
    0
    """

    #: How many labels a sample may have.
    label_length: int
    #: The class of places without a label.
    blank: int = 0
    #: Whether positions are the first axis of the output and samples the second.
    time_first: bool = False
    #: The input of a batch with the numbers of positions that count. None: all of them.
    lengths: Optional[str] = None
    #: Whether labels that do not fit into their positions cost nothing, instead of infinitely much.
    zero_infinity: bool = False


@dataclass(frozen=True)
class OutputLoss:
    """The model's output itself, of one element: the model computes its loss, from one of its inputs as labels."""

    #: The name of that input; ``labels``, ``label``, ``targets``, ``target`` or ``y`` where not given, the first that there is.
    labels: Optional[str] = None


Loss: TypeAlias = Union[
    SoftmaxCrossEntropy,
    SoftCrossEntropy,
    MeanSquaredError,
    MeanAbsoluteError,
    Huber,
    SmoothL1,
    BinaryCrossEntropy,
    KLDivergence,
    CosineEmbedding,
    Focal,
    BinaryFocal,
    Dice,
    CTC,
    OutputLoss,
]

#: All kinds of losses.
KINDS = (
    SoftmaxCrossEntropy,
    SoftCrossEntropy,
    MeanSquaredError,
    MeanAbsoluteError,
    Huber,
    SmoothL1,
    BinaryCrossEntropy,
    KLDivergence,
    CosineEmbedding,
    Focal,
    BinaryFocal,
    Dice,
    DiceCrossEntropy,
    Tversky,
    CTC,
    OutputLoss,
)


@dataclass(frozen=True)
class LossTerm:
    """The loss of one more output, which a trainer adds to its first: deep supervision, several tasks.

    >>> import forebay
    >>> forebay.LossTerm("depth", "huber", weight=0.5, labels="metres").weight
    0.5
    """

    #: The name of the output.
    output: str
    #: What is minimised there; ``"output"``: the output itself, of one element.
    loss: Union[str, Loss]
    #: Its factor.
    weight: float = 1.0
    #: The input of a batch with its labels. None: those of the first loss; where the output has fewer places, those of the nearest.
    labels: Optional[str] = None


_NAMED: Dict[str, Loss] = {
    "softmax_cross_entropy": SoftmaxCrossEntropy(),
    "cross_entropy": SoftmaxCrossEntropy(),
    "soft_cross_entropy": SoftCrossEntropy(),
    "mse": MeanSquaredError(),
    "mean_squared_error": MeanSquaredError(),
    "l1": MeanAbsoluteError(),
    "mean_absolute_error": MeanAbsoluteError(),
    "huber": Huber(),
    "smooth_l1": SmoothL1(),
    "bce": BinaryCrossEntropy(),
    "binary_cross_entropy": BinaryCrossEntropy(),
    "kl": KLDivergence(),
    "cosine": CosineEmbedding(),
    "focal": Focal(),
    "binary_focal": BinaryFocal(),
    "dice": Dice(),
    "dice_ce": DiceCrossEntropy(),
    "tversky": Tversky(),
    "output": OutputLoss(),
}


def loss_named(loss: Union[str, Loss]) -> Loss:
    """A loss, by its name or as it is."""
    if not isinstance(loss, str):
        return loss
    found = _NAMED.get(loss.lower())
    if found is None:
        raise InvalidArgument(f"there is no loss {loss!r}; there are {', '.join(_NAMED)}")
    return found


def term_given(term: LossTerm) -> Dict[str, Any]:
    """One more loss as the native module takes it."""
    loss = loss_given(loss_named(term.loss))
    return {"output": term.output, "loss": loss, "weight": term.weight, "labels": term.labels}


def loss_given(loss: Loss) -> Dict[str, Any]:
    """A loss as the native module takes it: with all that any loss takes."""
    given: Dict[str, Any] = {
        "kind": type(loss).__name__,
        "class_axis": None,
        "ignore_index": None,
        "labels": None,
        "class_weights": (),
        "label_smoothing": 0.0,
        "positive_weights": (),
        "delta": 1.0,
        "alpha": None,
        "beta": 1.0,
        "gamma": 2.0,
        "log_targets": False,
        "elementwise_mean": False,
        "margin": 0.0,
        "other_output": None,
        "activation": "softmax",
        "multi_label": False,
        "include_background": True,
        "batch": False,
        "squared": False,
        "smooth": 1e-5,
        "dice_weight": 1.0,
        "cross_entropy_weight": 1.0,
        "label_length": 1,
        "blank": 0,
        "time_first": False,
        "lengths": None,
        "zero_infinity": False,
    }
    given.update(asdict(loss))
    for key in ("class_weights", "positive_weights"):
        weights: Sequence[float] = given[key]
        given[key] = [float(weight) for weight in weights]
    return given
