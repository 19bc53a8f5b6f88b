//! The fastest plan within a budget: launches are whole or in parts, in their original order, with early updates or with few barriers;
//! moves are decided gap by gap, or jointly with recomputation.

use crate::backing_stores::{HostLimit, OnDisk, bytes_in_model_files};
use crate::emit::COMPUTE;
use crate::error::PlanError;
use crate::plan::Plan;
use crate::residency::OccupancyLimit;
use crate::split::split_barriers;
use crate::tuning::{SEARCH_WORK_BY_GAP, SLOW, SLOW_ENOUGH_TO_CUT};
use forebay_model::program::Program;
use forebay_offload::share_search::ShareSearch;

use super::candidate::{Candidate, Candidates, split};
use super::cutting::Cutting;
use super::{Filled, PlanOptions, Planner, with_bound};

/// Returns whether a plan exceeds the host budget by less than another, or by the same amount and is faster.
fn is_better(plan: &Plan, other: &Plan, spill_beyond_bytes: Option<u64>) -> bool {
    let excess_bytes =
        |plan: &Plan| spill_beyond_bytes.map_or(0, |budget| plan.statistics.host_bytes.saturating_sub(budget));
    (excess_bytes(plan), plan.statistics.predicted_ns) < (excess_bytes(other), other.statistics.predicted_ns)
}

/// Returns what may be on a disk, the least first.
fn ways_to_disk(program: &Program, options: &PlanOptions) -> &'static [OnDisk] {
    match options.spill {
        true => &[OnDisk::Unchanging, OnDisk::Changing],
        false if bytes_in_model_files(program) > 0 => &[OnDisk::ModelFiles],
        false => &[],
    }
}

impl Planner<'_> {
    /// Returns the fastest plan within a capacity. `whole` is the program as it comes and with the fewest barriers, if the capacity holds
    /// each of its launches; `finest` is the program cut as finely as possible.
    pub(super) fn within_budget(
        &self,
        whole: Option<(&Candidate, Option<&Candidate>)>,
        finest: Option<Cutting>,
        capacity_bytes: u64,
        options: &PlanOptions,
    ) -> Result<Plan, PlanError> {
        let ways = ways_to_disk(self.program, options);
        let spill_beyond_bytes = options.host_budget_bytes.filter(|_| !ways.is_empty());
        let (early, cuttings, early_parts): (_, Vec<Cutting>, Vec<_>);
        let mut best: Option<(Plan, &Candidate)> = None;
        if let Some((file, reordered)) = whole {
            early = Candidate::early(self.program, options.order, self.costs);
            let candidates = Candidates { file, early: early.as_ref(), reordered };
            let (plan, candidate) = self.within(candidates, capacity_bytes, spill_beyond_bytes, ways)?;
            best = Some((self.with_split_barriers(plan), candidate));
        }
        let is_slow =
            |(plan, _): &(Plan, _)| plan.statistics.predicted_ns as f64 > self.in_core_ns as f64 * SLOW_ENOUGH_TO_CUT;
        let worth = best.as_ref().is_none_or(|best| is_slow(best) && !self.work_is_spent());
        cuttings = if worth { self.cuttings(capacity_bytes, finest) } else { Vec::new() };
        let early_of =
            |Cutting { parts, costs, .. }: &Cutting| Candidate::early(&parts.partition.program, options.order, costs);
        early_parts = cuttings.iter().map(early_of).collect();
        for (Cutting { parts, file, costs }, early) in cuttings.iter().zip(&early_parts) {
            if best.is_some() && self.work_is_spent() {
                break;
            }
            let planner = Planner { costs, cut: true, ..*self };
            let candidates = Candidates { file, early: early.as_ref(), reordered: None };
            let (plan, candidate) = match planner.within(candidates, capacity_bytes, spill_beyond_bytes, ways) {
                // A cutting without a placement is skipped; another may have one.
                Err(PlanError::Check { .. }) => continue,
                found => found?,
            };
            let mut plan = planner.with_split_barriers(plan);
            parts.note(&mut plan);
            if best.as_ref().is_none_or(|(best, _)| is_better(&plan, best, spill_beyond_bytes)) {
                best = Some((plan, candidate));
            }
        }
        let best = best.map(|(plan, candidate)| with_bound(plan, candidate, capacity_bytes, options));
        best.ok_or_else(|| PlanError::Check { reason: format!("no candidate fits within {capacity_bytes} bytes") })
    }

    /// Returns the fastest plan within a capacity that every single launch fits. What exceeds the host budget, if one is given, is on a
    /// disk as far as the `ways` allow, which are tried one after the other: nothing is on disk if possible, and what steps change only if
    /// necessary.
    ///
    /// A disk may fail as long as nothing has changed, but not after that, so updates come last if one is used.
    fn within<'v>(
        &self,
        Candidates { file, early, reordered }: Candidates<'v>,
        capacity_bytes: u64,
        spill_beyond_bytes: Option<u64>,
        ways: &[OnDisk],
    ) -> Result<(Plan, &'v Candidate), PlanError> {
        let mut plan = self.out_of_core(early.unwrap_or(file), reordered, capacity_bytes)?;
        let Some(budget_bytes) = spill_beyond_bytes else { return Ok(plan) };
        for &on_disk in ways {
            if plan.0.statistics.host_bytes > budget_bytes {
                let host_limit = Some(HostLimit { budget_bytes, on_disk });
                plan = Planner { host_limit, ..*self }.out_of_core(file, reordered, capacity_bytes)?;
            }
        }
        Ok(plan)
    }

    /// Returns the plan with those barriers split that are worth it, and with its predicted time.
    pub(super) fn with_split_barriers(&self, plan: Plan) -> Plan {
        let mut plan = split_barriers(plan, COMPUTE, self.costs);
        plan.statistics.predicted_ns = self.predicted(&plan);
        plan
    }

    pub(super) fn filled(&self, plan: Plan, share: f64) -> Filled {
        let beyond = |host_limit: HostLimit| plan.statistics.host_bytes.saturating_sub(host_limit.budget_bytes);
        Filled { excess_bytes: self.host_limit.map_or(0, beyond), step_ns: self.predicted(&plan), share, plan }
    }

    /// Returns the fastest plan within a capacity that every single launch fits, and what it runs.
    pub(super) fn out_of_core<'v>(
        &self,
        file: &'v Candidate,
        reordered: Option<&'v Candidate>,
        capacity_bytes: u64,
    ) -> Result<(Plan, &'v Candidate), PlanError> {
        let by_gap = Planner { work_share: SEARCH_WORK_BY_GAP, ..*self };
        let mut best = by_gap.fastest(file, self.keep_shares(), capacity_bytes, None)?.map(|best| (best, file));
        if let Some(candidate) = reordered {
            // The slack that is best for one order is nearly the best for the other.
            let shares = best.as_ref().map_or(self.keep_shares(), |(best, _)| ShareSearch::only(best.share));
            let other = by_gap.fastest(candidate, shares, capacity_bytes, best.as_ref().map(|(best, _)| best))?;
            best = other.map(|other| (other, candidate)).or(best);
        }
        let is_slow = |best: &(Filled, _)| best.0.step_ns as f64 > self.in_core_ns as f64 * SLOW;
        if !self.cut && !self.one_pool && best.as_ref().is_none_or(|best| is_slow(best) && !self.work_is_spent()) {
            let other = self.together(file, capacity_bytes, best.as_ref().map(|(best, _)| best))?;
            best = other.map(|other| (other, file)).or(best);
        }
        if let Some((best, candidate)) = best {
            return Ok((best.plan, candidate));
        }
        // Keep only what neighboring launches share, and then not even that.
        let neighbors =
            OccupancyLimit { keep_bytes: 0, transfer_bytes: 0, isolate: false, joined_bytes: self.joined_bytes(0) };
        if let Some(plan) = self.attempt(file, &split(file), neighbors, false, capacity_bytes)? {
            return Ok((plan, file));
        }
        let isolated = OccupancyLimit { isolate: true, ..neighbors };
        let plan = self.attempt(file, &file.live, isolated, false, capacity_bytes)?;
        plan.map(|plan| (plan, file))
            .ok_or_else(|| PlanError::Check { reason: format!("no placement fits within {capacity_bytes} bytes") })
    }
}
