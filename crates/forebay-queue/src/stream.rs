//! One stream: a queue of tasks, started in order.
//!
//! No thread belongs to a stream. The thread that appends to a stream starts what can start: it hands work to the pool until a barrier
//! finds work that is not done, or a wait finds that its event has not fired. From there, the thread that completes that work or fires that
//! event continues, so that the next work reaches the pool as soon as the last has ended, and no thread has to be woken for it. A record
//! blocks nothing: its event fires when the last work before it ends.

use std::collections::VecDeque;

use forebay_base::{EventId, StreamId};

use crate::continuations::{self, Continuation};
use crate::milestone::{Busy, Finish, Milestone};
use crate::progress::Progress;
use crate::shim::lock;
use crate::shim::sync::{Arc, Mutex, mpsc};

/// The stream that work comes from, and the priority that this gives it: lower first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The stream.
    pub stream: StreamId,
    /// Its priority.
    pub priority: i32,
}

/// The threads that run a device's work.
pub trait Pool: Send + Sync + 'static {
    /// The work that they run.
    type Work: Send + 'static;
    /// The failures that can occur.
    type Failure: Clone + Send + 'static;

    /// Ensures that the work is done eventually: hands it to other threads without waiting for them, or does it directly if that takes no
    /// longer. `finish` is dropped when the work is done, however it ended. Dropping it can call this function again, so nothing that this
    /// function needs may be locked at that time.
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
    /// Replies when everything before it is done.
    Join(mpsc::Sender<()>),
}

impl<Work> Task<Work> {
    /// Whether all work before the task must be done first.
    fn needs_all(&self) -> bool {
        matches!(self, Task::Barrier | Task::Join(_))
    }
}

/// A stream. Dropping it waits for everything submitted.
pub(crate) struct Stream<P: Pool> {
    queue: Arc<TaskQueue<P>>,
}

impl<P: Pool> Stream<P> {
    pub fn new(origin: Origin, pool: Arc<P>, progress: Arc<Progress<P::Failure>>) -> Stream<P> {
        let milestone = Milestone::new(&progress);
        let state = State { tasks: VecDeque::new(), outstanding: 0, pace: Pace::Standing, milestone };
        Stream { queue: Arc::new(TaskQueue { origin, pool, progress, state: Mutex::new(state) }) }
    }

    /// Appends a task. The thread that runs the next [`Stream::continuation`] starts it.
    pub fn push(&self, task: Task<P::Work>) {
        lock(&self.queue.state).tasks.push_back(task);
    }

    /// Starts the appended tasks, as far as nothing blocks them.
    pub fn continuation(&self) -> Continuation {
        self.queue.continuation(Pace::Standing)
    }

    /// A handle to wait until everything appended so far is done.
    pub fn join(&self) -> Join {
        let (sender, done) = mpsc::channel();
        self.push(Task::Join(sender));
        Join { continuation: self.continuation(), done }
    }
}

impl<P: Pool> Drop for Stream<P> {
    fn drop(&mut self) {
        self.join().wait();
    }
}

/// The completion of everything that was in a stream at some time.
pub(crate) struct Join {
    continuation: Continuation,
    done: mpsc::Receiver<()>,
}

impl Join {
    /// Waits for the completion.
    pub fn wait(self) {
        continuations::take(self.continuation);
        // The reply comes when everything is done.
        let _ = self.done.recv();
    }
}

/// The tasks of a stream, and their state.
struct TaskQueue<P: Pool> {
    origin: Origin,
    pool: Arc<P>,
    progress: Arc<Progress<P::Failure>>,
    state: Mutex<State<P>>,
}

struct State<P: Pool> {
    /// Tasks that have not been started.
    tasks: VecDeque<Task<P::Work>>,
    /// The number of pieces of work in the pool.
    outstanding: usize,
    pace: Pace,
    milestone: Arc<Milestone<P::Failure>>,
}

/// The thread that can start the next task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Any thread that checks.
    Standing,
    /// The thread that is handing work to the pool, which will check again.
    Going,
    /// The thread that finds that the event has fired.
    Waiting,
}

impl<P: Pool> TaskQueue<P> {
    fn continuation(self: &Arc<TaskQueue<P>>, pace: Pace) -> Continuation {
        let queue = self.clone();
        Box::new(move || queue.advance(pace))
    }

    /// Starts one task after another until one has to wait, if the stream is at this pace.
    fn advance(self: &Arc<TaskQueue<P>>, pace: Pace) {
        let mut state = lock(&self.state);
        if state.pace != pace {
            return;
        }
        state.pace = Pace::Standing;
        loop {
            if state.outstanding > 0 && state.tasks.front().is_some_and(Task::needs_all) {
                return;
            }
            let Some(task) = state.tasks.pop_front() else { return };
            match task {
                Task::Barrier => {}
                Task::Join(answer) => {
                    // The receiver may be gone.
                    let _ = answer.send(());
                }
                Task::Record { event, generation } => state.milestone = state.milestone.record(event, generation),
                Task::Wait { event, generation } => {
                    if self.progress.when_fired(event, generation, self.continuation(Pace::Waiting)) {
                        state.pace = Pace::Waiting;
                        return;
                    }
                }
                Task::Work(work) => {
                    state.outstanding += 1;
                    state.pace = Pace::Going;
                    let finish = Finish::new(&state.milestone, self.clone());
                    drop(state);
                    self.start(work, finish);
                    state = lock(&self.state);
                    state.pace = Pace::Standing;
                }
            }
        }
    }

    /// Hands work to the pool, unless the device has failed: a failure ends waits, and the work after them is skipped.
    fn start(&self, work: P::Work, finish: Finish<P::Failure>) {
        if self.progress.check().is_ok() {
            self.pool.start(self.origin, work, finish);
        }
    }
}

impl<P: Pool> Busy for TaskQueue<P> {
    fn done(self: Arc<Self>) {
        let mut state = lock(&self.state);
        state.outstanding -= 1;
        let goes_on = state.outstanding == 0 && state.pace == Pace::Standing && !state.tasks.is_empty();
        drop(state);
        if goes_on {
            continuations::take(self.continuation(Pace::Standing));
        }
    }
}
