//! Mixed precision, like PyTorch's autocast: products and convolutions, and the operators that follow them, compute in 16 bits. Parameters,
//! their updates, normalizations, sums and the loss stay float32.
//!
//! Each value can exist in both types; the conversion to the other type is made where that type is first needed. Values kept for the
//! backward pass therefore have 16 bits wherever the forward pass computed in 16 bits. A node with a constant that 16 bits cannot hold,
//! such as the lowest float32 in a mask, computes in float32.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::DataType;

use super::formula::Formula;
use super::pattern;
use crate::error::ModelError;
use crate::graph::{Attribute, FOREBAY, Graph, Node, Operation, TensorType, ValueId};
use crate::infer::infer_node;

/// Products, convolutions and attention, which compute in 16 bits and sum in float32.
const NARROW: [&str; 6] = ["MatMul", "FusedMatMul", "Gemm", "Conv", "ConvTranspose", "Attention"];

/// Operators that compute in the type of their operands: in 16 bits if all operands except constants have 16 bits.
const FOLLOWING: [&str; 45] = [
    "Abs",
    "Add",
    "AveragePool",
    "Clip",
    "Concat",
    "DepthToSpace",
    "Div",
    "Dropout",
    "Elu",
    "Erf",
    "Expand",
    "Flatten",
    "Gather",
    "Gelu",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "LeakyRelu",
    "Max",
    "MaxPool",
    "Min",
    "Mish",
    "Mul",
    "Neg",
    "PRelu",
    "Pad",
    "Relu",
    "Reshape",
    "Resize",
    "Selu",
    "Sigmoid",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Sub",
    "Swish",
    "Tanh",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "Upsample",
    "Where",
];

/// Operators that compute in float32 between two conversions, and return 16 bits if they receive 16 bits.
const BETWEEN: [&str; 2] = ["BatchNormalization", "InstanceNormalization"];

/// The type in which a step computes its products.
///
/// ```
/// use forebay_model::training::{Precision, TrainingOptions};
///
/// let mut options = TrainingOptions::default();
/// let mut precision = Precision::bfloat16();
/// precision.float32.push("*head*".to_string());
/// options.precision = Some(precision);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Precision {
    /// float16 or bfloat16.
    pub kind: DataType,
    /// Patterns (`*`, `?`) for the names of nodes that stay float32, or of their outputs or weights.
    pub float32: Vec<String>,
}

impl Precision {
    /// Products in bfloat16: the range of float32, with 8 bits of precision.
    pub fn bfloat16() -> Precision {
        Precision { kind: DataType::BFloat16, float32: Vec::new() }
    }

    /// Products in float16: 11 bits of precision, in a range from 6e-8 to 65504. Gradients are scaled to fit it.
    pub fn float16() -> Precision {
        Precision { kind: DataType::Float16, float32: Vec::new() }
    }

    /// Returns whether gradients are scaled, so that small ones do not become zero in float16.
    pub fn scales_loss(&self) -> bool {
        self.kind == DataType::Float16
    }
}

/// Converts a typed graph to mixed precision. Its inputs, outputs and initializers keep their types.
///
/// # Errors
/// Fails if the type does not have 16 bits or a pattern matches nothing.
pub(super) fn narrow(graph: &mut Graph, precision: Option<&Precision>) -> Result<(), ModelError> {
    let Some(precision) = precision else { return Ok(()) };
    let refuse = |reason: String| Err(ModelError::Request { reason });
    if !precision.kind.is_sixteen_bit() {
        return refuse(format!("mixed precision must be float16 or bfloat16, not {}", precision.kind));
    }
    let mut unmatched: BTreeSet<&String> = precision.float32.iter().collect();
    let nodes = std::mem::take(&mut graph.nodes);
    let mut pass = Pass {
        graph,
        kind: precision.kind,
        narrow: BTreeMap::new(),
        only_narrow: BTreeMap::new(),
        made: BTreeSet::new(),
    };
    for node in nodes {
        let mut stays = false;
        for pattern in &precision.float32 {
            if is_named(pass.graph, &node, pattern) {
                unmatched.remove(pattern);
                stays = true;
            }
        }
        pass.take(node, stays)?;
    }
    for output in pass.graph.outputs.clone() {
        pass.wide(output)?;
    }
    match unmatched.first() {
        Some(pattern) => refuse(format!("'{pattern}' matches no node that could stay float32")),
        None => Ok(()),
    }
}

fn is_named(graph: &Graph, node: &Node, name: &str) -> bool {
    let values = node.outputs.iter().chain(&node.inputs).flatten();
    pattern::matches(name, &node.name) || values.into_iter().any(|&id| pattern::matches(name, &graph.value(id).name))
}

/// The pass over the nodes, in order.
struct Pass<'g> {
    graph: &'g mut Graph,
    kind: DataType,
    /// For each float32 value, the same value in 16 bits.
    narrow: BTreeMap<ValueId, ValueId>,
    /// The subset that no node computes in float32 yet.
    only_narrow: BTreeMap<ValueId, ValueId>,
    /// Float32 values that were computed in 16 bits.
    made: BTreeSet<ValueId>,
}

impl Pass<'_> {
    /// Appends a node, in 16 bits if it computes in 16 bits.
    fn take(&mut self, node: Node, stays: bool) -> Result<(), ModelError> {
        if self.graph.is_folded(&node) {
            self.graph.nodes.push(node);
            return Ok(());
        }
        if !stays && self.is_narrow(&node) && !self.overflows(&node) && self.take_narrow(&node)? {
            return Ok(());
        }
        for &input in node.inputs.iter().flatten() {
            self.wide(input)?;
        }
        let first = |values: &[Option<ValueId>]| values.first().copied().flatten();
        let is_between = BETWEEN.contains(&node.operation.name()) && !stays;
        let output = first(&node.outputs)
            .filter(|_| is_between && first(&node.inputs).is_some_and(|id| self.made.contains(&id)));
        self.graph.nodes.push(node);
        if let Some(output) = output {
            self.converted(output)?;
            self.made.insert(output);
        }
        Ok(())
    }

    /// Returns whether a node computes in 16 bits.
    fn is_narrow(&self, node: &Node) -> bool {
        let Operation::Onnx { domain, op_type, .. } = &node.operation else { return false };
        if !(domain.is_empty() || domain == FOREBAY) || node.operation.graphs().next().is_some() {
            return false;
        }
        let is_float = |id: &&ValueId| self.graph.ty(**id).is_some_and(|ty| ty.data_type == DataType::Float32);
        let mut floats = node.inputs.iter().flatten().filter(is_float).filter(|id| !self.follows(**id)).peekable();
        NARROW.contains(&op_type.as_str())
            || FOLLOWING.contains(&op_type.as_str())
                && floats.peek().is_some()
                && floats.all(|id| self.made.contains(id))
    }

    /// Returns whether a value adopts the type of the other operands: constants, and parameters along one axis, such as biases.
    fn follows(&self, id: ValueId) -> bool {
        let is_vector =
            |id: ValueId| self.graph.ty(id).is_some_and(|ty| ty.shape.iter().filter(|&&size| size > 1).count() <= 1);
        self.graph.constants.contains(&id) || self.graph.initializers.contains_key(&id) && is_vector(id)
    }

    /// Returns whether input `i` of a node is data. The others are numbers that the operator itself reads: scales, limits, ratios.
    fn is_data(&self, node: &Node, i: usize, id: ValueId) -> bool {
        match node.operation.name() {
            "Dropout" | "Resize" | "Upsample" => i == 0,
            "Clip" => i == 0 || !self.graph.is_constant(id),
            _ => true,
        }
    }

    /// Returns whether a finite constant among the data of a node would be infinite in 16 bits, such as the lowest float32 in a mask. Of
    /// large constants, only the first elements are seen. Weights of products have no such elements, and need not be read.
    fn overflows(&self, node: &Node) -> bool {
        let largest = match self.kind {
            DataType::Float16 => 65504.0,
            _ => f32::from_bits(0x7f7f_0000),
        };
        let is_large = |number: f32| number.is_finite() && number.abs() > largest;
        let name = node.operation.name();
        (FOLLOWING.contains(&name) || name == "Attention")
            && node.inputs.iter().enumerate().any(|(i, input)| {
                let Some(id) = input.filter(|id| self.graph.constants.contains(id)) else { return false };
                let contents = self.graph.initializers.get(&id).filter(|_| self.is_data(node, i, id));
                contents.is_some_and(|contents| contents.first_floats().into_iter().any(is_large))
            })
    }

    /// Appends a node in 16 bits, unless the operator rejects that.
    fn take_narrow(&mut self, node: &Node) -> Result<bool, ModelError> {
        let is_float = |graph: &Graph, id: ValueId| graph.ty(id).is_some_and(|ty| ty.data_type == DataType::Float32);
        let outputs: Vec<ValueId> = node.outputs.iter().flatten().copied().collect();
        if outputs.iter().any(|&output| self.graph.ty(output).is_none()) {
            return Ok(false);
        }
        let mut copy = node.clone();
        for (i, input) in copy.inputs.iter_mut().enumerate() {
            if let Some(input) = input
                && is_float(self.graph, *input)
                && self.is_data(node, i, *input)
            {
                *input = self.converted(*input)?;
            }
        }
        for output in copy.outputs.iter_mut().flatten() {
            let (name, ty) = (self.graph.value(*output).name.clone(), self.graph.ty(*output).cloned());
            if is_float(self.graph, *output) {
                let ty = ty.map(|ty| TensorType { data_type: self.kind, ..ty });
                *output = self.graph.add_value(&format!("{name}.{}", self.kind), ty);
            }
        }
        let made: Vec<ValueId> = copy.outputs.iter().flatten().copied().collect();
        self.graph.nodes.push(copy);
        let place = self.graph.nodes.len() - 1;
        let is_right = infer_node(self.graph, place).is_ok()
            && outputs.iter().zip(&made).all(|(output, made)| {
                let (before, now) = (self.graph.ty(*output), self.graph.ty(*made));
                output == made
                    || before
                        .zip(now)
                        .is_some_and(|(before, now)| before.shape == now.shape && now.data_type == self.kind)
            });
        if !is_right {
            self.graph.nodes.pop();
            return Ok(false);
        }
        for (output, made) in outputs.into_iter().zip(made).filter(|(output, made)| output != made) {
            self.narrow.insert(output, made);
            self.only_narrow.insert(output, made);
            self.made.insert(output);
        }
        Ok(true)
    }

    /// Returns a value in 16 bits.
    fn converted(&mut self, value: ValueId) -> Result<ValueId, ModelError> {
        if let Some(&narrow) = self.narrow.get(&value) {
            return Ok(narrow);
        }
        let name = format!("{}.{}", self.graph.value(value).name, self.kind);
        let narrow = self.graph.add_value(&name, None);
        self.cast(value, narrow, self.kind)?;
        self.narrow.insert(value, narrow);
        Ok(narrow)
    }

    /// Ensures that a value exists in float32.
    fn wide(&mut self, value: ValueId) -> Result<(), ModelError> {
        match self.only_narrow.remove(&value) {
            Some(narrow) => self.cast(narrow, value, DataType::Float32),
            None => Ok(()),
        }
    }

    fn cast(&mut self, from: ValueId, to: ValueId, kind: DataType) -> Result<(), ModelError> {
        self.graph.nodes.push(Node {
            name: self.graph.value(to).name.clone(),
            operation: Operation::onnx("Cast", &[("to", Attribute::Int(kind.onnx_number().into()))]),
            inputs: vec![Some(from)],
            outputs: vec![Some(to)],
        });
        infer_node(self.graph, self.graph.nodes.len() - 1)
    }
}

/// Makes the backward pass, which begins at node `backward`, convert values from 16 bits to float32 again where the forward pass did, so
/// that the 16-bit values are the ones that are kept.
pub(super) fn widen_again(graph: &mut Graph, backward: usize) {
    let nodes = std::mem::take(&mut graph.nodes);
    let is_narrow = |id: &ValueId| graph.ty(*id).is_some_and(|ty| ty.data_type.is_sixteen_bit());
    let is_float = |id: &ValueId| graph.ty(*id).is_some_and(|ty| ty.data_type == DataType::Float32);
    let mut casts = BTreeMap::new();
    for node in nodes.iter().take(backward).filter(|node| node.operation.name() == "Cast") {
        if let (&[Some(from)], &[Some(to)]) = (node.inputs.as_slice(), node.outputs.as_slice())
            && is_narrow(&from)
            && is_float(&to)
            && !graph.outputs.contains(&to)
        {
            casts.insert(to, node.clone());
        }
    }
    let mut again: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for (place, mut node) in nodes.into_iter().enumerate() {
        for input in node.inputs.iter_mut().flatten().filter(|_| place >= backward) {
            let Some(cast) = casts.get(input) else { continue };
            *input = match again.get(input) {
                Some(&value) => value,
                None => {
                    let (name, ty) = (graph.value(*input).name.clone(), graph.ty(*input).cloned());
                    let value = graph.add_value(&format!("{name}.again"), ty);
                    graph.nodes.push(Node { outputs: vec![Some(value)], ..cast.clone() });
                    again.insert(*input, value);
                    value
                }
            };
        }
        graph.nodes.push(node);
    }
}

/// The name of the graph input that holds the factor of the loss.
const SCALE_NAME: &str = "forebay.loss_scale";

/// Returns the loss, multiplied by a factor that is fed to each step if gradients are scaled, and the input of that factor.
pub(super) fn scale(graph: &mut Graph, loss: ValueId, precision: Option<&Precision>) -> (ValueId, Option<ValueId>) {
    if !precision.is_some_and(Precision::scales_loss) {
        return (loss, None);
    }
    let input = graph.add_input(SCALE_NAME, TensorType::new(DataType::Float32, &[1]));
    let mut formula = Formula::new(graph, "loss");
    let factor = formula.reshape(input, &[]);
    (formula.multiply(loss, factor), Some(input))
}

/// Removes that factor from the gradients. It is a power of two, so nothing is rounded.
pub(super) fn unscale(graph: &mut Graph, trained: &mut [(ValueId, ValueId)], factor: Option<ValueId>) {
    let Some(factor) = factor else { return };
    for (_, d) in trained {
        *d = Formula::new(graph, "gradient").divide(*d, factor);
    }
}
