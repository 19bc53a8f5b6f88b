//! Now: plans run on devices, and what happened is written down.
//!
//! | module | holds |
//! |---|---|
//! | [`executor`] | a plan on a device: obtained, loaded, run step by step, released |
//! | [`shared`] | device memory that several plans use |
//! | [`paged`] | the same step over managed memory |
//! | [`backing`] | where tensors lie between steps |
//! | [`binding`] | a plan's ids become the device's |
//! | [`eager`] | contexts, streams, events and tensors: work launched as calls arrive |
//! | [`profile`] | how long launches took, and which copies came too late |
//! | [`trace`] | what ran when, for Perfetto |
//! | [`error`] | what can go wrong |
//!
//! The planner emits commands ahead of time; this crate renumbers, submits and joins. It decides nothing about memory or
//! order, so that what `forebay plan` shows is what happens.

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
