//! How far a device has come: which events have fired, and the failure that sticks; and those who wait for either.

use std::time::{Duration, Instant};

use forebay_base::{Command, EventId};

use crate::continuations::{self, Continuation};
use crate::event::{Events, QueueError};
use crate::shim::sync::{Condvar, Mutex};
use crate::shim::{lock, wait};

/// How far a device has come, for all of its streams and for the host.
pub struct Progress<Failure> {
    state: Mutex<State<Failure>>,
    /// Tells of events that fired, and of the failure.
    changed: Condvar,
    birth: Instant,
}

struct State<Failure> {
    events: Events,
    failure: Option<Failure>,
    /// Who goes on when a generation has fired, or the device has failed.
    waiting: Vec<((EventId, u64), Continuation)>,
}

impl<Failure> Progress<Failure> {
    /// Nothing has happened; the clock of events started at `birth`.
    pub fn new(birth: Instant) -> Progress<Failure> {
        let state = State { events: Events::default(), failure: None, waiting: Vec::new() };
        Progress { state: Mutex::new(state), changed: Condvar::new(), birth }
    }

    /// As [`Events::add`].
    pub fn add_event(&self, event: EventId) {
        lock(&self.state).events.add(event);
    }

    /// As [`Events::remove`].
    pub fn remove_event(&self, event: EventId) {
        lock(&self.state).events.remove(event);
    }

    /// As [`Events::fired`].
    pub fn fired(&self, event: EventId) -> u64 {
        lock(&self.state).events.fired(event)
    }

    /// As [`Events::time`].
    pub fn event_time(&self, event: EventId, generation: u64) -> Option<Duration> {
        lock(&self.state).events.time(event, generation)
    }

    /// As [`Events::admit`].
    pub(crate) fn admit(&self, commands: &[Command]) -> Result<(), QueueError> {
        lock(&self.state).events.admit(commands)
    }

    /// Fires a generation, and wakes those who wait for it.
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

    /// Makes the first failure stick, and wakes everybody who waits.
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

    /// Has somebody take a turn once a generation has fired, or the device has failed. Says false, and forgets the turn,
    /// where that is so already.
    pub(crate) fn when_fired(&self, event: EventId, generation: u64, continuation: Continuation) -> bool {
        let mut state = lock(&self.state);
        let waits = state.failure.is_none() && state.events.fired(event) < generation;
        if waits {
            state.waiting.push(((event, generation), continuation));
        }
        waits
    }
}

impl<Failure> Progress<Failure> {
    /// Forgets the failure if it is `forgivable`. Work that it kept from running does not run any more.
    pub fn forgive(&self, forgivable: impl FnOnce(&Failure) -> bool) {
        let mut state = lock(&self.state);
        state.failure = state.failure.take().filter(|failure| !forgivable(failure));
    }
}

impl<Failure: Clone> Progress<Failure> {
    /// # Errors
    /// The first failure of the device, from then on for ever.
    pub fn check(&self) -> Result<(), Failure> {
        lock(&self.state).failure.clone().map_or(Ok(()), Err)
    }

    /// Waits until a generation of the event has fired.
    ///
    /// # Errors
    /// The first failure of the device, also where the event had fired before it.
    pub fn wait(&self, event: EventId, generation: u64) -> Result<(), Failure> {
        let mut state = lock(&self.state);
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.events.fired(event) >= generation {
                return Ok(());
            }
            state = wait(&self.changed, state);
        }
    }
}
