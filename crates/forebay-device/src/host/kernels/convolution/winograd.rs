//! Convolutions with fewer multiplications, for windows of three elements in the last dimension: the minimal filtering F(m, 3) of Winograd
//! (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016) along that dimension.
//!
//! A *unit* is `m` adjacent positions, which see `m + 2` elements of the source. Both the elements and the three weights are transformed
//! into `m + 2` *components*; products of components are summed over channels and the other dimensions of the window, and the sums are
//! transformed into the unit's results. That takes `m + 2` multiplications for `3 m`.
//!
//! Sums are transformed after every [`TERMS_MAX`] terms, and the results are added up. Results are therefore as accurate as sums of all
//! products one after the other: pairs are more accurate, and units of four, used from [`QUADS_MIN`] source channels on, have at most twice
//! their error (`tests::winograd::winograd_is_as_accurate_as_direct_sums`).
//!
//! Errors are relative to what a whole unit sees: an element far larger than its neighbors, within a unit's reach, costs their results
//! accuracy.
//!
//! No operation is ever divided along the last of several spatial dimensions, so which positions are a unit, and thus the bits of a result,
//! does not depend on how work is divided.

use super::super::cache::{LINE, prefetch_stream};
use super::super::simd::{Vector, WIDTH_MAX, dispatch_wide, limited};
use super::super::spatial::Spatial;
use super::super::stored::{Elements, Stored};
use super::Geometry;
use super::axis::Axis;
use super::microkernel::{CHANNELS, CHANNELS_MAX, Start, Terms, TileOutput, VECTORS, correlate};
use super::quads::{self, scaled_sum};
use super::slab::{COLUMNS_MAX, SLACK, Slab, Span, even, spans};
use super::tiles::{Layout, Tile};

/// Terms of a sum of components: those that the positions of a tile see fit into a core's first-level cache.
const TERMS_MAX: usize = 128;
/// Elements of a window in the other dimensions: with more, a small block's planes and rows could not be packed one after the other.
const WINDOW_MAX: usize = 32;
/// Source channels from which units have four positions instead of two.
const QUADS_MIN: usize = 64;
/// Channels below which transforming a source channel, or the sums of a target channel, takes longer than multiplying.
const CHANNELS_MIN: usize = 8;
/// Positions of a row below which the weights of so few positions take too long to transform.
const COLUMNS_MIN: usize = 7;
/// Target channels whose components are in a thread's buffer at a time.
const TARGETS_AT_ONCE: usize = 64;
/// Weights are prefetched while this many target channels before theirs are still to be transformed.
const AHEAD: usize = 2;
/// The most positions of a unit.
const SIZE_MAX: usize = 4;
/// The most units of a tile.
const TILE: usize = VECTORS * WIDTH_MAX;
/// Elements that rows of a block see, which are transformed together if they are short, and the most of one row.
const SEEN_AT_ONCE: usize = 256;
const SEEN_MAX: usize = COLUMNS_MAX * SIZE_MAX + 2;
/// The elements behind them that vectors read and write.
const SEEN_BEHIND: usize = 8 * WIDTH_MAX;
/// The limits of values that are not limited.
const NO_LIMITS: [f32; 2] = [f32::NEG_INFINITY, f32::INFINITY];

/// How many positions are a unit, or `None` if a convolution is computed directly. This depends only on the sizes that are never divided:
/// channels, the window and the last dimension.
fn unit_size(geometry: &Geometry, (sources, targets): (usize, usize), columns: usize) -> Option<usize> {
    // The first spatial dimension is divided between parts, and may be the only one.
    let is_divided = geometry.first == 2;
    let [planes, rows, width] = geometry.kernel;
    let fits = width == 3 && planes * rows <= WINDOW_MAX && geometry.strides == [1; 3] && geometry.dilations == [1; 3];
    if is_divided || !fits || sources.min(targets) < CHANNELS_MIN || columns < COLUMNS_MIN {
        return None;
    }
    let size = if sources >= QUADS_MIN { 4 } else { 2 };
    // A row's last unit may reach beyond its end: at least a quarter of the multiplications must be saved.
    let multiplications = columns.div_ceil(size) * (size + 2);
    (4 * multiplications <= 3 * 3 * columns).then_some(size)
}

/// The units of a correlation's rows.
#[derive(Clone, Copy)]
pub(super) struct Units {
    /// Source channels that are packed together.
    pub source_chunk: usize,
    /// Positions of a unit.
    pub size: usize,
    /// Positions of a row of the target.
    pub columns: usize,
    /// The source element that the first position of a row sees first, and the elements of a row.
    first: isize,
    width: usize,
    /// Whether the weights of a window's row are listed from last to first.
    is_reversed: bool,
}

impl Units {
    /// The units of a correlation with these dimensions, and its dimensions in units; `None` if it is computed directly.
    pub fn of(geometry: &Geometry, axes: &[Axis; 3], channels: (usize, usize)) -> Option<(Units, [Axis; 3])> {
        let [planes, rows, columns] = axes;
        let size = unit_size(geometry, channels, columns.count())?;
        if planes.count() * rows.count() == 0 {
            return None;
        }
        let taps = &columns.classes[0].taps;
        let in_units = Axis::of_units(columns.count().div_ceil(size), size, taps);
        let units = Units {
            source_chunk: even(channels.0, TERMS_MAX / (geometry.kernel[0] * geometry.kernel[1])),
            size,
            columns: columns.count(),
            first: columns.phases[0],
            width: columns.source,
            is_reversed: taps[0].shift > taps[2].shift,
        };
        Some((units, [planes.clone(), rows.clone(), in_units]))
    }

    /// Components of a unit.
    pub fn components(&self) -> usize {
        self.size + 2
    }
}

/// Minimal filtering of given sizes.
pub(super) struct Winograd {
    pub units: Units,
    /// Elements from component to component and from channel to channel of a packed source.
    component_stride: usize,
    channel_stride: usize,
    /// Where position 0 of a block looks in a component, by source channel, and by tap in the other dimensions.
    offsets: Vec<u32>,
    /// Elements from target channel to target channel of the weights' components.
    weight_stride: usize,
}

/// One block of positions of some target channels.
pub(super) struct Job<'a> {
    pub slab: &'a Slab,
    pub origin: [usize; 3],
    /// The number of source channels.
    pub sources: usize,
    pub source: Stored<f32>,
    pub source_layout: Spatial,
    /// The weights of the first target channel.
    pub weights: *const f32,
    pub targets: Span,
    pub bias: Option<&'a [f32]>,
    pub limits: [f32; 2],
    /// The block's first position in the first target channel.
    pub target: *mut f32,
    pub target_layout: Spatial,
}

impl Winograd {
    /// Filtering of these units, packed in the slab's blocks.
    ///
    /// # Panics
    /// Panics if planes or rows are not packed one after the other.
    pub fn new(units: Units, slab: &Slab) -> Winograd {
        let [planes, rows, _] = &slab.axes;
        assert_eq!([planes.phases.len(), rows.phases.len()], [1, 1], "windows of at most {WINDOW_MAX} elements");
        let component_stride =
            (slab.packed_rows().iter().product::<usize>() * slab.row_pitch() + WIDTH_MAX).next_multiple_of(LINE);
        // An odd number of cache lines, as in a slab.
        let channel_stride = ((units.components() * component_stride).div_ceil(LINE) | 1) * LINE;
        let taps = |axis: &Axis| axis.classes[0].taps.iter().map(|tap| tap.shift).collect::<Vec<_>>();
        let (plane_taps, row_taps) = (taps(planes), taps(rows));
        let mut offsets = Vec::with_capacity(units.source_chunk * plane_taps.len() * row_taps.len());
        for channel in 0..units.source_chunk {
            for plane in &plane_taps {
                for row in &row_taps {
                    offsets.push((channel * channel_stride + slab.offset([0; 3], [*plane, *row, 0])) as u32);
                }
            }
        }
        let weight_stride = offsets.len().next_multiple_of(WIDTH_MAX);
        Winograd { units, component_stride, channel_stride, offsets, weight_stride }
    }

    /// The elements of a buffer that [`Winograd::block`] needs.
    pub fn buffer_count(&self) -> usize {
        let weights_and_sums = self.units.components() * TARGETS_AT_ONCE * (self.weight_stride + TILE);
        self.packed_count() + weights_and_sums
    }

    /// The elements of a chunk of packed source channels.
    fn packed_count(&self) -> usize {
        self.units.source_chunk * self.channel_stride + SLACK
    }

    /// Computes one block, within the limits of its activation.
    ///
    /// # Safety
    /// The source's and the target's channels must exist, and so must the weights, by target channel, source channel and tap. No one may
    /// write source and weights, or touch the target. The buffer has the elements of [`Winograd::buffer_count`].
    pub unsafe fn block(&self, job: &Job, buffer: &mut [f32]) {
        // SAFETY: the caller's promises.
        unsafe { run_block(&mut Work { winograd: self, job, buffer }) }
    }
}

/// A job and the buffer for it.
struct Work<'a> {
    winograd: &'a Winograd,
    job: &'a Job<'a>,
    buffer: &'a mut [f32],
}

dispatch_wide! {
    /// # Safety
    /// As [`Winograd::block`].
    fn run_block, run_block_with(work: &mut Work)
}

/// # Safety
/// As [`Winograd::block`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn run_block_with<V: Vector>(work: &mut Work) {
    let Work { winograd, job, buffer } = work;
    let (slab, units) = (job.slab, &winograd.units);
    let lens: [usize; 3] = std::array::from_fn(|d| slab.block[d].min(slab.axes[d].count() - job.origin[d]));
    let mut columns = (lens[2] * units.size).min(units.columns - job.origin[2] * units.size);
    let mut layout = Layout {
        rows: lens[1],
        columns: lens[2],
        pitch: slab.row_pitch(),
        row_stride: job.target_layout.row,
        column_stride: units.size,
    };
    if [columns, job.target_layout.row] == [layout.pitch * units.size; 2] {
        // Rows follow each other without gaps.
        let all = layout.rows * layout.columns;
        columns *= layout.rows;
        layout = Layout { rows: 1, columns: all, pitch: all, row_stride: columns, ..layout };
    }
    let tiles =
        Layout { row_stride: layout.pitch, column_stride: 1, ..layout }.merged().tiles(V::WIDTH, V::Half::WIDTH);
    let (packed, rest) = buffer.split_at_mut(winograd.packed_count());
    let (weights, sums) = rest.split_at_mut(units.components() * TARGETS_AT_ONCE * winograd.weight_stride);
    let mut seen = Seen::new();
    let row_starts = row_starts(job);
    let window = winograd.offsets.len() / units.source_chunk;
    for chunk in spans(job.sources, units.source_chunk) {
        for (number, packed) in packed.chunks_exact_mut(winograd.channel_stride).take(chunk.len).enumerate() {
            // SAFETY: the channel exists; no one writes it.
            unsafe {
                let start = (chunk.start + number) * job.source_layout.channel;
                let channel = job.source.slice(start, job.source_layout.span);
                pack_channel::<V>(winograd, job, &row_starts, channel, &mut seen, packed);
            }
        }
        for targets in spans(job.targets.len, TARGETS_AT_ONCE) {
            for target in 0..targets.len {
                let start = ((targets.start + target) * job.sources + chunk.start) * window * 3;
                // SAFETY: the weights of these channels exist, and no one writes them; the buffer has room for their components.
                unsafe {
                    let of_target = std::slice::from_raw_parts(job.weights.add(start), chunk.len * window * 3);
                    for line in 0..of_target.len().div_ceil(LINE) {
                        prefetch_stream(
                            of_target.as_ptr().wrapping_add(AHEAD * job.sources * window * 3 + line * LINE),
                        );
                    }
                    transform_weights::<V>(
                        winograd,
                        of_target,
                        weights[target * winograd.weight_stride..].as_mut_ptr(),
                    );
                }
            }
            let block = Block {
                winograd,
                job,
                layout: &layout,
                columns,
                targets,
                terms: Terms {
                    offsets: &winograd.offsets[..chunk.len * window],
                    packed: packed.as_ptr(),
                    weights: weights.as_ptr(),
                    weight_stride: winograd.weight_stride,
                },
                is_first: chunk.start == 0,
                limits: if chunk.start + chunk.len == job.sources { job.limits } else { NO_LIMITS },
            };
            for plane in 0..lens[0] {
                for tile in &tiles {
                    // SAFETY: the caller's promises; positions of the tile lie in the block.
                    unsafe {
                        match tile.is_narrow {
                            true => compute_tile::<V::Half>(&block, plane, tile, sums.as_mut_ptr()),
                            false => compute_tile::<V>(&block, plane, tile, sums.as_mut_ptr()),
                        }
                    }
                }
            }
        }
    }
}

/// The elements that rows of units see, and those with even and with odd numbers.
struct Seen {
    all: [f32; SEEN_MAX + SEEN_BEHIND],
    halves: [[f32; (SEEN_MAX + SEEN_BEHIND) / 2]; 2],
}

impl Seen {
    fn new() -> Seen {
        Seen { all: [0.0; SEEN_MAX + SEEN_BEHIND], halves: [[0.0; (SEEN_MAX + SEEN_BEHIND) / 2]; 2] }
    }

    /// Separates the first `count` elements.
    ///
    /// # Safety
    /// There may be at most [`SEEN_MAX`]; the CPU must have the vector's instructions.
    #[inline(always)]
    unsafe fn split<V: Vector>(&mut self, count: usize) {
        for (odd, half) in self.halves.iter_mut().enumerate() {
            for at in (0..count / 2).step_by(V::WIDTH) {
                // SAFETY: the caller's promises; there is room for whole vectors.
                unsafe { V::load_even(self.all.as_ptr().add(2 * at + odd)).store(half.as_mut_ptr().add(at)) };
            }
        }
    }
}

/// Where the rows of a block that are packed begin in a channel of the source: those inside it.
fn row_starts(job: &Job) -> Vec<Option<usize>> {
    let [planes, rows, _] = &job.slab.axes;
    let [depth, height] = job.slab.packed_rows();
    let inside = |axis: &Axis, position: usize| {
        let index = axis.source_of(0, position);
        usize::try_from(index).ok().filter(|&index| index < axis.source)
    };
    let start = |line: usize| {
        let plane = inside(planes, job.origin[0] + line / height)?;
        Some(plane * job.source_layout.plane + inside(rows, job.origin[1] + line % height)? * job.source_layout.row)
    };
    (0..depth * height).map(start).collect()
}

/// Packs the components of the elements that a block sees of one channel.
///
/// # Safety
/// The CPU must have the vector's instructions.
#[inline(always)]
unsafe fn pack_channel<V: Vector>(
    winograd: &Winograd,
    job: &Job,
    row_starts: &[Option<usize>],
    channel: Elements,
    seen: &mut Seen,
    packed: &mut [f32],
) {
    let Units { size, first, width, .. } = winograd.units;
    let units = job.slab.row_pitch();
    // A row's elements: some zeros, those of the source from `start` on, zeros again.
    let (first, pitch) = (first + (job.origin[2] * size) as isize, units * size + 2);
    let low = first.min(0).unsigned_abs().min(pitch);
    let start = first.max(0) as usize;
    let high = (low + width.saturating_sub(start)).min(pitch);
    // Many rows are copied before the first is read: vectors that were just stored in pieces are loaded slowly.
    let mut packed_rows = 0;
    for row_starts in row_starts.chunks((SEEN_AT_ONCE / pitch).max(1)) {
        for (row, start_of_row) in row_starts.iter().enumerate() {
            let Some(start_of_row) = start_of_row else { continue };
            let row = &mut seen.all[row * pitch..][..pitch];
            row[..low].fill(0.0);
            if low < high {
                channel.copy_to(&mut row[low..high], start_of_row + start, 1);
            }
            row[high..].fill(0.0);
        }
        // SAFETY: there is room for what vectors read behind the rows' end. What they write behind a component's row belongs to its next one,
        // which is written later, or to the space between components.
        unsafe {
            if size == 4 {
                seen.split::<V>(row_starts.len() * pitch);
            }
            for (row, start_of_row) in row_starts.iter().enumerate() {
                let target = &mut packed[(packed_rows + row) * units..];
                if start_of_row.is_none() {
                    for component in 0..winograd.units.components() {
                        target[component * winograd.component_stride..][..units].fill(0.0);
                    }
                    continue;
                }
                let (row, target, stride) = (row * pitch, target.as_mut_ptr(), winograd.component_stride);
                match (size, units <= V::Half::WIDTH) {
                    (2, true) => transform_pairs::<V::Half>(seen, row, units, target, stride),
                    (2, false) => transform_pairs::<V>(seen, row, units, target, stride),
                    (_, true) => transform_quads::<V::Half>(seen, row, units, target, stride),
                    (_, false) => transform_quads::<V>(seen, row, units, target, stride),
                }
            }
        }
        packed_rows += row_starts.len();
    }
}

/// Writes vectors `stride` elements apart.
///
/// # Safety
/// There must be room for them.
#[inline(always)]
unsafe fn store<V: Vector, const N: usize>(vectors: [V; N], target: *mut f32, stride: usize) {
    for (number, vector) in vectors.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { vector.store(target.add(number * stride)) };
    }
}

/// Writes the four components of a row of pairs that begins at element `row`.
///
/// # Safety
/// As [`pack_channel`]; the components of the row, and a vector behind them, are writable.
#[inline(always)]
unsafe fn transform_pairs<V: Vector>(seen: &Seen, row: usize, units: usize, target: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe {
        for unit in (0..units).step_by(V::WIDTH) {
            // Not `from_fn`, which is not always inlined.
            let at = seen.all.as_ptr().add(row + 2 * unit);
            let x = [V::load_even(at), V::load_even(at.add(1)), V::load_even(at.add(2)), V::load_even(at.add(3))];
            let components = [
                scaled_sum(-1.0, x[2], x[0]),
                scaled_sum(1.0, x[2], x[1]),
                scaled_sum(-1.0, x[1], x[2]),
                scaled_sum(-1.0, x[3], x[1]),
            ];
            store(components, target.add(unit), stride);
        }
    }
}

/// Writes the six components of a row of units of four that begins at element `row`; elements are separated.
///
/// # Safety
/// As [`transform_pairs`].
#[inline(always)]
unsafe fn transform_quads<V: Vector>(seen: &Seen, row: usize, units: usize, target: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe {
        for unit in (0..units).step_by(V::WIDTH) {
            let [even, odd] = [&seen.halves[0], &seen.halves[1]].map(
                #[inline(always)]
                |half| half.as_ptr().add(row / 2 + 2 * unit),
            );
            let x = [
                V::load_even(even),
                V::load_even(odd),
                V::load_even(even.add(1)),
                V::load_even(odd.add(1)),
                V::load_even(even.add(2)),
                V::load_even(odd.add(2)),
            ];
            store(quads::of_source(x), target.add(unit), stride);
        }
    }
}

/// Writes the components of one target channel's weights, which are given in rows of three.
///
/// # Safety
/// The components of the first target channel's weights begin at `target`; the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn transform_weights<V: Vector>(winograd: &Winograd, weights: &[f32], target: *mut f32) {
    let component_stride = TARGETS_AT_ONCE * winograd.weight_stride;
    let mut padded = [0.0; 3 * WIDTH_MAX];
    for (number, mut weights) in weights.chunks(3 * V::WIDTH).enumerate() {
        if weights.len() < 3 * V::WIDTH {
            padded[..weights.len()].copy_from_slice(weights);
            weights = &padded;
        }
        // SAFETY: the caller's promises: the strides have room for whole vectors.
        unsafe {
            let target = target.add(number * V::WIDTH);
            let mut rows = V::load_thirds(weights.as_ptr());
            if winograd.units.is_reversed {
                rows.swap(0, 2);
            }
            let ([a, b, c], zero) = (rows, V::splat(0.0));
            let outer = scaled_sum(1.0, c, a);
            if winograd.units.size == 2 {
                let (outer, middle) = (scaled_sum(0.5, outer, zero), scaled_sum(0.5, b, zero));
                store(
                    [a, scaled_sum(1.0, middle, outer), scaled_sum(-1.0, middle, outer), c],
                    target,
                    component_stride,
                );
            } else {
                let (outer, middle) = (scaled_sum(-1.0 / 6.0, outer, zero), scaled_sum(1.0 / 6.0, b, zero));
                let uneven = scaled_sum(1.0 / 24.0, a, scaled_sum(1.0 / 6.0, c, zero));
                let half = scaled_sum(1.0 / 12.0, b, zero);
                let components = [
                    scaled_sum(0.25, a, zero),
                    scaled_sum(-1.0, middle, outer),
                    scaled_sum(1.0, middle, outer),
                    scaled_sum(1.0, half, uneven),
                    scaled_sum(-1.0, half, uneven),
                    c,
                ];
                store(components, target, component_stride);
            }
        }
    }
}

/// A block, a chunk of source channels, and the target channels whose weights have components in the buffer.
struct Block<'a> {
    winograd: &'a Winograd,
    job: &'a Job<'a>,
    /// Units of a plane of the block.
    layout: &'a Layout,
    /// Positions of a row of the block.
    columns: usize,
    targets: Span,
    terms: Terms<'a>,
    is_first: bool,
    /// The limits of the values that are written.
    limits: [f32; 2],
}

/// Computes the units of a tile.
///
/// # Safety
/// As [`run_block_with`]; `sums` has room for the components of the sums of a tile of all channels.
#[inline(always)]
unsafe fn compute_tile<V: Vector>(block: &Block, plane: usize, tile: &Tile, sums: *mut f32) {
    let Block { winograd, job, layout, columns, targets, terms, limits, .. } = block;
    let size = winograd.units.size;
    // SAFETY: the caller's promises.
    unsafe {
        for component in 0..winograd.units.components() {
            let packed =
                terms.packed.add(component * winograd.component_stride + plane * job.slab.plane_pitch() + tile.start);
            let mut channel = 0;
            while channel < targets.len {
                let len = match targets.len - channel {
                    CHANNELS_MAX.. if tile.vectors == 1 || V::REGISTERS >= 32 => CHANNELS_MAX,
                    left => left.min(CHANNELS),
                };
                let number = component * TARGETS_AT_ONCE + channel;
                let terms = Terms { packed, weights: terms.weights.add(number * winograd.weight_stride), ..*terms };
                let place = TileOutput { base: sums.add(number * TILE), stride: TILE, bypasses_caches: false };
                correlate::<V>(len, tile.vectors, &terms, Start::Values([0.0; CHANNELS_MAX]), NO_LIMITS, place);
                channel += len;
            }
        }
        let mut own = [0.0; TILE * SIZE_MAX];
        for channel in 0..targets.len {
            for vector in 0..tile.vectors {
                let sums = sums.add(channel * TILE + vector * V::WIDTH);
                let own = own.as_mut_ptr().add(vector * V::WIDTH * size);
                match size {
                    2 => write_pairs::<V>(sums, own),
                    _ => write_quads::<V>(sums, own),
                }
            }
            let number = targets.start + channel;
            let adding = Adding {
                start: block.is_first.then(
                    #[inline(always)]
                    || job.bias.map_or(0.0, |bias| bias[job.targets.start + number]),
                ),
                limits: *limits,
            };
            let target = job.target.add(number * job.target_layout.channel + plane * job.target_layout.plane);
            layout.for_each_run(
                tile,
                #[inline(always)]
                |at, place, count| {
                    // The last unit of a row may reach beyond its end.
                    let count = (count * size).min(columns - place % layout.row_stride);
                    add_run::<V>(target.add(place), own.as_ptr().add(at * size), count, adding);
                },
            );
        }
    }
}

/// Loads the components of one vector of units' sums.
///
/// # Safety
/// As [`compute_tile`].
#[inline(always)]
unsafe fn load_sums<V: Vector, const N: usize>(sums: *const f32) -> [V; N] {
    std::array::from_fn(
        #[inline(always)]
        // SAFETY: the caller's promises.
        |component| unsafe { V::load(sums.add(component * TARGETS_AT_ONCE * TILE)) },
    )
}

/// Writes the results of pairs, given the components of their sums.
///
/// # Safety
/// As [`load_sums`]; there is room for two vectors.
#[inline(always)]
unsafe fn write_pairs<V: Vector>(sums: *const f32, target: *mut f32) {
    // SAFETY: the caller's promises.
    unsafe {
        let sums = load_sums::<V, 4>(sums);
        let (a, b) = (scaled_sum(1.0, sums[2], sums[1]), scaled_sum(-1.0, sums[2], sums[1]));
        let results = scaled_sum(1.0, a, sums[0]).interleaved(scaled_sum(-1.0, sums[3], b));
        store(results, target, V::WIDTH);
    }
}

/// Writes the results of units of four, given the components of their sums.
///
/// # Safety
/// As [`load_sums`]; there is room for four vectors.
#[inline(always)]
unsafe fn write_quads<V: Vector>(sums: *const f32, target: *mut f32) {
    // SAFETY: the caller's promises.
    unsafe {
        let sums = load_sums::<V, 6>(sums);
        let (a, b) = (scaled_sum(1.0, sums[2], sums[1]), scaled_sum(-1.0, sums[2], sums[1]));
        let (c, d) = (scaled_sum(1.0, sums[4], sums[3]), scaled_sum(-1.0, sums[4], sums[3]));
        let [even, even_behind] = scaled_sum(1.0, c, scaled_sum(1.0, a, sums[0])).interleaved(scaled_sum(4.0, c, a));
        let [odd, odd_behind] = scaled_sum(2.0, d, b).interleaved(scaled_sum(1.0, sums[5], scaled_sum(8.0, d, b)));
        store(even.interleaved(odd), target, V::WIDTH);
        store(even_behind.interleaved(odd_behind), target.add(2 * V::WIDTH), V::WIDTH);
    }
}

/// The values to which results are added, if they are not those in the target, and the limits of the sums.
#[derive(Clone, Copy)]
struct Adding {
    start: Option<f32>,
    limits: [f32; 2],
}

/// Adds adjacent results to the target.
///
/// # Safety
/// The results must be readable and the target writable; the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn add_run<V: Vector>(target: *mut f32, results: *const f32, count: usize, adding: Adding) {
    // SAFETY: the caller's promises.
    unsafe {
        if count >= V::WIDTH {
            return add_vectors::<V>(target, results, count, adding);
        }
        if count >= V::Half::WIDTH {
            return add_vectors::<V::Half>(target, results, count, adding);
        }
        let [low, high] = adding.limits;
        for i in 0..count {
            let sum = adding.start.unwrap_or(*target.add(i)) + *results.add(i);
            *target.add(i) = limited(sum, low, high);
        }
    }
}

/// Does the same for at least one vector. Instead of leaving a remainder, the last vector overlaps the one before.
///
/// # Safety
/// As [`add_run`].
#[inline(always)]
unsafe fn add_vectors<V: Vector>(target: *mut f32, results: *const f32, count: usize, adding: Adding) {
    // SAFETY: the caller's promises.
    unsafe {
        let [low, high] = adding.limits.map(
            #[inline(always)]
            |limit| V::splat(limit),
        );
        let last = count - V::WIDTH;
        // Computed before the elements that it shares with the vector before are written.
        let end = sum_at::<V>(target, results, last, adding.start).limited(low, high);
        for i in (0..last).step_by(V::WIDTH) {
            sum_at::<V>(target, results, i, adding.start).limited(low, high).store(target.add(i));
        }
        end.store(target.add(last));
    }
}

/// Returns the sums of a vector of results and of the target or the starting value.
///
/// # Safety
/// As [`add_run`].
#[inline(always)]
unsafe fn sum_at<V: Vector>(target: *const f32, results: *const f32, at: usize, start: Option<f32>) -> V {
    // SAFETY: the caller's promises.
    unsafe {
        let sum = match start {
            Some(start) => V::splat(start),
            None => V::load(target.add(at)),
        };
        scaled_sum(1.0, V::load(results.add(at)), sum)
    }
}
