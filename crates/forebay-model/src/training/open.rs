//! A model as part of a larger program that trains: its weights are passed to each run, as are the gradients of its outputs.

use forebay_base::DataType;

use super::mode;
use crate::autodiff::gradients;
use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, Padding, ValueId};
use crate::infer::infer_node;

/// The prefix that turns a value's name into the name of its gradient.
pub const GRADIENT_PREFIX: &str = "gradient:";
/// The prefix that turns a running statistic's name into the name of its next value.
pub const NEXT_PREFIX: &str = "next:";

/// Returns a graph in evaluation form, whose values all have types, with its weights as inputs. With `training`, batch normalization and
/// dropout behave as in training: the next running statistics are outputs named `next:NAME`, and random values are a function of the input
/// `forebay.step` (a number from 1, and a seed).
///
/// # Errors
/// Fails if an operator has no training form.
pub fn open_graph(graph: &Graph, training: bool) -> Result<Graph, ModelError> {
    let mut graph = graph.clone();
    graph.drop_dead_nodes();
    if training {
        let mut mode = mode::enter(&mut graph)?;
        graph.nodes.append(&mut mode.update_nodes);
        for update in mode.updates {
            let name = format!("{NEXT_PREFIX}{}", graph.value(update.state).name);
            append_output(&mut graph, &name, update.value);
        }
    }
    open_weights(&mut graph);
    graph.drop_dead_nodes();
    Ok(graph)
}

/// Returns the graph of the gradients of the same model. Its inputs are those of [`open_graph`] and, named `gradient:NAME`, the gradient of
/// each float32 output that anything depends on. Its outputs, named in the same way, are the gradients of each float32 input and weight.
/// Values of the forward pass that the gradients need are computed again.
///
/// # Errors
/// Fails if an operator on the path has no gradient, or if the outputs depend on no input and no weight.
pub fn open_gradients(graph: &Graph, training: bool) -> Result<Graph, ModelError> {
    let mut graph = graph.clone();
    graph.drop_dead_nodes();
    let statistics = graph.running_statistics();
    if training {
        mode::enter(&mut graph)?;
    }
    open_weights(&mut graph);
    let is_float = |graph: &Graph, id: ValueId| graph.ty(id).is_some_and(|ty| ty.data_type == DataType::Float32);
    let by: Vec<ValueId> =
        graph.inputs.iter().copied().filter(|&id| is_float(&graph, id) && !statistics.contains(&id)).collect();
    let is_result = |id: &ValueId| is_float(&graph, *id) && !graph.carried.values().any(|next| next == id);
    let outputs: Vec<ValueId> = graph.outputs.iter().copied().filter(is_result).collect();
    let mut sum: Option<ValueId> = None;
    for output in outputs {
        let name = format!("{GRADIENT_PREFIX}{}", graph.value(output).name);
        let Some(ty) = graph.ty(output).cloned() else { continue };
        let given = graph.add_input(&name, ty);
        let product = append(&mut graph, "Mul", &[output, given])?;
        let dot = append(&mut graph, "ReduceSum", &[product])?;
        sum = Some(match sum {
            Some(sum) => append(&mut graph, "Add", &[sum, dot])?,
            None => dot,
        });
    }
    let request = |reason: &str| ModelError::Request { reason: reason.to_string() };
    let Some(sum) = sum else { return Err(request("the model has no float32 output, so it has no gradients")) };
    let found = gradients(&mut graph, sum, &by)?;
    graph.outputs.clear();
    for (of, gradient) in by.into_iter().zip(found) {
        if let Some(gradient) = gradient {
            let name = format!("{GRADIENT_PREFIX}{}", graph.value(of).name);
            append_output(&mut graph, &name, gradient);
        }
    }
    if graph.outputs.is_empty() {
        return Err(request("no output depends differentiably on an input or a weight"));
    }
    // Gradients of selections leave out surplus rows already: they are computed from what was written for them.
    graph.padding = Padding::default();
    // The operands of the gradients.
    graph.constants.extend(graph.initializers.keys().copied());
    graph.drop_dead_nodes();
    Ok(graph)
}

/// Appends a node with one output; sums are scalars, not tensors of one element.
fn append(graph: &mut Graph, op_type: &str, inputs: &[ValueId]) -> Result<ValueId, ModelError> {
    let output = graph.add_value("value", None);
    let attributes: &[(&str, Attribute)] = match op_type {
        "ReduceSum" => &[("keepdims", Attribute::Int(0))],
        _ => &[],
    };
    graph.nodes.push(Node {
        name: op_type.to_string(),
        operation: Operation::onnx(op_type, attributes),
        inputs: inputs.iter().copied().map(Some).collect(),
        outputs: vec![Some(output)],
    });
    infer_node(graph, graph.nodes.len() - 1)?;
    Ok(output)
}

/// Makes a value an output with a name by which it can be requested.
pub(super) fn append_output(graph: &mut Graph, name: &str, value: ValueId) {
    let ty = graph.ty(value).cloned();
    let output = graph.add_value(name, ty);
    graph.nodes.push(Node {
        name: name.to_string(),
        operation: Operation::onnx("Identity", &[]),
        inputs: vec![Some(value)],
        outputs: vec![Some(output)],
    });
    graph.declare(output);
    graph.outputs.push(output);
}

/// Turns initializers that are not constants into inputs.
fn open_weights(graph: &mut Graph) {
    let weights: Vec<ValueId> = graph.initializers.keys().copied().filter(|id| !graph.constants.contains(id)).collect();
    for id in weights {
        graph.initializers.remove(&id);
        graph.declare(id);
        graph.inputs.push(id);
    }
}
