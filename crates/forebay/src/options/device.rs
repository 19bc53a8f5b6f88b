//! Device options.

use std::fmt;
use std::str::FromStr;

use forebay_plan::{MachineDescription, Network};

use crate::Shard;
use crate::error::Error;
use crate::process_group::ProcessGroup;

/// The name of a device, as on the command line: a backend (`host`, `null`, `vulkan`) and, if the backend can have several devices, which
/// one (`vulkan:0`, `vulkan:radeon`). `cpu` is another name for `host`.
///
/// A valid name does not imply that the device exists: that is checked when the device is opened. [`devices`](crate::devices) lists the
/// available devices.
///
/// ```
/// use forebay::DeviceName;
///
/// let name: DeviceName = "vulkan:1".parse()?;
/// assert_eq!((name.backend(), name.index(), name.to_string()), ("vulkan", Some(1), "vulkan:1".to_string()));
/// assert_eq!(DeviceName::default(), "host".parse()?);
/// assert_eq!("cpu".parse::<DeviceName>()?.to_string(), "host");
/// assert!("vulkan:".parse::<DeviceName>().is_err());
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceName {
    backend: String,
    adapter: Option<String>,
}

impl DeviceName {
    /// Returns the part before the colon: `vulkan` in `vulkan:1`.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// Returns the part after the colon, if there is one: a number, or part of the name that the driver reports.
    pub fn adapter(&self) -> Option<&str> {
        self.adapter.as_deref()
    }

    /// Returns the part after the colon as a number, if it is one.
    pub fn index(&self) -> Option<usize> {
        self.adapter.as_ref()?.parse().ok()
    }
}

impl Default for DeviceName {
    /// Returns the device that every machine has.
    fn default() -> DeviceName {
        DeviceName { backend: forebay_devices::DEFAULT.to_string(), adapter: None }
    }
}

impl FromStr for DeviceName {
    type Err = Error;

    /// # Errors
    /// Fails if the part before or after the colon is empty.
    fn from_str(text: &str) -> Result<DeviceName, Error> {
        let (backend, adapter) = match text.split_once(':') {
            Some((backend, adapter)) => (backend, Some(adapter)),
            None => (text, None),
        };
        if backend.is_empty() || adapter.is_some_and(str::is_empty) {
            let reason =
                format!("'{text}' is not a device name; write BACKEND, BACKEND:NUMBER or BACKEND:NAME, as in vulkan:0");
            return Err(Error::Option { reason });
        }
        let alias = forebay_devices::ALIASES.iter().find(|(alias, _)| *alias == text);
        let backend = alias.map_or(backend, |(_, backend)| *backend);
        Ok(DeviceName { backend: backend.to_string(), adapter: adapter.map(str::to_string) })
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.adapter {
            Some(adapter) => write!(f, "{}:{adapter}", self.backend),
            None => f.write_str(&self.backend),
        }
    }
}

/// Which device computes, and how it is opened.
///
/// ```
/// let mut device = forebay::DeviceOptions::default();
/// device.threads = Some(2);
/// assert_eq!(device.name.to_string(), "host");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// The device.
    pub name: DeviceName,
    /// A machine to plan for instead, whether or not it is available. Its memory sizes are the budgets if none are given, what exceeds its
    /// host memory goes to its disk, and nothing is computed.
    pub machine: Option<MachineDescription>,
    /// The number of threads for kernels and copies together; by default, as many as the machine runs at once. Results do not depend on it.
    pub threads: Option<usize>,
    /// The size of the largest heap that backs a reservation, in bytes; by default, the device's own limit.
    pub heap_size: Option<u64>,
    /// The unit in which heaps are mapped, in bytes: a power of two, a whole number of pages, and no larger than a heap; by default, the
    /// device's own unit. Results do not depend on it.
    pub tile_size: Option<u64>,
    /// Whether heaps are mapped tile by tile if the device supports it. Otherwise, memory consists of placed heaps. Results do not depend
    /// on it.
    pub tiled: bool,
    /// The processes that compute one batch together; by default, only this one.
    pub processes: Option<ProcessGroup>,
    /// Which values of a training step each of these processes keeps a slice of.
    pub shard: Shard,
    /// The network between these processes, for predictions; by default, the one in the machine's description.
    pub network: Option<Network>,
    /// Slows copies between host and device down to this many bytes per second in each direction, for experiments with the device `host`
    /// (others refuse it); by default, copies run at full speed.
    pub link_bytes_per_second: Option<u64>,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            name: DeviceName::default(),
            machine: None,
            threads: None,
            heap_size: None,
            tile_size: None,
            tiled: true,
            processes: None,
            shard: Shard::Nothing,
            network: None,
            link_bytes_per_second: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in ["host", "null", "vulkan", "vulkan:0", "vulkan:12", "vulkan:llvmpipe (LLVM 15): 256 bits", "tpu"] {
            let name: DeviceName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
        }
        let name: DeviceName = "vulkan:llvmpipe: 1".parse().unwrap();
        assert_eq!((name.backend(), name.adapter(), name.index()), ("vulkan", Some("llvmpipe: 1"), None));
        assert_eq!(DeviceName::default().to_string(), forebay_devices::DEFAULT);
        for text in ["", ":", ":0", "vulkan:"] {
            let error = text.parse::<DeviceName>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{text}' is not a device name")), "{error}");
        }
    }
}
