//! A plan where device and host are one memory: no copy between them frees a byte, so what does not fit is recomputed.

use std::ops::Range;

use crate::error::PlanError;
use crate::liveness::liveness;
use crate::order::Ordered;
use crate::plan::Plan;
use crate::rematerialize::{rematerialize, Pool, Rematerialized};
use crate::tuning::{ONE_POOL_ATTEMPTS, ONE_POOL_CUT_PARTS, ONE_POOL_LEAST_ROUNDS};

use super::candidate::{minimum_budget, Candidate};
use super::cutting::Cutting;
use super::{with_bound, PlanOptions, Planner, UNLIMITED};

impl Planner<'_> {
    /// The fastest plan in which nothing but outputs crosses between host and device: launches whole, or in parts where
    /// that does not suffice. `finest` is the program cut as finely as it can be, `range_bytes` goes from what its largest launch needs
    /// to what a step without a budget takes.
    ///
    /// # Errors
    /// [`PlanError::DeviceBudget`], where nothing fits, with the smallest budget that was found to do, if that was looked for.
    pub(super) fn within_one_pool(
        &self,
        file: &Candidate,
        finest: Option<&Cutting>,
        range_bytes: Range<u64>,
        options: &PlanOptions,
    ) -> Result<Plan, PlanError> {
        let tile_bytes = self.limits.tile_size_bytes;
        let budget_bytes = options.device_budget_bytes.unwrap_or(u64::MAX);
        let capacity_bytes = budget_bytes / tile_bytes * tile_bytes;
        if let Some(plan) = self.in_one_pool(file, finest, capacity_bytes, options)? {
            return Ok(plan);
        }
        let (_, launch) = minimum_budget(file, self.limits);
        if !options.names_least {
            return Err(PlanError::DeviceBudget { budget_bytes, minimum_bytes: range_bytes.start, launch });
        }
        // A limit that a quick look finds to do will do.
        let quickly = Planner { thorough: false, ..*self };
        let (mut low, mut high) =
            (capacity_bytes.max(range_bytes.start) / tile_bytes, range_bytes.end.div_ceil(tile_bytes));
        for _ in 0..ONE_POOL_LEAST_ROUNDS {
            let middle = (low as f64 * high as f64).sqrt() as u64;
            if middle <= low || middle >= high {
                break;
            }
            match quickly.in_one_pool(file, finest, middle * tile_bytes, options)? {
                Some(_) => high = middle,
                None => low = middle,
            }
        }
        Err(PlanError::DeviceBudget { budget_bytes, minimum_bytes: high * tile_bytes, launch })
    }

    /// The same within a capacity; none where nothing fits. Its bound is what its launches take wherever bytes are.
    fn in_one_pool(
        &self,
        file: &Candidate,
        finest: Option<&Cutting>,
        capacity_bytes: u64,
        options: &PlanOptions,
    ) -> Result<Option<Plan>, PlanError> {
        let early = Candidate::early(self.program, options.order, self.costs);
        if let Some((plan, candidate)) = self.recomputing(file, early.as_ref(), capacity_bytes)? {
            return Ok(Some(with_bound(self.with_split_barriers(plan), &candidate, u64::MAX, options)));
        }
        let cuttings = self.cuttings(capacity_bytes, None);
        let mut best: Option<Plan> = None;
        let finest = finest.filter(|_| cuttings.is_empty());
        for Cutting { parts, file, costs } in cuttings.iter().chain(finest) {
            // Programs in parts are long.
            let planner = Planner { program: &parts.partition.program, costs, cut: true, thorough: false, ..*self };
            let early = Candidate::early(planner.program, options.order, costs);
            if let Some((plan, candidate)) = planner.recomputing(file, early.as_ref(), capacity_bytes)? {
                let mut plan = planner.with_split_barriers(plan);
                parts.note(&mut plan);
                let plan = with_bound(plan, &candidate, u64::MAX, options);
                let step_ns = plan.statistics.predicted_ns;
                best = best.filter(|best| best.statistics.predicted_ns <= step_ns).or(Some(plan));
            }
        }
        Ok(best)
    }

    /// A plan of a program with recomputation: with early updates where these do, since they leave more to what is kept; none where
    /// neither fits.
    fn recomputing(
        &self,
        file: &Candidate,
        early: Option<&Candidate>,
        capacity_bytes: u64,
    ) -> Result<Option<(Plan, Candidate)>, PlanError> {
        for candidate in early.into_iter().chain([file]) {
            if let Some(found) = self.recomputed(candidate, capacity_bytes)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A plan of one order within a capacity. What fits by its bytes need not have addresses: then less is filled.
    fn recomputed(&self, candidate: &Candidate, capacity_bytes: u64) -> Result<Option<(Plan, Candidate)>, PlanError> {
        let mut limit_bytes = capacity_bytes;
        for _ in 0..ONE_POOL_ATTEMPTS {
            let (found, recomputing) = self.with_limit(candidate, limit_bytes);
            if let Some(plan) = self.attempt(&recomputing, &recomputing.live, UNLIMITED, false, capacity_bytes)? {
                return Ok(Some((plan, recomputing)));
            }
            if found.peak_bytes > limit_bytes {
                return Ok(None);
            }
            limit_bytes -= limit_bytes.min(capacity_bytes / ONE_POOL_CUT_PARTS);
        }
        Ok(None)
    }

    /// A candidate whose live bytes stay within a limit, as far as recomputation can do that.
    pub(super) fn with_limit(&self, candidate: &Candidate, limit_bytes: u64) -> (Rematerialized, Candidate) {
        let ordered = Ordered { program: candidate.apart.clone(), ..candidate.ordered.clone() };
        let live = liveness(&ordered.program, false);
        let pool = if self.one_pool { Pool::Shared { thorough: self.thorough } } else { Pool::OfDevice };
        let found = rematerialize(&ordered.program, &live, &candidate.costs, limit_bytes, pool);
        let recomputing = Candidate::new(ordered.with_launches(&found.launches), self.costs);
        (found, recomputing)
    }
}

#[cfg(test)]
mod tests {
    use crate::cost::estimate;
    use crate::error::PlanError;
    use crate::planner::{plan, PlanOptions};
    use crate::testing::{limits, random_training_program, Random};

    #[test]
    fn within_one_pool_only_outputs_are_copied() {
        let mut recomputing = 0;
        for seed in 1..16 {
            let program = crate::fuse::fuse(random_training_program(&mut Random::new(seed), 2 + seed as usize % 5));
            let (limits, costs) = (limits(), estimate(&program, &limits()));
            let options = |device_budget_bytes| PlanOptions {
                device_budget_bytes,
                one_pool: true,
                names_least: true,
                check: true,
                ..PlanOptions::default()
            };
            let whole = plan(&program, &options(None), &limits, &costs).unwrap().statistics;
            let least = match plan(&program, &options(Some(whole.minimum_budget_bytes)), &limits, &costs) {
                Err(PlanError::DeviceBudget { minimum_bytes, .. }) => minimum_bytes,
                Ok(_) => whole.minimum_budget_bytes,
                Err(other) => panic!("seed {seed}: {other}"),
            };
            for percent in [0, 20, 50, 80] {
                let budget_bytes = least + whole.in_core_peak_bytes.saturating_sub(least) * percent / 100;
                let plan = plan(&program, &options(Some(budget_bytes)), &limits, &costs)
                    .unwrap_or_else(|error| panic!("seed {seed}, {percent} %: {error}"));
                let statistics = plan.statistics;
                assert!(statistics.device_peak_bytes <= budget_bytes, "seed {seed}, {percent} %");
                assert!(statistics.lower_bound_ns <= statistics.predicted_ns, "seed {seed}, {percent} %");
                // Inputs are written where launches read them, unless all fits anyway.
                let is_whole = budget_bytes >= whole.in_core_peak_bytes;
                let copied_bytes = if is_whole { whole.bytes_to_device } else { 0 };
                assert_eq!(statistics.bytes_to_device, copied_bytes, "seed {seed}, {percent} %");
                assert_eq!(statistics.bytes_from_device, whole.bytes_from_device, "seed {seed}, {percent} %");
                recomputing += usize::from(statistics.recomputations > 0);
            }
        }
        assert!(recomputing > 10, "{recomputing} plans recompute");
    }
}
