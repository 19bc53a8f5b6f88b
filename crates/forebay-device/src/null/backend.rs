//! The null device for the registry of devices.

use std::sync::Arc;

use forebay_base::Limits;

use super::{NullDevice, NullProfile};
use crate::backend::{Backend, DeviceDescription, OpenOptions, only};
use crate::device::{Device, DeviceError};

/// The memory of a device that is only described, in bytes: only the budget matters, which need not be that of the description.
const DESCRIBED_BYTES_MAX: u64 = 1 << 50;

/// `null`: a device that plans and records, and computes nothing.
pub struct NullBackend;

impl Backend for NullBackend {
    fn name(&self) -> &'static str {
        "null"
    }

    fn list(&self) -> Result<Vec<DeviceDescription>, DeviceError> {
        only(self)
    }

    fn open(&self, _: Option<&str>, options: &OpenOptions) -> Result<Arc<dyn Device>, DeviceError> {
        with_heaps(NullDevice::new(NullProfile::Tiled), options)
    }
}

/// Returns a device that represents a machine with these limits and as much memory as anyone plans for. It computes nothing.
///
/// # Errors
/// [`DeviceError::Setting`] for impossible sizes of heaps and tiles.
pub fn described(limits: Limits, options: &OpenOptions) -> Result<Arc<dyn Device>, DeviceError> {
    with_heaps(NullDevice::with_limits(Limits { memory_bytes: DESCRIBED_BYTES_MAX, ..limits }), options)
}

/// Returns the device with the heaps that the options ask for.
fn with_heaps(device: NullDevice, options: &OpenOptions) -> Result<Arc<dyn Device>, DeviceError> {
    let device = if options.tiled { device } else { device.without_tiles() };
    let usual = device.limits();
    let tile_bytes = options.tile_size_bytes.unwrap_or(usual.tile_size_bytes);
    let heap_bytes = options.heap_bytes_max.unwrap_or(usual.heap_size_max_bytes);
    Ok(Arc::new(device.with_heaps(tile_bytes, heap_bytes)?))
}
