//! Events that measure time: separate device events, pooled and bounded.

use std::collections::VecDeque;

use forebay_base::EventId;
use forebay_device::{Device, DeviceError};

/// A record of a timing event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    /// The device's event.
    pub event: EventId,
    /// The generation of the record.
    pub generation: u64,
}

/// The result of a request for a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A timer to record and, if it was used before, the record that was seen to have fired.
    Timer(Timer, Option<Timer>),
    /// All timers are recorded; this one was released first and will be free when it has fired.
    WaitFor(Timer),
    /// All timers are held by events of the user.
    None,
}

/// The timers of one context.
#[derive(Debug, Default)]
pub struct Timers {
    limit: usize,
    created: Vec<EventId>,
    /// Timers released by their events, oldest first.
    unused: VecDeque<Timer>,
}

impl Timers {
    /// Creates a pool without timers, which never has more than `limit`.
    pub fn new(limit: usize) -> Timers {
        Timers { limit, ..Timers::default() }
    }

    /// The maximum number of timers.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns a timer to record next.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn take(&mut self, device: &dyn Device) -> Result<Found, DeviceError> {
        let fired = |timer: &Timer| device.query_event(timer.event) >= timer.generation;
        if let Some(last) = self.unused.front().copied().filter(fired) {
            self.unused.pop_front();
            return Ok(Found::Timer(Timer { generation: last.generation + 1, ..last }, Some(last)));
        }
        if self.created.len() < self.limit {
            let event = device.create_event()?;
            self.created.push(event);
            return Ok(Found::Timer(Timer { event, generation: 1 }, None));
        }
        Ok(self.unused.front().map_or(Found::None, |&timer| Found::WaitFor(timer)))
    }

    /// Takes back a timer whose time no one will request.
    pub fn give_back(&mut self, timer: Timer) {
        self.unused.push_back(timer);
    }

    /// Destroys all timers, at the end of the context.
    pub fn clear(&mut self, device: &dyn Device) {
        self.created.drain(..).for_each(|event| device.destroy_event(event));
    }
}
