"""Conversion of PyTorch's and bitsandbytes' optimizers to Forebay's, and back."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any, List, Mapping, Sequence, Tuple, Union

import torch
from torch import nn

from ._optimizers import SGD, Adagrad, Adam, Adam8bit, AdamW, AdamW8bit, Optimizer, RMSprop
from .errors import InvalidArgument

#: Parameters with fewer elements have float32 moments, here and by default in bitsandbytes.
QUANTIZED_MIN = 4096


def of_torch(optimizer: torch.optim.Optimizer) -> Tuple[Optimizer, List[Tuple[float, float]]]:
    """Converts a PyTorch optimizer to a Forebay optimizer with the settings of its first parameter group, and returns the learning rate
    and the weight decay of each group as well.

    Raises:
        forebay.InvalidArgument: Forebay has no such optimizer, or its parameter groups differ in other settings.
    """
    found = [_of_group(optimizer, group) for group in optimizer.param_groups]
    first = found[0]
    for number, each in enumerate(found):
        if replace(each, learning_rate=first.learning_rate, weight_decay=first.weight_decay) != first:
            raise InvalidArgument(
                f"parameter group {number} of the optimizer has other settings than the first: {each}, not {first}. Groups can differ in "
                "learning rate and weight decay; make the other settings equal"
            )
    return first, [(each.learning_rate, each.weight_decay) for each in found]


def _of_group(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Optimizer:
    """Converts one parameter group."""
    refused = {key: group[key] for key in ("amsgrad", "maximize", "dampening") if group.get(key)}
    if refused:
        raise InvalidArgument(f"Forebay does not support {type(optimizer).__name__} with {refused}")
    rate, decay = float(group["lr"]), float(group.get("weight_decay", 0.0))
    if type(optimizer) is torch.optim.SGD:
        return SGD(rate, float(group["momentum"]), bool(group["nesterov"]), decay)
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        decoupled = type(optimizer) is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
        beta1, beta2 = (float(beta) for beta in group["betas"])
        kind = AdamW if decoupled else Adam
        return kind(rate, beta1, beta2, float(group["eps"]), decay)
    if _is_bitsandbytes(optimizer, "Adam8bit", "AdamW8bit"):
        return _of_bitsandbytes(optimizer, group)
    if type(optimizer) is torch.optim.RMSprop:
        alpha, eps, momentum = float(group["alpha"]), float(group["eps"]), float(group["momentum"])
        return RMSprop(rate, alpha, eps, decay, momentum, bool(group["centered"]))
    if type(optimizer) is torch.optim.Adagrad:
        return Adagrad(rate, float(group["lr_decay"]), decay, float(group["eps"]))
    raise InvalidArgument(
        f"Forebay does not support {type(optimizer).__name__}, only SGD, Adam, AdamW, RMSprop and Adagrad, and "
        "Adam8bit and AdamW8bit of bitsandbytes"
    )


def _is_bitsandbytes(optimizer: torch.optim.Optimizer, *names: str) -> bool:
    kind = type(optimizer)
    return kind.__module__.partition(".")[0] == "bitsandbytes" and kind.__name__ in names


def _of_bitsandbytes(optimizer: Any, group: Mapping[str, Any]) -> Optimizer:
    """Converts bitsandbytes' ``Adam8bit`` or ``AdamW8bit``, both of which use decoupled weight decay."""
    settings = optimizer.args
    refused = {
        name: getattr(settings, name)
        for name, ours in (("optim_bits", 8), ("min_8bit_size", QUANTIZED_MIN), ("max_unorm", 0.0), ("skip_zeros", False))
        if getattr(settings, name) != ours
    }
    if group.get("alpha"):
        refused["alpha"] = group["alpha"]
    if getattr(optimizer, "is_paged", False):
        refused["is_paged"] = True
    if refused:
        raise InvalidArgument(f"Forebay does not support {type(optimizer).__name__} with {refused}")
    beta1, beta2 = (float(beta) for beta in group["betas"][:2])
    return AdamW8bit(float(group["lr"]), beta1, beta2, float(group["eps"]), float(group["weight_decay"]))


def to_bitsandbytes(ours: Union[Adam8bit, AdamW8bit], parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns the bitsandbytes optimizer that makes the same steps. Both its ``Adam8bit`` and its ``AdamW8bit`` decouple weight decay."""
    if isinstance(ours, Adam8bit) and ours.weight_decay != 0:
        raise InvalidArgument(
            "bitsandbytes has no Adam8bit that adds the weight decay to the gradients; train with forebay.AdamW8bit, or without decay"
        )
    try:
        optim: Any = importlib.import_module("bitsandbytes.optim")
    except ImportError as error:
        raise InvalidArgument(f"the optimizer with the state of {type(ours).__name__} requires bitsandbytes (pip install bitsandbytes)") from error
    kind = optim.AdamW8bit if isinstance(ours, AdamW8bit) else optim.Adam8bit
    made: torch.optim.Optimizer = kind(
        parameters, ours.learning_rate, (ours.beta1, ours.beta2), ours.epsilon, ours.weight_decay
    )
    return made
