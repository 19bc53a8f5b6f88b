//! Sums over the rows of a table, one for each place in a row, by reduction blocks of rows.

use std::ops::Range;

use forebay_base::SumTree;
use forebay_base::kernel::reduction_block_rows;

use super::super::View;
use super::super::element::Float;
use super::super::parallel::{Pointer, for_chunks, require_packed, tree_sum, wide};
use super::super::partial_sums::check_sums;

/// Threads divide the places of rows that are at least this long, and the reduction blocks of shorter ones.
const LONG: usize = 64 * 1024;
/// Places of a long row that a task sums, so that few sums wait at a time.
const PLACES: usize = 2 * 1024;

/// The number of rows and their length if the first axes are summed.
fn table(x: &View, axes: usize) -> Result<(usize, usize), String> {
    require_packed(&[*x])?;
    let sizes = x.sizes();
    if axes >= sizes.len() {
        return Err(format!("{} has no positions after {axes} axes", x.desc));
    }
    Ok((sizes[..axes].iter().product(), sizes[axes..].iter().product()))
}

/// Calls `store(first place, sums)` for places that cover a row.
///
/// # Safety
/// As [`super::super::run`], and x must be of type `T`.
unsafe fn sums<T: Float>(axes: usize, x: &View, store: impl Fn(usize, &[f64]) + Sync) -> Result<(), String> {
    let (rows, length) = table(x, axes)?;
    let x = Pointer::<T>::of(x);
    let block_rows = reduction_block_rows(length as u64) as usize;
    let block_sums = |block: usize, places: &Range<usize>| {
        let mut sums = vec![0.0f64; places.len()];
        wide(
            #[inline(always)]
            || {
                for row in block * block_rows..rows.min((block + 1) * block_rows) {
                    // SAFETY: the places lie in x, which no one writes.
                    let row = unsafe { x.slice(row * length + places.start, places.len()) };
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
    let blocks = rows.div_ceil(block_rows);
    let tree = SumTree::flat(blocks as u64);
    if length < LONG {
        let sums = tree_sum(tree, |block| block_sums(block, &(0..length)), add);
        store(0, &sums.unwrap_or_else(|| vec![0.0; length]));
        return Ok(());
    }
    for_chunks(length, PLACES, |places| {
        let sums = tree.sum((0..blocks).map(|block| block_sums(block, &places)), add);
        store(places.start, &sums.unwrap_or_else(|| vec![0.0; places.len()]));
    });
    Ok(())
}

/// Stores, for each place, the sum and what is still to be added to it (single-precision devices keep what rounding lost).
///
/// # Safety
/// As [`super::super::run`], and x must be of type `T`.
pub(in super::super) unsafe fn store_sums<T: Float>(axes: usize, x: &View, target: &View) -> Result<(), String> {
    let (_, length) = table(x, axes)?;
    check_sums(target, 2 * length)?;
    let target = Pointer::<f64>::of(target);
    // SAFETY: the caller's promises; the target has two numbers for each place, and each is written once.
    unsafe {
        sums::<T>(axes, x, |first, sums| {
            target.slice_mut(first, sums.len()).copy_from_slice(sums);
            target.slice_mut(length + first, sums.len()).fill(0.0);
        })
    }
}

/// Computes y = the sum of x along its first axes from [`store_sums`].
///
/// # Safety
/// As [`super::super::run`], and y must be packed and of type `T`.
pub(in super::super) unsafe fn from_sums<T: Float>(sums: &View, y: &View) -> Result<(), String> {
    let length = y.count();
    check_sums(sums, 2 * length)?;
    let (sums, y) = (Pointer::<f64>::of(sums), Pointer::<T>::of(y));
    // SAFETY: the caller's promises; there are two sums for each place.
    let (y, own, rest) = unsafe { (y.slice_mut(0, length), sums.slice(0, length), sums.slice(length, length)) };
    for (y, (&sum, &rest)) in y.iter_mut().zip(own.iter().zip(rest)) {
        // Adding 0 would turn -0 into 0.
        *y = T::from_f64(if rest == 0.0 { sum } else { sum + rest });
    }
    Ok(())
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
    let y = Pointer::<T>::of(y);
    // SAFETY: the caller's promises; each place of y is written once.
    unsafe {
        sums::<T>(axes, x, |first, sums| {
            let y = y.slice_mut(first, sums.len());
            y.iter_mut().zip(sums).for_each(|(y, &sum)| *y = T::from_f64(sum));
        })
    }
}
