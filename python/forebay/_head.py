"""Replacing the head of a model, for transfer learning."""

from __future__ import annotations

from ._checks import text, whole
from ._model import Model, ModelLike, as_model, native_model


def with_head(model: ModelLike, layer: str, classes: int, seed: int = 0) -> Model:
    """Returns the model with a different number of classes in one layer: a MatMul, a Gemm, or a Conv or ConvTranspose without groups,
    named by its node, output or weight. The layer's weight and bias are initialized at random from the seed, with PyTorch's bounds;
    everything else is unchanged.

    Raises:
        forebay.Error: There is no such layer, or something else uses its weights too.

    >>> import forebay
    >>> trainer = forebay.Trainer(forebay.with_head(digits, "fc.weight", classes=3), batch_size=8)
    >>> trainer.parameters()["fc.weight"].shape
    (3, 64)
    """
    base = as_model(model)
    native = native_model(base).with_head(text("layer", layer), whole("classes", classes, 1), whole("seed", seed))
    return Model.of_native(native, base.name)
