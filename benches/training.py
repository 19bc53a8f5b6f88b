#!/usr/bin/env python3
"""Seconds per training step: Forebay next to PyTorch, and a budget next to none.

    cargo build --release
    python3 benches/training.py            # needs: pip install torch onnx numpy

All contenders use the same machine, the same number of threads and the same run. Their rounds alternate, and the table gives
medians and their ratios; the record also has the minimum and the maximum of each. The networks are the golden ones: the 3-D U-Net on the 2 mm
brain volume of examples/brain, and ResNet-20 on random images in batches of 64.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnx
import torch
import torch.nn.functional as F

import peer_models
import recording

# Steps of every round that are not counted.
WARM_UP = 2
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class PyTorch:
    """Training steps in this process."""

    def __init__(self, model, x, y, threads):
        torch.set_num_threads(threads)
        self.model = peer_models.MODELS[model]().train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)

    def steps(self, count):
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            self.optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(self.model(self.x), self.y).backward()
            self.optimizer.step()
            seconds.append(time.perf_counter() - start)
        return seconds


class Forebay:
    """Training steps on the command line."""

    def __init__(self, binary, model, data, threads, memory=None):
        self.command = [binary, "train", model, "--data", data, "--optimizer", "sgd", "--learning-rate", "0.01",
                        "--momentum", "0.9", "--threads", str(threads), "--json"]
        self.command += ["--simulate-device", memory] if memory else []
        self.command += ["--no-compare"]

    def steps(self, count):
        run = subprocess.run(self.command + ["--steps", str(count)], capture_output=True, text=True)
        if run.returncode != 0:
            raise SystemExit(f"{' '.join(self.command)}\n{run.stderr}")
        self.report = json.loads(run.stdout)
        return [step["seconds"] for step in self.report["steps"]]


def measure(contenders, rounds, count):
    """The seconds of all rounds. The first steps of every contender in a round are not counted: the first is measured, and the second
    is the first one with the plan made from that."""
    seconds = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            seconds[name] += contender.steps(WARM_UP + count)[WARM_UP:]
    return seconds


def report(title, seconds, base):
    """Prints the medians, and returns them with a row for each contender."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"\n{title}")
    for name, median in medians.items():
        print(f"  {name:28} {median:8.3f} s/step   {median / medians[base]:6.2f} x {base}")
    spread = {name: {"value": medians[name], "from": min(values), "to": max(values)} for name, values in seconds.items()}
    return medians, [[title, name, spread[name], len(seconds[name]), medians[name] / medians[base]] for name in seconds]


def unet(arguments):
    folder = os.path.join(ROOT, "examples", "brain")
    shape = (96, 112, 96)
    t1 = peer_models.fit(peer_models.read_nifti(os.path.join(folder, "t1_2mm.nii.gz")), shape).astype(np.float64)
    y = peer_models.fit(peer_models.read_nifti(os.path.join(folder, "labels_2mm.nii.gz")), shape).astype(np.int64)
    x = ((t1 - t1.mean()) / t1.std()).astype(np.float32)[None, None]
    model = os.path.join(folder, "unet3d.onnx")
    contenders = {
        "PyTorch": PyTorch("unet3d", x, y[None], arguments.threads),
        "Forebay": Forebay(arguments.binary, model, folder, arguments.threads),
        "Forebay, 192 MiB": Forebay(arguments.binary, model, folder, arguments.threads, "192MiB"),
        "Forebay, 25 %": Forebay(arguments.binary, model, folder, arguments.threads, "25%"),
    }
    seconds = measure(contenders, arguments.rounds, arguments.steps)
    medians, rows = report("3-D U-Net, 96 x 112 x 96, batch 1", seconds, "PyTorch")
    for name in ("Forebay, 192 MiB", "Forebay, 25 %"):
        print(f"  {name} over in-core: {medians[name] / medians['Forebay']:.2f}")
    return rows


def resnet(arguments):
    random = np.random.RandomState(0)
    x = random.standard_normal((64, 3, 32, 32)).astype(np.float32)
    y = random.randint(0, 10, 64).astype(np.int64)
    with tempfile.TemporaryDirectory() as folder:
        model = onnx.load(os.path.join(ROOT, "testdata", "golden", "resnet20", "model.onnx"))
        for value in (model.graph.input[0], model.graph.output[0]):
            value.type.tensor_type.shape.dim[0].dim_value = 64
        del model.graph.value_info[:]
        path, data = os.path.join(folder, "resnet20.onnx"), os.path.join(folder, "data.npz")
        onnx.save(model, path)
        np.savez(data, x=x, y=y)
        contenders = {
            "PyTorch": PyTorch("resnet20", x, y, arguments.threads),
            "Forebay": Forebay(arguments.binary, path, data, arguments.threads),
            "Forebay, 50 %": Forebay(arguments.binary, path, data, arguments.threads, "50%"),
        }
        seconds = measure(contenders, arguments.rounds, 3 * arguments.steps)
    medians, rows = report("ResNet-20, 32 x 32, batch 64", seconds, "PyTorch")
    print(f"  Forebay, 50 % over in-core: {medians['Forebay, 50 %'] / medians['Forebay']:.2f}")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "forebay"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="counted steps per contender and round")
    parser.add_argument("--only", choices=["unet", "resnet"])
    recording.add_output(parser)
    arguments = parser.parse_args()
    rows = []
    for name, bench in (("unet", unet), ("resnet", resnet)):
        if arguments.only in (None, name):
            rows += bench(arguments)
    columns = [recording.column("network"), recording.column("contender"), recording.column("step", "s", 3, "median"),
               recording.column("steps", digits=0), recording.column("over PyTorch", digits=2, statistic="median")]
    recording.save(arguments.output, "training", "Training steps next to PyTorch",
                   [recording.table("steps", columns, rows)], software={"PyTorch": torch.__version__},
                   conditions=f"{arguments.threads} threads each; rounds of the contenders alternate, {arguments.rounds} of each")


if __name__ == "__main__":
    main()
