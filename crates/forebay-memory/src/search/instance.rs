//! The items as the tree search sees them: blocks of constant size in sections of time.
//!
//! A *section* is a time at which the set of live blocks cannot be extended: at every other moment, a subset of such a set is live, which
//! forbids nothing more. Sizes are counted in their greatest common divisor, since every block of a placement that cannot be lowered begins
//! at a multiple of it.

use std::ops::Range;

use crate::load::divisor;
use crate::placement::{Item, Piece, Placement};

/// A buffer of constant size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The sections in which it is live.
    pub sections: Range<usize>,
    /// Its size in units.
    pub size: i64,
    /// Its base is a multiple of this many units.
    pub alignment: i64,
    /// Its size times the time for which it is live, used for ordering.
    pub area: u128,
    /// How long it is live.
    pub duration: u32,
}

impl Block {
    /// The lowest aligned base at or above `bound`.
    pub fn aligned(&self, bound: i64) -> i64 {
        match self.alignment {
            1 => bound,
            alignment => (bound + alignment - 1) / alignment * alignment,
        }
    }
}

/// The blocks with what every search needs to know about them.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub blocks: Vec<Block>,
    /// By block: the item that it represents.
    pub items: Vec<usize>,
    /// By block: the blocks that share a time with it.
    pub neighbors: Vec<Vec<u32>>,
    /// By section: the blocks that are live in it.
    pub sections: Vec<Vec<u32>>,
    /// The bytes of one unit.
    pub unit_bytes: u64,
}

impl Instance {
    /// Creates the blocks of items that do not change their size and can lie anywhere; `None` if any item is different. Items that take
    /// nothing have no block.
    pub fn new(items: &[Item]) -> Option<Instance> {
        let mut numbers = Vec::new();
        let mut pieces = Vec::new();
        for (number, item) in items.iter().enumerate() {
            let mut taken = item.pieces.iter().filter(|piece| piece.is_taken());
            let Some(piece) = taken.next() else { continue };
            if taken.next().is_some() || piece.bytes.start > 0 || item.fixed_offset.is_some() {
                return None;
            }
            numbers.push(number);
            pieces.push(piece);
        }
        let alignments = numbers.iter().map(|&number| items[number].alignment_bytes.max(1));
        let sizes = pieces.iter().map(|piece| piece.bytes.len());
        let unit_bytes =
            alignments.clone().filter(|&alignment_bytes| alignment_bytes > 1).chain(sizes).fold(0, divisor);
        let unit_bytes = unit_bytes.max(1);
        let spans = spans(&pieces);
        let blocks: Vec<Block> = pieces
            .iter()
            .zip(alignments)
            .zip(&spans)
            .map(|((piece, alignment_bytes), sections)| {
                let duration = piece.time.end - piece.time.start;
                Block {
                    sections: sections.clone(),
                    size: (piece.bytes.len() / unit_bytes) as i64,
                    alignment: (alignment_bytes / unit_bytes).max(1) as i64,
                    area: u128::from(duration) * u128::from(piece.bytes.len()),
                    duration,
                }
            })
            .collect();
        let mut sections = vec![Vec::new(); spans.iter().map(|span| span.end).max().unwrap_or(0)];
        for (block, span) in spans.iter().enumerate() {
            sections[span.clone()].iter_mut().for_each(|live| live.push(block as u32));
        }
        let neighbors = neighbors(&sections, &blocks);
        Some(Instance { blocks, items: numbers, neighbors, sections, unit_bytes })
    }

    /// The placement of all items, from the bases of the blocks.
    pub fn placement(&self, item_count: usize, bases: &[i64]) -> Placement {
        let mut offsets = vec![0; item_count];
        let mut height = 0;
        for ((block, &item), &base) in self.blocks.iter().zip(&self.items).zip(bases) {
            offsets[item] = base as u64 * self.unit_bytes;
            height = height.max(base + block.size);
        }
        Placement { offsets, height_bytes: height as u64 * self.unit_bytes }
    }
}

/// By piece: its sections. A section ends when a piece ends and another has begun since the previous section.
fn spans(pieces: &[&Piece]) -> Vec<Range<usize>> {
    let mut changes: Vec<(u32, bool, usize)> = Vec::with_capacity(2 * pieces.len());
    for (index, piece) in pieces.iter().enumerate() {
        changes.push((piece.time.start, true, index));
        changes.push((piece.time.end, false, index));
    }
    changes.sort_unstable();
    let mut spans = vec![0..0; pieces.len()];
    let (mut count, mut grown) = (0, false);
    for (_, begins, index) in changes {
        if begins {
            spans[index].start = count;
        } else {
            count += usize::from(grown);
            spans[index].end = count;
        }
        grown = begins;
    }
    spans
}

fn neighbors(sections: &[Vec<u32>], blocks: &[Block]) -> Vec<Vec<u32>> {
    let mut neighbors: Vec<Vec<u32>> = vec![Vec::new(); blocks.len()];
    for (section, live) in sections.iter().enumerate() {
        for &block in live {
            // A pair counts in the first section that the two share.
            let begun = |other: u32| blocks[other as usize].sections.start.max(blocks[block as usize].sections.start);
            let met = live.iter().copied().filter(|&other| other != block && begun(other) == section);
            neighbors[block as usize].extend(met);
        }
    }
    neighbors.iter_mut().for_each(|others| others.sort_unstable());
    neighbors
}
