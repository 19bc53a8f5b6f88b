"""Training."""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import typing
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

import forebay

ROOT = Path(__file__).resolve().parents[2]


def trainer(digits: str, **options: Any) -> forebay.Trainer:
    options.setdefault("optimizer", forebay.AdamW(1e-3))
    return forebay.Trainer(digits, batch_size=50, **options)


def same(left: Dict[str, Any], right: Dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_budgets_change_no_bit(digits: str, batch: Any, tmp_path: Path) -> None:
    least = forebay.plan(digits, optimizer="adamw", batch_size=50).least
    whole = trainer(digits)
    losses = [whole.step(*batch).loss for _ in range(4)]
    assert losses[-1] < losses[0]
    for options in ({"simulate_device": least}, {"simulate_device": "50%", "host_memory": "12MiB", "spill_dir": tmp_path}, {"threads": 1}):
        within = trainer(digits, **options)
        assert [within.step(*batch).loss for _ in range(4)] == losses
        assert same(within.parameters(), whole.parameters()) and same(within.state(), whole.state())
        assert within.evaluate(*batch).loss == whole.evaluate(*batch).loss


def test_gradients_change_no_step(digits: str, batch: Any) -> None:
    expected = trainer(digits, optimizer=forebay.SGD(0.5))
    for _ in range(3):
        expected.step(*batch)
    run = trainer(digits, optimizer=forebay.SGD(0.5), simulate_device="70%")
    run.plan_gradients()
    assert run.step(*batch).gradients is None
    before = run.parameters()
    report = run.step(*batch, gradients=True)
    assert report.gradients is not None and report.gradients.keys() == before.keys()
    for name, after in run.parameters().items():
        np.testing.assert_allclose(before[name] - after, 0.5 * report.gradients[name], rtol=1e-3, atol=1e-6)
    run.step(*batch)
    assert same(run.parameters(), expected.parameters())
    reports: List[forebay.StepReport] = []
    run.fit([batch] * 4, callbacks=lambda _, report: reports.append(report), gradients_every=2, progress=False)
    assert [report.step for report in reports if report.gradients is not None] == [4, 6]


def test_optimizers_and_losses(digits: str, batch: Any) -> None:
    for optimizer in ("sgd", "adam", "adamw", forebay.SGD(0.05, momentum=0.9, nesterov=True), forebay.Adam(1e-3, weight_decay=0.1)):
        run = trainer(digits, optimizer=optimizer)
        first = run.step(*batch)
        assert first.step == 1 and run.step(*batch).loss < first.loss
    x, labels = batch
    squares = trainer(digits, loss="mse", optimizer=forebay.SGD(0.01))
    target = np.eye(10, dtype=np.float32)[labels]
    assert squares.labels.dtype == "float32"
    evaluated = squares.evaluate(x, target)
    assert np.isclose(evaluated.loss, ((evaluated.logits - target) ** 2).mean())
    with pytest.raises(forebay.InvalidArgument, match="unknown loss 'hinge'"):
        trainer(digits, loss="hinge")


@pytest.mark.parametrize("optimizer", ["rmsprop", "adagrad", "lion", "lamb", "adafactor"])
def test_formulas_of_optimizers(digits: str, batch: Any, optimizer: str) -> None:
    run = trainer(digits, optimizer=optimizer)
    first = run.step(*batch).loss
    assert [run.step(*batch).loss for _ in range(4)][-1] < first
    assert run.state()


@pytest.mark.parametrize(
    "loss",
    [
        "bce",
        "l1",
        "huber",
        "smooth_l1",
        "cosine",
        "binary_focal",
        forebay.Dice(multi_label=True, activation="sigmoid"),
        forebay.KLDivergence(class_axis=1),
        forebay.SoftCrossEntropy(label_smoothing=0.1),
        forebay.BinaryCrossEntropy((2.0,)),
    ],
    ids=str,
)
def test_losses_of_numbers(digits: str, batch: Any, loss: Any) -> None:
    x, labels = batch
    run = trainer(digits, loss=loss, optimizer=forebay.SGD(0.05))
    target = np.eye(10, dtype=np.float32)[labels]
    first = run.step(x, target).loss
    assert [run.step(x, target).loss for _ in range(4)][-1] < first


@pytest.mark.parametrize(
    "loss",
    [
        forebay.SoftmaxCrossEntropy(label_smoothing=0.1, class_weights=tuple(range(1, 11))),
        forebay.SoftCrossEntropy(class_weights=tuple(range(1, 11))),
        forebay.Focal(gamma=1.0),
        forebay.Dice(),
        forebay.DiceCrossEntropy(include_background=False),
        forebay.Tversky(alpha=0.3, beta=0.7),
    ],
    ids=str,
)
def test_losses_of_classes(digits: str, batch: Any, loss: Any) -> None:
    run = trainer(digits, loss=loss, optimizer=forebay.SGD(0.05))
    first = run.step(*batch).loss
    assert [run.step(*batch).loss for _ in range(4)][-1] < first
    with pytest.raises(forebay.InvalidArgument, match="unknown activation"):
        trainer(digits, loss=forebay.Dice(activation="relu"))


def test_learning_rates_change_and_kinds_do_not(digits: str, batch: Any) -> None:
    run = trainer(digits)
    before = run.parameters()
    run.optimizer = dataclasses.replace(forebay.AdamW(), learning_rate=0.0)
    run.step(*batch)
    assert same(run.parameters(), before)
    with pytest.raises(forebay.InvalidArgument):
        run.optimizer = forebay.SGD(0.1)
    assert isinstance(run.optimizer, forebay.AdamW)


def test_freezing(digits: str, batch: Any) -> None:
    names = list(trainer(digits).parameters())
    run = trainer(digits, freeze=[names[0]])
    assert list(run.parameters()) == names[1:]
    with pytest.raises(forebay.InvalidArgument):
        trainer(digits, freeze="nothing.*")


def test_parameters_go_in_and_out(digits: str, batch: Any) -> None:
    first, second = trainer(digits), trainer(digits)
    first.step(*batch)
    second.set_values({**first.parameters(), **first.state()}, step_count=1)
    assert second.step_count == 1
    assert first.step(*batch).loss == second.step(*batch).loss
    assert same(first.parameters(), second.parameters())
    name, value = next(iter(first.parameters().items()))
    assert np.array_equal(first.parameter(name), value)
    with pytest.raises(forebay.InvalidArgument, match=name):
        first.set_values({name: value[:1]})
    with pytest.raises(forebay.InvalidArgument, match="nothing"):
        first.set_values({"nothing": value})
    with pytest.raises(forebay.InvalidArgument, match="nothing"):
        first.parameter("nothing")
    # Steps that were skipped do not count any more, neither for Adam.
    again, fresh = trainer(digits, on_nan="skip"), trainer(digits)
    assert again.step(np.full_like(batch[0], np.nan), batch[1]).skipped
    with pytest.raises(forebay.InvalidArgument, match="step_count must be at least 0"):
        again.set_values({}, step_count=-1)
    again.set_values({}, step_count=0)
    assert again.step(*batch).step == fresh.step(*batch).step == 1
    assert same(again.parameters(), fresh.parameters())


def test_saved_models_run(digits: str, batch: Any, tmp_path: Path) -> None:
    run = trainer(digits)
    for _ in range(3):
        run.step(*batch)
    path = tmp_path / "trained.onnx"
    run.save(path)
    assert np.allclose(forebay.Session(path).run(batch[0])["logits"], run.evaluate(*batch).logits, atol=1e-5)


def test_fit_takes_any_iterable(digits: str, batch: Any) -> None:
    x, labels = batch
    pairs = [(x, labels), ([x], labels), {"x": x, "label": labels}, (x, labels.astype(np.uint8))]
    pairs[1] = ({"x": x}, labels)
    expected = trainer(digits)
    losses = [expected.step(x, labels).loss for _ in range(4)]
    seen: List[int] = []
    history = trainer(digits).fit(iter(pairs), callbacks=lambda _, report: seen.append(report.step), progress=False)
    assert history.losses == losses and seen == [1, 2, 3, 4] and not history.stopped
    assert history.epoch_losses == [pytest.approx(sum(losses) / 4)]
    with pytest.raises(forebay.InvalidArgument, match="pair"):
        trainer(digits).fit([x], progress=False)


def test_fit_stops_validates_and_tells(digits: str, batch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = trainer(digits)
    history = run.fit([batch] * 3, epochs=2, validation=[batch])
    assert len(history.validation_losses) == 2
    assert history.validation_losses[-1] == pytest.approx(run.evaluate(*batch).loss)
    assert "epoch 2/2: loss" in capsys.readouterr().err
    history = run.fit([batch] * 3, callbacks=[lambda _, report: report.step < 8], progress=False)
    assert history.stopped and run.step_count == 8


def test_metrics_are_those_of_scikit_learn(digits: str, batch: Any) -> None:
    run = trainer(digits)
    x, labels = batch
    half = len(labels) // 2
    data = [(x[:half], labels[:half]), (x[half:], labels[half:])]
    found = run.measure(data, ["accuracy", "top3", "confusion"])
    logits = run.evaluate(x, labels).logits
    predicted, true = logits.argmax(axis=1), labels.astype(np.int64)
    assert found["accuracy"] == pytest.approx((predicted == true).mean())
    ranks = (logits > logits[np.arange(len(true)), true][:, None]).sum(axis=1)
    assert found["top3"] == pytest.approx((ranks < 3).mean())
    expected = np.zeros((10, 10), int)
    np.add.at(expected, (true, predicted), 1)
    assert np.array_equal(found["confusion"], expected)
    assert found["loss"] == pytest.approx(run.validate(data))
    assert run.measure([], ["confusion", "accuracy"])["confusion"] is None
    with pytest.raises(forebay.InvalidArgument, match="mae"):
        run.measure(data, ["mae"])
    with pytest.raises(forebay.InvalidArgument, match="top"):
        run.fit(data, validation=data, metrics=["best"], progress=False)
    assert run.step_count == 0, "bad metrics are refused before the first step"


@pytest.mark.parametrize("loss", [
    forebay.SoftmaxCrossEntropy(class_weights=(1, 9) + (1,) * 8),
    forebay.SoftmaxCrossEntropy(ignore_index=0),
    forebay.Focal(class_weights=(1, 9) + (1,) * 8),
])  # fmt: skip
def test_the_validation_loss_does_not_depend_on_the_batch_size(digits: str, loss: Any) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((8, 1, 8, 8)).astype(np.float32), np.array([0, 0, 0, 1, 0, 0, 3, 1])
    trainer = forebay.Trainer(digits, loss=loss, batch_size=2)
    found = [
        trainer.validate([(images[at : at + size], labels[at : at + size]) for at in range(0, 8, size)])
        for size in (1, 2, 8)
    ]
    assert found == pytest.approx([found[-1]] * 3, rel=1e-5)


def test_fit_ends_when_validation_gets_no_better(digits: str, batch: Any, tmp_path: Path) -> None:
    x, labels = batch
    best = tmp_path / "best"
    right, wrong = [batch] * 20, [(x, (labels + 1) % 10)] * 20
    run = forebay.Trainer(digits, optimizer=forebay.Adam(1e-2), batch_size=50)
    history = run.fit(
        right + wrong,
        validation=[batch],
        validate_every=5,
        metrics="accuracy",
        patience=3,
        best_checkpoint=best,
        progress=False,
    )
    assert history.stopped and history.best_step == 20 and run.step_count == 35
    assert [found["step"] for found in history.validations] == [5, 10, 15, 20, 25, 30, 35]
    assert history.best_loss == min(history.validation_losses)
    again = forebay.Trainer(digits, optimizer=forebay.Adam(1e-2), batch_size=50)
    again.restore(best)
    assert again.step_count == 20 and again.validate([batch]) == history.best_loss


def test_patience_is_resumed(digits: str, batch: Any, tmp_path: Path) -> None:
    x, labels = batch
    right, wrong = [batch] * 5, [(x, (labels + 1) % 10)] * 5

    def run(data: Any, epochs: int) -> forebay.History:
        run = forebay.Trainer(digits, optimizer=forebay.Adam(1e-2), batch_size=50)
        return run.fit(
            data, epochs, validation=[batch], patience=2, checkpoint=tmp_path / "run", resume=True, progress=False
        )

    assert not run(right, 4).stopped
    assert not run(wrong, 5).stopped
    history = run(wrong, 9)
    assert history.stopped and len(history.epoch_losses) == 1 and history.best_step == 20
    assert run(wrong, 9).losses == [], "its patience is at an end"


@pytest.mark.parametrize(
    "settings",
    [{"patience": 2}, {"validate_every": 3}, {"metrics": ["accuracy"]}, {"best_checkpoint": "x"}, {"checkpoint_every": 2},
     {"patience": 0, "validation": [1]}, {"validate_every": 0, "validation": [1]}, {"epochs": 2, "validation": iter([])},
     {"validation": []}, {"epochs": -1}, {"epochs": 1.5}, {"validate_every": 2.5, "validation": [1]}, {"min_delta": "a"},
     {"min_delta": float("nan"), "validation": [1]}, {"min_delta": -1, "validation": [1]},
     {"checkpoint": "x", "best_checkpoint": "x/../x", "validation": [1]}],
)  # fmt: skip
def test_settings_of_fit_that_contradict_each_other(
    digits: str, batch: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path)
    run = trainer(digits)
    with pytest.raises((forebay.InvalidArgument, TypeError)):
        run.fit([batch], **settings)
    assert run.step_count == 0


def test_adapters_train_alone_and_are_merged(digits: str, batch: Any, tmp_path: Path) -> None:
    lora = forebay.LoRA(["conv?.weight", "fc.weight"], rank=2, alpha=8, also="fc.bias")
    run = forebay.Trainer(digits, optimizer=forebay.Adam(1e-2), batch_size=50, lora=lora)
    before = run.parameters()
    assert len(before) == 2 * 4 + 1 and before["fc.weight.lora_right"].shape == (2, 64)
    losses = run.fit([batch] * 10, progress=False).losses
    assert losses[-1] < losses[0]
    run.save(tmp_path / "merged.onnx")
    merged = forebay.Session(tmp_path / "merged.onnx").run(batch[0])["logits"]
    assert np.allclose(merged, run.evaluate(*batch).logits, atol=1e-4)
    run.save_adapters(tmp_path / "adapters")
    assert sorted(path.name for path in (tmp_path / "adapters").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    # Another seed begins with other factors, which do nothing yet either.
    other = forebay.Trainer(digits, batch_size=50, lora=dataclasses.replace(lora, seed=1))
    assert not same(other.parameters(), before)
    assert other.evaluate(*batch).loss == pytest.approx(trainer(digits).evaluate(*batch).loss)
    with pytest.raises(forebay.Error, match="conv1.weight"):
        forebay.with_adapters(digits, forebay.LoRA("decoder.*"))


def test_errors_of_the_data_are_the_callers(digits: str, batch: Any) -> None:
    def broken() -> Any:
        yield batch
        raise LookupError("the data set ends here")

    run = trainer(digits)
    with pytest.raises(LookupError, match="ends here"):
        run.fit(broken(), progress=False)
    assert run.step_count == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "forebay-data"]


def test_fit_resumes_bit_for_bit(digits: str, batch: Any, tmp_path: Path) -> None:
    x, labels = batch
    data = [(np.roll(x, i, axis=0), np.roll(labels, i)) for i in range(5)]
    whole = trainer(digits)
    whole.fit(data, epochs=2, progress=False)
    folder = tmp_path / "run"
    stopped = trainer(digits)
    assert stopped.fit(data, epochs=2, callbacks=lambda _, r: r.step < 7, checkpoint=folder, progress=False).stopped
    del stopped
    again = trainer(digits, simulate_device="60%")
    history = again.fit(data, epochs=2, checkpoint=folder, resume=True, progress=False)
    assert len(history.losses) == 3 and same(again.parameters(), whole.parameters())


@pytest.mark.parametrize("last", [3, 4])
def test_the_loss_of_an_interrupted_epoch(digits: str, batch: Any, tmp_path: Path, last: int) -> None:
    x, labels = batch
    data = [(np.roll(x, i, axis=0) * (1 + i), labels) for i in range(4)]
    options: Dict[str, Any] = {
        "optimizer": forebay.SGD(0.01),
        "schedule": forebay.Schedule("plateau", gamma=0.5, patience=0),
    }
    whole = trainer(digits, **options)
    expected = whole.fit(data, epochs=3, progress=False).epoch_losses
    # NumPy's False ends the training, too.
    trainer(digits, **options).fit(
        data, epochs=3, callbacks=lambda _, report: np.bool_(report.step != last), checkpoint=tmp_path / "run", progress=False
    )
    again = trainer(digits, **options)
    history = again.fit(data, epochs=3, checkpoint=tmp_path / "run", resume=True, progress=False)
    assert len(history.losses) == 12 - last and history.epoch_losses == expected
    assert same(again.parameters(), whole.parameters())


def test_skipped_steps_do_not_count_in_the_mean_of_an_epoch(digits: str, batch: Any) -> None:
    x, labels = batch
    history = trainer(digits, on_nan="skip").fit([(x, labels), (np.full_like(x, np.nan), labels), (x, labels)], progress=False)
    assert np.isnan(history.losses[1])
    assert history.epoch_losses == [(history.losses[0] + history.losses[2]) / 2]


@pytest.mark.parametrize(
    "position",
    [np.random.default_rng(0).bit_generator.state, {"loss": float("inf")}, {"json_text": "x"}, "\ud800", [-(2**63), 2**63], 0.1, None],
    ids=["random state", "infinity", "text", "half a character", "64 bits", "fraction", "nothing"],
)
def test_positions_come_back_as_they_were(digits: str, tmp_path: Path, position: Any) -> None:
    run = trainer(digits)
    run.save_checkpoint(tmp_path, position)
    assert run.restore(tmp_path) == position


def test_data_that_can_be_read_once(digits: str, batch: Any, tmp_path: Path) -> None:
    run = trainer(digits)
    with pytest.raises(forebay.InvalidArgument, match="in each of 2 epochs"):
        run.fit((one for one in [batch]), epochs=2, progress=False)
    with pytest.raises(forebay.InvalidArgument, match="no batches in epoch 1"):
        run.fit([], progress=False)
    assert run.step_count == 0
    with pytest.raises(forebay.InvalidArgument, match="no batches in epoch 2 of 2; pass a list"):
        run.fit(iter([batch]), epochs=2, progress=False)
    assert len(run.fit((one for one in [batch]), progress=False).epoch_losses) == 1


def test_a_folder_in_use_is_found_at_once(digits: str, batch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = trainer(digits), trainer(digits)
    monkeypatch.chdir(tmp_path)
    first.fit([batch], validation=[batch], best_checkpoint="best", checkpoint=tmp_path / "run", progress=False)
    for folders in ({"checkpoint": tmp_path / "run"}, {"best_checkpoint": tmp_path / "run", "validation": [batch]}):
        with pytest.raises(forebay.FileError, match="release the trainer that does, in Python with del"):
            second.fit([batch], progress=False, **folders)
    assert second.step_count == 0
    with pytest.raises(forebay.FileError, match="best"):
        second.save_checkpoint(tmp_path / "best")
    # The first trainer has both, whatever they are called and wherever it is.
    first.save_checkpoint("run/../best")
    monkeypatch.chdir(tmp_path / "best")
    first.save_checkpoint("../run")
    first.save_checkpoint("run")
    assert (tmp_path / "best" / "run" / "checkpoint.json").exists()
    del first
    monkeypatch.chdir(tmp_path)
    second.fit([batch], checkpoint=tmp_path / "run", progress=False)


def test_a_folder_without_a_checkpoint_goes(digits: str, tmp_path: Path) -> None:
    run = trainer(digits)
    with pytest.raises(forebay.InvalidArgument, match="no batches"):
        run.fit([], checkpoint=tmp_path / "run", progress=False)
    assert (tmp_path / "run").exists()
    del run
    gc.collect()
    assert not (tmp_path / "run").exists()


def test_folders_that_were_removed_or_are_too_many_are_free(digits: str, tmp_path: Path) -> None:
    first, second = trainer(digits), trainer(digits)
    for number in range(65):
        first.save_checkpoint(tmp_path / str(number))
    second.save_checkpoint(tmp_path / "0")
    for folder in (tmp_path / "63", tmp_path / "64"):
        shutil.rmtree(folder)
    (tmp_path / "64").mkdir()
    first.save_checkpoint(tmp_path / "64")
    second.save_checkpoint(tmp_path / "63")
    shutil.rmtree(tmp_path / "61")
    second.save_checkpoint(tmp_path / "61")
    with pytest.raises(forebay.FileError):
        first.save_checkpoint(tmp_path / "61")
    for held in (tmp_path / "62", tmp_path / "64"):
        with pytest.raises(forebay.FileError):
            second.save_checkpoint(held)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"optimizer": forebay.Adam}, TypeError, "optimizer must be an optimizer such as forebay.Adam().*the class Adam itself"),
        ({"optimizer": 5}, TypeError, "optimizer must be"),
        ({"optimizer": forebay.SGD("0.1")}, TypeError, "learning_rate of SGD must be a number"),  # type: ignore[arg-type]
        ({"optimizer": forebay.SGD(-1.0)}, ValueError, "learning rate must be"),
        ({"optimizer": forebay.SGD(float("nan"))}, ValueError, "learning rate must be"),
        ({"optimizer": forebay.SGD(momentum=-1.0)}, ValueError, "momentum must be"),
        ({"optimizer": forebay.SGD(nesterov=True)}, ValueError, "needs a momentum"),
        ({"optimizer": forebay.Adam(beta1=1.5)}, ValueError, "beta1 must be"),
        ({"loss": forebay.Dice}, TypeError, "loss must be"),
        ({"loss": forebay.Huber(delta=None)}, TypeError, "delta of Huber must be a number"),  # type: ignore[arg-type]
        ({"schedule": "cosine"}, TypeError, r"schedule must be a forebay.Schedule, such as forebay.Schedule\('cosine'"),
        ({"groups": ["conv*"]}, TypeError, "groups must be a sequence of forebay.ParameterGroup"),
        ({"terms": [1]}, TypeError, "terms must be a sequence of forebay.LossTerm"),
        ({"lora": "conv*"}, TypeError, "lora must be a forebay.LoRA"),
        ({"accumulate": 0}, ValueError, "accumulate must be at least 1"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"seed": 2**64}, ValueError, "seed must be less than 2"),
        ({"schedule": forebay.Schedule("multi_step", milestones=[-1])}, ValueError, "a milestone of Schedule must be at least 0"),
        ({"schedule": forebay.Schedule("table", table=np.array([[1, 0.1]]))}, TypeError, "a step in the table of Schedule must be a whole"),
        ({"schedule": forebay.Schedule("table", table=np.arange(3))}, ValueError, r"must consist of pairs \(step, rate\)"),
        ({"threads": 1.5}, TypeError, "threads must be a whole number"),
        ({"fuse": 1}, TypeError, "fuse must be True or False"),
        ({"device": None}, TypeError, "device must be a string"),
        ({"sizes": {"N": "3"}}, TypeError, "the size 'N' must be a whole number"),
        ({"shard": "state"}, ValueError, "shard applies to several processes"),
        ({"eviction": "driver"}, ValueError, 'only applies with memory_mode="automatic"'),
        ({"float32": "conv*"}, ValueError, 'pass precision="bf16" as well, or leave out float32'),
    ],
    ids=str,
)
def test_options_that_are_not_valid(digits: str, options: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        trainer(digits, **options)


def test_callbacks_are_checked_before_the_first_step(digits: str, batch: Any) -> None:
    run = trainer(digits)
    for callbacks in (None, 3, [3], "print"):
        with pytest.raises(TypeError, match="a callback must be a function of the trainer and the step's report"):
            run.fit([batch], callbacks=callbacks, progress=False)  # type: ignore[arg-type]
    assert run.step_count == 0 and repr(run).startswith("<Trainer of model.onnx with SoftmaxCrossEntropy(")


def test_a_checkpoint_that_is_not_there_is_a_file_that_is_not_there(digits: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        trainer(digits).restore(tmp_path)
    assert isinstance(missing.value, forebay.FileError) and missing.value.filename == str(tmp_path / "checkpoint.json")


def test_types_can_be_asked_for() -> None:
    assert typing.get_type_hints(forebay.Trainer.fit)["epochs"] is int


def test_an_optimizer_can_be_a_subclass(digits: str, batch: Any) -> None:
    class Mine(forebay.AdamW):
        pass

    run, expected = trainer(digits, optimizer=Mine(1e-3)), trainer(digits)
    assert run.step(*batch).loss == expected.step(*batch).loss and same(run.parameters(), expected.parameters())
    with pytest.raises(TypeError, match="optimizer must be"):
        run.optimizer = "adam"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="learning rate"):
        run.optimizer = forebay.AdamW(-1.0)


def test_a_killed_process_loses_nothing(digits: str, batch: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    program = f"""
        import forebay, itertools, numpy as np
        trainer = forebay.Trainer({digits!r}, optimizer=forebay.AdamW(1e-3), batch_size=50)
        batch = (np.ones((50, 1, 8, 8), np.float32), np.arange(50) % 10)
        print("ready", flush=True)
        trainer.fit(itertools.repeat(batch), checkpoint={str(folder)!r}, checkpoint_every=1, progress=False)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    end = time.monotonic() + 60
    while not (folder / "checkpoint.json").exists() and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.2)
    process.kill()
    process.wait()
    process.stdout.close()
    run = trainer(digits)
    place = run.restore(folder)
    assert place["batch"] == run.step_count > 0
    run.step(*batch)


def test_ctrl_c_is_obeyed_within_a_step(batch: Any) -> None:
    program = f"""
        import forebay, numpy as np, time
        trainer = forebay.Trainer({str(ROOT / "examples/brain/unet3d.onnx")!r}, optimizer=forebay.SGD(0.01), device="host", threads=1)
        info = trainer.inputs[0]
        x, labels = np.ones(info.shape, np.float32), np.zeros(trainer.labels.shape, np.int64)
        print("ready", flush=True)
        try:
            while True:
                trainer.step(x, labels)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            import os
            os._exit(3)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    time.sleep(1.0)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"interrupted\n"
    seconds = time.monotonic() - start
    assert process.wait() == 3
    process.stdout.close()
    # A fraction of a second; the rest is for machines that are busy.
    assert seconds < 5.0, seconds


def test_other_threads_run_meanwhile(digits: str, batch: Any, counts: List[int]) -> None:
    run = trainer(digits)
    before = len(counts)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        run.step(*batch)
    assert len(counts) - before > 20


def test_losses_that_are_no_numbers(digits: str, batch: Any) -> None:
    x, labels = batch
    run = trainer(digits)
    before = run.parameters()
    with pytest.raises(forebay.NotFinite):
        run.step(np.full_like(x, np.nan), labels)
    assert same(run.parameters(), before)
    with pytest.raises(forebay.InvalidArgument, match="label 10"):
        run.step(x, np.full(50, 10))


def test_budgets_change_between_steps(digits: str, batch: Any) -> None:
    whole, changed = trainer(digits), trainer(digits, simulate_device="90%")
    for size in ("90%", "60%"):
        changed.set_device_memory(size)
        assert changed.step(*batch).loss == whole.step(*batch).loss
    assert os.path.isfile(digits)


def test_costs_and_traces(digits: str, batch: Any, tmp_path: Path) -> None:
    run = trainer(digits, trace=True)
    run.step(*batch)
    assert run.trace()
    run.save_costs(tmp_path / "costs.json")
    planned = forebay.plan(digits, optimizer="adamw", batch_size=50, costs=tmp_path / "costs.json")
    assert planned.seconds > 0 and run.predicted_seconds > 0


def test_recipes(digits: str, batch: Any, tmp_path: Path) -> None:
    schedule = forebay.Schedule("cosine", steps=4, warmup=2, min_rate=1e-4)
    recipe: Dict[str, Any] = {
        "schedule": schedule,
        "clip_global_norm": 0.5,
        "groups": [forebay.ParameterGroup("conv*", rate_factor=0.1), forebay.ParameterGroup("bn*", frozen=True)],
        "average": 0.5,
        "on_nan": "skip",
    }
    run = trainer(digits, optimizer=forebay.SGD(0.1), **recipe)
    reports = [run.step(*batch) for _ in range(4)]
    expected = [0.0, 0.05, 0.1, 1e-4 + (0.1 - 1e-4) * (1 + np.cos(np.pi / 4)) / 2]
    assert np.allclose([report.learning_rate for report in reports], expected)
    assert all(report.gradient_norm is not None and report.gradient_norm > 0 and not report.skipped for report in reports)
    assert not any(name.startswith("bn") for name in run.parameters())
    run.save_average(tmp_path / "average.onnx")
    saved = forebay.Trainer(tmp_path / "average.onnx", batch_size=50)
    assert np.array_equal(saved.parameter("fc.weight"), run.state()["fc.weight.average"])
    parts = forebay.Trainer(digits, batch_size=25, accumulate=2)
    assert parts.labels.shape[0] == 50 and np.isfinite(parts.step(*batch).loss)
    plateau = trainer(digits, optimizer=forebay.SGD(0.1), schedule=forebay.Schedule("plateau", gamma=0.5, patience=0))
    rates = []
    for loss in (1.0, 2.0, 2.0):
        plateau.observe(loss)
        rates.append(plateau.step(*batch).learning_rate)
    assert np.allclose(rates, [0.1, 0.05, 0.025])
    for options, words in (
        ({"schedule": forebay.Schedule("cosine")}, "needs steps"),
        ({"schedule": forebay.Schedule("zigzag")}, "unknown schedule 'zigzag'"),
        ({"clip_norm": 1.0, "clip_value": 1.0}, "pass only one of"),
    ):
        with pytest.raises(forebay.InvalidArgument, match=words):
            trainer(digits, **options)


def test_a_new_head_with_several_losses(digits: str, batch: Any) -> None:
    x, labels = batch
    thirds = labels.astype(np.int64) % 3
    scores = np.eye(3, dtype=np.float32)[thirds]
    model = forebay.with_head(digits, "/fc/Gemm", classes=3, seed=1)
    trainer = forebay.Trainer(
        model,
        optimizer=forebay.SGD(0.1),
        batch_size=50,
        terms=[forebay.LossTerm("logits", "mse", weight=0.5, labels="scores")],
        loss_weight=0.5,
        layer_decay=0.8,
        groups=[forebay.ParameterGroup("fc.*", schedule=forebay.Schedule("step", steps=2, gamma=0.5))],
        precision="bf16",
        float32="fc.*",
    )
    assert [info.name for info in trainer.inputs] == ["x", "scores"]
    losses = [trainer.step({"x": x, "scores": scores}, thirds).loss for _ in range(8)]
    assert losses[-1] < losses[0]
    assert trainer.parameters()["fc.weight"].shape == (3, 64)
    with pytest.raises(forebay.Error, match="no layer 'head'"):
        forebay.with_head(digits, "head", classes=3)
    with pytest.raises(forebay.InvalidArgument, match="classes must be at least 1"):
        forebay.with_head(digits, "/fc/Gemm", classes=-1)
    with pytest.raises(forebay.InvalidArgument, match="not to a group"):
        forebay.Trainer(digits, groups=[forebay.ParameterGroup("fc.*", schedule=forebay.Schedule("plateau"))], batch_size=8)
