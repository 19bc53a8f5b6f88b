//! Matrix products of bounded tiles.
//!
//! Each element of a reduction block is one sum over its terms, from the first to the last, with one rounding per term where the
//! processor multiplies and adds at once. The blocks of a product are added in the sum tree. So bits depend neither on what an
//! element is computed next to nor on the width of vectors.
//!
//! Columns of b are packed into panels that stay in a core's first-level cache; tiles of a few rows of a go over each panel, with their
//! sums in registers. For very few rows, packing takes longer than it saves, so columns are read in place. Factors of 16 bits are widened
//! block by block.

use std::mem::MaybeUninit;

use forebay_base::kernel::PRODUCT_TERMS;
use forebay_base::SumTree;

use super::parallel::wide;
use super::simd::{dispatch, dispatch_wide, prefetch, SummedVector, Vector, LANES, WIDTH_MAX};
use super::stored::Stored;

/// Vectors of columns in a tile.
const VECTORS: usize = 3;
/// Columns of a panel, at most.
pub(super) const PANEL: usize = VECTORS * WIDTH_MAX;
/// With at most this many rows, a panel whose columns are adjacent is read where it is: packing it would take longer.
const ROWS_UNPACKED: usize = 8;
/// With at most this many rows, columns whose terms are adjacent are transposed in registers each time: packing them would take
/// longer.
const ROWS_TRANSPOSED: usize = 4;

/// Rows that are asked for ahead while a panel is packed.
const ROWS_AHEAD: isize = 16;
/// Elements of a cache line.
const LINE: usize = 16;

/// A matrix somewhere in memory: its first element, and the distances between rows and columns in elements.
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

    /// The matrix from a row and a column on.
    ///
    /// # Safety
    /// The element must exist.
    pub unsafe fn from(self, row: usize, column: usize) -> Matrix {
        // SAFETY: in bounds by the caller's promise.
        let base = unsafe { self.base.offset(row as isize * self.row_stride + column as isize * self.column_stride) };
        Matrix { base, ..self }
    }
}

/// A matrix whose elements may be stored in 16 bits, with the distances of [`Matrix`].
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

    /// The matrix from a row and a column on.
    ///
    /// # Safety
    /// The element must exist.
    pub unsafe fn from(self, row: usize, column: usize) -> StoredMatrix {
        let offset = row as isize * self.row_stride + column as isize * self.column_stride;
        // SAFETY: in bounds by the caller's promise.
        StoredMatrix { elements: unsafe { self.elements.at(offset) }, ..self }
    }

    /// Its first rows and columns in float32: where they lie, or in a buffer that has room for them ([`Stored::room`]), in the
    /// same order.
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

/// The tree of a product's blocks; no terms at all are one of them, too.
fn tree(k: usize) -> SumTree {
    SumTree::flat((k as u64).div_ceil(PRODUCT_TERMS).max(1))
}

/// Elements of the buffer that [`multiply`] needs.
pub(super) fn buffer_count((m, n, k): (usize, usize, usize), (a, b): (StoredMatrix, StoredMatrix)) -> usize {
    let terms = k.min(PRODUCT_TERMS as usize);
    tree(k).depth() as usize * m * n + a.elements.room(m * terms) + b.elements.room(terms * n)
}

/// `c = scale a b`, or `c += scale a b`, for an m x k and a k x n matrix, on the calling thread. What c has is added to the first
/// block.
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
    // All terms of a few columns after the other: that is how they lie in memory.
    let width = if transposes_in_registers(m, [b.row_stride, b.column_stride], c) { LANES } else { n.max(1) };
    for column in (0..n).step_by(width) {
        // SAFETY: the columns exist; the caller promises the rest.
        unsafe {
            let (b, c) = (b.from(0, column), c.from(0, column));
            multiply_columns((m, width.min(n - column), k), (a, b), c, (scale, accumulate), buffer);
        }
    }
}

/// A product block after block.
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
    let mut block = |leaf: u64, sum: Matrix, accumulate: bool| {
        let start = leaf as usize * terms;
        let count = terms.min(k - start);
        // SAFETY: the block lies inside the matrices; the caller promises the rest.
        unsafe {
            let a = a.from(0, start).widened(m, count, a_buffer);
            let b = b.from(start, 0).widened(count, n, b_buffer);
            multiply_block(&Job { sizes: (m, n, count), a, b, c: sum, scale, accumulate });
        }
    };
    // Sums that wait for what is to the right of them, and the block: the first of them in c itself, the others behind each other.
    let behind = rest.as_mut_ptr();
    let place = |waiting: usize| match waiting {
        0 => c,
        // SAFETY: no more sums wait than the tree has levels.
        _ => Matrix::rows(unsafe { behind.add((waiting - 1) * m * n) }, n),
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
            // SAFETY: both are m x n matrices that are no one else's, and lie apart.
            unsafe { add(m, n, place(waiting - 1), place(waiting)) };
        }
    }
}

/// `sum += later`, for m x n matrices of rows.
///
/// # Safety
/// The elements must exist, be no one else's, and lie apart.
unsafe fn add(m: usize, n: usize, sum: Matrix, later: Matrix) {
    // Without gaps, all rows are one.
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

/// `c = scale a b`, or `c += scale a b`, for an m x k and a k x n matrix whose terms are one block, without the calling thread's
/// buffer.
///
/// # Safety
/// As [`multiply`], but for the buffer; c has adjacent columns.
pub(super) unsafe fn multiply_few(
    (m, n, k): (usize, usize, usize),
    a: Matrix,
    b: Matrix,
    c: Matrix,
    scale: f32,
    accumulate: bool,
) {
    debug_assert!(k <= PRODUCT_TERMS as usize, "{k} terms are more than a block has");
    // SAFETY: the caller's promises.
    unsafe { multiply_block(&Job { sizes: (m, n, k), a, b, c, scale, accumulate }) }
}

/// A product with the terms of one block.
///
/// # Safety
/// As [`multiply`], but for the buffer.
unsafe fn multiply_block(job: &Job) {
    let (m, n, k) = job.sizes;
    // Columns are what vectors hold: of the two factors, the one with more of them.
    let job = match n < WIDTH_MAX && n < m {
        true => Job { sizes: (n, m, k), a: job.b.transposed(), b: job.a.transposed(), c: job.c.transposed(), ..*job },
        false => *job,
    };
    // SAFETY: the caller's promises.
    unsafe {
        match job.transposes_columns() {
            true => multiply_transposing(&job),
            false => multiply_job(&job),
        }
    }
}

/// A product: `c = scale a b`, or `c += scale a b`.
#[derive(Clone, Copy)]
struct Job {
    /// Rows and columns of the result, and terms.
    sizes: (usize, usize, usize),
    a: Matrix,
    b: Matrix,
    c: Matrix,
    scale: f32,
    accumulate: bool,
}

impl Job {
    /// Whether its columns are transposed in registers.
    fn transposes_columns(&self) -> bool {
        self.sizes.1 == LANES
            && transposes_in_registers(self.sizes.0, [self.b.row_stride, self.b.column_stride], self.c)
    }
}

/// Whether few rows are multiplied with columns whose terms are adjacent, so that columns are transposed in registers.
fn transposes_in_registers(rows: usize, [row_stride, column_stride]: [isize; 2], c: Matrix) -> bool {
    rows <= ROWS_TRANSPOSED && row_stride == 1 && column_stride != 1 && c.column_stride == 1
}

dispatch! {
    /// # Safety
    /// As [`multiply_few`], for [`LANES`] columns that are transposed.
    fn multiply_transposing, multiply_transposing_with(job: &Job)
}

/// # Safety
/// As [`multiply_transposing`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn multiply_transposing_with<V: SummedVector>(job: &Job) {
    // SAFETY: the caller's promises.
    unsafe {
        V::outline(
            #[inline(always)]
            || match job.sizes.0 {
                1 => transposing_tile::<V, 1>(job),
                2 => transposing_tile::<V, 2>(job),
                3 => transposing_tile::<V, 3>(job),
                _ => transposing_tile::<V, ROWS_TRANSPOSED>(job),
            },
        );
    }
}

/// `R` rows of a against columns that are transposed.
///
/// # Safety
/// As [`multiply_transposing_with`]; there are as many rows.
#[inline(always)]
unsafe fn transposing_tile<V: SummedVector, const R: usize>(job: &Job) {
    let k = job.sizes.2;
    // SAFETY: the caller's promises.
    unsafe {
        let mut sums = [V::splat(0.0); R];
        let mut add = |term: usize, seen: V| {
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = sum.add_product(V::splat(*job.a.from(r, term).base), seen);
            }
        };
        for start in (0..k / LANES * LANES).step_by(LANES) {
            let seen = V::columns(job.b.from(start, 0).base, job.b.column_stride);
            (start..).zip(seen).for_each(|(term, seen)| add(term, seen));
        }
        for term in k / LANES * LANES..k {
            let seen: [f32; LANES] = std::array::from_fn(|column| *job.b.from(term, column).base);
            add(term, V::load(seen.as_ptr()));
        }
        for (r, sum) in sums.into_iter().enumerate() {
            let to = job.c.from(r, 0).base;
            let start = if job.accumulate { V::load(to) } else { V::splat(0.0) };
            start.add_product(V::splat(job.scale), sum).store(to);
        }
    }
}

/// Columns of b: those of adjacent terms lie `stride` apart.
#[derive(Clone, Copy)]
struct Panel {
    base: *const f32,
    stride: isize,
}

dispatch_wide! {
    /// # Safety
    /// As [`multiply_few`].
    fn multiply_job, multiply_job_with(job: &Job)
}

/// # Safety
/// As [`multiply_job`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn multiply_job_with<V: Vector>(job: &Job) {
    let (m, n, k) = job.sizes;
    let mut packed = [const { MaybeUninit::<f32>::uninit() }; PANEL * PRODUCT_TERMS as usize];
    for column in (0..n).step_by(VECTORS * V::WIDTH) {
        let columns = (n - column).min(VECTORS * V::WIDTH);
        let vectors = columns.div_ceil(V::WIDTH);
        // SAFETY: the columns exist; a panel holds the terms of a block, of which there are no more.
        unsafe {
            let b = job.b.from(0, column);
            let is_whole = columns == vectors * V::WIDTH && b.column_stride == 1;
            let panel = if is_whole && m <= ROWS_UNPACKED {
                Panel { base: b.base, stride: b.row_stride }
            } else {
                let stride = vectors * V::WIDTH;
                pack::<V>(b, k, columns, stride, packed.as_mut_ptr().cast());
                Panel { base: packed.as_ptr().cast(), stride: stride as isize }
            };
            let mut row = 0;
            while row < m {
                let at = (row, column, columns);
                row += match (m - row, vectors) {
                    (8.., 3) if V::REGISTERS >= 32 => tile::<V, 8, 3>(job, at, panel),
                    (8.., 2) if V::REGISTERS >= 32 => tile::<V, 8, 2>(job, at, panel),
                    (8.., 1) => tile::<V, 8, 1>(job, at, panel),
                    (4.., 3) => tile::<V, 4, 3>(job, at, panel),
                    (4.., 2) => tile::<V, 4, 2>(job, at, panel),
                    (4.., 1) => tile::<V, 4, 1>(job, at, panel),
                    (2.., 3) => tile::<V, 2, 3>(job, at, panel),
                    (2.., 2) => tile::<V, 2, 2>(job, at, panel),
                    (2.., 1) => tile::<V, 2, 1>(job, at, panel),
                    (_, 3) => tile::<V, 1, 3>(job, at, panel),
                    (_, 2) => tile::<V, 1, 2>(job, at, panel),
                    (_, _) => tile::<V, 1, 1>(job, at, panel),
                };
            }
        }
    }
}

/// Copies `columns` columns of k terms each, with zeros up to `stride` of them.
///
/// # Safety
/// The elements must exist, and the target hold k rows of `stride` numbers.
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
        for column in (0..blocks.0).step_by(8) {
            for term in (0..blocks.1).step_by(8) {
                V::transpose(b.from(term, column).base, b.column_stride, target.add(term * stride + column), stride);
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

/// `R` rows of a against `N` vectors of a panel; gives `R`.
///
/// # Safety
/// As [`multiply_job_with`]; the rows and the columns must exist.
#[inline(always)]
unsafe fn tile<V: Vector, const R: usize, const N: usize>(
    job: &Job,
    (row, column, columns): (usize, usize, usize),
    panel: Panel,
) -> usize {
    // SAFETY: the caller's promises.
    unsafe {
        V::outline(
            #[inline(always)]
            || {
                let (a, c) = (job.a.from(row, 0), job.c.from(row, column));
                let mut sums = [[V::splat(0.0); N]; R];
                let (mut factor, mut seen) = (a.base.cast_const(), panel.base);
                for _ in 0..job.sizes.2 {
                    let vectors: [V; N] = std::array::from_fn(|n| V::load(seen.add(n * V::WIDTH)));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        *sums = V::add_multiples(*sums, factor.offset(r as isize * a.row_stride), vectors);
                    }
                    factor = factor.wrapping_offset(a.column_stride);
                    seen = seen.wrapping_offset(panel.stride);
                }
                let scale = V::splat(job.scale);
                if c.column_stride == 1 && columns == N * V::WIDTH {
                    for (r, sums) in sums.into_iter().enumerate() {
                        for (n, sum) in sums.into_iter().enumerate() {
                            let to = c.base.offset(r as isize * c.row_stride).add(n * V::WIDTH);
                            let start = if job.accumulate { V::load(to) } else { V::splat(0.0) };
                            start.add_product(scale, sum).store(to);
                        }
                    }
                    return;
                }
                // Through an array of its own, so that nothing behind the columns is touched.
                let mut line = [0.0f32; PANEL];
                for (r, sums) in sums.into_iter().enumerate() {
                    let to = |j: usize| c.from(r, j).base;
                    if job.accumulate {
                        line.iter_mut().take(columns).enumerate().for_each(|(j, value)| *value = *to(j));
                    } else {
                        line.fill(0.0);
                    }
                    for (n, sum) in sums.into_iter().enumerate() {
                        let at = line.as_mut_ptr().add(n * V::WIDTH);
                        V::load(at).add_product(scale, sum).store(at);
                    }
                    line.iter().take(columns).enumerate().for_each(|(j, &value)| *to(j) = value);
                }
            },
        );
    }
    R
}
