"""How batches and labels are read."""

from __future__ import annotations

import time
from typing import Any, Iterator, List

import numpy as np
import pytest

import forebay
from forebay import _forebay
from forebay._arrays import to_native
from forebay._losses import loss_given


def trainer(digits: str, **options: Any) -> forebay.Trainer:
    return forebay.Trainer(digits, optimizer=forebay.SGD(0.1), batch_size=50, **options)


def test_a_generator_can_reuse_its_arrays(digits: str, batch: Any) -> None:
    x, labels = batch
    batches = [(x + i, (labels + i) % 10) for i in range(8)]

    def reused() -> Iterator[Any]:
        images, classes = np.empty_like(x), np.empty(50, np.int64)
        for one, other in batches:
            images[:], classes[:] = one, other
            yield images, classes

    run, expected = trainer(digits), trainer(digits)
    assert run.fit(reused(), progress=False).losses == expected.fit(batches, progress=False).losses
    assert run.validate(reused()) == expected.validate(batches)


def test_tensors_are_read_after_the_current_stream(digits: str, batch: Any) -> None:
    _, labels = batch
    run = trainer(digits)
    with forebay.Context(link_bytes_per_second=8 << 20) as context, forebay.Stream(context):
        x = forebay.zeros((50, 1, 8, 8))
        forebay.Tensor(np.zeros(1 << 20, np.uint8))  # The stream copies for a while before it overwrites the input.
        x.copy_(forebay.ones((50, 1, 8, 8)))
        assert run.validate([(x, labels)]) == run.evaluate(np.ones((50, 1, 8, 8), np.float32), labels).loss
        streams = []

        def data() -> Iterator[Any]:
            streams.append(forebay.current_stream())
            yield x, labels

        run.validate(data())
        assert streams == [forebay.current_stream()]


class Stream:
    """Like a DataLoader of an IterableDataset, which has a length only if its data set has."""

    def __init__(self, batches: List[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        raise TypeError("object of type 'IterableDataset' has no len()")

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def test_data_need_not_have_a_length(digits: str, batch: Any) -> None:
    history = trainer(digits).fit(Stream([batch] * 2), 2, validation=Stream([batch]), progress=False)
    assert len(history.losses) == 4 and len(history.validations) == 2
    with pytest.raises(forebay.InvalidArgument, match="validation has no batches"):
        trainer(digits).fit([batch], validation=Stream([]), progress=False)


def test_class_numbers_can_be_a_list(digits: str, batch: Any) -> None:
    x, labels = batch
    run = trainer(digits, loss="soft_cross_entropy")
    expected = run.evaluate(x, labels.astype(np.int64)).loss
    assert run.evaluate(x, labels.tolist()).loss == expected
    assert run.evaluate(x, np.eye(10, dtype=int)[labels].tolist()).loss == pytest.approx(expected)


def test_class_numbers_do_not_wrap_around(digits: str, batch: Any) -> None:
    x, labels = batch
    run = trainer(digits, loss=forebay.SoftmaxCrossEntropy(ignore_index=-100))
    wrong = labels.astype(np.uint64)
    assert run.evaluate(x, wrong).loss == run.evaluate(x, labels).loss
    wrong[3] = 2**64 - 100
    with pytest.raises(forebay.InvalidArgument, match="label 18446744073709551516 is not a class"):
        run.evaluate(x, wrong)


def test_other_threads_run_while_metrics_are_computed(counts: List[int]) -> None:
    predictions, labels = to_native(np.zeros((1 << 17, 16), np.float32)), to_native(np.zeros(1 << 17, np.int64))
    metrics = _forebay.Metrics(loss_given(forebay.SoftmaxCrossEntropy()), ["perplexity"])
    while not counts:
        time.sleep(0.001)
    before = len(counts)
    metrics.add(predictions, labels)
    assert len(counts) - before > 3
    assert metrics.values()["perplexity"] == pytest.approx(16)
