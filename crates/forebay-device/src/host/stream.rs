//! Streams of the host device: one coordinating thread each, all work on one shared pool.
//!
//! A coordinator takes its stream's commands in order, hands work to the pool, and only waits: at a barrier or record until
//! everything it handed out is done, at a wait until the event has fired. Copies run on the pool like kernels, so they count
//! in the number of threads; a large copy is a chain of small tasks, so that a kernel's thread that helps with one is soon
//! back.

use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{mpsc, Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_base::{Binding, EventId, Launch, StreamId, TensorDesc};

use super::kernels::{self, View};
use super::memory::Address;
use crate::device::{DeviceError, TraceRecord};

/// Bytes that one task of a copy moves.
const COPY_TASK_BYTES: usize = 1 << 20;

/// One command with its addresses.
pub(super) enum Task {
    Launch {
        launch: Box<Launch>,
        reads: Vec<Address>,
        writes: Vec<Address>,
        scratch: Option<(TensorDesc, Address)>,
    },
    Copy {
        from: Address,
        to: Address,
        bytes: usize,
        throttled: bool,
    },
    Fill {
        to: Address,
        bytes: usize,
        pattern: [u8; 4],
    },
    Barrier,
    Record {
        event: EventId,
        generation: u64,
    },
    Wait {
        event: EventId,
        generation: u64,
    },
    /// Answers when everything before it is done.
    Join(mpsc::Sender<()>),
}

/// What all streams of a device share.
pub(super) struct Shared {
    pub pool: rayon::ThreadPool,
    events: Mutex<BTreeMap<EventId, u64>>,
    fired: Condvar,
    failure: Mutex<Option<DeviceError>>,
    trace: Mutex<Option<Vec<TraceRecord>>>,
    birth: Instant,
    link_bytes_per_second: Option<u64>,
}

/// A lock whose data stays usable after a panic elsewhere: everything guarded here is valid between statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(pool: rayon::ThreadPool, link_bytes_per_second: Option<u64>) -> Shared {
        Shared {
            pool,
            events: Mutex::default(),
            fired: Condvar::new(),
            failure: Mutex::default(),
            trace: Mutex::default(),
            birth: Instant::now(),
            link_bytes_per_second,
        }
    }

    pub fn check(&self) -> Result<(), DeviceError> {
        lock(&self.failure).clone().map_or(Ok(()), Err)
    }

    /// Makes a failure stick, and wakes everybody who waits.
    fn fail(&self, error: DeviceError) {
        lock(&self.failure).get_or_insert(error);
        let _guard = lock(&self.events);
        self.fired.notify_all();
    }

    pub fn add_event(&self, event: EventId) {
        lock(&self.events).insert(event, 0);
    }

    pub fn remove_event(&self, event: EventId) {
        lock(&self.events).remove(&event);
    }

    pub fn generation(&self, event: EventId) -> u64 {
        lock(&self.events).get(&event).copied().unwrap_or(0)
    }

    fn fire(&self, event: EventId, generation: u64) {
        let mut events = lock(&self.events);
        let value = events.entry(event).or_default();
        *value = (*value).max(generation);
        self.fired.notify_all();
    }

    pub fn wait(&self, event: EventId, generation: u64) -> Result<(), DeviceError> {
        let mut events = lock(&self.events);
        while events.get(&event).copied().unwrap_or(0) < generation {
            self.check()?;
            events = self.fired.wait(events).unwrap_or_else(PoisonError::into_inner);
        }
        drop(events);
        self.check()
    }

    pub fn set_trace(&self, enabled: bool) {
        let mut trace = lock(&self.trace);
        *trace = enabled.then(|| trace.take().unwrap_or_default());
    }

    pub fn take_trace(&self) -> Vec<TraceRecord> {
        lock(&self.trace).as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn trace(&self, stream: StreamId, label: Option<u32>, name: &'static str, bytes: u64, start: Instant) {
        if let Some(records) = lock(&self.trace).as_mut() {
            let (start, end) = (start - self.birth, self.birth.elapsed());
            records.push(TraceRecord { stream, label, name, bytes, start, end });
        }
    }
}

/// How much work of a stream is with the pool.
#[derive(Default)]
struct Outstanding {
    count: Mutex<usize>,
    none: Condvar,
}

impl Outstanding {
    fn add(&self) {
        *lock(&self.count) += 1;
    }

    fn done(&self) {
        let mut count = lock(&self.count);
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }

    fn join(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            count = self.none.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A stream: the way to its coordinator. Dropping it waits for everything submitted.
pub(super) struct Stream {
    tasks: Option<mpsc::Sender<Task>>,
    coordinator: Option<JoinHandle<()>>,
}

impl Stream {
    pub fn new(id: StreamId, name: &str, shared: Arc<Shared>) -> std::io::Result<Stream> {
        let (sender, receiver) = mpsc::channel();
        let coordinator = std::thread::Builder::new()
            .name(format!("stream {name}"))
            .spawn(move || Coordinator { id, shared, outstanding: Arc::default() }.run(&receiver))?;
        Ok(Stream { tasks: Some(sender), coordinator: Some(coordinator) })
    }

    pub fn push(&self, task: Task) {
        if let Some(tasks) = &self.tasks {
            // The coordinator lives as long as this sender.
            let _ = tasks.send(task);
        }
    }

    /// The way to tell when everything pushed so far is done.
    pub fn join_handle(&self) -> mpsc::Receiver<()> {
        let (sender, receiver) = mpsc::channel();
        self.push(Task::Join(sender));
        receiver
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(coordinator) = self.coordinator.take() {
            let _ = coordinator.join();
        }
    }
}

struct Coordinator {
    id: StreamId,
    shared: Arc<Shared>,
    outstanding: Arc<Outstanding>,
}

impl Coordinator {
    fn run(self, tasks: &mpsc::Receiver<Task>) {
        for task in tasks {
            match task {
                Task::Barrier => self.outstanding.join(),
                Task::Record { event, generation } => {
                    self.outstanding.join();
                    self.shared.fire(event, generation);
                }
                // A failure ends the wait; the tasks behind it see the failure and do nothing.
                Task::Wait { event, generation } => {
                    let _ = self.shared.wait(event, generation);
                }
                Task::Join(answer) => {
                    self.outstanding.join();
                    let _ = answer.send(());
                }
                work => self.start(work),
            }
        }
        self.outstanding.join();
    }

    /// Hands work to the pool.
    fn start(&self, work: Task) {
        if self.shared.check().is_err() {
            return;
        }
        self.outstanding.add();
        let finish = Finish { outstanding: self.outstanding.clone() };
        let (id, shared) = (self.id, self.shared.clone());
        match work {
            Task::Copy { from, to, bytes, throttled } => {
                let chain = CopyChain { id, from, to, bytes, moved: 0, throttled, start: None, shared, finish };
                chain.spawn();
            }
            work => self.shared.pool.spawn(move || {
                let _finish = finish;
                let outcome = catch_unwind(AssertUnwindSafe(|| perform(id, &shared, &work)));
                let failure = match outcome {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error,
                    Err(panic) => DeviceError::Lost { reason: format!("a kernel panicked: {}", panic_text(&*panic)) },
                };
                shared.fail(failure);
            }),
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

/// Counts a task as done when dropped, however it ended.
struct Finish {
    outstanding: Arc<Outstanding>,
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.outstanding.done();
    }
}

fn views<'a>(bindings: &'a [Binding], addresses: &[Address]) -> Vec<View<'a>> {
    let pairs = bindings.iter().zip(addresses);
    pairs.map(|(binding, address)| View { desc: &binding.desc, pointer: address.0 }).collect()
}

fn perform(id: StreamId, shared: &Shared, work: &Task) -> Result<(), DeviceError> {
    let start = Instant::now();
    match work {
        Task::Launch { launch, reads, writes, scratch } => {
            let (reads, writes) = (views(&launch.reads, reads), views(&launch.writes, writes));
            let scratch = scratch.as_ref().map(|(desc, address)| View { desc, pointer: address.0 });
            // SAFETY: `submit` resolved every region inside live, mapped memory of at least the descriptor's size, and the
            // contract of commands gives this launch its operands for its duration.
            unsafe { kernels::run(&launch.kernel, &reads, &writes, scratch) }?;
            shared.trace(id, Some(launch.label), launch.kernel.name(), 0, start);
        }
        Task::Fill { to, bytes, pattern } => {
            // SAFETY: `submit` resolved the region; the contract of commands makes this fill its only user.
            let target = unsafe { std::slice::from_raw_parts_mut(to.0, *bytes) };
            target.chunks_mut(4).for_each(|chunk| chunk.copy_from_slice(&pattern[..chunk.len()]));
            shared.trace(id, None, "fill", *bytes as u64, start);
        }
        _ => {}
    }
    Ok(())
}

/// A copy as a chain of small tasks, each spawned by the one before.
struct CopyChain {
    id: StreamId,
    from: Address,
    to: Address,
    bytes: usize,
    moved: usize,
    throttled: bool,
    start: Option<Instant>,
    shared: Arc<Shared>,
    finish: Finish,
}

impl CopyChain {
    fn spawn(self) {
        let shared = self.shared.clone();
        shared.pool.spawn_fifo(move || self.step());
    }

    fn step(mut self) {
        let start = *self.start.get_or_insert_with(Instant::now);
        let piece = COPY_TASK_BYTES.min(self.bytes - self.moved);
        // SAFETY: `submit` resolved both regions and found them apart; the contract of commands gives this copy its bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.from.0.add(self.moved), self.to.0.add(self.moved), piece) };
        self.moved += piece;
        if let Some(rate) = self.shared.link_bytes_per_second.filter(|_| self.throttled) {
            let due = Duration::from_secs_f64(self.moved as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
        if self.moved < self.bytes {
            self.spawn();
        } else {
            self.shared.trace(self.id, None, "copy", self.bytes as u64, start);
            drop(self.finish);
        }
    }
}
