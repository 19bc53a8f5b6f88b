"""How outputs are compared with ONNX Runtime's: its integer sums are made exact, and what rounding explains of a difference is measured
with weights that are slightly different."""
import numpy as np
import onnx
from onnx import numpy_helper

# Sums of a few hundred products of float32 are about this exact.
STEP = 1e-6
# Outputs agree where they differ by no more than this many times what such weights change.
FACTOR = 4


def make_integer_sums_exact(options):
    """Sets the session option of ONNX Runtime with which sums of products of 8-bit integers do not saturate on x86 processors without
    VNNI. Sessions that are timed keep the default, which is what people run."""
    options.add_session_config_entry("session.x64quantprecision", "1")


def moved(path, seed):
    """The model with every real weight moved by up to [`STEP`] of itself, as bytes."""
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
    """The largest difference that such weights make: `run` gives the outputs of a model, `difference` compares them with those that
    the model itself gives."""
    return max(difference(run(moved(path, seed))) for seed in range(3))
