//! The gradient with respect to the weights of windows of several elements, with input channels in the lanes of vectors.
//!
//! x is packed position by position with the channels of a tile next to each other, so that whatever a position sees through a tap is a
//! vector. A block of a few rows of positions is summed from zero, from the first position to the last, for some taps and outputs at once,
//! in registers. Blocks are added one after the other, from the first rows of a chunk on. Their sizes depend on those of a whole chunk; x
//! is packed for as many of them as fit.
//!
//! If images are small, several are packed at once, and their sums are added in registers, too, in the order of the sum tree: otherwise,
//! reading and writing all weights for each image would take longer than its few products. Then dy is read in place if it can be, and a
//! task has many channels of y, for which x is packed once.
//!
//! For windows of three elements in long rows, x and dy are transformed into the components of units of four positions ([`quads`]), which
//! takes half of the multiplications. Then components are what is packed and summed, and a block's sums are those of its components,
//! transformed.

use std::ops::RangeInclusive;

use forebay_base::SumTree;

use super::super::buffer::{BLOCK, Buffer, Target};
use super::super::simd::{LANES, Vector, WIDTH_MAX, dispatch_wide};
use super::super::stored::Stored;
use super::Geometry;
use super::lanes::{Channels, gather_lines};
use super::microkernel::CHANNELS_MAX;
use super::quads::{self, COMPONENTS, Gradients, UNITS_MAX};
use super::slab::{Span, even, spans};
use super::weight_tiles::{TASKS_MIN, Tiles};
use super::window_sums::{POSITIONS, Run, Sums, SumsOfTile, VECTORS, sum_block};

/// The most positions of one of a block's rows.
const COLUMNS: usize = 128;
/// Elements of dy from channel to channel: an odd number of cache lines, so that channels do not compete for the same sets.
const GRADIENT_STRIDE: usize = POSITIONS + 16;
/// The same for the components of dy.
const COMPONENT_STRIDE: usize = COMPONENTS * UNITS_MAX + 16;
/// Positions of a row from which units are summed. In smaller images, those of several are summed together.
const UNIT_COLUMNS_MIN: usize = 12;
/// Elements of a window in the other dimensions: with fewer, transforming dy takes too long, and with more, the sums of components take
/// too much of a cache.
const UNIT_WINDOW: RangeInclusive<usize> = 3..=32;
/// Packed elements of x that stay in a core's second-level cache, and the packed elements of one block, which may be more.
const PACKED_MAX: usize = 48 * 1024;
const BLOCK_MAX: usize = 128 * 1024;
/// The most channels of y in a task, and the most weights of all of them: of one image, and of several images together.
const OUTPUTS_MAX: [usize; 2] = [64, 512];
const WEIGHTS_MAX: [usize; 2] = [32 * 1024, 64 * 1024];
/// The largest window.
const TAPS_MAX: usize = 1024;
/// With fewer channels, vectors of channels are filled worse than those of positions.
const INPUTS_MIN: usize = 6;
const OUTPUTS_MIN: usize = 4;

/// How the gradient with respect to the weights of a window is summed.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowGradient {
    /// Rows and columns of a block.
    block: [usize; 2],
    /// Planes and rows of positions whose x is packed together.
    region: [usize; 2],
    /// Planes, rows and columns of x that this region sees.
    seen: [usize; 3],
    /// Images that are packed and summed together, a power of two, and vectors of channels of x in a task.
    images: usize,
    channel_vectors: usize,
    /// Whether several images are summed together, and positions see only padding through some taps, whose sums are not written then.
    has_unseen_taps: bool,
    /// Whether the positions of a channel of y are contiguous.
    y_is_dense: bool,
    /// Whether components of units are packed and summed.
    of_units: bool,
}

/// Whether components of units are summed. This depends only on the window and on the last dimension, which is never divided.
fn sums_units(of_chunk: &Geometry) -> bool {
    // The first spatial dimension is divided between parts, and may be the only one.
    let is_divided = of_chunk.first == 2;
    let [planes, rows, columns] = of_chunk.kernel;
    let fits = [columns, of_chunk.strides[2], of_chunk.dilations[2]] == [3, 1, 1];
    fits && !is_divided && UNIT_WINDOW.contains(&(planes * rows)) && of_chunk.target[2] >= UNIT_COLUMNS_MIN
}

impl WindowGradient {
    /// Creates the gradient of a convolution, given one whole chunk of it. Returns `None` if there are few channels, or if a window is too
    /// large.
    pub fn of(geometry: &Geometry, of_chunk: &Geometry) -> Option<WindowGradient> {
        let Geometry { inputs, outputs, target, .. } = *of_chunk;
        if inputs < INPUTS_MIN || outputs < OUTPUTS_MIN || of_chunk.taps() > TAPS_MAX {
            return None;
        }
        let of_units = sums_units(of_chunk);
        let columns = even(target[2], COLUMNS);
        let columns = if of_units { columns.next_multiple_of(quads::POSITIONS) } else { columns };
        let rows = (POSITIONS / columns).clamp(1, target[1].max(1));
        let seen_columns = match of_units {
            true => columns / quads::POSITIONS * COMPONENTS,
            false => of_chunk.seen(2, columns),
        };
        let seen = |planes: usize, rows: usize| [of_chunk.seen(0, planes), of_chunk.seen(1, rows), seen_columns];
        let fits = |planes: usize, rows: usize, most: usize| {
            seen(planes, rows).into_iter().fold(WIDTH_MAX, usize::saturating_mul) <= most
        };
        if !fits(1, rows, BLOCK_MAX) {
            return None;
        }
        // The components of dy are computed once for as many channels of x as have their sums in a cache.
        let of_outputs = OUTPUTS_MAX[0] * WIDTH_MAX * of_chunk.taps();
        let channel_vectors = match of_units {
            true => even(inputs.div_ceil(WIDTH_MAX), (WEIGHTS_MAX[0] / of_outputs).clamp(1, VECTORS)),
            false => 1,
        };
        // The planes and rows that pack the least for each position.
        let mut region = [1, rows];
        let mut least = f64::INFINITY;
        for planes in 1..=target[0].min(POSITIONS) {
            let of_rows = (1..=target[1].div_ceil(rows)).map(|blocks| blocks * rows);
            let Some(rows) = of_rows.take_while(|&rows| fits(planes, rows, PACKED_MAX / channel_vectors)).last() else {
                break;
            };
            let [seen_planes, seen_rows, _] = seen(planes, rows);
            let packed = (seen_planes * seen_rows) as f64 / (planes * rows) as f64;
            if packed < least {
                (region, least) = ([planes, rows], packed);
            }
        }
        let seen = seen(region[0], region[1]);
        let y_is_dense = geometry.y.is_dense(geometry.target);
        let of_one = WindowGradient {
            block: [rows, columns],
            region,
            seen,
            images: 1,
            channel_vectors,
            has_unseen_taps: false,
            y_is_dense,
            of_units,
        };
        Some(of_one.of_small_images(geometry).filter(|_| !of_units).unwrap_or(of_one))
    }

    /// The gradient for several images at once, whose positions fit into one block, and the elements that they see into the buffer. Returns
    /// `None` if that is only one image, or none.
    fn of_small_images(&self, geometry: &Geometry) -> Option<WindowGradient> {
        let [planes, rows, columns] = geometry.target;
        if planes > 1 || rows > self.block[0].min(self.region[1]) || columns > self.block[1] || rows * columns == 0 {
            return None;
        }
        let seen = [geometry.seen(0, 1), geometry.seen(1, rows), geometry.seen(2, columns)];
        // Windows through which positions see one or two elements have too few sums for one vector of channels.
        let taps_seen = |d: usize| (0..geometry.kernel[d]).filter(|&tap| geometry.sees(d, tap)).count();
        let all_taps_seen = (0..3).map(taps_seen).product::<usize>();
        let channel_vectors = (VECTORS / all_taps_seen.max(1)).min(geometry.inputs / WIDTH_MAX).max(1);
        let of_image = seen.iter().product::<usize>() * WIDTH_MAX * channel_vectors;
        let most = (POSITIONS / (rows * columns)).min(PACKED_MAX / of_image).min(geometry.batch);
        let images = 1 << most.checked_ilog2()?;
        let of_images = WindowGradient {
            block: [rows, columns],
            region: [1, rows],
            seen,
            images,
            channel_vectors,
            has_unseen_taps: all_taps_seen < geometry.taps(),
            ..*self
        };
        (images > 1).then_some(of_images)
    }

    /// How many images [`WindowGradient::add`] can sum together: a power of two.
    pub fn images(&self) -> usize {
        self.images
    }

    pub fn tiles(&self, geometry: &Geometry) -> Tiles {
        let several = usize::from(self.images > 1);
        let input_tile = self.channel_vectors * WIDTH_MAX;
        let outputs_max = WEIGHTS_MAX[several] / (input_tile * geometry.taps());
        let mut outputs_max = outputs_max.clamp(CHANNELS_MAX, OUTPUTS_MAX[several]);
        let count = |outputs: usize| {
            geometry.groups * geometry.inputs.div_ceil(input_tile) * geometry.outputs.div_ceil(outputs)
        };
        while several > 0 && outputs_max > OUTPUTS_MAX[0] && count(outputs_max) < TASKS_MIN {
            outputs_max /= 2;
        }
        let output_tile = even(geometry.outputs, outputs_max / CHANNELS_MAX * CHANNELS_MAX);
        let output_tile = output_tile.next_multiple_of(CHANNELS_MAX);
        Tiles { lanes: LANES, ..Tiles::of(geometry, [output_tile, input_tile]) }
    }

    /// The number of buffer elements that [`WindowGradient::add`] needs for a tile.
    pub fn packed_count(&self, [outputs, _]: [usize; 2], taps: usize, dy: Stored<f32>) -> usize {
        // The packed elements of x and of dy, and one line of each channel while it is widened. The last vectors may reach beyond it.
        let packed = self.packed_of_x() + self.packed_of_y(outputs, dy);
        packed + self.seen[2] * WIDTH_MAX + LANES + self.packed_of_line() + self.component_sums(taps)
    }

    fn packed_of_y(&self, outputs: usize, dy: Stored<f32>) -> usize {
        if self.own_gradients(dy).is_some() { 0 } else { outputs * self.gradient_stride() }
    }

    /// Elements of packed dy from channel to channel.
    fn gradient_stride(&self) -> usize {
        if self.of_units { COMPONENT_STRIDE } else { GRADIENT_STRIDE }
    }

    /// The elements that a row of units sees, before they are transformed.
    fn packed_of_line(&self) -> usize {
        if self.of_units { (self.block[1] + 2 + LANES) * WIDTH_MAX } else { 0 }
    }

    /// The sums of components of a few outputs.
    fn component_sums(&self, taps: usize) -> usize {
        if self.of_units { CHANNELS_MAX * COMPONENTS * (taps / 3) * self.channel_vectors * WIDTH_MAX } else { 0 }
    }

    /// The address of dy, if it is read in place.
    fn own_gradients(&self, dy: Stored<f32>) -> Option<*mut f32> {
        dy.own().filter(|_| self.images > 1 && self.y_is_dense)
    }

    fn packed_of_x(&self) -> usize {
        (self.channel_vectors * self.images * self.seen.iter().product::<usize>() + LANES) * WIDTH_MAX
    }

    /// Returns the boxes of positions, in a chunk of rows, whose x is packed together.
    fn regions(&self, geometry: &Geometry, rows: Span) -> impl Iterator<Item = [Span; 3]> {
        let mut limits = geometry.target.map(|count| Span { start: 0, len: count });
        limits[geometry.first] = rows;
        let parts = move |d: usize, size: usize| {
            spans(limits[d].len, size).map(move |part| Span { start: limits[d].start + part.start, len: part.len })
        };
        let ([planes, rows], columns) = (self.region, self.block[1]);
        parts(0, planes).flat_map(move |planes| {
            parts(1, rows).flat_map(move |rows| parts(2, columns).map(move |columns| [planes, rows, columns]))
        })
    }

    /// Adds the sums of products of some channels of y and some of x over a chunk of rows of an image, or over as many adjacent images as
    /// are given: by output, tap and input. `x` and `dy` begin at their first channel.
    ///
    /// # Safety
    /// The channels must have the geometry's positions, and no one may write them; the buffer must have as many elements as
    /// [`WindowGradient::packed_count`] says, and the sums as many as the tile. There may be at most [`WindowGradient::images`] images; if
    /// there may be several, the sums are written, whatever they were.
    pub unsafe fn add(
        &self,
        geometry: &Geometry,
        sizes: [usize; 2],
        (images, rows): (usize, Span),
        [x, dy]: [Stored<f32>; 2],
        buffer: &mut [f32],
        sums: &mut [f32],
    ) {
        let tree = SumTree::flat(images as u64);
        if self.has_unseen_taps {
            sums.fill(0.0);
        }
        let merges: Vec<u32> = (0..images as u64).map(|image| tree.merges_after(image)).collect();
        let mut job = Job { gradient: self, geometry, sizes, rows, merges: &merges, x, dy, buffer, sums };
        // SAFETY: the caller's promises.
        unsafe { add_chunk(&mut job) };
    }

    /// Writes an output's weights, starting at an element.
    ///
    /// # Safety
    /// The weights must belong to no one else; the sums must be those of a tile with these channels of y and x.
    pub unsafe fn store(
        sums: &[f32],
        [_, inputs]: [usize; 2],
        taps: usize,
        output: usize,
        (dw, start): (Stored<f32>, usize),
    ) {
        let lanes = inputs.next_multiple_of(LANES);
        let sums = &sums[output * taps * lanes..][..taps * lanes];
        // The weights of whole inputs, and of whole vectors of inputs if a block has room for these.
        let at_once = match BLOCK / taps {
            0 => BLOCK,
            few @ 1..LANES => few * taps,
            many => many / LANES * LANES * taps,
        };
        for part in spans(inputs * taps, at_once) {
            let fill = |weights: &mut [f32]| {
                if taps == 1 {
                    return weights.copy_from_slice(&sums[part.start..][..weights.len()]);
                }
                if at_once % taps == 0 {
                    let vectors = &sums[part.start / taps..];
                    // SAFETY: there is a vector of sums for each tap, and the weights of each input lie next to each other.
                    return unsafe { gather_weights(&mut Weights { vectors, lanes, taps, weights }) };
                }
                for (place, weight) in (part.start..).zip(weights) {
                    *weight = sums[place % taps * lanes + place / taps];
                }
            };
            // SAFETY: the caller's promise.
            unsafe { dw.write(start + part.start, part.len, &mut Buffer::new(), fill) };
        }
    }
}

/// The weights of some inputs of an output.
struct Weights<'a> {
    /// By tap: the sums of inputs, starting at the first of these inputs.
    vectors: &'a [f32],
    lanes: usize,
    taps: usize,
    weights: &'a mut [f32],
}

dispatch_wide! {
    /// # Safety
    /// There must be a vector for each tap, and the weights must be those of whole inputs.
    fn gather_weights, gather_weights_with(weights: &mut Weights)
}

/// # Safety
/// As [`gather_weights`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn gather_weights_with<V: Vector>(job: &mut Weights) {
    let Weights { lanes, taps, .. } = *job;
    // SAFETY: the caller's promises.
    unsafe {
        let (vectors, target) = (job.vectors.as_ptr(), job.weights.as_mut_ptr());
        gather_lines::<V>(vectors, lanes, taps, job.weights.len() / taps, target, taps);
    }
}

/// A chunk of one tile, or several images.
struct Job<'a> {
    gradient: &'a WindowGradient,
    geometry: &'a Geometry,
    /// Channels of y and of x.
    sizes: [usize; 2],
    /// Rows of the first spatial dimension.
    rows: Span,
    /// For each image, how many of the waiting sums are added to its own.
    merges: &'a [u32],
    x: Stored<f32>,
    dy: Stored<f32>,
    buffer: &'a mut [f32],
    sums: &'a mut [f32],
}

dispatch_wide! {
    /// # Safety
    /// As [`WindowGradient::add`].
    fn add_chunk, add_chunk_with(job: &mut Job)
}

/// # Safety
/// As [`add_chunk`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn add_chunk_with<V: Vector>(job: &mut Job) {
    // If few channels would leave vectors half empty, these hold two adjacent taps.
    let are_adjacent = job.geometry.dilations[2] == 1 && job.geometry.kernel[2] > 1 && !job.gradient.of_units;
    // Vectors of channels are summed together if they are full.
    let at_once = match job.sizes[1] % V::WIDTH {
        0 if job.gradient.images > 1 || job.gradient.of_units => job.sizes[1],
        _ => V::WIDTH,
    };
    for channels in spans(job.sizes[1], at_once) {
        // SAFETY: the caller's promises; the vector's half has its instructions, too.
        unsafe {
            match channels.len <= V::Half::WIDTH {
                true if are_adjacent => add_channels::<V, V::Half>(job, channels),
                true => add_channels::<V::Half, V::Half>(job, channels),
                false => add_channels::<V, V>(job, channels),
            }
        }
    }
}

/// Adds the sums of up to as many channels as a vector `P` has lanes, or of channels that fill several vectors. They are summed in vectors
/// `V`, which are as wide or hold two of them.
///
/// # Safety
/// As [`add_chunk_with`]; if a vector holds two, adjacent taps see adjacent elements, and the tile has no other channels.
#[inline(always)]
unsafe fn add_channels<V: Vector, P: Vector>(job: &mut Job, channels: Span) {
    let (plan, geometry, [outputs, inputs]) = (job.gradient, job.geometry, job.sizes);
    let Geometry { kernel, strides, dilations, source, .. } = *geometry;
    let [_, seen_rows, pitch] = plan.seen;
    let lanes = inputs.next_multiple_of(LANES);
    // Elements of a window's row whose sums a vector has, itself or in its components.
    let step = if plan.of_units { kernel[2] } else { V::WIDTH / P::WIDTH };
    let image_stride = plan.seen.iter().product::<usize>() * P::WIDTH;
    let parts: Vec<Span> = spans(channels.len, P::WIDTH).collect();
    let mut vectors = Vec::with_capacity(parts.len() * geometry.taps());
    for row in 0..kernel[0] * kernel[1] {
        let [plane, row_of_plane] = [row / kernel[1] * dilations[0], row % kernel[1] * dilations[1]];
        if !geometry.sees(0, row / kernel[1]) || !geometry.sees(1, row % kernel[1]) {
            continue;
        }
        let seen = (plane * seen_rows + row_of_plane) * pitch * P::WIDTH;
        let place = row * kernel[2] * lanes + channels.start;
        let sees = |first: &usize| (*first..kernel[2].min(first + step)).any(|tap| geometry.sees(2, tap));
        for tap in (0..kernel[2]).step_by(step).filter(sees) {
            vectors.extend(parts.iter().enumerate().map(|(number, part)| Sums {
                seen: seen + tap * dilations[2] * P::WIDTH + number * plan.images * image_stride,
                place: place + tap * lanes + part.start,
                is_whole: tap + step <= kernel[2],
            }));
        }
    }
    let (packed, rest) = job.buffer.split_at_mut(plan.packed_of_x());
    let (gradients, rest) = rest.split_at_mut(plan.packed_of_y(outputs, job.dy));
    let (components, line) = rest.split_at_mut(plan.component_sums(geometry.taps()));
    // SAFETY: the channels exist.
    let elements = unsafe { job.x.at((channels.start * geometry.x.channel) as isize) };
    let images = job.merges.len();
    for region in plan.regions(geometry, job.rows) {
        for (number, image) in (0..parts.len()).flat_map(|number| (0..images).map(move |image| (number, image))) {
            // SAFETY: the region's positions exist; there is room for the elements that they see. What is written behind those of an image
            // is overwritten with those of the next one.
            unsafe {
                let elements =
                    elements.at((image * geometry.x.image + parts[number].start * geometry.x.channel) as isize);
                let sizes = [source[1], source[2]];
                let x = Channels { elements, layout: &geometry.x, sizes, lanes: parts[number].len };
                let target = packed.as_mut_ptr().add((number * plan.images + image) * image_stride);
                pack_region::<P>(plan, geometry, &x, region, line, target);
            }
        }
        let [planes, rows, columns] = region;
        for plane in 0..planes.len {
            for block in spans(rows.len, plan.block[0]) {
                let first = [planes.start + plane, rows.start + block.start, columns.start];
                let row = plane * strides[0] * seen_rows + block.start * strides[1];
                // SAFETY: the positions exist; all elements that they see are packed.
                unsafe {
                    let (gradients, [of_channel, of_image]) = match plan.own_gradients(job.dy) {
                        Some(own) => (own.cast_const(), [geometry.y.channel, geometry.y.image]),
                        None => {
                            let of_image = block.len * columns.len;
                            for image in 0..images {
                                let dy = job.dy.at((image * geometry.y.image) as isize);
                                let sizes = [block.len, columns.len];
                                if plan.of_units {
                                    transform_gradients::<V>(geometry, dy, (first, sizes), gradients);
                                } else {
                                    pack_gradients(geometry, dy, (first, sizes), gradients, image * of_image);
                                }
                            }
                            (gradients.as_ptr(), [plan.gradient_stride(), of_image])
                        }
                    };
                    let (step, columns) = match plan.of_units {
                        true => (COMPONENTS, columns.len.div_ceil(quads::POSITIONS)),
                        false => (strides[2], columns.len),
                    };
                    let run = Run {
                        merges: job.merges,
                        image_stride,
                        gradients,
                        of_channel,
                        of_image,
                        adds: plan.images == 1 && !plan.of_units,
                        rows: block.len,
                        columns,
                        seen: packed.as_ptr().add(row * pitch * P::WIDTH),
                        step: step * P::WIDTH,
                        row_step: strides[1] * pitch * P::WIDTH,
                        half: P::WIDTH,
                    };
                    let tile =
                        SumsOfTile { first: job.sums.as_mut_ptr(), of_output: geometry.taps() * lanes, of_tap: lanes };
                    let components = plan.of_units.then_some(components.as_mut_ptr());
                    sum_block::<V>(&run, outputs, &vectors, tile, components);
                }
            }
        }
    }
}

/// Packs the elements that a region sees of channels of x, with zeros for padding.
///
/// # Safety
/// The channels must have the geometry's elements, and no one may write them; there must be room for all elements that the largest region
/// sees.
#[inline(always)]
unsafe fn pack_region<V: Vector>(
    plan: &WindowGradient,
    geometry: &Geometry,
    x: &Channels,
    [planes, rows, columns]: [Span; 3],
    line: &mut [f32],
    packed: *mut f32,
) {
    let Geometry { strides, pads, source, .. } = *geometry;
    let [_, seen_rows, pitch] = plan.seen;
    let inside = |d: usize, index: usize| index.checked_sub(pads[d]).filter(|&index| index < source[d]);
    let (first, count) = (columns.start * strides[2], geometry.seen(2, columns.len));
    for plane in 0..geometry.seen(0, planes.len) {
        let of_plane = inside(0, planes.start * strides[0] + plane);
        for row in 0..geometry.seen(1, rows.len) {
            let of_row = inside(1, rows.start * strides[1] + row);
            let start = of_plane.zip(of_row).map(|(plane, row)| plane * x.layout.plane + row * x.layout.row);
            // SAFETY: the caller's promises.
            unsafe {
                let target = packed.add((plane * seen_rows + row) * pitch * V::WIDTH);
                if !plan.of_units {
                    V::outline(
                        #[inline(always)]
                        || x.pack::<V>(start, [first, pads[2]], count, line, target),
                    );
                    continue;
                }
                let units = columns.len.div_ceil(quads::POSITIONS);
                if start.is_none() {
                    target.write_bytes(0, units * COMPONENTS * V::WIDTH);
                    continue;
                }
                let (seen, line) = line.split_at_mut(plan.packed_of_line());
                V::outline(
                    #[inline(always)]
                    || {
                        // Behind the last position, units see zeros.
                        let count = units * quads::POSITIONS + 2;
                        x.pack::<V>(start, [first, pads[2]], count, line, seen.as_mut_ptr());
                        quads::transform_source::<V>(seen.as_ptr(), units, target);
                    },
                );
            }
        }
    }
}

/// Packs some rows and columns of channels of dy, starting at a position, without gaps: at a place among the positions of each channel.
///
/// # Safety
/// The channels must have the positions, and no one may write them.
unsafe fn pack_gradients(
    geometry: &Geometry,
    dy: Stored<f32>,
    ([plane, row, column], [rows, columns]): ([usize; 3], [usize; 2]),
    gradients: &mut [f32],
    place: usize,
) {
    let layout = &geometry.y;
    let start = plane * layout.plane + row * layout.row + column;
    // Rows that are contiguous count as one.
    let (count, len) = if columns == layout.row { (1, rows * columns) } else { (rows, columns) };
    for (number, packed) in gradients.chunks_exact_mut(GRADIENT_STRIDE).enumerate() {
        // SAFETY: the caller's promise.
        let channel = unsafe { dy.slice(number * layout.channel, layout.span) };
        for (row, line) in packed[place..].chunks_exact_mut(len).take(count).enumerate() {
            channel.copy_to(line, start + row * layout.row, 1);
        }
    }
}

/// Does the same with the components of units.
///
/// # Safety
/// As [`pack_gradients`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn transform_gradients<V: Vector>(
    geometry: &Geometry,
    dy: Stored<f32>,
    ([plane, row, column], sizes): ([usize; 3], [usize; 2]),
    gradients: &mut [f32],
) {
    let layout = &geometry.y;
    let start = plane * layout.plane + row * layout.row + column;
    let mut units = Gradients::new();
    for (number, packed) in gradients.chunks_exact_mut(COMPONENT_STRIDE).enumerate() {
        // SAFETY: the caller's promise; a block has at most [`UNITS_MAX`] units.
        unsafe {
            let channel = dy.slice(number * layout.channel, layout.span);
            V::outline(
                #[inline(always)]
                || units.transform::<V>(channel, (start, layout.row), sizes, packed.as_mut_ptr()),
            );
        }
    }
}
