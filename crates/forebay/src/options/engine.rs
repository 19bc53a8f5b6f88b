//! The options that sessions and trainers share, and the setters of both builders.

use crate::options::{DeviceOptions, MeasuringOptions, MemoryOptions, PlanningOptions};

/// Options for the device, memory, planning and measuring: the part of [`SessionOptions`](crate::SessionOptions) and
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
    /// Which device to use.
    pub device: DeviceOptions,
    /// The memory budgets.
    pub memory: MemoryOptions,
    /// How to plan.
    pub planning: PlanningOptions,
    /// What to measure.
    pub measuring: MeasuringOptions,
}

/// Defines the setters of [`EngineOptions`] for a type that holds them. If an option is an `Option`, its setter takes the value itself.
macro_rules! engine_setters {
    ($($path:ident).*) => {
        /// Sets the device that computes; by default, the host.
        pub fn device(mut self, name: $crate::DeviceName) -> Self {
            self.$($path.)*device.name = name;
            self
        }

        /// Sets a machine to plan for instead, whether or not it is available. Nothing is computed.
        pub fn machine(mut self, machine: $crate::MachineDescription) -> Self {
            self.$($path.)*device.machine = Some(machine);
            self
        }

        /// Sets the number of threads for kernels and copies together; by default, as many as the machine runs at once.
        pub fn threads(mut self, threads: usize) -> Self {
            self.$($path.)*device.threads = Some(threads);
            self
        }

        /// Sets the size of the largest heap that backs a reservation, in bytes.
        pub fn heap_size(mut self, bytes: u64) -> Self {
            self.$($path.)*device.heap_size = Some(bytes);
            self
        }

        /// Sets the unit in which heaps are mapped, in bytes.
        pub fn tile_size(mut self, bytes: u64) -> Self {
            self.$($path.)*device.tile_size = Some(bytes);
            self
        }

        /// Sets whether heaps are mapped tile by tile if the device supports it; by default, they are.
        pub fn tiled(mut self, tiled: bool) -> Self {
            self.$($path.)*device.tiled = tiled;
            self
        }

        /// Sets the processes that compute one batch together; by default, only this one.
        pub fn processes(mut self, processes: $crate::ProcessGroup) -> Self {
            self.$($path.)*device.processes = Some(processes);
            self
        }

        /// Sets which values of a training step each of these processes keeps a slice of; by default, none.
        pub fn shard(mut self, shard: $crate::Shard) -> Self {
            self.$($path.)*device.shard = shard;
            self
        }

        /// Sets the network between these processes, for predictions; by default, the one in the machine's description.
        pub fn network(mut self, network: $crate::Network) -> Self {
            self.$($path.)*device.network = Some(network);
            self
        }

        /// Slows copies between host and device down to this many bytes per second in each direction, for experiments.
        pub fn link_bytes_per_second(mut self, bytes_per_second: u64) -> Self {
            self.$($path.)*device.link_bytes_per_second = Some(bytes_per_second);
            self
        }

        /// Sets the memory that the whole process may take, on devices whose memory is the host's.
        pub fn memory_limit(mut self, limit: $crate::MemoryLimit) -> Self {
            self.$($path.)*memory.memory_limit = Some(limit);
            self
        }

        /// Uses part of the host's memory as the memory of a separate device, with this budget: what does not fit there is copied to the
        /// rest and back.
        pub fn simulate_device(mut self, size: $crate::MemorySize) -> Self {
            self.$($path.)*memory.simulate_device = Some(size);
            self
        }

        /// Sets the device memory that may exist at once; unlimited by default. If device memory is the host's, this is the same as
        /// `memory_limit`.
        pub fn device_memory(mut self, size: $crate::MemorySize) -> Self {
            self.$($path.)*memory.device_memory = Some(size);
            self
        }

        /// Sets the host memory for swapped tensors, inputs, outputs and staging; unlimited by default.
        pub fn host_memory(mut self, size: $crate::MemorySize) -> Self {
            self.$($path.)*memory.host_memory = Some(size);
            self
        }

        /// Sets a folder for what exceeds the host memory.
        pub fn spill_dir(mut self, folder: impl Into<std::path::PathBuf>) -> Self {
            self.$($path.)*memory.spill_dir = Some(folder.into());
            self
        }

        /// Sets who decides what is on the device; by default, a plan.
        pub fn memory_mode(mut self, mode: $crate::MemoryMode) -> Self {
            self.$($path.)*memory.mode = mode;
            self
        }

        /// Sets the order in which managed memory evicts when it decides alone.
        pub fn eviction(mut self, policy: $crate::managed::Policy) -> Self {
            self.$($path.)*memory.eviction = Some(policy);
            self
        }

        /// Sets whether managed memory allocates device memory as it needs it; by default, it does.
        pub fn growth(mut self, growth: bool) -> Self {
            self.$($path.)*memory.growth = growth;
            self
        }

        /// Sets the durations to plan with until others are measured; by default, estimates.
        pub fn costs(mut self, costs: $crate::SavedCosts) -> Self {
            self.$($path.)*planning.costs = Some(costs);
            self
        }

        /// Sets whether operators are fused; by default, they are.
        pub fn fuse(mut self, fuse: bool) -> Self {
            self.$($path.)*planning.fuse = fuse;
            self
        }

        /// Sets the order in which launches are planned.
        pub fn order(mut self, order: $crate::LaunchOrder) -> Self {
            self.$($path.)*planning.order = order;
            self
        }

        /// Sets whether operators that the device cannot run may run on the host; by default, they may.
        pub fn host_operators(mut self, host_operators: $crate::HostOperators) -> Self {
            self.$($path.)*planning.host_operators = host_operators;
            self
        }

        /// Sets where training steps update parameters and the optimizer's state; by default, on the device.
        pub fn updates(mut self, updates: $crate::Updates) -> Self {
            self.$($path.)*planning.updates = updates;
            self
        }

        /// Sets whether every plan is checked for races and lost data before it runs. Debug builds always check.
        pub fn check(mut self, check: bool) -> Self {
            self.$($path.)*planning.check = check;
            self
        }

        /// Sets whether to record when every command ran.
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
