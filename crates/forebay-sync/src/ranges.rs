//! Interval sets: the bytes of memories that have been touched.

use std::collections::BTreeMap;

use forebay_base::{ByteRange, MemoryId, Region};

/// A set of bytes per memory, stored as disjoint ranges that do not touch each other.
///
/// `K` identifies memories: [`MemoryId`] for addresses as commands name them, or [`PhysicalMemory`](crate::physical::PhysicalMemory).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet<K = MemoryId> {
    /// For each memory, the end of each range, keyed by its start.
    memories: BTreeMap<K, BTreeMap<u64, u64>>,
}

impl<K> Default for RangeSet<K> {
    fn default() -> RangeSet<K> {
        RangeSet { memories: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> RangeSet<K> {
    /// Adds the bytes of a range. An empty range adds nothing.
    pub fn insert(&mut self, memory: K, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let ends = self.memories.entry(memory).or_default();
        let (mut start, mut end) = (range.start, range.end);
        // Ranges are disjoint, so walking back from the last one that starts inside or at the end visits all that touch.
        while let Some((&other_start, &other_end)) = ends.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            ends.remove(&other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        ends.insert(start, end);
    }

    /// Whether the set contains any byte of the range. An empty range overlaps nothing.
    pub fn overlaps(&self, memory: K, range: ByteRange) -> bool {
        if range.is_empty() {
            return false;
        }
        let last = self.memories.get(&memory).and_then(|ends| ends.range(..range.end).next_back());
        last.is_some_and(|(_, &end)| end > range.start)
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.memories.clear();
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.memories.is_empty()
    }

    /// The ranges of one memory in ascending order.
    pub fn ranges(&self, memory: K) -> impl Iterator<Item = ByteRange> + '_ {
        self.memories.get(&memory).into_iter().flatten().map(|(&start, &end)| ByteRange { start, end })
    }
}

impl RangeSet<MemoryId> {
    /// Adds the bytes of a region.
    pub fn insert_region(&mut self, region: Region) {
        self.insert(region.memory, region.range);
    }

    /// Whether the set contains any byte of the region.
    pub fn overlaps_region(&self, region: Region) -> bool {
        self.overlaps(region.memory, region.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testing::Random;

    #[test]
    fn touching_ranges_become_one() {
        let mut set = RangeSet::default();
        set.insert(MemoryId(0), ByteRange::new(0, 4));
        set.insert(MemoryId(0), ByteRange::new(8, 12));
        set.insert(MemoryId(0), ByteRange::new(4, 8));
        assert_eq!(set.ranges(MemoryId(0)).collect::<Vec<_>>(), [ByteRange::new(0, 12)]);
    }

    #[test]
    fn empty_ranges_are_nothing() {
        let mut set = RangeSet::default();
        set.insert(MemoryId(0), ByteRange::new(4, 4));
        assert!(set.is_empty());
        set.insert(MemoryId(0), ByteRange::new(0, 8));
        assert!(!set.overlaps(MemoryId(0), ByteRange::new(4, 4)));
    }

    #[test]
    fn behaves_as_a_set_of_bytes() {
        for seed in 0..300u64 {
            let mut random = Random::new(seed);
            let mut set = RangeSet::default();
            let mut bytes = [[false; 64]; 2];
            for _ in 0..40 {
                let memory = random.below(2) as usize;
                let start = random.below(64);
                let range = ByteRange::new(start, (start + random.below(12)).min(64));
                let model = &mut bytes[memory];
                let span = range.start as usize..range.end as usize;
                let key = MemoryId(memory as u32);
                assert_eq!(
                    set.overlaps_region(Region { memory: key, range }),
                    model[span.clone()].iter().any(|&byte| byte),
                    "seed {seed}"
                );
                match random.below(20) {
                    0 => {
                        set.clear();
                        bytes = [[false; 64]; 2];
                    }
                    1..12 => {
                        set.insert_region(Region { memory: key, range });
                        model[span].fill(true);
                    }
                    _ => {}
                }
                for (memory, model) in bytes.iter().enumerate() {
                    let ranges: Vec<ByteRange> = set.ranges(MemoryId(memory as u32)).collect();
                    assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "seed {seed}: {ranges:?}");
                    let mut union = [false; 64];
                    ranges.iter().for_each(|range| union[range.start as usize..range.end as usize].fill(true));
                    assert_eq!(&union, model, "seed {seed}");
                }
            }
        }
    }
}
