//! The state that all streams of a host device share: the pool of threads and the trace.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use super::disk::Disk;
use super::helper_tasks::{HelperTasks, Job};
use super::link::Link;
use super::lock::lock;
use super::pool::ThreadPool;
use super::tracer::Tracer;
use super::urgency::Urgency;
use crate::communicator::Communicator;
use crate::device::IndexFault;

/// The state that all streams of a device share.
pub(super) struct Shared {
    pool: ThreadPool,
    /// Jobs for threads of the pool. For each of them, a call is spawned on the pool that takes one.
    waiting: Mutex<Urgency<Job>>,
    /// Jobs that threads of the pool also run between the tasks of a kernel. A call is spawned on the pool for each of these as well.
    helper_tasks: Arc<HelperTasks>,
    /// The links to the device and from it, if they are slowed down.
    pub links: Option<[Link; 2]>,
    /// The threads for files on disk, once there was such a file.
    pub disk: OnceLock<Disk>,
    /// The connection to the other processes of a run, if there are any.
    pub communicator: OnceLock<Arc<dyn Communicator>>,
    /// The times at which commands ran.
    pub tracer: Arc<Tracer>,
    /// The least of the index faults that were found and not yet taken.
    index_fault: Mutex<Option<IndexFault>>,
}

impl Shared {
    /// Starts the threads of a device.
    ///
    /// # Errors
    /// Returns an error if the system refuses a thread.
    pub fn new(threads: usize, links: Option<[Link; 2]>, birth: Instant) -> std::io::Result<Shared> {
        let helper_tasks = Arc::new(HelperTasks::default());
        let adopted = helper_tasks.clone();
        let pool = ThreadPool::new(threads, "host device", move || adopted.adopt())?;
        let (waiting, index_fault) = (Mutex::default(), Mutex::default());
        let (disk, communicator) = (OnceLock::new(), OnceLock::new());
        let tracer = Arc::new(Tracer::new(birth));
        Ok(Shared { pool, waiting, helper_tasks, links, disk, communicator, tracer, index_fault })
    }

    /// Hands a job to the pool, behind those of the same priority. A free thread takes the most urgent job.
    pub fn spawn(self: &Arc<Shared>, priority: i32, job: impl FnOnce() + Send + 'static) {
        lock(&self.waiting).push(priority, Box::new(job));
        let shared = self.clone();
        self.pool.spawn(move || shared.run_most_urgent());
    }

    /// Hands a helper task to the pool, behind those of the same priority. Any thread that is free or between the tasks of a kernel takes
    /// the most urgent.
    pub fn spawn_helper_task(self: &Arc<Shared>, priority: i32, helper_task: impl FnOnce() + Send + 'static) {
        self.helper_tasks.push(priority, false, Box::new(helper_task));
        let shared = self.clone();
        self.pool.spawn(move || shared.run_most_urgent());
    }

    /// Hands the next part of a started helper task to the pool, before helper tasks of the same priority.
    pub fn go_on(self: &Arc<Shared>, priority: i32, helper_task: impl FnOnce() + Send + 'static) {
        self.helper_tasks.push(priority, true, Box::new(helper_task));
        let shared = self.clone();
        self.pool.spawn(move || shared.run_most_urgent());
    }

    /// Returns whether anything that waits takes precedence over started work of this priority.
    pub fn is_urgent(&self, priority: i32) -> bool {
        let first = [lock(&self.waiting).first(), self.helper_tasks.first()].into_iter().flatten().min();
        first.is_some_and(|first| first < priority)
    }

    /// Runs the most urgent waiting job, if there is one; helper tasks precede jobs of equal priority.
    fn run_most_urgent(&self) {
        let job = {
            let mut waiting = lock(&self.waiting);
            self.helper_tasks.pop(waiting.first()).or_else(|| waiting.pop())
        };
        job.into_iter().for_each(|job| job());
    }

    /// Returns the number of threads of the pool.
    pub fn workers(&self) -> usize {
        self.pool.threads()
    }

    /// Returns the number of jobs that no thread has taken yet.
    #[cfg(test)]
    pub fn waiting_count(&self) -> usize {
        lock(&self.waiting).count() + self.helper_tasks.count()
    }

    /// Keeps an index fault if it is the least.
    pub fn note_index_fault(&self, fault: IndexFault) {
        let mut least = lock(&self.index_fault);
        *least = least.take().into_iter().chain([fault]).min();
    }

    pub fn take_index_fault(&self) -> Option<IndexFault> {
        lock(&self.index_fault).take()
    }
}
