//! Cost: how long launches and copies take. Costs are either estimated from operation and byte counts and what a machine can do
//! ([`crate::machine`]), or measured ([`crate::saved_costs`] keeps them in a file).

use forebay_base::kernel::Exchange;
use forebay_base::{ByteRange, DataType, Kernel, Limits};
use forebay_model::program::{Program, ProgramLaunch};

use crate::machine::{HOST_LAUNCH_NS, HostProcessor, MachineDescription};
use crate::ways::{Disk, LONGEST_NS, Link, LinkDirection};

/// The durations that planning works with. Plans are a function of them, so they are plain data that can be saved.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// The duration of each launch of the program in nanoseconds, in order.
    pub launch_ns: Vec<u64>,
    /// How many of the machine's workers each launch can use; the rest are for launches that run next to it.
    pub launch_workers: Vec<f64>,
    /// The number of workers of the machine.
    pub workers: f64,
    /// The number of workers of the host's processor, for updates on the host; 0 if the device's workers are the host's.
    pub host_workers: f64,
    /// For each byte copied between host and device, the nanoseconds for which launches lose a worker; 0 if copies have their own engines.
    pub copy_worker_ns_per_byte: f64,
    /// Nanoseconds that a step takes in addition to its commands, to dispatch them and to join with the host.
    pub step_ns: u64,
    /// The link between host and device.
    pub link: Link,
    /// The disk.
    pub disk: Disk,
}

impl Costs {
    /// Nanoseconds to copy `bytes` to the device.
    pub fn copy_in_ns(&self, bytes: u64) -> u64 {
        self.link.to_device.ns(bytes)
    }

    /// Nanoseconds to copy `bytes` from the device.
    pub fn copy_out_ns(&self, bytes: u64) -> u64 {
        self.link.from_device.ns(bytes)
    }

    /// The number of workers that a copy in this direction takes while nothing slows it down.
    pub fn copy_workers(&self, way: LinkDirection) -> f64 {
        (way.bytes_per_ns() * self.copy_worker_ns_per_byte).min(self.workers)
    }

    /// The fraction of their speed at which copies run that together want `copying` workers.
    pub fn copy_speed(&self, copying: f64) -> f64 {
        if copying > self.workers { self.workers / copying } else { 1.0 }
    }

    /// Nanoseconds to copy `bytes` from the disk.
    pub fn disk_read_ns(&self, bytes: u64) -> u64 {
        self.disk.read.ns(bytes)
    }

    /// Nanoseconds to copy `bytes` to the disk.
    pub fn disk_write_ns(&self, bytes: u64) -> u64 {
        self.disk.write.ns(bytes)
    }
}

/// Returns the number of workers that copies wanting `copying` of a machine's workers leave to launches. Workers that copy do so first.
pub fn workers_for_launches(workers: f64, copying: f64) -> f64 {
    (workers - copying).max(0.0)
}

/// Estimates costs on a device of which only the limits are known.
pub fn estimate(program: &Program, limits: &Limits) -> Costs {
    estimate_on(program, &MachineDescription::of_limits(limits))
}

/// Estimates costs from operation and byte counts alone: a launch takes as long as its operations or its bytes, whichever take longer. The
/// time to start a launch is what running launches side by side can save.
pub fn estimate_on(program: &Program, machine: &MachineDescription) -> Costs {
    let workers = f64::from(machine.workers.max(1));
    // The processor that updates on the host: the host's own, or the workers of a device that is the host.
    let updating = machine.updating_host();
    let host_workers = updating.map_or(0.0, |host| f64::from(host.workers));
    let workers_of = |launch: &ProgramLaunch| match launch.in_host_memory {
        true if updating.is_some() => host_workers,
        _ => workers,
    };
    let start_ns = |launch: &ProgramLaunch| match (launch.in_host_memory, launch.on_host) {
        (true, _) => updating.map_or(machine.launch_ns, |host| host.launch_ns),
        (false, true) => HOST_LAUNCH_NS,
        (false, false) => machine.launch_ns,
    };
    let host_rates = |launch: &ProgramLaunch| match launch.in_host_memory {
        true => updating,
        false => launch.on_host.then(|| machine.host.unwrap_or(HostProcessor::ASSUMED)),
    };
    let work_ns = |launch: &ProgramLaunch| {
        if let Kernel::Exchange(exchange) = &launch.kernel {
            return machine.network.direction.ns(busiest_bytes(exchange)) as f64;
        }
        let (operations_per_second, bytes_per_second) = match host_rates(launch) {
            Some(host) => (host.operations_per_second, host.memory_bytes_per_second),
            None => (machine.operations_per_second(data_type(launch)), machine.memory_bytes_per_second),
        };
        let arithmetic = operations(launch) / operations_per_second * 1e9;
        let traffic = bytes(launch) as f64 / bytes_per_second * 1e9;
        arithmetic.max(traffic)
    };
    // One worker starts a launch, and all workers execute it; this is the mean over both.
    let mean_workers = |launch: &ProgramLaunch| {
        if launch.kernel.is_collective() {
            return 1.0;
        }
        let (start_ns, work_ns) = (start_ns(launch) as f64, work_ns(launch));
        ((start_ns + work_ns * workers_of(launch)) / (start_ns + work_ns).max(1.0)).max(1.0)
    };
    let duration_ns = |launch: &ProgramLaunch| start_ns(launch) + (work_ns(launch) as u64).min(LONGEST_NS);
    Costs {
        launch_ns: program.launches.iter().map(duration_ns).collect(),
        launch_workers: program.launches.iter().map(mean_workers).collect(),
        workers,
        host_workers,
        copy_worker_ns_per_byte: machine.copy_worker_ns_per_byte,
        step_ns: 0,
        link: machine.link,
        disk: machine.disk,
    }
}

/// Returns the bytes that the busiest process of an exchange sends or receives, as far as this process knows: it assumes that the others send
/// to a process as much as it sends to it, and that a process sends to the others as much as it receives from it.
fn busiest_bytes(exchange: &Exchange) -> u64 {
    let most = |ranges: &[Vec<ByteRange>]| {
        let of_process = |ranges: &Vec<ByteRange>| ranges.iter().map(|range| range.len()).sum::<u64>();
        ranges.iter().map(of_process).max().unwrap_or(0) * ranges.len() as u64
    };
    most(&exchange.sends).max(most(&exchange.receives))
}

/// The type that a launch computes in; for products, the type of the factors.
fn data_type(launch: &ProgramLaunch) -> DataType {
    let (read, write) = (launch.reads.first(), launch.writes.first());
    let operand = if launch.kernel.facts().types.are_of_products() { read.or(write) } else { write.or(read) };
    operand.map_or(DataType::Float32, |operand| operand.desc.data_type())
}

/// Returns the number of bytes that a launch reads and writes.
pub fn bytes(launch: &ProgramLaunch) -> u64 {
    launch.reads.iter().chain(&launch.writes).map(|operand| operand.desc.total_size_bytes()).sum()
}

/// Returns the number of floating-point operations of a launch. A multiply-add counts as two.
pub fn operations(launch: &ProgramLaunch) -> f64 {
    launch.kernel.facts().operations(|operand| launch.desc(operand))
}
