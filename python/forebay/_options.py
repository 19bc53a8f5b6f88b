"""Losses, optimizers, and the options that sessions, trainers and plans share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, TypedDict, Union

from . import _recipe
from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

#: Bytes, or a text such as ``"256MiB"``, ``"8GiB"``, or ``"50%"`` of what a step takes without a budget.
Size: TypeAlias = Union[int, str]
#: A path, as text or as :class:`os.PathLike`.
PathLike: TypeAlias = "Union[str, os.PathLike[str]]"


@dataclass(frozen=True)
class SoftmaxCrossEntropy:
    """Mean over all labels of ``-log softmax(logits)[label]``.

    Labels are integers, of the logits' shape without the class axis.

    >>> import forebay
    >>> forebay.SoftmaxCrossEntropy(class_axis=1, ignore_index=255)
    SoftmaxCrossEntropy(class_axis=1, ignore_index=255)
    """

    #: The class axis of the logits, from the end where negative; 1 where not given.
    class_axis: Optional[int] = None
    #: A label that does not count.
    ignore_index: Optional[int] = None


@dataclass(frozen=True)
class MeanSquaredError:
    """Mean of ``(prediction - target)**2``. Targets are of the prediction's type and shape."""


@dataclass(frozen=True)
class OutputLoss:
    """The model's output itself, of one element: the model computes its loss, from one of its inputs as labels."""

    #: The name of that input; ``labels``, ``label``, ``targets``, ``target`` or ``y`` where not given, the first that there is.
    labels: Optional[str] = None


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


Loss: TypeAlias = Union[SoftmaxCrossEntropy, MeanSquaredError, OutputLoss]
Optimizer: TypeAlias = Union[SGD, Adam, AdamW]

_LOSSES: Dict[str, Loss] = {
    "softmax_cross_entropy": SoftmaxCrossEntropy(),
    "cross_entropy": SoftmaxCrossEntropy(),
    "mse": MeanSquaredError(),
    "mean_squared_error": MeanSquaredError(),
    "output": OutputLoss(),
}


class EngineOptions(TypedDict, total=False):
    """What sessions, trainers and plans take beside their own arguments. All have defaults."""

    #: Threads for kernels and copies together; as many as the machine runs at once where not given. No result depends on it.
    threads: Optional[int]
    #: Memory that the whole process may take, Python included: ``"4GiB"``, ``"80%free"``, ``"none"``. On the host only; takes the
    #: place of the other budgets.
    memory_limit: Optional[Size]
    #: On the host: takes a part of its memory for that of a device of its own, with this budget.
    simulate_device: Optional[Size]
    #: Host memory for what is not on the device; unlimited where not given.
    host_memory: Optional[Size]
    #: A folder for what exceeds host memory.
    spill_dir: Optional[PathLike]
    #: A machine to plan for instead, whether or not it is there: one of :func:`forebay.machines`, or a TOML file. Nothing is computed.
    machine: Optional[PathLike]
    #: Who decides what is on the device: ``"planned"``, or managed memory, ``"direct"``, ``"cooperative"`` or ``"automatic"``.
    memory_mode: str
    #: How managed memory evicts in mode ``"automatic"``: ``"driver"``, ``"touch"`` or ``"planned"``.
    eviction: Optional[str]
    #: Whether managed memory takes device memory as it needs it.
    growth: bool
    #: A file of durations to plan with until others are measured (:meth:`forebay.Trainer.save_costs`).
    costs: Optional[PathLike]
    #: Whether operators are merged.
    fuse: bool
    #: The order of launches: ``"barriers"``, with the fewest barriers, or ``"file"``, as the model has them.
    order: str
    #: Whether plans are checked for races and lost data before they run.
    check: bool
    #: Whether to keep when every command ran (:meth:`forebay.Trainer.trace`).
    trace: bool
    #: The largest heap behind a reservation, in bytes.
    heap_size: Optional[int]
    #: The unit in which heaps are mapped, in bytes.
    tile_size: Optional[int]
    #: Whether heaps are mapped tile by tile where the device can.
    tiled: bool
    #: Slows copies between host and device down, for experiments, in bytes per second.
    link_bytes_per_second: Optional[int]


def size_text(size: Optional[Size]) -> Optional[str]:
    """A size as the native module takes it."""
    if isinstance(size, bool) or (isinstance(size, int) and size < 0):
        raise InvalidArgument(f"{size!r} is no size: write bytes as a number, or a text such as '8GiB'")
    return None if size is None else str(size)


def _path(path: Optional[PathLike]) -> Optional[str]:
    return None if path is None else os.fspath(path)


def engine(device: str, device_memory: Optional[Size], options: EngineOptions) -> Dict[str, Any]:
    """Device, budgets and planning as the native module takes them."""
    unknown = sorted(set(options) - set(EngineOptions.__annotations__))
    if unknown:
        raise TypeError(f"unexpected argument {unknown[0]!r}; there are {', '.join(sorted(EngineOptions.__annotations__))}")
    return {
        "device": device,
        "device_memory": size_text(device_memory),
        "machine": _path(options.get("machine")),
        "threads": options.get("threads"),
        "memory_limit": size_text(options.get("memory_limit")),
        "simulate_device": size_text(options.get("simulate_device")),
        "host_memory": size_text(options.get("host_memory")),
        "spill_dir": _path(options.get("spill_dir")),
        "memory_mode": options.get("memory_mode", "planned"),
        "eviction": options.get("eviction"),
        "growth": options.get("growth", True),
        "costs": _path(options.get("costs")),
        "fuse": options.get("fuse", True),
        "order": options.get("order", "barriers"),
        "check": options.get("check", False),
        "trace": options.get("trace", False),
        "heap_size": options.get("heap_size"),
        "tile_size": options.get("tile_size"),
        "tiled": options.get("tiled", True),
        "link_bytes_per_second": options.get("link_bytes_per_second"),
    }


def open_sizes(batch_size: Optional[int], sizes: Optional[Mapping[str, int]]) -> Dict[str, Any]:
    """The batch size and other open sizes as the native module takes them."""
    return {"batch_size": batch_size, "sizes": dict(sizes or {})}


def loss_named(loss: Union[str, Loss]) -> Loss:
    """A loss, by its name or as it is."""
    if not isinstance(loss, str):
        return loss
    found = _LOSSES.get(loss.lower())
    if found is None:
        raise InvalidArgument(f"there is no loss {loss!r}; there are {', '.join(_LOSSES)}")
    return found


def optimizer_named(optimizer: Union[None, str, Optimizer], learning_rate: Optional[float]) -> Optimizer:
    """An optimizer, by its name or as it is."""
    if optimizer is not None and not isinstance(optimizer, str):
        if learning_rate is not None:
            raise InvalidArgument("the optimizer has a learning rate of its own; leave learning_rate out")
        return optimizer
    kind = (optimizer or "sgd").lower()
    if kind == "sgd":
        return SGD() if learning_rate is None else SGD(learning_rate)
    if kind == "adam":
        return Adam() if learning_rate is None else Adam(learning_rate)
    if kind == "adamw":
        return AdamW() if learning_rate is None else AdamW(learning_rate)
    raise InvalidArgument(f"there is no optimizer {optimizer!r}; there are sgd, adam, adamw")


def optimizer_given(optimizer: Optimizer) -> Dict[str, Any]:
    """An optimizer as the native module takes it."""
    given: Dict[str, Any] = {
        "kind": type(optimizer).__name__.lower(),
        "learning_rate": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay,
        "momentum": 0.0,
        "nesterov": False,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
    }
    if isinstance(optimizer, SGD):
        given.update(momentum=optimizer.momentum, nesterov=optimizer.nesterov)
    else:
        given.update(beta1=optimizer.beta1, beta2=optimizer.beta2, epsilon=optimizer.epsilon)
    return given


def training(
    loss: Loss,
    optimizer: Optimizer,
    *,
    loss_output: Optional[str] = None,
    decay: Optional[str] = None,
    freeze: Union[str, Sequence[str]] = (),
    seed: int = 0,
    on_nan: str = "stop",
    recipe: Optional[Dict[str, Any]] = None,
) -> Dict[str, Any]:
    """Options of training as the native module takes them."""
    given: Dict[str, Any] = {"class_axis": None, "ignore_index": None, "labels": None}
    if isinstance(loss, SoftmaxCrossEntropy):
        given.update(kind="softmax_cross_entropy", class_axis=loss.class_axis, ignore_index=loss.ignore_index)
    elif isinstance(loss, MeanSquaredError):
        given.update(kind="mse")
    else:
        given.update(kind="output", labels=loss.labels)
    patterns: List[str] = [freeze] if isinstance(freeze, str) else list(freeze)
    return {
        "loss": given,
        "loss_output": loss_output,
        "optimizer": optimizer_given(optimizer),
        "decay": decay,
        "freeze": patterns,
        "seed": seed,
        "on_nan": on_nan,
        "recipe": _recipe.recipe() if recipe is None else recipe,
    }
