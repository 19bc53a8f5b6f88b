//! Items, placements, and their verification.
//!
//! An item is a buffer whose size changes over time: at different times different parts of it are resident, always at the
//! same distance from its base. Placement gives every item a base so that no two bytes are used by two items at once.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use forebay_base::ByteRange;

/// The largest sum of all sizes, alignments and given bases that can be placed.
pub const ADDRESSES_MAX_BYTES: u64 = 1 << 62;

/// A part of an item during a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// When the bytes are taken: half-open, in steps of a plan.
    pub time: Range<u32>,
    /// Which bytes, from the item's base.
    pub bytes: ByteRange,
}

impl Piece {
    /// Whether any byte is taken at any time.
    pub(crate) fn is_taken(&self) -> bool {
        !self.time.is_empty() && !self.bytes.is_empty()
    }

    /// Whether both are taken at some common time.
    pub(crate) fn coincides(&self, other: &Piece) -> bool {
        self.time.start.max(other.time.start) < self.time.end.min(other.time.end)
    }
}

/// A buffer to place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The base is a multiple of this many bytes; 0 means the same as 1.
    pub alignment_bytes: u64,
    /// What it takes when. Pieces may touch and overlap each other.
    pub pieces: Vec<Piece>,
    /// The base, where it is given.
    pub fixed_offset: Option<u64>,
}

impl Item {
    /// An item that may lie anywhere.
    pub fn new(alignment_bytes: u64, pieces: Vec<Piece>) -> Item {
        Item { alignment_bytes: alignment_bytes.max(1), pieces, fixed_offset: None }
    }

    /// One past the last byte that any piece takes, from the base.
    pub fn size_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes.end).max().unwrap_or(0)
    }
}

/// A base for every item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// By item: its base in bytes.
    pub offsets: Vec<u64>,
    /// One past the last byte used.
    pub height_bytes: u64,
}

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementError {
    /// More bytes are live at once than the capacity holds: no placement exists.
    Load {
        /// The most bytes live at once.
        load_bytes: u64,
        /// The capacity in bytes.
        capacity_bytes: u64,
    },
    /// None was found within the effort; one may exist.
    Search {
        /// The lowest placement found.
        lowest: Placement,
        /// The capacity in bytes.
        capacity_bytes: u64,
    },
    /// Items with given bases overlap, or a given base is misaligned.
    Fixed(Fault),
    /// Sizes, alignments and given bases add up to more than [`ADDRESSES_MAX_BYTES`].
    TooLarge {
        /// What they add up to, in bytes.
        total_bytes: u128,
    },
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlacementError::Load { load_bytes, capacity_bytes } => {
                write!(f, "{load_bytes} bytes are live at once, the capacity is {capacity_bytes} bytes")
            }
            PlacementError::Search { lowest, capacity_bytes } => {
                let height_bytes = lowest.height_bytes;
                write!(
                    f,
                    "the lowest placement found takes {height_bytes} bytes, the capacity is {capacity_bytes} bytes"
                )
            }
            PlacementError::Fixed(fault) => write!(f, "given bases: {fault}"),
            PlacementError::TooLarge { total_bytes } => {
                write!(f, "the items take {total_bytes} bytes side by side, the most is {ADDRESSES_MAX_BYTES} bytes")
            }
        }
    }
}

impl std::error::Error for PlacementError {}

/// What is wrong with a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Two items use the same byte at the same time.
    Overlap {
        /// The first item.
        first: usize,
        /// The second item.
        second: usize,
    },
    /// An item's base is not a multiple of its alignment.
    Misaligned {
        /// The item.
        item: usize,
    },
    /// An item with a given base lies elsewhere.
    Moved {
        /// The item.
        item: usize,
    },
    /// An item ends above the placement's height.
    AboveHeight {
        /// The item.
        item: usize,
    },
    /// There is not one base for each item.
    Count {
        /// Number of bases.
        offsets: usize,
        /// Number of items.
        items: usize,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Overlap { first, second } => write!(f, "items {first} and {second} overlap"),
            Fault::Misaligned { item } => write!(f, "item {item} is misaligned"),
            Fault::Moved { item } => write!(f, "item {item} does not lie at its given base"),
            Fault::AboveHeight { item } => write!(f, "item {item} ends above the height"),
            Fault::Count { offsets, items } => write!(f, "{offsets} bases for {items} items"),
        }
    }
}

impl std::error::Error for Fault {}

/// The most bytes live at once: no placement is lower.
pub fn load_bound_bytes(items: &[Item]) -> u64 {
    let mut changes: BTreeMap<u32, i128> = BTreeMap::new();
    for item in items {
        for (time, bytes) in item_load(item) {
            *changes.entry(time.start).or_default() += i128::from(bytes);
            *changes.entry(time.end).or_default() -= i128::from(bytes);
        }
    }
    let (mut live, mut most) = (0, 0);
    for change in changes.values() {
        live += change;
        most = live.max(most);
    }
    u64::try_from(most).unwrap_or(u64::MAX)
}

/// How many bytes an item takes when. Where its own pieces overlap, bytes count once.
fn item_load(item: &Item) -> Vec<(Range<u32>, u64)> {
    if let [piece] = &item.pieces[..] {
        return if piece.time.is_empty() { Vec::new() } else { vec![(piece.time.clone(), piece.bytes.len())] };
    }
    let mut times: Vec<u32> = item.pieces.iter().flat_map(|piece| [piece.time.start, piece.time.end]).collect();
    times.sort_unstable();
    times.dedup();
    let load = |time: Range<u32>| {
        let live = item.pieces.iter().filter(|piece| piece.time.start <= time.start && time.end <= piece.time.end);
        let mut ranges: Vec<ByteRange> = live.map(|piece| piece.bytes).collect();
        ranges.sort_unstable();
        let (mut bytes, mut reached) = (0, 0);
        for range in ranges {
            let start = range.start.max(reached);
            bytes += range.end.saturating_sub(start);
            reached = range.end.max(reached);
        }
        (time, bytes)
    };
    times.windows(2).map(|pair| load(pair[0]..pair[1])).collect()
}

/// Checks a placement by comparing every pair of pieces: slow, and independent of the search.
///
/// # Errors
/// The first fault found.
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
    let at = |item: usize, piece: &Piece| {
        let base = placement.offsets[item];
        ByteRange::new(base + piece.bytes.start, base + piece.bytes.end)
    };
    for (first, item) in items.iter().enumerate() {
        for (second, other) in items.iter().enumerate().skip(first + 1) {
            for piece in &item.pieces {
                let meets = |one: &Piece| one.coincides(piece) && at(second, one).overlaps(at(first, piece));
                if other.pieces.iter().any(meets) {
                    return Err(Fault::Overlap { first, second });
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
