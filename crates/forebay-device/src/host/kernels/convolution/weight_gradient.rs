//! The gradient with respect to the weights: for each weight, a sum over images and positions.
//!
//! Chunks of rows of an image ([`reduction_block_rows_of_image`]) are the leaves of the sum tree; those of one image form a subtree. How a
//! chunk is summed depends on the window, on the channels of a group and on the sizes of a whole chunk, never on the batch or the number of
//! rows. So parts of a batch that are nodes of the tree, or of an image's chunks, have the same sums as the whole has there. Weights are
//! divided among tasks; if there are few weights, a task computes a part of them for one subtree, and its sums wait in the workspace until
//! all are complete.

use forebay_base::SumTree;
use forebay_base::kernel::reduction_block_rows_of_image;

use super::super::buffer::{BLOCK, Buffer, Target};
use super::super::parallel::{Pointer, for_each, threads, wide};
use super::super::stored::Stored;
use super::super::thread_buffer::{ALIGNMENT, ELEMENTS_MAX, with_buffer};
use super::Geometry;
use super::block_gradient::BlockGradient;
use super::depthwise_gradient::DepthwiseGradient;
use super::microkernel::CHANNELS;
use super::patch_gradient::PatchGradient;
use super::pointwise::Pointwise;
use super::slab::{Span, spans};
use super::weight_tiles::{TASKS_MIN, Tile, Tiles};
use super::window_gradient::WindowGradient;

/// Elements of workspace for the sums of subtrees, unless that leaves too few tasks.
const WORKSPACE_MAX: usize = 128 * 1024;

/// A weight gradient of given sizes, and how it is cut.
pub(super) struct WeightGradient<'a> {
    geometry: &'a Geometry,
    algorithm: Algorithm,
    tiles: Tiles,
    /// Rows of a chunk.
    rows: usize,
    /// The most subtrees whose sums wait to be added; 1 if there are enough tiles.
    slots: usize,
}

/// How a chunk is summed.
enum Algorithm {
    /// Windows of one element.
    Pointwise(Pointwise),
    /// All groups are treated as one, with a channel of y from each.
    Depthwise(DepthwiseGradient),
    Window(WindowGradient),
    /// Windows that do not overlap.
    Patches(PatchGradient),
    /// Everything else.
    Blocks(Box<BlockGradient>),
}

impl Algorithm {
    /// Returns the algorithm and its tiles of weights.
    fn of(geometry: &Geometry, of_chunk: &Geometry) -> Result<(Algorithm, Tiles), String> {
        if let Some(depthwise) = DepthwiseGradient::of(geometry) {
            let of_groups = Geometry { groups: 1, outputs: geometry.groups, ..*geometry };
            let tiles = Tiles::of(&of_groups, [DepthwiseGradient::CHANNELS, 1]);
            return Ok((Algorithm::Depthwise(depthwise), tiles));
        }
        let window = WindowGradient::of(geometry, of_chunk);
        if let Some(window) = window.filter(|window| window.images() > 1) {
            return Ok((Algorithm::Window(window), window.tiles(geometry)));
        }
        if let Some(pointwise) = Pointwise::of(geometry) {
            let tiles = Tiles::of(geometry, pointwise.tile(geometry, TASKS_MIN));
            return Ok((Algorithm::Pointwise(pointwise), tiles));
        }
        if let Some(window) = window {
            return Ok((Algorithm::Window(window), window.tiles(geometry)));
        }
        if let Some(patches) = PatchGradient::of(geometry) {
            return Ok((Algorithm::Patches(patches), patches.tiles(geometry)));
        }
        let (blocks, tiles) = BlockGradient::new(geometry, of_chunk)?;
        Ok((Algorithm::Blocks(Box::new(blocks)), tiles))
    }
}

impl<'a> WeightGradient<'a> {
    pub fn new(geometry: &'a Geometry) -> Result<WeightGradient<'a>, String> {
        // One whole chunk of rows, however many rows there are: a launch may see only the end of an image, where a chunk has fewer.
        let first = geometry.first;
        let row_positions = geometry.target[first + 1..].iter().product::<usize>();
        let rows = reduction_block_rows_of_image(row_positions as u64) as usize;
        let mut of_chunk = *geometry;
        of_chunk.target[first] = rows;
        let (algorithm, tiles) = Algorithm::of(geometry, &of_chunk)?;
        let slots = match tiles.count() {
            TASKS_MIN.. => 1,
            few => (WORKSPACE_MAX / tiles.sums_count()).min(32).max(TASKS_MIN.div_ceil(few)),
        };
        Ok(WeightGradient { geometry, algorithm, tiles, rows, slots })
    }

    /// Limits the workspace to this many elements: subtrees become fewer and larger, which changes no bit of the result.
    pub fn within(self, workspace_count: usize) -> WeightGradient<'a> {
        let slots = workspace_count / self.tiles.sums_count().max(1);
        WeightGradient { slots: self.slots.min(slots).max(1), ..self }
    }

    fn chunks(&self) -> usize {
        self.geometry.target[self.geometry.first].div_ceil(self.rows)
    }

    /// The tree that has chunks as its leaves.
    fn tree(&self) -> SumTree {
        SumTree::new(self.geometry.batch as u64, self.chunks() as u64)
    }

    /// The number of workspace elements that [`WeightGradient::run`] needs.
    pub fn workspace_count(&self) -> usize {
        match self.tree().subtrees(self.slots as u64).count() as usize {
            0 | 1 => 0,
            subtrees => subtrees * self.tiles.sums_count(),
        }
    }

    /// dw = sum over images and positions of dy x.
    ///
    /// # Safety
    /// The operands must have the geometry's sizes, and the workspace must have [`WeightGradient::workspace_count`] elements; no one may
    /// write x and dy, or touch dw and the workspace.
    pub unsafe fn run(&self, x: Stored<f32>, dy: Stored<f32>, dw: Stored<f32>, workspace: Option<Pointer<f32>>) {
        let tiles = self.tiles.count();
        // One thread needs no sums that wait for those of others.
        let slots = if workspace.is_some() && threads() > 1 { self.slots } else { 1 };
        let subtrees = self.tree().subtrees(slots as u64);
        let count = subtrees.count() as usize;
        let Some(workspace) = workspace.filter(|_| count > 1) else {
            return for_each(tiles, |tile| {
                let tile = &self.tiles.get(tile);
                // SAFETY: the caller's promises; every task writes different weights.
                unsafe { self.tree_sums(tile, (0, self.tree()), x, dy, |sums| self.store(tile, sums, dw)) };
            });
        };
        let size = self.tiles.sums_count();
        // SAFETY: the caller's promises; each use is of a tile and a subtree that no other task uses at that time.
        let slot = |subtree: usize, tile: &Tile| unsafe {
            workspace.slice_mut(subtree * size + tile.sums.start, tile.sums.len)
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
            // SAFETY: the caller's promises; every task writes different weights.
            unsafe { self.store(tile, slot(0, tile), dw) };
        });
    }

    /// Writes a tile's weights.
    ///
    /// # Safety
    /// As [`WeightGradient::run`]; the tile must belong to no one else.
    unsafe fn store(&self, tile: &Tile, sums: &[f32], dw: Stored<f32>) {
        let (geometry, taps) = (self.geometry, self.geometry.taps());
        let sizes = [tile.outputs.len, tile.inputs.len];
        let row = tile.inputs.len * taps;
        for output in 0..tile.outputs.len {
            let number = tile.group * geometry.outputs + tile.outputs.start + output;
            let start = (number * geometry.inputs + tile.inputs.start) * taps;
            let (first, step) = match &self.algorithm {
                Algorithm::Window(_) => {
                    // SAFETY: the tile's weights lie in dw and belong to no one else by the caller's promise.
                    unsafe { WindowGradient::store(sums, sizes, taps, output, (dw, start)) };
                    continue;
                }
                Algorithm::Blocks(_) => (output / CHANNELS * row * CHANNELS + output % CHANNELS, CHANNELS),
                Algorithm::Pointwise(pointwise) => pointwise.place(sizes, output),
                Algorithm::Depthwise(_) | Algorithm::Patches(_) => (output * row, 1),
            };
            for part in spans(row, BLOCK) {
                let sums = sums[first + part.start * step..].iter().step_by(step);
                let fill = |weights: &mut [f32]| weights.iter_mut().zip(sums).for_each(|(weight, &sum)| *weight = sum);
                // SAFETY: as above.
                unsafe { dw.write(start + part.start, part.len, &mut Buffer::new(), fill) };
            }
        }
    }

    /// Calls `work` with the sums of a tile over a tree that begins with a chunk, in the algorithm's order.
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
        let sizes = [tile.outputs.len, tile.inputs.len];
        let packed_count = match &self.algorithm {
            Algorithm::Pointwise(pointwise) => pointwise.packed_count(sizes, [x, dy]),
            Algorithm::Depthwise(depthwise) => depthwise.packed_count(self.geometry),
            Algorithm::Window(window) => window.packed_count(sizes, self.geometry.taps(), dy),
            Algorithm::Patches(patches) => patches.packed_count(self.geometry, sizes, dy),
            Algorithm::Blocks(blocks) => blocks.packed_count(sizes),
        };
        // Sums that begin with a cache line are written faster.
        let packed_count = packed_count.next_multiple_of(ALIGNMENT);
        // Images that are summed together, each of one chunk: a subtree. The nodes above it are added here.
        let images = match &self.algorithm {
            Algorithm::Window(window) => window.images() as u64,
            _ => 1,
        };
        let above = SumTree::new(tree.groups().div_ceil(images), tree.group_leaves());
        let writes = images > 1 || matches!(self.algorithm, Algorithm::Pointwise(_) | Algorithm::Patches(_));
        let size = tile.sums.len;
        // The sums of a chunk, and those that wait for the sums to their right.
        let sums_count = (above.depth() as usize + 1) * size;
        let fits = packed_count + sums_count <= ELEMENTS_MAX;
        let mut large = vec![0.0; if fits { 0 } else { sums_count }];
        with_buffer(packed_count + if fits { sums_count } else { 0 }, |buffer| {
            let (packed, rest) = buffer.split_at_mut(packed_count);
            let sums = if fits { rest } else { &mut large };
            let mut waiting = 0;
            for leaf in 0..above.leaves() {
                let own = &mut sums[waiting * size..][..size];
                if !writes {
                    own.fill(0.0);
                }
                let start = leaf * images;
                let count = images.min(tree.leaves() - start);
                // SAFETY: the caller's promises.
                unsafe { self.add_chunk(tile, [first + start, count].map(|of| of as usize), [x, dy], packed, own) };
                for _ in 0..above.merges_after(leaf) {
                    let (earlier, later) = sums[(waiting - 1) * size..].split_at_mut(size);
                    add(earlier, &later[..size]);
                    waiting -= 1;
                }
                waiting += 1;
            }
            work(&sums[..size]);
        });
    }

    /// Adds the sums of a tile over a chunk, or writes them: pointwise, of patches, and over several images of one chunk each.
    ///
    /// # Safety
    /// As [`WeightGradient::run`].
    unsafe fn add_chunk(
        &self,
        tile: &Tile,
        [chunk, images]: [usize; 2],
        [x, dy]: [Stored<f32>; 2],
        packed: &mut [f32],
        sums: &mut [f32],
    ) {
        let geometry = self.geometry;
        let (image, chunk) = (chunk / self.chunks(), chunk % self.chunks());
        let first_output = tile.group * geometry.outputs + tile.outputs.start;
        let first_input = match self.algorithm {
            Algorithm::Depthwise(_) => first_output,
            _ => tile.group * geometry.inputs + tile.inputs.start,
        };
        let start = chunk * self.rows;
        let rows = Span { start, len: self.rows.min(geometry.target[geometry.first] - start) };
        let sizes = [tile.outputs.len, tile.inputs.len];
        // SAFETY: the image and the channels exist; the caller promises the rest.
        unsafe {
            let x = x.at((image * geometry.x.image + first_input * geometry.x.channel) as isize);
            let dy = dy.at((image * geometry.y.image + first_output * geometry.y.channel) as isize);
            match &self.algorithm {
                Algorithm::Pointwise(pointwise) => pointwise.write(geometry, sizes, rows, [x, dy], packed, sums),
                Algorithm::Depthwise(depthwise) => depthwise.add(geometry, sizes[0], rows, [x, dy], packed, sums),
                Algorithm::Window(window) => window.add(geometry, sizes, (images, rows), [x, dy], packed, sums),
                Algorithm::Patches(patches) => patches.write(geometry, sizes, rows, [x, dy], packed, sums),
                Algorithm::Blocks(blocks) => blocks.add(geometry, sizes, rows, [x, dy], packed, sums),
            }
        }
    }
}

/// Adds the sums of later positions to those of the positions before them, in place.
fn add(earlier: &mut [f32], later: &[f32]) {
    wide(
        #[inline(always)]
        || earlier.iter_mut().zip(later).for_each(|(earlier, later)| *earlier += later),
    );
}
