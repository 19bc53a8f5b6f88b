//! Why a change of a managed memory cannot continue.

use forebay_memory::eviction::EvictionError;

use crate::eager::block_lifetimes::Use;
use crate::error::RuntimeError;

/// Why a change cannot continue. The part that was done remains, as the eviction queue records, and the change can be
/// retried from the beginning.
#[derive(Debug)]
pub enum Stop {
    /// The host first has to wait for these uses, without holding the lock, so that other threads can continue.
    Wait(Vec<Use>),
    /// The change failed.
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
