//! The largest elements of windows over planes: max pooling in whole vectors.
//!
//! For each row of windows, the largest element of every column comes first, then that of adjacent columns. NaN counts as larger than all
//! numbers. Of zeros with both signs, the first one in this order counts. The largest elements of columns go into lines with negative
//! infinity at both ends, so that the inner loops need no bounds checks. There are a few lines, which rows of windows use in turn, so that
//! they stay in the first-level cache. Narrow planes are copied with their padding, so that vectors reach across rows.

use super::parallel::copy_run;
use super::simd::{Vector, WIDTH_MAX, dispatch_wide};
use super::thread_buffer::ELEMENTS_MAX;

/// The most elements of a window along a dimension.
const WINDOW_MAX: usize = 16;
/// The most elements of a row with its padding, and of a plane that is copied.
const PADDED_MAX: usize = 64 * 1024;

/// The widest plane that is copied: of a wider one, rows fill vectors well enough.
const COPIED_MAX: usize = 48;

/// The lines that rows of windows use in turn, and the number of rows after which a line is read: a vector is read long after the two that it
/// overlaps were written.
const LINES: usize = 4;
const ROWS_BEHIND: usize = 2;

/// Planes of one size and their windows: rows, then columns.
pub(super) struct Planes {
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub pads: [usize; 2],
    /// Whether windows may see several planes.
    pub has_depth: bool,
}

/// The elements of the planes that windows of one plane see, and the destination of their results. Between the rows of results, others can
/// write at the same time.
pub(super) struct Plane<'a> {
    pub x: &'a [f32],
    /// Elements from row to row.
    pub x_pitch: usize,
    /// The number of planes that are seen, one of them unless windows have a third dimension, and the elements from plane to plane.
    pub depth: usize,
    pub x_plane: usize,
    pub y: *mut f32,
    /// Elements from row to row of results.
    pub y_pitch: usize,
}

/// The data in which windows are searched.
struct Search<'a> {
    planes: &'a Planes,
    x: *const f32,
    x_pitch: usize,
    depth: usize,
    x_plane: usize,
    /// The largest elements of the columns that rows of windows see, and the elements from line to line.
    lines: *mut f32,
    pitch: usize,
    /// The largest elements of windows: of a row, or of all rows of a plane that was copied.
    found: *mut f32,
    /// The results, and the elements from row to row.
    y: *mut f32,
    y_pitch: usize,
}

impl Planes {
    /// Whether rows are short enough for lines, and windows small enough to be seen in full.
    pub fn are_supported(&self) -> bool {
        let is_small = |d: usize| self.kernel[d] <= WINDOW_MAX && self.dilations[d] <= PADDED_MAX;
        let has_lines = || self.padded(1).is_some_and(|pitch| pitch <= PADDED_MAX) && self.padded(0).is_some();
        is_small(0) && is_small(1) && has_lines() && self.count() <= ELEMENTS_MAX
    }

    /// The number of padded rows or columns that windows reach.
    fn padded(&self, d: usize) -> Option<usize> {
        let seen = (self.output[d] - 1)
            .checked_mul(self.strides[d])?
            .checked_add((self.kernel[d] - 1) * self.dilations[d] + 1)?;
        Some(seen.max(self.pads[d].checked_add(self.input[d])?))
    }

    /// Whether planes are copied with their padding, if windows see only one.
    fn are_copied(&self) -> bool {
        let is_small =
            || self.padded(0).and_then(|rows| rows.checked_mul(self.pitch())).is_some_and(|n| n <= PADDED_MAX);
        !self.has_depth && self.strides == [1, 1] && self.input[1] <= COPIED_MAX && is_small()
    }

    /// The number of elements of the lines, of the largest elements of windows and of a copy, each including room for whole vectors at the
    /// end.
    fn counts(&self) -> [usize; 3] {
        let (lines, rows, copied) = match self.are_copied() {
            true => (self.output[0], self.output[0], self.padded(0).unwrap_or(PADDED_MAX) * self.pitch()),
            false => (LINES, 1, 0),
        };
        [lines * self.pitch(), rows * self.found_pitch(), copied].map(|count| count + 4 * WIDTH_MAX)
    }

    /// Elements from line to line.
    fn pitch(&self) -> usize {
        self.padded(1).unwrap_or(PADDED_MAX)
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
        let (Plane { x, x_pitch, depth, x_plane, y, y_pitch }, [rows, columns]) = (plane, self.input);
        let seen = depth.saturating_sub(1) * x_plane + (rows - 1) * x_pitch + columns;
        assert!(seen <= x.len() && (depth == 1 || self.has_depth), "{seen} elements of {}", x.len());
        let pitch = self.pitch();
        let (mut x_at, mut x_from) = (x.as_ptr(), x_pitch);
        if self.are_copied() {
            for (row, own) in copied[self.pads[0] * pitch..].chunks_mut(pitch).take(rows).enumerate() {
                copy_run(&mut own[self.pads[1]..][..columns], &x[row * x_pitch..][..columns]);
            }
            (x_at, x_from) = (copied.as_ptr(), pitch);
        }
        let (lines, found) = (lines.as_mut_ptr(), found.as_mut_ptr());
        // SAFETY: the plane holds its rows, and the buffer's parts hold everything that windows reach, followed by room for whole vectors; the
        // caller's promise.
        unsafe {
            search(&Search { planes: self, x: x_at, x_pitch: x_from, depth, x_plane, lines, pitch, found, y, y_pitch })
        };
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
    let rows = search.planes.output[0];
    for row in 0..rows + ROWS_BEHIND {
        // SAFETY: the caller's promises.
        unsafe {
            if row < rows {
                largest_of_columns::<V>(search, row);
            }
            if let Some(row) = row.checked_sub(ROWS_BEHIND) {
                largest_of_windows::<V>(search, row);
            }
        }
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
        for row in 0..rows {
            let y = std::slice::from_raw_parts_mut(search.y.add(row * search.y_pitch), columns);
            copy_run(y, std::slice::from_raw_parts(search.found.add(row * pitch), columns));
        }
    }
}

/// Returns the largest of some vectors, the first of which is `load(0)`.
#[inline(always)]
unsafe fn largest_of<V: Vector>(taps: usize, load: impl Fn(usize) -> V) -> V {
    // SAFETY: the caller's promises.
    unsafe {
        match taps {
            2 => load(0).larger(load(1)),
            3 => load(0).larger(load(1)).larger(load(2)),
            _ => {
                let mut largest = load(0);
                for tap in 1..taps {
                    largest = largest.larger(load(tap));
                }
                largest
            }
        }
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
            let largest = largest_of::<V>(
                taps,
                #[inline(always)]
                |tap| V::load(from.add(first + tap * distance)),
            );
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
        let line = search.lines.add(row % LINES * search.pitch + planes.pads[1]);
        if taps == 0 || search.depth == 0 {
            return (0..width).for_each(|column| *line.add(column) = f32::NEG_INFINITY);
        }
        let rows = (taps, planes.dilations[0] * search.x_pitch);
        for plane in 0..search.depth {
            let x = search.x.add(plane * search.x_plane + first * search.x_pitch);
            let is_first = plane == 0;
            if !vectors_of_columns::<V>(x, rows, width, line, is_first)
                && !vectors_of_columns::<V::Half>(x, rows, width, line, is_first)
            {
                elements_of_columns(x, rows, width, line, is_first);
            }
        }
    }
}

/// Writes the largest element of each of `width` columns of some rows to a line, or what the line has if that is larger and this is not the
/// first plane: in vectors of which the last may overlap the one before. Returns false if a vector is wider than that.
///
/// # Safety
/// As [`search_with`].
#[inline(always)]
unsafe fn vectors_of_columns<V: Vector>(
    x: *const f32,
    (taps, pitch): (usize, usize),
    width: usize,
    line: *mut f32,
    is_first: bool,
) -> bool {
    if width < V::WIDTH {
        return false;
    }
    let mut next = 0;
    while next < width {
        let column = next.min(width - V::WIDTH);
        // SAFETY: the caller's promises; vectors lie within rows.
        unsafe {
            let largest = largest_of::<V>(
                taps,
                #[inline(always)]
                |tap| V::load(x.add(tap * pitch + column)),
            );
            let largest = if is_first { largest } else { V::load(line.add(column)).larger(largest) };
            largest.store(line.add(column));
        }
        next += V::WIDTH;
    }
    true
}

/// Like [`vectors_of_columns`], element by element.
///
/// # Safety
/// As [`search_with`].
#[inline(always)]
unsafe fn elements_of_columns(
    x: *const f32,
    (taps, pitch): (usize, usize),
    width: usize,
    line: *mut f32,
    is_first: bool,
) {
    for column in 0..width {
        // SAFETY: the caller's promises.
        unsafe {
            let larger = |largest: f32, seen: f32| if seen > largest || seen.is_nan() { seen } else { largest };
            let largest = (1..taps).fold(*x.add(column), |largest, tap| larger(largest, *x.add(tap * pitch + column)));
            *line.add(column) = if is_first { largest } else { larger(*line.add(column), largest) };
        }
    }
}

/// Writes the largest elements of a row of windows to the results.
///
/// # Safety
/// As [`search_with`].
#[inline(always)]
unsafe fn largest_of_windows<V: Vector>(search: &Search, row: usize) {
    let Planes { kernel: [_, taps], dilations: [_, dilation], strides: [_, stride], .. } = *search.planes;
    let columns = search.planes.output[1];
    // SAFETY: the line is followed by room for whole vectors, and so is the row that is searched at every column; the caller's promises.
    unsafe {
        let line = search.lines.add(row % LINES * search.pitch);
        let y = search.y.add(row * search.y_pitch);
        if stride > 2 {
            largest_of_taps::<V>(line, (taps, dilation), search.planes.found_pitch(), search.found);
            return (0..columns).for_each(|column| *y.add(column) = *search.found.add(column * stride));
        }
        for column in (0..columns).step_by(V::WIDTH) {
            let largest = largest_of::<V>(
                taps,
                #[inline(always)]
                |tap| match stride {
                    1 => V::load(line.add(column + tap * dilation)),
                    _ => V::load_even(line.add(2 * column + tap * dilation)),
                },
            );
            match columns - column {
                count if count < V::WIDTH => largest.store_first(y.add(column), count),
                _ => largest.store(y.add(column)),
            }
        }
    }
}
