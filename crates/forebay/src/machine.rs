//! A device with the limits that its user set.

use std::sync::Arc;

use forebay_device::{Device, DeviceError};
pub use forebay_devices::DeviceDescription;
use forebay_devices::{OpenError, OpenOptions};
use forebay_memory::size::MemorySize;
use forebay_model::program::Program;
use forebay_plan::cost::{estimate, estimate_on, Costs};
use forebay_plan::saved_costs::Unknown;
use forebay_runtime::homes::STAGING_BYTES;

use crate::error::Error;
use crate::options::DeviceOptions;

/// A device with the limits that its user set.
pub(crate) struct Machine {
    /// The device.
    pub(crate) device: Arc<dyn Device>,
    /// What was asked for.
    pub(crate) options: DeviceOptions,
    /// Host bytes that are taken whatever the plan: the device's own, and the executor's staging.
    pub(crate) reserved_host_bytes: u64,
}

impl Machine {
    /// Opens the device that the options name.
    ///
    /// # Errors
    /// An unknown name, no threads, tiles that there cannot be, a folder to spill to that cannot be used, or what the system
    /// refuses.
    pub(crate) fn open(options: &DeviceOptions) -> Result<Machine, Error> {
        Machine::with_device(options, open(options)?)
    }

    /// A device of the caller's, on which nothing runs yet.
    ///
    /// # Errors
    /// A folder to spill to that cannot be used.
    pub(crate) fn with_device(options: &DeviceOptions, device: Arc<dyn Device>) -> Result<Machine, Error> {
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
        Ok(Machine { device, options, reserved_host_bytes })
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

/// The devices of this machine.
///
/// # Errors
/// Where the system refuses what the host device needs.
pub fn devices() -> Result<Vec<DeviceDescription>, Error> {
    forebay_devices::devices().map_err(refused)
}

fn open(options: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
    if options.threads == Some(0) {
        return Err(Error::Option { reason: "a device needs at least one thread".to_string() });
    }
    let how = OpenOptions {
        threads: options.threads,
        tiled: options.tiled,
        tile_size_bytes: options.tile_size,
        heap_bytes_max: options.heap_size,
        link_bytes_per_second: options.link_bytes_per_second,
    };
    let opened = match &options.machine {
        Some(machine) => forebay_devices::described(&machine.name, machine.limits(), &how),
        None => forebay_devices::open(&options.device, &how),
    };
    opened.map_err(refused)
}

/// Why a device cannot be opened.
fn refused(OpenError { name, error }: OpenError) -> Error {
    match error {
        DeviceError::Setting { reason } => Error::Option { reason },
        error => Error::Device { action: format!("while opening device {name}"), error },
    }
}
