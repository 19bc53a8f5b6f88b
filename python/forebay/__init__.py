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
from ._model import Model, TensorInfo
from ._options import (
    SGD,
    Adam,
    AdamW,
    EngineOptions,
    MeanSquaredError,
    OutputLoss,
    SoftmaxCrossEntropy,
)
from ._plan import Machine, Offer, Plan, machines, plan
from ._recipe import ParameterGroup, Schedule
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
    "Adam",
    "AdamW",
    "DeviceLost",
    "EngineOptions",
    "Error",
    "Evaluation",
    "FileError",
    "History",
    "InvalidArgument",
    "Machine",
    "MeanSquaredError",
    "Model",
    "NotFinite",
    "Offer",
    "OutOfBudget",
    "OutputLoss",
    "ParameterGroup",
    "Plan",
    "RaceError",
    "RunTimes",
    "SGD",
    "Schedule",
    "Session",
    "SoftmaxCrossEntropy",
    "StepReport",
    "TensorInfo",
    "Trainer",
    "UnsupportedOperator",
    "devices",
    "machines",
    "plan",
]
