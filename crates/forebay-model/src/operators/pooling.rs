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
/// along an axis are gathered and then reduced. There, equal largest elements share the gradient; elsewhere, the first of them gets it.
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
        let axis = 2 + i;
        require_few(&c.view, &[window.kernel[i], places])?;
        // Positions in the padding can be outside the range of 64 bits.
        let (begin, size) = (i128::from(window.pads_begin[i]), i128::from(x.ty.shape[axis]));
        let position = |tap: u64, place: u64| {
            i128::from(place) * i128::from(window.strides[i]) + i128::from(tap) * i128::from(window.dilations[i])
                - begin
        };
        let outside = size as i64;
        let index = |position: i128| if (0..size).contains(&position) { position as i64 } else { outside };
        let positions = (0..window.kernel[i]).flat_map(|tap| (0..places).map(move |place| position(tap, place)));
        let indices: Vec<i64> = positions.map(index).collect();
        if indices.contains(&outside) {
            // One more element stands for all of the padding.
            let mut one = y.ty.clone();
            one.shape[axis] = 1;
            let one = c.kernel(Kernel::Fill { value: padding }, &[], one);
            y = c.concatenate(&[&y, &one], axis)?;
        }
        let taken = take(c, &y, axis, &indices);
        let mut by_tap = taken.ty.shape.clone();
        by_tap.splice(axis..=axis, [window.kernel[i], places]);
        let taken = c.reshape(&taken, &by_tap)?;
        let reduced = c.reduce(reduction, &[axis], &taken)?;
        by_tap.remove(axis);
        y = c.reshape(&reduced, &by_tap)?;
        if let PoolOp::Average { count_include_pad } = op {
            let elements = match count_include_pad {
                true => -begin..size + i128::from(window.pads_end[i]),
                false => 0..size,
            };
            // As in the kernel, the average of no elements is 0.
            let counted = |place: u64| {
                let taps = (0..window.kernel[i]).filter(|&tap| elements.contains(&position(tap, place)));
                taps.count().max(1) as f64
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

/// A max pool with one window over everything. Equal largest elements get gradients as in any max pool.
fn global_max_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let kernel = spatial(&view, "the input", &x.ty)?.to_vec();
    if x.ty.data_type == DataType::Float64 {
        let axes: Vec<usize> = (2..x.ty.shape.len()).collect();
        let y = c.reduce(ReduceOp::Max, &axes, &x)?;
        return c.finish(y);
    }
    let n = kernel.len();
    let mut shape = x.ty.shape[..2].to_vec();
    shape.resize(2 + n, 1);
    let window =
        Window { kernel, strides: vec![1; n], dilations: vec![1; n], pads_begin: vec![0; n], pads_end: vec![0; n] };
    let y = pooled(&mut c, &x, PoolOp::Max, window, &shape)?;
    c.finish(y)
}
