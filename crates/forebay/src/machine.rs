//! The devices that there are, and one of them with the limits that its user set.

use std::sync::Arc;

use forebay_base::{DataType, Limits};
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_device::{Device, DeviceError};
use forebay_memory::size::MemorySize;
use forebay_model::program::Program;
use forebay_plan::cost::{estimate, estimate_on, Costs};
use forebay_plan::saved_costs::Unknown;
use forebay_runtime::backing::STAGING_BYTES;
use forebay_vulkan::kernels::Cooperative;
use forebay_vulkan::{adapters, VulkanDevice, VulkanOptions};

use crate::error::Error;
use crate::options::DeviceOptions;

/// A device with the limits that its user set.
pub(crate) struct LimitedDevice {
    /// The device.
    pub(crate) device: Arc<dyn Device>,
    /// What was asked for.
    pub(crate) options: DeviceOptions,
    /// Host bytes that are taken whatever the plan: the device's own, and the executor's staging.
    pub(crate) reserved_host_bytes: u64,
}

impl LimitedDevice {
    /// Opens the device that the options name.
    ///
    /// # Errors
    /// An unknown name, no threads, tiles that there cannot be, a folder to spill to that cannot be used, or what the system
    /// refuses.
    pub(crate) fn open(options: &DeviceOptions) -> Result<LimitedDevice, Error> {
        LimitedDevice::with_device(options, open(options)?)
    }

    /// A device of the caller's, on which nothing runs yet.
    ///
    /// # Errors
    /// A folder to spill to that cannot be used.
    pub(crate) fn with_device(options: &DeviceOptions, device: Arc<dyn Device>) -> Result<LimitedDevice, Error> {
        if let Some(folder) = &options.spill_dir {
            // A file for nothing shows at once whether there can be files, and takes what the device needs for them.
            let refused = |error| Error::Device { action: "while trying to spill".to_string(), error };
            device.destroy_memory(device.create_spill(folder, 1).map_err(refused)?);
        }
        let reserved_host_bytes = device.usage().host_bytes + STAGING_BYTES;
        let mut options = options.clone();
        if let Some(described) = &options.machine {
            options.device_memory.get_or_insert(MemorySize::Bytes(described.device_memory_bytes));
            options.host_memory.get_or_insert(MemorySize::Bytes(described.host_memory_bytes));
        }
        Ok(LimitedDevice { device, options, reserved_host_bytes })
    }

    /// Whether what exceeds the host memory may go to disk.
    pub(crate) fn spills(&self) -> bool {
        self.options.spill_dir.is_some() || self.options.machine.is_some()
    }

    /// What launches and copies of a program are thought to take before anything is measured; and which launches the given
    /// costs do not know.
    ///
    /// # Errors
    /// Costs of another program.
    pub(crate) fn costs(&self, program: &Program) -> Result<(Costs, Option<Unknown>), Error> {
        let estimated = match &self.options.machine {
            Some(described) => estimate_on(program, described),
            None => estimate(program, self.device.limits()),
        };
        match &self.options.costs {
            Some(saved) => Ok(saved.apply(program, estimated)?),
            None => Ok((estimated, None)),
        }
    }

    /// Estimates what is planned from now on, since the given costs are those of a plan that was made: other plans have other
    /// launches, and need not share any.
    pub(crate) fn forget_costs(&mut self) {
        self.options.costs = None;
    }

    /// Turns budgets that are shares into bytes, so that plans made later have the budgets of the first one.
    pub(crate) fn fix_budgets(&mut self, in_core_peak_bytes: u64) {
        for size in [&mut self.options.device_memory, &mut self.options.host_memory].into_iter().flatten() {
            *size = MemorySize::Bytes(size.resolve(in_core_peak_bytes));
        }
    }
}

/// A device that can be named in [`DeviceOptions::device`].
#[derive(Clone, Debug, PartialEq)]
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
    for name in ["host", "null"] {
        let machine = LimitedDevice::open(&DeviceOptions { device: name.to_string(), ..DeviceOptions::default() })?;
        let limits = machine.device.limits().clone();
        let (name, description) = (name.to_string(), limits.name.clone());
        all.push(DeviceDescription { name, description, limits: Ok(limits), matrix_types: Vec::new() });
    }
    match adapters() {
        Ok(adapters) if adapters.is_empty() => all.push(no_vulkan("no Vulkan: there is no driver of a device")),
        Ok(adapters) => all.extend(adapters.into_iter().map(|adapter| {
            let name = format!("vulkan:{}", adapter.index);
            let description = format!("{} ({}; {})", adapter.name, adapter.kind, adapter.driver);
            let opened = match adapter.lacks {
                Some(lacks) => Err(format!("{description} lacks {lacks}")),
                None => vulkan(&name, &DeviceOptions::default()).map_err(|error| error.to_string()),
            };
            let matrix_types =
                opened.as_ref().map(|device| matrix_types(device.offer().cooperative)).unwrap_or_default();
            let limits = opened.map(|device| device.limits().clone());
            DeviceDescription { name, description, limits, matrix_types }
        })),
        Err(error) => all.push(no_vulkan(&error.to_string())),
    }
    Ok(all)
}

/// What is said of Vulkan where there is none.
fn no_vulkan(reason: &str) -> DeviceDescription {
    let (name, description) = ("vulkan".to_string(), "GPUs of every vendor".to_string());
    DeviceDescription { name, description, limits: Err(reason.to_string()), matrix_types: Vec::new() }
}

/// Of which types subgroups multiply matrices together.
fn matrix_types(offered: Option<Cooperative>) -> Vec<DataType> {
    let Some(Cooperative { float16, bfloat16 }) = offered else { return Vec::new() };
    let types = [(float16, DataType::Float16), (bfloat16, DataType::BFloat16)];
    types.into_iter().filter_map(|(is_offered, data_type)| is_offered.then_some(data_type)).collect()
}

fn open(options: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
    if options.threads == Some(0) {
        return Err(Error::Option { reason: "a device needs at least one thread".to_string() });
    }
    if let Some(described) = &options.machine {
        let limits = Limits { memory_bytes: DESCRIBED_BYTES_MAX, ..described.limits() };
        return null_device(NullDevice::with_limits(limits), &described.name, options);
    }
    match options.device.as_str() {
        "host" => {
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
        "null" => null_device(NullDevice::new(NullProfile::Tiled), "null", options),
        name if name == "vulkan" || name.starts_with("vulkan:") => Ok(Arc::new(vulkan(name, options)?)),
        name => {
            let reason = format!("there is no device '{name}' (there are: {DEVICES})");
            Err(Error::Option { reason })
        }
    }
}

/// A device of the machine's Vulkan drivers: `vulkan` for the first, `vulkan:` and its number or a part of its name.
fn vulkan(name: &str, options: &DeviceOptions) -> Result<VulkanDevice, Error> {
    let usual = VulkanOptions::default();
    let settings = VulkanOptions {
        device: name.strip_prefix("vulkan:").map(str::to_string),
        tiled: options.tiled,
        tile_size_bytes: options.tile_size,
        heap_bytes_max: options.heap_size.unwrap_or(usual.heap_bytes_max),
        ..usual
    };
    VulkanDevice::open(&settings).map_err(|error| refused(name, error))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_matrices_are_those_that_are_offered() {
        let (none, brain) = (Vec::new(), vec![DataType::BFloat16]);
        assert_eq!(matrix_types(None), none);
        assert_eq!(matrix_types(Some(Cooperative { float16: false, bfloat16: true })), brain);
        let both = matrix_types(Some(Cooperative { float16: true, bfloat16: true }));
        assert_eq!(both, [DataType::Float16, DataType::BFloat16]);
    }
}
