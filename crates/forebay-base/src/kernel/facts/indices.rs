//! Kernels that look up entries by index.

use super::super::Kernel;
use super::OperandRef;
use crate::TensorDesc;

/// An operand that holds indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indices {
    /// The read that holds the indices.
    pub read: usize,
    /// The axis along which they select.
    pub axis: usize,
    /// The operand to which the axis belongs.
    pub data: OperandRef,
}

impl Kernel {
    /// The read that holds indices and the number of entries that they select from; `None` for kernels without indices, or if operands are
    /// missing.
    pub fn index_limit<'a>(&self, desc: impl Fn(OperandRef) -> Option<&'a TensorDesc>) -> Option<(usize, u64)> {
        let Indices { read, axis, data } = self.indices()?;
        Some((read, *desc(data)?.sizes().get(axis)?))
    }
}
