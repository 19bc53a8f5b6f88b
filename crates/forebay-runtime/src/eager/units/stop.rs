//! Why a change of a managed memory cannot go on.

use forebay_memory::eviction::EvictionError;

use crate::eager::block_lifetimes::Use;
use crate::error::RuntimeError;

/// Why a change cannot go on. What was done of it stays, and is where the queue of evictions says: the change can be tried
/// again from its beginning.
#[derive(Debug)]
pub enum Stop {
    /// The host has to wait for these uses first, without holding the lock, so that other threads go on.
    Wait(Vec<Use>),
    /// It failed.
    Failed(RuntimeError),
}

impl From<RuntimeError> for Stop {
    fn from(error: RuntimeError) -> Stop {
        Stop::Failed(error)
    }
}

impl From<EvictionError> for Stop {
    fn from(error: EvictionError) -> Stop {
        Stop::Failed(error.into())
    }
}
