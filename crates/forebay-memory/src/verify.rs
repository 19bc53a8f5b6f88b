//! Verification of placements: independent of the search, in one sweep over time.

use std::collections::BTreeMap;

use forebay_base::ByteRange;

use crate::placement::{Fault, Item, Piece, Placement};

/// Checks a placement: sweeps over time, and compares each piece that begins with its neighbors among the live ones.
///
/// # Errors
/// Returns a fault. Among overlaps, it is the one that comes first in time.
pub fn verify(items: &[Item], placement: &Placement) -> Result<(), Fault> {
    if placement.offsets.len() != items.len() {
        return Err(Fault::Count { offsets: placement.offsets.len(), items: items.len() });
    }
    for (index, (item, &offset)) in items.iter().zip(&placement.offsets).enumerate() {
        if offset % item.alignment_bytes.max(1) != 0 {
            return Err(Fault::Misaligned { item: index });
        }
        if item.fixed_offset.is_some_and(|fixed| fixed != offset) {
            return Err(Fault::Moved { item: index });
        }
        if u128::from(offset) + u128::from(item.size_bytes()) > u128::from(placement.height_bytes) {
            return Err(Fault::AboveHeight { item: index });
        }
    }
    // Every item ends below the height, so no sum overflows from here on.
    let mut areas = Vec::with_capacity(items.len());
    for (index, (item, &offset)) in items.iter().zip(&placement.offsets).enumerate() {
        let area = |piece: &Piece| {
            let bytes = ByteRange::new(offset + piece.bytes.start, offset + piece.bytes.end);
            Area { time: (piece.time.start, piece.time.end), bytes, owner: index }
        };
        areas.extend(apart(&item.pieces).iter().map(area));
    }
    match first_overlap(&areas) {
        Some((first, second)) => Err(Fault::Overlap { first: first.min(second), second: first.max(second) }),
        None => Ok(()),
    }
}

/// Bytes during a span of time.
struct Area {
    time: (u32, u32),
    bytes: ByteRange,
    owner: usize,
}

/// The owners of two areas that share a byte at some time; `None` if no two do.
fn first_overlap(areas: &[Area]) -> Option<(usize, usize)> {
    // At equal times, ends come before beginnings.
    let mut changes: Vec<(u32, bool, u32)> = Vec::with_capacity(2 * areas.len());
    for (index, area) in areas.iter().enumerate() {
        changes.extend([(area.time.0, true, index as u32), (area.time.1, false, index as u32)]);
    }
    changes.sort_unstable();
    // The live areas, by first byte: one past the last byte, and the owner. No two of them share a byte.
    let mut there: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for (_, begins, index) in changes {
        let Area { bytes, owner, .. } = areas[index as usize];
        if !begins {
            there.remove(&bytes.start);
            continue;
        }
        let below = there.range(..=bytes.start).next_back().filter(|(_, (end, _))| *end > bytes.start);
        let above = || there.range(bytes.start..).next().filter(|(start, _)| **start < bytes.end);
        if let Some((_, &(_, other))) = below.or_else(above) {
            return Some((other, owner));
        }
        there.insert(bytes.start, (bytes.end, owner));
    }
    None
}

/// The pieces that take anything; if some of them overlap, others that take the same bytes without overlapping.
fn apart(pieces: &[Piece]) -> Vec<Piece> {
    let taken: Vec<Piece> = pieces.iter().filter(|piece| piece.is_taken()).cloned().collect();
    let area = |piece: &Piece| Area { time: (piece.time.start, piece.time.end), bytes: piece.bytes, owner: 0 };
    if taken.len() < 2 || first_overlap(&taken.iter().map(area).collect::<Vec<_>>()).is_none() {
        return taken;
    }
    let mut times: Vec<u32> = taken.iter().flat_map(|piece| [piece.time.start, piece.time.end]).collect();
    times.sort_unstable();
    times.dedup();
    let mut apart: Vec<Piece> = Vec::new();
    for pair in times.windows(2) {
        let live = taken.iter().filter(|piece| piece.time.start <= pair[0] && pair[1] <= piece.time.end);
        let mut ranges: Vec<ByteRange> = live.map(|piece| piece.bytes).collect();
        ranges.sort_unstable();
        let first = apart.len();
        for bytes in ranges {
            match apart[first..].last_mut() {
                Some(last) if last.bytes.end >= bytes.start => last.bytes.end = last.bytes.end.max(bytes.end),
                _ => apart.push(Piece { time: pair[0]..pair[1], bytes }),
            }
        }
    }
    apart
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use forebay_testing::Random;

    fn piece(time: Range<u32>, start: u64, end: u64) -> Piece {
        Piece { time, bytes: ByteRange::new(start, end) }
    }

    #[test]
    fn each_fault_is_found() {
        let items = [Item::new(4, vec![piece(0..2, 0, 8)]), Item::new(4, vec![piece(1..3, 0, 8)])];
        let verdict = |offsets: &[u64], height_bytes| {
            verify(&items, &Placement { offsets: offsets.to_vec(), height_bytes }).unwrap_err()
        };
        assert_eq!(verdict(&[0], 8), Fault::Count { offsets: 1, items: 2 });
        assert_eq!(verdict(&[0, 4], 16), Fault::Overlap { first: 0, second: 1 });
        assert_eq!(verdict(&[0, 9], 32), Fault::Misaligned { item: 1 });
        assert_eq!(verdict(&[8, 0], 12), Fault::AboveHeight { item: 0 });
        let mut fixed = items.clone();
        fixed[1].fixed_offset = Some(8);
        let moved = verify(&fixed, &Placement { offsets: vec![0, 12], height_bytes: 32 });
        assert_eq!(moved, Err(Fault::Moved { item: 1 }));
    }

    /// Whether two items share a byte at some time, by comparing every pair of pieces.
    fn overlaps(items: &[Item], offsets: &[u64], first: usize, second: usize) -> bool {
        let at = |item: usize, bytes: ByteRange| ByteRange::new(offsets[item] + bytes.start, offsets[item] + bytes.end);
        let meets =
            |one: &Piece, other: &Piece| one.coincides(other) && at(first, one.bytes).overlaps(at(second, other.bytes));
        items[first].pieces.iter().any(|one| items[second].pieces.iter().any(|other| meets(one, other)))
    }

    #[test]
    fn the_sweep_finds_an_overlap_where_comparing_every_pair_does() {
        let mut random = Random::new(7);
        let mut below = |limit: u64| random.below(limit);
        let (mut clean, mut wrong) = (0, 0);
        for _ in 0..4000 {
            let mut random_piece = || {
                let (time, start) = (below(12) as u32, below(6));
                piece(time..time + below(5) as u32, start, start + below(6))
            };
            let mut items: Vec<Item> = Vec::new();
            for index in 0..5 {
                let pieces = (0..1 + index % 3).map(|_| random_piece()).collect();
                items.push(Item::new(1, pieces));
            }
            let offsets: Vec<u64> = items.iter().map(|_| below(40)).collect();
            let pairs = (0..5).flat_map(|second| (0..second).map(move |first| (first, second)));
            let overlapping: Vec<(usize, usize)> =
                pairs.filter(|&(first, second)| overlaps(&items, &offsets, first, second)).collect();
            match verify(&items, &Placement { offsets, height_bytes: 1000 }) {
                Ok(()) => assert!(overlapping.is_empty(), "{items:?}: {overlapping:?}"),
                Err(Fault::Overlap { first, second }) => assert!(overlapping.contains(&(first, second)), "{items:?}"),
                Err(other) => panic!("{other}"),
            }
            clean += usize::from(overlapping.is_empty());
            wrong += usize::from(!overlapping.is_empty());
        }
        assert!(clean > 200 && wrong > 200, "{clean} without a fault, {wrong} with one");
    }
}
