"""Array conversion: NumPy, the buffer protocol, DLPack."""

from __future__ import annotations

import reprlib
import sys
from typing import Any, Dict, Mapping, Optional, Tuple, cast

import numpy as np
import numpy.typing as npt

from ._dtypes import ONNX_NUMBERS
from .errors import InvalidArgument

#: An array as passed to and returned by the native module: type, shape, bytes.
Native = Tuple[str, Tuple[int, ...], "npt.NDArray[np.uint8]"]

_NAMES = frozenset(ONNX_NUMBERS)
#: Types that are passed on unchanged.
_PLAIN: Dict[Any, str] = {np.dtype(name).newbyteorder("<"): name for name in sorted(_NAMES - {"bfloat16"})}
_CPU = 1  # kDLCPU


def bfloat16() -> Optional[Any]:
    """Returns NumPy's bfloat16 type if the package ``ml_dtypes`` is installed."""
    try:
        import ml_dtypes  # type: ignore[import-not-found, import-untyped, unused-ignore]  # pyright: ignore
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)  # pyright: ignore


def _from_dlpack(value: Any) -> Tuple[str, "npt.NDArray[Any]"]:
    """Returns the type name and the array of an object that supports DLPack, without a copy if it is on the host."""
    if hasattr(value, "detach"):
        value = value.detach()
    torch = sys.modules.get("torch")
    is_torch = torch is not None and isinstance(value, torch.Tensor)
    try:
        if is_torch:
            # PyTorch negates and conjugates lazily, which other libraries do not see.
            value = value.resolve_conj().resolve_neg()
        if int(value.__dlpack_device__()[0]) != _CPU:
            if not hasattr(value, "cpu"):
                raise InvalidArgument("the array is on another device; copy it to the host first")
            value = value.cpu()
        if is_torch and value.dtype == torch.bfloat16:  # type: ignore[union-attr]
            return "bfloat16", np.from_dlpack(value.view(torch.int16))  # type: ignore[union-attr]
        array: npt.NDArray[Any] = np.from_dlpack(value)
    except InvalidArgument:
        raise
    except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgument(f"the elements of a {type(value).__name__} cannot be read: {error}") from error
    return str(array.dtype), array


def to_native(value: Any, expected: Optional[str] = None) -> Native:
    """Converts an array for the native module, without a copy if it is packed and row-major. Untyped numbers (Python numbers and lists of
    them) become ``expected``."""
    array: npt.NDArray[Any]
    if type(value) is np.ndarray:  # The fast path for the most common case.
        plain = _PLAIN.get(value.dtype)
        if plain is not None and value.flags.c_contiguous:
            return plain, value.shape, value.reshape(-1).view(np.uint8)
    if isinstance(value, np.ndarray):
        array = cast("npt.NDArray[Any]", value)
        name = str(array.dtype)
    elif hasattr(value, "__dlpack__"):
        name, array = _from_dlpack(value)
    elif isinstance(value, (bool, int, float, list, tuple)) and expected in _NAMES - {"bfloat16"}:
        array = np.asarray(value, dtype=expected)
        name = str(expected)
    else:
        array = np.asarray(value)
        name = str(array.dtype)
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
        name = str(array.dtype.newbyteorder("="))
    if name not in _NAMES:
        what = f"arrays of type {name} are" if hasattr(value, "dtype") else f"{reprlib.repr(value)}, of type {name} as an array, is"
        raise InvalidArgument(f"{what} not supported; the types are {', '.join(sorted(_NAMES))}")
    shape = tuple(int(size) for size in array.shape)
    packed = np.asarray(array, order="C")
    return name, shape, packed.reshape(-1).view(np.uint8)


def _from_numbers(value: Any, expected: str) -> "npt.NDArray[Any]":
    """Returns Python numbers, or lists of them, as an array of a type that can hold them."""
    given: npt.NDArray[Any] = np.asarray(value)
    is_wrong: Any = np.full(given.shape, True)
    if given.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            array = given.astype(expected)
        # Floats are rounded; all other types must keep the numbers as they are.
        is_wrong = (np.isinf(array) & np.isfinite(given)) if array.dtype.kind == "f" else array != given
    if is_wrong.any():
        found = given[is_wrong].tolist()[0]
        raise InvalidArgument(f"expected numbers that fit {expected}, found {found!r}; convert them first, as in numpy.asarray(x).astype(...)")
    return np.asarray(value, dtype=expected)


def input_to_native(value: Any, expected: Optional[str]) -> Native:
    """Converts an input of a model like :func:`to_native`, but refuses Python numbers that ``expected`` cannot hold; only floats are
    rounded."""
    if isinstance(value, (bool, int, float, list, tuple)) and expected in _NAMES:
        if expected != "bfloat16":
            return to_native(_from_numbers(value, expected))
        from ._tensor import given

        return given(_from_numbers(value, "float32"), expected)
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        from ._tensor import Tensor

        # NumPy has no such type, so its DLPack cannot take it.
        if isinstance(value, Tensor) and str(value.dtype) == "bfloat16":
            name, shape, data = value._native.to_host(value.context.current_stream()._native)
            return name, tuple(shape), data
    return to_native(value, expected)


def named_to_native(name: str, value: Any, expected: Optional[str]) -> Native:
    """Converts an input of a model like :func:`input_to_native`, with errors that name it."""
    try:
        return input_to_native(value, expected)
    except (InvalidArgument, ValueError) as error:
        raise InvalidArgument(f"input '{name}': {error}") from error


def labels_to_native(value: Any, expected: str, axes: int) -> Native:
    """Converts labels like :func:`input_to_native`, but accepts class numbers of any integer type. ``axes`` is the number of axes of the
    expected labels; if these are targets, a list with one axis less is class numbers, too."""
    if isinstance(value, (list, tuple)) and expected != "int64":
        given: npt.NDArray[Any] = np.asarray(value)
        if given.dtype.kind in "iu" and given.ndim == axes - 1:
            return to_native(given)
    native = input_to_native(value, expected)
    name, shape, data = native
    if expected == "int64" and name != "int64" and np.dtype(name if name != "bfloat16" else "float32").kind in "iu":
        numbers: npt.NDArray[Any] = data.view(name)
        if name == "uint64" and numbers.size and numbers.max() > np.iinfo(np.int64).max:
            raise InvalidArgument(f"label {numbers.max()} is not a class; class numbers are below 2**63, as int64")
        return to_native(numbers.reshape(shape).astype(np.int64))
    return native


def copy_of(native: Native) -> Native:
    """Returns an array with its own bytes."""
    name, shape, data = native
    return name, shape, data.copy()


def from_native(native: Native) -> "npt.NDArray[Any]":
    """Returns an array that owns the bytes made by the native module. bfloat16 becomes ``ml_dtypes.bfloat16`` if that package is
    installed, otherwise float32, which represents all of its values."""
    name, shape, data = native
    if name != "bfloat16":
        return data.view(name).reshape(shape)
    known = bfloat16()
    if known is not None:
        named: npt.NDArray[Any] = data.view(known)
        return named.reshape(shape)
    widened = data.view(np.uint16).astype(np.uint32) << np.uint32(16)
    return widened.view(np.float32).reshape(shape)


def all_from_native(natives: Mapping[str, Native]) -> Dict[str, "npt.NDArray[Any]"]:
    """Converts arrays by name."""
    return {name: from_native(native) for name, native in natives.items()}
