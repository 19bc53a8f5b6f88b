//! Happens-before, followed through barriers, records, waits and the host's joins.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{Command, EventId, StreamId};

use super::violation::{Hazard, Race, Violation};
use crate::physical::PhysicalBytes;
use crate::StepBoundary;

/// A command in one of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    /// Counts the commands of all steps.
    pub time: usize,
    /// The stream's number.
    pub stream: usize,
}

/// Per stream, the time before which everything is complete.
type Clock = Vec<usize>;

/// An event as far as the list has been followed.
#[derive(Debug)]
struct Recorded {
    generation: u64,
    last: Moment,
    clocks: BTreeMap<u64, Clock>,
}

/// The clocks of all streams at one point of the list.
#[derive(Debug)]
pub(super) struct Order {
    streams: Vec<StreamId>,
    length: usize,
    step: usize,
    clocks: Vec<Clock>,
    events: BTreeMap<EventId, Recorded>,
}

impl Order {
    pub fn new(commands: &[Command]) -> Order {
        let streams: BTreeSet<StreamId> = commands.iter().filter_map(Command::stream).collect();
        let clocks = vec![vec![0; streams.len()]; streams.len()];
        let streams = streams.into_iter().collect();
        Order { streams, length: commands.len(), step: 0, clocks, events: BTreeMap::new() }
    }

    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    pub fn moment(&self, step: usize, index: usize, stream: StreamId) -> Moment {
        Moment { time: step * self.length + index, stream: self.streams.partition_point(|&other| other < stream) }
    }

    /// Whether `past` is complete before `now`, the command that was reached last, starts.
    pub fn is_before(&self, past: Moment, now: Moment) -> bool {
        self.clocks[now.stream][past.stream] > past.time
    }

    /// Follows the next command of the list. What is wrong with it as far as order goes.
    pub fn advance(&mut self, index: usize, command: &Command) -> Option<Violation> {
        let at = command.stream().map(|stream| self.moment(self.step, index, stream));
        match (command, at) {
            (Command::Barrier { .. }, Some(at)) => {
                self.clocks[at.stream][at.stream] = at.time;
                None
            }
            (&Command::Record { event, generation, .. }, Some(at)) => self.record(index, at, event, generation),
            (&Command::Wait { event, generation, .. }, Some(at)) => {
                let Some(clock) = self.events.get(&event).and_then(|recorded| recorded.clocks.get(&generation)) else {
                    return Some(Violation::WaitWithoutRecord { command: index, event, generation });
                };
                self.clocks[at.stream].iter_mut().zip(clock).for_each(|(mine, &theirs)| *mine = theirs.max(*mine));
                None
            }
            (Command::Map { .. } | Command::Unmap { .. }, _) => Some(Violation::MappingInStep { command: index }),
            _ => None,
        }
    }

    fn record(&mut self, index: usize, at: Moment, event: EventId, generation: u64) -> Option<Violation> {
        let mut clock = self.clocks[at.stream].clone();
        // Whoever waits for the record comes after the record itself, too.
        clock[at.stream] = at.time + 1;
        let Some(recorded) = self.events.get_mut(&event) else {
            self.events.insert(event, Recorded { generation, last: at, clocks: [(generation, clock)].into() });
            let first = generation == 1;
            return (!first).then_some(Violation::Generation { command: index, event, generation, previous: 0 });
        };
        let previous = recorded.generation;
        // Where generations are one growing number, a later one that fires first would release waits for the earlier.
        let ordered = recorded.last.stream == at.stream || clock[recorded.last.stream] > recorded.last.time;
        recorded.clocks.insert(generation, clock);
        (recorded.generation, recorded.last) = (generation.max(previous), at);
        if generation <= previous {
            return Some(Violation::Generation { command: index, event, generation, previous });
        }
        (!ordered).then_some(Violation::UnorderedRecords { command: index, event, generation })
    }

    /// Ends a step: generations begin anew, and the host may wait for everything.
    pub fn end_step(&mut self, boundary: StepBoundary) {
        self.step += 1;
        self.events.clear();
        if boundary == StepBoundary::HostJoin {
            self.clocks.iter_mut().for_each(|clock| clock.fill(self.step * self.length));
        }
    }

    pub fn race(&self, past: Moment, now: Moment, hazard: Hazard, bytes: Vec<PhysicalBytes>) -> Race {
        Race {
            first: past.time % self.length,
            first_step: past.time / self.length,
            first_stream: self.streams[past.stream],
            second: now.time % self.length,
            second_step: now.time / self.length,
            second_stream: self.streams[now.stream],
            hazard,
            bytes,
        }
    }
}
