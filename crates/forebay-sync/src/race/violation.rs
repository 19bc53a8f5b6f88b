//! What the checker finds.

use std::fmt;

use forebay_base::{Command, EventId, Region, StreamId};

use crate::error::SyncError;
use crate::physical::PhysicalBytes;

/// Why two commands must be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hazard {
    /// The second reads what the first writes.
    ReadAfterWrite,
    /// The second writes what the first reads.
    WriteAfterRead,
    /// Both write.
    WriteAfterWrite,
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hazard::ReadAfterWrite => "read after write",
            Hazard::WriteAfterRead => "write after read",
            Hazard::WriteAfterWrite => "write after write",
        })
    }
}

/// Who acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Actor {
    /// A command of this stream.
    Stream(StreamId),
    /// The host, which reads, writes or waits.
    Host,
    /// The host, which takes a mapping away: no one may be using the bytes then.
    Unmap,
}

/// Two accesses with a hazard that nothing orders.
///
/// The earlier one is always a command: what the host does is complete before anything that it does or submits next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// Index of the earlier command in the list.
    pub first: usize,
    /// Its step, from 0.
    pub first_step: usize,
    /// Its stream.
    pub first_stream: StreamId,
    /// Index of the later access in the list.
    pub second: usize,
    /// Its step, from 0.
    pub second_step: usize,
    /// Whose access it is.
    pub second_actor: Actor,
    /// Why they must be ordered.
    pub hazard: Hazard,
    /// The bytes that both touch, in ascending order.
    pub bytes: Vec<PhysicalBytes>,
}

/// The caller's names of list entries, by index.
type Names<'a> = &'a dyn Fn(usize) -> Option<String>;

/// A command in passing: by its name, else by its index.
fn short(index: usize, names: Names<'_>) -> String {
    names(index).map_or_else(|| format!("command {index}"), |name| format!("'{name}'"))
}

/// A command by its name, if it has one, and its index.
fn long(index: usize, names: Names<'_>) -> String {
    names(index).map_or_else(|| format!("command {index}"), |name| format!("'{name}' (command {index})"))
}

/// The stream or the host that does something at an index.
fn subject(actor: Actor, index: usize, names: Names<'_>) -> String {
    match actor {
        Actor::Stream(_) => long(index, names),
        Actor::Host | Actor::Unmap => format!("the host (entry {index})"),
    }
}

impl Race {
    /// The race in words, with the caller's names of commands: index in the list to name.
    pub fn describe(&self, names: &dyn Fn(usize) -> Option<String>) -> String {
        let Race { first, first_stream, second, second_actor, hazard, .. } = self;
        let command = |index: usize, stream: &StreamId| match names(index) {
            Some(name) => format!("'{name}' (command {index} of {stream})"),
            None => format!("command {index} of {stream}"),
        };
        let deed = match (second_actor, hazard) {
            (Actor::Unmap, _) => "unmapping",
            (_, Hazard::ReadAfterWrite) => "read",
            _ => "write",
        };
        let later = match second_actor {
            Actor::Stream(stream) => command(*second, stream),
            Actor::Host | Actor::Unmap => format!("the host's {deed} (entry {second})"),
        };
        let step = if self.first_step == self.second_step { "" } else { " in the next step" };
        let shared: Vec<String> = self.bytes.iter().take(3).map(PhysicalBytes::to_string).collect();
        let more = match self.bytes.len().saturating_sub(3) {
            0 => String::new(),
            more => format!(" and {more} more ranges"),
        };
        let missing = match second_actor {
            Actor::Stream(stream) if stream == first_stream => format!("a barrier in {stream} between them"),
            Actor::Stream(stream) => format!(
                "a record in {first_stream} after {}, and a wait for it in {stream} before {}",
                short(*first, names),
                short(*second, names)
            ),
            Actor::Host | Actor::Unmap => format!(
                "the host's wait for {first_stream}, or for a record in it after {}, before the host's {deed}",
                short(*first, names)
            ),
        };
        let earlier = command(*first, first_stream);
        format!("race, {hazard}: {earlier} and {later}{step} share {}{more}; missing: {missing}", shared.join(", "))
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(&|_| None))
    }
}

/// Something that a list of commands must not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two commands race.
    Race(Race),
    /// The prologue is wrong.
    Mapping(SyncError),
    /// A command of a trace maps what cannot be mapped.
    CannotMap {
        /// Index of the command.
        command: usize,
        /// Why not.
        error: SyncError,
    },
    /// A step maps or unmaps.
    MappingInStep {
        /// Index of the command.
        command: usize,
    },
    /// A command, or the host, uses bytes that are not mapped.
    Unmapped {
        /// Index in the list.
        command: usize,
        /// Who uses them.
        actor: Actor,
        /// The region.
        region: Region,
        /// First byte of its memory that is not mapped.
        offset_bytes: u64,
    },
    /// A wait has no record before it in the list.
    WaitWithoutRecord {
        /// Index of the wait.
        command: usize,
        /// Who waits.
        actor: Actor,
        /// The event.
        event: EventId,
        /// The generation that is waited for.
        generation: u64,
    },
    /// The generations of an event do not grow, or do not start at 1 in a list that runs again and again.
    Generation {
        /// Index of the record.
        command: usize,
        /// The event.
        event: EventId,
        /// The generation that it records.
        generation: u64,
        /// The generation recorded before; 0 for none.
        previous: u64,
    },
    /// Two records of an event may fire in the wrong order.
    UnorderedRecords {
        /// Index of the later record.
        command: usize,
        /// The event.
        event: EventId,
        /// The generation that it records.
        generation: u64,
    },
    /// The two regions of a copy differ in length.
    CopyLengths {
        /// Index of the copy.
        command: usize,
        /// Bytes read.
        from: Region,
        /// Bytes written.
        to: Region,
    },
    /// A command writes bytes that it also reads or writes through another binding, without the kernel's permission.
    OverlapsItself {
        /// Index of the command.
        command: usize,
        /// One region.
        one: Region,
        /// The other.
        other: Region,
    },
}

impl Violation {
    /// The violation in words, with the caller's names of commands (index in the list to name), for example the nodes that
    /// they come from. What has no name is named by its index; the host is always named as the host.
    pub fn describe(&self, names: &dyn Fn(usize) -> Option<String>) -> String {
        match self {
            Violation::Race(race) => race.describe(names),
            Violation::Mapping(error) => error.to_string(),
            Violation::CannotMap { command, error } => format!("{}: {error}", long(*command, names)),
            Violation::MappingInStep { command } => {
                let command = long(*command, names);
                format!("{command} maps or unmaps inside a step; mapping belongs in the prologue")
            }
            Violation::Unmapped { command, actor, region, offset_bytes } => {
                let user = subject(*actor, *command, names);
                format!("{user} uses {region}, but byte {offset_bytes} is not mapped")
            }
            Violation::WaitWithoutRecord { command, actor, event, generation } => {
                let waiter = subject(*actor, *command, names);
                format!("{waiter} waits for {event}.{generation}, which no earlier command of the list records")
            }
            Violation::Generation { command, event, generation, previous } => {
                let command = long(*command, names);
                format!(
                    "{command} records {event}.{generation} after generation {previous}; generations count from 1 and grow"
                )
            }
            Violation::UnorderedRecords { command, event, generation } => format!(
                "{} records {event}.{generation} without waiting for the record before, so they may fire in the wrong \
                 order; use an event per stream",
                long(*command, names)
            ),
            Violation::CopyLengths { command, from, to } => {
                let (command, read, written) = (long(*command, names), from.range.len(), to.range.len());
                format!("{command} copies {read} bytes of {from} to {written} bytes of {to}")
            }
            Violation::OverlapsItself { command, one, other } => {
                let command = long(*command, names);
                format!("{command} writes bytes that it uses twice: {one} and {other} overlap")
            }
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(&|_| None))
    }
}

impl std::error::Error for Violation {}

/// What a list without violations holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaceReport {
    /// Launches, copies and fills.
    pub work: usize,
    /// Barriers.
    pub barriers: usize,
    /// Waits.
    pub waits: usize,
    /// Records.
    pub records: usize,
    /// Pairs of accesses with a hazard, all ordered, in all steps.
    pub hazards: usize,
}

impl RaceReport {
    /// Counts commands; `hazards` is the checker's.
    pub(super) fn of<'a>(commands: impl Iterator<Item = &'a Command>, hazards: usize) -> RaceReport {
        let mut report = RaceReport { work: 0, barriers: 0, waits: 0, records: 0, hazards };
        for command in commands {
            match command {
                Command::Launch { .. } | Command::Copy { .. } | Command::Fill { .. } => report.work += 1,
                Command::Barrier { .. } => report.barriers += 1,
                Command::Wait { .. } => report.waits += 1,
                Command::Record { .. } => report.records += 1,
                Command::Map { .. } | Command::Unmap { .. } => {}
            }
        }
        report
    }

    /// Barriers and waits together.
    pub fn synchronisations(&self) -> usize {
        self.barriers + self.waits
    }
}
