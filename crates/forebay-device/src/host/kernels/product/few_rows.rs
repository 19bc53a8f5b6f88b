//! Products of few rows: each element of b is used so few times that packing it would take longer than using it. So columns are read
//! where they are: a few terms of many columns at a time where columns are adjacent, and transposed in registers where terms are.

use std::mem::MaybeUninit;

use super::super::simd::{dispatch, dispatch_wide, prefetch, SummedVector, Vector, LANES};
use super::Job;

/// Rows at most, where columns are adjacent.
pub(in super::super) const ROWS_MAX: usize = 8;
/// Rows at most, where terms are adjacent.
const ROWS_TRANSPOSED: usize = 4;
/// Columns with adjacent terms whose sums are in registers at a time, at most: a product that is added waits for the one before it, so
/// there are other sums to go on with.
pub(super) const COLUMNS: usize = 4 * LANES;

/// Terms that are transposed of one column after the other: a cache line.
const TERMS_TRANSPOSED: usize = 2 * LANES;

/// Terms of each column that are read at a time where columns are adjacent, at most: half as many where rows are so few that sums are
/// loaded and stored in little time.
const TERMS: usize = 16;
/// Sums that are in the first-level cache meanwhile.
const SUMS: usize = 4096;
/// Columns that are asked for ahead.
const COLUMNS_AHEAD: usize = 128;
/// Columns at least, where they are adjacent: with fewer, sums would be loaded and stored more often than they are added to.
const COLUMNS_MIN: usize = 128;

/// Whether few rows are multiplied with columns whose terms are adjacent, given the distances of b's rows and columns.
pub(super) fn has_adjacent_terms(rows: usize, [row_stride, column_stride]: [isize; 2]) -> bool {
    rows <= ROWS_TRANSPOSED && row_stride == 1 && column_stride != 1
}

/// Whether few rows are multiplied with many adjacent columns.
pub(super) fn has_adjacent_columns((rows, columns): (usize, usize), column_stride: isize) -> bool {
    rows <= ROWS_MAX && columns >= COLUMNS_MIN && column_stride == 1
}

dispatch! {
    /// Columns with adjacent terms.
    ///
    /// # Safety
    /// As [`super::multiply`], for whole vectors of columns.
    pub(super) fn multiply_transposing, multiply_transposing_with(job: &Job)
}

/// # Safety
/// As [`multiply_transposing`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn multiply_transposing_with<V: SummedVector>(job: &Job) {
    let (m, n, _) = job.sizes;
    let mut column = 0;
    while column < n {
        // SAFETY: the caller's promises.
        unsafe {
            column += match (m, (n - column) / LANES) {
                (1, 4..) => transposing_tile::<V, 1, 4>(job, column),
                (1, _) => transposing_tile::<V, 1, 1>(job, column),
                (2, 2..) => transposing_tile::<V, 2, 2>(job, column),
                (2, _) => transposing_tile::<V, 2, 1>(job, column),
                (3, _) => transposing_tile::<V, 3, 1>(job, column),
                (_, _) => transposing_tile::<V, ROWS_TRANSPOSED, 1>(job, column),
            };
        }
    }
}

/// `R` rows of a against `N` vectors of columns that are transposed; gives the number of columns.
///
/// # Safety
/// As [`multiply_transposing_with`]; there are as many rows, and as many columns from the first on.
#[inline(always)]
unsafe fn transposing_tile<V: SummedVector, const R: usize, const N: usize>(job: &Job, column: usize) -> usize {
    let k = job.sizes.2;
    // SAFETY: the caller's promises.
    unsafe {
        let job = job.columns(column, N * LANES);
        V::outline(
            #[inline(always)]
            || {
                let mut sums = [[V::splat(0.0); N]; R];
                let whole = k / LANES * LANES;
                for start in (0..whole).step_by(TERMS_TRANSPOSED) {
                    for n in 0..N {
                        // A whole line of each column: columns may all have the same place in a cache, which keeps few of them.
                        for start in (start..whole.min(start + TERMS_TRANSPOSED)).step_by(LANES) {
                            let seen = V::columns(job.b.from(start, n * LANES).base, job.b.column_stride);
                            for (term, seen) in (start..).zip(seen) {
                                for (r, sums) in sums.iter_mut().enumerate() {
                                    sums[n] = sums[n].add_product(V::splat(*job.a.from(r, term).base), seen);
                                }
                            }
                        }
                    }
                }
                for term in whole..k {
                    for n in 0..N {
                        let mut seen = [0.0; LANES];
                        for (column, seen) in seen.iter_mut().enumerate() {
                            *seen = *job.b.from(term, n * LANES + column).base;
                        }
                        let seen = V::load(seen.as_ptr());
                        for (r, sums) in sums.iter_mut().enumerate() {
                            sums[n] = sums[n].add_product(V::splat(*job.a.from(r, term).base), seen);
                        }
                    }
                }
                for (r, sums) in sums.into_iter().enumerate() {
                    for (n, sum) in sums.into_iter().enumerate() {
                        store(&job, [r, n * LANES], sum);
                    }
                }
            },
        );
    }
    N * LANES
}

/// Writes or adds the sums of a vector of columns.
///
/// # Safety
/// As [`super::multiply`]; the columns must exist, and the CPU have the vector's instructions.
#[inline(always)]
unsafe fn store<V: Vector>(job: &Job, [row, column]: [usize; 2], sum: V) {
    // SAFETY: the caller's promises.
    unsafe {
        let to = job.c.from(row, column);
        let scale = V::splat(job.scale);
        if to.column_stride == 1 {
            let start = if job.accumulate { V::load(to.base) } else { V::splat(0.0) };
            return start.add_product(scale, sum).store(to.base);
        }
        let mut line = [0.0f32; super::WIDTH_MAX];
        if job.accumulate {
            line.iter_mut().take(V::WIDTH).enumerate().for_each(|(j, value)| *value = *to.from(0, j).base);
        }
        V::load(line.as_ptr()).add_product(scale, sum).store(line.as_mut_ptr());
        line.iter().take(V::WIDTH).enumerate().for_each(|(j, &value)| *to.from(0, j).base = value);
    }
}

/// Numbers from a cache line on.
#[repr(align(64))]
struct Aligned<const N: usize>([MaybeUninit<f32>; N]);

dispatch_wide! {
    /// Adjacent columns: their sums stay in memory while rows of b are read one after the other.
    ///
    /// # Safety
    /// As [`super::multiply`], for whole vectors of columns.
    pub(super) fn multiply_streaming, multiply_streaming_with(job: &Job)
}

/// # Safety
/// As [`multiply_streaming`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn multiply_streaming_with<V: Vector>(job: &Job) {
    let (m, n, k) = job.sizes;
    let mut sums = Aligned([const { MaybeUninit::<f32>::uninit() }; SUMS]);
    let width = SUMS / ROWS_MAX * (ROWS_MAX / m.max(1));
    let at_once = if m > ROWS_MAX / 2 { TERMS } else { TERMS / 2 };
    for column in (0..n).step_by(width) {
        let columns = width.min(n - column);
        for start in (0..k.max(1)).step_by(at_once) {
            let terms = at_once.min(k - start);
            let mut row = 0;
            while row < m {
                // SAFETY: the caller's promises.
                unsafe {
                    let part = Part {
                        job: job.columns(column, columns),
                        row,
                        terms: start..start + terms,
                        sums: sums.0.as_mut_ptr().cast::<f32>().add(row * columns),
                    };
                    row += match m - row {
                        8.. if V::REGISTERS >= 32 => streaming_part::<V, 8, 2>(&part),
                        4.. => streaming_part::<V, 4, 2>(&part),
                        2.. => streaming_part::<V, 2, 2>(&part),
                        _ => streaming_part::<V, 1, 4>(&part),
                    };
                }
            }
        }
    }
}

/// Some terms of a product's sums.
struct Part {
    job: Job,
    /// The first row.
    row: usize,
    /// At most [`TERMS`] of them.
    terms: std::ops::Range<usize>,
    /// The sums of the terms before, row by row; and of these, unless they are the last.
    sums: *mut f32,
}

/// Adds some terms to the sums of `R` rows, `N` vectors of columns at a time; gives `R`.
///
/// # Safety
/// As [`multiply_streaming_with`]; the rows and their sums must exist.
#[inline(always)]
unsafe fn streaming_part<V: Vector, const R: usize, const N: usize>(part: &Part) -> usize {
    let columns = part.job.sizes.1;
    // SAFETY: the caller's promises.
    unsafe {
        V::outline(
            #[inline(always)]
            || {
                let mut factors = [[0.0f32; R]; TERMS];
                for (term, factors) in part.terms.clone().zip(&mut factors) {
                    for (r, factor) in factors.iter_mut().enumerate() {
                        *factor = *part.job.a.from(part.row + r, term).base;
                    }
                }
                let mut column = 0;
                while column + N * V::WIDTH <= columns {
                    streaming_step::<V, R, N>(part, &factors, column);
                    column += N * V::WIDTH;
                }
                while column < columns {
                    streaming_step::<V, R, 1>(part, &factors, column);
                    column += V::WIDTH;
                }
            },
        );
    }
    R
}

/// # Safety
/// As [`streaming_part`].
#[inline(always)]
unsafe fn streaming_step<V: Vector, const R: usize, const N: usize>(
    part: &Part,
    factors: &[[f32; R]; TERMS],
    column: usize,
) {
    let Part { job, row, terms, sums } = part;
    let (_, columns, k) = job.sizes;
    // SAFETY: the caller's promises.
    unsafe {
        let waiting = |r: usize, n: usize| sums.add(r * columns + column + n * V::WIDTH);
        let mut own = [[V::splat(0.0); N]; R];
        if terms.start > 0 {
            for (r, own) in own.iter_mut().enumerate() {
                for (n, own) in own.iter_mut().enumerate() {
                    *own = V::load(waiting(r, n));
                }
            }
        }
        let mut seen = job.b.from(terms.start, column).base.cast_const();
        for factors in factors.iter().take(terms.len()) {
            let mut vectors = [V::splat(0.0); N];
            let later = seen.wrapping_add(COLUMNS_AHEAD);
            for (n, vector) in vectors.iter_mut().enumerate() {
                prefetch(later.wrapping_add(n * V::WIDTH));
                *vector = V::load(seen.add(n * V::WIDTH));
            }
            for (own, factor) in own.iter_mut().zip(factors) {
                *own = V::add_multiples(*own, factor, vectors);
            }
            seen = seen.wrapping_offset(job.b.row_stride);
        }
        for (r, own) in own.into_iter().enumerate() {
            for (n, own) in own.into_iter().enumerate() {
                match terms.end < k {
                    true => own.store(waiting(r, n)),
                    false => store(job, [row + r, column + n * V::WIDTH], own),
                }
            }
        }
    }
}
