//! The Vulkan devices of a machine, and which of them can be used.

use std::ffi::CStr;

use ash::vk;
use forebay_device::DeviceError;
use forebay_gpu_kernels::{BINDINGS, WORKGROUP_INVOCATIONS};

use crate::system::{System, entry};

/// A Vulkan device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The device's number, as in `vulkan:NUMBER`.
    pub index: usize,
    /// The device's name.
    pub name: String,
    /// The driver's name and version.
    pub driver: String,
    /// `discrete GPU`, `integrated GPU`, `virtual GPU`, `CPU` or `other`.
    pub kind: &'static str,
    /// The size in bytes of the largest memory that is local to the device.
    pub memory_bytes: u64,
    /// Whether heaps can be mapped tile by tile (sparse buffers with residency and aliasing).
    pub tiled: bool,
    /// What the device lacks to be used here; `None` if it can be used.
    pub lacks: Option<String>,
}

/// Returns the Vulkan devices of this machine.
///
/// # Errors
/// [`DeviceError::Setting`] if there is no Vulkan loader or no driver.
pub fn adapters() -> Result<Vec<Adapter>, DeviceError> {
    let system = System::new(entry()?, false)?;
    Ok(physical(&system)?.into_iter().map(|(_, adapter)| adapter).collect())
}

/// Returns the physical devices with their descriptions.
pub(crate) fn physical(system: &System) -> Result<Vec<(vk::PhysicalDevice, Adapter)>, DeviceError> {
    // SAFETY: the instance lives.
    let devices = unsafe { system.instance.enumerate_physical_devices() };
    let devices = devices.map_err(crate::system::no_vulkan)?;
    Ok(devices.into_iter().enumerate().map(|(index, device)| (device, describe(system, index, device))).collect())
}

/// Returns the device that is asked for.
///
/// # Errors
/// The same as those of [`chosen`].
pub(crate) fn choose(system: &System, asked: Option<&str>) -> Result<(vk::PhysicalDevice, Adapter), DeviceError> {
    let (devices, adapters): (Vec<_>, Vec<_>) = physical(system)?.into_iter().unzip();
    let adapter = chosen(&adapters, asked).map_err(|reason| DeviceError::Setting { reason })?;
    Ok((devices[adapter.index], adapter.clone()))
}

/// Returns the adapter that is asked for by its number or a part of its name: of those whose names contain it, the first one that can be
/// used. With `None`, returns the first one that can be used (GPUs before CPUs).
///
/// # Errors
/// Why there is none, with a list of the available devices.
fn chosen<'a>(all: &'a [Adapter], asked: Option<&str>) -> Result<&'a Adapter, String> {
    let found = match asked {
        None => all.iter().filter(|adapter| adapter.lacks.is_none()).min_by_key(|adapter| rank(adapter.kind)),
        Some(asked) => match asked.parse::<usize>() {
            Ok(index) => all.get(index),
            Err(_) => {
                let asked = asked.to_lowercase();
                let named = all.iter().filter(|adapter| adapter.name.to_lowercase().contains(&asked));
                named.min_by_key(|adapter| adapter.lacks.is_some())
            }
        },
    };
    let list = || match all {
        [] => "Vulkan found no device on this machine (is a driver installed?)".to_string(),
        all => {
            let names = all.iter().map(|adapter| match &adapter.lacks {
                None => format!("{} ({})", adapter.index, adapter.name),
                Some(lacks) => format!("{} ({}, which lacks {lacks})", adapter.index, adapter.name),
            });
            format!("found: {}", names.collect::<Vec<_>>().join(", "))
        }
    };
    match (found, asked) {
        (None, Some(asked)) => Err(format!("unknown Vulkan device '{asked}'; {}", list())),
        (None, None) => Err(format!("no usable Vulkan device; {}", list())),
        (Some(Adapter { index, name, lacks: Some(lacks), .. }), _) => {
            Err(format!("Vulkan device {index} ({name}) lacks {lacks}; {}", list()))
        }
        (Some(adapter), _) => Ok(adapter),
    }
}

/// Returns a device's rank in the order in which devices are chosen.
fn rank(kind: &str) -> usize {
    ["discrete GPU", "integrated GPU", "virtual GPU", "CPU"].iter().position(|&known| known == kind).unwrap_or(4)
}

fn describe(system: &System, index: usize, device: vk::PhysicalDevice) -> Adapter {
    let mut driver = vk::PhysicalDeviceDriverProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut driver);
    // SAFETY: the device is the instance's; queries without other preconditions.
    let memory = unsafe {
        system.instance.get_physical_device_properties2(device, &mut properties);
        system.instance.get_physical_device_memory_properties(device)
    };
    let properties = properties.properties;
    let text = |chars: &[std::ffi::c_char]| {
        // SAFETY: Vulkan ends its names within their arrays.
        unsafe { CStr::from_ptr(chars.as_ptr()) }.to_string_lossy().into_owned()
    };
    let kind = match properties.device_type {
        vk::PhysicalDeviceType::DISCRETE_GPU => "discrete GPU",
        vk::PhysicalDeviceType::INTEGRATED_GPU => "integrated GPU",
        vk::PhysicalDeviceType::VIRTUAL_GPU => "virtual GPU",
        vk::PhysicalDeviceType::CPU => "CPU",
        _ => "other",
    };
    let own =
        memory.memory_heaps_as_slice().iter().filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    Adapter {
        index,
        name: text(&properties.device_name),
        driver: format!("{} {}", text(&driver.driver_name), text(&driver.driver_info)).trim().to_string(),
        kind,
        memory_bytes: own.map(|heap| heap.size).max().unwrap_or(0),
        tiled: tiled(system, device),
        lacks: lacks(system, device, properties.api_version).or_else(|| lacks_size(&properties.limits)),
    }
}

/// Returns whether buffers can be sparse, partly resident, and share memory, on some queue.
fn tiled(system: &System, device: vk::PhysicalDevice) -> bool {
    // SAFETY: as in `describe`.
    let (features, families) = unsafe {
        (
            system.instance.get_physical_device_features(device),
            system.instance.get_physical_device_queue_family_properties(device),
        )
    };
    let buffers = [features.sparse_binding, features.sparse_residency_buffer, features.sparse_residency_aliased];
    buffers.iter().all(|&feature| feature == vk::TRUE)
        && families.iter().any(|family| family.queue_flags.contains(vk::QueueFlags::SPARSE_BINDING))
}

/// Returns which requirement of the shaders a device's limits do not meet, if any.
fn lacks_size(limits: &vk::PhysicalDeviceLimits) -> Option<String> {
    let invocations = limits.max_compute_work_group_invocations.min(limits.max_compute_work_group_size[0]);
    let bindings = limits.max_per_stage_descriptor_storage_buffers.min(limits.max_descriptor_set_storage_buffers);
    let needed = [
        (invocations, WORKGROUP_INVOCATIONS, "invocations per workgroup"),
        (bindings, BINDINGS, "storage buffers per shader"),
    ];
    let lacking = needed.iter().find(|(has, needs, _)| has < needs);
    lacking.map(|(has, needs, what)| format!("{needs} {what} (it has {has})"))
}

/// Returns which requirement for use here a device does not meet, if any.
fn lacks(system: &System, device: vk::PhysicalDevice, api_version: u32) -> Option<String> {
    if api_version < vk::API_VERSION_1_3 {
        let (major, minor) = (vk::api_version_major(api_version), vk::api_version_minor(api_version));
        return Some(format!("Vulkan 1.3 (it has {major}.{minor})"));
    }
    let mut vulkan_12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut vulkan_13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut vulkan_12).push_next(&mut vulkan_13);
    // SAFETY: as in `describe`.
    let families = unsafe {
        system.instance.get_physical_device_features2(device, &mut features);
        system.instance.get_physical_device_queue_family_properties(device)
    };
    if !families.iter().any(|family| family.queue_flags.contains(vk::QueueFlags::COMPUTE)) {
        return Some("a compute queue".to_string());
    }
    let needed = [
        (vulkan_12.timeline_semaphore, "timeline semaphores"),
        (vulkan_12.host_query_reset, "host query reset"),
        (vulkan_12.vulkan_memory_model, "the Vulkan memory model"),
        (vulkan_12.buffer_device_address, "buffer device addresses"),
        (vulkan_13.synchronization2, "synchronization2"),
    ];
    needed.iter().find(|(feature, _)| *feature != vk::TRUE).map(|(_, name)| (*name).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_chooses_the_first_device_that_can_be_used() {
        let adapter = |index: usize, name: &str, kind: &'static str, lacks: Option<&str>| Adapter {
            index,
            name: name.to_string(),
            driver: String::new(),
            kind,
            memory_bytes: 0,
            tiled: false,
            lacks: lacks.map(str::to_string),
        };
        let all = [
            adapter(0, "Intel HD 4000", "integrated GPU", Some("Vulkan 1.3 (it has 1.2)")),
            adapter(1, "llvmpipe", "CPU", None),
            adapter(2, "Intel Arc A770", "discrete GPU", None),
            adapter(3, "Intel Arc B580", "discrete GPU", None),
        ];
        let index = |asked| chosen(&all, asked).map(|adapter| adapter.index);
        assert_eq!(index(Some("intel")), Ok(2));
        assert_eq!(index(Some("B580")), Ok(3));
        assert_eq!(index(Some("1")), Ok(1));
        assert_eq!(index(None), Ok(2));
        for asked in ["0", "hd 4000"] {
            let error = index(Some(asked)).unwrap_err();
            let expected =
                "Vulkan device 0 (Intel HD 4000) lacks Vulkan 1.3 (it has 1.2); found: 0 (Intel HD 4000, which lacks";
            assert!(error.starts_with(expected) && error.ends_with("3 (Intel Arc B580)"), "{error}");
        }
        assert_eq!(index(Some("amd")).unwrap_err().split(';').next(), Some("unknown Vulkan device 'amd'"));
        assert!(chosen(&[], None).unwrap_err().contains("is a driver installed?"));
    }

    #[test]
    fn small_limits_are_named_with_their_numbers() {
        let mut limits = vk::PhysicalDeviceLimits {
            max_compute_work_group_invocations: 128,
            max_compute_work_group_size: [1024, 1024, 64],
            max_per_stage_descriptor_storage_buffers: 30,
            max_descriptor_set_storage_buffers: 96,
            ..Default::default()
        };
        assert_eq!(lacks_size(&limits).unwrap(), "256 invocations per workgroup (it has 128)");
        limits.max_compute_work_group_invocations = 256;
        assert_eq!(lacks_size(&limits), None);
        limits.max_per_stage_descriptor_storage_buffers = 4;
        assert_eq!(lacks_size(&limits).unwrap(), "11 storage buffers per shader (it has 4)");
    }
}
