//! Events that measure time: device events of their own, pooled and bounded.

use std::collections::VecDeque;

use forebay_base::EventId;
use forebay_device::{Device, DeviceError};

/// A record of a timing event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    /// The device's event.
    pub event: EventId,
    /// Which of its records.
    pub generation: u64,
}

/// What a request for a timer gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A timer to record. With it, where it was used before, the record that was seen fired.
    Timer(Timer, Option<Timer>),
    /// All are recorded; this one was let go of first and will be free when it has fired.
    WaitFor(Timer),
    /// All are held by events of the user.
    None,
}

/// The timers of one context.
#[derive(Debug, Default)]
pub struct Timers {
    limit: usize,
    created: Vec<EventId>,
    /// Timers that their event let go of, oldest first.
    unused: VecDeque<Timer>,
}

impl Timers {
    /// No timers yet, and never more than `limit`.
    pub fn new(limit: usize) -> Timers {
        Timers { limit, ..Timers::default() }
    }

    /// The most timers that there may be.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// A timer to record next.
    ///
    /// # Errors
    /// What the device reports.
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

    /// Takes back a timer that no one will ask for its time.
    pub fn give_back(&mut self, timer: Timer) {
        self.unused.push_back(timer);
    }

    /// Destroys all timers: the end of the context.
    pub fn clear(&mut self, device: &dyn Device) {
        self.created.drain(..).for_each(|event| device.destroy_event(event));
    }
}
