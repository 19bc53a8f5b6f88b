//! Who holds the host blocks that transfers go through, and how many are needed.

use forebay_queue::shim::lock;
use forebay_queue::shim::sync::{Condvar, Mutex};

/// After this many transfers, a ring of which less than half was used gives blocks back.
const TRANSFERS_PER_LOOK: u32 = 64;

/// Who holds host blocks, and how much of them is needed.
#[derive(Default)]
pub struct Ring {
    /// What changes.
    pub state: Mutex<RingState>,
    /// Notified when a block is let go.
    pub released: Condvar,
}

/// What changes of a ring.
#[derive(Default)]
pub struct RingState {
    /// Blocks that threads hold.
    pub holders: usize,
    /// Counts blocks that were let go.
    pub releases: u64,
    /// Transfers since the latest look at what is needed.
    transfers: u32,
}

impl Ring {
    /// Counts a transfer. Whether it is time to look at what is needed.
    pub fn count(&self) -> bool {
        let mut state = lock(&self.state);
        state.transfers = (state.transfers + 1) % TRANSFERS_PER_LOOK;
        state.transfers == 0
    }
}
