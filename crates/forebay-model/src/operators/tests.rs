//! Every row: inference, folding, lowering and gradients of one small node each; then folding and refusals one by one.

mod classical;
mod corners;
mod images;
mod known;
mod parts;

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::DataType::{self, BFloat16, Bool, Float16, Float32, Int8, Int32, Int64, UInt8};
use forebay_base::{Kernel, Tensor};

mod rules;
mod transformers;
mod vision;

use super::classical::CLASSICAL;
use super::{FAMILIES, FOREBAY, NEWEST_OPSET, find, signatures};
use crate::autodiff::gradients;
use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, TensorType, ValueId};
use crate::infer::infer_node;
use crate::lower::lower;
use crate::operator::{NodeView, Operator};

/// An input of the node under test.
enum Input {
    /// An input with this type that is fed.
    Fed(DataType, Vec<u64>),
    /// A constant.
    Constant(Tensor),
    /// An input that is left out.
    Absent,
}

fn fed(shape: &[u64]) -> Input {
    Input::Fed(Float32, shape.to_vec())
}

fn ints(values: &[i64]) -> Input {
    Input::Constant(Tensor::from_i64(&[values.len() as u64], values))
}

fn floats(values: &[f32]) -> Input {
    Input::Constant(Tensor::from_f32(&[values.len() as u64], values))
}

/// A constant with one integer.
fn number(value: i64) -> Input {
    Input::Constant(Tensor::from_i64(&[], &[value]))
}

/// A constant with one real number.
fn float(value: f32) -> Input {
    Input::Constant(Tensor::from_f32(&[], &[value]))
}

fn int(name: &'static str, value: i64) -> (&'static str, Attribute) {
    (name, Attribute::Int(value))
}

fn list(name: &'static str, values: &[i64]) -> (&'static str, Attribute) {
    (name, Attribute::Ints(values.to_vec()))
}

fn text(name: &'static str, value: &str) -> (&'static str, Attribute) {
    (name, Attribute::String(value.to_string()))
}

/// A graph of one node. The name of its operator can begin with the name of its domain.
fn graph_of(
    op_type: &str,
    version: i64,
    inputs: Vec<Input>,
    attributes: &[(&str, Attribute)],
    output_count: usize,
) -> Graph {
    let mut graph = Graph::default();
    let mut ids = Vec::new();
    for (i, input) in inputs.into_iter().enumerate() {
        ids.push(match input {
            Input::Absent => None,
            Input::Fed(data_type, shape) => {
                let id = graph.add_value(&format!("x{i}"), Some(TensorType::new(data_type, &shape)));
                graph.inputs.push(id);
                Some(id)
            }
            Input::Constant(tensor) => {
                let id = graph.add_initializer(&format!("x{i}"), tensor);
                graph.constants.insert(id);
                Some(id)
            }
        });
    }
    let outputs: Vec<Option<ValueId>> =
        (0..output_count).map(|i| Some(graph.add_value(&format!("y{i}"), None))).collect();
    let attributes: BTreeMap<String, Attribute> =
        attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    // A name without a domain refers to the default domain if that has such an operator.
    let named = FAMILIES.iter().flat_map(|family| family.iter()).filter(|row| row.op_type == op_type);
    let row = named.min_by_key(|row| row.domain);
    let (domain, op_type) = op_type.rsplit_once('.').unwrap_or((row.map_or("", |row| row.domain), op_type));
    let (domain, op_type) = (domain.to_string(), op_type.to_string());
    graph.outputs = outputs.iter().flatten().copied().collect();
    graph.nodes.push(Node {
        name: "node".to_string(),
        operation: Operation::Onnx { domain, op_type, version, attributes },
        inputs: ids,
        outputs,
    });
    graph
}

fn shapes(graph: &Graph) -> Vec<Vec<u64>> {
    graph.outputs.iter().map(|&output| graph.ty(output).unwrap().shape.clone()).collect()
}

/// The inferred shapes of a node's outputs.
fn inferred(op_type: &str, version: i64, inputs: Vec<Input>, attributes: &[(&str, Attribute)]) -> Vec<Vec<u64>> {
    let mut graph = graph_of(op_type, version, inputs, attributes, 1);
    infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
    shapes(&graph)
}

fn refused(op_type: &str, inputs: Vec<Input>, attributes: &[(&str, Attribute)]) -> String {
    let mut graph = graph_of(op_type, NEWEST_OPSET, inputs, attributes, 1);
    infer_node(&mut graph, 0).expect_err(op_type).to_string()
}

/// The tensor to which a node folds.
fn folded(op_type: &str, version: i64, inputs: Vec<Input>, attributes: &[(&str, Attribute)]) -> Tensor {
    let mut graph = graph_of(op_type, version, inputs, attributes, 1);
    infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
    let folded = graph.initializers.get(&graph.outputs[0]).unwrap_or_else(|| panic!("{op_type} does not fold"));
    folded.to_tensor().unwrap()
}

/// Version, inputs, attributes and number of outputs of a node.
type Sample = (i64, Vec<Input>, Vec<(&'static str, Attribute)>, usize);

/// The name of a row's operator, with its domain.
fn full_name(row: &Operator) -> String {
    if row.domain.is_empty() {
        return row.op_type.to_string();
    }
    format!("{}.{}", row.domain, row.op_type)
}

/// One or more nodes for a row of the table.
fn samples(domain: &str, op_type: &str) -> Vec<Sample> {
    if domain == CLASSICAL {
        return classical::samples(op_type);
    }
    if let Some(samples) = transformers::samples(domain, op_type) {
        return samples;
    }
    let newest = |inputs, attributes| vec![(NEWEST_OPSET, inputs, attributes, 1)];
    let image = || fed(&[2, 4, 6, 6]);
    let double_image = || Input::Fed(DataType::Float64, vec![2, 3, 5, 5]);
    match op_type {
        "And" | "Or" | "Xor" => newest(vec![Input::Fed(Bool, vec![2, 3]), Input::Fed(Bool, vec![3])], vec![]),
        "Not" => newest(vec![Input::Fed(Bool, vec![2, 3])], vec![]),
        "Add" | "Sub" | "Mul" | "Div" | "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "Mod"
        | "Pow" | "PRelu" => newest(vec![fed(&[2, 3, 4]), fed(&[3, 1])], vec![]),
        "BitShift" => vec![
            (
                11,
                [vec![2, 3], vec![3]].map(|shape| Input::Fed(UInt8, shape)).into(),
                vec![text("direction", "LEFT")],
                1,
            ),
            (
                28,
                [vec![2, 3], vec![3]].map(|shape| Input::Fed(Int32, shape)).into(),
                vec![text("direction", "RIGHT")],
                1,
            ),
        ],
        "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" => {
            newest(vec![Input::Fed(Int32, vec![2, 3]), Input::Fed(Int32, vec![3])], vec![])
        }
        "BitwiseNot" => newest(vec![Input::Fed(Int32, vec![2, 3])], vec![]),
        "LSTM" | "GRU" | "RNN" => recurrent_samples(op_type),
        "Adagrad" | "Adam" | "Momentum" => {
            let states = if op_type == "Adam" { 2 } else { 1 };
            let mut inputs = vec![fed(&[]), Input::Fed(Int64, vec![])];
            inputs.extend((0..states + 2).map(|_| fed(&[2, 3])));
            let attributes = vec![("alpha", Attribute::Float(0.9)), ("norm_coefficient", Attribute::Float(0.1))];
            vec![(1, inputs, attributes, states + 1)]
        }
        "QuantizeLinear" => vec![
            (13, vec![fed(&[2, 3]), fed(&[])], vec![], 1),
            (21, vec![fed(&[2, 6]), fed(&[2, 3]), Input::Fed(Int8, vec![2, 3])], vec![int("block_size", 2)], 1),
            (21, vec![fed(&[2, 3]), fed(&[])], vec![int("output_dtype", 22)], 1),
            (21, vec![fed(&[2, 3]), fed(&[3])], vec![int("output_dtype", 17)], 1),
        ],
        "DequantizeLinear" => vec![
            (10, vec![Input::Fed(UInt8, vec![2, 3]), fed(&[]), Input::Fed(UInt8, vec![])], vec![], 1),
            (13, vec![Input::Fed(Int8, vec![2, 3]), fed(&[3])], vec![], 1),
            (21, vec![Input::Fed(DataType::UInt4, vec![2, 3]), fed(&[3])], vec![], 1),
            (13, vec![Input::Fed(Int32, vec![2, 3]), fed(&[2])], vec![int("axis", 0)], 1),
        ],
        "DynamicQuantizeLinear" => vec![(11, vec![fed(&[2, 3])], vec![], 3)],
        "MatMulInteger" => [7, 300, 5000]
            .into_iter()
            .map(|k| (10, vec![Input::Fed(UInt8, vec![2, k]), Input::Fed(Int8, vec![k, 4])], vec![], 1))
            .collect(),
        "ConvInteger" => [(2, 1), (40, 1), (600, 1), (64, 2)]
            .into_iter()
            .map(|(channels, groups)| {
                let weights = Input::Fed(Int8, vec![4, channels / groups, 3, 3]);
                let attributes = vec![int("group", groups as i64)];
                (10, vec![Input::Fed(UInt8, vec![1, channels, 5, 5]), weights], attributes, 1)
            })
            .collect(),
        "QLinearMatMul" | "QGemm" => {
            let mut inputs = quantized(UInt8, &[2, 3]);
            inputs.extend(quantized(Int8, &[3, 4]));
            inputs.extend((op_type == "QGemm").then_some(Input::Absent));
            inputs.extend([fed(&[]), Input::Fed(UInt8, vec![])]);
            newest(inputs, vec![])
        }
        "QLinearConv" => {
            let mut inputs = quantized(UInt8, &[1, 2, 5, 5]);
            inputs.extend(quantized(Int8, &[4, 2, 3, 3]));
            inputs.extend([fed(&[]), Input::Fed(UInt8, vec![]), Input::Fed(Int32, vec![4])]);
            newest(inputs, vec![])
        }
        "DynamicQuantizeMatMul" => {
            let inputs = vec![fed(&[2, 3]), Input::Fed(Int8, vec![3, 4]), fed(&[4]), Input::Absent, fed(&[4])];
            newest(inputs, vec![])
        }
        "QLinearAdd" | "QLinearMul" => {
            let mut inputs = quantized(UInt8, &[2, 3]);
            inputs.extend(quantized(UInt8, &[3]));
            inputs.extend([fed(&[]), Input::Fed(UInt8, vec![])]);
            newest(inputs, vec![])
        }
        "QLinearSigmoid" | "QLinearGlobalAveragePool" | "QLinearLeakyRelu" | "QLinearSoftmax" => {
            let mut inputs = quantized(UInt8, &[2, 3, 4, 4]);
            inputs.extend([fed(&[]), Input::Fed(UInt8, vec![])]);
            newest(inputs, vec![])
        }
        "QLinearAveragePool" => [0, 1]
            .into_iter()
            .map(|last| {
                let mut inputs = quantized(Int8, if last == 0 { &[1, 2, 5, 5] } else { &[1, 5, 5, 2] });
                inputs.extend([fed(&[]), Input::Fed(Int8, vec![])]);
                (1, inputs, vec![list("kernel_shape", &[2, 2]), int("channels_last", last)], 1)
            })
            .collect(),
        "QLinearWhere" => {
            let mut inputs = vec![Input::Fed(Bool, vec![3])];
            inputs.extend(quantized(UInt8, &[2, 3]));
            inputs.extend(quantized(UInt8, &[]));
            inputs.extend([fed(&[]), Input::Fed(UInt8, vec![])]);
            newest(inputs, vec![])
        }
        "MatMulIntegerToFloat" => {
            let scales = [fed(&[]), fed(&[4]), Input::Fed(UInt8, vec![]), Input::Absent, fed(&[4])];
            let mut inputs = vec![Input::Fed(UInt8, vec![2, 3]), Input::Fed(Int8, vec![3, 4])];
            inputs.extend(scales);
            newest(inputs, vec![])
        }
        "QLinearConcat" => {
            let mut inputs = vec![fed(&[]), Input::Fed(UInt8, vec![])];
            inputs.extend(quantized(UInt8, &[2, 3]));
            inputs.extend(quantized(UInt8, &[2, 1]));
            newest(inputs, vec![int("axis", 1)])
        }
        "Max" | "Mean" | "Min" | "Sum" => newest(vec![fed(&[2, 3]), fed(&[3]), fed(&[1, 1])], vec![]),
        "Where" => newest(vec![Input::Fed(Bool, vec![3]), fed(&[2, 3]), fed(&[])], vec![]),
        "BitCast" => vec![
            (26, vec![fed(&[2, 3])], vec![int("to", 6)], 1),
            (26, vec![Input::Fed(DataType::Int4, vec![3])], vec![int("to", 23)], 1),
        ],
        "Cast" => vec![
            (NEWEST_OPSET, vec![fed(&[2, 3])], vec![int("to", 1)], 1),
            (NEWEST_OPSET, vec![fed(&[2, 3])], vec![int("to", 17), int("saturate", 0)], 1),
            (NEWEST_OPSET, vec![Input::Fed(DataType::Float8E5M2, vec![2, 3])], vec![int("to", 1)], 1),
        ],
        "CastLike" => newest(vec![fed(&[2, 3]), fed(&[1])], vec![]),
        "Clip" => vec![
            (6, vec![fed(&[2, 3])], vec![("min", Attribute::Float(0.0)), ("max", Attribute::Float(6.0))], 1),
            (13, vec![fed(&[2, 3]), Input::Absent, Input::Constant(Tensor::from_f32(&[], &[6.0]))], vec![], 1),
            (13, vec![fed(&[2, 3]), fed(&[]), fed(&[])], vec![], 1),
        ],
        "Gelu" => {
            vec![(20, vec![fed(&[2, 3])], vec![], 1), (20, vec![fed(&[2, 3])], vec![text("approximate", "tanh")], 1)]
        }
        "Swish" => vec![
            (24, vec![fed(&[2, 3])], vec![], 1),
            (24, vec![fed(&[2, 3])], vec![("alpha", Attribute::Float(1.5))], 1),
        ],
        "TfIdfVectorizer" => {
            let pool = [
                list("pool_int64s", &[2, 3, 5, 4, 5, 6]),
                list("ngram_counts", &[0, 2]),
                list("ngram_indexes", &[3, 0, 1, 2]),
            ];
            let lengths =
                [int("min_gram_length", 1), int("max_gram_length", 2), int("max_skip_count", 1), text("mode", "IDF")];
            vec![(9, vec![Input::Fed(Int32, vec![2, 6])], pool.into_iter().chain(lengths).collect(), 1)]
        }
        "SwiGLU" => vec![
            (28, vec![fed(&[2, 3]), fed(&[2, 3])], vec![], 1),
            (28, vec![fed(&[2, 3]), fed(&[2, 3])], vec![("alpha", Attribute::Float(1.5))], 1),
        ],
        "Constant" => newest(vec![], vec![list("value_ints", &[1, 2])]),
        "ConstantOfShape" => newest(vec![ints(&[2, 3])], vec![]),
        "Range" => newest(vec![ints(&[1]), ints(&[7]), ints(&[2])], vec![]),
        // The mask of the second one is too large to be a constant.
        "Trilu" => [vec![2, 3, 4], vec![5000, 5000]]
            .map(|shape| (NEWEST_OPSET, vec![fed(&shape)], vec![int("upper", 0)], 1))
            .into(),
        "AveragePool" | "MaxPool" => {
            let attributes = vec![list("kernel_shape", &[3, 3]), list("strides", &[2, 2]), list("pads", &[1, 1, 1, 1])];
            let mut samples = newest(vec![image()], attributes.clone());
            samples.extend(newest(vec![double_image()], attributes.clone()));
            if op_type == "MaxPool" {
                samples.push((12, vec![image()], [attributes, vec![int("storage_order", 1)]].concat(), 2));
            }
            samples
        }
        "Conv" => newest(vec![image(), fed(&[6, 2, 3, 3]), fed(&[6])], vec![int("group", 2)]),
        "ConvTranspose" => {
            newest(vec![image(), fed(&[4, 3, 2, 2]), fed(&[6])], vec![int("group", 2), list("strides", &[2, 2])])
        }
        "Gemm" => vec![
            (13, vec![fed(&[3, 2]), fed(&[3, 4]), fed(&[4])], vec![int("transA", 1)], 1),
            (
                13,
                vec![fed(&[2, 3]), fed(&[4, 3]), fed(&[2, 1])],
                vec![int("transB", 1), ("beta", Attribute::Float(0.5))],
                1,
            ),
            (13, vec![fed(&[3, 2]), fed(&[4, 3])], vec![int("transA", 1), int("transB", 1)], 1),
        ],
        "MatMul" => [
            (vec![2, 3], vec![3, 4]),
            (vec![5, 2, 3], vec![3, 4]),
            (vec![5, 2, 3], vec![5, 3, 4]),
            (vec![7, 1, 2, 3], vec![5, 3, 4]),
            (vec![2, 3], vec![1, 1, 3, 4]),
            (vec![3], vec![3]),
            (vec![3], vec![5, 3, 4]),
            (vec![5, 2, 3], vec![3]),
        ]
        .into_iter()
        .map(|(a, b)| (13, vec![fed(&a), fed(&b)], vec![], 1))
        .collect(),
        "BatchNormalization" => {
            let inputs = || vec![image(), fed(&[4]), fed(&[4]), floats(&[0.0; 4]), floats(&[1.0; 4])];
            vec![(7, inputs(), vec![], 1), (15, inputs(), vec![int("training_mode", 1)], 3)]
        }
        "GroupNormalization" => vec![
            (18, vec![image(), fed(&[2]), fed(&[2])], vec![int("num_groups", 2)], 1),
            (21, vec![image(), fed(&[4]), fed(&[4])], vec![int("num_groups", 2)], 1),
        ],
        "InstanceNormalization" => newest(vec![image(), fed(&[4]), fed(&[4])], vec![]),
        "LRN" => newest(vec![image()], vec![int("size", 3)]),
        "LayerNormalization" => vec![
            (17, vec![fed(&[2, 3, 4]), fed(&[4]), fed(&[4])], vec![], 1),
            (17, vec![fed(&[2, 3, 4]), fed(&[3, 4])], vec![int("axis", 1)], 3),
            (17, vec![fed(&[2, 3, 4]), fed(&[4]), fed(&[1])], vec![int("axis", -2)], 1),
        ],
        "RMSNormalization" => newest(vec![fed(&[2, 3, 4]), fed(&[4])], vec![]),
        "Resize" => vec![
            (13, vec![image(), Input::Absent, floats(&[1.0, 1.0, 2.0, 2.0])], vec![], 1),
            (13, vec![image(), Input::Absent, floats(&[1.0, 1.0, 0.5, 1.5])], vec![], 1),
            (13, vec![image(), Input::Absent, floats(&[1.0, 1.0, 0.5, 1.5])], vec![text("mode", "cubic")], 1),
            (
                18,
                vec![image(), Input::Absent, floats(&[0.3, 2.0])],
                vec![text("mode", "cubic"), int("antialias", 1), list("axes", &[2, 3])],
                1,
            ),
            (
                18,
                vec![image(), floats(&[0.1, -0.2, 0.9, 1.2]), Input::Absent, ints(&[5, 4])],
                vec![
                    text("mode", "linear"),
                    text("coordinate_transformation_mode", "tf_crop_and_resize"),
                    list("axes", &[2, 3]),
                ],
                1,
            ),
            (13, vec![image(), Input::Absent, Input::Absent, ints(&[2, 4, 9, 12])], vec![text("mode", "linear")], 1),
        ],
        "Upsample" => newest(vec![image(), floats(&[1.0, 1.0, 2.0, 3.0])], vec![]),
        "AffineGrid" => vec![
            (20, vec![fed(&[2, 2, 3]), ints(&[2, 1, 3, 4])], vec![], 1),
            (20, vec![fed(&[2, 3, 4]), ints(&[2, 1, 2, 3, 4])], vec![int("align_corners", 1)], 1),
        ],
        "BlackmanWindow" | "HammingWindow" | "HannWindow" => newest(vec![number(10)], vec![]),
        "CenterCropPad" => newest(vec![fed(&[4, 5, 6]), ints(&[6, 4])], vec![list("axes", &[0, -1])]),
        "Col2Im" => newest(vec![fed(&[1, 8, 12]), ints(&[4, 5]), ints(&[2, 2])], vec![]),
        "DFT" => vec![
            (17, vec![fed(&[2, 8, 1])], vec![int("onesided", 1)], 1),
            (20, vec![fed(&[2, 5, 3, 2]), Input::Absent, number(1)], vec![int("inverse", 1)], 1),
            (20, vec![fed(&[2, 5, 2]), number(8)], vec![int("inverse", 1), int("onesided", 1)], 1),
        ],
        "DeformConv" => {
            let inputs = vec![image(), fed(&[6, 2, 3, 3]), fed(&[2, 36, 4, 4]), fed(&[6]), fed(&[2, 18, 4, 4])];
            newest(inputs, vec![int("group", 2), int("offset_group", 2)])
        }
        "Det" => newest(vec![fed(&[2, 4, 4])], vec![]),
        "GridSample" => ["linear", "cubic", "nearest"]
            .into_iter()
            .flat_map(|mode| ["zeros", "border", "reflection"].map(|padding| (mode, padding)))
            .map(|(mode, padding)| {
                let attributes = vec![text("mode", mode), text("padding_mode", padding)];
                (20, vec![image(), fed(&[2, 3, 5, 2])], attributes, 1)
            })
            .chain([(20, vec![fed(&[2, 4, 3, 4, 5]), fed(&[2, 3, 5, 2, 3])], vec![], 1)])
            .collect(),
        "LpPool" => {
            let attributes = |p| vec![list("kernel_shape", &[3, 3]), list("pads", &[1, 1, 1, 1]), int("p", p)];
            [(image(), 2), (image(), 3), (double_image(), 2)].map(|(x, p)| (18, vec![x], attributes(p), 1)).into()
        }
        "MaxRoiPool" => {
            let attributes = vec![list("pooled_shape", &[2, 3]), ("spatial_scale", Attribute::Float(0.5))];
            vec![(1, vec![image(), fed(&[3, 5])], attributes, 1)]
        }
        "GlobalMaxPool" => [image(), double_image()].map(|x| (NEWEST_OPSET, vec![x], vec![], 1)).into(),
        "MelWeightMatrix" => newest(vec![number(8), number(16), number(8192), float(0.0), float(4096.0)], vec![]),
        "Multinomial" => newest(vec![fed(&[2, 5])], vec![int("sample_size", 3)]),
        "RandomNormal" | "RandomUniform" => newest(vec![], vec![list("shape", &[2, 3])]),
        "RoiAlign" => [("avg", 2), ("max", 2), ("avg", 0), ("max", 0)]
            .map(|(mode, ratio)| {
                let attributes = vec![text("mode", mode), int("sampling_ratio", ratio), int("output_height", 2)];
                (16, vec![image(), fed(&[3, 4]), Input::Fed(Int64, vec![3])], attributes, 1)
            })
            .into(),
        "STFT" => newest(vec![fed(&[2, 20, 1]), number(4), fed(&[8])], vec![]),
        "Concat" => vec![
            (13, vec![fed(&[1, 2, 4]), fed(&[1, 3, 4])], vec![int("axis", 1)], 1),
            (13, vec![fed(&[2, 3]), fed(&[2, 1]), fed(&[2, 2])], vec![int("axis", -1)], 1),
        ],
        "Gather" => vec![
            (13, vec![fed(&[5, 4]), Input::Fed(Int64, vec![2, 3])], vec![], 1),
            (13, vec![fed(&[5, 4]), Input::Constant(Tensor::from_i64(&[], &[-1]))], vec![int("axis", 1)], 1),
        ],
        "GatherElements" => vec![
            (13, vec![fed(&[3, 4]), Input::Fed(Int64, vec![2, 4])], vec![], 1),
            (13, vec![fed(&[3, 4, 2]), Input::Fed(Int64, vec![2, 5, 2])], vec![int("axis", 1)], 1),
        ],
        "GatherND" => vec![
            (13, vec![fed(&[3, 4, 2]), Input::Fed(Int64, vec![3, 2])], vec![], 1),
            (13, vec![fed(&[2, 3, 2]), Input::Fed(Int64, vec![2, 2, 1])], vec![int("batch_dims", 1)], 1),
        ],
        "OneHot" => newest(vec![Input::Fed(Int64, vec![3]), ints(&[4]), fed(&[2])], vec![]),
        "ReverseSequence" => newest(vec![fed(&[4, 2, 3]), Input::Fed(Int64, vec![2])], vec![]),
        "Scatter" => vec![(10, vec![fed(&[3, 4]), Input::Fed(Int64, vec![2, 4]), fed(&[2, 4])], vec![], 1)],
        "ScatterElements" | "ScatterND" => ["none", "add", "mul", "min", "max"]
            .map(|reduction| {
                let updates = fed(if op_type == "ScatterND" { &[4] } else { &[4, 2] });
                let inputs = vec![fed(&[4, 2]), Input::Fed(Int64, vec![4, 2]), updates];
                (18, inputs, vec![text("reduction", reduction)], 1)
            })
            .into(),
        "TensorScatter" => ["linear", "circular"]
            .map(|mode| {
                let inputs = vec![fed(&[2, 4, 3]), fed(&[2, 2, 3]), Input::Fed(Int64, vec![2])];
                (24, inputs, vec![text("mode", mode)], 1)
            })
            .into(),
        "ArgMax" | "ArgMin" => newest(vec![fed(&[2, 3])], vec![int("axis", 1), int("keepdims", 0)]),
        "CumProd" | "CumSum" => newest(vec![fed(&[2, 3]), ints(&[-1])], vec![int("exclusive", 1)]),
        "EyeLike" => newest(vec![fed(&[3, 4])], vec![int("k", 1)]),
        "Hardmax" => vec![(11, vec![fed(&[2, 3, 4])], vec![], 1), (13, vec![fed(&[2, 3, 4])], vec![], 1)],
        "TopK" => vec![
            (9, vec![fed(&[2, 3])], vec![int("k", 2)], 2),
            (11, vec![fed(&[2, 3, 4]), ints(&[2])], vec![int("axis", 1)], 2),
        ],
        "NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss" => ["none", "sum", "mean"]
            .into_iter()
            .flat_map(|reduction| {
                let inputs = || vec![fed(&[2, 3, 2]), Input::Fed(Int64, vec![2, 2])];
                let mut weighted = inputs();
                weighted.push(fed(&[3]));
                let ignoring = vec![text("reduction", reduction), int("ignore_index", 7)];
                [(13, inputs(), vec![text("reduction", reduction)], 1), (13, weighted, ignoring, 1)]
            })
            .collect(),
        "Compress" => {
            let condition = Tensor::new(Bool, &[3], vec![1, 0, 1]).unwrap();
            newest(vec![fed(&[3, 4]), Input::Constant(condition)], vec![int("axis", 1)])
        }
        "NonZero" | "Unique" => newest(vec![ints(&[1, 0, 2, 1])], vec![]),
        "ImageDecoder" => {
            let file = b"P5 2 1 255 \x00\xff";
            let file = Tensor::new(UInt8, &[file.len() as u64], file.to_vec()).unwrap();
            newest(vec![Input::Constant(file)], vec![text("pixel_format", "Grayscale")])
        }
        "NonMaxSuppression" => {
            let boxes = Tensor::from_f32(&[1, 1, 4], &[0.0, 0.0, 1.0, 1.0]);
            let scores = Tensor::from_f32(&[1, 1, 1], &[0.5]);
            newest(vec![Input::Constant(boxes), Input::Constant(scores), ints(&[1])], vec![])
        }
        "MaxUnpool" => {
            let attributes = vec![list("kernel_shape", &[2, 2]), list("strides", &[2, 2])];
            newest(vec![fed(&[1, 2, 2, 2]), Input::Fed(Int64, vec![1, 2, 2, 2])], attributes)
        }
        "Pad" => vec![
            (10, vec![fed(&[2, 3])], vec![list("pads", &[0, 1, 2, 0])], 1),
            (18, vec![fed(&[2, 5]), ints(&[-1, 2]), Input::Absent, ints(&[1])], vec![], 1),
            (18, vec![fed(&[2, 5]), ints(&[0, 2, 1, 1])], vec![text("mode", "reflect")], 1),
            (18, vec![fed(&[2, 5]), ints(&[0, 2, 1, 4])], vec![text("mode", "edge")], 1),
            (19, vec![fed(&[2, 5]), ints(&[0, 7, 1, 4])], vec![text("mode", "wrap")], 1),
            (19, vec![fed(&[2, 5]), ints(&[0, 7, 1, 4])], vec![text("mode", "reflect")], 1),
            (19, vec![fed(&[2, 5]), ints(&[0, 7, 1, 4]), fed(&[])], vec![], 1),
        ],
        "Slice" => vec![
            (9, vec![fed(&[4, 5])], vec![list("starts", &[1]), list("ends", &[3]), list("axes", &[0])], 1),
            (
                13,
                vec![fed(&[4, 5]), ints(&[-1, 0]), ints(&[i64::MIN, i64::MAX]), ints(&[0, 1]), ints(&[-2, 2])],
                vec![],
                1,
            ),
        ],
        "Split" => vec![
            (11, vec![fed(&[2, 6])], vec![list("split", &[2, 4]), int("axis", 1)], 2),
            (13, vec![fed(&[1, 8]), ints(&[4, 4])], vec![int("axis", 1)], 2),
            (18, vec![fed(&[7, 2])], vec![int("num_outputs", 3)], 3),
        ],
        "DepthToSpace" => newest(vec![fed(&[2, 8, 2, 3])], vec![int("blocksize", 2)]),
        "SpaceToDepth" => vec![
            (13, vec![image()], vec![int("blocksize", 2)], 1),
            (28, vec![image()], vec![int("blocksize", 2), text("mode", "CRD")], 1),
        ],
        "Dropout" => vec![(7, vec![fed(&[2, 3])], vec![], 1), (13, vec![fed(&[2, 3])], vec![], 2)],
        "Expand" => newest(vec![fed(&[3, 1]), ints(&[2, 1, 4])], vec![]),
        "Tile" => newest(vec![fed(&[2, 3]), ints(&[1, 4])], vec![]),
        "Reshape" => newest(vec![fed(&[2, 3, 4]), ints(&[0, -1])], vec![]),
        "Squeeze" => vec![
            (11, vec![fed(&[1, 3, 1])], vec![list("axes", &[0])], 1),
            (13, vec![fed(&[1, 3, 1]), ints(&[-1])], vec![], 1),
            (13, vec![fed(&[1, 3, 1])], vec![], 1),
        ],
        "Unsqueeze" => newest(vec![fed(&[2, 3]), ints(&[0, -1])], vec![]),
        "Softmax" | "LogSoftmax" => {
            vec![(11, vec![fed(&[2, 3, 4])], vec![], 1), (13, vec![fed(&[2, 3, 4])], vec![int("axis", 1)], 1)]
        }
        _ if op_type.starts_with("Reduce") => vec![
            (11, vec![fed(&[2, 3, 4])], vec![list("axes", &[1, -1]), int("keepdims", 0)], 1),
            (18, vec![fed(&[2, 3, 4]), ints(&[0])], vec![], 1),
            (18, vec![fed(&[2, 3])], vec![int("keepdims", 0)], 1),
            (18, vec![fed(&[2, 3])], vec![int("noop_with_empty_axes", 1)], 1),
        ],
        // Functions of one tensor.
        _ => newest(vec![image()], vec![]),
    }
}

/// Integers with a scale and a zero point.
fn quantized(data_type: DataType, shape: &[u64]) -> Vec<Input> {
    vec![Input::Fed(data_type, shape.to_vec()), fed(&[]), Input::Fed(data_type, vec![])]
}

/// Recurrent nodes with few and with all inputs, in every direction and in both layouts.
fn recurrent_samples(op_type: &str) -> Vec<Sample> {
    let (gates, outputs) = match op_type {
        "LSTM" => (4, 3),
        "GRU" => (3, 2),
        _ => (1, 2),
    };
    let (steps, batch, elements, units) = (3, 2, 5, 4);
    let of = |direction: &str, directions: u64, by_batch: bool, after: i64| -> Sample {
        let weights = [fed(&[directions, gates * units, elements]), fed(&[directions, gates * units, units])];
        let shape = if by_batch { [batch, steps, elements] } else { [steps, batch, elements] };
        let state = if by_batch { [batch, directions, units] } else { [directions, batch, units] };
        let mut inputs: Vec<Input> = [fed(&shape)].into_iter().chain(weights).collect();
        inputs.extend([fed(&[directions, 2 * gates * units]), Input::Fed(Int32, vec![batch]), fed(&state)]);
        if op_type == "LSTM" {
            inputs.extend([fed(&state), fed(&[directions, 3 * units])]);
        }
        let attributes = vec![
            text("direction", direction),
            int("layout", i64::from(by_batch)),
            int("linear_before_reset", after),
            ("clip", Attribute::Float(2.0)),
        ];
        (14, inputs, attributes, outputs)
    };
    let few = vec![fed(&[steps, batch, elements]), fed(&[1, gates * units, elements]), fed(&[1, gates * units, units])];
    vec![
        (7, few, vec![int("hidden_size", units as i64)], 1),
        of("reverse", 1, false, 0),
        of("bidirectional", 2, false, 1),
        of("bidirectional", 2, true, 0),
    ]
}

#[test]
fn every_row_infers_and_lowers() {
    for row in FAMILIES.iter().flat_map(|family| family.iter()) {
        for (version, inputs, attributes, outputs) in samples(row.domain, row.op_type) {
            let mut graph = graph_of(&full_name(row), version, inputs, &attributes, outputs);
            infer_node(&mut graph, 0).unwrap_or_else(|error| panic!("{error}"));
            lower(&graph, &BTreeSet::new()).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

#[test]
fn inputs_and_attributes_that_an_operator_does_not_have_are_refused() {
    // `python/tests/test_tensor.py` compares the rows with the `onnx` package.
    for row in FAMILIES.iter().flat_map(|family| family.iter()).filter(|row| row.domain.is_empty()) {
        assert!(signatures::of(row.op_type).is_some(), "{}", row.op_type);
    }
    let refused = |op_type: &str, inputs: Vec<Input>, attributes: &[(&'static str, Attribute)]| {
        let graph = graph_of(op_type, NEWEST_OPSET, inputs, attributes, 1);
        signatures::check(&NodeView { graph: &graph, node: &graph.nodes[0] }).unwrap_err().to_string()
    };
    let why = refused("ReduceSum", vec![fed(&[2, 3])], &[("axes", Attribute::Ints(vec![1]))]);
    let expected = format!("operator set {NEWEST_OPSET}; it has keepdims, noop_with_empty_axes");
    assert!(why.contains("no attribute 'axes'") && why.contains(&expected), "{why}");
    let why = refused("Relu", vec![fed(&[2]), Input::Absent, fed(&[2])], &[]);
    assert!(why.contains("3 inputs are given, but it takes at most 1"), "{why}");
}

#[test]
fn every_gradient_has_the_type_of_its_input_and_lowers() {
    // Samples without a gradient, and operators whose gradient is zero.
    let is_refused = |op_type: &str| op_type == "DynamicQuantizeLSTM";
    let is_zero = |op_type: &str, i: usize, attributes: &[(&str, Attribute)]| match op_type {
        "GridSample" => i == 1 && attributes.contains(&text("mode", "nearest")),
        "Ceil" | "ConstantOfShape" | "EyeLike" | "Floor" | "Hardmax" | "Round" | "Sign" => true,
        "Bernoulli" | "RandomNormalLike" | "RandomUniformLike" | "Multinomial" => true,
        "Binarizer" | "LabelEncoder" | "OneHotEncoder" | "TreeEnsemble" | "TreeEnsembleRegressor" => true,
        "CastLike" | "MaxRoiPool" => i == 1,
        _ => false,
    };
    for row in FAMILIES.iter().flat_map(|family| family.iter()) {
        for (version, inputs, attributes, outputs) in samples(row.domain, row.op_type) {
            let mut graph = graph_of(&full_name(row), version, inputs, &attributes, outputs);
            infer_node(&mut graph, 0).unwrap();
            let is_float = |id: &ValueId| graph.ty(*id).unwrap().data_type.has_gradients();
            let by: Vec<ValueId> = graph.inputs.iter().copied().filter(is_float).collect();
            if !is_float(&graph.outputs[0]) {
                continue;
            }
            let loss = append_sum(&mut graph);
            let result = gradients(&mut graph, loss, &by);
            if is_refused(row.op_type) {
                assert!(matches!(result, Err(ModelError::NoGradient { .. })), "{}", row.op_type);
                continue;
            }
            let result = result.unwrap_or_else(|error| panic!("{error}"));
            for (i, (&input, d)) in by.iter().zip(&result).enumerate() {
                let is_end = row.domain == FOREBAY && ["Identity", "Next"].contains(&row.op_type);
                let expected = if is_end || is_zero(row.op_type, i, &attributes) { None } else { graph.ty(input) };
                assert_eq!(d.and_then(|d| graph.ty(d)), expected, "{} input {i}", row.op_type);
            }
            check_types(&graph);
            graph.outputs.extend(result.into_iter().flatten());
            graph.drop_dead_nodes();
            lower(&graph, &BTreeSet::new()).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

/// The sum of squares of the first output's elements, in float32, as losses must be.
fn append_sum(graph: &mut Graph) -> ValueId {
    let sum = [("ReduceSumSquare", "keepdims", 0), ("Cast", "to", 1)];
    sum.into_iter().fold(graph.outputs[0], |value, (op_type, attribute, number)| {
        let output = graph.add_value(op_type, None);
        graph.nodes.push(Node {
            name: String::new(),
            operation: Operation::onnx(op_type, &[(attribute, Attribute::Int(number))]),
            inputs: vec![Some(value)],
            outputs: vec![Some(output)],
        });
        infer_node(graph, graph.nodes.len() - 1).unwrap();
        output
    })
}

/// The types stated for gradients are those that inference determines.
fn check_types(graph: &Graph) {
    for node in graph.nodes.iter().filter(|node| matches!(node.operation, Operation::Onnx { .. })) {
        let view = NodeView { graph, node };
        let types = (super::row(&view).unwrap().infer)(&view).unwrap_or_else(|error| panic!("{error}"));
        for (output, ty) in node.outputs.iter().zip(types) {
            if let Some(output) = output {
                assert_eq!(graph.ty(*output), Some(&ty), "{}", node.operation.name());
            }
        }
    }
}
