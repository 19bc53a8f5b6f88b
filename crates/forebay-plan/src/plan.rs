//! A plan: the complete list of commands for one step, with every address resolved. Plain data.

use forebay_base::{ByteRange, Command, Launch, MemoryId, Region, Space, StreamId};
use forebay_model::program::Role;

/// The name of the stream of updates on the host.
pub(crate) const HOST_STREAM: &str = "host";

/// How a memory of a plan is obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Addresses into which the prologue maps tiles of the plan's heaps.
    Reservation,
    /// Physical device memory in one piece.
    Placed,
    /// A block of host memory.
    HostBlock,
    /// Space on a disk, accessed only by copies.
    SpillFile,
    /// The model's files: weights stay there and are read when they are needed. [`Plan::persistent`] says where each of them is in this
    /// memory, which the plan's user provides.
    ModelFiles,
    /// Memory of the process that the plan's user lends for one step: an input or an output ([`mod@crate::loans`]).
    Lent,
    /// Device memory that other plans also use and that the plan's user provides: the block with this number ([`crate::shared`]).
    Shared(u32),
}

/// One memory that a plan uses. Its index in [`Plan::memories`] is the [`MemoryId`] in the plan's commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanMemory {
    /// How it is obtained.
    pub kind: MemoryKind,
    /// Where it is.
    pub space: Space,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// Where a tensor's bytes are at the boundary between two steps.
#[derive(Clone, Debug, PartialEq)]
pub struct BackingLocation {
    /// The tensor's name in the graph.
    pub name: String,
    /// Its sizes in the graph (empty for a scalar).
    pub shape: Vec<u64>,
    /// Its element type.
    pub data_type: forebay_base::DataType,
    /// The ranges of its bytes, in ascending order, and the region of each. Together they cover the tensor.
    pub pieces: Vec<(ByteRange, Region)>,
}

/// A stream of a plan. Its index in [`Plan::streams`] is its `StreamId`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanStream {
    /// `compute`, `copy in` or `copy out`; also `disk in` and `disk out` if the plan uses a disk, and `host` if it updates on the host.
    pub name: String,
}

/// Numbers about a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// The budget that was planned for, in bytes; `None` if unlimited.
    pub device_budget_bytes: Option<u64>,
    /// The budget for the host block that was planned for, in bytes; `None` if unlimited.
    pub host_budget_bytes: Option<u64>,
    /// Heap bytes that the plan takes, including rounding up to tiles.
    pub device_peak_bytes: u64,
    /// Heap bytes that the unlimited plan of the same program takes.
    pub in_core_peak_bytes: u64,
    /// The smallest budget for which there is a plan; 0 if it was left out (`PlanOptions::omits_minimum`).
    pub minimum_budget_bytes: u64,
    /// The launch that sets the smallest budget; empty if it was left out.
    pub minimum_launch: String,
    /// Whether the search for the plan ended before it had tried everything: a longer search might have found a faster plan.
    pub search_ended_early: bool,
    /// Host block bytes.
    pub host_bytes: u64,
    /// Bytes of inputs and outputs that launches read and write in the caller's memory.
    pub lent_bytes: u64,
    /// Bytes of spill files.
    pub spill_bytes: u64,
    /// Bytes of weights that stay in the model's files and are read from there.
    pub model_files_bytes: u64,
    /// Bytes copied to the device per step, from any space.
    pub bytes_to_device: u64,
    /// Bytes copied from the device per step, to any space.
    pub bytes_from_device: u64,
    /// Bytes copied from a disk per step, including the model's files: the part of `bytes_to_device` that comes from there, and what
    /// updates on the host need.
    pub bytes_from_disk: u64,
    /// The part of `bytes_from_disk` that comes from the model's files.
    pub bytes_from_model_files: u64,
    /// Bytes copied to a disk per step: the part of `bytes_from_device` that goes there, and what updates on the host have changed.
    pub bytes_to_disk: u64,
    /// Launches per step, including repeats.
    pub launches: usize,
    /// The launches that run on the host, between copies, because the device cannot run them.
    pub host_launches: usize,
    /// The launches that update on the host, next to the optimizer's state ([`crate::host_updates`]).
    pub host_updates: usize,
    /// The part of `bytes_to_device` and `bytes_from_device` together that is copied for launches on the host.
    pub host_launch_bytes: u64,
    /// Launches that run again in the same step to recompute dropped contents.
    pub recomputations: usize,
    /// Their estimated duration in nanoseconds.
    pub recomputed_ns: u64,
    /// Launches of the given program that were cut into parts.
    pub launches_cut: usize,
    /// Barriers per step.
    pub barriers: usize,
    /// The fewest barriers that any order of the launches needs, with any amount of memory.
    pub fewest_barriers: usize,
    /// Waits per step.
    pub waits: usize,
    /// Predicted time of a step in nanoseconds.
    pub predicted_ns: u64,
    /// The lower bound in nanoseconds: no residency of these launches, in this order and with these barriers, makes a step shorter
    /// ([`crate::bound`]).
    pub lower_bound_ns: u64,
    /// Predicted time of a step without a budget, in nanoseconds.
    pub in_core_predicted_ns: u64,
}

/// The reason why bytes move between spaces, for display.
#[derive(Clone, Debug, PartialEq)]
pub struct Movement {
    /// Index of the copy in [`Plan::commands`].
    pub command: usize,
    /// Name of the buffer.
    pub name: String,
    /// What the buffer is for.
    pub role: Role,
    /// Why it moves.
    pub reason: String,
}

/// Where a part of a buffer is in device memory, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidencyInterval {
    /// Name of the buffer; `scratch` for workspace bytes.
    pub name: String,
    /// What the buffer is for; `None` for workspace bytes.
    pub role: Option<Role>,
    /// The bytes of the buffer.
    pub part: ByteRange,
    /// Its first byte in device memory.
    pub offset_bytes: u64,
    /// The first launch, in the plan's order, during which the bytes are in use.
    pub first_launch: usize,
    /// The last such launch.
    pub last_launch: usize,
}

/// The part of a launch that a launch computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The index of the launch in the given program.
    pub launch: u32,
    /// The duration of the part as a fraction of the whole launch's.
    pub time: f64,
}

/// The complete list of commands for one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Memories to obtain.
    pub memories: Vec<PlanMemory>,
    /// Sizes in bytes of the heaps that the prologue maps. A heap's index is its `HeapId`.
    pub heaps: Vec<u64>,
    /// Mapping commands, which run once.
    pub prologue: Vec<Command>,
    /// Copies to the device of data that every step finds there in addition to its backing location, and leaves there for the next step.
    /// They run once before the first step, and again if the previous step did not end or a backing location was written from outside.
    pub warm_up: Vec<Command>,
    /// Streams to create.
    pub streams: Vec<PlanStream>,
    /// The number of events to create. Generations in `commands` count from 1 in every step.
    pub event_count: u32,
    /// The commands of one step. Between consecutive steps there is a host join (every stream is synchronized).
    pub commands: Vec<Command>,
    /// The index of the first command of the update phase, in which parameters and state change. Everything that the outputs need precedes
    /// it; other computations may be among the updates ([`crate::early_updates`]).
    pub update_start: usize,
    /// The name of each launch, by label. A label is the launch's index in the program that was planned, whatever the order of the
    /// commands.
    pub labels: Vec<String>,
    /// If launches were cut into parts, the limit that [`mod@crate::partition`] cut them by. In that case its program is what runs.
    pub cut_bytes: Option<u64>,
    /// By label, if launches were cut into parts: the launch of the given program that it is a part of. Otherwise empty.
    pub shares: Vec<Share>,
    /// Where the caller writes inputs before a step: whole, in host blocks or, if device and host are one memory, where launches read them,
    /// which may be the caller's memory ([`MemoryKind::Lent`]).
    pub inputs: Vec<BackingLocation>,
    /// Where the caller reads outputs once the commands before `update_start` are complete: whole, in host blocks or, if device and host
    /// are one memory and there are no updates, where launches write them, which may be the caller's memory.
    pub outputs: Vec<BackingLocation>,
    /// Parameters, state and constants: where their bytes are before and after each step.
    pub persistent: Vec<BackingLocation>,
    /// Two memories with the same layout that take turns, if there are any. A step reads from the first and writes to the second. The
    /// plan's user swaps them after a step whose update phase succeeded, so that the first holds the backing locations again. A step that
    /// fails leaves them as they are.
    pub turns: Option<(MemoryId, MemoryId)>,
    /// What is where in device memory, and when.
    pub intervals: Vec<ResidencyInterval>,
    /// The reason for each copy.
    pub movements: Vec<Movement>,
    /// Numbers about the plan.
    pub statistics: Statistics,
}

impl Plan {
    /// Returns the memory with this id.
    pub fn memory(&self, id: MemoryId) -> &PlanMemory {
        &self.memories[id.0 as usize]
    }

    /// Returns whether a launch runs on the host: its operands are in the host block, because the device cannot run it or because it
    /// updates there.
    pub fn runs_on_host(&self, launch: &Launch) -> bool {
        let first = launch.reads.iter().chain(&launch.writes).next();
        first.is_some_and(|binding| self.memory(binding.region.memory).space == Space::Host)
    }

    /// Returns the stream of launches that update on the host, next to the optimizer's state, if there are any.
    pub fn host_stream(&self) -> Option<StreamId> {
        let place = self.streams.iter().position(|stream| stream.name == HOST_STREAM)?;
        Some(StreamId(place as u32))
    }

    /// Returns the labels of these launches.
    pub fn host_updates(&self) -> impl Iterator<Item = u32> + '_ {
        let host_stream = self.host_stream();
        self.commands.iter().filter_map(move |command| match command {
            Command::Launch { stream, launch } if Some(*stream) == host_stream => Some(launch.label),
            _ => None,
        })
    }

    /// Returns the launches of a step, in the order of the commands.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> {
        self.commands.iter().filter_map(|command| match command {
            Command::Launch { launch, .. } => Some(&**launch),
            _ => None,
        })
    }

    /// Returns which part of which launch of the given program a label stands for.
    pub fn share(&self, label: u32) -> Share {
        self.shares.get(label as usize).copied().unwrap_or(Share { launch: label, time: 1.0 })
    }
}
