//! Kernels that move elements without changing their values. All but the gradients support every data type.

mod copy;
mod gather;
mod pad;
mod scatter;

use forebay_base::Kernel;
use forebay_base::kernel::facts::OperandRef;

use super::View;
use crate::device::DeviceError;

/// Runs one kernel of this family.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    // SAFETY: the caller's promises are those that the functions require.
    let result = unsafe {
        match kernel {
            Kernel::Copy => copy::copy(&reads[0], &writes[0]),
            Kernel::Slice { starts, steps } => copy::slice(starts, steps, &reads[0], &writes[0]),
            Kernel::SliceGradient { starts, steps } => copy::slice_gradient(starts, steps, &reads[0], &writes[0]),
            Kernel::Pad { begins, mode } => pad::run(begins, *mode, &reads[0], &writes[0]),
            Kernel::Gather { axis } => gather::forward(*axis, &reads[0], &reads[1], &writes[0]),
            Kernel::GatherGradient { axis } => gather::gradient(*axis, &reads[0], &reads[1], &writes[0]),
            Kernel::Scatter { op } => scatter::run(*op, &reads[0], &reads[1], &reads[2], &writes[0]),
            _ => Err("not a movement kernel".into()),
        }
    };
    result.map_err(|reason| super::unsupported(kernel, reason))
}

/// Returns the first index of a launch that is out of range: its position among the indices, the index, and the number of entries.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn index_fault(
    kernel: &Kernel,
    reads: &[View],
    writes: &[View],
) -> Result<Option<(usize, i64, u64)>, DeviceError> {
    let desc = |operand| match operand {
        OperandRef::Read(index) => reads.get(index).map(|view| view.desc),
        OperandRef::Write(index) => writes.get(index).map(|view| view.desc),
    };
    let Some((read, limit)) = kernel.index_limit(desc) else { return Ok(None) };
    // SAFETY: the caller's promises.
    let outside = unsafe { gather::first_outside(&reads[read], limit) };
    let outside = outside.map_err(|reason| super::unsupported(kernel, reason))?;
    Ok(outside.map(|(element, index)| (element, index, limit)))
}

#[cfg(test)]
mod tests;
