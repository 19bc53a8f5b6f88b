//! Matrix products of bounded tiles on the `gemm-f32` crate: the part of `gemm` for this type, which compiles in a fraction of
//! the time of the whole.
//!
//! The crate picks its blocking by shape. Callers therefore cut the rows and columns of a product into tiles whose lines
//! depend on the kernel's shapes only; the inner dimension is cut here, into chunks of fixed length that are added up from
//! left to right. So each element's sum has one order, whichever thread computes it and whatever it is computed next to.

use forebay_base::kernel::PRODUCT_TERMS;
use gemm_common::Parallelism;

/// Length of a chunk of the inner dimension.
pub(super) const INNER_CHUNK: usize = PRODUCT_TERMS as usize;

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

/// `c = scale a b`, or `c += scale a b`, for an m x k and a k x n matrix, on the calling thread.
///
/// # Safety
/// The elements must exist; no one else may write `a` and `b` or touch `c`, and `c` must not overlap them.
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
    for start in (0..k.max(1)).step_by(INNER_CHUNK) {
        let length = INNER_CHUNK.min(k - start);
        // SAFETY: the chunk lies inside the matrices; the caller promises the rest.
        unsafe {
            let (a, b) = (a.from(0, start), b.from(start, 0));
            // The library's kernels write columns: a product of rows is the transposed product of the transposed factors.
            let by_rows = c.column_stride.abs() < c.row_stride.abs();
            let (m, n, a, b, c) =
                if by_rows { (n, m, b.transposed(), a.transposed(), c.transposed()) } else { (m, n, a, b, c) };
            gemm_f32::gemm::f32::get_gemm_fn()(
                m,
                n,
                length,
                c.base,
                c.column_stride,
                c.row_stride,
                accumulate || start > 0,
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
}
