//! Max pooling with the positions of the largest elements, and its inverse.

use forebay_base::kernel::{BinaryOp, PadMode, PoolOp, ScatterOp, Window};
use forebay_base::{DataType, Kernel};

use super::convolution::{channels_first, channels_last, per_dimension, pool_window, spatial};
use super::decomposition::{Composer, Decomposition, Part, composed};
use super::indices::{integer, require_indices, steps};
use super::pooling::pooled;
use super::scattering::scatter;
use super::shapes::{product, size};
use crate::error::ModelError;
use crate::graph::{MICROSOFT, TensorType};
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("MaxPool", max_pool),
    composed!("MaxUnpool", max_unpool),
    composed!(MICROSOFT, "NhwcMaxPool", max_pool_of_last),
];

fn max_pool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let (window, shape) = pool_window(&view, &x.ty)?;
    let y = largest(&mut c, &x, window.clone(), &shape)?;
    if !matches!(view.node.outputs.get(1), Some(Some(_))) {
        return c.finish(y);
    }
    if x.ty.data_type == DataType::Float64 {
        return Err(view.error("output 1, the positions, is not supported in float64; cast to float32 first"));
    }
    let indices = places(&mut c, &x, window, &shape)?;
    c.finish_all(vec![y, indices])
}

/// Max pooling of tensors whose channels come last.
fn max_pool_of_last(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let x = channels_first(&mut c, &x)?;
    let (window, shape) = pool_window(&view, &x.ty)?;
    let y = largest(&mut c, &x, window, &shape)?;
    let y = channels_last(&mut c, &y)?;
    c.finish(y)
}

/// The largest elements under a window. 8-bit integers are pooled as float32, which represents them exactly.
fn largest(c: &mut Composer, x: &Part, window: Window, shape: &[u64]) -> Result<Part, ModelError> {
    let data_type = x.ty.data_type;
    let x = match data_type {
        DataType::Int8 | DataType::UInt8 => c.cast(x, DataType::Float32),
        _ => x.clone(),
    };
    let y = pooled(c, &x, PoolOp::Max, window, shape)?;
    Ok(c.cast(&y, data_type))
}

/// The indices of the largest elements among all elements of the input, in row-major order or, for `storage_order` 1, in column-major order
/// within channels.
fn places(c: &mut Composer, x: &Part, window: Window, shape: &[u64]) -> Result<Part, ModelError> {
    let x = c.cast(x, DataType::Float32);
    let (channels, sizes) = (product(&c.view, &x.ty.shape[..2])?, x.ty.shape[2..].to_vec());
    let mut places = c.kernel(Kernel::PoolIndices { window }, &[&x], TensorType::new(DataType::Int64, shape));
    if c.view.int("storage_order", 0)? != 0 && sizes.len() > 1 {
        places = by_columns(c, &places, &sizes)?;
    }
    if channels > 1 {
        let first = steps(c, channels, product(&c.view, &sizes)?)?;
        let mut along = vec![1; shape.len()];
        along[..2].copy_from_slice(&shape[..2]);
        let first = c.reshape(&first, &along)?;
        places = c.binary(BinaryOp::Add, &places, &first)?;
    }
    Ok(places)
}

/// Converts row-major positions to positions in the order in which the first dimension varies fastest.
fn by_columns(c: &mut Composer, places: &Part, sizes: &[u64]) -> Result<Part, ModelError> {
    let mut left = places.clone();
    let mut sum: Option<Part> = None;
    for (axis, &own) in sizes.iter().enumerate().rev() {
        let index = if axis > 0 {
            let divisor = integer(c, DataType::Int64, own as i64)?;
            let above = c.binary(BinaryOp::Divide, &left, &divisor)?;
            let whole = c.binary(BinaryOp::Multiply, &above, &divisor)?;
            let index = c.binary(BinaryOp::Subtract, &left, &whole)?;
            left = above;
            index
        } else {
            left.clone()
        };
        let stride = integer(c, DataType::Int64, product(&c.view, &sizes[..axis])? as i64)?;
        let term = c.binary(BinaryOp::Multiply, &index, &stride)?;
        sum = Some(match sum {
            Some(sum) => c.binary(BinaryOp::Add, &sum, &term)?,
            None => term,
        });
    }
    Ok(sum.unwrap_or(left))
}

/// Puts elements at their positions among zeros, in a tensor of the sizes that the pooling had, and pads it with zeros to the requested
/// sizes.
fn max_unpool(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, indices) = (c.input(0)?, c.input(1)?);
    require_indices(&view, &indices)?;
    let input = spatial(&view, "the input", &x.ty)?.to_vec();
    let n = input.len();
    let kernel = view.ints("kernel_shape")?.ok_or_else(|| view.error("attribute kernel_shape is missing"))?;
    let strides = per_dimension(&view, "strides", n, 1, 1)?;
    let pads = per_dimension(&view, "pads", 2 * n, 0, 0)?;
    if indices.ty.shape != x.ty.shape || kernel.len() != n {
        return Err(view.error(format!("indices {} and a window of {kernel:?} do not match {}", indices.ty, x.ty)));
    }
    let mut shape = x.ty.shape[..2].to_vec();
    for d in 0..n {
        let reach = (input[d].max(1) - 1).checked_mul(strides[d]);
        let reach = reach.and_then(|reach| reach.checked_add(u64::try_from(kernel[d]).ok()?));
        let own = reach.and_then(|reach| reach.checked_sub(pads[d])?.checked_sub(pads[d + n]));
        shape.push(own.ok_or_else(|| view.error(format!("a window of {kernel:?} is invalid for {}", x.ty)))?);
    }
    let (total, count) = (product(&view, &shape)?, product(&view, &x.ty.shape)?);
    let zeros = c.kernel(Kernel::Fill { value: 0.0 }, &[], TensorType::new(x.ty.data_type, &[total, 1]));
    let numbers = c.reshape(&indices, &[count])?;
    let y = scatter(&mut c, ScatterOp::Replace, &zeros, [total, 1], &numbers, &x)?;
    let y = c.reshape(&y, &shape)?;
    if !view.has_input(2) {
        return c.finish(y);
    }
    let asked = view.constant_ints(2)?;
    let asked = asked.iter().map(|&value| size(&view, "a size", value)).collect::<Result<Vec<_>, _>>()?;
    if asked.len() != shape.len() {
        let count = shape.len();
        return Err(view.error(format!("expected {count} sizes, as in the pooling's {shape:?}, found {asked:?}")));
    }
    if asked.iter().zip(&shape).any(|(asked, own)| asked < own) {
        return Err(view.error(format!("the sizes must be at least the pooling's {shape:?}, but are {asked:?}")));
    }
    if asked == shape {
        return c.finish(y);
    }
    product(&view, &asked)?;
    let kernel = Kernel::Pad { begins: vec![0; shape.len()], mode: PadMode::Constant(0.0) };
    let y = c.kernel(kernel, &[&y], TensorType::new(x.ty.data_type, &asked));
    c.finish(y)
}
