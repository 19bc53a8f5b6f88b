"""Conversion of PyTorch's and bitsandbytes' optimizers to Forebay's, and back."""

from __future__ import annotations

import importlib
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Union

import torch
from torch import nn

from ._optimizers import SGD, Adadelta, Adagrad, Adam, Adam8bit, Adamax, AdamW, AdamW8bit, NAdam, Optimizer, RAdam, RMSprop, optimizer_given
from .errors import InvalidArgument

#: Parameters with fewer elements have float32 moments, here and by default in bitsandbytes.
QUANTIZED_MIN = 4096


def of_torch(optimizer: torch.optim.Optimizer) -> List[Optimizer]:
    """Converts a PyTorch optimizer to a Forebay optimizer for each of its parameter groups.

    Raises:
        forebay.InvalidArgument: Forebay has no such optimizer, or its parameter groups need different state.
    """
    untyped: Any = optimizer
    if getattr(untyped, "_optimizer_step_pre_hooks", None) or getattr(untyped, "_optimizer_step_post_hooks", None):
        raise InvalidArgument(
            f"the {type(optimizer).__name__} optimizer has a hook for its steps, which Forebay's steps do not call; remove it, and pass "
            "callbacks to fit() instead"
        )
    found = [_of_group(optimizer, group) for group in optimizer.param_groups]
    first = found[0]
    for number, each in enumerate(found):
        if _kind(each) != _kind(first):
            raise InvalidArgument(
                f"parameter group {number} of the optimizer needs other state than the first: {each}, not {first}. Groups can differ in "
                "numbers; make flags equal, and momentum and dampening 0 in all groups or in none"
            )
    maximizes(optimizer)
    return found


def maximizes(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether an optimizer raises the loss.

    Raises:
        forebay.InvalidArgument: Its parameter groups differ.
    """
    found = {bool(group.get("maximize")) for group in optimizer.param_groups}
    if len(found) > 1:
        raise InvalidArgument(
            f"some parameter groups of the {type(optimizer).__name__} optimizer have maximize=True and others do not; make them equal, and "
            "reverse gradients in the module where they differ"
        )
    return True in found


def _kind(ours: Optimizer) -> Tuple[Any, ...]:
    """Returns what must be equal in all parameter groups, because plans and state depend on it."""
    given = optimizer_given(ours)
    return (given["kind"], given["momentum"] != 0, *(given[name] for name in ("nesterov", "centered", "decoupled")))


def _of_group(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Optimizer:
    """Converts one parameter group."""
    rate, decay = float(group["lr"]), float(group.get("weight_decay", 0.0))
    if type(optimizer) is torch.optim.SGD:
        momentum, dampening = float(group["momentum"]), float(group["dampening"])
        return SGD(rate, momentum, bool(group["nesterov"]), decay, dampening if momentum != 0 else 0.0)
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        decoupled = type(optimizer) is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
        beta1, beta2 = (float(beta) for beta in group["betas"])
        kind = AdamW if decoupled else Adam
        return kind(rate, beta1, beta2, float(group["eps"]), decay, bool(group["amsgrad"]))
    if type(optimizer) is torch.optim.Adamax:
        beta1, beta2 = (float(beta) for beta in group["betas"])
        return Adamax(rate, beta1, beta2, float(group["eps"]), decay)
    if type(optimizer) in (torch.optim.NAdam, torch.optim.RAdam):
        beta1, beta2 = (float(beta) for beta in group["betas"])
        eps, decoupled = float(group["eps"]), bool(group.get("decoupled_weight_decay"))
        if type(optimizer) is torch.optim.RAdam:
            return RAdam(rate, beta1, beta2, eps, decay, decoupled)
        return NAdam(rate, beta1, beta2, eps, decay, float(group["momentum_decay"]), decoupled)
    if type(optimizer) is torch.optim.Adadelta:
        return Adadelta(rate, float(group["rho"]), float(group["eps"]), decay)
    if _is_bitsandbytes(optimizer, "Adam8bit", "AdamW8bit"):
        return _of_bitsandbytes(optimizer, group)
    if type(optimizer) is torch.optim.RMSprop:
        alpha, eps, momentum = float(group["alpha"]), float(group["eps"]), float(group["momentum"])
        return RMSprop(rate, alpha, eps, decay, momentum, bool(group["centered"]))
    if type(optimizer) is torch.optim.Adagrad:
        return Adagrad(rate, float(group["lr_decay"]), decay, float(group["eps"]))
    raise InvalidArgument(
        f"Forebay does not support {type(optimizer).__name__}, only SGD, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Adagrad and Adadelta, "
        "and Adam8bit and AdamW8bit of bitsandbytes"
    )


def states(ours: Optimizer) -> Dict[str, str]:
    """Returns PyTorch's name for each value of an optimizer's state, by the end of its name here. Those of 8-bit moments are not among
    them."""
    has_momentum = isinstance(ours, (SGD, RMSprop)) and ours.momentum != 0
    found = {"velocity": "momentum_buffer"} if has_momentum else {}
    if isinstance(ours, RMSprop):
        found.update({"square_average": "square_avg"}, **({"gradient_average": "grad_avg"} if ours.centered else {}))
    elif isinstance(ours, Adagrad):
        found.update({"square_sum": "sum"})
    elif isinstance(ours, Adadelta):
        found.update({"square_average": "square_avg", "step_square_average": "acc_delta"})
    elif isinstance(ours, Adamax):
        found.update({"first_moment": "exp_avg", "largest_gradient": "exp_inf"})
    elif isinstance(ours, (Adam, AdamW, NAdam, RAdam)):
        found.update({"first_moment": "exp_avg", "second_moment": "exp_avg_sq"})
        if isinstance(ours, (Adam, AdamW)) and ours.amsgrad:
            found.update({"largest_second_moment": "max_exp_avg_sq"})
    return found


def counts_steps(ours: Optimizer) -> bool:
    """Returns whether a step depends on its number, not just on the optimizer's state."""
    if isinstance(ours, SGD):
        return ours.dampening != 0
    return isinstance(ours, (Adam, AdamW, Adamax, NAdam, RAdam)) or isinstance(ours, Adagrad) and ours.rate_decay != 0


def steps_done(ours: Optimizer, state: Mapping[str, Any]) -> int:
    """Returns how many steps PyTorch has made with a parameter that has this state."""
    if isinstance(ours, SGD):
        # It does not count them, but only the first one is different.
        return int(counts_steps(ours) and state.get("momentum_buffer") is not None)
    return int(state.get("step", 0))


def refuse_state(ours: Optimizer, state: Mapping[str, Any]) -> None:
    """Rejects the state of steps that Forebay would continue in another way.

    Raises:
        forebay.InvalidArgument: NAdam has made steps with another momentum.
    """
    product = state.get("mu_product") if isinstance(ours, NAdam) else None
    if isinstance(ours, NAdam) and product is not None:
        expected = momentum_product(ours, steps_done(ours, state))
        if abs(float(product) - expected) > 1e-3 * expected + 1e-9:
            raise InvalidArgument(_OTHER_MOMENTUM)


_OTHER_MOMENTUM = (
    "NAdam has made steps with another betas[0] or momentum_decay than it has now, but Forebay takes them to be the same in all steps. Leave "
    "them as they are (cycle_momentum=False in schedulers), or use another optimizer"
)


def refuse_change(before: Optimizer, now: Optimizer) -> None:
    """Rejects settings of an optimizer that cannot change between steps.

    Raises:
        forebay.InvalidArgument: They have changed.
    """
    if isinstance(before, NAdam) and isinstance(now, NAdam):
        if (before.beta1, before.momentum_decay) != (now.beta1, now.momentum_decay):
            raise InvalidArgument(_OTHER_MOMENTUM)


def momentum_product(ours: NAdam, steps: int) -> float:
    """Returns the product of the momenta of NAdam's steps so far."""
    product = 1.0
    for step in range(1, steps + 1):
        product *= ours.beta1 * (1 - 0.5 * 0.96 ** (step * ours.momentum_decay))
        if product == 0:
            break
    return product


def to_torch(ours: Optimizer, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns the optimizer of PyTorch or bitsandbytes that makes the same steps, without its state.

    Raises:
        forebay.InvalidArgument: There is none, or bitsandbytes is not installed.
    """
    optim: Any = torch.optim
    own, rate = list(parameters), ours.learning_rate
    made: torch.optim.Optimizer
    if isinstance(ours, SGD):
        made = optim.SGD(own, rate, ours.momentum, ours.dampening, ours.weight_decay, ours.nesterov)
    elif isinstance(ours, RMSprop):
        made = optim.RMSprop(own, rate, ours.decay_rate, ours.epsilon, ours.weight_decay, ours.momentum, ours.centered)
    elif isinstance(ours, Adagrad):
        made = optim.Adagrad(own, rate, ours.rate_decay, ours.weight_decay, 0, ours.epsilon)
    elif isinstance(ours, Adadelta):
        made = optim.Adadelta(own, rate, ours.decay_rate, ours.epsilon, ours.weight_decay)
    elif isinstance(ours, (Adam8bit, AdamW8bit)):
        made = to_bitsandbytes(ours, own)
    elif isinstance(ours, (Adam, AdamW)):
        kind = optim.AdamW if isinstance(ours, AdamW) else optim.Adam
        made = kind(own, rate, (ours.beta1, ours.beta2), ours.epsilon, ours.weight_decay, amsgrad=ours.amsgrad)
    elif isinstance(ours, Adamax):
        made = optim.Adamax(own, rate, (ours.beta1, ours.beta2), ours.epsilon, ours.weight_decay)
    elif isinstance(ours, (NAdam, RAdam)):
        kind = optim.NAdam if isinstance(ours, NAdam) else optim.RAdam
        more: Dict[str, Any] = {"momentum_decay": ours.momentum_decay} if isinstance(ours, NAdam) else {}
        # PyTorch 2.0 has no such argument.
        more.update({"decoupled_weight_decay": True} if ours.decoupled else {})
        made = kind(own, rate, (ours.beta1, ours.beta2), ours.epsilon, ours.weight_decay, **more)
    else:
        raise InvalidArgument(f"PyTorch has no optimizer with the state of {type(ours).__name__}")
    return made


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
