//! The context for lowering operators: the program under construction, and the locations of the graph's values in it.

mod concatenate;
mod slice;

use std::collections::BTreeMap;

use forebay_base::tensor::BASE_OFFSET_ALIGNMENT_BYTES;
use forebay_base::{Kernel, Tensor, TensorDesc};

use super::node_view::NodeView;
use crate::error::ModelError;
use crate::graph::{Graph, TensorType, ValueId};
use crate::program::{Buffer, BufferId, Operand, Program, ProgramLaunch, Role};

/// The location of a value that is computed inside a concatenation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceLocation {
    /// The concatenation's output.
    pub concatenation: ValueId,
    /// The offset of the piece in the output, in bytes.
    pub offset_bytes: u64,
}

/// The program under construction while nodes are lowered in order.
pub struct Lowering<'a> {
    /// The graph being lowered.
    pub(crate) graph: &'a Graph,
    /// The values that steps change, with the roles of their buffers.
    pub(crate) persistent: BTreeMap<ValueId, Role>,
    /// The values that are computed inside a concatenation.
    pub(crate) locations: BTreeMap<ValueId, PieceLocation>,
    /// The program so far.
    pub(crate) program: Program,
    /// For each value, its operand, once known.
    pub(crate) operands: Vec<Option<Operand>>,
}

impl Lowering<'_> {
    /// Returns the operand of a node's input `i`: packed, with a scalar as \[1].
    ///
    /// # Errors
    /// Fails if the input is omitted, has a zero dimension or more than 8 dimensions.
    pub fn input(&mut self, view: &NodeView, i: usize) -> Result<Operand, ModelError> {
        let value = view.input(i)?;
        self.read(value).map_err(|reason| view.error(reason))
    }

    /// Returns the operand of a node's output `i`: a new buffer, or its place in a concatenation.
    ///
    /// # Errors
    /// Fails if the output is omitted or its type cannot be on a device.
    pub fn output(&mut self, view: &NodeView, i: usize) -> Result<Operand, ModelError> {
        let value = view.node.outputs.get(i).copied().flatten();
        let value = value.ok_or_else(|| view.error(format!("output {i} is omitted")))?;
        self.write(value).map_err(|reason| view.error(reason))
    }

    /// Makes a node's output `i` a view: other sizes over the same packed bytes (reshape), or a contiguous part of them (`offset_bytes`
    /// from the start of `of`; check with [`Lowering::can_view`]). If the output belongs in a concatenation, it is copied there.
    ///
    /// # Errors
    /// Fails if the part does not fit or is misaligned, or if `of` is not packed.
    pub fn view(&mut self, view: &NodeView, i: usize, of: &Operand, offset_bytes: u64) -> Result<(), ModelError> {
        let value = view.node.outputs.get(i).copied().flatten();
        let value = value.ok_or_else(|| view.error(format!("output {i} is omitted")))?;
        let desc = self.describe(value).map_err(|reason| view.error(reason))?;
        let end = offset_bytes.checked_add(desc.total_size_bytes());
        let fits = end.is_some_and(|end| end <= of.desc.total_size_bytes());
        if !of.desc.is_packed() || !fits || !Self::can_view(offset_bytes) {
            return Err(view.error(format!("{desc} at byte {offset_bytes} is not a view of {}", of.desc)));
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

    /// Returns whether a part at this offset from the base of a packed operand is sufficiently aligned to be a view.
    pub fn can_view(offset_bytes: u64) -> bool {
        offset_bytes.is_multiple_of(BASE_OFFSET_ALIGNMENT_BYTES)
    }

    /// Returns a temporary buffer for this launch only: a packed tensor.
    ///
    /// # Errors
    /// Fails if the sizes cannot be on a device.
    pub fn temporary(&mut self, name: &str, ty: &TensorType) -> Result<Operand, ModelError> {
        let error = |reason| ModelError::Request { reason: format!("temporary '{name}': {reason}") };
        let desc = describe(ty).map_err(error)?;
        Ok(self.allocate(name, desc, Role::Temporary))
    }

    /// Returns a buffer with constant contents.
    ///
    /// # Errors
    /// Fails if the sizes cannot be on a device.
    pub fn constant(&mut self, name: &str, tensor: Tensor) -> Result<Operand, ModelError> {
        let error = |reason| ModelError::Request { reason: format!("constant '{name}': {reason}") };
        let desc = describe(&tensor.ty()).map_err(error)?;
        let operand = self.allocate(name, desc, Role::Constant);
        self.program.contents.insert(operand.buffer, tensor.into());
        Ok(operand)
    }

    /// Appends a launch of a kernel.
    pub fn launch(&mut self, view: &NodeView, kernel: Kernel, reads: Vec<Operand>, writes: Vec<Operand>) {
        self.emit(&view.node.label(self.graph), kernel, reads, writes);
    }

    pub(crate) fn emit(&mut self, name: &str, mut kernel: Kernel, mut reads: Vec<Operand>, writes: Vec<Operand>) {
        if let (Kernel::Slice { starts, steps }, [input], [output]) = (&mut kernel, reads.as_mut_slice(), &*writes) {
            slice::narrow(input, starts, steps, output.desc.sizes());
        }
        self.program.launches.push(ProgramLaunch::new(name, kernel, reads, writes));
    }

    pub(crate) fn allocate(&mut self, name: &str, desc: TensorDesc, role: Role) -> Operand {
        let buffer = BufferId(self.program.buffers.len() as u32);
        self.program.buffers.push(Buffer { name: name.to_string(), size_bytes: desc.total_size_bytes(), role });
        Operand { buffer, offset_bytes: 0, desc }
    }

    pub(crate) fn describe(&self, value: ValueId) -> Result<TensorDesc, String> {
        let name = &self.graph.value(value).name;
        let ty = self.graph.ty(value).ok_or_else(|| format!("the type of '{name}' is not known"))?;
        describe(ty).map_err(|reason| format!("'{name}' ({ty}) cannot be stored on a device: {reason}"))
    }

    /// Returns the operand of a value to read: it was computed before, or it is an initializer seen for the first time.
    pub(crate) fn read(&mut self, value: ValueId) -> Result<Operand, String> {
        if let Some(operand) = &self.operands[value.0 as usize] {
            return Ok(operand.clone());
        }
        let name = &self.graph.value(value).name;
        if self.place_of_nothing(value).is_some() {
            self.describe(value)?;
        }
        let Some(contents) = self.graph.initializers.get(&value) else {
            return Err(format!("'{name}' is used before it is computed"));
        };
        let role = self.persistent.get(&value).copied().unwrap_or(Role::Constant);
        let operand = self.allocate(name, self.describe(value)?, role);
        self.program.contents.insert(operand.buffer, contents.clone());
        self.operands[value.0 as usize] = Some(operand.clone());
        Ok(operand)
    }

    /// Returns the operand of a value to compute. A place in a concatenation is found by walking up to the outermost concatenation; not by
    /// recursion, since a chain of concatenations can be as long as the graph.
    pub(crate) fn write(&mut self, value: ValueId) -> Result<Operand, String> {
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
                let role = if self.graph.is_backward(outermost) { Role::Gradient } else { Role::Temporary };
                let operand = self.allocate(&self.graph.value(outermost).name, desc, role);
                self.operands[outermost.0 as usize] = Some(operand);
            }
        };
        let operand = Operand { buffer: base.buffer, offset_bytes: base.offset_bytes + offset_bytes, desc };
        self.operands[value.0 as usize] = Some(operand.clone());
        Ok(operand)
    }

    /// Returns the descriptor that represents a value without elements where a program needs an operand; `None` for all other values.
    pub(crate) fn place_of_nothing(&self, value: ValueId) -> Option<TensorDesc> {
        let ty = self.graph.ty(value).filter(|ty| ty.shape.contains(&0))?;
        TensorDesc::packed(ty.data_type, &[1]).ok()
    }

    /// Returns the sizes of a value; empty for a scalar.
    pub(crate) fn shape(&self, value: ValueId) -> Vec<u64> {
        self.graph.ty(value).map(|ty| ty.shape.clone()).unwrap_or_default()
    }
}

/// Returns the packed descriptor of a type; a scalar becomes [1].
fn describe(ty: &TensorType) -> Result<TensorDesc, String> {
    if ty.shape.contains(&0) {
        return Err(format!("{ty} has no elements"));
    }
    ty.packed().map_err(|error| error.to_string())
}

/// Broadcasts a packed operand to `sizes` with strides of 0 (NumPy's rules, aligned at the last dimension). An operand that already has
/// these sizes is returned unchanged.
///
/// # Errors
/// Fails if the sizes do not broadcast.
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
