//! The driver's buffers, the memory behind them, and its addresses on the host.

use std::sync::Arc;

use ash::vk;
use forebay_device::DeviceError;

use crate::gpu::{Gpu, SPARSE, failed};

/// The address at which the host sees memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostAddress(pub *mut u8);

impl HostAddress {
    /// Returns the address of a byte in the same block.
    pub fn at(self, offset_bytes: u64) -> HostAddress {
        HostAddress(self.0.wrapping_add(offset_bytes as usize))
    }
}

// SAFETY: an address; commands' ordering decides who may access the bytes when.
unsafe impl Send for HostAddress {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostAddress {}

pub(crate) fn out_of_memory(what: &'static str, requested_bytes: u64, reason: impl ToString) -> DeviceError {
    DeviceError::OutOfMemory { what, requested_bytes, reason: reason.to_string() }
}

/// Returns what a buffer requires of its memory.
pub(crate) fn requirements(gpu: &Gpu, buffer: vk::Buffer) -> vk::MemoryRequirements {
    // SAFETY: the buffer is the device's.
    unsafe { gpu.functions.get_buffer_memory_requirements(buffer) }
}

/// Destroys a buffer that has no memory of its own.
pub(crate) fn destroy_buffer(gpu: &Gpu, buffer: vk::Buffer) {
    // SAFETY: the buffer is the device's, and nothing submitted uses it any more, as callers promise.
    unsafe { gpu.functions.destroy_buffer(buffer, None) };
}

/// Destroys a buffer and frees its memory.
pub(crate) fn free(gpu: &Gpu, buffer: vk::Buffer, memory: vk::DeviceMemory) {
    destroy_buffer(gpu, buffer);
    // SAFETY: its only buffer is gone.
    unsafe { gpu.functions.free_memory(memory, None) };
}

/// Binds a buffer to its memory.
pub(crate) fn bind(gpu: &Gpu, buffer: vk::Buffer, memory: vk::DeviceMemory) -> Result<(), String> {
    // SAFETY: the memory was made for the buffer, which has none yet.
    unsafe { gpu.functions.bind_buffer_memory(buffer, memory, 0) }.map_err(|error| error.to_string())
}

/// Allocates memory of an allowed type that has all these properties.
pub(crate) fn allocate(
    gpu: &Gpu,
    size_bytes: u64,
    types: u32,
    wanted: vk::MemoryPropertyFlags,
) -> Result<vk::DeviceMemory, String> {
    let kind = gpu.memory_type(types, wanted).ok_or("the device has no memory of the required type")?;
    // Any buffer may be accessed through its address.
    let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
    let info =
        vk::MemoryAllocateInfo::default().allocation_size(size_bytes).memory_type_index(kind).push_next(&mut flags);
    // SAFETY: the structures live through the call.
    unsafe { gpu.functions.allocate_memory(&info, None) }.map_err(|error| error.to_string())
}

/// Returns what buffers whose memory is mapped tile by tile require: the types of memory, and the unit of mapping in bytes. If there are no
/// such buffers, returns what other buffers require.
///
/// # Errors
/// If Vulkan returns an error.
pub(crate) fn sparse_needs(gpu: &Gpu) -> Result<(u32, u64), DeviceError> {
    let flags = if gpu.adapter.tiled { SPARSE } else { vk::BufferCreateFlags::empty() };
    let buffer = gpu.buffer("a reservation", 1 << 20, flags)?;
    let requirements = requirements(gpu, buffer);
    destroy_buffer(gpu, buffer);
    Ok((requirements.memory_type_bits, requirements.alignment.next_power_of_two().max(4096)))
}

/// The properties of device memory that the host reads and writes in place.
pub(crate) const UNIFIED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::DEVICE_LOCAL.as_raw()
        | vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw()
        | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);

/// Returns whether the host reads and writes device memory in place, because it is the host's own and the driver exposes it. `heap_types`
/// are the types of memory that heaps can have.
///
/// # Errors
/// If Vulkan returns an error.
pub(crate) fn is_unified(gpu: &Gpu, heap_types: u32) -> Result<bool, DeviceError> {
    if !["integrated GPU", "CPU"].contains(&gpu.adapter.kind) {
        return Ok(false);
    }
    let buffer = gpu.buffer("a placed heap", 1 << 20, vk::BufferCreateFlags::empty())?;
    let placed_types = requirements(gpu, buffer).memory_type_bits;
    destroy_buffer(gpu, buffer);
    Ok([heap_types, placed_types].iter().all(|&types| gpu.memory_type(types, UNIFIED).is_some()))
}

/// Maps host-visible memory permanently, and returns its address.
pub(crate) fn map_memory(gpu: &Gpu, memory: vk::DeviceMemory) -> Result<HostAddress, String> {
    // SAFETY: the memory is host-visible and is mapped once; it stays mapped until it is freed.
    let address = unsafe { gpu.functions.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) };
    address.map(|address| HostAddress(address.cast())).map_err(|error| error.to_string())
}

/// Creates a buffer in host-visible memory, with an additional property if there is such memory.
pub(crate) fn host_block(
    gpu: &Gpu,
    size_bytes: u64,
    wanted: vk::MemoryPropertyFlags,
) -> Result<(vk::Buffer, vk::DeviceMemory, HostAddress), DeviceError> {
    use vk::MemoryPropertyFlags as Flags;
    let what = "a host block";
    let buffer = gpu.buffer(what, size_bytes, vk::BufferCreateFlags::empty())?;
    let requirements = requirements(gpu, buffer);
    let seen = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
    let memory = allocate(gpu, requirements.size, requirements.memory_type_bits, seen | wanted)
        .or_else(|_| allocate(gpu, requirements.size, requirements.memory_type_bits, seen));
    let memory = memory.map_err(|reason| {
        destroy_buffer(gpu, buffer);
        out_of_memory(what, size_bytes, reason)
    })?;
    match bind(gpu, buffer, memory).and_then(|()| map_memory(gpu, memory)) {
        Ok(address) => Ok((buffer, memory, address)),
        Err(reason) => {
            free(gpu, buffer, memory);
            Err(out_of_memory(what, size_bytes, reason))
        }
    }
}

/// A small host block for the device's own purposes: its buffer, memory and address.
pub(crate) struct OwnBlock {
    gpu: Arc<Gpu>,
    pub buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    pub address: HostAddress,
    pub size_bytes: u64,
}

impl OwnBlock {
    /// Creates a block near the device if `wanted` says so, or otherwise one that the host reads fast.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn new(gpu: &Arc<Gpu>, size_bytes: u64, wanted: vk::MemoryPropertyFlags) -> Result<OwnBlock, DeviceError> {
        let (buffer, memory, address) = host_block(gpu, size_bytes, wanted)?;
        Ok(OwnBlock { gpu: gpu.clone(), buffer, memory, address, size_bytes })
    }
}

impl Drop for OwnBlock {
    fn drop(&mut self) {
        free(&self.gpu, self.buffer, self.memory);
    }
}

/// Tells the driver about mappings, and waits until they exist.
///
/// # Errors
/// If Vulkan returns an error.
pub(crate) fn bind_sparse(gpu: &Gpu, binds: &[(vk::Buffer, vk::SparseMemoryBind)]) -> Result<(), DeviceError> {
    let Some(queue) = gpu.sparse.filter(|_| !binds.is_empty()) else { return Ok(()) };
    let infos: Vec<vk::SparseBufferMemoryBindInfo> = binds
        .iter()
        .map(|(buffer, bind)| {
            vk::SparseBufferMemoryBindInfo::default().buffer(*buffer).binds(std::slice::from_ref(bind))
        })
        .collect();
    let info = vk::BindSparseInfo::default().buffer_binds(&infos);
    // SAFETY: the buffers and heaps live, nothing uses the tiles, and the caller holds the lock of the queues.
    unsafe {
        let fence =
            gpu.functions.create_fence(&vk::FenceCreateInfo::default(), None).map_err(failed("mapping tiles"))?;
        let bound = gpu.functions.queue_bind_sparse(queue.handle, &[info], fence);
        let bound = bound.and_then(|()| gpu.functions.wait_for_fences(&[fence], true, u64::MAX));
        gpu.functions.destroy_fence(fence, None);
        bound.map_err(failed("mapping tiles"))
    }
}
