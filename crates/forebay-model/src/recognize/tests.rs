//! Attention is found in the forms that exporters write, and only there.

use forebay_base::{DataType, Tensor};

use super::attention;
use crate::graph::{Attribute, Graph, Node, Operation, TensorType, ValueId};
use crate::infer::infer_node;

/// A graph that is written node by node.
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

    /// Queries, keys and values [2, 3, length, 4]; the keys with their dimensions exchanged.
    fn operands(&mut self) -> [ValueId; 3] {
        let q = self.input("q", DataType::Float32, &[2, 3, 5, 4]);
        let k = self.input("k", DataType::Float32, &[2, 7, 3, 4]);
        let v = self.input("v", DataType::Float32, &[2, 3, 7, 4]);
        let k = self.node("Transpose", &[k], &[("perm", Attribute::Ints(vec![0, 2, 3, 1]))]);
        [q, k, v]
    }

    /// The names of the operators once attention is found.
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
            1 => &["Transpose", "Mul", "Transpose", "Attention"],
            4 => &["Transpose", "Transpose", "Not", "Attention"],
            5 => &["Transpose", "Transpose", "Where", "Attention"],
            _ => &["Transpose", "Transpose", "Attention"],
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
