"""Windows over samples that are larger than what a model takes, next to MONAI's where that is there."""

from __future__ import annotations

import itertools
from typing import Any, Tuple

import numpy as np
import pytest

import forebay
from onnx_files import field, float_type, graph_input, graph_output, model_of, node

WINDOW = (6, 8, 10)


def model() -> bytes:
    """A convolution over volumes of any sizes, to three classes."""
    kernel = (0.3 * np.random.default_rng(0).standard_normal((3, 1, 3, 3, 3))).astype(np.float32)
    shape = b"".join(field(1, size) for size in kernel.shape)
    weights = field(5, shape + field(2, 1) + field(8, "kernel") + field(9, kernel.tobytes()))
    pads = field(5, field(1, "pads") + b"".join(field(8, 1) for _ in range(6)) + field(20, 7))
    x = graph_input("x", float_type(["n", "1", "d", "h", "w"]))
    logits = graph_output("logits", float_type(["n", "3", "d", "h", "w"]))
    return model_of(node("Conv", ["x", "kernel"], ["logits"], pads) + weights + x + logits)


def trainer(**options: Any) -> forebay.Trainer:
    return forebay.Trainer(model(), batch_size=2, sizes=dict(zip("dhw", WINDOW)), **options)


def test_sizes_without_a_value_are_named_as_arguments() -> None:
    with pytest.raises(forebay.InvalidArgument, match=r"'d'.*set it with sizes=\{\"d\": N\}"):
        forebay.Trainer(model(), batch_size=2)


def volumes(sizes: Tuple[int, ...]) -> Tuple[Any, Any]:
    rng = np.random.default_rng(sum(sizes))
    return rng.standard_normal((2, 1, *sizes), dtype=np.float32), rng.integers(0, 3, (2, *sizes))


@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.6])
@pytest.mark.parametrize("sizes", [(13, 8, 25), (4, 19, 10)])
def test_merged_predictions_are_means_of_windows(sizes: Tuple[int, ...], overlap: float) -> None:
    own = trainer()
    x, labels = volumes(sizes)
    found = own.evaluate(x, labels, windows=forebay.Windows(WINDOW, overlap=overlap))
    padded = [max(size, window) for size, window in zip(sizes, WINDOW)]
    before = [(size - own_size) // 2 for size, own_size in zip(padded, sizes)]
    inside = tuple(slice(first, first + size) for first, size in zip(before, sizes))
    image = np.zeros((2, 1, *padded), np.float32)
    image[(..., *inside)] = x
    total, count = np.zeros((2, 3, *padded)), np.zeros(padded)
    starts = []
    for size, window in zip(padded, WINDOW):
        every = max(int(window * (1 - overlap)), 1)
        starts.append(sorted({min(start, size - window) for start in range(0, size - window + every, every)}))
    for start in itertools.product(*starts):
        at = tuple(slice(first, first + window) for first, window in zip(start, WINDOW))
        total[(..., *at)] += own.evaluate(image[(..., *at)], np.zeros((2, *WINDOW), np.int64)).logits
        count[at] += 1
    expected = (total / count)[(..., *inside)]
    np.testing.assert_allclose(found.logits, expected, atol=1e-5)
    shifted = expected - expected.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = -np.take_along_axis(logarithms, labels[:, None], axis=1).mean()
    assert found.loss == pytest.approx(loss, rel=1e-5)
    measured = own.measure([(x, labels)], ["accuracy"], forebay.Windows(WINDOW, overlap=overlap))
    assert measured["loss"] == found.loss
    assert measured["accuracy"] == pytest.approx((expected.argmax(axis=1) == labels).mean(), abs=1e-3)


def test_the_whole_sample_is_one_window_and_training_validates_on_it() -> None:
    own = trainer()
    x, labels = volumes((9, 12, 11))
    whole = own.evaluate(x, labels, windows=forebay.Windows([0, 0, 0], batch_size=1))
    np.testing.assert_array_equal(whole.logits, own.evaluate(x, labels).logits)
    patches = [(x[:, :, :6, :8, :10], labels[:, :6, :8, :10])]
    history = own.fit(patches, validation=[(x, labels)], windows=forebay.Windows(WINDOW, blend="gaussian"), progress=False)
    assert len(history.validations) == 1
    with pytest.raises(forebay.InvalidArgument, match="windows"):
        own.fit(patches, windows=forebay.Windows(WINDOW), progress=False)
    with pytest.raises(forebay.InvalidArgument, match="round"):
        own.evaluate(x, labels, windows=forebay.Windows(WINDOW, blend="round"))


def test_windows_are_planned_before_training() -> None:
    own = trainer(simulate_device="64MiB")
    own.plan_windows((50, 60, 70), forebay.Windows(WINDOW))
    with pytest.raises(forebay.OutOfBudget) as refused:
        own.plan_windows((500, 600, 700), forebay.Windows([0, 0, 0]))
    assert refused.value.least is not None and refused.value.least > 64 << 20
    with pytest.raises(forebay.InvalidArgument, match="axes"):
        own.plan_windows((50, 60), forebay.Windows(WINDOW))
    with pytest.raises(forebay.InvalidArgument, match="a size of Windows must be at least 0"):
        own.plan_windows((50, 60, 70), forebay.Windows((-1, 8, 8)))
    with pytest.raises(TypeError, match="windows must be a forebay.Windows"):
        own.plan_windows((50, 60, 70), [8, 8, 8])  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["constant", "gaussian"])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5, 0.7])
@pytest.mark.parametrize("sizes", [(13, 8, 25), (4, 19, 10), (6, 8, 11)])
def test_predictions_are_those_of_monai(sizes: Tuple[int, ...], overlap: float, mode: str) -> None:
    torch = pytest.importorskip("torch")
    inferers = pytest.importorskip("monai.inferers")
    own = trainer()
    x, labels = volumes(sizes)
    kernel = torch.from_numpy(np.asarray(own.parameters()["kernel"]))
    network = lambda windows: torch.nn.functional.conv3d(windows, kernel, padding=1)
    theirs = inferers.sliding_window_inference(torch.from_numpy(x), WINDOW, 2, network, overlap=overlap, mode=mode)
    found = own.evaluate(x, labels, windows=forebay.Windows(WINDOW, overlap=overlap, blend=mode))
    np.testing.assert_allclose(found.logits, theirs.numpy(), atol=2e-5)
    loss = torch.nn.functional.cross_entropy(theirs, torch.from_numpy(labels)).item()
    assert found.loss == pytest.approx(loss, rel=1e-5)
