//! Decides where bytes live: an allocator for eager use, the eviction queue of managed memory, and static placement of buffers with known
//! lifetimes. Pure.
//!
//! | module | holds |
//! |---|---|
//! | [`allocator`] | best fit with coalescing over segments, a pool for each stream, assembly of tiles |
//! | [`eviction`] | managed memory: which units are evicted to make room for others, and what is copied |
//! | [`history`], [`picture`] | who used which bytes when, and a drawing of it |
//! | [`placement`] | items and placements |
//! | [`search`] | finding a placement |
//! | [`size`] | memory sizes in human-readable form |
//!
//! ```
//! use forebay_base::ByteRange;
//! use forebay_memory::{place, Effort, Item, Piece};
//!
//! // Two buffers of 100 bytes that never live at the same time share their bytes.
//! let item = |time| Item::new(1, vec![Piece { time, bytes: ByteRange::new(0, 100) }]);
//! let placement = place(&[item(0..4), item(4..9)], Some(100), Effort::default())?;
//! assert_eq!(placement.height_bytes, 100);
//! # Ok::<(), forebay_memory::PlacementError>(())
//! ```
//!
//! ```
//! use forebay_memory::{Allocator, PoolId};
//!
//! // What a stream frees it uses again at once; another stream gets it when the first has passed.
//! let mut allocator = Allocator::new(256);
//! allocator.add_segment(1 << 20);
//! let (compute, copies) = (PoolId(0), PoolId(1));
//! let block = allocator.allocate(compute, 1 << 20, "activations").ok_or("full")?;
//! allocator.free(block.id)?;
//! assert_eq!(allocator.allocate(copies, 1000, "staging"), None);
//! allocator.share(compute);
//! assert!(allocator.allocate(copies, 1000, "staging").is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod allocator;
mod conflicts;
pub mod eviction;
pub mod history;
mod load;
pub mod picture;
pub mod placement;
pub mod search;
pub mod size;
mod verify;

pub use allocator::{
    Allocator, AllocatorError, AllocatorStatistics, Assembly, Block, BlockId, Holder, PoolId, SegmentId, Snapshot,
    TileMove, TileRange,
};
pub use history::History;
pub use load::{height_bound_bytes, load_bound_bytes};
pub use picture::Picture;
pub use placement::{Fault, Item, Piece, Placement, PlacementError};
pub use search::{Effort, FIRST_ORDERS, place};
pub use verify::verify;
