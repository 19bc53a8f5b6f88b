//! Operators made ready once: typed, lowered to launches, their constants on the device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_model::graph::Dimension;
use forebay_model::program::{BufferId, Program, Role};
use forebay_model::{infer, lower, Graph, Node, Operation, Tensor as HostTensor, TensorType};

use super::context::Context;
use super::slice::Span;
use super::stream::Stream;
use super::timeline::QueueId;
use super::transfer;
use crate::error::RuntimeError;

/// Operators that are kept; beyond that, all are forgotten.
const CACHE_COUNT_MAX: usize = 1024;

/// An input of an operator, as far as compiling looks at it.
pub(super) enum Slot {
    /// A tensor of this type.
    Tensor(TensorType),
    /// Known contents.
    Constant(HostTensor),
    /// Left out.
    None,
}

/// A constant on the device.
pub(super) struct Constant {
    /// Its bytes.
    pub span: Span,
    /// The work that wrote them.
    pub written: (QueueId, u64),
}

/// An operator that is ready to be launched.
pub(super) struct Compiled {
    /// Its launches, on logical buffers. Inputs are ports in the order of the operator's tensors.
    pub program: Program,
    /// Types of its outputs.
    pub outputs: Vec<TensorType>,
    /// Constants that launches read.
    pub constants: BTreeMap<BufferId, Constant>,
    /// Workspace that its most demanding launch needs.
    pub workspace_bytes: u64,
}

/// Operators that are ready, by everything that they depend on.
#[derive(Default)]
pub(super) struct Cache {
    compiled: BTreeMap<Vec<u8>, Arc<Compiled>>,
}

impl Cache {
    pub fn get(&self, key: &[u8]) -> Option<Arc<Compiled>> {
        self.compiled.get(key).cloned()
    }

    /// Keeps an operator. What had to go for it is returned, to be dropped when no lock is held.
    pub fn insert(&mut self, key: Vec<u8>, compiled: Arc<Compiled>) -> Cache {
        let full = self.compiled.len() >= CACHE_COUNT_MAX;
        let forgotten = if full { std::mem::take(self) } else { Cache::default() };
        self.compiled.insert(key, compiled);
        forgotten
    }

    pub fn is_empty(&self) -> bool {
        self.compiled.is_empty()
    }
}

/// Makes an operator ready; its constants are uploaded on `stream`.
///
/// # Errors
/// An operator that is not known or refuses its inputs, a kernel that the device does not have, or no memory.
pub(super) fn compile(
    context: &Context,
    stream: &Stream,
    operation: Operation,
    slots: Vec<Slot>,
    output_count: usize,
) -> Result<Compiled, RuntimeError> {
    let mut graph = graph(operation, slots, output_count);
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
        let (span, position) = transfer::upload(context, stream, &array.bytes, size_bytes, "constants")?;
        constants.insert(buffer, Constant { span, written: (stream.queue(), position) });
    }
    Ok(constants)
}
