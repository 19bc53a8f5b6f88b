//! Commands: the narrow waist. The planner emits a list of them ahead of time, the eager runtime one at a time. The same checker checks
//! both, and the same devices run both.
//!
//! The rules:
//! - A stream may run its commands concurrently and in any order, except that a command starts only after all commands before the stream's
//!   latest [`Command::Barrier`] are complete and every event that the stream has waited for earlier has fired.
//! - [`Command::Record`] fires when every command before it in its stream is complete. A [`Command::Wait`] names an event and a generation,
//!   and comes after the matching record in the list.
//! - Streams are otherwise unordered.
//! - A [`Command::Launch`] runs where its operands are: on the device if they are in device memory, on the host if they are in host blocks.
//!   All operands, including the workspace, are on the same side.
//! - [`Command::Map`] and [`Command::Unmap`] happen on the host's timeline, while nothing uses the tiles.

use std::fmt;

use crate::kernel::Kernel;
use crate::kernel::facts::OperandRef;
use crate::region::{HeapId, MemoryId, Region};
use crate::tensor::TensorDesc;

/// An ordered queue of commands on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// Something that a stream records and others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u32);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// A tensor bound to bytes: `region` is at least `desc.total_size_bytes` long and starts at the base of the tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The bytes.
    pub region: Region,
    /// The layout of the tensor in these bytes.
    pub desc: TensorDesc,
}

/// One kernel with its bindings. It reads and writes nothing else. The whole region of an output counts as written.
///
/// A read and a write may name the same region if the kernel can update it in place ([`Kernel::in_place`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// What to run.
    pub kernel: Kernel,
    /// Inputs in the kernel's order.
    pub reads: Vec<Binding>,
    /// Outputs in the kernel's order.
    pub writes: Vec<Binding>,
    /// Temporary bytes, at an offset that is a multiple of 256. They are written before they are read.
    pub workspace: Option<Region>,
    /// The launch of the program that this is; names and nodes are looked up with it.
    pub label: u32,
}

impl Launch {
    /// The descriptor of an operand.
    pub fn desc(&self, operand: OperandRef) -> Option<&TensorDesc> {
        let binding = match operand {
            OperandRef::Read(index) => self.reads.get(index),
            OperandRef::Write(index) => self.writes.get(index),
        };
        binding.map(|binding| &binding.desc)
    }

    /// The read operand that holds indices and the number of entries that they select from; `None` for kernels without indices.
    pub fn index_limit(&self) -> Option<(usize, u64)> {
        self.kernel.index_limit(|operand| self.desc(operand))
    }
}

/// One command.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Runs a kernel.
    Launch {
        /// The stream.
        stream: StreamId,
        /// The kernel and its bindings.
        launch: Box<Launch>,
    },
    /// Copies bytes between memories of any spaces. The two regions have the same length and do not overlap.
    Copy {
        /// The stream.
        stream: StreamId,
        /// Bytes read.
        from: Region,
        /// Bytes written.
        to: Region,
    },
    /// Fills bytes with a repeated pattern of four bytes. The region's length is a multiple of 4.
    Fill {
        /// The stream.
        stream: StreamId,
        /// Bytes written.
        region: Region,
        /// The pattern.
        pattern: [u8; 4],
    },
    /// Maps whole tiles of a heap into a reservation.
    Map {
        /// The tiles of the reservation.
        region: Region,
        /// The heap.
        heap: HeapId,
        /// The first byte in the heap.
        heap_offset_bytes: u64,
    },
    /// Removes the mapping of whole tiles of a reservation.
    Unmap {
        /// The tiles of the reservation.
        region: Region,
    },
    /// Later commands of the stream start after all earlier ones are complete.
    Barrier {
        /// The stream.
        stream: StreamId,
    },
    /// Fires `generation` of the event when every earlier command of the stream is complete.
    Record {
        /// The stream.
        stream: StreamId,
        /// The event.
        event: EventId,
        /// Counts the records of the event, from 1 in each list of commands; it grows with every record.
        generation: u64,
    },
    /// Later commands of the stream start after `generation` of the event has fired.
    Wait {
        /// The stream.
        stream: StreamId,
        /// The event.
        event: EventId,
        /// The record to wait for.
        generation: u64,
    },
}

impl Command {
    /// The stream that the command belongs to; `None` for mapping, which happens on the host.
    pub fn stream(&self) -> Option<StreamId> {
        match self {
            Command::Launch { stream, .. }
            | Command::Copy { stream, .. }
            | Command::Fill { stream, .. }
            | Command::Barrier { stream }
            | Command::Record { stream, .. }
            | Command::Wait { stream, .. } => Some(*stream),
            Command::Map { .. } | Command::Unmap { .. } => None,
        }
    }

    /// The regions that the command reads.
    pub fn reads(&self) -> Vec<Region> {
        match self {
            Command::Launch { launch, .. } => launch.reads.iter().map(|binding| binding.region).collect(),
            Command::Copy { from, .. } => vec![*from],
            _ => Vec::new(),
        }
    }

    /// The regions that the command writes, including the workspace.
    pub fn writes(&self) -> Vec<Region> {
        match self {
            Command::Launch { launch, .. } => {
                launch.writes.iter().map(|binding| binding.region).chain(launch.workspace).collect()
            }
            Command::Copy { to, .. } => vec![*to],
            Command::Fill { region, .. } => vec![*region],
            _ => Vec::new(),
        }
    }

    /// Whether the command touches bytes, rather than only ordering or mapping.
    pub fn is_work(&self) -> bool {
        matches!(self, Command::Launch { .. } | Command::Copy { .. } | Command::Fill { .. })
    }
}

/// Names the memories, so that plans and traces can list what they use.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Launch { stream, launch } => {
                write!(f, "{stream} launch {} #{}", launch.kernel.name(), launch.label)?;
                let list = |f: &mut fmt::Formatter<'_>, what: &str, regions: &mut dyn Iterator<Item = Region>| {
                    write!(f, " {what}")?;
                    regions.enumerate().try_for_each(|(i, r)| write!(f, "{}{r}", if i == 0 { " " } else { ", " }))
                };
                list(f, "reads", &mut launch.reads.iter().map(|b| b.region))?;
                list(f, "writes", &mut launch.writes.iter().map(|b| b.region))?;
                match launch.workspace {
                    Some(workspace) => write!(f, " scratch {workspace}"),
                    None => Ok(()),
                }
            }
            Command::Copy { stream, from, to } => write!(f, "{stream} copy {from} to {to}"),
            Command::Fill { stream, region, pattern } => write!(f, "{stream} fill {region} with {pattern:02x?}"),
            Command::Map { region, heap, heap_offset_bytes } => {
                write!(f, "map {region} from {heap}[{heap_offset_bytes}..{}]", heap_offset_bytes + region.range.len())
            }
            Command::Unmap { region } => write!(f, "unmap {region}"),
            Command::Barrier { stream } => write!(f, "{stream} barrier"),
            Command::Record { stream, event, generation } => write!(f, "{stream} record {event}.{generation}"),
            Command::Wait { stream, event, generation } => write!(f, "{stream} wait {event}.{generation}"),
        }
    }
}

/// The memories that a list of commands names, each once, in ascending order.
pub fn memories(commands: &[Command]) -> Vec<MemoryId> {
    let mut ids: Vec<MemoryId> = commands
        .iter()
        .flat_map(|command| command.reads().into_iter().chain(command.writes()))
        .map(|r| r.memory)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
