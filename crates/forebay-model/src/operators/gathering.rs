//! Operators that take elements or rows by computed indices.

use forebay_base::DataType;
use forebay_base::kernel::BinaryOp;

use super::decomposition::{Composer, Decomposition, composed};
use super::indices::{integer, offsets, require_indices, row_numbers, steps, take_elements, take_rows};
use super::shapes::{product, size};
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("GatherElements", gather_elements),
    composed!("GatherND", gather_nd),
    composed!("OneHot", one_hot),
    composed!("ReverseSequence", reverse_sequence),
];

fn gather_elements(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (data, indices) = (c.input(0)?, c.input(1)?);
    require_indices(&view, &indices)?;
    let axis = view.axis(view.int("axis", 0)?, data.ty.shape.len())?;
    let y = take_elements(&mut c, &data, axis, &indices, false)?;
    c.finish(y)
}

fn gather_nd(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (data, indices) = (c.input(0)?, c.input(1)?);
    require_indices(&view, &indices)?;
    if indices.ty.shape.last() == Some(&0) {
        return Err(view.error(format!("the last dimension of the indices {} must be at least 1", indices.ty)));
    }
    let batches = size(&view, "attribute batch_dims", view.int("batch_dims", 0)?)? as usize;
    let rows = row_numbers(&mut c, &data.ty.shape, &indices, batches.min(data.ty.shape.len()))?;
    let y = take_rows(&mut c, &data, rows.sizes, &rows.numbers, &rows.shape)?;
    c.finish(y)
}

/// For an index out of range, no position gets the on value.
fn one_hot(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (indices, values) = (c.input(0)?, c.input(2)?);
    let depth = view.needed(1)?;
    let depth = match (depth.to_i64(), depth.to_f64()) {
        (Some(depth), _) if depth.len() == 1 => size(&view, "the depth", depth[0])?,
        (_, Some(depth)) if depth.len() == 1 => size(&view, "the depth", depth[0] as i64)?,
        _ => return Err(view.error("the depth must be a single number")),
    };
    if values.ty.shape != [2] {
        return Err(view.error(format!("expected two values, off and on, found {}", values.ty)));
    }
    let rank = indices.ty.shape.len();
    let axis = view.axis(view.int("axis", -1)?, rank + 1)?;
    let indices = c.cast(&indices, DataType::Int64);
    let (zero, count) = (integer(&mut c, DataType::Int64, 0)?, integer(&mut c, DataType::Int64, depth as i64)?);
    let is_negative = c.binary(BinaryOp::Less, &indices, &zero)?;
    let from_end = c.binary(BinaryOp::Add, &indices, &count)?;
    let indices = c.select(&is_negative, &from_end, &indices)?;
    let mut shape = indices.ty.shape.clone();
    shape.insert(axis, 1);
    let indices = c.reshape(&indices, &shape)?;
    let places = steps(&mut c, depth, 1)?;
    let mut along = vec![1; rank + 1];
    along[axis] = depth;
    let places = c.reshape(&places, &along)?;
    let is_on = c.binary(BinaryOp::Equal, &indices, &places)?;
    let mut value = |i: u64| {
        let value = c.slice(&values, 0, i, 1)?;
        c.reshape(&value, &[])
    };
    let (off, on) = (value(0)?, value(1)?);
    let y = c.select(&is_on, &on, &off)?;
    c.finish(y)
}

/// Reverses the first `sequence_lens` elements of each batch; later elements are unchanged.
fn reverse_sequence(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, lengths) = (c.input(0)?, c.input(1)?);
    let (batch_axis, time_axis) = (view.int("batch_axis", 1)?, view.int("time_axis", 0)?);
    let ([0, 1] | [1, 0], &[first, second, ..]) = ([batch_axis, time_axis], x.ty.shape.as_slice()) else {
        let reason =
            format!("expected axes 0 and 1 for batches and time, found {batch_axis} and {time_axis} of {}", x.ty);
        return Err(view.error(reason));
    };
    let (batches, times) = if time_axis == 0 { (second, first) } else { (first, second) };
    let (batch_stride, time_stride) = if time_axis == 0 { (1, second) } else { (second, 1) };
    let at = |along_time: bool| if along_time == (time_axis == 0) { [u64::MAX, 1] } else { [1, u64::MAX] };
    let along = |of: u64, along_time: bool| at(along_time).map(|size| if size == u64::MAX { of } else { size });
    if lengths.ty.shape != [batches] {
        return Err(view.error(format!("expected {batches} lengths, found {}", lengths.ty)));
    }
    let lengths = c.cast(&lengths, DataType::Int64);
    let lengths = c.reshape(&lengths, &along(batches, false))?;
    let time = steps(&mut c, times, 1)?;
    let time = c.reshape(&time, &along(times, true))?;
    let is_inside = c.binary(BinaryOp::Less, &time, &lengths)?;
    let one = integer(&mut c, DataType::Int64, 1)?;
    let last = c.binary(BinaryOp::Subtract, &lengths, &one)?;
    let backwards = c.binary(BinaryOp::Subtract, &last, &time)?;
    let from = c.select(&is_inside, &backwards, &time)?;
    let from = offsets(&mut c, &from, times, time_stride)?;
    let batch = steps(&mut c, batches, batch_stride)?;
    let batch = c.reshape(&batch, &along(batches, false))?;
    let rows = c.binary(BinaryOp::Add, &from, &batch)?;
    let count = product(&view, &[first, second])?;
    let rows = c.reshape(&rows, &[count])?;
    let inner = product(&view, &x.ty.shape[2..])?;
    let shape = x.ty.shape.clone();
    let y = take_rows(&mut c, &x, [count, inner], &rows, &shape)?;
    c.finish(y)
}
