//! The largest elements of windows over planes: max pooling in whole vectors.
//!
//! A plane is copied into a buffer with negative infinity around it, so that the inner loops need no bounds. Of each row of windows, the
//! largest element of every column comes first, then that of adjacent columns. NaN counts as larger than all. Of zeros with both signs,
//! the first one in this order counts.

use super::parallel::copy_run;
use super::simd::{dispatch_wide, Vector, WIDTH_MAX};
use super::thread_buffer::ELEMENTS_MAX;

/// Most elements of a window along a dimension.
const WINDOW_MAX: usize = 16;
/// Most elements of a plane: larger ones are shared out row by row.
const PLANE_MAX: usize = 64 * 1024;

/// Planes of one size with their windows: rows, then columns.
pub(super) struct Planes {
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub pads: [usize; 2],
}

/// A plane's elements and where its results go, with the elements from row to row.
pub(super) struct Plane<'a> {
    pub x: &'a [f32],
    pub x_pitch: usize,
    pub y: &'a mut [f32],
    pub y_pitch: usize,
}

/// What windows are searched in.
struct Search<'a> {
    planes: &'a Planes,
    /// Elements from row to row.
    pitch: usize,
    padded: *const f32,
    /// The largest elements of columns, for each row of windows.
    lines: *mut f32,
    /// The largest elements of windows at every column, for each row of windows, and the elements from row to row.
    found: *mut f32,
    found_pitch: usize,
}

impl Planes {
    /// Whether planes are small enough to be copied, and windows to be seen in full.
    pub fn are_small(&self) -> bool {
        let is_small = |d: usize| self.kernel[d] <= WINDOW_MAX && self.dilations[d] <= PLANE_MAX;
        let [Some(rows), Some(pitch)] = [0, 1].map(|d| if is_small(d) { self.padded(d) } else { None }) else {
            return false;
        };
        let is_within = rows.checked_mul(pitch).is_some_and(|count| count <= PLANE_MAX);
        is_within && self.count() <= ELEMENTS_MAX
    }

    /// Padded rows, or columns: what windows reach.
    fn padded(&self, d: usize) -> Option<usize> {
        let seen = (self.output[d] - 1)
            .checked_mul(self.strides[d])?
            .checked_add((self.kernel[d] - 1) * self.dilations[d] + 1)?;
        Some(seen.max(self.pads[d].checked_add(self.input[d])?))
    }

    /// The padded plane, lines and what is found, each with room for whole vectors behind it; elements.
    fn counts(&self) -> [usize; 3] {
        let [rows, pitch] = [0, 1].map(|d| self.padded(d).unwrap_or(PLANE_MAX));
        let found = self.output[0] * self.found_pitch();
        [rows * pitch, self.output[0] * pitch, found].map(|count| count + 2 * WIDTH_MAX)
    }

    /// Columns at which windows may begin.
    fn found_pitch(&self) -> usize {
        (self.output[1] - 1) * self.strides[1] + 1
    }

    /// Elements of the buffer that [`Planes::pool`] takes.
    pub fn count(&self) -> usize {
        self.counts().iter().sum()
    }

    /// Readies a buffer for planes of this size.
    pub fn prepare(&self, buffer: &mut [f32]) {
        buffer.fill(f32::NEG_INFINITY);
    }

    /// The largest element of each window of a plane.
    ///
    /// # Panics
    /// A buffer that is too small, or operands that do not hold the plane.
    pub fn pool(&self, buffer: &mut [f32], plane: Plane) {
        let ([count, lines_count, _], pitch) = (self.counts(), self.padded(1).unwrap_or(PLANE_MAX));
        let (padded, rest) = buffer.split_at_mut(count);
        let (lines, found) = rest.split_at_mut(lines_count);
        for row in 0..self.input[0] {
            let seen = &plane.x[row * plane.x_pitch..][..self.input[1]];
            copy_run(&mut padded[(self.pads[0] + row) * pitch + self.pads[1]..][..self.input[1]], seen);
        }
        let (padded, lines, found_at) = (padded.as_ptr(), lines.as_mut_ptr(), found.as_mut_ptr());
        let found_pitch = self.found_pitch();
        // SAFETY: the buffer's parts hold what windows reach, and whole vectors behind that.
        unsafe { search(&Search { planes: self, pitch, padded, lines, found: found_at, found_pitch }) };
        for row in 0..self.output[0] {
            let y = &mut plane.y[row * plane.y_pitch..][..self.output[1]];
            let found = &found[row * found_pitch..];
            match self.strides[1] {
                1 => copy_run(y, &found[..y.len()]),
                2 => y.iter_mut().zip(found.chunks_exact(2)).for_each(|(y, pair)| *y = pair[0]),
                stride => y.iter_mut().zip(found.iter().step_by(stride)).for_each(|(y, &found)| *y = found),
            }
        }
    }
}

dispatch_wide! {
    /// # Safety
    /// The search's addresses must be those of buffers as large as [`Planes::counts`] says.
    fn search, search_with(search: &Search)
}

/// # Safety
/// As [`search`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn search_with<V: Vector>(search: &Search) {
    let Planes { output, kernel, strides, dilations, .. } = *search.planes;
    // What is behind a row is written again as the next one. SAFETY: the caller's promises.
    unsafe {
        for row in 0..output[0] {
            let (first, line) =
                (search.padded.add(row * strides[0] * search.pitch), search.lines.add(row * search.pitch));
            for column in (0..search.pitch).step_by(V::WIDTH) {
                let mut largest = V::load(first.add(column));
                for tap in 1..kernel[0] {
                    largest = largest.larger(V::load(first.add(tap * dilations[0] * search.pitch + column)));
                }
                largest.store(line.add(column));
            }
        }
        for row in 0..output[0] {
            let (line, found) = (search.lines.add(row * search.pitch), search.found.add(row * search.found_pitch));
            for column in (0..search.found_pitch).step_by(V::WIDTH) {
                let seen = line.add(column);
                let mut largest = V::load(seen);
                for tap in 1..kernel[1] {
                    largest = largest.larger(V::load(seen.add(tap * dilations[1])));
                }
                largest.store(found.add(column));
            }
        }
    }
}
