//! The units that one operation holds on the device until it is submitted.

use std::collections::BTreeMap;

use forebay_memory::eviction::{Access, UnitId};
use forebay_queue::shim::sync::MutexGuard;

use super::allocation::Buffer;
use super::core::{Core, State};
use super::stop::Stop;
use crate::eager::batch::Batch;
use crate::eager::shared::State as Order;
use crate::eager::timeline::QueueId;
use crate::error::RuntimeError;

/// Units that are on the device for an operation, and stay there until this is dropped, when the operation has been submitted.
#[must_use = "units may be evicted again when this is dropped"]
pub struct PinnedUnits<'a> {
    held: Vec<Held<'a>>,
}

/// Units, and how an operation accesses them.
type Uses = Vec<(UnitId, Access)>;

/// Returns each unit once.
fn units(uses: &Uses) -> Vec<UnitId> {
    let mut units: Vec<UnitId> = uses.iter().map(|&(unit, _)| unit).collect();
    units.sort_unstable();
    units.dedup();
    units
}

/// Units of one managed memory.
struct Held<'a> {
    core: &'a Core,
    state: MutexGuard<'a, State>,
    units: Vec<UnitId>,
}

impl<'a> PinnedUnits<'a> {
    /// Makes byte ranges of buffers resident.
    ///
    /// # Errors
    /// Fails if the units do not fit at once, if host memory for evicted data runs out, or if the device or the spill file fails.
    pub fn new(
        ranges: impl IntoIterator<Item = (&'a Buffer, std::ops::Range<u64>, Access)>,
    ) -> Result<PinnedUnits<'a>, RuntimeError> {
        let mut memories: BTreeMap<u64, (&'a Core, Uses)> = BTreeMap::new();
        for (buffer, range, access) in ranges {
            let core = buffer.core();
            let (_, uses) = memories.entry(core.number).or_insert((core, Uses::new()));
            uses.extend(buffer.parts(range).map(|part| match access {
                Access::Overwrite if !part.whole => (part.unit, Access::Update),
                _ => (part.unit, access),
            }));
        }
        'again: loop {
            let mut held = Vec::new();
            // In ascending order of their numbers, to avoid deadlocks.
            for (core, uses) in memories.values() {
                let mut state = core.lock();
                match core.make_resident(&mut state, uses) {
                    Ok(()) => held.push(Held { core, state, units: units(uses) }),
                    Err(Stop::Failed(error)) => return Err(error),
                    Err(Stop::Wait(pending)) => {
                        drop((state, held));
                        core.wait(&pending)?;
                        continue 'again;
                    }
                }
            }
            return Ok(PinnedUnits { held });
        }
    }

    /// Orders a queue's next work after the copies of the units.
    pub fn order(&self, queue: QueueId, order: &mut Order, batch: &mut Batch) {
        for held in &self.held {
            let moved = held
                .units
                .iter()
                .filter_map(|unit| held.state.locations.get(unit))
                .map(|location| location.moved)
                .max();
            order.come_after(queue, held.core.copies.queue(), moved.unwrap_or(0), batch);
        }
    }

    /// Records that work at a position of a queue uses the units.
    pub fn add_use(&mut self, queue: QueueId, position: u64) {
        for held in &mut self.held {
            for unit in &held.units {
                if let Some(location) = held.state.locations.get_mut(unit) {
                    location.add_use(queue, position);
                }
            }
        }
    }
}
