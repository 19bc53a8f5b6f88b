//! Kernels that reduce many elements to one, and softmax, which divides by such a sum.

mod axes;
pub(super) mod rows;
mod softmax;

use forebay_base::Kernel;
use forebay_base::kernel::{ReduceOp, sums_rows};

use super::View;
use super::element::for_type;
use crate::device::DeviceError;

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    let data_type = reads[0].desc.data_type();
    let y = &writes[0];
    // SAFETY: the caller's promises are those that the functions ask for, and the types are those of the views.
    let result = unsafe {
        match kernel {
            Kernel::Reduce { op, axes } if data_type.is_integer() => {
                for_type!(data_type, integers, T => axes::run_integers::<T>(*op, axes, &reads[0], y))
            }
            Kernel::Reduce { op: ReduceOp::Sum, axes } if sums_rows(axes, reads[0].desc) => {
                rows::run::<f32>(axes.len(), &reads[0], y)
            }
            Kernel::Reduce { op: ReduceOp::Sum, axes } if axes::are_positions(axes, &reads[0]) => {
                for_type!(data_type, floats, T => axes::channel_sums::<T>(&reads[0], y))
            }
            Kernel::Reduce { op, axes } => for_type!(data_type, floats, T => axes::run::<T>(*op, axes, &reads[0], y)),
            Kernel::Softmax { axis } => {
                for_type!(data_type, floats, T => softmax::forward::<T>(*axis, false, &reads[0], y))
            }
            Kernel::LogSoftmax { axis } => {
                for_type!(data_type, floats, T => softmax::forward::<T>(*axis, true, &reads[0], y))
            }
            Kernel::SoftmaxGradient { axis } => {
                for_type!(data_type, floats, T => softmax::gradient::<T>(*axis, false, &reads[0], &reads[1], y))
            }
            Kernel::LogSoftmaxGradient { axis } => {
                for_type!(data_type, floats, T => softmax::gradient::<T>(*axis, true, &reads[0], &reads[1], y))
            }
            _ => Err("not a reduction".into()),
        }
    };
    result.map_err(|reason| super::unsupported(kernel, reason))
}

#[cfg(test)]
mod tests;
