//! The minimum of a range of slots while the values of ranges change: a segment tree.

use std::ops::Range;

/// Added to slots that do not count, so that the minimum is never one of their values.
const UNCOUNTED: i64 = i64::MAX / 4;

/// The values of the slots of a step. Ranges can pass the end of the step, and are no longer than the step.
#[derive(Clone, Debug)]
pub struct LeastOfRanges {
    /// By node: the minimum below it, without what was added to the nodes above. The children of `i` are `2 i` and `2 i + 1`.
    least: Vec<i64>,
    /// By node: what was added to all slots below it.
    added: Vec<i64>,
    /// By slot: whether it counts.
    counts: Vec<bool>,
    leaves: usize,
}

impl LeastOfRanges {
    /// Creates the tree from the value of each slot and whether the slot counts.
    pub fn new(slots: impl Iterator<Item = (i64, bool)>) -> LeastOfRanges {
        let (values, counts): (Vec<i64>, Vec<bool>) = slots.unzip();
        let leaves = values.len().next_power_of_two();
        let mut least = vec![UNCOUNTED; 2 * leaves];
        for (slot, (&value, &counts)) in values.iter().zip(&counts).enumerate() {
            least[leaves + slot] = if counts { value } else { value + UNCOUNTED };
        }
        for node in (1..leaves).rev() {
            least[node] = least[2 * node].min(least[2 * node + 1]);
        }
        LeastOfRanges { added: vec![0; 2 * leaves], least, counts, leaves }
    }

    /// Sets whether a slot counts.
    pub fn count(&mut self, slot: usize, counts: bool) {
        if self.counts[slot] != counts {
            self.counts[slot] = counts;
            self.add_below(1, 0..self.leaves, &(slot..slot + 1), if counts { -UNCOUNTED } else { UNCOUNTED });
        }
    }

    /// Adds `value` to each slot of a range.
    pub fn add(&mut self, slots: Range<usize>, value: i64) {
        for range in self.within_step(slots) {
            self.add_below(1, 0..self.leaves, &range, value);
        }
    }

    /// The minimum of the slots of a range that count; `None` if none of them counts.
    pub fn least(&self, slots: Range<usize>) -> Option<i64> {
        let least = self.within_step(slots).map(|range| self.least_below(1, 0..self.leaves, &range));
        least.into_iter().min().filter(|least| *least < UNCOUNTED / 2)
    }

    /// Splits a range into two that do not pass the end of the step.
    fn within_step(&self, slots: Range<usize>) -> [Range<usize>; 2] {
        let count = self.counts.len();
        let start = slots.start % count;
        let end = start + slots.len();
        [start..end.min(count), 0..end.saturating_sub(count)]
    }

    fn add_below(&mut self, node: usize, span: Range<usize>, slots: &Range<usize>, value: i64) {
        if slots.end <= span.start || span.end <= slots.start {
            return;
        }
        if slots.start <= span.start && span.end <= slots.end {
            self.least[node] += value;
            self.added[node] += value;
            return;
        }
        let middle = (span.start + span.end) / 2;
        self.add_below(2 * node, span.start..middle, slots, value);
        self.add_below(2 * node + 1, middle..span.end, slots, value);
        self.least[node] = self.least[2 * node].min(self.least[2 * node + 1]) + self.added[node];
    }

    fn least_below(&self, node: usize, span: Range<usize>, slots: &Range<usize>) -> i64 {
        if slots.end <= span.start || span.end <= slots.start {
            return UNCOUNTED;
        }
        if slots.start <= span.start && span.end <= slots.end {
            return self.least[node];
        }
        let middle = (span.start + span.end) / 2;
        let below = self.least_below(2 * node, span.start..middle, slots);
        below.min(self.least_below(2 * node + 1, middle..span.end, slots)) + self.added[node]
    }
}

#[cfg(test)]
mod tests {
    use super::LeastOfRanges;
    use forebay_testing::Random;

    #[test]
    fn the_least_is_the_one_that_a_walk_finds() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let count = 1 + random.below(100) as usize;
            let mut values: Vec<(i64, bool)> =
                (0..count).map(|_| (random.below(1000) as i64 - 500, random.once_in(2))).collect();
            let mut tree = LeastOfRanges::new(values.iter().copied());
            for _ in 0..100 {
                let from = random.below(2 * count as u64) as usize;
                let range = from..from + random.below(count as u64 + 1) as usize;
                let added = random.below(100) as i64 - 50;
                range.clone().for_each(|slot| values[slot % count].0 += added);
                tree.add(range, added);
                let slot = random.below(count as u64) as usize;
                values[slot].1 = random.once_in(2);
                tree.count(slot, values[slot].1);
                let from = random.below(2 * count as u64) as usize;
                let range = from..from + random.below(count as u64 + 1) as usize;
                let counted = range.clone().map(|slot| values[slot % count]).filter(|(_, counts)| *counts);
                assert_eq!(tree.least(range), counted.map(|(value, _)| value).min(), "seed {seed}");
            }
        }
    }
}
