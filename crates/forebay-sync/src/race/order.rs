//! Happens-before, derived from barriers, records, waits and what the host knows.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{Command, EventId, StreamId};

use super::violation::{Actor, Violation};

/// The moment of an access: its time in the list, and its timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    /// The index of the entry, counted across all steps.
    pub time: usize,
    /// The stream's number; the host comes after all streams.
    pub timeline: usize,
}

/// For each timeline, the time before which everything is complete.
type Clock = Vec<usize>;

fn join(clock: &mut [usize], other: &[usize]) {
    clock.iter_mut().zip(other).for_each(|(mine, &theirs)| *mine = theirs.max(*mine));
}

/// The state of an event at one point of the list.
#[derive(Debug)]
struct Recorded {
    generation: u64,
    last: Moment,
    clocks: BTreeMap<u64, Clock>,
}

/// The clocks of all timelines at one point of the list.
#[derive(Debug)]
pub(super) struct Order {
    streams: Vec<StreamId>,
    /// Whether the first record of each event must have generation 1.
    counts_from_one: bool,
    /// The time of the list's first entry.
    start: usize,
    /// For each stream, what is complete when its next command starts.
    clocks: Vec<Clock>,
    /// What the host knows to be complete.
    host: Clock,
    events: BTreeMap<EventId, Recorded>,
}

impl Order {
    pub fn new<'a>(commands: impl Iterator<Item = &'a Command>, counts_from_one: bool) -> Order {
        let streams: BTreeSet<StreamId> = commands.filter_map(Command::stream).collect();
        let host = vec![0; streams.len() + 1];
        let clocks = vec![host.clone(); streams.len()];
        let streams = streams.into_iter().collect();
        Order { streams, counts_from_one, start: 0, clocks, host, events: BTreeMap::new() }
    }

    /// The moment of the entry with this index, in the stream, or on the host if there is no stream.
    pub fn moment(&self, index: usize, stream: Option<StreamId>) -> Moment {
        let host = self.streams.len();
        let timeline = stream.map_or(host, |stream| self.streams.partition_point(|&other| other < stream));
        Moment { time: self.start + index, timeline }
    }

    /// The stream of a moment; `None` for the host.
    pub fn stream(&self, moment: Moment) -> Option<StreamId> {
        self.streams.get(moment.timeline).copied()
    }

    /// Whether `past` is complete before `now`, the latest entry, starts.
    pub fn is_before(&self, past: Moment, now: Moment) -> bool {
        self.clocks.get(now.timeline).unwrap_or(&self.host)[past.timeline] > past.time
    }

    /// Advances the host to the entry with this index: everything that it did before is complete.
    pub fn advance(&mut self, index: usize) {
        let at = self.moment(index, None);
        self.host[at.timeline] = at.time;
    }

    /// Processes the next command, which comes after everything that the host knows, and returns its violation of the order, if any.
    pub fn submit(&mut self, index: usize, command: &Command) -> Option<Violation> {
        let at = self.moment(index, Some(command.stream()?));
        let clock = &mut self.clocks[at.timeline];
        join(clock, &self.host);
        match *command {
            Command::Barrier { .. } => {
                clock[at.timeline] = at.time;
                None
            }
            Command::Record { event, generation, .. } => self.record(index, at, event, generation),
            Command::Wait { event, generation, stream } => match recorded(&self.events, event, generation) {
                Some(fired) => {
                    join(clock, fired);
                    None
                }
                None => Some(Violation::WaitWithoutRecord {
                    command: index,
                    actor: Actor::Stream(stream),
                    event,
                    generation,
                }),
            },
            _ => None,
        }
    }

    /// Processes the host's wait for an event.
    pub fn host_waits(&mut self, index: usize, event: EventId, generation: u64) -> Option<Violation> {
        let Some(fired) = recorded(&self.events, event, generation) else {
            return Some(Violation::WaitWithoutRecord { command: index, actor: Actor::Host, event, generation });
        };
        join(&mut self.host, fired);
        None
    }

    /// Processes the host's wait for everything submitted to a stream.
    pub fn host_synchronizes(&mut self, index: usize, stream: StreamId) {
        let time = self.start + index;
        // A stream without commands has nothing to wait for.
        if let Ok(timeline) = self.streams.binary_search(&stream) {
            join(&mut self.host, &self.clocks[timeline]);
            self.host[timeline] = time;
        }
    }

    fn record(&mut self, index: usize, at: Moment, event: EventId, generation: u64) -> Option<Violation> {
        let mut clock = self.clocks[at.timeline].clone();
        // A wait for the record also comes after the record itself.
        clock[at.timeline] = at.time + 1;
        let Some(recorded) = self.events.get_mut(&event) else {
            self.events.insert(event, Recorded { generation, last: at, clocks: [(generation, clock)].into() });
            let wrong = generation == 0 || self.counts_from_one && generation != 1;
            return wrong.then_some(Violation::Generation { command: index, event, generation, previous: 0 });
        };
        let previous = recorded.generation;
        // With generations as one growing number, a later one that fires first would release waits for the earlier.
        let ordered = recorded.last.timeline == at.timeline || clock[recorded.last.timeline] > recorded.last.time;
        recorded.clocks.insert(generation, clock);
        (recorded.generation, recorded.last) = (generation.max(previous), at);
        if generation <= previous {
            return Some(Violation::Generation { command: index, event, generation, previous });
        }
        (!ordered).then_some(Violation::UnorderedRecords { command: index, event, generation })
    }

    /// Ends a step of `length` commands; generations start again.
    pub fn end_step(&mut self, length: usize) {
        self.start += length;
        self.events.clear();
    }

    /// Processes the host's wait for every stream.
    pub fn join_all(&mut self) {
        self.host.fill(self.start);
    }
}

/// The clock once a generation of an event has fired.
fn recorded(events: &BTreeMap<EventId, Recorded>, event: EventId, generation: u64) -> Option<&Clock> {
    events.get(&event)?.clocks.get(&generation)
}
