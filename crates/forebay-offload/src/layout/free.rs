//! Which slots of a step have room, stored so that the next one is found at once.

/// The slots that have room, as a bit set.
#[derive(Clone, Debug)]
pub struct Free {
    words: Vec<u64>,
    count: usize,
}

impl Free {
    /// Creates the set from whether each slot has room.
    pub fn new(unused: impl ExactSizeIterator<Item = bool>) -> Free {
        let count = unused.len();
        let mut free = Free { words: vec![0; count.div_ceil(64)], count };
        unused.enumerate().for_each(|(slot, has_room)| free.set(slot, has_room));
        free
    }

    /// Sets whether a slot has room.
    pub fn set(&mut self, slot: usize, has_room: bool) {
        let bit = 1 << (slot % 64);
        if has_room {
            self.words[slot / 64] |= bit;
        } else {
            self.words[slot / 64] &= !bit;
        }
    }

    /// The first slot of a range that has room; ranges can pass the end of the step.
    pub fn first(&self, from: usize, to: usize) -> Option<usize> {
        let mut at = from;
        while at < to {
            let slot = at % self.count;
            let word = self.words[slot / 64] >> (slot % 64);
            if word > 0 {
                let found = at + word.trailing_zeros() as usize;
                if found - at + slot < self.count {
                    return (found < to).then_some(found);
                }
            }
            at += (64 - slot % 64).min(self.count - slot);
        }
        None
    }

    /// The last slot of a range that has room.
    pub fn last(&self, from: usize, to: usize) -> Option<usize> {
        let mut end = to;
        while end > from {
            let slot = (end - 1) % self.count;
            let word = self.words[slot / 64] << (63 - slot % 64);
            if word > 0 {
                let back = word.leading_zeros() as usize;
                if back <= slot {
                    let found = (end - 1).checked_sub(back)?;
                    return (found >= from).then_some(found);
                }
            }
            end = end.saturating_sub(slot % 64 + 1);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Free;
    use forebay_testing::Random;

    #[test]
    fn the_next_and_the_last_slot_are_those_that_a_walk_finds() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let count = 1 + random.below(200) as usize;
            let unused: Vec<bool> = (0..count).map(|_| random.once_in(20)).collect();
            let free = Free::new(unused.iter().copied());
            for _ in 0..50 {
                let from = random.below(2 * count as u64) as usize;
                let to = from + random.below(count as u64 + 1) as usize;
                let has_room = |slot: &usize| unused[slot % count];
                assert_eq!(free.first(from, to), (from..to).find(has_room), "seed {seed}, {from}..{to}");
                assert_eq!(free.last(from, to), (from..to).rev().find(has_room), "seed {seed}, {from}..{to}");
            }
        }
    }
}
