"""Small networks, changed by the tools that come with ONNX Runtime, with random inputs and what ONNX Runtime makes of them."""

import logging
import os
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

FOLDER = sys.argv[1]
RANDOM = np.random.default_rng(2)
logging.disable(logging.CRITICAL)


class Network:
    """A network that grows node by node."""

    def __init__(self, name, kind, array, output):
        self.name, self.feeds, self.nodes, self.weights, self.output = name, {"x": array}, [], [], output
        self.input = helper.make_tensor_value_info("x", kind, array.shape)

    def weight(self, *shape, scale=1.0):
        array = (scale * RANDOM.standard_normal(shape)).astype(np.float32)
        return self.constant(array)

    def constant(self, array):
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def add(self, operator, *inputs, **attributes):
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name=f"n{len(self.nodes)}", **attributes))
        return output

    def save(self, path, last):
        self.nodes.append(helper.make_node("Identity", [last], ["y"], name="last"))
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, self.output)
        graph = helper.make_graph(self.nodes, self.name, [self.input], [output], self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def convolutional(path):
    net = Network("convolutional", TensorProto.FLOAT, RANDOM.standard_normal((2, 3, 12, 12)).astype(np.float32), [2, 5])
    x = net.add("Conv", "x", net.weight(8, 3, 3, 3, scale=0.3), net.weight(8), pads=[1, 1, 1, 1])
    x = net.add("LeakyRelu", x, alpha=0.1)
    # Nine numbers: their average never lies between two steps.
    x = net.add("AveragePool", x, kernel_shape=[3, 3], strides=[3, 3])
    y = net.add("Conv", x, net.weight(8, 1, 3, 3, scale=0.5), net.weight(8), pads=[1, 1, 1, 1], group=8)
    y = net.add("Mul", y, net.add("Sigmoid", y))
    x = net.add("Concat", net.add("Add", x, y), x, axis=1)
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    net.save(path, net.add("Gemm", x, net.weight(5, 16, scale=0.5), net.weight(5), transB=1))
    return net.feeds


def attending(path):
    net = Network("attending", TensorProto.INT64, RANDOM.integers(0, 32, (2, 6)), [2, 6, 4])
    x = net.add("Gather", net.weight(32, 16), "x")
    x = net.add("LayerNormalization", x, net.constant(np.ones(16, np.float32)), net.weight(16), axis=-1)
    q, k, v = (net.add("MatMul", x, net.weight(16, 16, scale=0.2)) for _ in range(3))
    scores = net.add("Softmax", net.add("MatMul", q, net.add("Transpose", k, perm=[0, 2, 1])), axis=-1)
    x = net.add("Add", x, net.add("MatMul", scores, v))
    y = net.add("Add", net.add("MatMul", x, net.weight(16, 32, scale=0.2)), net.weight(32))
    half = net.add("Mul", y, net.constant(np.array(0.5, np.float32)))
    erf = net.add("Erf", net.add("Div", y, net.constant(np.array(np.sqrt(2), np.float32))))
    y = net.add("Mul", half, net.add("Add", erf, net.constant(np.array(1, np.float32))))
    net.save(path, net.add("MatMul", y, net.weight(32, 4, scale=0.2)))
    return net.feeds


def recurrent(path):
    net = Network("recurrent", TensorProto.FLOAT, RANDOM.standard_normal((5, 1, 6)).astype(np.float32), [5, 2, 1, 8])
    weights = [net.weight(2, 32, 6, scale=0.4), net.weight(2, 32, 8, scale=0.4), net.weight(2, 64, scale=0.4)]
    net.save(path, net.add("LSTM", "x", *weights, direction="bidirectional", hidden_size=8))
    return net.feeds


class Feeds(CalibrationDataReader):
    """Inputs, once."""

    def __init__(self, feeds):
        self.left = iter([feeds])

    def get_next(self):
        return next(self.left, None)


def static(form, **options):
    # 7 bits: on some CPUs, ONNX Runtime's products of larger signed weights saturate.
    return lambda source, target, feeds: quantize_static(source, target, Feeds(feeds), quant_format=form, reduce_range=True, **options)


def session(source, target, _):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = target
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def dynamic(source, target, _):
    quantize_dynamic(source, target, reduce_range=True)


def optimized_dynamic(source, target, feeds):
    dynamic(source, target + ".first", feeds)
    session(target + ".first", target, feeds)


TOOLS = {
    "dynamic": dynamic,
    "columns": lambda source, target, _: quantize_dynamic(source, target, per_channel=True, reduce_range=True),
    "pairs": static(QuantFormat.QDQ),
    "operators": static(QuantFormat.QOperator, activation_type=QuantType.QUInt8, weight_type=QuantType.QUInt8),
    "session": session,
    "session_dynamic": optimized_dynamic,
}

for build in (convolutional, attending, recurrent):
    os.makedirs(FOLDER, exist_ok=True)
    source = os.path.join(FOLDER, f"{build.__name__}.onnx")
    feeds = build(source)
    for tool, change in TOOLS.items():
        name = f"{build.__name__}-{tool}"
        target = os.path.join(FOLDER, name, "model.onnx")
        os.makedirs(os.path.dirname(target))
        change(source, target, feeds)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        peer = onnxruntime.InferenceSession(target, options, providers=["CPUExecutionProvider"])
        np.savez(os.path.join(FOLDER, name, "inputs.npz"), **feeds)
        np.savez(os.path.join(FOLDER, name, "outputs.npz"), y=peer.run(["y"], feeds)[0])
        print(name)
