//! What the checker finds.

use std::fmt;

use forebay_base::{EventId, Region, StreamId};

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

/// Two commands with a hazard that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// Index of the earlier command in the list.
    pub first: usize,
    /// Its step, from 0.
    pub first_step: usize,
    /// Its stream.
    pub first_stream: StreamId,
    /// Index of the later command in the list.
    pub second: usize,
    /// Its step, from 0.
    pub second_step: usize,
    /// Its stream.
    pub second_stream: StreamId,
    /// Why they must be ordered.
    pub hazard: Hazard,
    /// The bytes that both touch, in ascending order.
    pub bytes: Vec<PhysicalBytes>,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Race { first, first_stream, second, second_stream, .. } = self;
        write!(f, "race, {}: command {first} of {first_stream}", self.hazard)?;
        write!(f, " and command {second} of {second_stream}")?;
        if self.first_step != self.second_step {
            write!(f, " in the next step")?;
        }
        write!(f, " share ")?;
        for (index, bytes) in self.bytes.iter().take(3).enumerate() {
            write!(f, "{}{bytes}", if index == 0 { "" } else { ", " })?;
        }
        if self.bytes.len() > 3 {
            write!(f, " and {} more ranges", self.bytes.len() - 3)?;
        }
        if first_stream == second_stream {
            write!(f, "; missing: a barrier in {first_stream} between them")
        } else {
            write!(
                f,
                "; missing: a record in {first_stream} after command {first}, and a wait for it in {second_stream} before \
                 command {second}"
            )
        }
    }
}

/// Something that a list of commands must not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two commands race.
    Race(Race),
    /// The prologue is wrong.
    Mapping(SyncError),
    /// A step maps or unmaps.
    MappingInStep {
        /// Index of the command.
        command: usize,
    },
    /// A command uses bytes that are not mapped.
    Unmapped {
        /// Index of the command.
        command: usize,
        /// The region.
        region: Region,
        /// First byte of its memory that is not mapped.
        offset_bytes: u64,
    },
    /// A wait has no record before it in the list.
    WaitWithoutRecord {
        /// Index of the wait.
        command: usize,
        /// The event.
        event: EventId,
        /// The generation that is waited for.
        generation: u64,
    },
    /// The generations of an event do not start at 1 or do not grow.
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

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Race(race) => write!(f, "{race}"),
            Violation::Mapping(error) => write!(f, "{error}"),
            Violation::MappingInStep { command } => {
                write!(f, "command {command} maps or unmaps inside a step; mapping belongs in the prologue")
            }
            Violation::Unmapped { command, region, offset_bytes } => {
                write!(f, "command {command} uses {region}, but byte {offset_bytes} is not mapped")
            }
            Violation::WaitWithoutRecord { command, event, generation } => write!(
                f,
                "command {command} waits for {event}.{generation}, which no earlier command of the list records"
            ),
            Violation::Generation { command, event, generation, previous } => write!(
                f,
                "command {command} records {event}.{generation} after generation {previous}; generations count from 1 and \
                 grow"
            ),
            Violation::UnorderedRecords { command, event, generation } => write!(
                f,
                "command {command} records {event}.{generation} without waiting for the record before, so they may fire \
                 in the wrong order; use an event per stream"
            ),
            Violation::CopyLengths { command, from, to } => write!(
                f,
                "command {command} copies {} bytes of {from} to {} bytes of {to}",
                from.range.len(),
                to.range.len()
            ),
            Violation::OverlapsItself { command, one, other } => {
                write!(f, "command {command} writes bytes that it uses twice: {one} and {other} overlap")
            }
        }
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
    /// Pairs of commands with a hazard, all ordered, in all steps.
    pub hazards: usize,
}

impl RaceReport {
    /// Barriers and waits together.
    pub fn synchronisations(&self) -> usize {
        self.barriers + self.waits
    }
}
