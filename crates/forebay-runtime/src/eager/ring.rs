//! The holders of the host blocks that transfers go through, and how many blocks are needed.

use forebay_queue::shim::lock;
use forebay_queue::shim::sync::{Condvar, Mutex};

/// After this many transfers, a ring that was less than half used gives blocks back.
const TRANSFERS_PER_LOOK: u32 = 64;

/// The holders of host blocks, and how many blocks are needed.
#[derive(Default)]
pub struct Ring {
    /// The mutable state.
    pub state: Mutex<RingState>,
    /// Notified when a block is released.
    pub released: Condvar,
}

/// The mutable state of a ring.
#[derive(Default)]
pub struct RingState {
    /// The number of blocks that threads hold or are about to take.
    pub holders: usize,
    /// The number of blocks that have been released.
    pub releases: u64,
    /// The number of transfers since the need for blocks was last examined.
    transfers: u32,
}

impl Ring {
    /// Counts a transfer. Returns whether it is time to examine how many blocks are needed.
    pub fn count(&self) -> bool {
        let mut state = lock(&self.state);
        state.transfers = (state.transfers + 1) % TRANSFERS_PER_LOOK;
        state.transfers == 0
    }
}
