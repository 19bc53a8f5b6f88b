//! Norms of windows, in 1 to 3 spatial dimensions, and of whole images.

use forebay_base::kernel::{BinaryOp, PoolOp, ReduceOp, UnaryOp};

use super::convolution::{pool_window, spatial};
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::pooling::pooled;
use super::shapes::require_few;
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("GlobalLpPool", global_lp_pool), composed!("LpPool", lp_pool)];

/// The order of a norm.
fn order(view: &NodeView) -> Result<f64, ModelError> {
    match view.int("p", 2)? {
        p if p > 0 => Ok(p as f64),
        p => Err(view.error(format!("attribute p must be at least 1, not {p}"))),
    }
}

/// The input in a type that can store powers of its elements.
fn wide(c: &mut Composer) -> Result<Part, ModelError> {
    let x = c.input(0)?;
    Ok(c.cast(&x, x.ty.data_type.computed_in()))
}

/// |x|^p.
fn to_power(c: &mut Composer, x: &Part, p: f64) -> Result<Part, ModelError> {
    if p == 2.0 {
        return c.binary(BinaryOp::Multiply, x, x);
    }
    let magnitude = c.unary(UnaryOp::Abs, x)?;
    if p == 1.0 {
        return Ok(magnitude);
    }
    let exponent = c.floats(x.ty.data_type, &[], &[p])?;
    c.binary(BinaryOp::Power, &magnitude, &exponent)
}

/// x^(1 / p). In training, the root of 0 is a constant: its gradient is infinite, but that of a norm is taken to be 0.
fn root(c: &mut Composer, x: &Part, p: f64) -> Result<Part, ModelError> {
    if p == 1.0 {
        return Ok(x.clone());
    }
    if !c.view.graph.has_backward() {
        return plain_root(c, x, p);
    }
    let (zero, one) = (c.floats(x.ty.data_type, &[], &[0.0])?, c.floats(x.ty.data_type, &[], &[1.0])?);
    let is_zero = c.binary(BinaryOp::Equal, x, &zero)?;
    let positive = c.select(&is_zero, &one, x)?;
    let y = plain_root(c, &positive, p)?;
    c.select(&is_zero, &zero, &y)
}

fn plain_root(c: &mut Composer, x: &Part, p: f64) -> Result<Part, ModelError> {
    if p == 2.0 {
        return c.unary(UnaryOp::Sqrt, x);
    }
    let exponent = c.floats(x.ty.data_type, &[], &[1.0 / p])?;
    c.binary(BinaryOp::Power, x, &exponent)
}

/// The norm of each window: the mean of its elements' powers, times their number.
fn lp_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = wide(&mut c)?;
    let p = order(&view)?;
    let (window, shape) = pool_window(&view, &x.ty)?;
    require_few(&view, &shape[2..])?;
    let mut counts = vec![1.0];
    for (i, &output) in shape[2..].iter().enumerate() {
        // The number of taps of a window before a position of the padded input.
        let before = |place: u64, position: u64| {
            let distance = position.saturating_sub(place * window.strides[i]);
            distance.div_ceil(window.dilations[i]).min(window.kernel[i])
        };
        let (begin, end) = (window.pads_begin[i], window.pads_begin[i].saturating_add(x.ty.shape[2 + i]));
        let along: Vec<f64> = (0..output).map(|place| (before(place, end) - before(place, begin)) as f64).collect();
        counts = counts.iter().flat_map(|before| along.iter().map(move |count| before * count)).collect();
    }
    let powers = to_power(&mut c, &x, p)?;
    let op = PoolOp::Average { count_include_pad: false };
    let means = pooled(&mut c, &powers, op, window, &shape)?;
    let counts = c.floats(x.ty.data_type, &shape[2..], &counts)?;
    let sums = c.binary(BinaryOp::Multiply, &means, &counts)?;
    let y = root(&mut c, &sums, p)?;
    let y = c.cast(&y, view.input_type(0)?.data_type);
    c.finish(y)
}

/// The norm of each channel of each image.
fn global_lp_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = wide(&mut c)?;
    let p = order(&view)?;
    spatial(&view, "the input", &x.ty)?;
    let axes: Vec<usize> = (2..x.ty.shape.len()).collect();
    let y = if p == 2.0 {
        c.reduce(ReduceOp::L2, &axes, &x)?
    } else {
        let powers = to_power(&mut c, &x, p)?;
        let sum = c.reduce(ReduceOp::Sum, &axes, &powers)?;
        root(&mut c, &sum, p)?
    };
    let y = c.cast(&y, view.input_type(0)?.data_type);
    c.finish(y)
}
