//! The gradient by the weights: for each weight a sum over images and positions.
//!
//! A *chunk* is a block of positions of one image; the sum runs over chunks, image after image, strictly from left to right.
//! A chunk's own part is summed from zero in an order that depends on its shape only, and chunk lines depend on spatial sizes
//! and channels, never on the batch. So a batch that is cut between two images, and continued with `accumulate`, gives the
//! same bits. Tasks share out weights; where there are few weights they also compute several chunks at once, whose parts
//! wait in scratch memory until they are added in order.

use rayon::prelude::*;

use super::super::parallel::Pointer;
use super::super::simd::{dispatch, Vector, LANES};
use super::axis::Axis;
use super::buffer::with_buffer;
use super::correlation::taps;
use super::microkernel::{project, Run, CHANNELS};
use super::slab::{even, spans, Slab, Span, SLACK};
use super::Geometry;

/// Packed elements of x in a task, and of dy with the gaps between rows: both stay in a core's second-level cache.
const PACKED_MAX: usize = 96 * 1024;
/// Positions of a task times its output channels.
const GRADIENT_MAX: usize = 64 * 1024;
/// Weights of a task.
const WEIGHTS_MAX: usize = 32 * 1024;
/// Output channels of a task.
const OUTPUTS_MAX: usize = 32;
/// Positions that are summed before the lanes of vectors are added up: their gradients stay in the first-level cache.
const RUN_MAX: usize = 1024;
/// Tasks that keep a few threads busy to the end.
const TASKS_MIN: usize = 8;
/// Scratch for chunks that are computed at once, in elements, unless that leaves too few tasks.
const SCRATCH_MAX: usize = 128 * 1024;

/// A weight gradient of given sizes: how it is cut.
pub(super) struct WeightGradient<'a> {
    geometry: &'a Geometry,
    slab: Slab,
    origins: Vec<[usize; 3]>,
    /// By input channel of a tile and tap: where position 0 of a block looks in the packed channels.
    offsets: Vec<u32>,
    tiles: Vec<Tile>,
    /// Packed gradients of a plane, and of a channel.
    plane_stride: usize,
    gradient_stride: usize,
    /// Chunks that are computed at once; 1 where there are enough tiles.
    slots: usize,
}

/// The weights of one task.
#[derive(Clone, Copy)]
struct Tile {
    group: usize,
    outputs: Span,
    inputs: Span,
    /// Where its sums begin in a slot: sums are ordered by four outputs, input, tap and output.
    sums: usize,
}

impl<'a> WeightGradient<'a> {
    pub fn new(geometry: &'a Geometry) -> Result<WeightGradient<'a>, String> {
        let taps_count = geometry.taps();
        let outputs_max = (WEIGHTS_MAX / taps_count / CHANNELS * CHANNELS).min(OUTPUTS_MAX);
        if outputs_max == 0 {
            return Err(format!("a window of {taps_count} elements is too large for the host's {WEIGHTS_MAX} sums"));
        }
        let output_tile = even(geometry.outputs, outputs_max).next_multiple_of(CHANNELS);
        let input_tile = even(geometry.inputs, (WEIGHTS_MAX / (output_tile * taps_count)).clamp(1, 2 * OUTPUTS_MAX));
        let axes = std::array::from_fn(|d| Axis::forward(geometry, d));
        let positions: usize = geometry.target.iter().product();
        let positions_max = (GRADIENT_MAX / output_tile).min(positions.div_ceil(4).max(RUN_MAX));
        let slab = Slab::new(axes, PACKED_MAX / input_tile.max(output_tile), positions_max)?;
        let classes = std::array::from_fn(|d| &slab.axes[d].classes[0]);
        let (_, places) = taps(geometry, &slab, classes);
        let channels = (0..input_tile).map(|channel| channel * slab.channel_stride);
        let offsets = channels.flat_map(|start| places.iter().map(move |place| (start + place) as u32)).collect();
        let mut tiles = Vec::new();
        let mut sums = 0;
        for group in 0..geometry.groups {
            for outputs in spans(geometry.outputs, output_tile) {
                for inputs in spans(geometry.inputs, input_tile) {
                    tiles.push(Tile { group, outputs, inputs, sums });
                    sums += outputs.len.next_multiple_of(CHANNELS) * inputs.len * taps_count;
                }
            }
        }
        let origins = slab.origins();
        let slots = match tiles.len() {
            TASKS_MIN.. => 1,
            few => (SCRATCH_MAX / sums).min(32).max(TASKS_MIN.div_ceil(few)),
        };
        let slots = slots.min(geometry.batch * origins.len());
        let plane_stride = ((slab.block[1] - 1) * slab.row_pitch() + slab.block[2]).next_multiple_of(LANES);
        // An odd number of cache lines, so that channels do not compete for the same sets.
        let gradient_stride = ((slab.block[0] * plane_stride).div_ceil(16) | 1) * 16;
        Ok(WeightGradient { geometry, slab, origins, offsets, tiles, plane_stride, gradient_stride, slots })
    }

    fn sums_count(&self) -> usize {
        self.tiles.last().map_or(0, |tile| tile.sums + self.tile_sums(tile))
    }

    fn tile_sums(&self, tile: &Tile) -> usize {
        tile.outputs.len.next_multiple_of(CHANNELS) * tile.inputs.len * self.geometry.taps()
    }

    /// Scratch that [`WeightGradient::run`] needs, in elements.
    pub fn scratch_count(&self) -> usize {
        if self.slots > 1 {
            self.slots * self.sums_count()
        } else {
            0
        }
    }

    /// dw = (accumulate ? dw : 0) + sum over images and positions of dy x.
    ///
    /// # Safety
    /// The operands must have the geometry's sizes and the scratch [`WeightGradient::scratch_count`] elements; nobody may
    /// write x and dy, or touch dw and the scratch.
    pub unsafe fn run(
        &self,
        accumulate: bool,
        x: Pointer<f32>,
        dy: Pointer<f32>,
        dw: Pointer<f32>,
        scratch: Option<Pointer<f32>>,
    ) {
        let chunks = self.geometry.batch * self.origins.len();
        let chunk = |number: usize| (number / self.origins.len(), self.origins[number % self.origins.len()]);
        let size = self.sums_count();
        match scratch.filter(|_| self.slots > 1) {
            None => self.tiles.par_iter().for_each(|tile| {
                for number in 0..chunks {
                    // SAFETY: the caller's promises; every task writes weights of its own.
                    unsafe {
                        self.chunk_sums(tile, chunk(number), x, dy, |sums| {
                            self.add(tile, sums, dw, accumulate || number > 0);
                        });
                    }
                }
            }),
            Some(scratch) => {
                for wave in spans(chunks, self.slots) {
                    (0..wave.len * self.tiles.len()).into_par_iter().for_each(|task| {
                        let (slot, tile) = (task / self.tiles.len(), &self.tiles[task % self.tiles.len()]);
                        // SAFETY: the caller's promises; every task writes sums of its own.
                        unsafe {
                            let own = scratch.slice_mut(slot * size + tile.sums, self.tile_sums(tile));
                            self.chunk_sums(tile, chunk(wave.start + slot), x, dy, |sums| {
                                own.copy_from_slice(sums);
                            });
                        }
                    });
                    self.tiles.par_iter().for_each(|tile| {
                        for slot in 0..wave.len {
                            // SAFETY: the caller's promises; every task writes weights of its own.
                            unsafe {
                                let sums = scratch.slice(slot * size + tile.sums, self.tile_sums(tile));
                                self.add(tile, sums, dw, accumulate || wave.start + slot > 0);
                            }
                        }
                    });
                }
            }
        }
    }

    /// Adds a chunk's sums to a tile's weights, or begins with them.
    ///
    /// # Safety
    /// As [`WeightGradient::run`]; the tile must be nobody else's.
    unsafe fn add(&self, tile: &Tile, sums: &[f32], dw: Pointer<f32>, accumulate: bool) {
        let (geometry, taps) = (self.geometry, self.geometry.taps());
        let row = tile.inputs.len * taps;
        for output in 0..tile.outputs.len {
            let number = tile.group * geometry.outputs + tile.outputs.start + output;
            let start = (number * geometry.inputs + tile.inputs.start) * taps;
            // SAFETY: the tile's weights lie in dw and are nobody else's by the caller's promise.
            let weights = unsafe { dw.slice_mut(start, row) };
            let four = &sums[output / CHANNELS * row * CHANNELS..][..row * CHANNELS];
            let sums = four.iter().skip(output % CHANNELS).step_by(CHANNELS);
            for (weight, sum) in weights.iter_mut().zip(sums) {
                *weight = if accumulate { *weight } else { 0.0 } + sum;
            }
        }
    }

    /// Gives `work` the sums of a tile over one chunk: by four outputs, then by input and tap.
    ///
    /// # Safety
    /// As [`WeightGradient::run`].
    unsafe fn chunk_sums(
        &self,
        tile: &Tile,
        (image, origin): (usize, [usize; 3]),
        x: Pointer<f32>,
        dy: Pointer<f32>,
        work: impl FnOnce(&[f32]),
    ) {
        let geometry = self.geometry;
        let source_count = tile.inputs.len * self.slab.channel_stride + SLACK;
        let gradient_count = tile.outputs.len * self.gradient_stride;
        let sums_count = self.tile_sums(tile);
        let lines = self.slab.lines(origin);
        with_buffer(source_count + gradient_count + sums_count, |buffer| {
            let (source, rest) = buffer.split_at_mut(source_count);
            let (gradient, sums) = rest.split_at_mut(gradient_count);
            let channels = source.chunks_exact_mut(self.slab.channel_stride).take(tile.inputs.len);
            let first = (image * geometry.groups + tile.group) * geometry.inputs + tile.inputs.start;
            for (number, packed) in channels.enumerate() {
                // SAFETY: the channel exists; nobody writes x.
                let channel = unsafe { x.slice((first + number) * geometry.source_size(), geometry.source_size()) };
                self.slab.pack(&lines, channel, packed);
            }
            source[source_count - SLACK..].fill(0.0);
            let first = (image * geometry.groups + tile.group) * geometry.outputs + tile.outputs.start;
            for (number, packed) in gradient.chunks_exact_mut(self.gradient_stride).enumerate() {
                // SAFETY: the channel exists; nobody writes dy.
                let channel = unsafe { dy.slice((first + number) * geometry.target_size(), geometry.target_size()) };
                self.pack_gradient(channel, origin, packed);
            }
            sums.fill(0.0);
            let planes = self.slab.block[0].min(geometry.target[0] - origin[0]);
            // SAFETY: everything that the offsets reach is packed.
            unsafe { project_chunk(&mut Job { gradient: self, tile, planes, source, packed: gradient, sums }) };
            work(sums);
        });
    }

    /// Packs a block of a channel of dy such that its positions have the numbers that they have in the packed source; the
    /// numbers between rows get zeros.
    fn pack_gradient(&self, channel: &[f32], origin: [usize; 3], target: &mut [f32]) {
        let [depth, height, width] = self.geometry.target;
        let [planes, rows, columns] = self.slab.block;
        let columns = columns.min(width - origin[2]);
        for (plane, target) in target.chunks_exact_mut(self.plane_stride).take(planes).enumerate() {
            for (row, line) in target.chunks_mut(self.slab.row_pitch()).enumerate() {
                let (plane, row_number) = (origin[0] + plane, origin[1] + row);
                if row < rows && plane < depth && row_number < height {
                    let start = (plane * height + row_number) * width + origin[2];
                    line[..columns].copy_from_slice(&channel[start..start + columns]);
                    line[columns..].fill(0.0);
                } else {
                    line.fill(0.0);
                }
            }
        }
    }
}

/// One chunk of one tile, packed.
struct Job<'a> {
    gradient: &'a WeightGradient<'a>,
    tile: &'a Tile,
    planes: usize,
    source: &'a [f32],
    packed: &'a [f32],
    sums: &'a mut [f32],
}

dispatch! {
    /// # Safety
    /// The job's packed channels must be readable as far as its offsets reach.
    fn project_chunk, project_chunk_with(job: &mut Job)
}

/// # Safety
/// As [`project_chunk`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn project_chunk_with<V: Vector>(job: &mut Job) {
    let plan = job.gradient;
    let offsets = &plan.offsets[..job.tile.inputs.len * plan.geometry.taps()];
    let run_length = even(plan.plane_stride, RUN_MAX).next_multiple_of(LANES);
    for plane in 0..job.planes {
        for positions in spans(plan.plane_stride, run_length) {
            for outputs in spans(job.tile.outputs.len, CHANNELS) {
                let sums = &mut job.sums[outputs.start * offsets.len()..][..CHANNELS * offsets.len()];
                // SAFETY: the caller's promises; the run lies in the plane.
                unsafe {
                    let gradient = job.packed.as_ptr().add(outputs.start * plan.gradient_stride);
                    let run = Run {
                        gradient: gradient.add(plane * plan.plane_stride + positions.start),
                        gradient_stride: plan.gradient_stride,
                        packed: job.source.as_ptr().add(plane * plan.slab.plane_pitch() + positions.start),
                        vectors: positions.len / LANES,
                    };
                    project::<V>(outputs.len, &run, offsets, sums);
                }
            }
        }
    }
}
