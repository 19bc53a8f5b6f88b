//! From graph to program: nodes become kernels, values become operands in buffers.
//!
//! Two things are decided here because only the graph knows them. Values that differ in shape alone share a buffer
//! (reshapes and contiguous parts are views), and the inputs of a concatenation are computed where the concatenation
//! wants them ([`placement`]), so that it costs nothing. Which buffers share memory over time is for planning to decide.

mod concatenate;
mod placement;
mod update;

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::tensor::BASE_OFFSET_ALIGNMENT_BYTES;
use forebay_base::{Kernel, TensorDesc};

use crate::error::ModelError;
use crate::graph::{Graph, Operation, TensorType, ValueId};
use crate::operator::NodeView;
use crate::program::{Buffer, BufferId, Operand, Port, Program, ProgramLaunch, Role};
use crate::tensor::Tensor;

use placement::PieceLocation;

/// The program that grows while nodes are lowered in order.
pub struct Lowering<'a> {
    graph: &'a Graph,
    /// Values that steps change, with the role of their buffers.
    persistent: BTreeMap<ValueId, Role>,
    /// Values that are computed inside a concatenation.
    locations: BTreeMap<ValueId, PieceLocation>,
    program: Program,
    operands: Vec<Option<Operand>>,
}

impl Lowering<'_> {
    /// The operand of a node's input `i`: packed, a scalar as [1].
    ///
    /// # Errors
    /// Where the input is left out, has a zero dimension or more than 8 dimensions.
    pub fn input(&mut self, view: &NodeView, i: usize) -> Result<Operand, ModelError> {
        let value = view.input(i)?;
        self.read(value).map_err(|reason| view.error(reason))
    }

    /// The operand of a node's output `i`: a new buffer, or the place in a concatenation where it belongs.
    ///
    /// # Errors
    /// Where the output is left out, or its type cannot live on a device.
    pub fn output(&mut self, view: &NodeView, i: usize) -> Result<Operand, ModelError> {
        let value = view.node.outputs.get(i).copied().flatten();
        let value = value.ok_or_else(|| view.error(format!("output {i} is left out")))?;
        self.write(value).map_err(|reason| view.error(reason))
    }

    /// Makes a node's output `i` a view: other sizes over the same packed bytes (reshape), or a contiguous part of them
    /// (`offset_bytes` from the start of `of`; ask [`Lowering::can_view`]). Where the output belongs into a concatenation,
    /// it is copied there.
    ///
    /// # Errors
    /// Where the part does not fit, is misaligned, or `of` is not packed.
    pub fn view(&mut self, view: &NodeView, i: usize, of: &Operand, offset_bytes: u64) -> Result<(), ModelError> {
        let value = view.node.outputs.get(i).copied().flatten();
        let value = value.ok_or_else(|| view.error(format!("output {i} is left out")))?;
        let desc = self.describe(value).map_err(|reason| view.error(reason))?;
        let end = offset_bytes.checked_add(desc.total_size_bytes());
        let fits = end.is_some_and(|end| end <= of.desc.total_size_bytes());
        if !of.desc.is_packed() || !fits || !Self::can_view(offset_bytes) {
            return Err(view.error(format!("{desc} at byte {offset_bytes} is no view of {}", of.desc)));
        }
        let part = Operand { buffer: of.buffer, offset_bytes: of.offset_bytes + offset_bytes, desc };
        if self.locations.contains_key(&value) {
            let output = self.output(view, i)?;
            self.launch(view, Kernel::Copy, vec![part], vec![output]);
        } else {
            self.operands[value.0 as usize] = Some(part);
        }
        Ok(())
    }

    /// Whether a part at this offset from a packed operand's base is aligned well enough to be a view.
    pub fn can_view(offset_bytes: u64) -> bool {
        offset_bytes % BASE_OFFSET_ALIGNMENT_BYTES == 0
    }

    /// A temporary buffer of this launch's own: a packed tensor.
    ///
    /// # Errors
    /// Where the sizes cannot live on a device.
    pub fn temporary(&mut self, name: &str, ty: &TensorType) -> Result<Operand, ModelError> {
        let error = |reason| ModelError::Request { reason: format!("temporary '{name}': {reason}") };
        let desc = describe(ty).map_err(error)?;
        Ok(self.allocate(name, desc, Role::Temporary))
    }

    /// A buffer with constant contents.
    ///
    /// # Errors
    /// Where the sizes cannot live on a device.
    pub fn constant(&mut self, name: &str, tensor: Tensor) -> Result<Operand, ModelError> {
        let error = |reason| ModelError::Request { reason: format!("constant '{name}': {reason}") };
        let desc = describe(&tensor.ty()).map_err(error)?;
        let operand = self.allocate(name, desc, Role::Constant);
        self.program.contents.insert(operand.buffer, tensor.into());
        Ok(operand)
    }

    /// Emits a kernel.
    pub fn launch(&mut self, view: &NodeView, kernel: Kernel, reads: Vec<Operand>, writes: Vec<Operand>) {
        self.emit(&view.node.label(self.graph), kernel, reads, writes);
    }

    fn emit(&mut self, name: &str, kernel: Kernel, reads: Vec<Operand>, writes: Vec<Operand>) {
        let name = name.to_string();
        self.program.launches.push(ProgramLaunch { name, kernel, reads, writes, workspace_bytes: 0 });
    }

    fn allocate(&mut self, name: &str, desc: TensorDesc, role: Role) -> Operand {
        let buffer = BufferId(self.program.buffers.len() as u32);
        self.program.buffers.push(Buffer { name: name.to_string(), size_bytes: desc.total_size_bytes(), role });
        Operand { buffer, offset_bytes: 0, desc }
    }

    fn describe(&self, value: ValueId) -> Result<TensorDesc, String> {
        let name = &self.graph.value(value).name;
        let ty = self.graph.ty(value).ok_or_else(|| format!("the type of '{name}' is not known"))?;
        describe(ty).map_err(|reason| format!("'{name}' ({ty}) cannot live on a device: {reason}"))
    }

    /// The operand of a value that is read: it was computed before, or it is an initializer that is met for the first time.
    fn read(&mut self, value: ValueId) -> Result<Operand, String> {
        if let Some(operand) = &self.operands[value.0 as usize] {
            return Ok(operand.clone());
        }
        let name = &self.graph.value(value).name;
        let Some(contents) = self.graph.initializers.get(&value) else {
            return Err(format!("'{name}' is used before it is computed"));
        };
        let role = self.persistent.get(&value).copied().unwrap_or(Role::Constant);
        let operand = self.allocate(name, self.describe(value)?, role);
        self.program.contents.insert(operand.buffer, contents.clone());
        self.operands[value.0 as usize] = Some(operand.clone());
        Ok(operand)
    }

    /// The operand of a value that is computed. A place in a concatenation is found by going up to the concatenation that
    /// lies in no other; not by recursion, since a chain of concatenations can be as long as the graph.
    fn write(&mut self, value: ValueId) -> Result<Operand, String> {
        if let Some(operand) = &self.operands[value.0 as usize] {
            return Ok(operand.clone());
        }
        let desc = self.describe(value)?;
        let (mut outermost, mut offset_bytes) = (value, 0);
        let base = loop {
            if let Some(operand) = &self.operands[outermost.0 as usize] {
                break operand;
            }
            if let Some(place) = self.locations.get(&outermost) {
                offset_bytes += place.offset_bytes;
                outermost = place.concatenation;
            } else {
                let desc = self.describe(outermost)?;
                let operand = self.allocate(&self.graph.value(outermost).name, desc, Role::Temporary);
                self.operands[outermost.0 as usize] = Some(operand);
            }
        };
        let operand = Operand { buffer: base.buffer, offset_bytes: base.offset_bytes + offset_bytes, desc };
        self.operands[value.0 as usize] = Some(operand.clone());
        Ok(operand)
    }

    fn node(&mut self, node: usize) -> Result<(), ModelError> {
        let view = NodeView { graph: self.graph, node: &self.graph.nodes[node] };
        match &view.node.operation {
            Operation::Kernel(kernel) => self.kernel(&view, kernel),
            Operation::Onnx { .. } => (view.row()?.lower)(&view, self),
        }
    }

    /// A node that is a kernel: its inputs are the reads, its outputs the writes. Operands that the kernel may broadcast
    /// are broadcast to the first output.
    fn kernel(&mut self, view: &NodeView, kernel: &Kernel) -> Result<(), ModelError> {
        let mut reads = Vec::with_capacity(view.node.inputs.len());
        for i in (0..view.node.inputs.len()).filter(|&i| view.has_input(i)) {
            reads.push(self.input(view, i)?);
        }
        let writes = (0..view.node.outputs.len()).map(|i| self.output(view, i)).collect::<Result<Vec<_>, _>>()?;
        let broadcasts = match kernel {
            Kernel::Unary(_) | Kernel::Binary { .. } | Kernel::Select => 0..reads.len(),
            Kernel::MatMul { .. } => 2..reads.len().max(2),
            _ => 0..0,
        };
        if let Some(write) = writes.first() {
            for read in &mut reads[broadcasts] {
                *read = broadcast(read, write.desc.sizes()).map_err(|error| view.error(error.to_string()))?;
            }
        }
        self.launch(view, kernel.clone(), reads, writes);
        Ok(())
    }

    /// What the caller feeds, whether or not any node uses it.
    fn inputs(&mut self) -> Result<(), ModelError> {
        for &value in &self.graph.inputs {
            let name = self.graph.value(value).name.clone();
            let error = |reason| ModelError::Request { reason: format!("input '{name}': {reason}") };
            let desc = self.describe(value).map_err(error)?;
            let operand = self.allocate(&name, desc, Role::Input);
            self.operands[value.0 as usize] = Some(operand.clone());
            self.program.inputs.push(Port { shape: self.shape(value), name, operand });
        }
        Ok(())
    }

    /// What the caller gets. Each output owns a whole temporary buffer; one that would share bytes with an input, an
    /// initializer, a concatenation or another output is copied.
    fn outputs(&mut self) -> Result<(), ModelError> {
        let mut taken = BTreeSet::new();
        for &value in &self.graph.outputs {
            let name = self.graph.value(value).name.clone();
            let error = |reason| ModelError::Request { reason: format!("output '{name}': {reason}") };
            let mut operand = self.read(value).map_err(error)?;
            let buffer = self.program.buffer(operand.buffer);
            let whole = operand.offset_bytes == 0 && operand.desc.total_size_bytes() == buffer.size_bytes;
            if buffer.role != Role::Temporary || !whole || !taken.insert(operand.buffer) {
                let copy = self.allocate(&name, operand.desc.clone(), Role::Temporary);
                self.emit(&name, Kernel::Copy, vec![operand], vec![copy.clone()]);
                taken.insert(copy.buffer);
                operand = copy;
            }
            self.program.outputs.push(Port { shape: self.shape(value), name, operand });
        }
        Ok(())
    }

    fn shape(&self, value: ValueId) -> Vec<u64> {
        self.graph.ty(value).map(|ty| ty.shape.clone()).unwrap_or_default()
    }
}

/// The packed descriptor of a type; a scalar becomes [1].
fn describe(ty: &TensorType) -> Result<TensorDesc, String> {
    if ty.shape.contains(&0) {
        return Err(format!("{ty} has no elements"));
    }
    ty.packed().map_err(|error| error.to_string())
}

/// Broadcasts a packed operand to `sizes` by strides of 0 (NumPy's rules, aligned at the last dimension). An operand that
/// has these sizes is returned as it is.
///
/// # Errors
/// Where the sizes do not broadcast.
pub fn broadcast(operand: &Operand, sizes: &[u64]) -> Result<Operand, ModelError> {
    let from = operand.desc.sizes();
    if from == sizes {
        return Ok(operand.clone());
    }
    let error =
        |reason: &str| ModelError::Request { reason: format!("{from:?} does not broadcast to {sizes:?}{reason}") };
    let added = sizes.len().checked_sub(from.len()).ok_or_else(|| error(""))?;
    let mut strides = vec![0; added];
    for ((&size, stride), &target) in from.iter().zip(operand.desc.effective_strides()).zip(&sizes[added..]) {
        match size {
            1 => strides.push(0),
            _ if size == target => strides.push(stride),
            _ => return Err(error("")),
        }
    }
    let desc = TensorDesc::strided(operand.desc.data_type(), sizes, &strides);
    let desc = desc.map_err(|reason| error(&format!(": {reason}")))?;
    Ok(Operand { desc, ..operand.clone() })
}

/// What lowering may decide. Only for graphs and people: nothing here depends on a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoweringOptions {
    /// Whether the pieces of a concatenation are computed where the concatenation wants them, so that it needs no kernel.
    pub concatenate_in_place: bool,
}

impl Default for LoweringOptions {
    fn default() -> LoweringOptions {
        LoweringOptions { concatenate_in_place: true }
    }
}

/// Lowers a graph whose values all have types, as [`lower_with`] does with the default options.
///
/// # Errors
/// As [`lower_with`].
pub fn lower(graph: &Graph, parameters: &BTreeSet<ValueId>) -> Result<Program, ModelError> {
    lower_with(graph, parameters, &LoweringOptions::default())
}

/// Lowers a graph whose values all have types.
///
/// Initializers that `graph.updates` names become parameters (where they are in `parameters`) or state, all others
/// constants. Launches stand in the order of the nodes; those that write parameters and state come last, from
/// [`Program::update_start`] on. All updates take effect together: each reads what the others' targets held before.
///
/// # Errors
/// An operator without a row, or that cannot be lowered; a value that cannot live on a device.
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
