"""Tensors: what operators, slices and reductions give is what NumPy gives."""

from __future__ import annotations

import copy
import operator
import pickle
import re
import sys
from typing import Any, Callable

import numpy as np
import pytest

import forebay

RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 4, 5)).astype(np.float32)
Y = RNG.standard_normal((4, 5)).astype(np.float32)


def same(tensor: forebay.Tensor, array: Any, exact: bool = True) -> None:
    found, expected = tensor.numpy(), np.asarray(array)
    assert found.shape == expected.shape == tensor.shape
    if exact:
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_arithmetic(op: Callable[[Any, Any], Any]) -> None:
    x, y = forebay.Tensor(X), forebay.Tensor(Y)
    same(op(x, y), op(X, Y))
    same(op(x, Y), op(X, Y))
    same(op(X, y), op(X, Y))
    same(op(x, 2), op(X, np.float32(2)))
    same(op(2.5, y), op(np.float32(2.5), Y))


@pytest.mark.parametrize("op", [operator.mod, operator.floordiv])
def test_remainders_and_quotients_are_those_of_python(op: Callable[[Any, Any], Any]) -> None:
    i, x = np.array([-7, -1, 0, 5, 7]), np.array([-7.5, -0.25, 0.0, 5.0, 6.3], np.float32)
    for divisor in (3, -3):
        same(op(forebay.Tensor(i), divisor), op(i, divisor))
        same(op(forebay.Tensor(x), divisor), op(x, np.float32(divisor)), exact=False)
        same(op(divisor, forebay.Tensor(x[:2])), op(np.float32(divisor), x[:2]), exact=False)
    same(op(forebay.Tensor(i), [2.5] * 5), op(i.astype(np.float32), np.float32(2.5)), exact=False)
    with pytest.raises(TypeError):
        op(forebay.Tensor(i), "x")
    with np.errstate(all="ignore"):
        x = np.array([1.0, -1.0, 0.0, -5.0, 5.0, np.inf, -np.inf, np.nan], np.float32)
        for number in (0.0, -0.0, np.inf, -np.inf, 3.0):
            np.testing.assert_array_equal(op(forebay.Tensor(x), number).numpy(), op(x, np.float32(number)))
            np.testing.assert_array_equal(op(number, forebay.Tensor(x)).numpy(), op(np.float32(number), x))


@pytest.mark.parametrize("op", [operator.mod, operator.floordiv])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32", "uint64"])
def test_quotients_of_the_smallest_and_largest_integers_are_exact(op: Callable[[Any, Any], Any], dtype: str) -> None:
    limits: Any = np.iinfo(dtype)
    i = np.array([limits.min, limits.min + 1, 0, 1, limits.max - 1, limits.max], dtype)
    for divisor in (3, limits.max) if limits.min == 0 else (3, -3, limits.max):
        same(op(forebay.Tensor(i), divisor), op(i, np.array(divisor, dtype)))
    same(op(limits.max, forebay.Tensor(i[[1, 4]])), op(np.array(limits.max, dtype), i[[1, 4]]))


@pytest.mark.parametrize("op", [operator.mod, operator.floordiv])
def test_remainders_and_quotients_stay_in_their_context(op: Callable[[Any, Any], Any]) -> None:
    context = forebay.Context()
    for array in (np.array([-7, 7]), np.array([-7.5, 7.5], np.float32)):
        x = forebay.Tensor(array, context=context)
        for found, expected in [
            (op(x, 3), op(array, array.dtype.type(3))),
            (op(3, x), op(array.dtype.type(3), array)),
            (op(x, array[::-1]), op(array, array[::-1])),
        ]:
            assert found.context is context
            np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("op", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
def test_comparisons(op: Callable[[Any, Any], Any]) -> None:
    a, b = np.array([1, 2, 3], np.int32), np.array([3, 2, 1], np.int32)
    same(op(forebay.Tensor(a), forebay.Tensor(b)), op(a, b))
    same(op(forebay.Tensor(a), 2), op(a, 2))
    same(op(forebay.Tensor(X), 0.0), op(X, np.float32(0)))


def test_types_meet_as_in_pytorch() -> None:
    i = forebay.Tensor([1, 2, 3])
    assert i.dtype == np.int64 and forebay.Tensor([1.5]).dtype == np.float32
    assert (i + 1).dtype == np.int64 and (i + 1.5).dtype == np.float32 and (i / 2).dtype == np.float32
    assert (i / 2).tolist() == [0.5, 1.0, 1.5]
    assert (i + forebay.Tensor(X[0, 0, :3])).dtype == np.float32
    assert ((i > 1) * forebay.Tensor([1.0, 2.0, 3.0])).tolist() == [0.0, 2.0, 3.0]
    assert ((i > 1) + 1).dtype == np.int64
    assert (forebay.Tensor(X.astype(np.float64)) + 0.1).dtype == np.float64
    same(forebay.Tensor(X).astype("int32"), X.astype(np.int32))
    assert forebay.Tensor(X, "float16").dtype == np.float16
    assert forebay.ones(3, "bfloat16").astype("float32").tolist() == [1.0, 1.0, 1.0]
    assert forebay.Tensor([1.0, 0.1], "bfloat16").astype("float32").tolist() == [1.0, 0.10009765625]
    assert (i**2).tolist() == [1, 4, 9] and (-i).tolist() == [-1, -2, -3] and abs(-i).tolist() == [1, 2, 3]
    mask = (i > 1) & ~(i > 2)
    assert mask.tolist() == [False, True, False] and (mask | (i == 1)).tolist() == [True, True, False]
    with pytest.raises(forebay.InvalidArgument, match="complex64"):
        forebay.Tensor(np.zeros(2, np.complex64))
    with pytest.raises(forebay.InvalidArgument, match="^None, of type object as an array, is not supported"):
        forebay.Tensor(None)


def test_tensors_without_dimensions_keep_the_type_of_others_as_in_pytorch() -> None:
    x, i = forebay.Tensor(X), forebay.Tensor([1, 2, 3], "int32")
    for one in (np.array(1.5), forebay.Tensor(np.array(1.5))):
        assert (x + one).dtype == (one + x).dtype == np.float32 and (i + one).dtype == np.float64
    assert (i * forebay.Tensor([1, 2]).sum()).dtype == np.int32 and (i * forebay.Tensor([1, 2, 3])).dtype == np.int64
    assert (forebay.Tensor(np.float32(2)) + forebay.Tensor(np.array(1.5))).dtype == np.float64


def test_where_and_others_take_the_common_type() -> None:
    b, i = forebay.Tensor([True, False]), forebay.Tensor(np.array([3, 4], np.int32))
    same(forebay.where(b, i, 0.5), np.array([3, 0.5], np.float32))
    same(forebay.where(b, 1, 2.5), np.array([1, 2.5], np.float32))
    same(forebay.where(b, i, np.full(2, 0.5, np.float32)), np.array([3, 0.5], np.float32))
    same(forebay.where(np.array([True, False]), i, 7), np.array([3, 7], np.int32))
    same(forebay.where(b, 1, 2), np.array([1, 2]))
    same(forebay.maximum(np.array([0, 9], np.int32), i), np.array([3, 9], np.int32))
    same(forebay.minimum(2.5, i), np.array([2.5, 2.5], np.float32))
    same(forebay.concatenate(one for one in (i, forebay.Tensor([0.5]))), np.array([3, 4, 0.5], np.float32))
    assert (True & b).tolist() == [True, False] and ([False, True] ^ b).tolist() == [True, True] and (True | b).tolist() == [True, True]


@pytest.mark.parametrize("op", [operator.add, operator.mul, operator.lt, operator.le, operator.gt, operator.ge, operator.and_, operator.or_, operator.xor])
def test_truth_values(op: Callable[[Any, Any], Any]) -> None:
    x = np.array([[False, True, False, True], [True, True, False, False]])
    same(op(forebay.Tensor(x), forebay.Tensor(x[1])), op(x, x[1]))
    same(op(forebay.Tensor(x), True), op(x, True))


def test_more_of_truth_values() -> None:
    x = np.array([[False, True, False, True], [True, True, False, False]])
    same(forebay.maximum(forebay.Tensor(x), x[1]), np.maximum(x, x[1]))
    same(forebay.minimum(forebay.Tensor(x), x[1]), np.minimum(x, x[1]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor])
def test_bits(op: Callable[[Any, Any], Any], dtype: str) -> None:
    x, y = np.array([[1, 6, 127], [0, 9, 5]], dtype), np.array([3, 12, 1], dtype)
    same(op(forebay.Tensor(x), forebay.Tensor(y)), op(x, y))
    same(op(forebay.Tensor(x), 5), op(x, np.asarray(5, dtype)))
    same(op(6, forebay.Tensor(x)), op(np.asarray(6, dtype), x))
    same(~forebay.Tensor(x), ~x)
    same(op(forebay.Tensor(x), y > 3), op(x, y > 3))
    with pytest.raises(forebay.InvalidArgument, match="bool or integers, not float32; compare first"):
        op(forebay.Tensor(x), 1.5)
    with pytest.raises(forebay.InvalidArgument, match="bool or integers, not float32; compare first"):
        ~forebay.Tensor(X)


def test_numbers_of_numpy_keep_their_type() -> None:
    for number in (np.float64(0.1), np.float32(0.1), np.int16(3), np.bool_(True)):
        same(forebay.Tensor(number), np.asarray(number))
    assert str(forebay.Tensor(0.1).dtype) == "float32" and forebay.Tensor(0.5).softmax().tolist() == 1.0
    assert str((forebay.Tensor(X) * np.float64(2)).dtype) == "float32"


def test_numbers_must_fit_the_type() -> None:
    a = forebay.Tensor(np.array([1, 2], np.uint8))
    for op, number in ((operator.add, 1 << 70), (operator.eq, -(1 << 70))):
        with pytest.raises(forebay.InvalidArgument, match="does not fit uint8; choose a wider type"):
            op(a, number)
    with pytest.raises(forebay.InvalidArgument, match="^a number of the list does not fit uint8"):
        a.copy_([300, 1 << 70])


def test_what_is_not_an_array_is_not_equal() -> None:
    a = forebay.Tensor([1.0, 2.0])
    assert operator.eq(a, None) is False and operator.ne(a, None) is True and operator.eq(a, "x") is False
    assert None not in [a]
    for other in (None, "x"):
        with pytest.raises(TypeError):
            a + other
        with pytest.raises(TypeError):
            (a > 0) & other


def test_types_by_name() -> None:
    big = np.arange(3, dtype=">f4")
    same(forebay.Tensor(big, big.dtype), np.arange(3, dtype=np.float32))
    same(forebay.Tensor(X).astype(">i2"), X.astype(np.int16))
    for wrong in ("float33", object, np.complex64):
        with pytest.raises(forebay.InvalidArgument, match="the types are"):
            forebay.Tensor([1], wrong)


def test_bfloat16_keeps_what_is_not_a_number() -> None:
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001, 0x7F800000, 0x3F808000], np.uint32)
    found = forebay.Tensor(bits.view(np.float32), "bfloat16").astype("float32").numpy()
    assert np.isnan(found[:4]).all() and found[4:].tolist() == [np.inf, 1.0]


@pytest.mark.parametrize(
    "key",
    [
        1,
        -1,
        slice(1, 3),
        slice(None, None, 2),
        slice(None, None, -1),
        slice(2, None, -2),
        (slice(None), 2),
        (0, 1, 2),
        (..., 1),
        (None, 1),
        (slice(1), None, ..., slice(-3, -1)),
        (1, slice(None), slice(3, 0, -1)),
        ...,
        slice(2, 2),
        (slice(2, 1), slice(None), slice(9, 12)),
        (0, slice(0, 2, -1)),
    ],
)
def test_slices(key: Any) -> None:
    same(forebay.Tensor(X)[key], X[key])


def test_results_are_copies() -> None:
    a = forebay.Tensor(X)
    one = a[0, 0, 0]
    parts = [a[:], a[...], a[()], a[0:3], a.sum(axis=()), a.reshape(3, 4, 5), a.transpose(0, 1, 2), +a, copy.copy(a), copy.deepcopy(a)]
    scalars = [one.sum(), one.mean(), one.max(), one.prod(), one[...], one.T]
    a.fill_(0)
    one.fill_(0)
    for part in parts:
        same(part, X)
    for scalar in scalars:
        same(scalar, X[0, 0, 0])


def test_tensors_can_be_pickled() -> None:
    managed = forebay.managed.empty(X.shape)
    managed[...] = X
    for tensor in (forebay.Tensor(X), managed, forebay.Tensor(True)):
        same(pickle.loads(pickle.dumps(tensor)), tensor.numpy())
    there = pickle.loads(pickle.dumps(forebay.Tensor([1.0, 0.1], "bfloat16")))
    assert there.astype("float32").tolist() == [1.0, 0.10009765625] and "bfloat16" in str(there.dtype)


def test_rows_and_what_is_not_there() -> None:
    x = forebay.Tensor(X)
    same(x[[2, 0]], X[[2, 0]])
    same(x[forebay.Tensor([1, 1])], X[[1, 1]])
    assert [row.shape for row in x] == [(4, 5)] * 3 and len(x) == 3
    invalid: Any = forebay.InvalidArgument
    for key, error in [(3, IndexError), ((0, 0, 0, 0), IndexError), ("a", invalid), (True, invalid), ((0, False), invalid)]:
        with pytest.raises(error):
            x[key]
    same(x[x > 0], X[X > 0])
    same(x[X[:, 0, 0] > -1e9], X)
    same(x[[False, True, True]], X[[False, True, True]])
    other = forebay.Tensor(X, context=forebay.Context())
    for mask in (other > 0, X > 0):
        same(other[mask], X[X > 0])
    same(x[X[:, :, 0] > 0], X[X[:, :, 0] > 0])
    with pytest.raises(IndexError, match=r"shape \(2,\) does not match a tensor of shape \(3, 4, 5\)"):
        x[[True, False]]
    same(x[x > 1e9], X[X > 1e9])
    with pytest.raises(forebay.InvalidArgument, match="integers or truth values, not float32"):
        x[[1.5]]
    with pytest.raises(TypeError, match="fill_"):
        x[0] = 1.0


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 4), (0,)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8", "float64"])
def test_tensors_without_elements(shape: Any, dtype: str) -> None:
    x = np.zeros(shape, dtype)
    for tensor in (forebay.Tensor(x), forebay.zeros(shape, dtype), forebay.empty(shape, dtype), forebay.managed.empty(shape, dtype)):
        same(tensor, x)
        assert (tensor.size, tensor.nbytes, len(tensor), tensor.tolist()) == (0, 0, shape[0], x.tolist())
        assert f"shape={shape}" in repr(tensor)
        for copied in (tensor.clone(), tensor.copy_(x), tensor.fill_(0), pickle.loads(pickle.dumps(tensor)), forebay.from_dlpack(x), tensor[...]):
            same(copied, x)
        assert np.from_dlpack(tensor).shape == np.asarray(tensor).shape == shape
        same(tensor.T, x.T)
        same(tensor.reshape(-1), x.reshape(-1))
        same(tensor.reshape(7, 0), x.reshape(7, 0))
        same(tensor.reshape(5, -1), x.reshape(5, -1))
        same(tensor[:, None], x[:, None])
        same(tensor[::-1], x[::-1])
        same(tensor[tensor == 1], x[x == 1])
        same(tensor.astype("int32"), x.astype("int32"))
        same(tensor == tensor, x == x)
        same(forebay.concatenate([tensor, tensor], -1), np.concatenate([x, x], -1))
        same(forebay.where(tensor == 0, tensor, tensor), x)
        same(tensor.sum().astype("int64"), np.asarray(x.sum().astype("int64")))
        same(tensor.prod().astype("int64"), np.asarray(x.prod().astype("int64")))
        for axis in range(x.ndim):
            same(tensor.sum(axis).astype("int64"), x.sum(axis).astype("int64"))
        for reduce in (tensor.max, tensor.min, tensor.argmax):
            with pytest.raises(forebay.InvalidArgument, match="no elements have no (larg|small)est one"):
                reduce()
        with pytest.raises(forebay.InvalidArgument, match="not one number"):
            tensor.item()
        if dtype != "bool":
            same(tensor + tensor * 2, x + x * np.asarray(2, dtype))


def test_products_and_more_without_elements() -> None:
    x, empty = forebay.ones((2, 3)), forebay.zeros((0, 3))
    same(forebay.concatenate([empty, x]), np.ones((2, 3), np.float32))
    same(empty @ x.T, np.zeros((0, 2), np.float32))
    same(empty.T @ empty, np.zeros((3, 3), np.float32))
    same(empty + x[:1], np.zeros((0, 3), np.float32))
    same(x[[]], np.zeros((0, 3), np.float32))
    same(empty.max(axis=1), np.zeros(0, np.float32))
    same(empty.argmax(axis=1), np.zeros(0, np.int64))
    for result in (empty.exp(), empty.relu(), -empty, empty.softmax(), empty.abs()):
        same(result, empty.numpy())
    assert np.isnan(empty.mean().item()) and [row for row in empty] == []
    with pytest.raises(forebay.InvalidArgument, match=r"cannot reshape \(0, 3\) to \(-1, 0\)"):
        empty.reshape(-1, 0)
    with forebay.Context(record=True) as context:
        stream, a = forebay.Stream(), forebay.zeros((0, 3))
        with forebay.stream(stream):
            same(a + 1, np.zeros((0, 3), np.float32))
        context.check()


def test_shapes() -> None:
    x = forebay.Tensor(X)
    same(x.reshape(12, -1), X.reshape(12, -1))
    same(x.reshape((5, 12)), X.reshape(5, 12))
    same(x.T, X.T)
    same(x.transpose(0, 2, 1), X.transpose(0, 2, 1))
    same(x.transpose((-1, 0, 1)), X.transpose(-1, 0, 1))
    same(forebay.concatenate([x, x], axis=1), np.concatenate([X, X], axis=1))
    for wrong in ((7,), (0, 60), (60, 0), (-1, -1), (-2, 30), (3.7, 20), (60.0,)):
        with pytest.raises(forebay.InvalidArgument, match="[Rr]eshape|whole"):
            x.reshape(*wrong)
    same(x.reshape(np.int64(-1)), X.reshape(-1))
    same(x.reshape(np.array([5, 12])), X.reshape(5, 12))
    same(x.transpose(np.array([2, 0, 1])), X.transpose(2, 0, 1))
    assert (x.ndim, x.size, x.nbytes, x.device) == (3, 60, 240, "host")


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(axis: Any, keepdims: bool) -> None:
    x = forebay.Tensor(X)
    for name in ("sum", "mean", "max", "min", "prod"):
        same(getattr(x, name)(axis, keepdims), getattr(X, name)(axis=axis, keepdims=keepdims), exact=False)


def test_more_reductions() -> None:
    x = forebay.Tensor(X)
    same(x.argmax(1), X.argmax(1))
    assert x.argmax().item() == X.argmax()
    assert (x > 0).sum().item() == (X > 0).sum() and forebay.Tensor([1, 2]).mean().item() == 1.5
    assert forebay.Tensor(3.0).sum().item() == 3.0
    same(x.max(np.int64(1)), X.max(1))
    same(forebay.Tensor(np.array([100000, 100000], np.int32)).prod(), np.int64(10_000_000_000))
    assert forebay.Tensor(np.array([100, 100], np.uint8)).prod().item() == 10000 and forebay.Tensor([True, False]).prod().item() == 0
    with pytest.raises(forebay.InvalidArgument, match="axis"):
        x.sum(3)


def test_functions() -> None:
    x, positive = forebay.Tensor(X), np.abs(X) + 0.1
    same(x.relu(), np.maximum(X, 0))
    for name in ("exp", "tanh", "sin", "cos", "abs"):
        same(getattr(x, name)(), getattr(np, name)(X), exact=False)
    same(forebay.Tensor(positive).log(), np.log(positive), exact=False)
    same(forebay.Tensor(positive).sqrt(), np.sqrt(positive), exact=False)
    same(x.sigmoid(), 1 / (1 + np.exp(-X)), exact=False)
    same(x.softmax(1).sum(1), np.ones((3, 5), np.float32), exact=False)
    for name in ("exp", "sqrt", "tanh", "sin", "cos"):
        same(getattr(forebay.Tensor([1, 2]), name)(), getattr(np, name)(np.array([1, 2], np.float32)), exact=False)
    same(forebay.where(x > 0, x, 0.0), np.where(X > 0, X, np.float32(0)))
    same(forebay.maximum(x, 0.5), np.maximum(X, np.float32(0.5)))
    same(forebay.minimum(x, forebay.Tensor(Y)), np.minimum(X, Y))
    same(x @ forebay.Tensor(Y).T, X @ Y.T, exact=False)
    same(X @ forebay.Tensor(Y.T), X @ Y.T, exact=False)  # type: ignore[arg-type, unused-ignore]
    with pytest.raises(forebay.UnsupportedOperator, match="Frobnicate") as error:
        forebay.operation("Frobnicate", x)
    assert error.value.operators == ["Frobnicate"]
    with pytest.raises(forebay.InvalidArgument, match="MatMul"):
        x @ forebay.Tensor(Y)


def test_a_refused_type_leaves_the_context_usable() -> None:
    with forebay.Context():
        i = forebay.Tensor([1, 2])
        for name in ("Softmax", "Celu", "Mish", "RMSNormalization"):
            with pytest.raises(forebay.InvalidArgument, match="int64"):
                forebay.operation(name, *[i] * (2 if name == "RMSNormalization" else 1))
        forebay.synchronize()
        assert (i + 1).tolist() == [2, 3]


def test_attributes_that_an_operator_does_not_have_are_refused() -> None:
    x = forebay.Tensor(X)
    same(forebay.operation("ReduceSum", x, [1], keepdims=0), X.sum(1), exact=False)
    with pytest.raises(forebay.InvalidArgument, match="ReduceSum.*no attribute 'axes'.*it has keepdims, noop_with_empty_axes"):
        forebay.operation("ReduceSum", x, axes=[1])
    with pytest.raises(forebay.InvalidArgument, match="Relu.*no attribute 'nam'.*it has none"):
        forebay.operation("Relu", x, nam="my relu")
    with pytest.raises(forebay.UnsupportedOperator):
        forebay.operation("Frobnicate", x, speed=2)
    with pytest.raises(forebay.InvalidArgument, match="Softmax.*2 inputs are given, but it takes at most 1"):
        forebay.operation("Softmax", x, 1)
    with pytest.raises(TypeError, match="attribute axis of Softmax must be a number.*but is None"):
        forebay.operation("Softmax", x, axis=None)
    with pytest.raises(TypeError, match=r"but is \[None, None.*\.\.\.$") as long:
        forebay.operation("Softmax", x, axis=[None] * 1000)
    assert len(str(long.value)) < 250
    for wide in (2**63, -(2**63) - 1, 10**5000, np.uint64(2**63), [1, 2**63]):
        with pytest.raises(forebay.InvalidArgument, match=r"attribute axis of Softmax has an integer outside of -2\^63 to 2\^63 - 1"):
            forebay.operation("Softmax", x, axis=wide)
    with pytest.raises(forebay.InvalidArgument, match="alpha.*write large floats as 1e20"):
        forebay.operation("LeakyRelu", x, alpha=10**20)
    same(forebay.operation("LeakyRelu", x, alpha=1e20), np.where(X < 0, X * np.float32(1e20), X))
    with pytest.raises(forebay.InvalidArgument, match="outputs must be at least 1"):
        forebay.operation("Relu", x, outputs=-1)
    same(forebay.operation("LeakyRelu", x, alpha=1), X)


def test_operators_have_the_inputs_and_attributes_of_the_onnx_package() -> None:
    defs = pytest.importorskip("onnx", reason="there is no onnx").defs
    x = forebay.ones(1)
    with pytest.raises(forebay.InvalidArgument) as error:
        forebay.operation("Relu", x, no_such=1)
    newest = re.findall(r"in operator set (\d+);", str(error.value))
    if newest != [str(defs.onnx_opset_version())]:
        pytest.skip(f"the newest operator set of onnx is {defs.onnx_opset_version()}, that of Forebay {newest}")
    # They take sequences, optional values or graphs, which single operations do not have.
    left_out = re.compile("Optional|Sequence|If$|Loop$|Scan$")
    known = 0
    for schema in defs.get_all_schemas():
        if schema.domain or schema.deprecated or left_out.search(schema.name):
            continue
        try:
            with pytest.raises(forebay.InvalidArgument) as error:
                forebay.operation(schema.name, x, no_such=1)
        except forebay.UnsupportedOperator:
            continue
        known += 1
        assert str(error.value).endswith("; it has " + (", ".join(sorted(schema.attributes)) or "none"))
        if schema.max_input < 1000:  # Others take any number of inputs.
            with pytest.raises(forebay.InvalidArgument) as error:
                forebay.operation(schema.name, *[x] * (schema.max_input + 1))
            assert str(error.value).endswith(f"{schema.max_input + 1} inputs are given, but it takes at most {schema.max_input}")
    assert known > 150


def test_operators_are_named_in_races() -> None:
    with forebay.Context(record=True) as context:
        a = forebay.operation("Relu", forebay.ones(3), name="my relu")
        with forebay.stream(forebay.Stream()):
            a.exp()
        with pytest.raises(forebay.RaceError, match="my relu"):
            context.check()


def test_in_place() -> None:
    a = forebay.zeros((2, 3))
    b = a.clone()
    assert a.copy_(np.ones((2, 3), np.float32)) is a
    assert a.tolist() == [[1.0] * 3] * 2 and b.tolist() == [[0.0] * 3] * 2
    assert b.copy_(a + 1).fill_(7).sum().item() == 42
    with pytest.raises(forebay.InvalidArgument, match=r"\[3, 2\]"):
        a.copy_(np.zeros((3, 2), np.float32))
    with pytest.raises(forebay.InvalidArgument, match="cannot be copied"):
        a.copy_(forebay.zeros(6))
    assert forebay.full((2,), 5, "int64").tolist() == [5, 5]


def test_to_python() -> None:
    a = forebay.Tensor([[1.0, 2.0]])
    assert bool(a[0, 0] == 1) and float(a[0, 1]) == 2.0 and int(a[0, 1]) == 2 and [1, 2, 3][forebay.Tensor(1)] == 2
    assert np.asarray(a).tolist() == [[1.0, 2.0]] and np.array(a, np.float64).dtype == np.float64
    assert repr(a) == "Tensor([[1., 2.]], dtype=float32, device='host')"
    assert repr(forebay.zeros((100, 100))) == "Tensor(shape=(100, 100), dtype=float32, device='host')"
    assert f"{a[0, 1]:.1f} {a}" == f"2.0 {a!r}"
    for number in (bool, float, int, operator.index, forebay.Tensor.item, lambda a: f"{a:.1f}"):
        with pytest.raises(ValueError, match=r"shape \(1, 2\) is not one number"):
            number(a)


def test_dlpack_both_ways() -> None:
    a = forebay.Tensor(X)
    assert a.__dlpack_device__() == (1, 0)
    there = np.from_dlpack(a + 1)
    assert np.array_equal(there, X + 1)

    class Foreign:
        """Speaks DLPack and nothing else; keeps what it was asked."""

        asked: Any = None

        def __dlpack__(self, **keywords: Any) -> Any:
            self.asked = keywords
            return X.__dlpack__(**keywords)

        def __dlpack_device__(self) -> Any:
            return X.__dlpack_device__()

    foreign = Foreign()
    same(forebay.from_dlpack(foreign), X)
    assert foreign.asked.get("stream") is None
    assert forebay.from_dlpack(a) is a
    for wrong in ({"stream": 1}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            a.__dlpack__(**wrong)
    if "torch" not in sys.modules:
        with pytest.raises(BufferError, match="bfloat16"):
            forebay.ones(2, "bfloat16").__dlpack__()
    with pytest.raises(forebay.InvalidArgument, match="DLPack"):
        forebay.from_dlpack([1.0])


def test_a_tensor_of_the_host_is_shared() -> None:
    a = forebay.Tensor(X) + 1
    one, other = np.from_dlpack(a), np.asarray(a, copy=False)
    assert one.ctypes.data == other.ctypes.data != a.numpy().ctypes.data
    # What streams write, the array sees; and the array keeps the memory when the tensor has gone.
    a.fill_(7)
    forebay.synchronize()
    assert (one == 7).all()
    del a
    for _ in range(4):
        forebay.zeros(X.shape)
    forebay.synchronize()
    assert (one == 7).all()
    with pytest.raises(ValueError, match="own type"):
        np.asarray(forebay.Tensor(X), dtype=np.float64, copy=False)
    managed = forebay.managed.empty(X.shape)
    managed[...] = X
    for part in (managed, managed[:1]):
        assert np.array_equal(np.from_dlpack(part), X[: len(part)])
        with pytest.raises(BufferError, match="managed"):
            part.__dlpack__(copy=False)


def test_dlpack_is_complete_when_it_is_handed_over() -> None:
    with forebay.Context(record=True) as context, forebay.Stream(context):
        a = forebay.ones((200, 200))
        for _ in range(3):
            a = a @ a / 200
        assert np.array_equal(np.from_dlpack(a), np.ones((200, 200), np.float32))
        context.check()


def test_dlpack_with_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="there is no PyTorch")
    a = forebay.Tensor(X)
    shared = torch.from_dlpack(a)
    assert torch.equal(shared, torch.from_numpy(X)) and shared.data_ptr() == np.from_dlpack(a).ctypes.data
    same(forebay.from_dlpack(torch.from_numpy(X).relu()), np.maximum(X, 0))
    same(forebay.Tensor(torch.from_numpy(Y).requires_grad_()), Y)
    assert (a + torch.from_numpy(Y)).shape == X.shape


def test_large_arrays_go_there_and_back() -> None:
    numbers = np.random.default_rng(8).standard_normal((3, 1 << 20)).astype(np.float32)
    with forebay.Context(record=True) as context:
        there = forebay.Tensor(numbers)
        assert np.array_equal(there.numpy(), numbers) and np.array_equal((there + 1)[2].numpy(), numbers[2] + 1)
        assert np.array_equal(forebay.Tensor(numbers.T).numpy(), numbers.T), "of any layout"
        context.check()
