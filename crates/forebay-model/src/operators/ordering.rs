//! Operators that sort elements along an axis or scan them in order.

use forebay_base::kernel::{BinaryOp, ScanOp};
use forebay_base::{DataType, Kernel};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::indices::{steps, take_elements};
use super::shapes::{product, size};
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{Gradient, NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    Operator { gradient: Gradient::Zero, ..composed!("ArgMax", |view| extreme(view, true)) },
    Operator { gradient: Gradient::Zero, ..composed!("ArgMin", |view| extreme(view, false)) },
    composed!("CumProd", |view| scan(view, ScanOp::Product)),
    composed!("CumSum", |view| scan(view, ScanOp::Sum)),
    Operator { gradient: Gradient::Zero, ..composed!("Hardmax", hardmax) },
    composed!("TopK", top_k),
];

/// The index of the largest element, or of the first NaN if there is one, along an axis, which is kept with size 1.
fn largest(c: &mut Composer, x: &Part, axis: usize) -> Result<Part, ModelError> {
    chosen(c, x, 1, Kernel::TopK { axis, largest: true, nan_first: true, last: false }, axis)
}

/// The indices of the first k elements, in a given order, along an axis.
fn chosen(c: &mut Composer, x: &Part, k: u64, kernel: Kernel, axis: usize) -> Result<Part, ModelError> {
    if k > x.ty.shape[axis] {
        return Err(c.view.error(format!("cannot select {k} elements along axis {axis} of {}", x.ty)));
    }
    let mut shape = x.ty.shape.clone();
    shape[axis] = k;
    Ok(c.kernel(kernel, &[x], TensorType::new(DataType::Int64, &shape)))
}

fn extreme(view: NodeView, largest: bool) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let axis = view.axis(view.int("axis", 0)?, x.ty.shape.len())?;
    let last = view.int("select_last_index", 0)? != 0;
    let mut y = chosen(&mut c, &x, 1, Kernel::TopK { axis, largest, nan_first: true, last }, axis)?;
    if view.int("keepdims", 1)? == 0 {
        let mut shape = y.ty.shape.clone();
        shape.remove(axis);
        y = c.reshape(&y, &shape)?;
    }
    c.finish(y)
}

/// NaN counts as larger than every number. The values are gathered by the indices, so their gradient is that of the gather.
fn top_k(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let axis = view.axis(view.int("axis", -1)?, x.ty.shape.len())?;
    let k = match view.version() {
        ..10 => view.int("k", -1)?,
        _ => match view.constant_ints(1)?.as_slice() {
            &[k] => k,
            other => return Err(view.error(format!("k must be one number, not {other:?}"))),
        },
    };
    let k = size(&view, "k", k)?;
    let largest = view.int("largest", 1)? != 0;
    let kernel = Kernel::TopK { axis, largest, nan_first: largest, last: false };
    let indices = chosen(&mut c, &x, k, kernel, axis)?;
    let values = take_elements(&mut c, &x, axis, &indices, true)?;
    c.finish_all(vec![values, indices])
}

/// 1 at the first largest element along an axis, 0 elsewhere. Before opset 13, the input is treated as a matrix whose columns are all
/// dimensions from `axis` on.
fn hardmax(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let rank = x.ty.shape.len();
    let (axis, shape) = match view.version() {
        13.. => (view.axis(view.int("axis", -1)?, rank)?, x.ty.shape.clone()),
        _ => {
            let first = match view.int("axis", 1)? {
                axis if axis == rank as i64 => rank,
                axis => view.axis(axis, rank)?,
            };
            (1, vec![product(&view, &x.ty.shape[..first])?, product(&view, &x.ty.shape[first..])?])
        }
    };
    if x.ty.count() == 0 {
        return c.finish(x);
    }
    let y = c.reshape(&x, &shape)?;
    let place = largest(&mut c, &y, axis)?;
    let places = steps(&mut c, shape[axis], 1)?;
    let mut along = vec![1; shape.len()];
    along[axis] = shape[axis];
    let places = c.reshape(&places, &along)?;
    let is_largest = c.binary(BinaryOp::Equal, &place, &places)?;
    let y = c.cast(&is_largest, x.ty.data_type);
    let y = c.reshape(&y, &x.ty.shape)?;
    c.finish(y)
}

fn scan(view: NodeView, op: ScanOp) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let axis = match view.constant_ints(1)?.as_slice() {
        &[axis] => view.axis(axis, x.ty.shape.len())?,
        other => return Err(view.error(format!("the axis must be one number, not {other:?}"))),
    };
    if x.ty.data_type == DataType::Bool {
        return Err(view.error("operands of type bool are not supported"));
    }
    let (exclusive, reverse) = (view.int("exclusive", 0)? != 0, view.int("reverse", 0)? != 0);
    let y = c.kernel(Kernel::Scan { axis, op, exclusive, reverse }, &[&x], x.ty.clone());
    c.finish(y)
}
