//! The order that a program's synchronizations establish, according to the documentation of eager streams: the generator's own model. It
//! knows streams as the program sees them, and nothing of how the runtime keeps order or memory.

use std::collections::BTreeMap;

use crate::program::{EventName, Step, StreamName, Synchronization};
use crate::reference::Reference;

/// Work of a stream: the stream, and the amount of its work up to and including this.
pub type Access = (StreamName, u64);

/// For each stream, how much of its work is complete.
type Clock = BTreeMap<StreamName, u64>;

#[derive(Clone, Debug, Default)]
struct Timeline {
    issued: u64,
    clock: Clock,
}

/// The last uses of a storage.
#[derive(Clone, Debug, Default)]
struct Uses {
    write: Option<Access>,
    /// Each stream's last read since then.
    reads: Clock,
}

/// The known order of work.
#[derive(Clone, Debug, Default)]
pub struct Order {
    streams: BTreeMap<StreamName, Timeline>,
    host: Clock,
    events: BTreeMap<EventName, Clock>,
    storages: BTreeMap<usize, Uses>,
}

fn join(clock: &mut Clock, other: &Clock) {
    for (&stream, &position) in other {
        let mine = clock.entry(stream).or_default();
        *mine = position.max(*mine);
    }
}

fn at(clock: &Clock, stream: StreamName) -> u64 {
    clock.get(&stream).copied().unwrap_or(0)
}

impl Order {
    /// Returns an access that must precede work on a stream that reads and writes these storages, but is not yet ordered before it.
    pub fn missing(&self, stream: StreamName, reads: &[usize], writes: &[usize]) -> Option<Access> {
        let mut needs: Vec<Access> = Vec::new();
        for storage in reads.iter().chain(writes) {
            needs.extend(self.storages.get(storage).and_then(|uses| uses.write));
        }
        for storage in writes {
            needs.extend(self.storages.get(storage).into_iter().flat_map(|uses| &uses.reads).map(|(&s, &p)| (s, p)));
        }
        needs.into_iter().find(|&(other, position)| !self.comes_after(stream, (other, position)))
    }

    /// Returns whether the next work of a stream comes after an access.
    fn comes_after(&self, stream: StreamName, (other, position): Access) -> bool {
        let own = self.streams.get(&stream).map_or(0, |timeline| at(&timeline.clock, other));
        stream == other || own.max(at(&self.host, other)) >= position
    }

    /// Returns the events whose firing implies that an access is complete.
    pub fn events_behind(&self, (stream, position): Access) -> Vec<EventName> {
        self.events.iter().filter(|(_, clock)| at(clock, stream) >= position).map(|(&event, _)| event).collect()
    }

    /// Returns everything that is complete when a stream's submitted work is.
    fn present(&self, stream: StreamName) -> Clock {
        let Some(timeline) = self.streams.get(&stream) else { return Clock::new() };
        let mut clock = timeline.clock.clone();
        // Later work comes after everything the host knew, and so does its completion.
        join(&mut clock, &self.host);
        clock.insert(stream, timeline.issued);
        clock
    }

    /// Follows a step; `tensors` is the state before it.
    pub fn apply(&mut self, step: &Step, tensors: &Reference) {
        match step {
            Step::Compute { stream, inputs, .. } => {
                let reads: Vec<usize> = inputs.iter().map(|&input| tensors.storage(input)).collect();
                self.work(*stream, &reads, Some(tensors.storage_count()));
            }
            Step::CopyFrom { stream, to, from } => {
                self.work(*stream, &[tensors.storage(*from)], Some(tensors.storage(*to)));
            }
            Step::ToHost { stream, tensor } => {
                self.work(*stream, &[tensors.storage(*tensor)], None);
                self.host_waits(*stream);
            }
            Step::Record { event, stream, .. } => {
                self.events.insert(*event, self.present(*stream));
            }
            Step::Synchronize(synchronization) => self.synchronize(*synchronization),
            _ => {}
        }
    }

    fn synchronize(&mut self, synchronization: Synchronization) {
        match synchronization {
            Synchronization::WaitStream { stream, on } => {
                let clock = self.present(on);
                join(&mut self.streams.entry(stream).or_default().clock, &clock);
            }
            Synchronization::WaitEvent { stream, event } => {
                let clock = &self.events[&event];
                join(&mut self.streams.entry(stream).or_default().clock, clock);
            }
            Synchronization::Stream(stream) => self.host_waits(stream),
            Synchronization::Event(event) => join(&mut self.host, &self.events[&event]),
            Synchronization::All => {
                let streams: Vec<StreamName> = self.streams.keys().copied().collect();
                streams.into_iter().for_each(|stream| self.host_waits(stream));
            }
        }
    }

    fn host_waits(&mut self, stream: StreamName) {
        let present = self.present(stream);
        join(&mut self.host, &present);
    }

    fn work(&mut self, stream: StreamName, reads: &[usize], write: Option<usize>) {
        let timeline = self.streams.entry(stream).or_default();
        timeline.issued += 1;
        let position = timeline.issued;
        for &storage in reads {
            self.storages.entry(storage).or_default().reads.insert(stream, position);
        }
        if let Some(storage) = write {
            self.storages.insert(storage, Uses { write: Some((stream, position)), reads: Clock::new() });
        }
    }
}
