//! Samples of the operators of transformers.

use forebay_base::DataType::{Bool, Int8, Int32, Int64, UInt8};
use forebay_base::Tensor;

use super::{Input, NEWEST_OPSET, Sample, fed, int, list, number, text};
use crate::graph::Attribute;

/// Samples of a row; none where it is of another family.
pub(super) fn samples(domain: &str, op_type: &str) -> Option<Vec<Sample>> {
    match domain {
        "com.microsoft" => of_microsoft(op_type),
        _ => of_onnx(op_type),
    }
}

fn float(name: &'static str, value: f32) -> (&'static str, Attribute) {
    (name, Attribute::Float(value))
}

fn heads() -> Vec<Input> {
    vec![fed(&[2, 4, 3, 6]), fed(&[2, 2, 5, 6]), fed(&[2, 2, 5, 4])]
}

fn hidden() -> Vec<Input> {
    vec![fed(&[2, 3, 24]), fed(&[2, 5, 12]), fed(&[2, 5, 8])]
}

fn of_heads() -> Vec<(&'static str, Attribute)> {
    vec![int("q_num_heads", 4), int("kv_num_heads", 2)]
}

fn of_onnx(op_type: &str) -> Option<Vec<Sample>> {
    let with = |mut inputs: Vec<Input>, more: Vec<Input>| {
        inputs.extend(more);
        inputs
    };
    let caches = || vec![Input::Absent, fed(&[2, 2, 2, 6]), fed(&[2, 2, 2, 4])];
    let angles = || vec![fed(&[2, 3, 4]), fed(&[2, 3, 4])];
    Some(match op_type {
        "Attention" => vec![
            (23, heads(), vec![int("is_causal", 1)], 1),
            (23, heads(), vec![float("softcap", 2.0)], 4),
            (23, with(heads(), vec![fed(&[3, 5])]), vec![float("scale", 0.3)], 1),
            (23, with(heads(), vec![fed(&[3, 4])]), vec![int("qk_matmul_output_mode", 2)], 4),
            (23, with(heads(), vec![Input::Fed(Bool, vec![2, 1, 3, 5])]), vec![int("softmax_precision", 11)], 1),
            (23, hidden(), of_heads(), 1),
            (23, with(hidden(), caches()), [of_heads(), vec![int("is_causal", 1)]].concat(), 3),
            (25, heads(), vec![int("left_window_size", 1), int("right_window_size", 0)], 1),
            (
                25,
                with(hidden(), caches()),
                [of_heads(), vec![int("left_window_size", 2), int("is_causal", 1)]].concat(),
                3,
            ),
            (25, with(heads(), vec![Input::Fed(Bool, vec![3, 5])]), vec![int("qk_matmul_output_mode", 3)], 4),
            (
                24,
                with(heads(), vec![fed(&[5]), Input::Absent, Input::Absent, Input::Fed(Int64, vec![2])]),
                vec![int("is_causal", 1)],
                1,
            ),
        ],
        "LinearAttention" => {
            let of_heads = |rule: &str| vec![int("q_num_heads", 4), int("kv_num_heads", 2), text("update_rule", rule)];
            let inputs = || vec![fed(&[2, 3, 24]), fed(&[2, 3, 12]), fed(&[2, 3, 8])];
            let past = || fed(&[2, 2, 6, 4]);
            vec![
                (27, inputs(), of_heads("linear"), 2),
                (27, with(inputs(), vec![past(), fed(&[2, 3, 12])]), of_heads("gated"), 2),
                (27, with(inputs(), vec![past(), Input::Absent, fed(&[2, 3, 1])]), of_heads("delta"), 2),
                (27, with(inputs(), vec![Input::Absent, fed(&[2, 3, 2]), fed(&[2, 3, 2])]), of_heads("gated_delta"), 2),
            ]
        }
        "FlexAttention" => vec![(1, heads(), vec![], 1)],
        "RotaryEmbedding" => vec![
            (23, [vec![fed(&[2, 4, 3, 8])], angles()].concat_inputs(), vec![], 1),
            (
                23,
                [vec![fed(&[2, 3, 40])], angles()].concat_inputs(),
                vec![int("num_heads", 4), int("rotary_embedding_dim", 8), int("interleaved", 1)],
                1,
            ),
            (23, vec![fed(&[2, 4, 3, 8]), fed(&[9, 4]), fed(&[9, 4]), Input::Fed(Int64, vec![2, 3])], vec![], 1),
        ],
        "Einsum" => [
            ("ij,jk->ik", vec![vec![2, 3], vec![3, 4]]),
            ("...ii->...i", vec![vec![2, 3, 3]]),
            ("bij,bjk,bkl", vec![vec![2, 3, 4], vec![2, 4, 5], vec![2, 5, 2]]),
            ("i,j->", vec![vec![2], vec![3]]),
            ("...ij,...jk->...ik", vec![vec![5, 2, 3], vec![1, 3, 4]]),
            ("i,j->ji", vec![vec![2], vec![3]]),
            ("bhqd,bhkd->bhqk", vec![vec![2, 3, 4, 5], vec![2, 3, 6, 5]]),
        ]
        .into_iter()
        .map(|(equation, shapes)| {
            let inputs = shapes.iter().map(|shape| fed(shape)).collect();
            (NEWEST_OPSET, inputs, vec![text("equation", equation)], 1)
        })
        .collect(),
        "CausalConvWithState" => vec![
            (27, vec![fed(&[2, 3, 5]), fed(&[3, 1, 4])], vec![text("activation", "silu")], 2),
            (27, vec![fed(&[2, 3, 5]), fed(&[3, 1, 4]), fed(&[3]), fed(&[2, 3, 3])], vec![], 2),
        ],
        "SimplifiedLayerNormalization" => vec![(1, vec![fed(&[2, 3, 4]), fed(&[4])], vec![], 2)],
        _ => return None,
    })
}

/// Joins lists of inputs, which cannot be cloned.
trait ConcatInputs {
    fn concat_inputs(self) -> Vec<Input>;
}

impl<const N: usize> ConcatInputs for [Vec<Input>; N] {
    fn concat_inputs(self) -> Vec<Input> {
        self.into_iter().flatten().collect()
    }
}

fn of_microsoft(op_type: &str) -> Option<Vec<Sample>> {
    let sequence = || fed(&[2, 3, 8]);
    let vector = || fed(&[8]);
    let three = || vec![sequence(), fed(&[2, 5, 8]), fed(&[2, 5, 8])];
    let with = |mut inputs: Vec<Input>, more: Vec<Input>| {
        inputs.extend(more);
        inputs
    };
    let bytes = |shape: &[u64]| {
        let count = shape.iter().product::<u64>() as usize;
        Input::Constant(Tensor::new(UInt8, shape, (0..count).map(|i| (i * 37) as u8).collect::<Vec<u8>>()).unwrap())
    };
    Some(match op_type {
        "BiasGelu" | "BiasSplitGelu" => vec![(1, vec![sequence(), vector()], vec![], 1)],
        "BiasAdd" => vec![(1, vec![sequence(), vector(), sequence()], vec![], 1)],
        "GroupNorm" | "SkipGroupNorm" => {
            let more = if op_type == "SkipGroupNorm" { vec![fed(&[2, 8]), vector()] } else { vec![] };
            let outputs = if op_type == "SkipGroupNorm" { 2 } else { 1 };
            let inputs = with(vec![fed(&[2, 3, 4, 8]), vector(), vector()], more);
            vec![(1, inputs, vec![int("groups", 4), int("activation", 1)], outputs)]
        }
        "CDist" => ["euclidean", "sqeuclidean"]
            .map(|metric| (1, vec![fed(&[4, 3]), fed(&[5, 3])], vec![text("metric", metric)], 1))
            .into(),
        "NhwcMaxPool" => [Input::Fed(UInt8, vec![2, 6, 5, 3]), fed(&[2, 6, 5, 3])]
            .map(|x| (1, vec![x], vec![list("kernel_shape", &[3, 2]), list("strides", &[2, 1])], 1))
            .into(),
        "NhwcConv" => {
            vec![(1, vec![fed(&[2, 6, 5, 4]), fed(&[8, 3, 3, 2]), vector()], vec![int("group", 2)], 1)]
        }
        "RelativePositionBias" => {
            let attributes = vec![int("max_distance", 16), int("is_bidirectional", 1)];
            vec![(1, vec![fed(&[8, 2]), number(3), number(5)], attributes, 1)]
        }
        "FastGelu" => vec![(1, vec![sequence()], vec![], 1), (1, vec![sequence(), vector()], vec![], 1)],
        "FusedConv" => {
            let attributes = vec![text("activation", "LeakyRelu"), ("activation_params", Attribute::Floats(vec![0.1]))];
            let inputs = || vec![fed(&[1, 2, 5, 5]), fed(&[3, 2, 3, 3]), fed(&[3])];
            vec![
                (1, inputs(), vec![text("activation", "Relu")], 1),
                (1, with(inputs(), vec![fed(&[1, 3, 3, 3])]), attributes, 1),
            ]
        }
        "MRotaryEmbedding" => {
            let angles = || vec![fed(&[9, 3]), fed(&[9, 3])];
            let positions = || Input::Fed(Int64, vec![3, 2, 4]);
            let sections = || list("mrope_section", &[1, 1, 1]);
            vec![
                (1, with(vec![fed(&[2, 4, 12]), positions()], angles()), vec![sections()], 1),
                (
                    1,
                    with(vec![fed(&[2, 2, 4, 8]), positions()], angles()),
                    vec![sections(), int("mrope_layout", 1), int("interleaved", 1)],
                    1,
                ),
            ]
        }
        "FusedGemm" => {
            vec![(1, vec![fed(&[2, 3]), fed(&[3, 4]), fed(&[4])], vec![text("activation", "Tanh")], 1)]
        }
        "TransposeMatMul" => {
            vec![(1, vec![fed(&[5, 3, 2]), fed(&[5, 4, 3])], vec![int("transA", 1), int("transB", 1)], 1)]
        }
        "FusedMatMul" => vec![
            (
                1,
                vec![fed(&[5, 3, 2]), fed(&[5, 4, 3])],
                vec![int("transA", 1), int("transB", 1), float("alpha", 0.5)],
                1,
            ),
            (1, vec![fed(&[3, 5, 2]), fed(&[5, 2, 4])], vec![int("transBatchA", 1)], 1),
            (1, vec![fed(&[5, 3, 2]), fed(&[3, 4])], vec![int("transA", 1)], 1),
        ],
        "RotaryEmbedding" => vec![
            (1, vec![sequence(), Input::Fed(Int64, vec![2, 3]), fed(&[9, 2]), fed(&[9, 2])], vec![], 1),
            (
                1,
                vec![fed(&[2, 2, 3, 4]), Input::Fed(Int64, vec![1]), fed(&[9, 2]), fed(&[9, 2])],
                vec![int("interleaved", 1)],
                1,
            ),
        ],
        "SimplifiedLayerNormalization" => vec![(1, vec![sequence(), vector()], vec![], 2)],
        "SkipLayerNormalization" => vec![
            (1, vec![sequence(), sequence(), vector(), vector(), vector()], vec![], 4),
            (1, vec![sequence(), fed(&[1, 3, 8]), vector()], vec![], 1),
        ],
        "SkipSimplifiedLayerNormalization" => {
            vec![(1, vec![sequence(), sequence(), vector(), vector()], vec![float("epsilon", 1e-6)], 1)]
        }
        "Attention" => {
            let inputs = || vec![sequence(), fed(&[8, 24]), fed(&[24])];
            vec![
                (1, inputs(), vec![int("num_heads", 2), int("unidirectional", 1)], 1),
                (
                    1,
                    with(inputs(), vec![Input::Fed(Int32, vec![2, 7]), fed(&[2, 2, 2, 4, 4])]),
                    vec![int("num_heads", 2)],
                    2,
                ),
                (
                    1,
                    vec![sequence(), fed(&[8, 28])],
                    vec![int("num_heads", 2), list("qkv_hidden_sizes", &[8, 8, 12])],
                    1,
                ),
            ]
        }
        "MultiHeadAttention" => {
            let packed = vec![fed(&[2, 3, 2, 3, 4])];
            vec![
                (
                    1,
                    with(three(), vec![fed(&[24]), Input::Fed(Int32, vec![2, 5]), fed(&[1, 2, 3, 5])]),
                    vec![int("num_heads", 2)],
                    1,
                ),
                (1, packed, vec![int("num_heads", 2), int("unidirectional", 1)], 1),
                (1, vec![sequence(), fed(&[2, 5, 2, 2, 4])], vec![int("num_heads", 2), float("scale", 0.2)], 1),
                (
                    1,
                    with(
                        three(),
                        vec![
                            Input::Absent,
                            Input::Fed(Int32, vec![2]),
                            Input::Absent,
                            fed(&[2, 2, 1, 4]),
                            fed(&[2, 2, 1, 4]),
                        ],
                    ),
                    vec![int("num_heads", 2)],
                    4,
                ),
            ]
        }
        "GroupQueryAttention" => {
            let attributes = || vec![int("num_heads", 4), int("kv_num_heads", 2)];
            let total = |count: i32| Input::Constant(Tensor::new(Int32, &[], count.to_le_bytes().to_vec()).unwrap());
            let tokens = || {
                let heads = vec![fed(&[2, 3, 16]), fed(&[2, 3, 8]), fed(&[2, 3, 8]), Input::Absent, Input::Absent];
                with(heads, vec![Input::Fed(Int32, vec![2]), total(3)])
            };
            let one_new = |cache: u64, count: i32| {
                let mut inputs = vec![fed(&[2, 1, 32]), Input::Absent, Input::Absent];
                inputs.extend([
                    fed(&[2, 2, cache, 4]),
                    fed(&[2, 2, cache, 4]),
                    Input::Fed(Int32, vec![2]),
                    total(count),
                ]);
                inputs.extend([fed(&[9, 2]), fed(&[9, 2]), Input::Absent, fed(&[1, 4, 1, 3])]);
                (1, inputs, [attributes(), vec![int("do_rotary", 1), int("local_window_size", 2)]].concat(), 3)
            };
            vec![
                (1, tokens(), [attributes(), vec![int("local_window_size", 2), float("softcap", 3.0)]].concat(), 3),
                (
                    1,
                    vec![
                        fed(&[2, 3, 32]),
                        Input::Absent,
                        Input::Absent,
                        fed(&[2, 2, 2, 4]),
                        fed(&[2, 2, 2, 4]),
                        Input::Fed(Int32, vec![2]),
                        total(5),
                        fed(&[9, 2]),
                        fed(&[9, 2]),
                    ],
                    [attributes(), vec![int("do_rotary", 1)]].concat(),
                    3,
                ),
                // Sinks, with masks and a bias.
                (
                    1,
                    with(tokens(), vec![Input::Absent, Input::Absent, Input::Absent, fed(&[1, 4, 3, 3]), fed(&[4])]),
                    [attributes(), vec![int("local_window_size", 2), float("softcap", 3.0)]].concat(),
                    3,
                ),
                // Sequences with a new key each, in a cache that grows or has room.
                one_new(2, 3),
                one_new(7, 3),
            ]
        }
        "MatMulNBits" => {
            let attributes = |bits: i64| vec![int("K", 20), int("N", 6), int("block_size", 16), int("bits", bits)];
            vec![
                (1, vec![fed(&[2, 3, 20]), bytes(&[6, 2, 8]), fed(&[6, 2])], attributes(4), 1),
                (1, vec![fed(&[3, 20]), bytes(&[6, 2, 8]), fed(&[12]), bytes(&[6, 1])], attributes(4), 1),
                (1, vec![fed(&[3, 20]), bytes(&[6, 2, 4]), fed(&[12]), bytes(&[6, 1])], attributes(2), 1),
                (
                    1,
                    vec![fed(&[3, 20]), bytes(&[6, 2, 16]), fed(&[6, 2]), Input::Absent, Input::Absent, fed(&[6])],
                    attributes(8),
                    1,
                ),
            ]
        }
        "MatMulBnb4" => {
            let attributes =
                |kind: i64| vec![int("K", 20), int("N", 6), int("block_size", 16), int("quant_type", kind)];
            vec![
                (1, vec![fed(&[2, 3, 20]), bytes(&[60]), fed(&[8])], attributes(0), 1),
                (1, vec![fed(&[3, 6]), bytes(&[60]), fed(&[8])], [attributes(1), vec![int("transB", 0)]].concat(), 1),
            ]
        }
        "GatherBlockQuantized" => vec![
            (
                1,
                vec![Input::Fed(Int8, vec![5, 20]), Input::Fed(Int64, vec![2, 3]), fed(&[5, 2])],
                vec![int("block_size", 16)],
                1,
            ),
            (
                1,
                vec![bytes(&[5, 16]), Input::Fed(Int64, vec![2]), fed(&[5, 2]), bytes(&[5, 1])],
                vec![int("block_size", 16)],
                1,
            ),
            (
                1,
                vec![bytes(&[4, 5]), Input::Fed(Int64, vec![2]), fed(&[1, 5])],
                vec![int("block_size", 16), int("gather_axis", 1), int("quantize_axis", 0), int("bits", 8)],
                1,
            ),
        ],
        "MoE" => {
            let of = |tokens: u64, rows: u64, columns: u64| {
                let mut inputs = vec![fed(&[tokens, 4]), fed(&[tokens, 5]), fed(&[5, rows, 4]), fed(&[5, rows])];
                inputs.extend([fed(&[5, 4, columns]), fed(&[5, 4])]);
                inputs
            };
            let two = |activation: &str| vec![int("k", 2), text("activation_type", activation)];
            let more = |attributes| [two("swiglu"), attributes].concat();
            vec![
                (1, of(2, 3, 3), two("silu"), 1),
                (1, of(6, 3, 3), [two("gelu"), vec![int("normalize_routing_weights", 1)]].concat(), 1),
                (1, of(6, 6, 3), more(vec![int("swiglu_fusion", 1), float("swiglu_limit", 0.5)]), 1),
                (1, of(2, 6, 3), more(vec![int("swiglu_fusion", 2), float("activation_beta", 1.0)]), 1),
                (1, with(of(6, 3, 3), vec![fed(&[5, 3, 4])]), more(vec![float("activation_alpha", 1.5)]), 1),
            ]
        }
        "QMoE" => {
            let of = |tokens: u64| {
                let mut inputs = vec![fed(&[1, tokens, 32]), fed(&[tokens, 5])];
                inputs.extend([bytes(&[5, 16, 16]), fed(&[5, 16]), fed(&[5, 16])]);
                inputs.extend([bytes(&[5, 32, 8]), fed(&[5, 32]), Input::Absent]);
                inputs
            };
            let absent = |count: usize| (0..count).map(|_| Input::Absent).collect::<Vec<_>>();
            let zeros = [absent(3), vec![bytes(&[5, 8]), bytes(&[5, 16])]].concat_inputs();
            vec![
                (1, of(6), vec![int("k", 2), text("activation_type", "silu")], 1),
                (1, with(of(2), zeros), vec![int("k", 2), text("activation_type", "identity")], 1),
            ]
        }
        "LinearAttention" => {
            let inputs = vec![fed(&[2, 3, 12]), fed(&[2, 3, 24]), fed(&[2, 3, 8]), Input::Absent, fed(&[2, 3, 4])];
            vec![(1, with(inputs, vec![fed(&[2, 3, 1])]), vec![int("q_num_heads", 2), int("kv_num_heads", 4)], 2)]
        }
        "CausalConvWithState" => vec![
            (1, vec![fed(&[2, 3, 5]), fed(&[3, 1, 4])], vec![text("activation", "silu")], 2),
            (1, vec![fed(&[2, 3, 5]), fed(&[3, 1, 3]), Input::Absent, fed(&[2, 3, 4])], vec![int("dilation", 2)], 2),
        ],
        "DynamicQuantizeLSTM" => {
            let weights = |scale: &[u64]| {
                let (w, r) = (Input::Fed(Int8, vec![2, 3, 16]), Input::Fed(Int8, vec![2, 4, 16]));
                let more = [Input::Absent, fed(&[2, 2, 4]), fed(&[2, 2, 4]), Input::Absent];
                let mut inputs = vec![fed(&[5, 2, 3]), w, r, fed(&[2, 32])];
                inputs.extend(more);
                inputs.extend([
                    fed(scale),
                    Input::Fed(Int8, scale.to_vec()),
                    fed(scale),
                    Input::Fed(Int8, scale.to_vec()),
                ]);
                inputs
            };
            let both = || vec![text("direction", "bidirectional"), int("hidden_size", 4)];
            vec![(1, weights(&[2]), both(), 3), (1, weights(&[2, 16]), both(), 1)]
        }
        "EmbedLayerNormalization" => {
            let words = || Input::Fed(Int32, vec![2, 3]);
            let tables = || vec![fed(&[9, 8]), fed(&[5, 8])];
            vec![
                (
                    1,
                    with(vec![words(), words()], with(tables(), vec![fed(&[2, 8]), vector(), vector(), words()])),
                    vec![],
                    3,
                ),
                (
                    1,
                    with(vec![words(), Input::Absent], with(tables(), vec![Input::Absent, vector(), vector()])),
                    vec![],
                    2,
                ),
            ]
        }
        "QEmbedLayerNormalization" => {
            let words = || Input::Fed(Int32, vec![2, 3]);
            let whole = |shape: &[u64]| Input::Fed(UInt8, shape.to_vec());
            let mut inputs = vec![
                words(),
                words(),
                whole(&[9, 8]),
                whole(&[5, 8]),
                whole(&[2, 8]),
                whole(&[8]),
                whole(&[8]),
                words(),
            ];
            inputs.extend((0..5).map(|_| fed(&[])));
            inputs.extend((0..5).map(|_| whole(&[])));
            vec![(1, inputs, vec![], 2)]
        }
        "QAttention" => {
            let inputs = vec![
                Input::Fed(UInt8, vec![2, 3, 8]),
                Input::Fed(Int8, vec![8, 24]),
                fed(&[24]),
                fed(&[]),
                fed(&[24]),
                Input::Fed(Int32, vec![2]),
                Input::Fed(UInt8, vec![]),
                Input::Fed(Int8, vec![24]),
            ];
            vec![(1, inputs, vec![int("num_heads", 2)], 1)]
        }
        "Gelu" | "QuickGelu" => vec![(1, vec![sequence()], vec![], 1)],
        _ => return None,
    })
}
