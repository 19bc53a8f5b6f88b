//! Managed memory: buffers larger than the device, whose parts are on the device while work uses them.
//!
//! A [`ManagedBuffer`] has device addresses for all of its bytes, and memory behind some of them. It moves in units of some tiles each:
//! before an operation that binds a [`DeviceTensor`](super::DeviceTensor) in it, the units of that tensor are made resident, and others are
//! evicted for them as the [`EvictionQueue`](forebay_memory::eviction::EvictionQueue) decides.
//!
//! ```
//! use std::sync::Arc;
//! use forebay_base::DataType;
//! use forebay_device::host::{HostDevice, HostOptions};
//! use forebay_runtime::eager::managed::Policy;
//! use forebay_runtime::eager::{Context, ContextOptions, ManagedMemory, ManagedOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::new(Arc::new(HostDevice::new(&HostOptions::default())?), &ContextOptions::default())?;
//! let mut options = ManagedOptions::new(1 << 20, Policy::Touch);
//! options.unit_bytes = Some(256 << 10);
//! let memory = ManagedMemory::new(&context, &options)?;
//!
//! let buffer = memory.buffer(4 << 20)?; // four times what may be on the device
//! buffer.write(0, &1.5f32.to_le_bytes().repeat(1 << 20))?;
//! let mut sum = 0.0;
//! for part in 0..8 {
//!     let tensor = buffer.tensor(DataType::Float32, &[1 << 17], part * (512 << 10))?;
//!     sum += tensor.sum()?.to_host()?.to_f32().ok_or("numbers")?[0];
//! }
//! assert_eq!(sum, 1.5 * (1 << 20) as f32);
//! assert!(memory.statistics().evictions > 0 && context.device().usage().heap_bytes < 4 << 20);
//! # Ok(())
//! # }
//! ```
//!
//! Copies go to a separate stream and are ordered against work by events; mapping changes after the host has seen that no one uses the
//! tiles; no lock is held while the host waits. Data that is not on the device is in host blocks and, beyond the host budget, in files
//! without names, which the device copies to and from like any memory.
//!
//! A device without tiles has placed heaps; on it, a buffer is one unit and has to fit on the device as a whole.
//!
//! | module | holds |
//! |---|---|
//! | [`memory`] | managed memory, in which the caller creates buffers |
//! | [`buffer`] | buffers: reads and writes by the host, prefetch, advice, discard |
//! | `work` | commands that are prepared once and submitted many times |
//!
//! The code that tracks where units are and decides what moves when is in `eager/units`.

pub mod buffer;
pub mod memory;
mod work;

pub use buffer::ManagedBuffer;
pub use forebay_memory::eviction::{Advice, Location, Policy};
pub use memory::{ManagedMemory, ManagedOptions};
pub(crate) use work::{Work, stream_id};

pub use super::units::ManagedStatistics;
