//! Errands: short jobs that threads of the pool do between the tasks of a kernel as well.
//!
//! A thread that works on a kernel looks for nothing else until its part of it is done, which may take longer than a copy.
//! A copy that waited for that would come late, although there is time for it: so its pieces are errands.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::lock::lock;
use super::urgency::Urgency;

/// A piece of work for one thread.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Errands that no thread has taken yet.
#[derive(Default)]
pub(super) struct Errands {
    waiting: Mutex<Urgency<Job>>,
    /// How many wait: read far more often than changed, so no lock is taken for it. A count that is out of date is made good
    /// by the call of the pool that every errand has.
    count: AtomicUsize,
}

thread_local! {
    /// The errands of the pool that the thread belongs to.
    static OF_THREAD: RefCell<Option<Arc<Errands>>> = const { RefCell::new(None) };
}

impl Errands {
    /// From now on, the calling thread does these between tasks.
    pub fn adopt(self: &Arc<Errands>) {
        OF_THREAD.with(|errands| *errands.borrow_mut() = Some(self.clone()));
    }

    /// Adds one, behind those of the same priority or before them.
    pub fn push(&self, priority: i32, first: bool, errand: Job) {
        let mut waiting = lock(&self.waiting);
        if first {
            waiting.push_first(priority, errand);
        } else {
            waiting.push(priority, errand);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the most urgent, unless something that is more urgent than it is waits elsewhere.
    pub fn pop(&self, elsewhere: Option<i32>) -> Option<Job> {
        let mut waiting = lock(&self.waiting);
        let comes_first = |priority| elsewhere.is_none_or(|elsewhere| priority <= elsewhere);
        let errand = waiting.first().is_some_and(comes_first).then(|| waiting.pop()).flatten();
        self.count.fetch_sub(usize::from(errand.is_some()), Ordering::Relaxed);
        errand
    }

    /// The priority of the most urgent.
    pub fn first(&self) -> Option<i32> {
        lock(&self.waiting).first()
    }

    /// How many no thread has taken yet.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// Does the errands of the thread's pool that wait, those included that come up meanwhile.
pub(super) fn run() {
    let taken = |errands: &RefCell<Option<Arc<Errands>>>| {
        let errands = errands.borrow();
        errands.as_ref().filter(|errands| errands.count.load(Ordering::Relaxed) > 0)?.pop(None)
    };
    while let Some(errand) = OF_THREAD.with(taken) {
        errand();
    }
}
