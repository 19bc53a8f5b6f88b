//! Conversion of indices along several axes to indices along one, shared by gathers and scatters of elements.
//!
//! An index is looked up in a table with one offset per valid index. An index that is out of range is therefore rejected with its own value
//! and the size of its own axis, as in every gather, and negative indices count from the end.

use forebay_base::kernel::BinaryOp;
use forebay_base::{DataType, Kernel, Tensor};

use super::decomposition::{Composer, Part};
use super::shapes::{packed_strides, product, require_few};
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::NodeView;

/// Maximum number of entries of a table of offsets.
const TABLE_MAX: u64 = 1 << 24;

/// Checks that an operand holds indices.
pub(super) fn require_indices(view: &NodeView, indices: &Part) -> Result<(), ModelError> {
    match indices.ty.data_type {
        DataType::Int32 | DataType::Int64 => Ok(()),
        other => Err(view.error(format!("indices must be int32 or int64, not {other}"))),
    }
}

/// 0, `step`, 2 `step`, .. as a constant int64\[count].
pub(super) fn steps(c: &mut Composer, count: u64, step: u64) -> Result<Part, ModelError> {
    if count > TABLE_MAX || count.saturating_sub(1).checked_mul(step).is_none_or(|last| last > i64::MAX as u64) {
        let reason = format!("{count} indices in steps of {step} are too many; at most {TABLE_MAX} are possible");
        return Err(c.view.error(reason));
    }
    let values: Vec<i64> = (0..count).map(|i| (i * step) as i64).collect();
    Ok(c.constant(Tensor::from_i64(&[count], &values)))
}

/// A constant integer of a type, as a scalar to broadcast.
pub(super) fn integer(c: &mut Composer, data_type: DataType, value: i64) -> Result<Part, ModelError> {
    let size = data_type.size_bytes() as usize;
    let tensor = Tensor::new(data_type, &[], value.to_le_bytes()[..size].to_vec());
    let tensor = tensor.ok_or_else(|| c.view.error("cannot create a constant integer"))?;
    Ok(c.constant(tensor))
}

/// The elements along an axis at constant indices.
pub(super) fn take(c: &mut Composer, x: &Part, axis: usize, indices: &[i64]) -> Part {
    let mut ty = x.ty.clone();
    ty.shape[axis] = indices.len() as u64;
    let indices = c.constant(Tensor::from_i64(&[indices.len() as u64], indices));
    c.kernel(Kernel::Gather { axis }, &[x, &indices], ty)
}

/// The elements along an axis, each repeated `block` times, cut to `size` elements in all.
pub(super) fn repeated(c: &mut Composer, x: &Part, axis: usize, size: u64, block: u64) -> Result<Part, ModelError> {
    require_few(&c.view, &[size])?;
    let blocks: Vec<i64> = (0..size).map(|index| (index / block) as i64).collect();
    Ok(take(c, x, axis, &blocks))
}

/// The offsets of indices along an axis of `size` whose entries are `stride` apart: int64, with the indices' shape.
pub(super) fn offsets(c: &mut Composer, indices: &Part, size: u64, stride: u64) -> Result<Part, ModelError> {
    let count = product(&c.view, &indices.ty.shape)?;
    let list = c.reshape(indices, &[count])?;
    let table = steps(c, size, stride)?;
    let offsets = c.kernel(Kernel::Gather { axis: 0 }, &[&table, &list], TensorType::new(DataType::Int64, &[count]));
    c.reshape(&offsets, &indices.ty.shape)
}

/// The offsets of the coordinates of a tensor of `sizes` in a tensor with these strides: int64, with shape `sizes`.
fn places(c: &mut Composer, sizes: &[u64], strides: &[u64]) -> Result<Part, ModelError> {
    let count = product(&c.view, sizes)?;
    if count > TABLE_MAX {
        let reason = format!("{count} indices along other axes are too many; at most {TABLE_MAX} are possible");
        return Err(c.view.error(reason));
    }
    let own = packed_strides(sizes);
    let place = |i: u64| -> u64 { (0..sizes.len()).map(|axis| i / own[axis] % sizes[axis] * strides[axis]).sum() };
    let values: Vec<i64> = (0..count).map(|i| place(i) as i64).collect();
    Ok(c.constant(Tensor::from_i64(sizes, &values)))
}

/// The numbers, int64\[count], of the elements that indices along an axis select in data of `sizes`, each at its own coordinates along the
/// other axes. `is_known` means that all indices are in range and none is negative.
pub(super) fn element_numbers(
    c: &mut Composer,
    sizes: &[u64],
    axis: usize,
    indices: &Part,
    is_known: bool,
) -> Result<Part, ModelError> {
    let shape = indices.ty.shape.clone();
    let fits = |(own, (&size, &data)): (usize, (&u64, &u64))| own == axis || size <= data;
    if shape.len() != sizes.len() || !shape.iter().zip(sizes).enumerate().all(fits) {
        let reason = format!("indices {} do not match data of {sizes:?} along axis {axis}", indices.ty);
        return Err(c.view.error(reason));
    }
    let strides = packed_strides(sizes);
    let (outer, inner) = (product(&c.view, &shape[..axis])?, product(&c.view, &shape[axis + 1..])?);
    let block = [outer, shape[axis], inner];
    let is_checked_later = (0..sizes.len()).all(|own| own == axis || sizes[own] == 1);
    let mut numbers = match strides[axis] {
        1 if is_known || is_checked_later => indices.clone(),
        stride => offsets(c, indices, sizes[axis], stride)?,
    };
    numbers = c.reshape(&numbers, &block)?;
    for (own, at) in [(0..axis, [outer, 1, 1]), (axis + 1..sizes.len(), [1, 1, inner])] {
        if product(&c.view, &at)? > 1 {
            let places = places(c, &shape[own.clone()], &strides[own])?;
            let places = c.reshape(&places, &at)?;
            numbers = c.binary(BinaryOp::Add, &numbers, &places)?;
        }
    }
    let count = product(&c.view, &block)?;
    c.reshape(&numbers, &[count])
}

/// Rows that tuples of indices select.
pub(super) struct Rows {
    /// The numbers of the rows, one for each tuple.
    pub numbers: Part,
    /// The number of rows, and the number of elements in each.
    pub sizes: [u64; 2],
    /// The sizes of the indices except the last, followed by those of a row.
    pub shape: Vec<u64>,
}

/// The rows of data of `sizes` that tuples of indices (the last dimension) select, after batch axes that both have. A tuple of no indices
/// selects all of a batch.
pub(super) fn row_numbers(c: &mut Composer, sizes: &[u64], indices: &Part, batches: usize) -> Result<Rows, ModelError> {
    let shape = indices.ty.shape.clone();
    let error = || format!("indices {} do not match data of {sizes:?} with {batches} batch dimensions", indices.ty);
    let Some((&depth, places)) = shape.split_last() else { return Err(c.view.error(error())) };
    let end = usize::try_from(depth).ok().and_then(|depth| depth.checked_add(batches));
    let fits = |&end: &usize| end <= sizes.len() && places.len() >= batches && places[..batches] == sizes[..batches];
    let Some(end) = end.filter(fits) else { return Err(c.view.error(error())) };
    let (count, rows) = (product(&c.view, places)?, product(&c.view, &sizes[..end])?);
    let inner = product(&c.view, &sizes[end..])?;
    let strides = packed_strides(&sizes[..end]);
    let mut numbers: Option<Part> = None;
    let tuples = c.reshape(indices, &[count, depth])?;
    for axis in batches..end {
        let own = c.slice(&tuples, 1, (axis - batches) as u64, 1)?;
        let own = c.reshape(&own, &[count])?;
        // If a tuple has only one index, it is checked where it is used.
        let own = if end == 1 { own } else { offsets(c, &own, sizes[axis], strides[axis])? };
        numbers = Some(match numbers {
            Some(sum) => c.binary(BinaryOp::Add, &sum, &own)?,
            None => own,
        });
    }
    let mut numbers = match numbers {
        Some(numbers) => numbers,
        None => steps(c, count, 0)?,
    };
    let groups = product(&c.view, &sizes[..batches])?;
    if groups > 1 {
        let of_groups = steps(c, groups, rows / groups)?;
        let of_groups = c.reshape(&of_groups, &[groups, 1])?;
        numbers = c.reshape(&numbers, &[groups, count / groups])?;
        numbers = c.binary(BinaryOp::Add, &numbers, &of_groups)?;
        numbers = c.reshape(&numbers, &[count])?;
    }
    Ok(Rows { numbers, sizes: [rows, inner], shape: [places, &sizes[end..]].concat() })
}

/// Takes rows of data \[rows, inner] by their numbers, with this shape.
pub(super) fn take_rows(
    c: &mut Composer,
    data: &Part,
    [rows, inner]: [u64; 2],
    numbers: &Part,
    shape: &[u64],
) -> Result<Part, ModelError> {
    product(&c.view, shape)?;
    let data = c.reshape(data, &[rows, inner])?;
    let ty = TensorType::new(data.ty.data_type, &[numbers.ty.shape[0], inner]);
    let taken = c.kernel(Kernel::Gather { axis: 0 }, &[&data, numbers], ty);
    c.reshape(&taken, shape)
}

/// Takes elements of data along an axis by indices of the same rank.
pub(super) fn take_elements(
    c: &mut Composer,
    data: &Part,
    axis: usize,
    indices: &Part,
    is_known: bool,
) -> Result<Part, ModelError> {
    let numbers = element_numbers(c, &data.ty.shape, axis, indices, is_known)?;
    let count = product(&c.view, &data.ty.shape)?;
    take_rows(c, data, [count, 1], &numbers, &indices.ty.shape)
}
