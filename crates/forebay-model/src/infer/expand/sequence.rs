//! Sequences of tensors and optional values.

use std::sync::Arc;

use forebay_base::{DataType, Tensor};

use super::draws::number_unrolled;
use super::inline::inline;
use super::{constant, control, integers, node};
use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, ValueId};
use crate::operator::NodeView;

/// Returns the elements of an input that is a sequence.
fn elements(graph: &Graph, like: &Node, i: usize) -> Result<Vec<ValueId>, ModelError> {
    let view = NodeView { graph, node: like };
    let value = view.input(i)?;
    graph.sequences.get(&value).cloned().ok_or_else(|| view.error(format!("input {i} must be a sequence of tensors")))
}

/// Makes an output a sequence.
fn give(graph: &mut Graph, like: &Node, elements: Vec<ValueId>) -> Vec<Node> {
    if let Some(Some(output)) = like.outputs.first() {
        graph.sequences.insert(*output, elements);
    }
    Vec::new()
}

/// `Identity` of a sequence or of an absent optional value. Returns `false` for a tensor.
pub(super) fn identity(graph: &mut Graph, like: &Node) -> bool {
    let (Some(Some(input)), Some(Some(output))) = (like.inputs.first(), like.outputs.first()) else { return false };
    if graph.absent.contains(input) {
        graph.absent.insert(*output);
        return true;
    }
    let Some(elements) = graph.sequences.get(input).cloned() else { return false };
    graph.sequences.insert(*output, elements);
    true
}

/// `Optional`: the contained value itself, or nothing.
pub(super) fn optional(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    if matches!(like.inputs.first(), Some(Some(_))) {
        return optional_element(graph, like);
    }
    graph.absent.extend(like.outputs.first().copied().flatten());
    Ok(Vec::new())
}

/// `OptionalGetElement`.
pub(super) fn optional_element(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let view = NodeView { graph, node: like };
    let (input, output) = (view.input(0)?, like.outputs.first().copied().flatten());
    if graph.absent.contains(&input) {
        return Err(view.error("the optional value is absent"));
    }
    Ok(output.map(|output| node(like, "Identity", &[], &[input], &[output])).into_iter().collect())
}

/// `OptionalHasElement`.
pub(super) fn has_element(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let input = like.inputs.first().copied().flatten();
    let has = input.is_some_and(|input| !graph.absent.contains(&input));
    let Some(tensor) = Tensor::new(DataType::Bool, &[], [u8::from(has)]) else { return Ok(Vec::new()) };
    Ok(known(graph, like, tensor))
}

/// Gives a node a constant as its output.
fn known(graph: &mut Graph, like: &Node, tensor: Tensor) -> Vec<Node> {
    let value = constant(graph, "constant", tensor);
    let output = like.outputs.first().copied().flatten();
    output.map(|output| node(like, "Identity", &[], &[value], &[output])).into_iter().collect()
}

/// `SequenceEmpty`.
pub(super) fn empty(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    Ok(give(graph, like, Vec::new()))
}

/// `SequenceConstruct`.
pub(super) fn construct(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let view = NodeView { graph, node: like };
    let values = (0..like.inputs.len()).map(|i| view.input(i)).collect::<Result<_, _>>()?;
    Ok(give(graph, like, values))
}

/// Returns a position in a sequence; negative positions count from the end.
fn position(view: &NodeView, i: usize, length: usize, may_be_end: bool) -> Result<usize, ModelError> {
    let given = view.constant_ints(i)?.first().copied().unwrap_or_default();
    let position = if given < 0 { given.checked_add(length as i64) } else { Some(given) };
    let end = length + usize::from(may_be_end);
    position
        .and_then(|position| usize::try_from(position).ok())
        .filter(|&position| position < end)
        .ok_or_else(|| view.error(format!("position {given} is out of range for a sequence of length {length}")))
}

/// `SequenceInsert`.
pub(super) fn insert(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let view = NodeView { graph, node: like };
    let mut values = elements(graph, like, 0)?;
    let at = if view.has_input(2) { position(&view, 2, values.len(), true)? } else { values.len() };
    values.insert(at, view.input(1)?);
    Ok(give(graph, like, values))
}

/// `SequenceErase`.
pub(super) fn erase(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let view = NodeView { graph, node: like };
    let mut values = elements(graph, like, 0)?;
    let last = values.len().saturating_sub(1);
    let at = if view.has_input(1) { position(&view, 1, values.len(), false)? } else { last };
    if values.is_empty() {
        return Err(view.error("the sequence is empty"));
    }
    values.remove(at);
    Ok(give(graph, like, values))
}

/// `SequenceAt`.
pub(super) fn at(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let view = NodeView { graph, node: like };
    let values = elements(graph, like, 0)?;
    let value = values[position(&view, 1, values.len(), false)?];
    let output = like.outputs.first().copied().flatten();
    Ok(output.map(|output| node(like, "Identity", &[], &[value], &[output])).into_iter().collect())
}

/// `SequenceLength`.
pub(super) fn length(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let count = elements(graph, like, 0)?.len() as i64;
    Ok(known(graph, like, Tensor::from_i64(&[], &[count])))
}

/// `SequenceMap`: the body, once for each element.
pub(super) fn map(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let view = NodeView { graph, node: like };
    let body = match view.attribute("body") {
        Some(Attribute::Graph(graph)) => Arc::clone(graph),
        _ => return Err(view.error("attribute body must be a graph")),
    };
    let inputs = body.declared_inputs();
    if body.graph.outputs.len() < like.outputs.len() {
        return Err(view.error(format!(
            "the body has {} outputs, but the node has {}",
            body.graph.outputs.len(),
            like.outputs.len()
        )));
    }
    let (mut nodes, mut results) = (Vec::new(), vec![Vec::new(); like.outputs.len()]);
    let first = elements(graph, like, 0)?;
    let others: Vec<Option<Vec<ValueId>>> = (1..inputs).map(|i| elements(graph, like, i).ok()).collect();
    for (place, &element) in first.iter().enumerate() {
        let mut given = vec![element];
        for (i, other) in others.iter().enumerate() {
            let view = NodeView { graph, node: like };
            given.push(match other {
                Some(values) => *values.get(place).ok_or_else(|| view.error("the sequences differ in length"))?,
                None => view.input(i + 1)?,
            });
        }
        let (mut body_nodes, outputs) = inline(graph, like, &body, &given);
        number_unrolled(&mut body_nodes, place as i64);
        nodes.extend(body_nodes);
        results.iter_mut().zip(outputs).for_each(|(all, output)| all.push(output));
    }
    for (output, values) in like.outputs.iter().zip(results) {
        if let Some(output) = output {
            graph.sequences.insert(*output, values);
        }
    }
    Ok(nodes)
}

/// The sizes of the parts of an axis that all have one size; the last can be smaller.
fn equal_parts(view: &NodeView, total: u64, size: u64) -> Result<Vec<i64>, ModelError> {
    const PARTS_MAX: u64 = control::NODES_MAX as u64;
    match total.div_ceil(size) {
        count @ ..=PARTS_MAX => Ok((0..count).map(|i| size.min(total - i * size) as i64).collect()),
        count => Err(view.error(format!("{count} parts are more than the maximum of {PARTS_MAX}; take larger parts"))),
    }
}

/// `SplitToSequence`: parts of the given sizes, or single elements.
pub(super) fn split(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let view = NodeView { graph, node: like };
    let x = view.input_type(0)?;
    let axis = view.axis(view.int("axis", 0)?, x.shape.len())?;
    let (source, total) = (view.input(0)?, x.shape[axis]);
    let sizes = match view.has_input(1) {
        false => equal_parts(&view, total, 1)?,
        true => {
            let given = view.constant_ints(1)?;
            match (view.input_type(1)?.shape.is_empty(), given.as_slice()) {
                (true, &[size]) if size > 0 => equal_parts(&view, total, size as u64)?,
                (true, _) => {
                    return Err(
                        view.error(format!("the size of the parts must be one positive integer, not {given:?}"))
                    );
                }
                (false, _) => given,
            }
        }
    };
    let mut nodes = Vec::new();
    if !view.has_input(1) && view.int("keepdims", 1)? == 0 {
        let values = control::parts(graph, like, source, axis, total, &mut nodes);
        give(graph, like, values);
        return Ok(nodes);
    }
    let label = like.label(graph);
    let values: Vec<ValueId> = sizes.iter().map(|_| graph.add_value(&format!("{label}/part"), None)).collect();
    if !values.is_empty() {
        let sizes = integers(graph, &[sizes.len() as u64], &sizes);
        nodes.push(node(like, "Split", &[("axis", axis as i64)], &[source, sizes], &values));
    }
    give(graph, like, values);
    Ok(nodes)
}

/// `ConcatFromSequence`.
pub(super) fn concatenate(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let mut values = elements(graph, like, 0)?;
    let view = NodeView { graph, node: like };
    let (axis, is_new) = (view.int("axis", 0)?, view.int("new_axis", 0)? != 0);
    let Some(Some(output)) = like.outputs.first().copied() else { return Ok(Vec::new()) };
    if values.is_empty() {
        return Err(view.error("the sequence is empty"));
    }
    let mut nodes = Vec::new();
    if is_new {
        let axes = integers(graph, &[1], &[axis]);
        for value in &mut values {
            let piece = graph.add_value(&format!("{}/piece", like.label(graph)), None);
            nodes.push(node(like, "Unsqueeze", &[], &[*value, axes], &[piece]));
            *value = piece;
        }
    }
    nodes.push(node(like, "Concat", &[("axis", axis)], &values, &[output]));
    Ok(nodes)
}
