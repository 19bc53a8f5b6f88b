//! The interface of a kind of device to the registry of devices: its name, the available devices, and how to open one.

use std::sync::Arc;

use forebay_base::{DataType, Limits};

use crate::device::{Device, DeviceError};

/// Options for opening a device. A backend ignores the options that it has no use for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// The number of threads for kernels and copies together; by default, as many as the machine runs at once.
    pub threads: Option<usize>,
    /// Whether heaps are mapped tile by tile if the device supports that. If not, memory consists of placed heaps.
    pub tiled: bool,
    /// The unit in which heaps are mapped, in bytes; by default, the device's own.
    pub tile_size_bytes: Option<u64>,
    /// The size of the largest heap behind a reservation, in bytes; by default, the device's own.
    pub heap_bytes_max: Option<u64>,
    /// Slows copies between host and device down to this many bytes per second in each direction, for experiments.
    pub link_bytes_per_second: Option<u64>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            threads: None,
            tiled: true,
            tile_size_bytes: None,
            heap_bytes_max: None,
            link_bytes_per_second: None,
        }
    }
}

/// A device that can be opened by its name, or the reason why it cannot.
///
/// ```
/// use forebay_device::backend::Backend;
/// use forebay_device::host::HostBackend;
///
/// for device in HostBackend.list()? {
///     match device.limits {
///         Ok(limits) => println!("{}: {} bytes", device.name, limits.memory_bytes),
///         Err(reason) => println!("{} cannot be used: {reason}", device.name),
///     }
/// }
/// # Ok::<(), forebay_device::DeviceError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceDescription {
    /// The name by which it is opened.
    pub name: String,
    /// A human-readable description: the driver of a GPU, for example.
    pub description: String,
    /// Its properties and limits, or the reason why it cannot be used.
    pub limits: Result<Limits, String>,
    /// The 16-bit types of which its subgroups multiply whole matrices together (cooperative matrices, which vendors call tensor cores or
    /// matrix cores). Products and convolutions of these types use them. Empty for a device that cannot be used.
    pub matrix_types: Vec<DataType>,
}

impl DeviceDescription {
    /// Returns the description of a device.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        limits: Result<Limits, String>,
        matrix_types: Vec<DataType>,
    ) -> DeviceDescription {
        DeviceDescription { name: name.into(), description: description.into(), limits, matrix_types }
    }
}

/// A kind of device.
pub trait Backend: Sync {
    /// Returns the name of this kind, which comes before the colon in a device's name.
    fn name(&self) -> &'static str;

    /// Returns what can follow the colon to choose one of several devices, in capitals: `NUMBER`, for example. Empty if there is only one
    /// device.
    fn choices(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the devices of this kind on this machine. If there are none, a single entry says why.
    ///
    /// # Errors
    /// Returns an error if the system refuses something that an always-present device needs.
    fn list(&self) -> Result<Vec<DeviceDescription>, DeviceError>;

    /// Opens a device: the chosen one, or the first.
    ///
    /// # Errors
    /// [`DeviceError::Setting`] for a device that does not exist and for unsupported options; another error if the system refuses
    /// something.
    fn open(&self, choice: Option<&str>, options: &OpenOptions) -> Result<Arc<dyn Device>, DeviceError>;
}

/// The only device of a kind, as opened with the default options.
pub(crate) fn only(backend: &dyn Backend) -> Result<Vec<DeviceDescription>, DeviceError> {
    let limits = backend.open(None, &OpenOptions::default())?.limits().clone();
    Ok(vec![DeviceDescription::new(backend.name(), limits.name.clone(), Ok(limits), Vec::new())])
}
