//! Functions of two and more variables: arithmetic, comparisons, logic, choice; conversion of types.

use forebay_base::kernel::{BinaryOp, UnaryOp};
use forebay_base::{DataType, Tensor};

use super::decomposition::{composed, Composer, Decomposition, Part};
use crate::error::ModelError;
use crate::operator::{Gradient, NodeView, Operator};

/// The rows.
pub const ROWS: &[Operator] = &[
    composed!("Add", |view| binary(view, BinaryOp::Add)),
    composed!("And", |view| binary(view, BinaryOp::And)),
    composed!("Cast", cast),
    composed!("CastLike", cast_like),
    composed!("Div", |view| binary(view, BinaryOp::Divide)),
    composed!("Equal", |view| binary(view, BinaryOp::Equal)),
    composed!("Greater", |view| binary(view, BinaryOp::Greater)),
    composed!("GreaterOrEqual", |view| binary(view, BinaryOp::GreaterOrEqual)),
    composed!("Less", |view| binary(view, BinaryOp::Less)),
    composed!("LessOrEqual", |view| binary(view, BinaryOp::LessOrEqual)),
    composed!("Max", |view| variadic(view, BinaryOp::Maximum)),
    composed!("Mean", mean),
    composed!("Min", |view| variadic(view, BinaryOp::Minimum)),
    Operator { gradient: Gradient::Missing, ..composed!("Mod", modulo) },
    composed!("Mul", |view| binary(view, BinaryOp::Multiply)),
    composed!("Or", |view| binary(view, BinaryOp::Or)),
    composed!("Pow", power),
    composed!("Sub", |view| binary(view, BinaryOp::Subtract)),
    composed!("Sum", |view| variadic(view, BinaryOp::Add)),
    composed!("Where", choose),
    composed!("Xor", |view| binary(view, BinaryOp::Xor)),
];

fn binary(view: NodeView, op: BinaryOp) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (a, b) = (c.input(0)?, c.input(1)?);
    let y = c.binary(op, &a, &b)?;
    c.finish(y)
}

fn variadic(view: NodeView, op: BinaryOp) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let y = fold(&mut c, op)?;
    c.finish(y)
}

/// All inputs combined from the left.
fn fold(c: &mut Composer, op: BinaryOp) -> Result<Part, ModelError> {
    let mut y = c.input(0)?;
    for i in 1..c.view.node.inputs.len() {
        let x = c.input(i)?;
        y = c.binary(op, &y, &x)?;
    }
    Ok(y)
}

fn mean(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let sum = fold(&mut c, BinaryOp::Add)?;
    let y = c.affine(&sum, 1.0 / view.node.inputs.len() as f32, 0.0)?;
    c.finish(y)
}

fn choose(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (condition, a, b) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let y = c.select(&condition, &a, &b)?;
    c.finish(y)
}

/// a - b floor(a / b), which has the sign of b; for integers with `fmod` or where nothing is negative, a - b (a / b).
fn modulo(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (a, b) = (c.input(0)?, c.input(1)?);
    let truncates = view.int("fmod", 0)? != 0;
    let quotient = c.binary(BinaryOp::Divide, &a, &b)?;
    if a.ty.data_type.is_float() {
        let floor = match truncates {
            false => c.unary(UnaryOp::Floor, &quotient)?,
            true => {
                let absolute = c.unary(UnaryOp::Abs, &quotient)?;
                let floor = c.unary(UnaryOp::Floor, &absolute)?;
                let sign = c.unary(UnaryOp::Sign, &quotient)?;
                c.binary(BinaryOp::Multiply, &floor, &sign)?
            }
        };
        let product = c.binary(BinaryOp::Multiply, &floor, &b)?;
        let y = c.binary(BinaryOp::Subtract, &a, &product)?;
        return c.finish(y);
    }
    let product = c.binary(BinaryOp::Multiply, &quotient, &b)?;
    let remainder = c.binary(BinaryOp::Subtract, &a, &product)?;
    if truncates {
        return c.finish(remainder);
    }
    // (remainder + b) mod b has the sign of b, whatever the remainder's.
    let shifted = c.binary(BinaryOp::Add, &remainder, &b)?;
    let quotient = c.binary(BinaryOp::Divide, &shifted, &b)?;
    let product = c.binary(BinaryOp::Multiply, &quotient, &b)?;
    let y = c.binary(BinaryOp::Subtract, &shifted, &product)?;
    c.finish(y)
}

/// Powers by small constant numbers are products and roots; their gradients then hold where the base is not positive.
fn power(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (base, exponent) = (c.input(0)?, c.input(1)?);
    let constant = view.constant(1)?.filter(|tensor| tensor.count() == 1).and_then(number);
    let is_plain = exponent.ty.shape.iter().all(|&size| size == 1) && exponent.ty.shape.len() <= base.ty.shape.len();
    if let Some(number) = constant.filter(|_| is_plain && base.ty.data_type.is_float()) {
        let y = match number {
            1.0 => Some(base.clone()),
            2.0 => Some(c.binary(BinaryOp::Multiply, &base, &base)?),
            3.0 => {
                let square = c.binary(BinaryOp::Multiply, &base, &base)?;
                Some(c.binary(BinaryOp::Multiply, &square, &base)?)
            }
            0.5 => Some(c.unary(UnaryOp::Sqrt, &base)?),
            -1.0 => Some(c.unary(UnaryOp::Reciprocal, &base)?),
            -0.5 => {
                let root = c.unary(UnaryOp::Sqrt, &base)?;
                Some(c.unary(UnaryOp::Reciprocal, &root)?)
            }
            _ => None,
        };
        if let Some(y) = y {
            return c.finish(y);
        }
    }
    let exponent = c.cast(&exponent, base.ty.data_type);
    let y = c.binary(BinaryOp::Power, &base, &exponent)?;
    c.finish(y)
}

/// The first element as a number.
fn number(tensor: &Tensor) -> Option<f32> {
    tensor.to_f32().map(|v| v[0]).or_else(|| tensor.to_i64().map(|v| v[0] as f32))
}

fn cast(view: NodeView) -> Result<Decomposition, ModelError> {
    let code = view.int("to", 0)?;
    let data_type = data_type(code).ok_or_else(|| view.error(format!("element type {code} is not supported")))?;
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let y = c.cast(&x, data_type);
    c.finish(y)
}

fn cast_like(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (x, like) = (c.input(0)?, c.input(1)?);
    let y = c.cast(&x, like.ty.data_type);
    c.finish(y)
}

/// ONNX's numbers of element types.
pub(super) fn data_type(code: i64) -> Option<DataType> {
    Some(match code {
        1 => DataType::Float32,
        2 => DataType::UInt8,
        3 => DataType::Int8,
        4 => DataType::UInt16,
        5 => DataType::Int16,
        6 => DataType::Int32,
        7 => DataType::Int64,
        9 => DataType::Bool,
        10 => DataType::Float16,
        11 => DataType::Float64,
        12 => DataType::UInt32,
        13 => DataType::UInt64,
        16 => DataType::BFloat16,
        _ => return None,
    })
}
