//! The greatest and the least of some slots, found block by block.

use std::ops::Range;

/// Slots of a block.
pub const BLOCK_SLOTS: usize = 64;

/// By block: the greatest of its values.
pub fn greatest_of_blocks(values: &[i64]) -> Vec<i64> {
    values.chunks(BLOCK_SLOTS).map(|block| block.iter().copied().max().unwrap_or(i64::MIN)).collect()
}

/// The greatest value of a range of slots, and the last slot that has it. `blocks` holds the greatest of each block; ranges may
/// pass the end of the step.
pub fn greatest(values: &[i64], blocks: &[i64], slots: Range<usize>) -> Option<(usize, i64)> {
    let (slot, value, is_block) = found(values, blocks, slots, |new, best| new >= best)?;
    let first = slot % values.len();
    let place = values[first..].iter().take(BLOCK_SLOTS).rposition(|&other| other == value);
    Some((if is_block { slot + place.unwrap_or(0) } else { slot }, value))
}

/// The least value of a range of slots, and the first slot that has it. `blocks` holds the least of each block.
pub fn least(values: &[i64], blocks: &[i64], slots: Range<usize>) -> Option<(usize, i64)> {
    let (slot, value, is_block) = found(values, blocks, slots, |new, best| new < best)?;
    let place = values[slot % values.len()..].iter().position(|&other| other == value);
    Some((if is_block { slot + place.unwrap_or(0) } else { slot }, value))
}

/// The slot with the value that is better than all others, or the first slot of the block that holds it, and whether that is so.
fn found(
    values: &[i64],
    blocks: &[i64],
    slots: Range<usize>,
    is_better: impl Fn(i64, i64) -> bool,
) -> Option<(usize, i64, bool)> {
    let mut best: Option<(usize, i64, bool)> = None;
    let mut at = slots.start;
    while at < slots.end {
        let slot = at % values.len();
        let is_block = slot % BLOCK_SLOTS == 0 && slot + BLOCK_SLOTS <= values.len() && at + BLOCK_SLOTS <= slots.end;
        let value = if is_block { blocks[slot / BLOCK_SLOTS] } else { values[slot] };
        if best.is_none_or(|(_, best, _)| is_better(value, best)) {
            best = Some((at, value, is_block));
        }
        at += if is_block { BLOCK_SLOTS } else { 1 };
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testing::Random;

    #[test]
    fn extremes_are_those_that_a_walk_finds() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let count = 1 + random.below(400) as usize;
            let values: Vec<i64> = (0..count).map(|_| random.below(30) as i64 - 10).collect();
            let greatest_blocks = greatest_of_blocks(&values);
            let least_blocks: Vec<i64> =
                values.chunks(BLOCK_SLOTS).filter_map(|block| block.iter().copied().min()).collect();
            for _ in 0..50 {
                let from = random.below(count as u64) as usize;
                let to = from + random.below(count as u64 + 1) as usize;
                let all = || (from..to).map(|slot| (slot, values[slot % count]));
                let walked = all().max_by_key(|&(slot, value)| (value, slot));
                assert_eq!(greatest(&values, &greatest_blocks, from..to), walked, "seed {seed}, {from}..{to}");
                let walked = all().min_by_key(|&(slot, value)| (value, slot));
                assert_eq!(least(&values, &least_blocks, from..to), walked, "seed {seed}, {from}..{to}");
            }
        }
    }
}
