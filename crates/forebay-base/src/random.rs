//! Random numbers that depend only on their seeds and are the same on every machine.

/// The golden ratio as a fraction of 2^64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of random numbers: SplitMix64 (Steele, Lea, Flood 2014).
///
/// ```
/// use forebay_base::random::SplitMix64;
///
/// let mut random = SplitMix64::of(&[7, 3]);
/// assert!(random.up_to(5) <= 5 && random.uniform() < 1.0);
/// ```
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The stream for these seeds.
    pub fn of(seeds: &[u64]) -> SplitMix64 {
        SplitMix64::at(seeds.iter().fold(GOLDEN, |state, &seed| mixed(mixed(state).wrapping_add(seed))))
    }

    /// The stream that continues from a state.
    pub fn at(state: u64) -> SplitMix64 {
        SplitMix64 { state }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mixed(self.state)
    }

    /// A number from 0 to `most`, both included.
    pub fn up_to(&mut self, most: u64) -> u64 {
        // The upper half of the product is uniform up to most / 2^64.
        ((u128::from(self.next()) * (u128::from(most) + 1)) >> 64) as u64
    }

    /// A random boolean.
    pub fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// A number of at least 0 and below 1.
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number of at least -1 and below 1.
    pub fn symmetric(&mut self) -> f64 {
        2.0 * self.uniform() - 1.0
    }

    /// A normally distributed number with mean 0 and standard deviation 1, by Marsaglia's polar method.
    pub fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (self.symmetric(), self.symmetric());
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * libm::log(square) / square).sqrt();
            }
        }
    }
}

impl SplitMix64 {
    /// A number from 0 to 1, from the beta distribution with both parameters equal to `alpha`, which is at most 4, by Jöhnk's method.
    pub fn symmetric_beta(&mut self, alpha: f64) -> f64 {
        loop {
            let [first, second] = [self.uniform(), self.uniform()].map(|uniform| libm::log(1.0 - uniform) / alpha);
            // Either may be too small to represent, but not relative to the larger one.
            let most = first.max(second);
            let (sum, share) =
                (libm::exp(first) + libm::exp(second), libm::exp(first - most) + libm::exp(second - most));
            if sum <= 1.0 {
                return libm::exp(first - most) / share;
            }
        }
    }
}

/// A stream for searches, all of which use the same numbers: xorshift with a fixed seed (Marsaglia 2003).
#[derive(Clone, Debug)]
pub struct Xorshift64(u64);

impl Default for Xorshift64 {
    fn default() -> Xorshift64 {
        Xorshift64::new()
    }
}

impl Xorshift64 {
    /// The stream from its beginning.
    pub fn new() -> Xorshift64 {
        Xorshift64(GOLDEN)
    }

    /// 53 random bits.
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// A number below `limit`; 0 if the limit is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// A number of at least 0 and below 1.
    pub fn uniform(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 53) as f64
    }
}

/// The output function of SplitMix64: spreads the bits of a number.
pub fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beta_numbers_have_their_mean_and_variance() {
        for alpha in [0.05, 0.2, 1.0, 4.0] {
            let mut random = SplitMix64::of(&[3]);
            let numbers: Vec<f64> = (0..20_000).map(|_| random.symmetric_beta(alpha)).collect();
            assert!(numbers.iter().all(|number| (0.0..=1.0).contains(number)));
            let mean = numbers.iter().sum::<f64>() / 20_000.0;
            let variance = numbers.iter().map(|number| (number - 0.5).powi(2)).sum::<f64>() / 20_000.0;
            assert!((mean - 0.5).abs() < 0.01 && (variance * 4.0 * (2.0 * alpha + 1.0) - 1.0).abs() < 0.03, "{alpha}");
        }
    }

    #[test]
    fn streams_are_functions_of_their_seeds() {
        let first = |seeds: &[u64]| SplitMix64::of(seeds).next();
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        assert!(first(&[1, 2]) != first(&[2, 1]) && first(&[0]) != first(&[0, 0]));
        let mut random = SplitMix64::of(&[7]);
        let drawn: Vec<u64> = (0..1000).map(|_| random.up_to(3)).collect();
        assert!((0..=3).all(|value| (200..300).contains(&drawn.iter().filter(|&&drawn| drawn == value).count())));
    }
}
