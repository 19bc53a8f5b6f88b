//! Sums over the rows of a table, one for each place in a row, by reduction blocks of rows.

use forebay_base::SumTree;
use forebay_base::kernel::reduction_block_rows;

use super::super::View;
use super::super::element::Float;
use super::super::parallel::{Pointer, require_packed, tree_sum, wide};

/// The number of rows and their length if the first axes are summed.
fn table(x: &View, axes: usize) -> Result<(usize, usize), String> {
    require_packed(&[*x])?;
    let sizes = x.sizes();
    if axes >= sizes.len() {
        return Err(format!("{} has no positions after {axes} axes", x.desc));
    }
    Ok((sizes[..axes].iter().product(), sizes[axes..].iter().product()))
}

/// Returns, for each place, the sum and what is still to be added to it (single-precision devices keep what rounding lost).
///
/// # Safety
/// As [`super::super::run`], and x must be of type `T`.
pub(in super::super) unsafe fn sums<T: Float>(axes: usize, x: &View) -> Result<Vec<[f64; 2]>, String> {
    let (rows, length) = table(x, axes)?;
    let x = Pointer::<T>::of(x);
    let block_rows = reduction_block_rows(length as u64) as usize;
    let block_sums = |block: usize| {
        let mut sums = vec![0.0f64; length];
        wide(
            #[inline(always)]
            || {
                for row in block * block_rows..rows.min((block + 1) * block_rows) {
                    // SAFETY: the row lies in x, which no one writes.
                    let row = unsafe { x.slice(row * length, length) };
                    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.to_f64());
                }
            },
        );
        sums
    };
    let add = |mut earlier: Vec<f64>, later: Vec<f64>| {
        earlier.iter_mut().zip(later).for_each(|(earlier, later)| *earlier += later);
        earlier
    };
    let sums = tree_sum(SumTree::flat(rows.div_ceil(block_rows) as u64), block_sums, add);
    Ok(sums.unwrap_or_else(|| vec![0.0; length]).into_iter().map(|sum| [sum, 0.0]).collect())
}

/// The total of a place's sum and rest.
pub(in super::super) fn total<T: Float>([sum, rest]: [f64; 2]) -> T {
    T::from_f64(if rest == 0.0 { sum } else { sum + rest })
}

/// Computes y = the sum of x along its first axes.
///
/// # Safety
/// As [`super::super::run`], and the views must be of type `T`.
pub(super) unsafe fn run<T: Float>(axes: usize, x: &View, y: &View) -> Result<(), String> {
    let (_, length) = table(x, axes)?;
    require_packed(&[*y])?;
    if y.count() != length {
        return Err(format!("{} does not match the sums of {} along {axes} axes", y.desc, x.desc));
    }
    // SAFETY: the caller's promises.
    unsafe {
        let sums = sums::<T>(axes, x)?;
        let y = Pointer::<T>::of(y).slice_mut(0, length);
        y.iter_mut().zip(sums).for_each(|(y, sums)| *y = total(sums));
    }
    Ok(())
}
