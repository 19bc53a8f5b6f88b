"""What a call costs from Python: Forebay's sessions next to ONNX Runtime's, and arrays on their way in and out.

    python3 benches/python_calls.py

Needs the package, numpy and onnxruntime. Prints medians and their ratios; nothing else should run meanwhile.
"""

import pathlib
import statistics
import sys
import time

import numpy as np
import onnxruntime

import forebay
from forebay.selftest import example_model

ROOT = pathlib.Path(__file__).resolve().parents[1]


def seconds(call, count):
    call()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def compare(name, model, feed, count):
    ours = forebay.Session(model)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    # In turns, so that what else the machine does meets both.
    pairs = [(seconds(lambda: ours.run(feed), count), seconds(lambda: theirs.run(None, feed), count)) for _ in range(7)]
    left, right = (statistics.median(side) for side in zip(*pairs))
    inside = statistics.median(ours.last_run.seconds for _ in range(20) if ours.run(feed))
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"{name:28} {left * 1e6:10.1f} {right * 1e6:10.1f} {ratio:8.2f} {(left - inside) * 1e6:10.1f}")


def main():
    print(f"{'model':28} {'Forebay us':>10} {'ORT us':>10} {'ratio':>8} {'outside us':>10}")
    rng = np.random.default_rng(0)
    digits = str(ROOT / "examples/digits/model.onnx")
    compare("two dense layers, batch 1", example_model(), {"x": rng.random((1, 32), np.float32)}, 300)
    compare("digits, batch 1", digits, {"x": rng.random((1, 1, 8, 8), np.float32)}, 200)
    compare("digits, batch 256", digits, {"x": rng.random((256, 1, 8, 8), np.float32)}, 20)
    compare("dense, 32 MiB of input", example_model(), {"x": rng.random((1 << 18, 32), np.float32)}, 3)
    array = rng.random(1 << 24, np.float32)
    copy = seconds(array.copy, 5)
    tensor = forebay.Tensor(array)
    there, back = seconds(lambda: forebay.Tensor(array), 5), seconds(tensor.numpy, 5)
    print(f"64 MiB: NumPy's copy {copy * 1e3:.1f} ms; to a tensor {there / copy:.2f} times as long, back {back / copy:.2f} times")


if __name__ == "__main__":
    sys.exit(main())
