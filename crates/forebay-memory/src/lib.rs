//! Where bytes can live: static placement of buffers with known lifetimes. Pure.
//!
//! | module | holds |
//! |---|---|
//! | [`placement`] | items, placements, and their verification |
//! | [`search`] | finding a placement |
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

mod conflicts;
pub mod placement;
pub mod search;

pub use placement::{load_bound_bytes, verify, Fault, Item, Piece, Placement, PlacementError};
pub use search::{place, Effort};
