#!/usr/bin/env python3
"""Quantized models next to ONNX Runtime: whether outputs are the same, and how long a run takes.

    cargo build --release
    python3 benches/quantized.py                      # needs: pip install onnx onnxruntime numpy

The models have random weights. `convolutions` is a chain of a residual network's bottlenecks of
`QLinearConv`, as written by static quantization; `transformer` is an encoder of `DynamicQuantizeLinear` and `MatMulInteger`, as written by
dynamic quantization; `matrix` is one large `MatMulInteger`, and `vector` is the same for one row. Runs of both programs take turns.
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
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import recording
import rounding


class Model:
    """Nodes and weights that are added one after another."""

    def __init__(self, seed):
        self.random, self.nodes, self.weights, self.count = np.random.default_rng(seed), [], [], 0

    def constant(self, array):
        self.count += 1
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"w{self.count}"))
        return f"w{self.count}"

    def node(self, kind, inputs, outputs=1, **attributes):
        self.count += 1
        names = [f"v{self.count}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def bytes(self, *sizes):
        return self.random.integers(-127, 128, sizes, dtype=np.int8)

    def save(self, path, feeds, output, output_type):
        types = {np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.float32): TensorProto.FLOAT}
        inputs = [helper.make_tensor_value_info(name, types[array.dtype], array.shape) for name, array in feeds.items()]
        self.nodes.append(helper.make_node("Identity", [output], ["y"]))
        graph = helper.make_graph(self.nodes, "quantized", inputs,
                                  [helper.make_tensor_value_info("y", output_type, None)], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)


def convolutions(path):
    """Stages of bottlenecks, whose channels double while their sides halve."""
    model = Model(1)
    one, zero = model.constant(np.float32(0.02)), model.constant(np.uint8(0))

    def convolution(x, inputs, outputs, kernel, stride):
        scale = (model.random.random(outputs) * 0.01 + 0.015).astype(np.float32) / np.float32(np.sqrt(inputs * kernel ** 2))
        weights, bias = model.bytes(outputs, inputs, kernel, kernel), model.random.integers(-999, 1000, outputs, dtype=np.int32)
        zeros = model.constant(np.zeros(outputs, np.int8))
        reads = [x, one, zero, model.constant(weights), model.constant(scale), zeros, one, zero, model.constant(bias)]
        pad = kernel // 2
        return model.node("QLinearConv", reads, strides=[stride] * 2, pads=[pad] * 4, kernel_shape=[kernel] * 2)

    x = convolution("x", 3, 64, 7, 2)
    channels = 64
    for width in [64, 128, 256, 512]:
        for block in range(2):
            stride = 2 if block == 0 else 1
            inner = convolution(x, channels, width, 1, 1)
            inner = convolution(inner, width, width, 3, stride)
            inner = convolution(inner, width, width * 2, 1, 1)
            x, channels = inner, width * 2
    feeds = {"x": model.random.integers(0, 256, (1, 3, 224, 224), dtype=np.uint8)}
    model.save(path, feeds, x, TensorProto.UINT8)
    return feeds


def transformer(path, rows=128, width=768, layers=2):
    """The products of encoder layers, each multiplying quantized activations by weights."""
    model = Model(2)

    def product(x, inputs, outputs):
        quantized, scale, zero = model.node("DynamicQuantizeLinear", [x], 3)
        weights = model.constant(model.bytes(inputs, outputs))
        sums = model.node("MatMulInteger", [quantized, weights, zero, model.constant(np.int8(0))])
        of_both = model.node("Mul", [scale, model.constant(np.float32(0.02 / np.sqrt(inputs)))])
        real = model.node("Mul", [model.node("Cast", [sums], to=TensorProto.FLOAT), of_both])
        return model.node("Add", [real, model.constant(model.random.random(outputs).astype(np.float32))])

    x = "x"
    for _ in range(layers):
        q, k, v = (product(x, width, width) for _ in range(3))
        mixed = model.node("Add", [model.node("Mul", [q, model.node("Sigmoid", [k])]), v])
        x = model.node("Add", [x, product(mixed, width, width)])
        inner = model.node("Relu", [product(x, width, 4 * width)])
        x = model.node("Add", [x, product(inner, 4 * width, width)])
    feeds = {"x": model.random.standard_normal((rows, width)).astype(np.float32)}
    model.save(path, feeds, x, TensorProto.FLOAT)
    return feeds


def matrix(path, rows=256, inner=2048, columns=2048):
    """One product."""
    model = Model(3)
    weights = model.constant(model.bytes(inner, columns))
    y = model.node("MatMulInteger", ["x", weights, model.constant(np.uint8(120)), model.constant(np.int8(0))])
    feeds = {"x": model.random.integers(0, 256, (rows, inner), dtype=np.uint8)}
    model.save(path, feeds, y, TensorProto.INT32)
    return feeds


MODELS = {"convolutions": convolutions, "transformer": transformer, "matrix": matrix, "vector": lambda path: matrix(path, rows=1)}


def run_forebay(arguments, path, feeds, folder):
    """The output and the median seconds of a run."""
    call = [arguments.forebay, "run", path, "--output-dir", os.path.join(folder, "outputs"), "--threads", str(arguments.threads),
            "--repeat", str(arguments.repeat), "--json"]
    for name, array in feeds.items():
        np.save(os.path.join(folder, f"{name}.npy"), array)
        call += ["--input", f"{name}={os.path.join(folder, name)}.npy"]
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"forebay run failed: {done.stderr}")
    return np.load(os.path.join(folder, "outputs", "y.npy")), json.loads(done.stdout)["seconds_median"]


def time_peer(session, feeds, repeat):
    """The median seconds of a run in ONNX Runtime."""
    seconds = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        session.run(["y"], feeds)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recording.add_program(parser)
    parser.add_argument("--only", choices=MODELS, help="this model only")
    parser.add_argument("--rounds", type=int, default=5, help="how often both take turns [default: 5]")
    parser.add_argument("--repeat", type=int, default=5, help="timed runs of each turn [default: 5]")
    parser.add_argument("--threads", type=int, default=2)
    recording.add_output(parser)
    arguments = parser.parse_args()
    recording.check_program(parser, arguments.forebay)
    rows = []
    for name in [arguments.only] if arguments.only else MODELS:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.onnx")
            feeds = MODELS[name](path)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = arguments.threads
            options.log_severity_level = 3
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            rounding.make_integer_sums_exact(options)
            exact = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            expected, = exact.run(["y"], feeds)
            own, peers = [], []
            for _ in range(arguments.rounds):
                found, seconds = run_forebay(arguments, path, feeds, folder)
                own.append(seconds)
                peers.append(time_peer(session, feeds, arguments.repeat))
        wrong = int(np.sum(found != expected)) if found.dtype.kind in "iu" else None
        far = 0.0 if wrong is not None else float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
        seconds, peer = statistics.median(own), statistics.median(peers)
        rows.append([name, seconds, peer, seconds / peer, wrong, far])
        print(f"{name:14} {seconds:.4f} s, ONNX Runtime {peer:.4f} s: {seconds / peer:.2f} times; "
              f"{f'{wrong} elements differ' if wrong is not None else f'outputs differ by {far:.1e}'}", flush=True)
    columns = [recording.column("model"), recording.column("run", "s", 4, "median"),
               recording.column("run, ONNX Runtime", "s", 4, "median"), recording.column("ratio", digits=2),
               recording.column("integers that differ"), recording.column("real outputs differ by")]
    recording.save(arguments.output, "quantized", "Quantized models next to ONNX Runtime",
                   [recording.table("models", columns, rows)], software={"ONNX Runtime": onnxruntime.__version__},
                   conditions=f"{arguments.threads} threads each; {arguments.rounds} turns of {arguments.repeat} runs, medians of medians; "
                              "random weights; differences are shares of the largest output")


if __name__ == "__main__":
    main()
