//! In the place of Vulkan's devices: a build without them says so.

use std::sync::Arc;

use forebay_device::backend::{Backend, DeviceDescription, OpenOptions};
use forebay_device::{Device, DeviceError};

/// Why there is no Vulkan, and what to do.
const MISSING: &str = "this build has no Vulkan: build it with the feature `vulkan`, which is on by default";

/// `vulkan`, which is missing.
pub(crate) struct VulkanBackend;

impl Backend for VulkanBackend {
    fn name(&self) -> &'static str {
        "vulkan"
    }

    fn choices(&self) -> &'static [&'static str] {
        &["NUMBER", "NAME"]
    }

    fn list(&self) -> Result<Vec<DeviceDescription>, DeviceError> {
        let (name, description) = (self.name().to_string(), "GPUs of every vendor".to_string());
        Ok(vec![DeviceDescription { name, description, limits: Err(MISSING.to_string()), matrix_types: Vec::new() }])
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
        assert!(error.contains("feature `vulkan`"), "{error}");
        let devices = crate::devices().unwrap();
        assert!(devices.iter().any(|device| device.name == "vulkan" && device.limits.is_err()));
    }
}
