//! The largest elements of windows over planes: max pooling in whole vectors.
//!
//! For each row of windows, the largest element of every column comes first, then that of adjacent columns. NaN counts as larger than all
//! numbers. Of zeros with both signs, the first one in this order counts. The largest elements of columns go into lines with negative
//! infinity at both ends, so that the inner loops need no bounds checks. Narrow planes are copied with their padding, so that vectors reach
//! across rows.

use super::parallel::copy_run;
use super::simd::{Vector, WIDTH_MAX, dispatch_wide};
use super::thread_buffer::ELEMENTS_MAX;

/// The most elements of a window along a dimension.
const WINDOW_MAX: usize = 16;
/// The most elements of a plane with its padding: larger planes are divided row by row.
const PLANE_MAX: usize = 64 * 1024;

/// The widest plane that is copied: of a wider one, rows fill vectors well enough.
const COPIED_MAX: usize = 48;

/// Planes of one size and their windows: rows, then columns.
pub(super) struct Planes {
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub pads: [usize; 2],
}

/// A plane's elements and the destination of its results, each with the elements from row to row. Between the rows of results, others can
/// write at the same time.
pub(super) struct Plane<'a> {
    pub x: &'a [f32],
    pub x_pitch: usize,
    pub y: *mut f32,
    pub y_pitch: usize,
}

/// The data in which windows are searched.
struct Search<'a> {
    planes: &'a Planes,
    x: *const f32,
    x_pitch: usize,
    /// The largest elements of the columns that each row of windows sees, and the elements from row to row.
    lines: *mut f32,
    pitch: usize,
    /// The largest elements of windows, row after row.
    found: *mut f32,
}

impl Planes {
    /// Whether planes are small enough to be copied, and windows small enough to be seen in full.
    pub fn are_small(&self) -> bool {
        let is_small = |d: usize| self.kernel[d] <= WINDOW_MAX && self.dilations[d] <= PLANE_MAX;
        let [Some(rows), Some(pitch)] = [0, 1].map(|d| if is_small(d) { self.padded(d) } else { None }) else {
            return false;
        };
        let is_within = rows.checked_mul(pitch).is_some_and(|count| count <= PLANE_MAX);
        is_within && self.count() <= ELEMENTS_MAX
    }

    /// The number of padded rows or columns that windows reach.
    fn padded(&self, d: usize) -> Option<usize> {
        let seen = (self.output[d] - 1)
            .checked_mul(self.strides[d])?
            .checked_add((self.kernel[d] - 1) * self.dilations[d] + 1)?;
        Some(seen.max(self.pads[d].checked_add(self.input[d])?))
    }

    /// Whether planes are copied with their padding.
    fn are_copied(&self) -> bool {
        self.strides == [1, 1] && self.input[1] <= COPIED_MAX
    }

    /// The number of elements of the lines, of the results and of a copy, each including room for whole vectors at the end.
    fn counts(&self) -> [usize; 3] {
        let copied = if self.are_copied() { self.padded(0).unwrap_or(PLANE_MAX) * self.pitch() } else { 0 };
        let rows = self.output[0];
        [rows * self.pitch(), rows * self.found_pitch(), copied].map(|count| count + 4 * WIDTH_MAX)
    }

    /// Elements from line to line.
    fn pitch(&self) -> usize {
        self.padded(1).unwrap_or(PLANE_MAX)
    }

    /// The number of columns at which windows are searched.
    fn found_pitch(&self) -> usize {
        match self.strides[1] {
            1 if self.are_copied() => self.pitch(),
            1 | 2 => self.output[1],
            stride => (self.output[1] - 1) * stride + 1,
        }
    }

    /// The number of buffer elements that [`Planes::pool`] takes.
    pub fn count(&self) -> usize {
        self.counts().iter().sum()
    }

    /// Prepares a buffer for planes of this size.
    pub fn prepare(&self, buffer: &mut [f32]) {
        buffer.fill(f32::NEG_INFINITY);
    }

    /// Finds the largest element of each window of a plane.
    ///
    /// # Panics
    /// Panics if the buffer is too small, or if x does not hold the plane.
    ///
    /// # Safety
    /// The rows of y must be writable and belong to no one else.
    pub unsafe fn pool(&self, buffer: &mut [f32], plane: Plane) {
        let [lines_count, found_count, copied_count] = self.counts();
        assert!(buffer.len() >= lines_count + found_count + copied_count, "a buffer as large as `count` says");
        let (lines, rest) = buffer.split_at_mut(lines_count);
        let (found, copied) = rest.split_at_mut(found_count);
        let (Plane { x, x_pitch, y, y_pitch }, [rows, columns]) = (plane, self.input);
        assert!((rows - 1) * x_pitch + columns <= x.len(), "an input of {} elements", x.len());
        let (pitch, found_at) = (self.pitch(), found.as_mut_ptr());
        let (mut x_at, mut x_from) = (x.as_ptr(), x_pitch);
        if self.are_copied() {
            for (row, own) in copied[self.pads[0] * pitch..].chunks_mut(pitch).take(rows).enumerate() {
                copy_run(&mut own[self.pads[1]..][..columns], &x[row * x_pitch..][..columns]);
            }
            (x_at, x_from) = (copied.as_ptr(), pitch);
        }
        // SAFETY: the plane holds its rows, and the buffer's parts hold everything that windows reach, followed by room for whole vectors.
        unsafe {
            let lines = lines.as_mut_ptr();
            search(&Search { planes: self, x: x_at, x_pitch: x_from, lines, pitch, found: found_at });
        }
        let [_, columns] = self.output;
        for (row, found) in found.chunks_exact(self.found_pitch()).take(self.output[0]).enumerate() {
            // SAFETY: the caller's promise.
            let y = unsafe { std::slice::from_raw_parts_mut(y.add(row * y_pitch), columns) };
            match self.strides[1] {
                1 | 2 => copy_run(y, &found[..columns]),
                stride => y.iter_mut().zip(found.iter().step_by(stride)).for_each(|(y, &found)| *y = found),
            }
        }
    }

    /// The taps through which a row of windows sees rows of the plane, and the row that the first tap sees.
    fn rows(&self, row: usize) -> (usize, usize) {
        let (start, dilation) = (row * self.strides[0], self.dilations[0]);
        let first = self.pads[0].saturating_sub(start).div_ceil(dilation).min(self.kernel[0]);
        let end = (self.pads[0] + self.input[0]).saturating_sub(start).div_ceil(dilation).clamp(first, self.kernel[0]);
        (end - first, (start + first * dilation).saturating_sub(self.pads[0]))
    }
}

dispatch_wide! {
    /// # Safety
    /// The search's addresses must be those of planes, and of buffers as large as [`Planes::counts`] says.
    fn search, search_with(search: &Search)
}

/// # Safety
/// As [`search`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn search_with<V: Vector>(search: &Search) {
    if search.planes.are_copied() {
        // SAFETY: the caller's promises.
        return unsafe { search_copy::<V>(search) };
    }
    // Row after row, and all columns first: this way, a vector is read long after the two that it overlaps were written.
    for row in 0..search.planes.output[0] {
        // SAFETY: the caller's promises.
        unsafe { largest_of_columns::<V>(search, row) };
    }
    for row in 0..search.planes.output[0] {
        // SAFETY: the caller's promises.
        unsafe { largest_of_windows::<V>(search, row) };
    }
}

/// Searches a plane that was copied with its padding: all rows of windows are one row.
///
/// # Safety
/// As [`search_with`].
#[inline(always)]
unsafe fn search_copy<V: Vector>(search: &Search) {
    let Planes { kernel, dilations, output: [rows, columns], .. } = *search.planes;
    let pitch = search.pitch;
    // SAFETY: the copy holds all rows that windows reach, and the lines all columns; both are followed by room for whole vectors.
    unsafe {
        largest_of_taps::<V>(search.x, (kernel[0], dilations[0] * pitch), rows * pitch, search.lines);
        largest_of_taps::<V>(search.lines, (kernel[1], dilations[1]), (rows - 1) * pitch + columns, search.found);
    }
}

/// Writes the largest of `taps` elements that are `distance` apart, beginning with each of `count` adjacent ones.
///
/// # Safety
/// As [`search_copy`].
#[inline(always)]
unsafe fn largest_of_taps<V: Vector>(
    from: *const f32,
    (taps, distance): (usize, usize),
    count: usize,
    target: *mut f32,
) {
    for first in (0..count).step_by(V::WIDTH) {
        // SAFETY: the caller's promises.
        unsafe {
            let mut largest = V::load(from.add(first));
            for tap in 1..taps {
                largest = largest.larger(V::load(from.add(first + tap * distance)));
            }
            largest.store(target.add(first));
        }
    }
}

/// Writes the largest element of each column that a row of windows sees to its line.
///
/// # Safety
/// As [`search_with`].
#[inline(always)]
unsafe fn largest_of_columns<V: Vector>(search: &Search, row: usize) {
    let planes = search.planes;
    let ((taps, first), width) = (planes.rows(row), planes.input[1]);
    // SAFETY: the caller's promises; vectors lie within rows.
    unsafe {
        let line = search.lines.add(row * search.pitch + planes.pads[1]);
        if taps == 0 {
            return (0..width).for_each(|column| *line.add(column) = f32::NEG_INFINITY);
        }
        let (x, pitch) = (search.x.add(first * search.x_pitch), planes.dilations[0] * search.x_pitch);
        if !vectors_of_columns::<V>(x, taps, pitch, width, line)
            && !vectors_of_columns::<V::Half>(x, taps, pitch, width, line)
        {
            for column in 0..width {
                let mut largest = *x.add(column);
                for tap in 1..taps {
                    let seen = *x.add(tap * pitch + column);
                    largest = if seen > largest || seen.is_nan() { seen } else { largest };
                }
                *line.add(column) = largest;
            }
        }
    }
}

/// Writes the largest element of each of `width` columns to a line, in vectors of which the last may overlap the one before. Returns false
/// if a vector is wider than that.
///
/// # Safety
/// As [`search_with`].
#[inline(always)]
unsafe fn vectors_of_columns<V: Vector>(
    x: *const f32,
    taps: usize,
    pitch: usize,
    width: usize,
    line: *mut f32,
) -> bool {
    if width < V::WIDTH {
        return false;
    }
    let mut next = 0;
    while next < width {
        let column = next.min(width - V::WIDTH);
        // SAFETY: the caller's promises; vectors lie within rows.
        unsafe {
            let mut largest = V::load(x.add(column));
            for tap in 1..taps {
                largest = largest.larger(V::load(x.add(tap * pitch + column)));
            }
            largest.store(line.add(column));
        }
        next += V::WIDTH;
    }
    true
}

/// Writes the largest elements of the windows on a line to the results. Elements after the end of a row are overwritten by the next row.
///
/// # Safety
/// As [`search_with`].
#[inline(always)]
unsafe fn largest_of_windows<V: Vector>(search: &Search, row: usize) {
    let Planes { kernel: [_, taps], dilations: [_, dilation], strides: [_, stride], .. } = *search.planes;
    let pitch = search.planes.found_pitch();
    // SAFETY: both are followed by room for whole vectors.
    unsafe {
        let (line, found) = (search.lines.add(row * search.pitch), search.found.add(row * pitch));
        if stride != 2 {
            return largest_of_taps::<V>(line, (taps, dilation), pitch, found);
        }
        for column in (0..pitch).step_by(V::WIDTH) {
            let mut largest = V::load_even(line.add(2 * column));
            for tap in 1..taps {
                largest = largest.larger(V::load_even(line.add(2 * column + tap * dilation)));
            }
            largest.store(found.add(column));
        }
    }
}
