//! The devices of the machine's Vulkan drivers.

use std::sync::Arc;

use forebay_base::DataType;
use forebay_device::Device;
use forebay_vulkan::kernels::Cooperative;
use forebay_vulkan::{adapters, VulkanDevice, VulkanOptions};

use super::{refused, DeviceDescription};
use crate::error::Error;
use crate::options::DeviceOptions;

/// What there is; a row that says why where there is none.
pub(super) fn describe() -> Vec<DeviceDescription> {
    let adapters = match adapters() {
        Ok(adapters) if adapters.is_empty() => return vec![none("no Vulkan: there is no driver of a device")],
        Ok(adapters) => adapters,
        Err(error) => return vec![none(&error.to_string())],
    };
    let describe = |adapter: forebay_vulkan::Adapter| {
        let name = format!("vulkan:{}", adapter.index);
        let description = format!("{} ({}; {})", adapter.name, adapter.kind, adapter.driver);
        let opened = match adapter.lacks {
            Some(lacks) => Err(format!("{description} lacks {lacks}")),
            None => {
                let index = adapter.index.to_string();
                open_vulkan(Some(&index), &DeviceOptions::default()).map_err(|error| error.to_string())
            }
        };
        let matrix_types = opened.as_ref().map(|device| matrix_types(device.offer().cooperative)).unwrap_or_default();
        let limits = opened.map(|device| device.limits().clone());
        DeviceDescription { name, description, limits, matrix_types }
    };
    adapters.into_iter().map(describe).collect()
}

/// Opens the first device, or one by its number or a part of its name.
pub(super) fn open(adapter: Option<&str>, options: &DeviceOptions) -> Result<Arc<dyn Device>, Error> {
    Ok(Arc::new(open_vulkan(adapter, options)?))
}

fn open_vulkan(adapter: Option<&str>, options: &DeviceOptions) -> Result<VulkanDevice, Error> {
    let usual = VulkanOptions::default();
    let settings = VulkanOptions {
        device: adapter.map(str::to_string),
        tiled: options.tiled,
        tile_size_bytes: options.tile_size,
        heap_bytes_max: options.heap_size.unwrap_or(usual.heap_bytes_max),
        ..usual
    };
    let name = || adapter.map_or("vulkan".to_string(), |adapter| format!("vulkan:{adapter}"));
    VulkanDevice::open(&settings).map_err(|error| refused(&name(), error))
}

/// What is said of Vulkan where there is none.
fn none(reason: &str) -> DeviceDescription {
    let (name, description) = ("vulkan".to_string(), "GPUs of every vendor".to_string());
    DeviceDescription { name, description, limits: Err(reason.to_string()), matrix_types: Vec::new() }
}

/// Of which types subgroups multiply matrices together.
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
