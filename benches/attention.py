#!/usr/bin/env python3
"""Time and memory of a training step of one attention layer, by the length of its sequence: Forebay beside PyTorch.

    cargo build --release
    python3 benches/attention.py           # needs: pip install torch onnx numpy

The layer projects x[1, length, 256] to queries, keys and values of 4 heads, attends, and projects the result. Contenders: Forebay with its
kernel of attention; Forebay with the matrix of scores in memory, as products and a softmax (an Identity between them keeps them from
becoming the kernel); PyTorch's scaled_dot_product_attention. Rounds of the contenders alternate. Memory is the most that a process
held, above what one with a sequence of 16 holds.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

import recording
from training import WARM_UP, Forebay

ROOT = recording.ROOT
HEADS, SIZE = 4, 64
WIDTH = HEADS * SIZE
LENGTHS = [256, 512, 1024, 2048, 4096, 8192]
WEIGHTS = ["wq", "wk", "wv", "wo"]


def weights():
    random = np.random.RandomState(0)
    return {name: (random.standard_normal((WIDTH, WIDTH)) / WIDTH ** 0.5).astype(np.float32) for name in WEIGHTS}


def batch(length):
    random = np.random.RandomState(1)
    return [random.standard_normal((1, length, WIDTH)).astype(np.float32) for _ in range(2)]


class Layer(torch.nn.Module):
    """The layer in PyTorch."""

    def __init__(self):
        super().__init__()
        self.of = torch.nn.ParameterDict({name: torch.from_numpy(values) for name, values in weights().items()})

    def forward(self, x):
        heads = [(x @ self.of[name]).view(1, -1, HEADS, SIZE).transpose(1, 2) for name in WEIGHTS[:3]]
        y = torch.nn.functional.scaled_dot_product_attention(*heads)
        return y.transpose(1, 2).reshape(1, -1, WIDTH) @ self.of["wo"]


class PyTorch:
    """Training steps by a process of its own, which says how long they took and how much memory it held."""

    def __init__(self, length, threads):
        self.command = [sys.executable, os.path.abspath(__file__), "--peer", str(length), "--threads", str(threads)]

    def steps(self, count):
        run = subprocess.run(self.command + ["--steps", str(count)], capture_output=True, text=True)
        if run.returncode != 0:
            raise SystemExit(f"{' '.join(self.command)}\n{run.stderr}")
        self.report = json.loads(run.stdout)
        return self.report["seconds"]


def peer(length, threads, count):
    """What a process of PyTorch does."""
    import time
    torch.set_num_threads(threads)
    layer = Layer()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    x, y = map(torch.from_numpy, batch(length))
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(layer(x), y).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "resident_peak_bytes": resident}))


def model(length, is_fused):
    """The layer as ONNX, in the one form or in the other."""
    nodes = [helper.make_node("MatMul", ["x", name], [name[1]]) for name in WEIGHTS[:3]]
    if is_fused:
        nodes.append(helper.make_node("Attention", ["q", "k", "v"], ["joined"], q_num_heads=HEADS, kv_num_heads=HEADS))
    else:
        for name in "qkv":
            nodes.append(helper.make_node("Reshape", [name, "heads"], [f"{name}_heads"]))
            order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
            nodes.append(helper.make_node("Transpose", [f"{name}_heads"], [f"{name}_first"], perm=order))
        nodes += [
            helper.make_node("MatMul", ["q_first", "k_first"], ["products"]),
            helper.make_node("Mul", ["products", "scale"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["probabilities"], axis=-1),
            helper.make_node("Identity", ["probabilities"], ["same"]),
            helper.make_node("MatMul", ["same", "v_first"], ["attended"]),
            helper.make_node("Transpose", ["attended"], ["turned"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", ["turned", "whole"], ["joined"]),
        ]
        constants = {"heads": np.array([1, length, HEADS, SIZE]), "whole": np.array([1, length, WIDTH]),
                     "scale": np.array(SIZE ** -0.5, np.float32)}
        made = [helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
                for name, value in constants.items()]
        nodes = made + nodes
    nodes.append(helper.make_node("MatMul", ["joined", "wo"], ["y"]))
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, length, WIDTH]) for name in "xy"]
    initializers = [numpy_helper.from_array(values, name) for name, values in weights().items()]
    graph = helper.make_graph(nodes, "attention", value[:1], value[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])


def contenders(folder, length, arguments):
    data = os.path.join(folder, f"{length}.npz")
    x, y = batch(length)
    np.savez(data, x=x, y=y)
    found = {}
    for name, is_fused in (("Forebay", True), ("Forebay, scores in memory", False)):
        path = os.path.join(folder, f"{length}-{is_fused}.onnx")
        onnx.save(model(length, is_fused), path)
        found[name] = Forebay(arguments.binary, path, data, arguments.threads)
        found[name].command += ["--loss", "mse"]
    found["PyTorch"] = PyTorch(length, arguments.threads)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "forebay"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="counted steps per contender and round; fewer for longer sequences")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--peer", type=int, metavar="LENGTH", help=argparse.SUPPRESS)
    recording.add_output(parser)
    arguments = parser.parse_args()
    if arguments.peer is not None:
        return peer(arguments.peer, arguments.threads, arguments.steps)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        least = {}
        for name, contender in contenders(folder, 16, arguments).items():
            contender.steps(WARM_UP + 1)
            least[name] = contender.report["resident_peak_bytes"]
        for length in arguments.lengths:
            count = arguments.steps or max(2, 8192 // length)
            all_of = contenders(folder, length, arguments)
            seconds, memory = {name: [] for name in all_of}, {name: [] for name in all_of}
            for _ in range(arguments.rounds):
                for name, contender in all_of.items():
                    seconds[name] += contender.steps(WARM_UP + count)[WARM_UP:]
                    memory[name].append(max(0, contender.report["resident_peak_bytes"] - least[name]))
            medians = {name: statistics.median(values) for name, values in seconds.items()}
            for name, values in seconds.items():
                spread = {"value": medians[name] * 1e3, "from": min(values) * 1e3, "to": max(values) * 1e3}
                over, mebibytes = medians[name] / medians["PyTorch"], statistics.median(memory[name]) / 2 ** 20
                print(f"{length:6} {name:28} {spread['value']:9.1f} ms  {over:6.2f} x PyTorch  {mebibytes:8.0f} MiB",
                      flush=True)
                rows.append([length, name, spread, over, mebibytes])
    columns = [recording.column("positions", digits=0), recording.column("contender"),
               recording.column("step", "ms", 1, "median"), recording.column("over PyTorch", digits=2, statistic="median"),
               recording.column("memory", "MiB", 0, "median")]
    return recording.save(arguments.output, "attention", "A training step of one attention layer",
                          [recording.table("steps", columns, rows)], software={"PyTorch": torch.__version__},
                          conditions=f"{arguments.threads} threads each; rounds of the contenders alternate, "
                                     f"{arguments.rounds} of each; 4 heads of 64, batch 1")


if __name__ == "__main__":
    main()
