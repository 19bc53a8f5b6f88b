//! The transposed direction: gradient by the data, and the forward pass of transposed convolution.
//!
//! With strides, an element of dx sees only the taps whose distance to it is a multiple of the stride. Elements that see
//! the same taps form a *phase*: a coarser grid on which the transposed convolution is an ordinary one with stride 1.

use forebay_base::kernel::Activation;
use rayon::prelude::*;

use super::super::elementwise::relu;
use super::super::parallel::Pointer;
use super::super::product::{multiply, Matrix, INNER_CHUNK};
use super::super::View;
use super::direct;
use super::forward::{channel_block, CHANNEL_BLOCK};
use super::patches::{tiles, with_buffer, Sight, Tile};
use super::Geometry;

/// The elements of dx with the same remainder by the strides.
struct Phase {
    /// The remainder in each dimension.
    first: [usize; 3],
    /// How many elements in each dimension.
    grid: [usize; 3],
    /// Taps seen, and where in dy each looks from the phase's origin.
    taps: Vec<usize>,
    offsets: Vec<[isize; 3]>,
    /// Where the phase's weights begin in the scratch of a group, in elements.
    weights: usize,
    tiles: Vec<Tile>,
}

fn phases(geometry: &Geometry) -> Vec<Phase> {
    let [depth, height, width] = geometry.strides;
    let mut phases = Vec::new();
    let mut weights = 0;
    for index in 0..depth * height * width {
        let first = [index / (height * width), index / width % height, index % width];
        let grid: [usize; 3] =
            std::array::from_fn(|d| geometry.source[d].saturating_sub(first[d]).div_ceil(geometry.strides[d]));
        let distance = |tap: usize, d: usize| {
            (first[d] + geometry.pads[d]) as isize - (geometry.tap(tap)[d] * geometry.dilations[d]) as isize
        };
        let seen = |tap: &usize| (0..3).all(|d| distance(*tap, d).rem_euclid(geometry.strides[d] as isize) == 0);
        // From the last tap on, so that offsets ascend: with stride 1 the phase is an ordinary convolution.
        let taps: Vec<usize> = (0..geometry.taps()).rev().filter(seen).collect();
        let offset = |&tap: &usize| std::array::from_fn(|d| distance(tap, d).div_euclid(geometry.strides[d] as isize));
        let offsets = taps.iter().map(offset).collect();
        let inner = geometry.outputs * taps.len();
        phases.push(Phase { first, grid, taps, offsets, weights, tiles: tiles(grid) });
        weights += geometry.inputs * inner;
    }
    phases
}

/// Orders a group's weights by phase, channel of x, channel of y and tap.
fn pack_weights(geometry: &Geometry, phases: &[Phase], w: &[f32], packed: &mut [f32]) {
    let taps = geometry.taps();
    let mut target = packed.iter_mut();
    for phase in phases {
        for input in 0..geometry.inputs {
            for output in 0..geometry.outputs {
                let row = &w[(output * geometry.inputs + input) * taps..][..taps];
                for (&tap, value) in phase.taps.iter().zip(&mut target) {
                    *value = row[tap];
                }
            }
        }
    }
}

/// dx = activation(transpose(w) * dy + bias).
///
/// # Safety
/// As [`super::run`], with operands that fit the geometry and a scratch as long as w.
pub(super) unsafe fn run(
    geometry: &Geometry,
    activation: Activation,
    dy: &View,
    w: &View,
    bias: Option<&View>,
    dx: &View,
    scratch: &View,
) {
    let phases = phases(geometry);
    let group_weights = geometry.inputs * geometry.outputs * geometry.taps();
    let (w, packed) = (Pointer::<f32>::of(w), Pointer::<f32>::of(scratch));
    for group in 0..geometry.groups {
        // SAFETY: both hold the weights of every group; the scratch is this kernel's own.
        let (w, packed) = unsafe {
            (w.slice(group * group_weights, group_weights), packed.slice_mut(group * group_weights, group_weights))
        };
        pack_weights(geometry, &phases, w, packed);
    }
    if direct::applies(geometry.source[2], geometry.strides, geometry.dilations) && geometry.taps() > 1 {
        let direct = direct::Direct {
            batch: geometry.batch,
            groups: geometry.groups,
            inputs: geometry.outputs,
            outputs: geometry.inputs,
            source: geometry.target,
            target: geometry.source,
            kernel: geometry.kernel,
            origin: phases[0].offsets[0],
        };
        // SAFETY: the caller's promises; the packed weights are in the order of the transposed convolution.
        return unsafe {
            direct::run(&direct, activation, Pointer::of(dy), packed, bias.map(Pointer::of), Pointer::of(dx))
        };
    }
    // SAFETY: a bias has one element for each channel of dx; nobody writes it.
    let bias = bias.map(|bias| unsafe { Pointer::<f32>::of(bias).slice(0, geometry.groups * geometry.inputs) });
    let (dy, dx) = (Pointer::<f32>::of(dy), Pointer::<f32>::of(dx));
    let strided = geometry.strides != [1; 3];
    let mut work: Vec<(usize, usize, usize, usize)> = Vec::new();
    for (number, phase) in phases.iter().enumerate() {
        let block = channel_block(geometry.inputs, phase.tiles.len());
        let block = if strided { block.min(CHANNEL_BLOCK) } else { block };
        for tile in 0..phase.tiles.len() {
            work.extend(
                (0..geometry.inputs)
                    .step_by(block)
                    .map(|channel| (number, tile, channel, block.min(geometry.inputs - channel))),
            );
        }
    }
    (0..geometry.batch * geometry.groups * work.len()).into_par_iter().for_each(|index| {
        let ((number, tile, channel, channels), index) = (work[index % work.len()], index / work.len());
        let group = index % geometry.groups;
        let phase = &phases[number];
        // SAFETY: `index` is now image and group, whose first channels exist; every task writes elements of its own.
        unsafe {
            let task = Task {
                geometry,
                phase,
                dy: Pointer::new(dy.at((index * geometry.outputs * geometry.target_size()) as isize)),
                dx: Pointer::new(dx.at((index * geometry.inputs * geometry.source_size()) as isize)),
                w: Pointer::new(packed.at((group * group_weights + phase.weights) as isize)),
                bias: bias.map(|bias| &bias[group * geometry.inputs..]),
                activation,
            };
            task.tile(&phase.tiles[tile], channel, channels);
        }
    });
}

/// One image of one group and phase, with the operands' addresses.
struct Task<'a> {
    geometry: &'a Geometry,
    phase: &'a Phase,
    dy: Pointer<f32>,
    dx: Pointer<f32>,
    w: Pointer<f32>,
    bias: Option<&'a [f32]>,
    activation: Activation,
}

impl Task<'_> {
    /// One tile of `channels` channels of dx from `first` on.
    ///
    /// # Safety
    /// The channels must exist, and nobody else may touch their part of dx.
    unsafe fn tile(&self, tile: &Tile, first: usize, channels: usize) {
        let (geometry, phase) = (self.geometry, self.phase);
        let (inner, positions) = (geometry.outputs * phase.taps.len(), tile.positions());
        let source_size = geometry.source_size();
        let direct = geometry.strides == [1; 3];
        let patch_size = INNER_CHUNK.min(inner.max(1)) * positions;
        let tile_size = if direct { 0 } else { channels * positions };
        with_buffer(patch_size + tile_size, |buffer| {
            let (patches, own) = buffer.split_at_mut(patch_size);
            // SAFETY: rows of dx and of the packed weights exist for these channels; without strides a tile's positions
            // are adjacent in dx, with strides they are collected in the thread's buffer first.
            unsafe {
                let target = if direct {
                    let start = first * source_size + tile.start(phase.grid);
                    Matrix::rows(self.dx.at(start as isize), source_size)
                } else {
                    Matrix::rows(own.as_mut_ptr(), positions)
                };
                for channel in 0..channels {
                    let value = self.bias.map_or(0.0, |bias| bias[first + channel]);
                    if self.bias.is_some() || inner == 0 {
                        std::slice::from_raw_parts_mut(target.from(channel, 0).base, positions).fill(value);
                    }
                }
                self.multiply(tile, first, channels, patches, target);
                for channel in 0..channels {
                    let line = std::slice::from_raw_parts_mut(target.from(channel, 0).base, positions);
                    if self.activation == Activation::Relu {
                        line.iter_mut().for_each(|value| *value = relu(*value));
                    }
                    if !direct {
                        self.scatter(tile, first + channel, line);
                    }
                }
            }
        });
    }

    /// # Safety
    /// As [`Task::tile`], with a target of `channels` rows and the tile's positions.
    unsafe fn multiply(&self, tile: &Tile, first: usize, channels: usize, patches: &mut [f32], target: Matrix) {
        let (geometry, phase) = (self.geometry, self.phase);
        let (inner, positions) = (geometry.outputs * phase.taps.len(), tile.positions());
        let target_size = geometry.target_size();
        let sight = Sight { grid: phase.grid, source: geometry.target, strides: [1; 3] };
        for start in (0..inner).step_by(INNER_CHUNK) {
            let length = INNER_CHUNK.min(inner - start);
            for (row, line) in patches.chunks_exact_mut(positions).take(length).enumerate() {
                let (output, tap) = ((start + row) / phase.taps.len(), (start + row) % phase.taps.len());
                // SAFETY: the channel exists; nobody writes dy.
                let channel = unsafe { self.dy.slice(output * target_size, target_size) };
                sight.pack(line, channel, tile, phase.offsets[tap]);
            }
            // SAFETY: the packed weights hold `inner` columns for each channel of dx.
            unsafe {
                let w = Matrix::rows(self.w.at((first * inner + start) as isize), inner);
                let patches = Matrix::rows(patches.as_mut_ptr(), positions);
                multiply(channels, positions, length, w, patches, target, 1.0, start > 0 || self.bias.is_some());
            }
        }
    }

    /// Writes a tile's elements of one channel to where they belong in dx.
    ///
    /// # Safety
    /// The channel must exist, and nobody else may touch the phase's elements.
    unsafe fn scatter(&self, tile: &Tile, channel: usize, line: &[f32]) {
        let (strides, source, phase) = (self.geometry.strides, self.geometry.source, self.phase);
        for (row, values) in line.chunks_exact(tile.columns).enumerate() {
            let row = tile.first_row + row;
            let z = row / phase.grid[1] * strides[0] + phase.first[0];
            let y = row % phase.grid[1] * strides[1] + phase.first[1];
            let x = tile.first_column * strides[2] + phase.first[2];
            let start = channel * self.geometry.source_size() + (z * source[1] + y) * source[2] + x;
            for (column, &value) in values.iter().enumerate() {
                // SAFETY: the phase's grid lies inside dx.
                unsafe { *self.dx.at((start + column * strides[2]) as isize) = value };
            }
        }
    }
}
