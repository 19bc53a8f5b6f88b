//! Layers of diffusion models, as ONNX Runtime's optimizer fuses them, with channels last.

use forebay_base::DataType;
use forebay_base::kernel::{BinaryOp, UnaryOp};

use super::super::convolution::{channels_first, channels_last, convolved};
use super::super::decomposition::{Composer, Decomposition, Part, composed};
use super::super::normalization::standardized_rows;
use super::super::shapes::{product, size};
use super::{biased, plus};
use crate::error::ModelError;
use crate::graph::MICROSOFT;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!(MICROSOFT, "BiasAdd", added),
    composed!(MICROSOFT, "BiasSplitGelu", gated),
    composed!(MICROSOFT, "GroupNorm", normalized),
    composed!(MICROSOFT, "NhwcConv", convolution),
    composed!(MICROSOFT, "SkipGroupNorm", sum_normalized),
];

/// x + bias + skip.
fn added(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = biased(&mut c, 1)?;
    let y = plus(&mut c, &x, 2)?;
    c.finish(y)
}

/// The first half of x + bias, times the GELU of the second half.
fn gated(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = biased(&mut c, 1)?;
    let axis = view.axis(-1, x.ty.shape.len())?;
    let columns = x.ty.shape[axis];
    if columns % 2 != 0 {
        return Err(view.error(format!("{} does not have two halves", x.ty)));
    }
    let (left, right) = (c.slice(&x, axis, 0, columns / 2)?, c.slice(&x, axis, columns / 2, columns / 2)?);
    let gate = c.unary(UnaryOp::Gelu, &right)?;
    let y = c.binary(BinaryOp::Multiply, &left, &gate)?;
    c.finish(y)
}

/// A convolution whose weights, \[filters, sizes .., channels], have their channels last, too.
fn convolution(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, w) = (c.input(0)?, c.input(1)?);
    let (x, w) = (channels_first(&mut c, &x)?, channels_first(&mut c, &w)?);
    let y = convolved(&mut c, &x, &w)?;
    let y = channels_last(&mut c, &y)?;
    c.finish(y)
}

fn normalized(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let y = grouped(&mut c, &x)?;
    c.finish(y)
}

/// The normalization of x + skip + bias, and that sum. The skip may have one value for each channel.
fn sum_normalized(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, mut skip) = (c.input(0)?, c.input(3)?);
    if let &[batch, channels] = skip.ty.shape.as_slice() {
        let axis = channel_axis(&c, &x, is_channels_last(&view)?)?;
        let mut shape = vec![1; x.ty.shape.len()];
        (shape[0], shape[axis]) = (batch, channels);
        skip = c.reshape(&skip, &shape)?;
    }
    let mut sum = c.binary(BinaryOp::Add, &x, &skip)?;
    if view.has_input(4) {
        let bias = c.input(4)?;
        let bias = of_channels(&mut c, &bias, &sum, is_channels_last(&view)?)?;
        sum = c.binary(BinaryOp::Add, &sum, &bias)?;
    }
    if sum.ty != x.ty {
        return Err(view.error(format!("input 3 ({}) does not broadcast to {}", view.input_type(3)?, x.ty)));
    }
    let y = grouped(&mut c, &sum)?;
    c.finish_all(vec![y, sum])
}

fn is_channels_last(view: &NodeView) -> Result<bool, ModelError> {
    Ok(view.int("channels_last", 1)? != 0)
}

/// The axis of the channels of x.
fn channel_axis(c: &Composer, x: &Part, is_last: bool) -> Result<usize, ModelError> {
    match x.ty.shape.len() {
        0 | 1 => Err(c.view.error(format!("expected a batch and channels, found {}", x.ty))),
        rank if is_last => Ok(rank - 1),
        _ => Ok(1),
    }
}

/// A vector with an element for each channel of x, to be broadcast to x.
fn of_channels(c: &mut Composer, vector: &Part, x: &Part, is_last: bool) -> Result<Part, ModelError> {
    let axis = channel_axis(c, x, is_last)?;
    match x.ty.shape.get(axis) {
        Some(&channels) if vector.ty.shape == [channels] => {
            let mut shape = vec![1; x.ty.shape.len()];
            shape[axis] = channels;
            c.reshape(vector, &shape)
        }
        _ => Err(c.view.error(format!("{} does not have an element for each channel of {}", vector.ty, x.ty))),
    }
}

/// Groups of channels of x normalized, with inputs 1 and 2 as scale and bias, and the activation that an attribute names. Computed in
/// float32 at least.
fn grouped(c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
    let view = c.view;
    let groups = size(&view, "attribute groups", view.int("groups", 0)?)?;
    let is_last = is_channels_last(&view)?;
    let is_double = x.ty.data_type == DataType::Float64;
    let wide_type = if is_double { DataType::Float64 } else { DataType::Float32 };
    let wide = c.cast(x, wide_type);
    let wide = if is_last { channels_first(c, &wide)? } else { wide };
    let (Some(&batch), Some(&channels)) = (wide.ty.shape.first(), wide.ty.shape.get(1)) else {
        return Err(view.error(format!("{} has no channels", x.ty)));
    };
    if groups == 0 || channels % groups != 0 {
        return Err(view.error(format!("cannot split {channels} channels into {groups} groups")));
    }
    let mut y = wide.clone();
    if !wide.ty.shape.contains(&0) {
        let rows = standardized_rows(c, &wide, product(&view, &[batch, groups])?, view.float("epsilon", 1e-5)?)?;
        y = c.reshape(&rows, &wide.ty.shape)?;
        for (input, op) in [(1, BinaryOp::Multiply), (2, BinaryOp::Add)] {
            let vector = c.input(input)?;
            let vector = c.cast(&vector, wide_type);
            let vector = of_channels(c, &vector, &y, false)?;
            y = c.binary(op, &y, &vector)?;
        }
    }
    y = match view.int("activation", 0)? {
        0 => y,
        1 => c.unary(UnaryOp::Silu, &y)?,
        other => return Err(view.error(format!("attribute activation must be 0 or 1, not {other}"))),
    };
    let y = if is_last { channels_last(c, &y)? } else { y };
    Ok(c.cast(&y, x.ty.data_type))
}
