//! What a kind of device offers to the registry of devices: its name, which devices of it there are, and how one is opened.

use std::sync::Arc;

use forebay_base::{DataType, Limits};

use crate::device::{Device, DeviceError};

/// How a device is opened. What a backend has no use for, it ignores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Threads for kernels and copies together; as many as the machine runs at once, where not given.
    pub threads: Option<usize>,
    /// Whether heaps are mapped tile by tile where the device can. Without, memory is placed heaps.
    pub tiled: bool,
    /// The unit in which heaps are mapped, in bytes; the device's own where not given.
    pub tile_size_bytes: Option<u64>,
    /// The largest heap behind a reservation, in bytes; the device's own where not given.
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

/// A kind of device.
pub trait Backend: Sync {
    /// Its name, which stands before the colon of a device's name.
    fn name(&self) -> &'static str;

    /// What may stand behind the colon to choose one of several devices, in capitals: `NUMBER`, for example. None where there is
    /// only one device.
    fn choices(&self) -> &'static [&'static str] {
        &[]
    }

    /// The devices of this kind on this machine. Where there is none, one entry says why.
    ///
    /// # Errors
    /// Where the system refuses what a device needs that is always there.
    fn list(&self) -> Result<Vec<DeviceDescription>, DeviceError>;

    /// Opens a device: the first one, or the one that is chosen.
    ///
    /// # Errors
    /// [`DeviceError::Setting`] for a device that is not there and for options that it cannot have; what the system refuses.
    fn open(&self, choice: Option<&str>, options: &OpenOptions) -> Result<Arc<dyn Device>, DeviceError>;
}

/// The only device of a kind, as it is when it is opened without options.
pub(crate) fn only(backend: &dyn Backend) -> Result<Vec<DeviceDescription>, DeviceError> {
    let limits = backend.open(None, &OpenOptions::default())?.limits().clone();
    let (name, description) = (backend.name().to_string(), limits.name.clone());
    Ok(vec![DeviceDescription { name, description, limits: Ok(limits), matrix_types: Vec::new() }])
}
