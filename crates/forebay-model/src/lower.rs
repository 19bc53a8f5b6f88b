//! From graph to program: nodes become kernels, values become operands in buffers.
//!
//! Two things are decided here because they depend on information that only the graph has. Values that differ only in shape share a buffer
//! (reshapes and contiguous parts are views), and the inputs of a concatenation are computed directly in its output (`placement`), so that
//! it costs nothing. Planning decides which buffers share memory over time.

mod placement;
mod update;

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{Kernel, TensorDesc};

use crate::context::lowering::broadcast;
use crate::context::{Lowering, NodeView};
use crate::error::ModelError;
use crate::graph::{Graph, Operation, ValueId};
use crate::operators::decomposition::check_types;
use crate::operators::row;
use crate::program::{NamedOperand, Program, Role};

impl Lowering<'_> {
    fn node(&mut self, node: usize) -> Result<(), ModelError> {
        let view = NodeView { graph: self.graph, node: &self.graph.nodes[node] };
        match &view.node.operation {
            Operation::Kernel(kernel) => self.kernel(&view, kernel),
            Operation::Onnx { .. } => (row(&view)?.lower)(&view, self),
        }
    }

    /// Lowers a node that is a kernel: its inputs become the reads, its outputs the writes. Operands that the kernel can broadcast are
    /// broadcast to the first output.
    fn kernel(&mut self, view: &NodeView, kernel: &Kernel) -> Result<(), ModelError> {
        let mut reads = Vec::with_capacity(view.node.inputs.len());
        for i in (0..view.node.inputs.len()).filter(|&i| view.has_input(i)) {
            reads.push(self.input(view, i)?);
        }
        let mut writes = (0..view.node.outputs.len()).map(|i| self.output(view, i)).collect::<Result<Vec<_>, _>>()?;
        let broadcasts = kernel.facts().broadcast_from.unwrap_or(reads.len());
        if let Some(write) = writes.first() {
            for read in reads.iter_mut().skip(broadcasts) {
                *read = broadcast(read, write.desc.sizes()).map_err(|error| view.error(error.to_string()))?;
            }
        }
        check_types(view, kernel, &reads, &writes)?;
        if kernel.facts().is_in_blocks() {
            // Blocks of elements can span several rows of a tensor.
            for operand in reads.iter_mut().chain(&mut writes) {
                let desc = TensorDesc::packed(operand.desc.data_type(), &[operand.desc.element_count()]);
                operand.desc = desc.map_err(|error| view.error(error.to_string()))?;
            }
        }
        self.launch(view, kernel.clone(), reads, writes);
        Ok(())
    }

    /// Adds the inputs that the caller feeds, whether or not any node uses them. An input without elements gets space for one element,
    /// which nothing reads.
    fn inputs(&mut self) -> Result<(), ModelError> {
        for &value in &self.graph.inputs {
            let name = self.graph.value(value).name.clone();
            let error = |reason| ModelError::Request { reason: format!("input '{name}': {reason}") };
            let empty = self.place_of_nothing(value);
            let is_empty = empty.is_some();
            let desc = empty.map_or_else(|| self.describe(value), Ok).map_err(error)?;
            let operand = self.allocate(&name, desc, Role::Input);
            self.operands[value.0 as usize] = Some(operand.clone()).filter(|_| !is_empty);
            self.program.inputs.push(NamedOperand { shape: self.shape(value), name, operand });
        }
        Ok(())
    }

    /// Adds the outputs that the caller receives. Each output owns a whole temporary buffer; one that would share bytes with an input, an
    /// initializer, a concatenation or another output is copied. An output without elements gets space for one element, which nothing
    /// reads.
    fn outputs(&mut self) -> Result<(), ModelError> {
        let mut taken = BTreeSet::new();
        for &value in &self.graph.outputs {
            let name = self.graph.value(value).name.clone();
            let error = |reason| ModelError::Request { reason: format!("output '{name}': {reason}") };
            if let Some(desc) = self.place_of_nothing(value) {
                let operand = self.allocate(&name, desc, Role::Temporary);
                self.emit(&name, Kernel::Fill { value: 0.0 }, Vec::new(), vec![operand.clone()]);
                self.program.outputs.push(NamedOperand { shape: self.shape(value), name, operand });
                continue;
            }
            let mut operand = self.read(value).map_err(error)?;
            let buffer = self.program.buffer(operand.buffer);
            let whole = operand.offset_bytes == 0 && operand.desc.total_size_bytes() == buffer.size_bytes;
            if !buffer.role.is_temporary() || !whole || !taken.insert(operand.buffer) {
                let copy = self.allocate(&name, operand.desc.clone(), Role::Temporary);
                self.emit(&name, Kernel::Copy, vec![operand], vec![copy.clone()]);
                taken.insert(copy.buffer);
                operand = copy;
            }
            self.program.outputs.push(NamedOperand { shape: self.shape(value), name, operand });
        }
        Ok(())
    }
}

/// Options of lowering. None of them depends on a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoweringOptions {
    /// Whether the inputs of a concatenation are computed directly in its output, so that it needs no kernel.
    pub concatenate_in_place: bool,
}

impl Default for LoweringOptions {
    fn default() -> LoweringOptions {
        LoweringOptions { concatenate_in_place: true }
    }
}

/// Lowers a graph whose values all have types, with the default options of [`lower_with`].
///
/// # Errors
/// As [`lower_with`].
pub fn lower(graph: &Graph, parameters: &BTreeSet<ValueId>) -> Result<Program, ModelError> {
    lower_with(graph, parameters, &LoweringOptions::default())
}

/// Lowers a graph whose values all have types.
///
/// Initializers named by `graph.updates` become parameters (if they are in `parameters`) or state; all others become constants. Launches
/// are in the order of the nodes, except that those that write parameters and state come last, from [`Program::update_start`] on. All
/// updates take effect together: each reads the values that the others' targets had before.
///
/// # Errors
/// Fails if an operator has no row or cannot be lowered, if the types of operands do not fit each other, or if a value cannot be stored on
/// a device.
pub fn lower_with(
    graph: &Graph,
    parameters: &BTreeSet<ValueId>,
    options: &LoweringOptions,
) -> Result<Program, ModelError> {
    let role = |state| if parameters.contains(&state) { Role::Parameter } else { Role::State };
    let mut lowering = Lowering {
        graph,
        persistent: graph.updates.iter().map(|update| (update.state, role(update.state))).collect(),
        locations: if options.concatenate_in_place { placement::place(graph) } else { BTreeMap::new() },
        program: Program::default(),
        operands: vec![None; graph.values.len()],
    };
    lowering.inputs()?;
    let in_place = update::in_place_nodes(graph);
    for node in (0..graph.nodes.len()).filter(|node| !in_place.contains_key(node)) {
        if !graph.is_folded(&graph.nodes[node]) {
            lowering.node(node)?;
        }
    }
    lowering.outputs()?;
    lowering.updates(&in_place)?;
    Ok(lowering.program)
}

#[cfg(test)]
mod tests;
