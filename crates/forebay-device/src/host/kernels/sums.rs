//! Kernels: sums over positions in parts, and what becomes of them.
//!
//! The kernels that sum everything at once use the same functions, with nothing summed before: so parts agree with them bit
//! for bit.

use forebay_base::kernel::Summing;
use forebay_base::Kernel;

use super::element::{for_type, Float};
use super::loss::{cross_entropy, squared_error};
use super::normalization::{batch, layer};
use super::parallel::{require_packed, Pointer};
use super::partial_sums::{load_sums, store_sums};
use super::reduce::rows;
use super::{unsupported, View};
use crate::device::DeviceError;

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    // Sums are always float64; what is summed has the type.
    let data_type = match kernel {
        Kernel::FromSums { .. } => writes[0].desc.data_type(),
        _ => reads[0].desc.data_type(),
    };
    // SAFETY: the caller's promises, and the types are those of the views.
    let result = unsafe {
        match *kernel {
            Kernel::Sums { of, accumulate } => {
                for_type!(data_type, floats, T => add::<T>(of, accumulate, reads, &writes[0]))
            }
            Kernel::FromSums { of } => for_type!(data_type, floats, T => finish::<T>(of, reads, writes)),
            _ => Err("not a sum".into()),
        }
    };
    result.map_err(|reason| unsupported(kernel, reason))
}

/// # Safety
/// As [`super::run`], and what is summed must be of type `T`.
unsafe fn add<T: Float>(of: Summing, accumulate: bool, reads: &[View], sums: &View) -> Result<(), String> {
    let before = accumulate.then(|| &reads[reads.len() - 1]);
    let channels = || reads[0].sizes().get(1).copied().unwrap_or(1);
    // SAFETY: the caller's promises.
    unsafe {
        match of {
            Summing::BatchStatistics => {
                let before = before.map(|before| load_sums(before, channels())).transpose()?;
                store_sums(&batch::statistics_sums::<T>(&reads[0], before)?, sums)
            }
            Summing::BatchGradient { epsilon, activation } => {
                let before = before.map(|before| load_sums(before, channels())).transpose()?;
                store_sums(&batch::gradient_sums::<T>(epsilon, activation, reads, before)?, sums)
            }
            Summing::CrossEntropy { axis, ignore_index } => {
                let before = before.map(|before| load_sums(before, 1)).transpose()?.map(|sums| sums[0]);
                let [sum, count] = cross_entropy::sums::<T>(axis, ignore_index, &reads[0], &reads[1], before)?;
                store_sums(&[[sum, count]], sums)
            }
            Summing::SquaredError => {
                let before = before.map(|before| load_sums(before, 1)).transpose()?.map(|sums| sums[0]);
                store_sums(&[squared_error::sums::<T>(&reads[0], &reads[1], before)?], sums)
            }
            Summing::LayerGradient { axis, block_rows } => {
                let length = sums.count() / 2;
                let before = before.map(|before| load_sums(before, length)).transpose()?;
                store_sums(&layer::parameter_sums::<T>((axis, block_rows), reads, before)?, sums)
            }
            Summing::Rows { axes, block_rows } => {
                let length = sums.count() / 2;
                let before = before.map(|before| load_sums(before, length)).transpose()?;
                store_sums(&rows::sums::<T>((axes, block_rows), &reads[0], before)?, sums)
            }
            Summing::Channels => {
                let before = before.map(|before| load_sums(before, channels())).transpose()?;
                let before = before.unwrap_or_else(|| vec![[0.0]; channels()]);
                store_sums(&batch::channel_sums::<T>(&reads[0], &before)?, sums)
            }
        }
    }
}

/// # Safety
/// As [`super::run`], and the results must be of type `T`.
unsafe fn finish<T: Float>(of: Summing, reads: &[View], writes: &[View]) -> Result<(), String> {
    require_packed(writes)?;
    let count = writes[0].count();
    // SAFETY: the caller's promises; all results have one element per channel.
    unsafe {
        match of {
            Summing::BatchStatistics => {
                batch::statistics::<T>(&load_sums(&reads[0], count)?, &writes[0], &writes[1]);
            }
            Summing::BatchGradient { epsilon, .. } => {
                let sums = load_sums(&reads[0], count)?;
                batch::parameter_gradients::<T>(epsilon, &sums, &reads[1], &writes[0], &writes[1]);
            }
            Summing::LayerGradient { .. } => {
                layer::store_parameter_gradients::<T>(&load_sums(&reads[0], count)?, writes);
            }
            Summing::CrossEntropy { .. } | Summing::SquaredError => {
                let sums = load_sums::<2>(&reads[0], 1)?[0];
                *Pointer::<T>::of(&writes[0]).at(0) = cross_entropy::mean(sums);
            }
            Summing::Rows { .. } => {
                let y = Pointer::<T>::of(&writes[0]).slice_mut(0, count);
                y.iter_mut().zip(load_sums(&reads[0], count)?).for_each(|(y, sums)| *y = rows::total(sums));
            }
            Summing::Channels => {
                let y = Pointer::<T>::of(&writes[0]).slice_mut(0, count);
                y.iter_mut().zip(load_sums::<1>(&reads[0], count)?).for_each(|(y, [sum])| *y = T::from_f64(sum));
            }
        }
    }
    Ok(())
}
