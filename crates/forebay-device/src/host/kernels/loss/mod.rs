//! Kernels for losses, each of which is a mean over the batch, and for their gradients.

pub(super) mod cross_entropy;
pub(super) mod squared_error;

use forebay_base::Kernel;

use super::View;
use super::element::for_type;
use crate::device::DeviceError;

/// Runs one kernel of this family.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    let data_type = reads[0].desc.data_type();
    // SAFETY: the caller's promises are those that the functions require, and the types are those of the views.
    let result = unsafe {
        match *kernel {
            Kernel::SoftmaxCrossEntropy { axis, ignore_index } => for_type!(data_type, floats, T => {
                cross_entropy::forward::<T>(axis, ignore_index, &reads[0], &reads[1], &writes[0])
            }),
            Kernel::SoftmaxCrossEntropyGradient { axis, ignore_index } => for_type!(data_type, floats, T => {
                cross_entropy::gradient::<T>(axis, ignore_index, reads, &writes[0])
            }),
            Kernel::MeanSquaredError => for_type!(data_type, floats, T => {
                squared_error::forward::<T>(&reads[0], &reads[1], &writes[0])
            }),
            Kernel::MeanSquaredErrorGradient => for_type!(data_type, floats, T => {
                squared_error::gradient::<T>(reads, &writes[0])
            }),
            _ => Err("not a loss kernel".into()),
        }
    };
    result.map_err(|reason| super::unsupported(kernel, reason))
}

#[cfg(test)]
mod tests;
