//! Elementary single-precision functions with the same bits on every processor: they use additions, products, quotients and fused
//! multiply-adds, which IEEE 754 rounds in only one way, and never call the system's library. Functions without branches become vector
//! code. Callers on hot paths run in [`super::parallel::wide`], because a fused multiply-add is a slow call if the processor's instruction
//! for it is not enabled.
//!
//! Errors are the largest over all single-precision numbers, as measured by `cargo xtask accuracy`.

use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};

/// Adding 1.5 x 2^23 rounds to the nearest integer, which is then in the low bits.
const ROUNDING: f32 = 12_582_912.0;
/// ln 2 in two parts; the product of the first part and any exponent is exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// Evaluates a polynomial; coefficients go from the highest power to the lowest.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[0];
    for coefficient in &coefficients[1..] {
        sum = sum.mul_add(x, *coefficient);
    }
    sum
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

/// Splits x, limited to a range, into exponent ln 2 + rest, where the rest is at most ln 2 / 2 in size; NaN passes.
#[inline(always)]
fn without_powers_of_two(x: f32, [low, high]: [f32; 2]) -> (i32, f32) {
    let x = if x < low { low } else { x };
    let x = if x > high { high } else { x };
    let shifted = x.mul_add(LOG2_E, ROUNDING);
    let exponent_float = shifted - ROUNDING;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUNDING.to_bits() as i32);
    (exponent, exponent_float.mul_add(-LN_2[1], exponent_float.mul_add(-LN_2[0], x)))
}

/// Between these, e^x is neither 0 nor infinite.
const EXPONENTS: [f32; 2] = [-104.0, 89.0];

/// (e^x - 1 - x) / x^2 for numbers of at most ln 2 / 2 in size: the polynomial of Cephes' expf.
const EXPONENTIAL: [f32; 6] = [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// e^x, within 0.9 units in the last place. exp(-inf) = 0, exp(inf) = inf, NaN stays NaN; results below the normal range are denormal.
///
/// Source: the argument reduction and polynomial of Cephes' expf.
#[inline(always)]
pub(super) fn exp_f32(x: f32) -> f32 {
    let (exponent, rest) = without_powers_of_two(x, EXPONENTS);
    let [a, b, c, d, e, f] = EXPONENTIAL;
    let power = polynomial(rest, [a, b, c, d, e, f, 1.0, 1.0]);
    // Two factors, because 2^exponent alone can be out of range when the product is not.
    let half = exponent >> 1;
    power * power_of_two(half) * power_of_two(exponent.wrapping_sub(half))
}

/// e^x + 1, within 1.4 units in the last place, in less time than by [`exp_f32`]; infinite where it exceeds 2.4e38; NaN stays NaN.
#[inline(always)]
pub(super) fn exp_plus_one_f32(x: f32) -> f32 {
    // One power of two is enough: where it is 0, e^x is lost in the sum, and it is infinite from 2^128 on.
    let (exponent, rest) = without_powers_of_two(x, [-87.5, 89.0]);
    let [a, b, c, d, e, f] = EXPONENTIAL;
    polynomial(rest, [a, b, c, d, e, f, 1.0, 1.0]).mul_add(power_of_two(exponent), 1.0)
}

/// The same in double precision.
pub(super) fn exp_plus_one_f64(x: f64) -> f64 {
    libm::exp(x) + 1.0
}

/// e^x - 1 without cancellation, within 1.5 units in the last place; NaN stays NaN.
#[inline(always)]
pub(super) fn exp_minus_one_f32(x: f32) -> f32 {
    let (exponent, rest) = without_powers_of_two(x, EXPONENTS);
    let power_minus_one = polynomial(rest, EXPONENTIAL).mul_add(rest * rest, rest);
    // 2^exponent (1 + p) - 1 = (2^half p + (2^half - 2^-other)) 2^other, where half + other = exponent.
    let half = exponent >> 1;
    let other = exponent.wrapping_sub(half);
    let scale = power_of_two(half);
    power_minus_one.mul_add(scale, scale - power_of_two(other.wrapping_neg())) * power_of_two(other)
}

/// ln(x) + shift ln 2 for a normal, positive, finite number.
///
/// Source: Cephes' logf.
#[inline(always)]
fn ln_shifted(x: f32, shift: f32) -> f32 {
    // The mantissa is in sqrt(1/2) .. sqrt(2), so that the polynomial's argument is small on both sides of 1.
    let bits = x.to_bits().wrapping_sub(FRAC_1_SQRT_2.to_bits());
    let exponent = ((bits as i32) >> 23) as f32 + shift;
    let rest = f32::from_bits((bits & 0x007f_ffff).wrapping_add(FRAC_1_SQRT_2.to_bits())) - 1.0;
    let square = rest * rest;
    let p = polynomial(
        rest,
        [
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_4e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ],
    );
    let tail = square.mul_add(-0.5, exponent.mul_add(LN_2[1], p * rest * square));
    exponent.mul_add(LN_2[0], rest + tail)
}

/// ln(x) for a normal, positive, finite number, within 0.9 units in the last place.
#[inline(always)]
pub(super) fn ln_of_normal_f32(x: f32) -> f32 {
    ln_shifted(x, 0.0)
}

/// ln(x), within 0.9 units in the last place. ln(0) = -inf, ln(inf) = inf; NaN for negative numbers and for NaN.
#[inline(always)]
pub(super) fn ln_f32(x: f32) -> f32 {
    const SHIFT: f32 = 23.0;
    let is_denormal = x < f32::MIN_POSITIVE;
    let (normal, shift) = if is_denormal { (x * 8_388_608.0, -SHIFT) } else { (x, 0.0) };
    let logarithm = ln_shifted(normal, shift);
    let logarithm = if x == f32::INFINITY { x } else { logarithm };
    let logarithm = if x > 0.0 { logarithm } else { f32::NAN };
    if x == 0.0 { f32::NEG_INFINITY } else { logarithm }
}

/// ln(1 + x) without cancellation, within 1.5 units in the last place. ln(1 - 1) = -inf, ln(1 + inf) = inf; NaN below -1 and for NaN.
#[inline(always)]
pub(super) fn ln_one_plus_f32(x: f32) -> f32 {
    let sum = 1.0 + x;
    // The part that the sum lost below its last place.
    let lost = (x - (sum - 1.0)) / sum;
    let logarithm = ln_f32(sum);
    if sum > 0.0 && sum < f32::INFINITY { logarithm + lost } else { logarithm }
}

/// The error function, within 7 units in the last place (4e-7); NaN stays NaN.
///
/// Source: the rational approximation of Eigen and XLA, which is used between two limits; beyond them the result is -1 or 1.
#[inline(always)]
pub(super) fn erf_f32(x: f32) -> f32 {
    const LIMIT: f32 = 3.832_507;
    let z = x * x;
    let numerator = polynomial(
        z,
        [-2.726_142e-10, 2.770_681_4e-8, -2.101_024e-6, -5.692_506_4e-5, -7.349_906e-4, -2.954_6e-3, -1.609_603_3e-2],
    );
    let denominator = polynomial(z, [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2]);
    // The quotient first: a product with a number near the smallest would lose digits.
    let inside = x * (numerator / denominator);
    let inside = if x <= -LIMIT { -1.0 } else { inside };
    if x >= LIMIT { 1.0 } else { inside }
}

/// Hyperbolic tangent, within 1.4 units in the last place; NaN stays NaN.
///
/// Source: Cephes' tanhf.
#[inline(always)]
pub(super) fn tanh_f32(x: f32) -> f32 {
    let size = x.abs();
    let z = x * x;
    let p = polynomial(z, [-5.704_989e-3, 2.063_908_8e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1]);
    let small = (p * z).mul_add(x, x);
    let large = 1.0 - 2.0 / exp_plus_one_f32(size + size);
    // The sum of small's terms for -0 is 0.
    (if size < 0.625 { small } else { large }).copysign(x)
}

/// Inverse hyperbolic cosine; NaN below 1, where `libm` gives a number in some cases.
pub(super) fn acosh_f32(x: f32) -> f32 {
    if x < 1.0 { f32::NAN } else { libm::acoshf(x) }
}

/// The same in double precision.
pub(super) fn acosh_f64(x: f64) -> f64 {
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}

/// x to the power y, within a unit in the last place, with the exceptions of IEEE 754's `pow`.
#[inline(always)]
pub(super) fn power_f32(x: f32, y: f32) -> f32 {
    if x == 1.0 || y == 0.0 {
        return 1.0;
    }
    if x == -1.0 && y.is_infinite() {
        return 1.0;
    }
    // In double precision, the logarithm has enough digits for any single-precision exponent.
    let size = libm::exp2(f64::from(y) * libm::log2(f64::from(x.abs()))) as f32;
    let is_integer = y == y.trunc();
    // Integers from 2^24 on are even.
    let is_odd = is_integer && y.abs() < 16_777_216.0 && y as i32 % 2 != 0;
    if x.is_sign_negative() && is_odd {
        -size
    } else if x < 0.0 && x.is_finite() && !is_integer {
        f32::NAN
    } else {
        size
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::parallel::widest;
    use super::super::simd::limited;
    use super::*;

    /// A single-precision function, the same function in double precision, and the allowed error in units in the last place.
    struct Function {
        name: &'static str,
        /// Values at `from[i]`.
        single: fn(&[f32], &mut [f32]),
        double: fn(f64) -> f64,
        most_ulps: f64,
        /// The allowed distance from the exact result if that is close to 0 and digits are lost.
        most_absolute: f64,
    }

    macro_rules! functions {
        ($($name:literal $single:expr, $double:expr, $most_ulps:literal, $most_absolute:literal;)*) => {
            [$(Function {
                name: $name,
                single: |from, to| widest(
                    #[inline(always)]
                    || to.iter_mut().zip(from).for_each(|(to, &x)| *to = $single(x)),
                ),
                double: $double,
                most_ulps: $most_ulps,
                most_absolute: $most_absolute,
            }),*]
        };
    }

    const FUNCTIONS: [Function; 7] = functions! {
        "exp" exp_f32, libm::exp, 0.9, 1e-45;
        "exp + 1" |x: f32| exp_plus_one_f32(limited(x, f32::NEG_INFINITY, 88.0)), |x| libm::exp(limited(x, f64::NEG_INFINITY, 88.0)) + 1.0, 1.4, 0.0;
        "exp - 1" exp_minus_one_f32, libm::expm1, 1.5, 0.0;
        "ln" ln_f32, libm::log, 0.9, 0.0;
        "ln(1 + x)" ln_one_plus_f32, libm::log1p, 1.5, 0.0;
        "erf" erf_f32, libm::erf, 7.0, 0.0;
        "tanh" tanh_f32, libm::tanh, 1.4, 0.0;
    };

    /// The distance between adjacent single-precision numbers at a number.
    fn ulp(exact: f64) -> f64 {
        let size = (exact.abs() as f32).clamp(f32::MIN_POSITIVE, f32::MAX);
        f64::from(f32::from_bits(size.to_bits() & 0x7f80_0000)) / 8_388_608.0
    }

    /// The largest error in units in the last place over every `step`th number starting from some bits, and the number where it occurs.
    fn largest_error(function: &Function, start: u32, count: u64, step: u64) -> (f64, f32) {
        let mut worst = (0.0, 0.0);
        let mut numbers = (0..count).step_by(step as usize).map(|i| f32::from_bits(start.wrapping_add(i as u32)));
        let mut values = [0.0; 4096];
        loop {
            let block: Vec<f32> = numbers.by_ref().take(values.len()).collect();
            if block.is_empty() {
                return worst;
            }
            let values = &mut values[..block.len()];
            (function.single)(&block, values);
            for (&x, &value) in block.iter().zip(values.iter()) {
                let exact = (function.double)(f64::from(x));
                let rounded = exact as f32;
                if rounded == value || (rounded.is_nan() && value.is_nan()) {
                    continue;
                }
                let distance = (f64::from(value) - exact).abs();
                let error = if value.is_finite() { distance / ulp(exact) } else { f64::INFINITY };
                let is_exempt = distance <= function.most_absolute;
                // Beyond the largest number, infinity is just as near.
                let overflows = value.is_infinite() && exact.abs() > f64::from(f32::MAX) * (1.0 - 1e-7);
                if !is_exempt && !overflows && (error > worst.0 || error.is_nan()) {
                    worst = (error, x);
                }
            }
        }
    }

    #[test]
    fn functions_are_as_accurate_as_they_say() {
        for function in &FUNCTIONS {
            let (error, x) = largest_error(function, 0, 1 << 32, 4099);
            assert!(error <= function.most_ulps, "{}: {error} units in the last place at {x:e}", function.name);
        }
    }

    /// Takes minutes: `cargo xtask accuracy` runs it.
    #[test]
    #[ignore = "it takes minutes"]
    fn every_number() {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        println!("| function | largest error in units in the last place | at |\n|---|---|---|");
        for function in &FUNCTIONS {
            let next = AtomicU32::new(0);
            let blocks = || {
                let mut worst = (0.0, 0.0);
                loop {
                    let block = next.fetch_add(1, Ordering::Relaxed);
                    if block >= 256 {
                        return worst;
                    }
                    let found = largest_error(function, block << 24, 1 << 24, 1);
                    worst = if found.0 > worst.0 { found } else { worst };
                }
            };
            let (error, x) = std::thread::scope(|scope| {
                let all: Vec<_> = (0..threads).map(|_| scope.spawn(blocks)).collect();
                all.into_iter().map(|one| one.join().unwrap()).fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
            });
            println!("| {} | {error:.2} | {x:e} |", function.name);
            assert!(error <= function.most_ulps, "{}: {error} at {x:e}", function.name);
        }
    }

    #[test]
    fn functions_are_right_at_the_ends() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let ends = |function: fn(f32) -> f32, values: &[(f32, f32)]| {
            for &(x, expected) in values {
                let found = function(x);
                assert!(found == expected || (found.is_nan() && expected.is_nan()), "{x}: {found}, not {expected}");
            }
        };
        ends(exp_f32, &[(0.0, 1.0), (-inf, 0.0), (-200.0, 0.0), (inf, inf), (88.8, inf), (nan, nan)]);
        assert!(exp_f32(-100.0) > 0.0);
        ends(exp_plus_one_f32, &[(0.0, 2.0), (-inf, 1.0), (-200.0, 1.0), (inf, inf), (88.5, inf), (nan, nan)]);
        ends(exp_minus_one_f32, &[(0.0, 0.0), (-inf, -1.0), (-200.0, -1.0), (inf, inf), (88.8, inf), (nan, nan)]);
        ends(ln_f32, &[(1.0, 0.0), (0.0, -inf), (-0.0, -inf), (inf, inf), (-1.0, nan), (-inf, nan), (nan, nan)]);
        ends(ln_one_plus_f32, &[(0.0, 0.0), (-1.0, -inf), (inf, inf), (-2.0, nan), (nan, nan)]);
        ends(erf_f32, &[(0.0, 0.0), (4.0, 1.0), (inf, 1.0), (-4.0, -1.0), (-61.5, -1.0), (nan, nan)]);
        ends(
            acosh_f32,
            &[(1.0, 0.0), (inf, inf), (0.5, nan), (-1.5, nan), (-9.0, nan), (-1e9, nan), (-inf, nan), (nan, nan)],
        );
        ends(tanh_f32, &[(0.0, 0.0), (inf, 1.0), (-100.0, -1.0), (nan, nan)]);
        for odd in [tanh_f32, erf_f32] {
            assert_eq!([0.0, -0.0].map(|zero| odd(zero).to_bits()), [0.0, -0.0f32].map(f32::to_bits));
        }
    }

    #[test]
    fn powers_are_those_of_the_system() {
        let inf = f32::INFINITY;
        let special =
            [0.0, 1.0, 0.5, 2.0, 3.0, 1.5, 1e-40, 1e30, 16_777_217.0, 1e10, inf, f32::NAN, 0.999_999_9, 127.3];
        let numbers: Vec<f32> = special.iter().flat_map(|&x| [x, -x]).collect();
        for &x in &numbers {
            for &y in &numbers {
                let (found, expected) = (power_f32(x, y), x.powf(y));
                let is_near = (f64::from(found) - f64::from(expected)).abs() <= ulp(f64::from(expected));
                let is_same = found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
                assert!(is_same || is_near, "{x}^{y} = {found}, not {expected}");
            }
        }
    }

    /// If vectors differed from a call of the system's library, bits would change with the instructions.
    #[test]
    fn vectors_and_single_numbers_have_the_same_bits() {
        for function in &FUNCTIONS {
            let numbers: Vec<f32> = (0..20_000u32).map(|i| f32::from_bits(i.wrapping_mul(214_013))).collect();
            let mut together = vec![0.0; numbers.len()];
            (function.single)(&numbers, &mut together);
            for (&x, value) in numbers.iter().zip(together) {
                let mut alone = [0.0];
                (function.single)(&[x], &mut alone);
                assert!(alone[0].to_bits() == value.to_bits() || value.is_nan(), "{}({x:e})", function.name);
            }
        }
    }
}
