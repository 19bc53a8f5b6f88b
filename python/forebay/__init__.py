"""Train and run neural networks that do not fit into memory.

=====================  ===========================================================================
to                     start at
=====================  ===========================================================================
run an ONNX model      :class:`Session`
train an ONNX model    :class:`Trainer`
train a module         :class:`forebay.torch.Trainer`, or part of it: :func:`forebay.torch.compile`
ask whether it fits    :func:`plan`, :func:`forebay.torch.plan`
list the hardware      :func:`devices`, :func:`machines`
launch operations      :class:`Tensor`, :class:`Stream`, :class:`Event`, :class:`Context`
exceed device memory   :func:`forebay.managed.empty`
use several processes  :class:`Processes`; predicted: :meth:`Plan.simulate`
handle failures        :class:`Error`, :class:`OutOfBudget`
=====================  ===========================================================================
"""

from __future__ import annotations

from typing import List

from . import _forebay, managed
from ._fit import Evaluation, History, StepReport
from ._head import with_head
from ._lora import LoRA, with_adapters
from ._losses import (
    CTC,
    BinaryCrossEntropy,
    BinaryFocal,
    CosineEmbedding,
    Dice,
    DiceCrossEntropy,
    Focal,
    Huber,
    KLDivergence,
    LossTerm,
    MeanAbsoluteError,
    MeanSquaredError,
    OutputLoss,
    SmoothL1,
    SoftCrossEntropy,
    SoftmaxCrossEntropy,
    Tversky,
)
from ._model import Model, TensorInfo
from ._optimizers import LAMB, SGD, Adadelta, Adafactor, Adagrad, Adam, Adam8bit, Adamax, AdamW, AdamW8bit, Lion, NAdam, RAdam, RMSprop
from ._options import EngineOptions
from ._plan import Machine, Offer, Plan, machines, plan
from ._processes import Processes
from ._ranks import SimulatedRank, SimulatedStep
from ._recipe import ParameterGroup, Schedule
from ._session import RunTimes, Session
from ._streams import (
    Context,
    Event,
    Stream,
    StreamCtx,
    current_context,
    current_stream,
    default_stream,
    set_current_stream,
    stream,
    synchronize,
)
from ._tensor import (
    Tensor,
    concatenate,
    empty,
    from_dlpack,
    full,
    maximum,
    minimum,
    ones,
    operation,
    where,
    zeros,
)
from ._trainer import Trainer
from ._windows import Windows
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
    """Returns the names of this machine's devices, as sessions and trainers accept them.

    >>> import forebay
    >>> "host" in forebay.devices()
    True
    """
    return _forebay.devices()


__all__ = [
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "Adam8bit",
    "AdamW",
    "AdamW8bit",
    "Adamax",
    "BinaryCrossEntropy",
    "BinaryFocal",
    "CTC",
    "Context",
    "CosineEmbedding",
    "DeviceLost",
    "Dice",
    "DiceCrossEntropy",
    "EngineOptions",
    "Error",
    "Evaluation",
    "Event",
    "FileError",
    "Focal",
    "History",
    "Huber",
    "InvalidArgument",
    "KLDivergence",
    "LAMB",
    "Lion",
    "LoRA",
    "LossTerm",
    "Machine",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Model",
    "NAdam",
    "NotFinite",
    "Offer",
    "OutOfBudget",
    "OutputLoss",
    "ParameterGroup",
    "Plan",
    "Processes",
    "RAdam",
    "RMSprop",
    "RaceError",
    "RunTimes",
    "SGD",
    "Schedule",
    "Session",
    "SimulatedRank",
    "SimulatedStep",
    "SmoothL1",
    "SoftCrossEntropy",
    "SoftmaxCrossEntropy",
    "StepReport",
    "Stream",
    "StreamCtx",
    "Tensor",
    "TensorInfo",
    "Trainer",
    "Tversky",
    "UnsupportedOperator",
    "Windows",
    "concatenate",
    "current_context",
    "current_stream",
    "default_stream",
    "devices",
    "empty",
    "from_dlpack",
    "full",
    "machines",
    "managed",
    "maximum",
    "minimum",
    "ones",
    "operation",
    "plan",
    "set_current_stream",
    "stream",
    "synchronize",
    "where",
    "with_adapters",
    "with_head",
    "zeros",
]
