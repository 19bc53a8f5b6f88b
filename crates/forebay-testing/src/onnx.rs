//! Small ONNX models, written field by field.

pub mod builder;
pub mod protobuf;

use protobuf::{message, number};

/// ONNX's number for the element type float32.
pub const FLOAT: i64 = 1;
/// ONNX's number for the element type float16.
pub const FLOAT16: i64 = 10;
/// ONNX's number for the element type bfloat16.
pub const BFLOAT16: i64 = 16;

fn text(field: u64, content: &str) -> Vec<u8> {
    message(field, content.as_bytes())
}

/// Returns a node with one output. An attribute is a number, or a list of numbers if its flag is set.
pub fn node(operator: &str, inputs: &[&str], output: &str, attributes: &[(&str, &[i64], bool)]) -> Vec<u8> {
    let mut fields: Vec<Vec<u8>> = inputs.iter().map(|input| text(1, input)).collect();
    fields.push(text(2, output));
    fields.push(text(4, operator));
    for (name, values, is_list) in attributes {
        let (field, kind) = if *is_list { (8, 7) } else { (3, 2) };
        let values: Vec<u8> = values.iter().flat_map(|&value| number(field, value)).collect();
        fields.push(message(5, &[text(1, name), values, number(20, kind)].concat()));
    }
    fields.concat()
}

/// Returns a node with an additional string attribute.
pub fn with_text(node: Vec<u8>, name: &str, value: &str) -> Vec<u8> {
    [node, message(5, &[text(1, name), text(4, value), number(20, 3)].concat())].concat()
}

/// Returns a float32 initializer.
pub fn floats(name: &str, shape: &[usize], values: &[f64]) -> Vec<u8> {
    let mut fields: Vec<Vec<u8>> = shape.iter().map(|&size| number(1, size as i64)).collect();
    let content: Vec<u8> = values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
    fields.extend([number(2, FLOAT), text(8, name), message(9, &content)]);
    fields.concat()
}

/// Returns a float32 initializer whose contents begin at this byte of a file next to the model.
pub fn external(name: &str, shape: &[usize], file: &str, offset_bytes: u64) -> Vec<u8> {
    let mut fields: Vec<Vec<u8>> = shape.iter().map(|&size| number(1, size as i64)).collect();
    fields.extend([number(2, FLOAT), text(8, name)]);
    for (key, value) in [("location", file), ("offset", &offset_bytes.to_string())] {
        fields.push(message(13, &[text(1, key), text(2, value)].concat()));
    }
    fields.push(number(14, 1));
    fields.concat()
}

/// Returns a float32 input or output of a model.
fn value_info((name, shape): (&str, &[usize])) -> Vec<u8> {
    let sizes: Vec<u8> = shape.iter().flat_map(|&size| message(1, &number(1, size as i64))).collect();
    let tensor = [number(1, FLOAT), message(2, &sizes)].concat();
    [text(1, name), message(2, &message(1, &tensor))].concat()
}

/// Returns a model of opset 17 with one input and one output.
pub fn model(
    nodes: &[Vec<u8>],
    initializers: &[Vec<u8>],
    input: (&str, &[usize]),
    output: (&str, &[usize]),
) -> Vec<u8> {
    model_of(17, nodes, initializers, input, output)
}

/// Returns a model of this opset with one input and one output.
pub fn model_of(
    opset: i64,
    nodes: &[Vec<u8>],
    initializers: &[Vec<u8>],
    input: (&str, &[usize]),
    output: (&str, &[usize]),
) -> Vec<u8> {
    let mut graph: Vec<u8> = nodes.iter().flat_map(|node| message(1, node)).collect();
    graph.extend(text(2, "a test"));
    graph.extend(initializers.iter().flat_map(|initializer| message(5, initializer)));
    graph.extend([message(11, &value_info(input)), message(12, &value_info(output))].concat());
    let opset = number(2, opset);
    [number(1, 8), message(7, &graph), message(8, &opset)].concat()
}
