//! Fills the device as far as placement succeeds.
//!
//! What fits by its bytes may still find no addresses: parts of a buffer have to be adjacent, and gaps remain between other buffers. In
//! this case the room is reduced a little at the launches where something found no place, and only there, until everything has a place.

use crate::arena::{Looks, arena_or_lack, boundless};
use crate::backing_stores::BackingStores;
use crate::error::PlanError;
use crate::liveness::Liveness;
use crate::residency::{OccupancyLimit, Residency};
use crate::tuning::{
    JOINED, KEEP_SHARES, KEEP_SHARES_OF_PARTS, LACK_FRACTIONS, LACK_PARTS, LONG_LOOKS, ROUNDS, TRANSFER_SHARES,
    TRANSFER_SHARES_OF_PARTS,
};
use forebay_offload::parallel;
use forebay_offload::share_search::ShareSearch;

use super::candidate::{Candidate, split};
use super::work::WORK_OF_LAUNCH;
use super::{Filled, Planner};

impl Planner<'_> {
    /// Returns the shares of the capacity that are tried for kept bytes.
    pub(super) fn keep_shares(&self) -> ShareSearch {
        if self.cut { KEEP_SHARES_OF_PARTS } else { KEEP_SHARES }
    }

    /// Returns how many bytes may have one base. Otherwise overlapping parts would tie whole buffers together.
    pub(super) fn joined_bytes(&self, keep_bytes: u64) -> u64 {
        if self.cut { keep_bytes / JOINED } else { u64::MAX }
    }

    /// Tries these shares of the capacity for kept bytes. Returns the fastest plan, if any has a placement and is better than another plan.
    pub(super) fn fastest(
        &self,
        candidate: &Candidate,
        shares: ShareSearch,
        capacity_bytes: u64,
        other: Option<&Filled>,
    ) -> Result<Option<Filled>, PlanError> {
        let split = split(candidate);
        let needed = split.most_needed_bytes();
        if needed > capacity_bytes {
            return Ok(None);
        }
        let transfer_shares =
            &TRANSFER_SHARES[..if self.cut { TRANSFER_SHARES_OF_PARTS } else { TRANSFER_SHARES.len() }];
        let mut tried = Vec::new();
        let attempt = |share: f64, before: Option<&Filled>| {
            if before.or(other).is_some() && self.work_is_spent() {
                return Ok(None);
            }
            let keep_bytes = bytes_of_share(capacity_bytes, share).max(needed);
            let limits = transfer_shares.iter().map(|&transfer_share| {
                let transfer_bytes = keep_bytes + bytes_of_share(capacity_bytes - keep_bytes, transfer_share);
                let joined_bytes = self.joined_bytes(keep_bytes);
                OccupancyLimit { keep_bytes, transfer_bytes, isolate: false, joined_bytes }
            });
            let limits: Vec<OccupancyLimit> = limits.collect();
            let intervals = parallel::map(&limits, |limit| self.intervals(candidate, &split, *limit, &[]));
            let mut untried = Vec::new();
            for (limit, intervals) in limits.into_iter().zip(intervals) {
                if !tried.contains(&intervals) {
                    tried.push(intervals);
                    untried.push(limit);
                }
            }
            let other = before.or(other);
            let found = parallel::map(&untried, |limit| {
                let find = |lost_bytes: &[u64]| {
                    let (residency, backing_stores) = self.intervals(candidate, &split, *limit, lost_bytes);
                    Some((split.clone(), residency, backing_stores))
                };
                self.fitted(candidate, share, capacity_bytes, other, find)
            });
            let mut best: Option<Filled> = None;
            for found in found {
                best = found?.filter(|found| best.as_ref().is_none_or(|best| found.is_better(best))).or(best);
            }
            Ok(best)
        };
        Ok(shares.try_best(attempt)?.map(|(_, best)| best))
    }

    /// Returns the plan of the intervals that are found if some bytes are lost to each launch: none at first, then bytes that would have
    /// been needed to place all intervals. `None` if it is no better than another plan. Intervals that would be no better even without
    /// regard to placement are not placed.
    pub(super) fn fitted(
        &self,
        candidate: &Candidate,
        share: f64,
        capacity_bytes: u64,
        other: Option<&Filled>,
        find: impl Fn(&[u64]) -> Option<(Liveness, Residency, BackingStores)>,
    ) -> Result<Option<Filled>, PlanError> {
        let mut lost_bytes = vec![0; candidate.ordered.program.launches.len()];
        let mut before: Option<(Residency, Vec<u64>)> = None;
        let mut looks = Looks { long: LONG_LOOKS, placed: 0 };
        for round in 1..=ROUNDS {
            self.work.add(WORK_OF_LAUNCH * lost_bytes.len() as u64);
            let Some((live, residency, backing_stores)) = find(&lost_bytes) else { return Ok(None) };
            let is_better = |filled: &Filled| other.is_none_or(|other| filled.is_better(other));
            let intervals = (live, residency, backing_stores);
            if other.is_some() && !is_better(&self.unplaced(candidate, &intervals, share)?) {
                return Ok(None);
            }
            let (live, residency, backing_stores) = intervals;
            let lack_bytes = match before {
                Some((same, lack_bytes)) if same == residency => lack_bytes,
                _ => {
                    let found = arena_or_lack(&live, &residency, capacity_bytes, &mut looks);
                    self.work.add(std::mem::take(&mut looks.placed));
                    match found {
                        Ok(arena) => {
                            let plan = self.emit(candidate, &live, (&residency, &backing_stores), &arena)?;
                            return Ok(Some(self.filled(plan, share)).filter(is_better));
                        }
                        Err(lack_bytes) => lack_bytes,
                    }
                }
            };
            for (lost, &lack) in lost_bytes.iter_mut().zip(&lack_bytes).filter(|(_, lack)| **lack > 0) {
                *lost += lack.max(capacity_bytes / LACK_PARTS) / LACK_FRACTIONS * round.pow(2);
            }
            before = Some((residency, lack_bytes));
        }
        Ok(None)
    }

    /// Returns the result of intervals without regard to placement.
    pub(super) fn unplaced(
        &self,
        candidate: &Candidate,
        (live, residency, backing_stores): &(Liveness, Residency, BackingStores),
        share: f64,
    ) -> Result<Filled, PlanError> {
        let plan = self.emit(candidate, live, (residency, backing_stores), &boundless(live, residency))?;
        Ok(self.filled(plan, share))
    }
}

/// Returns a share of some bytes.
pub(super) fn bytes_of_share(bytes: u64, share: f64) -> u64 {
    ((bytes as f64 * share) as u64).min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::estimate;
    use crate::order::Ordered;
    use crate::planner::work::Work;
    use crate::testing::{Random, limits, random_training_program};

    #[test]
    fn memory_is_taken_away_until_all_intervals_have_a_place() {
        let never = crate::stop::StopRequest::default();
        let (mut lacking, mut fitted) = (0, 0);
        for seed in 1..60 {
            let program = crate::fuse::fuse(random_training_program(&mut Random::new(seed), 10));
            let (limits, costs) = (limits(), estimate(&program, &limits()));
            let file = Candidate::new(Ordered::as_it_comes(program.clone()), &costs);
            let work = Work::new(program.launches.len(), false, &never);
            let planner = Planner::new(&program, &limits, &costs, &work);
            let live = split(&file);
            let needed_bytes = live.most_needed_bytes();
            let capacity_bytes = needed_bytes * [8, 9, 10, 12][seed as usize % 4] / 8;
            let limit = OccupancyLimit {
                keep_bytes: capacity_bytes,
                transfer_bytes: capacity_bytes,
                isolate: false,
                joined_bytes: u64::MAX,
            };
            let (residency, _) = planner.intervals(&file, &live, limit, &[]);
            let Err(lack_bytes) = arena_or_lack(&live, &residency, capacity_bytes, &mut Looks::default()) else {
                continue;
            };
            lacking += 1;
            assert!(lack_bytes.iter().any(|&bytes| bytes > 0), "seed {seed}");
            let Some(found) = planner.fastest(&file, ShareSearch::only(1.0), capacity_bytes, None).unwrap() else {
                continue;
            };
            let most_bytes = capacity_bytes.next_multiple_of(limits.tile_size_bytes);
            assert!(found.plan.statistics.device_peak_bytes <= most_bytes, "seed {seed}");
            fitted += 1;
        }
        assert!(fitted > 0 && fitted * 2 > lacking, "{fitted} of {lacking} got a place when room was taken away");
    }
}
