//! The host device for the registry of devices.

use std::sync::Arc;

use super::{HostDevice, HostOptions};
use crate::backend::{Backend, DeviceDescription, OpenOptions, only};
use crate::device::{Device, DeviceError};

/// `host`: the CPU.
pub struct HostBackend;

impl Backend for HostBackend {
    fn name(&self) -> &'static str {
        "host"
    }

    fn list(&self) -> Result<Vec<DeviceDescription>, DeviceError> {
        only(self)
    }

    fn open(&self, _: Option<&str>, options: &OpenOptions) -> Result<Arc<dyn Device>, DeviceError> {
        let usual = HostOptions::default();
        let settings = HostOptions {
            threads: options.threads,
            tiled: options.tiled,
            tile_size_bytes: options.tile_size_bytes.unwrap_or(usual.tile_size_bytes),
            heap_bytes_max: options.heap_bytes_max.unwrap_or(usual.heap_bytes_max),
            link_bytes_per_second: options.link_bytes_per_second,
            ..usual
        };
        Ok(Arc::new(HostDevice::new(&settings)?))
    }
}
