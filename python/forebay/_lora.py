"""Low-rank adapters for a model's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence, Union

from ._checks import instance, number, texts, whole
from ._model import Model, ModelLike, as_model, native_model


@dataclass(frozen=True)
class LoRA:
    """Selects the weights that get low-rank adapters: two factors per weight, and only these train. Weights of MatMul, Gemm, Gather and
    ungrouped Conv can have adapters; other weights that match are left unchanged.

    >>> import forebay
    >>> trainer = forebay.Trainer(digits, lora=forebay.LoRA("conv*", rank=4, also="fc.bias"), batch_size=8)
    >>> sorted(trainer.parameters())[:3]
    ['conv1.weight.lora_left', 'conv1.weight.lora_right', 'conv2.weight.lora_left']
    """

    #: Patterns (``*``, ``?``) for the names of weights.
    patterns: Union[str, Sequence[str]]
    #: The rank, from 1 to 65536.
    rank: int = 8
    #: The output of adapters is multiplied by ``alpha / rank``, or by 1 if ``alpha`` is not given.
    alpha: Optional[float] = None
    #: The seed for initializing the adapters.
    seed: int = 0
    #: Patterns for the names of parameters that are trained in full alongside the adapters.
    also: Union[str, Sequence[str]] = ()


def with_adapters(model: ModelLike, lora: LoRA) -> Model:
    """Returns the model with adapters, for a trainer or a plan. It shares its weights with the original model.

    Raises:
        forebay.Error: No weight matches, or one cannot have an adapter.

    >>> import forebay
    >>> adapted = forebay.with_adapters(digits, forebay.LoRA("fc.weight"))
    >>> forebay.plan(adapted, train=True, batch_size=8).needs < forebay.plan(digits, train=True, batch_size=8).needs
    True
    """
    instance("lora", lora, (LoRA,), "a forebay.LoRA, such as forebay.LoRA('conv*')")
    base, rank = as_model(model), whole("rank of LoRA", lora.rank)
    alpha = float(rank) if lora.alpha is None else number("alpha of LoRA", lora.alpha)
    patterns, also = texts("patterns of LoRA", lora.patterns), texts("also of LoRA", lora.also)
    native = native_model(base).with_adapters(patterns, rank, alpha, whole("seed of LoRA", lora.seed), also)
    return Model.of_native(native, base.name)
