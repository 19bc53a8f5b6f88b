//! Norms of windows, in 1 to 3 spatial dimensions, and of whole images.

use forebay_base::Kernel;
use forebay_base::kernel::{BinaryOp, PoolOp, ReduceOp, UnaryOp, Window};

use super::convolution::{spatial, window};
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::shapes::{product, size};
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!("GlobalLpPool", global_lp_pool), composed!("LpPool", lp_pool)];

/// The window that the node's attributes describe, and the type of the result for x.
fn described(view: &NodeView, x: &Part) -> Result<(Window, TensorType), ModelError> {
    let input = spatial(view, "the input", &x.ty)?;
    let kernel = view.ints("kernel_shape")?.ok_or_else(|| view.error("attribute kernel_shape is missing"))?;
    let kernel =
        kernel.iter().map(|&value| size(view, "a kernel size", value)).collect::<Result<Vec<u64>, ModelError>>()?;
    let (window, sizes) = window(view, input, &kernel, view.int("ceil_mode", 0)? != 0)?;
    let mut shape = x.ty.shape[..2].to_vec();
    shape.extend(sizes);
    Ok((window, TensorType::new(x.ty.data_type, &shape)))
}

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
    let (window, ty) = described(&view, &x)?;
    let mut counts = vec![1.0];
    for (i, &output) in ty.shape[2..].iter().enumerate() {
        let input = x.ty.shape[2 + i];
        let position = |place: u64, tap: u64| {
            (place * window.strides[i] + tap * window.dilations[i]).wrapping_sub(window.pads_begin[i])
        };
        let count = |place: u64| (0..window.kernel[i]).filter(|&tap| position(place, tap) < input).count() as f64;
        let along: Vec<f64> = (0..output).map(count).collect();
        product(&view, &[counts.len() as u64, output])?;
        counts = counts.iter().flat_map(|before| along.iter().map(move |count| before * count)).collect();
    }
    let powers = to_power(&mut c, &x, p)?;
    let op = PoolOp::Average { count_include_pad: false };
    let means = c.kernel(Kernel::Pool { op, window }, &[&powers], ty.clone());
    let counts = c.floats(x.ty.data_type, &ty.shape[2..], &counts)?;
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
