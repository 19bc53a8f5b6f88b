//! Takes the place of the Vulkan devices in a build without them, and says so.

use std::sync::Arc;

use forebay_device::backend::{Backend, DeviceDescription, OpenOptions};
use forebay_device::{Device, DeviceError};

/// Why Vulkan is missing, and what to do.
const MISSING: &str = "this build does not include Vulkan; build it with the `vulkan` feature, which is on by default";

/// `vulkan`, which this build lacks.
pub(crate) struct VulkanBackend;

impl Backend for VulkanBackend {
    fn name(&self) -> &'static str {
        "vulkan"
    }

    fn choices(&self) -> &'static [&'static str] {
        &["NUMBER", "NAME"]
    }

    fn list(&self) -> Result<Vec<DeviceDescription>, DeviceError> {
        let missing = Err(MISSING.to_string());
        Ok(vec![DeviceDescription::new(self.name(), "GPUs of every vendor", missing, Vec::new())])
    }

    fn open(&self, _: Option<&str>, _: &OpenOptions) -> Result<Arc<dyn Device>, DeviceError> {
        Err(DeviceError::Setting { reason: MISSING.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vulkan_is_refused_with_a_way_out() {
        let error = crate::open("vulkan:0", &OpenOptions::default()).err().expect("refused").to_string();
        assert!(error.contains("`vulkan` feature"), "{error}");
        let devices = crate::devices().unwrap();
        assert!(devices.iter().any(|device| device.name == "vulkan" && device.limits.is_err()));
    }
}
