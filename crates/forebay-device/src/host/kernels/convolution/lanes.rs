//! Transposes rows of channels into vectors with one channel per lane, and back.

use super::super::simd::{LANES, Vector};
use super::super::spatial::Spatial;
use super::super::stored::Stored;

/// Some channels, one for each lane.
pub(super) struct Channels<'a> {
    pub elements: Stored<f32>,
    pub layout: &'a Spatial,
    /// Rows and columns of a plane.
    pub sizes: [usize; 2],
    pub lanes: usize,
}

impl Channels<'_> {
    /// Packs `count` columns of a row, one vector each, starting at column `first`; `pad` columns of zeros precede the row's own. `start`
    /// is where the row's own columns begin in a channel; without it, the row is zeros. `line` has room for that many columns of each
    /// channel, and for [`LANES`] elements after them.
    ///
    /// # Safety
    /// The elements must exist, and no one may write them; there must be room for that many vectors and for a transposed block after them.
    #[inline(always)]
    pub unsafe fn pack<V: Vector>(
        &self,
        start: Option<usize>,
        [first, pad]: [usize; 2],
        count: usize,
        line: &mut [f32],
        target: *mut f32,
    ) {
        let low = pad.saturating_sub(first);
        let high = (self.sizes[1] + pad).saturating_sub(first).min(count);
        let len = high.saturating_sub(low);
        // SAFETY: the caller's promises.
        unsafe {
            let lines = start.filter(|_| len > 0).map(|start| {
                let start = start + first.saturating_sub(pad);
                if let Some(first) = self.elements.own() {
                    return Lines::of_row(first, self.layout, self.sizes, start, len);
                }
                for (lane, line) in line.chunks_exact_mut(len).take(self.lanes).enumerate() {
                    let channel = self.elements.slice(lane * self.layout.channel, self.layout.span);
                    channel.copy_to(line, start, 1);
                }
                // Each line is followed by another, or by what is left of the buffer.
                Lines { first: line.as_ptr(), stride: len, count: len, readable: len.max(LANES) }
            });
            spread_padded::<V>(lines, self.lanes, low, count, target);
        }
    }
}

/// Contiguous elements in lines, one line for each lane.
pub(super) struct Lines {
    pub first: *const f32,
    pub stride: usize,
    pub count: usize,
    /// Elements that can be read from the start of each line.
    pub readable: usize,
}

impl Lines {
    /// A part of a row of each channel, starting at the element at `start`; the first channel begins at `first`. The sizes are the rows and
    /// columns of a plane.
    ///
    /// # Safety
    /// The elements must exist.
    #[inline(always)]
    pub unsafe fn of_row(
        first: *const f32,
        layout: &Spatial,
        [rows, columns]: [usize; 2],
        start: usize,
        count: usize,
    ) -> Lines {
        // The elements between rows or planes can be written by others meanwhile.
        let readable = match (layout.row == columns, layout.plane) {
            (false, _) => count,
            (true, plane) if plane == 0 || plane == rows * columns => layout.span - start,
            (true, plane) => rows * columns - start % plane,
        };
        // SAFETY: the caller's promise.
        Lines { first: unsafe { first.add(start) }, stride: layout.channel, count, readable }
    }
}

/// Transposes lines into lanes, starting at vector `low`, with zeros around them: `count` vectors in all.
///
/// # Safety
/// As [`spread_lines`].
#[inline(always)]
pub(super) unsafe fn spread_padded<V: Vector>(
    lines: Option<Lines>,
    lanes: usize,
    low: usize,
    count: usize,
    target: *mut f32,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let Some(lines) = lines else { return target.write_bytes(0, count * V::WIDTH) };
        let high = low + lines.count;
        target.write_bytes(0, low * V::WIDTH);
        spread_lines::<V>(&lines, lanes, target.add(low * V::WIDTH));
        target.add(high * V::WIDTH).write_bytes(0, (count - high) * V::WIDTH);
    }
}

/// Transposes lines into lanes: element i of each line goes to vector i.
///
/// # Safety
/// The lines must be readable, and as many vectors writable as the lines have elements, but at least [`LANES`].
#[inline(always)]
pub(super) unsafe fn spread_lines<V: Vector>(lines: &Lines, lanes: usize, target: *mut f32) {
    let Lines { first, stride, count, readable } = *lines;
    let mut whole = lanes / LANES * LANES;
    if count < LANES && readable < LANES {
        whole = 0;
    }
    // SAFETY: the caller's promises.
    unsafe {
        for lane in (0..whole).step_by(LANES) {
            let first = first.add(lane * stride);
            for start in starts(count) {
                V::transpose(first.add(start), stride as isize, target.add(start * V::WIDTH + lane), V::WIDTH);
            }
        }
        for lane in whole..lanes {
            for i in 0..count {
                *target.add(i * V::WIDTH + lane) = *first.add(lane * stride + i);
            }
        }
    }
}

/// Transposes lanes into lines of `count` elements, the inverse of [`spread_lines`]. Vectors are `pitch` elements apart.
///
/// # Safety
/// The vectors must be readable, and the lines writable.
#[inline(always)]
pub(super) unsafe fn gather_lines<V: Vector>(
    vectors: *const f32,
    pitch: usize,
    count: usize,
    lanes: usize,
    target: *mut f32,
    stride: usize,
) {
    let whole = if count < LANES { 0 } else { lanes / LANES * LANES };
    // SAFETY: the caller's promises; if there are [`LANES`] elements, no block reaches beyond the last.
    unsafe {
        for lane in (0..whole).step_by(LANES) {
            for start in starts(count) {
                let vectors = vectors.add(start * pitch + lane);
                V::transpose(vectors, pitch as isize, target.add(lane * stride + start), stride);
            }
        }
        for lane in whole..lanes {
            for i in 0..count {
                *target.add(lane * stride + i) = *vectors.add(i * pitch + lane);
            }
        }
    }
}

/// Returns where the blocks of [`LANES`] elements that cover a line begin. The last block ends with the line if the line is that long.
#[inline(always)]
fn starts(count: usize) -> impl Iterator<Item = usize> {
    (0..count).step_by(LANES).map(move |start| start.min(count.saturating_sub(LANES)))
}
