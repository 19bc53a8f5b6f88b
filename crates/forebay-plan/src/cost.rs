//! Cost: how long launches and copies take. Either estimated from a program and a device's limits, or measured.

use forebay_base::{Kernel, Limits};
use forebay_model::program::{Operand, Program, ProgramLaunch};

/// Arithmetic operations per nanosecond and lane that estimates assume.
const OPERATIONS_PER_NS_AND_LANE: f64 = 35.0;
/// Bytes per nanosecond that estimates assume of kernels bound by memory, all lanes together.
const KERNEL_BYTES_PER_NS: f64 = 12.0;
/// Bytes per nanosecond that estimates assume of copies between spaces, each way.
const COPY_BYTES_PER_NS: f64 = 5.0;
/// Bytes per nanosecond that estimates assume of disks, each way.
const DISK_BYTES_PER_NS: f64 = 1.0;
/// Nanoseconds that estimates assume before a disk moves its first byte.
const DISK_LATENCY_NS: u64 = 100_000;
/// Nanoseconds that estimates assume to start a launch or a copy.
const LATENCY_NS: u64 = 5_000;

/// Durations that planning works with. Plans are a function of them, so they are plain data that can be saved.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// Nanoseconds of each launch of the program, in order.
    pub launch_ns: Vec<u64>,
    /// Lanes of the machine that each launch can use: what it leaves is for launches that run beside it.
    pub launch_lanes: Vec<f64>,
    /// Lanes of the machine.
    pub lanes: f64,
    /// Bytes per nanosecond from the host to the device.
    pub copy_in_bytes_per_ns: f64,
    /// Bytes per nanosecond from the device to the host.
    pub copy_out_bytes_per_ns: f64,
    /// Nanoseconds before a copy moves its first byte.
    pub copy_latency_ns: u64,
    /// Bytes per nanosecond from the disk.
    pub disk_read_bytes_per_ns: f64,
    /// Bytes per nanosecond to the disk.
    pub disk_write_bytes_per_ns: f64,
    /// Nanoseconds before a disk moves its first byte.
    pub disk_latency_ns: u64,
}

impl Costs {
    /// Nanoseconds to copy `bytes` to the device.
    pub fn copy_in_ns(&self, bytes: u64) -> u64 {
        self.copy_latency_ns + (bytes as f64 / self.copy_in_bytes_per_ns) as u64
    }

    /// Nanoseconds to copy `bytes` from the device.
    pub fn copy_out_ns(&self, bytes: u64) -> u64 {
        self.copy_latency_ns + (bytes as f64 / self.copy_out_bytes_per_ns) as u64
    }

    /// Nanoseconds to copy `bytes` from the disk.
    pub fn disk_read_ns(&self, bytes: u64) -> u64 {
        self.disk_latency_ns + (bytes as f64 / self.disk_read_bytes_per_ns) as u64
    }

    /// Nanoseconds to copy `bytes` to the disk.
    pub fn disk_write_ns(&self, bytes: u64) -> u64 {
        self.disk_latency_ns + (bytes as f64 / self.disk_write_bytes_per_ns) as u64
    }
}

/// Costs from operation and byte counts alone. The time to start a launch is what launches side by side can save.
pub fn estimate(program: &Program, limits: &Limits) -> Costs {
    let lanes = f64::from(limits.lanes.max(1));
    let work_ns = |launch: &ProgramLaunch| {
        let arithmetic = operations(launch) / (OPERATIONS_PER_NS_AND_LANE * lanes);
        let traffic = bytes(launch) as f64 / KERNEL_BYTES_PER_NS;
        arithmetic.max(traffic)
    };
    // One lane starts a launch, all lanes work on it: the mean over both.
    let mean_lanes = |work_ns: f64| (LATENCY_NS as f64 + work_ns * lanes) / (LATENCY_NS as f64 + work_ns);
    Costs {
        launch_ns: program.launches.iter().map(|launch| LATENCY_NS + work_ns(launch) as u64).collect(),
        launch_lanes: program.launches.iter().map(|launch| mean_lanes(work_ns(launch))).collect(),
        lanes,
        copy_in_bytes_per_ns: COPY_BYTES_PER_NS,
        copy_out_bytes_per_ns: COPY_BYTES_PER_NS,
        copy_latency_ns: LATENCY_NS,
        disk_read_bytes_per_ns: DISK_BYTES_PER_NS,
        disk_write_bytes_per_ns: DISK_BYTES_PER_NS,
        disk_latency_ns: DISK_LATENCY_NS,
    }
}

/// Bytes that a launch reads and writes.
pub fn bytes(launch: &ProgramLaunch) -> u64 {
    launch.reads.iter().chain(&launch.writes).map(|operand| operand.desc.total_size_bytes()).sum()
}

/// Floating-point operations of a launch, a multiply-add counting as two.
pub fn operations(launch: &ProgramLaunch) -> f64 {
    let count = |operand: Option<&Operand>| operand.map_or(0, |operand| operand.desc.element_count()) as f64;
    // Products of one output element: the weights of one output channel.
    let taps = |weights: Option<&Operand>| {
        weights.map_or(1.0, |weights| weights.desc.sizes()[1..].iter().product::<u64>() as f64)
    };
    match &launch.kernel {
        Kernel::Convolution { .. } => 2.0 * count(launch.writes.first()) * taps(launch.reads.get(1)),
        Kernel::ConvolutionDataGradient { .. } => 2.0 * count(launch.reads.first()) * taps(launch.reads.get(1)),
        Kernel::ConvolutionWeightGradient { .. } => 2.0 * count(launch.reads.get(1)) * taps(launch.writes.first()),
        Kernel::MatMul { transpose_a, .. } => {
            let inner = launch.reads.first().map_or(1, |a| {
                let sizes = a.desc.sizes();
                if *transpose_a && sizes.len() > 1 {
                    sizes[sizes.len() - 2]
                } else {
                    sizes[sizes.len() - 1]
                }
            });
            2.0 * count(launch.writes.first()) * inner as f64
        }
        _ => count(launch.writes.first()).max(count(launch.reads.first())),
    }
}
