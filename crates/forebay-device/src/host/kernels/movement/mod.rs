//! Kernels: elements change their place, not their value. All but the gradients work for every data type.

mod copy;
mod gather;
mod pad;

use forebay_base::Kernel;

use super::View;
use crate::device::DeviceError;

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    // SAFETY: the caller's promises are those that the functions ask for.
    let result = unsafe {
        match kernel {
            Kernel::Copy => copy::copy(&reads[0], &writes[0]),
            Kernel::Slice { starts, steps } => copy::slice(starts, steps, &reads[0], &writes[0]),
            Kernel::SliceGradient { starts, steps } => copy::slice_gradient(starts, steps, &reads[0], &writes[0]),
            Kernel::Pad { begins, mode } => pad::run(begins, *mode, &reads[0], &writes[0]),
            Kernel::Gather { axis } => gather::forward(*axis, &reads[0], &reads[1], &writes[0]),
            Kernel::GatherGradient { axis } => gather::gradient(*axis, &reads[0], &reads[1], &writes[0]),
            _ => Err("not a movement kernel".into()),
        }
    };
    result.map_err(|reason| super::unsupported(kernel, reason))
}

#[cfg(test)]
mod tests;
