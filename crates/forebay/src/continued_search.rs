//! The search for a plan that goes on while steps run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::{io, thread};

use forebay_base::Limits;
use forebay_model::program::Program;
use forebay_plan::cost::Costs;
use forebay_plan::{Plan, PlanError, PlanOptions, plan_unless_stopped};

use crate::forecast::ReplanReason;

/// A search on a thread of its own. Dropping it ends the search early.
pub(crate) struct ContinuedSearch {
    /// Why there is a search.
    pub(crate) reason: ReplanReason,
    found: Receiver<Result<Plan, PlanError>>,
    stop: Arc<AtomicBool>,
}

/// What to plan.
pub(crate) struct SearchRequest {
    pub(crate) program: Arc<Program>,
    pub(crate) groups: Option<Arc<[Vec<usize>]>>,
    pub(crate) options: PlanOptions,
    pub(crate) limits: Limits,
    pub(crate) costs: Costs,
}

impl ContinuedSearch {
    /// Begins to search.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(request: SearchRequest, reason: ReplanReason) -> io::Result<ContinuedSearch> {
        let (sender, found) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let search = move || {
            let SearchRequest { program, groups, options, limits, costs } = &request;
            // Sending fails where the search was dropped: then the plan is not wanted any more.
            let _ = sender.send(plan_unless_stopped(program, groups.as_deref(), options, limits, costs, &stopped));
        };
        thread::Builder::new().name("forebay-planning".to_string()).spawn(search)?;
        Ok(ContinuedSearch { reason, found, stop })
    }

    /// What the search has come to. Its plan is returned once.
    ///
    /// # Errors
    /// Those of planning. Budgets that are too small are none, since the plan that runs stays within them.
    pub(crate) fn poll(&self) -> Result<Found, PlanError> {
        match self.found.try_recv() {
            Ok(Err(PlanError::HostBudget { .. } | PlanError::DeviceBudget { .. })) => Ok(Found::Ended(None)),
            Ok(plan) => Ok(Found::Ended(Some(Box::new(plan?)))),
            Err(TryRecvError::Empty) => Ok(Found::NotYet),
            Err(TryRecvError::Disconnected) => Ok(Found::Ended(None)),
        }
    }
}

/// What a search has come to.
pub(crate) enum Found {
    /// It goes on.
    NotYet,
    /// It has ended, with a plan or without.
    Ended(Option<Box<Plan>>),
}

impl Drop for ContinuedSearch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
