//! Branches whose condition only a step knows: both are computed, and the results of one are selected.
//!
//! A training step therefore has the same launches whatever the condition is. The branch that is not chosen gets zeros instead of the
//! values that it captures. What it computes from them has no effect: results and gradients are selected, not multiplied by 0, which would
//! propagate NaN.

use std::collections::BTreeMap;

use forebay_base::{DataType, Tensor};

use super::inline::inline;
use super::{constant, node};
use crate::error::ModelError;
use crate::graph::{Graph, Node, Operation, Subgraph, ValueId};
use crate::operator::NodeView;

/// The domain of [`CHOICE`].
const DOMAIN: &str = "forebay";
/// An operator that takes a condition and a result of each branch.
const CHOICE: &str = "Choice";

/// Returns the nodes of both branches, and those that choose.
///
/// # Errors
/// Fails if a branch keeps running statistics, which a step would change even if the branch is not chosen.
pub(super) fn both(graph: &mut Graph, like: &Node, branches: [&Subgraph; 2]) -> Result<Vec<Node>, ModelError> {
    if branches.iter().any(|branch| has_statistics(&branch.graph)) {
        return Err(NodeView { graph, node: like }.error(
            "its condition is not known before a step, and a branch contains a BatchNormalization, whose running statistics would \
             also change when the branch is not chosen",
        ));
    }
    let given = NodeView { graph, node: like }.input(0)?;
    let condition = graph.add_value(&format!("{}/condition", like.label(graph)), None);
    let mut nodes = vec![node(like, "Squeeze", &[], &[given], &[condition])];
    let mut results = Vec::with_capacity(2);
    for (branch, is_then) in branches.into_iter().zip([true, false]) {
        let gated = gated(graph, like, branch, condition, is_then, &mut nodes);
        let (inside, outputs) = inline(graph, &gated, branch, &[]);
        nodes.extend(inside);
        results.push(outputs);
    }
    for (i, output) in like.outputs.iter().enumerate() {
        let (Some(output), [then, other]) = (output, [results[0][i], results[1][i]]) else { continue };
        let mut choice = node(like, CHOICE, &[], &[condition, then, other], &[*output]);
        if let Operation::Onnx { domain, .. } = &mut choice.operation {
            *domain = DOMAIN.to_string();
        }
        nodes.push(choice);
    }
    Ok(nodes)
}

/// Returns the node with the values captured by a branch replaced by zeros unless the branch is chosen.
fn gated(
    graph: &mut Graph,
    like: &Node,
    branch: &Subgraph,
    condition: ValueId,
    is_then: bool,
    nodes: &mut Vec<Node>,
) -> Node {
    let (mut gated, mut zeros) = (like.clone(), BTreeMap::new());
    for &place in &branch.captured {
        let Some(value) = like.inputs.get(place).copied().flatten() else { continue };
        let data_type = graph.ty(value).map(|ty| ty.data_type);
        let is_number = |ty: &DataType| ty.is_float() || matches!(ty, DataType::Int32 | DataType::Int64);
        let Some(data_type) = data_type.filter(is_number).filter(|_| !graph.is_constant(value)) else { continue };
        let zero = *zeros
            .entry(data_type)
            .or_insert_with(|| constant(graph, "zero", Tensor::zeros(data_type, &[]).expect("one element")));
        let gate = graph.add_value(&format!("{}/{}", like.label(graph), graph.value(value).name.clone()), None);
        let inputs = if is_then { [condition, value, zero] } else { [condition, zero, value] };
        nodes.push(node(like, "Where", &[], &inputs, &[gate]));
        gated.inputs[place] = Some(gate);
    }
    gated
}

/// Returns whether a node is a choice between the results of two branches.
pub(super) fn is_choice(domain: &str, op_type: &str) -> bool {
    (domain, op_type) == (DOMAIN, CHOICE)
}

/// Returns the node that chooses, once both results have types.
///
/// # Errors
/// Fails if the results have different types: the following nodes would depend on the condition.
pub(super) fn choose(graph: &Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let view = NodeView { graph, node: like };
    let error = |reason: String| {
        let Operation::Onnx { .. } = &like.operation else { return view.error(reason) };
        ModelError::Operator { op_type: "If".to_string(), node: like.label(graph), reason }
    };
    if like.inputs.iter().flatten().any(|input| graph.sequences.contains_key(input)) {
        return Err(error(
            "its condition is not known before a step, and a branch returns a sequence of tensors".to_string(),
        ));
    }
    let (then, other) = (view.input_type(1)?, view.input_type(2)?);
    if then != other {
        return Err(error(format!(
            "its condition is not known before a step, and its branches return {then} and {other}; for training, \
             both must return the same"
        )));
    }
    let inputs: Vec<ValueId> = like.inputs.iter().flatten().copied().collect();
    let outputs: Vec<ValueId> = like.outputs.iter().flatten().copied().collect();
    Ok(vec![node(like, "Where", &[], &inputs, &outputs)])
}

/// Returns whether a graph or one of its subgraphs uses batch normalization.
fn has_statistics(graph: &Graph) -> bool {
    graph
        .nodes
        .iter()
        .any(|node| node.operation.name() == "BatchNormalization" || node.operation.graphs().any(has_statistics))
}
