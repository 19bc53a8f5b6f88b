//! Helper tasks: short jobs that threads of the pool also perform between the tasks of a kernel.
//!
//! A thread that works on a kernel looks for no other work until its part of the kernel is done, which may take longer than a copy. A copy
//! that waited for that would be late although there was time for it, so its pieces are helper tasks.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::lock::lock;
use super::urgency::Urgency;

/// A piece of work for one thread.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Helper tasks that no thread has taken yet.
#[derive(Default)]
pub(super) struct HelperTasks {
    waiting: Mutex<Urgency<Job>>,
    /// The number of waiting tasks. It is read far more often than changed, so it needs no lock. An outdated count does no harm, because
    /// every helper task is also spawned as a job of the pool.
    count: AtomicUsize,
}

thread_local! {
    /// The helper tasks of the pool that the thread belongs to.
    static OF_THREAD: RefCell<Option<Arc<HelperTasks>>> = const { RefCell::new(None) };
}

impl HelperTasks {
    /// Makes the calling thread perform these between tasks from now on.
    pub fn adopt(self: &Arc<HelperTasks>) {
        OF_THREAD.with(|helper_tasks| *helper_tasks.borrow_mut() = Some(self.clone()));
    }

    /// Adds a task, before those of the same priority if `first`, otherwise behind them.
    pub fn push(&self, priority: i32, first: bool, helper_task: Job) {
        let mut waiting = lock(&self.waiting);
        if first {
            waiting.push_first(priority, helper_task);
        } else {
            waiting.push(priority, helper_task);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the most urgent task, unless something more urgent waits elsewhere.
    pub fn pop(&self, elsewhere: Option<i32>) -> Option<Job> {
        let mut waiting = lock(&self.waiting);
        let comes_first = |priority| elsewhere.is_none_or(|elsewhere| priority <= elsewhere);
        let helper_task = waiting.first().is_some_and(comes_first).then(|| waiting.pop()).flatten();
        self.count.fetch_sub(usize::from(helper_task.is_some()), Ordering::Relaxed);
        helper_task
    }

    /// Returns the priority of the most urgent task.
    pub fn first(&self) -> Option<i32> {
        lock(&self.waiting).first()
    }

    /// Returns the number of tasks that no thread has taken yet.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// Performs the waiting helper tasks of the thread's pool, including those that are added meanwhile.
pub(super) fn run() {
    let taken = |helper_tasks: &RefCell<Option<Arc<HelperTasks>>>| {
        let helper_tasks = helper_tasks.borrow();
        helper_tasks.as_ref().filter(|helper_tasks| helper_tasks.count.load(Ordering::Relaxed) > 0)?.pop(None)
    };
    while let Some(helper_task) = OF_THREAD.with(taken) {
        helper_task();
    }
}
