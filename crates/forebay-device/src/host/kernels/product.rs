//! Matrix products of bounded tiles on the `gemm-f32` crate: the part of `gemm` for this type, which compiles in a fraction of
//! the time of the whole.
//!
//! The crate picks its blocking by shape. Callers therefore cut the rows and columns of a product into tiles whose lines
//! depend on the kernel's shapes only; the inner dimension is cut here, into the reduction blocks of products, which are added in
//! the sum tree. So each element's sum has one order, whichever thread computes it and whatever it is computed next to.

use forebay_base::kernel::PRODUCT_TERMS;
use forebay_base::SumTree;
use gemm_common::Parallelism;

use super::parallel::wide;
use super::thread_buffer::{with_buffer, ELEMENTS_MAX};

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

/// The tree of a product's blocks; no terms at all are one of them, too.
fn tree(k: usize) -> SumTree {
    SumTree::flat((k as u64).div_ceil(PRODUCT_TERMS).max(1))
}

/// The most rows of a tile, `rows` or a fraction of it, whose sums of `k` terms the calling thread's buffer holds.
pub(super) fn rows_max(rows: usize, columns: usize, k: usize) -> usize {
    let fits = |&rows: &usize| tree(k).depth() as usize * rows * columns <= ELEMENTS_MAX;
    (0..rows.ilog2()).map(|halvings| rows >> halvings).find(fits).unwrap_or(1)
}

/// `c = scale a b`, or `c += scale a b`, for an m x k and a k x n matrix, on the calling thread. What c has is added to the first
/// block.
///
/// # Safety
/// The elements must exist; no one else may write `a` and `b` or touch `c`, and `c` must not overlap them. The calling thread's
/// buffer must be free.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn multiply(
    m: usize,
    n: usize,
    k: usize,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    scale: f32,
    accumulate: bool,
) {
    let (terms, tree) = (PRODUCT_TERMS as usize, tree(k));
    // The library's kernels write columns: a product of rows is the transposed product of the transposed factors.
    let by_rows = c.column_stride.abs() < c.row_stride.abs();
    let block = |leaf: u64, sum: Matrix, accumulate: bool| {
        let start = leaf as usize * terms;
        // SAFETY: the block lies inside the matrices; the caller promises the rest.
        unsafe {
            let (a, b, size) = (a.from(0, start), b.from(start, 0), (m, n, terms.min(k - start)));
            let (size, a, b, sum) = match by_rows {
                true => ((n, m, size.2), b.transposed(), a.transposed(), sum.transposed()),
                false => (size, a, b, sum),
            };
            multiply_block(size, a, b, sum, scale, accumulate);
        }
    };
    // The library has ways of its own for vectors and for few terms, which depend on whether rows are adjacent, as a column's are.
    let pitch = if c.row_stride == 1 { 1 } else { n.max(2) };
    // Sums that wait for what is to the right of them, and the block: the first of them in c itself, the others behind each other.
    with_buffer(tree.depth() as usize * m * pitch, |buffer| {
        let behind = buffer.as_mut_ptr();
        let place = |waiting: usize| match waiting {
            0 => c,
            // SAFETY: no more sums wait than the tree has levels.
            _ => Matrix::rows(unsafe { behind.add((waiting - 1) * m * pitch) }, pitch),
        };
        let mut waiting = 0;
        for leaf in 0..tree.leaves() {
            let mut merges = tree.merges_after(leaf);
            // These ways add term after term to what there is, all others the sum of a block, as the tree does.
            let adds_sums = m > 1 && n > 1 && k - leaf as usize * terms > 2;
            if merges > 0 && adds_sums {
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
    });
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
    unsafe { multiply_block((n, m, k), b.transposed(), a.transposed(), c.transposed(), scale, accumulate) }
}

/// `c = scale a b`, or `c += scale a b`, for an m x k and a k x n matrix with the terms of one block.
///
/// # Safety
/// As [`multiply`].
unsafe fn multiply_block(
    (m, n, k): (usize, usize, usize),
    a: Matrix,
    b: Matrix,
    c: Matrix,
    scale: f32,
    accumulate: bool,
) {
    // SAFETY: the caller's promises.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            m,
            n,
            k,
            c.base,
            c.column_stride,
            c.row_stride,
            accumulate,
            a.base,
            a.column_stride,
            a.row_stride,
            b.base,
            b.column_stride,
            b.row_stride,
            1.0,
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
