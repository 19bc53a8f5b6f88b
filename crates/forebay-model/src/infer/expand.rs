//! Expands nodes into other nodes before they have types: branches, loops, sequences and optional values.
//!
//! A branch whose condition is known becomes the nodes of the chosen graph. A loop whose number of iterations is known is unrolled. A
//! sequence is a list of values that is known while the graph is read: operators on sequences become operators on their elements.

mod condition;
mod control;
mod count;
mod draws;
mod flex;
mod inline;
mod padded;
mod scan;
mod select;
mod sequence;

use forebay_base::Tensor;

use crate::error::ModelError;
use crate::graph::{Graph, Node, Operation, ValueId};
use crate::operator::NodeView;
pub use condition::{is_true, trip_count, truth};
pub(crate) use control::{NODES_MAX, loop_facts, nothing, runs_again};
pub(crate) use draws::{is_draw, number_draws};
pub(super) use padded::note as note_padding;

/// Returns the nodes that replace a node. These can be expanded in turn.
type Expand = fn(&mut Graph, &Node) -> Result<Vec<Node>, ModelError>;

/// The operators of the default domain that are expanded.
const EXPANDED: [(&str, Expand); 15] = [
    ("If", control::branch),
    ("Loop", control::repeat),
    ("Scan", scan::scan),
    ("Optional", sequence::optional),
    ("OptionalGetElement", sequence::optional_element),
    ("OptionalHasElement", sequence::has_element),
    ("SequenceEmpty", sequence::empty),
    ("SequenceConstruct", sequence::construct),
    ("SequenceInsert", sequence::insert),
    ("SequenceErase", sequence::erase),
    ("SequenceAt", sequence::at),
    ("SequenceLength", sequence::length),
    ("SequenceMap", sequence::map),
    ("SplitToSequence", sequence::split),
    ("ConcatFromSequence", sequence::concatenate),
];

/// Returns whether an operator is expanded.
pub(super) fn is_expanded(domain: &str, op_type: &str) -> bool {
    domain.is_empty() && EXPANDED.iter().any(|(name, _)| *name == op_type)
}

/// Returns the nodes that replace a node, or `None` if it stays.
///
/// # Errors
/// [`ModelError::NeedsValue`] if the result depends on a value that is not known. Also fails if the operator rejects its inputs.
pub(super) fn expand(graph: &mut Graph, node: &Node) -> Result<Option<Vec<Node>>, ModelError> {
    let Operation::Onnx { domain, op_type, .. } = &node.operation else { return Ok(None) };
    if (domain.as_str(), op_type.as_str()) == ("ai.onnx.preview", "FlexAttention") {
        return flex::attention(graph, node);
    }
    if select::is_choice(domain, op_type) {
        return select::choose(graph, node).map(Some);
    }
    if !domain.is_empty() {
        return Ok(None);
    }
    if graph.selects_branches
        && let Some(nodes) = padded::expand(graph, node)?
    {
        return Ok(Some(nodes));
    }
    let expand = EXPANDED.iter().find(|(name, _)| name == op_type).map(|(_, expand)| *expand);
    if let Some(expand) = expand {
        return expand(graph, node).map(Some);
    }
    if op_type == "Identity" {
        return Ok(sequence::identity(graph, node).then(Vec::new));
    }
    let is_sequence = |input: &ValueId| graph.sequences.contains_key(input);
    if let Some(i) = node.inputs.iter().position(|input| input.as_ref().is_some_and(is_sequence)) {
        return Err(NodeView { graph, node }.error(format!("input {i} is a sequence of tensors, not a tensor")));
    }
    Ok(None)
}

/// Returns a node of the default domain.
fn node(like: &Node, op_type: &str, attributes: &[(&str, i64)], inputs: &[ValueId], outputs: &[ValueId]) -> Node {
    let attributes: Vec<(&str, crate::graph::Attribute)> =
        attributes.iter().map(|(name, value)| (*name, crate::graph::Attribute::Int(*value))).collect();
    Node {
        name: like.name.clone(),
        operation: Operation::onnx(op_type, &attributes),
        inputs: inputs.iter().copied().map(Some).collect(),
        outputs: outputs.iter().copied().map(Some).collect(),
    }
}

/// Adds an integer constant.
fn integers(graph: &mut Graph, shape: &[u64], values: &[i64]) -> ValueId {
    constant(graph, "constant", Tensor::from_i64(shape, values))
}

/// Adds a constant.
fn constant(graph: &mut Graph, name: &str, tensor: Tensor) -> ValueId {
    let id = graph.add_initializer(name, tensor);
    graph.constants.insert(id);
    id
}

/// Binds a node's output to another value, whether that is a tensor or a sequence.
fn bind(like: &Node, output: Option<ValueId>, value: ValueId) -> Option<Node> {
    output.map(|output| node(like, "Identity", &[], &[value], &[output]))
}
