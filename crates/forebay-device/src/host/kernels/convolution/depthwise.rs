//! Depthwise convolutions with one channel in each lane of a vector.
//!
//! Short rows fill vectors poorly, and positions that see every second element need elements that are not adjacent; channels have neither
//! problem. A block of a few channels is packed position by position and summed, and its sums are stored channel by channel. Each sum is in
//! the same order as in [`super::correlation`].

use forebay_base::kernel::Activation;

use super::super::applied::apply_to;
use super::super::parallel::for_each;
use super::super::simd::{LANES, Vector, WIDTH_MAX, dispatch_wide};
use super::super::spatial::Spatial;
use super::super::thread_buffer::with_buffer;
use super::lanes::{Lines, gather_lines, spread_lines, spread_padded};
use super::slab::{even, spans};
use super::{Geometry, Operands};

/// Vectors of positions that are summed together.
const VECTORS: usize = 8;
/// The most columns of a block.
const COLUMNS_MAX: usize = 128;
/// The most packed elements, and the most sums, of a block. With a quarter or twice as many, MobileNet v2's depthwise convolutions take 1.1
/// times as long.
const HELD_MAX: usize = 16 * 1024;
/// The same limit for a block with as few rows as possible.
const ROW_MAX: usize = 64 * 1024;
/// The most taps whose weights are packed.
const TAPS_MAX: usize = 1024;
/// The largest stride of the opposite direction, in which each remainder is a class.
const STRIDE_MAX: isize = 2;
/// The approximate number of tasks of all channels.
pub(super) const TASKS: usize = 32;

/// A depthwise convolution of planes, or its data gradient, and how it is cut. It goes from x to y, whatever these are.
pub(super) struct Depthwise {
    images: usize,
    channels: usize,
    taps: usize,
    /// Rows and columns of x and y.
    source: [usize; 2],
    target: [usize; 2],
    x: Spatial,
    y: Spatial,
    rows: Dimension,
    columns: Dimension,
    /// The most rows and columns of y in a block: a whole number of classes.
    block: [usize; 2],
    /// By class of row and of column.
    families: Vec<Family>,
}

/// The taps that positions see, in the order of their sums.
#[derive(Default)]
struct Family {
    /// Their numbers in the kernel.
    taps: Vec<usize>,
    /// For each tap, the packed position that the block's first position sees through it.
    offsets: Vec<usize>,
    /// The number of taps in the families before, which is where this family's weights begin.
    first: usize,
}

/// The elements that positions see along one dimension.
struct Dimension {
    /// Elements of x between those that adjacent positions of a class see.
    stride: usize,
    /// Elements of x before the one that belongs to position 0 of a class, and all elements that the position sees from there on.
    before: usize,
    reach: usize,
    /// Classes of positions that see the same taps, by the remainder of a position modulo the number of classes. Each lists, for every tap,
    /// its number and the place in the reach that it sees.
    classes: Vec<Vec<(usize, usize)>>,
}

impl Dimension {
    /// Dimension `d` of the forward direction.
    fn forward(geometry: &Geometry, d: usize) -> Option<Dimension> {
        let seen = |number: usize| {
            let element = number.checked_mul(geometry.dilations[d])?;
            Some((number, isize::try_from(element).ok()? - isize::try_from(geometry.pads[d]).ok()?))
        };
        Dimension::new(geometry.strides[d], vec![(0..geometry.kernel[d]).map(seen).collect::<Option<_>>()?])
    }

    /// Dimension `d` of the opposite direction: an element sees the taps whose distance to it is a multiple of the stride.
    fn transposed(geometry: &Geometry, d: usize) -> Option<Dimension> {
        let stride = isize::try_from(geometry.strides[d]).ok().filter(|&stride| stride <= STRIDE_MAX)?;
        let mut classes = vec![Vec::new(); stride as usize];
        for number in 0..geometry.kernel[d] {
            let element = isize::try_from(number.checked_mul(geometry.dilations[d])?).ok()?;
            let back = element - isize::try_from(geometry.pads[d]).ok()?;
            let class = back.rem_euclid(stride);
            classes[class as usize].push((number, (class - back) / stride));
        }
        Dimension::new(1, classes)
    }

    /// Creates a dimension. For each class, `classes` lists its taps and the element of x that position 0 sees through each.
    fn new(stride: usize, classes: Vec<Vec<(usize, isize)>>) -> Option<Dimension> {
        let seen = || classes.iter().flatten().map(|&(_, element)| element);
        let before = seen().min().unwrap_or(0).min(0).unsigned_abs();
        let place = |element: isize| (element + before as isize) as usize;
        let reach = seen().max().map_or(0, place).checked_add(1)?;
        let places = |class: &Vec<(usize, isize)>| class.iter().map(|&(tap, element)| (tap, place(element))).collect();
        Some(Dimension { stride, before, reach, classes: classes.iter().map(places).collect() })
    }

    /// The number of elements of x that a block of this many positions sees.
    fn packed(&self, positions: usize) -> usize {
        let last = positions.div_ceil(self.classes.len()).saturating_sub(1);
        last.saturating_mul(self.stride).saturating_add(self.reach)
    }
}

impl Depthwise {
    /// The direction from x to y. Returns `None` if channels side by side are of no use, or if a window is too large.
    pub fn forward(geometry: &Geometry) -> Option<Depthwise> {
        is_of_use(geometry).then(|| Depthwise::new(geometry, Dimension::forward))?
    }

    /// The direction from dy to dx. Returns `None` in the same cases as [`Depthwise::forward`].
    pub fn transposed(geometry: &Geometry) -> Option<Depthwise> {
        let Geometry { source, target, x, y, .. } = *geometry;
        let mirrored = Geometry { source: target, target: source, x: y, y: x, ..*geometry };
        is_of_use(geometry).then(|| Depthwise::new(&mirrored, Dimension::transposed))?
    }

    fn new(geometry: &Geometry, dimension: fn(&Geometry, usize) -> Option<Dimension>) -> Option<Depthwise> {
        let Geometry { source, target, kernel, .. } = *geometry;
        let (rows, columns) = (dimension(geometry, 1)?, dimension(geometry, 2)?);
        let width = even(target[2], COLUMNS_MAX).next_multiple_of(columns.classes.len());
        // The size of the packed elements or of the sums, whichever is larger.
        let held = |height: usize| {
            let packed = rows.packed(height).saturating_mul(columns.packed(width));
            packed.max(height * width).saturating_mul(WIDTH_MAX)
        };
        let fitting = (1..=target[1].min(HELD_MAX)).take_while(|&height| held(height) <= HELD_MAX).last();
        let height = even(target[1], fitting.unwrap_or(1)).next_multiple_of(rows.classes.len());
        if held(height) > ROW_MAX {
            return None;
        }
        let pitch = columns.packed(width);
        let mut families = Vec::with_capacity(rows.classes.len() * columns.classes.len());
        let mut first = 0;
        for (row, column) in rows.classes.iter().flat_map(|row| columns.classes.iter().map(move |column| (row, column)))
        {
            let mut family = Family { first, ..Family::default() };
            for (&(y, down), &(x, right)) in row.iter().flat_map(|row| column.iter().map(move |column| (row, column))) {
                family.taps.push(y * kernel[2] + x);
                family.offsets.push(down * pitch + right);
            }
            first += family.taps.len();
            families.push(family);
        }
        Some(Depthwise {
            images: geometry.batch,
            channels: geometry.groups,
            taps: geometry.taps(),
            source: [source[1], source[2]],
            target: [target[1], target[2]],
            x: geometry.x,
            y: geometry.y,
            block: [height, width],
            families,
            rows,
            columns,
        })
    }

    /// Writes activation(convolution + bias) to y.
    ///
    /// # Safety
    /// The operands must have the convolution's sizes, and a bias must have one element per channel; no one may write x and the weights, or
    /// touch y.
    pub unsafe fn run(&self, activation: Activation, operands: &Operands) {
        let vectors = self.channels.div_ceil(WIDTH_MAX);
        let chunk = (self.images * vectors).div_ceil(TASKS).clamp(1, vectors) * WIDTH_MAX;
        let chunks = self.channels.div_ceil(chunk);
        let [rows, columns] = self.packed_sizes();
        // Transposed blocks reach beyond the last position.
        let packed_count = (rows * columns + LANES) * WIDTH_MAX;
        let weights_count = self.taps * WIDTH_MAX;
        // Before there are sums, this space holds weights in the order of the kernel.
        let sums_count = (self.block[0] * self.block[1]).max(self.taps) * WIDTH_MAX;
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
                // different channels.
                unsafe {
                    convolve(&job);
                    if let Some(function) = activation.function() {
                        let start = operands.target.at((image * self.y.image + first * self.y.channel) as isize);
                        let outer = [(last - first, self.y.channel), (1, 0), (self.target[0], self.y.row)];
                        apply_to(function, start, outer, self.target[1]);
                    }
                }
            });
        });
    }

    /// The rows and columns that are packed for a block.
    fn packed_sizes(&self) -> [usize; 2] {
        [self.rows.packed(self.block[0]), self.columns.packed(self.block[1])]
    }
}

/// Whether a convolution has planes, one channel per group, and enough groups.
fn is_of_use(geometry: &Geometry) -> bool {
    let Geometry { source, target, kernel, strides, pads, .. } = *geometry;
    let is_plane = source[0] == 1 && target[0] == 1 && kernel[0] == 1 && pads[0] == 0;
    let is_depthwise = [geometry.inputs, geometry.outputs] == [1, 1] && geometry.groups >= LANES;
    let has_positions = !source.contains(&0) && !target.contains(&0);
    is_plane
        && is_depthwise
        && has_positions
        && matches!(strides[2], 1 | 2)
        && (1..=TAPS_MAX).contains(&geometry.taps())
}

/// Some channels of an image.
struct Job<'a> {
    depthwise: &'a Depthwise,
    operands: &'a Operands<'a>,
    /// The range to which sums are limited.
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

/// Convolves up to as many channels as a vector has lanes.
///
/// # Safety
/// As [`convolve_with`].
#[inline(always)]
unsafe fn convolve_vector<V: Vector>(job: &Job, first: usize, lanes: usize) {
    let &Job { depthwise, operands, image, .. } = job;
    let Depthwise { x, y, block, target, taps, .. } = *depthwise;
    // SAFETY: the caller's promises.
    unsafe {
        let weights = operands.weights.at((first * taps) as isize);
        let lines = Lines { first: weights, stride: taps, count: taps, readable: taps };
        V::outline(
            #[inline(always)]
            || {
                spread_lines::<V>(&lines, lanes, job.sums);
                for (place, &tap) in depthwise.families.iter().flat_map(|family| &family.taps).enumerate() {
                    V::load(job.sums.add(tap * V::WIDTH)).store(job.weights.add(place * V::WIDTH));
                }
            },
        );
        let mut bias = [0.0; WIDTH_MAX];
        if let Some(all) = operands.bias {
            bias[..lanes].copy_from_slice(&all[first..first + lanes]);
        }
        let from = operands.source.at((image * x.image + first * x.channel) as isize);
        let to = operands.target.at((image * y.image + first * y.channel) as isize);
        for rows in spans(target[0], block[0]) {
            for columns in spans(target[1], block[1]) {
                V::outline(
                    #[inline(always)]
                    || pack::<V>(job, [rows.start, columns.start], from, lanes),
                );
                V::outline(
                    #[inline(always)]
                    || match (depthwise.columns.stride, depthwise.columns.classes.len()) {
                        (1, 1) => sum_block::<V, 1, 1>(job, [rows.len, columns.len], &bias),
                        (1, _) => sum_block::<V, 1, 2>(job, [rows.len, columns.len], &bias),
                        (_, _) => sum_block::<V, 2, 1>(job, [rows.len, columns.len], &bias),
                    },
                );
                // Rows that are contiguous count as one.
                let (runs, len) = match y.row == columns.len && columns.len == target[1] {
                    true => (1, rows.len * columns.len),
                    false => (rows.len, columns.len),
                };
                V::outline(
                    #[inline(always)]
                    || {
                        for run in 0..runs {
                            let to = to.add((rows.start + run) * y.row + columns.start);
                            gather_lines::<V>(job.sums.add(run * len * V::WIDTH), V::WIDTH, len, lanes, to, y.channel);
                        }
                    },
                );
            }
        }
    }
}

/// Packs the elements that a block sees of channels, starting at an address, with zeros around them.
///
/// # Safety
/// As [`convolve_with`].
#[inline(always)]
unsafe fn pack<V: Vector>(job: &Job, origin: [usize; 2], from: *const f32, lanes: usize) {
    let Depthwise { source, x, rows, columns, .. } = job.depthwise;
    let first = |position: usize, dimension: &Dimension| {
        (position / dimension.classes.len() * dimension.stride) as isize - dimension.before as isize
    };
    // The row and the column of x that are packed first, if x has them.
    let (top, left) = (first(origin[0], rows), first(origin[1], columns));
    let [rows, pitch] = job.depthwise.packed_sizes();
    let low = (-left).clamp(0, pitch as isize) as usize;
    let high = (source[1] as isize - left).clamp(low as isize, pitch as isize) as usize;
    let first = (left + low as isize) as usize;
    for row in 0..rows {
        let at = top + row as isize;
        // SAFETY: the row lies in the source and in the packed block; anything written after it is overwritten later or is spare room.
        unsafe {
            let packed = job.packed.add(row * pitch * V::WIDTH);
            let is_inside = (0..source[0] as isize).contains(&at) && low < high;
            let lines = is_inside.then(|| Lines::of_row(from, x, *source, at as usize * x.row + first, high - low));
            spread_padded::<V>(lines, lanes, low, pitch, packed);
        }
    }
}

/// Computes the sums of a block whose columns have one or two classes.
///
/// # Safety
/// As [`convolve_with`].
#[inline(always)]
unsafe fn sum_block<V: Vector, const STEP: usize, const CLASSES: usize>(
    job: &Job,
    [height, width]: [usize; 2],
    bias: &[f32; WIDTH_MAX],
) {
    let Depthwise { rows, families, .. } = job.depthwise;
    let [_, pitch] = job.depthwise.packed_sizes();
    let row_classes = rows.classes.len();
    for row in 0..height {
        let first = row / row_classes * rows.stride * pitch;
        for class in 0..CLASSES.min(width) {
            let count = (width - class).div_ceil(CLASSES);
            let family = &families[row % row_classes * CLASSES + class];
            let weights = job.weights.wrapping_add(family.first * V::WIDTH);
            for part in spans(count, even(count, VECTORS)) {
                // SAFETY: the caller's promises; the positions lie in the block.
                unsafe {
                    let seen = job.packed.add((first + part.start * STEP) * V::WIDTH);
                    let sums = job.sums.add((row * width + class + part.start * CLASSES) * V::WIDTH);
                    let offsets = &family.offsets[..];
                    let places = Places { offsets, weights, bias, seen, sums };
                    match part.len {
                        1 => sum_positions::<V, STEP, CLASSES, 1>(job, &places),
                        2 => sum_positions::<V, STEP, CLASSES, 2>(job, &places),
                        3 => sum_positions::<V, STEP, CLASSES, 3>(job, &places),
                        4 => sum_positions::<V, STEP, CLASSES, 4>(job, &places),
                        5 => sum_positions::<V, STEP, CLASSES, 5>(job, &places),
                        6 => sum_positions::<V, STEP, CLASSES, 6>(job, &places),
                        7 => sum_positions::<V, STEP, CLASSES, 7>(job, &places),
                        _ => sum_positions::<V, STEP, CLASSES, VECTORS>(job, &places),
                    }
                }
            }
        }
    }
}

/// Some positions of one row and class.
struct Places<'a> {
    /// By tap: the packed position, relative to `seen`, that the first position sees, and the weights of all lanes.
    offsets: &'a [usize],
    weights: *const f32,
    bias: &'a [f32; WIDTH_MAX],
    seen: *const f32,
    /// The first position's sums.
    sums: *mut f32,
}

/// Computes the sums of `N` positions.
///
/// # Safety
/// As [`convolve_with`].
#[inline(always)]
unsafe fn sum_positions<V: Vector, const STEP: usize, const CLASSES: usize, const N: usize>(
    job: &Job,
    places: &Places,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let [low, high] = job.limits.map(|limit| V::splat(limit));
        let mut sums = [V::load(places.bias.as_ptr()); N];
        for (tap, offset) in places.offsets.iter().enumerate() {
            let weight = V::load(places.weights.add(tap * V::WIDTH));
            let seen = places.seen.add(offset * V::WIDTH);
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = sum.add_product(weight, V::load(seen.add(n * STEP * V::WIDTH)));
            }
        }
        for (n, sum) in sums.into_iter().enumerate() {
            sum.limited(low, high).store(places.sums.add(n * CLASSES * V::WIDTH));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::View;
    use super::super::super::parallel::Pointer;
    use super::super::super::stored::Stored;
    use super::super::super::testing::{Random, desc};
    use super::super::correlation::Correlation;
    use super::super::turned::turn_weights;
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
        for number in 0..80 {
            let (convolution, sizes) = random_case(&mut random);
            let [x, w, y] = sizes.map(|sizes| desc(DataType::Float32, &sizes));
            let geometry = Geometry::new(&convolution, &x, &w, &y).unwrap();
            let mut numbers = |count: u64| (0..count).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect();
            let weights: Vec<f32> = numbers(w.element_count());
            let bias: Vec<f32> = numbers(geometry.groups as u64);
            let pointer = Pointer::new(weights.as_ptr().cast_mut());
            let stored = |desc: &TensorDesc, address: *mut f32| Stored::of(&View { desc, pointer: address.cast() });
            let mut compare = |ours: Depthwise,
                               theirs: (Correlation, Pointer<f32>),
                               from: &TensorDesc,
                               to: &TensorDesc| {
                let mut source: Vec<f32> = numbers(from.element_count());
                let mut results = [(); 2].map(|()| vec![f32::NAN; to.element_count() as usize]);
                let [first, second] = results.each_mut().map(|result| result.as_mut_ptr());
                // SAFETY: the operands have the geometry's sizes.
                unsafe {
                    let (x, y) = (Pointer::new(source.as_mut_ptr()), Pointer::new(first));
                    ours.run(Activation::Relu, &Operands { source: x, weights: pointer, bias: Some(&bias), target: y });
                    let source = stored(from, source.as_mut_ptr());
                    theirs.0.run(Activation::Relu, source, theirs.1, Some(&bias), stored(to, second));
                }
                assert_eq!(results[0], results[1], "case {number}: {geometry:?}");
            };
            let correlation = Correlation::forward(&geometry).unwrap();
            compare(Depthwise::forward(&geometry).unwrap(), (correlation, pointer), &x, &y);
            let correlation = Correlation::transposed(&geometry).unwrap();
            let mut turned = vec![0.0; weights.len()];
            let turned = Pointer::new(turned.as_mut_ptr());
            // SAFETY: both hold the weights of every group.
            unsafe { turn_weights(&geometry, &correlation, stored(&w, pointer.at(0)), turned) };
            compare(Depthwise::transposed(&geometry).unwrap(), (correlation, turned), &y, &x);
        }
    }
}
