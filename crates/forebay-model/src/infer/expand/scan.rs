//! Expands `Scan`: its body runs once for each element along an axis.

use std::sync::Arc;

use super::bind;
use super::control::{NODES_MAX, graph_attribute, parts, stack};
use super::draws::number_unrolled;
use super::inline::inline;
use crate::error::ModelError;
use crate::graph::{Graph, Node, Subgraph, ValueId};
use crate::operator::NodeView;

/// What is known of a `Scan` before it runs.
struct Facts {
    body: Arc<Subgraph>,
    /// The number of values carried from one iteration to the next.
    states: usize,
    /// The number of scanned inputs.
    scanned_inputs: usize,
    /// The number of collected outputs.
    scanned_outputs: usize,
}

impl Facts {
    fn of(view: &NodeView) -> Result<Facts, ModelError> {
        let body = graph_attribute(view, "body")?;
        let scanned_inputs = usize::try_from(view.int("num_scan_inputs", 0)?).unwrap_or(0);
        let inputs = body.declared_inputs();
        let states = inputs.checked_sub(scanned_inputs).filter(|_| scanned_inputs > 0);
        let states = states.ok_or_else(|| {
            view.error(format!("{scanned_inputs} scanned inputs do not fit a body with {inputs} inputs"))
        })?;
        let Some(scanned_outputs) = body.graph.outputs.len().checked_sub(states) else {
            return Err(view.error(format!("the body has {} outputs, but {states} states", body.graph.outputs.len())));
        };
        Ok(Facts { body, states, scanned_inputs, scanned_outputs })
    }

    /// Rejects more iterations than can be unrolled.
    fn check_count(&self, view: &NodeView, count: u64) -> Result<(), ModelError> {
        let nodes = self.body.graph.nodes.len();
        let all = i64::try_from(count).unwrap_or(i64::MAX).saturating_mul(nodes as i64 + 2);
        match all > NODES_MAX {
            true => Err(view.error(format!(
                "{count} iterations, each with the {nodes} nodes of the body and 2 more, are above the maximum of {NODES_MAX} nodes; \
                 use shorter sequences, or a Loop, which runs its body repeatedly outside training if it is too long to be unrolled"
            ))),
            false => Ok(()),
        }
    }

    /// Appends the iterations of a sequence, one after the other. Returns the final states and, for each output, the collected values.
    fn iterate(
        &self,
        graph: &mut Graph,
        like: &Node,
        sequence: usize,
        states: Vec<ValueId>,
        elements: &[Vec<ValueId>],
        nodes: &mut Vec<Node>,
    ) -> (Vec<ValueId>, Vec<Vec<ValueId>>) {
        let (mut current, mut scanned) = (states, vec![Vec::new(); self.scanned_outputs]);
        let count = elements.first().map_or(0, Vec::len);
        for i in 0..count {
            let mut inputs = current.clone();
            inputs.extend(elements.iter().map(|parts| parts[i]));
            let (mut iteration, outputs) = inline(graph, like, &self.body, &inputs);
            number_unrolled(&mut iteration, (sequence * count + i) as i64);
            nodes.extend(iteration);
            current = outputs[..self.states].to_vec();
            scanned.iter_mut().zip(&outputs[self.states..]).for_each(|(all, &value)| all.push(value));
        }
        (current, scanned)
    }
}

/// `Scan`: returns its iterations, one after the other.
pub(super) fn scan(graph: &mut Graph, like: &Node) -> Result<Vec<Node>, ModelError> {
    let view = NodeView { graph, node: like };
    let facts = Facts::of(&view)?;
    if view.version() < 9 {
        return scan_batches(graph, like, &facts);
    }
    let states = facts.states;
    let list = |name: &str, i: usize| -> Result<i64, ModelError> {
        Ok(view.ints(name)?.and_then(|values| values.get(i).copied()).unwrap_or(0))
    };
    let mut count = None;
    let mut sources = Vec::new();
    for i in 0..facts.scanned_inputs {
        let ty = view.input_type(states + i)?;
        let axis = view.axis(list("scan_input_axes", i)?, ty.shape.len())?;
        let size = ty.shape[axis];
        if *count.get_or_insert(size) != size {
            return Err(view
                .error(format!("scanned inputs differ in length: {} and {size} elements", count.unwrap_or_default())));
        }
        sources.push((view.input(states + i)?, axis, list("scan_input_directions", i)? == 1));
    }
    let outputs_at: Vec<(i64, bool)> = (0..facts.scanned_outputs)
        .map(|i| Ok((list("scan_output_axes", i)?, list("scan_output_directions", i)? == 1)))
        .collect::<Result<_, ModelError>>()?;
    let first: Vec<ValueId> = (0..states).map(|i| view.input(i)).collect::<Result<_, _>>()?;
    let count = count.unwrap_or(0);
    facts.check_count(&view, count)?;
    let (mut nodes, mut elements) = (Vec::new(), Vec::new());
    for (source, axis, is_reversed) in sources {
        let mut parts = parts(graph, like, source, axis, count, &mut nodes);
        if is_reversed {
            parts.reverse();
        }
        elements.push(parts);
    }
    let (last, scanned) = facts.iterate(graph, like, 0, first, &elements, &mut nodes);
    nodes.extend(like.outputs.iter().zip(&last).filter_map(|(&output, &value)| bind(like, output, value)));
    for (i, (mut values, (axis, is_reversed))) in scanned.into_iter().zip(outputs_at).enumerate() {
        if let Some(Some(output)) = like.outputs.get(states + i) {
            if is_reversed {
                values.reverse();
            }
            nodes.extend(stack(graph, like, &facts.body, states + i, &values, axis, *output)?);
        }
    }
    Ok(nodes)
}

/// `Scan` of operator set 8: the first input holds the lengths of the sequences, and the first axis of all others indexes the sequences,
/// each of which is scanned separately along the second axis.
fn scan_batches(graph: &mut Graph, like: &Node, facts: &Facts) -> Result<Vec<Node>, ModelError> {
    let view = NodeView { graph, node: like };
    let (states, inputs) = (facts.states, facts.states + facts.scanned_inputs);
    let sources: Vec<ValueId> = (0..inputs).map(|i| view.input(1 + i)).collect::<Result<_, _>>()?;
    let sizes = |i: usize, name: &str| match *view.input_type(1 + i)?.shape.as_slice() {
        [batch, ..] if i < states => Ok([batch, 0]),
        [batch, length, ..] => Ok([batch, length]),
        _ => Err(view.error(format!("{name} has no sequence axis"))),
    };
    let [batch, length] = sizes(states, "the first scanned input")?;
    for i in 0..inputs {
        let [own_batch, own_length] = sizes(i, &format!("input {}", 1 + i))?;
        if own_batch != batch || i >= states && own_length != length {
            return Err(view.error(format!(
                "inputs have {batch} and {own_batch} sequences of {length} and {own_length} elements"
            )));
        }
    }
    if view.has_input(0) && view.constant_ints(0)?.iter().any(|&own| u64::try_from(own) != Ok(length)) {
        return Err(view.error(format!(
            "sequences shorter than {length} are not supported; convert the model to operator set 9 or newer"
        )));
    }
    let directions = view.ints("directions")?.map(<[i64]>::to_vec).unwrap_or_default();
    facts.check_count(&view, batch.saturating_mul(length.max(1)))?;
    let mut nodes = Vec::new();
    let by_input: Vec<Vec<ValueId>> =
        sources.iter().map(|&source| parts(graph, like, source, 0, batch, &mut nodes)).collect();
    let mut results = vec![Vec::new(); states + facts.scanned_outputs];
    for sequence in 0..batch as usize {
        let first = by_input[..states].iter().map(|parts| parts[sequence]).collect();
        let mut elements = Vec::new();
        for (i, source) in by_input[states..].iter().enumerate() {
            let mut parts = parts(graph, like, source[sequence], 0, length, &mut nodes);
            if directions.get(i) == Some(&1) {
                parts.reverse();
            }
            elements.push(parts);
        }
        let (last, scanned) = facts.iterate(graph, like, sequence, first, &elements, &mut nodes);
        results.iter_mut().zip(last).for_each(|(all, value)| all.push(value));
        for (i, values) in scanned.into_iter().enumerate() {
            let joined = graph.add_value(&format!("{}/sequence", like.label(graph)), None);
            nodes.extend(stack(graph, like, &facts.body, states + i, &values, 0, joined)?);
            results[states + i].push(joined);
        }
    }
    for (i, values) in results.iter().enumerate() {
        if let Some(Some(output)) = like.outputs.get(i) {
            if values.is_empty() {
                return Err(NodeView { graph, node: like }.error("the input contains no sequences"));
            }
            nodes.extend(stack(graph, like, &facts.body, i, values, 0, *output)?);
        }
    }
    Ok(nodes)
}
