//! Matrix products with broadcast batches, computed tile by tile of the result. Each tile is a sum over blocks of terms. 16-bit tiles are
//! rounded once, from sums in float32.

use forebay_base::Kernel;
use forebay_base::kernel::{Activation, PRODUCT_COLUMNS, PRODUCT_ROWS, PRODUCT_TERMS, ProductPart, UnaryOp};
use forebay_base::sum_tree::Subtrees;

use super::applied::{apply_to, function};
use super::buffer::{BLOCK, Buffer, Source};
use super::cache::{LINE, prefetch_stream};
use super::parallel::{Pointer, broadcast_strides, for_chunks, for_each, require_packed, threads};
use super::product::{FEW_ROWS, Matrix, PANEL, StoredMatrix, add, buffer_count, multiply, tree};
use super::simd::{WIDTH_MAX, limited};
use super::sixteen_bit::check_types;
use super::stored::Stored;
use super::thread_buffer::{ELEMENTS_MAX, with_buffer};
use super::{View, unsupported};
use crate::device::DeviceError;

/// Rows and columns of one task's tile; there are fewer rows if more sums wait than a thread has room for.
const TILE_ROWS: usize = 2 * PRODUCT_ROWS as usize;
const TILE_COLUMNS: usize = PRODUCT_COLUMNS as usize;
/// Columns of a tile of few rows or terms, whose time goes into reading b and writing c: longer pieces of rows are faster.
const TILE_COLUMNS_FEW: usize = 4 * TILE_COLUMNS;
/// With more terms, and more rows than [`FEW_ROWS`], tiles are as narrow as [`TILE_COLUMNS`].
const FEW_TERMS: usize = PRODUCT_TERMS as usize / 4;

/// With several threads, this many tasks per thread keep all of them busy to the end.
const TASKS_PER_THREAD: usize = 4;

/// Whether all threads have the same number of tasks, or enough of them that one more makes little difference.
fn is_even(tasks: usize, threads: usize) -> bool {
    tasks.is_multiple_of(threads) || tasks >= threads * TASKS_PER_THREAD
}

/// The number of columns of a task's tile if there are already `others` tasks side by side: whole panels, and fewer of them if there would
/// be few tasks. No bit depends on it.
fn tile_columns(others: usize, (rows, n, k): (usize, usize, usize), threads: usize) -> usize {
    let columns_max = if rows <= FEW_ROWS || k <= FEW_TERMS { TILE_COLUMNS_FEW } else { TILE_COLUMNS } / PANEL * PANEL;
    let tasks_min = if threads > 1 { threads * TASKS_PER_THREAD } else { 1 };
    let tiles = tasks_min.div_ceil(others.max(1)).max(n.div_ceil(columns_max));
    n.div_ceil(tiles).next_multiple_of(PANEL)
}

/// The most elements of separate memory for the sums of [`Parts`].
const PART_SUMS_MAX: usize = 1 << 16;
/// The fewest and the most columns of a task that computes a part.
const PART_COLUMNS_MIN: usize = TILE_COLUMNS / 2;
const PART_COLUMNS_MAX: usize = 4 * TILE_COLUMNS_FEW;

/// A product of few rows in parts: subtrees of its blocks of terms. Most of its time is spent reading b. A part reads adjacent rows of b,
/// whole or in long pieces, which is faster than reading the short pieces of all rows that a tile's columns consist of.
struct Parts {
    subtrees: Subtrees,
    /// The columns of a task.
    columns: usize,
}

impl Parts {
    /// Returns the parts of a product of few rows by adjacent columns: one part for a single thread; `None` if there are too few columns, or
    /// if several threads would have only one part. No bit depends on the number of threads.
    fn of((m, n, k): (usize, usize, usize), threads: usize) -> Option<Parts> {
        if m > FEW_ROWS || n < PART_COLUMNS_MIN {
            return None;
        }
        let tasks_min = if threads > 1 { threads * TASKS_PER_THREAD } else { 1 };
        // The sums of the first part need no memory: they are the result.
        let parts_max = tasks_min.min(1 + PART_SUMS_MAX / (m * n).max(1));
        let subtrees = tree(k).subtrees(parts_max as u64);
        let count = subtrees.count() as usize;
        // The fewest pieces of rows that give all threads the same amount of work, or enough tasks, if they are not too short.
        let (pieces_min, pieces_max) = (n.div_ceil(PART_COLUMNS_MAX), n / PART_COLUMNS_MIN);
        let pieces = (pieces_min..pieces_max).find(|pieces| is_even(count * pieces, threads)).unwrap_or(pieces_max);
        let columns = n.div_ceil(pieces).next_multiple_of(WIDTH_MAX);
        let is_useful = count > 1 || (count == 1 && threads == 1);
        is_useful.then_some(Parts { subtrees, columns })
    }
}

/// The numbers of one product.
struct Product {
    k: usize,
    alpha: f32,
    beta: f32,
    limits: [f32; 2],
    function: Option<UnaryOp>,
}

impl Product {
    fn limit(&self, line: &mut [f32]) {
        if self.limits != Activation::None.limits() {
            let [low, high] = self.limits;
            line.iter_mut().for_each(|value| *value = limited(*value, low, high));
        }
    }

    /// # Safety
    /// As [`apply_to`], for rows with this number and pitch.
    unsafe fn apply_function(&self, first: *mut f32, (rows, pitch): (usize, usize), columns: usize) {
        if let Some(function) = self.function {
            // SAFETY: the caller's promises.
            unsafe { apply_to(function, first, [(1, 0), (1, 0), (rows, pitch)], columns) };
        }
    }
}

/// Runs one kernel of this family.
///
/// # Safety
/// As [`super::run`].
pub(super) unsafe fn run(kernel: &Kernel, reads: &[View], writes: &[View]) -> Result<(), DeviceError> {
    let &Kernel::MatMul { transpose_a, transpose_b, alpha, beta, activation, part } = kernel else {
        return Err(unsupported(kernel, "not a matrix product".to_string()));
    };
    let refuse = |reason| unsupported(kernel, reason);
    let (a, b, y) = (&reads[0], &reads[1], &writes[0]);
    check_types(kernel, reads.iter().map(|read| read.desc), y.desc).map_err(refuse)?;
    let matrix = |view: &View, transpose: bool| {
        let sizes = view.sizes();
        let (rows, columns) = match sizes.len() {
            1 => (1, sizes[0]),
            rank => (sizes[rank - 2], sizes[rank - 1]),
        };
        if transpose { (columns, rows) } else { (rows, columns) }
    };
    let ((m, k), (inner, n)) = (matrix(a, transpose_a), matrix(b, transpose_b));
    let (y_rows, y_columns) = matrix(y, false);
    let first = match part {
        ProductPart::Columns { first } => first as usize,
        _ => 0,
    };
    let columns_fit = if let ProductPart::Columns { .. } = part { first + n <= y_columns } else { n == y_columns };
    if k != inner || y_rows != m || !columns_fit {
        return Err(refuse(format!("the sizes of {}, {} and {} do not match", a.desc, b.desc, y.desc)));
    }
    let batches = Batches::of(a, b, y).map_err(refuse)?;
    // The part of y that is computed: its columns from the first one on.
    let mut sizes = y.sizes();
    if let Some(columns) = sizes.last_mut() {
        *columns = n;
    }
    let c = reads.get(2 + usize::from(part.reads_result()));
    let is_in_place = || reads.get(2).is_some_and(|read| read.pointer == y.pointer);
    if matches!(part, ProductPart::Columns { first: 1.. }) && !is_in_place() {
        return Err(refuse("columns must be added to a matrix in place".to_string()));
    }
    let function = function(activation, y.desc).map_err(refuse)?;
    let product = Product { k, alpha, beta, limits: activation.limits(), function };
    let c = match c {
        Some(c) => Some((Stored::of(c), broadcast_strides(c, &sizes).map_err(refuse)?)),
        None => None,
    };
    let pitch = |view| row_pitch(view).map_err(refuse);
    let (a_pitch, b_pitch, y_pitch) = (pitch(a)?, pitch(b)?, pitch(y)?);
    let (a, b, out) = (Stored::of(a), Stored::of(b), Stored::<f32>::of(y));
    let factors = |batch: usize| {
        let [a_batch, b_batch] = batches.of_factors(batch);
        // SAFETY: batch offsets lie inside the operands.
        let (a, b) = unsafe { (a.at((a_batch * m * k) as isize), b.at((b_batch * k * n) as isize)) };
        let (a, b) = (StoredMatrix::rows(a, a_pitch), StoredMatrix::rows(b, b_pitch));
        (if transpose_a { a.transposed() } else { a }, if transpose_b { b.transposed() } else { b })
    };
    if batches.count() == 1
        && alpha == 1.0
        && let Some(parts) = Parts::of((m, n, k), threads())
        && let (Some(y), (a, b)) = (out.own(), factors(0))
        && b.column_stride == 1
        && a.elements.is_own()
        && b.elements.is_own()
    {
        // SAFETY: the matrices are the operands; the first column lies inside the result.
        unsafe {
            let summand = c.as_ref().map(|(base, strides)| summand(*base, strides, &sizes, 0));
            product_in_parts(&product, &parts, (m, n), (a, b), Matrix::rows(y.add(first), y_pitch), summand);
        }
        return Ok(());
    }
    let tile_rows = even_rows((m, n), tile_rows(k, factors(0), out), batches.count(), threads());
    let row_tiles = m.div_ceil(tile_rows);
    let tile_columns = tile_columns(batches.count() * row_tiles, (tile_rows.min(m), n, k), threads());
    let column_tiles = n.div_ceil(tile_columns);
    for_each(batches.count() * row_tiles * column_tiles, |task| {
        let (batch, tile) = (task / (row_tiles * column_tiles), task % (row_tiles * column_tiles));
        let (row, column) = (tile / column_tiles * tile_rows, tile % column_tiles * tile_columns);
        let tile = Tile { row, column, rows: tile_rows.min(m - row), columns: tile_columns.min(n - column) };
        // SAFETY: batch offsets lie inside the operands; every task writes a different tile.
        unsafe {
            let y = out.at((batch * m * y_pitch + first) as isize);
            let summand = c.as_ref().map(|(base, strides)| summand(*base, strides, &sizes, batch));
            tile_product(&product, &tile, factors(batch), (y, y_pitch), summand);
        }
    });
    Ok(())
}

/// How many rows ahead the result is prefetched while the summand is written there.
const ROWS_AHEAD: isize = 8;

/// The fewest rows of a tile: with fewer, packing b for each tile takes a notable part of the time.
const EVEN_ROWS_MIN: usize = 16;

/// The number of rows of a tile, at most `tile_rows`. If even the narrowest tiles are few, rows are divided as well, until all threads have the
/// same number of tiles or several of them. No bit depends on it.
fn even_rows((m, n): (usize, usize), tile_rows: usize, batches: usize, threads: usize) -> usize {
    let tiles_of_rows = batches * n.div_ceil(PANEL);
    let (least, most) = (m.div_ceil(tile_rows), m / EVEN_ROWS_MIN);
    let row_tiles = (least..=most).find(|row_tiles| is_even(row_tiles * tiles_of_rows, threads)).unwrap_or(least);
    m.div_ceil(row_tiles.max(1)).clamp(1, tile_rows)
}

/// The number of rows of a tile: as many as the calling thread's buffer has room for.
fn tile_rows(k: usize, factors: (StoredMatrix, StoredMatrix), y: Stored<f32>) -> usize {
    let count = |rows: usize| buffer_count((rows, TILE_COLUMNS, k), factors) + y.room(rows * TILE_COLUMNS);
    let mut halved = (0..TILE_ROWS.ilog2()).map(|halvings| TILE_ROWS >> halvings);
    halved.find(|&rows| count(rows) <= ELEMENTS_MAX).unwrap_or(1)
}

/// The number of elements from row to row. Rows of a single matrix may lie apart; batches are packed.
fn row_pitch(view: &View) -> Result<usize, String> {
    let (sizes, strides) = (view.sizes(), view.desc.effective_strides());
    let rank = sizes.len();
    let is_single = sizes[..rank.saturating_sub(2)].iter().all(|&size| size == 1);
    if rank >= 2 && is_single && strides[rank - 1] == 1 && strides[rank - 2] as usize >= sizes[rank - 1] {
        return Ok(strides[rank - 2] as usize);
    }
    require_packed(&[*view])?;
    Ok(sizes.last().copied().unwrap_or(1))
}

/// Fills a row of a tile with a row of the summand, times a factor.
///
/// # Safety
/// The first row of the summand must have as many elements; as many must be writable at `target` and belong to no one else.
unsafe fn fill_row(summand: StoredMatrix, factor: f32, target: *mut f32, columns: usize) {
    let mut buffer = Buffer::new();
    for start in (0..columns).step_by(BLOCK) {
        let count = BLOCK.min(columns - start);
        // SAFETY: the caller's promises; a summand in the memory of the result is copied first.
        let (line, values) = unsafe {
            let target = target.add(start);
            let elements = (summand.elements, summand.column_stride);
            let values = elements.load(start, count, &mut buffer, target.cast_const().cast());
            (std::slice::from_raw_parts_mut(target, count), values)
        };
        line.iter_mut().zip(values).for_each(|(sum, value)| *sum = factor * value);
    }
}

/// The summand of a batch; its strides may be 0.
///
/// # Safety
/// The batch must exist.
unsafe fn summand(base: Stored<f32>, strides: &[isize], sizes: &[usize], batch: usize) -> StoredMatrix {
    let outer = sizes.len().saturating_sub(2);
    let (mut offset, mut left) = (0, batch);
    for dimension in (0..outer).rev() {
        offset += (left % sizes[dimension]) as isize * strides[dimension];
        left /= sizes[dimension];
    }
    let row_stride = if sizes.len() > 1 { strides[outer] } else { 0 };
    // SAFETY: strides broadcast the summand over the batch.
    StoredMatrix { elements: unsafe { base.at(offset) }, row_stride, column_stride: strides[sizes.len() - 1] }
}

/// The batches of y, and those of a and b that belong to them, broadcast as in NumPy.
struct Batches {
    sizes: Vec<usize>,
    /// Batches of a and of b from one index of a dimension to the next.
    strides: [Vec<usize>; 2],
}

impl Batches {
    /// # Errors
    /// Returns an error if batches of a or b do not broadcast to those of y.
    fn of(a: &View, b: &View, y: &View) -> Result<Batches, String> {
        let outer = |view: &View| {
            let sizes = view.sizes();
            sizes[..sizes.len().saturating_sub(2)].to_vec()
        };
        let sizes = outer(y);
        let pick = |own: Vec<usize>| -> Result<Vec<usize>, String> {
            let missing =
                sizes.len().checked_sub(own.len()).ok_or("an operand has more batch dimensions than the result")?;
            let mut strides = vec![0; sizes.len()];
            let mut stride = 1;
            for dimension in (0..own.len()).rev() {
                match own[dimension] {
                    size if size == sizes[missing + dimension] => strides[missing + dimension] = stride,
                    1 => {}
                    size => {
                        return Err(format!("batch size {size} cannot be broadcast to {}", sizes[missing + dimension]));
                    }
                }
                stride *= own[dimension];
            }
            Ok(strides)
        };
        let strides = [pick(outer(a))?, pick(outer(b))?];
        Ok(Batches { sizes, strides })
    }

    fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Returns the batches of a and of b that belong to a batch of y.
    fn of_factors(&self, batch: usize) -> [usize; 2] {
        let [mut of_a, mut of_b] = [0; 2];
        let mut left = batch;
        for ((size, a_stride), b_stride) in self.sizes.iter().zip(&self.strides[0]).zip(&self.strides[1]).rev() {
            let index = left % size;
            of_a += index * a_stride;
            of_b += index * b_stride;
            left /= size;
        }
        [of_a, of_b]
    }
}

/// A part of a product's result.
struct Tile {
    row: usize,
    column: usize,
    rows: usize,
    columns: usize,
}

/// Computes one tile of one batch. The summand is read before the tile is written, so it may be the tile itself.
///
/// # Safety
/// The matrices must be those of the batch, `y` with its row pitch; the tile must belong to no one else.
unsafe fn tile_product(
    product: &Product,
    tile: &Tile,
    (a, b): (StoredMatrix, StoredMatrix),
    (y, y_pitch): (Stored<f32>, usize),
    summand: Option<StoredMatrix>,
) {
    let &Tile { row, column, rows, columns } = tile;
    let sizes = (rows, columns, product.k);
    // SAFETY: rows and columns lie inside the matrices by the caller's promise.
    let (a, b, y) = unsafe { (a.from(row, 0), b.from(0, column), y.at((row * y_pitch + column) as isize)) };
    let buffer_count = buffer_count(sizes, (a, b));
    with_buffer(buffer_count + y.room(rows * columns), |buffer| {
        let (buffer, rounded) = buffer.split_at_mut(buffer_count);
        let sums = match y.own() {
            Some(y) => Matrix::rows(y, y_pitch),
            None => Matrix::rows(rounded.as_mut_ptr(), columns),
        };
        // SAFETY: the tile and the summand lie in the operands by the caller's promise; rows of sums belong to no one else.
        unsafe {
            if let Some(summand) = summand {
                for i in 0..rows {
                    let later = sums.base.wrapping_offset((i as isize + ROWS_AHEAD) * sums.row_stride);
                    (0..columns).step_by(LINE).for_each(|at| prefetch_stream(later.wrapping_add(at)));
                    fill_row(summand.from(row + i, column), product.beta, sums.from(i, 0).base, columns);
                }
            }
            multiply(sizes, (a, b), sums, (product.alpha, summand.is_some()), buffer);
            for i in 0..rows {
                let line = std::slice::from_raw_parts_mut(sums.from(i, 0).base, columns);
                product.limit(line);
                if !y.is_own() {
                    y.store(i * y_pitch, line);
                }
            }
            product.apply_function(sums.from(0, 0).base, (rows, y_pitch), columns);
        }
    });
}

/// Computes a product in parts: the first one, with the summand, in the result, and the others in separate memory. Then it adds them.
///
/// # Safety
/// The matrices must exist and be float32; the result must belong to no one else.
unsafe fn product_in_parts(
    product: &Product,
    parts: &Parts,
    (m, n): (usize, usize),
    (a, b): (StoredMatrix, StoredMatrix),
    y: Matrix,
    summand: Option<StoredMatrix>,
) {
    let (subtrees, above) = (parts.subtrees, parts.subtrees.above());
    let count = above.leaves() as usize;
    let mut sums = vec![0.0f32; (count - 1) * m * n];
    let (sums, result) = (Pointer::new(sums.as_mut_ptr()), Pointer::new(y.base));
    let row_stride = y.row_stride;
    let place = |part: usize| match part {
        // SAFETY: the first element exists.
        0 => Matrix { base: unsafe { result.at(0) }, row_stride, column_stride: 1 },
        // SAFETY: there is memory for all but the first part.
        _ => Matrix::rows(unsafe { sums.at(((part - 1) * m * n) as isize) }, n),
    };
    let block = PRODUCT_TERMS as usize;
    let pieces = n.div_ceil(parts.columns);
    for_each(count * pieces, |task| {
        let (part, column) = (task / pieces, task % pieces * parts.columns);
        let columns = parts.columns.min(n - column);
        let (leaf, own) = subtrees.get(part as u64);
        let start = leaf as usize * block;
        let terms = (own.leaves() as usize * block).min(product.k - start);
        // SAFETY: terms and columns lie inside the matrices, and every task writes different sums.
        unsafe {
            let (a, b, sum) = (a.from(0, start), b.from(start, column), place(part).from(0, column));
            // Where tiles add a block to an earlier sum, a block's sum of -0 must stay -0, as it does if it is added to -0.
            let adds_to_earlier = part > 0 && own.leaves() == 1 && above.merges_after(part as u64) > 0;
            for row in 0..m {
                let line = sum.from(row, 0).base;
                match summand {
                    Some(summand) if part == 0 => fill_row(summand.from(row, column), product.beta, line, columns),
                    _ if adds_to_earlier => std::slice::from_raw_parts_mut(line, columns).fill(-0.0),
                    _ => {}
                }
            }
            let accumulates = adds_to_earlier || (part == 0 && summand.is_some());
            let sizes = (m, columns, terms);
            with_buffer(buffer_count(sizes, (a, b)), |buffer| {
                multiply(sizes, (a, b), sum, (product.alpha, accumulates), buffer);
            });
        }
    });
    for_chunks(n, TILE_COLUMNS_FEW, |range| {
        above.sum(0..count, |part, later| {
            // SAFETY: both are different m x n matrices, and every task adds other columns.
            unsafe {
                let [sum, later] = [part, later].map(|part| place(part).from(0, range.start));
                add(m, range.len(), sum, later);
            }
            part
        });
        for row in 0..m {
            // SAFETY: every task writes other columns of the result.
            let line = unsafe { std::slice::from_raw_parts_mut(place(0).from(row, range.start).base, range.len()) };
            product.limit(line);
        }
        // SAFETY: as above.
        unsafe { product.apply_function(place(0).from(0, range.start).base, (m, row_stride as usize), range.len()) };
    });
}

#[cfg(test)]
mod tests;
