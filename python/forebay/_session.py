"""Running a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from . import _forebay, _options
from ._arrays import from_native, named_to_native
from ._checks import text
from ._model import ModelLike, TensorInfo, as_model, infos, native_model
from ._options import EngineOptions, Size
from .errors import InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Unpack


@dataclass(frozen=True)
class RunTimes:
    """The times of a run."""

    #: Seconds from the first command to the last result.
    seconds: float
    #: The part of ``seconds`` in which no kernel ran.
    stall_seconds: float
    #: The number of copies to the device that kernels had to wait for.
    late_copies: int
    #: The part of ``stall_seconds`` spent on those copies.
    late_seconds: float


class Session:
    """A model, ready to run within a memory budget.

    Sizes that the model leaves open are taken from the inputs of each run. A plan is made at the first run with each combination of
    sizes, and kept. Memory is allocated at the first run. A session can be shared by several threads: runs take turns. A process forked
    from this one (:mod:`multiprocessing` does so on Linux before Python 3.14) cannot use it and creates its own.

    Args:
        model: A :class:`forebay.Model`, a path, bytes, or an ``onnx.ModelProto``.
        device: ``"host"`` (the CPU), ``"vulkan"`` or ``"vulkan:0"`` (a GPU), ``"null"`` (plans, but computes nothing).
        device_memory: The budget. On the host it bounds the whole process, including Python, if the process can stay within it;
            otherwise only the tensors (see :attr:`budget_excludes_process`).
        batch_size: The batch size, if the model leaves it open and the plan is to be made now.
        sizes: Other sizes that the model leaves open, by symbol or as ``input[dimension]``.
        **options: See :class:`forebay.EngineOptions`.

    Raises:
        forebay.OutOfBudget: No plan fits the budget; ``least`` is the smallest sufficient budget in bytes.
        forebay.UnsupportedOperator: The model uses an operator that Forebay does not support.

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
        model = as_model(model)
        self._name: str = model.name
        self._native = _forebay.Session(native_model(model), engine, _options.open_sizes(batch_size, sizes), None, False)
        self._types = {name: dtype for name, dtype, _ in self._native.inputs()}
        self._outputs = [name for name, _, _ in self._native.outputs()]

    @property
    def inputs(self) -> List[TensorInfo]:
        """The inputs of a run."""
        return infos(self._native.inputs())

    @property
    def outputs(self) -> List[TensorInfo]:
        """The outputs of a run."""
        return infos(self._native.outputs())

    def run(self, inputs: Any = None, **named: Any) -> Dict[str, npt.NDArray[Any]]:
        """Runs the model on inputs by name and returns all outputs by name.

        Args:
            inputs: A dictionary of arrays by name, or a single array if the model has one input. An array is a NumPy array, an object
                that supports DLPack or the buffer protocol, or a list of numbers, which must fit the type of the input. Initializers of
                the model that are also inputs keep their values unless they are given.
            **named: The inputs as keyword arguments instead.

        Returns:
            Arrays that own their memory, in the order of :attr:`outputs`.

        Raises:
            forebay.InvalidArgument: An input is missing, unknown, or of the wrong type or shape.

        >>> import forebay, numpy as np
        >>> session = forebay.Session(digits)
        >>> session.run(x=np.zeros((2, 1, 8, 8), np.float32))["logits"].dtype
        dtype('float32')
        """
        if inputs is not None and named:
            raise InvalidArgument("pass inputs as one dictionary or by name, not both")
        given: Mapping[str, Any] = named if inputs is None else by_name(inputs, list(self._types))
        found = self._native.run({name: named_to_native(name, value, self._types.get(name)) for name, value in given.items()})
        return {name: from_native(found[name]) for name in self._outputs}

    def __repr__(self) -> str:
        return f"<Session of {self._name} with inputs {list(self._types)} and outputs {self._outputs}>"

    @property
    def last_run(self) -> RunTimes:
        """The times of the latest run."""
        return RunTimes(*self._native.last_run())

    @property
    def device_peak_bytes(self) -> int:
        """The peak device memory of the session, in bytes."""
        return self._native.heap_peak_bytes()

    @property
    def budget_excludes_process(self) -> bool:
        """Whether the budget bounds only the tensors, because the whole process cannot stay within it."""
        return self._native.budget_excludes_process()


def by_name(inputs: Any, names: List[str]) -> Mapping[str, Any]:
    """Returns inputs by name: a mapping unchanged, a list or tuple in the order of the names, and anything else, or a tuple of a single
    array, as the only input."""
    if isinstance(inputs, Mapping):
        for name in inputs:  # pyright: ignore[reportUnknownVariableType]
            text("the name of an input", name)
        return inputs  # pyright: ignore[reportUnknownVariableType]
    if isinstance(inputs, tuple) and len(names) == len(inputs) == 1 and hasattr(inputs[0], "shape"):
        return {names[0]: inputs[0]}
    if isinstance(inputs, (list, tuple)) and len(names) > 1:
        values: List[Any] = list(inputs)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if len(values) == len(names):
            return dict(zip(names, values))
    elif len(names) == 1:
        return {names[0]: inputs}
    raise InvalidArgument(f"the model takes {', '.join(names) or 'no inputs'}; pass a dictionary of arrays by name")
