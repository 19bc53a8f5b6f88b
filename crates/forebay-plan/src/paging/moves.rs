//! Explicit moves: the residency pass decides which units stay within the budget, and this module turns its decisions into prefetches, so
//! that nothing is evicted on demand.
//!
//! A driver evicts from the head of its queue, which is the unit that was last prefetched to the host. Its copy may still be in progress,
//! so the unit that left longest ago is prefetched to the host again right before another takes its place.

use std::collections::{BTreeSet, VecDeque};

use super::Life;
use crate::cost::Costs;
use crate::liveness::Liveness;
use crate::residency::{Kind, Leaving, OccupancyLimit, Segment, residency_of};
use crate::widen::{Route, widen};

/// The share of the capacity, in percent, that units kept between uses may take; the rest is room for transfers in progress.
const KEEP_PERCENT: u64 = 85;

/// A move that the framework dictates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Copies the unit to the host; it is the next to leave.
    ToHost(u64),
    /// Copies the unit to the device; it is the last to leave.
    ToDevice(u64),
}

/// The moves before and after a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// The moves before it, in this order.
    pub before: Vec<Move>,
    /// The moves after it.
    pub after: Vec<Move>,
}

/// Returns the moves of a step in which at most `capacity` units are on the device.
pub(super) fn moves(lives: &[Life], launch_count: usize, unit_bytes: u64, capacity: u64, costs: &Costs) -> Vec<Moves> {
    let kinds: Vec<Kind> = lives.iter().map(|life| life.kind).collect();
    let live = Liveness { chunks: lives.iter().map(|life| life.chunk(unit_bytes)).collect(), launch_count };
    let needed = live.most_needed_bytes();
    let capacity_bytes = capacity * unit_bytes;
    let keep_bytes = (capacity_bytes / 100 * KEEP_PERCENT).max(needed);
    let keep_bytes = if lives_together(lives) <= capacity { capacity_bytes } else { keep_bytes };
    let limit = OccupancyLimit { keep_bytes, transfer_bytes: capacity_bytes, isolate: false, joined_bytes: u64::MAX };
    let mut residency = residency_of(&kinds, &live, costs, limit, &[], &Leaving::Anything);
    let route = |_| Route { on_disk: false, over_boundary: false };
    widen(&mut residency, &live, costs, route, capacity_bytes, &[]);
    let mut starts: Vec<Vec<&Segment>> = vec![Vec::new(); launch_count];
    let mut ends: Vec<Vec<u64>> = vec![Vec::new(); launch_count];
    let mut moves = vec![Moves::default(); launch_count];
    for segment in &residency.segments {
        let life = &lives[segment.chunk];
        starts[segment.start].push(segment);
        let intervals = residency.backing_on_device[segment.chunk]
            || (residency.across_steps[segment.chunk] && segment.end + 1 == launch_count);
        if !intervals {
            ends[segment.end].push(life.unit);
        }
        if segment.swap_out {
            moves[life.accesses[segment.accesses.end - 1].launch].after.push(Move::ToHost(life.unit));
        }
    }
    for starts in &mut starts {
        starts.sort_by_key(|segment| (lives[segment.chunk].accesses[segment.accesses.start].launch, segment.chunk));
    }
    let mut device = Device { capacity, ..Device::default() };
    // The next step finds on the device what the previous one left there; the second step is like every later one.
    for _ in 0..2 {
        for launch in 0..launch_count {
            let arrivals = starts[launch].iter().map(|segment| lives[segment.chunk].unit);
            moves[launch].before = device.bring(arrivals);
            device.left.extend(&ends[launch]);
        }
    }
    moves
}

/// Returns the total number of units.
fn lives_together(lives: &[Life]) -> u64 {
    lives.iter().map(|life| life.unit).collect::<BTreeSet<u64>>().len() as u64
}

/// The units that are on the device, according to the framework's moves.
#[derive(Default)]
struct Device {
    capacity: u64,
    resident: BTreeSet<u64>,
    /// The units among them that are no longer needed there; the one that left first is in front.
    left: VecDeque<u64>,
}

impl Device {
    /// Returns the moves that bring these units to the device.
    fn bring(&mut self, units: impl Iterator<Item = u64>) -> Vec<Move> {
        let mut said = Vec::new();
        for unit in units {
            self.left.retain(|&left| left != unit);
            if self.resident.len() as u64 >= self.capacity
                && !self.resident.contains(&unit)
                && let Some(victim) = self.left.pop_front()
            {
                self.resident.remove(&victim);
                said.push(Move::ToHost(victim));
            }
            self.resident.insert(unit);
            said.push(Move::ToDevice(unit));
        }
        said
    }
}
