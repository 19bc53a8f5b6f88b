//! The gradient by the weights: for each weight a sum over images and positions.
//!
//! The sum runs over the tiles of an image, image after image, strictly from left to right, and each tile's part is one
//! product of fixed shape. So a batch that is cut between two images, and continued with `accumulate`, gives the same bits.
//! Tasks share out columns (channels and taps), never the sum.

use rayon::prelude::*;

use super::super::parallel::Pointer;
use super::super::product::{multiply, Matrix};
use super::super::View;
use super::direct_weights;
use super::patches::{tiles, with_buffer, Sight};
use super::Geometry;

/// Columns of one task: enough for an efficient product, few enough for several tasks.
fn column_block(columns: usize) -> usize {
    columns.div_ceil(4).next_multiple_of(8).clamp(8, 256)
}

/// dw = (accumulate ? dw : 0) + sum over images and positions of dy x.
///
/// # Safety
/// As [`super::run`], with operands that fit the geometry.
pub(super) unsafe fn run(geometry: &Geometry, accumulate: bool, x: &View, dy: &View, dw: &View) {
    if let Some(direct) = geometry.direct().filter(|direct| direct_weights::applies(direct.kernel)) {
        // SAFETY: the caller's promises, handed on.
        return unsafe { direct_weights::run(&direct, accumulate, Pointer::of(x), Pointer::of(dy), Pointer::of(dw)) };
    }
    let offsets = geometry.offsets();
    let columns = geometry.inputs * geometry.taps();
    let block = column_block(columns);
    let blocks = columns.div_ceil(block);
    let tiles = tiles(geometry.target);
    let sight = Sight { grid: geometry.target, source: geometry.source, strides: geometry.strides };
    let (source_size, target_size) = (geometry.source_size(), geometry.target_size());
    let (x, dy, dw) = (Pointer::<f32>::of(x), Pointer::<f32>::of(dy), Pointer::<f32>::of(dw));
    let longest = tiles.iter().map(|tile| tile.positions()).max().unwrap_or(0);
    (0..geometry.groups * blocks).into_par_iter().for_each(|index| {
        let (group, first) = (index / blocks, index % blocks * block);
        let own = block.min(columns - first);
        with_buffer(own * longest, |buffer| {
            for image in 0..geometry.batch {
                let group_number = image * geometry.groups + group;
                for (number, tile) in tiles.iter().enumerate() {
                    let positions = tile.positions();
                    // SAFETY: channels, rows and columns exist; every task writes columns of its own.
                    unsafe {
                        for (row, target) in buffer.chunks_exact_mut(positions).take(own).enumerate() {
                            let (input, tap) = ((first + row) / offsets.len(), (first + row) % offsets.len());
                            let channel = x.slice((group_number * geometry.inputs + input) * source_size, source_size);
                            sight.pack(target, channel, tile, offsets[tap]);
                        }
                        let start = group_number * geometry.outputs * target_size + tile.start(geometry.target);
                        let dy = Matrix::rows(dy.at(start as isize), target_size);
                        let patches = Matrix::rows(buffer.as_mut_ptr(), positions).transposed();
                        let dw = Matrix::rows(dw.at((group * geometry.outputs * columns + first) as isize), columns);
                        let add = accumulate || image > 0 || number > 0;
                        multiply(geometry.outputs, own, positions, dy, patches, dw, 1.0, add);
                    }
                }
            }
        });
    });
}
