//! Filling the device as far as placement follows.
//!
//! What fits by its bytes need not have addresses: parts of a buffer have to lie side by side, and gaps remain between others.
//! Room is given away a little smaller then, at the launches where something found no place and nowhere else, until all have
//! one.

use crate::arena::arena_or_lack;
use crate::error::PlanError;
use crate::liveness::Liveness;
use crate::plan::Plan;
use crate::residency::{mandatory_usage, Filling, Residency};
use crate::stores::Stores;

use super::{split, Filled, Planner, Variant, WORSE_MAX};

/// Parts of the capacity, in percent, that are tried as room for what is kept; the rest is room for transfers.
const KEEP_PERCENT: [u64; 8] = [100, 97, 94, 90, 85, 78, 70, 55];
/// The same where launches are cut: many pieces that have to lie side by side leave more gaps.
const KEEP_PERCENT_OF_PARTS: [u64; 5] = [85, 60, 42, 28, 15];
/// Where launches are cut, neighbouring parts may be tied to this fraction of what may be kept.
const JOINED: u64 = 8;
/// How often room is made smaller before an attempt is given up.
const ROUNDS: u64 = 10;
/// Of what a launch lacks, the first round takes one part of so many away, the second two, and so on.
const SHARES: u64 = 8;

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

    /// Tries these parts of the capacity as room for what is kept; the fastest plan, if any has a placement.
    pub(super) fn fastest(
        &self,
        variant: &Variant,
        percents: &[u64],
        capacity_bytes: u64,
    ) -> Result<Option<Filled>, PlanError> {
        let mut best: Option<Filled> = None;
        let split = split(variant);
        let needed = mandatory_usage(&split).into_iter().max().unwrap_or(0);
        if needed > capacity_bytes {
            return Ok(None);
        }
        let (mut tried, mut worse) = (Vec::new(), 0);
        for &percent in percents {
            let keep_bytes = (capacity_bytes / 100 * percent).max(needed);
            let middle_bytes = keep_bytes + capacity_bytes.saturating_sub(keep_bytes) / 2;
            worse += usize::from(best.is_some());
            let joined_bytes = self.joined_bytes(keep_bytes);
            for transfer_bytes in [capacity_bytes, middle_bytes, keep_bytes] {
                let filling = Filling { keep_bytes, transfer_bytes, isolate: false, joined_bytes };
                let stays = self.stays(variant, &split, filling, &[]);
                if tried.contains(&stays) {
                    continue;
                }
                let find = |lost_bytes: &[u64]| {
                    let (residency, stores) = self.stays(variant, &split, filling, lost_bytes);
                    Some((split.clone(), residency, stores))
                };
                let plan = self.fitted(variant, capacity_bytes, find)?;
                tried.push(stays);
                let Some(plan) = plan else { continue };
                let filled = self.filled(plan, percent);
                if best.as_ref().is_none_or(|best| filled.is_better(best)) {
                    (best, worse) = (Some(filled), 0);
                }
            }
            // Plans of parts take long to make, and the first is about the best.
            if worse == WORSE_MAX || (self.cut && best.is_some()) {
                break;
            }
        }
        Ok(best)
    }

    /// The plan of the stays that are found where some bytes are lost to each launch: none at first, then those that would have
    /// been needed for all stays to have a place.
    pub(super) fn fitted(
        &self,
        variant: &Variant,
        capacity_bytes: u64,
        find: impl Fn(&[u64]) -> Option<(Liveness, Residency, Stores)>,
    ) -> Result<Option<Plan>, PlanError> {
        let mut lost_bytes = vec![0; variant.ordered.program.launches.len()];
        for round in 0..ROUNDS {
            let Some((live, residency, stores)) = find(&lost_bytes) else { return Ok(None) };
            let lack_bytes = match arena_or_lack(&live, &residency, capacity_bytes) {
                Ok(arena) => return self.emit(variant, &live, (&residency, &stores), &arena).map(Some),
                Err(lack_bytes) => lack_bytes,
            };
            for (lost, lack) in lost_bytes.iter_mut().zip(lack_bytes) {
                *lost += lack / SHARES * (round + 1);
            }
        }
        Ok(None)
    }
}
