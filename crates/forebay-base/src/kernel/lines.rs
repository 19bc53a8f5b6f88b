//! Reduction blocks along axes: where the parts of a summing launch can begin so that they give the same bits as the whole.

use std::ops::Range;

use super::{
    PRODUCT_TERMS, ReductionBlock, reduction_block, reduction_block_of_channels, reduction_block_of_losses,
    reduction_block_rows, sums_rows,
};
use crate::{DataType, TensorDesc};

/// The leaves of a sum over a dimension ([`crate::sum_tree`]), in elements: each leaf and each index has a fixed number of them. Leaves are
/// counted from the first index; the last one may have fewer elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// Number of elements in a leaf.
    pub block: u64,
    /// Number of elements at an index.
    pub of_index: u64,
}

impl Leaves {
    /// The smallest number of indices that hold whole leaves.
    pub fn step(self) -> u64 {
        self.block / gcd(self.block, self.of_index).max(1)
    }

    /// The number of leaves that [`Leaves::step`] indices hold.
    pub fn of_step(self) -> u64 {
        self.of_index / gcd(self.block, self.of_index).max(1)
    }

    /// The leaves of a range of indices, out of `size`; `None` if the range does not begin and end between two leaves.
    pub fn of_range(self, range: &Range<u64>, size: u64) -> Option<Range<u64>> {
        let (start, end) = (range.start * self.of_index, range.end * self.of_index);
        let is_between = |element: u64| element.is_multiple_of(self.block);
        let fits = is_between(start) && (is_between(end) || range.end == size);
        fits.then(|| start / self.block..end.div_ceil(self.block))
    }
}

/// The leaves of a matrix product, along its terms.
pub(crate) const PRODUCT: Leaves = Leaves { block: PRODUCT_TERMS, of_index: 1 };

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

fn product(sizes: &[u64]) -> u64 {
    sizes.iter().product()
}

/// The number of rows of an image x\[n, c, rows, ..], and the number of positions in each.
fn rows_and_places(sizes: &[u64]) -> (u64, u64) {
    (sizes.get(2).copied().unwrap_or(1), product(sizes.get(3..).unwrap_or(&[])))
}

/// The leaves along images, or along the rows of an image.
fn of_block(block: ReductionBlock, axis: usize) -> Leaves {
    Leaves { block: if axis == 0 { block.images } else { block.rows }, of_index: 1 }
}

/// The leaves of sums per channel of x\[n, c, ..], along its images or rows.
pub(crate) fn of_channels(sizes: &[u64], axis: usize) -> Option<Leaves> {
    let (rows, places) = rows_and_places(sizes);
    matches!(axis, 0 | 2).then(|| of_block(reduction_block_of_channels(rows, places), axis))
}

/// The leaves of a weight gradient, along the images or rows of dy\[n, k, ..]. A reduction block never has more than one image.
pub(crate) fn of_weights(sizes: &[u64], axis: usize) -> Leaves {
    let (rows, places) = rows_and_places(sizes);
    of_block(ReductionBlock { images: 1, ..reduction_block(rows, places) }, axis)
}

/// The leaves of a sum of squares.
pub(crate) fn of_squares(sizes: &[u64], axis: usize) -> Leaves {
    let block = reduction_block_of_channels(product(sizes), 1).rows;
    Leaves { block, of_index: product(&sizes[axis + 1..]) }
}

/// The leaves of a loss over classes along an axis.
pub(crate) fn of_losses(sizes: &[u64], along: usize, axis: usize) -> Leaves {
    let inner = product(&sizes[along + 1..]);
    let (rows, places) = match (along, inner) {
        (0 | 1, _) => rows_and_places(sizes),
        (_, 1) => (1, product(&sizes[1..along])),
        _ => (product(&sizes[1..along]), inner),
    };
    of_block(reduction_block_of_losses(sizes[along], rows, places), axis)
}

/// The leaves of the sums over rows of x in the gradient of a layer normalization, whose rows are normalized from an axis on.
pub(crate) fn of_layers(sizes: &[u64], normalized: usize, axis: usize) -> Option<Leaves> {
    let rows = product(sizes.get(axis + 1..normalized)?);
    let length = product(sizes.get(normalized..)?);
    Some(Leaves { block: reduction_block_rows(length), of_index: rows })
}

/// The leaves of a sum over rows along the first axes.
pub(crate) fn of_rows(sizes: &[u64], axes: usize, axis: usize) -> Option<Leaves> {
    of_layers(sizes, axes, axis)
}

/// The leaves of a sum reduction along one of its axes; `None` if it cannot be cut along that axis.
pub(crate) fn of_reduction(axes: &[usize], x: &TensorDesc, axis: usize) -> Option<Leaves> {
    if sums_rows(axes, x) {
        return of_rows(x.sizes(), axes.len(), axis);
    }
    are_positions(axes, x).then(|| of_channels(x.sizes(), axis)).flatten()
}

/// Whether a reduction's axes are all except the second, which is that of the channels.
pub(crate) fn are_positions(axes: &[usize], x: &TensorDesc) -> bool {
    let rank = x.sizes().len();
    rank > 2 && x.data_type() == DataType::Float32 && axes.iter().copied().eq((0..rank).filter(|&axis| axis != 1))
}
