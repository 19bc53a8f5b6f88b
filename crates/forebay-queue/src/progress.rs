//! The progress of a device: which events have fired, the failure that sticks, and the continuations that wait for either.

use std::time::{Duration, Instant};

use forebay_base::{Command, EventId};

use crate::continuations::{self, Continuation};
use crate::event::{Events, QueueError};
use crate::shim::sync::{Condvar, Mutex};
use crate::shim::{lock, wait};

/// The progress of a device, for all of its streams and for the host.
pub struct Progress<Failure> {
    state: Mutex<State<Failure>>,
    /// Notified when an event fires, and on failure.
    changed: Condvar,
    birth: Instant,
}

struct State<Failure> {
    events: Events,
    failure: Option<Failure>,
    /// The last failure that was forgotten.
    forgiven: Option<Failure>,
    /// The continuations to run when a generation has fired or the device has failed.
    waiting: Vec<((EventId, u64), Continuation)>,
}

impl<Failure> Progress<Failure> {
    /// Progress with nothing done; the clock of the events started at `birth`.
    pub fn new(birth: Instant) -> Progress<Failure> {
        let state = State { events: Events::default(), failure: None, forgiven: None, waiting: Vec::new() };
        Progress { state: Mutex::new(state), changed: Condvar::new(), birth }
    }

    /// Like [`Events::add`].
    pub fn add_event(&self, event: EventId) {
        lock(&self.state).events.add(event);
    }

    /// Like [`Events::remove`].
    pub fn remove_event(&self, event: EventId) {
        lock(&self.state).events.remove(event);
    }

    /// Like [`Events::fired`].
    pub fn fired(&self, event: EventId) -> u64 {
        lock(&self.state).events.fired(event)
    }

    /// Like [`Events::time`].
    pub fn event_time(&self, event: EventId, generation: u64) -> Option<Duration> {
        lock(&self.state).events.time(event, generation)
    }

    /// Like [`Events::admit`].
    pub(crate) fn admit(&self, commands: &[Command]) -> Result<(), QueueError> {
        lock(&self.state).events.admit(commands)
    }

    /// Fires a generation, and wakes everything that waits for it.
    pub(crate) fn fire(&self, event: EventId, generation: u64) {
        let mut state = lock(&self.state);
        // The clock is read under the lock, so that events that fire later have later times.
        state.events.fire(event, generation, self.birth.elapsed());
        let is_over = |&(waited, least): &(EventId, u64)| waited == event && least <= generation;
        let (over, waiting) = std::mem::take(&mut state.waiting).into_iter().partition(|(until, _)| is_over(until));
        state.waiting = waiting;
        drop(state);
        self.let_go(over);
    }

    /// Makes the first failure stick, and wakes everything that waits.
    pub fn fail(&self, failure: Failure) {
        let mut state = lock(&self.state);
        state.failure.get_or_insert(failure);
        let over = std::mem::take(&mut state.waiting);
        drop(state);
        self.let_go(over);
    }

    fn let_go(&self, over: Vec<((EventId, u64), Continuation)>) {
        self.changed.notify_all();
        over.into_iter().for_each(|(_, continuation)| continuations::take(continuation));
    }

    /// Registers a continuation to run once a generation has fired or the device has failed. If that is already so, or if the generation
    /// never fires because its record was skipped, drops the continuation and returns `false`.
    pub(crate) fn when_fired(&self, event: EventId, generation: u64, continuation: Continuation) -> bool {
        let mut state = lock(&self.state);
        let is_over = state.events.fired(event) >= generation || state.events.is_skipped(event, generation);
        let waits = state.failure.is_none() && !is_over;
        if waits {
            state.waiting.push(((event, generation), continuation));
        }
        waits
    }
}

impl<Failure> Progress<Failure> {
    /// Forgets the failure if it is `forgivable`. Nothing may be running. Work that the failure kept from running stays skipped, and waiting
    /// for it reports the failure.
    pub fn forgive(&self, forgivable: impl FnOnce(&Failure) -> bool) {
        let mut state = lock(&self.state);
        if state.failure.as_ref().is_some_and(forgivable) {
            state.forgiven = state.failure.take();
            state.events.skip_unfired();
        }
    }
}

impl<Failure: Clone> Progress<Failure> {
    /// # Errors
    /// The first failure of the device, on every call from then on.
    pub fn check(&self) -> Result<(), Failure> {
        lock(&self.state).failure.clone().map_or(Ok(()), Err)
    }

    /// Waits until a generation of the event has fired.
    ///
    /// # Errors
    /// The first failure of the device, even if the event had fired before it; a failure that was forgotten if it kept the event from firing.
    pub fn wait(&self, event: EventId, generation: u64) -> Result<(), Failure> {
        let mut state = lock(&self.state);
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.events.fired(event) >= generation {
                return Ok(());
            }
            if let Some(failure) = state.forgiven.as_ref().filter(|_| state.events.is_skipped(event, generation)) {
                return Err(failure.clone());
            }
            state = wait(&self.changed, state);
        }
    }
}
