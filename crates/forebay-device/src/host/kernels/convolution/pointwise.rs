//! Sums of products of two channels' elements at the same positions: the weight gradient of a convolution whose window is one element. It
//! is a matrix product of channels by positions, without the packing of windows.

use super::super::product::{Matrix, PANEL, multiply_few};
use super::super::simd::WIDTH_MAX;
use super::super::spatial::Spatial;
use super::super::stored::{Elements, Stored};
use super::Geometry;
use super::microkernel::CHANNELS;
use super::slab::{Span, even};

/// Positions that are summed from zero: the terms of one block of a product.
const POSITIONS: usize = forebay_base::kernel::PRODUCT_TERMS as usize;
/// Channels of a tile: on the side that lies in vectors, and on the other.
const COLUMNS_MAX: usize = 2 * PANEL;
const ROWS_MAX: usize = 512;
/// Sums of a tile: the sums of all levels of a tree fit into a thread's buffer.
const SUMS_MAX: usize = 32 * 1024;
/// If one side has fewer channels than this, the channels of the other side lie in vectors.
const COLUMNS_MIN: usize = 32;
/// Rows below which a tile is not split into more tasks, because the columns are packed for each.
const ROWS_MIN: usize = 64;

/// How a gradient of pointwise weights is summed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointwise {
    /// Whether the channels of y lie in vectors and sums are ordered by input; otherwise the channels of x do, and sums are ordered by
    /// output.
    by_input: bool,
    /// Whether the positions of a channel of x that are seen are contiguous, and those of y.
    dense: [bool; 2],
}

/// One side of the products.
pub(super) struct Side {
    elements: Stored<f32>,
    layout: Spatial,
    /// Elements in each dimension.
    sizes: [usize; 3],
    /// Elements from position to position, in each dimension.
    strides: [usize; 3],
    /// Zeros before the first element, in each dimension.
    pads: [usize; 3],
    is_dense: bool,
}

impl Pointwise {
    /// Returns `None` if a window has more than one element.
    pub fn of(geometry: &Geometry) -> Option<Pointwise> {
        let Geometry { kernel, pads, strides, source, target, x, y, .. } = *geometry;
        if kernel != [1; 3] {
            return None;
        }
        let sees_all = strides == [1; 3] && pads == [0; 3] && source == target;
        let dense = [sees_all && x.is_dense(source), y.is_dense(target)];
        let (outputs, inputs) = (geometry.outputs, geometry.inputs);
        let by_input = match outputs.min(inputs) < COLUMNS_MIN {
            true => outputs > inputs,
            false => outputs < inputs,
        };
        Some(Pointwise { by_input, dense })
    }

    /// The channels of y and of x in a tile, for at least `tiles_min` tiles in all if that leaves each tile enough.
    pub fn tile(self, geometry: &Geometry, tiles_min: usize) -> [usize; 2] {
        let Geometry { groups, outputs, inputs, .. } = *geometry;
        let (rows, columns) = if self.by_input { (inputs, outputs) } else { (outputs, inputs) };
        let mut column_tile = even(columns, COLUMNS_MAX).next_multiple_of(WIDTH_MAX);
        let mut row_tile = even(rows, ROWS_MAX.min(SUMS_MAX / column_tile));
        let count = |row_tile: usize, column_tile: usize| {
            groups.saturating_mul(rows.div_ceil(row_tile)).saturating_mul(columns.div_ceil(column_tile))
        };
        while count(row_tile, column_tile) < tiles_min {
            if row_tile >= 2 * ROWS_MIN {
                row_tile = row_tile.div_ceil(2);
            } else if column_tile > PANEL {
                column_tile = even(columns, PANEL);
            } else {
                break;
            }
        }
        let [row_tile, column_tile] = [row_tile, column_tile].map(|tile| tile.next_multiple_of(CHANNELS));
        if self.by_input { [column_tile, row_tile] } else { [row_tile, column_tile] }
    }

    /// Where the sums of an output of a tile begin, and the distance between them.
    pub fn place(self, [outputs, inputs]: [usize; 2], output: usize) -> (usize, usize) {
        match self.by_input {
            true => (output, outputs),
            false => (output * inputs, 1),
        }
    }

    /// The number of buffer elements that [`Pointwise::write`] needs for a tile.
    pub fn packed_count(self, [outputs, inputs]: [usize; 2], [x, dy]: [Stored<f32>; 2]) -> usize {
        let room = |channels: usize, is_dense: bool, elements: Stored<f32>| match is_dense {
            true => elements.room(channels * POSITIONS),
            false => channels * POSITIONS,
        };
        room(outputs, self.dense[1], dy) + room(inputs, self.dense[0], x)
    }

    /// Writes the sums of products of some channels of y and some of x, over some rows of an image (of its first spatial dimension). `x` and
    /// `dy` begin at their first channel.
    ///
    /// # Safety
    /// The channels must have the geometry's positions, and no one may write them; the buffer must have as many elements as
    /// [`Pointwise::packed_count`] says, and the sums as many as there are products of channels.
    pub unsafe fn write(
        self,
        geometry: &Geometry,
        [outputs, inputs]: [usize; 2],
        rows: Span,
        [x, dy]: [Stored<f32>; 2],
        packed: &mut [f32],
        sums: &mut [f32],
    ) {
        let Geometry { x: of_x, source, target, strides, pads, .. } = *geometry;
        let [x_is_dense, y_is_dense] = self.dense;
        let x = Side { elements: x, layout: of_x, sizes: source, strides, pads, is_dense: x_is_dense };
        let dy = Side::of_target(geometry, dy, y_is_dense);
        for (number, block) in geometry.position_blocks(rows, POSITIONS).enumerate() {
            // SAFETY: the caller's promises; operands that are not used in place are packed one after the other.
            unsafe {
                let (gradients, rest) = dy.channels(target, outputs, block, packed);
                let (seen, _) = x.channels(target, inputs, block, rest);
                let (rows, columns, a, b) = match self.by_input {
                    true => (inputs, outputs, seen, gradients),
                    false => (outputs, inputs, gradients, seen),
                };
                let c = Matrix::rows(sums.as_mut_ptr(), columns);
                multiply_few((rows, columns, block.len), a, b.transposed(), c, 1.0, number > 0);
            }
        }
    }
}

impl Side {
    /// The channels of dy; each position sees itself.
    pub fn of_target(geometry: &Geometry, dy: Stored<f32>, is_dense: bool) -> Side {
        let Geometry { y: layout, target: sizes, .. } = *geometry;
        Side { elements: dy, layout, sizes, strides: [1; 3], pads: [0; 3], is_dense }
    }

    /// Returns some channels by positions, in place or packed, and the rest of the buffer.
    ///
    /// # Safety
    /// As [`Pointwise::write`].
    pub unsafe fn channels<'b>(
        &self,
        target: [usize; 3],
        channels: usize,
        positions: Span,
        buffer: &'b mut [f32],
    ) -> (Matrix, &'b mut [f32]) {
        if let Some(first) = self.elements.own().filter(|_| self.is_dense) {
            return (Matrix::rows(first.wrapping_add(positions.start), self.layout.channel), buffer);
        }
        let (packed, rest) = buffer.split_at_mut(channels * positions.len);
        for (number, mut line) in packed.chunks_exact_mut(positions.len.max(1)).enumerate() {
            // SAFETY: the channel exists; no one writes it.
            let channel = unsafe { self.elements.slice(number * self.layout.channel, self.layout.span) };
            let mut position = positions.start;
            while !line.is_empty() {
                let [plane, row, column] =
                    [position / target[2] / target[1], position / target[2] % target[1], position % target[2]];
                let (of_row, behind) = line.split_at_mut((target[2] - column).min(line.len()));
                position += of_row.len();
                self.pack_row(channel, [plane, row, column], of_row);
                line = behind;
            }
        }
        (Matrix::rows(packed.as_mut_ptr(), positions.len), rest)
    }

    /// Packs the elements that positions of a row see, starting at one position.
    fn pack_row(&self, channel: Elements, [plane, row, column]: [usize; 3], target: &mut [f32]) {
        let seen = |d: usize, position: usize| {
            (position * self.strides[d]).checked_sub(self.pads[d]).filter(|&index| index < self.sizes[d])
        };
        target.fill(0.0);
        let (Some(plane), Some(row)) = (seen(0, plane), seen(1, row)) else { return };
        let before = self.pads[2].saturating_sub(column * self.strides[2]).div_ceil(self.strides[2]);
        let Some(start) = seen(2, column + before) else { return };
        let count = (self.sizes[2] - start).div_ceil(self.strides[2]);
        let Some(target) = target.get_mut(before..) else { return };
        let count = count.min(target.len());
        let start = plane * self.layout.plane + row * self.layout.row + start;
        channel.copy_to(&mut target[..count], start, self.strides[2]);
    }
}
