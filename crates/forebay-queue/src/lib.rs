//! Streams and events as state machines: which command can start when, which stream waits for which, and when an event fires.
//!
//! A device provides the work and the threads that run it ([`Pool`]); this crate knows neither memory nor kernels. So it compiles alone,
//! and the same code runs in devices and under a model checker (`tests/model`), which tries the possible interleavings of threads.
//!
//! | module | subject |
//! |---|---|
//! | [`shim`] | threads and locks: those of the standard library or of the model checker |
//! | `bounded` | with the feature `shuttle`: every schedule with a bounded number of delays |
//! | [`event`] | events as counters |
//! | [`progress`] | which events have fired, the failure that sticks, and what waits for either |
//! | `milestone` | a record that fires when all work before it is done |
//! | `stream` | one stream: a line of tasks |
//! | [`streams`] | all streams of a device: lists accepted whole or not at all |
//! | `continuations` | work that comes up while a thread is running |
//! | [`workers`] | threads that do jobs and divide loops among themselves |

#[cfg(feature = "shuttle")]
pub mod bounded;
mod continuations;
pub mod event;
mod milestone;
pub mod progress;
pub mod shim;
mod stream;
pub mod streams;
pub mod workers;

pub use event::{Events, QueueError};
pub use milestone::Finish;
pub use progress::Progress;
pub use stream::{Origin, Pool};
pub use streams::Streams;
pub use workers::Workers;
