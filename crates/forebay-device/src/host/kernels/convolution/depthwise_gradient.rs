//! The gradient with respect to the weights of a depthwise convolution of planes, with one channel in each lane of a vector.
//!
//! A row of positions is summed in blocks of [`COLUMNS`], each starting from zero at its first position, for several taps at once. Blocks
//! are added in the order in which they are packed, from the first row of a chunk on. So a chunk has the same sums in a part of an image.

use super::super::simd::{LANES, Vector, WIDTH_MAX, dispatch_wide};
use super::super::stored::Stored;
use super::Geometry;
use super::lanes::Channels;
use super::slab::{Span, spans};

/// Positions of a row that are summed from zero.
const COLUMNS: usize = 128;
/// Packed elements of x: as many rows as fit, or the rows that one row of positions sees, which may be more.
const PACKED_MAX: usize = 16 * 1024;
const ROW_MAX: usize = 128 * 1024;
/// The most taps of a row that are summed together.
const TAPS: usize = 8;

/// How the gradient of a depthwise convolution's weights is summed: channel by channel, tap by tap.
#[derive(Clone, Copy, Debug)]
pub(super) struct DepthwiseGradient {
    /// Rows of positions that are packed together.
    height: usize,
    /// Rows and columns of x that these rows see.
    packed: [usize; 2],
}

impl DepthwiseGradient {
    /// Channels of a tile.
    pub const CHANNELS: usize = WIDTH_MAX;

    /// Returns `None` if groups have several channels, if these are not planes, or if a window is too large. The numbers of channels and
    /// rows do not matter: parts of a convolution are summed as the whole is.
    pub fn of(geometry: &Geometry) -> Option<DepthwiseGradient> {
        if [geometry.inputs, geometry.outputs] != [1, 1] || geometry.first == 0 {
            return None;
        }
        let columns = geometry.seen(2, COLUMNS);
        let count = |height: usize| geometry.seen(1, height).saturating_mul(columns).saturating_mul(WIDTH_MAX);
        let fits = |height: usize, most: usize| count(height) <= most;
        if !fits(1, ROW_MAX) {
            return None;
        }
        let height = (2..=geometry.target[1]).take_while(|&height| fits(height, PACKED_MAX)).last().unwrap_or(1);
        Some(DepthwiseGradient { height, packed: [geometry.seen(1, height), columns] })
    }

    /// The number of buffer elements that [`DepthwiseGradient::add`] needs.
    pub fn packed_count(self, geometry: &Geometry) -> usize {
        let [rows, columns] = self.packed;
        // The packed elements of x and of a row of dy, one line of each channel while it is widened, and the sums. A transposed block may
        // reach beyond the last position.
        (rows * columns + COLUMNS + columns + geometry.taps() + 2 * LANES) * WIDTH_MAX
    }

    /// Adds the sums over some rows of positions (or columns, if there is one row) of an image for some channels, by channel and tap. `x`
    /// and `dy` begin at the first channel.
    ///
    /// # Safety
    /// The channels must have the geometry's positions, and no one may write them; the buffer must have as many elements as
    /// [`DepthwiseGradient::packed_count`] says.
    pub unsafe fn add(
        self,
        geometry: &Geometry,
        channels: usize,
        positions: Span,
        [x, dy]: [Stored<f32>; 2],
        buffer: &mut [f32],
        sums: &mut [f32],
    ) {
        let mut job = Job { gradient: self, geometry, channels, positions, x, dy, buffer, sums };
        // SAFETY: the caller's promises.
        unsafe { add_rows(&mut job) };
    }
}

/// Some channels of some rows.
struct Job<'a> {
    gradient: DepthwiseGradient,
    geometry: &'a Geometry,
    channels: usize,
    positions: Span,
    x: Stored<f32>,
    dy: Stored<f32>,
    buffer: &'a mut [f32],
    sums: &'a mut [f32],
}

dispatch_wide! {
    /// # Safety
    /// As [`DepthwiseGradient::add`].
    fn add_rows, add_rows_with(job: &mut Job)
}

/// # Safety
/// As [`add_rows`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn add_rows_with<V: Vector>(job: &mut Job) {
    for channels in spans(job.channels, V::WIDTH) {
        // SAFETY: the caller's promises; the vector's half has its instructions, too.
        unsafe {
            match channels.len <= V::Half::WIDTH {
                true => add_channels::<V::Half>(job, channels),
                false => add_channels::<V>(job, channels),
            }
        }
    }
}

/// Adds the sums of up to as many channels as a vector has lanes.
///
/// # Safety
/// As [`add_rows_with`].
#[inline(always)]
unsafe fn add_channels<V: Vector>(job: &mut Job, channels: Span) {
    let (geometry, DepthwiseGradient { height, packed: [packed_rows, pitch] }) = (job.geometry, job.gradient);
    let Geometry { kernel, strides, dilations, pads, source, target, .. } = *geometry;
    let taps = geometry.taps();
    // Along the rows of an image, or along its only row.
    let (rows, columns) = match geometry.first {
        1 => (job.positions, Span { start: 0, len: target[2] }),
        _ => (Span { start: 0, len: target[1] }, job.positions),
    };
    let (seen, rest) = job.buffer.split_at_mut((packed_rows * pitch + LANES) * WIDTH_MAX);
    let (gradient, rest) = rest.split_at_mut((COLUMNS + LANES) * WIDTH_MAX);
    let (line, rest) = rest.split_at_mut(pitch * WIDTH_MAX);
    let sums = &mut rest[..taps * V::WIDTH];
    sums.fill(0.0);
    // SAFETY: the channels exist; the caller promises the rest.
    let [x, dy] = unsafe {
        [
            job.x.at((channels.start * geometry.x.channel) as isize),
            job.dy.at((channels.start * geometry.y.channel) as isize),
        ]
    };
    let of_x = Channels { elements: x, layout: &geometry.x, sizes: [source[1], source[2]], lanes: channels.len };
    let of_dy = Channels { elements: dy, layout: &geometry.y, sizes: [target[1], target[2]], lanes: channels.len };
    for block in spans(rows.len, height) {
        let top = rows.start + block.start;
        for part in spans(columns.len, COLUMNS) {
            let left = columns.start + part.start;
            let wide = geometry.seen(2, part.len);
            for row in 0..geometry.seen(1, block.len) {
                let at = (top * strides[1] + row).checked_sub(pads[1]).filter(|&at| at < source[1]);
                let start = at.map(|at| at * geometry.x.row);
                // SAFETY: the row lies in the channels; there is room for the packed elements.
                unsafe {
                    let target = seen.as_mut_ptr().add(row * pitch * V::WIDTH);
                    V::outline(
                        #[inline(always)]
                        || of_x.pack::<V>(start, [left * strides[2], pads[2]], wide, line, target),
                    );
                }
            }
            for row in 0..block.len {
                let start = Some((top + row) * geometry.y.row);
                // SAFETY: as above.
                unsafe {
                    V::outline(
                        #[inline(always)]
                        || of_dy.pack::<V>(start, [left, 0], part.len, line, gradient.as_mut_ptr()),
                    );
                    let run = Run {
                        gradient: gradient.as_ptr(),
                        count: part.len,
                        seen: seen.as_ptr().add(row * strides[1] * pitch * V::WIDTH),
                        step: strides[2] * V::WIDTH,
                        tap: dilations[2] * V::WIDTH,
                        tap_row: dilations[1] * pitch * V::WIDTH,
                    };
                    V::outline(
                        #[inline(always)]
                        || sum_taps::<V>(&run, [kernel[1], kernel[2]], sums.as_mut_ptr()),
                    );
                }
            }
        }
    }
    for (lane, own) in job.sums.chunks_exact_mut(taps).skip(channels.start).take(channels.len).enumerate() {
        let of_lane = sums.iter().skip(lane).step_by(V::WIDTH);
        own.iter_mut().zip(of_lane).for_each(|(own, sum)| *own += sum);
    }
}

/// A row of positions and the elements that they see.
struct Run {
    gradient: *const f32,
    count: usize,
    seen: *const f32,
    /// Elements from position to position, from tap to tap, and from one row of taps to the next.
    step: usize,
    tap: usize,
    tap_row: usize,
}

/// Adds the sums over a row of positions, tap by tap.
///
/// # Safety
/// All elements that the positions see must be packed, and there must be a vector of sums for each tap; see [`add_rows_with`].
#[inline(always)]
unsafe fn sum_taps<V: Vector>(run: &Run, [height, width]: [usize; 2], sums: *mut f32) {
    let mut row = 0;
    while row < height {
        let rows = match width {
            3 if height - row >= 3 => 3,
            2..=5 if height - row >= 2 => 2,
            _ => 1,
        };
        for part in spans(width, TAPS) {
            // SAFETY: the caller's promises.
            unsafe {
                let seen = run.seen.add(row * run.tap_row + part.start * run.tap);
                let sums = sums.add((row * width + part.start) * V::WIDTH);
                match (rows, part.len) {
                    (3, 3) => sum_some::<V, 3, 3>(run, seen, width, sums),
                    (2, 2) => sum_some::<V, 2, 2>(run, seen, width, sums),
                    (2, 3) => sum_some::<V, 2, 3>(run, seen, width, sums),
                    (2, 4) => sum_some::<V, 2, 4>(run, seen, width, sums),
                    (2, 5) => sum_some::<V, 2, 5>(run, seen, width, sums),
                    (_, 1) => sum_some::<V, 1, 1>(run, seen, width, sums),
                    (_, 2) => sum_some::<V, 1, 2>(run, seen, width, sums),
                    (_, 3) => sum_some::<V, 1, 3>(run, seen, width, sums),
                    (_, 4) => sum_some::<V, 1, 4>(run, seen, width, sums),
                    (_, 5) => sum_some::<V, 1, 5>(run, seen, width, sums),
                    (_, 6) => sum_some::<V, 1, 6>(run, seen, width, sums),
                    (_, 7) => sum_some::<V, 1, 7>(run, seen, width, sums),
                    _ => sum_some::<V, 1, TAPS>(run, seen, width, sums),
                }
            }
        }
        row += rows;
    }
}

/// The same for `N` taps in each of `R` rows of a window of this width.
///
/// # Safety
/// As [`sum_taps`].
#[inline(always)]
unsafe fn sum_some<V: Vector, const R: usize, const N: usize>(
    run: &Run,
    seen: *const f32,
    width: usize,
    sums: *mut f32,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let mut own = [[V::splat(0.0); N]; R];
        for position in 0..run.count {
            let gradient = V::load(run.gradient.add(position * V::WIDTH));
            let seen = seen.add(position * run.step);
            for (r, own) in own.iter_mut().enumerate() {
                for (n, sum) in own.iter_mut().enumerate() {
                    *sum = sum.add_product(gradient, V::load(seen.add(r * run.tap_row + n * run.tap)));
                }
            }
        }
        for (r, own) in own.into_iter().enumerate() {
            for (n, sum) in own.into_iter().enumerate() {
                let at = sums.add((r * width + n) * V::WIDTH);
                V::load(at).add_product(sum, V::splat(1.0)).store(at);
            }
        }
    }
}
