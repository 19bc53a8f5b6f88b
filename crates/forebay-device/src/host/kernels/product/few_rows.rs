//! Products of few rows: each element of b is used so few times that packing it would take longer than using it. So columns are read in
//! place: a few terms of many columns at a time if columns are adjacent, and transposed in registers if terms are adjacent.

use std::ops::Range;

use super::super::cache::prefetch_stream;
use super::super::simd::{LANES, SummedVector, Vector, WIDTH_MAX, dispatch, dispatch_wide};
use super::{Aligned, Job};

/// The most rows if columns are adjacent.
pub(in super::super) const FEW_ROWS: usize = 8;
/// The most rows if terms are adjacent.
const ROWS_TRANSPOSED: usize = 4;
/// Columns with adjacent terms that are summed at a time, in registers. They fill two vectors, because each addition to a sum waits for the
/// previous one. With more vectors, more streams are read at once than processors prefetch by themselves.
pub(super) const COLUMNS: usize = 2 * LANES;

/// Terms of some columns that are transposed before those of the next columns: one cache line of each column.
const TERMS_TRANSPOSED: usize = 2 * LANES;

/// While columns with adjacent terms are read, the next columns are prefetched, unless they begin more than this many elements later: the
/// second-level cache would have lost them by the time they are read.
const NEXT_COLUMNS_MAX: usize = 1 << 16;
/// If the next columns are too far away, later terms of the same columns are prefetched: this many terms ahead.
const TERMS_AHEAD: usize = 512;

/// Terms of adjacent columns that are added to sums at a time. Half as many are used for half the rows, whose sums take half as long to
/// load and store.
const TERMS: usize = 16;
/// The most sums that wait in memory: few enough to stay in a core's first-level cache.
const SUMS: usize = 4096;
/// The most columns of a single row whose terms are added one at a time: if rows of b follow each other in memory, b is then read as one
/// stream, which processors prefetch best. The sums are loaded and stored for each term, so they must be close.
const COLUMNS_STREAMED: usize = 2048;
/// With fewer adjacent columns, tiles take less time.
const COLUMNS_MIN: usize = 128;

/// Whether a few rows are multiplied by columns whose terms are adjacent, given the strides of b's rows and columns.
pub(super) fn has_adjacent_terms(rows: usize, [row_stride, column_stride]: [isize; 2]) -> bool {
    rows <= ROWS_TRANSPOSED && row_stride == 1 && column_stride != 1
}

/// Computes the first columns of a product of few rows and returns their number. Columns that do not fill a vector are left, and so is
/// every product that takes less time by tiles.
///
/// # Safety
/// As [`super::multiply_block`].
pub(super) unsafe fn multiply(job: &Job) -> usize {
    let (m, n, _) = job.sizes;
    // SAFETY: the caller's promises; the columns exist.
    unsafe {
        if has_adjacent_terms(m, [job.b.row_stride, job.b.column_stride]) {
            let whole = n / LANES * LANES;
            multiply_transposing(&job.columns(0, whole));
            return whole;
        }
        if m <= FEW_ROWS && n >= COLUMNS_MIN && job.b.column_stride == 1 {
            let whole = n / WIDTH_MAX * WIDTH_MAX;
            multiply_streaming(&job.columns(0, whole));
            return whole;
        }
    }
    0
}

dispatch! {
    /// Multiplies by columns with adjacent terms.
    ///
    /// # Safety
    /// As [`multiply`], for whole vectors of columns.
    fn multiply_transposing, multiply_transposing_with(job: &Job)
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
                (1, 2..) => transposing_tile::<V, 1, 2>(job, column),
                (1, _) => transposing_tile::<V, 1, 1>(job, column),
                (2, 2..) => transposing_tile::<V, 2, 2>(job, column),
                (2, _) => transposing_tile::<V, 2, 1>(job, column),
                (3, _) => transposing_tile::<V, 3, 1>(job, column),
                (_, _) => transposing_tile::<V, ROWS_TRANSPOSED, 1>(job, column),
            };
        }
    }
}

/// Multiplies `R` rows of a by `N` vectors of columns, which are transposed, and returns the number of columns.
///
/// # Safety
/// As [`multiply_transposing_with`]; there must be that many rows, and that many columns from the first one on.
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
                let next_columns = (N * LANES) as isize * job.b.column_stride;
                let is_near = next_columns.unsigned_abs() <= NEXT_COLUMNS_MAX;
                let ahead = if is_near { next_columns } else { TERMS_AHEAD as isize };
                for line in (0..whole).step_by(TERMS_TRANSPOSED) {
                    for n in 0..N {
                        for column in n * LANES..(n + 1) * LANES {
                            let place =
                                job.b.base.wrapping_offset(column as isize * job.b.column_stride + line as isize);
                            prefetch_stream(place.wrapping_offset(ahead));
                        }
                        // A whole cache line of each column: the lines of all columns may map to one set of the cache, which holds only a
                        // few.
                        for start in (line..whole.min(line + TERMS_TRANSPOSED)).step_by(LANES) {
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
                job.write([0, 0], sums);
            },
        );
    }
    N * LANES
}

dispatch_wide! {
    /// Multiplies by adjacent columns: their sums stay in memory while rows of b are read one after the other.
    ///
    /// # Safety
    /// As [`multiply`], for whole vectors of columns.
    fn multiply_streaming, multiply_streaming_with(job: &Job)
}

/// # Safety
/// As [`multiply_streaming`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn multiply_streaming_with<V: Vector>(job: &Job) {
    let (m, n, k) = job.sizes;
    let mut sums = Aligned::<SUMS>::new();
    let width = SUMS / FEW_ROWS * (FEW_ROWS / m.max(1));
    // A few columns of each row may be left to tiles.
    let is_whole = (0..WIDTH_MAX as isize).contains(&(job.b.row_stride - n as isize));
    let is_one_stream = m == 1 && n <= COLUMNS_STREAMED && is_whole;
    let at_once = match m {
        _ if is_one_stream => 1,
        _ if m <= FEW_ROWS / 2 => TERMS / 2,
        _ => TERMS,
    };
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
                        sums: sums.address().add(row * columns),
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
    /// At most [`TERMS`] terms.
    terms: Range<usize>,
    /// The sums over the earlier terms, row by row. They are replaced by the sums that include these terms, unless these are the last.
    sums: *mut f32,
}

/// Adds some terms to the sums of `R` rows, `N` vectors of columns at a time, and returns `R`.
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
        let mut own = if terms.start == 0 { job.begin([*row, column]) } else { [[V::splat(0.0); N]; R] };
        if terms.start > 0 {
            for (r, own) in own.iter_mut().enumerate() {
                for (n, own) in own.iter_mut().enumerate() {
                    *own = V::load(waiting(r, n));
                }
            }
        }
        let mut seen = job.b.from(terms.start, column).base.cast_const();
        // The same columns of the next terms. A single term is part of one stream, which the processor prefetches by itself.
        let ahead = (terms.len() > 1).then_some(terms.len() as isize * job.b.row_stride);
        for factors in factors.iter().take(terms.len()) {
            let mut vectors = [V::splat(0.0); N];
            for (n, vector) in vectors.iter_mut().enumerate() {
                if let Some(ahead) = ahead {
                    prefetch_stream(seen.wrapping_offset(ahead).wrapping_add(n * V::WIDTH));
                }
                *vector = V::load(seen.add(n * V::WIDTH));
            }
            for (own, factor) in own.iter_mut().zip(factors) {
                *own = V::add_multiples(*own, factor, vectors);
            }
            seen = seen.wrapping_offset(job.b.row_stride);
        }
        if terms.end == k {
            return job.write([*row, column], own);
        }
        for (r, own) in own.into_iter().enumerate() {
            for (n, own) in own.into_iter().enumerate() {
                own.store(waiting(r, n));
            }
        }
    }
}
