"""Running models, and what arrays may be."""

from __future__ import annotations

import array
import copy
import errno
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
from forebay._arrays import input_to_native
from onnx_files import float_type, graph_input, graph_output, model_of, node, sequence_type


def test_a_budget_changes_no_bit(digits: str, batch: Any) -> None:
    x, _ = batch
    whole = forebay.Session(digits).run({"x": x})["logits"]
    session = forebay.Session(digits, simulate_device="256KiB")
    assert np.array_equal(session.run({"x": x})["logits"], whole)
    assert 0 < session.device_peak_bytes <= 256 << 10
    assert session.last_run.seconds > 0


def test_models_come_as_paths_and_bytes(digits: str, batch: Any) -> None:
    x, _ = batch
    expected = forebay.Session(digits).run(x)["logits"]
    with open(digits, "rb") as file:
        contents = file.read()

    class Proto:
        def SerializeToString(self) -> bytes:
            return contents

    class Path:
        def __fspath__(self) -> str:
            return digits

    for source in (contents, bytearray(contents), Proto(), Path(), forebay.Model(digits)):
        assert np.array_equal(forebay.Session(source).run(x=x)["logits"], expected)
    with pytest.raises(forebay.InvalidArgument, match="not int"):
        forebay.Session(7)


def test_a_session_does_not_keep_the_model(digits: str) -> None:
    model = forebay.Model(digits)
    kept = weakref.ref(model)
    session = forebay.Session(model)
    del model
    gc.collect()
    assert kept() is None
    assert repr(session).startswith("<Session of model.onnx with")


def test_arrays_of_any_layout(digits: str, batch: Any) -> None:
    x, _ = batch
    session = forebay.Session(digits)
    expected = session.run(x)["logits"]
    every_second = np.repeat(x, 2, axis=0)[::2]
    assert not every_second.flags.c_contiguous
    for same in (np.asfortranarray(x), every_second, x.astype(">f4"), memoryview(x), x.tolist()):
        assert np.array_equal(session.run(same)["logits"], expected)

    class Foreign:
        """Speaks DLPack and nothing else."""

        def __dlpack__(self, **keywords: Any) -> Any:
            return x.__dlpack__(**keywords)

        def __dlpack_device__(self) -> Any:
            return x.__dlpack_device__()

    assert np.array_equal(session.run(Foreign())["logits"], expected)
    flat = array.array("f", x.ravel().tolist())
    assert np.array_equal(session.run(np.asarray(flat).reshape(x.shape))["logits"], expected)


def test_outputs_belong_to_the_caller(digits: str, batch: Any) -> None:
    x, _ = batch
    session = forebay.Session(digits)
    first = session.run(x)["logits"]
    kept = first.copy()
    session.run(np.zeros_like(x))
    assert np.array_equal(first, kept)
    assert first.flags.writeable and first.flags.aligned
    first[:] = 0


def test_outputs_come_in_the_order_of_the_model() -> None:
    x, y, b = graph_input("x", float_type(["2"])), graph_output("y", float_type(["2"])), graph_output("b", float_type(["2"]))
    session = forebay.Session(model_of(node("Neg", ["x"], ["y"]) + node("Relu", ["x"], ["b"]) + x + y + b))
    found = session.run(np.array([-1, 2], np.float32))
    assert list(found) == [info.name for info in session.outputs] == ["y", "b"]
    assert [value.tolist() for value in found.values()] == [[1, -2], [0, 2]]


IN_PLACE = """
import numpy as np
import forebay
from forebay.selftest import example_model

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))

session = forebay.Session(example_model())
x = np.random.default_rng(0).random((1 << 17, 32), np.float32)
expected = session.run({"x": x})["logits"]
session.run({"x": x})
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = peak()
y = session.run({"x": x})["logits"]
assert np.array_equal(y, expected)
print(peak() - before, x.nbytes, y.nbytes)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system does not count peaks")
def test_a_run_takes_no_memory_for_its_inputs() -> None:
    ran = subprocess.run([sys.executable, "-c", IN_PLACE], check=True, capture_output=True, text=True)
    grown, input_bytes, output_bytes = map(int, ran.stdout.split())
    assert input_bytes == 16 << 20
    assert grown < output_bytes + input_bytes // 4


def test_arrays_are_read_where_they_are_and_not_kept(digits: str, batch: Any) -> None:
    x, _ = batch
    session = forebay.Session(digits)
    expected = session.run(x)["logits"]
    for _ in range(3):
        given = x.copy()
        given.setflags(write=False)
        assert np.array_equal(session.run(given)["logits"], expected)
        assert sys.getrefcount(given) == 2
        given.setflags(write=True)
        given.resize((1, 2), refcheck=True)
    # Floats between the places at which kernels begin.
    for offset in range(4):
        flat = np.empty(x.size + offset, np.float32)
        shifted = flat[offset:].reshape(x.shape)
        shifted[:] = x
        assert np.array_equal(session.run(shifted)["logits"], expected)
    # Sizes in turn.
    for count in (1, 50, 7, 1, 50, 7):
        assert np.allclose(session.run(x[:count])["logits"], expected[:count], atol=1e-5)


def test_wrong_inputs_are_named(digits: str, batch: Any) -> None:
    x, _ = batch
    session = forebay.Session(digits)
    for inputs, words in [
        ({"x": x.astype(np.float64)}, "float64"),
        ({"y": x}, "'y'"),
        ({}, "missing"),
        ({"x": x[0]}, r"float32\[1, 8, 8\]"),
        ({"x": np.array(["a"])}, "not supported"),
    ]:
        with pytest.raises(forebay.InvalidArgument, match=words):
            session.run(inputs)
    with pytest.raises(TypeError, match="the name of an input must be a string, but is 1"):
        session.run({1: x})
    assert repr(session) == "<Session of model.onnx with inputs ['x'] and outputs ['logits']>"
    with pytest.raises(forebay.InvalidArgument, match="batch_size must be at least 1, but is -1"):
        forebay.Session(digits, batch_size=-1)
    with pytest.raises(TypeError, match="thread_count"):
        forebay.Session(digits, thread_count=3)  # type: ignore[call-arg]


def test_errors_have_kinds(digits: str) -> None:
    with pytest.raises(forebay.FileError) as missing:
        forebay.Session("there-is-none.onnx")
    error: Any = missing.value
    assert isinstance(error, FileNotFoundError) and isinstance(error, forebay.Error) and type(error).__name__ == "FileError"
    assert (error.errno, error.strerror, error.filename) == (errno.ENOENT, os.strerror(errno.ENOENT), "there-is-none.onnx")
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(same) is type(error) and (str(same), same.errno, same.filename) == (str(error), error.errno, error.filename)
    with pytest.raises(IsADirectoryError):
        forebay.Session(os.path.dirname(digits))
    with pytest.raises(FileNotFoundError):
        forebay.Session(digits, costs="there-are-none.json")
    unknown = forebay.FileError("it is locked", filename="run")
    assert (unknown.errno, unknown.strerror, unknown.filename, str(unknown)) == (None, "it is locked", "run", "it is locked")
    with pytest.raises(forebay.Error):
        forebay.Model(b"no model")
    with pytest.raises(forebay.OutOfBudget) as small:
        forebay.Session(digits, batch_size=8, simulate_device="4KiB")
    assert small.value.budget == "device_memory" and small.value.least is not None
    forebay.Session(digits, batch_size=8, simulate_device=small.value.least)
    with pytest.raises(forebay.Error, match="abacus"):
        forebay.Session(digits, device="abacus")


def test_unsupported_operators_are_listed() -> None:
    from forebay.selftest import example_model

    with pytest.raises(forebay.UnsupportedOperator) as error:
        forebay.Session(example_model().replace(b"Relu", b"Fancy"[:4]), batch_size=4)
    assert error.value.operators == ["Fanc"]


def test_sessions_are_safe_from_several_threads(digits: str, batch: Any) -> None:
    x, _ = batch
    session = forebay.Session(digits)
    expected = {count: session.run(x[:count])["logits"] for count in (50, 10, 3)}
    wrong = []

    def work(count: int) -> None:
        for _ in range(10):
            if not np.array_equal(session.run(x[:count])["logits"], expected[count]):
                wrong.append(count)

    threads = [threading.Thread(target=work, args=(count,)) for count in (50, 50, 10, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_command_comes_with_the_package(digits: str) -> None:
    import shutil
    import subprocess
    import sys

    told = subprocess.run([sys.executable, "-m", "forebay", "plan", digits, "--batch-size", "8"], capture_output=True, text=True)
    assert told.returncode == 0 and "device peak" in told.stdout, told.stderr
    refused = subprocess.run([sys.executable, "-m", "forebay", "plan", digits, "--nonsense"], capture_output=True, text=True)
    assert refused.returncode == 2 and "--nonsense" in refused.stderr
    assert shutil.which("forebay", path=os.path.dirname(sys.executable)) is not None


def test_sizes_that_are_none(digits: str) -> None:
    for size in (1.5, -1, True, [8]):
        with pytest.raises(forebay.InvalidArgument, match="is not a size"):
            forebay.Session(digits, device_memory=size)  # type: ignore[arg-type]
    assert forebay.Session(digits, simulate_device=np.int64(1 << 20)).run(np.zeros((1, 1, 8, 8), np.float32))


def test_an_input_alone_may_be_in_a_tuple(digits: str, batch: Any) -> None:
    x, _ = batch
    session = forebay.Session(digits)
    assert np.array_equal(session.run((x,))["logits"], session.run(x)["logits"])


def test_lists_must_fit(digits: str, batch: Any) -> None:
    x, _ = batch
    run = forebay.Trainer(digits, batch_size=2)
    for labels in ([0.9, 1.9], ["1", "2"], [None, 1], [2**70, 1]):
        with pytest.raises(forebay.InvalidArgument, match="numbers that fit int64"):
            run.step(x[:2], labels)
    assert run.step_count == 0
    assert np.isfinite(run.step(x[:2].tolist(), [1.0, 2]).loss)
    with pytest.raises(forebay.InvalidArgument, match="numbers that fit float32"):
        forebay.Session(digits).run([[[[1e300] * 8] * 8]])


def test_tensors_of_every_type_are_inputs() -> None:
    native = input_to_native(forebay.Tensor([1.0, 2.5], "bfloat16"), "bfloat16")
    assert native[:2] == ("bfloat16", (2,))
    listed = input_to_native([1.0, 2.5], "bfloat16")
    assert listed[:2] == native[:2] and np.array_equal(listed[2], native[2])


FORK = """
import os, sys, warnings
import numpy as np
import forebay

warnings.simplefilter("ignore")
digits, folder = sys.argv[1:]
x, labels = np.ones((8, 1, 8, 8), np.float32), np.arange(8)
session, trainer, tensor, event = forebay.Session(digits), forebay.Trainer(digits, batch_size=8), forebay.Tensor(x), forebay.Event()
session.run(x)
trainer.step(x, labels)
trainer.save_checkpoint(folder)
event.record()
expected = (tensor * 2).sum().item()
child = os.fork()
if child == 0:
    calls = [
        lambda: session.run(x),
        lambda: trainer.step(x, labels),
        lambda: trainer.parameters(),
        lambda: tensor.numpy(),
        lambda: (tensor * 2).sum(),
        lambda: tensor.context.synchronize(),
        lambda: event.synchronize(),
    ]
    for call in calls:
        try:
            call()
            os._exit(1)
        except forebay.InvalidArgument as error:
            if "fork" not in str(error):
                os._exit(2)
    fine = (forebay.Tensor(x) * 2).sum().item() == expected and forebay.Session(digits).run(x)["logits"].shape == (8, 10)
    del session, trainer, tensor, event
    os._exit(0 if fine else 3)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert session.run(x)["logits"].shape == (8, 10)
assert os.path.exists(os.path.join(folder, ".forebay.lock")), "the lock is still held here"
sys.exit(status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_is_told_what_it_cannot_use(digits: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, digits, str(tmp_path / "run")], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_messages_name_arguments_of_python(digits: str, batch: Any) -> None:
    x, labels = batch
    with pytest.raises(forebay.NotFinite, match='pass on_nan="skip", which checks gradients'):
        forebay.Trainer(digits, batch_size=50).step(np.full_like(x, np.nan), labels)
    with pytest.raises(forebay.OutOfBudget, match='at least simulate_device="[0-9]+KiB"'):
        forebay.Session(digits, batch_size=8, simulate_device="4KiB")
    one = float_type(["2"])
    sequence = node("SequenceConstruct", ["x", "x"], ["s"]) + graph_input("x", one) + graph_output("s", sequence_type(one))
    with pytest.raises(forebay.InvalidArgument, match="'s' is a sequence of 2 tensors; Python takes and returns only tensors"):
        forebay.Session(model_of(sequence)).run(np.zeros(2, np.float32))


def test_values_that_are_not_arrays_are_refused_with_the_name_of_their_input(digits: str, batch: Any) -> None:
    x, labels = batch
    session, trainer = forebay.Session(digits), forebay.Trainer(digits, batch_size=50)
    for value in (None, "abc", [[1], [1, 2]], object(), np.array([1j])):
        with pytest.raises(forebay.InvalidArgument, match="^input 'x': "):
            session.run(x=value)
        with pytest.raises(forebay.InvalidArgument, match="^input 'x': "):
            trainer.step({"x": value}, labels)
        with pytest.raises(forebay.InvalidArgument, match="^labels: "):
            trainer.step(x, value)
