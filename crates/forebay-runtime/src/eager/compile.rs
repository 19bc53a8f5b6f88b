//! Prepares operators: infers their types, lowers them to launches, and uploads their constants.

use std::collections::{BTreeMap, BTreeSet};

use forebay_model::graph::Dimension;
use forebay_model::operator::NodeView;
use forebay_model::operators::signatures;
use forebay_model::program::{BufferId, Program, Role};
use forebay_model::{Graph, Node, Operation, infer, lower};

use super::compiled::{Compiled, Constant, Slot};
use super::context::Context;
use super::stream::Stream;
use super::transfer;
use crate::error::RuntimeError;

/// Prepares an operator; its constants are uploaded on `stream`.
///
/// # Errors
/// Fails if the operator is unknown or rejects its inputs, if the device does not have a kernel, or if memory runs out.
pub(super) fn compile(
    context: &Context,
    stream: &Stream,
    operation: Operation,
    slots: Vec<Slot>,
    output_count: usize,
) -> Result<Compiled, RuntimeError> {
    let mut graph = graph(operation, slots, output_count);
    signatures::check(&NodeView { graph: &graph, node: &graph.nodes[0] })?;
    infer::infer(&mut graph, None)?;
    let mut program = lower::lower(&graph, &BTreeSet::new())?;
    program
        .set_workspace(|launch, reads, writes| context.device().workspace_bytes(&launch.kernel, reads, writes))
        .map_err(|error| RuntimeError::Device { action: "while choosing a kernel", error })?;
    let outputs = graph.outputs.iter().filter_map(|&output| graph.ty(output).cloned()).collect();
    let workspace_bytes = program.launches.iter().map(|launch| launch.workspace_bytes).max().unwrap_or(0);
    let constants = upload_constants(context, stream, &program)?;
    Ok(Compiled { program, outputs, constants, workspace_bytes })
}

/// A graph of one node.
fn graph(operation: Operation, slots: Vec<Slot>, output_count: usize) -> Graph {
    let mut graph = Graph::default();
    let mut inputs = Vec::with_capacity(slots.len());
    for (i, slot) in slots.into_iter().enumerate() {
        let name = format!("input {i}");
        inputs.push(match slot {
            Slot::Tensor(ty) => {
                let dimensions = ty.shape.iter().map(|&size| Dimension::Known(size)).collect();
                let declared = Some((ty.data_type, dimensions));
                let value = graph.add_value(&name, Some(ty));
                graph.value_mut(value).declared = declared;
                graph.inputs.push(value);
                Some(value)
            }
            Slot::Constant(array) => {
                let value = graph.add_initializer(&name, array);
                graph.constants.insert(value);
                Some(value)
            }
            Slot::None => None,
        });
    }
    graph.outputs = (0..output_count).map(|i| graph.add_value(&format!("output {i}"), None)).collect();
    let outputs = graph.outputs.iter().copied().map(Some).collect();
    graph.nodes.push(Node { name: operation.name().to_string(), operation, inputs, outputs });
    graph
}

fn upload_constants(
    context: &Context,
    stream: &Stream,
    program: &Program,
) -> Result<BTreeMap<BufferId, Constant>, RuntimeError> {
    let mut constants = BTreeMap::new();
    for (&buffer, contents) in &program.contents {
        let reads = program.launches.iter().flat_map(|launch| &launch.reads);
        if program.buffer(buffer).role != Role::Constant || !reads.into_iter().any(|read| read.buffer == buffer) {
            continue;
        }
        let size_bytes = program.buffer(buffer).size_bytes;
        let array = contents.to_tensor().map_err(RuntimeError::Operation)?;
        let (span, position) = transfer::upload(context, stream, array.bytes(), size_bytes, "constants")?;
        constants.insert(buffer, Constant { span, written: (stream.queue(), position) });
    }
    Ok(constants)
}
