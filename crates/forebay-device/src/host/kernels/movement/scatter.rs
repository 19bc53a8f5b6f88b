//! Updates of rows of a tensor by index.

use forebay_base::kernel::ScatterOp;

use super::super::View;
use super::super::element::{Element, Number, for_type};
use super::super::parallel::{Pointer, for_each, require_packed, wide};
use super::gather::Indices;

/// The number of elements of a row in one task.
const COLUMNS: usize = 64;
/// The approximate number of tasks of a launch: each goes through all indices and uses those of its own rows.
const TASKS: usize = 16;
/// The minimum number of rows of a task.
const ROWS_MIN: usize = 1024;

/// y = data, with the updates applied to the rows that the indices name.
///
/// # Safety
/// As for [`super::super::run`]; `y` may be the same memory as `data`.
pub(super) unsafe fn run(op: ScatterOp, data: &View, indices: &View, updates: &View, y: &View) -> Result<(), String> {
    require_packed(&[*data, *indices, *updates, *y])?;
    let size = y.sizes().first().copied().unwrap_or(1);
    let inner = y.count() / size.max(1);
    if data.count() != y.count() || updates.count() != indices.count() * inner {
        let [data, indices, updates, y] = [data, indices, updates, y].map(|view| view.desc);
        return Err(format!("{updates} scattered by {indices} into {data} does not result in {y}"));
    }
    // SAFETY: the caller's promise, and packed.
    let indices = unsafe { Indices::of(indices)? };
    let data_type = y.desc.data_type();
    // SAFETY: the caller's promises, and the sizes fit.
    unsafe {
        match op {
            ScatterOp::Replace => for_type!(data_type, words, T => {
                scatter::<T>((size, inner), indices, [data, updates, y], |_, update| update);
                Ok(())
            }),
            _ if data_type.is_float() => for_type!(data_type, floats, T => {
                combine::<T>(op, (size, inner), indices, [data, updates, y]);
                Ok(())
            }),
            _ => for_type!(data_type, integers, T => {
                combine::<T>(op, (size, inner), indices, [data, updates, y]);
                Ok(())
            }),
        }
    }
}

/// # Safety
/// As for [`scatter`].
unsafe fn combine<T: Number>(op: ScatterOp, sizes: (usize, usize), indices: Indices, operands: [&View; 3]) {
    // SAFETY: the caller's promises.
    unsafe {
        match op {
            ScatterOp::Replace => scatter::<T>(sizes, indices, operands, |_, update| update),
            ScatterOp::Add => scatter::<T>(sizes, indices, operands, T::plus),
            ScatterOp::Multiply => scatter::<T>(sizes, indices, operands, T::times),
            ScatterOp::Minimum => scatter::<T>(sizes, indices, operands, T::minimum),
            ScatterOp::Maximum => scatter::<T>(sizes, indices, operands, T::maximum),
        }
    }
}

/// Each task has some columns of some rows and applies their updates in order, so results do not depend on the number of tasks.
///
/// # Safety
/// As for [`super::super::run`]: data and y are \[size, inner], updates \[indices, inner], all of this type.
unsafe fn scatter<T: Element>(
    (size, inner): (usize, usize),
    indices: Indices,
    [data, updates, y]: [&View; 3],
    combined: impl Fn(T, T) -> T + Sync,
) {
    let (data, updates, y) = (Pointer::<T>::of(data), Pointer::<T>::of(updates), Pointer::<T>::of(y));
    // SAFETY: the addresses are only compared.
    let is_in_place = unsafe { data.at(0) == y.at(0) };
    let column_blocks = inner.div_ceil(COLUMNS).max(1);
    let row_blocks = (TASKS / column_blocks).clamp(1, size.div_ceil(ROWS_MIN).max(1));
    let rows = size.div_ceil(row_blocks);
    for_each(row_blocks * column_blocks, |task| {
        let (block, column) = (task / column_blocks, task % column_blocks * COLUMNS);
        let (first, end) = (block * rows, size.min((block + 1) * rows));
        let count = COLUMNS.min(inner - column);
        if !is_in_place {
            for row in first..end {
                let start = row * inner + column;
                // SAFETY: in bounds, and these elements of y belong to this task alone; nothing writes the data.
                unsafe { y.slice_mut(start, count).copy_from_slice(data.slice(start, count)) };
            }
        }
        for (number, position) in indices.positions(size) {
            if position < first || position >= end {
                continue;
            }
            // SAFETY: as above; updates are only read.
            let (targets, values) = unsafe {
                let targets = y.slice_mut(position * inner + column, count);
                (targets, updates.slice(number * inner + column, count))
            };
            wide(
                #[inline(always)]
                || targets.iter_mut().zip(values).for_each(|(y, &update)| *y = combined(*y, update)),
            );
        }
    });
}
