//! Reductions along axes, and the softmax family.

use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::shapes::{attribute_or_input, axes, product};
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("LogSoftmax", |view| softmax(view, |axis| Kernel::LogSoftmax { axis })),
    composed!("ReduceL1", |view| reduce(view, ReduceOp::L1)),
    composed!("ReduceL2", |view| reduce(view, ReduceOp::L2)),
    composed!("ReduceLogSum", reduce_log_sum),
    composed!("ReduceLogSumExp", reduce_log_sum_exp),
    composed!("ReduceMax", |view| reduce(view, ReduceOp::Max)),
    composed!("ReduceMean", |view| reduce(view, ReduceOp::Mean)),
    composed!("ReduceMin", |view| reduce(view, ReduceOp::Min)),
    composed!("ReduceProd", |view| reduce(view, ReduceOp::Product)),
    composed!("ReduceSum", |view| reduce(view, ReduceOp::Sum)),
    composed!("ReduceSumSquare", |view| reduce(view, ReduceOp::SumSquare)),
    composed!("Softmax", |view| softmax(view, |axis| Kernel::Softmax { axis })),
];

fn reduce(view: NodeView, op: ReduceOp) -> Result<Decomposition, ModelError> {
    reduction(view, |c, axes, x| c.reduce(op, axes, x))
}

fn reduce_log_sum(view: NodeView) -> Result<Decomposition, ModelError> {
    reduction(view, |c, axes, x| {
        let wide = widened(c, x);
        let sum = c.reduce(ReduceOp::Sum, axes, &wide)?;
        let logarithm = c.unary(UnaryOp::Log, &sum)?;
        Ok(c.cast(&logarithm, x.ty.data_type))
    })
}

/// x in a type that holds sums and logarithms of its elements.
fn widened(c: &mut Composer, x: &Part) -> Part {
    let data_type = x.ty.data_type;
    c.cast(x, if data_type.is_integer() { DataType::Float64 } else { data_type.computed_in() })
}

/// max + ln(sum(exp(x - max))): no exponential overflows. An infinite maximum is replaced by a finite one, because its difference from
/// itself would be NaN.
fn reduce_log_sum_exp(view: NodeView) -> Result<Decomposition, ModelError> {
    reduction(view, |c, axes, x| {
        let wide = widened(c, x);
        let max = c.reduce(ReduceOp::Max, axes, &wide)?;
        if axes.iter().any(|&axis| x.ty.shape[axis] == 0) {
            return Ok(c.cast(&max, x.ty.data_type));
        }
        let max = finite(c, &max)?;
        let shifted = c.binary(BinaryOp::Subtract, &wide, &max)?;
        let exponential = c.unary(UnaryOp::Exp, &shifted)?;
        let sum = c.reduce(ReduceOp::Sum, axes, &exponential)?;
        let logarithm = c.unary(UnaryOp::Log, &sum)?;
        let y = c.binary(BinaryOp::Add, &logarithm, &max)?;
        Ok(c.cast(&y, x.ty.data_type))
    })
}

/// x, with the nearest finite numbers in place of infinities.
fn finite(c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
    if x.ty.data_type == DataType::Float32 {
        return c.unary(UnaryOp::Clip { low: f32::MIN, high: f32::MAX }, x);
    }
    let (low, high) = (c.scalar(x.ty.data_type, f64::MIN)?, c.scalar(x.ty.data_type, f64::MAX)?);
    let y = c.binary(BinaryOp::Maximum, x, &low)?;
    c.binary(BinaryOp::Minimum, &y, &high)
}

/// A reduction along the axes that the node names: in an attribute originally, in an input from opset 13 or 18 on. `step` keeps reduced
/// axes with size 1.
fn reduction(
    view: NodeView,
    step: impl Fn(&mut Composer, &[usize], &Part) -> Result<Part, ModelError>,
) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let rank = x.ty.shape.len();
    let named = attribute_or_input(&view, "axes", 1)?.filter(|axes| !axes.is_empty());
    let along = match named {
        Some(named) => axes(&view, &named, rank)?,
        None if view.int("noop_with_empty_axes", 0)? != 0 => Vec::new(),
        None => (0..rank).collect(),
    };
    let mut y = step(&mut c, &along, &x)?;
    if view.int("keepdims", 1)? == 0 {
        let kept = (0..rank).filter(|axis| !along.contains(axis)).map(|axis| y.ty.shape[axis]);
        let shape: Vec<u64> = kept.collect();
        y = c.reshape(&y, &shape)?;
    }
    c.finish(y)
}

/// Softmax along one axis from opset 13 on; before, the input is treated as a matrix whose columns are all dimensions from `axis` on.
fn softmax(view: NodeView, kernel: fn(usize) -> Kernel) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let rank = x.ty.shape.len();
    if view.version() >= 13 {
        let axis = view.axis(view.int("axis", -1)?, rank)?;
        let y = c.kernel(kernel(axis), &[&x], x.ty.clone());
        return c.finish(y);
    }
    let axis = match view.int("axis", 1)? {
        axis if axis == rank as i64 => rank,
        axis => view.axis(axis, rank)?,
    };
    let shape = [product(&view, &x.ty.shape[..axis])?, product(&view, &x.ty.shape[axis..])?];
    let matrix = c.reshape(&x, &shape)?;
    let y = c.kernel(kernel(1), &[&matrix], matrix.ty.clone());
    let y = c.reshape(&y, &x.ty.shape)?;
    c.finish(y)
}
