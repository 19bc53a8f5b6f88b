//! Events as counters: each record of an event raises its counter to the record's generation.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use forebay_base::{Command, EventId, StreamId};

/// Why a list of commands is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// A command names a stream that does not exist.
    NoStream {
        /// The stream.
        stream: StreamId,
    },
    /// A command names an event that does not exist.
    NoEvent {
        /// The event.
        event: EventId,
    },
    /// A wait precedes its record, so it would never end.
    WaitBeforeRecord {
        /// The event.
        event: EventId,
        /// The generation that is waited for.
        generation: u64,
        /// The latest generation whose record precedes the wait.
        latest: u64,
    },
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueError::NoStream { stream } => write!(f, "stream {stream} does not exist"),
            QueueError::NoEvent { event } => write!(f, "event {event} does not exist"),
            QueueError::WaitBeforeRecord { event, generation, latest } => write!(
                f,
                "a wait for {event}.{generation} precedes its record (latest generation: {latest}); submit the record first"
            ),
        }
    }
}

impl std::error::Error for QueueError {}

#[derive(Clone, Copy, Default)]
struct Counter {
    /// The latest generation that a submitted record will fire.
    submitted: u64,
    /// The latest generation that has fired.
    fired: u64,
    /// The time at which it fired.
    fired_at: Duration,
    /// The latest generation whose record was skipped because of a failure: if it has not fired, it never will.
    skipped: u64,
}

/// The events of one device.
#[derive(Default)]
pub struct Events {
    counters: BTreeMap<EventId, Counter>,
}

impl Events {
    /// Adds an event; its generation is 0.
    pub fn add(&mut self, event: EventId) {
        self.counters.insert(event, Counter::default());
    }

    /// Forgets an event.
    pub fn remove(&mut self, event: EventId) {
        self.counters.remove(&event);
    }

    /// The latest generation that has fired; 0 before the first.
    pub fn fired(&self, event: EventId) -> u64 {
        self.counters.get(&event).map_or(0, |counter| counter.fired)
    }

    /// The time at which the generation fired; `None` unless it is the latest that has fired.
    pub fn time(&self, event: EventId, generation: u64) -> Option<Duration> {
        let counter = self.counters.get(&event)?;
        (generation > 0 && counter.fired == generation).then_some(counter.fired_at)
    }

    /// Fires a generation, and with it every earlier one. A destroyed event stays destroyed.
    pub fn fire(&mut self, event: EventId, generation: u64, now: Duration) {
        if let Some(counter) = self.counters.get_mut(&event).filter(|counter| counter.fired < generation) {
            (counter.fired, counter.fired_at) = (generation, now);
        }
    }

    /// Notes that no record submitted so far will fire a generation any more.
    pub fn skip_unfired(&mut self) {
        self.counters.values_mut().for_each(|counter| counter.skipped = counter.submitted);
    }

    /// Whether a generation has not fired and never will, because its record was skipped.
    pub fn is_skipped(&self, event: EventId, generation: u64) -> bool {
        self.counters.get(&event).is_some_and(|counter| counter.fired < generation && generation <= counter.skipped)
    }

    /// Registers the records in a list that is about to be submitted, all or none. A wait that its record does not precede would never end,
    /// so it is refused.
    ///
    /// # Errors
    /// [`QueueError::WaitBeforeRecord`] and [`QueueError::NoEvent`].
    pub fn admit(&mut self, commands: &[Command]) -> Result<(), QueueError> {
        let mut submitted = BTreeMap::new();
        for command in commands {
            let (Command::Record { event, generation, .. } | Command::Wait { event, generation, .. }) = command else {
                continue;
            };
            let Some(counter) = self.counters.get(event) else {
                return Err(QueueError::NoEvent { event: *event });
            };
            let latest: &mut u64 = submitted.entry(*event).or_insert(counter.submitted);
            if matches!(command, Command::Record { .. }) {
                *latest = (*latest).max(*generation);
            } else if *generation > *latest {
                let (event, generation, latest) = (*event, *generation, *latest);
                return Err(QueueError::WaitBeforeRecord { event, generation, latest });
            }
        }
        for (event, latest) in submitted {
            if let Some(counter) = self.counters.get_mut(&event) {
                counter.submitted = latest;
            }
        }
        for command in commands {
            let Command::Record { event, generation, .. } = command else { continue };
            if let Some(counter) = self.counters.get_mut(event) {
                // It was skipped and is submitted again.
                counter.skipped = counter.skipped.min(generation.saturating_sub(1));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(generation: u64) -> Command {
        Command::Record { stream: StreamId(0), event: EventId(1), generation }
    }

    fn wait(generation: u64) -> Command {
        Command::Wait { stream: StreamId(1), event: EventId(1), generation }
    }

    #[test]
    fn a_wait_stands_after_its_record() {
        let mut events = Events::default();
        assert!(events.admit(&[record(1)]).is_err(), "the event does not exist");
        events.add(EventId(1));
        assert!(events.admit(&[wait(1), record(1)]).is_err());
        assert!(events.admit(&[wait(1)]).is_err(), "a refused list leaves no records behind");
        assert!(events.admit(&[record(1), wait(1)]).is_ok());
        assert!(events.admit(&[wait(1), record(2), wait(2)]).is_ok());
        let refused = QueueError::WaitBeforeRecord { event: EventId(1), generation: 3, latest: 2 };
        assert_eq!(events.admit(&[wait(3)]), Err(refused));
    }

    #[test]
    fn what_was_skipped_never_fires_unless_it_is_submitted_again() {
        let mut events = Events::default();
        events.add(EventId(1));
        events.admit(&[record(1), record(2)]).unwrap();
        events.fire(EventId(1), 1, Duration::ZERO);
        events.skip_unfired();
        assert_eq!([1, 2, 3].map(|generation| events.is_skipped(EventId(1), generation)), [false, true, false]);
        events.admit(&[record(2)]).unwrap();
        assert!(!events.is_skipped(EventId(1), 2));
    }

    #[test]
    fn firing_never_goes_back() {
        let mut events = Events::default();
        events.add(EventId(1));
        let at = Duration::from_secs;
        assert_eq!(events.time(EventId(1), 0), None, "nothing fired");
        events.fire(EventId(1), 3, at(1));
        events.fire(EventId(1), 2, at(2));
        assert_eq!(events.fired(EventId(1)), 3);
        assert_eq!([2, 3, 4].map(|generation| events.time(EventId(1), generation)), [None, Some(at(1)), None]);
        events.remove(EventId(1));
        events.fire(EventId(1), 4, at(3));
        assert_eq!((events.fired(EventId(1)), events.time(EventId(1), 4)), (0, None));
    }
}
