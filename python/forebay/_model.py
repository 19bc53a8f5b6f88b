"""Models, and what goes into them and comes out."""

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
    #: Its type, as NumPy names it, or ``bfloat16``.
    dtype: str
    #: Its sizes; the symbol of a size that the model leaves open, or ``?`` where it has none.
    shape: Tuple[Union[int, str], ...]

    @staticmethod
    def _of(described: "_forebay._Described") -> TensorInfo:
        name, dtype, sizes = described
        return TensorInfo(name, dtype, tuple(symbol or "?" if size is None else size for size, symbol in sizes))


class Model:
    """An ONNX model: a path, bytes, or an ``onnx.ModelProto``. Weights are shared by all that is made of it.

    Args:
        source: The model.
        external_data: The folder of external data files; that of the model's file where not given.

    Raises:
        forebay.Error: No model that Forebay knows; :class:`forebay.FileError` where the file cannot be read.

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
            raise InvalidArgument(f"a model is a path, bytes or an onnx.ModelProto, not {type(source).__name__}")

    @classmethod
    def of_native(cls, native: _forebay.Model, name: str) -> Model:
        """A model that the native module made."""
        model = cls.__new__(cls)
        model.name, model._native = name, native
        return model

    @property
    def inputs(self) -> List[TensorInfo]:
        """What the model takes, as it declares it."""
        return infos(self._native.inputs())

    @property
    def outputs(self) -> List[TensorInfo]:
        """What the model gives, as it declares it."""
        return infos(self._native.outputs())

    def __repr__(self) -> str:
        return f"Model({self.name!r}, inputs={[info.name for info in self.inputs]}, outputs={[info.name for info in self.outputs]})"


#: A :class:`Model`, or what one is made of: a path, bytes, an ``onnx.ModelProto``.
ModelLike: TypeAlias = Any


def as_model(model: ModelLike) -> Model:
    """The model, or one made of it."""
    return model if isinstance(model, Model) else Model(model)


def native_model(model: Model) -> _forebay.Model:
    """The model as the native module has it."""
    return model._native


def infos(described: "List[_forebay._Described]") -> List[TensorInfo]:
    """Descriptions of the native module."""
    return [TensorInfo._of(one) for one in described]
