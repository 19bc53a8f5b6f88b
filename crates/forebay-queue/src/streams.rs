//! All streams of a device: each list of commands is accepted whole or not at all, in one order for all streams.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{Command, StreamId};

use crate::continuations;
use crate::event::QueueError;
use crate::progress::Progress;
use crate::shim::lock;
use crate::shim::sync::{Arc, Mutex};
use crate::stream::{Join, Origin, Pool, Stream, Task};

/// All streams of a device. Dropping it waits for everything submitted.
pub struct Streams<P: Pool> {
    pool: Arc<P>,
    progress: Arc<Progress<P::Failure>>,
    streams: Mutex<BTreeMap<StreamId, Stream<P>>>,
}

impl<P: Pool> Streams<P> {
    /// No streams yet; their work goes to `pool`, and `progress` tracks it.
    pub fn new(pool: Arc<P>, progress: Arc<Progress<P::Failure>>) -> Streams<P> {
        Streams { pool, progress, streams: Mutex::new(BTreeMap::new()) }
    }

    /// Creates a stream.
    pub fn create(&self, origin: Origin) {
        let stream = Stream::new(origin, self.pool.clone(), self.progress.clone());
        lock(&self.streams).insert(origin.stream, stream);
    }

    /// Destroys a stream after all its commands are complete.
    pub fn destroy(&self, stream: StreamId) {
        let stream = lock(&self.streams).remove(&stream);
        // The lock is released first, so that other streams can continue: this one may be waiting for them.
        drop(stream);
    }

    /// Destroys all streams after all their commands are complete.
    pub fn destroy_all(&self) {
        lock(&self.streams).clear();
    }

    /// Appends commands to their streams, in list order. `works` holds the work of the commands that touch bytes, in the same order;
    /// mapping has already been done.
    ///
    /// # Errors
    /// [`QueueError`]; then nothing has been appended.
    ///
    /// # Panics
    /// If the numbers of pieces of work and of commands that are work differ.
    pub fn submit(&self, commands: &[Command], works: Vec<P::Work>) -> Result<(), QueueError> {
        let expected = commands.iter().filter(|command| command.is_work()).count();
        assert_eq!(expected, works.len(), "one piece of work for each command that is work");
        let streams = lock(&self.streams);
        if let Some(stream) = commands.iter().filter_map(Command::stream).find(|id| !streams.contains_key(id)) {
            return Err(QueueError::NoStream { stream });
        }
        // Under the same lock as what follows, so that the record of an admitted wait is already in its stream.
        self.progress.admit(commands)?;
        let (mut works, mut touched) = (works.into_iter(), BTreeSet::new());
        for command in commands {
            let task = match command {
                Command::Barrier { .. } => Some(Task::Barrier),
                &Command::Record { event, generation, .. } => Some(Task::Record { event, generation }),
                &Command::Wait { event, generation, .. } => Some(Task::Wait { event, generation }),
                command if command.is_work() => works.next().map(Task::Work),
                _ => None,
            };
            if let Some((stream, task)) = command.stream().zip(task) {
                streams[&stream].push(task);
                touched.insert(stream);
            }
        }
        let continuations: Vec<_> = touched.iter().map(|stream| streams[stream].continuation()).collect();
        // Other threads can submit while this thread continues the streams.
        drop(streams);
        continuations.into_iter().for_each(continuations::take);
        Ok(())
    }

    /// Waits until every command submitted to any stream is complete or has been skipped.
    pub fn join(&self) {
        let joins: Vec<_> = lock(&self.streams).values().map(Stream::join).collect();
        joins.into_iter().for_each(Join::wait);
    }

    /// Waits until every command submitted to the stream is complete.
    ///
    /// # Errors
    /// The first failure of the device.
    pub fn synchronize(&self, stream: StreamId) -> Result<(), P::Failure> {
        let join = lock(&self.streams).get(&stream).map(Stream::join);
        join.into_iter().for_each(Join::wait);
        self.progress.check()
    }
}
