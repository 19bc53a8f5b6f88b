//! Selects the value that a loss takes: an output of the model, or a value inside it.

use std::collections::BTreeSet;

use super::TrainingOptions;
use crate::error::ModelError;
use crate::graph::{Graph, Node, Operation, ValueId};

/// Reduces a graph to the values that its losses take and their dependences. Returns the value that the first loss takes.
pub(super) fn choose(graph: &mut Graph, options: &TrainingOptions) -> Result<ValueId, ModelError> {
    let first = prediction(graph, options.loss_output.as_deref())?;
    let losses = [&options.loss].into_iter().chain(options.terms.iter().map(|term| &term.loss));
    let names = losses.filter_map(|loss| loss.other_output()).chain(options.terms.iter().map(|term| &*term.output));
    let others = names.map(|name| prediction(graph, Some(name))).collect::<Result<Vec<_>, _>>()?;
    let outputs: BTreeSet<ValueId> = [first].into_iter().chain(others).collect();
    graph.outputs = outputs.into_iter().collect();
    graph.drop_dead_nodes();
    Ok(first)
}

/// Returns the output or inner value with this name; without a name, the only output.
pub(super) fn prediction(graph: &Graph, name: Option<&str>) -> Result<ValueId, ModelError> {
    let value = named(graph, name)?;
    if graph.padding.rows.contains_key(&value) {
        let reason = format!(
            "the loss uses '{}', whose size is the number of elements that a NonZero selects; let the model write them back into a \
             tensor of known size, or compute their sum or mean",
            graph.value(value).name
        );
        return Err(ModelError::Request { reason });
    }
    Ok(value)
}

fn named(graph: &Graph, name: Option<&str>) -> Result<ValueId, ModelError> {
    let names = || graph.outputs.iter().map(|&id| format!("'{}'", graph.value(id).name)).collect::<Vec<_>>().join(", ");
    let request = |reason| Err(ModelError::Request { reason });
    match (name, graph.outputs.as_slice()) {
        (Some(name), outputs) => {
            match graph.find(name).filter(|&id| outputs.contains(&id) || graph.producer(id).is_some()) {
                Some(value) => Ok(value),
                None => request(format!(
                    "the loss uses '{name}', but no operator of the model computes a value with this name; the outputs are {}",
                    names()
                )),
            }
        }
        (None, &[output]) => Ok(output),
        (None, []) => request("the model has no outputs".to_string()),
        (None, _) => request(format!("choose the output for the loss with --loss-output: {}", names())),
    }
}

/// Returns the input of the sigmoid or softmax that produces an output, including a softmax written as exponentials over their sum.
pub fn logits_behind(graph: &Graph, output: ValueId) -> Option<ValueId> {
    let input = |node: &Node, index: usize| node.inputs.get(index).copied().flatten();
    let made_by = |id: ValueId, wanted: &str| graph.producer(id).filter(|node| kind(node) == wanted);
    if let Some(probabilities) = ["Softmax", "Sigmoid"].into_iter().find_map(|wanted| made_by(output, wanted)) {
        return input(probabilities, 0);
    }
    let exponential = made_by(input(made_by(output, "Div")?, 0)?, "Exp")?;
    let power = input(exponential, 0)?;
    // Subtracting the largest logit first changes only the range.
    match made_by(power, "Sub") {
        Some(difference) => input(difference, 0),
        None => Some(power),
    }
}

fn kind(node: &Node) -> &str {
    match &node.operation {
        Operation::Onnx { op_type, .. } => op_type,
        Operation::Kernel(_) => "",
    }
}
