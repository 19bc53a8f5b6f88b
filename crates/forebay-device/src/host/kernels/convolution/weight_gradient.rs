//! The gradient by the weights: for each weight a sum over images and positions.
//!
//! A *block* is a box of positions of one image, and lies within a chunk of rows ([`reduction_block_rows_of_image`]); chunks are the leaves of the
//! sum tree, those of an image a subtree. Within a chunk, the sum goes from block to block. Block boundaries depend on the sizes of a
//! chunk and on channels, never on the batch or the number of rows. So parts of a batch that are nodes of the tree, or of an image's
//! chunks, have the sums that the whole has there. Tasks share out weights; where there are few weights, a task is a subtree's part of
//! them, whose sums wait in workspace until all are there.
//!
//! Windows of one element ([`Pointwise`]) and depthwise convolutions of planes ([`DepthwiseGradient`]) are summed by algorithms of their
//! own, which are vectorized over channels. The window and the channels of a group decide: they are the same in parts and in the whole.

use forebay_base::kernel::reduction_block_rows_of_image;
use forebay_base::SumTree;

use super::super::buffer::{Buffer, Target, BLOCK};
use super::super::parallel::{for_each, wide, Pointer};
use super::super::simd::{dispatch, SummedVector, LANES};
use super::super::stored::{Elements, Stored};
use super::super::thread_buffer::{with_buffer, ELEMENTS_MAX};
use super::axis::Axis;
use super::correlation::taps;
use super::depthwise_gradient::DepthwiseGradient;
use super::microkernel::{project, Run, CHANNELS};
use super::pointwise::Pointwise;
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
/// Weights of a task whose blocks are small, and how many tasks there are then, about. The weight gradients of MobileNet v2's and
/// EfficientNet B0's last layers, of 7 x 7 positions, take 0.7 of the time with them.
const SUMS_SMALL_MAX: usize = 16 * 1024;
const TILES_SMALL_MIN: usize = 2 * TASKS_MIN;
/// Positions that are summed before the lanes of vectors are added up: their gradients stay in the first-level cache.
const RUN_MAX: usize = 1024;
/// Tasks that keep a few threads busy to the end.
const TASKS_MIN: usize = 8;
/// Workspace for the sums of subtrees, in elements, unless that leaves too few tasks.
const WORKSPACE_MAX: usize = 128 * 1024;

/// A weight gradient of given sizes: how it is cut.
pub(super) struct WeightGradient<'a> {
    geometry: &'a Geometry,
    algorithm: Algorithm,
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
    /// Subtrees whose sums may wait to be added; 1 where there are enough tiles.
    slots: usize,
}

/// How a chunk is summed.
#[derive(Clone, Copy)]
enum Algorithm {
    /// Positions lie in vectors, and are packed as windows see them.
    Blocks,
    Pointwise(Pointwise),
    /// All groups are one, with a channel of y from each.
    Depthwise(DepthwiseGradient),
}

impl Algorithm {
    fn of(geometry: &Geometry) -> Algorithm {
        let depthwise = DepthwiseGradient::of(geometry).map(Algorithm::Depthwise);
        depthwise.or_else(|| Pointwise::of(geometry).map(Algorithm::Pointwise)).unwrap_or(Algorithm::Blocks)
    }
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
    /// Other tiles, if that packs less: a channel is packed once for each tile that it is in, and those of small blocks may have more channels.
    /// What blocks hold, and with it the order of sums, is that of the tiles before.
    fn of_small_blocks(self, source_stride: usize, gradient_stride: usize) -> Tiles {
        let product = |factors: [usize; 4]| factors.into_iter().fold(1, usize::saturating_mul);
        let all = product([self.groups, self.outputs, self.inputs, self.taps_count]);
        let sums_max = (all / TILES_SMALL_MIN).min(SUMS_SMALL_MAX);
        // As many of both: then the most products are made of what is packed.
        let side = (sums_max / self.taps_count).isqrt();
        let outputs_max = (PACKED_MAX / gradient_stride).min(side).max(CHANNELS) / CHANNELS * CHANNELS;
        let output_tile = even(self.outputs, outputs_max).next_multiple_of(CHANNELS);
        let inputs_max = (PACKED_MAX / source_stride).min(sums_max / (output_tile * self.taps_count));
        let others = Tiles { output_tile, input_tile: even(self.inputs, inputs_max), ..self };
        let packed = |tiles: &Tiles| {
            let source = product([tiles.outputs.div_ceil(tiles.output_tile), tiles.inputs, source_stride, 1]);
            source.saturating_add(product([tiles.inputs.div_ceil(tiles.input_tile), tiles.outputs, gradient_stride, 1]))
        };
        if others.count() >= TASKS_MIN && packed(&others) < packed(&self) {
            others
        } else {
            self
        }
    }

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

impl<'a> WeightGradient<'a> {
    pub fn new(geometry: &'a Geometry) -> Result<WeightGradient<'a>, String> {
        let taps_count = geometry.taps();
        let outputs_max = (WEIGHTS_MAX / taps_count / CHANNELS * CHANNELS).min(OUTPUTS_MAX);
        if outputs_max == 0 {
            return Err(format!("a window of {taps_count} elements is too large for the host's {WEIGHTS_MAX} sums"));
        }
        let output_tile = even(geometry.outputs, outputs_max).next_multiple_of(CHANNELS);
        let input_tile = even(geometry.inputs, (WEIGHTS_MAX / (output_tile * taps_count)).clamp(1, 2 * OUTPUTS_MAX));
        // Blocks are those of one whole chunk of rows, however many there are: the end of an image, where a chunk has fewer, may be all that
        // a launch sees.
        let first = geometry.first;
        let row_positions = geometry.target[first + 1..].iter().product::<usize>();
        let rows = reduction_block_rows_of_image(row_positions as u64) as usize;
        let mut of_chunk = *geometry;
        of_chunk.target[first] = rows;
        let axes = std::array::from_fn(|d| Axis::forward(&of_chunk, d));
        let positions_max = (GRADIENT_MAX / output_tile).min((rows * row_positions).div_ceil(4).max(RUN_MAX));
        let slab = Slab::new(axes, PACKED_MAX / input_tile.max(output_tile), positions_max)?
            .within(first, geometry.target[first]);
        let classes = std::array::from_fn(|d| &slab.axes[d].classes[0]);
        let (_, places) = taps(geometry, &slab, classes);
        let plane_stride = ((slab.block[1] - 1) * slab.row_pitch() + slab.block[2]).next_multiple_of(LANES);
        // An odd number of cache lines, so that channels do not compete for the same sets.
        let gradient_stride = ((slab.block[0] * plane_stride).div_ceil(16) | 1) * 16;
        let Geometry { groups, outputs, inputs, .. } = *geometry;
        let tiles = Tiles { groups, outputs, inputs, output_tile, input_tile, taps_count };
        let algorithm = Algorithm::of(geometry);
        let tiles = match algorithm {
            Algorithm::Blocks => tiles.of_small_blocks(slab.channel_stride, gradient_stride),
            Algorithm::Pointwise(pointwise) => {
                let [output_tile, input_tile] = pointwise.tile(geometry, TASKS_MIN);
                Tiles { output_tile, input_tile, ..tiles }
            }
            Algorithm::Depthwise(_) => {
                let (output_tile, input_tile) = (DepthwiseGradient::CHANNELS, 1);
                Tiles { groups: 1, outputs: groups, inputs: 1, output_tile, input_tile, taps_count }
            }
        };
        let channels = (0..tiles.input_tile).map(|channel| channel * slab.channel_stride);
        let offsets = channels.flat_map(|start| places.iter().map(move |place| (start + place) as u32)).collect();
        let block_count = block_count(geometry, &slab, rows);
        let slots = match tiles.count() {
            TASKS_MIN.. => 1,
            few => (WORKSPACE_MAX / tiles.sums_count()).min(32).max(TASKS_MIN.div_ceil(few)),
        };
        Ok(WeightGradient {
            geometry,
            algorithm,
            slab,
            rows,
            block_count,
            offsets,
            tiles,
            plane_stride,
            gradient_stride,
            slots,
        })
    }

    /// The same with this many elements of workspace: fewer and larger subtrees, which changes no bit.
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

    /// The tree that has chunks as its leaves.
    fn tree(&self) -> SumTree {
        let chunks = self.geometry.target[self.geometry.first].div_ceil(self.rows);
        SumTree::new(self.geometry.batch as u64, chunks as u64)
    }

    /// Workspace that [`WeightGradient::run`] needs, in elements.
    pub fn workspace_count(&self) -> usize {
        match self.tree().subtrees(self.slots as u64).count() as usize {
            0 | 1 => 0,
            subtrees => subtrees * self.tiles.sums_count(),
        }
    }

    /// dw = sum over images and positions of dy x.
    ///
    /// # Safety
    /// The operands must have the geometry's sizes and the workspace [`WeightGradient::workspace_count`] elements; no one may
    /// write x and dy, or touch dw and the workspace.
    pub unsafe fn run(&self, x: Stored<f32>, dy: Stored<f32>, dw: Stored<f32>, workspace: Option<Pointer<f32>>) {
        let tiles = self.tiles.count();
        let subtrees = self.tree().subtrees(if workspace.is_some() { self.slots as u64 } else { 1 });
        let count = subtrees.count() as usize;
        let Some(workspace) = workspace.filter(|_| count > 1) else {
            return for_each(tiles, |tile| {
                let tile = &self.tiles.get(tile);
                // SAFETY: the caller's promises; every task writes weights of its own.
                unsafe { self.tree_sums(tile, (0, self.tree()), x, dy, |sums| self.store(tile, sums, dw)) };
            });
        };
        let size = self.tiles.sums_count();
        // SAFETY: the caller's promises; each use is of a tile and a subtree that no other task has then.
        let slot = |subtree: usize, tile: &Tile| unsafe {
            workspace.slice_mut(subtree * size + tile.sums, self.tile_sums(tile))
        };
        for_each(count * tiles, |task| {
            let (subtree, tile) = (task / tiles, &self.tiles.get(task % tiles));
            // SAFETY: the caller's promises.
            unsafe {
                self.tree_sums(tile, subtrees.get(subtree as u64), x, dy, |sums| {
                    slot(subtree, tile).copy_from_slice(sums);
                });
            }
        });
        for_each(tiles, |tile| {
            let tile = &self.tiles.get(tile);
            subtrees.above().sum(0..count, |earlier, later| {
                add(slot(earlier, tile), slot(later, tile));
                earlier
            });
            // SAFETY: the caller's promises; every task writes weights of its own.
            unsafe { self.store(tile, slot(0, tile), dw) };
        });
    }

    /// Writes a tile's weights.
    ///
    /// # Safety
    /// As [`WeightGradient::run`]; the tile must be no one else's.
    unsafe fn store(&self, tile: &Tile, sums: &[f32], dw: Stored<f32>) {
        let (geometry, taps) = (self.geometry, self.geometry.taps());
        let row = tile.inputs.len * taps;
        for output in 0..tile.outputs.len {
            let number = tile.group * geometry.outputs + tile.outputs.start + output;
            let start = (number * geometry.inputs + tile.inputs.start) * taps;
            let (first, step) = match self.algorithm {
                Algorithm::Blocks => (output / CHANNELS * row * CHANNELS + output % CHANNELS, CHANNELS),
                Algorithm::Pointwise(pointwise) => pointwise.place([tile.outputs.len, tile.inputs.len], output),
                Algorithm::Depthwise(_) => (output * row, 1),
            };
            for part in spans(row, BLOCK) {
                let sums = sums[first + part.start * step..].iter().step_by(step);
                let fill = |weights: &mut [f32]| weights.iter_mut().zip(sums).for_each(|(weight, &sum)| *weight = sum);
                // SAFETY: the tile's weights lie in dw and are no one else's by the caller's promise.
                unsafe { dw.write(start + part.start, part.len, &mut Buffer::new(), fill) };
            }
        }
    }

    /// Gives `work` the sums of a tile over a tree that begins with a chunk: by four outputs, then by input and tap.
    ///
    /// # Safety
    /// As [`WeightGradient::run`].
    unsafe fn tree_sums(
        &self,
        tile: &Tile,
        (first, tree): (u64, SumTree),
        x: Stored<f32>,
        dy: Stored<f32>,
        work: impl FnOnce(&[f32]),
    ) {
        let (source_count, gradient_count) = match self.algorithm {
            Algorithm::Pointwise(pointwise) => {
                (pointwise.packed_count([tile.outputs.len, tile.inputs.len], [x, dy]), 0)
            }
            Algorithm::Depthwise(depthwise) => (depthwise.packed_count(self.geometry), 0),
            Algorithm::Blocks => {
                (tile.inputs.len * self.slab.channel_stride + SLACK, tile.outputs.len * self.gradient_stride)
            }
        };
        let size = self.tile_sums(tile);
        // The sums of a chunk, and those that wait for what is to the right of them.
        let sums_count = (tree.depth() as usize + 1) * size;
        let packed_count = source_count + gradient_count;
        let fits = packed_count + sums_count <= ELEMENTS_MAX;
        let mut large = vec![0.0; if fits { 0 } else { sums_count }];
        with_buffer(packed_count + if fits { sums_count } else { 0 }, |buffer| {
            let (source, rest) = buffer.split_at_mut(source_count);
            let (gradient, rest) = rest.split_at_mut(gradient_count);
            let sums = if fits { rest } else { &mut large };
            let mut waiting = 0;
            for leaf in 0..tree.leaves() {
                let own = &mut sums[waiting * size..][..size];
                own.fill(0.0);
                // SAFETY: the caller's promises.
                unsafe { self.add_chunk(tile, (first + leaf) as usize, (x, dy), (source, gradient), own) };
                for _ in 0..tree.merges_after(leaf) {
                    let (earlier, later) = sums[(waiting - 1) * size..].split_at_mut(size);
                    add(earlier, &later[..size]);
                    waiting -= 1;
                }
                waiting += 1;
            }
            work(&sums[..size]);
        });
    }

    /// Adds the sums of a tile over a chunk, block by block.
    ///
    /// # Safety
    /// As [`WeightGradient::run`].
    unsafe fn add_chunk(
        &self,
        tile: &Tile,
        chunk: usize,
        (x, dy): (Stored<f32>, Stored<f32>),
        (source, gradient): (&mut [f32], &mut [f32]),
        sums: &mut [f32],
    ) {
        let geometry = self.geometry;
        let chunks = geometry.target[geometry.first].div_ceil(self.rows);
        let (image, chunk) = (chunk / chunks, chunk % chunks);
        let first_output = tile.group * geometry.outputs + tile.outputs.start;
        let first_input = match self.algorithm {
            Algorithm::Depthwise(_) => first_output,
            Algorithm::Blocks | Algorithm::Pointwise(_) => tile.group * geometry.inputs + tile.inputs.start,
        };
        let start = chunk * self.rows;
        let rows = Span { start, len: self.rows.min(geometry.target[geometry.first] - start) };
        // SAFETY: the image and the channels exist.
        let of_image = unsafe {
            let x = x.at((image * geometry.x.image + first_input * geometry.x.channel) as isize);
            [x, dy.at((image * geometry.y.image + first_output * geometry.y.channel) as isize)]
        };
        match self.algorithm {
            Algorithm::Blocks => {}
            Algorithm::Pointwise(pointwise) => {
                let sizes = [tile.outputs.len, tile.inputs.len];
                // SAFETY: the caller's promises.
                return unsafe { pointwise.add(geometry, sizes, rows, of_image, source, sums) };
            }
            Algorithm::Depthwise(depthwise) => {
                // SAFETY: the caller's promises.
                return unsafe { depthwise.add(geometry, tile.outputs.len, rows, of_image, source, sums) };
            }
        }
        let per_chunk = self.slab.block_count();
        for number in chunk * per_chunk..self.block_count.min((chunk + 1) * per_chunk) {
            let block = self.block(number);
            let lines = self.slab.lines(block.first, &geometry.x);
            let channels = source.chunks_exact_mut(self.slab.channel_stride).take(tile.inputs.len);
            for (number, packed) in channels.enumerate() {
                // SAFETY: the channel exists; no one writes x.
                let channel = unsafe { of_image[0].slice(number * geometry.x.channel, geometry.x.span) };
                self.slab.pack(&lines, channel, packed);
            }
            let slack = source.len() - SLACK;
            source[slack..].fill(0.0);
            for (number, packed) in gradient.chunks_exact_mut(self.gradient_stride).enumerate() {
                // SAFETY: the channel exists; no one writes dy.
                let channel = unsafe { of_image[1].slice(number * geometry.y.channel, geometry.y.span) };
                self.pack_gradient(channel, &block, packed);
            }
            let planes = block.end[0] - block.first[0];
            let mut job = Job { gradient: self, tile, planes, source: &*source, packed: &*gradient, sums: &mut *sums };
            // SAFETY: everything that the offsets reach is packed.
            unsafe { project_block(&mut job) };
        }
    }

    /// Packs a block of a channel of dy such that its positions have the numbers that they have in the packed source; the
    /// numbers between rows get zeros.
    fn pack_gradient(&self, channel: Elements, block: &Block, target: &mut [f32]) {
        let layout = &self.geometry.y;
        let [planes, rows, columns]: [usize; 3] = std::array::from_fn(|d| block.end[d] - block.first[d]);
        for (plane, target) in target.chunks_exact_mut(self.plane_stride).take(self.slab.block[0]).enumerate() {
            for (row, line) in target.chunks_mut(self.slab.row_pitch()).enumerate() {
                if plane < planes && row < rows {
                    let (plane, row) = (block.first[0] + plane, block.first[1] + row);
                    let start = plane * layout.plane + row * layout.row + block.first[2];
                    channel.copy_to(&mut line[..columns], start, 1);
                    line[columns..].fill(0.0);
                } else {
                    line.fill(0.0);
                }
            }
        }
    }
}

/// Adds the sums of some positions and of those behind them, in the place of the first.
fn add(earlier: &mut [f32], later: &[f32]) {
    wide(
        #[inline(always)]
        || earlier.iter_mut().zip(later).for_each(|(earlier, later)| *earlier += later),
    );
}

/// The number of blocks of an image; `usize::MAX` where there are more than can be counted.
fn block_count(geometry: &Geometry, slab: &Slab, rows: usize) -> usize {
    let (height, block_rows) = (geometry.target[geometry.first], slab.block[geometry.first]);
    let across = slab.block_count() / rows.min(height).div_ceil(block_rows);
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
unsafe fn project_block_with<V: SummedVector>(job: &mut Job) {
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
