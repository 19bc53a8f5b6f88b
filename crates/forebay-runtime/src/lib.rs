//! The runtime: runs plans on devices and records what happened.
//!
//! | module | holds |
//! |---|---|
//! | [`executor`] | running a plan on a device: obtaining memory, loading, steps, release |
//! | [`shared`] | device memory shared by several plans |
//! | [`paged`] | the same step over managed memory |
//! | [`backing`] | where tensors are stored between steps |
//! | [`binding`] | translating a plan's ids to the device's |
//! | [`eager`] | contexts, streams, events and tensors: work launched call by call |
//! | [`profile`] | how long launches took, and which copies were late |
//! | [`trace`] | what ran when, for Perfetto |
//! | [`error`] | errors |
//!
//! The planner emits commands ahead of time; this crate renumbers, submits and joins them. It makes no decisions about memory or order, so
//! what `forebay plan` shows is what runs.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod backing;
pub mod binding;
pub mod eager;
pub mod error;
pub mod executor;
mod feeding;
mod live;
mod loans;
mod model_files;
pub mod paged;
pub mod profile;
mod releasing;
pub mod shared;
mod step_times;
pub mod trace;

pub use error::RuntimeError;
pub use executor::{Decision, Executor};
pub use paged::{PagedExecutor, PagedOptions, Strategy};
pub use shared::shared_memory;
pub use step_times::{StepMoves, StepTimes};
