//! In the place of Vulkan's devices: a build without them says so.

use std::sync::Arc;

use forebay_device::Device;

use super::DeviceDescription;
use crate::error::Error;
use crate::options::DeviceOptions;

/// Why there is no Vulkan, and what to do.
const MISSING: &str = "this build has no Vulkan: build it with the feature `vulkan`, which is on by default";

/// A row that says why there is none.
pub(super) fn describe() -> Vec<DeviceDescription> {
    let (name, description) = ("vulkan".to_string(), "GPUs of every vendor".to_string());
    vec![DeviceDescription { name, description, limits: Err(MISSING.to_string()), matrix_types: Vec::new() }]
}

/// Refuses to open a device.
pub(super) fn open(_: Option<&str>, _: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
    Err(Error::Option { reason: MISSING.to_string() })
}

#[cfg(test)]
mod tests {
    use crate::options::{DeviceName, DeviceOptions};

    #[test]
    fn vulkan_is_refused_with_a_way_out() {
        let options = DeviceOptions { name: DeviceName::vulkan(), ..DeviceOptions::default() };
        let error = crate::open_device(&options).err().expect("refused").to_string();
        assert!(error.contains("feature `vulkan`"), "{error}");
        let devices = crate::devices().unwrap();
        assert!(devices.iter().any(|device| device.name == "vulkan" && device.limits.is_err()));
    }
}
