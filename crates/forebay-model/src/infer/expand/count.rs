//! The number of iterations of a loop whose condition follows from constants, such as a counting loop.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::Tensor;

use super::super::fold::fold;
use super::condition::is_true;
use crate::graph::{Graph, Node, Subgraph, ValueId};
use crate::operator::NodeView;
use crate::operators::row;

/// The most elements of the values that conditions are computed from: counting loops need only a few.
const COUNT_MAX: u64 = 64;
/// The most iterations whose conditions are computed.
const ITERATIONS_MAX: i64 = 4096;

/// What the condition after an iteration is computed from.
struct Needed {
    /// The nodes of the body, in order.
    nodes: Vec<Node>,
    /// The indices of inputs of the body.
    inputs: BTreeSet<usize>,
}

/// Returns the number of iterations of a loop if each condition follows from constants, or `None` if one does not or there are too many.
pub(super) fn by_conditions(view: &NodeView, body: &Subgraph) -> Option<i64> {
    let (declared, inside) = (body.declared_inputs(), &body.graph);
    let needed = needed(inside, declared)?;
    let limit = match view.has_input(0) {
        true => super::condition::trip_count(view.constant(0).ok()??),
        false => i64::MAX,
    };
    if view.has_input(1) && !is_true(view.constant(1).ok()??) {
        return Some(0);
    }
    let mut known: BTreeMap<usize, Tensor> = BTreeMap::new();
    for &input in needed.inputs.iter().filter(|&&input| input > 0) {
        let tensor = match (input, input.checked_sub(declared)) {
            (1, _) => super::condition::truth(true),
            (_, Some(place)) => view.constant(*body.captured.get(place)?).ok()??.clone(),
            _ => view.constant(input).ok()??.clone(),
        };
        let is_small = tensor.shape().iter().product::<u64>() <= COUNT_MAX;
        is_small.then(|| known.insert(input, tensor))?;
    }
    let mut graph = inside.clone();
    graph.nodes = needed.nodes;
    for count in 0..limit.min(ITERATIONS_MAX) {
        known.insert(0, Tensor::from_i64(&[], &[count]));
        for &input in &needed.inputs {
            give(&mut graph, inside.inputs[input], known.get(&input)?.clone());
        }
        for i in 0..graph.nodes.len() {
            compute(&mut graph, i)?;
        }
        let output = |i: usize| graph.initializers.get(&inside.outputs[i])?.to_tensor().ok();
        if !is_true(&output(0)?) {
            return Some(count + 1);
        }
        for &input in needed.inputs.iter().filter(|&&input| (2..declared).contains(&input)) {
            known.insert(input, output(input - 1)?);
        }
    }
    (limit <= ITERATIONS_MAX).then_some(limit)
}

/// Returns what the condition is computed from, or `None` if a node on the path cannot be folded.
fn needed(inside: &Graph, declared: usize) -> Option<Needed> {
    let (mut inputs, mut nodes, mut seen) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut open = vec![*inside.outputs.first()?];
    while let Some(value) = open.pop() {
        if !seen.insert(value) || inside.is_constant(value) {
            continue;
        }
        if let Some(input) = inside.inputs.iter().position(|&input| input == value) {
            inputs.insert(input);
            if (2..declared).contains(&input) {
                // A value carried to the next iteration is the output one place before the input.
                open.push(*inside.outputs.get(input - 1)?);
            }
            continue;
        }
        let place = inside.nodes.iter().position(|node| node.outputs.contains(&Some(value)))?;
        let node = &inside.nodes[place];
        row(&NodeView { graph: inside, node }).ok()?.evaluate?;
        nodes.insert(place);
        open.extend(node.inputs.iter().flatten());
    }
    Some(Needed { nodes: nodes.into_iter().map(|place| inside.nodes[place].clone()).collect(), inputs })
}

/// Makes a value a constant.
fn give(graph: &mut Graph, value: ValueId, tensor: Tensor) {
    graph.value_mut(value).ty = Some(tensor.ty());
    graph.initializers.insert(value, tensor.into());
    graph.constants.insert(value);
}

/// Computes a node whose inputs are constants.
fn compute(graph: &mut Graph, node: usize) -> Option<()> {
    let view = NodeView { graph, node: &graph.nodes[node] };
    let row = row(&view).ok()?;
    let types = (row.infer)(&view).ok()?;
    let folded = fold(&view, row, &types, 0).ok()??;
    let outputs: Vec<Option<ValueId>> = view.node.outputs.clone();
    for (output, contents) in outputs.into_iter().zip(folded) {
        let Some(output) = output else { continue };
        give(graph, output, contents.to_tensor().ok()?);
    }
    Some(())
}
