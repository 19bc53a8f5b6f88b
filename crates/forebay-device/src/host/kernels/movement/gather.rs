//! Slices by index along an axis, and their gradient.

use forebay_base::DataType;

use super::super::element::{for_type, Element, Float};
use super::super::parallel::{for_chunks, require_packed, split_at_axis, wide, Pointer, CHUNK};
use super::super::View;

/// Elements of a gradient's slice that one task sums: enough to be worth a task, few enough to share out an embedding.
const COLUMNS: usize = 64;

/// Indices as positions in 0..size: negative ones count from the end, those out of range are none.
///
/// # Safety
/// As [`super::super::run`].
unsafe fn positions(indices: &View, size: usize) -> Result<Vec<Option<usize>>, String> {
    let position = |index: i64| {
        let index = if index < 0 { index.checked_add(size as i64)? } else { index };
        usize::try_from(index).ok().filter(|&index| index < size)
    };
    // SAFETY: packed and of this type; the caller promises that it is live.
    unsafe {
        match indices.desc.data_type() {
            DataType::Int64 => {
                Ok(Pointer::<i64>::of(indices).slice(0, indices.count()).iter().map(|&index| position(index)).collect())
            }
            DataType::Int32 => Ok(Pointer::<i32>::of(indices)
                .slice(0, indices.count())
                .iter()
                .map(|&index| position(index as i64))
                .collect()),
            other => Err(format!("indices must be int32 or int64, not {other}")),
        }
    }
}

fn check_counts(axis: usize, data: &View, indices: &View, y: &View) -> Result<(usize, usize, usize), String> {
    require_packed(&[*data, *indices, *y])?;
    let sizes = data.sizes();
    if axis >= sizes.len() {
        return Err(format!("{} has no axis {axis}", data.desc));
    }
    let (outer, size, inner) = split_at_axis(&sizes, axis);
    if y.count() != outer * indices.count() * inner {
        return Err(format!("{} by {} along axis {axis} does not give {}", data.desc, indices.desc, y.desc));
    }
    Ok((outer, size, inner))
}

/// y\[o, i, ..] = data\[o, indices\[i], ..].
///
/// # Safety
/// As [`super::super::run`].
pub(super) unsafe fn forward(axis: usize, data: &View, indices: &View, y: &View) -> Result<(), String> {
    let (outer, size, inner) = check_counts(axis, data, indices, y)?;
    // SAFETY: the caller's promise, and packed.
    let positions = unsafe { positions(indices, size)? };
    for_type!(data.desc.data_type(), words, T => {
        let (data, y) = (Pointer::<T>::of(data), Pointer::<T>::of(y));
        for_chunks(outer * positions.len(), (CHUNK / inner).max(1), |range| {
            for slice in range {
                let (row, place) = (slice / positions.len(), slice % positions.len());
                // SAFETY: positions are below the axis' size, and every slice of y is one task's.
                unsafe {
                    let target = y.slice_mut(slice * inner, inner);
                    match positions[place] {
                        Some(position) => target.copy_from_slice(data.slice((row * size + position) * inner, inner)),
                        None => target.fill(T::ZERO),
                    }
                }
            }
        });
    });
    Ok(())
}

/// ddata\[o, p, ..] = the sum of dy\[o, i, ..] over all i with indices\[i] = p, in order of i.
///
/// # Safety
/// As [`super::super::run`].
pub(super) unsafe fn gradient(axis: usize, dy: &View, indices: &View, ddata: &View) -> Result<(), String> {
    let (outer, size, inner) = check_counts(axis, ddata, indices, dy)?;
    // SAFETY: the caller's promise, and packed.
    let positions = unsafe { positions(indices, size)? };
    for_type!(dy.desc.data_type(), floats, T => {
        // SAFETY: the caller's promises, and the sizes fit.
        unsafe { sum_slices::<T>((outer, size, inner), &positions, Pointer::of(dy), Pointer::of(ddata)) };
        Ok(())
    })
}

/// # Safety
/// As [`super::super::run`]: `dy` is \[outer, positions, inner], `ddata` \[outer, size, inner].
unsafe fn sum_slices<T: Float>(
    (outer, size, inner): (usize, usize, usize),
    positions: &[Option<usize>],
    dy: Pointer<T>,
    ddata: Pointer<T>,
) {
    // A task owns some columns of every slice of one row, so that it meets the indices in order and nobody else adds to
    // its sums.
    let column_blocks = inner.div_ceil(COLUMNS);
    for_chunks(outer * column_blocks, 1, |range| {
        for task in range {
            let (row, first) = (task / column_blocks, task % column_blocks * COLUMNS);
            let count = COLUMNS.min(inner - first);
            for position in 0..size {
                // SAFETY: in bounds, and these columns are this task's alone.
                unsafe { ddata.slice_mut((row * size + position) * inner + first, count) }.fill(T::ZERO);
            }
            for (place, position) in positions.iter().enumerate() {
                let Some(position) = position else {
                    continue;
                };
                // SAFETY: as above; dy is only read.
                let (sums, values) = unsafe {
                    (
                        ddata.slice_mut((row * size + position) * inner + first, count),
                        dy.slice((row * positions.len() + place) * inner + first, count),
                    )
                };
                wide(
                    #[inline(always)]
                    || sums.iter_mut().zip(values).for_each(|(sum, &value)| *sum += value),
                );
            }
        }
    });
}
