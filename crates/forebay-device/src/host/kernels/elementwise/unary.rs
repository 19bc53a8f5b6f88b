//! Functions of one variable and their gradients.

use std::cmp::Ordering;

use forebay_base::DataType;
use forebay_base::kernel::UnaryOp;

use super::super::View;
use super::super::block::{loop1, map1, map1_blocks, map2};
use super::super::buffer::{BLOCK, Buffer};
use super::super::element::{Bool, Float, Number, for_type};
use super::super::parallel::{wide, widest};
use super::super::simd::limited;
use super::super::stored::is_f32;

/// y = op(x).
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn forward(op: UnaryOp, x: &View, y: &View) -> Result<(), String> {
    let data_type = x.desc.data_type().computed_in();
    // SAFETY: the caller's promises, and the types are those of the views.
    unsafe {
        match data_type {
            DataType::Float32 => map1_blocks(x, y, &*function::<f32>(op)?),
            DataType::Float64 => map1_blocks(x, y, &*function::<f64>(op)?),
            DataType::Bool if op == UnaryOp::Not => map1(x, y, |x: Bool| Bool::from(!x.get())),
            _ => for_type!(data_type, integers, T => forward_integer::<T>(op, x, y)),
        }
    }
}

/// Integers are rare in models (shapes and labels), so their functions are called indirectly instead of each being compiled into a loop.
///
/// # Safety
/// As for [`super::super::run`], and the views must be of type `T`.
unsafe fn forward_integer<T: Number>(op: UnaryOp, x: &View, y: &View) -> Result<(), String> {
    let zero = T::ZERO;
    let one = T::from_f64(1.0);
    let function: Box<dyn Fn(T) -> T + Sync> = match op {
        UnaryOp::Relu => Box::new(move |x| x.maximum(zero)),
        UnaryOp::Clip { low, high } => {
            let (low, high) = (T::from_f64(low as f64), T::from_f64(high as f64));
            Box::new(move |x| x.maximum(low).minimum(high))
        }
        UnaryOp::Affine { scale, shift } if scale.fract() == 0.0 && shift.fract() == 0.0 => {
            // With wrapping arithmetic, so that negation also works for unsigned types and the smallest number.
            let magnitude = |value: f32| T::from_f64(value.abs() as f64);
            let signed = |value: f32| if value < 0.0 { zero.minus(magnitude(value)) } else { magnitude(value) };
            let (scale, shift) = (signed(scale), signed(shift));
            Box::new(move |x| x.times(scale).plus(shift))
        }
        UnaryOp::Abs => Box::new(T::magnitude),
        UnaryOp::Sign => Box::new(move |x| match x.partial_cmp(&zero) {
            Some(Ordering::Greater) => one,
            Some(Ordering::Less) => zero.minus(one),
            _ => zero,
        }),
        UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => Box::new(|x| x),
        _ => return Err(format!("{op:?} is not defined for {}; cast to float32 first", x.desc.data_type())),
    };
    // SAFETY: the caller's promises.
    unsafe { map1(x, y, |x: T| function(x)) }
}

/// max(x, 0), which propagates NaN.
#[inline(always)]
fn relu<T: Float>(x: T) -> T {
    if x < T::ZERO { T::ZERO } else { x }
}

#[inline(always)]
fn sigmoid<T: Float>(x: T) -> T {
    T::ONE / (-x).exponential_plus_one()
}

#[inline(always)]
fn silu<T: Float>(x: T) -> T {
    x / (-x).exponential_plus_one()
}

/// x / 2 (1 + erf(x / sqrt 2)).
#[inline(always)]
fn gelu<T: Float>(x: T) -> T {
    T::from_f64(0.5) * x * (T::ONE + (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).error_function())
}

/// For [`UnaryOp::TanhGelu`]: the tanh of x (linear + cubic x^2), and the derivative of that argument.
#[inline(always)]
fn tanh_gate<T: Float>(x: T) -> (T, T) {
    // sqrt(2 / pi).
    const LINEAR: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    const CUBIC: f64 = 0.044_715 * LINEAR;
    let (linear, square) = (T::from_f64(LINEAR), x * x);
    let tanh = (x * (linear + T::from_f64(CUBIC) * square)).hyperbolic_tangent();
    (tanh, linear + T::from_f64(3.0 * CUBIC) * square)
}

#[inline(always)]
fn tanh_gelu<T: Float>(x: T) -> T {
    T::from_f64(0.5) * x * (T::ONE + tanh_gate(x).0)
}

/// x / 6 + 1 / 2 between 0 and 1.
#[inline(always)]
fn hard_gate<T: Float>(x: T) -> T {
    limited(T::from_f64(1.0 / 6.0) * x + T::from_f64(0.5), T::ZERO, T::ONE)
}

/// ln(1 + exp(x)) without overflow.
#[inline(always)]
fn softplus<T: Float>(x: T) -> T {
    relu(x) + (-x.magnitude()).exponential().logarithm_of_one_plus()
}

/// A function of each element of a block, which stores the results in another one.
pub(in super::super) type BlockFunction<T> = Box<dyn Fn(&[T], &mut [T]) + Sync>;

/// Replaces numbers by the results of a function.
pub(in super::super) fn apply(function: &BlockFunction<f32>, values: &mut [f32]) {
    for block in values.chunks_mut(BLOCK) {
        let mut buffer = Buffer::new();
        // SAFETY: a block has at most as many elements as a buffer.
        function(unsafe { buffer.copy_of(block.as_ptr(), block.len()) }, block);
    }
}

/// Compiles a function into a loop over blocks.
#[inline(always)]
fn each<T: Float>(f: impl Fn(T) -> T + Sync + 'static) -> Result<BlockFunction<T>, String> {
    Ok(Box::new(move |x, y| {
        wide(
            #[inline(always)]
            || loop1(x, y, &f),
        );
    }))
}

/// Compiles a function that takes long into a loop over blocks, with the widest vectors if its elements are float32.
#[inline(always)]
fn each_long<T: Float>(f: impl Fn(T) -> T + Sync + 'static) -> Result<BlockFunction<T>, String> {
    if !is_f32::<T>() {
        return each(f);
    }
    Ok(Box::new(move |x, y| {
        widest(
            #[inline(always)]
            || loop1(x, y, &f),
        );
    }))
}

/// Returns a function that is computed one element at a time anyway.
fn each_alone<T: Float>(f: fn(T) -> T) -> Result<BlockFunction<T>, String> {
    Ok(Box::new(move |x, y| loop1(x, y, &f)))
}

/// Returns the function of blocks that an operation computes.
///
/// # Errors
/// Returns an error if it is not defined for floating-point numbers.
pub(in super::super) fn function<T: Float>(op: UnaryOp) -> Result<BlockFunction<T>, String> {
    let number = |value: f32| T::from_f64(value as f64);
    match op {
        UnaryOp::Relu => each(relu::<T>),
        UnaryOp::LeakyRelu { alpha } => {
            let alpha = number(alpha);
            each(move |x: T| if x < T::ZERO { alpha * x } else { x })
        }
        UnaryOp::Elu { alpha } => {
            let alpha = number(alpha);
            each(
                #[inline(always)]
                move |x: T| if x < T::ZERO { alpha * x.exponential_minus_one() } else { x },
            )
        }
        UnaryOp::Clip { low, high } => {
            let (low, high) = (number(low), number(high));
            each(move |x: T| limited(x, low, high))
        }
        UnaryOp::Affine { scale, shift } => {
            let (scale, shift) = (number(scale), number(shift));
            each(move |x: T| scale * x + shift)
        }
        UnaryOp::Sigmoid => each_long(sigmoid::<T>),
        UnaryOp::HardSigmoid { alpha, beta } => {
            let (alpha, beta) = (number(alpha), number(beta));
            each(move |x: T| limited(alpha * x + beta, T::ZERO, T::ONE))
        }
        UnaryOp::Tanh => each_long(T::hyperbolic_tangent),
        UnaryOp::Exp => each_long(T::exponential),
        UnaryOp::Log => each_long(T::logarithm),
        UnaryOp::Sqrt => each(T::square_root),
        UnaryOp::Reciprocal => each(|x: T| T::ONE / x),
        UnaryOp::Abs => each(T::magnitude),
        UnaryOp::Sign => each(sign::<T>),
        UnaryOp::Floor => each(T::floor),
        UnaryOp::Ceil => each(T::ceil),
        UnaryOp::Erf => each_long(T::error_function),
        UnaryOp::Gelu => each_long(gelu::<T>),
        UnaryOp::TanhGelu => each_long(tanh_gelu::<T>),
        UnaryOp::Softplus => each_long(softplus::<T>),
        UnaryOp::Silu => each_long(silu::<T>),
        UnaryOp::HardSwish => each(|x: T| x * hard_gate(x)),
        UnaryOp::Sin => each_alone(T::sine),
        UnaryOp::Cos => each_alone(T::cosine),
        UnaryOp::Round => each(T::round_to_even),
        UnaryOp::Tan => each_alone(T::tangent),
        UnaryOp::Asin => each_alone(T::arc_sine),
        UnaryOp::Acos => each_alone(T::arc_cosine),
        UnaryOp::Atan => each_alone(T::arc_tangent),
        UnaryOp::Sinh => each_alone(T::hyperbolic_sine),
        UnaryOp::Cosh => each_alone(T::hyperbolic_cosine),
        UnaryOp::Asinh => each_alone(T::area_sine),
        UnaryOp::Acosh => each_alone(T::area_cosine),
        UnaryOp::Atanh => each_alone(T::area_tangent),
        UnaryOp::Not => Err("Not is defined for bool, not for floating-point types".to_string()),
    }
}

/// The sign of x: -1, 0 or 1; NaN stays NaN.
#[inline(always)]
fn sign<T: Float>(x: T) -> T {
    if x > T::ZERO {
        T::ONE
    } else if x < T::ZERO {
        -T::ONE
    } else {
        x
    }
}

/// dx = dy op'(x), from x or y as [`UnaryOp::gradient_uses_output`] says.
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn gradient(op: UnaryOp, dy: &View, value: &View, dx: &View) -> Result<(), String> {
    // SAFETY: the caller's promises, and the type is that of the views.
    unsafe { for_type!(dy.desc.data_type().computed_in(), floats, T => gradient_float::<T>(op, dy, value, dx)) }
}

/// # Safety
/// As for [`super::super::run`], and the views must be of type `T`.
unsafe fn gradient_float<T: Float>(op: UnaryOp, dy: &View, value: &View, dx: &View) -> Result<(), String> {
    let number = |value: f32| T::from_f64(value as f64);
    let real = T::from_f64;
    // SAFETY: the caller's promises.
    unsafe {
        match op {
            UnaryOp::Relu => map2(dy, value, dx, |dy: T, y: T| if y > T::ZERO { dy } else { T::ZERO }),
            UnaryOp::LeakyRelu { alpha } => {
                let alpha = number(alpha);
                map2(dy, value, dx, move |dy: T, x: T| if x > T::ZERO { dy } else { alpha * dy })
            }
            UnaryOp::Elu { alpha } => {
                let alpha = number(alpha);
                map2(
                    dy,
                    value,
                    dx,
                    #[inline(always)]
                    move |dy: T, x: T| if x > T::ZERO { dy } else { dy * alpha * x.exponential() },
                )
            }
            UnaryOp::Clip { low, high } => {
                let (low, high) = (number(low), number(high));
                map2(dy, value, dx, move |dy: T, x: T| if x >= low && x <= high { dy } else { T::ZERO })
            }
            UnaryOp::Affine { scale, .. } => {
                let scale = number(scale);
                map1(dy, dx, move |dy: T| scale * dy)
            }
            UnaryOp::Sigmoid => map2(dy, value, dx, |dy: T, y: T| dy * (y * (T::ONE - y))),
            UnaryOp::HardSigmoid { alpha, beta } => {
                let (alpha, beta) = (number(alpha), number(beta));
                map2(dy, value, dx, move |dy: T, x: T| {
                    let line = alpha * x + beta;
                    if line > T::ZERO && line < T::ONE { alpha * dy } else { T::ZERO }
                })
            }
            UnaryOp::Tanh => map2(dy, value, dx, |dy: T, y: T| dy * (T::ONE - y * y)),
            UnaryOp::Exp => map2(dy, value, dx, |dy: T, y: T| dy * y),
            UnaryOp::Log => map2(dy, value, dx, |dy: T, x: T| dy / x),
            UnaryOp::Sqrt => map2(dy, value, dx, |dy: T, y: T| dy / (y + y)),
            UnaryOp::Reciprocal => map2(dy, value, dx, |dy: T, y: T| -dy * (y * y)),
            UnaryOp::Abs => map2(dy, value, dx, |dy: T, x: T| dy * sign(x)),
            UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => map1(dy, dx, |_: T| T::ZERO),
            UnaryOp::Erf => {
                let factor = real(std::f64::consts::FRAC_2_SQRT_PI);
                map2(
                    dy,
                    value,
                    dx,
                    #[inline(always)]
                    move |dy: T, x: T| dy * (factor * (-(x * x)).exponential()),
                )
            }
            UnaryOp::Gelu => {
                let (half, root_half) = (real(0.5), real(std::f64::consts::FRAC_1_SQRT_2));
                // The normal density at 0: 1 / sqrt(2 pi).
                let density = real(0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2);
                map2(
                    dy,
                    value,
                    dx,
                    #[inline(always)]
                    move |dy: T, x: T| {
                        let distribution = half * (T::ONE + (x * root_half).error_function());
                        dy * (distribution + x * (density * (-half * (x * x)).exponential()))
                    },
                )
            }
            UnaryOp::TanhGelu => map2(
                dy,
                value,
                dx,
                #[inline(always)]
                |dy: T, x: T| {
                    let (half, (tanh, slope)) = (real(0.5), tanh_gate(x));
                    dy * (half * (T::ONE + tanh) + half * x * (T::ONE - tanh * tanh) * slope)
                },
            ),
            UnaryOp::Softplus => map2(
                dy,
                value,
                dx,
                #[inline(always)]
                |dy: T, x: T| dy * sigmoid(x),
            ),
            UnaryOp::Silu => map2(
                dy,
                value,
                dx,
                #[inline(always)]
                |dy: T, x: T| {
                    let s = sigmoid(x);
                    dy * (s * (T::ONE + x * (T::ONE - s)))
                },
            ),
            UnaryOp::HardSwish => {
                let sixth = real(1.0 / 6.0);
                map2(dy, value, dx, move |dy: T, x: T| {
                    let gate = hard_gate(x);
                    let is_inside = gate > T::ZERO && gate < T::ONE;
                    dy * if is_inside { gate + x * sixth } else { gate }
                })
            }
            UnaryOp::Sin => map2(dy, value, dx, |dy: T, x: T| dy * x.cosine()),
            UnaryOp::Cos => map2(dy, value, dx, |dy: T, x: T| -dy * x.sine()),
            UnaryOp::Tan => map2(dy, value, dx, |dy: T, y: T| dy * (T::ONE + y * y)),
            UnaryOp::Asin => map2(dy, value, dx, |dy: T, x: T| dy / ((T::ONE - x) * (T::ONE + x)).square_root()),
            UnaryOp::Acos => map2(dy, value, dx, |dy: T, x: T| -dy / ((T::ONE - x) * (T::ONE + x)).square_root()),
            UnaryOp::Atan => map2(dy, value, dx, |dy: T, x: T| dy / (T::ONE + x * x)),
            UnaryOp::Sinh => map2(dy, value, dx, |dy: T, x: T| dy * x.hyperbolic_cosine()),
            UnaryOp::Cosh => map2(dy, value, dx, |dy: T, x: T| dy * x.hyperbolic_sine()),
            UnaryOp::Asinh => map2(dy, value, dx, |dy: T, x: T| dy / (x * x + T::ONE).square_root()),
            UnaryOp::Acosh => map2(dy, value, dx, |dy: T, x: T| dy / ((x - T::ONE) * (x + T::ONE)).square_root()),
            UnaryOp::Atanh => map2(dy, value, dx, |dy: T, x: T| dy / ((T::ONE - x) * (T::ONE + x))),
            UnaryOp::Not => Err("Not has no gradient".into()),
        }
    }
}
