"""Running a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from . import _forebay, _options
from ._arrays import all_from_native, to_native
from ._model import ModelLike, TensorInfo, as_model, infos, native_model
from ._options import EngineOptions, Size
from .errors import InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Unpack


@dataclass(frozen=True)
class RunTimes:
    """When a run took place."""

    #: Seconds from the first command to the last result.
    seconds: float
    #: The part of them in which no kernel ran.
    stall_seconds: float
    #: Copies to the device that kernels had to wait for.
    late_copies: int
    #: The part of ``stall_seconds`` that those cost.
    late_seconds: float


class Session:
    """A model, ready to run within a memory budget.

    Sizes that the model leaves open are those of the inputs of each run: there is a plan for each, made at the first run with these
    sizes and kept. Memory is taken at the first run. Several threads may use a session: runs take turns.

    Args:
        model: A :class:`forebay.Model`, a path, bytes, or an ``onnx.ModelProto``.
        device: ``"host"`` (the CPU), ``"vulkan"`` or ``"vulkan:0"`` (a GPU), ``"null"`` (plans, computes nothing).
        device_memory: The budget. On the host it bounds the whole process, Python included, as long as the process can keep to it;
            else the tensors (see :attr:`budget_excludes_process`).
        batch_size: The batch size, where the model leaves it open and the plan is to be made now.
        sizes: Other sizes that the model leaves open, by symbol or as ``input[dimension]``.
        **options: See :class:`forebay.EngineOptions`.

    Raises:
        forebay.OutOfBudget: No plan fits the budget; ``least`` says what would do, in bytes.
        forebay.UnsupportedOperator: The model uses an operator that Forebay does not have.

    >>> import forebay, numpy as np
    >>> session = forebay.Session(digits, device_memory="1MiB")
    >>> outputs = session.run({"x": np.zeros((50, 1, 8, 8), np.float32)})
    >>> outputs["logits"].shape
    (50, 10)
    """

    def __init__(
        self,
        model: ModelLike,
        device: str = "host",
        *,
        device_memory: Optional[Size] = None,
        batch_size: Optional[int] = None,
        sizes: Optional[Mapping[str, int]] = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        engine = _options.engine(device, device_memory, options)
        self._native = _forebay.Session(native_model(as_model(model)), engine, _options.open_sizes(batch_size, sizes), None, False)
        self._types = {name: dtype for name, dtype, _ in self._native.inputs()}

    @property
    def inputs(self) -> List[TensorInfo]:
        """What a run takes."""
        return infos(self._native.inputs())

    @property
    def outputs(self) -> List[TensorInfo]:
        """What a run gives."""
        return infos(self._native.outputs())

    def run(self, inputs: Any = None, **named: Any) -> Dict[str, npt.NDArray[Any]]:
        """Runs the model: all inputs by name, all outputs by name.

        Args:
            inputs: A dictionary of arrays by name; an array alone where the model has one input. Arrays are NumPy's, or of whatever
                speaks DLPack or the buffer protocol; lists of numbers are taken, too.
            **named: Inputs by name, instead.

        Returns:
            Arrays that own their memory.

        Raises:
            forebay.InvalidArgument: An input is missing, unknown, or of the wrong type or shape.

        >>> import forebay, numpy as np
        >>> session = forebay.Session(digits)
        >>> session.run(x=np.zeros((2, 1, 8, 8), np.float32))["logits"].dtype
        dtype('float32')
        """
        if inputs is not None and named:
            raise InvalidArgument("give inputs as one dictionary or by name, not both")
        given: Mapping[str, Any] = named if inputs is None else by_name(inputs, list(self._types))
        return all_from_native(
            self._native.run({name: to_native(value, self._types.get(name)) for name, value in given.items()})
        )

    @property
    def last_run(self) -> RunTimes:
        """When the latest run took place."""
        return RunTimes(*self._native.last_run())

    @property
    def device_peak_bytes(self) -> int:
        """The most bytes of device memory that the session had at once."""
        return self._native.heap_peak_bytes()

    @property
    def budget_excludes_process(self) -> bool:
        """Whether the budget bounds tensors alone, because the whole process cannot stay within it."""
        return self._native.budget_excludes_process()


def by_name(inputs: Any, names: List[str]) -> Mapping[str, Any]:
    """Inputs by name: a mapping as it is, a list or tuple in the order of the names, anything else as the only input, also if it is an array
    alone in a tuple."""
    if isinstance(inputs, Mapping):
        return inputs  # pyright: ignore[reportUnknownVariableType]
    if isinstance(inputs, tuple) and len(names) == len(inputs) == 1 and hasattr(inputs[0], "shape"):
        return {names[0]: inputs[0]}
    if isinstance(inputs, (list, tuple)) and len(names) > 1:
        values: List[Any] = list(inputs)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if len(values) == len(names):
            return dict(zip(names, values))
    elif len(names) == 1:
        return {names[0]: inputs}
    raise InvalidArgument(f"the model takes {', '.join(names) or 'no inputs'}: give a dictionary of arrays by name")
