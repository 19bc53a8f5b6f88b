//! The search for a plan that continues while steps run.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::{io, thread};

use forebay_base::Limits;
use forebay_model::program::Program;
use forebay_plan::cost::Costs;
use forebay_plan::orders::Groups;
use forebay_plan::{Plan, PlanError, PlanOptions, StopRequest, plan_in_groups};

use crate::forecast::ReplanReason;

/// A search that runs on its own thread. Dropping it ends the search early.
pub(crate) struct ContinuedSearch {
    /// Why the search was started.
    pub(crate) reason: ReplanReason,
    found: Receiver<Result<Plan, PlanError>>,
    stop: StopRequest,
}

/// What to plan.
pub(crate) struct SearchRequest {
    pub(crate) program: Arc<Program>,
    pub(crate) groups: Groups,
    pub(crate) options: PlanOptions,
    pub(crate) limits: Limits,
    pub(crate) costs: Costs,
}

impl ContinuedSearch {
    /// Starts the search.
    ///
    /// # Errors
    /// Fails if the system cannot start a thread.
    pub(crate) fn start(mut request: SearchRequest, reason: ReplanReason) -> io::Result<ContinuedSearch> {
        let (sender, found) = channel();
        let stop = StopRequest::default();
        request.options.stop = stop.clone();
        let search = move || {
            let SearchRequest { program, groups, options, limits, costs } = &request;
            // Sending fails if the search was dropped: the plan is then no longer wanted.
            let _ = sender.send(plan_in_groups(program, groups.as_deref(), options, limits, costs));
        };
        thread::Builder::new().name("forebay-planning".to_string()).spawn(search)?;
        Ok(ContinuedSearch { reason, found, stop })
    }

    /// Returns the state of the search. Its plan is returned only once.
    ///
    /// # Errors
    /// Fails if planning fails. Budgets that are too small are not an error, since the running plan stays within them.
    pub(crate) fn poll(&self) -> Result<Found, PlanError> {
        match self.found.try_recv() {
            Ok(Err(PlanError::HostBudget { .. } | PlanError::DeviceBudget { .. })) => Ok(Found::Ended(None)),
            Ok(plan) => Ok(Found::Ended(Some(Box::new(plan?)))),
            Err(TryRecvError::Empty) => Ok(Found::NotYet),
            Err(TryRecvError::Disconnected) => Ok(Found::Ended(None)),
        }
    }
}

/// The state of a search.
pub(crate) enum Found {
    /// It is still running.
    NotYet,
    /// It has ended, with or without a plan.
    Ended(Option<Box<Plan>>),
}

impl Drop for ContinuedSearch {
    fn drop(&mut self) {
        self.stop.make();
    }
}
