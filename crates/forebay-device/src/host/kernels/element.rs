//! Element types and the arithmetic on them that kernels need.

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use forebay_base::rounded_to_odd;
use half::{bf16, f16};

use super::math;

/// Anything that kernels move: plain data for which every bit pattern is valid.
pub(super) trait Element: Copy + Send + Sync + 'static {
    /// All bits 0.
    const ZERO: Self;
}

/// ONNX's boolean: one byte, 0 or 1. Any other byte counts as true.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Bool(pub u8);

impl Bool {
    /// Whether the byte is not 0.
    #[inline(always)]
    pub fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    #[inline(always)]
    fn from(value: bool) -> Bool {
        Bool(value as u8)
    }
}

impl Element for Bool {
    const ZERO: Bool = Bool(0);
}

impl Element for f16 {
    const ZERO: f16 = f16::ZERO;
}

impl Element for bf16 {
    const ZERO: bf16 = bf16::ZERO;
}

/// Numbers. Integers wrap, and their division truncates and gives 0 for a divisor of 0.
pub(super) trait Number: Element + PartialOrd {
    /// Converts to the nearest number (integers truncate and saturate).
    fn from_f64(value: f64) -> Self;
    /// Converts to a double.
    fn to_f64(self) -> f64;
    /// Sum.
    fn plus(self, other: Self) -> Self;
    /// Difference.
    fn minus(self, other: Self) -> Self;
    /// Product.
    fn times(self, other: Self) -> Self;
    /// Quotient.
    fn over(self, other: Self) -> Self;
    /// Power.
    fn power(self, exponent: Self) -> Self;
    /// The smaller; NaN if either is.
    fn minimum(self, other: Self) -> Self;
    /// The larger; NaN if either is.
    fn maximum(self, other: Self) -> Self;
    /// Magnitude.
    fn magnitude(self) -> Self;
    /// Remainder of a division, with this number's sign; 0 for an integer divided by 0.
    fn remainder(self, divisor: Self) -> Self;
    /// Remainder of a division, with the divisor's sign; 0 for an integer divided by 0.
    fn modulo(self, divisor: Self) -> Self {
        let left = self.remainder(divisor);
        let differs = (left < Self::ZERO) != (divisor < Self::ZERO);
        if left != Self::ZERO && differs { left.plus(divisor) } else { left }
    }
}

/// Integers and operations on their bits.
pub(super) trait Integer: Number {
    /// Bitwise and.
    fn bit_and(self, other: Self) -> Self;
    /// Bitwise or.
    fn bit_or(self, other: Self) -> Self;
    /// Bitwise exclusive or.
    fn bit_xor(self, other: Self) -> Self;
    /// Bits shifted to the left; 0 if none are left, or if the count is negative.
    fn shift_left(self, count: Self) -> Self;
    /// Bits shifted to the right; 0 if none are left, or if the count is negative.
    fn shift_right(self, count: Self) -> Self;
}

/// Real numbers. No function calls the system's library, whose last bit can differ between systems. Inside `wide`, the functions of
/// [`math`] and everything that is computed without a call become vector code.
pub(super) trait Float:
    Number
    + Default
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    /// 1.
    const ONE: Self;
    /// The smallest value, below all others.
    const LOWEST: Self;
    /// Not a number.
    const NAN: Self;
    /// Square root.
    fn square_root(self) -> Self;
    /// Largest integer that is not above the number.
    fn floor(self) -> Self;
    /// Smallest integer that is not below the number.
    fn ceil(self) -> Self;
    /// The nearest integer, with ties to even.
    fn round_to_even(self) -> Self;
    /// e to the power x.
    fn exponential(self) -> Self;
    /// e^x + 1.
    fn exponential_plus_one(self) -> Self;
    /// e^x - 1 without cancellation.
    fn exponential_minus_one(self) -> Self;
    /// Natural logarithm.
    fn logarithm(self) -> Self;
    /// Natural logarithm of a normal, positive, finite number.
    fn logarithm_of_normal(self) -> Self;
    /// ln(1 + x) without cancellation.
    fn logarithm_of_one_plus(self) -> Self;
    /// Error function.
    fn error_function(self) -> Self;
    /// Sine.
    fn sine(self) -> Self;
    /// Cosine.
    fn cosine(self) -> Self;
    /// Tangent.
    fn tangent(self) -> Self;
    /// Inverse sine.
    fn arc_sine(self) -> Self;
    /// Inverse cosine.
    fn arc_cosine(self) -> Self;
    /// Inverse tangent.
    fn arc_tangent(self) -> Self;
    /// Hyperbolic sine.
    fn hyperbolic_sine(self) -> Self;
    /// Hyperbolic cosine.
    fn hyperbolic_cosine(self) -> Self;
    /// Hyperbolic tangent.
    fn hyperbolic_tangent(self) -> Self;
    /// Inverse hyperbolic sine.
    fn area_sine(self) -> Self;
    /// Inverse hyperbolic cosine.
    fn area_cosine(self) -> Self;
    /// Inverse hyperbolic tangent.
    fn area_tangent(self) -> Self;
}

macro_rules! integers {
    ($($type:ident $magnitude:expr;)*) => {$(
        impl Element for $type {
            const ZERO: $type = 0;
        }

        impl Number for $type {
            #[inline(always)]
            fn from_f64(value: f64) -> $type {
                value as $type
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn plus(self, other: $type) -> $type {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn minus(self, other: $type) -> $type {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn times(self, other: $type) -> $type {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn over(self, other: $type) -> $type {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            fn power(self, exponent: $type) -> $type {
                match u64::try_from(exponent) {
                    Ok(mut exponent) => {
                        let (mut result, mut base): ($type, $type) = (1, self);
                        while exponent > 0 {
                            if exponent & 1 == 1 {
                                result = result.wrapping_mul(base);
                            }
                            base = base.wrapping_mul(base);
                            exponent >>= 1;
                        }
                        result
                    }
                    // 1 / base^n truncates to 0 except for 1 and -1, whose inverses are themselves.
                    Err(_) if self == 1 => 1,
                    Err(_) if self.wrapping_add(1) == 0 => if exponent % 2 == 0 { 1 } else { self },
                    Err(_) => 0,
                }
            }
            #[inline(always)]
            fn minimum(self, other: $type) -> $type {
                self.min(other)
            }
            #[inline(always)]
            fn maximum(self, other: $type) -> $type {
                self.max(other)
            }
            #[inline(always)]
            fn magnitude(self) -> $type {
                let magnitude: fn($type) -> $type = $magnitude;
                magnitude(self)
            }
            #[inline(always)]
            fn remainder(self, divisor: $type) -> $type {
                if divisor == 0 { 0 } else { self.wrapping_rem(divisor) }
            }
        }

        impl Integer for $type {
            #[inline(always)]
            fn bit_and(self, other: $type) -> $type {
                self & other
            }
            #[inline(always)]
            fn bit_or(self, other: $type) -> $type {
                self | other
            }
            #[inline(always)]
            fn bit_xor(self, other: $type) -> $type {
                self ^ other
            }
            #[inline(always)]
            fn shift_left(self, count: $type) -> $type {
                u32::try_from(count).ok().and_then(|count| self.checked_shl(count)).unwrap_or(0)
            }
            #[inline(always)]
            fn shift_right(self, count: $type) -> $type {
                u32::try_from(count).ok().and_then(|count| self.checked_shr(count)).unwrap_or(0)
            }
        }
    )*};
}

integers! {
    i64 i64::wrapping_abs;
    i32 i32::wrapping_abs;
    i16 i16::wrapping_abs;
    i8 i8::wrapping_abs;
    u64 |x| x;
    u32 |x| x;
    u16 |x| x;
    u8 |x| x;
}

macro_rules! floats {
    ($($type:ident { power: $power:path, $($name:ident: $function:path),* })*) => {$(
        impl Element for $type {
            const ZERO: $type = 0.0;
        }

        impl Number for $type {
            #[inline(always)]
            fn from_f64(value: f64) -> $type {
                value as $type
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn plus(self, other: $type) -> $type {
                self + other
            }
            #[inline(always)]
            fn minus(self, other: $type) -> $type {
                self - other
            }
            #[inline(always)]
            fn times(self, other: $type) -> $type {
                self * other
            }
            #[inline(always)]
            fn over(self, other: $type) -> $type {
                self / other
            }
            #[inline(always)]
            fn power(self, exponent: $type) -> $type {
                $power(self, exponent)
            }
            #[inline(always)]
            fn minimum(self, other: $type) -> $type {
                if (self < other) | self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn maximum(self, other: $type) -> $type {
                if (self > other) | self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn magnitude(self) -> $type {
                self.abs()
            }
            #[inline(always)]
            fn remainder(self, divisor: $type) -> $type {
                self % divisor
            }
        }

        impl Float for $type {
            const ONE: $type = 1.0;
            const LOWEST: $type = $type::NEG_INFINITY;
            const NAN: $type = $type::NAN;
            #[inline(always)]
            fn square_root(self) -> $type {
                self.sqrt()
            }
            #[inline(always)]
            fn floor(self) -> $type {
                <$type>::floor(self)
            }
            #[inline(always)]
            fn ceil(self) -> $type {
                <$type>::ceil(self)
            }
            #[inline(always)]
            fn round_to_even(self) -> $type {
                self.round_ties_even()
            }
            $(
                #[inline(always)]
                fn $name(self) -> $type {
                    $function(self)
                }
            )*
        }
    )*};
}

floats! {
    f32 {
        power: math::power_f32,
        exponential: math::exp_f32,
        exponential_plus_one: math::exp_plus_one_f32,
        exponential_minus_one: math::exp_minus_one_f32,
        logarithm: math::ln_f32,
        logarithm_of_normal: math::ln_of_normal_f32,
        logarithm_of_one_plus: math::ln_one_plus_f32,
        error_function: math::erf_f32,
        sine: libm::sinf,
        cosine: libm::cosf,
        tangent: libm::tanf,
        arc_sine: libm::asinf,
        arc_cosine: libm::acosf,
        arc_tangent: libm::atanf,
        hyperbolic_sine: libm::sinhf,
        hyperbolic_cosine: libm::coshf,
        hyperbolic_tangent: math::tanh_f32,
        area_sine: libm::asinhf,
        area_cosine: math::acosh_f32,
        area_tangent: libm::atanhf
    }
    f64 {
        power: libm::pow,
        exponential: libm::exp,
        exponential_plus_one: math::exp_plus_one_f64,
        exponential_minus_one: libm::expm1,
        logarithm: libm::log,
        logarithm_of_normal: libm::log,
        logarithm_of_one_plus: libm::log1p,
        error_function: libm::erf,
        sine: libm::sin,
        cosine: libm::cos,
        tangent: libm::tan,
        arc_sine: libm::asin,
        arc_cosine: libm::acos,
        arc_tangent: libm::atan,
        hyperbolic_sine: libm::sinh,
        hyperbolic_cosine: libm::cosh,
        hyperbolic_tangent: libm::tanh,
        area_sine: libm::asinh,
        area_cosine: math::acosh_f64,
        area_tangent: libm::atanh
    }
}

/// Numbers and the types in which reductions sum them.
pub(super) trait Reducible: Number {
    /// The accumulator: double for real numbers, 64-bit for integers.
    type Sum: Number;
    /// Converts to an accumulator.
    fn widen(self) -> Self::Sum;
    /// Converts from an accumulator; integers wrap.
    fn sixteen_bit(sum: Self::Sum) -> Self;
}

macro_rules! reducible {
    ($($type:ident $sum:ident;)*) => {$(
        impl Reducible for $type {
            type Sum = $sum;
            #[inline(always)]
            fn widen(self) -> $sum {
                self as $sum
            }
            #[inline(always)]
            fn sixteen_bit(sum: $sum) -> $type {
                sum as $type
            }
        }
    )*};
}

reducible! { f32 f64; f64 f64; i64 i64; i32 i64; i16 i64; i8 i64; u64 u64; u32 u64; u16 u64; u8 u64; }

/// The bit pattern of a value as an element, in the low bytes of a word.
pub(super) fn bits_of(value: f64, data_type: forebay_base::DataType) -> u64 {
    use forebay_base::DataType;
    use forebay_base::narrow::{self, Narrowing};
    match data_type {
        DataType::Float64 => value.to_bits(),
        DataType::Float32 => (value as f32).to_bits() as u64,
        DataType::Float16 => f16::from_f32(rounded_to_odd(value)).to_bits() as u64,
        DataType::BFloat16 => bf16::from_f32(rounded_to_odd(value)).to_bits() as u64,
        DataType::Int64 => value as i64 as u64,
        DataType::Int32 => value as i32 as u64,
        DataType::Int16 => value as i16 as u64,
        DataType::Int8 => value as i8 as u64,
        DataType::UInt64 => value as u64,
        DataType::UInt32 => value as u32 as u64,
        DataType::UInt16 => value as u16 as u64,
        DataType::UInt8 => value as u8 as u64,
        DataType::Bool => (value != 0.0) as u64,
        DataType::Float8E4M3FN
        | DataType::Float8E4M3FNUZ
        | DataType::Float8E5M2
        | DataType::Float8E5M2FNUZ
        | DataType::Float8E8M0
        | DataType::Float4E2M1
        | DataType::Int4
        | DataType::UInt4
        | DataType::Int2
        | DataType::UInt2 => {
            narrow::encode(data_type, value, Narrowing { saturate: false, ..Narrowing::default() }).into()
        }
    }
}

/// Unsigned words: the bits of any element of their size.
pub(super) trait Word: Element {
    /// The low bits of `bits`.
    fn from_bits(bits: u64) -> Self;
}

macro_rules! words {
    ($($type:ident)*) => {$(
        impl Word for $type {
            fn from_bits(bits: u64) -> $type {
                bits as $type
            }
        }
    )*};
}

words! { u8 u16 u32 u64 }

/// Runs an expression with a type name bound to the element type: `for_type!(data_type, floats, T => expression)`. For other types, the
/// result is an `Err` that names the type.
macro_rules! for_type {
    ($data_type:expr, floats, $name:ident => $body:expr) => {
        match $data_type {
            forebay_base::DataType::Float32 => {
                type $name = f32;
                $body
            }
            forebay_base::DataType::Float64 => {
                type $name = f64;
                $body
            }
            other => Err(format!("data type {other} is not supported; cast to float32 or float64 first")),
        }
    };
    ($data_type:expr, integers, $name:ident => $body:expr) => {
        match $data_type {
            forebay_base::DataType::Int64 => {
                type $name = i64;
                $body
            }
            forebay_base::DataType::Int32 => {
                type $name = i32;
                $body
            }
            forebay_base::DataType::Int16 => {
                type $name = i16;
                $body
            }
            forebay_base::DataType::Int8 => {
                type $name = i8;
                $body
            }
            forebay_base::DataType::UInt64 => {
                type $name = u64;
                $body
            }
            forebay_base::DataType::UInt32 => {
                type $name = u32;
                $body
            }
            forebay_base::DataType::UInt16 => {
                type $name = u16;
                $body
            }
            forebay_base::DataType::UInt8 => {
                type $name = u8;
                $body
            }
            other => Err(format!("data type {other} is not supported; cast to float32 first")),
        }
    };
    ($data_type:expr, words, $name:ident => $body:expr) => {
        match $data_type.size_bytes() {
            1 => {
                type $name = u8;
                $body
            }
            2 => {
                type $name = u16;
                $body
            }
            4 => {
                type $name = u32;
                $body
            }
            _ => {
                type $name = u64;
                $body
            }
        }
    };
}
pub(super) use for_type;
