//! The registry of devices. Nothing above it names a device: devices are listed and opened by names that the user supplies.
//!
//! To add a device, implement [`Backend`] in its crate and add a line to [`BACKENDS`].
//!
//! ```
//! use forebay_devices::{devices, open, OpenOptions};
//!
//! # fn main() -> Result<(), forebay_devices::OpenError> {
//! assert!(devices()?.iter().any(|device| device.name == forebay_devices::DEFAULT));
//! let device = open("host", &OpenOptions { threads: Some(1), ..OpenOptions::default() })?;
//! assert!(device.limits().tiled);
//! let error = open("abacus", &OpenOptions::default()).err().unwrap();
//! assert!(error.to_string().contains("unknown device 'abacus' (available: host, null"));
//! # Ok(())
//! # }
//! ```

#[cfg(not(feature = "vulkan"))]
mod without_vulkan;

use std::fmt;
use std::sync::Arc;

use forebay_base::Limits;
pub use forebay_device::backend::{Backend, DeviceDescription, OpenOptions};
use forebay_device::host::HostBackend;
use forebay_device::null::{self, NullBackend};
use forebay_device::{Device, DeviceError};
#[cfg(feature = "vulkan")]
use forebay_vulkan::VulkanBackend;
#[cfg(not(feature = "vulkan"))]
use without_vulkan::VulkanBackend;

/// Every kind of device, in listing order.
pub static BACKENDS: &[&dyn Backend] = &[&HostBackend, &NullBackend, &VulkanBackend];

/// The name of the device that is available on every machine.
pub const DEFAULT: &str = "host";

/// Names for backends that other frameworks use, with the names that they stand for.
pub const ALIASES: &[(&str, &str)] = &[("cpu", DEFAULT)];

/// A device that cannot be opened.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenError {
    /// The requested name.
    pub name: String,
    /// The reason.
    pub error: DeviceError,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            // The reason names what is wrong and what is possible.
            DeviceError::Setting { reason } => f.write_str(reason),
            error => write!(f, "cannot open device {}: {error}", self.name),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The devices of this machine, including why some cannot be used.
///
/// # Errors
/// If the system refuses something that a device that is always available needs.
pub fn devices() -> Result<Vec<DeviceDescription>, OpenError> {
    let mut all = Vec::new();
    for backend in BACKENDS {
        all.extend(backend.list().map_err(|error| OpenError { name: backend.name().to_string(), error })?);
    }
    Ok(all)
}

/// Opens a device by name: the name of its backend, followed by a colon and a choice if there can be several of its devices.
///
/// # Errors
/// If no device has the name, the device does not support the options, or the system refuses.
pub fn open(name: &str, options: &OpenOptions) -> Result<Arc<dyn Device>, OpenError> {
    let (kind, choice) = match name.split_once(':') {
        Some((kind, choice)) => (kind, Some(choice)),
        None => (name, None),
    };
    let fits = |backend: &&&dyn Backend| backend.name() == kind && (choice.is_none() || !backend.choices().is_empty());
    let failed = |error| OpenError { name: name.to_string(), error };
    match BACKENDS.iter().find(fits) {
        Some(backend) => backend.open(choice, options).map_err(failed),
        None => {
            let reason = format!("unknown device '{name}' (available: {})", names().join(", "));
            Err(failed(DeviceError::Setting { reason }))
        }
    }
}

/// Opens a device that stands in for a machine with these limits and computes nothing.
///
/// # Errors
/// If the device does not support the options.
pub fn described(name: &str, limits: Limits, options: &OpenOptions) -> Result<Arc<dyn Device>, OpenError> {
    null::described(limits, options).map_err(|error| OpenError { name: name.to_string(), error })
}

/// The forms of device names.
pub fn names() -> Vec<String> {
    let forms = |backend: &&dyn Backend| {
        let name = backend.name();
        let chosen = backend.choices().iter().map(move |choice| format!("{name}:{choice}"));
        std::iter::once(name.to_string()).chain(chosen).collect::<Vec<_>>()
    };
    BACKENDS.iter().flat_map(forms).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_backends_and_of_their_choices() {
        assert_eq!(names(), ["host", "null", "vulkan", "vulkan:NUMBER", "vulkan:NAME"]);
        assert_eq!(BACKENDS[0].name(), DEFAULT);
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        let refused = |name: &str, options: &OpenOptions| open(name, options).err().unwrap().to_string();
        for name in ["abacus", "host:1", "null:", "", "hosts"] {
            let error = refused(name, &OpenOptions::default());
            assert!(error.starts_with(&format!("unknown device '{name}' (available: host, null")), "{error}");
        }
        let tiles = OpenOptions { tile_size_bytes: Some(3), ..OpenOptions::default() };
        for name in ["host", "null"] {
            let error = refused(name, &tiles);
            assert!(!error.contains("cannot open") && error.contains('3'), "{error}");
        }
    }

    #[test]
    fn devices_that_are_always_there_are_listed_as_they_open() {
        let all = devices().unwrap();
        for (description, name) in all.iter().zip(["host", "null"]) {
            let device = open(name, &OpenOptions::default()).unwrap();
            assert_eq!((description.name.as_str(), description.limits.as_ref()), (name, Ok(device.limits())));
            assert_eq!(description.description, device.limits().name);
        }
        // A device that is missing states why.
        assert!(all.len() > 2);
    }

    #[test]
    fn heaps_are_as_the_options_ask() {
        for name in ["host", "null"] {
            let placed = OpenOptions { tiled: false, ..OpenOptions::default() };
            assert!(!open(name, &placed).unwrap().limits().tiled, "{name}");
            let small = OpenOptions { heap_bytes_max: Some(3 << 20), ..OpenOptions::default() };
            assert_eq!(open(name, &small).unwrap().limits().heap_size_max_bytes, 3 << 20, "{name}");
        }
        let limits = open("null", &OpenOptions::default()).unwrap().limits().clone();
        let device = described("a machine", Limits { workers: 7, ..limits }, &OpenOptions::default()).unwrap();
        assert_eq!((device.limits().workers, device.limits().memory_bytes), (7, 1 << 50));
    }
}
