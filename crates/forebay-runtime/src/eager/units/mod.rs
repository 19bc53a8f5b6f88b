//! Units of managed memory: where their bytes are, what moves when, and what holds them on the device.
//!
//! Nothing here knows the user's streams or tensors; those belong to [`managed`](super::managed), above.
//!
//! | module | holds |
//! |---|---|
//! | `core` | decides what moves when, and what waits for what |
//! | `host_side` | the host's copies: blocks, and the files behind them |
//! | `handle` | what handles share: the core, and the thread that carries out prefetches |
//! | `allocation` | buffers: addresses, and the units behind them |
//! | `residency` | what one operation holds on the device until it is submitted |
//! | `release` | how memory is given back, finally all of it |
//! | `stop` | the reasons why a change waits or fails |
//! | `locations`, `slab_pool`, `spill` | where units are; device memory, host blocks and files, cut into units |
//! | `statistics` | what was moved and waited for |

mod allocation;
mod core;
mod handle;
mod host_side;
mod locations;
mod release;
mod residency;
mod slab_pool;
mod spill;
mod statistics;
mod stop;

pub use self::core::{Core, State, device_error};
pub use allocation::{Buffer, Part};
pub use handle::Handle;
pub use residency::PinnedUnits;
pub use slab_pool::SlabPool;
pub use spill::SpillFiles;
pub use statistics::ManagedStatistics;
