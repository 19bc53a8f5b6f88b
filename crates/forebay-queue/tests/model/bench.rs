//! Streams with a crew of threads that only check which work may start, and a naive model that determines this.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_base::{Command, EventId, MemoryId, Region, StreamId};
use forebay_queue::shim::sync::atomic::AtomicBool;
use forebay_queue::shim::sync::{Arc, Condvar, Mutex};
use forebay_queue::shim::thread::{self, JoinHandle};
use forebay_queue::{Finish, Origin, Pool, Progress, Streams};

/// Pieces of work, as bits.
pub type Set = u64;

/// The only event of small cases.
pub const EVENT: EventId = EventId(0);

/// A piece of work; `index` is its bit.
pub fn work(stream: u32, index: u64) -> Command {
    Command::Fill { stream: StreamId(stream), region: Region::new(MemoryId(0), index, 4), pattern: [0; 4] }
}

pub fn barrier(stream: u32) -> Command {
    Command::Barrier { stream: StreamId(stream) }
}

pub fn record(stream: u32, event: EventId, generation: u64) -> Command {
    Command::Record { stream: StreamId(stream), event, generation }
}

pub fn wait(stream: u32, event: EventId, generation: u64) -> Command {
    Command::Wait { stream: StreamId(stream), event, generation }
}

/// What must be done at which time, according to the contract.
#[derive(Default)]
pub struct Model {
    /// For each piece of work, what must be done when it starts.
    before_work: BTreeMap<u64, Set>,
    /// For each record, what must be done when it fires; in each stream's order.
    before_record: BTreeMap<(EventId, u64), Set>,
    /// The records of each stream, in order.
    records: BTreeMap<StreamId, Vec<(EventId, u64)>>,
    all: Set,
}

impl Model {
    fn new(commands: &[Command]) -> Model {
        let mut model = Model::default();
        // For each stream: all work so far, and the work that later commands need.
        let mut streams: BTreeMap<StreamId, (Set, Set)> = BTreeMap::new();
        for command in commands {
            let Some(stream) = command.stream() else { continue };
            let (seen, needed) = streams.entry(stream).or_default();
            match command {
                Command::Fill { region, .. } => {
                    model.before_work.insert(region.range.start, *needed);
                    *seen |= 1 << region.range.start;
                    model.all |= *seen;
                }
                Command::Barrier { .. } => *needed |= *seen,
                Command::Record { event, generation, .. } => {
                    model.before_record.insert((*event, *generation), *seen | *needed);
                    model.records.entry(stream).or_default().push((*event, *generation));
                }
                Command::Wait { event, generation, .. } => *needed |= model.before_record[&(*event, *generation)],
                _ => {}
            }
        }
        model
    }
}

/// The crew, which takes work in the order in which it arrives, except for work that is done by the thread that begins it.
pub struct Crew {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
    /// Work that has ended. The checker does not switch threads at this variable, which belongs to the check.
    done: AtomicU64,
    /// A variable at which the checker can switch threads.
    working: AtomicBool,
    model: Model,
    failing: Option<u64>,
    /// Work that needs no thread of the crew.
    at_once: Set,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<(u64, Finish<&'static str>)>,
    closed: bool,
}

impl Crew {
    /// One thread of the crew.
    fn run(&self) {
        loop {
            let mut jobs = self.jobs.lock().expect("no panic elsewhere");
            while jobs.waiting.is_empty() && !jobs.closed {
                jobs = self.arrived.wait(jobs).expect("no panic elsewhere");
            }
            let Some((index, finish)) = jobs.waiting.pop_front() else { return };
            drop(jobs);
            self.work(index, finish);
        }
    }

    fn work(&self, index: u64, finish: Finish<&'static str>) {
        let before = self.model.before_work[&index];
        self.require(before, &format!("work {index} starts"));
        let failed = self.failing.is_some_and(|failing| before & (1 << failing) != 0);
        assert!(!failed, "work {index} starts behind work that failed");
        // Work takes time: other threads can run between its start and its end.
        self.working.store(true, Ordering::SeqCst);
        self.done.fetch_or(1 << index, Ordering::SeqCst);
        if self.failing == Some(index) {
            finish.fail("on purpose");
        }
        drop(finish);
    }

    fn require(&self, set: Set, what: &str) {
        let missing = set & !self.done.load(Ordering::SeqCst);
        assert_eq!(missing, 0, "{what} before the work of these bits is done");
    }
}

impl Pool for Crew {
    type Work = u64;
    type Failure = &'static str;

    fn start(self: &Arc<Crew>, _: Origin, work: u64, finish: Finish<&'static str>) {
        if self.at_once & (1 << work) != 0 {
            return self.work(work, finish);
        }
        self.jobs.lock().expect("no panic elsewhere").waiting.push_back((work, finish));
        self.arrived.notify_one();
    }
}

/// Streams under test. Dropping them waits for all work, and checks that it was done.
pub struct Bench {
    streams: Option<Streams<Crew>>,
    pub progress: Arc<Progress<&'static str>>,
    crew: Arc<Crew>,
    threads: Vec<JoinHandle<()>>,
}

impl Bench {
    /// Creates streams numbered from 0 and a crew, for these commands only. `failing` is the work that fails.
    pub fn new(stream_count: u32, crew_count: usize, commands: &[Command], failing: Option<u64>) -> Bench {
        Bench::at_once(stream_count, crew_count, commands, failing, 0)
    }

    /// The same, except that work in `at_once` is done by the thread that begins it.
    pub fn at_once(
        stream_count: u32,
        crew_count: usize,
        commands: &[Command],
        failing: Option<u64>,
        at_once: Set,
    ) -> Bench {
        let model = Model::new(commands);
        let progress = Arc::new(Progress::new(Instant::now()));
        model.before_record.keys().for_each(|&(event, _)| {
            if progress.fired(event) == 0 {
                progress.add_event(event);
            }
        });
        let (jobs, arrived) = (Mutex::default(), Condvar::new());
        let (done, working) = (AtomicU64::new(0), AtomicBool::new(false));
        let crew = Arc::new(Crew { jobs, arrived, done, working, model, failing, at_once });
        let streams = Streams::new(crew.clone(), progress.clone());
        for stream in (0..stream_count).map(StreamId) {
            streams.create(Origin { stream, priority: 0 });
        }
        let threads = (0..crew_count).map(|_| crew.clone()).map(|crew| thread::spawn(move || crew.run())).collect();
        Bench { streams: Some(streams), progress, crew, threads }
    }

    pub fn streams(&self) -> &Streams<Crew> {
        self.streams.as_ref().expect("streams until the end")
    }

    pub fn submit(&self, commands: &[Command]) {
        let index = |command: &Command| match command {
            Command::Fill { region, .. } => Some(region.range.start),
            _ => None,
        };
        self.streams().submit(commands, commands.iter().filter_map(index).collect()).expect("a list that is right");
    }

    /// Drops the work that no thread has begun.
    pub fn give_up(&self) {
        let waiting = std::mem::take(&mut self.crew.jobs.lock().expect("no panic elsewhere").waiting);
        drop(waiting);
    }

    /// Waits until a stream has run dry, and checks that it has.
    pub fn synchronize(&self, stream: u32) -> Result<(), &'static str> {
        self.streams().synchronize(StreamId(stream))?;
        let records = self.crew.model.records.get(&StreamId(stream)).into_iter().flatten();
        for &(event, generation) in records {
            assert!(self.progress.fired(event) >= generation, "{event}.{generation} fires before its stream is dry");
        }
        Ok(())
    }

    /// Waits for a record, and checks that everything before it is done.
    pub fn wait_event(&self, event: EventId, generation: u64) -> Result<(), &'static str> {
        self.progress.wait(event, generation)?;
        assert!(self.progress.fired(event) >= generation, "a wait ends when the event has fired");
        self.crew.require(self.crew.model.before_record[&(event, generation)], "a wait ends");
        Ok(())
    }

    /// Looks once at every record, the latest of each stream first, and checks that those that have fired did so in order and not too
    /// early.
    pub fn observe(&self) {
        let model = &self.crew.model;
        for records in model.records.values() {
            let mut later_fired = false;
            for &(event, generation) in records.iter().rev() {
                let fired = self.progress.fired(event) >= generation;
                assert!(fired || !later_fired, "{event}.{generation} fires before those behind it");
                later_fired = fired;
                // After a failure, work is skipped, and the records after it fire nevertheless.
                if fired && self.progress.check().is_ok() {
                    self.crew.require(model.before_record[&(event, generation)], "an event fires");
                }
            }
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.streams = None;
        let model = &self.crew.model;
        if self.crew.failing.is_none() {
            self.crew.require(model.all, "streams are dropped");
        }
        for &(event, generation) in model.before_record.keys() {
            assert!(self.progress.fired(event) >= generation, "{event}.{generation} fired before streams are dropped");
        }
        self.crew.jobs.lock().expect("no panic elsewhere").closed = true;
        self.crew.arrived.notify_all();
        self.threads.drain(..).for_each(|thread| thread.join().expect("no panic elsewhere"));
    }
}
