//! What sessions and trainers have in common, and the setters of both builders.

use crate::options::{DeviceOptions, MeasuringOptions, MemoryOptions, PlanningOptions};

/// On what, within what, and how steps run: the part of [`SessionOptions`](crate::SessionOptions) and
/// [`TrainerOptions`](crate::TrainerOptions) that is the same for running and training.
///
/// ```
/// use forebay::EngineOptions;
///
/// let engine = EngineOptions::default().threads(2).device_memory("64MiB".parse()?).check(true);
/// assert_eq!((engine.device.threads, engine.planning.check), (Some(2), true));
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Which device.
    pub device: DeviceOptions,
    /// Which memory budgets.
    pub memory: MemoryOptions,
    /// How to plan.
    pub planning: PlanningOptions,
    /// What to measure.
    pub measuring: MeasuringOptions,
}

/// The setters of [`EngineOptions`], for a type that holds some: each takes the value itself where the option is an `Option`.
macro_rules! engine_setters {
    ($($path:ident).*) => {
        /// The device that computes; the host where not given.
        pub fn device(mut self, name: $crate::DeviceName) -> Self {
            self.$($path.)*device.name = name;
            self
        }

        /// A machine to plan for instead, whether or not it is there. Nothing is computed.
        pub fn machine(mut self, machine: $crate::MachineDescription) -> Self {
            self.$($path.)*device.machine = Some(machine);
            self
        }

        /// Threads for kernels and copies together; as many as the machine runs at once, where not given.
        pub fn threads(mut self, threads: usize) -> Self {
            self.$($path.)*device.threads = Some(threads);
            self
        }

        /// The largest heap behind a reservation, in bytes.
        pub fn heap_size(mut self, bytes: u64) -> Self {
            self.$($path.)*device.heap_size = Some(bytes);
            self
        }

        /// The unit in which heaps are mapped, in bytes.
        pub fn tile_size(mut self, bytes: u64) -> Self {
            self.$($path.)*device.tile_size = Some(bytes);
            self
        }

        /// Whether heaps are mapped tile by tile where the device can; they are where not given.
        pub fn tiled(mut self, tiled: bool) -> Self {
            self.$($path.)*device.tiled = tiled;
            self
        }

        /// The processes that compute one batch together; this one alone where not given.
        pub fn processes(mut self, processes: $crate::ProcessGroup) -> Self {
            self.$($path.)*device.processes = Some(processes);
            self
        }

        /// What of a training step each of these processes keeps a slice of; nothing where not given.
        pub fn shard(mut self, shard: $crate::Shard) -> Self {
            self.$($path.)*device.shard = shard;
            self
        }

        /// What lies between these processes, for predictions; what the machine's description says, where not given.
        pub fn network(mut self, network: $crate::Network) -> Self {
            self.$($path.)*device.network = Some(network);
            self
        }

        /// Slows copies between host and device down to this many bytes per second in each direction, for experiments.
        pub fn link_bytes_per_second(mut self, bytes_per_second: u64) -> Self {
            self.$($path.)*device.link_bytes_per_second = Some(bytes_per_second);
            self
        }

        /// Memory that the whole process may take, on devices whose memory is the host's.
        pub fn memory_limit(mut self, limit: $crate::MemoryLimit) -> Self {
            self.$($path.)*memory.memory_limit = Some(limit);
            self
        }

        /// Takes a part of the host's memory for the memory of a device of its own, with this budget: what does not fit there is
        /// copied to the rest and back.
        pub fn simulate_device(mut self, size: $crate::MemorySize) -> Self {
            self.$($path.)*memory.simulate_device = Some(size);
            self
        }

        /// Device memory that may exist at once; unlimited where not given. Where it is the host's, the same as `memory_limit`.
        pub fn device_memory(mut self, size: $crate::MemorySize) -> Self {
            self.$($path.)*memory.device_memory = Some(size);
            self
        }

        /// Host memory for swapped tensors, inputs, outputs and staging; unlimited where not given.
        pub fn host_memory(mut self, size: $crate::MemorySize) -> Self {
            self.$($path.)*memory.host_memory = Some(size);
            self
        }

        /// A folder for what exceeds the host memory.
        pub fn spill_dir(mut self, folder: impl Into<std::path::PathBuf>) -> Self {
            self.$($path.)*memory.spill_dir = Some(folder.into());
            self
        }

        /// Who decides what is on the device; a plan where not given.
        pub fn memory_mode(mut self, mode: $crate::MemoryMode) -> Self {
            self.$($path.)*memory.mode = mode;
            self
        }

        /// In which order managed memory evicts when it is left alone.
        pub fn eviction(mut self, policy: $crate::managed::Policy) -> Self {
            self.$($path.)*memory.eviction = Some(policy);
            self
        }

        /// Whether managed memory takes device memory as it needs it; it does where not given.
        pub fn growth(mut self, growth: bool) -> Self {
            self.$($path.)*memory.growth = growth;
            self
        }

        /// Durations to plan with until others are measured; estimates where not given.
        pub fn costs(mut self, costs: $crate::SavedCosts) -> Self {
            self.$($path.)*planning.costs = Some(costs);
            self
        }

        /// Whether operators are merged; they are where not given.
        pub fn fuse(mut self, fuse: bool) -> Self {
            self.$($path.)*planning.fuse = fuse;
            self
        }

        /// In which order launches are planned.
        pub fn order(mut self, order: $crate::LaunchOrder) -> Self {
            self.$($path.)*planning.order = order;
            self
        }

        /// Whether operators may run on the host that the device cannot run; they may where not given.
        pub fn host_operators(mut self, host_operators: $crate::HostOperators) -> Self {
            self.$($path.)*planning.host_operators = host_operators;
            self
        }

        /// Where training steps update parameters and the optimizer's state; on the device where not given.
        pub fn updates(mut self, updates: $crate::Updates) -> Self {
            self.$($path.)*planning.updates = updates;
            self
        }

        /// Whether every plan is checked for races and lost data before it runs. Always so in debug builds.
        pub fn check(mut self, check: bool) -> Self {
            self.$($path.)*planning.check = check;
            self
        }

        /// Whether to keep when every command ran.
        pub fn trace(mut self, trace: bool) -> Self {
            self.$($path.)*measuring.trace = trace;
            self
        }
    };
}

pub(crate) use engine_setters;

impl EngineOptions {
    engine_setters!();
}
