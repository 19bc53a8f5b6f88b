//! What all streams of a host device share: the pool of threads and the trace.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebay_base::StreamId;

use super::disk::Disk;
use super::link::Link;
use super::urgency::Urgency;
use crate::device::TraceRecord;

/// What all streams of a device share.
pub(super) struct Shared {
    pool: rayon::ThreadPool,
    /// Work that a thread of the pool will run: as many pieces as the pool has calls to take one.
    waiting: Mutex<Urgency<Job>>,
    /// The ways to the device and from it, where they are slowed down.
    pub links: Option<[Link; 2]>,
    /// The way to spill files, once there was one.
    pub disk: OnceLock<Disk>,
    trace: Mutex<Trace>,
    birth: Instant,
}

/// A piece of work for one thread.
type Job = Box<dyn FnOnce() + Send>;

/// What a command was: see [`TraceRecord`].
#[derive(Default)]
pub(super) struct Traced {
    pub label: Option<u32>,
    pub name: &'static str,
    pub bytes: u64,
    pub lane_time: Duration,
}

#[derive(Default)]
struct Trace {
    enabled: bool,
    records: Vec<TraceRecord>,
}

/// A lock whose data stays usable after a panic elsewhere: everything guarded here is valid between statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(pool: rayon::ThreadPool, links: Option<[Link; 2]>, birth: Instant) -> Shared {
        Shared { pool, waiting: Mutex::default(), links, disk: OnceLock::new(), trace: Mutex::default(), birth }
    }

    /// Hands a job to the pool, behind those of the same priority. A thread that is free takes the most urgent job.
    pub fn spawn(self: &Arc<Shared>, priority: i32, job: impl FnOnce() + Send + 'static) {
        lock(&self.waiting).push(priority, Box::new(job));
        let shared = self.clone();
        self.pool.spawn(move || shared.run_most_urgent());
    }

    /// Hands the next part of something that has begun to the pool, before jobs of the same priority.
    pub fn go_on(self: &Arc<Shared>, priority: i32, job: impl FnOnce() + Send + 'static) {
        lock(&self.waiting).push_first(priority, Box::new(job));
        let shared = self.clone();
        self.pool.spawn_fifo(move || shared.run_most_urgent());
    }

    fn run_most_urgent(&self) {
        let job = lock(&self.waiting).pop();
        job.into_iter().for_each(|job| job());
    }

    /// How many jobs no thread has taken yet.
    #[cfg(test)]
    pub fn waiting_count(&self) -> usize {
        lock(&self.waiting).count()
    }

    pub fn set_trace(&self, enabled: bool) {
        lock(&self.trace).enabled = enabled;
    }

    pub fn take_trace(&self) -> Vec<TraceRecord> {
        std::mem::take(&mut lock(&self.trace).records)
    }

    /// Records a command that began at `start` and has just ended.
    pub fn trace(&self, stream: StreamId, start: Instant, what: Traced) {
        let mut trace = lock(&self.trace);
        if trace.enabled {
            let (start, end) = (start - self.birth, self.birth.elapsed());
            let Traced { label, name, bytes, lane_time } = what;
            trace.records.push(TraceRecord { stream, label, name, bytes, start, end, lane_time });
        }
    }
}
