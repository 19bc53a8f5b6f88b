#!/usr/bin/env python3
"""The cost of a call from Python: sessions next to ONNX Runtime's, trainer steps next to the command line's, array conversions.

    cargo build --release
    python3 benches/python_calls.py             # needs the package (cargo xtask wheel), numpy and onnxruntime

Contenders of a row take turns; a row has medians, and the median of the ratios of a turn. `Outside` is the time of a call beyond the time
from the first command to the last result. A session that copies has a simulated device as large as it needs: inputs are copied to it and
outputs back.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnxruntime

import forebay
import recording
from forebay.selftest import example_model

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DIGITS = os.path.join(ROOT, "examples", "digits", "model.onnx")
# Steps of a training run that are not counted: the first is measured, and the second is the first with the plan made from that.
WARM_UP = 2


def seconds(call, count):
    """The median time of a call."""
    call()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def spread(values):
    """A median with the minimum and the maximum."""
    return {"value": statistics.median(values), "from": min(values), "to": max(values)}


def session_row(name, model, feed, count, turns):
    """Calls of one model."""
    options = {"providers": ["CPUExecutionProvider"]}
    ours, copying = forebay.Session(model), forebay.Session(model, simulate_device="8GiB")
    theirs = onnxruntime.InferenceSession(model, **options)
    calls = [lambda: ours.run(feed), lambda: copying.run(feed), lambda: theirs.run(None, feed)]
    rounds = [[seconds(call, count) for call in calls] for _ in range(turns)]
    left, copied, right = ([turn[place] * 1e6 for turn in rounds] for place in range(3))
    inside = statistics.median(ours.last_run.seconds for _ in range(count) if ours.run(feed)) * 1e6
    ratio = spread([one / other for one, other in zip(left, right)])
    row = [name, spread(left), spread(right), ratio, statistics.median(left) - inside, spread(copied)]
    print(f"{name:28} {row[1]['value']:10.1f} {row[2]['value']:10.1f} {ratio['value']:8.2f} {row[4]:10.1f} {row[5]['value']:10.1f}")
    return row


def sessions(turns):
    """Calls of small models, and of one with a large amount of input."""
    print(f"{'model':28} {'Forebay us':>10} {'ORT us':>10} {'ratio':>8} {'outside us':>10} {'copying us':>10}")
    rng = np.random.default_rng(0)
    dense = lambda batch: (example_model(), {"x": rng.random((batch, 32), np.float32)})
    digits = lambda batch: (DIGITS, {"x": rng.random((batch, 1, 8, 8), np.float32)})
    return [
        session_row("two dense layers, batch 1", *dense(1), 500, turns),
        session_row("digits, batch 1", *digits(1), 300, turns),
        session_row("digits, batch 256", *digits(256), 20, turns),
        session_row("dense, 32 MiB of input", *dense(1 << 18), 5, turns),
    ]


def training_row(batch, steps, turns, binary):
    """Steps of the digits network with one batch, by a trainer and by the command line."""
    rng = np.random.default_rng(0)
    x, labels = rng.random((batch, 1, 8, 8), np.float32), rng.integers(0, 10, batch)
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "data.npz")
        np.savez(data, x=x, y=labels)
        command = [binary, "train", DIGITS, "--data", data, "--batch-size", str(batch), "--optimizer", "sgd", "--learning-rate", "0.01"]
        command += ["--steps", str(WARM_UP + steps), "--no-compare", "--json"]

        def line():
            run = subprocess.run(command, capture_output=True, text=True, cwd=folder)
            if run.returncode != 0:
                raise SystemExit(f"{' '.join(command)}\n{run.stderr}")
            report = json.loads(run.stdout)
            return statistics.median(step["seconds"] for step in report["steps"][WARM_UP:])

        def python():
            trainer = forebay.Trainer(DIGITS, optimizer=forebay.SGD(0.01), batch_size=batch)
            times = []
            for _ in range(WARM_UP + steps):
                start = time.perf_counter()
                report = trainer.step(x, labels)
                times.append((time.perf_counter() - start, report.seconds))
            return [statistics.median(times[WARM_UP:][step][place] for step in range(steps)) for place in range(2)]

        rounds = [(python(), line()) for _ in range(turns)]
    inside = spread([own[1] * 1e3 for own, _ in rounds])
    theirs = spread([other * 1e3 for _, other in rounds])
    over = spread([100 * (own[0] / own[1] - 1) for own, _ in rounds])
    print(f"digits, batch {batch}: a step {inside['value']:.2f} ms, from the command line {theirs['value']:.2f} ms; the call {over['value']:.2f} % more")
    return [f"digits, batch {batch}", inside, theirs, over]


def array_rows():
    """Arrays to host tensors and back."""
    array = np.random.default_rng(0).random(1 << 24, np.float32)
    tensor = forebay.Tensor(array)
    ways = {"NumPy's copy": array.copy, "forebay.Tensor(array)": lambda: forebay.Tensor(array), "tensor.numpy()": tensor.numpy,
            "np.from_dlpack(tensor)": lambda: np.from_dlpack(tensor)}
    rows = [[name, seconds(call, 7) * 1e3] for name, call in ways.items()]
    for name, time_ms in rows:
        print(f"64 MiB, {name}: {time_ms:.3f} ms")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "forebay"))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40, help="counted steps per contender and turn")
    recording.add_output(parser)
    arguments = parser.parse_args()
    calls = sessions(arguments.turns)
    steps = [training_row(batch, arguments.steps, arguments.turns, arguments.binary) for batch in (256, 1024)]
    arrays = array_rows()
    time_of = lambda name, unit, digits: recording.column(name, unit, digits, "median")
    tables = [
        recording.table("calls", [recording.column("model"), time_of("Forebay", "us", 1), time_of("ONNX Runtime", "us", 1),
                                  time_of("over ONNX Runtime", None, 2), time_of("outside", "us", 1), time_of("copying", "us", 1)], calls),
        recording.table("steps", [recording.column("network"), time_of("step", "ms", 2), time_of("by the command line", "ms", 2),
                                  time_of("the call beyond its step", "%", 2)], steps),
        recording.table("arrays", [recording.column("64 MiB"), time_of("time", "ms", 3)], arrays),
    ]
    recording.save(arguments.output, "python-calls", "Calls from Python", tables, software={"ONNX Runtime": onnxruntime.__version__},
                   conditions=f"contenders take turns, {arguments.turns} of each")


if __name__ == "__main__":
    main()
