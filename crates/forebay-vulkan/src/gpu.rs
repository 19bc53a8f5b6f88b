//! A logical device: its queues, its types of memory, and what it supports for kernels.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use ash::{Device as Functions, Entry, ext, vk};
use forebay_device::DeviceError;
use forebay_gpu_kernels::{Cooperative, Target, Unsupported};

use crate::adapter::{Adapter, choose};
use crate::cooperative::{self, BFloat16Features};
use crate::system::System;

/// The maximum number of queues of one family that are used; streams are distributed over them in turn.
const QUEUES_MAX: usize = 4;

/// How a buffer can be used: by kernels, through bindings and addresses, and by copies and fills.
pub(crate) const BUFFER_USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw()
        | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS.as_raw(),
);

/// The flags of a buffer whose memory is mapped tile by tile.
pub(crate) const SPARSE: vk::BufferCreateFlags = vk::BufferCreateFlags::from_raw(
    vk::BufferCreateFlags::SPARSE_BINDING.as_raw()
        | vk::BufferCreateFlags::SPARSE_RESIDENCY.as_raw()
        | vk::BufferCreateFlags::SPARSE_ALIASED.as_raw(),
);

/// Whether a stream has had a launch among its commands, and so needs a compute queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Copies and fills only.
    Copy,
    /// Everything.
    Compute,
}

/// A queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub family: u32,
    pub handle: vk::Queue,
}

/// A logical device and what is known of it.
pub(crate) struct Gpu {
    pub functions: Functions,
    pub physical: vk::PhysicalDevice,
    pub adapter: Adapter,
    pub limits: vk::PhysicalDeviceLimits,
    /// The number of bits of time stamps that count on every queue in use.
    pub timestamp_bits: u32,
    pub target: Target,
    /// The alignment of bindings in bytes.
    pub binding_alignment_bytes: u64,
    pub memory: vk::PhysicalDeviceMemoryProperties,
    pub allocation_bytes_max: u64,
    pub buffer_bytes_max: u64,
    /// Queues that compute, and queues that only copy (empty if the hardware has none).
    compute: Vec<Queue>,
    copy: Vec<Queue>,
    /// The queue that maps tiles.
    pub sparse: Option<Queue>,
    /// All queue families in use; buffers are shared between them.
    families: Vec<u32>,
    budget: bool,
    /// Whether the validation layer checks what is done.
    pub validated: bool,
    pub system: System,
}

/// The settings with which a device is opened.
pub(crate) struct Asked<'a> {
    /// The device; `None` for the first one.
    pub device: Option<&'a str>,
    /// Whether the validation layer checks what is done.
    pub validate: bool,
    /// The maximum number of bytes of an operand that a binding holds; `None` for what the device supports.
    pub binding_bytes_max: Option<u64>,
    /// The minimum alignment of bindings in bytes; `None` for that of the device.
    pub binding_alignment_bytes: Option<u64>,
    /// Whether shaders do without features that not every device has.
    pub portable: bool,
}

/// Converts the error for a kernel that cannot be lowered into a device error.
pub(crate) fn unsupported(error: Unsupported) -> DeviceError {
    DeviceError::Unsupported { kernel: error.kernel, reason: error.reason }
}

/// Converts a Vulkan error into a device error.
pub(crate) fn failed(action: &'static str) -> impl Fn(vk::Result) -> DeviceError {
    move |error| match error {
        vk::Result::ERROR_OUT_OF_HOST_MEMORY | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => {
            DeviceError::OutOfMemory { what: action, requested_bytes: 0, reason: error.to_string() }
        }
        error => DeviceError::Lost { reason: format!("Vulkan reported while {action}: {error}") },
    }
}

impl Gpu {
    /// Opens the device that is asked for (see [`choose`]).
    ///
    /// # Errors
    /// [`DeviceError::Setting`] if there is no such device; other errors if Vulkan returns one.
    pub fn open(entry: Entry, asked: &Asked) -> Result<Arc<Gpu>, DeviceError> {
        let system = System::new(entry, asked.validate)?;
        let (physical, adapter) = choose(&system, asked.device)?;
        let instance = &system.instance;
        let mut maintenance = vk::PhysicalDeviceMaintenance4Properties::default();
        let mut vulkan_11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut properties =
            vk::PhysicalDeviceProperties2::default().push_next(&mut maintenance).push_next(&mut vulkan_11);
        // SAFETY: the device is the instance's; queries without other preconditions.
        let (families, memory, extensions) = unsafe {
            instance.get_physical_device_properties2(physical, &mut properties);
            let families = instance.get_physical_device_queue_family_properties(physical);
            let extensions = instance.enumerate_device_extension_properties(physical);
            (families, instance.get_physical_device_memory_properties(physical), extensions)
        };
        let limits = properties.properties.limits;
        let chosen = Families::of(&families);
        let timestamp_bits = chosen.timestamp_bits(&families);
        let extensions = extensions.unwrap_or_default();
        let budget = extensions.iter().any(|one| one.extension_name_as_c_str() == Ok(ext::memory_budget::NAME));
        let cooperative = cooperative::offered(&system, physical, &extensions);
        let (functions, has) = open(&system, physical, &chosen, budget, cooperative)?;
        let queue = |family: u32, index: usize| {
            // SAFETY: the device was made with this queue.
            Queue { family, handle: unsafe { functions.get_device_queue(family, index as u32) } }
        };
        let all = |(family, count): (u32, usize)| (0..count).map(|index| queue(family, index)).collect::<Vec<_>>();
        let (compute, copy) = (all(chosen.compute), chosen.copy.map(all).unwrap_or_default());
        let sparse = chosen.sparse.map(|family| queue(family, 0));
        let range_bytes_max = u64::from(limits.max_storage_buffer_range);
        let target = Target {
            groups_max: limits.max_compute_work_group_count[0].min(limits.max_compute_work_group_count[1]).min(65_535),
            binding_bytes_max: asked.binding_bytes_max.map_or(range_bytes_max, |bytes| bytes.min(range_bytes_max)),
            workspace_bytes_max: range_bytes_max,
            invocations_max: limits.max_compute_work_group_invocations.min(limits.max_compute_work_group_size[0]),
            shared_bytes: limits.max_compute_shared_memory_size,
            bindings_max: limits
                .max_per_stage_descriptor_storage_buffers
                .min(limits.max_descriptor_set_storage_buffers),
            float64: has.float64 && !asked.portable,
            storage16: has.storage16 && !asked.portable,
            cooperative: cooperative.filter(|_| has.storage16 && !asked.portable),
        };
        let least = limits.min_storage_buffer_offset_alignment;
        Ok(Arc::new(Gpu {
            functions,
            binding_alignment_bytes: asked.binding_alignment_bytes.map_or(least, |bytes| bytes.max(least)),
            physical,
            adapter,
            limits,
            timestamp_bits,
            target,
            memory,
            allocation_bytes_max: vulkan_11.max_memory_allocation_size,
            buffer_bytes_max: maintenance.max_buffer_size,
            compute,
            copy,
            sparse,
            families: chosen.families(),
            budget,
            validated: asked.validate,
            system,
        }))
    }

    /// Returns the queue for the `turn`-th stream of a role.
    pub fn queue(&self, role: Role, turn: usize) -> Queue {
        let queues = if role == Role::Copy && !self.copy.is_empty() { &self.copy } else { &self.compute };
        queues[turn % queues.len()]
    }

    /// Returns the number of bytes of device memory that are still free, according to the driver, and the total.
    pub fn memory_bytes(&self) -> (u64, u64) {
        let heaps = self.memory.memory_heaps_as_slice();
        let own = |heap: &vk::MemoryHeap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
        let Some((index, heap)) =
            heaps.iter().enumerate().filter(|(_, heap)| own(heap)).max_by_key(|(_, heap)| heap.size)
        else {
            return (0, 0);
        };
        if !self.budget {
            return (heap.size, heap.size);
        }
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the device has the extension.
        unsafe { self.system.instance.get_physical_device_memory_properties2(self.physical, &mut properties) };
        (budget.heap_budget[index].saturating_sub(budget.heap_usage[index]), heap.size)
    }

    /// Returns the first allowed memory type that has all these properties.
    pub fn memory_type(&self, allowed: u32, properties: vk::MemoryPropertyFlags) -> Option<u32> {
        let types = self.memory.memory_types_as_slice().iter().enumerate();
        let mut fitting =
            types.filter(|(index, kind)| allowed & (1 << index) != 0 && kind.property_flags.contains(properties));
        fitting.next().map(|(index, _)| index as u32)
    }

    /// Returns the address of a buffer's first byte, for shaders.
    pub fn address(&self, buffer: vk::Buffer) -> u64 {
        let info = vk::BufferDeviceAddressInfo::default().buffer(buffer);
        // SAFETY: the buffer is the device's; its usage, its memory's flags and the device's features are for this.
        unsafe { self.functions.get_buffer_device_address(&info) }
    }

    /// Creates a buffer without memory, for all queues.
    ///
    /// # Errors
    /// If Vulkan refuses it; the error names `what` and the size.
    pub fn buffer(
        &self,
        what: &'static str,
        size_bytes: u64,
        flags: vk::BufferCreateFlags,
    ) -> Result<vk::Buffer, DeviceError> {
        let refused = |reason: String| DeviceError::OutOfMemory { what, requested_bytes: size_bytes, reason };
        if size_bytes > self.buffer_bytes_max {
            return Err(refused(format!("the device supports buffers of at most {} bytes", self.buffer_bytes_max)));
        }
        let sharing = if self.families.len() > 1 { vk::SharingMode::CONCURRENT } else { vk::SharingMode::EXCLUSIVE };
        let mut info =
            vk::BufferCreateInfo::default().size(size_bytes).usage(BUFFER_USAGE).flags(flags).sharing_mode(sharing);
        if self.families.len() > 1 {
            info = info.queue_family_indices(&self.families);
        }
        // SAFETY: the device lives, and the structure with it through the call.
        unsafe { self.functions.create_buffer(&info, None) }.map_err(|error| refused(error.to_string()))
    }

    /// Returns the validation layer's first message as an error, if there is one.
    ///
    /// # Errors
    /// [`DeviceError::Lost`].
    pub fn check_messages(&self) -> Result<(), DeviceError> {
        match self.system.messages.first() {
            None => Ok(()),
            Some(message) => {
                Err(DeviceError::Lost { reason: format!("Vulkan's validation layer reported: {message}") })
            }
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: everything made from the device is gone, since its owners hold this.
        unsafe {
            let _ = self.functions.device_wait_idle();
            self.functions.destroy_device(None);
        }
    }
}

/// The queue families in use, with the number of queues of each.
struct Families {
    compute: (u32, usize),
    copy: Option<(u32, usize)>,
    sparse: Option<u32>,
}

impl Families {
    fn of(families: &[vk::QueueFamilyProperties]) -> Families {
        use vk::QueueFlags as Flags;
        let find = |with: Flags, without: Flags| {
            let mut all = families.iter().enumerate();
            let found = all.find(|(_, one)| one.queue_flags.contains(with) && !one.queue_flags.intersects(without));
            found.map(|(index, one)| (index as u32, (one.queue_count as usize).min(QUEUES_MAX)))
        };
        // Prefer a family with both compute and graphics: that is where drivers put everything that they can.
        let compute = find(Flags::COMPUTE | Flags::GRAPHICS, Flags::empty())
            .or_else(|| find(Flags::COMPUTE, Flags::empty()))
            .unwrap_or((0, 1));
        let copy = find(Flags::TRANSFER, Flags::COMPUTE | Flags::GRAPHICS)
            .filter(|&(family, _)| families[family as usize].timestamp_valid_bits > 0);
        let sparse = [Some(compute.0), copy.map(|copy| copy.0)]
            .into_iter()
            .flatten()
            .find(|&family| families[family as usize].queue_flags.contains(Flags::SPARSE_BINDING))
            .or_else(|| find(Flags::SPARSE_BINDING, Flags::empty()).map(|(family, _)| family));
        Families { compute, copy, sparse }
    }

    /// Returns the smallest number of bits of time stamps that count in a family that runs commands.
    fn timestamp_bits(&self, families: &[vk::QueueFamilyProperties]) -> u32 {
        let used = [Some(self.compute.0), self.copy.map(|copy| copy.0)].into_iter().flatten();
        used.map(|family| families[family as usize].timestamp_valid_bits).min().unwrap_or(0)
    }

    fn families(&self) -> Vec<u32> {
        let mut all: Vec<u32> =
            [Some(self.compute.0), self.copy.map(|copy| copy.0), self.sparse].into_iter().flatten().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Features of a device's shaders that not every device has.
struct Features {
    float64: bool,
    storage16: bool,
}

/// Creates the logical device, with every feature that it has and that kernels can use.
fn open(
    system: &System,
    physical: vk::PhysicalDevice,
    families: &Families,
    budget: bool,
    cooperative: Option<Cooperative>,
) -> Result<(Functions, Features), DeviceError> {
    let mut has_11 = vk::PhysicalDeviceVulkan11Features::default();
    let mut has_12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut has_13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut has =
        vk::PhysicalDeviceFeatures2::default().push_next(&mut has_11).push_next(&mut has_12).push_next(&mut has_13);
    // SAFETY: the device is the instance's; a query without other preconditions.
    unsafe { system.instance.get_physical_device_features2(physical, &mut has) };
    let has = has.features;
    let mut use_11 = vk::PhysicalDeviceVulkan11Features::default()
        .storage_buffer16_bit_access(has_11.storage_buffer16_bit_access == 1)
        .uniform_and_storage_buffer16_bit_access(has_11.uniform_and_storage_buffer16_bit_access == 1);
    let mut use_12 = vk::PhysicalDeviceVulkan12Features::default()
        .timeline_semaphore(true)
        .host_query_reset(true)
        .vulkan_memory_model(true)
        .buffer_device_address(true)
        .vulkan_memory_model_device_scope(has_12.vulkan_memory_model_device_scope == 1)
        .shader_float16(has_12.shader_float16 == 1)
        .shader_int8(has_12.shader_int8 == 1)
        .storage_buffer8_bit_access(has_12.storage_buffer8_bit_access == 1);
    let mut use_13 = vk::PhysicalDeviceVulkan13Features::default()
        .synchronization2(true)
        .maintenance4(has_13.maintenance4 == 1)
        .subgroup_size_control(cooperative.is_some())
        .compute_full_subgroups(cooperative.is_some());
    let mut use_matrices =
        vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(cooperative.is_some());
    let mut use_bfloat16 = BFloat16Features::new(true);
    let core = vk::PhysicalDeviceFeatures::default()
        .shader_float64(has.shader_float64 == 1)
        .shader_int64(has.shader_int64 == 1)
        .shader_int16(has.shader_int16 == 1)
        .sparse_binding(has.sparse_binding == 1)
        .sparse_residency_buffer(has.sparse_residency_buffer == 1)
        .sparse_residency_aliased(has.sparse_residency_aliased == 1);
    let priorities = [0.5; QUEUES_MAX];
    let queues: Vec<vk::DeviceQueueCreateInfo> = families
        .families()
        .into_iter()
        .map(|family| {
            let of = |(other, count): (u32, usize)| if other == family { count } else { 0 };
            let count = of(families.compute).max(families.copy.map_or(0, of)).max(1);
            vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&priorities[..count])
        })
        .collect();
    let mut extensions = cooperative::extensions(cooperative);
    extensions.extend(budget.then_some(ext::memory_budget::NAME));
    let extensions: Vec<_> = extensions.into_iter().map(CStr::as_ptr).collect();
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions)
        .enabled_features(&core)
        .push_next(&mut use_11)
        .push_next(&mut use_12)
        .push_next(&mut use_13);
    if let Some(cooperative) = cooperative {
        info = info.push_next(&mut use_matrices);
        if cooperative.bfloat16 {
            info = info.push_next(&mut use_bfloat16);
        }
    }
    // SAFETY: the structure and what it points to live through the call; everything asked for was found there.
    let functions = opened(|| unsafe { system.instance.create_device(physical, &info, None) })?;
    let features = Features {
        float64: has.shader_float64 == 1,
        // The compiler also declares uniform buffers and 16-bit arithmetic.
        storage16: has_11.storage_buffer16_bit_access == 1
            && has_11.uniform_and_storage_buffer16_bit_access == 1
            && has.shader_int16 == 1,
    };
    Ok((functions, features))
}

/// How many times opening a device is attempted, and the pause between attempts.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Calls `open`, and tries again if the driver is busy: drivers refuse for a moment when many processes open a GPU at once (NVIDIA's does
/// with dozens).
fn opened<T>(open: impl Fn() -> Result<T, vk::Result>) -> Result<T, DeviceError> {
    let is_busy =
        |error| [vk::Result::ERROR_INITIALIZATION_FAILED, vk::Result::ERROR_TOO_MANY_OBJECTS].contains(&error);
    let mut tries = 1;
    loop {
        match open() {
            Ok(device) => return Ok(device),
            Err(error) if is_busy(error) && tries < TRIES => {
                std::thread::sleep(PAUSE);
                tries += 1;
            }
            Err(error) if is_busy(error) => {
                let reason = format!(
                    "the driver did not open the device in {TRIES} tries: {error} (is another process using it? is \
                     the driver completely installed?)"
                );
                return Err(DeviceError::Setting { reason });
            }
            Err(error) => return Err(failed("opening the device")(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_device_that_is_busy_is_tried_again_and_others_are_not() {
        let tries = Cell::new(0);
        let after = |count: u32, error: vk::Result| {
            tries.set(0);
            opened(|| {
                tries.set(tries.get() + 1);
                if tries.get() > count { Ok(()) } else { Err(error) }
            })
        };
        assert_eq!(after(2, vk::Result::ERROR_INITIALIZATION_FAILED), Ok(()));
        assert_eq!(tries.get(), 3);
        let refused = after(TRIES, vk::Result::ERROR_INITIALIZATION_FAILED);
        assert!(matches!(refused, Err(DeviceError::Setting { reason }) if reason.contains("in 20 tries")));
        assert!(matches!(after(1, vk::Result::ERROR_DEVICE_LOST), Err(DeviceError::Lost { .. })));
        assert_eq!(tries.get(), 1);
    }
}
