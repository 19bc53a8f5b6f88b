#!/usr/bin/env python3
"""Training steps of attention by sequence length: time and memory of forms that store the scores, and of forms that do not.

    cargo build --release
    python3 benches/attention.py                # needs: pip install torch onnx numpy

One layer of causal attention with its four matrices is trained on one sequence. Forebay gets it in three forms: as ONNX's operator
`Attention`; as products and a softmax, which become the same kernel; and as the same in three dimensions, which stays unfused. PyTorch
computes it with `scaled_dot_product_attention`, and with products and a softmax. Every form computes the same losses. Memory is the peak of
the process minus its memory before a network is built. A form has no figures in the table if its scores alone would take more than
`--limit`.
"""
import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

import recording

HEADS, SIZE = 4, 64
WIDTH = HEADS * SIZE
RATE = 0.1
# Losses agree if they differ by at most this fraction.
TOLERANCE = 1e-4
# A form that stores scores has about this many matrices of that size at the peak of a step: scores, weights, and their gradients.
STORED = 4


def weights():
    """The matrices for queries, keys, values and the output."""
    random = np.random.default_rng(0)
    return {name: random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / math.sqrt(WIDTH) for name in ("query", "key", "value", "out")}


def model(form, length):
    """The layer as ONNX."""
    nodes, constants = [], {}

    def node(operator, *inputs, **attributes):
        nodes.append(helper.make_node(operator, list(inputs), [f"{operator}{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def constant(name, values, data_type):
        constants[name] = numpy_helper.from_array(np.array(values, data_type), name)
        return name

    given = [numpy_helper.from_array(array, name) for name, array in weights().items()]
    flat = form == "unfused"
    parts = []
    for part in ("query", "key", "value"):
        shape = constant("heads", [length, HEADS, SIZE] if flat else [1, length, HEADS, SIZE], np.int64)
        parts.append(node("Transpose", node("Reshape", node("MatMul", "x", part), shape), perm=[1, 0, 2] if flat else [0, 2, 1, 3]))
    query, key, value = parts
    if form == "operator":
        mixed = node("Attention", query, key, value, is_causal=1)
    else:
        scores = node("MatMul", query, node("Transpose", key, perm=[0, 2, 1] if flat else [0, 1, 3, 2]))
        scores = node("Mul", scores, constant("scale", SIZE ** -0.5, np.float32))
        mask = np.triu(np.full((length, length), -1e9, np.float32), 1)
        mixed = node("MatMul", node("Softmax", node("Add", scores, constant("mask", mask, np.float32)), axis=-1), value)
    joined = node("Reshape", node("Transpose", mixed, perm=[1, 0, 2] if flat else [0, 2, 1, 3]), constant("joined", [1, length, WIDTH], np.int64))
    nodes.append(helper.make_node("MatMul", [joined, "out"], ["y"]))
    tensor = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, length, WIDTH])
    graph = helper.make_graph(nodes, "attention", [tensor("x")], [tensor("y")], [*given, *constants.values()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def forebay(arguments, form, length, folder):
    """Losses, seconds per step, and peak bytes, of `forebay train`."""
    path = os.path.join(folder, f"{form}.onnx")
    onnx.save(model(form, length), path)
    frozen = [] if form == "operator" else ["--freeze", "mask", "--freeze", "scale"]
    command = [arguments.forebay, "train", path, "--data", os.path.join(folder, "data.npz"), "--loss", "mse", "--batch-size", "1", "--steps",
               str(arguments.steps), "--learning-rate", str(RATE), "--threads", str(arguments.threads), "--no-compare", "--json", *frozen]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    report = json.loads(done.stdout)
    return [step["loss"] for step in report["steps"]], [step["seconds"] for step in report["steps"]], report["resident_peak_bytes"]


def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def torch_steps(arguments, form, x, y):
    """Losses, seconds per step, and peak bytes, of PyTorch."""
    torch.set_num_threads(arguments.threads)
    before = status("VmRSS")
    named = {name: torch.from_numpy(array).requires_grad_() for name, array in weights().items()}
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    length = x.shape[1]
    mask = torch.full((length, length), -1e9).triu(1) if form == "unfused" else None
    optimizer = torch.optim.SGD(named.values(), lr=RATE)
    losses, seconds = [], []
    for _ in range(arguments.steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        query, key, value = ((x @ named[part]).reshape(1, length, HEADS, SIZE).transpose(1, 2) for part in ("query", "key", "value"))
        if form == "unfused":
            mixed = F.softmax(query @ key.transpose(2, 3) * SIZE ** -0.5 + mask, dim=-1) @ value
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        loss = F.mse_loss(mixed.transpose(1, 2).reshape(1, length, WIDTH) @ named["out"], y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return losses, seconds, status("VmHWM") - before


def in_child(*arguments):
    """The result of `torch_steps` in a separate process, so that its memory can be measured."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(torch_steps, arguments)


FORMS = {
    "Forebay, Attention": lambda arguments, folder, x, y: forebay(arguments, "operator", x.shape[1], folder),
    "Forebay, products and a softmax": lambda arguments, folder, x, y: forebay(arguments, "products", x.shape[1], folder),
    "Forebay, unfused": lambda arguments, folder, x, y: forebay(arguments, "unfused", x.shape[1], folder),
    "PyTorch, scaled_dot_product_attention": lambda arguments, folder, x, y: in_child(arguments, "fused", x, y),
    "PyTorch, unfused": lambda arguments, folder, x, y: in_child(arguments, "unfused", x, y),
}


def rows_of(arguments, length):
    """A row for each form at a length."""
    random = np.random.default_rng(length)
    x, y = (random.standard_normal((1, length, WIDTH)).astype(np.float32) for _ in range(2))
    expected = None
    with tempfile.TemporaryDirectory() as folder:
        np.savez(os.path.join(folder, "data.npz"), x=x, y=y)
        for name, run in FORMS.items():
            if name.endswith("unfused") and STORED * HEADS * length * length * 4 > arguments.limit << 20:
                yield [length, name, None, None]
                print(f"{length:6} {name:40} not run: --limit {arguments.limit} MiB", flush=True)
                continue
            losses, seconds, peak = run(arguments, folder, x, y)
            expected = expected or losses
            if not np.allclose(losses, expected, rtol=TOLERANCE, atol=0):
                raise SystemExit(f"{name} at {length}: losses {losses}, not {expected}")
            step = statistics.median(seconds[2:])
            print(f"{length:6} {name:40} {step:9.4f} s {peak / (1 << 20):8.1f} MiB", flush=True)
            yield [length, name, step, peak / (1 << 20)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recording.add_program(parser)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--steps", type=int, default=6, help="steps of training, of which the first two do not count [default: 6]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=int, default=8192, metavar="MiB", help="the memory that forms that store scores may take [default: 8192]")
    parser.add_argument("--busy", action="store_true", help="note in the record that other work kept the machine busy")
    recording.add_output(parser)
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error("--steps: the first two are not timed, so at least three are needed")
    rows = [row for length in arguments.lengths for row in rows_of(arguments, length)]
    columns = [recording.column("length", digits=0), recording.column("form"), recording.column("step", "s", 4, "median"),
               recording.column("memory", "MiB", 1)]
    recording.save(arguments.output, "attention", "Training steps of one layer of attention",
                   [recording.table("steps", columns, rows)], software={"PyTorch": torch.__version__},
                   conditions=f"{arguments.threads} threads each; causal, {HEADS} heads of {SIZE} elements, one sequence; "
                              f"medians of {arguments.steps - 2} steps; memory of a process: of Forebay's all, of PyTorch's what training "
                              f"adds to it{'; other work kept the machine busy' if arguments.busy else ''}")


if __name__ == "__main__":
    main()
