//! Matrix products of bounded tiles.
//!
//! Each element of a reduction block is one sum over its terms, from the first to the last, with one rounding per term if the processor has
//! fused multiply-add. The blocks of a product are added in the sum tree. So bits depend neither on which elements are computed together
//! nor on the width of vectors.
//!
//! | file | products |
//! |---|---|
//! | `tiles` | of many rows: panels of columns are packed, and tiles of rows go over them |
//! | `few_rows` | of few rows, for which packing takes longer than it saves |
//!
//! 16-bit factors are widened block by block.

mod few_rows;
mod tiles;

use std::mem::MaybeUninit;

use forebay_base::SumTree;
use forebay_base::kernel::PRODUCT_TERMS;

use super::cache::{LINE, prefetch};
use super::parallel::wide;
use super::simd::{Vector, WIDTH_MAX};
use super::stored::Stored;
pub(super) use few_rows::FEW_ROWS;
pub(super) use tiles::{PANEL, PackedRows, Rows};

/// The most adjacent vectors in a result.
const VECTORS_MAX: usize = 4;

/// A matrix somewhere in memory: its first element and its row and column strides in elements.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub base: *mut f32,
    pub row_stride: isize,
    pub column_stride: isize,
}

impl Matrix {
    /// A matrix with adjacent columns.
    pub fn rows(base: *mut f32, row_stride: usize) -> Matrix {
        Matrix { base, row_stride: row_stride as isize, column_stride: 1 }
    }

    /// The same elements with rows and columns exchanged.
    pub fn transposed(self) -> Matrix {
        Matrix { base: self.base, row_stride: self.column_stride, column_stride: self.row_stride }
    }

    /// An m x n matrix at another address: without gaps, and with adjacent rows if this one has them.
    fn packed(self, m: usize, n: usize, base: *mut f32) -> Matrix {
        match self.column_stride {
            1 => Matrix::rows(base, n),
            _ => Matrix::rows(base, m).transposed(),
        }
    }

    /// The matrix starting at a row and a column.
    ///
    /// # Safety
    /// The element must exist.
    pub unsafe fn from(self, row: usize, column: usize) -> Matrix {
        // SAFETY: in bounds by the caller's promise.
        let base = unsafe { self.base.offset(row as isize * self.row_stride + column as isize * self.column_stride) };
        Matrix { base, ..self }
    }
}

/// A matrix whose elements may be stored in 16 bits, with strides as in [`Matrix`].
#[derive(Clone, Copy)]
pub(super) struct StoredMatrix {
    pub elements: Stored<f32>,
    pub row_stride: isize,
    pub column_stride: isize,
}

impl StoredMatrix {
    /// A matrix with adjacent columns.
    pub fn rows(elements: Stored<f32>, row_stride: usize) -> StoredMatrix {
        StoredMatrix { elements, row_stride: row_stride as isize, column_stride: 1 }
    }

    /// The same elements with rows and columns exchanged.
    pub fn transposed(self) -> StoredMatrix {
        StoredMatrix { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// The matrix starting at a row and a column.
    ///
    /// # Safety
    /// The element must exist.
    pub unsafe fn from(self, row: usize, column: usize) -> StoredMatrix {
        let offset = row as isize * self.row_stride + column as isize * self.column_stride;
        // SAFETY: in bounds by the caller's promise.
        StoredMatrix { elements: unsafe { self.elements.at(offset) }, ..self }
    }

    /// Its first rows and columns in float32: in place, or in the same order in a buffer that has room for them ([`Stored::room`]).
    ///
    /// # Safety
    /// The elements must exist, and no one may write them.
    unsafe fn widened(self, rows: usize, columns: usize, buffer: &mut [f32]) -> Matrix {
        if let Some(base) = self.elements.own() {
            return Matrix { base, row_stride: self.row_stride, column_stride: self.column_stride };
        }
        if self.column_stride != 1 {
            // SAFETY: the caller's promises.
            return unsafe { self.transposed().widened(columns, rows, buffer) }.transposed();
        }
        for (row, line) in buffer.chunks_exact_mut(columns.max(1)).take(rows).enumerate() {
            // SAFETY: the caller's promises.
            unsafe { self.from(row, 0).elements.slice(0, columns) }.copy_to(line, 0, 1);
        }
        Matrix::rows(buffer.as_mut_ptr(), columns)
    }
}

/// The tree of a product's blocks; a product without terms also has one block.
pub(super) fn tree(k: usize) -> SumTree {
    SumTree::flat((k as u64).div_ceil(PRODUCT_TERMS).max(1))
}

/// Whether a product is computed transposed: vectors hold columns, so there should be more columns than rows, or enough to fill a vector.
fn computes_transposed(m: usize, n: usize) -> bool {
    n < WIDTH_MAX && n < m
}

/// The number of buffer elements that [`multiply`] needs.
pub(super) fn buffer_count((m, n, k): (usize, usize, usize), (a, b): (StoredMatrix, StoredMatrix)) -> usize {
    if computes_transposed(m, n) {
        return buffer_count((n, m, k), (b.transposed(), a.transposed()));
    }
    let terms = k.min(PRODUCT_TERMS as usize);
    let rows = tiles::packed_rows_count((m, n, terms), [a.row_stride, a.column_stride]);
    tree(k).depth() as usize * m * n + a.elements.room(m * terms) + b.elements.room(terms * n) + rows
}

/// Computes `c = scale a b`, or `c += scale a b`, for an m x k and a k x n matrix, on the calling thread. The previous value of c is added
/// to the first block.
///
/// # Safety
/// The elements must exist; no one else may write `a` and `b` or touch `c`, and `c` must not overlap them. The buffer must have as many
/// elements as [`buffer_count`] says.
pub(super) unsafe fn multiply(
    (m, n, k): (usize, usize, usize),
    (a, b): (StoredMatrix, StoredMatrix),
    c: Matrix,
    (scale, accumulate): (f32, bool),
    buffer: &mut [f32],
) {
    if computes_transposed(m, n) {
        let factors = (b.transposed(), a.transposed());
        // SAFETY: the caller's promises.
        return unsafe { multiply((n, m, k), factors, c.transposed(), (scale, accumulate), buffer) };
    }
    // If terms are adjacent in memory, all terms of a few columns at a time.
    let has_adjacent_terms = few_rows::has_adjacent_terms(m, [b.row_stride, b.column_stride]);
    let width = if has_adjacent_terms { few_rows::COLUMNS } else { n.max(1) };
    for column in (0..n).step_by(width) {
        // SAFETY: the columns exist; the caller promises the rest.
        unsafe {
            let (b, c) = (b.from(0, column), c.from(0, column));
            multiply_columns((m, width.min(n - column), k), (a, b), c, (scale, accumulate), buffer);
        }
    }
}

/// Computes a product block by block.
///
/// # Safety
/// As [`multiply`].
unsafe fn multiply_columns(
    (m, n, k): (usize, usize, usize),
    (a, b): (StoredMatrix, StoredMatrix),
    c: Matrix,
    (scale, accumulate): (f32, bool),
    buffer: &mut [f32],
) {
    let (terms, tree) = (PRODUCT_TERMS as usize, tree(k));
    let (a_buffer, rest) = buffer.split_at_mut(a.elements.room(m * k.min(terms)));
    let (b_buffer, rest) = rest.split_at_mut(b.elements.room(k.min(terms) * n));
    let of_rows = tiles::packed_rows_count((m, n, k.min(terms)), [a.row_stride, a.column_stride]);
    let (rows_buffer, rest) = rest.split_at_mut(of_rows);
    let mut block = |leaf: u64, sum: Matrix, accumulate: bool| {
        let start = leaf as usize * terms;
        let count = terms.min(k - start);
        // SAFETY: the block lies inside the matrices; the caller promises the rest.
        unsafe {
            let a = a.from(0, start).widened(m, count, a_buffer);
            let b = b.from(start, 0).widened(count, n, b_buffer);
            let sums = Sums::scaled(scale, accumulate);
            multiply_block(&Job { sizes: (m, n, count), a, b, c: sum, sums }, rows_buffer);
        }
    };
    // The block, and sums that wait for those to their right: the first of them in c itself, the others one after the other.
    let behind = rest.as_mut_ptr();
    let place = |waiting: usize| match waiting {
        0 => c,
        // SAFETY: no more sums wait than the tree has levels.
        _ => unsafe { c.packed(m, n, behind.add((waiting - 1) * m * n)) },
    };
    let mut waiting = 0;
    for leaf in 0..tree.leaves() {
        let mut merges = tree.merges_after(leaf);
        if merges > 0 {
            block(leaf, place(waiting - 1), true);
            merges -= 1;
        } else {
            block(leaf, place(waiting), accumulate && leaf == 0);
            waiting += 1;
        }
        for _ in 0..merges {
            waiting -= 1;
            // SAFETY: both are m x n matrices that belong to no one else and do not overlap.
            unsafe { add(m, n, place(waiting - 1), place(waiting)) };
        }
    }
}

/// Computes `sum += later` for m x n matrices that both have adjacent columns, or both adjacent rows.
///
/// # Safety
/// The elements must exist, belong to no one else, and not overlap.
pub(super) unsafe fn add(m: usize, n: usize, sum: Matrix, later: Matrix) {
    if sum.column_stride != 1 {
        // SAFETY: the caller's promises.
        return unsafe { add(n, m, sum.transposed(), later.transposed()) };
    }
    // Without gaps, all rows count as one.
    let is_packed = [sum, later].iter().all(|matrix| matrix.row_stride == n as isize);
    let (m, n) = if is_packed { (1, m * n) } else { (m, n) };
    for row in 0..m {
        // SAFETY: the caller's promises.
        let (sum, later) = unsafe {
            let [sum, later] = [sum, later].map(|matrix| matrix.from(row, 0).base);
            (std::slice::from_raw_parts_mut(sum, n), std::slice::from_raw_parts(later, n))
        };
        wide(|| sum.iter_mut().zip(later).for_each(|(sum, &later)| *sum += later));
    }
}

/// Computes `c = scale a b`, or `c += scale a b`, for an m x k and a k x n matrix whose terms are one block, without the calling thread's
/// buffer.
///
/// # Safety
/// As [`multiply`], except for the buffer; c must have adjacent columns.
pub(super) unsafe fn multiply_few(
    (m, n, k): (usize, usize, usize),
    a: Matrix,
    b: Matrix,
    c: Matrix,
    scale: f32,
    accumulate: bool,
) {
    assert!(k <= PRODUCT_TERMS as usize, "{k} terms are more than a block has");
    let sums = Sums::scaled(scale, accumulate);
    let job = match computes_transposed(m, n) {
        true => Job { sizes: (n, m, k), a: b.transposed(), b: a.transposed(), c: c.transposed(), sums },
        false => Job { sizes: (m, n, k), a, b, c, sums },
    };
    // SAFETY: the caller's promises.
    unsafe { multiply_block(&job, &mut []) }
}

/// Continues the sums of an m x n matrix c with k terms of these rows and of b, in their order: each sum is one sum over the terms of all
/// calls. There may be at most [`PRODUCT_TERMS`] terms.
///
/// # Safety
/// As [`multiply_few`]; there must be m rows, and b and c must have adjacent columns.
pub(super) unsafe fn continue_sums(sizes: (usize, usize, usize), rows: Rows, b: Matrix, c: Matrix) {
    assert!(sizes.2 <= PRODUCT_TERMS as usize, "{} terms are more than a block has", sizes.2);
    let (job, n) = (Job { sizes, a: rows.first, b, c, sums: Sums::Continued }, sizes.1);
    // SAFETY: the caller's promises; the columns exist.
    unsafe {
        let done = few_rows::multiply(&job);
        if done < n {
            tiles::multiply_rows(&job.columns(done, n - done), rows);
        }
    }
}

/// What becomes of the sums over a block's terms.
#[derive(Clone, Copy)]
enum Sums {
    /// They replace the result, times a factor.
    Scaled(f32),
    /// They are added to the result, times a factor.
    Added(f32),
    /// They begin with the result instead of 0, and replace it.
    Continued,
}

impl Sums {
    fn scaled(scale: f32, accumulate: bool) -> Sums {
        if accumulate { Sums::Added(scale) } else { Sums::Scaled(scale) }
    }
}

/// A product, which becomes part of c.
#[derive(Clone, Copy)]
struct Job {
    /// The number of rows and columns of the result, and of terms.
    sizes: (usize, usize, usize),
    a: Matrix,
    b: Matrix,
    c: Matrix,
    sums: Sums,
}

impl Job {
    /// The product restricted to these columns of b.
    ///
    /// # Safety
    /// The columns must exist.
    unsafe fn columns(&self, first: usize, count: usize) -> Job {
        let (m, _, k) = self.sizes;
        // SAFETY: the caller's promise.
        let (b, c) = unsafe { (self.b.from(0, first), self.c.from(0, first)) };
        Job { sizes: (m, count, k), b, c, ..*self }
    }

    /// Prefetches where sums will be written, starting at a row and a column: `R` rows of `N` vectors. Otherwise, stores would wait for lines
    /// that are in no cache.
    #[inline(always)]
    fn prefetch<V: Vector, const R: usize, const N: usize>(&self, [row, column]: [usize; 2]) {
        if self.c.column_stride != 1 {
            return;
        }
        for r in row..row + R {
            let line = self.c.base.wrapping_offset(r as isize * self.c.row_stride).wrapping_add(column);
            (0..N * V::WIDTH).step_by(LINE).for_each(|at| prefetch(line.wrapping_add(at)));
        }
    }

    /// What sums over the terms begin with, starting at a row and a column: `R` rows, and as many columns as there are in `N` vectors.
    ///
    /// # Safety
    /// As [`Job::write`].
    #[inline(always)]
    unsafe fn begin<V: Vector, const R: usize, const N: usize>(&self, [row, column]: [usize; 2]) -> [[V; N]; R] {
        // SAFETY: the caller's promises. Only existing columns are read.
        unsafe {
            let mut sums = [[V::splat(0.0); N]; R];
            if !matches!(self.sums, Sums::Continued) {
                return sums;
            }
            let columns = (self.sizes.1 - column).min(N * V::WIDTH);
            for (r, sums) in sums.iter_mut().enumerate() {
                let from = self.c.from(row + r, column).base.cast_const();
                let mut line = [0.0f32; VECTORS_MAX * WIDTH_MAX];
                let from = match columns == N * V::WIDTH {
                    true => from,
                    false => {
                        std::ptr::copy_nonoverlapping(from, line.as_mut_ptr(), columns);
                        line.as_ptr()
                    }
                };
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(from.add(n * V::WIDTH));
                }
            }
            sums
        }
    }

    /// Writes sums, starting at a row and a column: `R` rows, and as many columns as there are in `N` vectors.
    ///
    /// # Safety
    /// The rows must exist; no one else may touch them, and the CPU must have the vector's instructions.
    #[inline(always)]
    unsafe fn write<V: Vector, const R: usize, const N: usize>(&self, at: [usize; 2], sums: [[V; N]; R]) {
        // SAFETY: the caller's promises; numbers that are added to are readable.
        unsafe {
            match self.sums {
                Sums::Scaled(scale) => {
                    let (zero, scale) = (V::splat(0.0), V::splat(scale));
                    self.put(
                        at,
                        sums,
                        #[inline(always)]
                        |sum: V, _| zero.add_product(scale, sum),
                    );
                }
                Sums::Added(scale) => {
                    let scale = V::splat(scale);
                    self.put(
                        at,
                        sums,
                        #[inline(always)]
                        |sum: V, to: *mut f32| V::load(to).add_product(scale, sum),
                    );
                }
                Sums::Continued => self.put(
                    at,
                    sums,
                    #[inline(always)]
                    |sum, _| sum,
                ),
            }
        }
    }

    /// Writes what becomes of each vector of sums and of the numbers at its address.
    ///
    /// # Safety
    /// As [`Job::write`].
    #[inline(always)]
    unsafe fn put<V: Vector, const R: usize, const N: usize>(
        &self,
        [row, column]: [usize; 2],
        sums: [[V; N]; R],
        combined: impl Fn(V, *mut f32) -> V,
    ) {
        const { assert!(N <= VECTORS_MAX) };
        let columns = (self.sizes.1 - column).min(N * V::WIDTH);
        // SAFETY: the caller's promises.
        unsafe {
            let c = self.c.from(row, column);
            if c.column_stride == 1 && columns == N * V::WIDTH {
                for (r, sums) in sums.into_iter().enumerate() {
                    for (n, sum) in sums.into_iter().enumerate() {
                        let to = c.base.offset(r as isize * c.row_stride).add(n * V::WIDTH);
                        combined(sum, to).store(to);
                    }
                }
                return;
            }
            // Through a separate array, so that nothing after the columns is touched.
            let mut line = [0.0f32; VECTORS_MAX * WIDTH_MAX];
            for (r, sums) in sums.into_iter().enumerate() {
                let to = |j: usize| c.from(r, j).base;
                if let Sums::Added(_) = self.sums {
                    line.iter_mut().take(columns).enumerate().for_each(|(j, value)| *value = *to(j));
                }
                for (n, sum) in sums.into_iter().enumerate() {
                    let at = line.as_mut_ptr().add(n * V::WIDTH);
                    combined(sum, at).store(at);
                }
                line.iter().take(columns).enumerate().for_each(|(j, &value)| *to(j) = value);
            }
        }
    }
}

/// Numbers that start at a cache line.
#[repr(align(64))]
struct Aligned<const N: usize>([MaybeUninit<f32>; N]);

impl<const N: usize> Aligned<N> {
    fn new() -> Aligned<N> {
        Aligned([const { MaybeUninit::uninit() }; N])
    }

    fn address(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// Computes a product with the terms of one block.
///
/// # Safety
/// As [`multiply`]; the buffer has as many elements as [`tiles::packed_rows_count`] says, or none.
unsafe fn multiply_block(job: &Job, rows_buffer: &mut [f32]) {
    let (_, n, _) = job.sizes;
    // SAFETY: the caller's promises; the columns exist.
    unsafe {
        let done = few_rows::multiply(job);
        if done < n {
            tiles::multiply(&job.columns(done, n - done), rows_buffer);
        }
    }
}
