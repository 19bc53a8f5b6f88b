"""Models, their inputs and their outputs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, List, Optional, Tuple, Union, cast

from . import _forebay
from ._options import PathLike
from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import TypeAlias


@dataclass(frozen=True)
class TensorInfo:
    """An input or output.

    >>> import forebay
    >>> forebay.Model(digits).inputs
    [TensorInfo(name='x', dtype='float32', shape=('N', 1, 8, 8))]
    """

    #: Its name in the model.
    name: str
    #: Its type, by its NumPy name, or ``bfloat16``.
    dtype: str
    #: Its sizes. A size that the model leaves open is given by its symbol, or by ``?`` if it has none.
    shape: Tuple[Union[int, str], ...]

    @staticmethod
    def _of(described: "_forebay._Described") -> TensorInfo:
        name, dtype, sizes = described
        return TensorInfo(name, dtype, tuple(symbol or "?" if size is None else size for size, symbol in sizes))


class Model:
    """An ONNX model, given as a path, bytes or an ``onnx.ModelProto``. Everything created from it shares its weights.

    Args:
        source: The model.
        external_data: The folder of external data files. The default is the folder of the model's file.

    Raises:
        forebay.Error: The model is not supported; :class:`forebay.FileError` if the file cannot be read.

    >>> import forebay
    >>> forebay.Model(digits).outputs[0].name
    'logits'
    """

    def __init__(self, source: Any, *, external_data: Optional[PathLike] = None) -> None:
        folder = None if external_data is None else os.fspath(external_data)
        self.name: str = "model"
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(cast("PathLike", source))
            self.name = os.path.basename(path)
            self._native = _forebay.Model.from_file(path, folder)
        elif isinstance(source, (bytes, bytearray, memoryview)):
            self._native = _forebay.Model.from_bytes(bytes(cast(bytes, source)), folder)
        elif hasattr(source, "SerializeToString"):
            self._native = _forebay.Model.from_bytes(source.SerializeToString(), folder)
        else:
            raise InvalidArgument(f"a model must be a path, bytes or an onnx.ModelProto, not {type(source).__name__}")

    @classmethod
    def of_native(cls, native: _forebay.Model, name: str) -> Model:
        """Wraps a model created by the native module."""
        model = cls.__new__(cls)
        model.name, model._native = name, native
        return model

    @property
    def inputs(self) -> List[TensorInfo]:
        """The inputs that the model declares."""
        return infos(self._native.inputs())

    @property
    def outputs(self) -> List[TensorInfo]:
        """The outputs that the model declares."""
        return infos(self._native.outputs())

    def __repr__(self) -> str:
        return f"Model({self.name!r}, inputs={[info.name for info in self.inputs]}, outputs={[info.name for info in self.outputs]})"


def of_module(path: str) -> Model:
    """Reads the export of a PyTorch module, whose parameters are initializers."""
    return Model.of_native(_forebay.Model.from_file(path, None).with_initializers_only(), os.path.basename(path))


#: A :class:`Model`, or anything it can be created from: a path, bytes, or an ``onnx.ModelProto``.
ModelLike: TypeAlias = Any


def as_model(model: ModelLike) -> Model:
    """Returns the model itself, or creates one from its source."""
    return model if isinstance(model, Model) else Model(model)


def native_model(model: Model) -> _forebay.Model:
    """Returns the native module's model."""
    return model._native


def infos(described: "List[_forebay._Described]") -> List[TensorInfo]:
    """Converts descriptions from the native module."""
    return [TensorInfo._of(one) for one in described]
