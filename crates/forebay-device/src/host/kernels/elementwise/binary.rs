//! Functions of two variables.

use forebay_base::DataType;
use forebay_base::kernel::{Activation, BinaryOp};

use super::super::View;
use super::super::block::map2;
use super::super::element::{Bool, Integer, Number, for_type};
use super::super::simd::limited;
use super::unary;

/// y = activation(op(a, b)).
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn run(op: BinaryOp, activation: Activation, a: &View, b: &View, y: &View) -> Result<(), String> {
    let data_type = a.desc.data_type().computed_in();
    if b.desc.data_type().computed_in() != data_type {
        return Err(format!("operand types {data_type} and {} differ; cast one first", b.desc.data_type()));
    }
    if op.is_comparison() && activation != Activation::None {
        return Err(format!("{op:?} returns bool, which does not support {activation:?}"));
    }
    if let Activation::Function(function) = activation {
        // SAFETY: the caller's promises; results are replaced in place.
        return unsafe { run(op, Activation::None, a, b, y).and_then(|()| unary::forward(function, y, y)) };
    }
    // SAFETY: the caller's promises, and the types are those of the views.
    unsafe {
        match op {
            _ if data_type == DataType::Bool => logic(op, a, b, y),
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => {
                Err(format!("{op:?} is defined for bool, not for {data_type}"))
            }
            _ if data_type.is_integer() && matches!(activation, Activation::Clip { .. }) => {
                Err(format!("{activation:?} supports only floating-point numbers, not {data_type}"))
            }
            _ if data_type.is_integer() => for_type!(data_type, integers, T => integers::<T>(op, activation, a, b, y)),
            _ if op.is_comparison() => for_type!(data_type, floats, T => compare::<T>(op, a, b, y)),
            _ => for_type!(data_type, floats, T => match activation {
                Activation::None => arithmetic::<T>(op, a, b, y),
                _ => arithmetic_limited::<T>(op, activation.limits(), a, b, y),
            }),
        }
    }
}

/// Integers are rare in models (shapes, labels and masks), so only the functions that masks and indices use are compiled into loops; others are
/// called for each element through a pointer.
///
/// # Safety
/// As for [`super::super::run`], and the operands must be of type `T`.
unsafe fn integers<T: Integer>(
    op: BinaryOp,
    activation: Activation,
    a: &View,
    b: &View,
    y: &View,
) -> Result<(), String> {
    // SAFETY: the caller's promises.
    unsafe {
        if op.is_comparison() {
            return compare::<T>(op, a, b, y);
        }
        let low = if activation == Activation::Relu { T::ZERO } else { T::from_f64(f64::NEG_INFINITY) };
        match op {
            BinaryOp::Add => map2(a, b, y, move |a: T, b: T| a.plus(b).maximum(low)),
            BinaryOp::Subtract => map2(a, b, y, move |a: T, b: T| a.minus(b).maximum(low)),
            BinaryOp::Multiply => map2(a, b, y, move |a: T, b: T| a.times(b).maximum(low)),
            _ => {
                let function = bit_function::<T>(op).map_or_else(|| arithmetic_function::<T>(op), Ok)?;
                map2(a, b, y, move |a: T, b: T| function(a, b).maximum(low))
            }
        }
    }
}

fn bit_function<T: Integer>(op: BinaryOp) -> Option<fn(T, T) -> T> {
    Some(match op {
        BinaryOp::BitAnd => T::bit_and,
        BinaryOp::BitOr => T::bit_or,
        BinaryOp::BitXor => T::bit_xor,
        BinaryOp::ShiftLeft => T::shift_left,
        BinaryOp::ShiftRight => T::shift_right,
        _ => return None,
    })
}

fn arithmetic_function<T: Number>(op: BinaryOp) -> Result<fn(T, T) -> T, String> {
    Ok(match op {
        BinaryOp::Add => T::plus,
        BinaryOp::Subtract => T::minus,
        BinaryOp::Multiply => T::times,
        BinaryOp::Divide => T::over,
        BinaryOp::Power => T::power,
        BinaryOp::Minimum => T::minimum,
        BinaryOp::Maximum => T::maximum,
        BinaryOp::Modulo => T::modulo,
        BinaryOp::Remainder => T::remainder,
        _ => return Err(format!("{op:?} is not arithmetic, or not defined for real numbers")),
    })
}

/// # Safety
/// As for [`integers`].
unsafe fn arithmetic<T: Number>(op: BinaryOp, a: &View, b: &View, y: &View) -> Result<(), String> {
    // SAFETY: the caller's promises.
    unsafe {
        match op {
            BinaryOp::Add => map2(a, b, y, T::plus),
            BinaryOp::Subtract => map2(a, b, y, T::minus),
            BinaryOp::Multiply => map2(a, b, y, T::times),
            BinaryOp::Divide => map2(a, b, y, T::over),
            BinaryOp::Minimum => map2(a, b, y, T::minimum),
            BinaryOp::Maximum => map2(a, b, y, T::maximum),
            _ => map2(a, b, y, arithmetic_function::<T>(op)?),
        }
    }
}

/// Arithmetic with results clamped to limits. Fusion produces mostly sums of this kind.
///
/// # Safety
/// As for [`integers`].
unsafe fn arithmetic_limited<T: Number>(
    op: BinaryOp,
    limits: [f32; 2],
    a: &View,
    b: &View,
    y: &View,
) -> Result<(), String> {
    let [low, high] = limits.map(|limit| T::from_f64(f64::from(limit)));
    // SAFETY: the caller's promises.
    unsafe {
        if op == BinaryOp::Add {
            return map2(a, b, y, move |a: T, b: T| limited(a.plus(b), low, high));
        }
        let function = arithmetic_function::<T>(op)?;
        map2(a, b, y, move |a: T, b: T| limited(function(a, b), low, high))
    }
}

/// # Safety
/// As for [`integers`].
unsafe fn compare<T: Number>(op: BinaryOp, a: &View, b: &View, y: &View) -> Result<(), String> {
    // SAFETY: the caller's promises.
    unsafe {
        match op {
            BinaryOp::Equal => map2(a, b, y, |a: T, b: T| Bool::from(a == b)),
            BinaryOp::Less => map2(a, b, y, |a: T, b: T| Bool::from(a < b)),
            BinaryOp::LessOrEqual => map2(a, b, y, |a: T, b: T| Bool::from(a <= b)),
            BinaryOp::Greater => map2(a, b, y, |a: T, b: T| Bool::from(a > b)),
            BinaryOp::GreaterOrEqual => map2(a, b, y, |a: T, b: T| Bool::from(a >= b)),
            _ => Err(format!("{op:?} is not a comparison")),
        }
    }
}

/// # Safety
/// As for [`super::super::run`], and the operands must be booleans.
unsafe fn logic(op: BinaryOp, a: &View, b: &View, y: &View) -> Result<(), String> {
    // SAFETY: the caller's promises.
    unsafe {
        match op {
            BinaryOp::And => map2(a, b, y, |a: Bool, b: Bool| Bool::from(a.get() & b.get())),
            BinaryOp::Or => map2(a, b, y, |a: Bool, b: Bool| Bool::from(a.get() | b.get())),
            BinaryOp::Xor => map2(a, b, y, |a: Bool, b: Bool| Bool::from(a.get() ^ b.get())),
            BinaryOp::Equal => map2(a, b, y, |a: Bool, b: Bool| Bool::from(a.get() == b.get())),
            _ => Err(format!("{op:?} is not defined for bool; cast to int32 first")),
        }
    }
}
