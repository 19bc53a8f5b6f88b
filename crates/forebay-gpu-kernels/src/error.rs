//! The error for kernels that cannot be lowered.

use std::fmt;

/// A kernel that a target cannot run with these operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The kernel's name.
    pub kernel: &'static str,
    /// Why it cannot run, and what would be possible.
    pub reason: String,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot run: {}", self.kernel, self.reason)
    }
}

impl std::error::Error for Unsupported {}
