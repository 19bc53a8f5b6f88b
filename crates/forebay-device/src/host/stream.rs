//! Streams of the host device: one coordinating thread each, all work on one shared pool.
//!
//! A coordinator takes its stream's commands in order, hands work to the pool, and only waits: at a barrier until everything
//! that it handed out is done, at a wait until the event has fired. A record does not hold it up: the event fires when the
//! last work before it ends. Copies run on the pool like kernels, so they count in the number of threads.

use std::sync::{mpsc, Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use forebay_base::EventId;

use super::shared::{lock, Shared};
use super::work::{self, Origin, Work};

/// One command of a stream.
pub(super) enum Task {
    Work(Work),
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

/// The place of the next record in a stream. Work before it holds it, and so does the milestone before it; the last to let
/// go fires the event. So events fire when everything before them is done, and nobody waits for it.
struct Milestone {
    shared: Arc<Shared>,
    record: OnceLock<(EventId, u64, Arc<Milestone>)>,
}

impl Milestone {
    fn new(shared: &Arc<Shared>) -> Arc<Milestone> {
        Arc::new(Milestone { shared: shared.clone(), record: OnceLock::new() })
    }

    /// Fires the event, if there is one, and returns the milestone behind it.
    fn pass(&mut self) -> Option<Arc<Milestone>> {
        let (event, generation, next) = self.record.take()?;
        self.shared.fire(event, generation);
        Some(next)
    }
}

impl Drop for Milestone {
    fn drop(&mut self) {
        // A loop, because one drop inside the other would need stack for every record that fires at once.
        let mut next = self.pass();
        while let Some(mut milestone) = next.and_then(Arc::into_inner) {
            next = milestone.pass();
        }
    }
}

/// What work lets go when it is done: first its milestone, so that who finds nothing outstanding finds events fired.
struct Finish {
    milestone: Option<Arc<Milestone>>,
    outstanding: Arc<Outstanding>,
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.milestone = None;
        self.outstanding.done();
    }
}

/// A stream: the way to its coordinator. Dropping it waits for everything submitted.
pub(super) struct Stream {
    tasks: Option<mpsc::Sender<Task>>,
    coordinator: Option<JoinHandle<()>>,
}

impl Stream {
    pub fn new(origin: Origin, name: &str, shared: Arc<Shared>) -> std::io::Result<Stream> {
        let (sender, receiver) = mpsc::channel();
        // Thread names end at the first zero byte.
        let name = format!("stream {}", name.replace('\0', " "));
        let coordinator = std::thread::Builder::new().name(name).spawn(move || {
            let milestone = Milestone::new(&shared);
            Coordinator { origin, shared, outstanding: Arc::default(), milestone }.run(&receiver);
        })?;
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
    origin: Origin,
    shared: Arc<Shared>,
    outstanding: Arc<Outstanding>,
    milestone: Arc<Milestone>,
}

impl Coordinator {
    fn run(mut self, tasks: &mpsc::Receiver<Task>) {
        for task in tasks {
            match task {
                Task::Work(work) => self.start(work),
                Task::Barrier => self.outstanding.join(),
                Task::Record { event, generation } => {
                    let next = Milestone::new(&self.shared);
                    let _ = self.milestone.record.set((event, generation, next.clone()));
                    self.milestone = next;
                }
                // A failure ends the wait; the work behind it sees the failure and is skipped.
                Task::Wait { event, generation } => {
                    let _ = self.shared.wait(event, generation);
                }
                Task::Join(answer) => {
                    self.outstanding.join();
                    let _ = answer.send(());
                }
            }
        }
        self.outstanding.join();
    }

    /// Hands work to the pool, unless the device has failed.
    fn start(&self, work: Work) {
        if self.shared.check().is_err() {
            return;
        }
        self.outstanding.add();
        let finish = Finish { milestone: Some(self.milestone.clone()), outstanding: self.outstanding.clone() };
        work::start(self.origin, &self.shared, work, finish);
    }
}
