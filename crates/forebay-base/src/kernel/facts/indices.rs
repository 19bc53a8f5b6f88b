//! Kernels that look up entries by index.

use super::super::Kernel;
use super::OperandRef;
use crate::TensorDesc;

/// An operand that holds indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indices {
    /// Which operand that is read.
    pub read: usize,
    /// The axis along which they choose.
    pub axis: usize,
    /// Whose axis it is.
    pub data: OperandRef,
}

impl Kernel {
    /// Which operand that is read holds indices, and how many entries they choose from; none for kernels without indices, or where
    /// operands are missing.
    pub fn index_limit<'a>(&self, desc: impl Fn(OperandRef) -> Option<&'a TensorDesc>) -> Option<(usize, u64)> {
        let Indices { read, axis, data } = self.indices()?;
        Some((read, *desc(data)?.sizes().get(axis)?))
    }
}
