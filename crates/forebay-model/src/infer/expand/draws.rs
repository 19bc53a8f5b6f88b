//! Random numbers in the bodies of loops.
//!
//! Nodes that draw random numbers differ by the values that they compute. All iterations of a loop that runs repeatedly have the same
//! nodes, so their random numbers also depend on the number of the iteration: as in training, on a step, which is one more input of the
//! node.
//!
//! In an unrolled loop, each iteration has nodes of its own, but those with a seed have the same one; these get the number of their
//! iteration as an attribute.

use std::sync::Arc;

use crate::graph::{Attribute, Graph, Node, Operation, Subgraph, ValueId};
use crate::operators::random::{ITERATION, inputs_of_draw};

/// In nested loops, the number of an iteration, or its step, is that of the outer loop times this factor, plus that of the inner loop.
const OUTER_FACTOR: i64 = 1_000_003;

/// Returns whether a node draws random numbers.
pub(crate) fn is_draw(node: &Node) -> bool {
    inputs_of_draw(&node.operation).is_some()
}

/// Returns whether nodes of a graph, or of graphs inside it, draw random numbers that do not depend on a step yet.
fn has_draws(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| match inputs_of_draw(&node.operation) {
        Some(count) => node.inputs.len() <= count,
        None => node.operation.graphs().any(has_draws),
    })
}

/// Returns the number that distinguishes the draws of a loop from those of other loops.
fn seed(of_loop: &Node) -> i64 {
    of_loop.outputs.iter().flatten().next().map_or(0, |output| i64::from(output.0) + 1)
}

/// Makes the random numbers that the body of a loop draws depend on the number of the iteration, which is the body's first input, and on
/// the loop.
pub(crate) fn number_draws(body: &mut Graph, of_loop: &Node) {
    if has_draws(body) {
        number_iterations(body, seed(of_loop), None);
    }
}

/// Does the same for a body with draws. The body of an inner loop has the step of the enclosing one as the value `outer`.
fn number_iterations(body: &mut Graph, seed: i64, outer: Option<ValueId>) {
    let Some(&iteration) = body.inputs.first() else { return };
    let mut added = Vec::new();
    let mut add = |body: &mut Graph, op_type: &str, attributes: &[(&str, Attribute)], inputs: &[ValueId]| {
        let output = body.add_value(op_type, None);
        added.push(Node {
            name: String::new(),
            operation: Operation::onnx(op_type, attributes),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(output)],
        });
        output
    };
    // A step is its number and a seed.
    let shape = add(body, "Constant", &[("value_ints", Attribute::Ints(vec![1]))], &[]);
    let seed = add(body, "Constant", &[("value_ints", Attribute::Ints(vec![seed]))], &[]);
    let iteration = add(body, "Reshape", &[], &[iteration, shape]);
    let mut step = add(body, "Concat", &[("axis", Attribute::Int(0))], &[iteration, seed]);
    if let Some(outer) = outer {
        let factor = add(body, "Constant", &[("value_int", Attribute::Int(OUTER_FACTOR))], &[]);
        let outer = add(body, "Mul", &[], &[outer, factor]);
        step = add(body, "Add", &[], &[outer, step]);
    }
    give_step(body, step);
    body.nodes.splice(..0, added);
}

/// Makes a step an input of all draws in a graph and in the graphs inside it.
fn give_step(graph: &mut Graph, step: ValueId) {
    for node in &mut graph.nodes {
        if let Some(count) = inputs_of_draw(&node.operation) {
            if node.inputs.len() <= count {
                node.inputs.resize(count, None);
                node.inputs.push(Some(step));
            }
            continue;
        }
        let seed = seed(node);
        let Operation::Onnx { domain, op_type, attributes, .. } = &mut node.operation else { continue };
        let is_loop = domain.is_empty() && op_type == "Loop";
        for attribute in attributes.values_mut() {
            let Attribute::Graph(inside) = attribute else { continue };
            if !has_draws(&inside.graph) {
                continue;
            }
            let mut numbered = Subgraph::clone(inside);
            // What the graph captures follows the node's own inputs, including those that are left out.
            let own = node.inputs.len().max(numbered.declared_inputs());
            node.inputs.resize(own, None);
            numbered.captured.push(own);
            node.inputs.push(Some(step));
            let captured = numbered.graph.add_value("step", None);
            numbered.graph.inputs.push(captured);
            match is_loop {
                true => number_iterations(&mut numbered.graph, seed, Some(captured)),
                false => give_step(&mut numbered.graph, captured),
            }
            *attribute = Attribute::Graph(Arc::new(numbered));
        }
    }
}

/// Gives nodes of an unrolled loop, and those of the graphs inside them, the number of their iteration.
pub(super) fn number_unrolled(nodes: &mut [Node], iteration: i64) {
    for node in nodes {
        let is_seeded = is_seeded(&node.operation);
        let Operation::Onnx { attributes, .. } = &mut node.operation else { continue };
        if is_seeded {
            let outer = match attributes.get(ITERATION) {
                Some(Attribute::Int(outer)) => *outer,
                _ => 0,
            };
            let number = outer.wrapping_mul(OUTER_FACTOR).wrapping_add(iteration);
            attributes.insert(ITERATION.to_string(), Attribute::Int(number));
        }
        for attribute in attributes.values_mut() {
            if let Attribute::Graph(inside) = attribute
                && has_seeds(&inside.graph)
            {
                number_unrolled(&mut Arc::make_mut(inside).graph.nodes, iteration);
            }
        }
    }
}

/// Returns whether an operation draws random numbers with a seed.
fn is_seeded(operation: &Operation) -> bool {
    let Operation::Onnx { attributes, .. } = operation else { return false };
    inputs_of_draw(operation).is_some() && attributes.contains_key("seed")
}

/// Returns whether nodes of a graph, or of graphs inside it, draw random numbers with a seed.
fn has_seeds(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| is_seeded(&node.operation) || node.operation.graphs().any(has_seeds))
}
