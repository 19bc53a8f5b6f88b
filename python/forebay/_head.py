"""Another head of a model, for transfer learning."""

from __future__ import annotations

from ._model import Model, ModelLike, as_model, native_model


def with_head(model: ModelLike, layer: str, classes: int, seed: int = 0) -> Model:
    """The model with another number of classes in a layer: a MatMul, Gemm or Conv without groups, named by its node, its output or its
    weight. Its weight and bias begin with random numbers of the seed, within the bounds of PyTorch's layers; everything else stays.

    Raises:
        forebay.Error: No such layer, or one whose weights something else uses, too.

    >>> import forebay
    >>> trainer = forebay.Trainer(forebay.with_head(digits, "fc.weight", classes=3), batch_size=8)
    >>> trainer.parameters()["fc.weight"].shape
    (3, 64)
    """
    base = as_model(model)
    return Model.of_native(native_model(base).with_head(layer, classes, seed), base.name)
