//! Machines as numbers: what a device and its links can do, so that a model can be planned for a machine that is not available.
//!
//! A description is a TOML file. Three come with the crate; their files say where the numbers come from.
//!
//! ```
//! use forebay_plan::machine::MachineDescription;
//!
//! let h200 = MachineDescription::built_in("h200").expect("it comes with the crate");
//! assert_eq!(h200.device_memory_bytes, 141_000_000_000);
//! assert!(h200.link.duplex);
//! ```

use std::collections::BTreeMap;

use forebay_base::{DataType, Limits};
use forebay_memory::size::MemorySize;
use serde::{Deserialize, Deserializer};

use crate::error::PlanError;
use crate::network::Network;
use crate::ways::{Disk, Link, LinkDirection, check_ways, not_negative, rate, short};

/// The machines that come with the crate, each with its name and description.
const BUILT_IN: [(&str, &str); 3] = [
    ("h200", include_str!("../machines/h200.toml")),
    ("laptop-8gb", include_str!("../machines/laptop-8gb.toml")),
    ("cpu-2core-nvme", include_str!("../machines/cpu-2core-nvme.toml")),
];

/// Arithmetic operations per second and worker that are assumed for a device of which only the limits are known.
const OPERATIONS_PER_SECOND_AND_WORKER: f64 = 35e9;
/// Bytes per second that are assumed for its memory-bound kernels, for all workers together.
const MEMORY_BYTES_PER_SECOND: f64 = 12e9;
/// What is assumed for its copies between spaces, in each direction.
const COPY: LinkDirection = LinkDirection { bytes_per_second: 10e9, latency_ns: 5_000 };
/// What is assumed for its disk, in each direction.
const DISK: LinkDirection = LinkDirection { bytes_per_second: 1e9, latency_ns: 100_000 };
/// Nanoseconds that starting a launch on the host between launches of a device is assumed to take.
pub(crate) const HOST_LAUNCH_NS: u64 = 20_000;
/// Nanoseconds that starting a launch is assumed to take.
const LAUNCH_NS: u64 = 5_000;

/// Largest heap behind a reservation of a described device, in bytes.
const HEAP_SIZE_MAX_BYTES: u64 = 1 << 30;
/// The data type whose rate applies to types that are not named.
const FALLBACK: &str = "float32";

/// What the host's processor can do. It runs what the device cannot run, and updates next to the optimizer's state.
///
/// ```
/// use forebay_plan::MachineDescription;
///
/// let h200 = MachineDescription::built_in("h200").unwrap();
/// let host = h200.host.expect("a device with memory of its own has a host");
/// assert!(host.memory_bytes_per_second < h200.memory_bytes_per_second);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostProcessor {
    /// Threads that run launches side by side.
    #[serde(rename = "lanes")]
    pub workers: u32,
    /// Nanoseconds to start a launch.
    pub launch_ns: u64,
    /// Arithmetic operations per second of all workers together, whatever the data type. A multiply-add counts as two.
    pub operations_per_second: f64,
    /// Bytes per second between kernels and host memory.
    pub memory_bytes_per_second: f64,
}

impl HostProcessor {
    /// What is assumed if nothing is specified: four current cores.
    pub const ASSUMED: HostProcessor = HostProcessor {
        workers: 4,
        launch_ns: LAUNCH_NS,
        operations_per_second: 4.0 * OPERATIONS_PER_SECOND_AND_WORKER,
        memory_bytes_per_second: MEMORY_BYTES_PER_SECOND,
    };
}

/// What a machine can do.
///
/// ```
/// use forebay_plan::MachineDescription;
///
/// let laptop = MachineDescription::built_in("laptop-8gb").unwrap();
/// assert_eq!(laptop.device_memory_bytes, 8 << 30);
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineDescription {
    /// What the machine is, for human readers.
    pub name: String,
    /// Memory of the device.
    #[serde(rename = "device_memory", deserialize_with = "size_bytes")]
    pub device_memory_bytes: u64,
    /// Memory of the host.
    #[serde(rename = "host_memory", deserialize_with = "size_bytes")]
    pub host_memory_bytes: u64,
    /// The unit in which device memory is mapped.
    #[serde(rename = "tile_size", deserialize_with = "size_bytes")]
    pub tile_size_bytes: u64,
    /// Parts of the device that work in parallel: threads, compute units.
    #[serde(rename = "lanes")]
    pub workers: u32,
    /// Nanoseconds to start a launch.
    pub launch_ns: u64,
    /// Arithmetic operations per second of all workers together, by data type; the rate of `float32` applies to types that are not named. A
    /// multiply-add counts as two.
    operations_per_second: BTreeMap<String, f64>,
    /// Bytes per second between kernels and device memory.
    pub memory_bytes_per_second: f64,
    /// Nanoseconds for which a copy keeps a worker busy, for each byte; 0 if copies have their own engines.
    #[serde(default)]
    #[serde(rename = "copy_lane_ns_per_byte")]
    pub copy_worker_ns_per_byte: f64,
    /// The host's processor; if not specified, an assumed one, or the device's workers if they copy.
    #[serde(default)]
    pub host: Option<HostProcessor>,
    /// The link between host and device.
    pub link: Link,
    /// The disk.
    pub disk: Disk,
    /// The network to other machines, such as `infiniband-400g` or `3GB/s,20us`.
    #[serde(default)]
    pub network: Network,
}

fn size_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.parse::<MemorySize>().map_err(serde::de::Error::custom)? {
        MemorySize::Bytes(bytes) => Ok(bytes),
        MemorySize::Percent(_) => {
            Err(serde::de::Error::custom("a percentage is not supported here; write a size such as 8GiB"))
        }
    }
}

impl MachineDescription {
    /// Returns the names of the machines that come with the crate.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Returns a machine that comes with the crate.
    pub fn built_in(name: &str) -> Option<MachineDescription> {
        let (_, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        MachineDescription::parse(text).ok()
    }

    /// Reads a description.
    ///
    /// # Errors
    /// Says what is missing, unknown or invalid, and where.
    pub fn parse(text: &str) -> Result<MachineDescription, PlanError> {
        let refuse = |reason: String| PlanError::Document { what: "the machine description", reason };
        let machine: MachineDescription = toml::from_str(text).map_err(|error| refuse(error.to_string()))?;
        machine.check().map_err(refuse)?;
        Ok(machine)
    }

    fn check(&self) -> Result<(), String> {
        let known = |name: &str| DataType::ALL.iter().any(|data_type| data_type.name() == name);
        if let Some(name) = self.operations_per_second.keys().find(|name| !known(name)) {
            let names: Vec<&str> = DataType::ALL.iter().map(|data_type| data_type.name()).collect();
            return Err(format!(
                "operations_per_second: unknown data type '{name}'; the data types are {}",
                names.join(", ")
            ));
        }
        if !self.operations_per_second.contains_key(FALLBACK) {
            return Err(format!(
                "operations_per_second: {FALLBACK} is missing; its rate applies to types that are not named"
            ));
        }
        for (name, &operations) in &self.operations_per_second {
            rate(&format!("operations_per_second.{name}"), operations)?;
        }
        rate("memory_bytes_per_second", self.memory_bytes_per_second)?;
        short("launch_ns", self.launch_ns)?;
        not_negative("copy_lane_ns_per_byte", self.copy_worker_ns_per_byte)?;
        if let Some(host) = &self.host {
            rate("host.operations_per_second", host.operations_per_second)?;
            rate("host.memory_bytes_per_second", host.memory_bytes_per_second)?;
            short("host.launch_ns", host.launch_ns)?;
            if host.workers == 0 {
                return Err("host.lanes is 0; expected at least 1".to_string());
            }
        }
        check_ways(&self.link, &self.disk)?;
        if self.workers == 0 {
            return Err("lanes is 0; expected at least 1".to_string());
        }
        Ok(())
    }

    /// Describes a device of which only the limits are known as a current processor with a disk.
    pub fn of_limits(limits: &Limits) -> MachineDescription {
        let rate = OPERATIONS_PER_SECOND_AND_WORKER * f64::from(limits.workers.max(1));
        let link_rate = limits.link_bytes_per_second.map_or(f64::INFINITY, |rate| rate.max(1) as f64);
        let copy = LinkDirection { bytes_per_second: COPY.bytes_per_second.min(link_rate), ..COPY };
        MachineDescription {
            name: limits.name.clone(),
            device_memory_bytes: limits.memory_bytes,
            host_memory_bytes: u64::MAX,
            tile_size_bytes: limits.tile_size_bytes,
            workers: limits.workers,
            launch_ns: LAUNCH_NS,
            operations_per_second: BTreeMap::from([(FALLBACK.to_string(), rate)]),
            memory_bytes_per_second: MEMORY_BYTES_PER_SECOND,
            copy_worker_ns_per_byte: if limits.copies_use_workers { 1e9 / COPY.bytes_per_second } else { 0.0 },
            host: None,
            link: Link { to_device: copy, from_device: copy, duplex: true, carries_disk: false },
            disk: Disk { read: DISK, write: DISK },
            network: Network::default(),
        }
    }

    /// Returns the processor that updates on the host, or `None` if the device's workers do; these are the host's if they copy.
    pub(crate) fn updating_host(&self) -> Option<HostProcessor> {
        self.host.or((self.copy_worker_ns_per_byte <= 0.0).then_some(HostProcessor::ASSUMED))
    }

    /// Returns the arithmetic operations per second on elements of this type.
    pub fn operations_per_second(&self, data_type: DataType) -> f64 {
        let rates = &self.operations_per_second;
        rates.get(data_type.name()).or_else(|| rates.get(FALLBACK)).copied().unwrap_or(OPERATIONS_PER_SECOND_AND_WORKER)
    }

    /// Returns the limits of its device.
    pub fn limits(&self) -> Limits {
        Limits {
            name: self.name.clone(),
            tiled: true,
            unified: false,
            tile_size_bytes: self.tile_size_bytes,
            heap_size_max_bytes: HEAP_SIZE_MAX_BYTES.next_multiple_of(self.tile_size_bytes),
            memory_bytes: self.device_memory_bytes,
            offset_alignment_bytes: 256,
            tensor_elements_max: u64::MAX,
            copy_streams: true,
            in_process: false,
            copies_use_workers: self.copy_worker_ns_per_byte > 0.0,
            link_bytes_per_second: None,
            // Workers that copy belong to a processor.
            applies_functions: self.copy_worker_ns_per_byte > 0.0,
            workers: self.workers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_that_come_with_the_crate_can_be_read() {
        for (name, text) in BUILT_IN {
            let machine = MachineDescription::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(MachineDescription::built_in(name), Some(machine));
        }
        assert_eq!(MachineDescription::built_in("abacus"), None);
    }

    #[test]
    fn a_simulated_link_is_no_faster_than_it_says() {
        let copy_ns = |link_bytes_per_second| {
            let limits = Limits { link_bytes_per_second, ..crate::testing::limits() };
            MachineDescription::of_limits(&limits).link.to_device.ns(10_000_000)
        };
        assert_eq!(copy_ns(Some(1_000_000_000)), 10_000_000 + COPY.latency_ns);
        assert_eq!(copy_ns(Some(u64::MAX)), copy_ns(None), "the memory of the host is not faster");
    }

    #[test]
    fn on_the_slowest_machine_a_launch_takes_a_day() {
        let (_, text) = BUILT_IN[2];
        let rate = "\nmemory_bytes_per_second = ";
        assert!(text.contains(rate));
        let machine = MachineDescription::parse(&text.replacen(rate, &format!("{rate}1e3 # "), 1)).unwrap();
        let program = crate::testing::training_program(1 << 44, &[(forebay_model::program::Role::Parameter, 0)]);
        let launch_ns = crate::cost::estimate_on(&program, &machine).launch_ns;
        assert_eq!(launch_ns.iter().max(), Some(&(machine.launch_ns + crate::ways::LONGEST_NS)));
    }

    #[test]
    fn types_without_a_rate_take_that_of_float32() {
        let h200 = MachineDescription::built_in("h200").unwrap();
        assert!(h200.operations_per_second(DataType::Float16) > h200.operations_per_second(DataType::Float32));
        assert_eq!(h200.operations_per_second(DataType::Int64), h200.operations_per_second(DataType::Float32));
    }

    #[test]
    fn what_has_no_meaning_is_named() {
        let (_, good) = BUILT_IN[2];
        let refused = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            MachineDescription::parse(&good.replacen(from, to, 1)).unwrap_err().to_string()
        };
        for (from, to, words) in [
            ("lanes = 2", "lanes = 0", "lanes is 0"),
            ("lanes = 2", "lanes = -2", "-2"),
            ("lanes = 2", "lanes = 2\ncores = 2", "cores"),
            ("lanes = 2", "", "lanes"),
            (
                "[link]",
                "[host]\nlanes = 0\nlaunch_ns = 1\noperations_per_second = 1e9\nmemory_bytes_per_second = 1e9\n[link]",
                "host.lanes is 0",
            ),
            ("[link]", "[host]\nlanes = 1\n[link]", "launch_ns"),
            ("memory_bytes_per_second = ", "memory_bytes_per_second = nan # ", "memory_bytes_per_second is NaN"),
            ("memory_bytes_per_second = ", "memory_bytes_per_second = -", "a finite number of at least 1000"),
            ("memory_bytes_per_second = ", "memory_bytes_per_second = 1e-300 # ", "memory_bytes_per_second is 1e-300"),
            ("launch_ns = ", "launch_ns = 90000000000000 # ", "launch_ns is 90000000000000; expected at most"),
            ("float32 = ", "float33 = ", "unknown data type 'float33'"),
            ("float32 = ", "float64 = ", "float32 is missing"),
            ("duplex = ", "duplex = 3 # ", "duplex"),
            ("device_memory = \"", "device_memory = \"x", "not a memory size"),
            ("device_memory = ", "device_memory = \"50%\" # ", "a percentage is not supported here"),
            (
                "to_device = { bytes_per_second = ",
                "to_device = { bytes_per_second = 0, latency_ns = 1 } # ",
                "link.to_device",
            ),
        ] {
            let message = refused(from, to);
            assert!(message.contains(words), "{from} -> {to}: {message}");
        }
        assert!(MachineDescription::parse("").unwrap_err().to_string().contains("name"));
        assert!(MachineDescription::parse("name = ").is_err());
    }
}
