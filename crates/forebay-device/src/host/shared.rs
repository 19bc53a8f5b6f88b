//! What all streams of a host device share: the pool of threads, events, the failure that sticks, the trace.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_base::{Command, EventId, StreamId};

use super::link::Link;
use crate::device::{DeviceError, TraceRecord};
use crate::event::Events;

/// What all streams of a device share.
pub(super) struct Shared {
    pub pool: rayon::ThreadPool,
    /// The ways to the device and from it, where they are slowed down.
    pub links: Option<[Link; 2]>,
    events: Mutex<Events>,
    /// Tells of events that fired, and of the failure.
    changed: Condvar,
    failure: Mutex<Option<DeviceError>>,
    trace: Mutex<Trace>,
    birth: Instant,
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
    pub fn new(pool: rayon::ThreadPool, links: Option<[Link; 2]>) -> Shared {
        Shared {
            pool,
            links,
            events: Mutex::default(),
            changed: Condvar::new(),
            failure: Mutex::default(),
            trace: Mutex::default(),
            birth: Instant::now(),
        }
    }

    /// # Errors
    /// The first failure of the device, from then on for ever.
    pub fn check(&self) -> Result<(), DeviceError> {
        lock(&self.failure).clone().map_or(Ok(()), Err)
    }

    /// Makes a failure stick, and wakes everybody who waits.
    pub fn fail(&self, error: DeviceError) {
        lock(&self.failure).get_or_insert(error);
        // Whoever found no failure holds this lock until it waits, so that it cannot miss the call.
        let _events = lock(&self.events);
        self.changed.notify_all();
    }

    pub fn add_event(&self, event: EventId) {
        lock(&self.events).add(event);
    }

    pub fn remove_event(&self, event: EventId) {
        lock(&self.events).remove(event);
    }

    /// As [`Events::admit`].
    pub fn admit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        lock(&self.events).admit(commands)
    }

    pub fn fired(&self, event: EventId) -> u64 {
        lock(&self.events).fired(event)
    }

    pub fn fire(&self, event: EventId, generation: u64) {
        lock(&self.events).fire(event, generation);
        self.changed.notify_all();
    }

    pub fn wait(&self, event: EventId, generation: u64) -> Result<(), DeviceError> {
        let mut events = lock(&self.events);
        while events.fired(event) < generation {
            self.check()?;
            events = self.changed.wait(events).unwrap_or_else(PoisonError::into_inner);
        }
        drop(events);
        self.check()
    }

    pub fn set_trace(&self, enabled: bool) {
        lock(&self.trace).enabled = enabled;
    }

    pub fn take_trace(&self) -> Vec<TraceRecord> {
        std::mem::take(&mut lock(&self.trace).records)
    }

    /// Records a command that began at `start` and has just ended.
    pub fn trace(&self, stream: StreamId, label: Option<u32>, name: &'static str, bytes: u64, start: Instant) {
        let mut trace = lock(&self.trace);
        if trace.enabled {
            let (start, end) = (start - self.birth, self.birth.elapsed());
            trace.records.push(TraceRecord { stream, label, name, bytes, start, end });
        }
    }
}
