//! The graph: values, and nodes that compute them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use forebay_base::{DataType, Kernel, Tensor};

/// The newest version of the default operator set that the table supports.
pub const NEWEST_OPSET: i64 = 28;

/// The domain of operators that ONNX has as well, but that training treats in another way: no gradient passes `Identity`, and
/// `BatchNormalization` normalizes with its running statistics, which stay as they are. `Next` is an `Identity` whose result is an output of
/// the graph and the contents that its second input, an initializer, has after a training step. The Python package writes them for PyTorch
/// modules; files that Forebay writes have ONNX's operators instead.
pub const FOREBAY: &str = "forebay";
/// The domain of the operators that ONNX Runtime adds.
pub const MICROSOFT: &str = "com.microsoft";

use crate::tensor::Contents;
pub use forebay_base::TensorType;

/// A value of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

/// A node of a graph: its index in [`Graph::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A size as declared by a model.
///
/// ```
/// use forebay_model::graph::Dimension;
///
/// assert_eq!(Dimension::Symbol("N".to_string()).to_string(), "N");
/// assert_eq!(Dimension::Known(3).to_string(), "3");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// A number.
    Known(u64),
    /// A symbol such as `N`; empty if the model declares no size.
    Symbol(String),
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dimension::Known(size) => write!(f, "{size}"),
            Dimension::Symbol(symbol) if symbol.is_empty() => f.write_str("?"),
            Dimension::Symbol(symbol) => f.write_str(symbol),
        }
    }
}

/// The declared kind of an input or output that is not a tensor, with the element type of its tensors.
///
/// ```
/// use forebay_base::DataType;
/// use forebay_model::graph::Structure;
///
/// assert_eq!(Structure::OptionalSequence(DataType::Float32).to_string(), "optional sequence of float32");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// A sequence of tensors.
    Sequence(DataType),
    /// A tensor that may be absent.
    Optional(DataType),
    /// A sequence that may be absent.
    OptionalSequence(DataType),
}

impl Structure {
    /// The element type of its tensors.
    pub fn data_type(self) -> DataType {
        match self {
            Structure::Sequence(data_type)
            | Structure::Optional(data_type)
            | Structure::OptionalSequence(data_type) => data_type,
        }
    }

    /// Whether it may be absent.
    pub fn is_optional(self) -> bool {
        !matches!(self, Structure::Sequence(_))
    }

    /// Whether it is a sequence if present.
    pub fn is_sequence(self) -> bool {
        !matches!(self, Structure::Optional(_))
    }
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Structure::Sequence(_) => "sequence of",
            Structure::Optional(_) => "optional",
            Structure::OptionalSequence(_) => "optional sequence of",
        };
        write!(f, "{kind} {}", self.data_type())
    }
}

/// A value: the result of a node, an input, or an initializer.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its name, unique in the graph.
    pub name: String,
    /// Its type, once known. [`crate::infer`] determines the type of every value.
    pub ty: Option<TensorType>,
    /// The declaration of a graph input or output: its type, and its sizes with their symbols.
    pub declared: Option<(DataType, Vec<Dimension>)>,
    /// The declaration of a graph input or output that is not a tensor.
    pub structure: Option<Structure>,
}

/// An attribute of an ONNX node.
///
/// ```
/// use forebay_model::graph::Attribute;
///
/// let axes = Attribute::Ints(vec![0, 2]);
/// assert_ne!(axes, Attribute::Int(0));
/// ```
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
    /// GRAPH: a branch, or the body of a loop.
    Graph(Arc<Subgraph>),
    /// TYPE_PROTO: the type that an absent optional value would have. Nothing depends on it.
    Type,
}

/// A graph inside a node.
#[derive(Clone, Debug)]
pub struct Subgraph {
    /// The graph. Its inputs are those that it declares, followed by the values that it uses from enclosing graphs.
    pub graph: Graph,
    /// For each of the latter, in order, the index of the node's input that provides it.
    pub captured: Vec<usize>,
}

impl Subgraph {
    /// The number of inputs that the graph declares.
    pub fn declared_inputs(&self) -> usize {
        self.graph.inputs.len() - self.captured.len()
    }
}

/// Subgraphs are equal only if they are the same object.
impl PartialEq for Subgraph {
    fn eq(&self, other: &Subgraph) -> bool {
        std::ptr::eq(self, other)
    }
}

/// What a node does.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// An ONNX operator, described by its row in the table of [`crate::operators`].
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
    /// A kernel, applied to the node's inputs and outputs in their order. Gradients, losses and updates consist of kernels.
    Kernel(Kernel),
}

impl Operation {
    /// Creates an operator of the default domain at the newest version that the table supports.
    pub fn onnx(op_type: &str, attributes: &[(&str, Attribute)]) -> Operation {
        Operation::Onnx {
            domain: String::new(),
            op_type: op_type.to_string(),
            version: NEWEST_OPSET,
            attributes: attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect(),
        }
    }

    /// A human-readable name.
    pub fn name(&self) -> &str {
        match self {
            Operation::Onnx { op_type, .. } => op_type,
            Operation::Kernel(kernel) => kernel.name(),
        }
    }

    /// The graphs in the attributes: branches, or the body of a loop.
    pub(crate) fn graphs(&self) -> impl Iterator<Item = &Graph> {
        let attributes = match self {
            Operation::Onnx { attributes, .. } => Some(attributes),
            Operation::Kernel(_) => None,
        };
        attributes.into_iter().flat_map(|attributes| attributes.values()).filter_map(|attribute| match attribute {
            Attribute::Graph(inside) => Some(&inside.graph),
            _ => None,
        })
    }
}

/// A node: one operation on values.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name, which can be empty and need not be unique.
    pub name: String,
    /// What it does.
    pub operation: Operation,
    /// Inputs; `None` for an optional input that is left out. The operator's own inputs are followed by the values that the node's
    /// subgraphs use.
    pub inputs: Vec<Option<ValueId>>,
    /// Outputs; `None` for an optional output that is left out.
    pub outputs: Vec<Option<ValueId>>,
}

impl Node {
    /// The node's name in messages: its own, or that of its first output.
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
    /// The value that it takes.
    pub value: ValueId,
}

/// An axis of a value that has as many rows as a selection (`NonZero`) can have, in training: the selected ones first, then surplus ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Padded {
    /// The axis. Each row of the selection takes the same number of positions there.
    pub(crate) axis: usize,
    /// The number of rows, with the surplus ones.
    pub(crate) rows: u64,
    /// For each row, a bool: whether it is selected.
    pub(crate) selected: ValueId,
}

/// What is known about values that depend on selections, in training.
#[derive(Clone, Debug, Default)]
pub(crate) struct Padding {
    /// Values with surplus rows.
    pub(crate) rows: BTreeMap<ValueId, Padded>,
    /// Constant sizes: for each element, the selection whose surplus rows it counts.
    pub(crate) sizes: BTreeMap<ValueId, Vec<Option<Padded>>>,
    /// Values computed from surplus rows, which no longer have an effect.
    pub(crate) settled: BTreeSet<ValueId>,
}

impl Padding {
    /// Whether a value has surplus rows, or is a size that counts them.
    pub(crate) fn concerns(&self, value: ValueId) -> bool {
        self.rows.contains_key(&value) || self.sizes.contains_key(&value)
    }
}

/// A graph of nodes that compute values. Nodes are ordered so that every value is computed before it is used.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// A human-readable name.
    pub name: String,
    /// All values, by [`ValueId`].
    pub values: Vec<Value>,
    /// All nodes, in topological order.
    pub nodes: Vec<Node>,
    /// Graph inputs that the caller feeds (initializers are not included).
    pub inputs: Vec<ValueId>,
    /// Graph outputs.
    pub outputs: Vec<ValueId>,
    /// Values with given contents: weights, statistics, constants, optimizer state.
    pub initializers: BTreeMap<ValueId, Contents>,
    /// Initializers that nothing changes: the model's `Constant` nodes and folded values. Floating-point initializers outside this set can
    /// be trained, so nodes that use them are not folded; if nothing is trained, add them to this set before type inference.
    pub constants: BTreeSet<ValueId>,
    /// Whether both branches are computed when a condition is known only at run time, as in training.
    pub selects_branches: bool,
    /// Updates of initializers at the end of a step; empty for inference.
    pub updates: Vec<Update>,
    /// The initializers that the model itself changes in a training step (`Next` of [`FOREBAY`]), each with its next value, an output.
    pub(crate) carried: BTreeMap<ValueId, ValueId>,
    /// The elements of values that are sequences of tensors. Known once types are.
    pub(crate) sequences: BTreeMap<ValueId, Vec<ValueId>>,
    /// Optional values that are absent. Known once types are.
    pub(crate) absent: BTreeSet<ValueId>,
    /// Values whose size is the number of selected elements. Known once types are.
    pub(crate) padding: Padding,
    /// The first value of the backward pass; `None` if no gradient was taken.
    backward_from: Option<ValueId>,
    /// Later values that nevertheless belong to the forward pass: copies of forward values.
    forward_copies: BTreeSet<ValueId>,
    /// The first value that belongs to updates expressed as formulas; `None` if there are no such updates.
    updates_from: Option<ValueId>,
    /// The value with each name.
    names: BTreeMap<String, ValueId>,
    /// The next suffix to try for a name that is already taken.
    suffixes: BTreeMap<String, u32>,
}

impl Graph {
    /// The value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The value, mutably.
    pub fn value_mut(&mut self, id: ValueId) -> &mut Value {
        &mut self.values[id.0 as usize]
    }

    /// The node that computes a value, searched from the last node backwards.
    pub(crate) fn producer(&self, id: ValueId) -> Option<&Node> {
        self.nodes.iter().rev().find(|node| node.outputs.contains(&Some(id)))
    }

    /// Records that all values added from here on belong to the backward pass.
    pub fn begin_backward(&mut self) {
        let next = ValueId(self.values.len() as u32);
        self.backward_from.get_or_insert(next);
    }

    /// Returns the running statistics and the initializers that the model itself changes: training changes them although they are not
    /// parameters.
    pub(crate) fn running_statistics(&self) -> BTreeSet<ValueId> {
        let nodes = self.nodes.iter().filter(|node| node.operation.name() == "BatchNormalization");
        let statistics = nodes.flat_map(|node| node.inputs.iter().skip(3).flatten().copied());
        statistics.chain(self.carried.keys().copied()).collect()
    }

    /// Whether the graph has a backward pass, or one is being added.
    pub(crate) fn has_backward(&self) -> bool {
        self.backward_from.is_some()
    }

    /// Whether a value is computed by the backward pass or by an update that follows it.
    pub fn is_backward(&self, id: ValueId) -> bool {
        self.backward_from.is_some_and(|first| id >= first) && !self.forward_copies.contains(&id)
    }

    /// Records that a value is a copy of another and belongs to the same pass.
    pub(crate) fn note_copy(&mut self, of: ValueId, copy: ValueId) {
        if !self.is_backward(of) {
            self.forward_copies.insert(copy);
        }
    }

    /// Records that all values added from here on belong to updates.
    pub(crate) fn begin_updates(&mut self) {
        let next = ValueId(self.values.len() as u32);
        self.updates_from.get_or_insert(next);
    }

    /// Whether a node computes an update, or something that only updates need.
    pub(crate) fn is_update(&self, node: &Node) -> bool {
        let is_later = |value: &ValueId| self.updates_from.is_some_and(|first| *value >= first);
        self.updates_from.is_some() && node.outputs.iter().flatten().all(is_later)
    }

    /// Adds a value. If the name is taken, a suffix makes it unique; an empty name becomes `value`.
    pub fn add_value(&mut self, name: &str, ty: Option<TensorType>) -> ValueId {
        let name = self.unique_name(if name.is_empty() { "value" } else { name });
        let id = ValueId(self.values.len() as u32);
        self.names.insert(name.clone(), id);
        self.values.push(Value { name, ty, declared: None, structure: None });
        id
    }

    /// Adds an initializer with its contents.
    pub fn add_initializer(&mut self, name: &str, contents: impl Into<Contents>) -> ValueId {
        let contents = contents.into();
        let id = self.add_value(name, Some(contents.ty().clone()));
        self.initializers.insert(id, contents);
        id
    }

    /// Adds an input of the graph and declares its type.
    pub(crate) fn add_input(&mut self, name: &str, ty: TensorType) -> ValueId {
        let input = self.add_value(name, Some(ty));
        self.declare(input);
        self.inputs.push(input);
        input
    }

    /// Declares the type of a value, if it is known.
    pub(crate) fn declare(&mut self, id: ValueId) {
        if let Some(ty) = self.ty(id).cloned() {
            let dimensions = ty.shape.iter().map(|&size| Dimension::Known(size)).collect();
            self.value_mut(id).declared = Some((ty.data_type, dimensions));
        }
    }

    /// The type of a value, if inference has determined it.
    pub fn ty(&self, id: ValueId) -> Option<&TensorType> {
        self.value(id).ty.as_ref()
    }

    /// The value with this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.names.get(name).copied()
    }

    /// Whether no step changes a value's contents: it is a constant, or an initializer that has no update and whose type has no gradients.
    pub fn is_constant(&self, id: ValueId) -> bool {
        let Some(contents) = self.initializers.get(&id) else { return false };
        let changes = || self.carried.contains_key(&id) || self.updates.iter().any(|update| update.state == id);
        self.constants.contains(&id) || (!contents.data_type().has_gradients() && !changes())
    }

    /// The contents of a value if no step changes them.
    pub(crate) fn constant_contents(&self, id: ValueId) -> Option<&Contents> {
        self.initializers.get(&id).filter(|_| self.is_constant(id))
    }

    /// The value itself, or its elements if it is known to be a sequence.
    pub(crate) fn tensors(&self, id: ValueId) -> Vec<ValueId> {
        self.sequences.get(&id).cloned().unwrap_or_else(|| vec![id])
    }

    /// Whether all outputs of a node are initializers: it was folded, and nothing is left to compute.
    pub fn is_folded(&self, node: &Node) -> bool {
        let mut outputs = node.outputs.iter().flatten().peekable();
        outputs.peek().is_some() && outputs.all(|output| self.initializers.contains_key(output))
    }

    /// Removes nodes that were folded and nodes that neither an output nor an update needs.
    pub fn drop_dead_nodes(&mut self) {
        let mut needed = vec![false; self.values.len()];
        let outputs = self.outputs.iter().flat_map(|&output| self.tensors(output));
        let roots = outputs.chain(self.updates.iter().map(|update| update.value));
        for root in roots {
            needed[root.0 as usize] = true;
        }
        let mut keep = vec![false; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate().rev() {
            keep[i] = node.outputs.iter().flatten().any(|output| needed[output.0 as usize]) && !self.is_folded(node);
            if keep[i] {
                for input in node.inputs.iter().flatten() {
                    needed[input.0 as usize] = true;
                }
            }
        }
        let mut keep = keep.into_iter();
        self.nodes.retain(|_| keep.next().unwrap_or(true));
    }

    fn unique_name(&mut self, name: &str) -> String {
        if !self.names.contains_key(name) {
            return name.to_string();
        }
        let next = self.suffixes.entry(name.to_string()).or_insert(1);
        loop {
            let candidate = format!("{name}.{next}");
            *next += 1;
            if !self.names.contains_key(&candidate) {
                return candidate;
            }
        }
    }
}

/// Writes one line per input, node, update and output, with types, for readers and for snapshot tests.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let typed = |id: ValueId| match &self.value(id).ty {
            Some(ty) => format!("{}: {ty}", self.value(id).name),
            None => self.value(id).name.clone(),
        };
        let list = |ids: &[Option<ValueId>], show: &dyn Fn(ValueId) -> String| -> String {
            ids.iter().map(|id| id.map_or("-".to_string(), show)).collect::<Vec<_>>().join(", ")
        };
        writeln!(f, "graph {}", self.name)?;
        for &input in &self.inputs {
            writeln!(f, "input {}", typed(input))?;
        }
        for node in &self.nodes {
            let inputs = list(&node.inputs, &|id| self.value(id).name.clone());
            writeln!(f, "{} = {}({inputs})", list(&node.outputs, &typed), node.operation.name())?;
        }
        for update in &self.updates {
            writeln!(f, "update {} <- {}", self.value(update.state).name, self.value(update.value).name)?;
        }
        for &output in &self.outputs {
            writeln!(f, "output {}", typed(output))?;
        }
        Ok(())
    }
}
