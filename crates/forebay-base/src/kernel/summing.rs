//! Sums over positions in parts: the lines on which they may be cut, and the kernels that do it.

use super::Activation;
#[cfg(doc)]
use super::{Kernel, ReduceOp};
use crate::{DataType, TensorDesc};

/// Positions of a reduction block of a sum, unless one row has more; and where a sum costs next to nothing next to what it reads.
const BLOCK_POSITIONS: u64 = 2048;
const CHANNEL_POSITIONS: u64 = 512;

/// What one reduction block of a sum over positions holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReductionBlock {
    /// Whole images.
    pub images: u64,
    /// Rows of one image: all of them where a reduction block is one image or more.
    pub rows: u64,
}

/// The reduction blocks of a sum over images with `rows` rows of `row_positions` positions each. Neither the number of images nor,
/// where an image is more than one reduction block, the number of rows changes them; so parts of at least one reduction block have the lines of
/// the whole.
pub fn reduction_block(rows: u64, row_positions: u64) -> ReductionBlock {
    reduction_block_of_positions(BLOCK_POSITIONS, rows, row_positions)
}

/// Rows of a reduction block of an image that has more than one. A part of an image may be all that a launch sees, and have fewer.
pub fn reduction_block_rows_of_image(row_positions: u64) -> u64 {
    rows_of_image(BLOCK_POSITIONS, row_positions)
}

fn rows_of_image(most: u64, row_positions: u64) -> u64 {
    (most / row_positions.max(1)).max(1)
}

/// The reduction blocks of sums of channels and of squared errors: smaller, so that fewer images can be cut.
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

/// Classes with which a position of a loss counts as one.
const CLASSES_OF_A_POSITION: u64 = 512;

/// The reduction blocks of a loss over classes: with many classes they have fewer positions, so that what a reduction block reads does not grow with
/// their number.
pub fn reduction_block_of_losses(classes: u64, rows: u64, row_positions: u64) -> ReductionBlock {
    reduction_block(rows, row_positions.saturating_mul(classes.div_ceil(CLASSES_OF_A_POSITION)))
}

/// Elements of rows in a reduction block of sums over rows, and rows of a reduction block at least: its sums are as long as a row, and small next to
/// the rows.
const BLOCK_ELEMENTS: u64 = 16 * 1024;
const BLOCK_ROWS_MIN: u64 = 32;

/// Rows of a reduction block of sums over rows of `length` elements, one sum per position in a row.
pub fn reduction_block_rows(length: u64) -> u64 {
    power_of_two((BLOCK_ELEMENTS / length.max(1)).max(BLOCK_ROWS_MIN))
}

/// The largest power of two up to a number. Parts of a batch mostly have a power of two of images or rows: so they begin where reduction blocks
/// do.
fn power_of_two(number: u64) -> u64 {
    1 << number.max(1).ilog2()
}

/// Places in a row from which on sums over rows go row by row.
const ROW_PLACES_MIN: u64 = 32;

/// Whether a sum of x along some axes is one over rows: along the first axes of a packed `float32` tensor, with rows of some length.
/// Every device makes it in reduction blocks of [`reduction_block_rows`] then.
pub fn sums_rows(axes: &[usize], x: &TensorDesc) -> bool {
    let length: u64 = x.sizes().get(axes.len()..).map_or(0, |places| places.iter().product());
    let are_first = !axes.is_empty() && axes.iter().copied().eq(0..axes.len());
    are_first && length >= ROW_PLACES_MIN && x.data_type() == DataType::Float32 && x.is_packed()
}

/// A kernel that sums over positions, cut into its sums ([`Kernel::Sums`]) and what becomes of them ([`Kernel::FromSums`]).
/// Sums are float64, the rows of a table: \[rows, channels], or \[rows, 1] for a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Summing {
    /// `BatchNormalizationTraining`: reads x; sums are the first element of what is summed, the sum and the squares' sum of the
    /// distances to it, and the number of elements ([`add_statistics`]). Gives mean\[c] and variance\[c]; `BatchNormalization` does the rest.
    BatchStatistics {
        /// Neighbouring channels that share one mean and variance, which are computed from the sums of all of them.
        group_size: u64,
    },
    /// `BatchNormalizationGradient`: sums are the slopes, their products with the distances to the mean, and the number of
    /// elements. Gives dscale\[c] and dbias\[c]; the gradient kernel itself does the rest.
    BatchGradient {
        /// Added to the variance.
        epsilon: f32,
        /// What the forward kernel applied.
        activation: Activation,
    },
    /// `SoftmaxCrossEntropy`: sums are the losses of positions and the number of those that count. Gives loss\[1].
    CrossEntropy {
        /// The class axis of logits.
        axis: usize,
        /// Label value that does not count.
        ignore_index: Option<i64>,
    },
    /// `MeanSquaredError`: sums are the squares of differences and the number of elements. Elements are positions in the order
    /// in which they lie, each a row of its own. Gives loss\[1].
    SquaredError,
    /// `LayerNormalizationGradient`: reads dy, x, mean, inverse_deviation; sums are, by place in a row, the slopes times the
    /// normalised elements, and the slopes. Gives dscale\[row] and dbias\[row].
    LayerGradient {
        /// First normalised axis of x.
        axis: usize,
    },
    /// `Reduce` with [`ReduceOp::Sum`] along the first axes ([`sums_rows`]): reads x; sums are, by place in a row, the sum, and what
    /// is still to be added to it. Gives y.
    Rows {
        /// How many axes are summed.
        axes: usize,
    },
    /// `Reduce` with [`ReduceOp::Sum`] along all axes but the second: reads x\[n, c, ..]; one sum per channel. Gives y\[c].
    Channels,
}

impl Summing {
    /// Rows of the table of sums.
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

/// Refuses groups of channels that do not have the same size.
///
/// # Errors
/// Where `channels` do not divide into groups of `group_size`.
pub fn check_group_size(channels: u64, group_size: u64) -> Result<(), String> {
    match group_size > 0 && channels.is_multiple_of(group_size) {
        true => Ok(()),
        false => Err(format!("{channels} channels do not divide into groups of {group_size}")),
    }
}

/// The sums of [`Summing::BatchStatistics`] of some elements and of those behind them: the later ones' distances are counted from the
/// first element of the earlier ones then.
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

    /// What makes parts agree with the whole: a part of at least one reduction block of rows is cut into the same reduction blocks.
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
