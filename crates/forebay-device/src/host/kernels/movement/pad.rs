//! Padding: rows of the output are filled from rows of the input.

use forebay_base::kernel::PadMode;

use super::super::View;
use super::super::element::{Word, bits_of, for_type};
use super::super::parallel::{CHUNK, Pointer, for_chunks, require_packed};

/// y = x with `begins` elements before it and the rest after it, in every dimension.
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn run(begins: &[u64], mode: PadMode, x: &View, y: &View) -> Result<(), String> {
    require_packed(&[*x, *y])?;
    let (x_sizes, y_sizes) = (x.sizes(), y.sizes());
    let begins: Vec<usize> = begins.iter().map(|&begin| begin as usize).collect();
    let fits = begins.len() == x_sizes.len()
        && begins.len() == y_sizes.len()
        && (0..begins.len()).all(|d| begins[d].checked_add(x_sizes[d]).is_some_and(|end| end <= y_sizes[d]));
    if !fits {
        return Err(format!("{} with {begins:?} before it does not fit in {}", x.desc, y.desc));
    }
    let constant = match mode {
        PadMode::Constant(value) => bits_of(value as f64, x.desc.data_type()),
        PadMode::Reflect | PadMode::Edge => 0,
    };
    for_type!(x.desc.data_type(), words, T => {
        // SAFETY: the caller's promises; the sizes fit.
        unsafe { pad(&begins, mode, T::from_bits(constant), (Pointer::of(x), &x_sizes), (Pointer::of(y), &y_sizes)) }
    });
    Ok(())
}

/// Returns the index in 0..size from which an index in the padded dimension is filled, or `None` if it gets the constant.
fn source_index(index: usize, begin: usize, size: usize, mode: PadMode) -> Option<usize> {
    let inside = (begin..begin + size).contains(&index);
    match mode {
        _ if inside => Some(index - begin),
        PadMode::Constant(_) => None,
        PadMode::Edge => Some(if index < begin { 0 } else { size - 1 }),
        PadMode::Reflect if size == 1 => Some(0),
        PadMode::Reflect => {
            // Reflection goes back and forth: a wave of period 2 (size - 1), as often as the padding needs.
            let period = 2 * (size - 1);
            let distance = index.abs_diff(begin) % period;
            Some(distance.min(period - distance))
        }
    }
}

/// # Safety
/// As for [`run`]; `T` must be as large as the elements.
unsafe fn pad<T: Word>(
    begins: &[usize],
    mode: PadMode,
    constant: T,
    (x, x_sizes): (Pointer<T>, &[usize]),
    (y, y_sizes): (Pointer<T>, &[usize]),
) {
    let last = begins.len() - 1;
    let (x_row, y_row, begin) = (x_sizes[last], y_sizes[last], begins[last]);
    let rows: usize = y_sizes[..last].iter().product();
    for_chunks(rows, (CHUNK / y_row).max(1), |range| {
        for row in range {
            let mut rest = row;
            let mut x_start = Some(0);
            let mut x_stride = x_row;
            for dimension in (0..last).rev() {
                let index = source_index(rest % y_sizes[dimension], begins[dimension], x_sizes[dimension], mode);
                rest /= y_sizes[dimension];
                x_start = x_start.zip(index).map(|(start, index)| start + index * x_stride);
                x_stride *= x_sizes[dimension];
            }
            // SAFETY: the row lies in y and belongs to this task alone.
            let target = unsafe { y.slice_mut(row * y_row, y_row) };
            let Some(x_start) = x_start else {
                target.fill(constant);
                continue;
            };
            // SAFETY: every index is in its dimension, so the row lies in x.
            let source = unsafe { x.slice(x_start, x_row) };
            let outside = (0..begin).chain(begin + x_row..y_row);
            for index in outside {
                target[index] = source_index(index, begin, x_row, mode).map_or(constant, |index| source[index]);
            }
            target[begin..begin + x_row].copy_from_slice(source);
        }
    });
}
