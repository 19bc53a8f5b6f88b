//! The search for a plan that goes on while steps run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, TryRecvError};
use std::sync::Arc;
use std::{io, thread};

use forebay_base::Limits;
use forebay_model::program::Program;
use forebay_plan::cost::Costs;
use forebay_plan::{plan_unless_stopped, Plan, PlanError, PlanOptions};

use crate::forecast::ReplanReason;

/// A search on a thread of its own. It ends early where this goes.
pub(crate) struct ContinuedSearch {
    /// Why there is a search.
    pub(crate) reason: ReplanReason,
    found: Receiver<Result<Plan, PlanError>>,
    stop: Arc<AtomicBool>,
}

/// What is planned.
pub(crate) struct Planned {
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
    pub(crate) fn start(planned: Planned, reason: ReplanReason) -> io::Result<ContinuedSearch> {
        let (sender, found) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let search = move || {
            let Planned { program, groups, options, limits, costs } = &planned;
            // Nobody listens any more where this went meanwhile.
            let _ = sender.send(plan_unless_stopped(program, groups.as_deref(), options, limits, costs, &stopped));
        };
        thread::Builder::new().name("forebay-planning".to_string()).spawn(search)?;
        Ok(ContinuedSearch { reason, found, stop })
    }

    /// The plan, once; none before the search has ended, or if it ended without one.
    ///
    /// # Errors
    /// As for planning.
    pub(crate) fn poll(&self) -> Result<Found, PlanError> {
        match self.found.try_recv() {
            Ok(plan) => Ok(Found::Plan(Box::new(plan?))),
            Err(TryRecvError::Empty) => Ok(Found::NotYet),
            Err(TryRecvError::Disconnected) => Ok(Found::Nothing),
        }
    }
}

/// What a search has come to.
pub(crate) enum Found {
    /// It goes on.
    NotYet,
    /// A plan.
    Plan(Box<Plan>),
    /// It has ended without one.
    Nothing,
}

impl Drop for ContinuedSearch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
