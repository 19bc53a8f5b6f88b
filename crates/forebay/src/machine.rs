//! The devices that there are, and one of them with the limits that its user set.

#[cfg(feature = "vulkan")]
mod vulkan;
#[cfg(not(feature = "vulkan"))]
mod without_vulkan;

use std::sync::Arc;

use forebay_base::{DataType, Limits};
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_device::{Device, DeviceError};
use forebay_memory::size::MemorySize;
use forebay_model::program::Program;
use forebay_plan::cost::{estimate, estimate_on, Costs};
use forebay_plan::saved_costs::Unknown;
use forebay_plan::SavedCosts;
use forebay_runtime::homes::STAGING_BYTES;

use crate::error::Error;
use crate::options::{DeviceName, DeviceOptions, EngineOptions, PlanningOptions};
#[cfg(not(feature = "vulkan"))]
use without_vulkan as vulkan;

/// A device with the limits that its user set.
pub(crate) struct Machine {
    /// The device.
    pub(crate) device: Arc<dyn Device>,
    /// What was asked for, with the budgets of a described machine. Costs are not kept here: they belong to one program.
    pub(crate) options: EngineOptions,
    /// Host bytes that are taken whatever the plan: the device's own, and the executor's staging.
    pub(crate) reserved_host_bytes: u64,
}

impl Machine {
    /// Opens the device that the options name.
    ///
    /// # Errors
    /// An unknown name, no threads, tiles that there cannot be, a folder to spill to that cannot be used, or what the system
    /// refuses.
    pub(crate) fn open(options: &EngineOptions) -> Result<Machine, Error> {
        Machine::with_device(options, open_device(&options.device)?)
    }

    /// A device of the caller's, on which nothing runs yet.
    ///
    /// # Errors
    /// A folder to spill to that cannot be used.
    pub(crate) fn with_device(options: &EngineOptions, device: Arc<dyn Device>) -> Result<Machine, Error> {
        if let Some(folder) = &options.memory.spill_dir {
            // A file for nothing shows at once whether there can be files, and takes what the device needs for them.
            let refused = |error| Error::Device { action: "while trying to spill".to_string(), error };
            device.destroy_memory(device.create_spill(folder, 1).map_err(refused)?);
        }
        let reserved_host_bytes = device.usage().host_bytes + STAGING_BYTES;
        let planning = PlanningOptions { costs: None, ..options.planning.clone() };
        let mut options = EngineOptions { planning, ..options.clone() };
        if let Some(described) = &options.device.machine {
            options.memory.device_memory.get_or_insert(MemorySize::Bytes(described.device_memory_bytes));
            options.memory.host_memory.get_or_insert(MemorySize::Bytes(described.host_memory_bytes));
        }
        Ok(Machine { device, options, reserved_host_bytes })
    }

    /// Whether what exceeds the host memory may go to disk.
    pub(crate) fn spills(&self) -> bool {
        self.options.memory.spill_dir.is_some() || self.options.device.machine.is_some()
    }

    /// What launches and copies of a program are thought to take before anything is measured; and which launches the given
    /// costs do not know.
    ///
    /// # Errors
    /// Costs of another program.
    pub(crate) fn costs(
        &self,
        program: &Program,
        given: Option<&SavedCosts>,
    ) -> Result<(Costs, Option<Unknown>), Error> {
        let estimated = match &self.options.device.machine {
            Some(described) => estimate_on(program, described),
            None => estimate(program, self.device.limits()),
        };
        match given {
            Some(saved) => Ok(saved.apply(program, estimated)?),
            None => Ok((estimated, None)),
        }
    }
}

/// A device that can be named in [`DeviceOptions::name`].
///
/// ```
/// for device in forebay::devices()? {
///     match device.limits {
///         Ok(limits) => println!("{}: {} bytes", device.name, limits.memory_bytes),
///         Err(reason) => println!("{} cannot be used: {reason}", device.name),
///     }
/// }
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceDescription {
    /// The name to give.
    pub name: String,
    /// What it is, for people: the driver of a GPU, for example.
    pub description: String,
    /// What it can do, or why it cannot be used.
    pub limits: Result<Limits, String>,
    /// Of which types of 16 bits its subgroups multiply whole matrices together (cooperative matrices, what vendors call tensor
    /// or matrix cores): products and convolutions of these types run there. None on a device that cannot be used.
    pub matrix_types: Vec<DataType>,
}

/// Memory of a device that is only described: the budget, which need not be the description's, is what counts.
const DESCRIBED_BYTES_MAX: u64 = 1 << 50;

/// How devices are named.
const DEVICES: &str = "host, null, vulkan, vulkan:NUMBER, vulkan:NAME";

/// The devices of this machine.
///
/// # Errors
/// Where the system refuses what the host device needs.
pub fn devices() -> Result<Vec<DeviceDescription>, Error> {
    let mut all = Vec::new();
    for name in [DeviceName::host(), DeviceName::null()] {
        let device = open_device(&DeviceOptions { name: name.clone(), ..DeviceOptions::default() })?;
        let limits = device.limits().clone();
        let (name, description) = (name.to_string(), limits.name.clone());
        all.push(DeviceDescription { name, description, limits: Ok(limits), matrix_types: Vec::new() });
    }
    all.extend(vulkan::describe());
    Ok(all)
}

/// Opens the device that the options name, for work of one's own: single operations, or several sessions in turn.
///
/// ```
/// let device = forebay::open_device(&forebay::DeviceOptions::default())?;
/// assert!(device.limits().memory_bytes > 0);
/// # Ok::<(), forebay::Error>(())
/// ```
///
/// # Errors
/// An unknown name, no threads, tiles that there cannot be, or what the system refuses.
pub fn open_device(options: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
    if options.threads == Some(0) {
        return Err(Error::Option { reason: "a device needs at least one thread".to_string() });
    }
    if let Some(described) = &options.machine {
        let limits = Limits { memory_bytes: DESCRIBED_BYTES_MAX, ..described.limits() };
        return null_device(NullDevice::with_limits(limits), &described.name, options);
    }
    match (options.name.backend(), options.name.adapter()) {
        ("host", None) => {
            let usual = HostOptions::default();
            let settings = HostOptions {
                threads: options.threads,
                tiled: options.tiled,
                tile_size_bytes: options.tile_size.unwrap_or(usual.tile_size_bytes),
                heap_bytes_max: options.heap_size.unwrap_or(usual.heap_bytes_max),
                link_bytes_per_second: options.link_bytes_per_second,
                ..usual
            };
            Ok(Arc::new(HostDevice::new(&settings).map_err(|error| refused("host", error))?))
        }
        ("null", None) => null_device(NullDevice::new(NullProfile::Tiled), "null", options),
        ("vulkan", adapter) => vulkan::open(adapter, options),
        _ => {
            let name = &options.name;
            let reason = format!("there is no device '{name}' (there are: {DEVICES})");
            Err(Error::Option { reason })
        }
    }
}

/// Why a device cannot be opened.
fn refused(name: &str, error: DeviceError) -> Error {
    match error {
        DeviceError::Setting { reason } => Error::Option { reason },
        error => Error::Device { action: format!("while opening device {name}"), error },
    }
}

/// A device that computes nothing, with the heaps that the options ask for.
fn null_device(device: NullDevice, name: &str, options: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
    let device = if options.tiled { device } else { device.without_tiles() };
    let usual = device.limits();
    let tile_bytes = options.tile_size.unwrap_or(usual.tile_size_bytes);
    let heap_bytes = options.heap_size.unwrap_or(usual.heap_size_max_bytes);
    Ok(Arc::new(device.with_heaps(tile_bytes, heap_bytes).map_err(|error| refused(name, error))?))
}
