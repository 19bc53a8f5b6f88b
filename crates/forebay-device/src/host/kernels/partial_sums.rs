//! The memory layout of partial sums over positions: float64, sum by sum, each for all channels.

use forebay_base::DataType;

use super::View;
use super::parallel::{Pointer, require_packed};

/// Checks that a view holds this many sums.
///
/// # Errors
/// Returns an error if it does not.
pub(super) fn check_sums(view: &View, count: usize) -> Result<(), String> {
    require_packed(&[*view])?;
    if view.desc.data_type() != DataType::Float64 || view.count() != count {
        return Err(format!("{} does not contain {count} float64 sums", view.desc));
    }
    Ok(())
}

/// Reads the sums of each channel.
///
/// # Safety
/// The view must be live and unwritten.
pub(super) unsafe fn load_sums<const K: usize>(view: &View, channels: usize) -> Result<Vec<[f64; K]>, String> {
    check_sums(view, K * channels)?;
    // SAFETY: the view has these elements.
    let sums = unsafe { Pointer::<f64>::of(view).slice(0, K * channels) };
    Ok((0..channels).map(|channel| std::array::from_fn(|k| sums[k * channels + channel])).collect())
}

/// Writes the sums of each channel.
///
/// # Safety
/// The view must be live and belong to no one else.
pub(super) unsafe fn store_sums<const K: usize>(sums: &[[f64; K]], view: &View) -> Result<(), String> {
    check_sums(view, K * sums.len())?;
    // SAFETY: the view has these elements.
    let target = unsafe { Pointer::<f64>::of(view).slice_mut(0, K * sums.len()) };
    for (channel, values) in sums.iter().enumerate() {
        values.iter().enumerate().for_each(|(k, &value)| target[k * sums.len() + channel] = value);
    }
    Ok(())
}
