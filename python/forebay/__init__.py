"""Train and run neural networks that do not fit into memory.

=====================  ========================================================================
to                     start at
=====================  ========================================================================
run an ONNX model      :class:`Session`
train an ONNX model    :class:`Trainer`
train a module         :class:`forebay.torch.Trainer`
ask whether it fits    :func:`plan`, :func:`forebay.torch.plan`
see what there is      :func:`devices`, :func:`machines`
handle failures        :class:`Error`, :class:`OutOfBudget`
=====================  ========================================================================
"""

from __future__ import annotations

from typing import List

from . import _forebay
from ._losses import (
    BinaryCrossEntropy,
    BinaryFocal,
    CosineEmbedding,
    Dice,
    DiceCrossEntropy,
    Focal,
    Huber,
    KLDivergence,
    MeanAbsoluteError,
    MeanSquaredError,
    OutputLoss,
    SmoothL1,
    SoftmaxCrossEntropy,
    Tversky,
)
from ._model import Model, TensorInfo
from ._optimizers import LAMB, SGD, Adafactor, Adagrad, Adam, AdamW, Lion, RMSprop
from ._options import EngineOptions
from ._plan import Machine, Offer, Plan, machines, plan
from ._session import RunTimes, Session
from ._trainer import Evaluation, History, StepReport, Trainer
from .errors import (
    DeviceLost,
    Error,
    FileError,
    InvalidArgument,
    NotFinite,
    OutOfBudget,
    RaceError,
    UnsupportedOperator,
)

__version__: str = _forebay.__version__


def devices() -> List[str]:
    """The devices of this machine, by the names that sessions and trainers take.

    >>> import forebay
    >>> "host" in forebay.devices()
    True
    """
    return _forebay.devices()


__all__ = [
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "BinaryCrossEntropy",
    "BinaryFocal",
    "CosineEmbedding",
    "DeviceLost",
    "Dice",
    "DiceCrossEntropy",
    "EngineOptions",
    "Error",
    "Evaluation",
    "FileError",
    "Focal",
    "History",
    "Huber",
    "InvalidArgument",
    "KLDivergence",
    "LAMB",
    "Lion",
    "Machine",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Model",
    "NotFinite",
    "Offer",
    "OutOfBudget",
    "OutputLoss",
    "Plan",
    "RMSprop",
    "RaceError",
    "RunTimes",
    "SGD",
    "Session",
    "SmoothL1",
    "SoftmaxCrossEntropy",
    "StepReport",
    "TensorInfo",
    "Trainer",
    "Tversky",
    "UnsupportedOperator",
    "devices",
    "machines",
    "plan",
]
