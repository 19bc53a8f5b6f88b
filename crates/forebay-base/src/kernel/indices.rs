//! Kernels that look up entries by index.

use super::Kernel;

/// An operand that holds indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indices {
    /// Which operand that is read.
    pub read: usize,
    /// The axis along which they choose.
    pub axis: usize,
    /// Whether it is an axis of what is written first, and not of what is read first.
    pub of_write: bool,
}

impl Kernel {
    /// Where a kernel's indices are, and what they choose from; none for kernels without indices.
    pub fn indices(&self) -> Option<Indices> {
        match *self {
            Kernel::Gather { axis } => Some(Indices { read: 1, axis, of_write: false }),
            Kernel::GatherGradient { axis } => Some(Indices { read: 1, axis, of_write: true }),
            _ => None,
        }
    }
}
