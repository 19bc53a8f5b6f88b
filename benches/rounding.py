"""Comparison of outputs with ONNX Runtime's: its integer sums are made exact, and slightly different weights measure how much of a
difference is explained by rounding."""
import numpy as np
import onnx
from onnx import numpy_helper

# The approximate accuracy of sums of a few hundred float32 products.
STEP = 1e-6
# Outputs agree if they differ by at most this many times the change caused by such weights.
FACTOR = 4


def make_integer_sums_exact(options):
    """Sets the ONNX Runtime session option with which sums of products of 8-bit integers do not saturate on x86 processors without VNNI.
    Timed sessions keep the default, which is what people run."""
    options.add_session_config_entry("session.x64quantprecision", "1")


def moved(path, seed):
    """The model as bytes, with every floating-point weight changed by up to [`STEP`] of its value."""
    random = np.random.default_rng(seed)
    model = onnx.load(path)
    tensors = [*model.graph.initializer, *[attribute.t for node in model.graph.node if node.op_type == "Constant"
                                           for attribute in node.attribute if attribute.name == "value"]]
    for tensor in tensors:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor)
            changed = (values * (1 + STEP * random.uniform(-1, 1, values.shape))).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    return model.SerializeToString()


def sensitivity(path, run, difference):
    """The largest difference that such weights make: `run` returns the outputs of a model, and `difference` compares them with those of
    the original model."""
    return max(difference(run(moved(path, seed))) for seed in range(3))
