//! What all streams of a host device share: the pool of threads and the trace.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use super::disk::Disk;
use super::helper_tasks::{HelperTasks, Job};
use super::link::Link;
use super::lock::lock;
use super::tracer::Tracer;
use super::urgency::Urgency;
use crate::communicator::Communicator;
use crate::device::IndexFault;

/// What all streams of a device share.
pub(super) struct Shared {
    pool: rayon::ThreadPool,
    /// Work that a thread of the pool will run: as many pieces as the pool has calls to take one.
    waiting: Mutex<Urgency<Job>>,
    /// Work that threads of the pool do between the tasks of a kernel, too. It has calls of the pool as well.
    helper_tasks: Arc<HelperTasks>,
    /// The ways to the device and from it, where they are slowed down.
    pub links: Option<[Link; 2]>,
    /// The way to spill files, once there was one.
    pub disk: OnceLock<Disk>,
    /// The other processes of a run, where there are any.
    pub communicator: OnceLock<Arc<dyn Communicator>>,
    /// When commands ran.
    pub tracer: Arc<Tracer>,
    /// The least of the index faults that were found and not taken.
    index_fault: Mutex<Option<IndexFault>>,
}

impl Shared {
    pub fn new(pool: rayon::ThreadPool, links: Option<[Link; 2]>, birth: Instant) -> Shared {
        let helper_tasks = Arc::new(HelperTasks::default());
        pool.broadcast(|_| helper_tasks.adopt());
        let (waiting, index_fault) = (Mutex::default(), Mutex::default());
        let (disk, communicator) = (OnceLock::new(), OnceLock::new());
        let tracer = Arc::new(Tracer::new(birth));
        Shared { pool, waiting, helper_tasks, links, disk, communicator, tracer, index_fault }
    }

    /// Hands a job to the pool, behind those of the same priority. A thread that is free takes the most urgent job.
    pub fn spawn(self: &Arc<Shared>, priority: i32, job: impl FnOnce() + Send + 'static) {
        lock(&self.waiting).push(priority, Box::new(job));
        let shared = self.clone();
        self.pool.spawn(move || shared.run_most_urgent());
    }

    /// Hands a helper task to the pool, behind those of the same priority. Whichever thread is free, or between the tasks of a
    /// kernel, takes the most urgent.
    pub fn spawn_helper_task(self: &Arc<Shared>, priority: i32, helper_task: impl FnOnce() + Send + 'static) {
        self.helper_tasks.push(priority, false, Box::new(helper_task));
        let shared = self.clone();
        self.pool.spawn(move || shared.run_most_urgent());
    }

    /// Hands the next part of a helper task that has begun to the pool, before helper tasks of the same priority.
    pub fn go_on(self: &Arc<Shared>, priority: i32, helper_task: impl FnOnce() + Send + 'static) {
        self.helper_tasks.push(priority, true, Box::new(helper_task));
        let shared = self.clone();
        self.pool.spawn_fifo(move || shared.run_most_urgent());
    }

    /// Whether anything waits that goes before work of this priority that has begun.
    pub fn is_urgent(&self, priority: i32) -> bool {
        let first = [lock(&self.waiting).first(), self.helper_tasks.first()].into_iter().flatten().min();
        first.is_some_and(|first| first < priority)
    }

    /// Runs what is most urgent, if not all is done: of equals, helper tasks go first.
    fn run_most_urgent(&self) {
        let job = {
            let mut waiting = lock(&self.waiting);
            self.helper_tasks.pop(waiting.first()).or_else(|| waiting.pop())
        };
        job.into_iter().for_each(|job| job());
    }

    /// Threads of the pool.
    pub fn workers(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// How many jobs no thread has taken yet.
    #[cfg(test)]
    pub fn waiting_count(&self) -> usize {
        lock(&self.waiting).count() + self.helper_tasks.count()
    }

    /// Keeps an index fault, if it is the least.
    pub fn note_index_fault(&self, fault: IndexFault) {
        let mut least = lock(&self.index_fault);
        *least = least.take().into_iter().chain([fault]).min();
    }

    pub fn take_index_fault(&self) -> Option<IndexFault> {
        lock(&self.index_fault).take()
    }
}
