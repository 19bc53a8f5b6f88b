//! Free blocks of one pool, found by best fit.
//!
//! Sizes are sorted into so many bins that most hold few blocks, in a sorted list. Its best block is its last, for blocks
//! come and go near the best one: a few steps from the end, in the middle of a hundred others that stay where they are. That
//! takes less time than to go down an ordered map. A bin of some hundred blocks is a map all the same, so that no
//! list is gone through at length.

use std::collections::BTreeMap;

use super::SegmentId;

/// Bins to a power of two are two to this.
const FRACTION_BITS: u32 = 5;
/// More than every bin of a 64-bit size.
const BIN_COUNT: usize = 64 << FRACTION_BITS;
/// A bin of more blocks becomes a map.
const LIST_MAX: usize = 256;

/// What best fit compares: the size, then the lowest place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FreeKey {
    pub size_bytes: u64,
    pub segment: SegmentId,
    pub offset_bytes: u64,
}

/// A free block, packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    size_bytes: u64,
    offset_bytes: u64,
    segment: SegmentId,
    block: u32,
}

impl Listed {
    fn new(key: FreeKey, block: u32) -> Listed {
        let FreeKey { size_bytes, segment, offset_bytes } = key;
        Listed { size_bytes, offset_bytes, segment, block }
    }

    fn key(&self) -> FreeKey {
        FreeKey { size_bytes: self.size_bytes, segment: self.segment, offset_bytes: self.offset_bytes }
    }
}

/// Free blocks by size and place; each carries the index of its block.
pub struct FreeBlocks {
    bins: Vec<Bin>,
    /// A bit for each bin that holds a block.
    occupied: [u64; BIN_COUNT / 64],
    /// A bit for each word of `occupied` that is not zero.
    occupied_words: u64,
    bytes: u64,
}

impl FreeBlocks {
    pub fn new() -> FreeBlocks {
        let occupied = [0; BIN_COUNT / 64];
        FreeBlocks { bins: vec![Bin::default(); BIN_COUNT], occupied, occupied_words: 0, bytes: 0 }
    }

    /// Sum of the sizes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn insert(&mut self, key: FreeKey, block: u32) {
        let bin = bin_of(key.size_bytes);
        self.bins[bin].insert(key, block);
        self.occupied[bin / 64] |= 1 << (bin % 64);
        self.occupied_words |= 1 << (bin / 64);
        self.bytes += key.size_bytes;
    }

    /// Takes out a block that is here.
    pub fn remove(&mut self, key: FreeKey) {
        let bin = bin_of(key.size_bytes);
        self.bins[bin].remove(&key);
        self.bytes -= key.size_bytes;
        if self.bins[bin].is_empty() {
            self.clear_bit(bin);
        }
    }

    /// The smallest block of at least this size, the lowest among equals. It may be none where all are larger than
    /// `enough_bytes`, so that there is less to look at.
    pub fn best_fit(&self, size_bytes: u64, enough_bytes: u64) -> Option<(FreeKey, u32)> {
        let bin = self.occupied_from(bin_of(size_bytes)).filter(|bin| *bin <= bin_of(enough_bytes))?;
        let within = self.bins[bin].first_from(size_bytes);
        within.or_else(|| self.bins[self.occupied_from(bin + 1)?].first_from(0))
    }

    /// The size of the largest block; 0 where there is none.
    pub fn largest_bytes(&self) -> u64 {
        let Some(word) = self.occupied_words.checked_ilog2().map(|word| word as usize) else { return 0 };
        let bin = word * 64 + self.occupied[word].ilog2() as usize;
        self.bins[bin].largest().map_or(0, |key| key.size_bytes)
    }

    /// The blocks, smallest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let next = |bin: &usize| self.occupied_from(bin + 1);
        std::iter::successors(self.occupied_from(0), next).flat_map(|bin| self.bins[bin].blocks())
    }

    /// Takes all blocks out, smallest first.
    pub fn drain(&mut self) -> Vec<u32> {
        let mut blocks = Vec::new();
        while let Some(bin) = self.occupied_from(0) {
            blocks.extend(self.bins[bin].blocks());
            self.bins[bin] = Bin::default();
            self.clear_bit(bin);
        }
        self.bytes = 0;
        blocks
    }

    /// The first bin from this one on that holds a block.
    fn occupied_from(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let bits = self.occupied.get(word)? & (u64::MAX << (bin % 64));
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        // There are fewer words than a word has bits.
        let word = (self.occupied_words & (u64::MAX << (word + 1))).trailing_zeros() as usize;
        Some(word * 64 + self.occupied.get(word)?.trailing_zeros() as usize)
    }

    /// Takes note that a bin is empty.
    fn clear_bit(&mut self, bin: usize) {
        self.occupied[bin / 64] &= !(1 << (bin % 64));
        if self.occupied[bin / 64] == 0 {
            self.occupied_words &= !(1 << (bin / 64));
        }
    }
}

/// Blocks of about one size.
#[derive(Clone)]
enum Bin {
    /// In descending order.
    List(Vec<Listed>),
    /// In ascending order.
    Map(BTreeMap<FreeKey, u32>),
}

impl Default for Bin {
    fn default() -> Bin {
        Bin::List(Vec::new())
    }
}

impl Bin {
    fn is_empty(&self) -> bool {
        match self {
            Bin::List(list) => list.is_empty(),
            Bin::Map(map) => map.is_empty(),
        }
    }

    /// In ascending order.
    fn blocks(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            Bin::List(list) => Box::new(list.iter().rev().map(|listed| listed.block)),
            Bin::Map(map) => Box::new(map.values().copied()),
        }
    }

    /// The first block of at least this size.
    fn first_from(&self, size_bytes: u64) -> Option<(FreeKey, u32)> {
        match self {
            Bin::List(list) => {
                let found = list.iter().rfind(|listed| listed.size_bytes >= size_bytes)?;
                Some((found.key(), found.block))
            }
            Bin::Map(map) => {
                let least = FreeKey { size_bytes, segment: SegmentId(0), offset_bytes: 0 };
                let first = map.first_key_value().filter(|(key, _)| **key >= least);
                first.or_else(|| map.range(least..).next()).map(|(key, block)| (*key, *block))
            }
        }
    }

    fn largest(&self) -> Option<FreeKey> {
        match self {
            Bin::List(list) => list.first().map(Listed::key),
            Bin::Map(map) => map.last_key_value().map(|(key, _)| *key),
        }
    }

    fn insert(&mut self, key: FreeKey, block: u32) {
        match self {
            Bin::List(list) if list.len() == LIST_MAX => {
                let blocks = list.iter().map(|listed| (listed.key(), listed.block)).chain([(key, block)]);
                *self = Bin::Map(blocks.collect());
            }
            Bin::List(list) => {
                let mut position = list.len();
                list.push(Listed::new(key, block));
                // Mostly so few steps that a call to move memory would take longer.
                while position > 0 && list[position - 1].key() < key {
                    list.swap(position - 1, position);
                    position -= 1;
                }
            }
            Bin::Map(map) => {
                map.insert(key, block);
            }
        }
    }

    /// Takes out a block that is here.
    fn remove(&mut self, key: &FreeKey) {
        match self {
            Bin::List(list) => {
                // From the end on each block moves up to the place of the one before, up to the one that goes.
                let Some(mut carried) = list.pop() else { return };
                for listed in list.iter_mut().rev() {
                    if carried.key() == *key {
                        break;
                    }
                    std::mem::swap(listed, &mut carried);
                }
            }
            Bin::Map(map) => {
                map.remove(key);
                if map.is_empty() {
                    *self = Bin::default();
                }
            }
        }
    }
}

/// Small sizes have a bin each; larger ones share it with those of equal leading bits.
fn bin_of(size_bytes: u64) -> usize {
    if size_bytes < 1 << FRACTION_BITS {
        return size_bytes as usize;
    }
    let exponent = size_bytes.ilog2();
    let fraction = (size_bytes >> (exponent - FRACTION_BITS)) as usize & ((1 << FRACTION_BITS) - 1);
    (((exponent - FRACTION_BITS + 1) as usize) << FRACTION_BITS) + fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_ordered_as_sizes_are() {
        let sizes =
            (0..2048).chain((11..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1])).chain([u64::MAX]);
        let bins: Vec<usize> = sizes.map(bin_of).collect();
        assert!(bins.is_sorted());
        assert!(bins.iter().all(|bin| *bin < BIN_COUNT));
        assert!(bins.windows(2).all(|pair| pair[1] <= pair[0] + (1 << FRACTION_BITS)));
    }

    #[test]
    fn the_smallest_sufficient_block_is_found_across_bins() {
        let mut free = FreeBlocks::new();
        let key = |size_bytes, offset_bytes| FreeKey { size_bytes, segment: SegmentId(0), offset_bytes };
        for (block, at) in [key(1000, 0), key(1000, 2000), key(1 << 40, 4000), key(900, 9000)].into_iter().enumerate() {
            free.insert(at, block as u32);
        }
        let best = |free: &FreeBlocks, size| free.best_fit(size, u64::MAX).map(|(_, block)| block);
        assert_eq!(best(&free, 900), Some(3));
        assert_eq!(best(&free, 901), Some(0));
        assert_eq!(best(&free, 1001), Some(2));
        assert_eq!(best(&free, (1 << 40) + 1), None);
        assert_eq!(best(&free, u64::MAX), None);
        assert_eq!((free.largest_bytes(), free.bytes()), (1 << 40, 2900 + (1 << 40)));
        free.remove(key(1000, 0));
        free.remove(key(1 << 40, 4000));
        assert_eq!(best(&free, 901), Some(1));
        assert_eq!(free.largest_bytes(), 1000);
        assert_eq!(free.iter().collect::<Vec<u32>>(), [3, 1]);
        assert_eq!(free.drain(), [3, 1]);
        assert_eq!((best(&free, 1), free.bytes(), free.largest_bytes()), (None, 0, 0));
    }

    #[test]
    fn bins_of_few_and_of_many_equal_one_ordered_map() {
        let (mut free, mut model) = (FreeBlocks::new(), BTreeMap::new());
        let mut state = 1_u64;
        let mut was_map = [0, 0];
        let mut below = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % bound
        };
        for step in 0..20_000 {
            // Few sizes, most of them in one bin, so that it becomes a map and a list again.
            let size_bytes = [4096, 4096, 4100, 4104, 64][below(5) as usize];
            let key = FreeKey { size_bytes, segment: SegmentId(below(2) as u32), offset_bytes: below(400) };
            let grows = step % 2000 < 1000;
            if below(10) < if grows { 7 } else { 2 } {
                // No two blocks begin at one place.
                model.entry(key).or_insert_with(|| {
                    free.insert(key, step);
                    step
                });
            } else if let Some((key, _)) = model.range(key..).next().map(|(key, block)| (*key, *block)) {
                free.remove(key);
                model.remove(&key);
            }
            was_map[usize::from(matches!(free.bins[bin_of(4096)], Bin::Map(_)))] += 1;
            let least = FreeKey { size_bytes: below(4110), segment: SegmentId(0), offset_bytes: 0 };
            let expected = model.range(least..).next().map(|(key, block)| (*key, *block));
            assert_eq!(free.best_fit(least.size_bytes, u64::MAX), expected, "step {step}");
            assert_eq!(
                free.largest_bytes(),
                model.last_key_value().map_or(0, |(key, _)| key.size_bytes),
                "step {step}"
            );
        }
        assert!(was_map.iter().all(|count| *count > 1000), "steps with a list and with a map: {was_map:?}");
        assert_eq!(free.drain(), model.into_values().collect::<Vec<u32>>());
    }
}
