//! Profile: a list of numbers with range addition and range maximum in logarithmic time.

/// A list of numbers, stored as a binary tree of maxima whose inner nodes hold what was added to all positions below them.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    /// The number of leaves, a power of two.
    leaves: usize,
    /// By node (the children of `i` are `2 i` and `2 i + 1`): the maximum below it, including its own addition.
    most: Vec<i64>,
    /// By node: what was added to all positions below it.
    added: Vec<i64>,
}

impl Profile {
    /// Creates a profile with these numbers.
    pub fn new(values: &[i64]) -> Profile {
        let leaves = values.len().next_power_of_two();
        let mut most = vec![i64::MIN / 2; 2 * leaves];
        most[leaves..leaves + values.len()].copy_from_slice(values);
        for node in (1..leaves).rev() {
            most[node] = most[2 * node].max(most[2 * node + 1]);
        }
        Profile { leaves, most, added: vec![0; 2 * leaves] }
    }

    /// Adds `amount` to every position of `start..end`.
    pub fn add(&mut self, start: usize, end: usize, amount: i64) {
        self.add_below(1, (0, self.leaves), (start, end), amount);
    }

    fn add_below(&mut self, node: usize, span: (usize, usize), range: (usize, usize), amount: i64) {
        if range.1 <= span.0 || span.1 <= range.0 {
            return;
        }
        if range.0 <= span.0 && span.1 <= range.1 {
            self.most[node] += amount;
            self.added[node] += amount;
            return;
        }
        let middle = (span.0 + span.1) / 2;
        self.add_below(2 * node, (span.0, middle), range, amount);
        self.add_below(2 * node + 1, (middle, span.1), range, amount);
        self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.added[node];
    }

    /// Returns the largest number in `start..end`, far below zero if the range is empty.
    pub fn most(&self, start: usize, end: usize) -> i64 {
        self.most_below(1, (0, self.leaves), (start, end))
    }

    fn most_below(&self, node: usize, span: (usize, usize), range: (usize, usize)) -> i64 {
        if range.1 <= span.0 || span.1 <= range.0 {
            return i64::MIN / 2;
        }
        if range.0 <= span.0 && span.1 <= range.1 {
            return self.most[node];
        }
        let middle = (span.0 + span.1) / 2;
        let left = self.most_below(2 * node, (span.0, middle), range);
        let right = self.most_below(2 * node + 1, (middle, span.1), range);
        left.max(right) + self.added[node]
    }
}

/// Returns bytes as a number of a profile.
pub(crate) fn bytes_of_profile(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn additions_and_maxima_are_those_of_a_plain_list() {
        for seed in 1..20 {
            let mut random = Random::new(seed);
            let count = 1 + random.below(40) as usize;
            let mut plain: Vec<i64> = (0..count).map(|_| random.below(100) as i64).collect();
            let mut profile = Profile::new(&plain);
            for step in 0..100 {
                let start = random.below(count as u64) as usize;
                let end = start + 1 + random.below((count - start) as u64) as usize;
                let amount = random.below(200) as i64 - 100;
                plain[start..end].iter_mut().for_each(|value| *value += amount);
                profile.add(start, end, amount);
                let (low, high) = (random.below(count as u64) as usize, count);
                let most = plain[low..high].iter().max().copied();
                assert_eq!(Some(profile.most(low, high)), most, "seed {seed}, step {step}");
            }
            assert!(profile.most(3, 3) < -1_000_000_000, "seed {seed}");
        }
    }
}
