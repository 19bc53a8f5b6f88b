//! The violations that the checker finds.

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

/// The origin of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Actor {
    /// A command of this stream.
    Stream(StreamId),
    /// The host, which is reading, writing or waiting.
    Host,
    /// The host, which removes a mapping: nothing may be using the bytes at that time.
    Unmap,
}

/// Two accesses with a hazard that is not ordered.
///
/// The earlier one is always a command, because the host's actions are complete before anything that it does or submits next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// Index of the earlier command in the list.
    pub first: usize,
    /// The step of the earlier command, from 0.
    pub first_step: usize,
    /// The stream of the earlier command.
    pub first_stream: StreamId,
    /// Index of the later access in the list.
    pub second: usize,
    /// The step of the later access, from 0.
    pub second_step: usize,
    /// The origin of the later access.
    pub second_actor: Actor,
    /// Why they must be ordered.
    pub hazard: Hazard,
    /// The bytes that both access, in ascending order.
    pub bytes: Vec<PhysicalBytes>,
}

/// The caller's names for list entries, by index.
type Names<'a> = &'a dyn Fn(usize) -> Option<String>;

/// A short reference to a command: its name, or its index if it has no name.
fn short(index: usize, names: Names<'_>) -> String {
    names(index).map_or_else(|| format!("command {index}"), |name| format!("'{name}'"))
}

/// A full reference to a command: its name, if it has one, and its index.
fn long(index: usize, names: Names<'_>) -> String {
    names(index).map_or_else(|| format!("command {index}"), |name| format!("'{name}' (command {index})"))
}

/// The command or the host that acts at an index.
fn subject(actor: Actor, index: usize, names: Names<'_>) -> String {
    match actor {
        Actor::Stream(_) => long(index, names),
        Actor::Host | Actor::Unmap => format!("the host (entry {index})"),
    }
}

impl Race {
    /// Describes the race, using the caller's names for commands, by index in the list.
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

/// A violation of the rules by a list of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two commands race.
    Race(Race),
    /// The prologue is invalid.
    Mapping(SyncError),
    /// A command of a trace maps something that cannot be mapped.
    CannotMap {
        /// Index of the command.
        command: usize,
        /// The reason.
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
        /// The user of the bytes.
        actor: Actor,
        /// The region.
        region: Region,
        /// The first byte of its memory that is not mapped.
        offset_bytes: u64,
    },
    /// A wait has no record before it in the list.
    WaitWithoutRecord {
        /// Index of the wait.
        command: usize,
        /// The stream or the host that waits.
        actor: Actor,
        /// The event.
        event: EventId,
        /// The generation that is waited for.
        generation: u64,
    },
    /// The generations of an event do not grow, or do not start at 1 in a list that runs repeatedly.
    Generation {
        /// Index of the record.
        command: usize,
        /// The event.
        event: EventId,
        /// The generation that it records.
        generation: u64,
        /// The generation recorded before; 0 if there was none.
        previous: u64,
    },
    /// Two records of an event might fire in the wrong order.
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
    /// A command writes bytes that it also reads or writes through another binding, and the kernel does not allow this.
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
    /// Describes the violation, using the caller's names for commands (by index in the list), such as the nodes that they come from. A
    /// command without a name is identified by its index; the host is always called the host.
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
                    "{command} records {event}.{generation} after generation {previous}; generations start at 1 and \
                     increase"
                )
            }
            Violation::UnorderedRecords { command, event, generation } => format!(
                "{} records {event}.{generation} without waiting for the previous record, so they may fire in the \
                 wrong order; use one event per stream",
                long(*command, names)
            ),
            Violation::CopyLengths { command, from, to } => {
                let (command, read, written) = (long(*command, names), from.range.len(), to.range.len());
                format!("{command} copies {read} bytes of {from} to {written} bytes of {to}")
            }
            Violation::OverlapsItself { command, one, other } => {
                let command = long(*command, names);
                format!("{command} writes bytes that it also uses through another binding: {one} and {other} overlap")
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

/// Counts for a list without violations.
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
    /// Pairs of accesses with a hazard, all of them ordered, in all steps.
    pub hazards: usize,
}

impl RaceReport {
    /// Counts commands; `hazards` comes from the checker.
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
    pub fn synchronizations(&self) -> usize {
        self.barriers + self.waits
    }
}
