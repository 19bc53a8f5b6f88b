//! Commands: the narrow waist. The planner emits a list ahead of time, the eager runtime one at a time; the same checker
//! checks both, the same devices run both.
//!
//! What they mean:
//! - A stream may run its commands concurrently and in any order, except: a command starts only after all commands before
//!   the stream's latest [`Command::Barrier`] are complete, and after every event waited for earlier in that stream has
//!   fired.
//! - [`Command::Record`] fires when every command before it in its stream is complete. A [`Command::Wait`] names an event
//!   and a generation, and stands after its record in the list.
//! - Streams are otherwise unordered.
//! - A [`Command::Launch`] runs where its operands are: in device memory on the device, in host blocks on the host. They are
//!   all, the workspace included, in the one or all in the other.
//! - [`Command::Map`] and [`Command::Unmap`] happen on the host's timeline, while no one uses the tiles.

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

/// A tensor bound to bytes: `region` is at least `desc.total_size_bytes` long and starts at the tensor's base.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The bytes.
    pub region: Region,
    /// How the tensor lies in them.
    pub desc: TensorDesc,
}

/// One kernel with its bindings. It reads and writes nothing else. An output's whole region counts as written.
///
/// A read and a write may name the same region where the kernel allows updating in place ([`Kernel::in_place`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// What to run.
    pub kernel: Kernel,
    /// Inputs in the kernel's order.
    pub reads: Vec<Binding>,
    /// Outputs in the kernel's order.
    pub writes: Vec<Binding>,
    /// Temporary bytes, at an offset that is a multiple of 256. Written, never read before.
    pub workspace: Option<Region>,
    /// Which launch of its program this is; names and nodes are found through it.
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

    /// Which operand that is read holds indices, and how many entries they choose from; none for kernels without indices.
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
    /// Copies bytes between memories of any spaces. Both regions have the same length and do not overlap.
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
        /// Tiles of the reservation.
        region: Region,
        /// The heap.
        heap: HeapId,
        /// First byte in the heap.
        heap_offset_bytes: u64,
    },
    /// Removes the mapping of whole tiles of a reservation.
    Unmap {
        /// Tiles of the reservation.
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
        /// Counts the event's records, from 1 in each list of commands; grows with every record.
        generation: u64,
    },
    /// Later commands of the stream start after `generation` of the event has fired.
    Wait {
        /// The stream.
        stream: StreamId,
        /// The event.
        event: EventId,
        /// Which record is waited for.
        generation: u64,
    },
}

impl Command {
    /// The stream in which the command stands; none for mapping, which happens on the host.
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

    /// Regions that the command reads.
    pub fn reads(&self) -> Vec<Region> {
        match self {
            Command::Launch { launch, .. } => launch.reads.iter().map(|binding| binding.region).collect(),
            Command::Copy { from, .. } => vec![*from],
            _ => Vec::new(),
        }
    }

    /// Regions that the command writes, workspace included.
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

    /// Whether the command touches bytes (and is not only about order or mapping).
    pub fn is_work(&self) -> bool {
        matches!(self, Command::Launch { .. } | Command::Copy { .. } | Command::Fill { .. })
    }
}

/// Memory is named here so that plans and traces can list what they use.
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

/// The memories that a list of commands names, in ascending order, each once.
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
