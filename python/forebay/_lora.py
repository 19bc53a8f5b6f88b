"""Low-rank adapters of a model's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence, Union

from . import _forebay
from ._model import Model, ModelLike, as_model, native_model


@dataclass(frozen=True)
class LoRA:
    """Which weights get low-rank adapters: two factors next to each, which alone train. Weights of MatMul, Gemm, Gather, and of Conv
    without groups can have one; what else matches stays as it is.

    >>> import forebay
    >>> trainer = forebay.Trainer(digits, lora=forebay.LoRA("conv*", rank=4, also="fc.bias"), batch_size=8)
    >>> sorted(trainer.parameters())[:3]
    ['conv2.weight.lora_left', 'conv2.weight.lora_right', 'conv3.weight.lora_left']
    """

    #: Patterns (``*``, ``?``) over the names of weights.
    patterns: Union[str, Sequence[str]]
    #: The rank.
    rank: int = 8
    #: What adapters give is multiplied by ``alpha / rank``; by 1 where not given.
    alpha: Optional[float] = None
    #: The seed that they begin with.
    seed: int = 0
    #: Patterns over the names of parameters that train as a whole next to them.
    also: Union[str, Sequence[str]] = ()


def with_adapters(model: ModelLike, lora: LoRA) -> Model:
    """The model with adapters: for a trainer or a plan. Weights are shared with the model as it was.

    Raises:
        forebay.Error: No weight that matches, or one that cannot have an adapter.

    >>> import forebay
    >>> adapted = forebay.with_adapters(digits, forebay.LoRA("fc.weight"))
    >>> forebay.plan(adapted, train=True, batch_size=8).needs < forebay.plan(digits, train=True, batch_size=8).needs
    True
    """
    base = as_model(model)
    alpha = float(lora.rank) if lora.alpha is None else lora.alpha
    native = native_model(base).with_adapters(_names(lora.patterns), lora.rank, alpha, lora.seed, _names(lora.also))
    return Model.of_native(native, base.name)


def _names(patterns: Union[str, Sequence[str]]) -> List[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)
