//! Operators that write updates at indices.

use forebay_base::kernel::{BinaryOp, ScatterOp};
use forebay_base::{DataType, Kernel};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::indices::{element_numbers, integer, offsets, require_indices, row_numbers, steps};
use super::shapes::product;
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("Scatter", scatter_elements),
    composed!("ScatterElements", scatter_elements),
    composed!("ScatterND", scatter_nd),
    composed!("TensorScatter", tensor_scatter),
];

/// How updates are combined with elements: an attribute from opset 16 on, with minimum and maximum from 18 on.
fn reduction(view: &NodeView) -> Result<ScatterOp, ModelError> {
    match (view.string("reduction", "none")?, view.version()) {
        ("none", _) => Ok(ScatterOp::Replace),
        ("add", _) => Ok(ScatterOp::Add),
        ("mul", _) => Ok(ScatterOp::Multiply),
        ("min", 18..) => Ok(ScatterOp::Minimum),
        ("max", 18..) => Ok(ScatterOp::Maximum),
        (other, version) => {
            Err(view.error(format!("unknown value '{other}' of attribute reduction in opset {version}")))
        }
    }
}

/// Data \[rows, inner] with updates at the rows with these numbers.
pub(super) fn scatter(
    c: &mut Composer,
    op: ScatterOp,
    data: &Part,
    [rows, inner]: [u64; 2],
    numbers: &Part,
    updates: &Part,
) -> Result<Part, ModelError> {
    if data.ty.data_type != updates.ty.data_type {
        return Err(c.view.error(format!("data {} and updates {} differ in type", data.ty, updates.ty)));
    }
    let (shape, ty) = (data.ty.shape.clone(), TensorType::new(data.ty.data_type, &[rows, inner]));
    let data = c.reshape(data, &[rows, inner])?;
    let updates = c.reshape(updates, &[numbers.ty.shape[0], inner])?;
    // Without updates nothing changes, and a tensor without elements cannot be stored on a device.
    if updates.ty.count() == 0 {
        return c.reshape(&data, &shape);
    }
    // Booleans are combined as integers: their sum is the maximum, and their product is the minimum.
    let (op, data_type) = match (op, ty.data_type) {
        (ScatterOp::Add | ScatterOp::Maximum, DataType::Bool) => (ScatterOp::Maximum, DataType::Int32),
        (ScatterOp::Multiply | ScatterOp::Minimum, DataType::Bool) => (ScatterOp::Minimum, DataType::Int32),
        (op, own) => (op, own),
    };
    let (data, updates) = (c.cast(&data, data_type), c.cast(&updates, data_type));
    let y = c.kernel(Kernel::Scatter { op }, &[&data, numbers, &updates], TensorType::new(data_type, &ty.shape));
    let y = c.cast(&y, ty.data_type);
    c.reshape(&y, &shape)
}

fn scatter_elements(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (data, indices, updates) = (c.input(0)?, c.input(1)?, c.input(2)?);
    require_indices(&view, &indices)?;
    let axis = view.axis(view.int("axis", 0)?, data.ty.shape.len())?;
    if updates.ty.shape != indices.ty.shape {
        return Err(view.error(format!("updates {} and indices {} differ in shape", updates.ty, indices.ty)));
    }
    let numbers = element_numbers(&mut c, &data.ty.shape, axis, &indices, false)?;
    let count = product(&view, &data.ty.shape)?;
    let y = scatter(&mut c, reduction(&view)?, &data, [count, 1], &numbers, &updates)?;
    c.finish(y)
}

fn scatter_nd(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (data, indices, updates) = (c.input(0)?, c.input(1)?, c.input(2)?);
    require_indices(&view, &indices)?;
    let rows = row_numbers(&mut c, &data.ty.shape, &indices, 0)?;
    if updates.ty.shape != rows.shape {
        return Err(view.error(format!("expected updates of the sizes {:?}, found {}", rows.shape, updates.ty)));
    }
    let y = scatter(&mut c, reduction(&view)?, &data, rows.sizes, &rows.numbers, &updates)?;
    c.finish(y)
}

/// A cache \[batch, .., sequence, ..] with an update that starts at each batch's index, or at 0. If `circular`, it wraps around at the end.
fn tensor_scatter(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (cache, update) = (c.input(0)?, c.input(1)?);
    let rank = cache.ty.shape.len();
    let axis = view.axis(view.int("axis", -2)?, rank)?;
    let (own, length) = (&cache.ty.shape, update.ty.shape.get(axis).copied().unwrap_or(0));
    let mut expected = own.clone();
    expected[axis] = length;
    if axis == 0 || update.ty.shape != expected || length > own[axis] {
        return Err(
            view.error(format!("an update {} does not fit the cache {} along axis {axis}", update.ty, cache.ty))
        );
    }
    let (batches, sequence) = (own[0], own[axis]);
    let (middle, inner) = (product(&view, &own[1..axis])?, product(&view, &own[axis + 1..])?);
    let places = steps(&mut c, length, 1)?;
    let mut places = c.reshape(&places, &[1, length])?;
    if view.has_input(2) {
        let first = c.input(2)?;
        if first.ty.shape != [batches] {
            return Err(view.error(format!("expected {batches} write indices, found {}", first.ty)));
        }
        let first = c.cast(&first, DataType::Int64);
        let first = c.reshape(&first, &[batches, 1])?;
        places = c.binary(BinaryOp::Add, &first, &places)?;
        match view.string("mode", "linear")? {
            "linear" => {}
            "circular" => {
                let size = integer(&mut c, DataType::Int64, sequence as i64)?;
                let rounds = c.binary(BinaryOp::Divide, &places, &size)?;
                let rounds = c.binary(BinaryOp::Multiply, &rounds, &size)?;
                places = c.binary(BinaryOp::Subtract, &places, &rounds)?;
            }
            other => return Err(view.error(format!("attribute mode must be linear or circular, not '{other}'"))),
        }
        places = offsets(&mut c, &places, sequence, 1)?;
    }
    let blocks = product(&view, &[batches, middle])?;
    let places = c.reshape(&places, &[places.ty.shape[0], 1, length])?;
    let block = steps(&mut c, blocks, sequence)?;
    let block = c.reshape(&block, &[batches, middle, 1])?;
    let numbers = c.binary(BinaryOp::Add, &block, &places)?;
    let count = product(&view, &numbers.ty.shape)?;
    let numbers = c.reshape(&numbers, &[count])?;
    let rows = [product(&view, &[blocks, sequence])?, inner];
    let y = scatter(&mut c, ScatterOp::Replace, &cache, rows, &numbers, &update)?;
    c.finish(y)
}
