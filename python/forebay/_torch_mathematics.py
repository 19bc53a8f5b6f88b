"""Functions of statistics and losses that the exporters do not know, computed from others while a module is traced."""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence, cast

import numpy as np
import torch

from .errors import InvalidArgument

_untyped: Any = torch
#: Stirling's series is exact in float32 from here on; smaller arguments are shifted by this whole number.
_SHIFT = 8
#: A probability of 0, whose logarithm stays finite.
_IMPOSSIBLE = -1e30


class _End(torch.autograd.Function):
    """Marks a tensor through which no gradient passes."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.mark_non_differentiable(value)
        return value.clone()

    @staticmethod
    def symbolic(graph: Any, value: Any) -> Any:
        """Returns the node that marks it."""
        return graph.op("forebay::Identity", value).setType(value.type())


def ended(value: torch.Tensor) -> torch.Tensor:
    """Returns a tensor through which no gradient passes, in exports as well."""
    found: torch.Tensor = cast(Any, _End).apply(value)
    return found


def with_gradient_of(value: Any, source: Any) -> Any:
    """Returns a value that has the gradient of another one."""
    return ended(value) + (source - ended(source))


def of_positive(function: Callable[[Any, Any], Any], reflected: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Returns a function of all numbers, from one of numbers from 0.5 on and one that gives the rest from its results."""

    def of_all(input: Any) -> Any:
        is_small = input < 0.5
        large = function(torch.where(is_small, 1 - input, input), input)
        return torch.where(is_small, reflected(torch.where(is_small, input, 0.25), large), large)

    return of_all


def _logarithm_of_gamma(x: Any, _: Any) -> Any:
    is_shifted = x < _SHIFT
    product = x
    for step in range(1, _SHIFT):
        product = product * (x + step)
    z = torch.where(is_shifted, x + _SHIFT, x)
    series = (1 / 12 - (1 / 360 - 1 / (1260 * z * z)) / (z * z)) / z
    result = (z - 0.5) * z.log() - z + (0.5 * math.log(2 * math.pi)) + series
    return result - torch.where(is_shifted, product, torch.ones_like(x)).log()


def _slope_of_it(x: Any, _: Any) -> Any:
    is_shifted = x < _SHIFT
    reciprocals = 1 / x
    for step in range(1, _SHIFT):
        reciprocals = reciprocals + 1 / (x + step)
    z = torch.where(is_shifted, x + _SHIFT, x)
    series = (1 / 12 - (1 / 120 - 1 / (252 * z * z)) / (z * z)) / (z * z)
    result = z.log() - 0.5 / z - series
    return result - torch.where(is_shifted, reciprocals, torch.zeros_like(x))


#: The logarithm of the gamma function, and its derivative.
lgamma = of_positive(_logarithm_of_gamma, lambda x, rest: math.log(math.pi) - (x * math.pi).sin().abs().log() - rest)
digamma = of_positive(_slope_of_it, lambda x, rest: rest - math.pi * (x * math.pi).cos() / (x * math.pi).sin())


def most_frequent(input: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """Computes ``mode``: of the most frequent values the smallest, and its last place."""
    along = input.movedim(dim, -1)
    counts = (along.unsqueeze(-1) == along.unsqueeze(-2)).sum(-1)
    is_most = counts == counts.amax(-1, keepdim=True)
    largest = along.detach().amax(-1, keepdim=True)
    least = torch.where(is_most, along.detach(), largest).amin(-1, keepdim=True)
    numbers = torch.arange(int(along.shape[-1])).expand(along.shape)
    index = torch.where(along == least, numbers, -torch.ones_like(numbers)).amax(-1, keepdim=True)
    found = [each.movedim(-1, dim) for each in (along.gather(-1, index), index)]
    return _untyped.return_types.mode(tuple(each if keepdim else each.squeeze(dim) for each in found))


def covariance(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """Computes ``cov``."""
    if fweights is not None or aweights is not None:
        raise InvalidArgument("the module calls cov with weights, which its export does not have; multiply the observations by them before")
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    centered = rows - rows.mean(1, keepdim=True)
    result = centered @ centered.transpose(0, 1) / (rows.shape[1] - correction)
    return result if input.dim() == 2 else result.reshape(())


def correlation(input: Any) -> Any:
    """Computes ``corrcoef``."""
    if input.dim() < 2:
        return input.sum() / input.sum()
    found = covariance(input)
    deviations = found.diagonal().sqrt()
    return (found / deviations[:, None] / deviations[None, :]).clamp(-1, 1)


def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
) -> Any:
    """Computes ``ctc_loss`` by its recursion over positions."""
    if targets.dim() == 1 and log_probs.dim() == 3:
        raise InvalidArgument("the module calls ctc_loss with targets in one sequence, which its export does not have; pad them to [samples, labels]")
    scores = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    labels = (targets if targets.dim() == 2 else targets.unsqueeze(0)).long()
    input_lengths, target_lengths = (torch.as_tensor(each).reshape(-1).long() for each in (input_lengths, target_lengths))
    blanks = torch.full_like(labels, blank)
    states = torch.stack([blanks, labels], 2).flatten(1)
    states = torch.cat([states, blanks[:, :1]], 1)
    is_new = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    impossible = torch.full_like(states[:, :2], 0).to(scores.dtype) + _IMPOSSIBLE

    def score(position: int) -> Any:
        return scores[position].gather(1, states)

    def moved(reached: Any, places: int) -> Any:
        return torch.cat([impossible[:, :places], reached[:, :-places]], 1)

    first = score(0)
    reached = torch.cat([first[:, :2], torch.zeros_like(first[:, 2:]) + _IMPOSSIBLE], 1)
    skips = torch.cat([torch.zeros_like(impossible), torch.where(is_new, 0.0, _IMPOSSIBLE).to(scores.dtype)], 1)
    for position in range(1, int(scores.shape[0])):
        ways = torch.stack([reached, moved(reached, 1), moved(reached, 2) + skips])
        new = ways.logsumexp(0) + score(position)
        reached = torch.where((position < input_lengths)[:, None], new, reached)
    last = (2 * target_lengths)[:, None]
    ends = torch.stack([reached.gather(1, last), torch.where(last > 0, reached.gather(1, (last - 1).clamp(min=0)), _IMPOSSIBLE)])
    losses = -ends.logsumexp(0).squeeze(1)
    is_possible = losses < -0.5 * _IMPOSSIBLE
    losses = torch.where(is_possible, losses, 0.0 if zero_infinity else float("inf"))
    if reduction == "mean":
        return (losses / target_lengths.clamp(min=1).to(losses.dtype)).mean()
    return losses.sum() if reduction == "sum" else losses if log_probs.dim() == 3 else losses.squeeze(0)


def distances_of_pairs(length: Callable[..., Any]) -> Callable[..., Any]:
    """Computes ``pdist``, with a function for norms."""

    def distances(input: Any, p: float = 2.0) -> Any:
        count = int(input.shape[0])
        one, other = _untyped.triu_indices(count, count, 1)
        return length(input[one] - input[other], p, -1, False)

    return distances


#: Giles' approximations of the inverse error function in float32, by the logarithm of 1 - x * x: near 0, and elsewhere by its root.
_CENTRAL = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)
_OUTER = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)


def polynomial(factors: Sequence[float], x: Any) -> Any:
    """Returns a polynomial with these factors, that of the highest power first."""
    found = torch.full_like(x, factors[0])
    for factor in factors[1:]:
        found = found * x + factor
    return found


def inverse_error(input: Any) -> Any:
    """Computes ``erfinv``."""
    x = ended(input)
    return inverse_of_error(input, -((1 - x) * (1 + x)).log())


def inverse_of_error(input: Any, distance: Any) -> Any:
    """Computes ``erfinv`` from a number and the negative logarithm of 1 less its square."""
    x = ended(input)
    is_central = distance < 5
    is_end = x.abs() >= 1
    root = torch.where(is_central | is_end, torch.ones_like(x), distance).sqrt()
    inner = polynomial(_CENTRAL, torch.where(is_central, distance, torch.zeros_like(x)) - 2.5)
    found = torch.where(is_central, inner, polynomial(_OUTER, root - 3)) * x
    # Beyond 1 there is none.
    end = torch.where(x.abs() > 1, float("nan"), x * float("inf"))
    slope = (found * found).exp() * (math.sqrt(math.pi) / 2)
    return torch.where(is_end, end, found + slope * (input - x))


def with_sign(input: Any, other: Any) -> Any:
    """Computes ``copysign``. The sign of a zero is that of its reciprocal."""
    sign = ended(other) if isinstance(other, torch.Tensor) else torch.tensor(float(other))
    is_negative = (sign < 0) | ((sign == 0) & (1 / sign < 0))
    return input.abs() * torch.where(is_negative, -1.0, 1.0).to(input.dtype)


def with_diagonal(input: Any, fill_value: float, wrap: bool = False) -> Any:
    """Computes ``fill_diagonal_`` as a function."""
    filled = np.zeros([int(size) for size in input.shape], bool)
    np.fill_diagonal(filled, True, wrap)
    return torch.where(_untyped.from_numpy(filled), torch.full_like(input, fill_value), input)


def power_of_two(input: Any) -> Any:
    """Computes ``exp2``."""
    return torch.pow(2.0, input)
