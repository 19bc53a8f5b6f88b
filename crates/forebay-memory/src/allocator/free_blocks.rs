//! The free blocks of one pool, found by size in a time that does not depend on their number.
//!
//! Sizes that share their leading bits share a bin. A bin is an intrusive list, latest block first: blocks are inserted and removed without
//! a search, and only the block and its neighbors in the list are touched. A request looks at the first few blocks of its bin, which are
//! usually all of them, and takes the smallest that is large enough. If there are more, they differ by less than a 64th.

use super::blocks::{Blocks, NONE};

/// The base-2 logarithm of the number of bins per power of two.
const FRACTION_BITS: u32 = 6;
/// The number of bins for 64-bit sizes.
const BIN_COUNT: usize = ((65 - FRACTION_BITS) as usize) << FRACTION_BITS;
/// The most blocks of a bin that a request looks at.
const LOOKS: usize = 16;

/// A block that fits a request.
#[derive(Clone, Copy)]
pub struct Fit {
    pub size_bytes: u64,
    pub block: u32,
}

/// Free blocks by size. They are entries of [`Blocks`], and their sizes change only while they are not in this list.
pub struct FreeBlocks {
    /// The first block of each bin.
    bins: Vec<u32>,
    /// A bit for each bin that holds a block.
    occupied: [u64; BIN_COUNT / 64],
    /// A bit for each word of `occupied` that is not zero.
    occupied_words: u64,
    bytes: u64,
}

impl FreeBlocks {
    pub fn new() -> FreeBlocks {
        FreeBlocks { bins: vec![NONE; BIN_COUNT], occupied: [0; BIN_COUNT / 64], occupied_words: 0, bytes: 0 }
    }

    /// The sum of the sizes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Inserts a block that is on no list.
    pub fn insert(&mut self, blocks: &mut Blocks, block: u32) {
        let entry = blocks.at_mut(block);
        let bin = bin_of(entry.size_bytes);
        let next = std::mem::replace(&mut self.bins[bin], block);
        (entry.bin_previous, entry.bin_next) = (NONE, next);
        self.bytes += entry.size_bytes;
        if next == NONE {
            self.occupied[bin / 64] |= 1 << (bin % 64);
            self.occupied_words |= 1 << (bin / 64);
        } else {
            blocks.at_mut(next).bin_previous = block;
        }
    }

    /// Removes a block that is on this list.
    pub fn remove(&mut self, blocks: &mut Blocks, block: u32) {
        let entry = blocks.at(block);
        let (size_bytes, previous, next) = (entry.size_bytes, entry.bin_previous, entry.bin_next);
        self.bytes -= size_bytes;
        if next != NONE {
            blocks.at_mut(next).bin_previous = previous;
        }
        if previous != NONE {
            blocks.at_mut(previous).bin_next = next;
            return;
        }
        let bin = bin_of(size_bytes);
        self.bins[bin] = next;
        if next == NONE {
            self.clear_bit(bin);
        }
    }

    /// A block of at least this size: the smallest among the first few of the bin for this size, otherwise of the next bin. The result can
    /// be `None` if all are larger than `enough_bytes`, so that there is less to look at.
    ///
    /// It is also `None` if all blocks that are large enough are in one bin, after many that are not: [`FreeBlocks::any_fit`] finds these.
    pub fn good_fit(&self, blocks: &Blocks, size_bytes: u64, enough_bytes: u64) -> Option<Fit> {
        let bin = self.occupied_from(bin_of(size_bytes)).filter(|bin| *bin <= bin_of(enough_bytes))?;
        let next = || self.smallest(blocks, self.occupied_from(bin + 1)?, size_bytes);
        self.smallest(blocks, bin, size_bytes).or_else(next)
    }

    /// The smallest block of at least this size among the first few of a bin, the latest among equals.
    fn smallest(&self, blocks: &Blocks, bin: usize, size_bytes: u64) -> Option<Fit> {
        let mut best: Option<Fit> = None;
        let (mut block, mut looks) = (self.bins[bin], 0);
        while block != NONE && looks < LOOKS {
            let entry = blocks.at(block);
            if entry.size_bytes >= size_bytes && best.is_none_or(|best| entry.size_bytes < best.size_bytes) {
                best = Some(Fit { size_bytes: entry.size_bytes, block });
                if entry.size_bytes == size_bytes {
                    break;
                }
            }
            block = entry.bin_next;
            looks += 1;
        }
        best
    }

    /// A block of at least this size, if there is one.
    pub fn any_fit(&self, blocks: &Blocks, size_bytes: u64) -> Option<u32> {
        let bins = self.occupied_bins(bin_of(size_bytes));
        bins.flat_map(|bin| self.bin(blocks, bin)).find(|block| blocks.at(*block).size_bytes >= size_bytes)
    }

    /// The blocks of a bin, the latest first.
    fn bin(&self, blocks: &Blocks, bin: usize) -> impl Iterator<Item = u32> {
        let some = |block: u32| (block != NONE).then_some(block);
        std::iter::successors(some(self.bins[bin]), move |block| some(blocks.at(*block).bin_next))
    }

    /// The size of the largest block; 0 if there is none.
    pub fn largest_bytes(&self, blocks: &Blocks) -> u64 {
        let Some(word) = self.occupied_words.checked_ilog2().map(|word| word as usize) else { return 0 };
        let bin = word * 64 + self.occupied[word].ilog2() as usize;
        self.bin(blocks, bin).map(|block| blocks.at(block).size_bytes).fold(0, u64::max)
    }

    /// The blocks, bin by bin.
    pub fn iter<'a>(&'a self, blocks: &'a Blocks) -> impl Iterator<Item = u32> + 'a {
        self.occupied_bins(0).flat_map(|bin| self.bin(blocks, bin))
    }

    /// Removes all blocks and returns them.
    pub fn drain(&mut self, blocks: &Blocks) -> Vec<u32> {
        let drained = self.iter(blocks).collect();
        while let Some(bin) = self.occupied_from(0) {
            self.bins[bin] = NONE;
            self.clear_bit(bin);
        }
        self.bytes = 0;
        drained
    }

    /// The bins from this one on that hold a block.
    fn occupied_bins(&self, bin: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.occupied_from(bin), |bin| self.occupied_from(bin + 1))
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

    /// Marks a bin as empty.
    fn clear_bit(&mut self, bin: usize) {
        self.occupied[bin / 64] &= !(1 << (bin % 64));
        if self.occupied[bin / 64] == 0 {
            self.occupied_words &= !(1 << (bin / 64));
        }
    }
}

/// The bin of a size. Small sizes have a bin each; larger ones share it with sizes that have the same leading bits.
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
    use std::collections::BTreeMap;

    use super::super::SegmentId;
    use super::super::blocks::{SHARED, State};
    use super::*;
    use forebay_testing::Random;

    /// Blocks of these sizes, by index.
    fn blocks_of(sizes_bytes: impl IntoIterator<Item = u64>) -> Blocks {
        let mut blocks = Blocks::default();
        for size_bytes in sizes_bytes {
            blocks.add(SegmentId(0), 0, size_bytes, State::Free(SHARED));
        }
        blocks
    }

    #[test]
    fn bins_are_ordered_as_sizes_are() {
        let sizes =
            (0..2048).chain((11..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1])).chain([u64::MAX]);
        let bins: Vec<usize> = sizes.map(bin_of).collect();
        assert!(bins.is_sorted());
        assert_eq!(bins.last(), Some(&(BIN_COUNT - 1)));
        assert!(bins.windows(2).all(|pair| pair[1] <= pair[0] + (1 << FRACTION_BITS)));
    }

    #[test]
    fn the_smallest_sufficient_block_is_found_across_bins() {
        let mut blocks = blocks_of([1000, 1000, 1 << 40, 900, u64::MAX - (1 << 50)]);
        let mut free = FreeBlocks::new();
        (0..4).for_each(|block| free.insert(&mut blocks, block));
        let best =
            |free: &FreeBlocks, blocks: &Blocks, size| free.good_fit(blocks, size, u64::MAX).map(|fit| fit.block);
        assert_eq!(best(&free, &blocks, 900), Some(3));
        assert_eq!(best(&free, &blocks, 901), Some(1));
        assert_eq!(best(&free, &blocks, 1001), Some(2));
        assert_eq!(best(&free, &blocks, (1 << 40) + 1), None);
        assert_eq!((free.largest_bytes(&blocks), free.bytes()), (1 << 40, 2900 + (1 << 40)));
        free.remove(&mut blocks, 1);
        free.remove(&mut blocks, 2);
        assert_eq!(best(&free, &blocks, 901), Some(0));
        assert_eq!(free.largest_bytes(&blocks), 1000);
        free.insert(&mut blocks, 4);
        assert_eq!(best(&free, &blocks, 1001), Some(4));
        assert_eq!(best(&free, &blocks, u64::MAX), None);
        assert_eq!(free.drain(&blocks), [3, 0, 4]);
        assert_eq!((best(&free, &blocks, 1), free.bytes(), free.largest_bytes(&blocks)), (None, 0, 0));
    }

    #[test]
    fn bins_of_few_and_of_many_keep_their_promises() {
        let mut random = Random::new(1);
        let mut below = |bound: u64| random.below(bound);
        // Most are in three neighboring bins, of 64 sizes each.
        let sizes_bytes: Vec<u64> =
            (0..200).map(|n| if n % 10 == 0 { 1 << (n / 5) } else { 4100 + below(150) }).collect();
        let mut blocks = blocks_of(sizes_bytes.iter().copied());
        let (mut free, mut model) = (FreeBlocks::new(), BTreeMap::new());
        let mut found = [0; 3];
        for step in 0..20_000 {
            let (block, grows) = (below(200) as u32, step % 2000 < 1000);
            let size_bytes = sizes_bytes[block as usize];
            if model.contains_key(&(size_bytes, block)) == (below(10) < if grows { 2 } else { 7 }) {
                match model.remove(&(size_bytes, block)) {
                    Some(()) => free.remove(&mut blocks, block),
                    None => {
                        free.insert(&mut blocks, block);
                        model.insert((size_bytes, block), ());
                    }
                }
            }
            let request_bytes = 4090 + below(170);
            let best_bytes = model.range((request_bytes, 0)..).next().map(|((size_bytes, _), ())| *size_bytes);
            let fit = free.good_fit(&blocks, request_bytes, u64::MAX);
            let in_bin = model.keys().filter(|(size_bytes, _)| bin_of(*size_bytes) == bin_of(request_bytes)).count();
            match (fit, best_bytes) {
                (Some(fit), Some(best_bytes)) => {
                    assert!(model.contains_key(&(fit.size_bytes, fit.block)), "step {step}");
                    let within = best_bytes <= fit.size_bytes && bin_of(fit.size_bytes) == bin_of(best_bytes);
                    assert!(within || (in_bin > 16 && fit.size_bytes > best_bytes), "step {step}");
                    let exact = bin_of(best_bytes) == bin_of(request_bytes) && in_bin <= 16;
                    assert!(!exact || fit.size_bytes == best_bytes, "step {step}");
                    found[usize::from(fit.size_bytes != best_bytes)] += 1;
                }
                (None, Some(_)) => {
                    assert!(in_bin > 16, "step {step}");
                    found[2] += 1;
                }
                (fit, None) => assert!(fit.is_none(), "step {step}"),
            }
            let any = free.any_fit(&blocks, request_bytes).map(|block| sizes_bytes[block as usize]);
            assert_eq!(any.map(|any| any >= request_bytes), best_bytes.map(|_| true), "step {step}");
            let largest_bytes = model.last_key_value().map_or(0, |((size_bytes, _), ())| *size_bytes);
            assert_eq!(free.largest_bytes(&blocks), largest_bytes, "step {step}");
            assert_eq!(free.bytes(), model.keys().map(|(size_bytes, _)| size_bytes).sum::<u64>(), "step {step}");
        }
        assert!(found[0] > 1000 && found[1] > 100, "best, good and none: {found:?}");
        let mut drained = free.drain(&blocks);
        drained.sort_by_key(|block| (sizes_bytes[*block as usize], *block));
        assert_eq!(drained, model.into_keys().map(|(_, block)| block).collect::<Vec<u32>>());
    }
}
