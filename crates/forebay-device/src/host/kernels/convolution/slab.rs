//! Slabs: a block of target positions, and the packed piece of a source channel that the block sees.
//!
//! Packing puts zeros where positions look beyond the source, so that the inner loops need no bounds checks, and makes elements that
//! adjacent positions see adjacent (see [`super::axis`]). Positions of a plane are numbered through rows of `pitch` elements: a position's
//! number is its place both in the plane and in the elements that any tap sees of it.

use super::super::parallel::copy_run;
use super::super::simd::{Vector, WIDTH_MAX, dispatch_wide};
use super::super::spatial::Spatial;
use super::super::stored::Elements;
use super::axis::Axis;
use super::microkernel::VECTORS;

/// Packed elements after a channel that vectors may read.
pub(super) const SLACK: usize = 64;
/// The longest row of a block, in positions: a whole number of tiles.
pub(super) const COLUMNS_MAX: usize = 10 * TILE;
/// Positions of the widest tile.
const TILE: usize = VECTORS * WIDTH_MAX;

/// How blocks of positions are cut and how a channel of their source is packed.
#[derive(Clone, Debug)]
pub(super) struct Slab {
    pub axes: [Axis; 3],
    /// Positions of a block in each dimension (fewer at the end).
    pub block: [usize; 3],
    /// Packed planes, rows of a plane and elements of a row, for one phase.
    pitch: [usize; 3],
    /// Elements from channel to channel.
    pub channel_stride: usize,
    /// Packed elements of a channel: the phases, and zeros after the last row.
    used: usize,
}

/// A part of a dimension or of a list: where it begins and how long it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub start: usize,
    pub len: usize,
}

/// Cuts `0..count` into spans of `size`, or of 1 if that is 0.
pub(super) fn spans(count: usize, size: usize) -> impl Iterator<Item = Span> {
    let size = size.max(1);
    (0..count).step_by(size).map(move |start| Span { start, len: size.min(count - start) })
}

/// The size of the pieces if `count` is cut into as few even pieces of at most `size` as possible.
pub(super) fn even(count: usize, size: usize) -> usize {
    count.div_ceil(count.div_ceil(size.max(1)).max(1)).max(1)
}

impl Slab {
    /// The blocks that pack the least, with at most `elements_max` packed elements per channel and `positions_max` positions.
    ///
    /// # Errors
    /// Returns an error if one position sees more than `elements_max` elements of a channel.
    pub fn new(mut axes: [Axis; 3], elements_max: usize, positions_max: usize) -> Result<Slab, String> {
        let block = loop {
            if let Some(block) = block(&axes, elements_max, positions_max) {
                break block;
            }
            let widest = (0..3).max_by_key(|&d| axes[d].spread).filter(|&d| axes[d].spread > 0);
            match widest {
                Some(d) => axes[d].pack_taps_apart(),
                None => return Err(format!("a window of more than {elements_max} elements is too large for the host")),
            }
        };
        Ok(Slab::of_blocks(axes, block))
    }

    /// The same slab for a dimension of at most `count` positions: blocks begin where they did, and the last one ends with the positions.
    pub fn within(self, d: usize, count: usize) -> Slab {
        let Slab { mut axes, mut block, .. } = self;
        axes[d].shorten(count);
        block[d] = block[d].min(count);
        Slab::of_blocks(axes, block)
    }

    /// The same slab with whole vectors of positions in each row of a block, except for the last block.
    pub fn in_vectors(self) -> Slab {
        let Slab { axes, mut block, .. } = self;
        if block[2] > WIDTH_MAX {
            block[2] = block[2] / WIDTH_MAX * WIDTH_MAX;
        }
        Slab::of_blocks(axes, block)
    }

    fn of_blocks(axes: [Axis; 3], block: [usize; 3]) -> Slab {
        let mut pitch: [usize; 3] = std::array::from_fn(|d| block[d] + axes[d].spread);
        pitch[2] = row_pitch(&axes[2], block[2]);
        let phases: usize = axes.iter().map(|axis| axis.phases.len()).product();
        let used = phases * pitch.iter().product::<usize>() + axes[2].spread;
        // An odd number of cache lines, so that channels do not compete for the same sets.
        let channel_stride = (used.div_ceil(16) | 1) * 16;
        Slab { axes, block, pitch, channel_stride, used }
    }

    /// Elements between positions of adjacent rows.
    pub fn row_pitch(&self) -> usize {
        self.pitch[2]
    }

    /// Packed planes, and rows of a plane.
    pub fn packed_rows(&self) -> [usize; 2] {
        [self.pitch[0], self.pitch[1]]
    }

    /// Elements between positions of adjacent planes.
    pub fn plane_pitch(&self) -> usize {
        self.pitch[1] * self.pitch[2]
    }

    /// The number of blocks in each dimension.
    fn blocks(&self) -> [usize; 3] {
        std::array::from_fn(|d| self.axes[d].count().div_ceil(self.block[d]))
    }

    /// The number of blocks, or `usize::MAX` if there are more than can be counted.
    pub fn block_count(&self) -> usize {
        self.blocks().into_iter().fold(1, usize::saturating_mul)
    }

    /// The first position of a block. Blocks are numbered in row-major order. They are computed, not listed: a tensor that no device can
    /// hold has more blocks than memory has bytes.
    pub fn origin(&self, number: usize) -> [usize; 3] {
        let [_, rows, columns] = self.blocks();
        let at = [number / columns / rows, number / columns % rows, number % columns];
        std::array::from_fn(|d| at[d] * self.block[d])
    }

    /// Where position 0 of a block looks through a tap, given the tap's phase and shift in each dimension.
    pub fn offset(&self, phase: [usize; 3], shift: [usize; 3]) -> usize {
        let phase = (phase[0] * self.axes[1].phases.len() + phase[1]) * self.axes[2].phases.len() + phase[2];
        ((phase * self.pitch[0] + shift[0]) * self.pitch[1] + shift[1]) * self.pitch[2] + shift[2]
    }

    /// How the packed rows of a block are copied from a channel: the same for every channel.
    pub fn lines(&self, origin: [usize; 3], layout: &Spatial) -> Vec<Line> {
        let [planes, rows, columns] = &self.axes;
        let [depth, height, width] = self.pitch;
        let within = |axis: &Axis, index: isize| index >= 0 && (index as usize) < axis.source;
        let mut lines = Vec::with_capacity(self.used / width);
        for phase in 0..planes.phases.len() * rows.phases.len() * columns.phases.len() {
            let column_phase = phase % columns.phases.len();
            let row_phase = phase / columns.phases.len() % rows.phases.len();
            let plane_phase = phase / columns.phases.len() / rows.phases.len();
            let (low, high) = columns.inside(column_phase, origin[2], width);
            let first = columns.source_of(column_phase, origin[2] + low);
            for line in 0..depth * height {
                let plane = planes.source_of(plane_phase, origin[0] + line / height);
                let row = rows.source_of(row_phase, origin[1] + line % height);
                if low < high && within(planes, plane) && within(rows, row) {
                    let start = plane as usize * layout.plane + row as usize * layout.row + first as usize;
                    lines.push(Line { low, high, start });
                } else {
                    lines.push(Line { low: 0, high: 0, start: 0 });
                }
            }
        }
        lines
    }

    /// Packs the elements that a block sees of one channel.
    pub fn pack(&self, lines: &[Line], channel: Elements, target: &mut [f32]) {
        self.pack_lines(lines, channel, target, true);
        // Fills up to the next channel: vectors read beyond the last position, and zero times an old value in the buffer need not be zero.
        target[self.used - self.axes[2].spread..].fill(0.0);
    }

    /// Does the same if the zeros are already there, from another channel that was packed like this one.
    pub fn pack_inside(&self, lines: &[Line], channel: Elements, target: &mut [f32]) {
        self.pack_lines(lines, channel, target, false);
    }

    fn pack_lines(&self, lines: &[Line], channel: Elements, target: &mut [f32], with_zeros: bool) {
        let (pitch, stride) = (self.pitch[2], self.axes[2].source_stride);
        let Elements::Float32(channel) = channel else {
            for (line, target) in lines.iter().zip(target.chunks_exact_mut(pitch)) {
                line.fill_outside(target, with_zeros);
                channel.copy_to(&mut target[line.low..line.high], line.start, stride);
            }
            return;
        };
        // SAFETY: the CPU's best vectors are chosen; addresses come from slices.
        unsafe { pack_lines(&mut Packing { lines, channel, target, pitch, stride, with_zeros }) }
    }
}

/// One packed row: zeros, then elements `low..high` from the channel's element `start` on, then zeros.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    low: usize,
    high: usize,
    start: usize,
}

impl Line {
    /// Writes the zeros before and after the elements, unless they are already there.
    #[inline(always)]
    fn fill_outside(&self, target: &mut [f32], with_zeros: bool) {
        if with_zeros {
            fill_few(&mut target[..self.low]);
            fill_few(&mut target[self.high..]);
        }
    }
}

/// Writes zeros, of which there are often none or one.
#[inline(always)]
fn fill_few(target: &mut [f32]) {
    match target {
        [] => {}
        [one] => *one = 0.0,
        many => many.fill(0.0),
    }
}

/// Lines of a channel to be packed.
struct Packing<'a> {
    lines: &'a [Line],
    channel: &'a [f32],
    target: &'a mut [f32],
    /// Elements from line to line of the target, and between elements of the channel that become adjacent there.
    pitch: usize,
    stride: usize,
    with_zeros: bool,
}

dispatch_wide! {
    /// # Safety
    /// None: bounds are checked.
    fn pack_lines, pack_lines_with(packing: &mut Packing)
}

/// # Safety
/// The CPU must have the vector's instructions.
#[inline(always)]
unsafe fn pack_lines_with<V: Vector>(packing: &mut Packing) {
    let (channel, stride) = (packing.channel, packing.stride);
    for (line, target) in packing.lines.iter().zip(packing.target.chunks_exact_mut(packing.pitch)) {
        line.fill_outside(target, packing.with_zeros);
        let (target, source) = (&mut target[line.low..line.high], &channel[line.start..]);
        match stride {
            // SAFETY: the caller's promise.
            1 => unsafe { copy_adjacent::<V>(target, &source[..target.len()]) },
            // SAFETY: the caller's promise.
            2 => unsafe { copy_even::<V>(target, source) },
            _ => target.iter_mut().zip(source.iter().step_by(stride)).for_each(|(value, &seen)| *value = seen),
        }
    }
}

/// Copies a row in vectors; the last one may overlap the one before.
///
/// # Safety
/// As [`pack_lines_with`].
#[inline(always)]
pub(super) unsafe fn copy_adjacent<V: Vector>(target: &mut [f32], source: &[f32]) {
    let count = target.len();
    if count < V::WIDTH {
        return copy_run(target, source);
    }
    let (from, to, last) = (source.as_ptr(), target.as_mut_ptr(), count - V::WIDTH);
    let mut start = 0;
    // SAFETY: whole vectors lie in both rows.
    unsafe {
        while start < last {
            V::load(from.add(start)).store(to.add(start));
            start += V::WIDTH;
        }
        V::load(from.add(last)).store(to.add(last));
    }
}

/// Copies every second element of a source that ends at or beyond the end of the last of them.
///
/// # Safety
/// As [`pack_lines_with`].
#[inline(always)]
unsafe fn copy_even<V: Vector>(target: &mut [f32], source: &[f32]) {
    // Elements whose neighbor also exists are read in vectors.
    let paired = target.len().min(source.len() / 2);
    let mut done = 0;
    // SAFETY: whole vectors, of pairs in the source, lie in both rows.
    unsafe {
        let (from, to) = (source.as_ptr(), target.as_mut_ptr());
        if paired >= V::WIDTH {
            while done + V::WIDTH < paired {
                V::load_even(from.add(2 * done)).store(to.add(done));
                done += V::WIDTH;
            }
            V::load_even(from.add(2 * (paired - V::WIDTH))).store(to.add(paired - V::WIDTH));
            done = paired;
        } else if paired >= V::Half::WIDTH {
            V::Half::load_even(from).store(to);
            V::Half::load_even(from.add(2 * (paired - V::Half::WIDTH))).store(to.add(paired - V::Half::WIDTH));
            done = paired;
        }
    }
    for (value, &seen) in target[done..].iter_mut().zip(source[(2 * done).min(source.len())..].iter().step_by(2)) {
        *value = seen;
    }
}

/// Elements from row to row. If a block holds whole rows, the zeros before a row can also be those after the previous row.
fn row_pitch(axis: &Axis, columns: usize) -> usize {
    let full = columns + axis.spread;
    if columns < axis.count() {
        return full;
    }
    let inside: Vec<(usize, usize)> = (0..axis.phases.len()).map(|phase| axis.inside(phase, 0, full)).collect();
    let zeros_before = inside.iter().map(|&(low, _)| low).min().unwrap_or(0);
    let pitch = inside.iter().map(|&(_, high)| high).max().unwrap_or(full).max(columns);
    // A row's positions read up to `full` elements: those beyond the pitch are the next row's first.
    if full - pitch <= zeros_before { pitch } else { full }
}

/// The positions of a block in each dimension, or `None` if not even one position fits.
fn block(axes: &[Axis; 3], elements_max: usize, positions_max: usize) -> Option<[usize; 3]> {
    let phases: usize = axes.iter().map(|axis| axis.phases.len()).product();
    let [planes, rows, columns] = axes;
    let width_max = COLUMNS_MAX.min(positions_max);
    let mut width = even(columns.count(), width_max);
    if width < columns.count() {
        width = width.next_multiple_of(TILE).min(width_max);
    }
    let row_size = |width: usize| phases.saturating_mul(width + columns.spread);
    let least = |width: usize| row_size(width).saturating_mul(1 + rows.spread).saturating_mul(1 + planes.spread);
    while width > 1 && least(width) > elements_max {
        width = width.div_ceil(2);
    }
    if least(width) > elements_max {
        return None;
    }
    let mut best: Option<(usize, [usize; 3])> = None;
    for depth in 1..=planes.count().min(64) {
        let depth = even(planes.count(), depth);
        let fitting = (elements_max / (row_size(width) * (depth + planes.spread))).saturating_sub(rows.spread);
        let height = fitting.min(positions_max / (width * depth)).min(rows.count());
        if height == 0 {
            break;
        }
        let height = even(rows.count(), height);
        let factors = [
            planes.count().div_ceil(depth),
            depth + planes.spread,
            rows.count().div_ceil(height),
            height + rows.spread,
        ];
        let packed = factors.into_iter().fold(1, usize::saturating_mul);
        // Among equals the deepest, which sees the weights most often.
        if best.is_none_or(|(least, _)| packed <= least) {
            best = Some((packed, [depth, height, width]));
        }
    }
    best.map(|(_, block)| block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_everything_and_none_is_empty() {
        let cut = |count, size| spans(count, size).map(|span| (span.start, span.len)).collect::<Vec<_>>();
        assert_eq!(cut(5, 2), [(0, 2), (2, 2), (4, 1)]);
        assert_eq!(cut(2, 0), [(0, 1), (1, 1)]);
        assert!(cut(0, 3).is_empty());
    }
}
