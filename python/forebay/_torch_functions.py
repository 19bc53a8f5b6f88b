"""Functions whose export by PyTorch is wrong for some of their arguments, or missing. While a module is traced, they are computed from others."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import torch

from ._torch_linear_algebra import ALGEBRA
from ._torch_losses import LOSSES, reduced
from ._torch_mathematics import (
    correlation,
    covariance,
    ctc_loss,
    digamma,
    distances_of_pairs,
    ended,
    inverse_error,
    lgamma,
    most_frequent,
    power_of_two,
    with_diagonal,
    with_sign,
)
from ._torch_rearranging import rearranging
from ._torch_recurrent import lstm
from ._torch_special import SPECIAL
from .errors import InvalidArgument

_functional: Any = torch.nn.functional
_untyped: Any = torch
# With larger products, softplus is the identity in float32.
_SOFTPLUS_MAX = 20.0


def _inner_product(x: Any, y: Any) -> Any:
    """The exporter does not know ``vdot``."""
    return _untyped.dot(x, y)


def _average_pool(pool: Callable[..., Any]) -> Callable[..., Any]:
    """The exporter ignores ``divisor_override``."""

    def average(
        x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: Optional[int] = None,
    ) -> Any:  # fmt: skip
        if divisor_override is None:
            return pool(x, kernel_size, stride, padding, ceil_mode, count_include_pad)
        axes = 2 if pool is _functional.avg_pool2d else 3
        sizes = [kernel_size] * axes if isinstance(kernel_size, int) else list(kernel_size)
        sizes = sizes * axes if len(sizes) == 1 else sizes
        weights = x.new_full((x.shape[-axes - 1], 1, *sizes), 1 / divisor_override)
        if ceil_mode:
            # Windows that begin within the samples count as if zeros followed these.
            steps = sizes if stride is None else [stride] * axes if isinstance(stride, int) else list(stride)
            more = [each for step in reversed(steps * axes if len(steps) == 1 else steps) for each in (0, int(step) - 1)]
            whole = pool(x, kernel_size, stride, padding, True)
            convolved = _convolve(_functional.pad(x, more), weights, stride or sizes, padding, axes)
            return convolved[(..., *(slice(0, int(size)) for size in whole.shape[-axes:]))]
        return _convolve(x, weights, stride or sizes, padding, axes)

    return average


def _convolve(x: Any, weights: Any, stride: Any, padding: Any, axes: int) -> Any:
    convolve = _functional.conv2d if axes == 2 else _functional.conv3d
    return convolve(x, weights, None, stride, padding, 1, weights.shape[0])


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """The exporter ignores ``threshold``."""
    result = _functional.softplus(x, beta)
    return result if threshold >= _SOFTPLUS_MAX else torch.where(x * beta > threshold, x, result)


def _cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """The exporter bounds the product of the norms, not each of them."""
    x1, x2 = _untyped.broadcast_tensors(x1, x2)
    norms = [_length(x, 2.0, dim, True) for x in (x1, x2)]
    # As in PyTorch, gradients pass the bound.
    one, other = (norm + ended(norm.clamp(min=eps) - norm) for norm in norms)
    return (x1 / one * (x2 / other)).sum(dim)


def _pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    """The exporter takes powers of negative differences."""
    return _length(x1 - x2 + eps, p, -1, keepdim)


def _triplets(
    anchor: Any, positive: Any, negative: Any, margin: float = 1.0, p: float = 2, eps: float = 1e-6, swap: bool = False, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """The exporter does not know this loss."""
    near, far = (_pairwise_distance(anchor, other, p, eps) for other in (positive, negative))
    if swap:
        far = torch.minimum(far, _pairwise_distance(positive, negative, p, eps))
    return reduced((margin + near - far).clamp(min=0), reduction)


def _all_distances(x1: Any, x2: Any, p: float = 2.0, compute_mode: Optional[str] = None) -> Any:
    """The exporter takes powers of negative differences, and has no gradients where a distance is 0."""
    return _length(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1, False)


def _length(x: Any, p: float, dim: int, keepdim: bool) -> Any:
    """Returns a norm whose gradient is 0 where it is 0."""
    sizes = x.abs()
    if p == 0:
        return (sizes > 0).to(x.dtype).sum(dim, keepdim)
    if p == 1:
        return sizes.sum(dim, keepdim)
    if p == float("inf"):
        return sizes.amax(dim, keepdim)
    total = (x * x if p == 2 else sizes.pow(p)).sum(dim, keepdim)
    is_zero = total == 0
    root = torch.where(is_zero, torch.ones_like(total), total)
    return torch.where(is_zero, torch.zeros_like(total), root.sqrt() if p == 2 else root.pow(1 / p))


def _cross_entropy(
    input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """The exporter knows neither smoothed labels nor those that are probabilities."""
    is_soft = target.is_floating_point()
    if input.dim() < 2 or size_average is not None or reduce is not None or not (is_soft or label_smoothing > 0):
        return _functional.cross_entropy(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
    classes = int(input.shape[1])
    logs = input.log_softmax(1)
    weighted = logs if weight is None else logs * weight.reshape(1, -1, *[1] * (input.dim() - 2))
    if is_soft:
        losses = -(weighted * (target * (1 - label_smoothing) + label_smoothing / classes)).sum(1)
        return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()
    counts = target != ignore_index
    chosen = torch.where(counts, target, torch.zeros_like(target))
    exact = -weighted.gather(1, chosen.unsqueeze(1)).squeeze(1)
    losses = (1 - label_smoothing) * exact - label_smoothing / classes * weighted.sum(1)
    losses = losses * counts.to(losses.dtype)
    if reduction != "mean":
        return losses if reduction == "none" else losses.sum()
    shares = counts.to(losses.dtype) if weight is None else weight[chosen] * counts.to(losses.dtype)
    return losses.sum() / shares.sum()


def _gumbel_softmax(logits: Any, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Any:
    """The exporter does not know the distribution of the noise."""
    noise = -torch.log(-torch.log(torch.rand_like(logits)))
    soft = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    chosen = torch.zeros_like(logits).scatter(dim, soft.argmax(dim, keepdim=True), 1.0)
    return chosen - ended(soft) + soft


def _scatter_reduce(input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    """The exporter takes other means than those of what is scattered."""
    if reduce != "mean":
        return input.scatter_reduce(dim, index, src, reduce, include_self=include_self)
    first = (input, torch.ones_like(input)) if include_self else (torch.zeros_like(input), torch.zeros_like(input))
    total, count = first[0].scatter_add(dim, index, src), first[1].scatter_add(dim, index, torch.ones_like(src))
    return torch.where(count > 0, total / count.clamp(min=1), input)


def _running_product(input: Any, dim: int, *, dtype: Any = None) -> Any:
    """The exporters do not know ``cumprod``."""
    product = input if dtype is None else input.to(dtype)
    for step in _steps(product, dim):
        ones = torch.ones_like(product.narrow(dim, 0, step))
        product = product * torch.cat([ones, product.narrow(dim, 0, int(product.shape[dim]) - step)], dim)
    return product


def _steps(value: Any, dim: int) -> List[int]:
    """Returns the powers of two below a size. Values that combine with those as many places before, step by step, combine with all before."""
    return [1 << power for power in range(max(int(value.shape[dim]) - 1, 0).bit_length())]


def _running_extreme(is_largest: bool, kind: Any) -> Callable[..., Any]:
    """The exporters do not know ``cummax`` and ``cummin``."""

    def running(input: Any, dim: int) -> Any:
        size = int(input.shape[dim])
        value = ended(input)
        places = [1] * input.dim()
        places[dim] = size
        index = torch.arange(size).reshape(places).expand(input.shape)
        for step in _steps(input, dim):
            old, new = value.narrow(dim, 0, size - step), value.narrow(dim, step, size - step)
            is_new = new >= old if is_largest else new <= old
            chosen = torch.where(is_new, index.narrow(dim, step, size - step), index.narrow(dim, 0, size - step))
            value = torch.cat([value.narrow(dim, 0, step), torch.where(is_new, new, old)], dim)
            index = torch.cat([index.narrow(dim, 0, step), chosen], dim)
        return kind((input.gather(dim, index), index))

    return running


def _of_rank(input: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The exporters do not know ``kthvalue``."""
    values, indices = (each.narrow(dim, k - 1, 1) for each in input.sort(dim))
    return _untyped.return_types.kthvalue((values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim)))


def _median(input: Any, dim: Optional[int] = None, keepdim: bool = False) -> Any:
    """The exporters do not know ``median``."""
    if dim is None:
        flat = input.reshape(-1)
        return _of_rank(flat, (int(flat.shape[0]) + 1) // 2, 0)[0]
    return _untyped.return_types.median(tuple(_of_rank(input, (int(input.shape[dim]) + 1) // 2, dim, keepdim)))


def _search(
    sorted_sequence: Any, input: Any, *, out_int32: bool = False, right: bool = False, side: Optional[str] = None, sorter: Any = None
) -> Any:
    """The exporters do not know ``searchsorted``."""
    sequence = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    wanted = (input if isinstance(input, torch.Tensor) else torch.tensor(input)).unsqueeze(-1)
    sequence = sequence if sequence.dim() == 1 else sequence.unsqueeze(-2)
    is_before = sequence <= wanted if right or side == "right" else sequence < wanted
    return is_before.sum(-1).to(torch.int32 if out_int32 else torch.int64)


def _index_put(input: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """The exporter keeps only the last of the values that are added at the same place."""
    if not accumulate or not all(isinstance(each, torch.Tensor) and not each.is_floating_point() and each.dtype != torch.bool for each in indices):
        return input.index_put(indices, values, accumulate)
    axes = len(indices)
    places: Any = 0
    for axis, each in enumerate(_untyped.broadcast_tensors(*indices)):
        size = input.shape[axis]
        places = places * size + torch.where(each < 0, each + size, each)
    # Rows are those of the indexed axes, columns those of the others.
    rows = input.flatten(0, axes - 1) if axes > 1 else input
    rows = rows.flatten(1) if input.dim() > axes else rows.unsqueeze(1)
    added = values.to(input.dtype).expand(*places.shape, *input.shape[axes:])
    added = added.reshape(*places.reshape(-1).shape, *rows.shape[1:])
    return rows.scatter_add(0, places.reshape(-1, 1).expand_as(added), added).reshape(input.shape)


def _index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    """The exporter keeps only the last of the values that are added at the same place."""
    if input.dim() == 0:
        return input.index_add(dim, index, source, alpha=alpha)
    places = [1] * input.dim()
    places[dim] = -1
    scaled = source if alpha == 1 else source * alpha
    return input.scatter_add(dim, index.to(torch.int64).reshape(places).expand_as(source), scaled)


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that overwrites its first operand with its result."""

    def changed(input: Any, *arguments: Any, **named: Any) -> Any:
        return input.copy_(function(input, *arguments, **named))

    return changed


def _one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """The number of classes is not known before the largest one is computed."""
    if num_classes == -1:
        raise InvalidArgument(
            "the module calls one_hot without a number of classes, so the size of the result depends on values; pass it, as in "
            "torch.nn.functional.one_hot(x, num_classes=10)"
        )
    return _functional.one_hot(tensor, num_classes)


def _count(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    """The number of counts is not known before they are computed."""
    raise InvalidArgument(
        "the module calls bincount, the number of whose results depends on values; use torch.nn.functional.one_hot(x, classes).sum(0), or scatter_add"
    )


def _hypotenuse(input: Any, other: Any) -> Any:
    """The exporters do not know ``hypot``."""
    return (input * input + other * other).sqrt()


def _extreme_number(is_largest: bool) -> Callable[..., Any]:
    """The exporters do not know ``fmax`` and ``fmin``."""

    def extreme(input: Any, other: Any) -> Any:
        is_first = input >= other if is_largest else input <= other
        return torch.where(is_first | (other != other), input, other)

    return extreme


#: What computes these functions in an export.
EXPORTED: Dict[Any, Callable[..., Any]] = {
    _untyped.vdot: _inner_product,
    _functional.avg_pool2d: _average_pool(_functional.avg_pool2d),
    _functional.avg_pool3d: _average_pool(_functional.avg_pool3d),
    _functional.softplus: _softplus,
    _functional.cosine_similarity: _cosine_similarity,
    _functional.pairwise_distance: _pairwise_distance,
    _untyped.cdist: _all_distances,
    _functional.cross_entropy: _cross_entropy,
    _functional.gumbel_softmax: _gumbel_softmax,
    _functional.one_hot: _one_hot,
    _untyped.scatter_reduce: _scatter_reduce,
    torch.Tensor.scatter_reduce: _scatter_reduce,
    _untyped.searchsorted: _search,
    _functional.ctc_loss: ctc_loss,
    _functional.pdist: distances_of_pairs(_length),
    _untyped.pdist: distances_of_pairs(_length),
    _untyped.special.gammaln: lgamma,
    _untyped.special.digamma: digamma,
    _untyped.special.psi: digamma,
    _untyped.special.erfinv: inverse_error,
    _untyped.special.exp2: power_of_two,
    _untyped.lstm: lstm,
    **ALGEBRA,
    **LOSSES,
    **SPECIAL,
    **rearranging(_length),
    _functional.triplet_margin_loss: _triplets,
}
for _name, _function in (
    ("cumprod", _running_product),
    ("cummax", _running_extreme(True, _untyped.return_types.cummax)),
    ("cummin", _running_extreme(False, _untyped.return_types.cummin)),
    ("kthvalue", _of_rank),
    ("median", _median),
    ("bincount", _count),
    ("hypot", _hypotenuse),
    ("lgamma", lgamma),
    ("digamma", digamma),
    ("mode", most_frequent),
    ("cov", covariance),
    ("corrcoef", correlation),
    ("fmax", _extreme_number(True)),
    ("fmin", _extreme_number(False)),
    ("index_put", _index_put),
    ("index_add", _index_add),
    ("erfinv", inverse_error),
    ("copysign", with_sign),
    ("exp2", power_of_two),
):
    EXPORTED[getattr(torch, _name)] = EXPORTED[getattr(torch.Tensor, _name)] = _function
EXPORTED[torch.Tensor.index_put_] = EXPORTED[_untyped.index_put_] = _in_place(_index_put)
EXPORTED[torch.Tensor.index_add_] = _in_place(_index_add)
EXPORTED[torch.Tensor.fill_diagonal_] = _in_place(with_diagonal)
for _name, _function in (("erfinv_", inverse_error), ("copysign_", with_sign)):
    EXPORTED[getattr(torch.Tensor, _name)] = _in_place(_function)
