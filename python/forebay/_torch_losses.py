"""Losses and common functions that PyTorch's exporter without decompositions does not know, in operations that it knows. Its newer exporter knows
them, but cannot express where gradients end, as in losses with a target that is detached."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch

from ._torch_mathematics import ended

_functional: Any = torch.nn.functional
_untyped: Any = torch
_reductions: Any = _untyped.nn._reduction


def reduced(losses: Any, reduction: str) -> Any:
    """Returns the losses, their sum or their mean."""
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()


def _loss(names: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a loss whose first argument is followed by arguments with these names."""
    order = names.split()

    def loss(input: Any, *arguments: Any, **named: Any) -> Any:
        given = {**dict(zip(order, arguments)), **named}
        old = [given.pop(name, None) for name in ("size_average", "reduce")]
        reduction = given.pop("reduction", "mean")
        if any(each is not None for each in old):
            reduction = _reductions.legacy_get_string(*old, emit_warning=False)
        return reduced(compute(input, **given), reduction)

    return loss


def _weighted(losses: Any, weight: Any) -> Any:
    return losses if weight is None else losses * weight


def _difference(input: Any, target: Any, weight: Any = None) -> Any:
    return _weighted((input - target).abs(), weight)


def _smooth(input: Any, target: Any, beta: float = 1.0) -> Any:
    size = (input - target).abs()
    return size if beta == 0 else torch.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta)


def _huber(input: Any, target: Any, delta: float = 1.0, weight: Any = None) -> Any:
    size = (input - target).abs()
    return _weighted(torch.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta)), weight)


def _binary(input: Any, target: Any, weight: Any = None) -> Any:
    # As in PyTorch, logarithms end at -100, and gradients at a distance of 1e-12 from 0 and 1.
    x = ended(input)
    slope = ended((x - target) / ((1 - x) * x).clamp(min=1e-12))
    losses = (target - 1) * (1 - x).log().clamp(min=-100.0) - target * x.log().clamp(min=-100.0) + slope * (input - x)
    return _weighted(losses, weight)


def _soft_margin(input: Any, target: Any) -> Any:
    return _functional.softplus(-target * input)


def _hinge(input: Any, target: Any, margin: float = 1.0) -> Any:
    zeros = torch.zeros_like(input)
    return torch.where(target != 1, (margin - input).clamp(min=0), zeros) + torch.where(target != -1, input, zeros)


def _ranking(input1: Any, input2: Any, target: Any, margin: float = 0.0) -> Any:
    return (-target * (input1 - input2) + margin).clamp(min=0)


def _angle(input1: Any, input2: Any, target: Any, margin: float = 0.0) -> Any:
    # The same small number as in PyTorch.
    squares = [(each * each).sum(-1) + 1e-12 for each in (input1, input2)]
    cosine = (input1 * input2).sum(-1) / (squares[0] * squares[1]).sqrt()
    zeros = torch.zeros_like(cosine)
    return torch.where(target == 1, 1 - cosine, zeros) + torch.where(target == -1, (cosine - margin).clamp(min=0), zeros)


def _classes(input: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None) -> Any:
    scores, labels = (input, target) if input.dim() == 2 else (input.unsqueeze(0), target.reshape(1))
    own = labels.unsqueeze(1)
    excess = (margin - scores.gather(1, own) + scores).clamp(min=0)
    excess = excess if p == 1 else excess * excess
    excess = excess if weight is None else excess * weight[labels].unsqueeze(1)
    others = torch.arange(int(scores.shape[1])) != own
    losses = (excess * others.to(excess.dtype)).sum(1) / int(scores.shape[1])
    return losses if input.dim() == 2 else losses[0]


def _several_classes(input: Any, target: Any) -> Any:
    scores, labels = (input, target) if input.dim() == 2 else (input.unsqueeze(0), target.unsqueeze(0))
    count = int(scores.shape[1])
    # Labels end at the first negative one.
    counts = (labels < 0).long().cumsum(1) == 0
    named = torch.where(counts, labels, torch.zeros_like(labels))
    is_label = ((named.unsqueeze(2) == torch.arange(count)) & counts.unsqueeze(2)).any(1)
    excess = (1 - scores.gather(1, named).unsqueeze(2) + scores.unsqueeze(1)).clamp(min=0)
    matters = counts.unsqueeze(2) & ~is_label.unsqueeze(1)
    losses = (excess * matters.to(excess.dtype)).sum((1, 2)) / count
    return losses if input.dim() == 2 else losses[0]


def _poisson(input: Any, target: Any, log_input: bool = True, full: bool = False, eps: float = 1e-8) -> Any:
    losses = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        stirling = target * target.log() - target + 0.5 * (2 * torch.pi * target).log()
        losses = losses + torch.where(target > 1, stirling, torch.zeros_like(losses))
    return losses


def _logarithm_product(input: Any, other: Any) -> Any:
    x, y = (each if isinstance(each, torch.Tensor) else torch.tensor(float(each)) for each in (input, other))
    # Nothing times an infinite logarithm is 0.
    is_zero = (x == 0) & (y == y)
    return torch.where(is_zero, 0.0, x * torch.where(is_zero, 1.0, y).log())


def _logarithm_of_sum(input: Any, other: Any) -> Any:
    return torch.stack(list(_untyped.broadcast_tensors(input, other))).logsumexp(0)


def _with_product(sign: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def compute(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
        return input + sign(tensor1, tensor2) * value

    return compute


def _differences(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    found = torch.cat([each for each in (prepend, input, append) if each is not None], dim) if prepend is not None or append is not None else input
    for _ in range(n):
        size = int(found.shape[dim])
        found = found.narrow(dim, 1, size - 1) - found.narrow(dim, 0, size - 1)
    return found


def _flipped(axis: int) -> Callable[..., Any]:
    return lambda input: input.flip(axis)


def _turned(input: Any, k: int = 1, dims: Any = (0, 1)) -> Any:
    first, second = dims
    turns = k % 4
    if turns == 0:
        return input.clone()
    if turns == 2:
        return input.flip(first, second)
    return input.transpose(first, second).flip(first if turns == 1 else second)


_of_losses = "size_average reduce reduction"
#: What computes these functions in an export.
LOSSES: Dict[Any, Callable[..., Any]] = {
    _functional.l1_loss: _loss(f"target {_of_losses} weight", _difference),
    _functional.smooth_l1_loss: _loss(f"target {_of_losses} beta", _smooth),
    _functional.huber_loss: _loss("target reduction delta weight", _huber),
    _functional.binary_cross_entropy: _loss(f"target weight {_of_losses}", _binary),
    _functional.soft_margin_loss: _loss(f"target {_of_losses}", _soft_margin),
    _functional.hinge_embedding_loss: _loss(f"target margin {_of_losses}", _hinge),
    _functional.margin_ranking_loss: _loss(f"input2 target margin {_of_losses}", _ranking),
    _functional.cosine_embedding_loss: _loss(f"input2 target margin {_of_losses}", _angle),
    _functional.multi_margin_loss: _loss(f"target p margin weight {_of_losses}", _classes),
    _functional.multilabel_margin_loss: _loss(f"target {_of_losses}", _several_classes),
    _functional.poisson_nll_loss: _loss("target log_input full size_average eps reduce reduction", _poisson),
}
for _name, _function in (
    ("xlogy", _logarithm_product),
    ("logaddexp", _logarithm_of_sum),
    ("addcmul", _with_product(lambda one, other: one * other)),
    ("addcdiv", _with_product(lambda one, other: one / other)),
    ("diff", _differences),
    ("fliplr", _flipped(1)),
    ("flipud", _flipped(0)),
    ("rot90", _turned),
):
    LOSSES[getattr(torch, _name)] = LOSSES[getattr(torch.Tensor, _name)] = _function
LOSSES[_untyped.special.xlogy] = _logarithm_product
