"""Options shared by sessions, trainers and plans."""

from __future__ import annotations

import os
from numbers import Integral
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Sequence, TypedDict, Union

from . import _recipe
from ._checks import flag, number, optional, text, texts, whole
from ._losses import Loss, LossTerm, loss_given, term_given
from ._optimizers import Optimizer, optimizer_given
from ._processes import Processes
from .errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import TypeAlias

#: A number of bytes, or a string such as ``"256MiB"``, ``"8GiB"``, or ``"50%"`` of what a step takes without a budget.
Size: TypeAlias = "Union[int, np.integer[Any], str]"
#: A path, as a string or an :class:`os.PathLike`.
PathLike: TypeAlias = "Union[str, os.PathLike[str]]"


class EngineOptions(TypedDict, total=False):
    """Options of sessions, trainers and plans besides their own arguments. All have defaults."""

    #: The total number of threads for kernels and copies; by default, as many as the machine runs at once. Does not affect results.
    threads: Optional[int]
    #: Memory limit of the whole process, including Python: ``"4GiB"``, ``"80%free"``, ``"none"``. For the host only; replaces the other
    #: budgets.
    memory_limit: Optional[Size]
    #: On the host: treats part of its memory as the memory of a separate device, with this budget.
    simulate_device: Optional[Size]
    #: Host memory for data that is not on the device; unlimited by default.
    host_memory: Optional[Size]
    #: A folder for data that exceeds host memory.
    spill_dir: Optional[PathLike]
    #: Another machine to plan for, which need not be present: one of :func:`forebay.machines`, or a TOML file. Nothing is computed.
    machine: Optional[PathLike]
    #: How to decide what is on the device: ``"planned"``, or managed memory: ``"direct"``, ``"cooperative"`` or ``"automatic"``.
    memory_mode: str
    #: How managed memory evicts in mode ``"automatic"``: ``"driver"``, ``"touch"`` or ``"planned"``.
    eviction: Optional[str]
    #: Whether managed memory allocates device memory on demand.
    growth: bool
    #: A file of durations to plan with until new ones are measured (:meth:`forebay.Trainer.save_costs`).
    costs: Optional[PathLike]
    #: Whether operators are fused.
    fuse: bool
    #: The order of launches: ``"barriers"`` for the fewest barriers, or ``"file"`` for the order of the model.
    order: str
    #: Where training steps update parameters and the optimizer's state: on the ``"device"``, or on the CPU (``"host"``), so that the state
    #: never crosses the link. Has no effect if the device's memory is the host's.
    updates: str
    #: Whether operators that the device cannot run are executed on the CPU (``"needed"``) or refused (``"never"``).
    host_operators: str
    #: Whether plans are checked for races and lost data before they run.
    check: bool
    #: Whether to record when every command ran (:meth:`forebay.Trainer.trace`).
    trace: bool
    #: The largest heap behind a reservation, in bytes.
    heap_size: Optional[int]
    #: The unit in which heaps are mapped, in bytes.
    tile_size: Optional[int]
    #: Whether heaps are mapped tile by tile if the device supports it.
    tiled: bool
    #: Limits the speed of copies between host and device, in bytes per second, for experiments.
    link_bytes_per_second: Optional[int]
    #: Processes that compute each batch together, with the same results as one process: a :class:`forebay.Processes` or an mpi4py
    #: communicator. All of them make the same calls, with whole batches.
    processes: Any
    #: What is sharded across the processes: the optimizer's ``"state"``; also ``"gradients"``; or also ``"parameters"``.
    shard: Optional[str]


def size_text(size: Optional[Size]) -> Optional[str]:
    """Converts a size for the native module."""
    is_number = isinstance(size, Integral) and not isinstance(size, bool)
    if size is not None and not isinstance(size, str) and not (is_number and int(size) >= 0):
        raise InvalidArgument(f"{size!r} is not a size; pass a number of bytes or a string such as '8GiB'")
    return None if size is None else str(size)


def path_text(path: Optional[PathLike]) -> Optional[str]:
    """Converts a path for the native module."""
    return None if path is None else os.fspath(path)


#: How values of options are converted for the native module, by the types that ``EngineOptions`` states.
_CONVERSIONS: Dict[str, Callable[[str, Any], Any]] = {
    "Optional[int]": lambda name, value: optional(whole, name, value),
    "Optional[Size]": lambda name, value: size_text(value),
    "Optional[PathLike]": lambda name, value: path_text(value),
    "Optional[str]": lambda name, value: optional(text, name, value),
    "str": text,
    "bool": flag,
    "Any": lambda name, value: Processes._native_of(value),  # pyright: ignore[reportPrivateUsage]
}
_CONVERTED = {name: _CONVERSIONS[kind.__forward_arg__] for name, kind in EngineOptions.__annotations__.items()}


def engine(device: str, device_memory: Optional[Size], options: EngineOptions) -> Dict[str, Any]:
    """Converts the options of the device, budgets and planning for the native module, which knows the defaults of those not given."""
    given: Dict[str, Any] = {"device": text("device", device), "device_memory": size_text(device_memory)}
    for name, value in options.items():
        if name not in _CONVERTED:
            raise TypeError(f"unexpected argument {name!r}; the arguments are {', '.join(sorted(_CONVERTED))}")
        given[name] = _CONVERTED[name](name, value)
    return given


def open_sizes(batch_size: Optional[int], sizes: Optional[Mapping[str, int]]) -> Dict[str, Any]:
    """Converts the batch size and other open sizes for the native module."""
    named = {name: whole(f"the size {name!r}", size) for name, size in dict(sizes or {}).items()}
    return {"batch_size": None if batch_size is None else whole("batch_size", batch_size, 1), "sizes": named}


def training(
    loss: Loss,
    optimizer: Optimizer,
    *,
    loss_output: Optional[str] = None,
    loss_weight: Optional[float] = None,
    terms: Sequence[LossTerm] = (),
    decay: Optional[str] = None,
    freeze: Union[str, Sequence[str]] = (),
    seed: int = 0,
    on_nan: str = "stop",
    precision: Optional[str] = None,
    float32: Union[str, Sequence[str]] = (),
    recipe: Optional[Dict[str, Any]] = None,
) -> Dict[str, Any]:
    """Converts training options for the native module."""
    return {
        "loss": loss_given(loss),
        "loss_output": optional(text, "loss_output", loss_output),
        "loss_weight": optional(number, "loss_weight", loss_weight),
        "terms": [term_given(term) for term in terms],
        "optimizer": optimizer_given(optimizer),
        "decay": optional(text, "decay", decay),
        "freeze": texts("freeze", freeze),
        "seed": whole("seed", seed),
        "on_nan": text("on_nan", on_nan),
        "precision": optional(text, "precision", precision),
        "float32": texts("float32", float32),
        "recipe": _recipe.recipe() if recipe is None else recipe,
    }
