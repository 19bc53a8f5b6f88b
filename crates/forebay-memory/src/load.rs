//! Lower bounds on the height of placements: what is live at once, in bytes and in whole units of the alignment.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::placement::{Item, Piece};

/// The most bytes live at once: no placement is lower.
pub fn load_bound_bytes(items: &[Item]) -> u64 {
    bound_bytes(items, 1)
}

/// A height that no placement is below: at least that of [`load_bound_bytes`], and no item with a given base ends above it. If every base
/// is a multiple of some number of bytes, and every piece begins at a multiple of it too, nothing else fits into the rest of the last unit
/// of a piece. Only the unit at the very top need not be whole.
///
/// ```
/// use forebay_base::ByteRange;
/// use forebay_memory::{height_bound_bytes, load_bound_bytes, Item, Piece};
///
/// let items = [10, 20].map(|size| Item::new(64, vec![Piece { time: 0..1, bytes: ByteRange::new(0, size) }]));
/// assert_eq!((load_bound_bytes(&items), height_bound_bytes(&items)), (30, 64 + 10));
/// ```
pub fn height_bound_bytes(items: &[Item]) -> u64 {
    let top_bytes = |item: &Item| item.fixed_offset.map_or(0, |base| base.saturating_add(item.size_bytes()));
    let load_bytes = items.iter().map(top_bytes).fold(load_bound_bytes(items), u64::max);
    let grain_bytes = grain_bytes(items);
    let regular = |item: &Item| item.pieces.iter().all(|piece| piece.bytes.start % grain_bytes == 0);
    if grain_bytes > 1 && items.iter().all(regular) {
        load_bytes.max(bound_bytes(items, grain_bytes))
    } else {
        load_bytes
    }
}

/// The largest number of bytes of which every base is a multiple.
pub(crate) fn grain_bytes(items: &[Item]) -> u64 {
    items.iter().map(|item| item.alignment_bytes.max(1)).fold(0, divisor).max(1)
}

/// The greatest common divisor.
pub(crate) fn divisor(first: u64, second: u64) -> u64 {
    if second == 0 { first } else { divisor(second, first % second) }
}

/// What an item takes during a span of time.
struct Load {
    time: Range<u32>,
    /// Bytes in whole units.
    bytes: i128,
    /// The most bytes that the last unit of a range leaves empty.
    rest_bytes: u64,
}

/// The most bytes in whole units that are live at once, minus what the highest unit can leave empty.
fn bound_bytes(items: &[Item], grain_bytes: u64) -> u64 {
    // At equal times, ends come before beginnings.
    let mut changes: Vec<(u32, bool, i128, u64)> = Vec::with_capacity(2 * items.len());
    for Load { time, bytes, rest_bytes } in items.iter().flat_map(|item| item_loads(item, grain_bytes)) {
        changes.push((time.start, true, bytes, rest_bytes));
        changes.push((time.end, false, bytes, rest_bytes));
    }
    changes.sort_unstable();
    // By number of bytes left empty: how many live loads leave that many. Empty if units are bytes.
    let mut rests: BTreeMap<u64, usize> = BTreeMap::new();
    let (mut live, mut most) = (0, 0);
    for (index, &(time, begins, bytes, rest_bytes)) in changes.iter().enumerate() {
        live += if begins { bytes } else { -bytes };
        if rest_bytes > 0 && begins {
            *rests.entry(rest_bytes).or_default() += 1;
        } else if rest_bytes > 0 {
            let count = rests.entry(rest_bytes).or_default();
            *count -= 1;
            if *count == 0 {
                rests.remove(&rest_bytes);
            }
        }
        if changes.get(index + 1).is_none_or(|next| next.0 > time) {
            most = most.max(live - rests.keys().next_back().map_or(0, |&rest| i128::from(rest)));
        }
    }
    u64::try_from(most).unwrap_or(u64::MAX)
}

/// How much an item takes over time. Bytes in which its own pieces overlap count once.
fn item_loads(item: &Item, grain_bytes: u64) -> Vec<Load> {
    if let [piece] = &item.pieces[..] {
        return if piece.time.is_empty() { Vec::new() } else { vec![load(piece.time.clone(), [piece], grain_bytes)] };
    }
    let mut times: Vec<u32> = item.pieces.iter().flat_map(|piece| [piece.time.start, piece.time.end]).collect();
    times.sort_unstable();
    times.dedup();
    let mut waiting: Vec<&Piece> = item.pieces.iter().filter(|piece| !piece.time.is_empty()).collect();
    waiting.sort_by_key(|piece| piece.time.start);
    let mut waiting = waiting.into_iter().peekable();
    // Sorted by their bytes.
    let mut live: Vec<&Piece> = Vec::new();
    let mut loads = Vec::with_capacity(times.len());
    for pair in times.windows(2) {
        live.retain(|piece| piece.time.end > pair[0]);
        while let Some(piece) = waiting.next_if(|piece| piece.time.start <= pair[0]) {
            live.insert(live.partition_point(|other| other.bytes <= piece.bytes), piece);
        }
        if !live.is_empty() {
            loads.push(load(pair[0]..pair[1], live.iter().copied(), grain_bytes));
        }
    }
    loads
}

/// What pieces that are sorted by their bytes take together.
fn load<'a>(time: Range<u32>, pieces: impl IntoIterator<Item = &'a Piece>, grain_bytes: u64) -> Load {
    let (mut bytes, mut reached, mut rest_bytes) = (0, 0u128, 0);
    for piece in pieces {
        let end = u128::from(piece.bytes.end).next_multiple_of(u128::from(grain_bytes));
        let start = u128::from(piece.bytes.start).max(reached);
        bytes += end.saturating_sub(start) as i128;
        reached = end.max(reached);
        rest_bytes = rest_bytes.max((end - u128::from(piece.bytes.end)) as u64);
    }
    Load { time, bytes, rest_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::ByteRange;

    fn piece(time: Range<u32>, start: u64, end: u64) -> Piece {
        Piece { time, bytes: ByteRange::new(start, end) }
    }

    #[test]
    fn bytes_of_overlapping_pieces_count_once() {
        let item = Item::new(1, vec![piece(0..4, 0, 10), piece(2..6, 5, 15), piece(3..3, 0, 100)]);
        assert_eq!(load_bound_bytes(std::slice::from_ref(&item)), 15);
        assert_eq!(load_bound_bytes(&[item, Item::new(1, vec![piece(4..9, 0, 7)])]), 17);
        assert_eq!(load_bound_bytes(&[]), 0);
    }

    #[test]
    fn units_of_the_alignment_count_as_wholes_but_for_the_highest() {
        let item = |time, bytes| Item::new(64, vec![piece(time, 0, bytes)]);
        let items = [item(0..4, 16), item(1..5, 68), item(4..9, 100)];
        assert_eq!((load_bound_bytes(&items), height_bound_bytes(&items)), (168, 196));
        let other = Item::new(4, vec![piece(1..2, 0, 4)]);
        assert_eq!(height_bound_bytes(&[items[0].clone(), other.clone(), other.clone()]), 24);
        let within = [items[0].clone(), Item::new(64, vec![piece(1..2, 16, 20)])];
        assert_eq!(height_bound_bytes(&within), 20, "both may share a unit");
        let given = Item { fixed_offset: Some(9000), ..other };
        assert_eq!(height_bound_bytes(&[items[0].clone(), given]), 9004, "one has a given base");
        assert_eq!(height_bound_bytes(&[]), 0);
    }
}
