#!/usr/bin/env python3
"""LSTM and GRU: runs next to ONNX Runtime, training steps next to PyTorch.

    cargo build --release
    python3 benches/recurrent.py                # needs: pip install torch onnx onnxscript onnxruntime numpy

PyTorch's exporter writes each network, random weights included. All programs run it on the same inputs, in turns, with the same number of
threads; outputs must match ONNX Runtime's, and losses PyTorch's.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
import warnings

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from torch import nn

import recording

# Outputs and losses agree if they differ by at most this much. Outputs of a recurrent network are below 1.
TOLERANCE = 1e-4
RATE = 0.1
# The kind of a network, the sizes of its inputs and states, its directions, the length of sequences, and their number.
CASES = [(kind, *sizes) for kind in ("LSTM", "GRU") for sizes in ((64, 128, 1, 100, 16), (64, 128, 2, 100, 16), (128, 256, 1, 200, 32), (256, 256, 1, 64, 1))]


class States(nn.Module):
    """All states of a recurrent network."""

    def __init__(self, kind, inputs, states, directions):
        super().__init__()
        self.network = getattr(nn, kind)(inputs, states, batch_first=True, bidirectional=directions == 2)

    def forward(self, x):
        return self.network(x)[0]


def forebay(*command):
    """The report of a command."""
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def torch_steps(module, x, y, steps):
    """Losses of training, and the seconds per step."""
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    losses, seconds = [], []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(module(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return losses, seconds


def measure(arguments, folder, kind, inputs, states, directions, length, count):
    """A row of the table."""
    torch.manual_seed(0)
    module = States(kind, inputs, states, directions)
    x, y = torch.randn(count, length, inputs), torch.rand(count, length, directions * states)
    model, data = os.path.join(folder, "model.onnx"), os.path.join(folder, "data.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), model, dynamo=False, input_names=["x"], output_names=["states"], do_constant_folding=False)
    np.save(os.path.join(folder, "x.npy"), x.numpy())
    np.savez(data, x=x.numpy(), y=y.numpy())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = arguments.threads, 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    threads = ["--threads", str(arguments.threads)]
    runs, peer_runs, steps, peer_steps = [], [], [], []
    for _ in range(arguments.rounds):
        report = forebay(arguments.forebay, "run", model, "--input", f"x={os.path.join(folder, 'x.npy')}", "--output-dir", folder,
                         "--repeat", str(arguments.repeat), *threads)
        runs.append(report["seconds_median"])
        for index in range(arguments.repeat + 1):
            start = time.perf_counter()
            expected, = session.run(None, {"x": x.numpy()})
            peer_runs += [time.perf_counter() - start] if index else []
        difference = float(np.max(np.abs(np.load(os.path.join(folder, "states.npy")) - expected)))
        if not difference <= TOLERANCE:
            raise SystemExit(f"{kind}: outputs differ from ONNX Runtime's by {difference}")
        report = forebay(arguments.forebay, "train", model, "--data", data, "--loss", "mse", "--batch-size", str(count),
                         "--steps", str(arguments.repeat + 2), "--learning-rate", str(RATE), "--no-compare", *threads)
        steps += [step["seconds"] for step in report["steps"][2:]]
        trained = States(kind, inputs, states, directions)
        trained.load_state_dict(module.state_dict())
        losses, seconds = torch_steps(trained, x, y, arguments.repeat + 2)
        peer_steps += seconds[2:]
        difference = max(abs(step["loss"] - loss) for step, loss in zip(report["steps"], losses, strict=True))
        if not difference <= TOLERANCE:
            raise SystemExit(f"{kind}: losses differ from PyTorch's by {difference}")
    times = [statistics.median(values) for values in (runs, peer_runs, steps, peer_steps)]
    name = f"{kind}, {inputs} to {states}{', both directions' if directions == 2 else ''}"
    print(f"{name:34} {count:3} x {length:3}  run {times[0]:.5f} s, ONNX Runtime {times[1]:.5f} s ({times[0] / times[1]:.2f}); "
          f"step {times[2]:.5f} s, PyTorch {times[3]:.5f} s ({times[2] / times[3]:.2f})", flush=True)
    return [name, f"{count} x {length}", *times[:2], times[0] / times[1], *times[2:], times[2] / times[3]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recording.add_program(parser)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="how often the programs take turns [default: 3]")
    parser.add_argument("--repeat", type=int, default=10, help="runs and steps of a round that count [default: 10]")
    parser.add_argument("--busy", action="store_true", help="note in the record that other work kept the machine busy")
    recording.add_output(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(arguments, folder, *case))
    columns = [recording.column("network"), recording.column("sequences"), recording.column("run", "s", 5, "median"),
               recording.column("ONNX Runtime", "s", 5, "median"), recording.column("over it", digits=2),
               recording.column("training step", "s", 5, "median"), recording.column("PyTorch", "s", 5, "median"),
               recording.column("over PyTorch", digits=2)]
    recording.save(arguments.output, "recurrent", "LSTM and GRU next to ONNX Runtime and PyTorch",
                   [recording.table("networks", columns, rows)],
                   software={"ONNX Runtime": onnxruntime.__version__, "PyTorch": torch.__version__},
                   conditions=f"{arguments.threads} threads each; the programs take turns, {arguments.rounds} of {arguments.repeat} "
                              f"runs and steps{'; other work kept the machine busy' if arguments.busy else ''}")


if __name__ == "__main__":
    main()
