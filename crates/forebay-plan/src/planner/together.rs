//! Plans whose residency and repeats are decided jointly ([`crate::joint_offload`]).

use crate::backing_stores::{BackingStores, OnDisk, backing_stores};
use crate::error::PlanError;
use crate::joint_offload::{JointLimits, joint_residency, with_recomputation};
use crate::liveness::{Liveness, liveness};
use crate::order::Ordered;
use crate::residency::{OccupancyLimit, Residency};
use crate::tuning::{FILL_SHARES, FUTILE_MAX, HOST_ROUNDS, REMATERIALIZED_SHARES, WORTHWHILE};
use forebay_offload::parallel;

use super::candidate::{Candidate, split};
use super::fitting::bytes_of_share;
use super::{Filled, Planner, UNLIMITED};

/// The bytes that the host may hold if there is no budget.
const ANY_BYTES: u64 = u64::MAX;
/// How moves are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// Jointly.
    Together,
    /// Gap by gap, which leads to fewer copies.
    ByGap,
}

impl Planner<'_> {
    /// Returns the fastest such plan, for the launches as they come and with launches that run again; `None` if no plan was found that is
    /// better than another one. What would be best without regard to placement is tried first.
    pub(super) fn together(
        &self,
        file: &Candidate,
        capacity_bytes: u64,
        other: Option<&Filled>,
    ) -> Result<Option<Filled>, PlanError> {
        let ordered = Ordered { program: file.apart.clone(), ..file.ordered.clone() };
        let live = liveness(&ordered.program, false);
        let recomputing = with_recomputation(&ordered, &live, &file.costs, capacity_bytes, self.host_bytes());
        let mut recomputing: Vec<Candidate> =
            recomputing.into_iter().map(|ordered| Candidate::new(ordered, self.costs)).collect();
        recomputing.extend(self.rematerialized(file, capacity_bytes));
        // The launches as they come have already been tried gap by gap.
        let as_they_come = std::iter::once((file, Strategy::Together));
        let both = |candidate| [Strategy::Together, Strategy::ByGap].map(|strategy| (candidate, strategy));
        let attempts: Vec<(&Candidate, Strategy)> = as_they_come.chain(recomputing.iter().flat_map(both)).collect();
        let estimates =
            parallel::map(&attempts, |(candidate, strategy)| self.estimate(candidate, *strategy, capacity_bytes));
        let mut promising = Vec::new();
        for (estimate, (candidate, strategy)) in estimates.into_iter().zip(attempts) {
            promising.extend(estimate?.map(|estimate| (estimate, candidate, strategy)));
        }
        promising.sort_by_key(|(estimate, ..)| (estimate.excess_bytes, estimate.step_ns));
        let (mut best, mut worse) = (None, [0; 2]);
        for (estimate, candidate, strategy) in promising {
            if best.as_ref().or(other).is_some() && self.work_is_spent() {
                break;
            }
            let (other, worse) = (best.as_ref().or(other), &mut worse[strategy as usize]);
            let estimate = Filled { step_ns: estimate.step_ns + estimate.step_ns / WORTHWHILE, ..estimate };
            if *worse == FUTILE_MAX || other.is_some_and(|other| !estimate.is_better(other)) {
                continue;
            }
            let next = match strategy {
                Strategy::Together => self.filled_together(candidate, capacity_bytes, other)?,
                Strategy::ByGap => self.fastest(candidate, self.keep_shares(), capacity_bytes, other)?,
            };
            *worse = if next.is_some() { 0 } else { *worse + 1 };
            best = next.or(best);
        }
        Ok(best)
    }

    /// Returns programs with recomputation that removes different parts of the excess over the capacity, from all of it to a quarter; the
    /// rest has to be moved.
    fn rematerialized(&self, file: &Candidate, capacity_bytes: u64) -> Vec<Candidate> {
        let peak_bytes = self.with_limit(file, u64::MAX).0.peak_bytes;
        let beyond_bytes = peak_bytes.saturating_sub(capacity_bytes);
        let limits_bytes = REMATERIALIZED_SHARES.map(|share| capacity_bytes + bytes_of_share(beyond_bytes, share));
        let mut found: Vec<Candidate> = Vec::new();
        for (_, candidate) in parallel::map(&limits_bytes, |&limit_bytes| self.with_limit(file, limit_bytes)) {
            let launches = |candidate: &Candidate| candidate.ordered.sources.len();
            let is_new = found.iter().all(|other| other.ordered.sources != candidate.ordered.sources);
            if is_new && launches(&candidate) > launches(file) {
                found.push(candidate);
            }
        }
        found
    }

    /// Returns the result of a candidate's plan with the whole capacity, without regard to placement.
    fn estimate(
        &self,
        candidate: &Candidate,
        strategy: Strategy,
        capacity_bytes: u64,
    ) -> Result<Option<Filled>, PlanError> {
        let split = split(candidate);
        let intervals = match strategy {
            Strategy::Together => self.find_together(candidate, &split, FILL_SHARES.from, capacity_bytes)(&[]),
            Strategy::ByGap => {
                let limit = OccupancyLimit { keep_bytes: capacity_bytes, transfer_bytes: capacity_bytes, ..UNLIMITED };
                let (residency, backing_stores) = self.intervals(candidate, &split, limit, &[]);
                Some((split, residency, backing_stores))
            }
        };
        intervals.map(|intervals| self.unplaced(candidate, &intervals, FILL_SHARES.from)).transpose()
    }

    /// Returns what is on the device at which time, decided jointly within a share of the capacity, some of which is lost to each launch.
    fn find_together<'f>(
        &'f self,
        candidate: &'f Candidate,
        live: &'f Liveness,
        share: f64,
        capacity_bytes: u64,
    ) -> impl Fn(&[u64]) -> Option<(Liveness, Residency, BackingStores)> + 'f {
        let (program, costs) = (&candidate.ordered.program, &candidate.costs);
        let host_limit = JointLimits {
            device_bytes: bytes_of_share(capacity_bytes, share),
            host_bytes: self.host_bytes(),
            changing_away: self.host_limit.is_some_and(|host_limit| host_limit.on_disk == OnDisk::Changing),
        };
        move |lost_bytes| {
            let mut room_bytes = host_limit.host_bytes;
            let mut best: Option<(Liveness, Residency, BackingStores)> = None;
            for _ in 0..HOST_ROUNDS {
                let limits = JointLimits { host_bytes: room_bytes, ..host_limit };
                let Some((live, residency)) = joint_residency(program, live, costs, limits, lost_bytes) else { break };
                let stores = backing_stores(program, &live, &residency, costs, self.host_limit);
                // Inputs and outputs are also on the host, and so is what may not go to disk.
                let excess_bytes = stores.host_bytes.saturating_sub(host_limit.host_bytes);
                if best.as_ref().is_none_or(|(.., best)| stores.host_bytes < best.host_bytes) {
                    best = Some((live, residency, stores));
                }
                if excess_bytes == 0 {
                    break;
                }
                room_bytes -= excess_bytes.min(room_bytes / 2);
            }
            best
        }
    }

    fn host_bytes(&self) -> u64 {
        self.host_limit.map_or(ANY_BYTES, |host_limit| host_limit.budget_bytes)
    }

    fn filled_together(
        &self,
        candidate: &Candidate,
        capacity_bytes: u64,
        other: Option<&Filled>,
    ) -> Result<Option<Filled>, PlanError> {
        let live = split(candidate);
        let found = FILL_SHARES.try_best(|share, before: Option<&Filled>| {
            if before.or(other).is_some() && self.work_is_spent() {
                return Ok(None);
            }
            let find = self.find_together(candidate, &live, share, capacity_bytes);
            self.fitted(candidate, share, capacity_bytes, before.or(other), find)
        })?;
        Ok(found.map(|(_, found)| found))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use forebay_base::Command;

    use crate::cost::estimate;
    use crate::planner::{PlanOptions, plan};
    use crate::testing::{Random, limits, random_training_program};

    #[test]
    fn plans_for_slow_links_are_checked_run_launches_again_and_keep_the_bound() {
        let mut recomputing = 0;
        for seed in 1..9 {
            let mut random = Random::new(seed);
            let depth = 3 + random.below(5) as usize;
            let program = crate::fuse::fuse(random_training_program(&mut random, depth));
            let mut costs = estimate(&program, &limits());
            for way in [&mut costs.link.to_device, &mut costs.link.from_device] {
                way.bytes_per_second /= [4.0, 30.0][seed as usize % 2];
                way.latency_ns = 0;
            }
            let planned = |device_budget_bytes| {
                let options = PlanOptions { device_budget_bytes, check: true, ..PlanOptions::default() };
                plan(&program, &options, &limits(), &costs).unwrap_or_else(|error| panic!("seed {seed}: {error}"))
            };
            let whole = planned(None).statistics;
            let (low, high) = (whole.minimum_budget_bytes, whole.in_core_peak_bytes);
            for percent in [10, 30, 60, 80] {
                let budget_bytes = low + (high - low) * percent / 100;
                let plan = planned(Some(budget_bytes));
                let found = &plan.statistics;
                assert!(found.device_peak_bytes <= budget_bytes, "seed {seed}, {percent} %");
                assert!(found.lower_bound_ns <= found.predicted_ns, "seed {seed}, {percent} %: {found:?}");
                let labels: BTreeSet<u32> = (plan.commands.iter())
                    .filter_map(|command| match command {
                        Command::Launch { launch, .. } => Some(launch.label),
                        _ => None,
                    })
                    .collect();
                let least = if found.launches_cut > 0 { program.launches.len() + 1 } else { program.launches.len() };
                assert!(labels.len() >= least, "seed {seed}, {percent} %: each runs");
                recomputing += usize::from(found.recomputations > 0);
            }
        }
        assert!(recomputing > 3, "{recomputing} plans run launches again");
    }
}
