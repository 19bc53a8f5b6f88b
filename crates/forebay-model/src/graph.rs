//! The graph: values, and nodes that compute them.

use std::collections::BTreeMap;
use std::fmt;

use forebay_base::{DataType, Kernel};

use crate::tensor::Tensor;

/// A value of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

/// A node of a graph: its place in [`Graph::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Element type and sizes of a value. A scalar has no sizes; a size may be 0 (such values never reach a device).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// Element type.
    pub data_type: DataType,
    /// Sizes in elements.
    pub shape: Vec<u64>,
}

impl TensorType {
    /// The type of `data_type` with `shape`.
    pub fn new(data_type: DataType, shape: &[u64]) -> TensorType {
        TensorType { data_type, shape: shape.to_vec() }
    }

    /// Number of elements, saturating.
    pub fn count(&self) -> u64 {
        self.shape.iter().fold(1u64, |product, &size| product.saturating_mul(size))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.data_type, self.shape)
    }
}

/// A size as a model states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// A number.
    Known(u64),
    /// A symbol such as `N`, or nothing at all (then the name is empty).
    Symbol(String),
}

/// A value: what a node computes, an input, or an initializer.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its name, unique in the graph.
    pub name: String,
    /// Its type, once known: [`crate::infer`] gives every value one.
    pub ty: Option<TensorType>,
    /// What the model declares, for graph inputs and outputs: type, and sizes with their symbols.
    pub declared: Option<(DataType, Vec<Dimension>)>,
}

/// An attribute of an ONNX node.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// INT.
    Int(i64),
    /// FLOAT.
    Float(f32),
    /// STRING.
    String(String),
    /// TENSOR.
    Tensor(Tensor),
    /// INTS.
    Ints(Vec<i64>),
    /// FLOATS.
    Floats(Vec<f32>),
    /// STRINGS.
    Strings(Vec<String>),
}

/// What a node does.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// An ONNX operator, with its row in the table of [`crate::operators`].
    Onnx {
        /// Domain; empty for the default one.
        domain: String,
        /// Operator type, such as `Conv`.
        op_type: String,
        /// Version of the domain's operator set.
        version: i64,
        /// Attributes by name.
        attributes: BTreeMap<String, Attribute>,
    },
    /// A kernel, bound to the node's inputs and outputs in their order: what gradients, losses and updates are made of.
    Kernel(Kernel),
}

impl Operation {
    /// An operator of the default domain at the newest version that the table knows.
    pub fn onnx(op_type: &str, attributes: &[(&str, Attribute)]) -> Operation {
        Operation::Onnx {
            domain: String::new(),
            op_type: op_type.to_string(),
            version: crate::operators::NEWEST_OPSET,
            attributes: attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect(),
        }
    }

    /// The name for people.
    pub fn name(&self) -> &str {
        match self {
            Operation::Onnx { op_type, .. } => op_type,
            Operation::Kernel(kernel) => kernel.name(),
        }
    }
}

/// A node: one operation on values.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name; may be empty, need not be unique.
    pub name: String,
    /// What it does.
    pub operation: Operation,
    /// Inputs; `None` for an optional input that is left out.
    pub inputs: Vec<Option<ValueId>>,
    /// Outputs; `None` for an optional output that is left out.
    pub outputs: Vec<Option<ValueId>>,
}

impl Node {
    /// What messages call the node: its name, or its first output's.
    pub fn label(&self, graph: &Graph) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        self.outputs.iter().flatten().next().map(|&value| graph.value(value).name.clone()).unwrap_or_default()
    }
}

/// `state` takes the value of `value` at the end of a step, in the update phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// An initializer.
    pub state: ValueId,
    /// The value it takes.
    pub value: ValueId,
}

/// A graph of nodes on values. Nodes stand in an order in which every value is computed before it is used.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Name, for people.
    pub name: String,
    /// All values, by [`ValueId`].
    pub values: Vec<Value>,
    /// All nodes, in topological order.
    pub nodes: Vec<Node>,
    /// Graph inputs that the caller feeds (initializers are not among them).
    pub inputs: Vec<ValueId>,
    /// Graph outputs.
    pub outputs: Vec<ValueId>,
    /// Values with given contents: weights, statistics, constants, optimizer state.
    pub initializers: BTreeMap<ValueId, Tensor>,
    /// Updates of initializers at the end of a step; empty for inference.
    pub updates: Vec<Update>,
}

impl Graph {
    /// The value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The value, to change.
    pub fn value_mut(&mut self, id: ValueId) -> &mut Value {
        &mut self.values[id.0 as usize]
    }

    /// Adds a value. The name is made unique by a suffix where it is taken (`x`, `x.1`, ...); an empty one becomes `value`.
    pub fn add_value(&mut self, name: &str, ty: Option<TensorType>) -> ValueId {
        let name = self.unique_name(if name.is_empty() { "value" } else { name });
        self.values.push(Value { name, ty, declared: None });
        ValueId(self.values.len() as u32 - 1)
    }

    /// Adds an initializer with its contents.
    pub fn add_initializer(&mut self, name: &str, tensor: Tensor) -> ValueId {
        let ty = TensorType { data_type: tensor.data_type, shape: tensor.shape.clone() };
        let id = self.add_value(name, Some(ty));
        self.initializers.insert(id, tensor);
        id
    }

    /// The type of a value, where inference has given it one.
    pub fn ty(&self, id: ValueId) -> Option<&TensorType> {
        self.value(id).ty.as_ref()
    }

    /// The value with this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.values.iter().position(|value| value.name == name).map(|i| ValueId(i as u32))
    }

    fn unique_name(&self, name: &str) -> String {
        let taken = |name: &str| self.values.iter().any(|value| value.name == name);
        if !taken(name) {
            return name.to_string();
        }
        (1u32..).map(|n| format!("{name}.{n}")).find(|candidate| !taken(candidate)).expect("some number is free")
    }
}
