//! Random numbers that are a function of numbers alone, on every machine.

/// A stream of random numbers: SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// The stream of these numbers.
    pub(crate) fn of(seeds: &[u64]) -> Random {
        Random {
            state: seeds.iter().fold(0x9e37_79b9_7f4a_7c15, |state, &seed| mixed(mixed(state).wrapping_add(seed))),
        }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.state)
    }

    /// From 0 to this, both included.
    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        // The upper half of the product is uniform up to most / 2^64.
        ((u128::from(self.next()) * (u128::from(most) + 1)) >> 64) as u64
    }

    /// Yes or no.
    pub(crate) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// At least 0, below 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// At least -1, below 1.
    pub(crate) fn symmetric(&mut self) -> f64 {
        2.0 * self.uniform() - 1.0
    }

    /// Normally distributed, with mean 0 and deviation 1: the polar method of Marsaglia.
    pub(crate) fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (self.symmetric(), self.symmetric());
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * ln(square) / square).sqrt();
            }
        }
    }
}

/// The output function of SplitMix64.
pub(crate) fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The logarithm of a positive number, from additions, products and quotients alone: a system's own may differ in its last bit from
/// another's.
fn ln(number: f64) -> f64 {
    let bits = number.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    let (mantissa, exponent) =
        if mantissa > std::f64::consts::SQRT_2 { (mantissa / 2.0, exponent + 1) } else { (mantissa, exponent) };
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let sum = (0..14).rev().fold(0.0, |sum, term| sum * z * z + 1.0 / f64::from(2 * term + 1));
    2.0 * z * sum + exponent as f64 * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_right() {
        for number in [1e-300, 1e-9, 0.3, 0.7, 1.0, 1.5, 2.0, 12345.678] {
            assert!((ln(number) - f64::ln(number)).abs() <= 4e-16 * f64::ln(number).abs().max(1.0), "{number}");
        }
    }

    #[test]
    fn streams_are_functions_of_their_seeds() {
        let first = |seeds: &[u64]| Random::of(seeds).next();
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        assert!(first(&[1, 2]) != first(&[2, 1]) && first(&[0]) != first(&[0, 0]));
        let mut random = Random::of(&[7]);
        let drawn: Vec<u64> = (0..1000).map(|_| random.up_to(3)).collect();
        assert!((0..=3).all(|value| (200..300).contains(&drawn.iter().filter(|&&drawn| drawn == value).count())));
    }
}
