//! The fastest plan within a budget: launches whole or in parts, in their own order, with early updates or with few barriers;
//! what moves, moves gap by gap, or all together with what is computed again.

use crate::emit::COMPUTE;
use crate::error::PlanError;
use crate::plan::Plan;
use crate::residency::Filling;
use crate::split::split_barriers;
use crate::stores::HostRoom;

use super::cutting::Cutting;
use super::variant::{split, Orders, Variant};
use super::{with_bound, Filled, PlanOptions, Planner};

/// Steps that take more than this many times a step without a budget are worth a longer search.
const SLOW: f64 = 1.003;
/// Steps that take more than this many times a step without a budget are worth a search among parts of launches.
const SLOW_ENOUGH_TO_CUT: f64 = 1.03;
/// Whether a plan needs less beyond the host budget than another, or as much and is faster.
fn is_better(plan: &Plan, other: &Plan, spill_beyond_bytes: Option<u64>) -> bool {
    let excess_bytes =
        |plan: &Plan| spill_beyond_bytes.map_or(0, |budget| plan.statistics.host_bytes.saturating_sub(budget));
    (excess_bytes(plan), plan.statistics.predicted_ns) < (excess_bytes(other), other.statistics.predicted_ns)
}

impl Planner<'_> {
    /// The fastest plan within a capacity. `whole` is the program as it comes and with the fewest barriers, where the capacity
    /// holds each of its launches; `finest` the program cut as finely as it can be.
    pub(super) fn within_budget(
        &self,
        whole: Option<(&Variant, Option<&Variant>)>,
        finest: Option<Cutting>,
        capacity_bytes: u64,
        options: &PlanOptions,
    ) -> Result<Plan, PlanError> {
        let spill_beyond_bytes = options.host_budget_bytes.filter(|_| options.spill);
        let (early, cuttings, early_parts): (_, Vec<Cutting>, Vec<_>);
        let mut best: Option<(Plan, &Variant)> = None;
        if let Some((file, reordered)) = whole {
            early = Variant::early(self.program, options.order, self.costs);
            let orders = Orders { file, early: early.as_ref(), reordered };
            let (plan, variant) = self.within(orders, capacity_bytes, spill_beyond_bytes)?;
            let mut plan = split_barriers(plan, COMPUTE, self.costs);
            plan.statistics.predicted_ns = self.predicted(&plan);
            best = Some((plan, variant));
        }
        let is_slow =
            |(plan, _): &(Plan, _)| plan.statistics.predicted_ns as f64 > self.in_core_ns as f64 * SLOW_ENOUGH_TO_CUT;
        let worth = best.as_ref().is_none_or(is_slow);
        cuttings = if worth { self.cuttings(capacity_bytes, finest) } else { Vec::new() };
        let early_of =
            |Cutting { parts, costs, .. }: &Cutting| Variant::early(&parts.partition.program, options.order, costs);
        early_parts = cuttings.iter().map(early_of).collect();
        for (Cutting { parts, file, costs }, early) in cuttings.iter().zip(&early_parts) {
            let planner = Planner { costs, cut: true, ..*self };
            let orders = Orders { file, early: early.as_ref(), reordered: None };
            let (plan, variant) = match planner.within(orders, capacity_bytes, spill_beyond_bytes) {
                // What has no placement is no candidate; another may have one.
                Err(PlanError::Check { .. }) => continue,
                found => found?,
            };
            let mut plan = split_barriers(plan, COMPUTE, costs);
            parts.note(&mut plan);
            plan.statistics.predicted_ns = planner.predicted(&plan);
            if best.as_ref().is_none_or(|(best, _)| is_better(&plan, best, spill_beyond_bytes)) {
                best = Some((plan, variant));
            }
        }
        let best = best.map(|(plan, variant)| with_bound(plan, variant, capacity_bytes, options));
        best.ok_or_else(|| PlanError::Check { reason: format!("no candidate within {capacity_bytes} bytes") })
    }

    /// The fastest plan within a capacity that every single launch fits. What exceeds the host budget, if one is given, goes
    /// to disk: nothing if possible, what steps change only if necessary.
    ///
    /// A disk may fail while nothing has changed, and not after: where one is used, updates come last.
    fn within<'v>(
        &self,
        Orders { file, early, reordered }: Orders<'v>,
        capacity_bytes: u64,
        spill_beyond_bytes: Option<u64>,
    ) -> Result<(Plan, &'v Variant), PlanError> {
        let mut plan = self.out_of_core(early.unwrap_or(file), reordered, capacity_bytes)?;
        let Some(budget_bytes) = spill_beyond_bytes else { return Ok(plan) };
        for changing_on_disk in [false, true] {
            if plan.0.statistics.host_bytes > budget_bytes {
                let room = Some(HostRoom { budget_bytes, changing_on_disk });
                plan = Planner { room, ..*self }.out_of_core(file, reordered, capacity_bytes)?;
            }
        }
        Ok(plan)
    }

    pub(super) fn filled(&self, plan: Plan, percent: u64) -> Filled {
        let beyond = |room: HostRoom| plan.statistics.host_bytes.saturating_sub(room.budget_bytes);
        Filled { excess_bytes: self.room.map_or(0, beyond), step_ns: self.predicted(&plan), percent, plan }
    }

    /// The fastest plan within a capacity that every single launch fits, and what it runs.
    fn out_of_core<'v>(
        &self,
        file: &'v Variant,
        reordered: Option<&'v Variant>,
        capacity_bytes: u64,
    ) -> Result<(Plan, &'v Variant), PlanError> {
        let mut best = self.fastest(file, self.keep_percents(), capacity_bytes, None)?.map(|best| (best, file));
        if let Some(variant) = reordered {
            // The slack that is best for one order is about the best for the other.
            let percents = best.as_ref().map_or(self.keep_percents().to_vec(), |(best, _)| vec![best.percent]);
            let other = self.fastest(variant, &percents, capacity_bytes, best.as_ref().map(|(best, _)| best))?;
            best = other.map(|other| (other, variant)).or(best);
        }
        let is_slow = |best: &(Filled, _)| best.0.step_ns as f64 > self.in_core_ns as f64 * SLOW;
        if !self.cut && best.as_ref().is_none_or(is_slow) {
            let other = self.together(file, capacity_bytes, best.as_ref().map(|(best, _)| best))?;
            best = other.map(|other| (other, file)).or(best);
        }
        if let Some((best, variant)) = best {
            return Ok((best.plan, variant));
        }
        // Nothing but what neighbouring launches share, and not even that.
        let neighbours =
            Filling { keep_bytes: 0, transfer_bytes: 0, isolate: false, joined_bytes: self.joined_bytes(0) };
        if let Some(plan) = self.attempt(file, &split(file), neighbours, false, capacity_bytes)? {
            return Ok((plan, file));
        }
        let isolated = Filling { isolate: true, ..neighbours };
        let plan = self.attempt(file, &file.live, isolated, false, capacity_bytes)?;
        plan.map(|plan| (plan, file))
            .ok_or_else(|| PlanError::Check { reason: format!("no placement within {capacity_bytes} bytes") })
    }
}
