//! Cooperative matrices: which ones the subgroups of a device can multiply, and how they are requested from a device.

use std::ffi::{CStr, c_void};

use ash::{khr, vk};
use forebay_gpu_kernels::{Cooperative, SUBGROUP_SIZE};

use crate::system::System;

/// The number of rows, columns and terms of the matrices for which shaders are written.
const SIDE: u32 = 16;
/// The number of bytes that the invocations of a workgroup need to share.
const SHARED_BYTES: u32 = 32 << 10;
/// `VK_KHR_shader_bfloat16`, which the bindings to Vulkan do not know yet.
const BFLOAT16_EXTENSION: &CStr = c"VK_KHR_shader_bfloat16";
const BFLOAT16_FEATURES: vk::StructureType = vk::StructureType::from_raw(1_000_141_000);
const BFLOAT16: vk::ComponentTypeKHR = vk::ComponentTypeKHR::from_raw(1_000_141_000);
/// The versions of Vulkan in which these extensions appeared.
const MATRICES_SINCE: u32 = vk::make_api_version(0, 1, 3, 255);
const BFLOAT16_SINCE: u32 = vk::make_api_version(0, 1, 4, 311);

/// `VkPhysicalDeviceShaderBfloat16FeaturesKHR`.
#[repr(C)]
pub(crate) struct BFloat16Features {
    kind: vk::StructureType,
    next: *mut c_void,
    numbers: vk::Bool32,
    dot_products: vk::Bool32,
    cooperative_matrices: vk::Bool32,
}

impl BFloat16Features {
    /// Returns the features that shaders need, requested or not.
    pub fn new(asked: bool) -> BFloat16Features {
        let asked = vk::Bool32::from(asked);
        BFloat16Features {
            kind: BFLOAT16_FEATURES,
            next: std::ptr::null_mut(),
            numbers: asked,
            dot_products: vk::FALSE,
            cooperative_matrices: asked,
        }
    }
}

// SAFETY: the structure begins with its type and a pointer, and Vulkan says where it may be chained.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for BFloat16Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for BFloat16Features {}

/// Returns the extensions that a device needs for the cooperative matrices that it supports.
pub(crate) fn extensions(cooperative: Option<Cooperative>) -> Vec<&'static CStr> {
    let Some(cooperative) = cooperative else { return Vec::new() };
    let mut names = vec![khr::cooperative_matrix::NAME];
    names.extend(cooperative.bfloat16.then_some(BFLOAT16_EXTENSION));
    names
}

/// Returns the products that a device with these extensions supports for shaders written for [`SIDE`] and [`SUBGROUP_SIZE`]. `None` if
/// there are none, or if the device cannot guarantee the number of invocations in a subgroup. Under validation, products that the layer is
/// too old to know are left out.
pub(crate) fn offered(
    system: &System,
    device: vk::PhysicalDevice,
    extensions: &[vk::ExtensionProperties],
) -> Option<Cooperative> {
    let has = |name: &CStr| extensions.iter().any(|one| one.extension_name_as_c_str() == Ok(name));
    if !has(khr::cooperative_matrix::NAME) || !system.can_judge(MATRICES_SINCE) {
        return None;
    }
    let knows_bfloat16 = has(BFLOAT16_EXTENSION) && system.can_judge(BFLOAT16_SINCE);
    let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut bfloat16 = BFloat16Features::new(false);
    let mut vulkan_12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut vulkan_13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut features = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut matrices)
        .push_next(&mut vulkan_12)
        .push_next(&mut vulkan_13);
    if knows_bfloat16 {
        features = features.push_next(&mut bfloat16);
    }
    let mut stages = vk::PhysicalDeviceCooperativeMatrixPropertiesKHR::default();
    let mut sizes = vk::PhysicalDeviceVulkan13Properties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut stages).push_next(&mut sizes);
    // SAFETY: the device is the instance's; queries without other preconditions.
    unsafe {
        system.instance.get_physical_device_features2(device, &mut features);
        system.instance.get_physical_device_properties2(device, &mut properties);
    }
    let limits = properties.properties.limits;
    let needed = [
        matrices.cooperative_matrix,
        vulkan_12.vulkan_memory_model_device_scope,
        vulkan_13.subgroup_size_control,
        vulkan_13.compute_full_subgroups,
    ];
    let has_subgroup_size = (sizes.min_subgroup_size..=sizes.max_subgroup_size).contains(&SUBGROUP_SIZE)
        && sizes.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let computes = stages.cooperative_matrix_supported_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let shares = limits.max_compute_shared_memory_size >= SHARED_BYTES;
    if needed.contains(&vk::FALSE) || !has_subgroup_size || !computes || !shares {
        return None;
    }
    let functions = khr::cooperative_matrix::Instance::new(&system.entry, &system.instance);
    // SAFETY: the device has the extension.
    let products = unsafe { functions.get_physical_device_cooperative_matrix_properties(device) }.ok()?;
    let multiplies = |data_type| products.iter().any(|product| is_product(product, data_type));
    let cooperative = Cooperative {
        float16: vulkan_12.shader_float16 == vk::TRUE && multiplies(vk::ComponentTypeKHR::FLOAT16),
        bfloat16: bfloat16.numbers == vk::TRUE && bfloat16.cooperative_matrices == vk::TRUE && multiplies(BFLOAT16),
    };
    (cooperative.float16 || cooperative.bfloat16).then_some(cooperative)
}

/// Returns whether a product multiplies matrices of this type in a subgroup and accumulates in float32.
fn is_product(product: &vk::CooperativeMatrixPropertiesKHR, data_type: vk::ComponentTypeKHR) -> bool {
    let sum = vk::ComponentTypeKHR::FLOAT32;
    [product.m_size, product.n_size, product.k_size] == [SIDE; 3]
        && [product.a_type, product.b_type] == [data_type; 2]
        && [product.c_type, product.result_type] == [sum; 2]
        && product.scope == vk::ScopeKHR::SUBGROUP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_told_apart() {
        let sum = vk::ComponentTypeKHR::FLOAT32;
        let product = |data_type, sum| {
            vk::CooperativeMatrixPropertiesKHR::default()
                .m_size(16)
                .n_size(16)
                .k_size(16)
                .a_type(data_type)
                .b_type(data_type)
                .c_type(sum)
                .result_type(sum)
                .scope(vk::ScopeKHR::SUBGROUP)
        };
        let half = product(vk::ComponentTypeKHR::FLOAT16, sum);
        assert!(is_product(&half, vk::ComponentTypeKHR::FLOAT16) && !is_product(&half, BFLOAT16));
        assert!(is_product(&product(BFLOAT16, sum), BFLOAT16));
        let sixteen_bit = product(vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT16);
        for other in [half.k_size(8), half.scope(vk::ScopeKHR::WORKGROUP), sixteen_bit] {
            assert!(!is_product(&other, vk::ComponentTypeKHR::FLOAT16), "{other:?}");
        }
    }
}
