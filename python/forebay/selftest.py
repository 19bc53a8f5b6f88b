"""``python -m forebay.selftest`` checks that the package works on this machine. Needs only NumPy and takes a few seconds."""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

import forebay

_BATCH, _FEATURES, _HIDDEN, _CLASSES = 64, 32, 256, 5


def _field(number: int, value: Union[int, str, bytes]) -> bytes:
    """Encodes a field of a protocol buffer."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _value(name: str, sizes: Sequence[Union[int, str]]) -> bytes:
    """Encodes a float32 input or output. A string is the symbol of a size."""
    dimensions = b"".join(_field(1, _field(2 if isinstance(size, str) else 1, size)) for size in sizes)
    return _field(1, name) + _field(2, _field(1, _field(1, 1) + _field(2, dimensions)))


def example_model() -> bytes:
    """Returns a small classifier as ONNX: two dense layers, input ``x`` [batch, 32], output ``logits`` [batch, 5].

    >>> import forebay.selftest
    >>> forebay.Model(forebay.selftest.example_model()).outputs[0].name
    'logits'
    """
    rng = np.random.default_rng(1)
    weights = {
        "w1": rng.normal(0, 0.2, (_FEATURES, _HIDDEN)),
        "b1": np.zeros(_HIDDEN),
        "w2": rng.normal(0, 0.1, (_HIDDEN, _CLASSES)),
        "b2": np.zeros(_CLASSES),
    }
    nodes: List[Tuple[str, List[str], str]] = [
        ("Gemm", ["x", "w1", "b1"], "before"),
        ("Relu", ["before"], "hidden"),
        ("Gemm", ["hidden", "w2", "b2"], "logits"),
    ]
    graph = b"".join(
        _field(1, b"".join(_field(1, name) for name in inputs) + _field(2, output) + _field(3, output) + _field(4, kind))
        for kind, inputs, output in nodes
    )
    graph += _field(2, "selftest")
    for name, weight in weights.items():
        shape = b"".join(_field(1, size) for size in weight.shape)
        graph += _field(5, shape + _field(2, 1) + _field(8, name) + _field(9, weight.astype("<f4").tobytes()))
    graph += _field(11, _value("x", ["batch", _FEATURES])) + _field(12, _value("logits", ["batch", _CLASSES]))
    return _field(1, 8) + _field(7, graph) + _field(8, _field(1, "") + _field(2, 17))


def _data() -> Tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, _CLASSES, _BATCH)
    centers = rng.normal(0, 1, (_CLASSES, _FEATURES))
    x = (centers[labels] + rng.normal(0, 0.3, (_BATCH, _FEATURES))).astype(np.float32)
    return x, labels


def _trainer(**options: Any) -> forebay.Trainer:
    return forebay.Trainer(example_model(), optimizer=forebay.AdamW(1e-2), batch_size=_BATCH, **options)


def _learns() -> None:
    x, labels = _data()
    trainer = _trainer()
    losses = [trainer.step(x, labels).loss for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0], losses


def _runs_as_numpy() -> None:
    x, _ = _data()
    trainer = _trainer()
    weights: Dict[str, npt.NDArray[Any]] = trainer.parameters()
    expected = np.maximum(x @ weights["w1"] + weights["b1"], 0) @ weights["w2"] + weights["b2"]
    found = forebay.Session(example_model()).run({"x": x})["logits"]
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-5), float(np.abs(found - expected).max())


def _same_bits_within_a_budget() -> None:
    x, labels = _data()
    least = forebay.plan(example_model(), train=True, optimizer="adamw", batch_size=_BATCH).least
    whole, within = _trainer(), _trainer(simulate_device=least)
    for _ in range(3):
        assert whole.step(x, labels).loss == within.step(x, labels).loss
    ours, theirs = whole.parameters(), within.parameters()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert within.device_peak_bytes <= least


def _says_what_would_do() -> None:
    try:
        _trainer(simulate_device="4KiB")
    except forebay.OutOfBudget as error:
        assert error.least is not None and error.least > 4096
        _trainer(simulate_device=error.least)
    else:
        raise AssertionError("4 KiB is too small")


def _goes_on_from_a_checkpoint() -> None:
    x, labels = _data()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run")
        first = _trainer()
        first.step(x, labels)
        first.save_checkpoint(path, {"batch": 1})
        expected = first.step(x, labels).loss
        second = _trainer()
        assert second.restore(path) == {"batch": 1}
        assert second.step(x, labels).loss == expected


def _lets_other_threads_run() -> None:
    x, labels = _data()
    trainer = _trainer()
    count = 0
    ended = threading.Event()

    def tick() -> None:
        nonlocal count
        while not ended.is_set():
            count += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        trainer.step(x, labels)
    ended.set()
    thread.join()
    assert count > 5, count


def _finds_races() -> None:
    numbers = np.random.default_rng(3).normal(0, 1, (_FEATURES, _FEATURES)).astype(np.float32)
    for ordered in (True, False):
        with forebay.Context(record=True) as context:
            stream = forebay.Stream()
            product = forebay.Tensor(numbers) @ numbers
            if ordered:
                stream.wait_stream(forebay.current_stream())
            with forebay.stream(stream):
                total = product.sum()
                if ordered:
                    assert np.isclose(total.item(), (numbers @ numbers).sum(), rtol=1e-3, atol=1e-2)
            try:
                context.check()
            except forebay.RaceError as error:
                assert not ordered and len(error.races) == 1, error
            else:
                assert ordered, "a race was not found"


def _exceeds_the_device() -> None:
    memory = forebay.managed.Memory("512KiB", unit_size="64KiB")
    tensor = forebay.managed.empty((16, 1 << 14), memory=memory)
    for row in range(len(tensor)):
        tensor[row] = row
    assert [row.max().item() for row in tensor] == list(range(16))
    assert tensor.nbytes > memory.device_memory and memory.statistics().evictions > 0


CHECKS: List[Tuple[str, Callable[[], None]]] = [
    ("a trainer learns", _learns),
    ("a session computes what NumPy computes", _runs_as_numpy),
    ("a budget changes no bit", _same_bits_within_a_budget),
    ("a budget that is too small is refused, and a sufficient one is named", _says_what_would_do),
    ("training continues from a checkpoint bit for bit", _goes_on_from_a_checkpoint),
    ("other threads run meanwhile", _lets_other_threads_run),
    ("streams are ordered, and a race is found", _finds_races),
    ("a tensor is larger than the device", _exceeds_the_device),
]


def main() -> int:
    """Runs all checks, prints a line for each, and returns the exit code."""
    print(f"forebay {forebay.__version__}, Python {sys.version.split()[0]} ({struct.calcsize('P') * 8} bits), NumPy {np.__version__}")
    print(f"devices: {', '.join(forebay.devices())}")
    failed = 0
    for name, check in CHECKS:
        start = time.perf_counter()
        try:
            check()
        except Exception as error:  # All checks run, even if others fail.
            failed += 1
            print(f"FAILED {name}: {type(error).__name__}: {error}")
        else:
            print(f"ok     {name} ({time.perf_counter() - start:.2f} s)")
    print("all checks passed" if failed == 0 else f"{failed} of {len(CHECKS)} checks failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
