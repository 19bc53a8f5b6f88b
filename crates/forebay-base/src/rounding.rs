//! Rounding through float32.

/// Converts a number to float32 such that rounding it again, to 16 bits, gives the same result as rounding it once. A number that float32
/// cannot represent becomes the one of its two neighbors whose last bit is 1 ("round to odd").
///
/// `half::bf16::from_f64` drops the lowest bits before it rounds, so it mistakes numbers just above the midpoint of two for the midpoint.
/// `half::f16::from_f64` rounds twice on some processors.
///
/// ```
/// use forebay_base::rounded_to_odd;
///
/// assert_eq!(rounded_to_odd(0.75), 0.75);
/// assert_eq!(rounded_to_odd(1.0 + 1e-12), 1.0 + f32::EPSILON);
/// assert_eq!(rounded_to_odd(1e300), f32::MAX);
/// ```
pub fn rounded_to_odd(value: f64) -> f32 {
    let near = value as f32;
    if near.is_nan() || f64::from(near) == value {
        return near;
    }
    let is_away_from_0 = f64::from(near).abs() > value.abs();
    f32::from_bits((near.to_bits() - u32::from(is_away_from_0)) | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits of bfloat16; float32 has 16 more.
    fn rounded(value: f64) -> u32 {
        let bits = rounded_to_odd(value).to_bits();
        (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    }

    #[test]
    fn numbers_beside_the_middle_between_two_go_to_the_nearer_one() {
        for low in [0x3f80, 0x0001, 0x0080, 0x7f7e, 0xc2f7] {
            let [below, above] = [low, low + 1].map(|bits: u32| f64::from(f32::from_bits(bits << 16)));
            let middle = (below + above) / 2.0;
            assert_eq!(rounded(middle), low + low % 2, "{middle:e}");
            for (beside, expected) in [(below, low), (above, low + 1)] {
                let nearer = middle + (beside - middle) * 1e-9;
                assert_eq!(rounded(nearer), expected, "{nearer:e}");
                assert_eq!(rounded(beside), expected, "{beside:e}");
            }
        }
    }

    #[test]
    fn what_is_no_float32_becomes_odd_and_what_is_one_stays() {
        assert_eq!(rounded_to_odd(f64::NEG_INFINITY), f32::NEG_INFINITY);
        assert_eq!(rounded_to_odd(-f64::MAX), f32::MIN);
        assert_eq!(rounded_to_odd(1e-300), f32::from_bits(1));
        assert_eq!(rounded_to_odd(-0.0).to_bits(), (-0.0f32).to_bits());
        assert!(rounded_to_odd(f64::NAN).is_nan());
        assert_eq!(rounded_to_odd(-1.0 - 1e-12), -1.0 - f32::EPSILON);
    }
}
