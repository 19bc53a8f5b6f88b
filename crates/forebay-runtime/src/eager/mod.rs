//! Eager execution: tensors whose operations are launched one at a time, on streams that the caller chooses.
//!
//! ```
//! use std::sync::Arc;
//! use forebay_device::host::{HostDevice, HostOptions};
//! use forebay_model::Tensor;
//! use forebay_runtime::eager::{Context, ContextOptions, Stream, DeviceTensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Arc::new(HostDevice::new(&HostOptions::default())?);
//! let context = Context::new(device, &ContextOptions::default().record(true))?;
//! let stream = Stream::new(&context, 0)?;
//!
//! let a = DeviceTensor::from_host(&context, &Tensor::from_f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]))?;
//! let b = a.matmul(&a)?;
//! stream.wait_stream(&context.current_stream())?; // without this line, `check` below names both operations
//! let sum = {
//!     let _entered = stream.enter();
//!     b.sum()?.to_host()?
//! };
//! assert_eq!(sum.to_f32(), Some(vec![54.0]));
//! context.check()?;
//! # Ok(())
//! # }
//! ```
//!
//! Within a stream, the runtime inserts the barriers that hazards require, and no others. Between streams, the caller ensures the order;
//! the race checker reports where it is missing. Memory needs no attention: a tensor that is dropped while another stream uses it stays
//! allocated until that use has returned ([`block_lifetimes`]).
//!
//! | module | holds |
//! |---|---|
//! | [`timeline`] | vector clocks: who has waited for what |
//! | [`block_lifetimes`] | lifetimes of blocks across streams |
//! | [`store`], `tiles` | segments obtained from the device, and what is mapped where |
//! | `shared` | queues, clocks and memory behind one lock; how the host waits |
//! | [`context`], [`stream`], [`event`] | the caller's handles |
//! | `explain` | reports on a context's memory: numbers, snapshots, pictures |
//! | `options`, `environment` | settings of a context, also from environment variables |
//! | [`mod@slice`], [`tensor`], [`operation`] | bytes, the data in them, and operations on it |
//! | `lease`, `span`, `ring` | contents of handles: queues, bytes; the host blocks of transfers |
//! | `compile`, `compiled` | operators that are ready to launch |
//! | `transfer` | copies between host and device, through a ring of host blocks |
//! | [`managed`], `units` | memory for more than the device holds: its buffers, and what moves when |
//! | [`recording`] | everything that was submitted, for the race checker |

mod batch;
pub mod block_lifetimes;
mod compile;
mod compiled;
pub mod context;
mod current;
mod environment;
pub mod event;
mod explain;
mod lease;
pub mod managed;
pub mod operation;
mod options;
pub mod recording;
mod ring;
mod shared;
pub mod slice;
mod span;
pub mod store;
pub mod stream;
pub mod tensor;
mod tensor_operations;
mod tiles;
pub mod timeline;
mod timers;
mod transfer;
mod units;

pub use context::Context;
pub use current::StreamGuard;
pub use event::Event;
pub use managed::{ManagedBuffer, ManagedMemory, ManagedOptions, ManagedStatistics};
pub use operation::{Input, Operation};
pub use options::ContextOptions;
pub use recording::{Races, Recording};
pub use slice::Slice;
pub use stream::Stream;
pub use tensor::DeviceTensor;
