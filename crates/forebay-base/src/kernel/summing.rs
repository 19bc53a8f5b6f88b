//! Sums over positions in parts: the boundaries at which they can be cut, and the kernels that compute them.

use super::Activation;
#[cfg(doc)]
use super::{Kernel, ReduceOp};
use crate::{DataType, TensorDesc};

/// Positions in a reduction block of a sum, unless a single row has more; the second is for sums that cost almost nothing compared with
/// what they read.
const BLOCK_POSITIONS: u64 = 2048;
const CHANNEL_POSITIONS: u64 = 512;

/// The contents of one reduction block of a sum over positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReductionBlock {
    /// Whole images.
    pub images: u64,
    /// Rows of one image: all of them if a reduction block is one image or more.
    pub rows: u64,
}

/// The reduction blocks of a sum over images with `rows` rows of `row_positions` positions each. They do not depend on the number of images
/// or, if an image is more than one reduction block, on the number of rows. So parts of at least one reduction block have the same
/// boundaries as the whole.
pub fn reduction_block(rows: u64, row_positions: u64) -> ReductionBlock {
    reduction_block_of_positions(BLOCK_POSITIONS, rows, row_positions)
}

/// Rows in a reduction block of an image that has more than one block. A launch may see only a part of an image, with fewer rows.
pub fn reduction_block_rows_of_image(row_positions: u64) -> u64 {
    rows_of_image(BLOCK_POSITIONS, row_positions)
}

fn rows_of_image(most: u64, row_positions: u64) -> u64 {
    (most / row_positions.max(1)).max(1)
}

/// The reduction blocks of sums per channel and of squared errors: smaller, so that fewer images can be cut.
pub fn reduction_block_of_channels(rows: u64, row_positions: u64) -> ReductionBlock {
    reduction_block_of_positions(CHANNEL_POSITIONS, rows, row_positions)
}

fn reduction_block_of_positions(most: u64, rows: u64, row_positions: u64) -> ReductionBlock {
    let image_positions = rows.saturating_mul(row_positions).max(1);
    if image_positions <= most {
        ReductionBlock { images: power_of_two(most / image_positions), rows }
    } else {
        ReductionBlock { images: 1, rows: rows_of_image(most, row_positions) }
    }
}

/// Number of classes up to which a position of a loss counts as one.
const CLASSES_OF_A_POSITION: u64 = 512;

/// The reduction blocks of a loss over classes. With many classes a block has fewer positions, so that the amount it reads does not grow
/// with the number of classes.
pub fn reduction_block_of_losses(classes: u64, rows: u64, row_positions: u64) -> ReductionBlock {
    reduction_block(rows, row_positions.saturating_mul(classes.div_ceil(CLASSES_OF_A_POSITION)))
}

/// Elements in a reduction block of sums over rows, and the minimum number of its rows. The sums are as long as a row, and small compared
/// with the rows.
const BLOCK_ELEMENTS: u64 = 16 * 1024;
const BLOCK_ROWS_MIN: u64 = 32;

/// Rows in a reduction block of sums over rows of `length` elements, with one sum per position in a row.
pub fn reduction_block_rows(length: u64) -> u64 {
    power_of_two((BLOCK_ELEMENTS / length.max(1)).max(BLOCK_ROWS_MIN))
}

/// The largest power of two that is at most a number. Parts of a batch usually have a power of two of images or rows, so they begin where
/// reduction blocks do.
fn power_of_two(number: u64) -> u64 {
    1 << number.max(1).ilog2()
}

/// Minimum number of positions in a row for sums over rows to go row by row.
const ROW_PLACES_MIN: u64 = 32;

/// Whether a sum of x along some axes is a sum over rows: along the first axes of a packed `float32` tensor whose rows are long enough. If
/// so, every device computes it in reduction blocks of [`reduction_block_rows`].
pub fn sums_rows(axes: &[usize], x: &TensorDesc) -> bool {
    let length: u64 = x.sizes().get(axes.len()..).map_or(0, |places| places.iter().product());
    let are_first = !axes.is_empty() && axes.iter().copied().eq(0..axes.len());
    are_first && length >= ROW_PLACES_MIN && x.data_type() == DataType::Float32 && x.is_packed()
}

/// A kernel that sums over positions, split into its sums ([`Kernel::Sums`]) and the results computed from them ([`Kernel::FromSums`]).
/// Sums are float64 and form the rows of a table: \[rows, channels], or \[rows, 1] for a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Summing {
    /// `BatchNormalizationTraining`: reads x. The sums are the first of the summed elements, the sum and the sum of squares of the
    /// distances to it, and the number of elements ([`add_statistics`]). Gives mean\[c] and variance\[c]; `BatchNormalization` does the
    /// rest.
    BatchStatistics {
        /// The number of neighboring channels that share one mean and variance, which are computed from the sums of all of them.
        group_size: u64,
    },
    /// `BatchNormalizationGradient`: the sums are the slopes, their products with the distances to the mean, and the number of elements.
    /// Gives dscale\[c] and dbias\[c]; the gradient kernel itself does the rest.
    BatchGradient {
        /// Added to the variance.
        epsilon: f32,
        /// The activation that the forward kernel applied.
        activation: Activation,
    },
    /// `SoftmaxCrossEntropy`: the sums are the losses of the positions and the number of positions that are not ignored. Gives loss\[1].
    CrossEntropy {
        /// The class axis of logits.
        axis: usize,
        /// The label value that is ignored.
        ignore_index: Option<i64>,
    },
    /// `MeanSquaredError`: the sums are the squared differences and the number of elements. Elements are positions in memory order, each a
    /// row by itself. Gives loss\[1].
    SquaredError,
    /// `LayerNormalizationGradient`: reads dy, x, mean, inverse_deviation. The sums are, for each position in a row, the slopes times the
    /// normalized elements, and the slopes. Gives dscale\[row] and dbias\[row].
    LayerGradient {
        /// First normalized axis of x.
        axis: usize,
    },
    /// `Reduce` with [`ReduceOp::Sum`] along the first axes ([`sums_rows`]): reads x. The sums are, for each position in a row, the sum and
    /// the compensation still to be added to it. Gives y.
    Rows {
        /// Number of axes that are summed.
        axes: usize,
    },
    /// `Reduce` with [`ReduceOp::Sum`] along all axes except the second: reads x\[n, c, ..]. There is one sum per channel. Gives y\[c].
    Channels,
}

impl Summing {
    /// Number of rows in the table of sums.
    pub fn rows(self) -> u64 {
        match self {
            Summing::BatchStatistics { .. } => 4,
            Summing::BatchGradient { .. } => 3,
            Summing::CrossEntropy { .. }
            | Summing::SquaredError
            | Summing::LayerGradient { .. }
            | Summing::Rows { .. } => 2,
            Summing::Channels => 1,
        }
    }
}

/// Checks that channels divide into groups of equal size.
///
/// # Errors
/// If `channels` is not a multiple of `group_size`.
pub fn check_group_size(channels: u64, group_size: u64) -> Result<(), String> {
    match group_size > 0 && channels.is_multiple_of(group_size) {
        true => Ok(()),
        false => Err(format!("{channels} channels cannot be divided into groups of {group_size}")),
    }
}

/// Combines the sums of [`Summing::BatchStatistics`] of some elements with those of the elements after them: the distances of the later
/// ones are then measured from the first element of the earlier ones.
pub fn add_statistics(earlier: [f64; 4], later: [f64; 4]) -> [f64; 4] {
    let [origin, sum, squares, count] = earlier;
    let [later_origin, later_sum, later_squares, later_count] = later;
    let distance = later_origin - origin;
    let moved = later_sum + later_count * distance;
    let moved_squares = later_squares + distance * (later_sum + moved);
    [origin, sum + moved, squares + moved_squares, count + later_count]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts agree with the whole because a part of at least one reduction block of rows is cut into the same reduction blocks.
    #[test]
    fn parts_of_an_image_have_the_lines_of_the_whole() {
        for row_positions in [1, 3, 64, 700, 1024, 2048, 2049, 10_752] {
            for rows in [1, 2, 5, 31, 96, 3000] {
                let whole = reduction_block(rows, row_positions);
                for part in whole.rows..=rows {
                    let lines = reduction_block(part, row_positions);
                    assert!(
                        lines.rows == whole.rows || (lines.rows == part && part == rows),
                        "{rows} x {row_positions}"
                    );
                }
            }
        }
        assert_eq!(reduction_block(8, 8), ReductionBlock { images: 32, rows: 8 });
        assert_eq!(reduction_block(96, 10_752), ReductionBlock { images: 1, rows: 1 });
    }
}
