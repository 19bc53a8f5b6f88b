"""Tensors on the device."""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, Iterator, List, Optional, Sequence, Tuple, Union, cast

import numpy as np
import numpy.typing as npt

from . import _forebay, _indexing
from ._arrays import Native, bfloat16, from_native, to_native
from ._checks import text, whole
from ._dtypes import FLOATS, ONNX_NUMBERS, DTypeLike, common_type, item_bytes, to_bfloat16, type_name
from ._streams import Context, current_context
from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

#: A number or any kind of array: NumPy, DLPack, a list.
ArrayLike: TypeAlias = Any
#: A size or an axis.
Whole: TypeAlias = "Union[int, np.integer[Any]]"
#: The sizes of the dimensions, or the size of the only one.
Shape: TypeAlias = "Union[Whole, Sequence[Whole]]"
#: The axes of a reduction; ``None`` means all.
Axes: TypeAlias = "Union[Whole, Sequence[Whole], None]"

_DL_CPU, _DL_VULKAN = 1, 7
#: What operations on numbers are on truth values, as in NumPy and PyTorch.
_OF_BOOL = {"Add": "Or", "Mul": "And", "Max": "Or", "Min": "And"}
_ORDERS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
#: What operations on truth values are on the bits of integers.
_OF_BITS = {"And": "BitwiseAnd", "Or": "BitwiseOr", "Xor": "BitwiseXor"}
#: Reductions of at least one element, and their results.
_OF_SOME = {"ReduceMax": "largest one", "ReduceMin": "smallest one"}


def _is_operand(value: Any) -> bool:
    """Returns whether a value is a number or an array: not ``None``, text or any other object."""
    if isinstance(value, (Tensor, np.ndarray, bool, int, float)) or hasattr(value, "__dlpack__"):
        return True
    return np.asarray(value).dtype.kind not in "OSUMm"


def _common_type(*operands: ArrayLike) -> str:
    """Returns the result type of an operation, as in PyTorch."""
    tensors: List[str] = []
    scalars: List[str] = []
    numbers: List[str] = []
    for one in operands:
        if isinstance(one, Tensor):
            (tensors if one._shape else scalars).append(one._type)
        elif isinstance(one, (bool, np.bool_)):
            numbers.append("bool")
        elif isinstance(one, (int, np.integer)):
            numbers.append("int64")
        elif isinstance(one, (float, np.floating)):
            numbers.append("float32")
        else:
            name, shape, _ = given(one, None)
            (tensors if shape else scalars).append(name)
    return common_type(tensors, scalars, numbers)


def _in_common(op_type: str, *operands: ArrayLike, integers: Optional[str] = None, before: Sequence[Any] = (), **attributes: Any) -> Tensor:
    """Applies an operation to operands in their common type, or in ``integers`` if that is not a float. ``before`` are inputs that keep
    their type."""
    name = _common_type(*operands)
    if integers is not None and name not in FLOATS:
        name = integers
    if name == "bool":
        op_type = _OF_BOOL.get(op_type, op_type)
        # ONNX does not order truth values.
        name = "uint8" if op_type in _ORDERS else name
    made = [one.astype(name) if isinstance(one, Tensor) else _Given(given(one, name)) for one in operands]
    result: Tensor = operation(op_type, *before, *made, **attributes)
    return result


def _truncated(one: ArrayLike, other: ArrayLike) -> Tuple[Tensor, Tensor, Tensor]:
    """Returns the remainder of a division that rounds towards zero, the divisor as a tensor, and where rounding down would give another
    quotient: one less."""
    rest = _in_common("Mod", one, other, fmod=1)
    if not isinstance(other, Tensor):
        other = Tensor(other, rest._type, context=rest._context)
    return rest, other, ((rest < 0) ^ (other < 0)) & (rest != 0)


def _remainder(one: ArrayLike, other: ArrayLike) -> Tensor:
    """Returns the remainder of a division, with the sign of the divisor."""
    if _common_type(one, other) not in FLOATS:
        return _in_common("Mod", one, other)
    # ONNX gives the remainder of floats the sign of the dividend.
    rest, divisor, differs = _truncated(one, other)
    return where(differs, rest + divisor, rest)


def _quotient(one: ArrayLike, other: ArrayLike) -> Tensor:
    """Returns a quotient, rounded down."""
    rest, divisor, differs = _truncated(one, other)
    plain = _in_common("Div", one, divisor)
    if rest._type not in FLOATS:
        return plain - differs.astype(rest._type)
    # The dividend without the remainder is a multiple of the divisor; Round removes the rounding error of their division.
    exact = _in_common("Div", _in_common("Sub", one, rest), divisor)
    down = exact._run("Round", exact) - differs.astype(rest._type)
    # The remainder of a division by zero is NaN, but its quotient is infinite (or NaN for 0 / 0).
    return where(divisor == 0, plain, down)


class Tensor:
    """A tensor in device memory. Operations on it go to the thread's current stream and return at once; the host waits only when it needs
    values (:meth:`numpy`, :meth:`item`, printing). The caller orders streams (:meth:`Stream.wait_stream`, :class:`Event`), but memory is
    managed automatically: a tensor can be dropped at any time.

    Results of operations, including slices and ``a += b``, are separate tensors. Only :meth:`copy_` and :meth:`fill_` modify a tensor.
    Tensors can be copied (``copy.deepcopy``) and pickled; a pickled tensor is restored in the thread's current context.

    Args:
        data: A NumPy array, an object that supports DLPack or the buffer protocol, or a list of numbers. It is copied.
        dtype: The type to convert it to.
        context: The context; by default, the thread's current one.

    >>> import forebay, numpy as np
    >>> a = forebay.Tensor(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    >>> (a @ a + 1).numpy().tolist()
    [[8.0, 11.0], [16.0, 23.0]]
    >>> a[:, 1].sum().item(), a.mean(axis=0).tolist(), (a > 2).tolist()
    (6.0, [2.0, 3.0], [[False, False], [True, True]])
    """

    #: Makes NumPy leave operators between arrays and tensors to tensors.
    __array_ufunc__ = None

    _native: _forebay.DeviceTensor
    _context: Context
    _shape: Tuple[int, ...]
    _type: str

    def __init__(self, data: ArrayLike, dtype: DTypeLike = None, *, context: Optional[Context] = None) -> None:
        context = current_context() if context is None else context
        native = given(data, None if dtype is None else type_name(dtype))
        self._set(context, _forebay.DeviceTensor.from_host(context.current_stream()._native, native))

    def _set(self, context: Context, native: _forebay.DeviceTensor) -> None:
        self._native, self._context = native, context
        self._shape, self._type = tuple(native.shape()), native.data_type()

    @staticmethod
    def _of(context: Context, native: _forebay.DeviceTensor) -> Tensor:
        tensor = Tensor.__new__(Tensor)
        tensor._set(context, native)
        return tensor

    # Properties.

    @property
    def context(self) -> Context:
        """The context of the tensor."""
        return self._context

    @property
    def device(self) -> str:
        """The device that the tensor is on."""
        return self._context.device

    @property
    def shape(self) -> Tuple[int, ...]:
        """The sizes of the dimensions; empty for a scalar."""
        return self._shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self._shape, dtype=np.int64))

    @property
    def dtype(self) -> Any:
        """The NumPy type, or the string ``bfloat16`` if NumPy has no such type (without the package ``ml_dtypes``)."""
        if self._type != "bfloat16":
            return np.dtype(self._type)
        return bfloat16() or "bfloat16"

    @property
    def nbytes(self) -> int:
        """The number of bytes that the elements take."""
        return self.size * item_bytes(self._type)

    # Transfers.

    def numpy(self) -> npt.NDArray[Any]:
        """Copies the tensor to the host, after the current stream's work so far, and waits for the copy."""
        return from_native(self._native.to_host(self._context.current_stream()._native))

    def _shared(self) -> Optional[npt.NDArray[Any]]:
        """Returns the elements in place, after the current stream's work so far, or ``None`` if the host cannot access them or NumPy has no
        such type."""
        if self._type == "bfloat16":
            return None
        native = self._native.shared(self._context.current_stream()._native)
        return None if native is None else from_native(native)

    def item(self) -> Any:
        """Returns the value of a tensor with one element."""
        if self.size != 1:
            raise InvalidArgument(f"a tensor of shape {self._shape} is not one number or truth value; tolist() returns all elements")
        return self.numpy().item()

    def tolist(self) -> Any:
        """Returns the elements as nested lists."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> npt.NDArray[Any]:
        shared = self._shared() if copy is False else None
        if copy is False and (shared is None or (dtype is not None and np.dtype(dtype) != shared.dtype)):
            raise ValueError("a tensor can become an array without a copy only on the host and only with its own type")
        array = self.numpy() if shared is None else shared
        return array if dtype is None else array.astype(dtype)

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Returns the device for :meth:`__dlpack__`: the CPU for a tensor on the host."""
        if self._context.device.startswith("vulkan"):
            adapter = self._context.device.partition(":")[2]
            return _DL_VULKAN, int(adapter) if adapter.isdigit() else 0
        return _DL_CPU, 0

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """Exports the tensor by DLPack, as host memory. The current stream's work so far is complete by then, so the consumer, which has no
        stream on the host, need not wait.

        A tensor on the host is shared: it and the consumer's array use the same memory, for as long as either exists. Make sure that the
        consumer is done before work on a stream changes it. A tensor on a GPU or in managed memory is copied, as are a bfloat16 tensor and
        any tensor if ``copy`` is true.

        Raises:
            BufferError: Memory of another device or a stream was requested; a copy is needed but ``copy`` is false; or NumPy cannot
                export the type.
        """
        where = self.__dlpack_device__() if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        if where != (_DL_CPU, 0):
            raise BufferError("tensors are exported as host memory; request dl_device=(1, 0)")
        if stream is not None:
            raise BufferError(f"host memory has no streams, so stream must be None, not {stream!r}")
        if self._type == "bfloat16":
            return self._bfloat16_dlpack(max_version, copy)
        array = None if copy else self._shared()
        if array is None:
            if copy is False:
                raise BufferError("a tensor on a GPU or in managed memory is exported as a copy; copy=False is not supported")
            array = self.numpy()
        try:
            return array.__dlpack__(max_version=max_version) if max_version is not None else array.__dlpack__()  # type: ignore[call-arg, unused-ignore]  # pyright: ignore
        except TypeError:  # NumPy before 2.1 knows only one version, which every consumer accepts.
            return array.__dlpack__()

    def _bfloat16_dlpack(self, max_version: Optional[Tuple[int, int]], copy: Optional[bool]) -> Any:
        """Exports a bfloat16 tensor, as a copy by way of PyTorch, because NumPy has no such type."""
        torch: Any = sys.modules.get("torch")
        if torch is None or copy is False:
            raise BufferError(
                "NumPy cannot export bfloat16, and the copy that PyTorch exports needs `import torch` and no copy=False; or convert the "
                "tensor first (astype('float32'))"
            )
        _, shape, data = self._native.to_host(self._context.current_stream()._native)
        halves = torch.from_numpy(data.view(np.int16)).view(torch.bfloat16).reshape(tuple(shape))
        return halves.__dlpack__() if max_version is None else halves.__dlpack__(max_version=max_version)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """Converts the tensor to another type. A tensor of this type is returned unchanged; :meth:`clone` copies it."""
        name = type_name(dtype)
        return self if name == self._type else self._run("Cast", self, to=ONNX_NUMBERS[name])

    def clone(self) -> Tensor:
        """Returns a copy in separate memory."""
        return empty(self._shape, self._type, context=self._context).copy_(self)

    def copy_(self, other: ArrayLike) -> Tensor:
        """Overwrites the tensor, on the current stream, with a tensor or an array of the same shape, and returns it."""
        stream = self._context.current_stream()._native
        if isinstance(other, Tensor):
            self._native.copy_from(stream, other.astype(self._type)._native)
        else:
            self._native.write(stream, given(other, self._type))
        return self

    def fill_(self, value: Union[int, float, bool]) -> Tensor:
        """Overwrites all elements, on the current stream, with a number, and returns the tensor."""
        self._native.fill(self._context.current_stream()._native, given(value, self._type))
        return self

    # Operations.

    def _run(self, op_type: str, *inputs: Any, **attributes: Any) -> Tensor:
        result: Tensor = operation(op_type, *inputs, context=self._context, **attributes)
        return result

    def _binary(self, op_type: str, other: ArrayLike, reverse: bool = False, integers: Optional[str] = None) -> Tensor:
        """Applies an operation to two tensors, or a tensor and numbers, in their common type; in ``integers`` if that is not a float."""
        if not _is_operand(other):
            return cast("Tensor", NotImplemented)
        return _in_common(op_type, *((other, self) if reverse else (self, other)), integers=integers)

    def __add__(self, other: ArrayLike) -> Tensor:
        return self._binary("Add", other)

    def __radd__(self, other: ArrayLike) -> Tensor:
        return self._binary("Add", other, reverse=True)

    def __sub__(self, other: ArrayLike) -> Tensor:
        return self._binary("Sub", other)

    def __rsub__(self, other: ArrayLike) -> Tensor:
        return self._binary("Sub", other, reverse=True)

    def __mul__(self, other: ArrayLike) -> Tensor:
        return self._binary("Mul", other)

    def __rmul__(self, other: ArrayLike) -> Tensor:
        return self._binary("Mul", other, reverse=True)

    def __truediv__(self, other: ArrayLike) -> Tensor:
        return self._binary("Div", other, integers="float32")

    def __rtruediv__(self, other: ArrayLike) -> Tensor:
        return self._binary("Div", other, reverse=True, integers="float32")

    def __mod__(self, other: ArrayLike) -> Tensor:
        return _remainder(self, other) if _is_operand(other) else cast("Tensor", NotImplemented)

    def __rmod__(self, other: ArrayLike) -> Tensor:
        return _remainder(other, self) if _is_operand(other) else cast("Tensor", NotImplemented)

    def __floordiv__(self, other: ArrayLike) -> Tensor:
        return _quotient(self, other) if _is_operand(other) else cast("Tensor", NotImplemented)

    def __rfloordiv__(self, other: ArrayLike) -> Tensor:
        return _quotient(other, self) if _is_operand(other) else cast("Tensor", NotImplemented)

    def __pow__(self, other: ArrayLike) -> Tensor:
        return self._binary("Pow", other)

    def __rpow__(self, other: ArrayLike) -> Tensor:
        return self._binary("Pow", other, reverse=True)

    def __matmul__(self, other: ArrayLike) -> Tensor:
        return self._binary("MatMul", other)

    def __rmatmul__(self, other: ArrayLike) -> Tensor:
        return self._binary("MatMul", other, reverse=True)

    def __neg__(self) -> Tensor:
        return self._run("Neg", self)

    def __pos__(self) -> Tensor:
        return self.clone()

    def __abs__(self) -> Tensor:
        return self._run("Abs", self)

    def __lt__(self, other: ArrayLike) -> Tensor:
        return self._binary("Less", other)

    def __le__(self, other: ArrayLike) -> Tensor:
        return self._binary("LessOrEqual", other)

    def __gt__(self, other: ArrayLike) -> Tensor:
        return self._binary("Greater", other)

    def __ge__(self, other: ArrayLike) -> Tensor:
        return self._binary("GreaterOrEqual", other)

    def __eq__(self, other: ArrayLike) -> Tensor:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._binary("Equal", other)

    def __ne__(self, other: ArrayLike) -> Tensor:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        equal = self._binary("Equal", other)
        return equal if equal is NotImplemented else ~equal

    __hash__ = object.__hash__

    def __and__(self, other: ArrayLike) -> Tensor:
        return self._logical("And", other)

    def __or__(self, other: ArrayLike) -> Tensor:
        return self._logical("Or", other)

    def __xor__(self, other: ArrayLike) -> Tensor:
        return self._logical("Xor", other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Tensor:
        if self._type in FLOATS:
            raise InvalidArgument(f"~ requires a tensor of bool or integers, not {self._type}; compare first")
        return self._run("Not" if self._type == "bool" else "BitwiseNot", self)

    def _logical(self, op_type: str, other: ArrayLike) -> Tensor:
        if not _is_operand(other):
            return cast("Tensor", NotImplemented)
        name = _common_type(self, other)
        if name in FLOATS:
            raise InvalidArgument(f"&, | and ^ require tensors of bool or integers, not {name}; compare first")
        return self._binary(op_type if name == "bool" else _OF_BITS[op_type], other)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("a scalar has no length")
        return self._shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: Any) -> Tensor:
        """Returns a copy of a part: numbers, slices, ``...`` and ``None`` index as in NumPy; a tensor or list of integers selects rows, and
        one of truth values those elements where it is true."""
        if isinstance(key, (np.ndarray, list)):
            mask: npt.NDArray[Any] = np.asarray(cast("Any", key))
            if mask.dtype == bool:
                return self._masked(mask)
            if isinstance(key, list) and not mask.size:
                # NumPy takes it for floats.
                key = mask.astype(np.int64)
        if isinstance(key, (Tensor, np.ndarray, list)):
            chosen = key if isinstance(key, Tensor) else Tensor(cast("Any", key), context=self._context)
            if chosen._type == "bool":
                return self._masked(chosen.numpy())
            if chosen._type not in ("int32", "int64"):
                raise InvalidArgument(f"rows are selected by integers or truth values, not {chosen._type}")
            return self._run("Gather", self, chosen, axis=0)
        part = _indexing.part(self._shape, key)
        found = self
        if part.axes:
            bounds = [np.asarray(numbers, np.int64) for numbers in (part.starts, part.ends, part.axes, part.steps)]
            found = self._run("Slice", found, *bounds)
        if found._shape != part.shape:
            return found.reshape(*part.shape)
        return found.clone() if found is self else found

    def _masked(self, mask: npt.NDArray[Any]) -> Tensor:
        """Returns the elements where a mask of the first dimensions is true."""
        if mask.ndim == 0 or mask.shape != self._shape[: mask.ndim]:
            raise IndexError(f"a mask of shape {mask.shape} does not match a tensor of shape {self._shape}")
        places = np.flatnonzero(mask)
        flat = self.reshape(mask.size, *self._shape[mask.ndim :])
        # On the device, because a small host array is a constant of the operation, which would be prepared anew for each mask.
        return flat._run("Gather", flat, Tensor(places, context=self._context), axis=0)

    def __setitem__(self, key: Any, value: Any) -> None:
        way_out = "make another tensor, for example with forebay.where, or overwrite all with copy_ or fill_"
        raise TypeError(f"elements cannot be assigned; {way_out}")

    def reshape(self, *shape: Any) -> Tensor:
        """Returns a copy with the same elements, in the same order, and other sizes, one of which can be -1."""
        sizes = _whole_numbers(shape)
        if self.size == 0 and sizes.count(-1) == 1:
            rest = [size for size in sizes if size != -1]
            if 0 in rest:
                raise InvalidArgument(f"cannot reshape {self._shape} to {tuple(sizes)}: with another size of 0, any size could be in place of -1")
            sizes[sizes.index(-1)] = 0
        return self._run("Reshape", self, np.asarray(sizes, np.int64), allowzero=int(0 in sizes))

    def transpose(self, *order: Any) -> Tensor:
        """Returns a copy with the dimensions in another order, or in reverse order if none is given."""
        axes = _whole_numbers(order)
        if not axes:
            axes = list(range(self.ndim))[::-1]
        return self._run("Transpose", self, perm=[axis + self.ndim if axis < 0 else axis for axis in axes])

    @property
    def T(self) -> Tensor:
        """A copy with the dimensions in reverse order."""
        return self.transpose()

    def _reduce(self, op_type: str, axis: Axes, keepdims: bool) -> Tensor:
        axes = list(range(self.ndim)) if axis is None else _whole_numbers((axis,))
        if any(not -self.ndim <= one < self.ndim for one in axes):
            raise InvalidArgument(f"axis {axis} is out of range for {self.ndim} dimensions")
        if not axes:
            return self.clone()
        if op_type in _OF_SOME:
            self._refuse_nothing(_OF_SOME[op_type], axes)
        return self._run(op_type, self, np.asarray(axes, np.int64), keepdims=int(keepdims))

    def _refuse_nothing(self, what: str, axes: Sequence[int]) -> None:
        """Rejects axes without elements for what no elements have not, unless there are no results."""
        rest = [size for axis, size in enumerate(self._shape) if axis not in axes and axis - self.ndim not in axes]
        if self.size == 0 and 0 not in rest:
            raise InvalidArgument(f"no elements have no {what}, and the tensor of shape {self._shape} has none along the axes {tuple(axes)}")

    def _wide(self) -> Tensor:
        """Returns the tensor, with narrower integers and booleans as int64."""
        return self if self._type in (*FLOATS, "int64", "uint64") else self.astype("int64")

    def _float(self) -> Tensor:
        """Returns the tensor, with integers and booleans as float32."""
        return self if self._type in FLOATS else self.astype("float32")

    def sum(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Sums over axes. Integers narrower than 64 bits and booleans are summed as int64."""
        return self._wide()._reduce("ReduceSum", axis, keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Averages over axes. Means of integers are float32."""
        return self._float()._reduce("ReduceMean", axis, keepdims)

    def max(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Returns the largest elements along axes."""
        return self._reduce("ReduceMax", axis, keepdims)

    def min(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Returns the smallest elements along axes."""
        return self._reduce("ReduceMin", axis, keepdims)

    def prod(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Multiplies elements along axes. Integers narrower than 64 bits and booleans are multiplied as int64."""
        return self._wide()._reduce("ReduceProd", axis, keepdims)

    def argmax(self, axis: Optional[Whole] = None, keepdims: bool = False) -> Tensor:
        """Returns the index of the largest element along an axis, or in the flattened tensor if no axis is given."""
        flat = self if axis is not None else self.reshape(-1)
        flat._refuse_nothing("largest one", [0 if axis is None else operator.index(axis)])
        return flat._run("ArgMax", flat, axis=axis or 0, keepdims=int(keepdims and axis is not None))

    def relu(self) -> Tensor:
        """max(self, 0)."""
        return self._run("Relu", self)

    def exp(self) -> Tensor:
        """Exponential function."""
        return self._run("Exp", self._float())

    def log(self) -> Tensor:
        """Natural logarithm."""
        return self._run("Log", self._float())

    def sqrt(self) -> Tensor:
        """Square root."""
        return self._run("Sqrt", self._float())

    def tanh(self) -> Tensor:
        """Hyperbolic tangent."""
        return self._run("Tanh", self._float())

    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-self))."""
        return self._run("Sigmoid", self._float())

    def abs(self) -> Tensor:
        """Absolute values."""
        return self._run("Abs", self)

    def sin(self) -> Tensor:
        """Sine."""
        return self._run("Sin", self._float())

    def cos(self) -> Tensor:
        """Cosine."""
        return self._run("Cos", self._float())

    def softmax(self, axis: Whole = -1) -> Tensor:
        """Exponentials along an axis, divided by their sum."""
        # ONNX has none of a tensor without dimensions.
        return self._run("Softmax", self, axis=axis) if self._shape else self.reshape(1).softmax(axis).reshape(())

    def __copy__(self) -> Tensor:
        return self.clone()

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.clone()

    def __reduce__(self) -> Any:
        stream = self._context.current_stream()._native
        # bfloat16 keeps its bytes, because NumPy may have no such type.
        name, shape, data = self._native.to_host(stream) if self._type == "bfloat16" else to_native(self.numpy())
        return _restored, ((name, tuple(shape), data),)

    def __format__(self, specification: str) -> str:
        return format(self.item(), specification) if specification else str(self)

    def __repr__(self) -> str:
        name = "bfloat16" if self._type == "bfloat16" else str(np.dtype(self._type))
        if self.size > 1000 or self.size == 0:
            return f"Tensor(shape={self._shape}, dtype={name}, device={self.device!r})"
        return f"Tensor({np.array2string(self.numpy(), separator=', ', prefix='Tensor(')}, dtype={name}, device={self.device!r})"


def given(data: ArrayLike, name: Optional[str]) -> Native:
    """Converts an array for the native module, to another type if one is named."""
    if isinstance(data, Tensor):
        data = data.numpy()
    if name is None and isinstance(data, (float, list, tuple)) and not isinstance(data, np.generic):
        array = np.asarray(cast("Any", data))
        return to_native(array.astype(np.float32) if array.dtype == np.float64 else array)
    try:
        native = to_native(data, name)
    except OverflowError:
        what = str(data) if isinstance(data, int) else "a number of the list"
        raise InvalidArgument(f"{what} does not fit {name}; choose a wider type, as in a.astype('float64')") from None
    if name is None or native[0] == name:
        return native
    if name != "bfloat16":
        return to_native(from_native(native).astype(name))
    return "bfloat16", native[1], to_bfloat16(from_native(native))


@dataclass(frozen=True)
class _Given:
    """An array that is already converted for the native module."""

    native: Native


def operation(
    op_type: str, *inputs: Any, name: Optional[str] = None, outputs: int = 1, context: Optional[Context] = None, **attributes: Any
) -> Any:
    """Runs any ONNX operator by name, on the current stream.

    Args:
        op_type: The operator, such as ``"Conv"``.
        *inputs: Tensors or host arrays; ``None`` for an omitted input.
        name: The name used by the race checker and in messages; by default, the operator with a number.
        outputs: The number of outputs to return.
        context: The context, if no input is a tensor.
        **attributes: Attributes of the operator.

    Returns:
        A tensor, or a list of tensors for several outputs.

    Raises:
        forebay.InvalidArgument: The inputs are not valid for the operator.
        forebay.UnsupportedOperator: There is no such operator.

    >>> import forebay, numpy as np
    >>> x, w = forebay.ones((1, 1, 4, 4)), forebay.ones((1, 1, 3, 3))
    >>> forebay.operation("Conv", x, w, pads=[1, 1, 1, 1]).shape
    (1, 1, 4, 4)
    >>> largest, places = forebay.operation("TopK", forebay.Tensor([1.0, 3.0, 2.0]), [2], outputs=2)
    >>> largest.tolist(), places.tolist()
    ([3.0, 2.0], [1, 2])
    """
    if context is None:
        tensors = (one for one in inputs if isinstance(one, Tensor))
        first = next(tensors, None)
        context = current_context() if first is None else first._context
    operands: List[Union[_forebay.DeviceTensor, Native, None]] = []
    for one in inputs:
        if isinstance(one, Tensor):
            operands.append(one._native)
        elif isinstance(one, _Given):
            operands.append(one.native)
        else:
            operands.append(None if one is None else given(one, None))
    stream = context.current_stream()
    count = whole("outputs", outputs, 1)
    made = _forebay.DeviceTensor.operation(stream._native, text("op_type", op_type), name, operands, attributes, count)
    results = [Tensor._of(context, native) for native in made]
    return results[0] if outputs == 1 else results


def _restored(native: Native) -> Tensor:
    """Returns a pickled tensor, in the current context."""
    context = current_context()
    return Tensor._of(context, _forebay.DeviceTensor.from_host(context.current_stream()._native, native))


def _whole_numbers(given: Sequence[Any]) -> List[int]:
    """Returns sizes or axes that are given one by one or as one sequence."""
    numbers = given[0] if len(given) == 1 and not isinstance(given[0], (int, np.integer)) else given
    try:
        return [operator.index(number) for number in numbers]
    except TypeError:
        raise InvalidArgument(f"sizes and axes must be whole numbers, not {numbers!r}") from None


def sizes_of(shape: Shape) -> List[int]:
    try:
        sizes = [operator.index(size) for size in ([shape] if isinstance(shape, (int, np.integer)) else shape)]
    except TypeError:
        raise InvalidArgument(f"{shape!r} is not a shape; sizes must be whole numbers") from None
    if any(size < 0 for size in sizes):
        raise InvalidArgument(f"{tuple(sizes)} is not a shape; sizes cannot be negative")
    return sizes


def empty(shape: Shape, dtype: DTypeLike = "float32", *, context: Optional[Context] = None) -> Tensor:
    """Returns a tensor whose values are undefined until it is overwritten."""
    context = current_context() if context is None else context
    stream = context.current_stream()._native
    return Tensor._of(context, _forebay.DeviceTensor.empty(stream, type_name(dtype), sizes_of(shape)))


def full(
    shape: Shape, value: Union[int, float, bool], dtype: DTypeLike = "float32", *, context: Optional[Context] = None
) -> Tensor:
    """Returns a tensor filled with one number.

    >>> import forebay
    >>> forebay.full((2, 2), 7, "int64").tolist()
    [[7, 7], [7, 7]]
    """
    context = current_context() if context is None else context
    stream = context.current_stream()._native
    return Tensor._of(context, _forebay.DeviceTensor.full(stream, sizes_of(shape), given(value, type_name(dtype))))


def zeros(shape: Shape, dtype: DTypeLike = "float32", *, context: Optional[Context] = None) -> Tensor:
    """Returns a tensor of zeros."""
    return full(shape, 0, dtype, context=context)


def ones(shape: Shape, dtype: DTypeLike = "float32", *, context: Optional[Context] = None) -> Tensor:
    """Returns a tensor of ones."""
    return full(shape, 1, dtype, context=context)


def from_dlpack(array: Any, *, context: Optional[Context] = None) -> Tensor:
    """Returns a tensor with the elements of an array that supports DLPack, copied on the current stream. A tensor of the same context is
    returned unchanged.

    >>> import forebay, numpy as np
    >>> forebay.from_dlpack(np.arange(3.0)).tolist()
    [0.0, 1.0, 2.0]
    """
    context = current_context() if context is None else context
    if isinstance(array, Tensor) and array._context is context:
        return array
    if not hasattr(array, "__dlpack__"):
        raise InvalidArgument(f"{type(array).__name__} does not support DLPack; use forebay.Tensor for other arrays")
    return Tensor(array, context=context)


def where(condition: ArrayLike, one: ArrayLike, other: ArrayLike) -> Tensor:
    """Returns elements of ``one`` where ``condition`` is true, and of ``other`` elsewhere, in their common type.

    >>> import forebay
    >>> a = forebay.Tensor([-1.0, 2.0])
    >>> forebay.where(a > 0, a, 0.0).tolist()
    [0.0, 2.0]
    """
    return _in_common("Where", one, other, before=[condition])


def concatenate(tensors: Iterable[ArrayLike], axis: Whole = 0) -> Tensor:
    """Concatenates tensors along an axis, in their common type."""
    tensors = list(tensors)
    if not tensors:
        raise InvalidArgument("expected at least one tensor to concatenate")
    return _in_common("Concat", *tensors, axis=axis)


def maximum(one: ArrayLike, other: ArrayLike) -> Tensor:
    """Returns the element-wise maximum of two tensors."""
    return _in_common("Max", one, other)


def minimum(one: ArrayLike, other: ArrayLike) -> Tensor:
    """Returns the element-wise minimum of two tensors."""
    return _in_common("Min", one, other)
