//! On what machine, and within what memory.

use forebay_base::Limits;

use crate::budget::MemorySize;
use crate::error::Error;
use crate::machine::Machine;

/// The machine that runs a model, and how much of it may be used.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceOptions {
    /// `host`, or `null` (plans and records, computes nothing).
    pub device: String,
    /// Threads for kernels and copies together; as many as the machine runs at once, where not given. No result depends
    /// on it.
    pub threads: Option<usize>,
    /// Device memory that may exist at once; unlimited where not given.
    pub device_memory: Option<MemorySize>,
    /// Host memory for swapped tensors, inputs, outputs and staging; unlimited where not given.
    pub host_memory: Option<MemorySize>,
    /// Whether neighbouring kernels become one.
    pub fuse: bool,
    /// Whether every plan is checked for races and lost data before it runs. Always so in debug builds.
    pub check: bool,
    /// Whether to keep when every command ran.
    pub trace: bool,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            device: "host".to_string(),
            threads: None,
            device_memory: None,
            host_memory: None,
            fuse: true,
            check: false,
            trace: false,
        }
    }
}

/// A device that can be named in [`DeviceOptions::device`].
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceDescription {
    /// The name to give.
    pub name: &'static str,
    /// What it can do.
    pub limits: Limits,
}

/// Names of all devices.
pub(crate) const DEVICES: [&str; 2] = ["host", "null"];

/// The devices of this machine.
///
/// # Errors
/// Where the system refuses what a device needs.
pub fn devices() -> Result<Vec<DeviceDescription>, Error> {
    DEVICES
        .iter()
        .map(|&name| {
            let machine = Machine::open(&DeviceOptions { device: name.to_string(), ..DeviceOptions::default() })?;
            Ok(DeviceDescription { name, limits: machine.device.limits().clone() })
        })
        .collect()
}
