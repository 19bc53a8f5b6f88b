"""Element types of tensors: their names, and the type in which operands of several types meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Sequence

import numpy as np
import numpy.typing as npt

from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

#: A type, by name or as a NumPy type.
DTypeLike: TypeAlias = Any

#: The ONNX type numbers.
ONNX_NUMBERS: Dict[str, int] = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
}
FLOATS = ("float16", "bfloat16", "float32", "float64")


def type_name(dtype: DTypeLike) -> str:
    """Returns the name of a type, whatever its byte order.

    >>> type_name(">f4"), type_name(float), type_name("bfloat16")
    ('float32', 'float64', 'bfloat16')
    """
    if isinstance(dtype, str) and dtype in ONNX_NUMBERS:  # The fast path, for every operand of an operation.
        return dtype
    try:
        name = str(np.dtype(dtype).newbyteorder("="))
    except (TypeError, ValueError):  # NumPy has no such type.
        name = dtype if isinstance(dtype, str) else repr(dtype)
    if name not in ONNX_NUMBERS:
        raise InvalidArgument(f"unknown type {name}; the types are {', '.join(ONNX_NUMBERS)}")
    return name


def item_bytes(name: str) -> int:
    """Returns the number of bytes of an element.

    >>> item_bytes("bfloat16"), item_bytes("int64")
    (2, 8)
    """
    return 2 if name == "bfloat16" else np.dtype(name).itemsize


def _kind(name: str) -> int:
    """Returns the rank of a type's kind: floats before integers before booleans."""
    return 2 if name in FLOATS else 0 if name == "bool" else 1


def _wider(one: str, other: str) -> str:
    """Returns the wider of two types of the same kind, otherwise that of the higher kind."""
    if one == other:
        return one
    if _kind(one) != _kind(other):
        return one if _kind(one) > _kind(other) else other
    if "bfloat16" in (one, other):
        return "float32" if "float16" in (one, other) else other if one == "bfloat16" else one
    return type_name(np.promote_types(one, other))


def common_type(tensors: Sequence[str], scalars: Sequence[str], numbers: Sequence[str]) -> str:
    """Returns the result type of an operation, as in PyTorch: that of the tensors with dimensions, unless those without dimensions are of a
    higher kind, or Python numbers of a still higher one.

    >>> common_type(["int32"], ["int64"], []), common_type(["int32"], ["float64"], ["float32"])
    ('int32', 'float64')
    """
    found = ""
    for names in (tensors, scalars, numbers):
        merged = ""
        for name in names:
            merged = _wider(merged, name) if merged else name
        if not found or (merged and _kind(merged) > _kind(found)):
            found = merged
    return found


def to_bfloat16(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Returns the bytes of numbers as bfloat16, rounded to nearest even; NaN stays NaN."""
    numbers = array.astype(np.float32).view(np.uint32)
    upper = numbers >> np.uint32(16)
    rounded = (numbers + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
    # The sum of a NaN can overflow, and its upper half can be that of an infinity.
    is_nan = (numbers & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    bits: npt.NDArray[Any] = np.where(is_nan, upper | np.uint32(0x40), rounded)
    return bits.astype(np.uint16).reshape(-1).view(np.uint8)
