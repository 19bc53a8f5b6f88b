//! Copies between strided layouts, and slices, which are copies from a strided part.

use super::super::View;
use super::super::element::{Element, for_type};
use super::super::parallel::{CHUNK, Pointer, Walk, for_chunks, require_packed};

/// The side of the square tiles of transposing copies: two tiles of 8-byte elements fit into the first-level cache.
const TILE: usize = 32;

/// y = x, both with strides.
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn copy(x: &View, y: &View) -> Result<(), String> {
    if x.desc.sizes() != y.desc.sizes() {
        return Err(format!("sizes {:?} and {:?} differ", x.desc.sizes(), y.desc.sizes()));
    }
    for_type!(x.desc.data_type(), words, T => {
        // SAFETY: both layouts lie in their operands by the descriptors' rules; words are as large as the elements.
        unsafe {
            copy_strided(&x.sizes(), Pointer::<T>::of(x), &signed(&x.strides()), Pointer::of(y), &signed(&y.strides()))
        }
    });
    Ok(())
}

fn signed(strides: &[usize]) -> Vec<isize> {
    strides.iter().map(|&stride| stride as isize).collect()
}

/// Returns the offset of element 0 of a slice in the sliced tensor, and the strides from there.
///
/// # Errors
/// Returns an error if the slice exceeds the tensor.
fn slice_layout(starts: &[u64], steps: &[i64], whole: &View, part: &View) -> Result<(isize, Vec<isize>), String> {
    let (whole_sizes, part_sizes) = (whole.desc.sizes(), part.desc.sizes());
    let counts = [starts.len(), steps.len(), part_sizes.len()];
    if counts.iter().any(|&count| count != whole_sizes.len()) {
        return Err(format!(
            "starts {starts:?}, steps {steps:?} and sizes {part_sizes:?} do not match {whole_sizes:?}"
        ));
    }
    let mut offset = 0;
    let mut strides = Vec::with_capacity(starts.len());
    for (dimension, stride) in whole.strides().into_iter().enumerate() {
        let (start, step) = (starts[dimension] as i128, steps[dimension] as i128);
        let last = start + (part_sizes[dimension] as i128 - 1) * step;
        let inside = 0..whole_sizes[dimension] as i128;
        if !inside.contains(&start) || !inside.contains(&last) {
            return Err(format!("a slice from {start} to {last} exceeds dimension {dimension} of {}", whole.desc));
        }
        offset += start as isize * stride as isize;
        // With a single index, the step may be anything, because it is never taken.
        strides.push((step as isize).wrapping_mul(stride as isize));
    }
    Ok((offset, strides))
}

/// y\[i] = x\[starts + i steps].
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn slice(starts: &[u64], steps: &[i64], x: &View, y: &View) -> Result<(), String> {
    let (offset, strides) = slice_layout(starts, steps, x, y)?;
    for_type!(x.desc.data_type(), words, T => {
        // SAFETY: the slice lies inside x, as `slice_layout` checked.
        unsafe {
            let x = Pointer::new(Pointer::<T>::of(x).at(offset));
            copy_strided(&y.sizes(), x, &strides, Pointer::of(y), &signed(&y.strides()))
        }
    });
    Ok(())
}

/// dx\[starts + i steps] = dy\[i], 0 elsewhere.
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn slice_gradient(starts: &[u64], steps: &[i64], dy: &View, dx: &View) -> Result<(), String> {
    require_packed(&[*dx])?;
    let (offset, strides) = slice_layout(starts, steps, dx, dy)?;
    for_type!(dx.desc.data_type(), words, T => {
        let dx_pointer = Pointer::<T>::of(dx);
        // SAFETY: dx is packed, and the chunks are disjoint.
        for_chunks(dx.count(), CHUNK, |range| unsafe { dx_pointer.slice_mut(range.start, range.len()) }.fill(T::ZERO));
        // SAFETY: the slice lies inside dx, as `slice_layout` checked.
        unsafe {
            let dx = Pointer::new(dx_pointer.at(offset));
            copy_strided(&dy.sizes(), Pointer::of(dy), &signed(&dy.strides()), dx, &strides)
        }
    });
    Ok(())
}

/// Copies elements from one layout to another.
///
/// # Safety
/// All elements of both layouts must be accessible, no one else may touch those of y, and no two of those may coincide.
pub(super) unsafe fn copy_strided<T: Element>(
    sizes: &[usize],
    x: Pointer<T>,
    x_strides: &[isize],
    y: Pointer<T>,
    y_strides: &[isize],
) {
    // The order of dimensions is free: with that of y, runs go along adjacent elements of y.
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&dimension| std::cmp::Reverse(y_strides[dimension].unsigned_abs()));
    let in_order = |values: &[isize]| order.iter().map(|&dimension| values[dimension]).collect::<Vec<_>>();
    let ordered_sizes: Vec<usize> = order.iter().map(|&dimension| sizes[dimension]).collect();
    let walk = Walk::new(&ordered_sizes, &[in_order(x_strides), in_order(y_strides)]);
    let [x_step, y_step] = walk.inner_strides();
    let last = walk.sizes().len() - 1;
    let transposed = (0..last).find(|&dimension| walk.strides(0)[dimension] == 1);
    match transposed {
        Some(rows) if y_step == 1 && x_step > 1 && walk.sizes()[rows] > 1 => {
            // SAFETY: the caller's promises.
            unsafe { copy_transposed(&walk, rows, x, y) }
        }
        // SAFETY: the caller's promises: runs stay inside the layouts, and no two runs share an element of y.
        _ => walk.for_each_run(|[x_offset, y_offset], length| unsafe {
            let (source, target) = (x.at(x_offset), y.at(y_offset));
            if x_step == 1 && y_step == 1 {
                std::ptr::copy_nonoverlapping(source, target, length);
            } else {
                for i in 0..length as isize {
                    *target.offset(i * y_step) = *source.offset(i * x_step);
                }
            }
        }),
    }
}

/// Copies tile by tile if elements are adjacent along `rows` in x and along the last dimension in y, so that both sides use whole cache
/// lines.
///
/// # Safety
/// As for [`copy_strided`].
unsafe fn copy_transposed<T: Element>(walk: &Walk<2>, rows: usize, x: Pointer<T>, y: Pointer<T>) {
    let columns = walk.sizes().len() - 1;
    let (row_count, column_count) = (walk.sizes()[rows], walk.sizes()[columns]);
    let (x_column_stride, y_row_stride) = (walk.strides(0)[columns], walk.strides(1)[rows]);
    let others = || (0..walk.sizes().len()).filter(move |&dimension| dimension != rows && dimension != columns);
    let sizes: Vec<usize> = others().map(|dimension| walk.sizes()[dimension]).collect();
    let rest = Walk::new(&sizes, &[0, 1].map(|operand| others().map(|d| walk.strides(operand)[d]).collect()));
    let (row_tiles, column_tiles) = (row_count.div_ceil(TILE), column_count.div_ceil(TILE));
    let tiles = rest.count() * row_tiles * column_tiles;
    for_chunks(tiles, CHUNK / (TILE * TILE), |range| {
        // Lines of x that are a power of two apart map to the same few places in the cache, so each is read once, as a whole.
        let mut buffer = [[T::ZERO; TILE]; TILE];
        for tile in range {
            let [x_base, y_base] = rest.offsets(tile / (row_tiles * column_tiles));
            let (first_row, first_column) = (tile / column_tiles % row_tiles * TILE, tile % column_tiles * TILE);
            let (tile_rows, tile_columns) = (TILE.min(row_count - first_row), TILE.min(column_count - first_column));
            for column in 0..tile_columns {
                let place = x_base + first_row as isize + (first_column + column) as isize * x_column_stride;
                for (row, line) in buffer[..tile_rows].iter_mut().enumerate() {
                    // SAFETY: the element lies in x.
                    line[column] = unsafe { *x.at(place + row as isize) };
                }
            }
            for (row, line) in buffer[..tile_rows].iter().enumerate() {
                let place = y_base + (first_row + row) as isize * y_row_stride + first_column as isize;
                // SAFETY: the line lies in y, and tiles are disjoint.
                unsafe { std::ptr::copy_nonoverlapping(line.as_ptr(), y.at(place), tile_columns) };
            }
        }
    });
}
