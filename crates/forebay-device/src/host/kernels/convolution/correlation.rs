//! The forward direction and the data gradient: both are correlations of a packed source with weights.
//!
//! Each element of the target is one sum over source channels and taps, in that order, with one rounding per term. The order
//! does not depend on how the target is cut into tasks and tiles, so neither do the bits: a batch gives the same bits whole
//! and in parts.

use forebay_base::kernel::Activation;

use super::super::applied::apply_to;
use super::super::buffer::Target;
use super::super::cache;
use super::super::parallel::{Pointer, for_each, threads};
use super::super::simd::{LANES, WIDTH_MAX};
use super::super::spatial::Spatial;
use super::super::stored::Stored;
use super::super::thread_buffer::{ELEMENTS_MAX, with_buffer};
use super::Geometry;
use super::axis::{Axis, without_gaps};
use super::block_sums::{Job, Output, correlate_block};
use super::channelwise::{BEHIND, Plane, sum_plane};
use super::families::{Family, check_taps, families};
use super::microkernel::{CHANNELS, Terms, VECTORS};
use super::slab::{SLACK, Slab, Span, even, spans};
use super::tiles::Layout;
use super::winograd::{self, Units, Winograd};

/// Packed elements of a task: with the weights of a few channels they stay in a core's second-level cache.
const PACKED_MAX: usize = 96 * 1024;
/// Packed elements of one channel, limited so that few channels do not put everything into one task.
const CHANNEL_MAX: usize = 16 * 1024;
/// Packed elements of a task that works channel by channel, if there are that many.
const CHANNELWISE_MIN: usize = 8 * 1024;
/// The approximate number of tasks that work channel by channel, if each has that many elements.
const CHANNELWISE_TASKS_MAX: usize = 32;
/// The number of taps up to which every second element is picked during summation instead of packing.
const TAPS_PICKED_MAX: usize = 9;
/// The bytes that a tile sees of a chunk of source channels: they stay in a core's first-level cache.
const SEEN_MAX_BYTES: usize = 24 * 1024;
/// The most taps of a window in the transposed direction: each family lists its taps.
const TAPS_MAX: usize = 1 << 20;
/// The most families in the transposed direction: each is a list.
const FAMILIES_MAX: usize = 1 << 18;
/// The most target elements of a block: in 16 bits, their sums wait in a thread's buffer, next to the packed elements.
const BLOCK_MAX: usize = FAMILIES_MAX;
/// The most sums of a channel's families that wait in a thread's buffer, which leaves room for several channels.
const WAITING_MAX: usize = ELEMENTS_MAX / 8;
/// The number of tasks that keeps a few threads busy to the end.
const TASKS_MIN: usize = 8;
/// Elements of all images from which sources that are read in place are prefetched: adjacent tiles of each channel are read long after one
/// another, so the CPU does not do it. With 32 channels, 8 images of 112 x 112 take 0.8 of the time.
const SOURCE_FAR_MIN: usize = 1 << 20;
/// The number of target channels that makes up for packing rows without gaps ([`without_gaps`]).
const TARGETS_DENSE_MIN: usize = 32;
/// Weights of a task with one thread, which need not divide work: they stay in a core's second-level cache. The limit is higher if a block
/// has so few tiles that the weights are read at most twice: 7 x 7 positions of 320 to 1152 channels take 0.96 of the time.
const WEIGHTS_MAX_BYTES: usize = 256 * 1024;
const WEIGHTS_SEEN_TWICE_MAX_BYTES: usize = 1024 * 1024;
/// The number of positions of several images that fills vectors and sees the weights often enough not to divide them further.
const POSITIONS_JOINED_MIN: usize = 64;
/// The number of positions that makes up for a block's halo.
const POSITIONS_MIN: usize = 256;

/// A correlation of given sizes, and how it is cut.
pub(super) struct Correlation {
    images: usize,
    groups: usize,
    /// Channels of the source and of the target in a group.
    sources: usize,
    targets: usize,
    pub(super) slab: Slab,
    pub(super) families: Vec<Family>,
    /// Source channels that are packed together.
    source_chunk: usize,
    /// Target channels of a task.
    target_chunk: usize,
    /// 2 if positions are every second one of those that blocks have in the last dimension, otherwise 1.
    step: usize,
    /// Computes blocks with fewer multiplications; positions of the last dimension are units then.
    winograd: Option<Winograd>,
    /// If blocks of the source can be read in place because positions see only themselves: where each channel of a chunk begins.
    in_place: Option<Vec<u32>>,
    /// Whether the sums of a family wait in a thread's buffer, in which those of a plane are one run. In the target they are many short ones,
    /// or lie apart.
    waits: bool,
    source: Spatial,
    pub(super) target: Spatial,
}

impl Correlation {
    /// The correlation from x to y.
    ///
    /// # Errors
    /// Returns an error if the host cannot hold a window.
    pub fn forward(geometry: &Geometry) -> Result<Correlation, String> {
        check_taps(geometry, PACKED_MAX)?;
        let geometry = &geometry.flat().joined();
        let correlate = |geometry: &Geometry| {
            let axes = std::array::from_fn(|d| Axis::forward(geometry, d));
            Correlation::new(geometry, axes, (geometry.inputs, geometry.outputs), (geometry.x, geometry.y))
        };
        let [.., columns] = geometry.target;
        let is_channelwise = [geometry.inputs, geometry.outputs] == [1, 1];
        if is_channelwise && geometry.strides[2] == 2 && geometry.taps() <= TAPS_PICKED_MAX && columns > 0 {
            // Rows are packed as they are, and positions see every second element: this takes less than packing two halves.
            let mut dense = *geometry;
            (dense.strides[2], dense.target[2]) = (1, columns.saturating_mul(2) - 1);
            match correlate(&dense) {
                Ok(whole_rows) if whole_rows.slab.block[2] == dense.target[2] => {
                    return Ok(Correlation { step: 2, ..whole_rows });
                }
                _ => {}
            }
        }
        correlate(geometry)
    }

    /// The correlation from dy to dx.
    ///
    /// # Errors
    /// Returns an error if the host cannot hold a window or strides.
    pub fn transposed(geometry: &Geometry) -> Result<Correlation, String> {
        check_taps(geometry, TAPS_MAX)?;
        let geometry = &geometry.flat().joined();
        let families = (0..3).map(|d| Axis::transposed_classes(geometry, d)).fold(1, usize::saturating_mul);
        if families > FAMILIES_MAX {
            let strides = &geometry.strides[geometry.first..];
            return Err(format!(
                "strides {strides:?} are too large for the host: their product must be at most {FAMILIES_MAX}"
            ));
        }
        let axes = std::array::from_fn(|d| Axis::transposed(geometry, d));
        Correlation::new(geometry, axes, (geometry.outputs, geometry.inputs), (geometry.y, geometry.x))
    }

    fn new(
        geometry: &Geometry,
        axes: [Axis; 3],
        (sources, targets): (usize, usize),
        (source, target): (Spatial, Spatial),
    ) -> Result<Correlation, String> {
        let (units, axes) = match Units::of(geometry, &axes, (sources, targets)) {
            Some((units, axes)) => (Some(units), axes),
            None if targets >= TARGETS_DENSE_MIN => (None, without_gaps(axes, geometry.is_joined())),
            None => (None, axes),
        };
        let rows_seen = geometry.kernel[0] * geometry.kernel[1];
        let row_seen = match &axes[2] {
            axis if axis.spread == 0 => axis.phases.len() * VECTORS * LANES,
            _ => VECTORS * LANES + geometry.kernel[2],
        };
        let bytes_seen = rows_seen * row_seen * size_of::<f32>();
        let (source_chunk, components, unit) = match &units {
            Some(units) => (units.source_chunk, units.components(), units.size),
            None => (even(sources, (SEEN_MAX_BYTES / bytes_seen).max(1)), 1, 1),
        };
        let mut elements_max = (PACKED_MAX / (source_chunk * components)).min(CHANNEL_MAX);
        let families_count: usize = axes.iter().map(|axis| axis.classes.len()).product();
        let positions_max = CHANNEL_MAX.min(BLOCK_MAX / families_count);
        let mut slab = match Slab::new(axes.clone(), elements_max, positions_max) {
            Ok(slab) => slab,
            Err(_) => Slab::new(axes.clone(), PACKED_MAX / source_chunk, positions_max)?,
        };
        let groups = geometry.batch * geometry.groups;
        let tasks_min = match threads() {
            1 => 1,
            threads if geometry.is_joined() => threads,
            _ => TASKS_MIN,
        };
        // Smaller blocks, until there are enough tasks with this many parts of the target channels each.
        let mut divided = |mut slab: Slab, parts: usize, positions_min: usize| {
            let tasks = |slab: &Slab| groups.saturating_mul(slab.block_count()).saturating_mul(parts);
            while tasks(&slab) < tasks_min && slab.block.iter().product::<usize>() * unit > positions_min {
                elements_max /= 2;
                match Slab::new(axes.clone(), elements_max, positions_max) {
                    Ok(smaller) => slab = smaller,
                    Err(_) => break,
                }
            }
            slab
        };
        if geometry.is_joined() {
            slab = divided(slab, 1, POSITIONS_JOINED_MIN);
        }
        let blocks = slab.block_count();
        let target_chunk_min = if geometry.taps() / families_count >= LANES { 4 * CHANNELS } else { 16 * CHANNELS };
        let mut target_chunk = targets;
        if groups.saturating_mul(blocks) < TASKS_MIN && units.is_none() {
            let weights_bytes = targets * source_chunk * geometry.taps() * size_of::<f32>();
            let are_seen_twice = slab.block.iter().product::<usize>() <= 2 * VECTORS * WIDTH_MAX;
            let parts = match tasks_min {
                1 if are_seen_twice => weights_bytes.div_ceil(WEIGHTS_SEEN_TWICE_MAX_BYTES),
                1 => weights_bytes.div_ceil(WEIGHTS_MAX_BYTES),
                _ => tasks_min.div_ceil(groups * blocks),
            };
            let parts = parts.min(targets.div_ceil(target_chunk_min));
            target_chunk = targets.div_ceil(parts).next_multiple_of(CHANNELS).min(targets);
        }
        slab = divided(slab, targets.div_ceil(target_chunk), POSITIONS_MIN);
        if units.is_some() {
            // Source channels are transformed again for each part of the target channels, so there are no more parts than threads.
            let tasks = groups.saturating_mul(slab.block_count()).max(1);
            let parts = threads().div_ceil(tasks).min(targets.div_ceil(4 * CHANNELS));
            target_chunk = targets.div_ceil(parts).next_multiple_of(CHANNELS).min(targets);
        }
        let mut in_place = None;
        if geometry.sees_itself() && geometry.source[..2] == [1, 1] {
            slab = slab.in_vectors();
            let first = |channel: usize| channel.checked_mul(source.channel).and_then(|first| first.try_into().ok());
            in_place = (0..source_chunk).map(first).collect();
        }
        let families = families(geometry, &slab, source_chunk, (sources, targets));
        let plane = [slab.axes[1].count(), slab.axes[2].count()];
        let has_no_gaps = slab.block[1..] == plane && slab.plane_pitch() == plane[0] * plane[1];
        let run = slab.block[0].saturating_mul(slab.row_pitch()).saturating_mul(slab.block[1]);
        let lies_apart = slab.axes[2].target_stride > 1 && run <= WAITING_MAX / families.len();
        Ok(Correlation {
            waits: units.is_none() && (lies_apart || geometry.is_joined() && has_no_gaps),
            images: geometry.batch,
            groups: geometry.groups,
            sources,
            targets,
            families,
            source_chunk,
            target_chunk,
            step: 1,
            in_place,
            winograd: units.map(|units| Winograd::new(units, &slab)),
            slab,
            source,
            target,
        })
    }

    /// Writes activation(correlation + bias) to the target.
    ///
    /// # Safety
    /// The operands must have the correlation's sizes, and a bias must have one element per target channel; no one may write the source and
    /// the weights, or touch the target. The weights are ordered by group, family, target channel, source channel and tap.
    pub unsafe fn run(
        &self,
        activation: Activation,
        source: Stored<f32>,
        weights: Pointer<f32>,
        bias: Option<&[f32]>,
        target: Stored<f32>,
    ) {
        if self.sources == 1 && self.targets == 1 {
            // SAFETY: the caller's promises.
            return unsafe { self.channel_by_channel(activation, source, weights, bias, target) };
        }
        let target_chunks = self.targets.div_ceil(self.target_chunk);
        let blocks = self.slab.block_count();
        let tasks = self.images * self.groups * blocks * target_chunks;
        let bypasses_caches = self.tiles_bypass_caches(activation, target);
        for_each(tasks, |index| {
            let (chunk, index) = (index % target_chunks * self.target_chunk, index / target_chunks);
            let (origin, index) = (self.slab.origin(index % blocks), index / blocks);
            let (image, group) = (index / self.groups, index % self.groups);
            let targets = Span { start: chunk, len: self.target_chunk.min(self.targets - chunk) };
            // SAFETY: the image's and group's channels exist; every task writes different elements.
            unsafe {
                let start = image * self.source.image + group * self.sources * self.source.channel;
                let source = source.at(start as isize);
                let channel = group * self.targets + targets.start;
                let start = image * self.target.image + channel * self.target.channel;
                let weights = weights.at((group * self.weights_per_group()) as isize);
                let bias = bias.map(|bias| &bias[group * self.targets..][..self.targets]);
                let target = target.at(start as isize);
                let block = Block { activation, source, weights, bias, origin };
                match target.own() {
                    _ if self.waits => self.waiting_block(&block, targets, target),
                    Some(base) if target.bypasses_caches() == bypasses_caches => {
                        let output = Output { base, layout: self.target, first: [0; 3], bypasses_caches };
                        with_buffer(self.packed_count(), |packed| {
                            self.block(&block, targets, &output, packed);
                            self.apply(activation, origin, targets.len, base);
                        });
                    }
                    _ => self.buffered_block(&block, targets, target),
                }
            }
        });
    }

    /// Whether all of the source is too large for the caches of a core.
    fn is_source_far(&self) -> bool {
        self.images.saturating_mul(self.source.image) >= SOURCE_FAR_MIN
    }

    /// Returns whether tiles are written past the caches: if the target is, and each tile is written once and mostly in whole lines. Other
    /// results that bypass the caches wait in a thread's buffer.
    fn tiles_bypass_caches(&self, activation: Activation, target: Stored<f32>) -> bool {
        let is_written_once = activation.function().is_none()
            && self.winograd.is_none()
            && self.families.len() == 1
            && self.source_chunk >= self.sources;
        let are_lines = self.target.channel.is_multiple_of(WIDTH_MAX)
            && target.address(0).addr().is_multiple_of(WIDTH_MAX * size_of::<f32>());
        target.bypasses_caches() && is_written_once && are_lines && cache::vectors_fill_lines()
    }

    /// The part of the target that a block covers: the first element and the number of elements, in each dimension.
    pub(super) fn covered(&self, origin: [usize; 3]) -> ([usize; 3], [usize; 3]) {
        let axes = &self.slab.axes;
        let first: [usize; 3] = std::array::from_fn(|d| origin[d] * axes[d].target_stride);
        let mut sizes: [usize; 3] = std::array::from_fn(|d| {
            let all = match &self.winograd {
                Some(winograd) if d == 2 => winograd.units.columns,
                _ => axes[d].classes.iter().map(|class| class.count).sum(),
            };
            (self.slab.block[d] * axes[d].target_stride).min(all.saturating_sub(first[d]))
        });
        // Only every `step`-th position of a row is one of the target's. Rows are whole then.
        sizes[2] = sizes[2].div_ceil(self.step);
        (first, sizes)
    }

    /// Applies the function of an activation to a block of some channels.
    ///
    /// # Safety
    /// The block of the channels from `target` on must be written and belong to no one else.
    unsafe fn apply(&self, activation: Activation, origin: [usize; 3], channels: usize, target: *mut f32) {
        let Some(function) = activation.function() else { return };
        let ([plane, row, column], [planes, rows, columns]) = self.covered(origin);
        let layout = &self.target;
        let outer = [(channels, layout.channel), (planes, layout.plane), (rows, layout.row)];
        // SAFETY: the caller's promise.
        unsafe { apply_to(function, target.add(plane * layout.plane + row * layout.row + column), outer, columns) };
    }

    /// Does the same if each group has one source channel and one target channel.
    ///
    /// # Safety
    /// As [`Correlation::run`].
    unsafe fn channel_by_channel(
        &self,
        activation: Activation,
        source: Stored<f32>,
        weights: Pointer<f32>,
        bias: Option<&[f32]>,
        target: Stored<f32>,
    ) {
        let (slab, blocks) = (&self.slab, self.slab.block_count());
        let (rows, columns) = (slab.block[1], slab.block[2]);
        let packed_count = slab.channel_stride + self.step * BEHIND;
        let sums_count = (rows - 1) * slab.row_pitch() + columns + BEHIND;
        // Channels of a task: the lines to pack are computed once for all of them.
        let all = self.images * blocks * self.groups;
        let chunk = (CHANNELWISE_MIN / slab.channel_stride).max(all / CHANNELWISE_TASKS_MAX).clamp(1, self.groups);
        let chunks = self.groups.div_ceil(chunk);
        for_each(self.images * blocks * chunks, |index| {
            let (first, index) = (index % chunks * chunk, index / chunks);
            let (origin, image) = (slab.origin(index % blocks), index / blocks);
            let lines = slab.lines(origin, &self.source);
            with_buffer(packed_count + sums_count, |buffer| {
                let (packed, sums) = buffer.split_at_mut(packed_count);
                for group in first..self.groups.min(first + chunk) {
                    // SAFETY: the image's and group's channels exist; no one writes the source, and every task writes different elements.
                    unsafe {
                        let start = image * self.source.image + group * self.source.channel;
                        let channel = source.slice(start, self.source.span);
                        match group == first {
                            true => slab.pack(&lines, channel, packed),
                            false => slab.pack_inside(&lines, channel, packed),
                        }
                        let weights = weights.at((group * self.weights_per_group()) as isize);
                        let target = target.at((image * self.target.image + group * self.target.channel) as isize);
                        let bias = bias.map_or(0.0, |bias| bias[group]);
                        for family in &self.families {
                            let weights = weights.add(family.weights);
                            let plane = Plane {
                                packed: packed.as_ptr(),
                                offsets: &family.offsets,
                                weights,
                                bias,
                                limits: activation.limits(),
                                step: self.step,
                                rows: 0,
                                pitch: 0,
                                count: 0,
                                sums: sums.as_mut_ptr(),
                            };
                            self.sum_family(family, origin, plane, target);
                        }
                        if let Some(target) = target.own() {
                            self.apply(activation, origin, 1, target);
                        }
                    }
                }
            });
        });
    }

    /// Sums one family of one block of a channel. The plane says how all of them are summed.
    ///
    /// # Safety
    /// As [`Correlation::run`]; the block's source is packed, and there is room for its sums.
    unsafe fn sum_family(&self, family: &Family, origin: [usize; 3], plane: Plane, target: Stored<f32>) {
        let Some((lens, at, layout)) = self.places(family, origin, &self.target) else { return };
        // Rows are summed together, including what is between them, if every element is a position.
        let (rows, count) = match self.step {
            1 => (1, (lens[1] - 1) * layout.pitch + lens[2]),
            _ => (lens[1], lens[2]),
        };
        for number in 0..lens[0] {
            // SAFETY: the caller's promises; positions lie in the block.
            unsafe {
                let packed = plane.packed.add(number * self.slab.plane_pitch());
                sum_plane(&Plane { packed, rows, count, pitch: layout.pitch, ..plane });
                let stride = self.slab.axes[0].target_stride;
                let start = (at[0] + number * stride) * self.target.plane + at[1] * self.target.row + at[2];
                for row in 0..lens[1] {
                    let sums = std::slice::from_raw_parts(plane.sums.add(row * layout.pitch), lens[2]);
                    layout.store_run(sums, target.at((start + row * layout.row_stride) as isize));
                }
            }
        }
    }

    /// Returns how many positions of a block a family has in each dimension, where the first one is, and where all of them are in planes of
    /// the target, which has the given layout. Returns `None` if there are none.
    pub(super) fn places(
        &self,
        family: &Family,
        origin: [usize; 3],
        target: &Spatial,
    ) -> Option<([usize; 3], [usize; 3], Layout)> {
        let slab = &self.slab;
        let mut lens: [usize; 3] =
            std::array::from_fn(|d| slab.block[d].min(family.counts[d].saturating_sub(origin[d])));
        lens[2] = lens[2].div_ceil(self.step);
        let strides: [usize; 3] = std::array::from_fn(|d| slab.axes[d].target_stride);
        let at = std::array::from_fn(|d| origin[d] * strides[d] + family.first[d]);
        let layout = Layout {
            rows: lens[1],
            columns: lens[2],
            pitch: slab.row_pitch(),
            row_stride: strides[1] * target.row,
            column_stride: strides[2],
        };
        (!lens.contains(&0)).then_some((lens, at, layout))
    }

    /// For each family, where its weights begin within those of a group, and the taps that it sees.
    pub fn families_taps(&self) -> impl Iterator<Item = (usize, &[usize])> {
        self.families.iter().map(|family| (family.weights, &family.taps[..]))
    }

    /// The number of weights that the families of a group have together.
    pub fn weights_per_group(&self) -> usize {
        self.families.iter().map(|family| family.taps.len()).sum::<usize>() * self.sources * self.targets
    }

    /// The number of elements of a packed chunk of source channels.
    pub(super) fn packed_count(&self) -> usize {
        match &self.winograd {
            Some(winograd) => winograd.buffer_count(),
            None => self.source_chunk * self.slab.channel_stride + SLACK,
        }
    }

    /// Computes one block for some target channels.
    ///
    /// # Safety
    /// As [`Correlation::run`], with the output instead of the target, and a buffer of [`Correlation::packed_count`] elements.
    pub(super) unsafe fn block(&self, block: &Block, targets: Span, output: &Output, packed: &mut [f32]) {
        let &Block { activation, source, weights, bias, origin } = block;
        if let Some(winograd) = &self.winograd {
            let start: [usize; 3] =
                std::array::from_fn(|d| origin[d] * self.slab.axes[d].target_stride - output.first[d]);
            let layout = output.layout;
            // SAFETY: the caller's promises.
            unsafe {
                let job = winograd::Job {
                    slab: &self.slab,
                    origin,
                    sources: self.sources,
                    source,
                    source_layout: self.source,
                    weights: weights.add(targets.start * self.weights_per_group() / self.targets),
                    targets,
                    bias,
                    limits: activation.limits(),
                    target: output.base.add(start[0] * layout.plane + start[1] * layout.row + start[2]),
                    target_layout: layout,
                };
                winograd.block(&job, packed);
            }
            return;
        }
        let stride = self.slab.channel_stride;
        let lines = self.slab.lines(origin, &self.source);
        // Vectors must not reach beyond the last position.
        let end = self.slab.axes[2].count();
        let in_vectors = (end - origin[2]).min(self.slab.block[2]).is_multiple_of(WIDTH_MAX);
        let in_place = self.in_place.as_deref().zip(source.own()).filter(|_| in_vectors);
        for chunk in spans(self.sources, self.source_chunk) {
            let packed_channels = if in_place.is_some() { 0 } else { chunk.len };
            for (number, packed) in packed.chunks_exact_mut(stride).take(packed_channels).enumerate() {
                // SAFETY: the channel exists; no one writes the source.
                let channel = unsafe { source.slice((chunk.start + number) * self.source.channel, self.source.span) };
                self.slab.pack(&lines, channel, packed);
            }
            let is_first = chunk.start == 0;
            let is_last = chunk.start + chunk.len == self.sources;
            for (number, family) in self.families.iter().enumerate() {
                // Without taps, nothing is added to the values with which the first chunk begins.
                let is_empty = family.taps.is_empty();
                if is_empty && !is_first {
                    continue;
                }
                let row = self.sources * family.taps.len();
                let skipped = targets.start * row + chunk.start * family.taps.len();
                let (offsets, packed) = match in_place {
                    Some((firsts, base)) => {
                        (firsts, base.wrapping_add(chunk.start * self.source.channel + origin[2]).cast_const())
                    }
                    None => (&family.offsets[..], packed.as_ptr()),
                };
                let plane_pitch = self.slab.plane_pitch();
                let (at, planes, plane_stride, layout, output) = if self.waits {
                    let (planes, run) = self.runs(origin);
                    let (planes, layout) = Layout::of_run(run).with_planes(planes, plane_pitch, run);
                    let base = output.base.wrapping_add(number * targets.len * output.layout.channel);
                    ([0; 3], planes, run, layout, &Output { base, ..*output })
                } else {
                    let Some((lens, at, layout)) = self.places(family, origin, &output.layout) else { continue };
                    let plane_stride = self.slab.axes[0].target_stride * output.layout.plane;
                    let (planes, layout) = layout.merged().with_planes(lens[0], plane_pitch, plane_stride);
                    (std::array::from_fn(|d| at[d] - output.first[d]), planes, plane_stride, layout, output)
                };
                let job = Job {
                    at,
                    planes,
                    plane_pitch,
                    plane_stride,
                    layout,
                    targets,
                    terms: Terms {
                        offsets: &offsets[..chunk.len * family.taps.len()],
                        packed,
                        // SAFETY: the family's weights hold a row for each target channel.
                        weights: unsafe { weights.add(family.weights + skipped) },
                        weight_stride: row,
                    },
                    prefetches: in_place.is_some() && self.is_source_far(),
                    bias,
                    first: is_first,
                    limits: if is_last || is_empty { activation } else { Activation::None }.limits(),
                    output,
                };
                // SAFETY: the caller's promises; the block's source is packed.
                unsafe { correlate_block(&job) };
            }
        }
    }
}

/// One block of positions of one image and group, and its operands.
pub(super) struct Block<'a> {
    pub activation: Activation,
    source: Stored<f32>,
    weights: *const f32,
    bias: Option<&'a [f32]>,
    pub origin: [usize; 3],
}
