//! Flags and environment variables that select the device, its memory budgets and the planning.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use forebay::managed::Policy;
use forebay::{
    DeviceName, EngineOptions, HostOperators, LaunchOrder, MemoryLimit, MemoryMode, MemorySize, Statistics, Updates,
};
use forebay_device::host::threads_of;

use crate::heap_arguments::{HeapArguments, byte_rate};
use crate::output;

/// The order in which kernels are planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderKind {
    /// The order of the model
    File,
    /// The order with the fewest barriers that fits the same memory
    Barriers,
}

/// Which operators run on the host in a plan for another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HostOperatorsKind {
    /// Those that the device cannot run
    Needed,
    /// None: an operator that the device cannot run is an error
    Never,
}

/// Where updates run.
#[derive(Args, Clone, Copy, Debug)]
pub struct UpdatesArguments {
    /// Where parameters and the optimizer's state are updated: on the device, or on the host's CPU, so that the state never crosses the
    /// link; has no effect if the device's memory is the host's
    #[arg(
        long,
        value_enum,
        value_name = "WHERE",
        default_value = "device",
        env = "FOREBAY_UPDATES",
        help_heading = "Device"
    )]
    updates: UpdatesKind,
}

/// Where a training step updates parameters and the optimizer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UpdatesKind {
    /// On the device
    Device,
    /// On the host's CPU, next to the optimizer's state
    Host,
}

impl UpdatesArguments {
    /// Converts the flag to the library's option.
    pub fn updates(self) -> Updates {
        match self.updates {
            UpdatesKind::Device => Updates::Device,
            UpdatesKind::Host => Updates::Host,
        }
    }

    /// Prints a note if `--updates host` has no effect on a plan.
    pub fn tell(self, plan: &Statistics) {
        if self.updates == UpdatesKind::Host && plan.host_updates == 0 {
            output::complain("note: --updates host has no effect: the device uses the host's memory");
        }
    }
}

/// What decides which data is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemoryKind {
    /// A plan, made before the first step
    Planned,
    /// Managed memory in which the framework requests every move
    Direct,
    /// Managed memory with hints from the framework about what comes next and what is no longer needed
    Cooperative,
    /// Managed memory alone
    Automatic,
}

/// The machine and its budgets.
#[derive(Args, Debug)]
#[command(next_help_heading = "Device")]
pub struct DeviceArguments {
    /// The device that computes; `forebay devices` lists them
    #[arg(long, value_name = "NAME", default_value_t)]
    pub device: DeviceName,
    /// Never let this process take more memory than this, as the system counts it: 192MiB, 1GiB; 60% of what it would take without a
    /// limit; 80%free of the free memory of the machine or its control group; none. For the CPU, whose memory is one pool: what does not
    /// fit is recomputed, reread from the model's files (weights that no step changes), or goes to --spill-dir [default: none, or the free
    /// memory if a step would take more]
    #[arg(
        long,
        value_name = "SIZE|PERCENT",
        env = "FOREBAY_MEMORY_LIMIT",
        conflicts_with_all = ["device_memory", "host_memory", "simulate_device"]
    )]
    pub memory_limit: Option<MemoryLimit>,
    /// Never use more device memory than this: 256MiB, 1GiB, or 50% (of what the model needs without a budget). On the CPU, the same
    /// as --memory-limit if the process can stay within it; if it cannot, or with --host-memory or --link-speed, the same as
    /// --simulate-device
    #[arg(long, value_name = "SIZE", env = "FOREBAY_DEVICE_MEMORY")]
    pub device_memory: Option<MemorySize>,
    /// For development and experiments on the CPU: treat this much of its memory as device memory, and copy what does not fit there
    /// to the rest and back (two pools); a size, or a share as for --device-memory. On other devices, the same as --device-memory
    #[arg(long, value_name = "SIZE", env = "FOREBAY_SIMULATE_DEVICE", conflicts_with = "device_memory")]
    pub simulate_device: Option<MemorySize>,
    /// Never use more host memory than this for what is moved out of the device
    #[arg(long, value_name = "SIZE", env = "FOREBAY_HOST_MEMORY")]
    pub host_memory: Option<MemorySize>,
    /// Move what exceeds --host-memory to unnamed files in this folder, which are gone when the command ends. Weights that no step changes
    /// are read from the model's files instead
    #[arg(long, value_name = "DIR", env = "FOREBAY_SPILL_DIR")]
    pub spill_dir: Option<PathBuf>,
    /// What decides which data is on the device; does not change the results
    #[arg(long, value_enum, value_name = "MODE", default_value = "planned", env = "FOREBAY_MEMORY")]
    pub memory: MemoryKind,
    /// The eviction policy of `--memory automatic` [default: driver]
    #[arg(long, value_enum, value_name = "POLICY")]
    pub eviction: Option<PolicyKind>,
    /// How device memory is allocated.
    #[command(flatten)]
    pub heaps: HeapArguments,
    /// For experiments with --simulate-device: limit copies between host and device to this bandwidth in each direction, such as 8GB/s;
    /// an error on devices other than the CPU
    #[arg(long, value_name = "SIZE/s", value_parser = byte_rate)]
    pub link_speed: Option<u64>,
    /// The number of threads for kernels and copies together [default: all]; limited to 256, or to the number of hardware threads if
    /// that is larger; does not change the results
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub threads: Option<u64>,
    /// Do not fuse operators: every operator has its own kernels, and concatenations copy their inputs
    #[arg(long)]
    pub no_fuse: bool,
    /// The order in which kernels are planned; does not change the results
    #[arg(long, value_enum, value_name = "ORDER", default_value = "barriers")]
    pub order: OrderKind,
    /// Which operators run on the host instead of the device; the plan accounts for the copies
    #[arg(long, value_enum, value_name = "WHICH", default_value = "needed", env = "FOREBAY_HOST_OPERATORS")]
    pub host_operators: HostOperatorsKind,
    /// Check every plan for races and lost data before it runs; with `plan --train --ranks`, also check the plans of all processes against
    /// each other
    #[arg(long)]
    pub check: bool,
}

impl DeviceArguments {
    /// Converts the flags to options.
    pub fn options(&self, trace: bool) -> EngineOptions {
        let mut options = EngineOptions::default();
        let EngineOptions { device, memory, planning, measuring, .. } = &mut options;
        device.name = self.device.clone();
        device.threads = self.threads.map(thread_count);
        device.link_bytes_per_second = self.link_speed;
        self.heaps.apply(device);
        memory.memory_limit = self.memory_limit;
        memory.device_memory = self.device_memory;
        memory.simulate_device = self.simulate_device;
        memory.host_memory = self.host_memory;
        memory.spill_dir = self.spill_dir.clone();
        memory.mode = match self.memory {
            MemoryKind::Planned => MemoryMode::Planned,
            MemoryKind::Direct => MemoryMode::Direct,
            MemoryKind::Cooperative => MemoryMode::Cooperative,
            MemoryKind::Automatic => MemoryMode::Automatic,
        };
        memory.eviction = self.eviction.map(PolicyKind::policy);
        memory.growth = self.heaps.grows();
        planning.fuse = !self.no_fuse;
        planning.order = match self.order {
            OrderKind::File => LaunchOrder::File,
            OrderKind::Barriers => LaunchOrder::Barriers,
        };
        planning.host_operators = match self.host_operators {
            HostOperatorsKind::Needed => HostOperators::Needed,
            HostOperatorsKind::Never => HostOperators::Never,
        };
        planning.check |= self.check;
        measuring.trace = trace;
        options
    }
}

/// The policy by which managed memory evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyKind {
    /// What was brought in or prefetched longest ago leaves first, regardless of use, as measured for a CUDA Unified Memory driver
    Driver,
    /// What was used longest ago leaves first (LRU)
    Touch,
    /// What will be used furthest in the future leaves first (Belady's algorithm)
    Planned,
}

impl PolicyKind {
    /// Converts it to the library's policy.
    pub fn policy(self) -> Policy {
        match self {
            PolicyKind::Driver => Policy::Driver,
            PolicyKind::Touch => Policy::Touch,
            PolicyKind::Planned => Policy::Planned,
        }
    }
}

/// Returns the number of threads, with a warning if more are requested than can be used.
pub fn thread_count(asked: u64) -> usize {
    let asked = usize::try_from(asked).unwrap_or(usize::MAX);
    let count = threads_of(Some(asked));
    if count < asked {
        output::complain(&format!(
            "warning: --threads {asked} is more than is useful on this machine; using {count} threads"
        ));
    }
    count
}

/// Parses a whole number of at least 1.
pub fn positive_count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("not a whole number".to_owned()),
    }
}
