//! The Vulkan devices, for the registry.

use std::sync::Arc;

use forebay_base::DataType;
use forebay_device::backend::{Backend, DeviceDescription, OpenOptions};
use forebay_device::{Device, DeviceError};
use forebay_gpu_kernels::Cooperative;

use crate::adapter::{Adapter, adapters};
use crate::device::{VulkanDevice, VulkanOptions};

/// The backend `vulkan` (the first GPU), or `vulkan:` followed by a number or a part of a name.
pub struct VulkanBackend;

impl Backend for VulkanBackend {
    fn name(&self) -> &'static str {
        "vulkan"
    }

    fn choices(&self) -> &'static [&'static str] {
        &["NUMBER", "NAME"]
    }

    fn list(&self) -> Result<Vec<DeviceDescription>, DeviceError> {
        Ok(match adapters() {
            Ok(adapters) if adapters.is_empty() => vec![none("Vulkan is not available: no device has a driver")],
            Ok(adapters) => adapters.into_iter().map(describe).collect(),
            Err(error) => vec![none(&error.to_string())],
        })
    }

    fn open(&self, choice: Option<&str>, options: &OpenOptions) -> Result<Arc<dyn Device>, DeviceError> {
        Ok(Arc::new(open(choice, options)?))
    }
}

fn open(choice: Option<&str>, options: &OpenOptions) -> Result<VulkanDevice, DeviceError> {
    let usual = VulkanOptions::default();
    let settings = VulkanOptions {
        device: choice.map(str::to_string),
        tiled: options.tiled,
        tile_size_bytes: options.tile_size_bytes,
        heap_bytes_max: options.heap_bytes_max.unwrap_or(usual.heap_bytes_max),
        ..usual
    };
    VulkanDevice::open(&settings)
}

/// Describes an adapter, and what it can do when opened.
fn describe(adapter: Adapter) -> DeviceDescription {
    let index = adapter.index.to_string();
    let name = format!("vulkan:{index}");
    let description = format!("{} ({}; {})", adapter.name, adapter.kind, adapter.driver);
    let opened = match adapter.lacks {
        Some(lacks) => Err(format!("{description} lacks {lacks}")),
        None => open(Some(&index), &OpenOptions::default()).map_err(|error| error.to_string()),
    };
    let matrix_types = opened.as_ref().map(|device| matrix_types(device.target().cooperative)).unwrap_or_default();
    DeviceDescription::new(name, description, opened.map(|device| device.limits().clone()), matrix_types)
}

/// Returns the description of Vulkan if it is not available.
fn none(reason: &str) -> DeviceDescription {
    DeviceDescription::new("vulkan", "GPUs of every vendor", Err(reason.to_string()), Vec::new())
}

/// Returns the types of which there are cooperative matrices.
fn matrix_types(offered: Option<Cooperative>) -> Vec<DataType> {
    let Some(Cooperative { float16, bfloat16 }) = offered else { return Vec::new() };
    let types = [(float16, DataType::Float16), (bfloat16, DataType::BFloat16)];
    types.into_iter().filter_map(|(is_offered, data_type)| is_offered.then_some(data_type)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_matrices_are_those_that_are_offered() {
        let (none, brain) = (Vec::new(), vec![DataType::BFloat16]);
        assert_eq!(matrix_types(None), none);
        assert_eq!(matrix_types(Some(Cooperative { float16: false, bfloat16: true })), brain);
        let both = matrix_types(Some(Cooperative { float16: true, bfloat16: true }));
        assert_eq!(both, [DataType::Float16, DataType::BFloat16]);
    }
}
