//! Attention is recognized in the forms that exporters write, and only in those.

use std::sync::Arc;

use forebay_base::{DataType, Tensor};

use super::{activations, attention, group_normalizations, normalizations, products_of_transposed, transposed_weights};
use crate::context::NodeView;
use crate::graph::{Attribute, Graph, Node, Operation, TensorType, ValueId};
use crate::infer::infer_node;
use crate::tensor::{Contents, FileRange, SourceFile};

/// A graph built node by node.
struct Writer(Graph);

impl Writer {
    fn new() -> Writer {
        Writer(Graph::default())
    }

    fn input(&mut self, name: &str, data_type: DataType, shape: &[u64]) -> ValueId {
        let id = self.0.add_value(name, Some(TensorType::new(data_type, shape)));
        self.0.inputs.push(id);
        id
    }

    fn number(&mut self, value: f32) -> ValueId {
        let id = self.0.add_initializer("number", Tensor::from_f32(&[], &[value]));
        self.0.constants.insert(id);
        id
    }

    fn node(&mut self, op_type: &str, inputs: &[ValueId], attributes: &[(&str, Attribute)]) -> ValueId {
        let output = self.0.add_value(op_type, None);
        self.0.nodes.push(Node {
            name: op_type.to_string(),
            operation: Operation::onnx(op_type, attributes),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(output)],
        });
        let last = self.0.nodes.len() - 1;
        infer_node(&mut self.0, last).unwrap();
        output
    }

    /// Queries, keys and values [2, 3, length, 4]; the last two dimensions of the keys are swapped.
    fn operands(&mut self) -> [ValueId; 3] {
        let q = self.input("q", DataType::Float32, &[2, 3, 5, 4]);
        let k = self.input("k", DataType::Float32, &[2, 7, 3, 4]);
        let v = self.input("v", DataType::Float32, &[2, 3, 7, 4]);
        let k = self.node("Transpose", &[k], &[("perm", Attribute::Ints(vec![0, 2, 3, 1]))]);
        [q, k, v]
    }

    /// Returns the names of the operators after attention has been recognized.
    fn found(mut self, y: ValueId, is_inference: bool) -> Vec<String> {
        self.0.outputs.push(y);
        attention(&mut self.0, is_inference).unwrap();
        self.0.nodes.iter().map(|node| node.operation.name().to_string()).collect()
    }
}

/// A masked softmax, and its product with v.
fn finish(writer: &mut Writer, scores: ValueId, v: ValueId) -> ValueId {
    let p = writer.node("Softmax", &[scores], &[]);
    writer.node("MatMul", &[p, v], &[])
}

#[test]
fn scores_may_be_scaled_and_masked() {
    for form in 0..6 {
        let mut writer = Writer::new();
        let [q, k, v] = writer.operands();
        let two = writer.number(2.0);
        let q = if form == 1 { writer.node("Mul", &[q, two], &[]) } else { q };
        let mut s = writer.node("MatMul", &[q, k], &[]);
        s = match form {
            2 => writer.node("Mul", &[two, s], &[]),
            _ => writer.node("Div", &[s, two], &[]),
        };
        let bias = writer.input("bias", DataType::Float32, &[2, 1, 1, 7]);
        let condition = writer.input("condition", DataType::Bool, &[5, 7]);
        let unseen = writer.number(if form == 5 { f32::MIN } else { f32::NEG_INFINITY });
        s = match form {
            3 => writer.node("Add", &[bias, s], &[]),
            4 | 5 => writer.node("Where", &[condition, unseen, s], &[]),
            _ => s,
        };
        let y = finish(&mut writer, s, v);
        let expected: &[&str] = match form {
            1 => &["Mul", "Transpose", "Attention"],
            4 => &["Transpose", "Not", "Attention"],
            5 => &["Transpose", "Where", "Attention"],
            _ => &["Transpose", "Attention"],
        };
        assert_eq!(writer.found(y, false), expected, "form {form}");
    }
}

#[test]
fn the_scale_is_what_the_graph_says() {
    let mut writer = Writer::new();
    let [q, k, v] = writer.operands();
    let two = writer.number(2.0);
    let s = writer.node("MatMul", &[q, k], &[]);
    let s = writer.node("Div", &[s, two], &[]);
    let y = finish(&mut writer, s, v);
    writer.0.outputs.push(y);
    attention(&mut writer.0, false).unwrap();
    let Operation::Onnx { attributes, .. } = &writer.0.nodes.last().unwrap().operation else { panic!("an operator") };
    assert_eq!(attributes.get("scale"), Some(&Attribute::Float(0.5)));
    assert_eq!(writer.0.ty(y), Some(&TensorType::new(DataType::Float32, &[2, 3, 5, 4])));
}

/// The transposition that exporters put before the product of queries and keys is not undone by a second one.
#[test]
fn keys_are_transposed_at_most_once() {
    for (shape, order, expected) in [
        ([2, 3, 7, 4], Some([0, 1, 3, 2]), None),
        ([2, 7, 3, 4], Some([0, 2, 3, 1]), Some([0, 2, 1, 3])),
        ([2, 4, 3, 7], Some([0, 2, 1, 3]), Some([0, 2, 3, 1])),
        ([2, 3, 4, 7], None, Some([0, 1, 3, 2])),
    ] {
        let mut writer = Writer::new();
        let q = writer.input("q", DataType::Float32, &[2, 3, 5, 4]);
        let k = writer.input("k", DataType::Float32, &shape);
        let v = writer.input("v", DataType::Float32, &[2, 3, 7, 4]);
        let perm = |order: [i64; 4]| ("perm", Attribute::Ints(order.to_vec()));
        let turned = order.map_or(k, |order| writer.node("Transpose", &[k], &[perm(order)]));
        let s = writer.node("MatMul", &[q, turned], &[]);
        let y = finish(&mut writer, s, v);
        writer.0.outputs.push(y);
        attention(&mut writer.0, false).unwrap();
        let found = &writer.0.nodes;
        let keys = found.last().unwrap().inputs[1].unwrap();
        assert_eq!(writer.0.ty(keys).unwrap().shape, [2, 3, 7, 4]);
        let Some(expected) = expected else {
            assert_eq!((found.len(), keys), (1, k));
            continue;
        };
        assert_eq!((found.len(), found[0].inputs[0]), (2, Some(k)));
        assert_eq!(found[0].operation, Operation::onnx("Transpose", &[perm(expected)]));
    }
}

#[test]
fn what_others_read_stays() {
    let mut writer = Writer::new();
    let [q, k, v] = writer.operands();
    let s = writer.node("MatMul", &[q, k], &[]);
    let y = finish(&mut writer, s, v);
    writer.0.outputs.push(s);
    assert!(!writer.found(y, false).contains(&"Attention".to_string()), "the scores are an output");
    let mut writer = Writer::new();
    let [q, k, v] = writer.operands();
    let s = writer.node("MatMul", &[q, k], &[]);
    let p = writer.node("Softmax", &[s], &[("axis", Attribute::Int(2))]);
    let y = writer.node("MatMul", &[p, v], &[]);
    assert!(!writer.found(y, false).contains(&"Attention".to_string()), "along another axis");
}

#[test]
fn dropout_is_left_out_in_inference_alone() {
    for is_inference in [false, true] {
        let mut writer = Writer::new();
        let [q, k, v] = writer.operands();
        let s = writer.node("MatMul", &[q, k], &[]);
        let p = writer.node("Softmax", &[s], &[]);
        let p = writer.node("Dropout", &[p], &[]);
        let y = writer.node("MatMul", &[p, v], &[]);
        assert_eq!(writer.found(y, is_inference).contains(&"Attention".to_string()), is_inference);
    }
}

/// PyTorch's exporters replace NaN by 0 after the softmax of masked scores.
#[test]
fn a_guard_against_rows_without_keys_is_part_of_attention() {
    for (replacement, guards_itself, expected) in [(0.0, true, true), (1.0, true, false), (0.0, false, false)] {
        let mut writer = Writer::new();
        let [q, k, v] = writer.operands();
        let mask = writer.input("mask", DataType::Float32, &[2, 1, 5, 7]);
        let other = writer.input("other", DataType::Float32, &[2, 3, 5, 7]);
        let s = writer.node("MatMul", &[q, k], &[]);
        let s = writer.node("Add", &[s, mask], &[]);
        let p = writer.node("Softmax", &[s], &[]);
        let is_nan = writer.node("IsNaN", &[if guards_itself { p } else { other }], &[]);
        let replacement = writer.number(replacement);
        let p = writer.node("Where", &[is_nan, replacement, p], &[]);
        let y = writer.node("MatMul", &[p, v], &[]);
        let found = writer.found(y, false);
        assert_eq!(found == ["Transpose", "Attention"], expected, "{found:?}");
    }
}

#[test]
fn keys_that_heads_share_are_not_repeated() {
    let mut writer = Writer::new();
    let q = writer.input("q", DataType::Float32, &[2, 6, 5, 4]);
    let repeated = |writer: &mut Writer, name: &str| {
        let ints = |writer: &mut Writer, values: &[i64]| {
            let id = writer.0.add_initializer("sizes", Tensor::from_i64(&[values.len() as u64], values));
            writer.0.constants.insert(id);
            id
        };
        let x = writer.input(name, DataType::Float32, &[2, 2, 7, 4]);
        let axes = ints(writer, &[2]);
        let x = writer.node("Unsqueeze", &[x, axes], &[]);
        let sizes = ints(writer, &[2, 2, 3, 7, 4]);
        let x = writer.node("Expand", &[x, sizes], &[]);
        let sizes = ints(writer, &[2, 6, 7, 4]);
        writer.node("Reshape", &[x, sizes], &[])
    };
    let (k, v) = (repeated(&mut writer, "k"), repeated(&mut writer, "v"));
    let k = writer.node("Transpose", &[k], &[("perm", Attribute::Ints(vec![0, 1, 3, 2]))]);
    let s = writer.node("MatMul", &[q, k], &[]);
    let y = finish(&mut writer, s, v);
    assert_eq!(writer.found(y, false), ["Unsqueeze", "Unsqueeze", "Reshape", "Reshape", "Attention"]);
}

/// Builds a node with constant weights of this shape and a bias, followed by a normalization of its three or six channels, and checks the
/// merged weights and bias against the channel of each weight.
fn normalized(
    op_type: &str,
    x: &[u64],
    weights: &[u64],
    attributes: &[(&str, Attribute)],
    channel: fn(usize) -> usize,
) {
    let mut writer = Writer::new();
    let constant = |writer: &mut Writer, shape: &[u64], start: f32, step: f32| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|i: u64| start + step * i as f32).collect();
        let id = writer.0.add_initializer("constant", Tensor::from_f32(shape, &values));
        writer.0.constants.insert(id);
        (id, values)
    };
    let x = writer.input("x", DataType::Float32, x);
    let (weights, of_weights) = constant(&mut writer, weights, -0.4, 0.07);
    let channels = 1 + (0..of_weights.len()).map(channel).max().unwrap() as u64;
    let (bias, of_bias) = constant(&mut writer, &[channels], 0.3, -0.2);
    let y = writer.node(op_type, &[x, weights, bias], attributes);
    let parameters = [(1.5, 0.25), (-0.5, 0.1), (0.2, 0.3), (0.9, 0.4)];
    let parameters = parameters.map(|(start, step)| constant(&mut writer, &[channels], start, step));
    let [scale, shift, mean, variance] = [0, 1, 2, 3].map(|i| parameters[i].0);
    let epsilon = 1e-3;
    let attributes = [("epsilon", Attribute::Float(epsilon))];
    let y = writer.node("BatchNormalization", &[y, scale, shift, mean, variance], &attributes);
    let after = writer.node("Relu", &[y], &[]);
    writer.0.outputs.push(after);
    normalizations(&mut writer.0);
    let names: Vec<&str> = writer.0.nodes.iter().map(|node| node.operation.name()).collect();
    assert_eq!(names, [op_type, "Relu"]);
    let of = |i: usize, channel: usize| f64::from(parameters[i].1[channel]);
    let factor = |channel: usize| of(0, channel) / (of(3, channel) + f64::from(epsilon)).sqrt();
    let found = |i: usize| writer.0.initializers[&writer.0.nodes[0].inputs[i].unwrap()].to_tensor().unwrap();
    let scaled = |(i, weight): (usize, &f32)| (f64::from(*weight) * factor(channel(i))) as f32;
    let expected: Vec<f32> = of_weights.iter().enumerate().map(scaled).collect();
    assert_eq!(found(1).to_f32().unwrap(), expected, "{op_type}");
    let moved = |c: usize| ((f64::from(of_bias[c]) - of(2, c)) * factor(c) + of(1, c)) as f32;
    let expected: Vec<f32> = (0..channels as usize).map(moved).collect();
    assert_eq!(found(2).to_f32().unwrap(), expected, "{op_type}");
}

#[test]
fn normalizations_become_part_of_the_weights_before_them() {
    let group = |groups: i64| ("group", Attribute::Int(groups));
    normalized("Conv", &[2, 4, 5, 5], &[6, 2, 3, 3], &[group(2)], |i| i / 18);
    // Four rows of two groups, each with three channels of four elements.
    normalized("ConvTranspose", &[2, 4, 5, 5], &[4, 3, 2, 2], &[group(2)], |i| i / 24 * 3 + i / 4 % 3);
    normalized("Gemm", &[2, 4], &[4, 3], &[], |i| i % 3);
    normalized("Gemm", &[2, 4], &[3, 4], &[("transB", Attribute::Int(1))], |i| i / 4);
}

/// Returns the operators after weights were transposed, and the weights of the last one.
fn with_transposed_weights(mut writer: Writer, y: ValueId) -> (Vec<String>, Tensor) {
    writer.0.outputs.push(y);
    transposed_weights(&mut writer.0, false);
    let names = writer.0.nodes.iter().map(|node| node.operation.name().to_string()).collect();
    let weights = writer.0.nodes.last().and_then(|node| node.inputs[1]).unwrap();
    (names, writer.0.initializers[&weights].to_tensor().unwrap())
}

#[test]
fn weights_of_products_and_of_convolutions_of_few_positions_are_transposed() {
    let values: Vec<f32> = (0..32 * 320).map(|i| i as f32).collect();
    let transposed: Vec<f32> =
        (0..320).flat_map(|column| (0..32).map(move |row| (row * 320 + column) as f32)).collect();
    let weights = |writer: &mut Writer, shape: &[u64]| {
        let id = writer.0.add_initializer("weights", Tensor::from_f32(shape, &values));
        writer.0.constants.insert(id);
        id
    };
    // By positions of an image, step and whether the weights have another use: whether they are transposed.
    for (plane, step, is_shared, expected) in
        [(7, 1, false, true), (40, 1, false, false), (7, 2, false, false), (7, 1, true, false)]
    {
        let mut writer = Writer::new();
        let x = writer.input("x", DataType::Float32, &[1, 320, plane, plane]);
        let weights = weights(&mut writer, &[32, 320, 1, 1]);
        if is_shared {
            writer.0.outputs.push(weights);
        }
        let y = writer.node("Conv", &[x, weights], &[("strides", Attribute::Ints(vec![step; 2]))]);
        let (names, found) = with_transposed_weights(writer, y);
        let (name, shape, values) = match expected {
            true => ("ConvTranspose", [320, 32, 1, 1], &transposed),
            false => ("Conv", [32, 320, 1, 1], &values),
        };
        assert_eq!(names, [name], "{plane} {step} {is_shared}");
        assert_eq!((found.shape(), &found.to_f32().unwrap()), (shape.as_slice(), values));
    }
    for (rows, transpose, expected) in [(9, 1, true), (2, 1, false), (9, 0, false)] {
        let mut writer = Writer::new();
        let x = writer.input("x", DataType::Float32, &[rows, if transpose == 1 { 320 } else { 32 }]);
        let weights = weights(&mut writer, &[32, 320]);
        let attributes = [("transB", Attribute::Int(transpose)), ("alpha", Attribute::Float(0.5))];
        let y = writer.node("Gemm", &[x, weights], &attributes);
        let (names, found) = with_transposed_weights(writer, y);
        let (shape, values) = if expected { ([320, 32], &transposed) } else { ([32, 320], &values) };
        assert_eq!(names, ["Gemm"]);
        assert_eq!((found.shape(), &found.to_f32().unwrap()), (shape.as_slice(), values), "{rows} {transpose}");
    }
}

#[test]
fn weights_in_files_stay_as_they_are_within_a_budget() {
    let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let metadata = std::fs::metadata(path).unwrap();
    for (is_in_file, has_budget, expected) in
        [(true, true, false), (true, false, true), (false, true, true), (false, false, true)]
    {
        let mut writer = Writer::new();
        let x = writer.input("x", DataType::Float32, &[9, 20]);
        let contents = if is_in_file {
            let file = Arc::new(SourceFile::closed(path, &metadata, Arc::default()));
            let ty = TensorType::new(DataType::Float32, &[32, 20]);
            Contents::stored("weights", ty, FileRange { file, bytes: 0..4 * 32 * 20 }).unwrap()
        } else {
            Tensor::from_f32(&[32, 20], &[0.0; 32 * 20]).into()
        };
        let weights = writer.0.add_initializer("weights", contents);
        writer.0.constants.insert(weights);
        let y = writer.node("Gemm", &[x, weights], &[("transB", Attribute::Int(1))]);
        writer.0.outputs.push(y);
        let changed = transposed_weights(&mut writer.0, has_budget);
        assert_eq!(!changed.is_empty(), expected, "{is_in_file} {has_budget}");
    }
}

#[test]
fn normalizations_stay_where_something_else_reads_what_they_read_or_statistics_are_of_the_batch() {
    for form in 0..3 {
        let mut writer = Writer::new();
        let x = writer.input("x", DataType::Float32, &[2, 3, 4, 4]);
        let constant = |writer: &mut Writer, shape: &[u64]| {
            let values = vec![0.5; shape.iter().product::<u64>() as usize];
            let id = writer.0.add_initializer("constant", Tensor::from_f32(shape, &values));
            writer.0.constants.insert(id);
            id
        };
        let weights = constant(&mut writer, &[3, 3, 1, 1]);
        if form == 1 {
            writer.0.constants.remove(&weights);
        }
        let y = writer.node("Conv", &[x, weights], &[]);
        let parameters = [0; 4].map(|_| constant(&mut writer, &[3]));
        let attributes = [("training_mode", Attribute::Int(i64::from(form == 2)))];
        let z = writer.node("BatchNormalization", &[&[y], parameters.as_slice()].concat(), &attributes);
        writer.0.outputs.push(z);
        if form == 0 {
            writer.0.outputs.push(y);
        }
        normalizations(&mut writer.0);
        assert_eq!(writer.0.nodes.len(), 2, "form {form}");
    }
}

#[test]
fn activations_are_found_as_exporters_write_them() {
    for form in 0..9 {
        let mut writer = Writer::new();
        let x = writer.input("x", DataType::Float32, &[2, 3]);
        let [root, half, one] = [2f32.sqrt(), 0.5, 1.0].map(|value| writer.number(value));
        let factor = writer.number(if form == 3 { 0.7 } else { std::f32::consts::FRAC_1_SQRT_2 });
        let other = writer.input("other", DataType::Float32, &[2, 3]);
        let y = match form {
            0..6 => {
                let scaled = match form {
                    0 => writer.node("Div", &[x, root], &[]),
                    4 => writer.node("Mul", &[other, factor], &[]),
                    _ => writer.node("Mul", &[factor, x], &[]),
                };
                let error = writer.node("Erf", &[scaled], &[]);
                let gate = writer.node("Add", &if form == 1 { [one, error] } else { [error, one] }, &[]);
                if form == 5 {
                    writer.0.outputs.push(gate);
                }
                match form {
                    1 => {
                        let halves = writer.node("Mul", &[half, x], &[]);
                        writer.node("Mul", &[halves, gate], &[])
                    }
                    2 => {
                        let halves = writer.node("Mul", &[gate, half], &[]);
                        writer.node("Mul", &[x, halves], &[])
                    }
                    _ => {
                        let product = writer.node("Mul", &[x, gate], &[]);
                        writer.node("Mul", &[product, half], &[])
                    }
                }
            }
            _ => {
                let gate = writer.node("Sigmoid", &[if form == 8 { other } else { x }], &[]);
                writer.node("Mul", &if form == 6 { [gate, x] } else { [x, gate] }, &[])
            }
        };
        writer.0.outputs.push(y);
        activations(&mut writer.0);
        let names: Vec<&str> = writer.0.nodes.iter().map(|node| node.operation.name()).collect();
        match form {
            0..3 => assert_eq!(names, ["Gelu"], "form {form}"),
            3..6 => assert_eq!(names.len(), 5, "form {form}: another factor, another value, or what else is read"),
            6..8 => assert_eq!(names, ["Swish"], "form {form}"),
            _ => assert_eq!(names, ["Sigmoid", "Mul"], "the sigmoid of another value"),
        }
    }
}

#[test]
fn units_with_a_hyperbolic_tangent_are_found_as_exporters_write_them() {
    for form in 0..7 {
        let mut writer = Writer::new();
        let x = writer.input("x", DataType::Float32, &[2, 3]);
        let other = writer.input("other", DataType::Float32, &[2, 3]);
        let [half, one, three] = [0.5, 1.0, 3.0].map(|value| writer.number(value));
        let linear = writer.number(0.797_884_6);
        let cubic = writer.number(if form == 3 { 0.0447 } else { 0.044_715 });
        let argument = match form {
            // PyTorch's exporter: linear (x + cubic (x (x x))).
            0 => {
                let square = writer.node("Mul", &[x, x], &[]);
                let cube = writer.node("Mul", &[x, square], &[]);
                let scaled = writer.node("Mul", &[cubic, cube], &[]);
                let sum = writer.node("Add", &[x, scaled], &[]);
                writer.node("Mul", &[linear, sum], &[])
            }
            // x linear (1 + cubic x x).
            1 => {
                let scaled = writer.node("Mul", &[cubic, x], &[]);
                let square = writer.node("Mul", &[scaled, x], &[]);
                let sum = writer.node("Add", &[square, one], &[]);
                let first = writer.node("Mul", &[x, linear], &[]);
                writer.node("Mul", &[first, sum], &[])
            }
            // linear (x + cubic x^3), or of something else.
            _ => {
                let cube = writer.node("Pow", &[if form == 4 { other } else { x }, three], &[]);
                let scaled = writer.node("Mul", &[cube, cubic], &[]);
                let sum = writer.node("Add", &[x, scaled], &[]);
                if form == 5 {
                    writer.0.outputs.push(sum);
                }
                writer.node("Mul", &[sum, linear], &[])
            }
        };
        let function = writer.node(if form == 6 { "Erf" } else { "Tanh" }, &[argument], &[]);
        let gate = writer.node("Add", &[one, function], &[]);
        let halves = writer.node("Mul", &[half, x], &[]);
        let y = writer.node("Mul", &[halves, gate], &[]);
        writer.0.outputs.push(y);
        activations(&mut writer.0);
        let nodes = &writer.0.nodes;
        if form < 3 {
            assert_eq!(nodes.len(), 1, "form {form}");
            let view = NodeView { graph: &writer.0, node: &nodes[0] };
            let approximate = view.string("approximate", "none").unwrap();
            assert_eq!((nodes[0].operation.name(), approximate), ("Gelu", "tanh"), "form {form}");
        } else {
            assert_eq!(nodes.len(), 8, "form {form}: another coefficient, value or function, or what else is read");
        }
    }
}

#[test]
fn a_product_with_a_hard_sigmoid_is_found_where_its_line_is_the_right_one() {
    for (alpha, expected) in [(1.0 / 6.0, vec!["HardSwish"]), (0.2, vec!["HardSigmoid", "Mul"])] {
        let mut writer = Writer::new();
        let x = writer.input("x", DataType::Float32, &[2, 3]);
        let gate = writer.node("HardSigmoid", &[x], &[("alpha", Attribute::Float(alpha))]);
        let y = writer.node("Mul", &[x, gate], &[]);
        writer.0.outputs.push(y);
        activations(&mut writer.0);
        let names: Vec<&str> = writer.0.nodes.iter().map(|node| node.operation.name()).collect();
        assert_eq!(names, expected);
    }
}

/// Returns the operators of group normalization of [1, channels, 4, 5], written as instance normalization of `rows`, with scales of this
/// shape and this first factor of each group.
fn groups(channels: u64, rows: &[i64], scale: &[u64], factor: f32) -> Vec<String> {
    let mut writer = Writer::new();
    let x = writer.input("x", DataType::Float32, &[1, channels, 4, 5]);
    let scale = writer.input("scale", DataType::Float32, scale);
    let bias = writer.input("bias", DataType::Float32, &[channels, 1, 1]);
    let mut constant = |tensor: Tensor| {
        let id = writer.0.add_initializer("constant", tensor);
        writer.0.constants.insert(id);
        id
    };
    let rows_shape = constant(Tensor::from_i64(&[rows.len() as u64], rows));
    let shape = constant(Tensor::from_i64(&[4], &[1, channels as i64, 4, 5]));
    let count = rows[1] as usize;
    let ones = constant(Tensor::from_f32(&[count as u64], &vec![factor; count]));
    let zeros = constant(Tensor::from_f32(&[count as u64], &vec![0.0; count]));
    let rows = writer.node("Reshape", &[x, rows_shape], &[]);
    let normalized = writer.node("InstanceNormalization", &[rows, ones, zeros], &[("epsilon", Attribute::Float(1e-3))]);
    let viewed = writer.node("Reshape", &[normalized, shape], &[]);
    let product = writer.node("Mul", &[scale, viewed], &[]);
    let y = writer.node("Add", &[product, bias], &[]);
    writer.0.outputs.push(y);
    group_normalizations(&mut writer.0).unwrap();
    if let Some(node) = writer.0.nodes.iter().find(|node| node.operation.name() == "GroupNormalization") {
        let view = crate::context::NodeView { graph: &writer.0, node };
        assert_eq!((view.int("num_groups", 0).unwrap(), view.float("epsilon", 0.0).unwrap()), (count as i64, 1e-3));
        assert_eq!((node.inputs[0], node.outputs[0]), (Some(x), Some(y)));
    }
    writer.0.nodes.iter().map(|node| node.operation.name().to_string()).collect()
}

#[test]
fn group_normalization_is_found_behind_instance_normalization() {
    let found = ["Reshape", "Reshape", "GroupNormalization"];
    assert_eq!(groups(6, &[1, 3, -1], &[6, 1, 1], 1.0), found);
    assert_eq!(groups(6, &[1, 2, 5, 12], &[1, 6, 1, 1], 1.0), found);
    assert_eq!(groups(64, &[1, 32, -1], &[64, 1, 1], 1.0), found, "more groups than numbers that are read in advance");
    let written = ["Reshape", "InstanceNormalization", "Reshape", "Mul", "Add"];
    assert_eq!(groups(6, &[1, 3, -1], &[6, 1, 1], 2.0), written, "scaled by group");
    assert_eq!(groups(6, &[1, 3, -1], &[5], 1.0), written, "a scale for each place in a row");
    assert_eq!(groups(6, &[1, 4, -1], &[6, 1, 1], 1.0), written, "groups that divide channels");
}

/// The operators of a graph, after products read transposed matrices in place, and the attributes of the last one.
fn products(mut writer: Writer, y: ValueId) -> (Vec<String>, [i64; 2]) {
    writer.0.outputs.push(y);
    let shape = writer.0.ty(y).unwrap().shape.clone();
    products_of_transposed(&mut writer.0);
    let last = writer.0.nodes.len() - 1;
    infer_node(&mut writer.0, last).unwrap();
    assert_eq!(writer.0.ty(y).unwrap().shape, shape);
    let view = NodeView { graph: &writer.0, node: &writer.0.nodes[last] };
    let transposes = ["transA", "transB"].map(|name| view.int(name, 0).unwrap());
    (writer.0.nodes.iter().map(|node| node.operation.name().to_string()).collect(), transposes)
}

#[test]
fn products_read_matrices_with_exchanged_dimensions_in_place() {
    // The factors, whether each is transposed, and the operators and attributes after that.
    type Case = (&'static str, [&'static [u64]; 2], [bool; 2], &'static [&'static str], [i64; 2]);
    let cases: [Case; 8] = [
        ("MatMul", [&[2, 5, 4], &[3, 4]], [false, true], &["FusedMatMul"], [0, 1]),
        ("MatMul", [&[4, 5], &[4, 3]], [true, false], &["FusedMatMul"], [1, 0]),
        ("MatMul", [&[2, 4, 5], &[2, 3, 4]], [true, true], &["FusedMatMul"], [1, 1]),
        ("MatMul", [&[4], &[3, 4]], [false, true], &["FusedMatMul"], [0, 1]),
        // Several matrices by one: their rows are multiplied at once.
        ("MatMul", [&[2, 4, 5], &[4, 3]], [true, false], &["Transpose", "MatMul"], [0, 0]),
        ("MatMul", [&[2, 4, 5], &[3, 4]], [true, true], &["Transpose", "FusedMatMul"], [0, 1]),
        ("Gemm", [&[5, 4], &[3, 4]], [false, true], &["Gemm"], [0, 1]),
        ("MatMul", [&[5, 4], &[4, 3]], [false, false], &["MatMul"], [0, 0]),
    ];
    for (op_type, shapes, transposed, operators, transposes) in cases {
        let mut writer = Writer::new();
        let factors: Vec<ValueId> = (0..2)
            .map(|i| {
                let x = writer.input("x", DataType::Float32, shapes[i]);
                let mut order: Vec<i64> = (0..shapes[i].len() as i64).collect();
                let last = order.len().saturating_sub(2);
                order[last..].reverse();
                if transposed[i] { writer.node("Transpose", &[x], &[("perm", Attribute::Ints(order))]) } else { x }
            })
            .collect();
        let y = writer.node(op_type, &factors, &[]);
        let expected: Vec<String> = operators.iter().map(|name| name.to_string()).collect();
        assert_eq!(products(writer, y), (expected, transposes), "{op_type} {shapes:?} {transposed:?}");
    }
}

#[test]
fn a_transposition_that_others_need_stays() {
    let mut writer = Writer::new();
    let (x, w) = (writer.input("x", DataType::Float32, &[5, 4]), writer.input("w", DataType::Float32, &[3, 4]));
    let turned = writer.node("Transpose", &[w], &[]);
    let y = writer.node("Gemm", &[x, turned], &[("transB", Attribute::Int(0))]);
    writer.0.outputs.push(turned);
    assert_eq!(products(writer, y), (vec!["Transpose".to_string(), "Gemm".to_string()], [0, 1]));
    // One that moves other dimensions is more than an exchange.
    let mut writer = Writer::new();
    let (x, k) =
        (writer.input("x", DataType::Float32, &[2, 3, 5, 4]), writer.input("k", DataType::Float32, &[2, 7, 3, 4]));
    let turned = writer.node("Transpose", &[k], &[("perm", Attribute::Ints(vec![0, 2, 3, 1]))]);
    let y = writer.node("MatMul", &[x, turned], &[]);
    assert_eq!(products(writer, y).0, ["Transpose", "MatMul"]);
}
