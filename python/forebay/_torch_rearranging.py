"""Functions that move elements, multiply matrices or take their statistics, and that PyTorch's exporter without decompositions does not know, in
operations that it knows."""

from __future__ import annotations

import itertools
import math
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import torch

from ._torch_mathematics import ended
from ._torch_states import stand_for, untraced

_functional: Any = torch.nn.functional
_untyped: Any = torch
_linalg: Any = _untyped.linalg


def _tensors(given: Sequence[Any]) -> List[Any]:
    """Returns tensors that are given one by one or as one sequence."""
    return list(given[0]) if len(given) == 1 and isinstance(given[0], (list, tuple)) else list(given)


def _flat(input: Any) -> Any:
    return input.reshape(-1)


def _split(axis: Callable[[Any], int]) -> Callable[..., Any]:
    return lambda input, parts: input.tensor_split(parts, axis(input))


def _in_depth(tensors: Any, **named: Any) -> Any:
    return torch.cat([_untyped.atleast_3d(each) for each in tensors], 2, **named)


def _in_columns(tensors: Any, **named: Any) -> Any:
    return torch.cat([each.reshape(-1, 1) if each.dim() < 2 else each for each in tensors], 1, **named)


def _padded(input: Any, before: int, after: int) -> Any:
    """Returns a tensor with zeros before and after the elements of its last axis."""
    if not before and not after:
        return input
    zeros = torch.zeros_like(input.narrow(-1, 0, 1))
    return torch.cat([zeros] * before + [input] + [zeros] * after, -1)


def _blocks(*given: Any) -> Any:
    blocks = [each.reshape(1, -1) if each.dim() < 2 else each for each in _tensors(given)]
    widths = [int(each.shape[1]) for each in blocks]
    place, rows = 0, []
    for block, width in zip(blocks, widths):
        rows.append(_padded(block, place, sum(widths) - place - width))
        place += width
    return torch.cat(rows, 0)


def _product_of_sets(*given: Any) -> Any:
    tensors = _tensors(given)
    if len(tensors) == 1:
        return tensors[0]
    return torch.stack([each.reshape(-1) for each in _untyped.meshgrid(*tensors, indexing="ij")], 1)


def _combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = torch.tensor(list(choose(range(int(input.shape[0])), r)), dtype=torch.int64).reshape(-1, r)
    return input[places]


def _powers(x: Any, N: Optional[int] = None, increasing: bool = False) -> Any:
    count = int(x.shape[0]) if N is None else N
    powers = [torch.ones_like(x)]
    for _ in range(count - 1):
        powers.append(powers[-1] * x)
    return torch.stack((powers if increasing else powers[::-1])[:count], 1)


def _as_diagonal(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    size = int(input.shape[-1]) + abs(offset)
    rank = input.dim() + 1
    is_on: Any = _untyped.from_numpy(np.eye(size, k=offset, dtype=bool))
    # Each row of the square has the whole diagonal, by columns.
    square = torch.where(is_on, _padded(input, max(offset, 0), max(-offset, 0)).unsqueeze(-2), torch.zeros((), dtype=input.dtype))
    first, second = dim1 % rank, dim2 % rank
    return square.movedim((-2, -1), (first, second))


def _diagonal(function: Callable[..., Any]) -> Callable[..., Any]:
    """The exporter computes with memory that it has not written if the tensor has more than two axes. The result stays a view."""

    def diagonal(input: Any, *arguments: Any, **named: Any) -> Any:
        view = untraced(lambda: function(input, *arguments, **named))
        # As the numbers of the elements show.
        sizes = [int(size) for size in input.shape]
        numbers: Any = torch.arange(math.prod(sizes)).reshape(sizes)
        places = function(numbers, *arguments, **named)
        stand_for(view, input.reshape(-1).index_select(0, places.reshape(-1)).reshape(places.shape))
        return view

    return diagonal


def _diagonal_of_it(input: Any, diagonal: int = 0) -> Any:
    return _as_diagonal(input, diagonal) if input.dim() == 1 else input.diagonal(diagonal)


def _trace(input: Any) -> Any:
    is_on: Any = _untyped.from_numpy(np.eye(int(input.shape[0]), int(input.shape[1]), dtype=bool))
    return torch.where(is_on, input, torch.zeros((), dtype=input.dtype)).sum()


def _along(input: Any, indices: Any, dim: Optional[int] = None) -> Any:
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    axis = dim % input.dim()
    sizes = [[size for place, size in enumerate(each.shape) if place != axis] for each in (input, indices)]
    both = [list(each) for each in [_untyped.broadcast_shapes(*sizes)] * 2]
    for each, tensor in zip(both, (input, indices)):
        each.insert(axis, tensor.shape[axis])
    return input.expand(both[0]).gather(axis, indices.expand(both[1]))


def _with_places(input: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    flat, places, values = input.reshape(-1), index.reshape(-1), source.reshape(-1)
    places = torch.where(places < 0, places + flat.shape[0], places)
    changed = flat.scatter_add(0, places, values) if accumulate else flat.scatter(0, places, values)
    return changed.reshape(input.shape)


def _with_one(input: Any, src: Any, dim: int, index: int) -> Any:
    return _with_range(input, src.unsqueeze(dim), dim, index % int(input.shape[dim]), index % int(input.shape[dim]) + 1)


def _with_range(input: Any, src: Any, dim: int = 0, start: Optional[int] = None, end: Optional[int] = None, step: int = 1) -> Any:
    places = range(int(input.shape[dim]))[slice(start, end, step)]
    return input.index_copy(dim, torch.tensor(list(places), dtype=torch.int64), src.to(input.dtype))


def _with_diagonal(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    sizes = [int(size) for size in input.shape]
    places: Any = torch.arange(math.prod(sizes)).reshape(sizes).diagonal(offset, dim1, dim2)
    return _with_places(input, places, src.to(input.dtype))


def _scaled_sum(input: Any, product: Any, beta: Any, alpha: Any) -> Any:
    product = product if alpha == 1 else product * alpha
    # As in PyTorch, nothing of an input that is multiplied by 0 counts.
    return product if beta == 0 else (input if beta == 1 else input * beta) + product


def _with_sum_of(multiply: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def compute(input: Any, one: Any, other: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        return _scaled_sum(input, multiply(one, other), beta, alpha)

    return compute


def _outer(one: Any, other: Any) -> Any:
    return one.unsqueeze(1) * other


def _inner(input: Any, other: Any) -> Any:
    if input.dim() == 0 or other.dim() == 0:
        return input * other
    return _untyped.tensordot(input, other, dims=([-1], [-1]))


def _kronecker(input: Any, other: Any) -> Any:
    rank = max(input.dim(), other.dim())
    one, two = (each.reshape([1] * (rank - each.dim()) + list(each.shape)) for each in (input, other))
    for axis in range(rank):
        one, two = one.unsqueeze(2 * axis + 1), two.unsqueeze(2 * axis)
    product = one * two
    for axis in range(rank):
        product = product.flatten(axis, axis + 1)
    return product


def _chain(tensors: Any, *, out: Any = None) -> Any:
    # The product is the same in any order, up to rounding.
    found = tensors[0]
    for each in tensors[1:]:
        found = found @ each
    return found


def _bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    left = _untyped.tensordot(input1, weight, dims=([-1], [1]))
    found = (left * input2.unsqueeze(-2)).sum(-1)
    return found if bias is None else found + bias


def _bounded_norms(input: Any, p: float, dim: int, maxnorm: float) -> Any:
    axes = [axis for axis in range(input.dim()) if axis != dim % input.dim()]
    norms = _linalg.vector_norm(input, p, axes, keepdim=True)
    is_long = norms > maxnorm
    return input * torch.where(is_long, maxnorm / (torch.where(is_long, norms, torch.ones_like(norms)) + 1e-7), torch.ones_like(norms))


def _sorted(input: Any) -> Any:
    return input.sort(0)[0]


def _quantile(input: Any, q: Any, dim: Optional[int] = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
    rank = input.dim()
    values = (input.reshape(-1) if dim is None else input.movedim(dim, -1)).sort(-1)[0]
    shares = ended(q) if isinstance(q, torch.Tensor) else torch.tensor(float(q))
    places = shares.reshape(-1).to(input.dtype) * (int(values.shape[-1]) - 1)
    if interpolation == "nearest":
        places = places.round()
    lower, upper = places.floor(), places.ceil()
    share = {"lower": lower * 0, "higher": lower * 0 + 1, "midpoint": lower * 0 + 0.5}.get(interpolation, places - lower)
    low, high = (values.index_select(-1, each.long()) for each in (lower, upper))
    # By the results' first axis, as in PyTorch.
    found = (low + (high - low) * share).movedim(-1, 0)
    if keepdim:
        found = found.reshape(-1, *[1] * rank) if dim is None else found.unsqueeze(dim % rank + 1)
    return found if isinstance(q, torch.Tensor) and q.dim() else found[0]


def _histogram(input: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    x = ended(input).reshape(-1)
    least, largest = (x.amin(), x.amax()) if min == max == 0 else (torch.tensor(float(min)), torch.tensor(float(max)))
    is_flat = least == largest
    least, largest = torch.where(is_flat, least - 1, least), torch.where(is_flat, largest + 1, largest)
    places = ((x - least) * bins / (largest - least)).floor().clamp(max=bins - 1)
    counts = (x >= least) & (x <= largest)
    return ((places.unsqueeze(1) == torch.arange(bins)) & counts.unsqueeze(1)).to(input.dtype).sum(0)


def _count_nonzero(input: Any, dim: Any = None) -> Any:
    return (input != 0).long().sum(list(range(input.dim())) if dim is None else dim)


def _running_logarithms(input: Any, dim: int) -> Any:
    """Computes ``logcumsumexp``: values combine with those a power of two places before, step by step."""
    value, size = input, int(input.shape[dim])
    for power in range(max(size - 1, 0).bit_length()):
        step = 1 << power
        pair = torch.stack([value.narrow(dim, step, size - step), value.narrow(dim, 0, size - step)])
        value = torch.cat([value.narrow(dim, 0, step), pair.logsumexp(0)], dim)
    return value


def _trapezoids(y: Any, x: Any, dx: Any, dim: int) -> Any:
    size = int(y.shape[dim])
    heights = y.narrow(dim, 1, size - 1) + y.narrow(dim, 0, size - 1)
    if x is None:
        return heights * (dx / 2)
    if x.dim() == 1:
        x = x.reshape([-1 if axis == dim % y.dim() else 1 for axis in range(y.dim())])
    return heights * (x.narrow(dim, 1, size - 1) - x.narrow(dim, 0, size - 1)) / 2


def _integral(y: Any, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Any:
    return _trapezoids(y, x, dx, dim).sum(dim)


def _running_integral(y: Any, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Any:
    return _trapezoids(y, x, dx, dim).cumsum(dim)


def _spread(function: Any, is_root: bool) -> Callable[..., Any]:
    """The exporter multiplies sizes, of which that of a selection by truth values is not known."""

    def spread(input: Any, *arguments: Any, **named: Any) -> Any:
        # The first argument may also be an axis.
        is_unbiased = arguments[0] if arguments else named.get("unbiased", True)
        is_of_all = len(arguments) <= 1 and isinstance(is_unbiased, bool) and not named.keys() - {"unbiased", "correction"}
        correction = named.get("correction", is_unbiased)
        if input.dim() != 1 or not is_of_all or not isinstance(correction, int):
            return function(input, *arguments, **named)
        rest = input - input.mean()
        variance = (rest * rest).sum() / (torch.ones_like(input).sum() - int(correction))
        return variance.sqrt() if is_root else variance

    return spread


def _threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    found = torch.where(input > threshold, input, torch.full_like(input, value))
    return input.copy_(found) if inplace else found


def _distance(length: Callable[..., Any]) -> Callable[..., Any]:
    def distance(input: Any, other: Any, p: float = 2) -> Any:
        return length((input - other).reshape(-1), float(p), 0, False)

    return distance


def rearranging(length: Callable[..., Any]) -> Dict[Any, Callable[..., Any]]:
    """Returns what computes functions in an export, with a function for norms."""
    found: Dict[Any, Callable[..., Any]] = {}
    functions: Dict[str, Callable[..., Any]] = {
        "ravel": _flat,
        "hsplit": _split(lambda x: 0 if x.dim() == 1 else 1),
        "vsplit": _split(lambda _: 0),
        "dsplit": _split(lambda _: 2),
        "dstack": _in_depth,
        "column_stack": _in_columns,
        "block_diag": _blocks,
        "cartesian_prod": _product_of_sets,
        "combinations": _combinations,
        "vander": _powers,
        "diag": _diagonal_of_it,
        "diag_embed": _as_diagonal,
        "trace": _trace,
        "take_along_dim": _along,
        "put": _with_places,
        "select_scatter": _with_one,
        "slice_scatter": _with_range,
        "diagonal_scatter": _with_diagonal,
        "addbmm": _with_sum_of(lambda one, other: (one @ other).sum(0)),
        "addmv": _with_sum_of(lambda one, other: one @ other),
        "addr": _with_sum_of(_outer),
        "inner": _inner,
        "kron": _kronecker,
        "chain_matmul": lambda *matrices: _chain(matrices),
        "renorm": _bounded_norms,
        "msort": _sorted,
        "quantile": _quantile,
        "histc": _histogram,
        "count_nonzero": _count_nonzero,
        "logcumsumexp": _running_logarithms,
        "trapezoid": _integral,
        "trapz": _integral,
        "cumulative_trapezoid": _running_integral,
        "threshold": _threshold,
        "dist": _distance(length),
    }
    for name, function in functions.items():
        for holder in (_untyped, torch.Tensor):
            if hasattr(holder, name):
                found[getattr(holder, name)] = function
    for name in ("std", "var"):
        for holder in (_untyped, torch.Tensor):
            found[getattr(holder, name)] = _spread(getattr(holder, name), name == "std")
    for of_diagonal in (_untyped.diagonal, torch.Tensor.diagonal, _linalg.diagonal):
        found[of_diagonal] = _diagonal(of_diagonal)
    found[_linalg.multi_dot] = _chain
    found[_functional.bilinear] = _bilinear
    found[_functional.threshold] = _threshold
    return found
