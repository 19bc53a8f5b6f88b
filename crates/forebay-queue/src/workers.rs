//! Threads that share work: jobs, each done by one thread, and parallel loops, whose tasks are divided among the threads.
//!
//! A loop belongs to the thread that begins it, which works on it until all its tasks are done; threads that have nothing else to do help.
//! Each worker has a range of the tasks, the same one in loops of the same length, so that what one loop leaves in a core's cache is there
//! for the next. A worker without tasks takes half of what another has left.
//!
//! A thread that waits spins for a moment before it sleeps: launches follow each other within microseconds, and waking a thread takes longer.
//! It does not yield while it spins: if other programs keep the processors busy, a thread that yields has to wait for their time slices to end.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use crate::shim::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::shim::sync::{Arc, Condvar, Mutex, MutexGuard};
use crate::shim::{lock, spin_until, thread_local, wait};

/// How long a thread looks for work, or whether others are done, before it sleeps.
const SPIN: Duration = Duration::from_micros(100);

thread_local! {
    /// While the thread does a job: whose job it is, and whether it has added jobs of which no other thread has been told.
    static IN_JOB: Cell<Option<Unannounced>> = const { Cell::new(None) };
}

/// Jobs that were added by a job. Its thread looks for the next job soon: it takes the first of them itself, because another thread would have
/// to notice it first, and then tells others of the rest.
#[derive(Clone, Copy)]
struct Unannounced {
    /// Distinguishes workers from others.
    workers: usize,
    is_any: bool,
}

/// Something that one thread does.
pub type Job = Box<dyn FnOnce() + Send>;

/// The tasks of a loop.
pub trait Tasks: Send + Sync {
    /// Performs a task. [`Workers::run_loop`] calls this once for each task, on any thread, and not after it has returned.
    fn run(&self, task: u32);
}

/// Work for a number of threads, each of which calls [`Workers::work`].
pub struct Workers<T> {
    count: usize,
    state: Mutex<State<T>>,
    /// For each worker, what wakes it.
    woken: Box<[Condvar]>,
    /// Changes whenever there is something new to find in the state.
    news: AtomicUsize,
}

struct State<T> {
    jobs: VecDeque<Job>,
    /// Loops that may have tasks that no worker has taken.
    loops: Vec<Arc<Loop<T>>>,
    /// The workers that look for news.
    spinning: usize,
    /// The workers that sleep, in the order in which they fell asleep. The last is woken first, because its caches are the warmest.
    sleeping: Vec<usize>,
    closed: bool,
}

/// What a worker found to do.
enum Found<T> {
    Job(Job),
    Loop(Arc<Loop<T>>),
}

impl<T> State<T> {
    /// Takes the oldest job, or else the oldest loop that has tasks left.
    fn find(&mut self) -> Option<Found<T>> {
        if let Some(job) = self.jobs.pop_front() {
            return Some(Found::Job(job));
        }
        self.loops.retain(|one| one.has_tasks());
        self.loops.first().cloned().map(Found::Loop)
    }
}

impl<T: Tasks> Workers<T> {
    /// # Panics
    /// Panics if `count` is 0.
    pub fn new(count: usize) -> Workers<T> {
        assert!(count > 0, "work without workers");
        let state =
            State { jobs: VecDeque::new(), loops: Vec::new(), spinning: 0, sleeping: Vec::new(), closed: false };
        let woken = (0..count).map(|_| Condvar::new()).collect();
        Workers { count, state: Mutex::new(state), woken, news: AtomicUsize::new(0) }
    }

    /// The number of threads that are meant to work.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds a job behind the waiting ones. Threads that work call this as well as others.
    pub fn spawn(&self, job: Job) {
        let mut state = lock(&self.state);
        state.jobs.push_back(job);
        let workers = self.identity();
        let waits = IN_JOB.with(|in_job| match in_job.get() {
            Some(own) if own.workers == workers => {
                in_job.set(Some(Unannounced { workers, is_any: true }));
                true
            }
            _ => false,
        });
        if !waits {
            self.announce(state);
        }
    }

    /// Tells as many threads as there are jobs, if there are that many without work.
    fn announce(&self, state: MutexGuard<State<T>>) {
        let count = state.jobs.len().saturating_sub(state.spinning);
        self.tell(state, count);
    }

    /// Tells threads that look for news, and wakes at most `count` of those that sleep.
    fn tell(&self, mut state: MutexGuard<State<T>>, count: usize) {
        self.news.fetch_add(1, Ordering::SeqCst);
        let left = state.sleeping.len().saturating_sub(count);
        let woken = state.sleeping.split_off(left);
        drop(state);
        woken.into_iter().for_each(|worker| self.woken[worker].notify_one());
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Lets threads return from [`Workers::work`] once no job is left.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        self.tell(state, self.count);
    }

    /// Works as a number of `0..count()` until the workers are closed; each number may be used by one thread only. A job that panics ends,
    /// and the thread goes on.
    pub fn work(&self, worker: usize) {
        let mut adds_jobs = false;
        while let Some(found) = self.next(worker, adds_jobs) {
            adds_jobs = false;
            match found {
                Found::Job(job) => {
                    let own = Unannounced { workers: self.identity(), is_any: false };
                    IN_JOB.with(|in_job| in_job.set(Some(own)));
                    drop(catch_unwind(AssertUnwindSafe(job)));
                    adds_jobs = IN_JOB.with(Cell::take).is_some_and(|own| own.is_any);
                }
                Found::Loop(found) => found.help(worker),
            }
        }
    }

    /// Performs the tasks `0..count`, with the help of workers that are free. `worker` is the number under which the calling thread works.
    ///
    /// # Panics
    /// Panics like the first task that did; all tasks are done then, too.
    pub fn run_loop(&self, worker: usize, count: u32, tasks: T) {
        let own = Arc::new(Loop::new(self.count, worker, count, tasks));
        let mut state = lock(&self.state);
        state.loops.push(own.clone());
        let has_enough = state.spinning + 1 >= self.count.min(count as usize);
        self.tell(state, usize::from(!has_enough));
        own.help(worker);
        lock(&self.state).loops.retain(|other| !Arc::ptr_eq(other, &own));
        own.wait();
        if let Some(panic) = lock(&own.panic).take() {
            resume_unwind(panic);
        }
    }

    /// Waits for something to do, and tells others of the jobs that are left if the thread has added any. Returns `None` if the workers are
    /// closed.
    fn next(&self, worker: usize, has_added_jobs: bool) -> Option<Found<T>> {
        let mut state = lock(&self.state);
        let mut has_spun = false;
        loop {
            if let Some(found) = state.find() {
                // The thread that begins a loop wakes one other, and each thread that joins wakes one more, so that no thread has to wake all.
                if has_added_jobs && !state.jobs.is_empty() {
                    self.announce(state);
                } else if matches!(found, Found::Loop(_)) && state.spinning == 0 && !state.sleeping.is_empty() {
                    self.tell(state, 1);
                }
                return Some(found);
            }
            if state.closed {
                return None;
            }
            if has_spun {
                state.sleeping.push(worker);
                while state.sleeping.contains(&worker) {
                    state = wait(&self.woken[worker], state);
                }
                has_spun = false;
            } else {
                let seen = self.news.load(Ordering::SeqCst);
                state.spinning += 1;
                drop(state);
                has_spun = !spin_until(SPIN, || self.news.load(Ordering::SeqCst) != seen);
                state = lock(&self.state);
                state.spinning -= 1;
            }
        }
    }
}

/// A loop, and who does which of its tasks.
struct Loop<T> {
    tasks: T,
    /// For each worker, the tasks that no one has taken: the first in the upper half of the bits, and the end in the lower half. Workers
    /// take the first of their own and the rear half of others'; only the owner of an empty range replaces it.
    ranges: Box<[AtomicU64]>,
    /// The number of tasks that are not done. Those that a worker did count when it leaves the loop.
    left: AtomicUsize,
    /// Whether the owner sleeps, or is about to, until the last task is done.
    owner_sleeps: AtomicBool,
    over: Mutex<()>,
    changed: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

fn range_of(first: u32, end: u32) -> u64 {
    u64::from(first) << 32 | u64::from(end)
}

fn bounds(range: u64) -> (u32, u32) {
    ((range >> 32) as u32, range as u32)
}

fn length(range: u64) -> u32 {
    let (first, end) = bounds(range);
    end.saturating_sub(first)
}

impl<T> Loop<T> {
    fn has_tasks(&self) -> bool {
        self.ranges.iter().any(|range| length(range.load(Ordering::Relaxed)) > 0)
    }
}

impl<T: Tasks> Loop<T> {
    /// Divides the tasks among the workers. If there are fewer tasks than workers, the first task is the owner's.
    fn new(workers: usize, owner: usize, count: u32, tasks: T) -> Loop<T> {
        let first_worker = if (count as usize) < workers { owner } else { 0 };
        let start = |share: usize| (u64::from(count) * share as u64).div_ceil(workers as u64) as u32;
        let share_of = |worker: usize| (worker + workers - first_worker) % workers;
        let ranges =
            (0..workers).map(share_of).map(|share| AtomicU64::new(range_of(start(share), start(share + 1)))).collect();
        Loop {
            tasks,
            ranges,
            left: AtomicUsize::new(count as usize),
            owner_sleeps: AtomicBool::new(false),
            over: Mutex::new(()),
            changed: Condvar::new(),
            panic: Mutex::new(None),
        }
    }

    /// Performs tasks until none is left to take.
    fn help(&self, worker: usize) {
        let mut done = 0;
        while let Some(task) = self.take(worker) {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.tasks.run(task))) {
                lock(&self.panic).get_or_insert(panic);
            }
            done += 1;
        }
        if done > 0 && self.left.fetch_sub(done, Ordering::SeqCst) == done && self.owner_sleeps.load(Ordering::SeqCst) {
            drop(lock(&self.over));
            self.changed.notify_one();
        }
    }

    /// Takes a task for a worker.
    fn take(&self, worker: usize) -> Option<u32> {
        let own = &self.ranges[worker];
        let mut range = own.load(Ordering::SeqCst);
        while length(range) > 0 {
            let (first, end) = bounds(range);
            match own.compare_exchange(range, range_of(first + 1, end), Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(first),
                Err(now) => range = now,
            }
        }
        loop {
            let ranges = self.ranges.iter().map(|range| (range, range.load(Ordering::SeqCst)));
            let (longest, range) = ranges.max_by_key(|&(_, range)| length(range))?;
            if length(range) == 0 {
                return None;
            }
            let (first, end) = bounds(range);
            let middle = first + (end - first) / 2;
            if longest.compare_exchange(range, range_of(first, middle), Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                // No one else changes an empty range.
                own.store(range_of(middle + 1, end), Ordering::SeqCst);
                return Some(middle);
            }
        }
    }

    /// Waits until all tasks are done.
    fn wait(&self) {
        let is_over = || self.left.load(Ordering::SeqCst) == 0;
        if spin_until(SPIN, is_over) {
            return;
        }
        let mut over = lock(&self.over);
        self.owner_sleeps.store(true, Ordering::SeqCst);
        while !is_over() {
            over = wait(&self.changed, over);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// Counts how often each task ran; the last one panics if told so.
    struct Counted {
        counts: std::sync::Arc<Vec<AtomicU32>>,
        panics: bool,
    }

    impl Tasks for Counted {
        fn run(&self, task: u32) {
            self.counts[task as usize].fetch_add(1, Ordering::Relaxed);
            assert!(!self.panics || task as usize + 1 < self.counts.len(), "on purpose");
        }
    }

    /// Calls `case` with workers, of which the calling thread is number 0 and the others work.
    fn with_workers(count: usize, case: impl FnOnce(&Workers<Counted>)) {
        let workers = Workers::new(count);
        thread::scope(|scope| {
            let workers = &workers;
            (1..count).for_each(|worker| drop(scope.spawn(move || workers.work(worker))));
            case(workers);
            workers.close();
        });
    }

    fn counts(length: usize) -> std::sync::Arc<Vec<AtomicU32>> {
        std::sync::Arc::new((0..length).map(|_| AtomicU32::new(0)).collect())
    }

    fn assert_all_done_once(counts: &[AtomicU32]) {
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{counts:?}");
    }

    #[test]
    fn every_task_is_done_once_when_its_loop_ends() {
        for count in [1, 2, 4] {
            with_workers(count, |workers| {
                for length in [1, 2, 3, 5, 64, 4999].into_iter().cycle().take(300) {
                    let counts = counts(length);
                    workers.run_loop(0, length as u32, Counted { counts: counts.clone(), panics: false });
                    assert_all_done_once(&counts);
                }
            });
        }
    }

    #[test]
    fn a_loop_panics_like_its_task_once_all_are_done() {
        with_workers(3, |workers| {
            for length in [1, 2, 40] {
                let counts = counts(length);
                let tasks = Counted { counts: counts.clone(), panics: true };
                let panic = catch_unwind(AssertUnwindSafe(|| workers.run_loop(0, length as u32, tasks)));
                assert_eq!(panic.expect_err("a panic").downcast_ref(), Some(&"on purpose"));
                assert_all_done_once(&counts);
            }
        });
    }

    #[test]
    fn jobs_start_in_order_and_may_panic() {
        let (sender, received) = mpsc::channel();
        with_workers(2, |workers| {
            for number in 0..100 {
                let sender = sender.clone();
                workers.spawn(Box::new(move || {
                    sender.send(number).expect("the test receives");
                    assert!(number % 10 > 0, "on purpose");
                }));
            }
        });
        drop(sender);
        assert!(received.into_iter().eq(0..100));
    }
}
