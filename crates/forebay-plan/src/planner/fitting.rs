//! Filling the device as far as placement follows.
//!
//! What fits by its bytes need not have addresses: parts of a buffer have to lie side by side, and gaps remain between others.
//! Room is given away a little smaller then, at the launches where something found no place and nowhere else, until all have
//! one.

use crate::arena::{arena_or_lack, boundless};
use crate::backing_stores::BackingStores;
use crate::error::PlanError;
use crate::liveness::Liveness;
use crate::residency::{OccupancyLimit, Residency};

use super::candidate::{split, Candidate};
use super::{Filled, Planner, WORSE_MAX};

/// Parts of the capacity, in percent, that are tried as room for what is kept; the rest is room for transfers.
const KEEP_PERCENT: [u64; 8] = [100, 97, 94, 90, 85, 78, 70, 55];
/// The same where launches are cut: many pieces that have to lie side by side leave more gaps.
const KEEP_PERCENT_OF_PARTS: [u64; 5] = [85, 60, 42, 28, 15];
/// Where launches are cut, neighbouring parts may be tied to this fraction of what may be kept.
const JOINED: u64 = 8;
/// How often room is made smaller before an attempt is given up.
const ROUNDS: u64 = 8;
/// The first round takes this fraction (one part in this many) of what a launch lacks away, the second four times as much, the third nine times, and so on.
const FRACTIONS: u64 = 16;
/// What is lacking counts as this fraction of the capacity at least: less would not let anything leave.
const LACK_PARTS: u64 = 64;
/// How many times what nearly fits is looked at for longer, in one attempt.
const LONG_LOOKS: u32 = 2;

impl Planner<'_> {
    /// Parts of the capacity that are tried as room for what is kept.
    pub(super) fn keep_percents(&self) -> &'static [u64] {
        if self.cut {
            &KEEP_PERCENT_OF_PARTS
        } else {
            &KEEP_PERCENT
        }
    }

    /// What may have one base. Overlapping parts would else tie whole buffers together.
    pub(super) fn joined_bytes(&self, keep_bytes: u64) -> u64 {
        if self.cut {
            keep_bytes / JOINED
        } else {
            u64::MAX
        }
    }

    /// Tries these parts of the capacity as room for what is kept; the fastest plan, if any has a placement and is better than
    /// another one.
    pub(super) fn fastest(
        &self,
        candidate: &Candidate,
        percents: &[u64],
        capacity_bytes: u64,
        other: Option<&Filled>,
    ) -> Result<Option<Filled>, PlanError> {
        let mut best: Option<Filled> = None;
        let split = split(candidate);
        let needed = split.needed_bytes().into_iter().max().unwrap_or(0);
        if needed > capacity_bytes {
            return Ok(None);
        }
        let (mut tried, mut worse) = (Vec::new(), 0);
        for &percent in percents {
            let keep_bytes = (capacity_bytes / 100 * percent).max(needed);
            let middle_bytes = keep_bytes + capacity_bytes.saturating_sub(keep_bytes) / 2;
            worse += usize::from(best.is_some());
            let joined_bytes = self.joined_bytes(keep_bytes);
            // Plans of parts take long to make: fewer are made.
            let rooms_bytes = [capacity_bytes, middle_bytes, keep_bytes];
            for &transfer_bytes in &rooms_bytes[..if self.cut { 2 } else { 3 }] {
                let limit = OccupancyLimit { keep_bytes, transfer_bytes, isolate: false, joined_bytes };
                let intervals = self.intervals(candidate, &split, limit, &[]);
                if tried.contains(&intervals) {
                    continue;
                }
                tried.push(intervals);
                let find = |lost_bytes: &[u64]| {
                    let (residency, backing_stores) = self.intervals(candidate, &split, limit, lost_bytes);
                    Some((split.clone(), residency, backing_stores))
                };
                if let Some(filled) = self.fitted(candidate, percent, capacity_bytes, best.as_ref().or(other), find)? {
                    (best, worse) = (Some(filled), 0);
                }
            }
            if worse == if self.cut { 1 } else { WORSE_MAX } {
                break;
            }
        }
        Ok(best)
    }

    /// The plan of the stays that are found where some bytes are lost to each launch: none at first, then those that would have
    /// been needed for all intervals to have a place. `None` where it is no better than another one; what would not be if placement
    /// were no matter is not placed.
    pub(super) fn fitted(
        &self,
        candidate: &Candidate,
        percent: u64,
        capacity_bytes: u64,
        other: Option<&Filled>,
        find: impl Fn(&[u64]) -> Option<(Liveness, Residency, BackingStores)>,
    ) -> Result<Option<Filled>, PlanError> {
        let mut lost_bytes = vec![0; candidate.ordered.program.launches.len()];
        let mut before: Option<(Residency, Vec<u64>)> = None;
        let mut long_looks = LONG_LOOKS;
        for round in 1..=ROUNDS {
            let Some((live, residency, backing_stores)) = find(&lost_bytes) else { return Ok(None) };
            let is_better = |filled: &Filled| other.is_none_or(|other| filled.is_better(other));
            let intervals = (live, residency, backing_stores);
            if other.is_some() && !is_better(&self.unplaced(candidate, &intervals, percent)?) {
                return Ok(None);
            }
            let (live, residency, backing_stores) = intervals;
            let lack_bytes = match before {
                Some((same, lack_bytes)) if same == residency => lack_bytes,
                _ => match arena_or_lack(&live, &residency, capacity_bytes, &mut long_looks) {
                    Ok(arena) => {
                        let filled =
                            self.filled(self.emit(candidate, &live, (&residency, &backing_stores), &arena)?, percent);
                        return Ok(Some(filled).filter(is_better));
                    }
                    Err(lack_bytes) => lack_bytes,
                },
            };
            for (lost, &lack) in lost_bytes.iter_mut().zip(&lack_bytes).filter(|(_, lack)| **lack > 0) {
                *lost += lack.max(capacity_bytes / LACK_PARTS) / FRACTIONS * round.pow(2);
            }
            before = Some((residency, lack_bytes));
        }
        Ok(None)
    }

    /// What stays would come to if placement were no matter.
    pub(super) fn unplaced(
        &self,
        candidate: &Candidate,
        (live, residency, backing_stores): &(Liveness, Residency, BackingStores),
        percent: u64,
    ) -> Result<Filled, PlanError> {
        let plan = self.emit(candidate, live, (residency, backing_stores), &boundless(live, residency))?;
        Ok(self.filled(plan, percent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::estimate;
    use crate::order::Ordered;
    use crate::testing::{limits, random_training_program, Random};

    #[test]
    fn room_is_taken_away_until_all_stays_have_a_place() {
        let (mut lacking, mut fitted) = (0, 0);
        for seed in 1..60 {
            let program = crate::fuse::fuse(random_training_program(&mut Random::new(seed), 10));
            let (limits, costs) = (limits(), estimate(&program, &limits()));
            let file = Candidate::new(Ordered::as_it_comes(program.clone()), &costs);
            let planner = Planner {
                program: &program,
                limits: &limits,
                costs: &costs,
                in_core_ns: 0,
                cut: false,
                host_limit: None,
            };
            let live = split(&file);
            let needed_bytes = live.needed_bytes().into_iter().max().unwrap_or(0);
            let capacity_bytes = needed_bytes * [8, 9, 10, 12][seed as usize % 4] / 8;
            let limit = OccupancyLimit {
                keep_bytes: capacity_bytes,
                transfer_bytes: capacity_bytes,
                isolate: false,
                joined_bytes: u64::MAX,
            };
            let (residency, _) = planner.intervals(&file, &live, limit, &[]);
            let Err(lack_bytes) = arena_or_lack(&live, &residency, capacity_bytes, &mut 0) else { continue };
            lacking += 1;
            assert!(lack_bytes.iter().any(|&bytes| bytes > 0), "seed {seed}");
            let Some(found) = planner.fastest(&file, &[100], capacity_bytes, None).unwrap() else { continue };
            let most_bytes = capacity_bytes.next_multiple_of(limits.tile_size_bytes);
            assert!(found.plan.statistics.device_peak_bytes <= most_bytes, "seed {seed}");
            fitted += 1;
        }
        assert!(fitted > 0 && fitted * 2 > lacking, "{fitted} of {lacking} got a place when room was taken away");
    }
}
