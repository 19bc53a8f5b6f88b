//! Threads of the host that work for streams: one moves bytes to and from spill files, and one runs launches on the host. Each starts when
//! it is first needed, and ends with the device.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ash::vk;
use forebay_device::host::panics::caught;
use forebay_device::host::processor::Processor;
use forebay_device::{DeviceError, IndexFault, TraceRecord};

use crate::disk::Buffer;
use crate::gpu::{Gpu, failed};
use crate::state::State;
use crate::stream::{HostWork, Job};

/// How long to wait for the device before checking whether anything has failed.
pub(crate) const WAIT_NS: u64 = 1_000_000_000;

/// The data that the device and its threads share.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Signals what threads of the host have done, and failures.
    pub changed: Condvar,
    workers: Mutex<Workers>,
}

/// The threads, once they have been needed.
#[derive(Default)]
struct Workers {
    disk: Option<Worker>,
    launches: Option<Worker>,
}

/// A thread, and the channel to it.
struct Worker {
    jobs: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
}

impl Shared {
    pub fn new(state: State) -> Shared {
        Shared { state: Mutex::new(state), changed: Condvar::new(), workers: Mutex::default() }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands jobs to their threads.
    pub fn hand_over(&self, jobs: Vec<Job>) {
        let workers = self.workers();
        for job in jobs {
            let worker = match job.work {
                HostWork::Transfer(_) => &workers.disk,
                HostWork::Launch(_) => &workers.launches,
            };
            // The thread lives as long as this sender.
            if let Some(worker) = worker {
                worker.jobs.send(job).unwrap_or_default();
            }
        }
    }

    /// Starts the thread for spill files, if it is not running yet.
    ///
    /// # Errors
    /// If host memory has no room for its buffers, or if the system refuses the thread.
    pub fn start_disk(self: &Arc<Shared>, gpu: &Arc<Gpu>) -> Result<(), DeviceError> {
        let mut workers = self.workers();
        if workers.disk.is_none() {
            let mut buffer = Buffer::new();
            workers.disk = Some(self.spawn(gpu, "vulkan disk", move |work| match work {
                HostWork::Transfer(transfer) => transfer.run(&mut buffer).map(|()| None),
                HostWork::Launch(_) => Err(misled()),
            })?);
        }
        Ok(())
    }

    /// Starts the thread for launches on the host, and those between which kernels divide their work, if they are not running yet.
    ///
    /// # Errors
    /// If host memory has no room for the kernels' buffers, or if the system refuses the threads.
    pub fn start_launches(self: &Arc<Shared>, gpu: &Arc<Gpu>) -> Result<(), DeviceError> {
        let mut workers = self.workers();
        if workers.launches.is_none() {
            let processor = Processor::new()?;
            self.lock().memories.count_host("packing buffers", Processor::memory_bytes())?;
            workers.launches = Some(self.spawn(gpu, "vulkan launches", move |work| match work {
                HostWork::Launch(launch) => launch.run(&processor),
                HostWork::Transfer(_) => Err(misled()),
            })?);
        }
        Ok(())
    }

    /// Returns whether the thread for launches on the host is running.
    pub fn runs_launches(&self) -> bool {
        self.workers().launches.is_some()
    }

    fn spawn(
        self: &Arc<Shared>,
        gpu: &Arc<Gpu>,
        name: &str,
        mut run: impl FnMut(&HostWork) -> Result<Option<IndexFault>, DeviceError> + Send + 'static,
    ) -> Result<Worker, DeviceError> {
        let (jobs, receiver) = mpsc::channel::<Job>();
        let (shared, gpu) = (self.clone(), gpu.clone());
        let builder = std::thread::Builder::new().name(name.to_string());
        let thread = builder.spawn(move || {
            while let Ok(job) = receiver.recv() {
                // A job that panics ends, too: others wait until no job is left.
                let outcome = caught("a job on a thread of the host", || run_job(&gpu, &shared, &job, &mut run));
                let mut state = shared.lock();
                state.jobs -= 1;
                let more = outcome.and_then(|()| {
                    state.streams.done_on_host(job.point)?;
                    state.pump()
                });
                let more = more.unwrap_or_else(|error| {
                    state.fail(error);
                    Vec::new()
                });
                drop(state);
                shared.hand_over(more);
                shared.changed.notify_all();
            }
        });
        let refused =
            |error: std::io::Error| DeviceError::Refused { what: "a thread".to_string(), reason: error.to_string() };
        Ok(Worker { jobs, thread: thread.map_err(refused)? })
    }

    /// Ends the threads once they have finished their jobs.
    pub fn stop(&self) {
        let Workers { disk, launches } = std::mem::take(&mut *self.workers());
        for Worker { jobs, thread } in [disk, launches].into_iter().flatten() {
            drop(jobs);
            let _ = thread.join();
        }
    }
}

fn misled() -> DeviceError {
    DeviceError::Lost { reason: "a thread received work meant for another".to_string() }
}

/// Does a job once everything that it waits for is done.
fn run_job(
    gpu: &Gpu,
    shared: &Shared,
    job: &Job,
    run: &mut impl FnMut(&HostWork) -> Result<Option<IndexFault>, DeviceError>,
) -> Result<(), DeviceError> {
    let (semaphores, values): (Vec<_>, Vec<_>) = job.waits.iter().copied().unzip();
    let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
    loop {
        if let Some(failure) = &shared.lock().failure {
            return Err(failure.clone());
        }
        // SAFETY: streams outlive what was submitted to them.
        match unsafe { gpu.functions.wait_semaphores(&info, WAIT_NS) } {
            Ok(()) => break,
            Err(vk::Result::TIMEOUT) => {}
            Err(error) => return Err(failed("waiting for the device on the host")(error)),
        }
    }
    let start = Instant::now();
    let fault = run(&job.work)?;
    let end = Instant::now();
    let mut state = shared.lock();
    state.index_fault = state.index_fault.take().into_iter().chain(fault).min();
    if state.tracing {
        let (label, name, bytes) = match &job.work {
            HostWork::Transfer(transfer) => (None, "copy", transfer.bytes),
            HostWork::Launch(launch) => (Some(launch.launch.label), launch.launch.kernel.name(), 0),
        };
        let (start, end, worker_time) = (start - state.birth, end - state.birth, Duration::ZERO);
        state.trace.push(TraceRecord { stream: job.point.stream, label, name, bytes, start, end, worker_time });
    }
    Ok(())
}
