"""Models of one operator of com.microsoft each, with random inputs and what ONNX Runtime makes of them."""

import math
import os
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FOLDER = sys.argv[1]
RANDOM = np.random.default_rng(1)
TYPES = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64, "bool": TensorProto.BOOL,
         "uint8": TensorProto.UINT8, "int8": TensorProto.INT8}


def values(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


class Constant:
    """An initializer."""

    def __init__(self, array):
        self.array = array


def computed(model, outputs, fed):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(outputs, fed)


def case(name, operator, inputs, outputs=("y",), domain="com.microsoft", kinds=(), version=17, expected=None, **attributes):
    """Inputs are arrays, constants, or None; outputs are names, or empty ones, and of the `kinds`, or of float32. What they should be is
    `expected` for operators that ONNX Runtime does not have on CPUs."""
    fed, initializers, names = {}, [], []
    for i, value in enumerate(inputs):
        names.append("" if value is None else f"x{i}")
        if isinstance(value, Constant):
            array = value.array
            initializers.append(array if isinstance(array, TensorProto) else numpy_helper.from_array(array, f"x{i}"))
            initializers[-1].name = f"x{i}"
        elif value is not None:
            fed[f"x{i}"] = value
    infos = [helper.make_tensor_value_info(k, TYPES[str(v.dtype)], v.shape) for k, v in fed.items()]
    kind_of = dict(zip(outputs, [*kinds, *[TensorProto.FLOAT] * len(outputs)]))
    results = [helper.make_tensor_value_info(name, kind_of[name], None) for name in outputs if name]
    node = helper.make_node(operator, names, list(outputs), domain=domain, **attributes)
    graph = helper.make_graph([node], name, infos, results, initializers)
    opsets = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    found = expected or computed(model, [name for name in outputs if name], fed)
    # The shapes of outputs as they are.
    for info, array in zip(graph.output, found):
        info.CopyFrom(helper.make_tensor_value_info(info.name, kind_of[info.name], array.shape))
    model.graph.CopyFrom(graph)
    path = os.path.join(FOLDER, name)
    os.makedirs(path)
    onnx.save(model, os.path.join(path, "model.onnx"))
    np.savez(os.path.join(path, "inputs.npz"), **fed)
    np.savez(os.path.join(path, "outputs.npz"), **{k: v for k, v in zip([o for o in outputs if o], found)})
    print(name)


x = values(2, 3, 8)
case("gelu", "Gelu", [x])
case("fast_gelu", "FastGelu", [x])
case("fast_gelu_bias", "FastGelu", [x, values(8)])
case("bias_gelu", "BiasGelu", [x, values(8)])
case("quick_gelu", "QuickGelu", [x], alpha=1.3)
case("quick_gelu_default", "QuickGelu", [x])

case("fused_matmul", "FusedMatMul", [values(5, 3, 2), values(5, 4, 3)], transA=1, transB=1, alpha=0.5)
case("fused_matmul_rows", "FusedMatMul", [values(5, 3, 2), values(2, 4)], alpha=2.0)
case("fused_matmul_batch", "FusedMatMul", [values(3, 5, 2), values(5, 2, 4)], transBatchA=1)
case("fused_gemm", "FusedGemm", [values(2, 3), values(4, 3), values(4)], transB=1, activation="Relu")
case("fused_gemm_leaky", "FusedGemm", [values(2, 3), values(3, 4), values(4)], activation="LeakyRelu", activation_alpha=0.3)
case("fused_gemm_softsign", "FusedGemm", [values(2, 3), values(3, 4), values(4)], activation="Softsign")
case("fused_gemm_threshold", "FusedGemm", [values(2, 3), values(3, 4), values(4)], activation="ThresholdedRelu", activation_alpha=0.3)
case("fused_gemm_selu", "FusedGemm", [values(2, 3), values(3, 4), values(4)], activation="Selu", activation_alpha=1.5, activation_gamma=1.2)
case("fused_conv", "FusedConv", [values(1, 2, 6, 6), values(4, 2, 3, 3), values(4)], activation="Relu", pads=[1, 1, 1, 1])
case("fused_conv_sum", "FusedConv", [values(1, 2, 6, 6), values(4, 2, 3, 3), values(4), values(1, 4, 4, 4)], activation="Relu")
case("fused_conv_leaky", "FusedConv", [values(1, 2, 6, 6), values(4, 2, 3, 3)], activation="LeakyRelu", activation_params=[0.2])

case("skip_layer_norm", "SkipLayerNormalization", [x, values(2, 3, 8), values(8), values(8), values(8)], epsilon=1e-5)
case("skip_layer_norm_sum", "SkipLayerNormalization", [x, values(2, 3, 8), values(8), values(8)], ("y", "", "", "sum"))
case("skip_simplified", "SkipSimplifiedLayerNormalization", [x, values(2, 3, 8), values(8), values(8)], ("y", "", "", "sum"), epsilon=1e-6)
case("simplified", "SimplifiedLayerNormalization", [x, values(8)], domain="", epsilon=1e-6, axis=-1, stash_type=1)

angles = RANDOM.uniform(-3, 3, (16, 2)).astype(np.float32)
tables = [np.cos(angles), np.sin(angles)]
positions = np.array([[4, 5, 6], [0, 1, 2]], np.int64)
case("rotary", "RotaryEmbedding", [x, positions, *tables])
case("rotary_interleaved", "RotaryEmbedding", [x, positions, *tables], interleaved=1)
case("rotary_heads", "RotaryEmbedding", [values(2, 2, 3, 4), np.array([7], np.int64), *tables])
case("rotary_partial", "RotaryEmbedding", [values(2, 3, 12), positions, *tables], num_heads=2, rotary_embedding_dim=4)

streams = RANDOM.integers(0, 16, (3, 2, 4))
turns = RANDOM.uniform(-3, 3, (16, 8)).astype(np.float32)
turns = [np.cos(turns), np.sin(turns)]
sections = {"mrope_section": [4, 2, 2]}
case("rotary_streams", "MRotaryEmbedding", [values(2, 4, 32), streams, *turns], num_heads=2, **sections)
case("rotary_streams_partial", "MRotaryEmbedding", [values(2, 3, 4, 20), streams, *turns], num_heads=3, rotary_embedding_dim=16, **sections)
case("rotary_streams_in_turn", "MRotaryEmbedding", [values(2, 4, 32), streams, *turns], num_heads=2, mrope_layout=1, **sections)

q, k, v = values(2, 3, 8), values(2, 5, 8), values(2, 5, 8)
heads = {"num_heads": 2}
past = [values(2, 2, 4, 4), values(2, 2, 4, 4)]
flags = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
case("mha", "MultiHeadAttention", [q, k, v], **heads)
case("mha_bias", "MultiHeadAttention", [q, k, v, values(24), flags, values(1, 2, 3, 5)], **heads)
case("mha_lengths", "MultiHeadAttention", [q, k, v, None, np.array([2, 5], np.int32)], scale=0.3, **heads)
case("mha_causal", "MultiHeadAttention", [q, values(2, 3, 8), values(2, 3, 8)], unidirectional=1, **heads)
case("mha_by_heads", "MultiHeadAttention", [q, values(2, 2, 5, 4), values(2, 2, 5, 4)], **heads)
case("mha_past", "MultiHeadAttention", [q, values(2, 3, 8), values(2, 3, 8), None, None, None, *past], ("y", "k", "v"), **heads)
case("mha_value_size", "MultiHeadAttention", [q, k, values(2, 5, 12)], **heads)

weights, bias = values(8, 24), values(24)
case("attention", "Attention", [x, weights, bias], **heads)
case("attention_causal", "Attention", [x, weights, bias], unidirectional=1, **heads)
case("attention_lengths", "Attention", [x, weights, bias, np.array([1, 3], np.int32)], **heads)
case("attention_flags", "Attention", [x, weights, bias, np.array([[1, 0, 1], [1, 1, 1]], np.int32)], **heads)
case("attention_ends_starts", "Attention", [x, weights, bias, np.array([2, 3, 0, 1], np.int32)], **heads)
case("attention_no_flags", "Attention", [x, weights, bias, np.array([[1], [0]], np.int32)], **heads)
case("attention_past", "Attention", [x, weights, bias, None, values(2, 2, 2, 4, 4)], ("y", "present"), unidirectional=1, **heads)
case("attention_sizes", "Attention", [x, values(8, 28), values(28)], qkv_hidden_sizes=[8, 8, 12], **heads)

groups = {"num_heads": 4, "kv_num_heads": 2}
# Heads of a multiple of 16 elements, as the operator wants them.
q, k, v = values(2, 3, 64), values(2, 3, 32), values(2, 3, 32)
angles = RANDOM.uniform(-3, 3, (16, 8)).astype(np.float32)
tables = [np.cos(angles), np.sin(angles)]
last, total = Constant(np.array([2, 2], np.int32)), Constant(np.array(3, np.int32))
outputs = ("y", "k", "v")
case("gqa", "GroupQueryAttention", [q, k, v, None, None, last, total], outputs, **groups)
case("gqa_rotary", "GroupQueryAttention", [q, k, v, None, None, last, total, *tables], outputs, do_rotary=1, **groups)
case("gqa_packed", "GroupQueryAttention", [values(2, 3, 128), None, None, None, None, last, total, *tables], outputs, do_rotary=1, rotary_interleaved=1, **groups)
case("gqa_window", "GroupQueryAttention", [q, k, v, None, None, last, total], outputs, local_window_size=2, softcap=2.0, **groups)
past = [values(2, 2, 4, 16), values(2, 2, 4, 16)]
one = [values(2, 1, 64), values(2, 1, 32), values(2, 1, 32)]
last, total = Constant(np.array([4, 4], np.int32)), Constant(np.array(5, np.int32))
case("gqa_past", "GroupQueryAttention", [*one, *past, last, total, *tables], outputs, do_rotary=1, scale=0.25, **groups)
case("gqa_past_window", "GroupQueryAttention", [*one, *past, last, total, *tables], outputs, do_rotary=1, local_window_size=3, **groups)


def packed(*shape):
    return Constant(RANDOM.integers(0, 256, shape, dtype=np.uint8))


bits = {"K": 40, "N": 6, "block_size": 16}
case("bits_4", "MatMulNBits", [values(2, 3, 40), packed(6, 3, 8), Constant(values(6, 3))], bits=4, **bits)
case("bits_4_zeros", "MatMulNBits", [values(3, 40), packed(6, 3, 8), Constant(values(6, 3)), packed(6, 2)], bits=4, **bits)
case("bits_2", "MatMulNBits", [values(3, 40), packed(6, 3, 4), Constant(values(6, 3))], bits=2, **bits)
case("bits_2_zeros", "MatMulNBits", [values(3, 40), packed(6, 3, 4), Constant(values(6, 3)), packed(6, 1)], bits=2, **bits)
case("bits_8", "MatMulNBits", [values(3, 40), packed(6, 3, 16), Constant(values(6, 3))], bits=8, **bits)
case("matmul_of_transposed", "TransposeMatMul", [values(2, 4, 3), values(2, 4, 5)], transA=1, alpha=0.5)
codes = {"K": 40, "N": 6, "block_size": 16}
for kind, name in enumerate(["fp4", "nf4"]):
    case(f"codes_{name}", "MatMulBnb4", [values(2, 3, 40), packed(120), Constant(values(15))], quant_type=kind, **codes)
# The last block has fewer elements, and the last byte holds one.
odd = {"K": 5, "N": 7, "block_size": 16}
case("codes_odd", "MatMulBnb4", [values(3, 5), packed(18), Constant(values(3))], quant_type=1, **odd)
case("bits_4_bias", "MatMulNBits", [values(3, 40), packed(6, 3, 8), Constant(values(6, 3)), None, None, values(6)], bits=4, **bits)


def integers(kind, *shape):
    """Signed ones have 7 bits: on some CPUs, ONNX Runtime's products of larger ones with bytes saturate."""
    low, high = (-64, 64) if np.dtype(kind) == np.int8 else (0, 256)
    return RANDOM.integers(low, high, shape).astype(kind)


def quantized(kind, *shape, scale=0.03):
    """Integers, their scale and their zero point."""
    return [Constant(integers(kind, *shape)), Constant(np.array(scale, np.float32)), Constant(np.array(3, kind))]


def fed(kind, *shape, scale=0.03):
    return [integers(kind, *shape), *quantized(kind, 1, scale=scale)[1:]]


def target(kind, scale):
    return [Constant(np.array(scale, np.float32)), Constant(np.array(5, kind))]


BYTES, SIGNED = (TensorProto.UINT8,), (TensorProto.INT8,)
case("q_leaky", "QLinearLeakyRelu", [*fed(np.uint8, 2, 3, 8), *target(np.uint8, 0.03)], kinds=BYTES, alpha=0.2)
case("q_softmax", "QLinearSoftmax", [*fed(np.uint8, 2, 3, 8), *target(np.uint8, 1 / 256)], kinds=BYTES, axis=-1, opset=13)
case("q_softmax_rows", "QLinearSoftmax", [*fed(np.int8, 2, 3, 8), *target(np.int8, 1 / 256)], kinds=SIGNED, axis=1, opset=11)
case("q_softmax_axis", "QLinearSoftmax", [*fed(np.uint8, 2, 3, 8), *target(np.uint8, 1 / 256)], kinds=BYTES, axis=1, opset=13)
windows = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
case("q_average", "QLinearAveragePool", [*fed(np.uint8, 1, 2, 6, 5), *target(np.uint8, 0.02)], kinds=BYTES, **windows)
case("q_average_last", "QLinearAveragePool", [*fed(np.uint8, 1, 6, 5, 2), *target(np.uint8, 0.02)], kinds=BYTES, channels_last=1,
     count_include_pad=1, **windows)
case("q_where", "QLinearWhere", [RANDOM.random((3, 1)) < 0.5, *quantized(np.uint8, 2, 3, 4), *quantized(np.uint8, 1, scale=0.05),
                                 *target(np.uint8, 0.04)], kinds=BYTES)
case("integer_to_float", "MatMulIntegerToFloat",
     [integers(np.uint8, 2, 3, 40), Constant(integers(np.int8, 40, 6)), Constant(np.array(0.02, np.float32)),
      Constant(values(6)), Constant(np.array(7, np.uint8)), Constant(integers(np.int8, 6)), Constant(values(6))])

words = RANDOM.integers(0, 9, (2, 3)).astype(np.int32)
segments = RANDOM.integers(0, 2, (2, 3)).astype(np.int32)
mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
tables = [values(9, 8), values(5, 8), values(2, 8), values(8), values(8)]
counts = (TensorProto.FLOAT, TensorProto.INT32)
case("embed", "EmbedLayerNormalization", [words, segments, *tables, mask], ("y", "counts", "sum"), kinds=counts)
case("embed_positions", "EmbedLayerNormalization", [words, None, *tables[:2], None, *tables[3:], None, words % 5], ("y", "counts"),
     kinds=counts, epsilon=1e-5)
many = [quantized(np.uint8, *table.shape) for table in tables]
case("q_embed", "QEmbedLayerNormalization",
     [words, segments, *[one[0] for one in many], mask, *[one[1] for one in many], *[one[2] for one in many]], ("y", "counts"), kinds=counts)
case("q_attention", "QAttention",
     [integers(np.uint8, 2, 3, 8), Constant(integers(np.int8, 8, 24)), Constant(bias), Constant(np.array(0.02, np.float32)),
      Constant(np.array(0.01, np.float32)), np.array([2, 3], np.int32), Constant(np.array(9, np.uint8)),
      Constant(np.array(0, np.int8))], **heads)

# The state of each sequence is quantized by itself, as with a thread for each: one sequence.
gates = {"hidden_size": 6, "direction": "bidirectional"}
recurrent = [None, values(2, 1, 6), values(2, 1, 6), None]
for name, kind, sizes in [("lstm", np.int8, (2,)), ("lstm_bytes", np.uint8, (2,)), ("lstm_columns", np.int8, (2, 24))]:
    zeros = Constant(np.zeros(sizes, kind) if kind == np.int8 else integers(kind, *sizes))
    scales = [Constant(0.01 + 0.01 * RANDOM.random(sizes).astype(np.float32)) for _ in range(2)]
    case(name, "DynamicQuantizeLSTM", [values(7, 1, 5), Constant(integers(kind, 2, 5, 24)), Constant(integers(kind, 2, 6, 24)),
                                       Constant(values(2, 48)), *recurrent, scales[0], zeros, scales[1], zeros], ("y", "h", "c"), **gates)

def table(kind, low, *shape):
    return Constant(helper.make_tensor("", kind, shape, RANDOM.integers(low, low + 16, int(np.prod(shape))).tolist()))


rows = RANDOM.integers(0, 7, (2, 3)).astype(np.int64)
case("gather_4", "GatherBlockQuantized", [table(TensorProto.INT4, -8, 7, 40), rows, Constant(values(7, 3))], block_size=16)
case("gather_4_zeros", "GatherBlockQuantized",
     [table(TensorProto.UINT4, 0, 7, 48), rows, Constant(values(7, 3)), table(TensorProto.UINT4, 0, 7, 3)], block_size=16)
case("dequantize_4", "DequantizeLinear", [table(TensorProto.INT4, -8, 4, 5), Constant(values(4)), table(TensorProto.INT4, -8, 4)],
     domain="", version=21, axis=0)
bytes_4 = [Constant(integers(np.uint8, 7, 20)), rows, Constant(values(7, 3))]
case("gather_bytes", "GatherBlockQuantized", bytes_4, block_size=16, bits=4)
case("gather_bytes_zeros", "GatherBlockQuantized", [*bytes_4, Constant(integers(np.uint8, 7, 2))], block_size=16, bits=4)
case("gather_bytes_8", "GatherBlockQuantized", [Constant(integers(np.uint8, 7, 40)), rows, Constant(values(7, 3))], block_size=16, bits=8)


def quantized_with(kind, shape, scales=(), zeros=()):
    """Integers, their scale and their zero point."""
    scale = RANDOM.uniform(0.01, 0.02, scales).astype(np.float32)
    return [integers(kind, *shape), Constant(scale), Constant(integers(kind, *zeros))]


def result(kind, scale):
    return [Constant(np.float32(scale)), Constant(integers(kind))]


for of_a in ("uint8", "int8"):
    for of_b in ("uint8", "int8"):
        a, b = integers(of_a, 2, 5, 67), integers(of_b, 67, 50)
        zeros = [Constant(integers(of_a)), Constant(integers(of_b, 50))]
        case(f"integers_{of_a}_{of_b}", "MatMulInteger", [a, b, *zeros], domain="", kinds=(TYPES["int32"],))
case("integers_one", "MatMulInteger", [integers("uint8", 7, 130), integers("int8", 130, 3)], domain="", kinds=(TYPES["int32"],))
case("integers_batch", "MatMulInteger", [integers("uint8", 3, 4, 6), integers("int8", 3, 6, 9)], domain="", kinds=(TYPES["int32"],))

window = {"pads": [1, 2, 1, 0], "strides": [2, 1], "dilations": [1, 2]}
zeros = [Constant(integers("uint8")), Constant(integers("uint8"))]
case("integer_conv", "ConvInteger", [integers("uint8", 2, 5, 11, 12), integers("uint8", 4, 5, 3, 3), *zeros], domain="", kinds=(TYPES["int32"],), **window)
for kind, groups, channels in (("uint8", 1, 7), ("int8", 1, 16), ("uint8", 2, 4), ("uint8", 6, 1)):
    weights = quantized_with("int8", (6, channels, 3, 3), (6,))
    weights[0], weights[2] = Constant(weights[0]), Constant(np.zeros(6, np.int8))
    x = quantized_with(kind, (2, channels * groups, 13, 14))
    bias = Constant(RANDOM.integers(-999, 999, 6, dtype=np.int32))
    name = f"quantized_conv_{kind}_{groups}"
    case(name, "QLinearConv", [*x, *weights, *result(kind, 0.5), bias], domain="", kinds=(TYPES[kind],), group=groups, **window)
case("quantized_product", "QLinearMatMul", [*quantized_with("uint8", (3, 4, 40)), *quantized_with("int8", (40, 20)), *result("uint8", 0.4)], domain="", kinds=(TYPES["uint8"],))
case("quantized_columns", "QLinearMatMul", [*quantized_with("uint8", (9, 40)), *quantized_with("int8", (40, 70), (70,), (70,)), *result("uint8", 0.4)], domain="", kinds=(TYPES["uint8"],))
case("quantized_gemm", "QGemm", [*quantized_with("uint8", (5, 33)), *quantized_with("int8", (20, 33)), Constant(RANDOM.integers(-999, 999, 20, dtype=np.int32)), *result("uint8", 0.4)], kinds=(TYPES["uint8"],), transB=1, alpha=0.8)
case("quantized_gemm_real", "QGemm", [*quantized_with("int8", (33, 5)), *quantized_with("int8", (33, 20))], transA=1)
case("dynamic_product", "DynamicQuantizeMatMul", [values(2, 5, 33), integers("int8", 33, 20), Constant(values(20)), Constant(integers("int8", 20)), values(20)])

# Sequences of different lengths, and caches that have room for more keys.
groups = {"num_heads": 4, "kv_num_heads": 2}
one = [values(2, 1, 64), values(2, 1, 32), values(2, 1, 32)]
tables = [np.cos(angles), np.sin(angles)]
past = [values(2, 2, 4, 16), values(2, 2, 4, 16)]
last, total = Constant(np.array([4, 2], np.int32)), Constant(np.array(5, np.int32))
case("gqa_uneven", "GroupQueryAttention", [*one, *past, last, total, *tables], outputs, do_rotary=1, **groups)
case("gqa_uneven_window", "GroupQueryAttention", [*one, *past, last, total, *tables], outputs, do_rotary=1, local_window_size=2, **groups)
room = [values(2, 2, 9, 16), values(2, 2, 9, 16)]
case("gqa_room", "GroupQueryAttention", [*one, *room, last, total, *tables, None, values(1, 4, 1, 5)], outputs, do_rotary=1, **groups)
new = [values(2, 3, 64), values(2, 3, 32), values(2, 3, 32)]
last, total = Constant(np.array([2, 2], np.int32)), Constant(np.array(3, np.int32))
case("gqa_room_prompt", "GroupQueryAttention", [*new, *room, last, total, *tables], outputs, do_rotary=1, **groups)
new, room = [x[:1] for x in new], [x[:1] for x in room]
last, total = Constant(np.array([5], np.int32)), Constant(np.array(6, np.int32))
case("gqa_room_more", "GroupQueryAttention", [*new, *room, last, total, *tables, None, values(1, 1, 3, 6)], outputs, do_rotary=1, **groups)

# Scores as further outputs. Before the softmax, ONNX Runtime writes finite numbers for keys that a row does not see, so here each row sees all.
flags = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
scores = ("y", "k", "v", "scores")
case("mha_scores", "MultiHeadAttention", [values(2, 3, 8), values(2, 5, 8), values(2, 5, 8), None, flags, values(1, 2, 3, 5)], scores, **heads)
new = [values(2, 1, 64), values(2, 1, 32), values(2, 1, 32)]
past = [values(2, 2, 4, 16), values(2, 2, 4, 16)]
last, total = Constant(np.array([4, 4], np.int32)), Constant(np.array(5, np.int32))
case("gqa_scores", "GroupQueryAttention", [*new, *past, last, total, *tables], scores, do_rotary=1, softcap=2.0, qk_output=1, **groups)
case("gqa_probabilities", "GroupQueryAttention", [*new, *past, last, total], scores, local_window_size=2, qk_output=2, **groups)

# Each head's sink takes a part of every row's probability.
new = [values(2, 3, 64), values(2, 3, 32), values(2, 3, 32)]
last, total = Constant(np.array([2, 2], np.int32)), Constant(np.array(3, np.int32))
prompt = [*new, None, None, last, total, *tables, None, None]
case("gqa_sinks", "GroupQueryAttention", [*prompt, values(4)], outputs, do_rotary=1, local_window_size=2, **groups)
case("gqa_smooth", "GroupQueryAttention", prompt, outputs, do_rotary=1, smooth_softmax=1, **groups)
last, total = Constant(np.array([4, 2], np.int32)), Constant(np.array(5, np.int32))
bias = values(1, 4, 1, 5)
case("gqa_sinks_past", "GroupQueryAttention", [*one, *past, last, total, *tables, None, bias, values(4)], outputs, do_rotary=1, **groups)


# The scores of distances, as in T5.
def buckets(queries, keys, both, count, farthest):
    distance = np.arange(queries)[:, None] - np.arange(keys)
    first = (distance < 0) * (count // 2) if both else 0
    count = count // 2 if both else count
    distance = np.abs(distance) if both else np.maximum(distance, 0)
    far = np.log(np.maximum(distance, 1).astype(np.float32) / (count // 2)) / np.log(farthest / (count // 2)) * (count - count // 2)
    return first + np.where(distance < count // 2, distance, np.minimum(count // 2 + far.astype(np.int64), count - 1))


table = values(8, 3)
for name, both, lengths in (("bias_both", 1, (5, 5)), ("bias_far", 1, (3, 40)), ("bias_causal", 0, (40, 40))):
    expected = [table[buckets(*lengths, both, 8, 20)].transpose(2, 0, 1)[None].copy()]
    case(name, "RelativePositionBias", [table, *(Constant(np.array([n], np.int64)) for n in lengths)], expected=expected, max_distance=20, is_bidirectional=both)


# Layers of diffusion models, with channels last.
def grouped(x, gamma, beta, groups, silu):
    parts = x.reshape(*x.shape[:-1], groups, -1).astype(np.float64)
    over = tuple(range(1, x.ndim - 1)) + (x.ndim,)
    parts = (parts - parts.mean(over, keepdims=True)) / np.sqrt(parts.var(over, keepdims=True) + 1e-5)
    y = parts.reshape(x.shape) * gamma + beta
    return (y / (1 + np.exp(-y)) if silu else y).astype(np.float32)


x, gamma, beta, skip, bias = values(2, 4, 5, 12), values(12), values(12), values(2, 4, 5, 12), values(12)
for silu in (0, 1):
    case(f"group_norm_{silu}", "GroupNorm", [x, gamma, beta], expected=[grouped(x, gamma, beta, 4, silu)], groups=4, activation=silu)
    first = np.moveaxis(x, -1, 1).copy()
    expected = [np.moveaxis(grouped(x, gamma, beta, 4, silu), -1, 1).copy()]
    case(f"group_norm_first_{silu}", "GroupNorm", [first, gamma, beta], expected=expected, groups=4, activation=silu, channels_last=0)
total = x + skip + bias
case("skip_group_norm", "SkipGroupNorm", [x, gamma, beta, skip, bias], ("y", "s"), expected=[grouped(total, gamma, beta, 3, 1), total], groups=3, activation=1)
for name, few in (("rows", skip[:, 0, 0]), ("places", skip[:, :1, :1])):
    total = x + skip[:, :1, :1]
    expected = [grouped(total, gamma, beta, 3, 0), total]
    case(f"skip_group_norm_{name}", "SkipGroupNorm", [x, gamma, beta, few], ("y", "s"), expected=expected, groups=3, activation=0)
case("bias_add", "BiasAdd", [x, bias, skip], expected=[x + bias + skip])
halves = np.split(x + bias, 2, -1)
erf = np.vectorize(math.erf)
gelu = 0.5 * halves[1] * (1 + erf(halves[1] / np.sqrt(2)))
case("bias_split_gelu", "BiasSplitGelu", [x, bias], expected=[(halves[0] * gelu).astype(np.float32)])
weights, window = values(6, 3, 3, 4), {"pads": [1, 0, 1, 2], "strides": [1, 2], "group": 3}
plain = helper.make_graph(
    [helper.make_node("Conv", ["x", "w", "b"], ["y"], **window)], "plain",
    [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xwb"], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
plain = helper.make_model(plain, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
first, bias = [np.moveaxis(array, -1, 1).copy() for array in (x, weights)], values(6)
expected = [np.moveaxis(computed(plain, ["y"], {"x": first[0], "w": first[1], "b": bias})[0], 1, -1).copy()]
case("nhwc_conv", "NhwcConv", [x, weights, bias], expected=expected, **window)

# Experts: of few tokens, the weights of the chosen ones are copied; of many, all experts run.
for tokens, name in ((2, "few"), (7, "many")):
    scores = values(tokens, 6)
    dense = [Constant(values(6, 12, 8)), Constant(values(6, 12)), Constant(values(6, 8, 12)), Constant(values(6, 8))]
    for activation in ("relu", "gelu", "silu", "identity"):
        case(f"experts_{name}_{activation}", "MoE", [values(1, tokens, 8), scores, *dense], k=2, activation_type=activation)
    gated = [dense[0], dense[1], Constant(values(6, 8, 6)), dense[3]]
    swiglu = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.3, "activation_beta": 0.7, "swiglu_limit": 0.9}
    case(f"experts_{name}_swiglu", "MoE", [values(tokens, 8), scores, *gated], k=3, normalize_routing_weights=1, **swiglu)
    for width in (2, 4, 8):
        # With blocks of 8 bits, ONNX Runtime also rounds the tokens to 8 bits.
        for block in (0, 16) if width < 8 else (0,):
            blocks = (32 // block,) if block else ()
            up = [packed(6, 64, 32 * width // 8), Constant(0.01 + 0.01 * RANDOM.random((6, 64, *blocks)).astype(np.float32)), Constant(values(6, 64))]
            down = [packed(6, 32, 32 * width // 8), Constant(0.01 + 0.01 * RANDOM.random((6, 32, *blocks)).astype(np.float32)), Constant(values(6, 32))]
            attributes = {"k": 2, "expert_weight_bits": width, **swiglu, **({"block_size": block} if block else {})}
            inputs = [values(tokens, 32), scores, *up, *down]
            case(f"packed_experts_{name}_{width}_{block}", "QMoE", inputs, **attributes)
            case(f"packed_experts_{name}_{width}_{block}_shares", "QMoE", [*inputs, *[None] * 6, RANDOM.random((tokens, 6)).astype(np.float32)],
                 normalize_routing_weights=1, **attributes)
            if width < 8:
                zeros = [packed(6, rows, blocks[0] * width // 8 or 1) if block else packed(6, rows * width // 8) for rows in (64, 32)]
                case(f"packed_experts_{name}_{width}_{block}_zeros", "QMoE", [*inputs, *[None] * 3, *zeros], **attributes)

decays = -RANDOM.random((2, 3, 4)).astype(np.float32)
rates = RANDOM.random((2, 3, 4)).astype(np.float32)
for queries in (2, 4, 8):
    states = [values(2, 3, 6 * queries), values(2, 3, 24), values(2, 3, 20), values(2, 4, 6, 5)]
    for rule, more in (("linear", []), ("gated", [decays]), ("delta", [None, rates]), ("gated_delta", [decays, rates])):
        case(f"linear_{rule}_{queries}", "LinearAttention", [*states, *more], ("y", "state"), q_num_heads=queries, kv_num_heads=4, update_rule=rule)
case("causal", "CausalConvWithState", [values(2, 3, 7), Constant(values(3, 1, 4)), Constant(values(3)), values(2, 3, 3)], ("y", "state"), activation="silu")
case("causal_zeros", "CausalConvWithState", [values(2, 3, 2), Constant(values(3, 1, 4))], ("y", "state"))
case("causal_dilated", "CausalConvWithState", [values(2, 3, 7), Constant(values(3, 1, 3)), None, values(2, 3, 4)], ("y", "state"), dilation=2)

# Operators with channels last, and those that exporters and converters write.
case("nhwc_max_pool", "NhwcMaxPool", [integers(np.uint8, 1, 6, 5, 2)], kinds=BYTES, **windows)
for last, image in ((0, (1, 4, 6, 5)), (1, (1, 6, 5, 4))):
    weights = [Constant(integers(np.int8, 6, 2, 3, 2)), Constant(RANDOM.random(6).astype(np.float32) / 50),
               Constant(np.zeros(6, np.int8))]
    case(f"q_conv_{last}", "QLinearConv",
         [*fed(np.uint8, *image), *weights, *target(np.uint8, 0.3), Constant(integers(np.int32, 6) - 128)], kinds=BYTES, channels_last=last,
         group=2, **windows)
x = values(2, 3, 8)
case("trilu", "Trilu", [x, Constant(np.array(1, np.int64))])
case("trilu_lower", "Trilu", [x], upper=0)
for mode in ("bilinear", "nearest", "bicubic"):
    case(f"grid_sample_{mode}", "GridSample", [values(2, 3, 5, 6), values(2, 4, 3, 2)], mode=mode, padding_mode="border", align_corners=1)
for metric in ("euclidean", "sqeuclidean"):
    case(f"distances_{metric}", "CDist", [values(4, 3), values(5, 3)], metric=metric)
