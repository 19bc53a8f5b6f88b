//! The threads that run kernels.
//!
//! A thread knows its pool, so that kernels divide their work among the threads of the pool that runs them without being told which.

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, mpsc};

use forebay_queue::workers::{Job, Tasks, Workers};

use super::STACK_SIZE_BYTES;

/// A number of threads. They end when the pool is dropped and no job is left.
pub(super) struct ThreadPool {
    workers: Arc<Workers<Borrowed>>,
}

/// What a thread of a pool knows.
struct Current {
    workers: Arc<Workers<Borrowed>>,
    /// The number of the thread.
    worker: usize,
}

thread_local! {
    static CURRENT: OnceCell<Current> = const { OnceCell::new() };
}

/// The work of a loop: a closure that belongs to the thread that began the loop.
struct Borrowed(*const (dyn Fn(usize) + Sync));

// SAFETY: several threads may share the closure, because it is `Sync`.
unsafe impl Send for Borrowed {}
// SAFETY: as for `Send`.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    fn from(work: &(dyn Fn(usize) + Sync)) -> Borrowed {
        // SAFETY: a pointer may outlive what it points to; `run` says why it is not used then.
        Borrowed(unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync)>(work)
        })
    }
}

impl Tasks for Borrowed {
    fn run(&self, task: u32) {
        // SAFETY: `for_each`, which made the pointer from a reference, has not returned: tasks run before `run_loop` returns.
        unsafe { (*self.0)(task as usize) }
    }
}

impl ThreadPool {
    /// Starts `count` threads, named `name` and a number. Each of them calls `start` first.
    ///
    /// # Errors
    /// Returns an error if the system refuses a thread.
    pub fn new(count: usize, name: &str, start: impl Fn() + Clone + Send + 'static) -> std::io::Result<ThreadPool> {
        let pool = ThreadPool { workers: Arc::new(Workers::new(count)) };
        for worker in 0..count {
            let (workers, start) = (pool.workers.clone(), start.clone());
            let thread = std::thread::Builder::new().name(format!("{name} {worker}")).stack_size(STACK_SIZE_BYTES);
            thread.spawn(move || {
                start();
                let current = Current { workers: workers.clone(), worker };
                CURRENT.with(|cell| cell.set(current)).unwrap_or_else(|_| unreachable!("a new thread"));
                workers.work(worker);
            })?;
        }
        Ok(pool)
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.workers.count()
    }

    /// Hands a job to the threads, behind those that wait.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.workers.spawn(Box::new(job));
    }

    /// Runs a job on a thread of the pool and returns what it returns.
    ///
    /// # Panics
    /// Panics if the job does.
    pub fn install<R: Send>(&self, job: impl FnOnce() -> R + Send) -> R {
        if CURRENT.with(|current| current.get().is_some_and(|current| Arc::ptr_eq(&current.workers, &self.workers))) {
            return job();
        }
        let (sender, result) = mpsc::channel();
        let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(job));
            let _ = sender.send(result);
        });
        // SAFETY: the job is over, or dropped, when this function returns: it waits for the result, or for the sender to be dropped.
        let job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Job>(job) };
        self.workers.spawn(job);
        match result.recv() {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => unreachable!("a pool runs every job"),
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.workers.close();
    }
}

/// Returns the number of threads of the calling thread's pool; 1 if it belongs to none.
pub(super) fn threads() -> usize {
    CURRENT.with(|current| current.get().map_or(1, |current| current.workers.count()))
}

/// Calls `work` for each of `0..count` and returns when all calls are over: in order, or divided among the threads of the calling thread's
/// pool, if it belongs to one.
///
/// # Panics
/// Panics if a call does.
pub(super) fn for_each(count: usize, work: &(dyn Fn(usize) + Sync)) {
    CURRENT.with(|current| match current.get() {
        Some(current) if current.workers.count() > 1 && count > 1 => {
            let most = u32::MAX as usize;
            for first in (0..count).step_by(most) {
                let work = |task| work(first + task);
                current.workers.run_loop(current.worker, most.min(count - first) as u32, Borrowed::from(&work));
            }
        }
        _ => (0..count).for_each(work),
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn loops_within_loops_use_borrowed_values() {
        let pool = ThreadPool::new(3, "test", || ()).expect("threads");
        let sum = AtomicUsize::new(0);
        let outer = |number: usize| for_each(10, &|inner| _ = sum.fetch_add(10 * number + inner, Ordering::Relaxed));
        let found = pool.install(|| {
            for_each(100, &outer);
            (threads(), sum.load(Ordering::Relaxed))
        });
        assert_eq!(found, (3, (0..1000).sum()));
        assert_eq!((threads(), pool.threads()), (1, 3), "the calling thread belongs to no pool");
        assert_eq!(pool.install(|| pool.install(|| 5)), 5);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = ThreadPool::new(2, "test", || ()).expect("threads");
        let result = catch_unwind(AssertUnwindSafe(|| pool.install(|| for_each(9, &|task| assert_ne!(task, 7)))));
        assert!(result.is_err());
        assert_eq!(pool.install(|| 3), 3);
    }

    #[test]
    fn threads_call_start_and_end_with_the_pool() {
        let counted = Arc::new(AtomicUsize::new(0));
        let (sender, ends) = mpsc::channel::<()>();
        let pool = {
            let counted = counted.clone();
            ThreadPool::new(2, "test", move || {
                let _lives_as_long_as_the_closure = &sender;
                counted.fetch_add(1, Ordering::Relaxed);
            })
        };
        drop(pool.expect("threads"));
        assert!(ends.recv().is_err(), "all senders are dropped when the threads end");
        assert_eq!(counted.load(Ordering::Relaxed), 2);
    }
}
