//! Averages and largest elements of windows.

use forebay_base::kernel::{BinaryOp, PoolOp, ReduceOp, Window};
use forebay_base::{DataType, Kernel};

use super::convolution::{pool_window, spatial};
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::indices::take;
use super::shapes::require_few;
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("AveragePool", average_pool),
    composed!("GlobalAveragePool", global_average_pool),
    composed!("GlobalMaxPool", global_max_pool),
];

/// Combines the elements of each window. In float64, which the kernel does not take, this is done axis by axis: all elements of the windows
/// along an axis are gathered and then reduced.
pub(super) fn pooled(
    c: &mut Composer,
    x: &Part,
    op: PoolOp,
    window: Window,
    shape: &[u64],
) -> Result<Part, ModelError> {
    if x.ty.data_type != DataType::Float64 {
        return Ok(c.kernel(Kernel::Pool { op, window }, &[x], TensorType::new(x.ty.data_type, shape)));
    }
    let (reduction, padding) = match op {
        PoolOp::Max => (ReduceOp::Max, f64::NEG_INFINITY),
        PoolOp::Average { .. } => (ReduceOp::Sum, 0.0),
    };
    let mut y = x.clone();
    for (i, &places) in shape[2..].iter().enumerate() {
        let (axis, size) = (2 + i, x.ty.shape[2 + i]);
        require_few(&c.view, &[window.kernel[i], places])?;
        let begin = window.pads_begin[i] as i64;
        let position = |tap: u64, place: u64| (place * window.strides[i] + tap * window.dilations[i]) as i64 - begin;
        let is_inside = |position: &i64| (0..size as i64).contains(position);
        // One more element stands for all of the padding.
        let mut one = y.ty.clone();
        one.shape[axis] = 1;
        let outside = c.kernel(Kernel::Fill { value: padding }, &[], one);
        let padded = c.concatenate(&[&y, &outside], axis)?;
        let positions = (0..window.kernel[i]).flat_map(|tap| (0..places).map(move |place| position(tap, place)));
        let indices: Vec<i64> =
            positions.map(|position| if is_inside(&position) { position } else { size as i64 }).collect();
        let taken = take(c, &padded, axis, &indices);
        let mut by_tap = taken.ty.shape.clone();
        by_tap.splice(axis..=axis, [window.kernel[i], places]);
        let taken = c.reshape(&taken, &by_tap)?;
        let reduced = c.reduce(reduction, &[axis], &taken)?;
        by_tap.remove(axis);
        y = c.reshape(&reduced, &by_tap)?;
        if let PoolOp::Average { count_include_pad } = op {
            let end = size as i64 + if count_include_pad { window.pads_end[i] as i64 } else { 0 };
            let start = if count_include_pad { -begin } else { 0 };
            let counted = |place: u64| {
                (0..window.kernel[i]).filter(|&tap| (start..end).contains(&position(tap, place))).count() as f64
            };
            let mut along = vec![1; shape.len() - axis];
            along[0] = places;
            let counts = c.floats(DataType::Float64, &along, &(0..places).map(counted).collect::<Vec<_>>())?;
            y = c.binary(BinaryOp::Divide, &y, &counts)?;
        }
    }
    Ok(y)
}

fn average_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let y = averaged(&mut c, &x)?;
    c.finish(y)
}

/// The averages over the node's windows.
pub(super) fn averaged(c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
    let op = PoolOp::Average { count_include_pad: c.view.int("count_include_pad", 0)? != 0 };
    let (window, shape) = pool_window(&c.view, &x.ty)?;
    pooled(c, x, op, window, &shape)
}

fn global_average_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    spatial(&view, "the input", &x.ty)?;
    let axes: Vec<usize> = (2..x.ty.shape.len()).collect();
    let y = c.reduce(ReduceOp::Mean, &axes, &x)?;
    c.finish(y)
}

/// A max pool with one window over everything. As in any max pool, the first of equal largest elements gets the gradient.
fn global_max_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let kernel = spatial(&view, "the input", &x.ty)?.to_vec();
    let n = kernel.len();
    let mut shape = x.ty.shape[..2].to_vec();
    shape.resize(2 + n, 1);
    let window =
        Window { kernel, strides: vec![1; n], dilations: vec![1; n], pads_begin: vec![0; n], pads_end: vec![0; n] };
    let y = pooled(&mut c, &x, PoolOp::Max, window, &shape)?;
    c.finish(y)
}
