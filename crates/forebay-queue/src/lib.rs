//! Streams and events as state machines: who may start when, who waits for whom, when an event fires.
//!
//! A device brings the work and the threads that do it ([`Pool`]); what is here knows neither memory nor kernels. So it
//! compiles alone, and the very same code runs in devices and under a model checker (`tests/model`), which tries the ways in
//! which threads can follow each other.
//!
//! | module | subject |
//! |---|---|
//! | [`shim`] | threads and locks: the standard library's, or the model checker's |
//! | `bounded` | with the feature `shuttle`: every schedule with a bounded number of delays |
//! | [`event`] | events as counters |
//! | [`progress`] | which events have fired, the failure that sticks, and who waits for either |
//! | `milestone` | a record that fires when all work before it is done |
//! | `stream` | one stream: a line of tasks |
//! | [`streams`] | all streams of a device: lists accepted whole or not at all |
//! | `continuations` | what a thread finds to do while it does something else |

#[cfg(feature = "shuttle")]
pub mod bounded;
mod continuations;
pub mod event;
mod milestone;
pub mod progress;
pub mod shim;
mod stream;
pub mod streams;

pub use event::{Events, QueueError};
pub use milestone::Finish;
pub use progress::Progress;
pub use stream::{Origin, Pool};
pub use streams::Streams;
