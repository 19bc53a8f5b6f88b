//! Gradient accumulation: a step processes its batch in several parts, each a separate batch with its own statistics. The forward and
//! backward passes run for one part after the other, and their gradients add up to those of the update. The activations that a part keeps
//! for its backward pass are freed before the next part begins, so a step needs the memory of one part plus that of the gradients, which
//! live until the last part.

use std::collections::BTreeMap;

use forebay_base::Kernel;
use forebay_base::kernel::{BinaryOp, UnaryOp};

use super::mode::TrainingMode;
use crate::context::GradientBuilder;
use crate::error::ModelError;
use crate::graph::{Attribute, Dimension, Graph, Node, Operation, ValueId};
use crate::infer::expand::NODES_MAX;
use crate::infer::infer_node;
use crate::operators::random::inputs_of_draw;

/// Checks that a step does not become too large to plan if `nodes` nodes are repeated for each part of its batch.
///
/// # Errors
/// Fails if there would be more nodes than a graph can have, and names the largest number of parts.
///
/// ```
/// use forebay_model::training::check_parts;
///
/// assert!(check_parts(100, 2621).is_ok());
/// let error = check_parts(100, 2622).unwrap_err().to_string();
/// assert!(error.ends_with("use at most 2621 parts, of more samples each"), "{error}");
/// ```
pub fn check_parts(nodes: usize, parts: u64) -> Result<(), ModelError> {
    let parts_max = (NODES_MAX as u64 / (nodes as u64).max(1)).max(1);
    if parts <= parts_max {
        return Ok(());
    }
    let reason = format!(
        "accumulating gradients over {parts} parts repeats {nodes} nodes for each part, and a step has at most {NODES_MAX} nodes; use at \
         most {parts_max} parts, of more samples each"
    );
    Err(ModelError::Request { reason })
}

/// Returns a part's share of the loss: its loss divided by the number of parts. The gradients of the shares add up to those of the mean.
pub(super) fn share(graph: &mut Graph, loss: ValueId, parts: u64) -> ValueId {
    if parts <= 1 {
        return loss;
    }
    let mut builder = GradientBuilder::without_gradients(graph, infer_node, "gradient");
    builder.unary(UnaryOp::Affine { scale: 1.0 / parts as f32, shift: 0.0 }, loss)
}

/// Repeats a graph that computes the loss and the gradients of one part of a batch for all parts; its inputs become those of the whole
/// batch. Gradients become sums, as does the loss, which is returned. Running statistics are updated by the parts in order.
///
/// # Errors
/// Fails if no input of the model has a batch axis, or if there are too many parts ([`check_parts`]).
pub(super) fn repeat(
    graph: &mut Graph,
    mode: &mut TrainingMode,
    loss: ValueId,
    trained: &mut [(ValueId, ValueId)],
    parts: u64,
) -> Result<ValueId, ModelError> {
    if parts <= 1 {
        return Ok(loss);
    }
    check_parts(graph.nodes.len() + mode.update_nodes.len(), parts)?;
    let (nodes, update_nodes) = (std::mem::take(&mut graph.nodes), std::mem::take(&mut mode.update_nodes));
    let slices = split_inputs(graph, [mode.step, mode.factor], parts)?;
    // The values to sum: the gradients, followed by the loss.
    let mut sums: Vec<ValueId> = trained.iter().map(|&(_, d)| d).chain([loss]).collect();
    let mut added: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
    sums.iter().enumerate().for_each(|(place, &value)| added.entry(value).or_default().push(place));
    let (carried, templates) = (graph.updates.clone(), mode.updates.clone());
    for part in 0..parts {
        let mut values: BTreeMap<ValueId, ValueId> =
            slices.iter().map(|(&input, slices)| (input, slices[part as usize])).collect();
        if part > 0 {
            // What the model itself changes is, for each part, what the part before has left.
            values.extend(graph.updates.iter().map(|update| (update.state, update.value)));
        }
        let mut missing = added.clone();
        for node in &nodes {
            if part > 0 && graph.is_folded(node) {
                continue;
            }
            let copy = copied(graph, node, &mut values, part);
            graph.nodes.push(copy);
            for output in node.outputs.iter().flatten() {
                let places = missing.remove(output).filter(|_| part > 0);
                add(graph, &mut sums, places.as_deref().unwrap_or_default(), values.get(output).unwrap_or(output));
            }
        }
        if part > 0 {
            // A value that no node computes is the same in every part.
            missing.iter().for_each(|(value, places)| add(graph, &mut sums, places, value));
        }
        copy_sequences(graph, &values);
        for (update, template) in graph.updates.iter_mut().zip(&carried) {
            update.value = values.get(&template.value).copied().unwrap_or(template.value);
        }
        let before: BTreeMap<ValueId, ValueId> =
            mode.updates.iter().map(|update| (update.state, update.value)).collect();
        if part > 0 {
            values.extend(before);
        }
        for node in &update_nodes {
            let copy = copied(graph, node, &mut values, part);
            mode.update_nodes.push(copy);
        }
        for (update, template) in mode.updates.iter_mut().zip(&templates) {
            update.value = values.get(&template.value).copied().unwrap_or(template.value);
        }
    }
    trained.iter_mut().zip(&sums).for_each(|((_, d), &sum)| *d = sum);
    Ok(sums[trained.len()])
}

/// Gives inputs the size of the whole batch, except those that do not hold samples. Returns the parts of each input.
fn split_inputs(
    graph: &mut Graph,
    whole: [Option<ValueId>; 2],
    parts: u64,
) -> Result<BTreeMap<ValueId, Vec<ValueId>>, ModelError> {
    let inputs: Vec<ValueId> = graph.inputs.iter().copied().filter(|&input| !whole.contains(&Some(input))).collect();
    let batch = |graph: &Graph, input: ValueId| graph.ty(input).and_then(|ty| ty.shape.first().copied());
    let Some(size) = inputs.iter().find_map(|&input| batch(graph, input)) else {
        let reason = "cannot accumulate gradients over parts of a batch: no input has a batch axis".to_string();
        return Err(ModelError::Request { reason });
    };
    let mut slices = BTreeMap::new();
    for input in inputs {
        if batch(graph, input) != Some(size) {
            continue;
        }
        let value = graph.value_mut(input);
        let Some(ty) = &mut value.ty else { continue };
        ty.shape[0] = size * parts;
        if let Some((_, dimensions)) = &mut value.declared {
            dimensions[0] = Dimension::Known(size * parts);
        }
        let mut builder = GradientBuilder::without_gradients(graph, infer_node, "gradient");
        let count = parts as usize;
        let values = builder.split(input, 0, &vec![size; count], &vec![true; count]);
        slices.insert(input, values.into_iter().flatten().collect());
    }
    Ok(slices)
}

/// Returns a node for a part: for the first part, the node itself on the part's inputs; for the others, a copy with new values.
fn copied(graph: &mut Graph, node: &Node, values: &mut BTreeMap<ValueId, ValueId>, part: u64) -> Node {
    let mut copy = node.clone();
    for input in copy.inputs.iter_mut().flatten() {
        *input = values.get(input).copied().unwrap_or(*input);
    }
    if part == 0 {
        return copy;
    }
    for output in copy.outputs.iter_mut().flatten() {
        let (name, ty) = (graph.value(*output).name.clone(), graph.ty(*output).cloned());
        let count = ty.as_ref().map_or(0, |ty| ty.count());
        let own = graph.add_value(&name, ty);
        graph.note_copy(*output, own);
        values.insert(*output, own);
        *output = own;
        // Random numbers are indexed by position in the whole batch.
        if let Operation::Kernel(Kernel::Dropout { first, .. }) = &mut copy.operation {
            *first = part * count;
        }
    }
    // An operator with a seed draws what its seed selects, so each part gets its own.
    if inputs_of_draw(&copy.operation).is_some()
        && let Operation::Onnx { attributes, .. } = &mut copy.operation
        && let Some(Attribute::Float(seed)) = attributes.get_mut("seed")
    {
        *seed = f32::from_bits(seed.to_bits().wrapping_add(part as u32));
    }
    copy
}

/// Adds a part's value to sums.
fn add(graph: &mut Graph, sums: &mut [ValueId], places: &[usize], value: &ValueId) {
    for &place in places {
        let mut builder = GradientBuilder::without_gradients(graph, infer_node, "gradient");
        sums[place] = builder.binary(BinaryOp::Add, sums[place], *value);
    }
}

/// Gives the sequences of a part the part's own elements.
fn copy_sequences(graph: &mut Graph, values: &BTreeMap<ValueId, ValueId>) {
    let copies = graph.sequences.iter().filter_map(|(id, elements)| {
        let elements = elements.iter().map(|element| values.get(element).copied().unwrap_or(*element)).collect();
        Some((*values.get(id)?, elements))
    });
    let copies: Vec<(ValueId, Vec<ValueId>)> = copies.collect();
    graph.sequences.extend(copies);
    let absent: Vec<ValueId> = graph.absent.iter().filter_map(|id| values.get(id).copied()).collect();
    graph.absent.extend(absent);
}
