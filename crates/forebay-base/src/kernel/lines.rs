//! ReductionBlock lines along axes: where the parts of a launch that sums may begin if they are to add up to the bits of the whole.

use super::{
    reduction_block, reduction_block_of_channels, reduction_block_of_losses, reduction_block_rows, sums_rows,
    ReductionBlock,
};
use crate::{DataType, TensorDesc};

fn product(sizes: &[u64]) -> u64 {
    sizes.iter().product()
}

/// The fewest rows that hold a multiple of what a reduction block holds, where each holds `of_row`.
pub(crate) fn whole(chunk: u64, of_row: u64) -> u64 {
    chunk / gcd(chunk, of_row).max(1)
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

/// Rows of an image x\[n, c, rows, ..], and what each holds.
fn rows_and_places(sizes: &[u64]) -> (u64, u64) {
    (sizes.get(2).copied().unwrap_or(1), product(sizes.get(3..).unwrap_or(&[])))
}

fn of_chunk(chunk: ReductionBlock, axis: usize) -> u64 {
    if axis == 0 {
        chunk.images
    } else {
        chunk.rows
    }
}

/// Of sums of channels of x\[n, c, ..], along its images or rows.
pub(crate) fn of_channels(sizes: &[u64], axis: usize) -> Option<u64> {
    let (rows, places) = rows_and_places(sizes);
    matches!(axis, 0 | 2).then(|| of_chunk(reduction_block_of_channels(rows, places), axis))
}

/// Of a weight gradient, along the rows of dy\[n, k, ..]. A reduction block never has more than one image.
pub(crate) fn of_weights(sizes: &[u64]) -> u64 {
    let (rows, places) = rows_and_places(sizes);
    reduction_block(rows, places).rows
}

/// Of a sum of squares.
pub(crate) fn of_squares(sizes: &[u64], axis: usize) -> u64 {
    whole(reduction_block_of_channels(product(sizes), 1).rows, product(&sizes[axis + 1..]))
}

/// Of a loss over classes along an axis.
pub(crate) fn of_losses(sizes: &[u64], along: usize, axis: usize) -> u64 {
    let inner = product(&sizes[along + 1..]);
    let (rows, places) = match (along, inner) {
        (0 | 1, _) => rows_and_places(sizes),
        (_, 1) => (1, product(&sizes[1..along])),
        _ => (product(&sizes[1..along]), inner),
    };
    of_chunk(reduction_block_of_losses(sizes[along], rows, places), axis)
}

/// Of the sums that a layer normalisation's gradient makes over the rows of x, which are normalised from an axis on.
pub(crate) fn of_layers(sizes: &[u64], normalised: usize, axis: usize) -> Option<u64> {
    let rows = product(sizes.get(axis + 1..normalised)?);
    let length = product(sizes.get(normalised..)?);
    Some(whole(reduction_block_rows(product(&sizes[..normalised]), length), rows))
}

/// Of a reduction to sums, along one of its axes; none where it is cut along none.
pub(crate) fn of_reduction(axes: &[usize], x: &TensorDesc, axis: usize) -> Option<u64> {
    let sizes = x.sizes();
    if sums_rows(axes, x) {
        let [all, length] = [&sizes[..axes.len()], &sizes[axes.len()..]].map(product);
        return Some(whole(reduction_block_rows(all, length), product(&sizes[axis + 1..axes.len()])));
    }
    are_positions(axes, x).then(|| of_channels(sizes, axis)).flatten()
}

/// Whether a reduction's axes are all but the second, that of channels.
pub(crate) fn are_positions(axes: &[usize], x: &TensorDesc) -> bool {
    let rank = x.sizes().len();
    rank > 2 && x.data_type() == DataType::Float32 && axes.iter().copied().eq((0..rank).filter(|&axis| axis != 1))
}
