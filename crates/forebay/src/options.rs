//! On what machine, within what memory, and how to train.

use std::path::PathBuf;

use forebay_memory::size::MemorySize;
use forebay_model::training::TrainingOptions;
use forebay_plan::{LaunchOrder, MachineDescription, SavedCosts};
use forebay_runtime::eager::managed::Policy;
use forebay_runtime::Strategy;

use crate::error::Error;

/// Who decides what is on the device. No result depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryMode {
    /// A plan, made before the first step.
    #[default]
    Planned,
    /// Managed memory, of which the framework says every move.
    Direct,
    /// Managed memory, with hints of the framework: what comes, and what is needed no more.
    Cooperative,
    /// Managed memory alone.
    Automatic,
}

/// The machine that runs a model, and how much of it may be used.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceOptions {
    /// `host`; `vulkan` (the first GPU), `vulkan:` and a number or a part of a name; or `null` (plans and records, computes
    /// nothing).
    pub device: String,
    /// A machine to plan for instead, whether or not it is there. Its memories are budgets where none are given, what exceeds
    /// that of the host goes to its disk, and nothing is computed.
    pub machine: Option<MachineDescription>,
    /// Durations to plan with until others are measured; estimates where not given. They are those of the first plan: a
    /// trainer's plans for other batch sizes, and for evaluation, begin with estimates.
    pub costs: Option<SavedCosts>,
    /// Threads for kernels and copies together; as many as the machine runs at once, where not given. No result depends
    /// on it.
    pub threads: Option<usize>,
    /// Device memory that may exist at once; unlimited where not given.
    pub device_memory: Option<MemorySize>,
    /// Host memory for swapped tensors, inputs, outputs and staging; unlimited where not given.
    pub host_memory: Option<MemorySize>,
    /// A folder for what exceeds the host memory: files without names, gone when the process ends. Where none is given, what
    /// exceeds it is an error.
    pub spill_dir: Option<PathBuf>,
    /// Who decides what is on the device.
    pub memory: MemoryMode,
    /// In which order managed memory evicts when it is left alone ([`MemoryMode::Automatic`]); as a driver of unified memory
    /// does where not given.
    pub eviction: Option<Policy>,
    /// The largest heap behind a reservation, in bytes; the device's own limit where not given.
    pub heap_size: Option<u64>,
    /// The unit in which heaps are mapped, in bytes: a power of two, whole pages, no more than a heap; the device's own where
    /// not given. No result depends on it.
    pub tile_size: Option<u64>,
    /// Whether heaps are mapped tile by tile where the device can. Without, memory is placed heaps. No result depends on it.
    pub tiled: bool,
    /// Whether managed memory takes device memory as it needs it. Without, it takes all that it may have at the start and
    /// keeps it. A plan always takes all that it needs at the start.
    pub growth: bool,
    /// Whether operators are merged: neighbouring kernels become one, and the pieces of a concatenation are computed in
    /// their place.
    pub fuse: bool,
    /// In which order launches are planned. No result depends on it.
    pub order: LaunchOrder,
    /// Whether every plan is checked for races and lost data before it runs. Always so in debug builds.
    pub check: bool,
    /// Whether to keep when every command ran.
    pub trace: bool,
    /// Slows copies between host and device down to this many bytes per second in each direction, for experiments with
    /// device `host`; at full speed where not given.
    pub link_bytes_per_second: Option<u64>,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            device: forebay_devices::DEFAULT.to_string(),
            machine: None,
            costs: None,
            threads: None,
            device_memory: None,
            host_memory: None,
            spill_dir: None,
            memory: MemoryMode::default(),
            eviction: None,
            heap_size: None,
            tile_size: None,
            tiled: true,
            growth: true,
            fuse: true,
            order: LaunchOrder::default(),
            check: false,
            trace: false,
            link_bytes_per_second: None,
        }
    }
}

impl DeviceOptions {
    /// What managed memory is told; none where a plan decides.
    ///
    /// # Errors
    /// An order of eviction where the mode has its own.
    pub(crate) fn strategy(&self) -> Result<Option<Strategy>, Error> {
        if self.eviction.is_some() && self.memory != MemoryMode::Automatic {
            let reason =
                "an order of eviction has a meaning only for memory that is left alone: add --memory automatic, or \
                          leave --eviction out";
            return Err(Error::Option { reason: reason.to_string() });
        }
        Ok(match self.memory {
            MemoryMode::Planned => None,
            MemoryMode::Direct => Some(Strategy::Direct),
            MemoryMode::Cooperative => Some(Strategy::Cooperative),
            MemoryMode::Automatic => Some(Strategy::Automatic(self.eviction.unwrap_or(Policy::Driver))),
        })
    }
}

/// What happens when the loss is not a finite number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNan {
    /// The step fails, and leaves parameters and state as before it.
    #[default]
    Stop,
    /// The step is done all the same.
    Continue,
}

/// How a [`Trainer`](crate::Trainer) trains.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerOptions {
    /// Loss, optimizer, what trains.
    pub training: TrainingOptions,
    /// The machine and its budgets.
    pub device: DeviceOptions,
    /// The size of a batch, where the model leaves it open or another one is wanted.
    pub batch_size: Option<u64>,
    /// What happens when the loss is not a finite number.
    pub on_nan: OnNan,
}

impl TrainerOptions {
    /// Training on the host without budgets, at the model's own batch size; stops where the loss is no number.
    pub fn new(training: TrainingOptions) -> TrainerOptions {
        TrainerOptions { training, device: DeviceOptions::default(), batch_size: None, on_nan: OnNan::Stop }
    }
}
