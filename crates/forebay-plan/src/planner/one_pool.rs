//! Plans for devices that share one memory with the host: no copy between them frees a byte, so what does not fit is recomputed. If that is
//! not enough, weights that are in the model's files are dropped and read from there again.

use std::ops::Range;

use forebay_model::program::Role;

use crate::backing_stores::{HOST_ALIGNMENT_BYTES, HostLimit, OnDisk, bytes_in_model_files};
use crate::error::{DeviceBudgetSetting, PlanError};
use crate::liveness::liveness;
use crate::order::Ordered;
use crate::plan::Plan;
use crate::rematerialize::{Pool, Rematerialized, rematerialize};
use crate::tuning::{
    MODEL_FILES_ATTEMPTS, MODEL_FILES_LEAST_PARTS, MODEL_FILES_LEAST_ROUNDS, MODEL_FILES_STEP_PARTS, MODEL_FILES_STEPS,
    MODEL_FILES_WORTH_PARTS, ONE_POOL_ATTEMPTS, ONE_POOL_CUT_PARTS, ONE_POOL_LEAST_ROUNDS,
};

use super::candidate::{Candidate, minimum_budget};
use super::cutting::Cutting;
use super::{PlanOptions, Planner, UNLIMITED, with_bound};

/// The result within a capacity.
enum Found {
    /// A plan.
    Plan(Box<Plan>),
    /// No plan. The number of bytes would be enough for what was found.
    Least(u64),
}

/// A plan within a capacity, and what it runs; or how many bytes would be enough.
type Attempted = Result<(Plan, Candidate), u64>;

impl Planner<'_> {
    /// Returns the fastest plan in which only outputs are copied between host and device or, if recomputation is not enough, only outputs
    /// and weights in files. Launches are whole, or in parts if that is not enough. `finest` is the program cut as finely as possible;
    /// `range_bytes` goes from what its largest launch needs to what a step takes in which everything stays and inputs are in place.
    ///
    /// # Errors
    /// [`PlanError::DeviceBudget`] if nothing fits, with the smallest budget that was found to be enough, if that was searched for.
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
        if capacity_bytes >= range_bytes.start
            && let Found::Plan(plan) = self.in_one_pool(file, finest, capacity_bytes, options)?
        {
            return Ok(*plan);
        }
        let (_, launch) = minimum_budget(file, self.limits);
        let setting = DeviceBudgetSetting::default();
        if !options.names_least {
            return Err(PlanError::DeviceBudget { budget_bytes, minimum_bytes: range_bytes.start, launch, setting });
        }
        // A search with more to fill does not necessarily find what one with less found.
        match self.least_in_one_pool(file, finest, range_bytes, options)? {
            (minimum_bytes, Some(plan)) if minimum_bytes <= capacity_bytes => Ok(plan),
            (minimum_bytes, _) => Err(PlanError::DeviceBudget { budget_bytes, minimum_bytes, launch, setting }),
        }
    }

    /// Returns the smallest capacity that was found to be enough, and its plan unless everything stays. The search does not depend on the
    /// budget, so every budget that is too small names the same one.
    fn least_in_one_pool(
        &self,
        file: &Candidate,
        finest: Option<&Cutting>,
        range_bytes: Range<u64>,
        options: &PlanOptions,
    ) -> Result<(u64, Option<Plan>), PlanError> {
        let tile_bytes = self.limits.tile_size_bytes;
        let mut high_bytes = range_bytes.end.next_multiple_of(tile_bytes);
        let (rounds, parts) = match self.gains_by_files(0) {
            true => (MODEL_FILES_LEAST_ROUNDS, MODEL_FILES_LEAST_PARTS),
            false => (ONE_POOL_LEAST_ROUNDS, ONE_POOL_CUT_PARTS),
        };
        let (mut low_bytes, mut found) = (0, None);
        for _ in 0..=rounds {
            match self.in_one_pool(file, finest, low_bytes, options)? {
                Found::Plan(plan) => {
                    (high_bytes, found) = (low_bytes, Some(*plan));
                    break;
                }
                Found::Least(bytes) => {
                    let bytes = bytes.max(low_bytes + low_bytes / parts + 1).max(range_bytes.start);
                    low_bytes = bytes.checked_next_multiple_of(tile_bytes).unwrap_or(high_bytes);
                }
            }
            if low_bytes >= high_bytes {
                break;
            }
        }
        Ok((high_bytes, found))
    }

    /// The same within a capacity. If nothing fits, returns how many bytes would be enough for what was found.
    fn in_one_pool(
        &self,
        file: &Candidate,
        finest: Option<&Cutting>,
        capacity_bytes: u64,
        options: &PlanOptions,
    ) -> Result<Found, PlanError> {
        let recomputing = |planner: &Planner, candidate: &Candidate| {
            let early = Candidate::early(planner.program, options.order, planner.costs);
            planner.recomputing(candidate, early.as_ref(), capacity_bytes)
        };
        let has_files = self.gains_by_files(capacity_bytes);
        let least_bytes = if has_files && self.lasting_bytes() > capacity_bytes {
            u64::MAX
        } else {
            match self.whole_or_in_parts(file, finest, capacity_bytes, options, &recomputing)? {
                Found::Least(bytes) if has_files => bytes,
                found => return Ok(found),
            }
        };
        // The host holds what it holds if nothing leaves the device.
        let (_, backing_stores) = self.intervals(file, &file.live, UNLIMITED, &[]);
        let budget_bytes = backing_stores.host_bytes.max(HOST_ALIGNMENT_BYTES);
        let host_limit = Some(HostLimit { budget_bytes, on_disk: OnDisk::ModelFiles });
        let planner = Planner { host_limit, thorough: false, ..*self };
        let reading = |planner: &Planner, candidate: &Candidate| planner.reading_files(candidate, capacity_bytes);
        Ok(match planner.whole_or_in_parts(file, finest, capacity_bytes, options, &reading)? {
            Found::Least(bytes) => Found::Least(bytes.min(least_bytes)),
            found => found,
        })
    }

    /// Returns whether weights in files are a large enough part of the capacity to be worth a search.
    fn gains_by_files(&self, capacity_bytes: u64) -> bool {
        bytes_in_model_files(self.program) > capacity_bytes / MODEL_FILES_WORTH_PARTS
    }

    /// Returns the bytes that last from step to step.
    fn lasting_bytes(&self) -> u64 {
        let sizes = [Role::Constant, Role::Parameter, Role::State].map(|role| self.program.size_bytes(role));
        sizes.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns what `attempt` finds for whole launches, or else for launches in parts. If only outputs move, the bound of a plan is the
    /// time that its launches take wherever bytes are.
    fn whole_or_in_parts(
        &self,
        file: &Candidate,
        finest: Option<&Cutting>,
        capacity_bytes: u64,
        options: &PlanOptions,
        attempt: &dyn Fn(&Planner, &Candidate) -> Result<Attempted, PlanError>,
    ) -> Result<Found, PlanError> {
        let bound_bytes = self.host_limit.map_or(u64::MAX, |_| capacity_bytes);
        let mut least_bytes = match attempt(self, file)? {
            Ok((plan, candidate)) => {
                let plan = with_bound(self.with_split_barriers(plan), &candidate, bound_bytes, options);
                return Ok(Found::Plan(Box::new(plan)));
            }
            Err(bytes) => bytes,
        };
        let cuttings = self.cuttings(capacity_bytes, None);
        let mut best: Option<Plan> = None;
        let finest = finest.filter(|_| cuttings.is_empty());
        for Cutting { parts, file, costs } in cuttings.iter().chain(finest) {
            // Programs in parts are long.
            let origins = parts.partition.origins();
            let (program, origins) = (&parts.partition.program, Some(&origins[..]));
            let planner = Planner { program, costs, cut: true, thorough: false, origins, ..*self };
            match attempt(&planner, file)? {
                Ok((plan, candidate)) => {
                    let mut plan = planner.with_split_barriers(plan);
                    parts.note(&mut plan);
                    let plan = with_bound(plan, &candidate, bound_bytes, options);
                    let step_ns = plan.statistics.predicted_ns;
                    best = best.filter(|best| best.statistics.predicted_ns <= step_ns).or(Some(plan));
                }
                Err(bytes) => least_bytes = least_bytes.min(bytes),
            }
        }
        Ok(best.map_or(Found::Least(least_bytes), |plan| Found::Plan(Box::new(plan))))
    }

    /// Returns a plan of one order within a capacity, with weights read from files, and recomputation if that is not enough. If there is
    /// none, returns how many bytes would be enough.
    fn reading_files(&self, candidate: &Candidate, capacity_bytes: u64) -> Result<Attempted, PlanError> {
        let within = |recomputing: &Candidate, capacity_bytes: u64| {
            let budget_bytes = self.host_limit.map_or(u64::MAX, |limit| limit.budget_bytes);
            match self.out_of_core(recomputing, None, capacity_bytes) {
                Ok((plan, _)) => Ok(Some(plan).filter(|plan| plan.statistics.host_bytes <= budget_bytes)),
                // Nothing has a placement.
                Err(PlanError::Check { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        // Limits are restricted to a few round numbers, so that similar capacities have the same plan.
        let (mut limit_bytes, mut attempts) = (rounded_down(capacity_bytes), 0);
        let (least_bytes, tightest) = loop {
            let (found, recomputing) = self.with_limit(candidate, limit_bytes);
            let least_bytes = found.peak_bytes.max(minimum_budget(&recomputing, self.limits).0);
            if least_bytes <= capacity_bytes
                && let Some(plan) = within(&recomputing, capacity_bytes)?
            {
                return Ok(Ok((plan, recomputing)));
            }
            attempts += 1;
            if least_bytes > capacity_bytes || limit_bytes == 0 || attempts == MODEL_FILES_ATTEMPTS {
                break (least_bytes, recomputing);
            }
            limit_bytes = rounded_down(limit_bytes - 1);
        };
        let mut needed_bytes = least_bytes.max(capacity_bytes + capacity_bytes.div_ceil(MODEL_FILES_LEAST_PARTS));
        for _ in 0..MODEL_FILES_STEPS {
            if within(&tightest, needed_bytes)?.is_some() {
                return Ok(Err(needed_bytes));
            }
            needed_bytes += needed_bytes.div_ceil(MODEL_FILES_STEP_PARTS);
        }
        Ok(Err(u64::MAX))
    }

    /// Returns a plan of a program with recomputation: with early updates if these fit, since they leave more room for kept bytes. If
    /// neither order fits, returns how many bytes would be enough.
    fn recomputing(
        &self,
        file: &Candidate,
        early: Option<&Candidate>,
        capacity_bytes: u64,
    ) -> Result<Attempted, PlanError> {
        let mut least_bytes = u64::MAX;
        for (number, candidate) in early.into_iter().chain([file]).enumerate() {
            let planner = Planner { thorough: self.thorough && number == 0, ..*self };
            match planner.recomputed(candidate, capacity_bytes)? {
                Ok(found) => return Ok(Ok(found)),
                Err(bytes) => least_bytes = least_bytes.min(bytes),
            }
        }
        Ok(Err(least_bytes))
    }

    /// Returns a plan of one order within a capacity. If what fits by its bytes finds no addresses, less is filled.
    fn recomputed(&self, candidate: &Candidate, capacity_bytes: u64) -> Result<Attempted, PlanError> {
        for attempt in 0..ONE_POOL_ATTEMPTS {
            self.work.check()?;
            let parts = attempt + attempt.pow(3) / ONE_POOL_CUT_PARTS;
            let limit_bytes = capacity_bytes - capacity_bytes / ONE_POOL_CUT_PARTS * parts;
            let (found, recomputing) = self.with_limit(candidate, limit_bytes);
            let within =
                |capacity_bytes| self.attempt(&recomputing, &recomputing.live, UNLIMITED, false, capacity_bytes);
            if let Some(plan) = within(capacity_bytes)? {
                return Ok(Ok((plan, recomputing)));
            }
            if found.peak_bytes > capacity_bytes {
                let mut bytes = found.peak_bytes;
                while within(bytes)?.is_none() {
                    bytes += bytes.div_ceil(ONE_POOL_CUT_PARTS / 2);
                }
                return Ok(Err(bytes));
            }
        }
        Ok(Err(capacity_bytes + capacity_bytes / ONE_POOL_CUT_PARTS))
    }

    /// Returns a candidate whose live bytes stay within a limit, as far as recomputation can achieve that.
    pub(super) fn with_limit(&self, candidate: &Candidate, limit_bytes: u64) -> (Rematerialized, Candidate) {
        let ordered = Ordered { program: candidate.apart.clone(), ..candidate.ordered.clone() };
        let live = liveness(&ordered.program, false).with_all_accesses();
        let pool = match self.host_limit {
            Some(_) if self.one_pool => Pool::SharedWithFiles,
            _ if self.one_pool => Pool::Shared { thorough: self.thorough },
            _ => Pool::OfDevice,
        };
        let origin = |origins: &[usize]| ordered.sources.iter().map(|&source| origins[source]).collect();
        let origins = self.origins.filter(|_| self.one_pool).map(origin);
        let found = rematerialize(&ordered.program, &live, &candidate.costs, limit_bytes, pool, origins);
        let recomputing = Candidate::new(ordered.with_launches(&found.launches), self.costs);
        (found, recomputing)
    }
}

/// Rounds down to a number with five significant binary digits.
fn rounded_down(bytes: u64) -> u64 {
    let digits = bytes.checked_ilog2().unwrap_or(0).saturating_sub(4);
    bytes >> digits << digits
}

#[cfg(test)]
mod tests {
    use crate::cost::estimate;
    use crate::error::PlanError;
    use crate::planner::{PlanOptions, plan};
    use crate::testing::{
        ProgramBuilder, Random, limits, random_training_program, training_program, with_constants_in_file,
    };
    use forebay_base::kernel::{Activation, BinaryOp, UnaryOp};
    use forebay_base::{Kernel, Limits};
    use forebay_model::program::{Program, Role};

    #[test]
    fn inputs_in_place_cross_no_link() {
        let mut build = ProgramBuilder::default();
        let x = build.input("x", 1 << 20);
        let made: Vec<_> = (0..6).map(|number| build.temporary(&format!("t{number}"), 1 << 20)).collect();
        build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &made[..1]);
        made.windows(2).for_each(|pair| build.launch(Kernel::Unary(UnaryOp::Exp), &pair[..1], &pair[1..]));
        let mut last = made[5];
        for &value in made[..5].iter().rev() {
            let sum = build.temporary("sum", 1 << 20);
            let add = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };
            build.launch(add, &[last, value], &[sum]);
            last = sum;
        }
        let program = build.finish(&[last]);
        let limits = Limits { copies_use_workers: true, ..limits() };
        let costs = estimate(&program, &limits);
        let planned = |device_budget_bytes| {
            let options = PlanOptions { device_budget_bytes, one_pool: true, check: true, ..PlanOptions::default() };
            plan(&program, &options, &limits, &costs).unwrap().statistics
        };
        let peak_bytes = planned(None).in_core_peak_bytes;
        for budget_bytes in [peak_bytes - (1 << 20), peak_bytes + (1 << 20)] {
            let found = planned(Some(budget_bytes));
            assert!(found.device_peak_bytes <= budget_bytes, "{found:?}");
            assert_eq!((found.bytes_to_device, found.bytes_from_device), (0, 0));
            assert!(found.lower_bound_ns <= found.predicted_ns, "{found:?}");
        }
    }

    #[test]
    fn within_one_pool_only_outputs_are_copied() {
        let mut recomputing = 0;
        for seed in 1..7 {
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
            for percent in [0, 50, 110] {
                let budget_bytes = least + whole.in_core_peak_bytes.saturating_sub(least) * percent / 100;
                let plan = plan(&program, &options(Some(budget_bytes)), &limits, &costs)
                    .unwrap_or_else(|error| panic!("seed {seed}, {percent} %: {error}"));
                let statistics = plan.statistics;
                assert!(statistics.device_peak_bytes <= budget_bytes, "seed {seed}, {percent} %");
                assert!(statistics.lower_bound_ns <= statistics.predicted_ns, "seed {seed}, {percent} %");
                // Inputs are written where launches read them, even if everything fits.
                assert_eq!(statistics.bytes_to_device, 0, "seed {seed}, {percent} %");
                assert_eq!(statistics.bytes_from_device, whole.bytes_from_device, "seed {seed}, {percent} %");
                recomputing += usize::from(statistics.recomputations > 0);
            }
        }
        assert!(recomputing > 5, "{recomputing} plans recompute");
    }

    /// Compares plans of programs with constants in a file to plans of the same programs without.
    #[test]
    fn weights_in_files_are_dropped_and_read_again_and_nothing_else_moves() {
        let (mut reading, mut smaller) = (0, 0);
        for seed in 1..7 {
            let mut random = Random::new(seed);
            let layer =
                |layer| (if layer % 4 == 3 { Role::Parameter } else { Role::Constant }, random.index(layer + 1));
            let layers: Vec<(Role, usize)> = (0..3 + seed as usize % 4).map(layer).collect();
            let program = crate::fuse::fuse(training_program(seed << 15, &layers));
            let in_file = with_constants_in_file(program.clone());
            let (limits, costs) = (limits(), estimate(&program, &limits()));
            let planned = |program: &Program, device_budget_bytes| {
                let (one_pool, names_least, check) = (true, true, true);
                let options =
                    PlanOptions { device_budget_bytes, one_pool, names_least, check, ..PlanOptions::default() };
                plan(program, &options, &limits, &costs)
            };
            let whole = planned(&in_file, None).unwrap().statistics;
            let least = |program| match planned(program, Some(whole.minimum_budget_bytes)) {
                Err(PlanError::DeviceBudget { minimum_bytes, .. }) => minimum_bytes,
                Ok(_) => whole.minimum_budget_bytes,
                Err(other) => panic!("seed {seed}: {other}"),
            };
            let (least_bytes, without_bytes) = (least(&in_file), least(&program));
            assert!(least_bytes <= whole.in_core_peak_bytes, "seed {seed}: {least_bytes}");
            smaller += usize::from(least_bytes < without_bytes);
            for percent in [0, 30, 80] {
                let what = format!("seed {seed}, {percent} %");
                let budget_bytes = least_bytes + without_bytes.saturating_sub(least_bytes) * percent / 100;
                let plan = planned(&in_file, Some(budget_bytes)).unwrap_or_else(|error| panic!("{what}: {error}"));
                let found = &plan.statistics;
                assert!(found.device_peak_bytes <= budget_bytes, "{what}: {found:?}");
                assert!(found.lower_bound_ns <= found.predicted_ns, "{what}: {found:?}");
                assert_eq!((found.spill_bytes, found.bytes_to_disk), (0, 0), "{what}");
                if found.model_files_bytes > 0 {
                    reading += 1;
                    assert_eq!(found.bytes_to_device, found.bytes_from_model_files, "{what}");
                    assert_eq!(found.bytes_from_device, whole.bytes_from_device, "{what}");
                }
            }
        }
        assert!(reading > 3 && smaller > 2, "{reading} plans read files, {smaller} programs need less with them");
    }
}
