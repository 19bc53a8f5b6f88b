//! Items and placements, and what can be wrong with them.
//!
//! An item is a buffer whose size changes over time: at different times different parts of it are resident, always at the same distance
//! from its base. Placement gives every item a base so that no byte is used by two items at once.

use std::fmt;
use std::ops::Range;

use forebay_base::ByteRange;

use crate::size::exact_bytes;

/// The largest sum of all sizes, alignments and given bases that can be placed.
pub const ADDRESSES_MAX_BYTES: u64 = 1 << 62;

/// A part of an item during a span of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// When the bytes are in use: half-open, in steps of a plan.
    pub time: Range<u32>,
    /// The bytes, relative to the base of the item.
    pub bytes: ByteRange,
}

impl Piece {
    /// Whether any byte is in use at any time.
    pub(crate) fn is_taken(&self) -> bool {
        !self.time.is_empty() && !self.bytes.is_empty()
    }

    /// Whether both are in use at some common time.
    pub(crate) fn coincides(&self, other: &Piece) -> bool {
        self.time.start.max(other.time.start) < self.time.end.min(other.time.end)
    }
}

/// A buffer to place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The base is a multiple of this many bytes; 0 means the same as 1.
    pub alignment_bytes: u64,
    /// What it takes over time. Pieces can touch and overlap each other.
    pub pieces: Vec<Piece>,
    /// The base, if it is given.
    pub fixed_offset: Option<u64>,
}

impl Item {
    /// Creates an item that can lie anywhere.
    pub fn new(alignment_bytes: u64, pieces: Vec<Piece>) -> Item {
        Item { alignment_bytes: alignment_bytes.max(1), pieces, fixed_offset: None }
    }

    /// One past the last byte that any piece takes, relative to the base.
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

/// The reason why there is no placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementError {
    /// More bytes are live at once than the capacity holds: no placement exists.
    Load {
        /// The most bytes live at once.
        load_bytes: u64,
        /// The capacity in bytes.
        capacity_bytes: u64,
    },
    /// No placement was found within the effort; one may exist.
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
        /// Their sum in bytes.
        total_bytes: u128,
    },
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlacementError::Load { load_bytes, capacity_bytes } => {
                let [load, capacity] = [*load_bytes, *capacity_bytes].map(exact_bytes);
                write!(f, "the items live at once take {load}, but the capacity is {capacity}")
            }
            PlacementError::Search { lowest, capacity_bytes } => {
                let [height, capacity] = [lowest.height_bytes, *capacity_bytes].map(exact_bytes);
                write!(f, "the lowest placement found takes {height}, but the capacity is {capacity}")
            }
            PlacementError::Fixed(fault) => write!(f, "invalid given bases: {fault}"),
            PlacementError::TooLarge { total_bytes } => {
                write!(f, "the items take {total_bytes} bytes side by side; the maximum is {ADDRESSES_MAX_BYTES} bytes")
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
    /// The number of bases differs from the number of items.
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
            Fault::Moved { item } => write!(f, "item {item} is not at its given base"),
            Fault::AboveHeight { item } => write!(f, "item {item} ends above the height of the placement"),
            Fault::Count { offsets, items } => write!(f, "expected {items} bases, one per item, found {offsets}"),
        }
    }
}

impl std::error::Error for Fault {}
