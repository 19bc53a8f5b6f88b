#!/usr/bin/env python3
"""Writes chain.onnx and diamond.onnx next to this file: the two smallest graphs that show what barriers are for.

    pip install onnx numpy
    python3 examples/barriers/make.py

A chain (convolution, ReLU, batch normalization) needs a barrier between any two consecutive kernels. A diamond (pooling, two
convolutions, concatenation) needs just as many for its four nodes: both convolutions run between the same two barriers.
"""

from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save_model

FOLDER = Path(__file__).parent
RANDOM = np.random.default_rng(0)


def weight(name, *shape):
    """A convolution's weight, scaled so that output and input have about the same variance."""
    values = RANDOM.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return numpy_helper.from_array(values.astype(np.float32), name)


def per_channel(name, value, channels):
    return numpy_helper.from_array(np.full(channels, value, np.float32), name)


def write(name, nodes, initializers, channels_in, channels_out, size_in, size_out):
    def port(label, channels, size):
        return helper.make_tensor_value_info(label, TensorProto.FLOAT, [1, channels, size, size])

    graph = helper.make_graph(
        nodes, name, [port("x", channels_in, size_in)], [port("y", channels_out, size_out)], initializers
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="forebay")
    model.ir_version = 8
    checker.check_model(model, full_check=True)
    save_model(model, str(FOLDER / f"{name}.onnx"))


def chain():
    statistics = [per_channel(n, v, 16) for n, v in (("scale", 1.5), ("bias", 0.5), ("mean", 0.25), ("variance", 2.0))]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu1"),
        helper.make_node("BatchNormalization", ["b", "scale", "bias", "mean", "variance"], ["y"], "batch1"),
    ]
    write("chain", nodes, [weight("w", 16, 8, 3, 3), *statistics], 8, 16, 64, 64)


def diamond():
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], "pool1", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "w1"], ["a"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["p", "w2"], ["b"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["a", "b"], ["y"], "join1", axis=1),
    ]
    write("diamond", nodes, [weight("w1", 16, 16, 3, 3), weight("w2", 16, 16, 3, 3)], 16, 32, 256, 128)


chain()
diamond()
