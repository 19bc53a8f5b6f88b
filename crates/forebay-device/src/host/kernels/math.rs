//! Functions that LLVM can turn into vector code: no branches, no calls, no fused operations, so that vector body and
//! scalar tail give the same bits.

/// e^x in single precision, within 2 units in the last place. exp(-inf) = 0, exp(inf) = inf, NaN stays; results below the
/// normal range are denormal.
///
/// Source: the argument reduction and polynomial of Cephes' expf.
#[inline(always)]
pub(super) fn exp_f32(x: f32) -> f32 {
    // Adding 1.5 x 2^23 rounds to the nearest integer, which then stands in the low bits.
    const ROUNDING: f32 = 12_582_912.0;
    // ln 2 in two parts, of which the first times any exponent is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Beyond these the result is 0 or infinite; NaN fails both comparisons and passes.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUNDING;
    let exponent_float = shifted - ROUNDING;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUNDING.to_bits() as i32);
    let r = x - exponent_float * LN_2_HIGH - exponent_float * LN_2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let p = p * (r * r) + r + 1.0;
    // Two factors, because 2^exponent alone may be out of range where the product is not.
    let half = exponent >> 1;
    p * power_of_two(half) * power_of_two(exponent.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

/// ln(x) of a normal, positive, finite number in single precision, within 2 units in the last place.
///
/// Source: Cephes' logf.
#[inline(always)]
pub(super) fn ln_of_normal_f32(x: f32) -> f32 {
    // Mantissa in sqrt(1/2) .. sqrt(2), so that the polynomial's argument is small on both sides of 1.
    let bits = x.to_bits().wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let exponent = (bits as i32) >> 23;
    let mantissa = f32::from_bits((bits & 0x007f_ffff).wrapping_add(std::f32::consts::FRAC_1_SQRT_2.to_bits()));
    let exponent = exponent as f32;
    let r = mantissa - 1.0;
    let z = r * r;
    let mut p = 7.037_683_6e-2;
    p = p * r - 1.151_461e-1;
    p = p * r + 1.167_699_9e-1;
    p = p * r - 1.242_014_1e-1;
    p = p * r + 1.424_932_3e-1;
    p = p * r - 1.666_805_8e-1;
    p = p * r + 2.000_071_4e-1;
    p = p * r - 2.499_999_4e-1;
    p = p * r + 3.333_333e-1;
    let tail = p * r * z - exponent * 2.121_944_4e-4 - 0.5 * z;
    r + tail + exponent * 0.693_359_4
}

/// The error function in single precision, within 4e-7 absolute.
///
/// Source: the rational approximation of Eigen and XLA, on -4..4 (beyond which the result is -1 or 1).
#[inline(always)]
pub(super) fn erf_f32(x: f32) -> f32 {
    let z = x * x;
    let mut numerator = -2.726_142e-10;
    numerator = numerator * z + 2.770_681_4e-8;
    numerator = numerator * z - 2.101_024e-6;
    numerator = numerator * z - 5.692_506_4e-5;
    numerator = numerator * z - 7.349_906e-4;
    numerator = numerator * z - 2.954_6e-3;
    numerator = numerator * z - 1.609_603_3e-2;
    let mut denominator = -1.456_607_2e-5;
    denominator = denominator * z - 2.133_740_6e-4;
    denominator = denominator * z - 1.682_827e-3;
    denominator = denominator * z - 7.373_329e-3;
    denominator = denominator * z - 1.426_473_9e-2;
    let inside = x * numerator / denominator;
    let inside = if x <= -4.0 { -1.0 } else { inside };
    if x >= 4.0 {
        1.0
    } else {
        inside
    }
}

/// Hyperbolic tangent in single precision, within 3 units in the last place; NaN stays.
///
/// Source: Cephes' tanhf.
#[inline(always)]
pub(super) fn tanh_f32(x: f32) -> f32 {
    let size = x.abs();
    let z = x * x;
    let mut p = -5.704_989e-3;
    p = p * z + 2.063_908_8e-2;
    p = p * z - 5.373_971_6e-2;
    p = p * z + 1.333_144_2e-1;
    p = p * z - 3.333_328e-1;
    let small = p * z * x + x;
    let large = (1.0 - 2.0 / (exp_f32(size + size) + 1.0)).copysign(x);
    if size < 0.625 {
        small
    } else {
        large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_is_accurate_and_right_at_the_ends() {
        for i in -2000..2000 {
            let x = i as f32 * 0.0053 + 1e-5;
            assert!(relative_error(tanh_f32(x), (x as f64).tanh()) < 3e-7, "tanh({x}) = {}", tanh_f32(x));
        }
        assert_eq!((tanh_f32(f32::INFINITY), tanh_f32(-100.0), tanh_f32(0.0)), (1.0, -1.0, 0.0));
        assert!(tanh_f32(f32::NAN).is_nan());
    }

    fn relative_error(value: f32, exact: f64) -> f64 {
        ((value as f64 - exact) / exact).abs()
    }

    #[test]
    fn exp_is_accurate_and_right_at_the_ends() {
        for i in -8700..8800 {
            let x = i as f32 * 0.01;
            assert!(relative_error(exp_f32(x), (x as f64).exp()) < 1.5e-7, "exp({x}) = {}", exp_f32(x));
        }
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_f32(-200.0), 0.0);
        assert_eq!(exp_f32(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp_f32(88.8), f32::INFINITY);
        assert!(exp_f32(f32::NAN).is_nan());
        assert!(exp_f32(-100.0) > 0.0);
    }

    #[test]
    fn ln_is_accurate() {
        for i in 1..20000 {
            let x = i as f32 * 0.013 + 1e-6;
            let exact = (x as f64).ln();
            let error = (ln_of_normal_f32(x) as f64 - exact).abs();
            assert!(error <= 1.5e-7 * exact.abs() + 1e-8, "ln({x}) = {}", ln_of_normal_f32(x));
        }
        assert_eq!(ln_of_normal_f32(1.0), 0.0);
        assert!(relative_error(ln_of_normal_f32(1e30), (1e30f32 as f64).ln()) < 1e-7);
    }

    #[test]
    fn erf_is_accurate() {
        for (x, expected) in [(4.0, 1.0), (f32::INFINITY, 1.0), (-4.0, -1.0), (-61.5, -1.0)] {
            assert_eq!(erf_f32(x), expected, "{x}");
        }
        assert!(erf_f32(f32::NAN).is_nan());
        for i in -600..600 {
            let x = i as f32 * 0.01;
            assert!((erf_f32(x) as f64 - libm::erf(x as f64)).abs() < 4e-7, "erf({x}) = {}", erf_f32(x));
        }
        assert!(erf_f32(f32::NAN).is_nan());
    }
}
