//! One stream: a thread that coordinates.
//!
//! A coordinator takes its stream's commands in order, hands work to the pool, and only waits: at a barrier until everything
//! that it handed out is done, at a wait until the event has fired. A record does not hold it up: the event fires when the
//! last work before it ends.

use std::io;

use forebay_base::{EventId, StreamId};

use crate::milestone::{Finish, Milestone, Outstanding};
use crate::progress::Progress;
use crate::shim::sync::{mpsc, Arc};
use crate::shim::thread::{Builder, JoinHandle};

/// Which stream work comes from, and how urgent that makes it: lower first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The stream.
    pub stream: StreamId,
    /// Its priority.
    pub priority: i32,
}

/// The threads that do a device's work.
pub trait Pool: Send + Sync + 'static {
    /// What they do.
    type Work: Send + 'static;
    /// What can go wrong.
    type Failure: Clone + Send + 'static;

    /// Sees to it that the work is done some time, and returns without waiting for that. `finish` is dropped when the work
    /// is done, however it ended.
    fn start(self: &Arc<Self>, origin: Origin, work: Self::Work, finish: Finish<Self::Failure>);
}

/// One command of a stream.
pub(crate) enum Task<Work> {
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

/// A stream: the way to its coordinator. Dropping it waits for everything submitted.
pub(crate) struct Stream<Work> {
    tasks: Option<mpsc::Sender<Task<Work>>>,
    coordinator: Option<JoinHandle<()>>,
}

impl<Work: Send + 'static> Stream<Work> {
    /// # Errors
    /// Where the system refuses the thread.
    pub fn new<P: Pool<Work = Work>>(
        origin: Origin,
        name: &str,
        pool: Arc<P>,
        progress: Arc<Progress<P::Failure>>,
    ) -> io::Result<Stream<Work>> {
        let (sender, receiver) = mpsc::channel();
        // Thread names end at the first zero byte.
        let name = format!("stream {}", name.replace('\0', " "));
        let coordinator = Builder::new().name(name).spawn(move || {
            let milestone = Milestone::new(&progress);
            Coordinator { origin, pool, progress, outstanding: Arc::default(), milestone }.run(&receiver);
        })?;
        Ok(Stream { tasks: Some(sender), coordinator: Some(coordinator) })
    }

    pub fn push(&self, task: Task<Work>) {
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

impl<Work> Drop for Stream<Work> {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(coordinator) = self.coordinator.take() {
            let _ = coordinator.join();
        }
    }
}

struct Coordinator<P: Pool> {
    origin: Origin,
    pool: Arc<P>,
    progress: Arc<Progress<P::Failure>>,
    outstanding: Arc<Outstanding>,
    milestone: Arc<Milestone<P::Failure>>,
}

impl<P: Pool> Coordinator<P> {
    fn run(mut self, tasks: &mpsc::Receiver<Task<P::Work>>) {
        for task in tasks {
            match task {
                Task::Work(work) => self.start(work),
                Task::Barrier => self.outstanding.join(),
                Task::Record { event, generation } => self.milestone = self.milestone.record(event, generation),
                // A failure ends the wait; the work behind it sees the failure and is skipped.
                Task::Wait { event, generation } => {
                    let _ = self.progress.wait(event, generation);
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
    fn start(&self, work: P::Work) {
        if self.progress.check().is_ok() {
            let finish = Finish::new(&self.milestone, &self.outstanding);
            self.pool.start(self.origin, work, finish);
        }
    }
}
