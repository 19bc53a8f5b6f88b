//! Sums over the rows of a table, one per place in a row, by chunks of rows from left to right.

use forebay_base::kernel::reduction_block_rows;

use super::super::element::Float;
use super::super::parallel::{map_chunks, require_packed, wide, Pointer};
use super::super::View;

/// Rows, and their length, where the first axes are summed.
fn table(x: &View, axes: usize) -> Result<(usize, usize), String> {
    require_packed(&[*x])?;
    let sizes = x.sizes();
    if axes >= sizes.len() {
        return Err(format!("{} has no places behind {axes} axes", x.desc));
    }
    Ok((sizes[..axes].iter().product(), sizes[axes..].iter().product()))
}

/// The sum of each place, and what is still to be added to it (devices in single precision keep what rounding took), added to
/// `before`. `block_rows` are those of the whole.
///
/// # Safety
/// As [`super::super::run`], and x must be of type `T`.
pub(in super::super) unsafe fn sums<T: Float>(
    (axes, block_rows): (usize, u64),
    x: &View,
    before: Option<Vec<[f64; 2]>>,
) -> Result<Vec<[f64; 2]>, String> {
    let (rows, length) = table(x, axes)?;
    let x = Pointer::<T>::of(x);
    let partials = map_chunks(rows, block_rows as usize, |range| {
        let mut sums = vec![0.0f64; length];
        wide(
            #[inline(always)]
            || {
                for row in range {
                    // SAFETY: the row lies in x, which no one writes.
                    let row = unsafe { x.slice(row * length, length) };
                    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.to_f64());
                }
            },
        );
        sums
    });
    let mut totals = before.unwrap_or_else(|| vec![[0.0; 2]; length]);
    for sums in &partials {
        totals.iter_mut().zip(sums).for_each(|(total, sum)| total[0] += sum);
    }
    Ok(totals)
}

/// What the sums of a place are together.
pub(in super::super) fn total<T: Float>([sum, rest]: [f64; 2]) -> T {
    T::from_f64(if rest == 0.0 { sum } else { sum + rest })
}

/// y = the sum of x along its first axes.
///
/// # Safety
/// As [`super::super::run`], and the views must be of type `T`.
pub(super) unsafe fn run<T: Float>(axes: usize, x: &View, y: &View) -> Result<(), String> {
    let (rows, length) = table(x, axes)?;
    require_packed(&[*y])?;
    if y.count() != length {
        return Err(format!("{} does not hold the sums of {} along {axes} axes", y.desc, x.desc));
    }
    // SAFETY: the caller's promises.
    unsafe {
        let sums = sums::<T>((axes, reduction_block_rows(rows as u64, length as u64)), x, None)?;
        let y = Pointer::<T>::of(y).slice_mut(0, length);
        y.iter_mut().zip(sums).for_each(|(y, sums)| *y = total(sums));
    }
    Ok(())
}
