//! Tiles of an output grid, and the patches of a source that they look at.

use std::cell::RefCell;

/// Positions of a tile, at most.
const TILE_POSITIONS: usize = 512;

/// A part of a grid of positions: whole rows, or a part of one long row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub first_row: usize,
    pub rows: usize,
    pub first_column: usize,
    pub columns: usize,
}

impl Tile {
    pub fn positions(&self) -> usize {
        self.rows * self.columns
    }

    /// The first position's number in the grid.
    pub fn start(&self, grid: [usize; 3]) -> usize {
        self.first_row * grid[2] + self.first_column
    }
}

/// The tiles of a grid: a function of its sizes alone. A tile's positions are adjacent in the grid.
pub(super) fn tiles(grid: [usize; 3]) -> Vec<Tile> {
    let (rows, columns) = (grid[0] * grid[1], grid[2]);
    let rows_per_tile = (TILE_POSITIONS / columns.max(1)).max(1);
    let mut tiles = Vec::new();
    for first_row in (0..rows).step_by(rows_per_tile) {
        for first_column in (0..columns).step_by(TILE_POSITIONS) {
            tiles.push(Tile {
                first_row,
                rows: rows_per_tile.min(rows - first_row),
                first_column,
                columns: TILE_POSITIONS.min(columns - first_column),
            });
        }
    }
    tiles
}

/// How positions of a grid look at a source: position `p` and an offset see source element `p stride + offset`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub grid: [usize; 3],
    pub source: [usize; 3],
    pub strides: [usize; 3],
}

impl Sight {
    /// Writes what a tile's positions see of one channel at one offset; outside the source they see 0.
    pub fn pack(&self, target: &mut [f32], channel: &[f32], tile: &Tile, offset: [isize; 3]) {
        let within = |position: usize, d: usize| {
            let index = (position * self.strides[d]) as isize + offset[d];
            (index >= 0 && index < self.source[d] as isize).then_some(index as usize)
        };
        let stride = self.strides[2] as isize;
        let first = tile.first_column as isize * stride + offset[2];
        let columns = tile.columns as isize;
        // Columns whose source index is at least 0, and those where it is below the source's width.
        let low = ((-first + stride - 1).div_euclid(stride)).clamp(0, columns) as usize;
        let high =
            ((self.source[2] as isize - first + stride - 1).div_euclid(stride)).clamp(low as isize, columns) as usize;
        for (row, line) in target[..tile.positions()].chunks_exact_mut(tile.columns).enumerate() {
            let row = tile.first_row + row;
            let (z, y) = (within(row / self.grid[1], 0), within(row % self.grid[1], 1));
            let (Some(z), Some(y)) = (z, y) else {
                line.fill(0.0);
                continue;
            };
            let start = (z * self.source[1] + y) * self.source[2];
            let source = &channel[start..start + self.source[2]];
            line[..low].fill(0.0);
            line[high..].fill(0.0);
            if low == high {
                continue;
            }
            let begin = (first + low as isize * stride) as usize;
            if stride == 1 {
                line[low..high].copy_from_slice(&source[begin..begin + high - low]);
            } else {
                let seen = source[begin..].iter().step_by(stride as usize);
                line[low..high].iter_mut().zip(seen).for_each(|(value, &seen)| *value = seen);
            }
        }
    }
}

thread_local! {
    static BUFFER: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Lends the calling thread's buffer, at least `length` elements long. `work` must not lend it again.
pub(super) fn with_buffer<R>(length: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < length {
            buffer.resize(length, 0.0);
        }
        work(&mut buffer[..length])
    })
}
