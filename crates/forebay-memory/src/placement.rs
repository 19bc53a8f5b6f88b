//! Items, placements, and their verification.
//!
//! An item is a buffer whose size changes over time: at different times different parts of it are resident, always at the
//! same distance from its base. Placement gives every item a base so that no two bytes are used by two items at once.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use forebay_base::ByteRange;

/// A part of an item during a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// When the bytes are taken: half-open, in steps of a plan.
    pub time: Range<u32>,
    /// Which bytes, from the item's base.
    pub bytes: ByteRange,
}

/// A buffer to place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The base is a multiple of this many bytes; at least 1.
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
        /// The lowest height found, in bytes.
        height_bytes: u64,
        /// The capacity in bytes.
        capacity_bytes: u64,
    },
    /// Two items with given bases overlap.
    Fixed(Overlap),
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlacementError::Load { load_bytes, capacity_bytes } => {
                write!(f, "{load_bytes} bytes are live at once, the capacity is {capacity_bytes} bytes")
            }
            PlacementError::Search { height_bytes, capacity_bytes } => {
                write!(
                    f,
                    "the lowest placement found takes {height_bytes} bytes, the capacity is {capacity_bytes} bytes"
                )
            }
            PlacementError::Fixed(overlap) => write!(f, "given bases: {overlap}"),
        }
    }
}

impl std::error::Error for PlacementError {}

/// Two items that use the same byte at the same time, or an item that is misaligned (then both are the same).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The first item.
    pub first: usize,
    /// The second item.
    pub second: usize,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.second {
            return write!(f, "item {} is misaligned", self.first);
        }
        write!(f, "items {} and {} overlap", self.first, self.second)
    }
}

/// The most bytes live at once: no placement is lower. Overlapping pieces of one item count once per piece.
pub fn load_bound_bytes(items: &[Item]) -> u64 {
    let mut changes: BTreeMap<u32, i128> = BTreeMap::new();
    for piece in items.iter().flat_map(|item| &item.pieces).filter(|piece| !piece.time.is_empty()) {
        *changes.entry(piece.time.start).or_default() += i128::from(piece.bytes.len());
        *changes.entry(piece.time.end).or_default() -= i128::from(piece.bytes.len());
    }
    let (mut live, mut most) = (0, 0);
    for change in changes.values() {
        live += change;
        most = live.max(most);
    }
    most as u64
}

/// Checks a placement by comparing every pair of pieces: slow, and independent of the search.
///
/// # Errors
/// The first overlap or misalignment.
pub fn verify(items: &[Item], placement: &Placement) -> Result<(), Overlap> {
    let at = |item: usize, piece: &Piece| {
        let base = placement.offsets[item];
        ByteRange::new(base + piece.bytes.start, base + piece.bytes.end)
    };
    for (first, item) in items.iter().enumerate() {
        if placement.offsets[first] % item.alignment_bytes != 0 {
            return Err(Overlap { first, second: first });
        }
        for (second, other) in items.iter().enumerate().skip(first + 1) {
            for piece in &item.pieces {
                let meets = |one: &Piece| {
                    one.time.start.max(piece.time.start) < one.time.end.min(piece.time.end)
                        && at(second, one).overlaps(at(first, piece))
                };
                if other.pieces.iter().any(meets) {
                    return Err(Overlap { first, second });
                }
            }
        }
    }
    Ok(())
}
