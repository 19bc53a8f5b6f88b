//! Types of every value, and constant folding.
//!
//! Shapes in ONNX graphs are often computed by nodes (`Shape`, `Gather`, `Concat`, `Reshape`). Once the inputs' sizes are
//! numbers, all of that arithmetic is constant, so it is folded here and never reaches a device.

mod fold;

use std::collections::{BTreeMap, BTreeSet};

use crate::error::ModelError;
use crate::graph::{Dimension, Graph, Operation, TensorType, ValueId};
use crate::operator::NodeView;
use crate::operators::row;

/// Gives every value its type: declared sizes of the inputs become numbers, operators give the rest. Folds nodes whose
/// inputs are constant, and drops nodes that no output needs.
///
/// `batch_size` is the value of a symbolic or absent leading dimension of the inputs; the same symbol has the same value
/// everywhere. Floating initializers are not folded, because they may train (see [`Graph::constants`]).
///
/// # Errors
/// Operators without a row (all of them), a dimension without a number, inputs that an operator refuses, or a declared
/// output type that differs from the inferred one.
pub fn infer(graph: &mut Graph, batch_size: Option<u64>) -> Result<(), ModelError> {
    resolve_inputs(graph, batch_size)?;
    graph.drop_dead_nodes();
    refuse_unsupported(graph)?;
    let mut folded_bytes = 0;
    for node in 0..graph.nodes.len() {
        infer_and_fold(graph, node, &mut folded_bytes)?;
    }
    graph.drop_dead_nodes();
    check_outputs(graph)
}

/// Gives the outputs of one node their types; where it can be folded, its outputs become initializers and the node is
/// skipped by everything after.
///
/// # Errors
/// An operator without a row, or inputs that it refuses.
pub fn infer_node(graph: &mut Graph, node: usize) -> Result<(), ModelError> {
    infer_and_fold(graph, node, &mut 0)
}

fn infer_and_fold(graph: &mut Graph, node: usize, folded_bytes: &mut u64) -> Result<(), ModelError> {
    let view = NodeView { graph, node: &graph.nodes[node] };
    if matches!(view.node.operation, Operation::Kernel(_)) {
        return Ok(());
    }
    let row = row(&view)?;
    let types = (row.infer)(&view)?;
    if let Some(i) = (types.len()..view.node.outputs.len()).find(|&i| view.node.outputs[i].is_some()) {
        return Err(view.error(format!("output {i} is not supported (the operator has {} here)", types.len())));
    }
    let folded = fold::fold(&view, row, &types, *folded_bytes)?;
    let outputs = view.node.outputs.clone();
    for (i, (output, ty)) in outputs.into_iter().zip(types).enumerate() {
        let Some(output) = output else { continue };
        graph.value_mut(output).ty = Some(ty);
        if let Some(folded) = &folded {
            *folded_bytes += folded[i].size_bytes();
            graph.initializers.insert(output, folded[i].clone());
            graph.constants.insert(output);
        }
    }
    Ok(())
}

/// Turns the declared types of the inputs into numbers.
fn resolve_inputs(graph: &mut Graph, batch_size: Option<u64>) -> Result<(), ModelError> {
    let mut symbols = BTreeMap::new();
    if let Some(batch_size) = batch_size {
        symbols = batch_symbols(graph, batch_size)?;
    }
    for id in graph.inputs.clone() {
        let value = graph.value(id);
        let Some((data_type, dimensions)) = &value.declared else {
            let reason = format!("input '{}' declares no tensor type with a shape", value.name);
            return Err(ModelError::Malformed { reason });
        };
        let mut shape = Vec::with_capacity(dimensions.len());
        for (i, dimension) in dimensions.iter().enumerate() {
            let size = match dimension {
                Dimension::Known(size) => Some(*size),
                Dimension::Symbol(symbol) if symbol.is_empty() => batch_size.filter(|_| i == 0),
                Dimension::Symbol(symbol) => symbols.get(symbol).copied(),
            };
            shape.push(size.ok_or_else(|| unresolved(&value.name, i, dimension))?);
        }
        let ty = TensorType { data_type: *data_type, shape };
        graph.value_mut(id).ty = Some(ty);
    }
    Ok(())
}

/// The symbols that the batch size gives a value.
fn batch_symbols(graph: &Graph, batch_size: u64) -> Result<BTreeMap<String, u64>, ModelError> {
    if batch_size == 0 {
        return Err(ModelError::Request { reason: "the batch size must be at least 1".to_string() });
    }
    let leading = |id: &ValueId| graph.value(*id).declared.as_ref().and_then(|(_, dimensions)| dimensions.first());
    let mut symbols = BTreeMap::new();
    let mut fixed = Vec::new();
    for id in &graph.inputs {
        match leading(id) {
            Some(Dimension::Symbol(symbol)) => {
                symbols.insert(symbol.clone(), batch_size);
            }
            Some(Dimension::Known(size)) => fixed.push((&graph.value(*id).name, *size)),
            None => {}
        }
    }
    if symbols.is_empty() && !fixed.iter().any(|(_, size)| *size == batch_size) {
        let found: Vec<String> = fixed.iter().map(|(name, size)| format!("'{name}' has {size}")).collect();
        let reason = format!(
            "batch size {batch_size} does not fit the model, whose leading dimension is fixed ({}); leave the batch size \
             out, or export the model with a symbolic batch dimension",
            if found.is_empty() { "it has no input with a dimension".to_string() } else { found.join(", ") }
        );
        return Err(ModelError::Request { reason });
    }
    Ok(symbols)
}

fn unresolved(input: &str, i: usize, dimension: &Dimension) -> ModelError {
    let symbol = match dimension {
        Dimension::Symbol(symbol) if !symbol.is_empty() => format!(" ('{symbol}')"),
        _ => String::new(),
    };
    let way_out = if i == 0 { "give it with --batch-size" } else { "export the model with a fixed size there" };
    ModelError::Request { reason: format!("dimension {i}{symbol} of input '{input}' has no size: {way_out}") }
}

/// Names every operator without a row, so that the user sees all of them at once.
fn refuse_unsupported(graph: &Graph) -> Result<(), ModelError> {
    let mut seen = BTreeSet::new();
    let mut errors = Vec::new();
    for node in &graph.nodes {
        let Operation::Onnx { domain, op_type, .. } = &node.operation else { continue };
        if let Err(error) = row(&NodeView { graph, node }) {
            if seen.insert((domain, op_type)) {
                errors.push(error);
            }
        }
    }
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(ModelError::Several(errors)),
    }
}

/// Compares the declared types of the outputs with the inferred ones; symbolic sizes fit anything.
fn check_outputs(graph: &Graph) -> Result<(), ModelError> {
    for &id in &graph.outputs {
        let value = graph.value(id);
        let Some(ty) = &value.ty else {
            let reason = format!("output '{}' is computed by no node", value.name);
            return Err(ModelError::Malformed { reason });
        };
        let Some((data_type, dimensions)) = &value.declared else { continue };
        let fits = *data_type == ty.data_type
            && dimensions.len() == ty.shape.len()
            && dimensions.iter().zip(&ty.shape).all(|(dimension, size)| match dimension {
                Dimension::Known(declared) => declared == size,
                Dimension::Symbol(_) => true,
            });
        if !fits {
            let declared: Vec<String> = dimensions.iter().map(ToString::to_string).collect();
            let reason = format!(
                "output '{}' is declared {data_type}[{}], but its nodes compute {ty}",
                value.name,
                declared.join(", ")
            );
            return Err(ModelError::Malformed { reason });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
