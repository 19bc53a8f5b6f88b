//! Simple items with bases, sorted by first byte, in blocks that a search for a base can skip as a whole.
//!
//! A pass repeatedly looks for the lowest base that is free for an item, going through the items with bases from the lowest on. With many
//! items this takes long, so they are grouped into blocks with known outlines: most blocks share no time with the item, end too low to be
//! in its way, or are so dense that it fits nowhere between their items.

use std::cmp::Ordering;

use crate::conflicts::Simple;

/// The most items in a block.
const BLOCK_MAX: usize = 128;

/// A simple item with a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// First byte, and one past the last.
    pub bytes: (i64, i64),
    pub times: (u32, u32),
    pub item: u32,
}

/// What is known about the items of a block as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outline {
    /// The lowest first byte, and one past the highest last byte.
    pub bytes: (i64, i64),
    /// The time from the first beginning to the last end.
    hull: (u32, u32),
    /// The time for which all of them are live; empty if it begins at its end or later.
    common: (u32, u32),
    /// The most bytes free between an item and the next one, counted from the first multiple of the grain; meaningless if they have no time
    /// in common.
    gap: i64,
}

impl Outline {
    fn of(entries: &[Placed], grain: i64) -> Outline {
        let mut outline = Outline { bytes: (i64::MAX, i64::MIN), hull: (u32::MAX, 0), common: (0, u32::MAX), gap: 0 };
        entries.iter().for_each(|placed| outline.take(placed));
        outline.gap = entries.windows(2).map(|pair| gap(&pair[0], &pair[1], grain)).max().unwrap_or(0);
        outline
    }

    /// Includes an item, except for the gaps to its neighbors.
    fn take(&mut self, placed: &Placed) {
        self.bytes = (self.bytes.0.min(placed.bytes.0), self.bytes.1.max(placed.bytes.1));
        self.hull = (self.hull.0.min(placed.times.0), self.hull.1.max(placed.times.1));
        self.common = (self.common.0.max(placed.times.0), self.common.1.min(placed.times.1));
    }

    /// Whether some item of the block may be in the way of one that has to lie at `base` or above.
    pub fn may_meet(&self, own: &Simple, base: i64) -> bool {
        self.bytes.1 - own.bytes.0 > base && own.coincides(self.hull)
    }

    /// Whether an item whose bytes begin at a multiple of the grain fits nowhere between the first and the last byte of the block.
    pub fn is_solid_for(&self, own: &Simple) -> bool {
        // Items with a time in common share no byte, so each begins where the one before it has ended.
        self.common.0 < self.common.1 && own.coincides(self.common) && self.gap < own.bytes.1 - own.bytes.0
    }
}

/// The bytes between two items, from the first multiple of the grain on.
fn gap(below: &Placed, above: &Placed, grain: i64) -> i64 {
    (above.bytes.0 - (below.bytes.1 + grain - 1) / grain * grain).max(0)
}

/// All simple items with a base.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    /// The items of each block; never empty.
    blocks: Vec<Vec<Placed>>,
    outlines: Vec<Outline>,
    count: usize,
    /// Every base that is searched for is a multiple of this.
    grain: i64,
}

impl Stack {
    pub fn new(grain: i64) -> Stack {
        Stack { blocks: Vec::new(), outlines: Vec::new(), count: 0, grain }
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The blocks with their outlines. Blocks are sorted by first byte, and so are the items of each block.
    pub fn blocks(&self) -> impl Iterator<Item = (&Outline, &[Placed])> {
        self.outlines.iter().zip(self.blocks.iter().map(Vec::as_slice))
    }

    /// Adds an item after those that begin no higher.
    pub fn insert(&mut self, placed: Placed) {
        self.count += 1;
        if self.blocks.is_empty() {
            self.push(vec![placed]);
            return;
        }
        let start = placed.bytes.0;
        let index = self.outlines.partition_point(|outline| outline.bytes.0 <= start).saturating_sub(1);
        let (block, outline) = (&mut self.blocks[index], &mut self.outlines[index]);
        let place = block.partition_point(|other| other.bytes.0 <= start);
        block.insert(place, placed);
        outline.take(&placed);
        let between = |first: usize, second: usize| match (block.get(first), block.get(second)) {
            (Some(first), Some(second)) => gap(first, second, self.grain),
            _ => 0,
        };
        let beside = between(place.wrapping_sub(1), place).max(between(place, place + 1));
        let split = if place == 0 { 0 } else { between(place - 1, place + 1) };
        match split.cmp(&outline.gap) {
            // The widest gap is now split in two.
            Ordering::Equal if split > beside => *outline = Outline::of(block, self.grain),
            _ => outline.gap = outline.gap.max(beside),
        }
        if block.len() >= BLOCK_MAX {
            let upper = block.split_off(BLOCK_MAX / 2);
            *outline = Outline::of(block, self.grain);
            self.outlines.insert(index + 1, Outline::of(&upper, self.grain));
            self.blocks.insert(index + 1, upper);
        }
    }

    fn push(&mut self, block: Vec<Placed>) {
        self.outlines.push(Outline::of(&block, self.grain));
        self.blocks.push(block);
    }

    /// Drops the items for which `kept` is false.
    pub fn retain(&mut self, kept: impl Fn(u32) -> bool) {
        let mut blocks = std::mem::take(&mut self.blocks);
        self.outlines.clear();
        self.count = 0;
        let mut open: Vec<Placed> = Vec::new();
        for block in &mut blocks {
            block.retain(|placed| kept(placed.item));
            self.count += block.len();
            // What is left of several blocks becomes one.
            if open.len() + block.len() > BLOCK_MAX / 2 && !open.is_empty() {
                self.push(std::mem::take(&mut open));
            }
            if open.is_empty() {
                open = std::mem::take(block);
            } else {
                open.append(block);
            }
        }
        if !open.is_empty() {
            self.push(open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::random::Xorshift64;

    /// The items of all blocks.
    fn items(stack: &Stack) -> Vec<Placed> {
        stack.blocks().flat_map(|(_, block)| block.iter().copied()).collect()
    }

    #[test]
    fn blocks_hold_what_a_plain_list_holds_and_outlines_are_true() {
        let mut random = Xorshift64::new();
        for grain in [1, 8] {
            let (mut stack, mut plain) = (Stack::new(grain), Vec::<Placed>::new());
            for item in 0..3000 {
                let start = random.below(500) as i64 * grain;
                let time = random.below(40) as u32;
                let times = (time, time + 1 + random.below(60) as u32);
                let placed = Placed { bytes: (start, start + 1 + random.below(20) as i64), times, item };
                stack.insert(placed);
                plain.insert(plain.partition_point(|other| other.bytes.0 <= start), placed);
                if random.below(400) == 0 {
                    let kept = |item: u32| item % 7 != 3 && item % 13 != 5;
                    stack.retain(kept);
                    plain.retain(|placed| kept(placed.item));
                }
                if item % 50 == 0 {
                    assert_eq!(items(&stack), plain);
                    assert_eq!(stack.len(), plain.len());
                    for (outline, block) in stack.blocks() {
                        assert_eq!(*outline, Outline::of(block, grain), "grain {grain}, item {item}");
                        assert!(!block.is_empty() && block.len() < BLOCK_MAX);
                    }
                }
            }
        }
    }
}
