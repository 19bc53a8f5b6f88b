//! Free blocks of one pool, found by best fit.
//!
//! Sizes are sorted into bins, eight to a power of two, and each bin is an ordered set. A set of a few blocks is one node of
//! a tree, so finding, adding and removing touch a line or two of memory; a bin of many blocks still takes logarithmic time.

use std::collections::BTreeMap;

use super::SegmentId;

/// Bins to a power of two are two to this.
const FRACTION_BITS: u32 = 3;
/// More than every bin of a 64-bit size.
const BIN_COUNT: usize = 64 << FRACTION_BITS;

/// What best fit compares: the size, then the lowest place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FreeKey {
    pub size_bytes: u64,
    pub segment: SegmentId,
    pub offset_bytes: u64,
}

/// Free blocks by size and place; each carries the index of its block.
pub struct FreeBlocks {
    bins: Vec<BTreeMap<FreeKey, u32>>,
    /// A bit for each bin that holds a block.
    occupied: [u64; BIN_COUNT / 64],
    bytes: u64,
}

impl FreeBlocks {
    pub fn new() -> FreeBlocks {
        FreeBlocks { bins: vec![BTreeMap::new(); BIN_COUNT], occupied: [0; BIN_COUNT / 64], bytes: 0 }
    }

    /// Sum of the sizes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn insert(&mut self, key: FreeKey, block: u32) {
        let bin = bin_of(key.size_bytes);
        self.bins[bin].insert(key, block);
        self.occupied[bin / 64] |= 1 << (bin % 64);
        self.bytes += key.size_bytes;
    }

    pub fn remove(&mut self, key: FreeKey) {
        let bin = bin_of(key.size_bytes);
        if self.bins[bin].remove(&key).is_some() {
            self.bytes -= key.size_bytes;
        }
        if self.bins[bin].is_empty() {
            self.occupied[bin / 64] &= !(1 << (bin % 64));
        }
    }

    /// The smallest block of at least this size, the lowest among equals.
    pub fn best_fit(&self, size_bytes: u64) -> Option<(FreeKey, u32)> {
        let bin = bin_of(size_bytes);
        let least = FreeKey { size_bytes, segment: SegmentId(0), offset_bytes: 0 };
        let within = self.bins[bin].range(least..).next();
        let found = within.or_else(|| self.bins[self.occupied_from(bin + 1)?].first_key_value());
        found.map(|(key, block)| (*key, *block))
    }

    /// The size of the largest block; 0 where there is none.
    pub fn largest_bytes(&self) -> u64 {
        let Some(word) = self.occupied.iter().rposition(|word| *word != 0) else { return 0 };
        let bin = word * 64 + 63 - self.occupied[word].leading_zeros() as usize;
        self.bins[bin].last_key_value().map_or(0, |(key, _)| key.size_bytes)
    }

    /// The blocks, smallest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.bins.iter().flat_map(|bin| bin.values().copied())
    }

    /// Takes all blocks out, smallest first.
    pub fn drain(&mut self) -> Vec<u32> {
        let mut blocks = Vec::new();
        while let Some(bin) = self.occupied_from(0) {
            blocks.extend(std::mem::take(&mut self.bins[bin]).into_values());
            self.occupied[bin / 64] &= !(1 << (bin % 64));
        }
        self.bytes = 0;
        blocks
    }

    /// The first bin from this one on that holds a block.
    fn occupied_from(&self, bin: usize) -> Option<usize> {
        let mut word = bin / 64;
        let mut bits = self.occupied.get(word)? & (u64::MAX << (bin % 64));
        while bits == 0 {
            word += 1;
            bits = *self.occupied.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
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
        let best = |free: &FreeBlocks, size| free.best_fit(size).map(|(_, block)| block);
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
}
