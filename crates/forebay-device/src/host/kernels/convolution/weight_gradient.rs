//! The gradient by the weights: for each weight a sum over images and positions.
//!
//! A *block* is a box of positions of one image, and lies within a chunk of rows ([`reduction_block`]); the sum runs over blocks,
//! image after image and chunk after chunk, strictly from left to right. A block's own part is summed from zero in an order
//! that depends on its shape only, and block boundaries depend on the sizes of a chunk and on channels, never on the batch or the
//! number of rows. So a batch that is cut between two images, or an image between two chunks, and continued with
//! `accumulate`, gives the same bits. Tasks share out weights; where there are few weights, a task is one block's part of them.
//! Then tasks begin in order, block after block, and a part that is done before those of earlier blocks waits in workspace
//! until they are added.

use std::sync::Mutex;

use forebay_base::kernel::reduction_block;

use super::super::super::lock::lock;
use super::super::parallel::{for_each, in_order, Pointer};
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
/// Workspace for parts that wait, in elements, unless that leaves too few tasks.
const WORKSPACE_MAX: usize = 128 * 1024;

/// A weight gradient of given sizes: how it is cut.
pub(super) struct WeightGradient<'a> {
    geometry: &'a Geometry,
    slab: Slab,
    /// Rows of a chunk.
    rows: usize,
    /// Blocks of an image.
    block_count: usize,
    /// By input channel of a tile and tap: where position 0 of a block looks in the packed channels.
    offsets: Vec<u32>,
    tiles: Tiles,
    /// Packed gradients of a plane, and of a channel.
    plane_stride: usize,
    gradient_stride: usize,
    /// Blocks that are computed, or wait to be added, at once; 1 where there are enough tiles.
    slots: usize,
}

/// Positions of an image that are summed from zero: from `first` to before `end` in each dimension.
#[derive(Clone, Copy)]
struct Block {
    first: [usize; 3],
    end: [usize; 3],
}

/// How weights are shared out to tasks: a group's tile by tile, along outputs, then inputs. Tiles are computed, not listed.
struct Tiles {
    groups: usize,
    /// Channels of y and of x in a group.
    outputs: usize,
    inputs: usize,
    /// Channels of y, a multiple of [`CHANNELS`], and of x in a tile.
    output_tile: usize,
    input_tile: usize,
    taps_count: usize,
}

impl Tiles {
    fn per_group(&self) -> usize {
        self.outputs.div_ceil(self.output_tile) * self.inputs.div_ceil(self.input_tile)
    }

    /// Number of tiles.
    fn count(&self) -> usize {
        self.groups * self.per_group()
    }

    fn get(&self, number: usize) -> Tile {
        let (group, number) = (number / self.per_group(), number % self.per_group());
        let columns = self.inputs.div_ceil(self.input_tile);
        let span = |start: usize, size: usize, count: usize| Span { start, len: size.min(count - start) };
        let outputs = span(number / columns * self.output_tile, self.output_tile, self.outputs);
        let inputs = span(number % columns * self.input_tile, self.input_tile, self.inputs);
        let before = outputs.start * self.inputs + outputs.len.next_multiple_of(CHANNELS) * inputs.start;
        Tile { group, outputs, inputs, sums: group * self.sums_per_group() + before * self.taps_count }
    }

    fn sums_per_group(&self) -> usize {
        self.outputs.next_multiple_of(CHANNELS) * self.inputs * self.taps_count
    }

    /// Sums of all tiles.
    fn sums_count(&self) -> usize {
        self.groups * self.sums_per_group()
    }
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

/// How far the sums of a tile are, block by block.
struct Queue {
    /// Blocks that are added.
    added: usize,
    /// By slot: whether a block's part waits there.
    waits: Vec<bool>,
}

impl Queue {
    fn new(slots: usize) -> Queue {
        Queue { added: 0, waits: vec![false; slots] }
    }
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
        // Blocks are those of one chunk of rows, however many there are.
        let first = geometry.first;
        let row_positions = geometry.target[first + 1..].iter().product::<usize>();
        let rows = reduction_block(geometry.target[first] as u64, row_positions as u64).rows as usize;
        let mut of_chunk = *geometry;
        of_chunk.target[first] = rows;
        let axes = std::array::from_fn(|d| Axis::forward(&of_chunk, d));
        let positions_max = (GRADIENT_MAX / output_tile).min((rows * row_positions).div_ceil(4).max(RUN_MAX));
        let slab = Slab::new(axes, PACKED_MAX / input_tile.max(output_tile), positions_max)?;
        let classes = std::array::from_fn(|d| &slab.axes[d].classes[0]);
        let (_, places) = taps(geometry, &slab, classes);
        let channels = (0..input_tile).map(|channel| channel * slab.channel_stride);
        let offsets = channels.flat_map(|start| places.iter().map(move |place| (start + place) as u32)).collect();
        let Geometry { groups, outputs, inputs, .. } = *geometry;
        let tiles = Tiles { groups, outputs, inputs, output_tile, input_tile, taps_count };
        let block_count = block_count(geometry, &slab, rows);
        let slots = match tiles.count() {
            TASKS_MIN.. => 1,
            few => (WORKSPACE_MAX / tiles.sums_count()).min(32).max(TASKS_MIN.div_ceil(few)),
        };
        let slots = slots.min(geometry.batch.saturating_mul(block_count));
        let plane_stride = ((slab.block[1] - 1) * slab.row_pitch() + slab.block[2]).next_multiple_of(LANES);
        // An odd number of cache lines, so that channels do not compete for the same sets.
        let gradient_stride = ((slab.block[0] * plane_stride).div_ceil(16) | 1) * 16;
        Ok(WeightGradient { geometry, slab, rows, block_count, offsets, tiles, plane_stride, gradient_stride, slots })
    }

    /// The same with this many elements of workspace: fewer blocks at once, which changes no bit.
    pub fn within(self, workspace_count: usize) -> WeightGradient<'a> {
        let slots = workspace_count / self.tiles.sums_count().max(1);
        WeightGradient { slots: self.slots.min(slots).max(1), ..self }
    }

    /// A block of an image: blocks are numbered chunk after chunk, and the last chunk may have fewer of them. No dimension
    /// before the first spatial one has more than one block, so that these are the first ones of a whole chunk.
    fn block(&self, number: usize) -> Block {
        let (geometry, per_chunk) = (self.geometry, self.slab.block_count());
        let start = number / per_chunk * self.rows;
        let mut first = self.slab.origin(number % per_chunk);
        first[geometry.first] += start;
        let mut limit = geometry.target;
        limit[geometry.first] = limit[geometry.first].min(start + self.rows);
        let end = std::array::from_fn(|d| limit[d].min(first[d] + self.slab.block[d]));
        Block { first, end }
    }

    fn tile_sums(&self, tile: &Tile) -> usize {
        tile.outputs.len.next_multiple_of(CHANNELS) * tile.inputs.len * self.geometry.taps()
    }

    /// Workspace that [`WeightGradient::run`] needs, in elements.
    pub fn workspace_count(&self) -> usize {
        if self.slots > 1 {
            self.slots * self.tiles.sums_count()
        } else {
            0
        }
    }

    /// dw = (accumulate ? dw : 0) + sum over images and positions of dy x.
    ///
    /// # Safety
    /// The operands must have the geometry's sizes and the workspace [`WeightGradient::workspace_count`] elements; no one may
    /// write x and dy, or touch dw and the workspace.
    pub unsafe fn run(
        &self,
        accumulate: bool,
        x: Pointer<f32>,
        dy: Pointer<f32>,
        dw: Pointer<f32>,
        workspace: Option<Pointer<f32>>,
    ) {
        let count = self.geometry.batch * self.block_count;
        let block = |number: usize| (number / self.block_count, self.block(number % self.block_count));
        let tiles = self.tiles.count();
        let Some(workspace) = workspace.filter(|_| self.slots > 1) else {
            return for_each(tiles, |tile| {
                let tile = &self.tiles.get(tile);
                for number in 0..count {
                    // SAFETY: the caller's promises; every task writes weights of its own.
                    unsafe {
                        self.block_sums(tile, block(number), x, dy, |sums| {
                            self.add(tile, sums, dw, accumulate || number > 0);
                        });
                    }
                }
            });
        };
        let (size, slots) = (self.tiles.sums_count(), self.slots);
        let queues: Vec<Mutex<Queue>> = (0..tiles).map(|_| Mutex::new(Queue::new(slots))).collect();
        in_order(count * tiles, slots * tiles, |task, line| {
            let (number, tile) = (task / tiles, task % tiles);
            let (queue, tile) = (&queues[tile], &self.tiles.get(tile));
            // SAFETY: the caller's promises; whoever holds the tile's queue has its slots to itself.
            let slot = |number| unsafe { workspace.slice_mut(number % slots * size + tile.sums, self.tile_sums(tile)) };
            line.wait(|| number < lock(queue).added + slots);
            // SAFETY: the caller's promises; whoever holds the tile's queue has its weights to itself.
            unsafe {
                self.block_sums(tile, block(number), x, dy, |sums| {
                    let Queue { added, waits } = &mut *lock(queue);
                    if *added < number {
                        slot(number).copy_from_slice(sums);
                        waits[number % slots] = true;
                        return;
                    }
                    self.add(tile, sums, dw, accumulate || number > 0);
                    *added += 1;
                    while std::mem::take(&mut waits[*added % slots]) {
                        self.add(tile, slot(*added), dw, true);
                        *added += 1;
                    }
                });
            }
        });
    }

    /// Adds a block's sums to a tile's weights, or begins with them.
    ///
    /// # Safety
    /// As [`WeightGradient::run`]; the tile must be no one else's.
    unsafe fn add(&self, tile: &Tile, sums: &[f32], dw: Pointer<f32>, accumulate: bool) {
        let (geometry, taps) = (self.geometry, self.geometry.taps());
        let row = tile.inputs.len * taps;
        for output in 0..tile.outputs.len {
            let number = tile.group * geometry.outputs + tile.outputs.start + output;
            let start = (number * geometry.inputs + tile.inputs.start) * taps;
            // SAFETY: the tile's weights lie in dw and are no one else's by the caller's promise.
            let weights = unsafe { dw.slice_mut(start, row) };
            let four = &sums[output / CHANNELS * row * CHANNELS..][..row * CHANNELS];
            let sums = four.iter().skip(output % CHANNELS).step_by(CHANNELS);
            for (weight, sum) in weights.iter_mut().zip(sums) {
                *weight = if accumulate { *weight } else { 0.0 } + sum;
            }
        }
    }

    /// Gives `work` the sums of a tile over one block: by four outputs, then by input and tap.
    ///
    /// # Safety
    /// As [`WeightGradient::run`].
    unsafe fn block_sums(
        &self,
        tile: &Tile,
        (image, block): (usize, Block),
        x: Pointer<f32>,
        dy: Pointer<f32>,
        work: impl FnOnce(&[f32]),
    ) {
        let geometry = self.geometry;
        let source_count = tile.inputs.len * self.slab.channel_stride + SLACK;
        let gradient_count = tile.outputs.len * self.gradient_stride;
        let sums_count = self.tile_sums(tile);
        let lines = self.slab.lines(block.first, &geometry.x);
        with_buffer(source_count + gradient_count + sums_count, |buffer| {
            let (source, rest) = buffer.split_at_mut(source_count);
            let (gradient, sums) = rest.split_at_mut(gradient_count);
            let channels = source.chunks_exact_mut(self.slab.channel_stride).take(tile.inputs.len);
            let first = tile.group * geometry.inputs + tile.inputs.start;
            for (number, packed) in channels.enumerate() {
                let start = image * geometry.x.image + (first + number) * geometry.x.channel;
                // SAFETY: the channel exists; no one writes x.
                let channel = unsafe { x.slice(start, geometry.x.span) };
                self.slab.pack(&lines, channel, packed);
            }
            source[source_count - SLACK..].fill(0.0);
            let first = tile.group * geometry.outputs + tile.outputs.start;
            for (number, packed) in gradient.chunks_exact_mut(self.gradient_stride).enumerate() {
                let start = image * geometry.y.image + (first + number) * geometry.y.channel;
                // SAFETY: the channel exists; no one writes dy.
                let channel = unsafe { dy.slice(start, geometry.y.span) };
                self.pack_gradient(channel, &block, packed);
            }
            sums.fill(0.0);
            let planes = block.end[0] - block.first[0];
            // SAFETY: everything that the offsets reach is packed.
            unsafe { project_block(&mut Job { gradient: self, tile, planes, source, packed: gradient, sums }) };
            work(sums);
        });
    }

    /// Packs a block of a channel of dy such that its positions have the numbers that they have in the packed source; the
    /// numbers between rows get zeros.
    fn pack_gradient(&self, channel: &[f32], block: &Block, target: &mut [f32]) {
        let layout = &self.geometry.y;
        let [planes, rows, columns]: [usize; 3] = std::array::from_fn(|d| block.end[d] - block.first[d]);
        for (plane, target) in target.chunks_exact_mut(self.plane_stride).take(self.slab.block[0]).enumerate() {
            for (row, line) in target.chunks_mut(self.slab.row_pitch()).enumerate() {
                if plane < planes && row < rows {
                    let (plane, row) = (block.first[0] + plane, block.first[1] + row);
                    let start = plane * layout.plane + row * layout.row + block.first[2];
                    line[..columns].copy_from_slice(&channel[start..start + columns]);
                    line[columns..].fill(0.0);
                } else {
                    line.fill(0.0);
                }
            }
        }
    }
}

/// The number of blocks of an image; `usize::MAX` where there are more than can be counted.
fn block_count(geometry: &Geometry, slab: &Slab, rows: usize) -> usize {
    let (height, block_rows) = (geometry.target[geometry.first], slab.block[geometry.first]);
    let across = slab.block_count() / rows.div_ceil(block_rows);
    let last = (height % rows).div_ceil(block_rows);
    slab.block_count().saturating_mul(height / rows).saturating_add(across.saturating_mul(last))
}

/// One block of one tile, packed.
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
    fn project_block, project_block_with(job: &mut Job)
}

/// # Safety
/// As [`project_block`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn project_block_with<V: Vector>(job: &mut Job) {
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
