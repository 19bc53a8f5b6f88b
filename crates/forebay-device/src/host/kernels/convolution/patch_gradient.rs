//! The gradient with respect to the weights of windows that do not overlap and see few channels, such as the patches of vision transformers.
//!
//! What a position sees becomes a line of elements: input by input, tap by tap, in the order of the weights. The gradient is the product of
//! the channels of y, with positions as terms, and these lines. A block of positions is one sum, from the first position to the last; the
//! number of positions in a block depends on the window. Since windows do not overlap, no element is packed twice.

use super::super::product::{Matrix, multiply_few};
use super::super::simd::WIDTH_MAX;
use super::super::stored::Stored;
use super::Geometry;
use super::microkernel::CHANNELS;
use super::pointwise::Side;
use super::slab::{Span, even};
use super::weight_tiles::Tiles;

/// The most and the fewest positions of a block.
const POSITIONS: usize = forebay_base::kernel::PRODUCT_TERMS as usize;
const POSITIONS_MIN: usize = 16;
/// Packed elements of a block, unless those of the fewest positions and one input are more.
const PACKED_MAX: usize = 64 * 1024;
/// The largest window.
const TAPS_MAX: usize = 8 * 1024;
/// Weights of a task, unless those of [`CHANNELS`] outputs and one input are more.
const WEIGHTS_MAX: usize = 64 * 1024;
/// The most channels of y in a task.
const OUTPUTS_MAX: usize = 256;

/// How the gradient with respect to the weights of windows that do not overlap is summed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PatchGradient {
    /// Positions of a block.
    positions: usize,
    /// Whether the positions of a channel of y are contiguous.
    y_is_dense: bool,
}

impl PatchGradient {
    /// Returns `None` if windows overlap, if the elements of a window's row are not adjacent, or if a window is too small or too large.
    pub fn of(geometry: &Geometry) -> Option<PatchGradient> {
        let taps = geometry.taps();
        let overlaps = (0..3).any(|d| geometry.seen(d, 1) > geometry.strides[d]);
        let is_adjacent = geometry.kernel[2] == 1 || geometry.dilations[2] == 1;
        if overlaps || !is_adjacent || !(2..=TAPS_MAX).contains(&taps) || taps * geometry.inputs < WIDTH_MAX {
            return None;
        }
        let positions = (PACKED_MAX / taps).clamp(POSITIONS_MIN, POSITIONS);
        Some(PatchGradient { positions, y_is_dense: geometry.y.is_dense(geometry.target) })
    }

    pub fn tiles(self, geometry: &Geometry) -> Tiles {
        let taps = geometry.taps();
        let input_tile = even(geometry.inputs, PACKED_MAX / (self.positions * taps));
        let outputs_max = (WEIGHTS_MAX / (input_tile * taps)).clamp(CHANNELS, OUTPUTS_MAX) / CHANNELS * CHANNELS;
        Tiles::of(geometry, [even(geometry.outputs, outputs_max).next_multiple_of(CHANNELS), input_tile])
    }

    /// The number of buffer elements that [`PatchGradient::write`] needs for a tile.
    pub fn packed_count(self, geometry: &Geometry, [outputs, inputs]: [usize; 2], dy: Stored<f32>) -> usize {
        let of_y = outputs * self.positions;
        self.positions * inputs * geometry.taps() + if self.y_is_dense { dy.room(of_y) } else { of_y }
    }

    /// Writes the sums of products of some channels of y and some of x over some rows of an image (of its first spatial dimension): by output,
    /// input and tap. `x` and `dy` begin at their first channel.
    ///
    /// # Safety
    /// The channels must have the geometry's positions, and no one may write them; the buffer must have as many elements as
    /// [`PatchGradient::packed_count`] says, and the sums as many as the tile.
    pub unsafe fn write(
        self,
        geometry: &Geometry,
        [outputs, inputs]: [usize; 2],
        rows: Span,
        [x, dy]: [Stored<f32>; 2],
        packed: &mut [f32],
        sums: &mut [f32],
    ) {
        let (target, len) = (geometry.target, inputs * geometry.taps());
        let dy = Side::of_target(geometry, dy, self.y_is_dense);
        let (lines, buffer) = packed.split_at_mut(self.positions * len);
        for (number, block) in geometry.position_blocks(rows, self.positions).enumerate() {
            for (position, line) in (block.start..).zip(lines.chunks_exact_mut(len).take(block.len)) {
                let position =
                    [position / target[2] / target[1], position / target[2] % target[1], position % target[2]];
                // SAFETY: the caller's promises.
                unsafe { pack_line(geometry, x, position, line) };
            }
            // SAFETY: the caller's promises.
            unsafe {
                let (gradients, _) = dy.channels(target, outputs, block, buffer);
                let seen = Matrix::rows(lines.as_mut_ptr(), len);
                multiply_few(
                    (outputs, len, block.len),
                    gradients,
                    seen,
                    Matrix::rows(sums.as_mut_ptr(), len),
                    1.0,
                    number > 0,
                );
            }
        }
    }
}

/// Packs what a position sees of as many channels as the line has room for, with zeros for padding.
///
/// # Safety
/// The channels must have the geometry's elements, and no one may write them.
unsafe fn pack_line(geometry: &Geometry, x: Stored<f32>, position: [usize; 3], line: &mut [f32]) {
    let Geometry { kernel, strides, dilations, pads, source, x: layout, .. } = *geometry;
    let seen = |d: usize, tap: usize| {
        let element = (position[d] * strides[d] + tap * dilations[d]).checked_sub(pads[d]);
        element.filter(|&element| element < source[d])
    };
    // The part of a row of a window that lies in the source.
    let begin = position[2] * strides[2];
    let low = pads[2].saturating_sub(begin).min(kernel[2]);
    let high = (source[2] + pads[2]).saturating_sub(begin).clamp(low, kernel[2]);
    for (channel, taps) in line.chunks_exact_mut(geometry.taps()).enumerate() {
        // SAFETY: the caller's promises.
        let elements = unsafe { x.slice(channel * layout.channel, layout.span) };
        for (row, taps) in taps.chunks_exact_mut(kernel[2]).enumerate() {
            match (seen(0, row / kernel[1]), seen(1, row % kernel[1])) {
                (Some(plane), Some(row)) if low < high => {
                    taps[..low].fill(0.0);
                    let start = plane * layout.plane + row * layout.row + begin + low - pads[2];
                    elements.copy_to(&mut taps[low..high], start, 1);
                    taps[high..].fill(0.0);
                }
                _ => taps.fill(0.0),
            }
        }
    }
}
