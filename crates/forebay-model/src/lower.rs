//! From graph to program: nodes become kernels, values become operands in buffers.

use forebay_base::Kernel;

use crate::error::ModelError;
use crate::graph::{Graph, ValueId};
use crate::operator::NodeView;
use crate::program::{Operand, Program};

/// The program that grows while nodes are lowered in order.
pub struct Lowering<'a> {
    graph: &'a Graph,
    program: Program,
    operands: Vec<Option<Operand>>,
}

impl Lowering<'_> {
    /// The operand of a node's input `i`: packed, a scalar as [1].
    ///
    /// # Errors
    /// Where the input is left out, has a zero dimension or more than 8 dimensions.
    pub fn input(&mut self, view: &NodeView, i: usize) -> Result<Operand, ModelError> {
        let _ = (view, i);
        unimplemented!()
    }

    /// The operand of a node's output `i`: a new buffer, or the place in a concatenation where it belongs.
    ///
    /// # Errors
    /// Where the output's type cannot live on a device.
    pub fn output(&mut self, view: &NodeView, i: usize) -> Result<Operand, ModelError> {
        let _ = (view, i, &self.graph, &self.operands);
        unimplemented!()
    }

    /// Makes a node's output `i` a view: other sizes over the same packed bytes (reshape), or a contiguous part of them
    /// (`offset_bytes` from the start of `of`).
    ///
    /// # Errors
    /// Where the part does not fit.
    pub fn view(&mut self, view: &NodeView, i: usize, of: &Operand, offset_bytes: u64) -> Result<(), ModelError> {
        let _ = (view, i, of, offset_bytes);
        unimplemented!()
    }

    /// A temporary buffer of this launch's own: a packed tensor.
    ///
    /// # Errors
    /// Where the sizes cannot live on a device.
    pub fn temporary(&mut self, name: &str, ty: &crate::graph::TensorType) -> Result<Operand, ModelError> {
        let _ = (name, ty);
        unimplemented!()
    }

    /// Emits a kernel.
    pub fn launch(&mut self, view: &NodeView, kernel: Kernel, reads: Vec<Operand>, writes: Vec<Operand>) {
        let _ = (view, kernel, reads, writes, &self.program);
        unimplemented!()
    }
}

/// Broadcasts a packed operand to `sizes` by strides of 0 (NumPy's rules, aligned at the last dimension).
///
/// # Errors
/// Where the sizes do not broadcast.
pub fn broadcast(operand: &Operand, sizes: &[u64]) -> Result<Operand, ModelError> {
    let _ = (operand, sizes);
    unimplemented!()
}

/// Lowers a graph whose values all have types.
///
/// # Errors
/// An operator without a row, or that cannot be lowered.
pub fn lower(graph: &Graph) -> Result<Program, ModelError> {
    let _ = (graph, ValueId(0));
    unimplemented!()
}
