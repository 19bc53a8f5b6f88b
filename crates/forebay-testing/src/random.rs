//! Random numbers that are the same in every run and on every machine.

/// A seeded generator: xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator. Equal seeds give equal numbers; neighboring seeds give unrelated numbers.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `limit`.
    ///
    /// # Panics
    /// If the limit is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.word() >> 16) % limit
    }

    /// Returns an index into something of this length.
    ///
    /// # Panics
    /// If the length is 0.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns a number from `first` to `last`, inclusive.
    ///
    /// # Panics
    /// If `last` is less than `first`.
    pub fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.index(last - first + 1)
    }

    /// Returns true once in `times` calls, on average.
    ///
    /// # Panics
    /// If `times` is 0.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns true `percent` times in a hundred, on average.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of the items; `None` if there are none.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        (!items.is_empty()).then(|| items[self.index(items.len())])
    }

    /// Returns a single-precision number in -1..1.
    pub fn float(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Returns single-precision numbers in -2..2.
    pub fn values(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| f64::from(2.0 * self.float())).collect()
    }

    /// Returns the sizes of a tensor of one to `dimensions` dimensions with one to `limit` elements each.
    ///
    /// # Panics
    /// If either is 0.
    pub fn sizes(&mut self, dimensions: u64, limit: u64) -> Vec<u64> {
        (0..1 + self.below(dimensions)).map(|_| 1 + self.below(limit)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_their_ranges_and_all_of_them_come() {
        let mut random = Random::new(0);
        let (mut below, mut between) = ([0; 7], [0; 3]);
        for _ in 0..2000 {
            below[random.index(7)] += 1;
            between[random.between(4, 6) - 4] += 1;
            assert!((-1.0..1.0).contains(&random.float()));
        }
        assert!(below.iter().all(|&count| count > 200), "{below:?}");
        assert!(between.iter().all(|&count| count > 500), "{between:?}");
        let once = (0..3000).filter(|_| random.once_in(3)).count();
        assert!((800..1200).contains(&once), "{once}");
        let often = (0..3000).filter(|_| random.percent(90)).count();
        assert!((2500..2900).contains(&often), "{often}");
        assert_eq!((random.pick::<u8>(&[]), random.pick(&[5])), (None, Some(5)));
    }

    #[test]
    fn seeds_decide_and_differ() {
        let words = |seed: u64| {
            let mut random = Random::new(seed);
            [random.word(), random.word()]
        };
        assert_eq!(words(3), words(3));
        let mut first: Vec<[u64; 2]> = (0..100).map(words).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 100);
        // No seed gives the state that the generator never leaves.
        assert_ne!(words(u64::MAX), [0, 0]);
    }
}
