//! Gathering slices by index along an axis, and its gradient.

use forebay_base::DataType;

use super::super::View;
use super::super::element::{Element, Float, for_type};
use super::super::parallel::{CHUNK, Pointer, for_chunks, require_packed, split_at_axis, wide};

/// The number of elements of a slice of the gradient that one task sums: enough to be worth a task, few enough to distribute an embedding
/// over tasks.
const COLUMNS: usize = 64;

/// Packed indices of either type.
#[derive(Clone, Copy)]
pub(super) enum Indices<'a> {
    Int32(&'a [i32]),
    Int64(&'a [i64]),
}

impl<'a> Indices<'a> {
    /// # Safety
    /// As for [`super::super::run`].
    pub unsafe fn of(view: &View<'a>) -> Result<Indices<'a>, String> {
        // SAFETY: packed and of this type; the caller promises that it is live.
        unsafe {
            match view.desc.data_type() {
                DataType::Int64 => Ok(Indices::Int64(Pointer::<i64>::of(view).slice(0, view.count()))),
                DataType::Int32 => Ok(Indices::Int32(Pointer::<i32>::of(view).slice(0, view.count()))),
                other => Err(format!("indices must be int32 or int64, not {other}")),
            }
        }
    }

    /// Returns the number of indices.
    fn len(self) -> usize {
        match self {
            Indices::Int32(indices) => indices.len(),
            Indices::Int64(indices) => indices.len(),
        }
    }

    /// Returns the position in 0..size that an index names, given the index's number; `None` if there is no such position. Negative
    /// indices count from the end.
    #[inline(always)]
    fn position(self, number: usize, size: usize) -> Option<usize> {
        let index = match self {
            Indices::Int32(indices) => i64::from(indices[number]),
            Indices::Int64(indices) => indices[number],
        };
        let position = if index < 0 { index.wrapping_add(size as i64) } else { index } as u64;
        (position < size as u64).then_some(position as usize)
    }

    /// Returns the numbers of the indices that name positions in 0..size, in order, and these positions.
    #[inline(always)]
    pub fn positions(self, size: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..self.len()).filter_map(
            #[inline(always)]
            move |number| Some((number, self.position(number, size)?)),
        )
    }

    /// Returns the first index out of range, after its position.
    fn first_outside(&self, size: u64) -> Option<(usize, i64)> {
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        let is_outside = |index: i64| index < -size || index >= size;
        match self {
            Indices::Int32(indices) => find(indices, |index| is_outside(index.into())).map(|(at, i)| (at, i.into())),
            Indices::Int64(indices) => find(indices, is_outside),
        }
    }
}

/// Finds the first wanted element. Blocks are first searched without branches, because most have none.
fn find<T: Copy>(elements: &[T], is_wanted: impl Fn(T) -> bool) -> Option<(usize, T)> {
    const BLOCK: usize = 1024;
    let has_one = |block: &[T]| block.iter().fold(false, |found, &element| found | is_wanted(element));
    let number = elements.chunks(BLOCK).position(has_one)?;
    let start = number * BLOCK;
    let found = elements[start..].iter().position(|&element| is_wanted(element))?;
    Some((start + found, elements[start + found]))
}

/// Returns the first index of a launch that is not among `limit` entries, after its position.
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn first_outside(indices: &View, limit: u64) -> Result<Option<(usize, i64)>, String> {
    require_packed(&[*indices])?;
    // SAFETY: the caller's promise, and packed.
    Ok(unsafe { Indices::of(indices)? }.first_outside(limit))
}

fn check_counts(axis: usize, data: &View, indices: &View, y: &View) -> Result<(usize, usize, usize), String> {
    require_packed(&[*data, *indices, *y])?;
    let sizes = data.sizes();
    if axis >= sizes.len() {
        return Err(format!("{} has no axis {axis}", data.desc));
    }
    let (outer, size, inner) = split_at_axis(&sizes, axis);
    if y.count() != outer * indices.count() * inner {
        return Err(format!(
            "{} indexed by {} along axis {axis} does not result in {}",
            data.desc, indices.desc, y.desc
        ));
    }
    Ok((outer, size, inner))
}

/// y\[o, i, ..] = data\[o, indices\[i], ..].
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn forward(axis: usize, data: &View, indices: &View, y: &View) -> Result<(), String> {
    let (outer, size, inner) = check_counts(axis, data, indices, y)?;
    // SAFETY: the caller's promise, and packed.
    let indices = unsafe { Indices::of(indices)? };
    for_type!(data.desc.data_type(), words, T => {
        let (data, y) = (Pointer::<T>::of(data), Pointer::<T>::of(y));
        for_chunks(outer * indices.len(), (CHUNK / inner).max(1), |range| {
            for slice in range {
                let (row, number) = (slice / indices.len(), slice % indices.len());
                // SAFETY: positions are less than the size of the axis, and every slice of y belongs to one task.
                unsafe {
                    let target = y.slice_mut(slice * inner, inner);
                    match indices.position(number, size) {
                        None => target.fill(T::ZERO),
                        Some(position) => target.copy_from_slice(data.slice((row * size + position) * inner, inner)),
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
/// As for [`super::super::run`].
pub(super) unsafe fn gradient(axis: usize, dy: &View, indices: &View, ddata: &View) -> Result<(), String> {
    let (outer, size, inner) = check_counts(axis, ddata, indices, dy)?;
    // SAFETY: the caller's promise, and packed.
    let indices = unsafe { Indices::of(indices)? };
    for_type!(dy.desc.data_type(), floats, T => {
        // SAFETY: the caller's promises, and the sizes fit.
        unsafe { sum_slices::<T>((outer, size, inner), indices, Pointer::of(dy), Pointer::of(ddata)) };
        Ok(())
    })
}

/// # Safety
/// As for [`super::super::run`]: `dy` is \[outer, indices, inner], `ddata` \[outer, size, inner].
unsafe fn sum_slices<T: Float>(
    (outer, size, inner): (usize, usize, usize),
    indices: Indices,
    dy: Pointer<T>,
    ddata: Pointer<T>,
) {
    // A task owns some columns of every slice of one row, so that it processes the indices in order and no one else adds to its sums.
    let column_blocks = inner.div_ceil(COLUMNS);
    for_chunks(outer * column_blocks, 1, |range| {
        for task in range {
            let (row, first) = (task / column_blocks, task % column_blocks * COLUMNS);
            let count = COLUMNS.min(inner - first);
            for position in 0..size {
                // SAFETY: in bounds, and these columns belong to this task alone.
                unsafe { ddata.slice_mut((row * size + position) * inner + first, count) }.fill(T::ZERO);
            }
            for (number, position) in indices.positions(size) {
                // SAFETY: as above; dy is only read.
                let (sums, values) = unsafe {
                    (
                        ddata.slice_mut((row * size + position) * inner + first, count),
                        dy.slice((row * indices.len() + number) * inner + first, count),
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
