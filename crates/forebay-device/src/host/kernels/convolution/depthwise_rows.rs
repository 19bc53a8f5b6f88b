//! Depthwise convolutions with adjacent positions of a row in a vector, for rows that fill vectors well.
//!
//! A vector's sums for the rows of y that see a row of x are in registers while that row is read: it is read once for all of them. Each sum
//! is in the same order as in [`super::correlation`].

use forebay_base::kernel::Activation;

use super::super::applied::apply_to;
use super::super::parallel::for_each;
use super::super::simd::{LANES, Vector, WIDTH_MAX, dispatch_wide};
use super::super::spatial::Spatial;
use super::super::thread_buffer::with_buffer;
use super::depthwise::TASKS;
use super::slab::{Span, copy_adjacent, spans};
use super::{Geometry, Operands};

/// The most packed elements of a block of rows: they stay in a core's first-level cache.
const PACKED_MAX: usize = 6 * 1024;
/// The most columns of a plane.
const COLUMNS_MAX: usize = 1024;
/// The least share of the vectors of a row that must be filled, in percent.
const FILLED_MIN: usize = 80;

/// A depthwise convolution of planes, and how it is cut.
pub(super) struct DepthwiseRows {
    images: usize,
    channels: usize,
    /// Rows and columns of a window, which has as many of both.
    window: usize,
    /// Rows and columns of zeros before x.
    pads: [usize; 2],
    /// Rows and columns of x and y.
    source: [usize; 2],
    target: [usize; 2],
    x: Spatial,
    y: Spatial,
    /// Rows of y in a block.
    block: usize,
    /// Packed elements from row to row.
    pitch: usize,
}

impl DepthwiseRows {
    /// Returns `None` for windows and strides that are not supported, or if rows would fill vectors poorly.
    pub fn of(geometry: &Geometry) -> Option<DepthwiseRows> {
        let Geometry { batch, groups, source, target, kernel, strides, dilations, pads, x, y, .. } = *geometry;
        let [[1, rows, window], [1, height, width], [1, ..]] = [kernel, target, source] else { return None };
        let is_supported = [geometry.inputs, geometry.outputs] == [1, 1]
            && groups >= LANES
            && rows == window
            && matches!(window, 3 | 5 | 7)
            && [strides, dilations] == [[1; 3]; 2]
            && pads[0] == 0
            && pads.iter().all(|&pad| pad < window)
            && !source.contains(&0)
            && (WIDTH_MAX + 1..=COLUMNS_MAX).contains(&width);
        let filled = width.next_multiple_of(WIDTH_MAX);
        if !is_supported || width * 100 < FILLED_MIN * filled {
            return None;
        }
        let pitch = filled + WIDTH_MAX;
        let rows = (PACKED_MAX / pitch).saturating_sub(window - 1);
        Some(DepthwiseRows {
            images: batch,
            channels: groups,
            window,
            pads: [pads[1], pads[2]],
            source: [source[1], source[2]],
            target: [height, width],
            x,
            y,
            block: rows.clamp(1, height.max(1)),
            pitch,
        })
    }

    /// Writes activation(convolution + bias) to y.
    ///
    /// # Safety
    /// As [`super::depthwise::Depthwise::run`].
    pub unsafe fn run(&self, activation: Activation, operands: &Operands) {
        let chunk = (self.images * self.channels).div_ceil(TASKS).clamp(1, self.channels);
        let chunks = self.channels.div_ceil(chunk);
        let rows = self.block - 1 + self.window;
        for_each(self.images * chunks, |index| {
            let (image, first) = (index / chunks, index % chunks * chunk);
            with_buffer(rows * self.pitch, |packed| {
                packed.fill(0.0);
                for channel in first..self.channels.min(first + chunk) {
                    let bias = operands.bias.map_or(0.0, |bias| bias[channel]);
                    // SAFETY: the image and its channels exist, there is room in the buffer, and every task writes different channels.
                    unsafe {
                        let x = operands.source.at((image * self.x.image + channel * self.x.channel) as isize);
                        let y = operands.target.at((image * self.y.image + channel * self.y.channel) as isize);
                        let weights = operands.weights.at((channel * self.window * self.window) as isize);
                        let limits = activation.limits();
                        convolve(&mut Job { rows: self, x, y, weights, bias, limits, packed });
                        if let Some(function) = activation.function() {
                            apply_to(function, y, [(1, 0), (1, 0), (self.target[0], self.y.row)], self.target[1]);
                        }
                    }
                }
            });
        });
    }
}

/// A channel of an image.
struct Job<'a> {
    rows: &'a DepthwiseRows,
    x: *const f32,
    y: *mut f32,
    weights: *const f32,
    bias: f32,
    /// The range to which sums are limited.
    limits: [f32; 2],
    packed: &'a mut [f32],
}

dispatch_wide! {
    /// # Safety
    /// As [`DepthwiseRows::run`]; the buffer has room for a block.
    fn convolve, convolve_with(job: &mut Job)
}

/// # Safety
/// As [`convolve`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn convolve_with<V: Vector>(job: &mut Job) {
    for rows in spans(job.rows.target[0], job.rows.block) {
        // SAFETY: the caller's promises.
        unsafe {
            V::outline(
                #[inline(always)]
                || pack::<V>(job, rows),
            );
            match job.rows.window {
                3 => sum_rows::<V, 3, 2>(job, rows),
                5 => sum_rows::<V, 5, 1>(job, rows),
                _ => sum_rows::<V, 7, 1>(job, rows),
            }
        }
    }
}

/// Packs the rows of x that some rows of y see. The zeros before and after each row are already there.
///
/// # Safety
/// As [`convolve_with`].
#[inline(always)]
unsafe fn pack<V: Vector>(job: &mut Job, rows: Span) {
    let DepthwiseRows { window, pads, source: [height, width], x, pitch, .. } = *job.rows;
    let count = width.min(pitch - pads[1]);
    let seen = rows.start..rows.start + rows.len - 1 + window;
    for (row, line) in seen.zip(job.packed.chunks_exact_mut(pitch)) {
        if row < pads[0] || row >= height + pads[0] {
            line.fill(0.0);
            continue;
        }
        // SAFETY: the row lies in x, and no one writes it; the CPU has the vector's instructions.
        unsafe {
            let source = std::slice::from_raw_parts(job.x.add((row - pads[0]) * x.row), count);
            copy_adjacent::<V>(&mut line[pads[1]..pads[1] + count], source);
        }
    }
}

/// Sums rows of y for windows of `K` rows and columns, `N` vectors at a time.
///
/// # Safety
/// As [`convolve_with`]; what the rows see must be packed.
#[inline(always)]
unsafe fn sum_rows<V: Vector, const K: usize, const N: usize>(job: &Job, rows: Span) {
    let columns = job.rows.target[1];
    let mut column = 0;
    while column < columns {
        let vectors = if column + V::WIDTH < columns { N } else { 1 };
        // SAFETY: the caller's promises; a vector of columns begins before the last column.
        unsafe {
            V::outline(
                #[inline(always)]
                || match vectors {
                    1 => sum_strip::<V, K, 1>(job, rows, column),
                    _ => sum_strip::<V, K, N>(job, rows, column),
                },
            );
        }
        column += vectors * V::WIDTH;
    }
}

/// Sums `N` vectors of columns of some rows, starting at a column.
///
/// # Safety
/// As [`sum_rows`].
#[inline(always)]
unsafe fn sum_strip<V: Vector, const K: usize, const N: usize>(job: &Job, rows: Span, column: usize) {
    let DepthwiseRows { pitch, y, target, .. } = *job.rows;
    let columns = (target[1] - column).min(N * V::WIDTH);
    // SAFETY: the caller's promises.
    unsafe {
        let [low, high] = job.limits.map(|limit| V::splat(limit));
        let bias = V::splat(job.bias);
        // The sums of the rows of y that see the next row of x, the oldest first. Rows before the first one are begun, too, but not stored.
        let mut sums = [[bias; K]; N];
        let mut line = job.packed.as_ptr().wrapping_add(column);
        for seen in 0..rows.len + K - 1 {
            for (n, sums) in sums.iter_mut().enumerate() {
                let windows = V::windows(line.wrapping_add(n * V::WIDTH));
                for (age, sum) in sums.iter_mut().rev().enumerate() {
                    for (tap, &window) in windows.iter().enumerate().take(K) {
                        *sum = sum.add_product(V::splat(*job.weights.add(age * K + tap)), window);
                    }
                }
            }
            // The oldest row is complete.
            if seen + 1 >= K {
                let row = rows.start + seen + 1 - K;
                store::<V, K, N>(&sums, [low, high], columns, job.y.add(row * y.row + column));
            }
            for sums in &mut sums {
                for k in 1..K {
                    sums[k - 1] = sums[k];
                }
                sums[K - 1] = bias;
            }
            line = line.wrapping_add(pitch);
        }
    }
}

/// Stores the oldest sums.
///
/// # Safety
/// As [`sum_rows`]; `columns` elements must be writable.
#[inline(always)]
unsafe fn store<V: Vector, const K: usize, const N: usize>(
    sums: &[[V; K]; N],
    [low, high]: [V; 2],
    columns: usize,
    y: *mut f32,
) {
    // SAFETY: the caller's promises.
    unsafe {
        for (n, sums) in sums.iter().enumerate() {
            let (sum, y) = (sums[0].limited(low, high), y.add(n * V::WIDTH));
            match columns - n * V::WIDTH {
                count if count < V::WIDTH => sum.store_first(y, count),
                _ => sum.store(y),
            }
        }
    }
}
