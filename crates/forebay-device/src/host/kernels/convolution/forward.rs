//! The forward direction.

use forebay_base::kernel::Activation;
use rayon::prelude::*;

use super::super::elementwise::relu;
use super::super::parallel::Pointer;
use super::super::product::{multiply, Matrix, INNER_CHUNK};
use super::super::View;
use super::direct;
use super::patches::{tiles, with_buffer, Sight, Tile};
use super::Geometry;

/// Output channels of a task where a grid has few tiles.
pub(super) const CHANNEL_BLOCK: usize = 64;
/// A grid with fewer tiles than this cuts its channels into blocks, so that every thread has work.
const FEW_TILES: usize = 8;

/// Channels of one task: all of them, or a block where there are few tiles.
pub(super) fn channel_block(channels: usize, tile_count: usize) -> usize {
    if tile_count < FEW_TILES {
        CHANNEL_BLOCK.min(channels)
    } else {
        channels
    }
}

/// One image of one group, with the operands' addresses.
struct Task<'a> {
    geometry: &'a Geometry,
    sight: Sight,
    offsets: &'a [[isize; 3]],
    /// First channel of x, and of y.
    x: Pointer<f32>,
    y: Pointer<f32>,
    /// First row of the group's weights, and its bias.
    w: Pointer<f32>,
    bias: Option<&'a [f32]>,
    activation: Activation,
}

/// y = activation(x * w + bias).
///
/// # Safety
/// As [`super::run`], with operands that fit the geometry.
pub(super) unsafe fn run(
    geometry: &Geometry,
    activation: Activation,
    x: &View,
    w: &View,
    bias: Option<&View>,
    y: &View,
) {
    if let Some(direct) = geometry.direct().filter(|_| geometry.taps() > 1) {
        let bias = bias.map(Pointer::of);
        // SAFETY: the caller's promises, handed on.
        return unsafe { direct::run(&direct, activation, Pointer::of(x), Pointer::of(w), bias, Pointer::of(y)) };
    }
    let tiles = tiles(geometry.target);
    let block = channel_block(geometry.outputs, tiles.len());
    let blocks = geometry.outputs.div_ceil(block);
    let offsets = geometry.offsets();
    let (x, w, y) = (Pointer::<f32>::of(x), Pointer::<f32>::of(w), Pointer::<f32>::of(y));
    let inner = geometry.inputs * geometry.taps();
    // SAFETY: a bias has one element for each channel of y; nobody writes it.
    let bias = bias.map(|bias| unsafe { Pointer::<f32>::of(bias).slice(0, geometry.groups * geometry.outputs) });
    let sight = Sight { grid: geometry.target, source: geometry.source, strides: geometry.strides };
    (0..geometry.batch * geometry.groups * blocks * tiles.len()).into_par_iter().for_each(|index| {
        let (tile, index) = (tiles[index % tiles.len()], index / tiles.len());
        let (channel, index) = (index % blocks * block, index / blocks);
        let group = index % geometry.groups;
        // SAFETY: `index` is now image and group, whose first channels exist; every task writes elements of its own.
        unsafe {
            let task = Task {
                geometry,
                sight,
                offsets: &offsets,
                x: Pointer::new(x.at((index * geometry.inputs * geometry.source_size()) as isize)),
                y: Pointer::new(y.at((index * geometry.outputs * geometry.target_size()) as isize)),
                w: Pointer::new(w.at((group * geometry.outputs * inner) as isize)),
                bias: bias.map(|bias| &bias[group * geometry.outputs..]),
                activation,
            };
            task.tile(&tile, channel, block.min(geometry.outputs - channel));
        }
    });
}

impl Task<'_> {
    /// One tile of `channels` output channels from `first` on.
    ///
    /// # Safety
    /// The channels must exist, and nobody else may touch their part of y.
    unsafe fn tile(&self, tile: &Tile, first: usize, channels: usize) {
        let geometry = self.geometry;
        let (inner, positions) = (geometry.inputs * geometry.taps(), tile.positions());
        let (source_size, target_size) = (geometry.source_size(), geometry.target_size());
        // SAFETY: rows of w and y for these channels exist; a tile's positions are adjacent in y.
        unsafe {
            let w = Matrix::rows(self.w.at((first * inner) as isize), inner);
            let y = Matrix::rows(self.y.at((first * target_size + tile.start(geometry.target)) as isize), target_size);
            if let Some(bias) = self.bias {
                for channel in 0..channels {
                    std::slice::from_raw_parts_mut(y.from(channel, 0).base, positions).fill(bias[first + channel]);
                }
            }
            let pointwise = geometry.taps() == 1
                && geometry.strides == [1; 3]
                && geometry.pads == [0; 3]
                && geometry.source == geometry.target;
            if pointwise {
                let x = Matrix::rows(self.x.at(tile.start(geometry.target) as isize), source_size);
                multiply(channels, positions, inner, w, x, y, 1.0, self.bias.is_some());
            } else {
                with_buffer(INNER_CHUNK.min(inner) * positions, |buffer| {
                    for start in (0..inner).step_by(INNER_CHUNK) {
                        let length = INNER_CHUNK.min(inner - start);
                        for (row, target) in buffer.chunks_exact_mut(positions).take(length).enumerate() {
                            let (input, tap) = ((start + row) / self.offsets.len(), (start + row) % self.offsets.len());
                            let channel = self.x.slice(input * source_size, source_size);
                            self.sight.pack(target, channel, tile, self.offsets[tap]);
                        }
                        let patches = Matrix::rows(buffer.as_mut_ptr(), positions);
                        let accumulate = start > 0 || self.bias.is_some();
                        multiply(channels, positions, length, w.from(0, start), patches, y, 1.0, accumulate);
                    }
                });
            }
            if self.activation == Activation::Relu {
                for channel in 0..channels {
                    let line = std::slice::from_raw_parts_mut(y.from(channel, 0).base, positions);
                    line.iter_mut().for_each(|value| *value = relu(*value));
                }
            }
        }
    }
}
