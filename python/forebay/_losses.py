"""Losses.

Labels are either *classes*, integers of the prediction's shape without the class axis, or *targets*, numbers of the prediction's shape. A
negative class axis counts from the end; the default is 1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Tuple, Union

from ._checks import checked, instance, number, optional, text
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

    #: The class axis of the logits; a negative axis counts from the end. The default is 1.
    class_axis: Optional[int] = None
    #: A label that is ignored.
    ignore_index: Optional[int] = None
    #: A weight per class, also used to weight the mean; empty for equal weights.
    class_weights: Tuple[float, ...] = ()
    #: The share of each label's probability that is spread over all classes.
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class SoftCrossEntropy:
    """Mean over positions of ``-(target * log_softmax(logits)).sum()`` over classes. Labels are either targets, the probabilities of the
    classes at each position as float32 of the logits' shape, or classes, each of which has probability 1.

    >>> import forebay
    >>> forebay.SoftCrossEntropy(label_smoothing=0.1).class_weights
    ()
    """

    #: The class axis of the logits; a negative axis counts from the end. The default is 1.
    class_axis: Optional[int] = None
    #: A factor per class, which does not weight the mean; empty for equal factors.
    class_weights: Tuple[float, ...] = ()
    #: The share of each label's probability that is spread over all classes.
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class MeanSquaredError:
    """Mean of ``(prediction - target)**2``. Targets have the prediction's type and shape."""


@dataclass(frozen=True)
class MeanAbsoluteError:
    """Mean of ``abs(prediction - target)``."""


@dataclass(frozen=True)
class Huber:
    """Mean of half the squared difference from the targets up to ``delta``, and of ``delta * (difference - delta / 2)`` beyond it."""

    #: The difference up to which the loss is quadratic.
    delta: float = 1.0


@dataclass(frozen=True)
class SmoothL1:
    """Mean of half the squared difference from the targets, divided by ``beta``, up to ``beta``; of ``difference - beta / 2`` beyond it."""

    #: The difference up to which the loss is quadratic; 0 for never.
    beta: float = 1.0


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Mean binary cross-entropy of logits and targets from 0 to 1; each number is a separate decision.

    >>> import forebay
    >>> forebay.BinaryCrossEntropy(positive_weights=(3.0,)).positive_weights
    (3.0,)
    """

    #: Weights of positive targets: one for all, or one per class. The default is 1.
    positive_weights: Tuple[float, ...] = ()
    #: The axis along which the weights apply. The default is 1.
    class_axis: Optional[int] = None


@dataclass(frozen=True)
class KLDivergence:
    """Sum of ``target * (log(target) - prediction)``, divided by the number of samples. The prediction is log probabilities."""

    #: The class axis if the prediction is logits, whose log-softmax is then taken.
    class_axis: Optional[int] = None
    #: Whether targets are log probabilities as well.
    log_targets: bool = False
    #: Whether the sum is divided by the number of elements instead.
    elementwise_mean: bool = False


@dataclass(frozen=True)
class CosineEmbedding:
    """Mean of ``1 - cos(prediction, target)``; or for pairs of outputs, with labels 1 (similar) and -1 (``max(0, cos - margin)``)."""

    #: The axis along which vectors lie. The default is 1.
    class_axis: Optional[int] = None
    #: The cosine above which pairs labeled -1 contribute to the loss.
    margin: float = 0.0
    #: The output with the other vectors. If not given, these are the targets.
    other_output: Optional[str] = None


@dataclass(frozen=True)
class Focal:
    """Mean of ``-(1 - p)**gamma * log(p)``, where ``p`` is the softmax probability of the label. Labels are classes."""

    #: How strongly confident predictions are down-weighted.
    gamma: float = 2.0
    #: A weight per class, also used to weight the mean; empty for equal weights.
    class_weights: Tuple[float, ...] = ()
    #: The class axis of the logits. The default is 1.
    class_axis: Optional[int] = None
    #: A label that is ignored.
    ignore_index: Optional[int] = None


@dataclass(frozen=True)
class BinaryFocal:
    """Mean focal loss of binary decisions, like torchvision's ``sigmoid_focal_loss``. Labels are targets."""

    #: The weight of positive targets, from 0 to 1; negative ones get the rest. ``None`` weights both equally.
    alpha: Optional[float] = 0.25
    #: How strongly confident predictions are down-weighted.
    gamma: float = 2.0


@dataclass(frozen=True)
class Dice:
    """Mean over samples and classes of one minus their Dice score, like MONAI's ``DiceLoss``. Classes lie along axis 1, positions after it.

    >>> import forebay
    >>> forebay.Dice(include_background=False).activation
    'softmax'
    """

    #: The function that converts the prediction to probabilities: ``"softmax"``, ``"sigmoid"`` or ``"none"``.
    activation: str = "softmax"
    #: Whether labels are targets, one per class and position, instead of classes.
    multi_label: bool = False
    #: Whether class 0 is included.
    include_background: bool = True
    #: Whether all samples of a batch are treated as one region.
    batch: bool = False
    #: Whether the sums of predictions and labels are sums of squares.
    squared: bool = False
    #: A label that is ignored, if labels are classes.
    ignore_index: Optional[int] = None
    #: A weight per class, including class 0; empty for equal weights.
    class_weights: Tuple[float, ...] = ()
    #: Added to the numerator and the denominator.
    smooth: float = 1e-5


@dataclass(frozen=True)
class DiceCrossEntropy(Dice):
    """Dice plus cross-entropy, like MONAI's ``DiceCELoss``; binary cross-entropy, without class weights, if labels are targets."""

    #: The factor of Dice.
    dice_weight: float = 1.0
    #: The factor of cross-entropy.
    cross_entropy_weight: float = 1.0


@dataclass(frozen=True)
class Tversky(Dice):
    """Mean over samples and classes of one minus their Tversky score, like MONAI's ``TverskyLoss``."""

    #: The weight of false positives.
    alpha: float = 0.5
    #: The weight of false negatives.
    beta: float = 0.5


@dataclass(frozen=True)
class CTC:
    """Connectionist temporal classification, like PyTorch's ``CTCLoss`` with mean reduction. The output is logits or log probabilities
    ``[samples, positions, classes]``; labels are classes ``[samples, label_length]``, padded with -1 after the last one of a sample.

    >>> import forebay
    >>> forebay.CTC(label_length=16, zero_infinity=True).blank
    0
    """

    #: The maximum number of labels per sample.
    label_length: int
    #: The index of the blank class.
    blank: int = 0
    #: Whether the first axis of the output is positions and the second is samples.
    time_first: bool = False
    #: The input of a batch with the number of valid positions per sample. ``None`` means that all are valid.
    lengths: Optional[str] = None
    #: Whether labels that do not fit into their positions contribute zero instead of infinity.
    zero_infinity: bool = False


@dataclass(frozen=True)
class OutputLoss:
    """The model's output itself, which has one element: the model computes its own loss and takes the labels as one of its inputs."""

    #: The name of that input. The default is the first that exists of ``labels``, ``label``, ``targets``, ``target`` and ``y``.
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
    """The loss of another output, which a trainer adds to the first loss, for example for deep supervision or multi-task training.

    >>> import forebay
    >>> forebay.LossTerm("depth", "huber", weight=0.5, labels="meters").weight
    0.5
    """

    #: The name of the output.
    output: str
    #: The loss to minimize; ``"output"`` for the output itself, which then has one element.
    loss: Union[str, Loss]
    #: The factor of this loss.
    weight: float = 1.0
    #: The input of a batch with its labels. ``None`` uses those of the first loss, at the nearest positions if this output has fewer.
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
    """Returns the loss with a name; a loss is returned unchanged."""
    if not isinstance(loss, str):
        return loss
    found = _NAMED.get(loss.lower())
    if found is None:
        raise InvalidArgument(f"unknown loss {loss!r}; the losses are {', '.join(_NAMED)}")
    return found


def term_given(term: LossTerm) -> Dict[str, Any]:
    """Converts an additional loss for the native module."""
    instance("terms", term, (LossTerm,), "a sequence of forebay.LossTerm, such as [forebay.LossTerm('depth', 'huber')]")
    return {
        "output": text("output of LossTerm", term.output),
        "loss": loss_given(loss_named(term.loss)),
        "weight": number("weight of LossTerm", term.weight),
        "labels": optional(text, "labels of LossTerm", term.labels),
    }


def loss_given(loss: Loss) -> Dict[str, Any]:
    """Converts a loss for the native module, with the options of all losses."""
    instance("loss", loss, KINDS, "a name such as 'mse', or a loss such as forebay.Dice()")
    given: Dict[str, Any] = {field.name: field.default for kind in KINDS for field in fields(kind)}
    # The only field without a default.
    given["label_length"] = 1
    # A subclass is of the kind of its base.
    given["kind"] = next(kind.__name__ for kind in type(loss).__mro__ if kind in KINDS)
    given.update(checked(loss, signed=("class_axis", "ignore_index")))
    for key in ("class_weights", "positive_weights"):
        weights: Sequence[float] = given[key]
        given[key] = [float(weight) for weight in weights]
    return given
