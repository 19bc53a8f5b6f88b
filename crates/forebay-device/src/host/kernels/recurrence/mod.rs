//! Recurrent networks over whole sequences: the forward and backward passes of LSTM, GRU and simple cells, in single precision.
//!
//! Sequences are independent of each other, and so are directions: they are divided among threads, each of which goes through all steps. If
//! there are fewer of them than threads, these share the units of a state instead, step by step.

mod activation;
mod cell;
mod forward;
mod gradient;
mod layout;
mod panels;
mod slopes;
#[cfg(test)]
mod tests;

use forebay_base::{Kernel, TensorDesc};
use layout::Sizes;

use super::parallel::Pointer;
use super::{View, unsupported};
use crate::device::DeviceError;

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`]; the workspace is as long as [`workspace_bytes`] says.
pub(super) unsafe fn run(
    kernel: &Kernel,
    reads: &[View],
    writes: &[View],
    workspace: Option<View>,
) -> Result<(), DeviceError> {
    let refuse = |reason: String| unsupported(kernel, reason);
    let workspace = workspace.ok_or_else(|| refuse("its workspace is missing".to_string()))?;
    let workspace = Pointer::<f32>::of(&workspace);
    // SAFETY: the caller's promises.
    let result = unsafe {
        match kernel {
            Kernel::Recurrent(recurrence) => forward::run(recurrence, reads, writes, workspace),
            Kernel::RecurrentGradient(recurrence) => gradient::run(recurrence, reads, writes, workspace),
            _ => Err("not a recurrent kernel".to_string()),
        }
    };
    result.map_err(refuse)
}

/// Temporary bytes that a kernel needs.
pub(super) fn workspace_bytes(kernel: &Kernel, reads: &[TensorDesc]) -> Result<u64, DeviceError> {
    let refuse = || unsupported(kernel, "its gates and weights do not match".to_string());
    let (recurrence, first) = match kernel {
        Kernel::RecurrentGradient(recurrence) => (recurrence, recurrence.cell.gradient_counts().0),
        Kernel::Recurrent(recurrence) => (recurrence, 0),
        _ => return Err(refuse()),
    };
    let (gates, weights) = (reads.get(first).ok_or_else(refuse)?, reads.get(first + 1).ok_or_else(refuse)?);
    let sizes = Sizes::of(recurrence, gates, weights).ok_or_else(refuse)?;
    let elements = match kernel {
        Kernel::Recurrent(_) => forward::workspace_elements(sizes),
        _ => gradient::workspace_elements(recurrence.cell, sizes),
    };
    Ok(4 * elements as u64)
}
