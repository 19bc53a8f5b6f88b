//! Products by tiles: columns of b are packed into panels that stay in a core's first-level caches, while tiles of a few rows of a pass
//! over each panel with their sums in registers.

use forebay_base::kernel::PRODUCT_TERMS;

use super::super::cache::{LINE, prefetch, prefetch_stream};
use super::super::simd::{Vector, WIDTH_MAX, dispatch_wide};
use super::{Aligned, Job, Matrix};

/// The most vectors of columns in a tile.
const VECTORS: usize = 3;
/// The most columns of a panel.
pub(in super::super) const PANEL: usize = VECTORS * WIDTH_MAX;
/// The most rows of a tile, which is also the number of rows in a block of packed rows.
const ROWS: usize = 8;
// The first block has all rows of such a product.
const _: () = assert!(super::FEW_ROWS <= ROWS);

/// How many rows ahead b is prefetched while a panel is packed.
const ROWS_AHEAD: isize = 16;
/// How many terms ahead a is prefetched while rows are packed.
const TERMS_AHEAD: isize = 8;

/// Rows of a, in blocks of [`ROWS`].
#[derive(Clone, Copy)]
pub(in super::super) struct Rows {
    /// The first block.
    pub(super) first: Matrix,
    /// Elements from block to block.
    block_stride: isize,
}

impl Rows {
    /// The rows of a matrix, in place.
    pub fn of(a: Matrix) -> Rows {
        Rows { first: a, block_stride: ROWS as isize * a.row_stride }
    }

    /// The matrix starting at a row; it is valid to the end of the row's block.
    ///
    /// # Safety
    /// The row must exist.
    #[inline(always)]
    unsafe fn from(&self, row: usize) -> Matrix {
        // SAFETY: the caller's promise.
        unsafe {
            let first = self.first.from(row % ROWS, 0);
            Matrix { base: first.base.offset((row / ROWS) as isize * self.block_stride), ..first }
        }
    }
}

/// Elements from one block of packed rows to the next. A term is written to all blocks before the next term; a cache line between blocks
/// keeps these writes from all going to the same set of the cache.
fn packed_block(terms: usize) -> usize {
    ROWS * terms + LINE
}

/// The number of elements of packed rows. Rows are packed for transposed matrices, whose terms are far apart.
pub(super) fn packed_rows_count(
    (m, n, terms): (usize, usize, usize),
    [row_stride, column_stride]: [isize; 2],
) -> usize {
    match row_stride == 1 && column_stride != 1 && m > ROWS && n > WIDTH_MAX {
        true => PackedRows::count(m, terms),
        false => 0,
    }
}

/// Packed rows: the terms of each block one after the other, and for each term the block's rows.
pub(in super::super) struct PackedRows<'a> {
    elements: &'a mut [f32],
    terms: usize,
}

impl<'a> PackedRows<'a> {
    /// The number of elements for rows of a number of terms.
    pub fn count(rows: usize, terms: usize) -> usize {
        rows.div_ceil(ROWS) * packed_block(terms)
    }

    /// Rows of this number of terms, which are yet to be packed.
    pub fn new(elements: &'a mut [f32], terms: usize) -> PackedRows<'a> {
        PackedRows { elements, terms }
    }

    /// Packs a term of adjacent rows, starting at a row.
    ///
    /// # Panics
    /// Panics if there is no room for the rows.
    #[inline(always)]
    pub fn pack(&mut self, term: usize, row: usize, values: &[f32]) {
        let block = packed_block(self.terms);
        let (first, skipped) = (row / ROWS * block + term * ROWS, row % ROWS);
        let (head, values) = values.split_at(values.len().min((ROWS - skipped) % ROWS));
        copy_few(&mut self.elements[first + skipped..], head);
        let first = if skipped == 0 { first } else { first + block };
        let (blocks, tail) = values.as_chunks::<ROWS>();
        for (number, values) in blocks.iter().enumerate() {
            self.elements[first + number * block..][..ROWS].copy_from_slice(values);
        }
        if !tail.is_empty() {
            copy_few(&mut self.elements[first + blocks.len() * block..], tail);
        }
    }

    /// The rows, all of which must have been packed.
    pub fn rows(&mut self) -> Rows {
        let first = Matrix { base: self.elements.as_mut_ptr(), row_stride: 1, column_stride: ROWS as isize };
        Rows { first, block_stride: packed_block(self.terms) as isize }
    }
}

/// Copies fewer numbers than a block has rows.
#[inline(always)]
fn copy_few(target: &mut [f32], values: &[f32]) {
    target.iter_mut().zip(values).for_each(|(target, &value)| *target = value);
}

/// Packs rows that are adjacent in memory.
///
/// # Safety
/// The rows must exist and be adjacent, and the target must have as many elements as [`packed_rows_count`] says.
unsafe fn pack_rows(a: Matrix, (m, k): (usize, usize), target: &mut [f32]) -> Rows {
    let mut packed = PackedRows::new(target, k);
    for term in 0..k {
        // SAFETY: the caller's promises.
        let values = unsafe { std::slice::from_raw_parts(a.from(0, term).base, m) };
        let later = values.as_ptr().wrapping_offset(TERMS_AHEAD * a.column_stride);
        (0..m).step_by(LINE).for_each(|row| prefetch(later.wrapping_add(row)));
        packed.pack(term, 0, values);
    }
    packed.rows()
}

/// Computes a product of the terms of one block.
///
/// # Safety
/// As [`super::multiply_block`].
pub(super) unsafe fn multiply(job: &Job, rows_buffer: &mut [f32]) {
    let (m, _, k) = job.sizes;
    let packed = packed_rows_count(job.sizes, [job.a.row_stride, job.a.column_stride]);
    // SAFETY: the caller's promises.
    unsafe {
        let rows = match rows_buffer.get_mut(..packed) {
            Some(target) if packed > 0 => pack_rows(job.a, (m, k), target),
            _ => Rows::of(job.a),
        };
        multiply_rows(job, rows);
    }
}

/// Computes a product of some rows and the terms of one block.
///
/// # Safety
/// As [`super::multiply_block`]; a is the first block of the rows.
pub(super) unsafe fn multiply_rows(job: &Job, rows: Rows) {
    // SAFETY: the caller's promises.
    unsafe { multiply_panels(&Tiled { job: *job, rows }) };
}

/// A product whose rows may be packed.
struct Tiled {
    job: Job,
    rows: Rows,
}

/// Elements of packed panels.
const PACKED: usize = PANEL * PRODUCT_TERMS as usize;

dispatch_wide! {
    /// # Safety
    /// As [`multiply`].
    fn multiply_panels, multiply_panels_with(tiled: &Tiled)
}

/// # Safety
/// As [`multiply_panels`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn multiply_panels_with<V: Vector>(tiled: &Tiled) {
    let (_, n, k) = tiled.job.sizes;
    let mut packed = Aligned::<PACKED>::new();
    let target = packed.address();
    // If there are few terms, several panels at once, so that longer pieces of c's rows are written.
    let at_once = (PRODUCT_TERMS as usize / k.max(1)).max(1);
    let mut column = 0;
    for (vectors, count) in panels(n.div_ceil(V::WIDTH)) {
        let mut left = count;
        while left > 0 {
            // A panel that is not full is processed alone.
            let full = (n - column) / (vectors * V::WIDTH);
            let count = left.min(at_once).min(full.max(1));
            // SAFETY: the columns exist; this many panels with so few terms fit into the buffer.
            unsafe { multiply_run::<V>(tiled, Run { column, vectors, count, is_full: full > 0, target }) };
            column += count * vectors * V::WIDTH;
            left -= count;
        }
    }
}

/// Divides vectors into panels: the number of vectors in a panel, and the number of such panels. A panel has one vector only if there is no
/// other, because a tile of several vectors reads fewer factors per product.
fn panels(vectors: usize) -> [(usize, usize); VECTORS] {
    let (ones, twos) = match (vectors, vectors % 3) {
        (1, _) => (1, 0),
        (_, 1) => (0, 2),
        (_, 2) => (0, 1),
        _ => (0, 0),
    };
    [(3, (vectors - 2 * twos - ones) / 3), (2, twos), (1, ones)]
}

/// Adjacent panels.
#[derive(Clone, Copy)]
struct Run {
    /// The first column.
    column: usize,
    /// Vectors of each panel.
    vectors: usize,
    /// The number of panels.
    count: usize,
    /// Whether all columns of the vectors exist.
    is_full: bool,
    /// Where they are packed, one after the other.
    target: *mut f32,
}

impl Run {
    /// While rows after the first tile are multiplied, a part of the next panel is prefetched, because its rows may be so far apart that
    /// processors do not do so by themselves: with each tile, one cache line of each term, or of each column if terms are adjacent.
    #[inline(always)]
    fn ahead(&self, job: &Job, tile: usize, width: usize) -> Ahead {
        let ((_, n, k), b) = (job.sizes, job.b);
        let next = self.column + width;
        let (lines, stride, count) = match (b.row_stride, b.column_stride) {
            (stride, 1) => (width.div_ceil(LINE), stride, k),
            (1, stride) => (k.div_ceil(LINE), stride, width.min(if next < n { n - next } else { n })),
            _ => (0, 0, 0),
        };
        let line = tile.wrapping_sub(1);
        if self.count > 1 || line >= lines {
            return Ahead { first: self.target, stride: 0, count: 0 };
        }
        // After the last panel, the first one of the next block of terms.
        let offset = if next < n { next as isize * b.column_stride } else { k as isize * b.row_stride };
        Ahead { first: b.base.wrapping_offset(offset).wrapping_add(line * LINE), stride, count }
    }
}

/// Cache lines that are prefetched, one with each term.
#[derive(Clone, Copy)]
struct Ahead {
    first: *const f32,
    /// Elements from one line to the next.
    stride: isize,
    count: usize,
}

/// Multiplies all rows by some panels, which are packed before or while the first rows are computed.
///
/// # Safety
/// As [`multiply_panels_with`]; the columns must exist, and the target must have room for the panels.
#[inline(always)]
unsafe fn multiply_run<V: Vector>(tiled: &Tiled, run: Run) {
    let (m, n, k) = tiled.job.sizes;
    let width = run.vectors * V::WIDTH;
    // SAFETY: the caller's promises.
    unsafe {
        let b = tiled.job.b.from(0, run.column);
        let place = Columns { base: b.base, stride: b.row_stride, panel_stride: width };
        let packed = Columns { base: run.target, stride: width as isize, panel_stride: width * k };
        let is_in_place = run.is_full && b.column_stride == 1;
        if !is_in_place {
            for panel in 0..run.count {
                let columns = (n - run.column - panel * width).min(width);
                pack::<V>(b.from(0, panel * width), k, columns, width, run.target.add(panel * width * k));
            }
        }
        let mut row = 0;
        while row < m {
            // For few rows, packing would take longer than it saves.
            let packs = row == 0 && is_in_place && m > ROWS;
            let columns = if packs || is_in_place && m <= ROWS { place } else { packed };
            row += match (m - row, run.vectors, packs) {
                (8.., 3, true) if V::REGISTERS >= 32 => tiles::<V, 8, 3, true>(tiled, row, run, columns),
                (8.., 2, true) if V::REGISTERS >= 32 => tiles::<V, 8, 2, true>(tiled, row, run, columns),
                (_, 3, true) => tiles::<V, 4, 3, true>(tiled, row, run, columns),
                (_, 2, true) => tiles::<V, 4, 2, true>(tiled, row, run, columns),
                (_, _, true) => tiles::<V, 8, 1, true>(tiled, row, run, columns),
                (8.., 3, _) if V::REGISTERS >= 32 => tiles::<V, 8, 3, false>(tiled, row, run, columns),
                (8.., 2, _) if V::REGISTERS >= 32 => tiles::<V, 8, 2, false>(tiled, row, run, columns),
                (8.., 1, _) => tiles::<V, 8, 1, false>(tiled, row, run, columns),
                (4.., 3, _) => tiles::<V, 4, 3, false>(tiled, row, run, columns),
                (4.., 2, _) => tiles::<V, 4, 2, false>(tiled, row, run, columns),
                (4.., 1, _) => tiles::<V, 4, 1, false>(tiled, row, run, columns),
                (2.., 3, _) => tiles::<V, 2, 3, false>(tiled, row, run, columns),
                (2.., 2, _) => tiles::<V, 2, 2, false>(tiled, row, run, columns),
                (2.., 1, _) => tiles::<V, 2, 1, false>(tiled, row, run, columns),
                (_, 3, _) => tiles::<V, 1, 3, false>(tiled, row, run, columns),
                (_, 2, _) => tiles::<V, 1, 2, false>(tiled, row, run, columns),
                (_, _, _) => tiles::<V, 1, 1, false>(tiled, row, run, columns),
            };
        }
    }
}

/// Copies `columns` columns of k terms each, padded with zeros to `stride` columns.
///
/// # Safety
/// The elements must exist, and the target must have room for k rows of `stride` numbers.
#[inline(always)]
unsafe fn pack<V: Vector>(b: Matrix, k: usize, columns: usize, stride: usize, target: *mut f32) {
    // SAFETY: the caller's promises.
    unsafe {
        if b.column_stride == 1 {
            for term in 0..k {
                let (line, from) = (target.add(term * stride), b.from(term, 0).base);
                let later = from.wrapping_offset(ROWS_AHEAD * b.row_stride);
                (0..columns).step_by(LINE).for_each(|column| prefetch(later.wrapping_add(column)));
                std::ptr::copy_nonoverlapping(from, line, columns);
                std::ptr::write_bytes(line.add(columns), 0, stride - columns);
            }
            return;
        }
        let blocks = if b.row_stride == 1 { (columns / 8 * 8, k / 8 * 8) } else { (0, 0) };
        for first in (0..blocks.0).step_by(LINE) {
            for term in (0..blocks.1).step_by(8) {
                if term % LINE == 0 {
                    // The next columns.
                    let line = b.base.wrapping_add(term);
                    let later = |column: usize| line.wrapping_offset(column as isize * b.column_stride);
                    (first + LINE..first + 2 * LINE).for_each(|column| prefetch(later(column)));
                }
                for column in (first..blocks.0.min(first + LINE)).step_by(8) {
                    let to = target.add(term * stride + column);
                    V::transpose(b.from(term, column).base, b.column_stride, to, stride);
                }
            }
        }
        for term in 0..k {
            let first = if term < blocks.1 { blocks.0 } else { 0 };
            for column in first..columns {
                *target.add(term * stride + column) = *b.from(term, column).base;
            }
            std::ptr::write_bytes(target.add(term * stride + columns), 0, stride - columns);
        }
    }
}

/// The location of the columns of panels.
#[derive(Clone, Copy)]
struct Columns {
    base: *const f32,
    /// Elements between adjacent terms.
    stride: isize,
    /// Elements between panels.
    panel_stride: usize,
}

/// Multiplies `R` rows of a by panels of `N` vectors, which are packed on the way if `PACKS` is set, and returns `R`.
///
/// # Safety
/// As [`multiply_run`]; the rows must exist.
#[inline(always)]
unsafe fn tiles<V: Vector, const R: usize, const N: usize, const PACKS: bool>(
    tiled: &Tiled,
    row: usize,
    run: Run,
    columns: Columns,
) -> usize {
    // SAFETY: the caller's promises.
    unsafe {
        V::outline(
            #[inline(always)]
            || {
                let job = &tiled.job;
                let (width, k) = (N * V::WIDTH, job.sizes.2);
                let a = tiled.rows.from(row);
                let ahead = run.ahead(job, row / R, width);
                for panel in 0..run.count {
                    let column = run.column + panel * width;
                    let seen = columns.base.add(panel * columns.panel_stride);
                    let target = run.target.add(panel * width * k);
                    job.prefetch::<V, R, N>([row, column]);
                    let sums = job.begin::<V, R, N>([row, column]);
                    let sums = add_terms::<V, R, N, PACKS>(sums, a, k, (seen, columns.stride), target, ahead);
                    job.write([row, column], sums);
                }
            },
        );
    }
    R
}

/// Adds the terms of `R` rows with `N` vectors to sums.
///
/// # Safety
/// As [`tiles`].
#[inline(always)]
unsafe fn add_terms<V: Vector, const R: usize, const N: usize, const PACKS: bool>(
    mut sums: [[V; N]; R],
    a: Matrix,
    k: usize,
    (mut seen, stride): (*const f32, isize),
    mut target: *mut f32,
    ahead: Ahead,
) -> [[V; N]; R] {
    // SAFETY: the caller's promises.
    unsafe {
        let mut factor = a.base.cast_const();
        let mut line = ahead.first;
        for term in 0..k {
            let mut vectors = [V::splat(0.0); N];
            for (n, vector) in vectors.iter_mut().enumerate() {
                *vector = V::load(seen.add(n * V::WIDTH));
            }
            if PACKS {
                let later = seen.wrapping_offset(ROWS_AHEAD * stride);
                for (n, vector) in vectors.iter().enumerate() {
                    prefetch(later.wrapping_add(n * V::WIDTH));
                    vector.store(target.add(n * V::WIDTH));
                }
                target = target.wrapping_add(N * V::WIDTH);
            } else {
                prefetch_stream(line);
                line = line.wrapping_offset(if term < ahead.count { ahead.stride } else { 0 });
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                *sums = V::add_multiples(*sums, factor.offset(r as isize * a.row_stride), vectors);
            }
            factor = factor.wrapping_offset(a.column_stride);
            seen = seen.wrapping_offset(stride);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_have_all_vectors_and_one_only_where_there_is_no_other() {
        for vectors in 0..40 {
            let found = panels(vectors);
            assert_eq!(found.iter().map(|(vectors, count)| vectors * count).sum::<usize>(), vectors);
            assert_eq!(found[2].1, usize::from(vectors == 1), "{vectors}");
        }
    }
}
