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
    /// Space on a disk, reached by copies alone.
    SpillFile,
    /// The files of the model: weights that stay there, and are read when they are needed. [`Plan::persistent`] says which lie where in this
    /// memory; the plan's user provides it.
    ModelFiles,
    /// Memory of the process for one step, which the plan's user lends: an input or an output ([`mod@crate::loans`]).
    Lent,
    /// Device memory that other plans use, too, which the plan's user provides: the block of this number ([`crate::shared`]).
    Shared(u32),
}

/// One memory that a plan uses; its place in [`Plan::memories`] is the [`MemoryId`] that the plan's commands name.
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
    /// Its sizes in the graph (none for a scalar).
    pub shape: Vec<u64>,
    /// Its element type.
    pub data_type: forebay_base::DataType,
    /// Its bytes, cut into pieces in ascending order: which of them lie where. Together they cover the tensor.
    pub pieces: Vec<(ByteRange, Region)>,
}

/// A stream of a plan; its place in [`Plan::streams`] is its `StreamId`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanStream {
    /// `compute`, `copy in` or `copy out`; where a plan uses a disk, also `disk in` and `disk out`; where it updates on the host, `host`.
    pub name: String,
}

/// Numbers about a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// The budget that was planned for, in bytes; none when unlimited.
    pub device_budget_bytes: Option<u64>,
    /// The budget for the host block that was planned for, in bytes; none when unlimited.
    pub host_budget_bytes: Option<u64>,
    /// Heap bytes that the plan takes, tile rounding included.
    pub device_peak_bytes: u64,
    /// Heap bytes that the unlimited plan of the same program takes.
    pub in_core_peak_bytes: u64,
    /// The smallest budget for which there is a plan.
    pub minimum_budget_bytes: u64,
    /// The launch that sets the smallest budget.
    pub minimum_launch: String,
    /// Whether the search for the plan ended before it had tried everything: a longer one might have found a faster plan.
    pub search_ended_early: bool,
    /// Host block bytes.
    pub host_bytes: u64,
    /// Bytes of inputs and outputs that launches read and write where the caller has them.
    pub lent_bytes: u64,
    /// Bytes of spill files.
    pub spill_bytes: u64,
    /// Bytes of weights that stay in the model's files, and are read there.
    pub model_files_bytes: u64,
    /// Bytes copied to the device per step, from wherever.
    pub bytes_to_device: u64,
    /// Bytes copied from the device per step, wherever to.
    pub bytes_from_device: u64,
    /// Bytes copied from a disk per step, the model's files included: the part of `bytes_to_device` that comes from there, and what updates on the host need.
    pub bytes_from_disk: u64,
    /// The part of `bytes_from_disk` that comes from the model's files.
    pub bytes_from_model_files: u64,
    /// Bytes copied to a disk per step: the part of `bytes_from_device` that goes there, and what updates on the host have changed.
    pub bytes_to_disk: u64,
    /// Launches per step, repeats included.
    pub launches: usize,
    /// The part of the launches that runs on the host between copies, because the device cannot run it.
    pub host_launches: usize,
    /// The part of the launches that updates on the host, next to the optimizer's state ([`crate::host_updates`]).
    pub host_updates: usize,
    /// The part of `bytes_to_device` and `bytes_from_device` together that is copied for launches on the host.
    pub host_launch_bytes: u64,
    /// Launches that run again in the same step, for contents that were dropped.
    pub recomputations: usize,
    /// How long those are thought to take, in nanoseconds.
    pub recomputed_ns: u64,
    /// Launches of the given program that were cut into parts.
    pub launches_cut: usize,
    /// Barriers per step.
    pub barriers: usize,
    /// The fewest barriers that any order of the launches can do with, whatever the memory.
    pub fewest_barriers: usize,
    /// Waits per step.
    pub waits: usize,
    /// Predicted time of a step in nanoseconds.
    pub predicted_ns: u64,
    /// No residency of these launches, in this order and with these barriers, makes a step shorter than this, in nanoseconds
    /// ([`crate::bound`]).
    pub lower_bound_ns: u64,
    /// Predicted time of a step without a budget, in nanoseconds.
    pub in_core_predicted_ns: u64,
}

/// Why bytes move between spaces, for people.
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

/// Where a part of a buffer lies in device memory, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidencyInterval {
    /// Name of the buffer; `scratch` for workspace bytes.
    pub name: String,
    /// What the buffer is for; none for workspace bytes.
    pub role: Option<Role>,
    /// The bytes of the buffer.
    pub part: ByteRange,
    /// Its first byte in device memory.
    pub offset_bytes: u64,
    /// The first launch, in the plan's order, during which the bytes are taken.
    pub first_launch: usize,
    /// The last one.
    pub last_launch: usize,
}

/// What part of a launch a launch is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The launch of the given program: its place there.
    pub launch: u32,
    /// How long the part takes, in times of the whole.
    pub time: f64,
}

/// The complete list of commands for one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Memories to obtain.
    pub memories: Vec<PlanMemory>,
    /// Sizes in bytes of the heaps that the prologue maps; a heap's place is its `HeapId`.
    pub heaps: Vec<u64>,
    /// Mapping, done once.
    pub prologue: Vec<Command>,
    /// Copies that bring to the device what every step finds there next to its backing location, and leaves there for the next one. They run
    /// once before the first step, and again where the step before did not end or a backing location was written from outside.
    pub warm_up: Vec<Command>,
    /// Streams to make.
    pub streams: Vec<PlanStream>,
    /// Number of events to make. Generations in `commands` count from 1 in every step.
    pub event_count: u32,
    /// One step. Steps follow each other with a host join (every stream synchronised) between them.
    pub commands: Vec<Command>,
    /// Commands from here on belong to the update phase: parameters and state change. Everything that the outputs need stands
    /// before; what else there is to compute may stand among the updates ([`crate::early_updates`]).
    pub update_start: usize,
    /// Name of each launch, by its label: its place in the program that was planned, whatever the order of the commands.
    pub labels: Vec<String>,
    /// Where launches were cut into parts: the limit that [`mod@crate::partition`] cut them by. What runs is then its program.
    pub cut_bytes: Option<u64>,
    /// By label, where launches were cut into parts: of which launch of the given program it is a part. Else empty.
    pub shares: Vec<Share>,
    /// Where the caller writes inputs before a step: whole in host blocks, or where launches read them if device and host are one memory,
    /// which may be memory of the caller's ([`MemoryKind::Lent`]).
    pub inputs: Vec<BackingLocation>,
    /// Where the caller reads outputs once the commands before `update_start` are complete: whole in host blocks, or where launches write
    /// them if device and host are one memory and there are no updates, which may be memory of the caller's.
    pub outputs: Vec<BackingLocation>,
    /// Parameters, state and constants: where their bytes are before and after each step.
    pub persistent: Vec<BackingLocation>,
    /// Two memories of one layout that take turns, where there are any. A step reads what it found in the first and writes
    /// the second; the plan's user exchanges them after a step whose update phase succeeded, so that the first holds
    /// the backing locations again. A step that fails leaves them as they are.
    pub turns: Option<(MemoryId, MemoryId)>,
    /// What lies where in device memory, and when.
    pub intervals: Vec<ResidencyInterval>,
    /// Why each copy is there.
    pub movements: Vec<Movement>,
    /// Numbers about the plan.
    pub statistics: Statistics,
}

impl Plan {
    /// The memory.
    pub fn memory(&self, id: MemoryId) -> &PlanMemory {
        &self.memories[id.0 as usize]
    }

    /// Whether a launch runs on the host: its operands are in the host block, because the device cannot run it or because it updates there.
    pub fn runs_on_host(&self, launch: &Launch) -> bool {
        let first = launch.reads.iter().chain(&launch.writes).next();
        first.is_some_and(|binding| self.memory(binding.region.memory).space == Space::Host)
    }

    /// The stream of launches that update on the host, next to the optimizer's state, where there are any.
    pub fn host_stream(&self) -> Option<StreamId> {
        let place = self.streams.iter().position(|stream| stream.name == HOST_STREAM)?;
        Some(StreamId(place as u32))
    }

    /// Labels of these launches.
    pub fn host_updates(&self) -> impl Iterator<Item = u32> + '_ {
        let host_stream = self.host_stream();
        self.commands.iter().filter_map(move |command| match command {
            Command::Launch { stream, launch } if Some(*stream) == host_stream => Some(launch.label),
            _ => None,
        })
    }

    /// The launches of a step, in the order of the commands.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> {
        self.commands.iter().filter_map(|command| match command {
            Command::Launch { launch, .. } => Some(&**launch),
            _ => None,
        })
    }

    /// What part of which launch of the given program a label stands for.
    pub fn share(&self, label: u32) -> Share {
        self.shares.get(label as usize).copied().unwrap_or(Share { launch: label, time: 1.0 })
    }
}
