//! Synchronization: hazards, barriers, happens-before and the race checker.
//!
//! Commands state exactly which bytes they read and write ([`forebay_base::command`]), so every hazard can be found from bindings alone.
//! This crate finds the hazards, orders them with the fewest barriers, and checks the result independently.
//!
//! | module | holds |
//! |---|---|
//! | [`ranges`] | interval sets over byte ranges |
//! | [`physical`] | which physical bytes a region names, through the mapping of tiles |
//! | [`tracker`] | one stream, one command at a time: whether it needs a barrier first |
//! | [`history`] | the last accesses of all bytes, across streams |
//! | [`barriers`] | a whole list ahead of time: barriers, records and waits, none of them redundant |
//! | [`race`] | the independent checker of lists and of eager traces; shares nothing with the above but [`physical`] |
//! | [`states`] | resource states as Direct3D 12 defines them: claims checked, or transitions computed |
//! | [`error`] | why a list cannot be synchronized |
//!
//! # Under somebody's own device code
//!
//! The tracker needs no plan and no device. Ask it before each dispatch, and if it says so, issue a barrier (`vkCmdPipelineBarrier2`, a UAV
//! barrier, ...) first. A chain needs a barrier before each dependent dispatch; a diamond runs both of its sides between the same two
//! barriers:
//!
//! ```
//! use forebay_base::{MemoryId, Region};
//! use forebay_sync::Tracker;
//!
//! # fn main() -> Result<(), forebay_sync::SyncError> {
//! // Five tensors in one buffer, 1 KiB each: ranges conflict, not buffers.
//! let tensor = |index: u64| Region::new(MemoryId(0), index * 1024, 1024);
//!
//! // convolution -> relu -> batch normalization: two barriers.
//! let mut stream = Tracker::default();
//! assert!(!stream.submit(&[tensor(0)], &[tensor(1)])?); // dispatch convolution
//! assert!(stream.submit(&[tensor(1)], &[tensor(2)])?); // barrier, dispatch relu
//! assert!(stream.submit(&[tensor(2)], &[tensor(3)])?); // barrier, dispatch batch normalization
//!
//! // pooling -> two convolutions -> join: two barriers, both convolutions between them.
//! let mut stream = Tracker::default();
//! assert!(!stream.submit(&[tensor(0)], &[tensor(1)])?); // dispatch pooling
//! assert!(stream.submit(&[tensor(1)], &[tensor(2)])?); // barrier, dispatch convolution 1
//! assert!(!stream.submit(&[tensor(1)], &[tensor(3)])?); // dispatch convolution 2, next to the first
//! assert!(stream.submit(&[tensor(2), tensor(3)], &[tensor(4)])?); // barrier, dispatch join
//! # Ok(())
//! # }
//! ```
//!
//! [`check_trace`] checks eager work after the fact, and [`states`] serves devices that need to know the states of their resources. Both
//! modules have an example.

pub mod barriers;
pub mod error;
pub mod history;
pub mod physical;
pub mod race;
pub mod ranges;
pub mod states;
pub mod tracker;

pub use barriers::{StepBoundary, Synchronized, insert_barriers};
pub use error::SyncError;
pub use physical::{PhysicalBytes, PhysicalMemory, TileMap};
pub use race::{Actor, Hazard, HostAction, Race, RaceReport, TraceEntry, Violation, check_races, check_trace};
pub use ranges::RangeSet;
pub use tracker::Tracker;
