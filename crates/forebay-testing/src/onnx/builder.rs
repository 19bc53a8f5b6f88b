//! Complete ONNX models for tests: graphs with any inputs and outputs, graphs inside nodes, and functions.

use super::protobuf::{message, number};
use super::text;

/// ONNX's number for the element type float32.
pub const FLOAT: i64 = 1;
/// ONNX's number for the element type int64.
pub const INT64: i64 = 7;
/// ONNX's number for the element type int8.
pub const INT8: i64 = 3;
/// ONNX's number for the element type int4.
pub const INT4: i64 = 22;
/// ONNX's number for the element type bool.
pub const BOOL: i64 = 9;

/// An attribute of a node.
pub enum Value {
    /// INT.
    Int(i64),
    /// INTS.
    Ints(Vec<i64>),
    /// FLOAT.
    Float(f32),
    /// STRING.
    Text(String),
    /// GRAPH.
    Graph(GraphBuilder),
    /// TENSOR of float32.
    Floats(Vec<usize>, Vec<f32>),
    /// A reference to the function's attribute of this name.
    Reference(&'static str, i64),
}

/// What wraps a tensor in the type of an input or output.
#[derive(Clone, Copy)]
pub enum Around {
    /// A sequence of what is inside.
    Sequence,
    /// An optional value.
    Optional,
}

/// A builder of a graph: the model's graph, or one inside a node.
#[derive(Clone, Default)]
pub struct GraphBuilder {
    nodes: Vec<Vec<u8>>,
    initializers: Vec<Vec<u8>>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    functions: Vec<Vec<u8>>,
    value_infos: Vec<Vec<u8>>,
    producer: &'static str,
}

impl GraphBuilder {
    /// Creates an empty graph.
    pub fn new() -> GraphBuilder {
        GraphBuilder::default()
    }

    /// Creates tanh(x w1 + b1) w2 + b2 for x\[3, 4] and y\[3, 2], the network of testdata/training/optimizers.json, with the parameters that
    /// `start` returns by name.
    pub fn two_layers(start: impl Fn(&str) -> Vec<f32>) -> GraphBuilder {
        GraphBuilder::new()
            .input("x", FLOAT, &["3", "4"])
            .floats("w1", &[4, 5], &start("w1"))
            .floats("b1", &[5], &start("b1"))
            .floats("w2", &[5, 2], &start("w2"))
            .floats("b2", &[2], &start("b2"))
            .node("MatMul", &["x", "w1"], &["product1"])
            .node("Add", &["product1", "b1"], &["sum1"])
            .node("Tanh", &["sum1"], &["hidden"])
            .node("MatMul", &["hidden", "w2"], &["product2"])
            .node("Add", &["product2", "b2"], &["y"])
            .output("y", FLOAT, &["3", "2"])
    }

    /// Sets the producer of the model.
    pub fn producer(mut self, name: &'static str) -> Self {
        self.producer = name;
        self
    }

    /// Adds an input; a size is a number or a symbol.
    pub fn input(mut self, name: &str, element_type: i64, sizes: &[&str]) -> Self {
        self.inputs.push(value_info(name, element_type, sizes));
        self
    }

    /// Adds an output; a size is a number or a symbol.
    pub fn output(mut self, name: &str, element_type: i64, sizes: &[&str]) -> Self {
        self.outputs.push(value_info(name, element_type, sizes));
        self
    }

    /// Adds an input that is not a tensor: a tensor of any sizes, and what wraps it, from the inside out.
    pub fn structured_input(mut self, name: &str, element_type: i64, around: &[Around]) -> Self {
        self.inputs.push(structured_info(name, element_type, around));
        self
    }

    /// Adds an output that is not a tensor.
    pub fn structured_output(mut self, name: &str, element_type: i64, around: &[Around]) -> Self {
        self.outputs.push(structured_info(name, element_type, around));
        self
    }

    /// Adds an initializer of integers.
    pub fn integers(mut self, name: &str, shape: &[usize], values: &[i64]) -> Self {
        let content: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initializers.push(tensor(name, INT64, shape, &content));
        self
    }

    /// Adds a float32 initializer.
    pub fn floats(mut self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        let content: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initializers.push(tensor(name, FLOAT, shape, &content));
        self
    }

    /// Adds an initializer of any type, given its bytes.
    pub fn raw(mut self, name: &str, element_type: i64, shape: &[usize], bytes: &[u8]) -> Self {
        self.initializers.push(tensor(name, element_type, shape, bytes));
        self
    }

    /// Adds a float32 value with a metadata entry.
    pub fn described(mut self, name: &str, sizes: &[&str], key: &str, value: &str) -> Self {
        let entry = [text(1, key), text(2, value)].concat();
        self.value_infos.push([value_info(name, FLOAT, sizes), message(4, &entry)].concat());
        self
    }

    /// Adds a node.
    pub fn node(self, operator: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        self.node_with(operator, inputs, outputs, Vec::new())
    }

    /// Adds a node with attributes.
    pub fn node_with(
        mut self,
        operator: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: Vec<(&str, Value)>,
    ) -> Self {
        self.nodes.push(node("", operator, inputs, outputs, attributes));
        self
    }

    /// Adds an operator of the domain `forebay`.
    pub fn own(mut self, operator: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        self.nodes.push(node("forebay", operator, inputs, outputs, Vec::new()));
        self
    }

    /// Adds a call of a function in the domain `local`.
    pub fn call(mut self, name: &str, inputs: &[&str], outputs: &[&str], attributes: Vec<(&str, Value)>) -> Self {
        self.nodes.push(node("local", name, inputs, outputs, attributes));
        self
    }

    /// Adds a function in the domain `local` with the nodes of `body`.
    pub fn function(
        mut self,
        name: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: &[&str],
        body: GraphBuilder,
    ) -> Self {
        let mut fields = text(1, name);
        fields.extend(inputs.iter().flat_map(|input| text(4, input)));
        fields.extend(outputs.iter().flat_map(|output| text(5, output)));
        fields.extend(attributes.iter().flat_map(|attribute| text(6, attribute)));
        fields.extend(body.nodes.iter().flat_map(|node| message(7, node)));
        fields.extend(message(9, &[text(1, ""), number(2, OPSET)].concat()));
        fields.extend(message(9, &[text(1, "local"), number(2, 1)].concat()));
        fields.extend(text(10, "local"));
        self.functions.push(fields);
        self
    }

    /// Returns the graph's message.
    fn graph(&self) -> Vec<u8> {
        let mut fields: Vec<u8> = self.nodes.iter().flat_map(|node| message(1, node)).collect();
        fields.extend(text(2, "a graph"));
        fields.extend(self.initializers.iter().flat_map(|initializer| message(5, initializer)));
        fields.extend(self.inputs.iter().flat_map(|input| message(11, input)));
        fields.extend(self.outputs.iter().flat_map(|output| message(12, output)));
        fields.extend(self.value_infos.iter().flat_map(|info| message(13, info)));
        fields
    }

    /// Returns the model's bytes.
    pub fn build(&self) -> Vec<u8> {
        let mut fields = [number(1, 10), text(2, self.producer), message(7, &self.graph())].concat();
        fields.extend(message(8, &[text(1, ""), number(2, OPSET)].concat()));
        for domain in ["local", "forebay"] {
            fields.extend(message(8, &[text(1, domain), number(2, 1)].concat()));
        }
        fields.extend(self.functions.iter().flat_map(|function| message(25, function)));
        fields
    }
}

/// The operator set of the models.
const OPSET: i64 = 18;

fn node(domain: &str, operator: &str, inputs: &[&str], outputs: &[&str], attributes: Vec<(&str, Value)>) -> Vec<u8> {
    let mut fields: Vec<u8> = inputs.iter().flat_map(|input| text(1, input)).collect();
    fields.extend(outputs.iter().flat_map(|output| text(2, output)));
    fields.extend(text(4, operator));
    for (name, value) in attributes {
        let content = match value {
            Value::Float(value) => [vec![2 << 3 | 5], value.to_le_bytes().to_vec(), number(20, 1)].concat(),
            Value::Int(value) => [number(3, value), number(20, 2)].concat(),
            Value::Text(value) => [text(4, &value), number(20, 3)].concat(),
            Value::Floats(shape, values) => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                [message(5, &tensor("", FLOAT, &shape, &bytes)), number(20, 4)].concat()
            }
            Value::Graph(graph) => [message(6, &graph.graph()), number(20, 5)].concat(),
            Value::Ints(values) => {
                let values: Vec<u8> = values.iter().flat_map(|&value| number(8, value)).collect();
                [values, number(20, 7)].concat()
            }
            Value::Reference(to, kind) => [text(21, to), number(20, kind)].concat(),
        };
        fields.extend(message(5, &[text(1, name), content].concat()));
    }
    fields.extend(text(7, domain));
    fields
}

fn tensor(name: &str, element_type: i64, shape: &[usize], content: &[u8]) -> Vec<u8> {
    let mut fields: Vec<u8> = shape.iter().flat_map(|&size| number(1, size as i64)).collect();
    fields.extend([number(2, element_type), text(8, name), message(9, content)].concat());
    fields
}

fn value_info(name: &str, element_type: i64, sizes: &[&str]) -> Vec<u8> {
    let size = |size: &&str| match size.parse() {
        Ok(value) => message(1, &number(1, value)),
        Err(_) => message(1, &text(2, size)),
    };
    let sizes: Vec<u8> = sizes.iter().flat_map(size).collect();
    let tensor = [number(1, element_type), message(2, &sizes)].concat();
    [text(1, name), message(2, &message(1, &tensor))].concat()
}

fn structured_info(name: &str, element_type: i64, around: &[Around]) -> Vec<u8> {
    let tensor = message(1, &number(1, element_type));
    let ty = around.iter().fold(tensor, |ty, around| match around {
        Around::Sequence => message(4, &message(1, &ty)),
        Around::Optional => message(9, &message(1, &ty)),
    });
    [text(1, name), message(2, &ty)].concat()
}
