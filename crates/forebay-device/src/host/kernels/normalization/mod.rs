//! Kernels that normalize by the statistics of a batch, of a row, or of neighboring channels.

pub(super) mod batch;
pub(super) mod layer;
mod local;

use forebay_base::Kernel;

use super::block::map2;
use super::element::{Float, for_type};
use super::{View, unsupported};
use crate::device::DeviceError;

/// Runs one kernel of this family.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    let data_type = match kernel {
        Kernel::BatchNormalization { .. }
        | Kernel::BatchNormalizationTraining { .. }
        | Kernel::BatchNormalizationGradient { .. } => reads[0].desc.data_type().computed_in(),
        _ => reads[0].desc.data_type(),
    };
    // SAFETY: the caller's promises, and the types are those of the views.
    let result = unsafe { for_type!(data_type, floats, T => run_float::<T>(kernel, reads, writes)) };
    result.map_err(|reason| unsupported(kernel, reason))
}

/// # Safety
/// As for [`super::run`], and the views must be of type `T`.
unsafe fn run_float<T: Float>(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), String> {
    // SAFETY: the caller's promises.
    unsafe {
        match *kernel {
            Kernel::BatchNormalization { epsilon, activation } => {
                batch::inference::<T>(epsilon, activation, reads, &writes[0])
            }
            Kernel::BatchNormalizationTraining { epsilon, activation, group_size } => {
                batch::training::<T>(epsilon, activation, group_size, reads, writes)
            }
            Kernel::BatchNormalizationGradient { epsilon, activation, group_size } => {
                batch::gradient::<T>(epsilon, activation, group_size, reads, writes)
            }
            Kernel::RunningStatistics { momentum, correction } => {
                let (keep, take) = (momentum as f64, (1.0 - momentum as f64) * correction as f64);
                map2(&reads[0], &reads[1], &writes[0], move |running: T, batch: T| {
                    T::from_f64(keep * running.to_f64() + take * batch.to_f64())
                })
            }
            Kernel::LayerNormalization { axis, epsilon } => layer::forward::<T>(axis, epsilon, reads, writes),
            Kernel::LayerNormalizationGradient { axis } => layer::gradient::<T>(axis, reads, writes),
            Kernel::LocalResponseNormalization { size, alpha, beta, bias } => {
                local::Constants::<T>::new(size, alpha, beta, bias).forward(&reads[0], &writes[0])
            }
            Kernel::LocalResponseNormalizationGradient { size, alpha, beta, bias } => {
                local::Constants::<T>::new(size, alpha, beta, bias).gradient(&reads[0], &reads[1], &writes[0])
            }
            _ => Err("not a normalization".into()),
        }
    }
}

#[cfg(test)]
mod tests;
