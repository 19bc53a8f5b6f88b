//! Tiles: how the positions of a plane are divided into vectors, and where they are in the target.

use super::super::parallel::copy_run;
use super::super::stored::Stored;
use super::microkernel::VECTORS;

/// The positions of a plane of a block, and where they are in the target.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub rows: usize,
    pub columns: usize,
    /// Position numbers from row to row; those beyond the columns are not positions.
    pub pitch: usize,
    pub row_stride: usize,
    pub column_stride: usize,
}

/// Adjacent position numbers that are summed together.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub start: usize,
    pub vectors: usize,
    /// Whether the tile is one vector of half the width.
    pub is_narrow: bool,
    /// How many of the numbers are the tile's own. Those after them belong to other tiles or are not positions.
    pub count: usize,
}

impl Layout {
    /// Adjacent positions.
    pub fn of_run(count: usize) -> Layout {
        Layout { rows: 1, columns: count, pitch: count, row_stride: count, column_stride: 1 }
    }

    /// Returns the same positions as one row, if rows follow each other without gaps.
    pub fn merged(self) -> Layout {
        if self.column_stride != 1 || [self.pitch, self.row_stride] != [self.columns; 2] {
            return self;
        }
        let columns = self.rows * self.columns;
        Layout { rows: 1, columns, pitch: columns, ..self }
    }

    /// Returns the positions of some planes, if each is one row and they follow each other without gaps; otherwise, how many planes have these
    /// positions each.
    pub fn with_planes(self, planes: usize, plane_pitch: usize, plane_stride: usize) -> (usize, Layout) {
        if [self.rows, self.columns, self.column_stride] != [1, plane_pitch, 1] {
            return (planes, self);
        }
        (1, Layout { rows: planes, pitch: plane_pitch, row_stride: plane_stride, ..self }.merged())
    }

    /// Writes adjacent positions of a row, starting at an address.
    ///
    /// # Safety
    /// The addresses must be writable and belong to no one else.
    #[inline(always)]
    pub unsafe fn write_run(&self, values: &[f32], address: *mut f32) {
        // SAFETY: the caller's promises.
        unsafe {
            if self.column_stride == 1 {
                return copy_run(std::slice::from_raw_parts_mut(address, values.len()), values);
            }
            for (i, &value) in values.iter().enumerate() {
                *address.add(i * self.column_stride) = value;
            }
        }
    }

    /// Writes adjacent positions to a target whose elements may be stored in 16 bits.
    ///
    /// # Safety
    /// The positions must lie in the target, starting at its first element, and belong to no one else.
    #[inline(always)]
    pub unsafe fn store_run(&self, values: &[f32], target: Stored<f32>) {
        // SAFETY: the caller's promises.
        unsafe {
            match target.own() {
                Some(address) => self.write_run(values, address),
                None if self.column_stride == 1 => target.store(0, values),
                None => {
                    let places = (0..).step_by(self.column_stride);
                    places.zip(values).for_each(|(at, &value)| target.set(at, value));
                }
            }
        }
    }

    /// Returns tiles of vectors of `width` that cover all positions: row by row, or across rows if that wastes less. A remainder goes into
    /// a vector of `half` the width if it fits.
    pub fn tiles(&self, width: usize, half: usize) -> Vec<Tile> {
        let cut = |count: usize| match count % width {
            1.. if half < width && count % width <= half => (count / width, true),
            _ => (count.div_ceil(width), false),
        };
        // Cycles of a tile per term, by number of vectors: a tile of one vector waits for its own sums, and wide vectors take twice as
        // long.
        let cycles = if half < width { [4, 8, 12] } else { [4, 5, 6] };
        let cost = |(vectors, has_narrow): (usize, bool)| {
            tile_sizes(vectors).map(|n| cycles[n - 1]).sum::<usize>() + if has_narrow { 3 } else { 0 }
        };
        let all = (self.rows - 1) * self.pitch + self.columns;
        let (along, across) = (cut(self.columns), cut(all));
        let is_along = self.rows * cost(along) <= cost(across);
        let (runs, count, (vectors, has_narrow)) =
            if is_along { (self.rows, self.columns, along) } else { (1, all, across) };
        let mut tiles = Vec::with_capacity(runs * (vectors.div_ceil(2) + 1));
        for run in 0..runs {
            let mut start = run * self.pitch;
            // Without numbers between two rows, the last vector of a row reaches into the next one, whose sums it must not continue.
            let end = start + count;
            for vectors in tile_sizes(vectors) {
                tiles.push(Tile { start, vectors, is_narrow: false, count: (vectors * width).min(end - start) });
                start += vectors * width;
            }
            if has_narrow {
                tiles.push(Tile { start, vectors: 1, is_narrow: true, count: end - start });
            }
        }
        tiles
    }

    /// Calls `work(number in the tile, offset in the target, count)` for the tile's positions in each row.
    #[inline(always)]
    pub fn for_each_run(&self, tile: &Tile, mut work: impl FnMut(usize, usize, usize)) {
        let (mut row, mut column) = (tile.start / self.pitch, tile.start % self.pitch);
        let (mut at, end) = (0, tile.count);
        while at < end && row < self.rows {
            if column < self.columns {
                let count = (self.columns - column).min(end - at);
                work(at, row * self.row_stride + column * self.column_stride, count);
            }
            at += self.pitch - column;
            column = 0;
            row += 1;
        }
    }
}

/// Cuts a number of vectors into tiles of three, and of two if one would be left over.
fn tile_sizes(vectors: usize) -> impl Iterator<Item = usize> {
    let pairs = match vectors % VECTORS {
        0 => 0,
        1 if vectors > 1 => 2,
        1 => 0,
        _ => 1,
    };
    let single = usize::from(vectors == 1);
    let threes = (vectors - 2 * pairs - single) / VECTORS;
    [(VECTORS, threes), (2, pairs), (1, single)].into_iter().flat_map(|(size, count)| std::iter::repeat_n(size, count))
}
