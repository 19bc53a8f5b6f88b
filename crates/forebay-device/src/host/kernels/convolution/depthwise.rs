//! Depthwise convolutions with a channel in each lane of a vector.
//!
//! Rows of a few positions fill vectors badly, and positions that see every second element have them apart; channels have
//! neither trouble. A block of a few channels is packed position by position, and summed, and its sums are stored channel by channel. Each
//! sum has the order that it has in [`super::correlation`].

use forebay_base::kernel::Activation;

use super::super::parallel::{for_each, Pointer};
use super::super::simd::{dispatch_wide, Vector, LANES, WIDTH_MAX};
use super::super::spatial::Spatial;
use super::super::thread_buffer::with_buffer;
use super::slab::{even, spans};
use super::Geometry;

/// Vectors of positions that are summed together.
const VECTORS: usize = 8;
/// Columns of a block, at most.
const COLUMNS_MAX: usize = 128;
/// Packed elements of a block where it has more than one row. With a quarter or twice as many, MobileNet v2's depthwise convolutions take
/// 1.1 times as long.
const PACKED_MAX: usize = 16 * 1024;
/// Packed elements of a block of one row.
const ROW_MAX: usize = 64 * 1024;
/// Taps whose weights are packed.
const TAPS_MAX: usize = 1024;
/// Tasks of all channels, about.
const TASKS: usize = 32;

/// A depthwise convolution of planes, or the gradient of one, and how it is cut: from x to y, whatever these are.
pub(super) struct Depthwise {
    images: usize,
    channels: usize,
    /// Rows and columns of x and y.
    source: [usize; 2],
    target: [usize; 2],
    strides: [usize; 2],
    pads: [usize; 2],
    x: Spatial,
    y: Spatial,
    /// Rows and columns of y that a block has at most.
    block: [usize; 2],
    /// Rows and columns of x that the window of one position spans.
    reach: [usize; 2],
    /// By tap: the packed position that the block's first one sees.
    offsets: Vec<usize>,
}

impl Depthwise {
    /// From x to y; none where channels side by side are of no use, or a window is too large.
    pub fn forward(geometry: &Geometry) -> Option<Depthwise> {
        Depthwise::new(geometry, |_, tap| tap)
    }

    /// From dy to dx; none where that is no convolution of dy, or as for [`Depthwise::forward`].
    pub fn transposed(geometry: &Geometry) -> Option<Depthwise> {
        let Geometry { source, target, kernel, strides, dilations, pads, x, y, .. } = *geometry;
        let mut before = [0; 3];
        for d in 0..3 {
            before[d] = (kernel[d].checked_sub(1)?).checked_mul(dilations[d])?.checked_sub(pads[d])?;
        }
        let mirrored = Geometry { source: target, target: source, pads: before, x: y, y: x, ..*geometry };
        (strides == [1; 3]).then(|| Depthwise::new(&mirrored, |count, tap| count - 1 - tap))?
    }

    /// `seen` says, of so many taps in a dimension, which place of the window one of this number sees.
    fn new(geometry: &Geometry, seen: impl Fn(usize, usize) -> usize) -> Option<Depthwise> {
        let Geometry { source, target, kernel, strides, dilations, pads, .. } = *geometry;
        let is_plane = source[0] == 1 && target[0] == 1 && kernel[0] == 1 && pads[0] == 0;
        let is_depthwise = [geometry.inputs, geometry.outputs] == [1, 1] && geometry.groups >= LANES;
        let is_held = matches!(strides[2], 1 | 2) && !target.contains(&0) && (1..=TAPS_MAX).contains(&geometry.taps());
        if !is_plane || !is_depthwise || !is_held {
            return None;
        }
        let [.., rows, columns] = target;
        let reach = [1, 2].map(|d| (kernel[d] - 1).saturating_mul(dilations[d]).saturating_add(1));
        let columns = even(columns, COLUMNS_MAX);
        let packed = |block: [usize; 2]| {
            let spans = [0, 1].map(|d| (block[d] - 1).saturating_mul(strides[d + 1]).saturating_add(reach[d]));
            spans[0].saturating_mul(spans[1]).saturating_mul(WIDTH_MAX)
        };
        let fitting = (1..=rows.min(PACKED_MAX)).take_while(|&rows| packed([rows, columns]) <= PACKED_MAX).last();
        let block = [even(rows, fitting.unwrap_or(1)), columns];
        if packed(block) > ROW_MAX {
            return None;
        }
        let pitch = (columns - 1) * strides[2] + reach[1];
        let offset = |tap: usize| {
            let [row, column] = [seen(kernel[1], tap / kernel[2]), seen(kernel[2], tap % kernel[2])];
            row * dilations[1] * pitch + column * dilations[2]
        };
        let two = |three: [usize; 3]| [three[1], three[2]];
        Some(Depthwise {
            images: geometry.batch,
            channels: geometry.groups,
            source: two(source),
            target: two(target),
            strides: two(strides),
            pads: two(pads),
            x: geometry.x,
            y: geometry.y,
            block,
            reach,
            offsets: (0..geometry.taps()).map(offset).collect(),
        })
    }

    /// Writes activation(convolution + bias) to y.
    ///
    /// # Safety
    /// The operands must have the convolution's sizes, a bias as many elements as there are channels; no one may write x and the weights,
    /// or touch y.
    pub unsafe fn run(&self, activation: Activation, operands: &Operands) {
        let vectors = self.channels.div_ceil(WIDTH_MAX);
        let chunk = (self.images * vectors).div_ceil(TASKS).clamp(1, vectors) * WIDTH_MAX;
        let chunks = self.channels.div_ceil(chunk);
        let [rows, columns] = self.packed_sizes();
        // Transposed blocks reach beyond the last position.
        let packed_count = (rows * columns + LANES) * WIDTH_MAX;
        let weights_count = self.offsets.len() * WIDTH_MAX;
        let sums_count = self.block[0] * self.block[1] * WIDTH_MAX;
        for_each(self.images * chunks, |index| {
            let (image, first) = (index / chunks, index % chunks * chunk);
            with_buffer(packed_count + weights_count + sums_count, |buffer| {
                let (packed, buffer) = buffer.split_at_mut(packed_count);
                let (weights, sums) = buffer.split_at_mut(weights_count);
                let (packed, weights, sums) = (packed.as_mut_ptr(), weights.as_mut_ptr(), sums.as_mut_ptr());
                let last = self.channels.min(first + chunk);
                let limits = activation.limits();
                let job = Job { depthwise: self, operands, limits, image, first, last, packed, weights, sums };
                // SAFETY: the caller's promises; the image and its channels exist, there is room in the buffers, and every task writes
                // channels of its own.
                unsafe { convolve(&job) };
            });
        });
    }

    /// Rows and columns that are packed for a block.
    fn packed_sizes(&self) -> [usize; 2] {
        [0, 1].map(|d| (self.block[d] - 1) * self.strides[d] + self.reach[d])
    }
}

/// Where the elements are.
pub(super) struct Operands<'a> {
    pub x: Pointer<f32>,
    /// By channel and tap.
    pub weights: Pointer<f32>,
    pub bias: Option<&'a [f32]>,
    pub y: Pointer<f32>,
}

/// Some channels of an image.
struct Job<'a> {
    depthwise: &'a Depthwise,
    operands: &'a Operands<'a>,
    /// What sums are limited to.
    limits: [f32; 2],
    image: usize,
    first: usize,
    last: usize,
    packed: *mut f32,
    weights: *mut f32,
    sums: *mut f32,
}

dispatch_wide! {
    /// # Safety
    /// As [`Depthwise::run`]; the buffers have room for a block.
    fn convolve, convolve_with(job: &Job)
}

/// # Safety
/// As [`convolve`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn convolve_with<V: Vector>(job: &Job) {
    for channels in spans(job.last - job.first, V::WIDTH) {
        let first = job.first + channels.start;
        // SAFETY: the caller's promises; the vector's half has its instructions, too.
        unsafe {
            match channels.len <= V::Half::WIDTH {
                true => convolve_vector::<V::Half>(job, first, channels.len),
                false => convolve_vector::<V>(job, first, channels.len),
            }
        }
    }
}

/// As many channels as a vector has lanes, or fewer.
///
/// # Safety
/// As [`convolve_with`].
#[inline(always)]
unsafe fn convolve_vector<V: Vector>(job: &Job, first: usize, lanes: usize) {
    let &Job { depthwise, operands, image, .. } = job;
    let Depthwise { x, y, block, target, ref offsets, .. } = *depthwise;
    let taps = offsets.len();
    // SAFETY: the caller's promises.
    unsafe {
        let weights = operands.weights.at((first * taps) as isize);
        let lines = Lines { first: weights, stride: taps, count: taps, readable: taps };
        V::outline(
            #[inline(always)]
            || spread_lines::<V>(&lines, lanes, job.weights),
        );
        let mut bias = [0.0; WIDTH_MAX];
        if let Some(all) = operands.bias {
            bias[..lanes].copy_from_slice(&all[first..first + lanes]);
        }
        let from = operands.x.at((image * x.image + first * x.channel) as isize);
        let to = operands.y.at((image * y.image + first * y.channel) as isize);
        for rows in spans(target[0], block[0]) {
            for columns in spans(target[1], block[1]) {
                V::outline(
                    #[inline(always)]
                    || pack::<V>(job, [rows.start, columns.start], from, lanes),
                );
                V::outline(
                    #[inline(always)]
                    || match depthwise.strides[1] {
                        1 => sum_block::<V, 1>(job, [rows.len, columns.len], &bias),
                        _ => sum_block::<V, 2>(job, [rows.len, columns.len], &bias),
                    },
                );
                // Rows that lie behind each other are one.
                let (runs, len) = match y.row == columns.len && columns.len == target[1] {
                    true => (1, rows.len * columns.len),
                    false => (rows.len, columns.len),
                };
                V::outline(
                    #[inline(always)]
                    || {
                        for run in 0..runs {
                            let to = to.add((rows.start + run) * y.row + columns.start);
                            gather_lines::<V>(job.sums.add(run * len * V::WIDTH), len, lanes, to, y.channel);
                        }
                    },
                );
            }
        }
    }
}

/// Packs what a block sees of channels from an address on, with zeros around.
///
/// # Safety
/// As [`convolve_with`].
#[inline(always)]
unsafe fn pack<V: Vector>(job: &Job, origin: [usize; 2], from: *const f32, lanes: usize) {
    let Depthwise { source, strides, pads, x, .. } = *job.depthwise;
    let [rows, pitch] = job.depthwise.packed_sizes();
    // The elements of x that the first packed one is, where x has that many before the block.
    let [top, left] = [0, 1].map(|d| (origin[d] * strides[d]) as isize - pads[d] as isize);
    let low = (-left).clamp(0, pitch as isize) as usize;
    let high = (source[1] as isize - left).clamp(low as isize, pitch as isize) as usize;
    let first = (left + low as isize) as usize;
    for row in 0..rows {
        let at = top + row as isize;
        // SAFETY: the row lies in the source and in the packed block; what is written behind it is packed later, or room for it.
        unsafe {
            let packed = job.packed.add(row * pitch * V::WIDTH);
            if at < 0 || at >= source[0] as isize || low == high {
                packed.write_bytes(0, pitch * V::WIDTH);
                continue;
            }
            let start = at as usize * x.row + first;
            // What lies between rows may be written by others meanwhile.
            let readable = if x.row == source[1] { x.span - start } else { high - low };
            let lines = Lines { first: from.add(start), stride: x.channel, count: high - low, readable };
            packed.write_bytes(0, low * V::WIDTH);
            spread_lines::<V>(&lines, lanes, packed.add(low * V::WIDTH));
            packed.add(high * V::WIDTH).write_bytes(0, (pitch - high) * V::WIDTH);
        }
    }
}

/// Elements that lie next to each other in lines, one for each lane.
struct Lines {
    first: *const f32,
    stride: usize,
    count: usize,
    /// Elements that each line has from its first on.
    readable: usize,
}

/// Puts lines into lanes: element i of each into vector i.
///
/// # Safety
/// The lines must be readable, and vectors writable for as many elements as they have, and for [`LANES`] at least.
#[inline(always)]
unsafe fn spread_lines<V: Vector>(lines: &Lines, lanes: usize, target: *mut f32) {
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

/// Puts lanes into lines of `count` elements: the opposite.
///
/// # Safety
/// The vectors must be readable, and the lines writable.
#[inline(always)]
unsafe fn gather_lines<V: Vector>(vectors: *const f32, count: usize, lanes: usize, target: *mut f32, stride: usize) {
    let whole = if count < LANES { 0 } else { lanes / LANES * LANES };
    // SAFETY: the caller's promises; where there are [`LANES`] elements, no block reaches beyond the last.
    unsafe {
        for lane in (0..whole).step_by(LANES) {
            for start in starts(count) {
                let vectors = vectors.add(start * V::WIDTH + lane);
                V::transpose(vectors, V::WIDTH as isize, target.add(lane * stride + start), stride);
            }
        }
        for lane in whole..lanes {
            for i in 0..count {
                *target.add(lane * stride + i) = *vectors.add(i * V::WIDTH + lane);
            }
        }
    }
}

/// Where blocks of [`LANES`] elements begin that cover a line: the last one ends with it, if there are as many.
#[inline(always)]
fn starts(count: usize) -> impl Iterator<Item = usize> {
    (0..count).step_by(LANES).map(move |start| start.min(count.saturating_sub(LANES)))
}

/// The sums of a block.
///
/// # Safety
/// As [`convolve_with`].
#[inline(always)]
unsafe fn sum_block<V: Vector, const STEP: usize>(job: &Job, [rows, columns]: [usize; 2], bias: &[f32; WIDTH_MAX]) {
    let depthwise = job.depthwise;
    let [_, pitch] = depthwise.packed_sizes();
    let at_once = even(columns, VECTORS);
    for row in 0..rows {
        for part in spans(columns, at_once) {
            // SAFETY: the caller's promises; the positions lie in the block.
            unsafe {
                let seen = job.packed.add((row * depthwise.strides[0] * pitch + part.start * STEP) * V::WIDTH);
                let sums = job.sums.add((row * columns + part.start) * V::WIDTH);
                match part.len {
                    1 => sum_positions::<V, STEP, 1>(job, bias, seen, sums),
                    2 => sum_positions::<V, STEP, 2>(job, bias, seen, sums),
                    3 => sum_positions::<V, STEP, 3>(job, bias, seen, sums),
                    4 => sum_positions::<V, STEP, 4>(job, bias, seen, sums),
                    5 => sum_positions::<V, STEP, 5>(job, bias, seen, sums),
                    6 => sum_positions::<V, STEP, 6>(job, bias, seen, sums),
                    7 => sum_positions::<V, STEP, 7>(job, bias, seen, sums),
                    _ => sum_positions::<V, STEP, VECTORS>(job, bias, seen, sums),
                }
            }
        }
    }
}

/// The sums of `N` positions of a row.
///
/// # Safety
/// As [`convolve_with`].
#[inline(always)]
unsafe fn sum_positions<V: Vector, const STEP: usize, const N: usize>(
    job: &Job,
    bias: &[f32; WIDTH_MAX],
    seen: *const f32,
    target: *mut f32,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let [low, high] = job.limits.map(|limit| V::splat(limit));
        let mut sums = [V::load(bias.as_ptr()); N];
        for (tap, offset) in job.depthwise.offsets.iter().enumerate() {
            let weight = V::load(job.weights.add(tap * V::WIDTH));
            let seen = seen.add(offset * V::WIDTH);
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = sum.add_product(weight, V::load(seen.add(n * STEP * V::WIDTH)));
            }
        }
        for (n, sum) in sums.into_iter().enumerate() {
            sum.limited(low, high).store(target.add(n * V::WIDTH));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::stored::Stored;
    use super::super::super::testing::{desc, Random};
    use super::super::super::View;
    use super::super::correlation::Correlation;
    use super::*;
    use forebay_base::kernel::{Convolution, Window};
    use forebay_base::{DataType, TensorDesc};

    /// A random depthwise convolution, with the sizes of x, w and y.
    fn random_case(random: &mut Random) -> (Convolution, [Vec<u64>; 3]) {
        let groups = 8 + random.below(30);
        let mut window =
            Window { kernel: vec![], strides: vec![], dilations: vec![], pads_begin: vec![], pads_end: vec![] };
        let batch = 1 + random.below(2);
        let (mut x, mut w, mut y) = (vec![batch, groups], vec![groups, 1], vec![batch, groups]);
        let stride = 1 + random.below(2);
        for _ in 0..2 {
            let (kernel, dilation) = (1 + random.below(5), 1 + random.below(2));
            let reach = (kernel - 1) * dilation + 1;
            let [begin, end] = [random.below(reach), random.below(reach)];
            let most = [9, 40, 150][random.below(3) as usize];
            let source = reach.saturating_sub(begin + end).max(1) + random.below(most);
            window.kernel.push(kernel);
            window.strides.push(stride);
            window.dilations.push(dilation);
            window.pads_begin.push(begin);
            window.pads_end.push(end);
            x.push(source);
            w.push(kernel);
            y.push((source + begin + end - reach) / stride + 1);
        }
        (Convolution { window, groups }, [x, w, y])
    }

    #[test]
    fn channels_in_lanes_give_the_bits_of_positions_in_lanes() {
        let mut random = Random::new(5);
        let mut gradients = 0;
        for number in 0..80 {
            let (convolution, sizes) = random_case(&mut random);
            let [x, w, y] = sizes.map(|sizes| desc(DataType::Float32, &sizes));
            let geometry = Geometry::new(&convolution, &x, &w, &y).unwrap();
            let mut numbers = |count: u64| (0..count).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect();
            let weights: Vec<f32> = numbers(w.element_count());
            let bias: Vec<f32> = numbers(geometry.groups as u64);
            let mut compare =
                |depthwise: Option<Depthwise>, correlation: Correlation, from: &TensorDesc, to: &TensorDesc| {
                    let Some(depthwise) = depthwise else { return false };
                    let mut source: Vec<f32> = numbers(from.element_count());
                    let mut results =
                        [vec![f32::NAN; to.element_count() as usize], vec![f32::NAN; to.element_count() as usize]];
                    let [ours, theirs] = results.each_mut().map(|result| result.as_mut_ptr());
                    let pointer = Pointer::new(weights.as_ptr().cast_mut());
                    let stored = |desc, address: *mut f32| Stored::of(&View { desc, pointer: address.cast() });
                    // SAFETY: the operands have the geometry's sizes.
                    unsafe {
                        let (x, y) = (Pointer::new(source.as_mut_ptr()), Pointer::new(ours));
                        let operands = Operands { x, weights: pointer, bias: Some(&bias), y };
                        depthwise.run(Activation::Relu, &operands);
                        let source = stored(from, source.as_mut_ptr());
                        correlation.run(Activation::Relu, source, pointer, Some(&bias), stored(to, theirs));
                    }
                    assert_eq!(results[0], results[1], "case {number}: {geometry:?}");
                    true
                };
            let correlation = Correlation::forward(&geometry).unwrap();
            assert!(compare(Depthwise::forward(&geometry), correlation, &x, &y), "case {number}: {geometry:?}");
            let correlation = Correlation::transposed(&geometry).unwrap();
            gradients += usize::from(compare(Depthwise::transposed(&geometry), correlation, &y, &x));
        }
        assert!(gradients > 20, "{gradients}");
    }
}
