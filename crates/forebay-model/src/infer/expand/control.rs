//! Branches, and loops with the operator `Loop`.

use std::sync::Arc;

use forebay_base::Tensor;

use super::condition::{is_true, trip_count, truth};
use super::draws::number_unrolled;
use super::inline::inline;
use super::{bind, constant, count, integers, node, select};
use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, Subgraph, ValueId};
use crate::operator::NodeView;

/// The most iterations that are unrolled; longer loops run their body repeatedly.
const ITERATIONS_MAX: i64 = 1 << 16;
/// The most nodes of a graph whose loops are unrolled and whose sequences are expanded.
pub(crate) const NODES_MAX: i64 = 1 << 18;

/// Returns the graph in an attribute.
pub(super) fn graph_attribute(view: &NodeView, name: &str) -> Result<Arc<Subgraph>, ModelError> {
    match view.attribute(name) {
        Some(Attribute::Graph(graph)) => Ok(graph.clone()),
        _ => Err(view.error(format!("attribute {name} must be a graph"))),
    }
}

/// `If`: returns the nodes of the graph that the condition chooses, or those of both graphs if only a step knows the condition and the
/// graph [selects](Graph::selects_branches).
pub(super) fn branch(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let view = NodeView { graph, node: like };
    let inside = |name: &str| {
        let inside = graph_attribute(&view, name)?;
        let count = inside.graph.outputs.len();
        if count < like.outputs.len() {
            return Err(
                view.error(format!("attribute {name} has {count} outputs, but the node has {}", like.outputs.len()))
            );
        }
        Ok(inside)
    };
    let condition = match view.needed(0) {
        Err(ModelError::NeedsValue { .. }) if graph.selects_branches => {
            let branches = [inside("then_branch")?, inside("else_branch")?];
            return select::both(graph, like, [&branches[0], &branches[1]]);
        }
        condition => is_true(condition?),
    };
    let inside = inside(if condition { "then_branch" } else { "else_branch" })?;
    let (mut nodes, outputs) = inline(graph, like, &inside, &[]);
    nodes.extend(like.outputs.iter().zip(outputs).filter_map(|(&output, value)| bind(like, output, value)));
    Ok(nodes)
}

/// What is known of a loop before it runs.
pub(crate) struct LoopFacts {
    /// Its body.
    pub body: Arc<Subgraph>,
    /// The number of values carried from one iteration to the next, without the condition.
    pub carried: usize,
}

/// Returns what is known of a `Loop`.
///
/// # Errors
/// Fails if the inputs or outputs do not match the body.
pub(crate) fn loop_facts(view: &NodeView) -> Result<LoopFacts, ModelError> {
    let body = graph_attribute(view, "body")?;
    let Some(carried) = body.declared_inputs().checked_sub(2) else {
        return Err(view.error("the inputs of the body must begin with the iteration number and the condition"));
    };
    let scanned = body.graph.outputs.len().checked_sub(1 + carried);
    if scanned.is_none_or(|scanned| carried + scanned < view.node.outputs.len()) {
        return Err(view.error(format!(
            "the body has {carried} carried values and {} outputs, but the loop has {} outputs",
            body.graph.outputs.len(),
            view.node.outputs.len()
        )));
    }
    Ok(LoopFacts { body, carried })
}

/// Returns whether every iteration leaves the condition unchanged, so that the number of iterations is known before the first one.
/// `outside` returns the number in an input of the loop, if it is known.
fn keeps_condition(body: &Subgraph, outside: &dyn Fn(usize) -> Option<i64>) -> bool {
    let inside = &body.graph;
    let mut value = inside.outputs[0];
    loop {
        if let Some(i) = inside.inputs.iter().position(|&input| input == value) {
            // The condition itself, or a constant of an enclosing graph.
            let captured = i.checked_sub(body.declared_inputs()).and_then(|i| outside(body.captured[i]));
            return i == 1 || captured.is_some_and(|number| number != 0);
        }
        match inside.producer(value) {
            Some(Node { operation: Operation::Onnx { op_type, .. }, inputs, .. }) if op_type == "Identity" => {
                let Some(Some(input)) = inputs.first() else { return false };
                value = *input;
            }
            _ => return false,
        }
    }
}

/// Returns the number in an input of a loop, such as a count or a condition, if it is known.
fn number(view: &NodeView, input: usize) -> Option<i64> {
    view.constant(input).ok().flatten().map(trip_count)
}

/// Returns whether a `Loop` runs its body repeatedly: it is not unrolled, whatever is known of its inputs.
pub(crate) fn runs_again(graph: &Graph, node: &Node) -> bool {
    let view = NodeView { graph, node };
    let Ok(LoopFacts { body, .. }) = loop_facts(&view) else { return false };
    if !keeps_condition(&body, &|input| number(&view, input)) {
        return count::by_conditions(&view, &body).is_none_or(|count| is_too_long(&view, count, &body));
    }
    number(&view, 0).is_some_and(|count| is_too_long(&view, count, &body))
}

/// Returns whether a loop has too many iterations to be unrolled after the nodes that its graph has so far.
fn is_too_long(view: &NodeView, count: i64, body: &Subgraph) -> bool {
    let before = view.graph.nodes.len() as i64;
    unrolled_nodes(count, body, &|input| number(view, input)).is_none_or(|nodes| before + nodes > NODES_MAX)
}

/// Returns the number of nodes of an unrolled loop, or `None` if it has too many iterations or nodes. `outside` returns the number in an
/// input of the loop, if it is known.
fn unrolled_nodes(count: i64, body: &Subgraph, outside: &dyn Fn(usize) -> Option<i64>) -> Option<i64> {
    let inside = &body.graph;
    let of_node = |node: &Node| {
        let view = NodeView { graph: inside, node };
        let inner = (node.operation.name() == "Loop").then(|| loop_facts(&view).ok()).flatten();
        let Some(LoopFacts { body: inner, .. }) = inner else { return 1 };
        let known = |input: usize| {
            let value = node.inputs.get(input).copied().flatten()?;
            let place = inside.inputs.iter().position(|&given| given == value)?;
            outside(*body.captured.get(place.checked_sub(body.declared_inputs())?)?)
        };
        // An inner loop that is not unrolled is one node, as is one whose condition depends on what it computes.
        let count = known(0).filter(|_| keeps_condition(&inner, &known));
        count.and_then(|count| unrolled_nodes(count, &inner, &known)).map_or(1, |nodes| nodes.max(1))
    };
    // A collected output takes one more node per iteration, which gives its part an axis; every output takes one more at the end.
    let collected = (1 + inside.outputs.len()).saturating_sub(body.declared_inputs());
    let nodes = inside.nodes.iter().map(of_node).fold(collected as i64, i64::saturating_add);
    let all = count.saturating_mul(nodes).saturating_add(inside.outputs.len() as i64);
    (count <= ITERATIONS_MAX && all <= NODES_MAX).then_some(all)
}

/// `Loop`: returns its iterations, one after the other, if their number is known.
pub(super) fn repeat(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let view = NodeView { graph, node: like };
    let LoopFacts { body, carried } = loop_facts(&view)?;
    let waits = |i: usize, reason: &str| ModelError::NeedsValue {
        op_type: "Loop".to_string(),
        node: like.label(graph),
        value: view.input(i).map(|value| graph.value(value).name.clone()).unwrap_or_default(),
        reason: reason.to_string(),
    };
    let count = if keeps_condition(&body, &|input| number(&view, input)) {
        let runs = !view.has_input(1) || is_true(view.needed(1)?);
        match (runs, view.has_input(0)) {
            (false, _) => 0,
            (true, true) => trip_count(view.needed(0)?),
            (true, false) => return Err(view.error("neither a count nor a condition ends the loop")),
        }
    } else {
        let counted = count::by_conditions(&view, &body);
        counted.ok_or_else(|| waits(1, "the number of iterations depends on what the loop computes"))?
    };
    if is_too_long(&view, count, &body) {
        let reason = format!(
            "{count} iterations are too many to unroll: the maximum is {ITERATIONS_MAX} iterations, and {NODES_MAX} nodes including \
             inner loops and the {} nodes before this loop; for training, use fewer iterations that each process more",
            graph.nodes.len()
        );
        return Err(waits(if view.has_input(0) { 0 } else { 1 }, &reason));
    }
    let mut current: Vec<ValueId> = (2..2 + carried).map(|i| view.input(i)).collect::<Result<_, _>>()?;
    let condition = constant(graph, "condition", truth(true));
    let (mut nodes, mut scanned) = (Vec::new(), vec![Vec::new(); body.graph.outputs.len() - 1 - carried]);
    for i in 0..count {
        let mut inputs = vec![integers(graph, &[], &[i]), condition];
        inputs.extend(&current);
        let (mut iteration, outputs) = inline(graph, like, &body, &inputs);
        number_unrolled(&mut iteration, i);
        nodes.extend(iteration);
        current = outputs[1..=carried].to_vec();
        scanned.iter_mut().zip(&outputs[1 + carried..]).for_each(|(all, &value)| all.push(value));
    }
    nodes.extend(like.outputs.iter().zip(&current).filter_map(|(&output, &value)| bind(like, output, value)));
    for (i, values) in scanned.iter().enumerate() {
        if let Some(Some(output)) = like.outputs.get(carried + i) {
            nodes.extend(stack(graph, like, &body, 1 + carried + i, values, 0, *output)?);
        }
    }
    Ok(nodes)
}

/// Stacks the results of the iterations along a new axis. Without iterations there are no elements, and the body declares the type.
pub(super) fn stack(
    graph: &mut Graph,
    like: &Node,
    body: &Subgraph,
    output_of_body: usize,
    values: &[ValueId],
    axis: i64,
    output: ValueId,
) -> Result<Vec<Node>, ModelError> {
    if values.is_empty() {
        let tensor = nothing(body, output_of_body, axis).ok_or_else(|| {
            NodeView { graph, node: like }.error("there are no iterations, so the type of an output is unknown")
        })?;
        let value = constant(graph, "none", tensor);
        return Ok(bind(like, Some(output), value).into_iter().collect());
    }
    let axes = integers(graph, &[1], &[axis]);
    let mut nodes = Vec::with_capacity(values.len() + 1);
    let mut pieces = Vec::with_capacity(values.len());
    for &value in values {
        let piece = graph.add_value(&format!("{}/piece", like.label(graph)), None);
        nodes.push(node(like, "Unsqueeze", &[], &[value, axes], &[piece]));
        pieces.push(piece);
    }
    nodes.push(node(like, "Concat", &[("axis", axis)], &pieces, &[output]));
    Ok(nodes)
}

/// Returns a tensor without elements, of the type that a body declares for an output, with an extra axis.
pub(crate) fn nothing(body: &Subgraph, output: usize, axis: i64) -> Option<Tensor> {
    let (data_type, dimensions) = body.graph.value(*body.graph.outputs.get(output)?).declared.as_ref()?;
    let size = |dimension: &crate::graph::Dimension| match dimension {
        crate::graph::Dimension::Known(size) => *size,
        crate::graph::Dimension::Symbol(_) => 0,
    };
    let mut shape: Vec<u64> = dimensions.iter().map(size).collect();
    let rank = shape.len() as i64 + 1;
    let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok().filter(|&axis| axis <= shape.len())?;
    shape.insert(axis, 0);
    Tensor::zeros(*data_type, &shape)
}

/// Returns the elements of a value along an axis, without that axis.
pub(super) fn parts(
    graph: &mut Graph,
    like: &Node,
    source: ValueId,
    axis: usize,
    count: u64,
    nodes: &mut Vec<Node>,
) -> Vec<ValueId> {
    if count == 0 {
        return Vec::new();
    }
    let label = like.label(graph);
    let pieces: Vec<ValueId> = (0..count).map(|_| graph.add_value(&format!("{label}/piece"), None)).collect();
    let sizes = integers(graph, &[count], &vec![1; count as usize]);
    nodes.push(node(like, "Split", &[("axis", axis as i64)], &[source, sizes], &pieces));
    let axes = integers(graph, &[1], &[axis as i64]);
    let squeeze = |piece| {
        let element = graph.add_value(&format!("{label}/element"), None);
        nodes.push(node(like, "Squeeze", &[], &[piece, axes], &[element]));
        element
    };
    pieces.into_iter().map(squeeze).collect()
}
