//! The amount of work that the search for a plan takes, and when it ends early.
//!
//! Work is counted, never timed, so that the same program has the same plan on every machine. Attempts count their work; the count is read
//! only between attempts, never by attempts that run concurrently.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::PlanError;
use crate::stop::StopRequest;
use crate::tuning::{SEARCH_BRIEF_LAUNCHES, SEARCH_WORK_MAX, SEARCH_WORK_OF_LAUNCH};

/// Units of work for each launch when locations are decided. One unit is about the work of giving a buffer an address.
pub(super) const WORK_OF_LAUNCH: u64 = 3;

/// The work of one search.
#[derive(Debug)]
pub(super) struct Work<'a> {
    spent: AtomicU64,
    limit: u64,
    /// Whether the caller wants no plan any more.
    stop: &'a StopRequest,
    ended_early: AtomicBool,
}

impl Work<'_> {
    /// Starts counting the work of a search for a plan with this many launches, which ends with the first plan found if `brief` is set.
    pub(super) fn new(launches: usize, brief: bool, stop: &StopRequest) -> Work<'_> {
        let limit = match brief && launches > SEARCH_BRIEF_LAUNCHES {
            true => 0,
            false => SEARCH_WORK_MAX.max(launches as u64 * SEARCH_WORK_OF_LAUNCH),
        };
        Work { spent: AtomicU64::new(0), limit, stop, ended_early: AtomicBool::new(false) }
    }

    /// Adds units of work.
    pub(super) fn add(&self, units: u64) {
        self.spent.fetch_add(units, Ordering::Relaxed);
    }

    /// Returns whether a share of the work is spent, so that another attempt is skipped.
    pub(super) fn is_spent(&self, share: f64) -> bool {
        let is_spent = self.spent.load(Ordering::Relaxed) as f64 > self.limit as f64 * share;
        if is_spent {
            self.ended_early.store(true, Ordering::Relaxed);
        }
        is_spent
    }

    /// Ends planning if the caller wants no plan any more.
    ///
    /// # Errors
    /// [`PlanError::Stopped`].
    pub(super) fn check(&self) -> Result<(), PlanError> {
        if self.stop.is_made() { Err(PlanError::Stopped) } else { Ok(()) }
    }

    /// Returns whether an attempt was skipped.
    pub(super) fn ended_early(&self) -> bool {
        self.ended_early.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::estimate;
    use crate::planner::{PlanOptions, plan};
    use crate::testing::{Random, limits, random_training_program};

    #[test]
    fn planning_that_is_stopped_has_no_plan() {
        let program = crate::fuse::fuse(random_training_program(&mut Random::new(1), 5));
        let (limits, costs) = (limits(), estimate(&program, &limits()));
        let whole = plan(&program, &PlanOptions::default(), &limits, &costs).unwrap().statistics;
        let budget_bytes = (whole.minimum_budget_bytes + whole.in_core_peak_bytes) / 2;
        let most_bytes = whole.in_core_peak_bytes - whole.in_core_peak_bytes / 16;
        for (device_budget_bytes, one_pool) in [(None, false), (Some(budget_bytes), false), (Some(most_bytes), true)] {
            let options = PlanOptions { device_budget_bytes, one_pool, ..PlanOptions::default() };
            assert!(plan(&program, &options, &limits, &costs).is_ok());
            options.stop.make();
            assert_eq!(plan(&program, &options, &limits, &costs), Err(PlanError::Stopped));
        }
    }
}
