//! Functions of two or more variables: arithmetic, comparisons, logic, selection.

use forebay_base::kernel::{BinaryOp, UnaryOp};
use forebay_base::{DataType, Tensor};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::shapes::broadcast_shapes;
use crate::error::ModelError;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("Add", |view| binary(view, BinaryOp::Add)),
    composed!("And", |view| binary(view, BinaryOp::And)),
    composed!("BitShift", bit_shift),
    composed!("BitwiseAnd", |view| binary(view, BinaryOp::BitAnd)),
    composed!("BitwiseNot", bitwise_not),
    composed!("BitwiseOr", |view| binary(view, BinaryOp::BitOr)),
    composed!("BitwiseXor", |view| binary(view, BinaryOp::BitXor)),
    composed!("Div", |view| binary(view, BinaryOp::Divide)),
    composed!("Equal", |view| binary(view, BinaryOp::Equal)),
    composed!("Greater", |view| binary(view, BinaryOp::Greater)),
    composed!("GreaterOrEqual", |view| binary(view, BinaryOp::GreaterOrEqual)),
    composed!("Less", |view| binary(view, BinaryOp::Less)),
    composed!("LessOrEqual", |view| binary(view, BinaryOp::LessOrEqual)),
    composed!("Max", |view| variadic(view, BinaryOp::Maximum)),
    composed!("Mean", mean),
    composed!("Min", |view| variadic(view, BinaryOp::Minimum)),
    composed!("Mod", modulo),
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
    let b = aligned(&c, &a, b)?;
    let y = c.binary(op, &a, &b)?;
    c.finish(y)
}

/// The second operand, in a shape that broadcasts to the first one's. Before opset 7, operands of different shapes require attribute
/// `broadcast`, and the second one's dimensions are those of the first one from its axis `axis` on, or the last ones.
fn aligned(c: &Composer, a: &Part, b: Part) -> Result<Part, ModelError> {
    let view = c.view;
    if view.version() >= 7 || a.ty.shape == b.ty.shape {
        return Ok(b);
    }
    if view.int("broadcast", 0)? == 0 {
        let reason = format!(
            "operands {} and {} differ in shape, which requires attribute broadcast to be 1 in opset {}",
            a.ty,
            b.ty,
            view.version()
        );
        return Err(view.error(reason));
    }
    if b.ty.count() == 1 {
        return c.reshape(&b, &[]);
    }
    let (rank, own) = (a.ty.shape.len(), b.ty.shape.len());
    let axis = match view.attribute("axis") {
        Some(_) => view.axis(view.int("axis", 0)?, rank)?,
        None => rank.saturating_sub(own),
    };
    let shape = rank.checked_sub(axis + own).map(|after| [b.ty.shape.as_slice(), &vec![1; after]].concat());
    let fits = |shape: &Vec<u64>| broadcast_shapes(&view, &a.ty.shape, shape).is_ok_and(|both| both == a.ty.shape);
    let shape = shape.filter(fits);
    let shape =
        shape.ok_or_else(|| view.error(format!("{} does not broadcast to {} from axis {axis} on", b.ty, a.ty)))?;
    c.reshape(&b, &shape)
}

fn variadic(view: NodeView, op: BinaryOp) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let y = fold(&mut c, op)?;
    let y = c.cast(&y, view.input_type(0)?.data_type);
    c.finish(y)
}

/// All inputs, combined from left to right. Nothing is rounded to 16 bits between the steps: several inputs of such types become float32.
fn fold(c: &mut Composer, op: BinaryOp) -> Result<Part, ModelError> {
    let first = c.input(0)?;
    let (own, wide) = (first.ty.data_type, first.ty.data_type.computed_in());
    let mut y = first;
    for i in 1..c.view.node.inputs.len() {
        let x = c.input(i)?;
        if x.ty.data_type != own {
            return Err(c.view.error(format!("input {i} is {}, but input 0 is of type {own}", x.ty)));
        }
        let (left, right) = (c.cast(&y, wide), c.cast(&x, wide));
        y = c.binary(op, &left, &right)?;
    }
    Ok(y)
}

fn mean(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let sum = fold(&mut c, BinaryOp::Add)?;
    let count = view.node.inputs.len();
    let y = if sum.ty.data_type == DataType::Float64 {
        let count = c.scalar(DataType::Float64, count as f64)?;
        c.binary(BinaryOp::Divide, &sum, &count)?
    } else {
        c.affine(&sum, 1.0 / count as f32, 0.0)?
    };
    let y = c.cast(&y, view.input_type(0)?.data_type);
    c.finish(y)
}

fn choose(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (condition, a, b) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let y = c.select(&condition, &a, &b)?;
    c.finish(y)
}

/// The remainder of a division, with the sign of b, or with that of a if `fmod` is set.
fn modulo(view: NodeView) -> Result<Decomposition, ModelError> {
    binary(view, if view.int("fmod", 0)? != 0 { BinaryOp::Remainder } else { BinaryOp::Modulo })
}

/// A right shift of signed integers is arithmetic: copies of the sign bit are shifted in from the left. A shift by the type's width or
/// more, or by a negative number, gives only copies of the sign bit.
fn bit_shift(view: NodeView) -> Result<Decomposition, ModelError> {
    let data_type = view.input_type(0)?.data_type;
    if !data_type.is_integer() {
        return Err(view.error(format!("expected integers, found {data_type}")));
    }
    let is_signed = matches!(data_type, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64);
    match view.string("direction", "")? {
        "LEFT" => binary(view, BinaryOp::ShiftLeft),
        "RIGHT" if is_signed => {
            let mut c = Composer::new(view);
            let (x, count) = (c.input(0)?, c.input(1)?);
            let largest = c.scalar(data_type, (8 * data_type.size_bytes() - 1) as f64)?;
            let zero = c.scalar(data_type, 0.0)?;
            let is_negative = c.binary(BinaryOp::Less, &count, &zero)?;
            let count = c.select(&is_negative, &largest, &count)?;
            let count = c.binary(BinaryOp::Minimum, &count, &largest)?;
            let y = c.binary(BinaryOp::ShiftRight, &x, &count)?;
            c.finish(y)
        }
        "RIGHT" => binary(view, BinaryOp::ShiftRight),
        other => Err(view.error(format!("attribute direction must be LEFT or RIGHT, not '{other}'"))),
    }
}

/// Inverts every bit: exclusive or with ones.
fn bitwise_not(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let data_type = x.ty.data_type;
    let ones = Tensor::new(data_type, &[], vec![0xff; data_type.size_bytes() as usize]);
    let ones = ones.filter(|_| data_type.is_integer());
    let ones = ones.ok_or_else(|| view.error(format!("expected integers, found {data_type}")))?;
    let ones = c.constant(ones);
    let y = c.binary(BinaryOp::BitXor, &x, &ones)?;
    c.finish(y)
}

/// Powers with small constant exponents become products and roots, whose gradients are also valid for bases that are not positive.
fn power(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (base, exponent) = (c.input(0)?, c.input(1)?);
    let exponent = aligned(&c, &base, exponent)?;
    let constant = view.unchanging(1)?.filter(|tensor| tensor.count() == 1).and_then(number);
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
    let data_type = base.ty.data_type;
    // An exponent is not rounded to 16 bits, and an integer base only beyond 53 bits. Results that are not integers are truncated.
    let wide = match exponent.ty.data_type {
        other if data_type.is_integer() && other.is_float() => DataType::Float64,
        other if other != data_type => data_type.computed_in(),
        _ => data_type,
    };
    let (base, exponent) = (c.cast(&base, wide), c.cast(&exponent, wide));
    let power = c.binary(BinaryOp::Power, &base, &exponent)?;
    let y = c.cast(&power, data_type);
    c.finish(y)
}

/// The first element as a number.
fn number(tensor: &Tensor) -> Option<f32> {
    tensor.to_f32().map(|v| v[0]).or_else(|| tensor.to_i64().map(|v| v[0] as f32))
}
