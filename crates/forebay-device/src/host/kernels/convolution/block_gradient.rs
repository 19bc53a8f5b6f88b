//! The gradient with respect to the weights with positions in the lanes of vectors, for any window and any number of channels.
//!
//! A chunk is summed block by block. A *block* is a box of positions. x is packed as the window sees it, and dy so that its positions have
//! the same numbers. Block boundaries depend on the sizes of a chunk and on channels.

use super::super::simd::{LANES, SummedVector, dispatch};
use super::super::stored::{Elements, Stored};
use super::Geometry;
use super::axis::Axis;
use super::families::{check_taps, taps};
use super::microkernel::{CHANNELS, Run, project};
use super::slab::{SLACK, Slab, Span, even, spans};
use super::weight_tiles::{TASKS_MIN, Tiles};

/// Packed elements of x in a task, and of dy including the gaps between rows: both stay in a core's second-level cache.
const PACKED_MAX: usize = 96 * 1024;
/// Positions of a task times its output channels.
const GRADIENT_MAX: usize = 64 * 1024;
/// Weights of a task, unless those of [`CHANNELS`] outputs and one input are more: the sums of such a task come from the heap if they do
/// not fit a thread's buffer.
const WEIGHTS_MAX: usize = 32 * 1024;
/// Output channels of a task.
const OUTPUTS_MAX: usize = 32;
/// Weights of a task whose blocks are small, and about how many tasks there are then. With them, the weight gradients of MobileNet v2's and
/// EfficientNet B0's last layers, of 7 x 7 positions, take 0.7 of the time.
const SUMS_SMALL_MAX: usize = 16 * 1024;
const TILES_SMALL_MIN: usize = 2 * TASKS_MIN;
/// Positions that are summed before the lanes of vectors are added up: their gradients stay in the first-level cache.
const RUN_MAX: usize = 1024;

/// How a chunk is summed block by block.
pub(super) struct BlockGradient {
    slab: Slab,
    taps: usize,
    /// Where position 0 of a block looks in the packed channels, by input channel of a tile and by tap.
    offsets: Vec<u32>,
    /// Packed gradients of a plane, and of a channel.
    plane_stride: usize,
    gradient_stride: usize,
}

/// Positions of an image that are summed from zero: from `first` to before `end` in each dimension.
#[derive(Clone, Copy)]
struct Block {
    first: [usize; 3],
    end: [usize; 3],
}

impl BlockGradient {
    /// Creates the gradient of a convolution, given one whole chunk of it, and its tiles of weights.
    ///
    /// # Errors
    /// Returns an error if a window is too large.
    pub fn new(geometry: &Geometry, of_chunk: &Geometry) -> Result<(BlockGradient, Tiles), String> {
        let (taps_count, first) = (geometry.taps(), geometry.first);
        // A task packs all that one position sees, for as many channels as it has outputs.
        check_taps(geometry, PACKED_MAX / CHANNELS)?;
        // Windows of more than `WEIGHTS_MAX / CHANNELS` elements have more sums in a task.
        let outputs_max = (WEIGHTS_MAX / taps_count / CHANNELS * CHANNELS).clamp(CHANNELS, OUTPUTS_MAX);
        let output_tile = even(geometry.outputs, outputs_max).next_multiple_of(CHANNELS);
        let input_tile = even(geometry.inputs, (WEIGHTS_MAX / (output_tile * taps_count)).clamp(1, 2 * OUTPUTS_MAX));
        let axes = std::array::from_fn(|d| Axis::forward(of_chunk, d));
        let positions = of_chunk.target[first..].iter().product::<usize>();
        let positions_max = (GRADIENT_MAX / output_tile).min(positions.div_ceil(4).max(RUN_MAX));
        let slab = Slab::new(axes, PACKED_MAX / input_tile.max(output_tile), positions_max)?
            .within(first, geometry.target[first]);
        let classes = std::array::from_fn(|d| &slab.axes[d].classes[0]);
        let (_, places) = taps(geometry, &slab, classes);
        let plane_stride = ((slab.block[1] - 1) * slab.row_pitch() + slab.block[2]).next_multiple_of(LANES);
        // An odd number of cache lines, so that channels do not compete for the same sets.
        let gradient_stride = ((slab.block[0] * plane_stride).div_ceil(16) | 1) * 16;
        let tiles = Tiles::of(geometry, [output_tile, input_tile]);
        let tiles = of_small_blocks(tiles, slab.channel_stride, gradient_stride);
        let channels = (0..tiles.input_tile).map(|channel| channel * slab.channel_stride);
        let offsets = channels.flat_map(|start| places.iter().map(move |place| (start + place) as u32)).collect();
        Ok((BlockGradient { slab, taps: taps_count, offsets, plane_stride, gradient_stride }, tiles))
    }

    /// The number of buffer elements that [`BlockGradient::add`] needs for a tile.
    pub fn packed_count(&self, [outputs, inputs]: [usize; 2]) -> usize {
        inputs * self.slab.channel_stride + SLACK + outputs * self.gradient_stride
    }

    /// Adds the sums of products of some channels of y and some of x over a chunk of rows of an image: by four outputs, then by input, tap
    /// and output. `x` and `dy` begin at their first channel.
    ///
    /// # Safety
    /// The channels must have the geometry's positions, and no one may write them; the buffer must have as many elements as
    /// [`BlockGradient::packed_count`] says.
    pub unsafe fn add(
        &self,
        geometry: &Geometry,
        sizes: [usize; 2],
        rows: Span,
        [x, dy]: [Stored<f32>; 2],
        buffer: &mut [f32],
        sums: &mut [f32],
    ) {
        let [_, inputs] = sizes;
        let (source, gradient) = buffer.split_at_mut(inputs * self.slab.channel_stride + SLACK);
        for block in self.blocks(geometry, rows) {
            let lines = self.slab.lines(block.first, &geometry.x);
            for (number, packed) in source.chunks_exact_mut(self.slab.channel_stride).take(inputs).enumerate() {
                // SAFETY: the channel exists; no one writes x.
                let channel = unsafe { x.slice(number * geometry.x.channel, geometry.x.span) };
                self.slab.pack(&lines, channel, packed);
            }
            let slack = source.len() - SLACK;
            source[slack..].fill(0.0);
            for (number, packed) in gradient.chunks_exact_mut(self.gradient_stride).enumerate() {
                // SAFETY: the channel exists; no one writes dy.
                let channel = unsafe { dy.slice(number * geometry.y.channel, geometry.y.span) };
                self.pack_gradient(geometry, channel, &block, packed);
            }
            let planes = block.end[0] - block.first[0];
            let mut job = Job { gradient: self, sizes, planes, source: &*source, packed: &*gradient, sums: &mut *sums };
            // SAFETY: everything that the offsets reach is packed.
            unsafe { project_block(&mut job) };
        }
    }

    /// Returns the blocks of a chunk of rows, which are the first ones of a whole chunk: no dimension before the first spatial one has more
    /// than one block.
    fn blocks<'a>(&'a self, geometry: &'a Geometry, rows: Span) -> impl Iterator<Item = Block> + 'a {
        let mut limit = geometry.target;
        limit[geometry.first] = rows.start + rows.len;
        let block = move |number: usize| {
            let mut first = self.slab.origin(number);
            first[geometry.first] += rows.start;
            let end = std::array::from_fn(|d| limit[d].min(first[d] + self.slab.block[d]));
            Block { first, end }
        };
        let is_there = move |block: &Block| block.first[geometry.first] < limit[geometry.first];
        (0..self.slab.block_count()).map(block).take_while(is_there)
    }

    /// Packs a block of a channel of dy such that its positions have the same numbers as in the packed source; the numbers between rows get
    /// zeros.
    fn pack_gradient(&self, geometry: &Geometry, channel: Elements, block: &Block, target: &mut [f32]) {
        let layout = &geometry.y;
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

/// Returns other tiles if they pack less: a channel is packed once for each tile that contains it, and tiles of small blocks can have more
/// channels. The contents of blocks, and with them the order of sums, stay those of the given tiles.
fn of_small_blocks(tiles: Tiles, source_stride: usize, gradient_stride: usize) -> Tiles {
    let product = |factors: [usize; 4]| factors.into_iter().fold(1, usize::saturating_mul);
    let all = product([tiles.groups, tiles.outputs, tiles.inputs, tiles.taps]);
    let sums_max = (all / TILES_SMALL_MIN).min(SUMS_SMALL_MAX);
    // As many outputs as inputs: this makes the most products from the packed elements.
    let side = (sums_max / tiles.taps).isqrt();
    let outputs_max = (PACKED_MAX / gradient_stride).min(side).max(CHANNELS) / CHANNELS * CHANNELS;
    let output_tile = even(tiles.outputs, outputs_max).next_multiple_of(CHANNELS);
    let inputs_max = (PACKED_MAX / source_stride).min(sums_max / (output_tile * tiles.taps));
    let others = Tiles { output_tile, input_tile: even(tiles.inputs, inputs_max), ..tiles };
    let packed = |tiles: &Tiles| {
        let source = product([tiles.outputs.div_ceil(tiles.output_tile), tiles.inputs, source_stride, 1]);
        source.saturating_add(product([tiles.inputs.div_ceil(tiles.input_tile), tiles.outputs, gradient_stride, 1]))
    };
    if others.count() >= TASKS_MIN && packed(&others) < packed(&tiles) { others } else { tiles }
}

/// One block of one tile, packed.
struct Job<'a> {
    gradient: &'a BlockGradient,
    /// Channels of y and of x.
    sizes: [usize; 2],
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
    let (plan, [outputs, inputs]) = (job.gradient, job.sizes);
    let offsets = &plan.offsets[..inputs * plan.taps];
    let run_length = even(plan.plane_stride, RUN_MAX).next_multiple_of(LANES);
    for plane in 0..job.planes {
        for positions in spans(plan.plane_stride, run_length) {
            for outputs in spans(outputs, CHANNELS) {
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
