//! Where units are, and who uses them.

use std::collections::BTreeMap;

use forebay_base::{MemoryId, Region};
use forebay_memory::eviction::UnitId;

use super::slots::Slot;
use crate::eager::ledger::Use;
use crate::eager::timeline::QueueId;

/// Where a unit's bytes are.
#[derive(Clone, Debug)]
pub struct Home {
    /// Its addresses on the device.
    pub region: Region,
    /// The memory behind them.
    pub slot: Option<Slot>,
    /// Its bytes on the host.
    pub block: Option<Region>,
    /// Its place in the spill file, which holds what the host's copy is.
    pub file: Option<u64>,
    /// The latest use of its device bytes by each queue, copies included.
    pub uses: Vec<Use>,
    /// The position of the latest copy from or to its device bytes: work comes after it.
    pub moved: u64,
    /// The position of the latest copy from or to its block.
    pub block_used: u64,
}

impl Home {
    /// A home without memory.
    pub fn new(region: Region) -> Home {
        Home { region, slot: None, block: None, file: None, uses: Vec::new(), moved: 0, block_used: 0 }
    }

    /// Notes that work at a position of a queue uses the device bytes.
    pub fn add_use(&mut self, queue: QueueId, position: u64) {
        add_use(&mut self.uses, (queue, position));
    }
}

/// Homes of all units.
pub type Homes = BTreeMap<UnitId, Home>;

/// Keeps the latest use by each queue.
pub fn add_use(uses: &mut Vec<Use>, (queue, position): Use) {
    match uses.iter_mut().find(|(other, _)| *other == queue) {
        Some((_, latest)) => *latest = position.max(*latest),
        None => uses.push((queue, position)),
    }
}

/// A buffer that is gone, whose memory somebody may still use.
#[derive(Clone, Debug)]
pub struct Retired {
    /// Its addresses.
    pub reservation: MemoryId,
    /// Its units that were anywhere.
    pub homes: Vec<Home>,
    /// Who used it.
    pub uses: Vec<Use>,
}
