//! What a batch of commands needs while it runs: a command buffer, descriptors, parameters and time stamps. It is reused once the batch is
//! done.

use std::sync::Arc;

use ash::vk;
use forebay_device::{DeviceError, IndexFault};

use crate::buffer::{HostAddress, OwnBlock};
use crate::gpu::{Gpu, failed};

/// The number of descriptor sets and of descriptors in a frame's first pool. Most batches of a plan have only one launch.
const SETS_MIN: u32 = 16;
const DESCRIPTORS_MIN: u32 = 128;
/// Each further pool is twice as large as the one before, up to this number of times.
const DOUBLINGS_MAX: usize = 4;
/// The number of bytes that are allocated for parameters at once, and the number that a frame takes of them at once.
const PARAMETER_BLOCK_BYTES: u64 = 1 << 20;
const SLICE_BYTES: u64 = 4 << 10;

/// Host memory of which frames take slices: all batches of a plan's step exist at once, and drivers limit the number of allocations.
#[derive(Default)]
pub(crate) struct ParameterMemory {
    block: Option<Arc<OwnBlock>>,
    taken_bytes: u64,
}

/// A part of a block. The block lives as long as a slice of it.
struct Slice {
    block: Arc<OwnBlock>,
    offset_bytes: u64,
    size_bytes: u64,
}

impl ParameterMemory {
    /// Returns a slice of at least this many bytes.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn slice(&mut self, gpu: &Arc<Gpu>, size_bytes: u64) -> Result<Slice, DeviceError> {
        let size_bytes = size_bytes.next_multiple_of(SLICE_BYTES);
        let block = match self.block.take().filter(|block| self.taken_bytes + size_bytes <= block.size_bytes) {
            Some(block) => block,
            None => {
                self.taken_bytes = 0;
                let near = vk::MemoryPropertyFlags::DEVICE_LOCAL;
                Arc::new(OwnBlock::new(gpu, PARAMETER_BLOCK_BYTES.max(size_bytes), near)?)
            }
        };
        let slice = Slice { block: block.clone(), offset_bytes: self.taken_bytes, size_bytes };
        self.taken_bytes += size_bytes;
        self.block = Some(block);
        Ok(slice)
    }
}

/// The location of a shader's parameters.
#[derive(Clone, Copy)]
pub(crate) struct Parameters {
    pub buffer: vk::Buffer,
    pub offset_bytes: u64,
    pub size_bytes: u64,
}

/// What a batch needs.
pub(crate) struct Frame {
    gpu: Arc<Gpu>,
    pub family: u32,
    pool: vk::CommandPool,
    pub commands: vk::CommandBuffer,
    descriptor_pools: Vec<vk::DescriptorPool>,
    /// The index of the pool from which sets are allocated.
    current_pool: usize,
    slices: Vec<Slice>,
    /// The index of the slice that parameters go to, and how many of its bytes are taken.
    current_slice: usize,
    slice_bytes: u64,
    queries: vk::QueryPool,
    queries_capacity: u32,
    /// Where dispatches report indices out of range.
    faults: Vec<FaultWords>,
}

/// Where a dispatch reports an index out of range (see [`Operand::Fault`](forebay_gpu_kernels::Operand::Fault)).
struct FaultWords {
    address: HostAddress,
    /// The launch's label, and the number of entries from which its indices choose.
    label: u32,
    limit: u64,
}

impl Frame {
    /// # Errors
    /// If Vulkan returns an error.
    pub fn new(gpu: &Arc<Gpu>, family: u32) -> Result<Frame, DeviceError> {
        let failed = failed("creating a command buffer");
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(family)
            .flags(vk::CommandPoolCreateFlags::TRANSIENT);
        // SAFETY: the structures live through the calls.
        let (pool, commands) = unsafe {
            let pool = gpu.functions.create_command_pool(&info, None).map_err(&failed)?;
            let info = vk::CommandBufferAllocateInfo::default()
                .command_pool(pool)
                .level(vk::CommandBufferLevel::PRIMARY)
                .command_buffer_count(1);
            let buffers = gpu.functions.allocate_command_buffers(&info).map_err(|error| {
                gpu.functions.destroy_command_pool(pool, None);
                failed(error)
            })?;
            (pool, buffers[0])
        };
        Ok(Frame {
            gpu: gpu.clone(),
            family,
            pool,
            commands,
            descriptor_pools: Vec::new(),
            current_pool: 0,
            slices: Vec::new(),
            current_slice: 0,
            slice_bytes: 0,
            queries: vk::QueryPool::null(),
            queries_capacity: 0,
            faults: Vec::new(),
        })
    }

    /// Prepares the frame for a batch with this many time stamps, and begins its command buffer.
    ///
    /// # Errors
    /// If Vulkan returns an error.
    pub fn begin(&mut self, stamps: u32) -> Result<(), DeviceError> {
        let failed = failed("beginning a command buffer");
        let functions = &self.gpu.functions;
        (self.current_pool, self.current_slice, self.slice_bytes) = (0, 0, 0);
        self.faults.clear();
        let info = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the batch that used the frame before is done.
        unsafe {
            for &pool in &self.descriptor_pools {
                functions.reset_descriptor_pool(pool, vk::DescriptorPoolResetFlags::empty()).map_err(&failed)?;
            }
            functions.reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty()).map_err(&failed)?;
            if stamps > self.queries_capacity {
                functions.destroy_query_pool(self.queries, None);
                (self.queries, self.queries_capacity) = (vk::QueryPool::null(), 0);
                let capacity = stamps.next_power_of_two();
                let info =
                    vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(capacity);
                self.queries = functions.create_query_pool(&info, None).map_err(&failed)?;
                self.queries_capacity = capacity;
            }
            if stamps > 0 {
                functions.reset_query_pool(self.queries, 0, stamps);
            }
            functions.begin_command_buffer(self.commands, &info).map_err(&failed)
        }
    }

    /// Ends its command buffer.
    ///
    /// # Errors
    /// If Vulkan returns an error.
    pub fn end(&self) -> Result<(), DeviceError> {
        // SAFETY: the command buffer is being recorded.
        unsafe { self.gpu.functions.end_command_buffer(self.commands) }.map_err(failed("ending a command buffer"))
    }

    /// Returns a new descriptor set.
    ///
    /// # Errors
    /// If Vulkan returns an error.
    pub fn set(&mut self, layout: vk::DescriptorSetLayout) -> Result<vk::DescriptorSet, DeviceError> {
        let layouts = [layout];
        while self.current_pool < self.descriptor_pools.len() {
            let info = vk::DescriptorSetAllocateInfo::default()
                .descriptor_pool(self.descriptor_pools[self.current_pool])
                .set_layouts(&layouts);
            // SAFETY: the pool and the layout live.
            match unsafe { self.gpu.functions.allocate_descriptor_sets(&info) } {
                Ok(sets) => return Ok(sets[0]),
                Err(vk::Result::ERROR_OUT_OF_POOL_MEMORY | vk::Result::ERROR_FRAGMENTED_POOL) => self.current_pool += 1,
                Err(error) => return Err(failed("creating descriptors")(error)),
            }
        }
        let doublings = self.descriptor_pools.len().min(DOUBLINGS_MAX);
        let descriptor_count = DESCRIPTORS_MIN << doublings;
        let sizes = [vk::DescriptorPoolSize { ty: vk::DescriptorType::STORAGE_BUFFER, descriptor_count }];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(SETS_MIN << doublings).pool_sizes(&sizes);
        // SAFETY: the structure lives through the call.
        let pool = unsafe { self.gpu.functions.create_descriptor_pool(&info, None) };
        self.descriptor_pools.push(pool.map_err(failed("creating descriptors"))?);
        self.set(layout)
    }

    /// Writes a shader's parameters where it will read them.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn parameters(&mut self, words: &[u32], memory: &mut ParameterMemory) -> Result<Parameters, DeviceError> {
        let size_bytes = (4 * words.len() as u64).max(4);
        let alignment = self.gpu.binding_alignment_bytes.max(16);
        let fits = |slice: &Slice, taken: u64| taken + size_bytes <= slice.size_bytes;
        while self.slices.get(self.current_slice).is_some_and(|slice| !fits(slice, self.slice_bytes)) {
            (self.current_slice, self.slice_bytes) = (self.current_slice + 1, 0);
        }
        if self.current_slice == self.slices.len() {
            self.slices.push(memory.slice(&self.gpu, size_bytes)?);
        }
        let Slice { block, offset_bytes, .. } = &self.slices[self.current_slice];
        let offset_bytes = offset_bytes + self.slice_bytes;
        self.slice_bytes = (self.slice_bytes + size_bytes).next_multiple_of(alignment);
        // SAFETY: the bytes lie inside the slice, which no running batch reads: this frame's is not submitted yet.
        unsafe {
            let target = block.address.0.add(offset_bytes as usize).cast::<u32>();
            std::ptr::copy_nonoverlapping(words.as_ptr(), target, words.len());
        }
        Ok(Parameters { buffer: block.buffer, offset_bytes, size_bytes })
    }

    /// Returns words in which a dispatch reports an index out of range.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn fault_words(
        &mut self,
        label: u32,
        limit: u64,
        memory: &mut ParameterMemory,
    ) -> Result<Parameters, DeviceError> {
        let words = self.parameters(&[0; 4], memory)?;
        let block = &self.slices[self.current_slice].block;
        // SAFETY: the words lie inside the block.
        let address = HostAddress(unsafe { block.address.0.add(words.offset_bytes as usize) });
        self.faults.push(FaultWords { address, label, limit });
        Ok(words)
    }

    /// Returns whether a dispatch may report an index out of range.
    pub fn notes_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Returns what dispatches have reported, once the batch is done.
    pub fn index_faults(&self) -> impl Iterator<Item = IndexFault> + '_ {
        self.faults.iter().filter_map(|fault| {
            // SAFETY: the frame's slice lives; the batch is done, and made what it wrote here visible to the host.
            let words = unsafe { fault.address.0.cast::<[u32; 4]>().read() };
            let [noted, place, low, high] = words;
            let index = (u64::from(high) << 32 | u64::from(low)) as i64;
            let (label, element, limit) = (fault.label, u64::from(place), fault.limit);
            (noted != 0).then_some(IndexFault { label, element, index, limit })
        })
    }

    /// Writes a time stamp once everything before it is done.
    pub fn stamp(&self, index: u32) {
        let stage = vk::PipelineStageFlags2::ALL_COMMANDS;
        // SAFETY: the command buffer is being recorded, and the pool has as many queries as `begin` was told.
        unsafe { self.gpu.functions.cmd_write_timestamp2(self.commands, stage, self.queries, index) };
    }

    /// Returns the first `count` time stamps, in the device's ticks, once the batch is done.
    ///
    /// # Errors
    /// If Vulkan returns an error.
    pub fn stamps(&self, count: u32) -> Result<Vec<u64>, DeviceError> {
        let mut ticks = vec![0u64; count as usize];
        if count > 0 {
            let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
            // SAFETY: the queries were written by a batch that is done.
            let read = unsafe { self.gpu.functions.get_query_pool_results(self.queries, 0, &mut ticks, flags) };
            read.map_err(failed("reading timestamps"))?;
        }
        Ok(ticks)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: no batch uses the frame: running batches keep their frames.
        unsafe {
            self.gpu.functions.destroy_query_pool(self.queries, None);
            self.descriptor_pools.iter().for_each(|&pool| self.gpu.functions.destroy_descriptor_pool(pool, None));
            self.gpu.functions.destroy_command_pool(self.pool, None);
        }
    }
}
