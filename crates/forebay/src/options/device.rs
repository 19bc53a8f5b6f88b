//! Which device.

use std::fmt;
use std::str::FromStr;

use forebay_plan::{MachineDescription, Network};

use crate::Shard;
use crate::error::Error;
use crate::process_group::ProcessGroup;

/// A device by its name on the command line: a backend (`host`, `null`, `vulkan`), and where there may be several devices of it,
/// which one (`vulkan:0`, `vulkan:radeon`). `cpu` is another name of `host`.
///
/// A name says nothing of whether there is such a device: that shows when it is opened. [`devices`](crate::devices) lists what
/// there is.
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
    /// What stands before the colon: `vulkan` of `vulkan:1`.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// What stands behind the colon, where there is one: a number, or a part of the name that a driver gives.
    pub fn adapter(&self) -> Option<&str> {
        self.adapter.as_deref()
    }

    /// The same as a number, where it is one.
    pub fn index(&self) -> Option<usize> {
        self.adapter.as_ref()?.parse().ok()
    }
}

impl Default for DeviceName {
    /// The device that is there on every machine.
    fn default() -> DeviceName {
        DeviceName { backend: forebay_devices::DEFAULT.to_string(), adapter: None }
    }
}

impl FromStr for DeviceName {
    type Err = Error;

    /// # Errors
    /// A name with nothing before or behind its colon.
    fn from_str(text: &str) -> Result<DeviceName, Error> {
        let (backend, adapter) = match text.split_once(':') {
            Some((backend, adapter)) => (backend, Some(adapter)),
            None => (text, None),
        };
        if backend.is_empty() || adapter.is_some_and(str::is_empty) {
            let reason =
                format!("'{text}' names no device: write BACKEND, BACKEND:NUMBER or BACKEND:NAME, as in vulkan:0");
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
    /// A machine to plan for instead, whether or not it is there. Its memories are budgets where none are given, what exceeds
    /// that of the host goes to its disk, and nothing is computed.
    pub machine: Option<MachineDescription>,
    /// Threads for kernels and copies together; as many as the machine runs at once, where not given. No result depends
    /// on it.
    pub threads: Option<usize>,
    /// The largest heap behind a reservation, in bytes; the device's own limit where not given.
    pub heap_size: Option<u64>,
    /// The unit in which heaps are mapped, in bytes: a power of two, whole pages, no more than a heap; the device's own where
    /// not given. No result depends on it.
    pub tile_size: Option<u64>,
    /// Whether heaps are mapped tile by tile where the device can. Without, memory is placed heaps. No result depends on it.
    pub tiled: bool,
    /// The processes that compute one batch together; this one alone where not given.
    pub processes: Option<ProcessGroup>,
    /// What of a training step each of these processes keeps a slice of.
    pub shard: Shard,
    /// What lies between these processes, for predictions; what the machine's description says, where not given.
    pub network: Option<Network>,
    /// Slows copies between host and device down to this many bytes per second in each direction, for experiments with
    /// device `host`; at full speed where not given.
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
            assert!(error.contains(&format!("'{text}' names no device")), "{error}");
        }
    }
}
