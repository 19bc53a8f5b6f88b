"""Layers that drop more than single elements in training: channels, and the samples of residual branches (stochastic depth). The exporter would
write operators that draw random numbers in evaluation and in saved models, too. As functions of dropout they do nothing there."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from torch import nn

_functional: Any = torch.nn.functional
_untyped: Any = torch
# Of SELU: the smallest value, by which alpha dropout replaces what it drops.
_LEAST = -1.7580993408473766


def _dropped(like: torch.Tensor, rate: float) -> torch.Tensor:
    """Returns dropout of ones: 0 or 1 / (1 - rate) in training, and 1 otherwise."""
    # They depend on a tensor, because dropout of a constant would be computed once and for all.
    ones: torch.Tensor = _functional.dropout((like == like).to(like.dtype), rate, True)
    return ones


def _first_of_channels(x: torch.Tensor, is_batch: bool) -> torch.Tensor:
    """Returns an element of each channel of each sample, with axes of size 1 for the others."""
    kept = 2 if is_batch else 1
    return x.flatten(kept)[..., :1].reshape(*x.shape[:kept], *[1] * (x.dim() - kept)) if x.dim() > kept else x


def _channels(single: int) -> Callable[..., Any]:
    """Returns dropout of channels; a sample without a batch has ``single`` axes."""

    def drop(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or not 0 < p < 1:
            kept: torch.Tensor = _functional.dropout(x, p, training)
            return kept
        return x * _dropped(_first_of_channels(x, x.dim() != single), p)

    return drop


def _alpha(of_channels: bool) -> Callable[..., Any]:
    """Returns alpha dropout, which keeps mean and variance."""

    def drop(x: torch.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> torch.Tensor:
        if not training or p == 0:
            return x
        scale = ((1 - p) * (1 + p * _LEAST**2)) ** -0.5
        ones = _dropped(_first_of_channels(x, True) if of_channels else x, p)
        value = torch.where(ones > 0, x, torch.full_like(ones, _LEAST)) * scale - scale * p * _LEAST
        return torch.where(ones == 1, x, value)

    return drop


def _random_relu(
    x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> torch.Tensor:
    """Returns a leaky ReLU with random slopes in training."""
    mean: torch.Tensor = _functional.leaky_relu(x, (lower + upper) / 2)
    if not training:
        return mean
    drawn = torch.where(x < 0, x * (torch.rand_like(x) * (upper - lower) + lower), x)
    return torch.where(_dropped(x.reshape(-1)[:1], 0.5).reshape([1] * x.dim()) == 1, mean, drawn)


#: What computes these functions of PyTorch in an export for training.
FUNCTIONS: Dict[Any, Callable[..., Any]] = {
    _functional.dropout1d: _channels(2),
    # PyTorch takes three axes for samples, channels and positions.
    _functional.dropout2d: _channels(-1),
    _functional.dropout3d: _channels(4),
    _functional.alpha_dropout: _alpha(False),
    _functional.feature_alpha_dropout: _alpha(True),
    _functional.rrelu: _random_relu,
}


@contextlib.contextmanager
def paths_drop(module: nn.Module) -> Iterator[None]:
    """While a module is exported, writes its stochastic depth as dropout."""
    patched: List[nn.Module] = []
    try:
        for each in module.modules():
            rate = _rate(each)
            if rate is not None and "forward" not in each.__dict__:
                each.__dict__["forward"] = _forward(rate, getattr(each, "mode", "row"))
                patched.append(each)
        yield
    finally:
        for each in patched:
            del each.__dict__["forward"]


def _rate(layer: nn.Module) -> Optional[float]:
    """Returns the share of samples that a layer drops, or ``None`` if it is another kind of layer, or drops nothing now. Torchvision's, timm's and
    those of transformers have names that end alike."""
    if not layer.training or not type(layer).__name__.endswith(("DropPath", "StochasticDepth")) or not getattr(layer, "scale_by_keep", True):
        return None
    rate = getattr(layer, "drop_prob", getattr(layer, "p", None))
    return float(rate) if isinstance(rate, (int, float)) and 0 < rate < 1 else None


def _forward(rate: float, mode: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        first = x.reshape(-1)[:1] if mode == "batch" else x.flatten(1)[:, 0]
        return x * _dropped(first, rate).reshape(-1, *[1] * (x.dim() - 1))

    return forward
