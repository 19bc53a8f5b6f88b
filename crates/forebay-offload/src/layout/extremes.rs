//! The maximum of a range of slots, found block by block.

use std::ops::Range;

/// The number of slots in a block.
pub const BLOCK_SLOTS: usize = 64;

/// By block: the maximum of its values.
pub fn greatest_of_blocks(values: &[i64]) -> Vec<i64> {
    values.chunks(BLOCK_SLOTS).map(|block| block.iter().copied().max().unwrap_or(i64::MIN)).collect()
}

/// The maximum of a range of slots, and the last slot that has it. `blocks` holds the maximum of each block; ranges can pass the end of the
/// step.
pub fn greatest(values: &[i64], blocks: &[i64], slots: Range<usize>) -> Option<(usize, i64)> {
    let mut best: Option<(usize, i64, bool)> = None;
    let mut at = slots.start;
    while at < slots.end {
        let slot = at % values.len();
        let is_block =
            slot.is_multiple_of(BLOCK_SLOTS) && slot + BLOCK_SLOTS <= values.len() && at + BLOCK_SLOTS <= slots.end;
        let value = if is_block { blocks[slot / BLOCK_SLOTS] } else { values[slot] };
        if best.is_none_or(|(_, best, _)| value >= best) {
            best = Some((at, value, is_block));
        }
        at += if is_block { BLOCK_SLOTS } else { 1 };
    }
    let (slot, value, is_block) = best?;
    let first = slot % values.len();
    let place = values[first..].iter().take(BLOCK_SLOTS).rposition(|&other| other == value);
    Some((if is_block { slot + place.unwrap_or(0) } else { slot }, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testing::Random;

    #[test]
    fn the_greatest_is_the_one_that_a_walk_finds() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let count = 1 + random.below(400) as usize;
            let values: Vec<i64> = (0..count).map(|_| random.below(30) as i64 - 10).collect();
            let greatest_blocks = greatest_of_blocks(&values);
            for _ in 0..50 {
                let from = random.below(count as u64) as usize;
                let to = from + random.below(count as u64 + 1) as usize;
                let all = (from..to).map(|slot| (slot, values[slot % count]));
                let walked = all.max_by_key(|&(slot, value)| (value, slot));
                assert_eq!(greatest(&values, &greatest_blocks, from..to), walked, "seed {seed}, {from}..{to}");
            }
        }
    }
}
