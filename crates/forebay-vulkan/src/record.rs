//! Recording commands into command buffers.

use std::sync::Arc;

use ash::vk;
use forebay_base::{Launch, Region};
use forebay_device::DeviceError;
use forebay_gpu_kernels::{Bound, Dispatch, Operand, lower};

use crate::buffer::OwnBlock;
use crate::frame::{Frame, ParameterMemory};
use crate::gpu::{Gpu, Role, unsupported};
use crate::memory::{BufferLocation, Memories};
use crate::pipeline::Pipelines;

/// The number of slots in which a stream's dispatches count their workgroups.
const COUNTERS: u64 = 1024;
/// The number of bytes from one slot to the next: a multiple of every device's alignment of bindings.
const COUNTER_STRIDE_BYTES: u64 = 256;
/// The size of a slot in bytes.
const COUNTER_BYTES: u64 = 16;

/// Words in which a stream's dispatches find out which of their workgroups is the last, once they have been needed. Slots are used in turn,
/// and are 0 again when the dispatches that used them are done.
#[derive(Default)]
pub(crate) struct Counters {
    block: Option<OwnBlock>,
    /// The next slot, and whether dispatches that may still run use slots from there on.
    next: u64,
    in_use: bool,
}

impl Counters {
    /// Returns a slot, and whether a barrier must come before the dispatch that uses it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn next(&mut self, gpu: &Arc<Gpu>) -> Result<(BufferLocation, bool), DeviceError> {
        let block = match self.block.take() {
            Some(block) => block,
            None => zeros(gpu, COUNTERS * COUNTER_STRIDE_BYTES)?,
        };
        let (slot, needs_barrier) = (self.next, std::mem::take(&mut self.in_use));
        self.next = (slot + 1) % COUNTERS;
        self.in_use = self.next == 0;
        let offset_bytes = slot * COUNTER_STRIDE_BYTES;
        Ok((BufferLocation { buffer: self.block.insert(block).buffer, offset_bytes }, needs_barrier))
    }

    /// Requires another barrier, because those that [`Counters::next`] asked for may not have been submitted.
    pub fn begin_again(&mut self) {
        (self.next, self.in_use) = (0, true);
    }
}

/// Returns a block of zeros near the device.
fn zeros(gpu: &Arc<Gpu>, size_bytes: u64) -> Result<OwnBlock, DeviceError> {
    let block = OwnBlock::new(gpu, size_bytes, vk::MemoryPropertyFlags::DEVICE_LOCAL)?;
    // SAFETY: the block belongs to this function, and has this size.
    unsafe { std::ptr::write_bytes(block.address.0, 0, block.size_bytes as usize) };
    Ok(block)
}

/// What recording needs.
pub(crate) struct Recorder<'a> {
    pub gpu: &'a Arc<Gpu>,
    pub memories: &'a Memories,
    pub pipelines: &'a mut Pipelines,
    pub parameters: &'a mut ParameterMemory,
    pub counters: &'a mut Counters,
}

/// Returns the bytes behind a binding, after checking that the region holds them.
fn span(region: Region, place: BufferLocation, bound: &Bound) -> Result<vk::DescriptorBufferInfo, DeviceError> {
    let length = region.range.len();
    let rest = length.checked_sub(bound.offset_bytes);
    let size = bound.size_bytes.or(rest).filter(|&size| Some(size) <= rest && size > 0).ok_or_else(|| {
        let reason = format!("{region} does not have {:?} bytes starting at {}", bound.size_bytes, bound.offset_bytes);
        DeviceError::Lost { reason }
    })?;
    Ok(vk::DescriptorBufferInfo { buffer: place.buffer, offset: place.offset_bytes + bound.offset_bytes, range: size })
}

impl Recorder<'_> {
    /// Records a launch, and returns the number of its dispatches.
    ///
    /// # Errors
    /// If the kernel cannot run with these operands, or if Vulkan returns an error.
    pub fn launch(&mut self, frame: &mut Frame, launch: &Launch) -> Result<usize, DeviceError> {
        let descs =
            |bindings: &[forebay_base::Binding]| bindings.iter().map(|one| one.desc.clone()).collect::<Vec<_>>();
        let (reads, writes) = (descs(&launch.reads), descs(&launch.writes));
        let workspace_bytes = launch.workspace.map_or(0, |region| region.range.len());
        let mut target = self.gpu.target;
        if launch.kernel.runs_in_less_workspace() {
            target.workspace_bytes_max = target.workspace_bytes_max.min(workspace_bytes);
        }
        let lowered = lower(&launch.kernel, &reads, &writes, &target).map_err(unsupported)?;
        if lowered.workspace_bytes > workspace_bytes {
            let reason = format!(
                "{} has only {workspace_bytes} of the {} bytes of workspace that it needs",
                launch.kernel.name(),
                lowered.workspace_bytes
            );
            return Err(DeviceError::Lost { reason });
        }
        for binding in launch.reads.iter().chain(&launch.writes) {
            let check = binding.desc.check_binding(binding.region.range.start, binding.region.range.len());
            check.map_err(|error| DeviceError::Lost { reason: format!("{}: {error}", binding.region) })?;
        }
        for (number, dispatch) in lowered.dispatches.iter().enumerate() {
            if lowered.ordered && number > 0 {
                self.barrier(frame, Role::Compute);
            }
            self.dispatch(frame, launch, dispatch)?;
        }
        Ok(lowered.dispatches.len())
    }

    fn dispatch(&mut self, frame: &mut Frame, launch: &Launch, dispatch: &Dispatch) -> Result<(), DeviceError> {
        let bound = dispatch.bindings.iter().map(|bound| self.bytes(frame, launch, bound));
        let operands = bound.collect::<Result<Vec<_>, DeviceError>>()?;
        let bindable = |span: &vk::DescriptorBufferInfo| span.offset.is_multiple_of(self.gpu.binding_alignment_bytes);
        let shader = match dispatch.shader.by_address {
            Some(by_address) if !operands.iter().all(bindable) => by_address,
            _ => dispatch.shader,
        };
        let parameters = frame.parameters(&dispatch.parameters, self.parameters)?;
        let mut spans = vec![vk::DescriptorBufferInfo {
            buffer: parameters.buffer,
            offset: parameters.offset_bytes,
            range: parameters.size_bytes,
        }];
        for (bound, bytes) in dispatch.bindings.iter().zip(operands) {
            let is_own = matches!(bound.operand, Operand::Workspace | Operand::Counter | Operand::Fault);
            spans.push(match shader.is_by_address() && !is_own {
                true => self.address(frame, bytes)?,
                false => self.bindable(launch, bytes)?,
            });
        }
        let pipeline = self.pipelines.of(shader, &dispatch.constants, spans.len())?;
        let set = frame.set(pipeline.set)?;
        let writes: Vec<vk::WriteDescriptorSet> = spans
            .iter()
            .enumerate()
            .map(|(index, span)| {
                vk::WriteDescriptorSet::default()
                    .dst_set(set)
                    .dst_binding(index as u32)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(std::slice::from_ref(span))
            })
            .collect();
        let (functions, [x, y, z]) = (&self.gpu.functions, dispatch.groups);
        // SAFETY: the buffers, the set and the pipeline live, at least until the batch is done; the command buffer is being
        // recorded.
        unsafe {
            functions.update_descriptor_sets(&writes, &[]);
            functions.cmd_bind_pipeline(frame.commands, vk::PipelineBindPoint::COMPUTE, pipeline.handle);
            let point = vk::PipelineBindPoint::COMPUTE;
            functions.cmd_bind_descriptor_sets(frame.commands, point, pipeline.layout, 0, &[set], &[]);
            functions.cmd_dispatch(frame.commands, x, y, z);
        }
        Ok(())
    }

    /// Returns the bytes behind a binding.
    fn bytes(
        &mut self,
        frame: &mut Frame,
        launch: &Launch,
        bound: &Bound,
    ) -> Result<vk::DescriptorBufferInfo, DeviceError> {
        let missing = || DeviceError::Lost { reason: format!("{} lacks {:?}", launch.kernel.name(), bound.operand) };
        let region = match bound.operand {
            Operand::Read(index) => launch.reads.get(index).map(|binding| binding.region),
            Operand::Write(index) => launch.writes.get(index).map(|binding| binding.region),
            Operand::Workspace | Operand::Between => launch.workspace,
            Operand::Counter => {
                let (place, needs_barrier) = self.counters.next(self.gpu)?;
                if needs_barrier {
                    self.barrier(frame, Role::Compute);
                }
                let (buffer, offset, range) = (place.buffer, place.offset_bytes, COUNTER_BYTES);
                return Ok(vk::DescriptorBufferInfo { buffer, offset, range });
            }
            Operand::Fault => {
                let (_, limit) = launch.index_limit().ok_or_else(missing)?;
                let words = frame.fault_words(launch.label, limit, self.parameters)?;
                let (buffer, offset, range) = (words.buffer, words.offset_bytes, words.size_bytes);
                return Ok(vk::DescriptorBufferInfo { buffer, offset, range });
            }
        };
        let region = region.ok_or_else(missing)?;
        span(region, self.memories.place(region)?, bound)
    }

    /// Returns the same bytes if a binding can hold them.
    fn bindable(
        &self,
        launch: &Launch,
        span: vk::DescriptorBufferInfo,
    ) -> Result<vk::DescriptorBufferInfo, DeviceError> {
        let (alignment, max) = (self.gpu.binding_alignment_bytes, u64::from(self.gpu.limits.max_storage_buffer_range));
        if !span.offset.is_multiple_of(alignment) || span.range > max {
            let reason = format!(
                "a binding of {} bytes at {} is not supported: at most {max} bytes, at multiples of {alignment}",
                span.range, span.offset
            );
            return Err(DeviceError::Unsupported { kernel: launch.kernel.name(), reason });
        }
        Ok(span)
    }

    /// Returns the bytes that contain the address of other bytes.
    fn address(
        &mut self,
        frame: &mut Frame,
        span: vk::DescriptorBufferInfo,
    ) -> Result<vk::DescriptorBufferInfo, DeviceError> {
        let address = self.gpu.address(span.buffer) + span.offset;
        let words = frame.parameters(&[address as u32, (address >> 32) as u32], self.parameters)?;
        Ok(vk::DescriptorBufferInfo { buffer: words.buffer, offset: words.offset_bytes, range: words.size_bytes })
    }

    /// Records a copy.
    pub fn copy(&self, frame: &Frame, from: BufferLocation, to: BufferLocation, size_bytes: u64) {
        let part = vk::BufferCopy { src_offset: from.offset_bytes, dst_offset: to.offset_bytes, size: size_bytes };
        // SAFETY: both lie inside live buffers and apart; the command buffer is being recorded.
        unsafe { self.gpu.functions.cmd_copy_buffer(frame.commands, from.buffer, to.buffer, &[part]) };
    }

    /// Records a fill.
    pub fn fill(&self, frame: &Frame, to: BufferLocation, size_bytes: u64, pattern: [u8; 4]) {
        let word = u32::from_ne_bytes(pattern);
        // SAFETY: as for a copy; commands fill whole words.
        unsafe { self.gpu.functions.cmd_fill_buffer(frame.commands, to.buffer, to.offset_bytes, size_bytes, word) };
    }

    /// Records a barrier, either of the plan or between the dispatches of a launch.
    pub fn barrier(&self, frame: &Frame, role: Role) {
        use vk::{AccessFlags2 as Access, PipelineStageFlags2 as Stages};
        let (mut stages, mut writes, mut reads) = (Stages::ALL_TRANSFER, Access::TRANSFER_WRITE, Access::TRANSFER_READ);
        if role == Role::Compute {
            stages |= Stages::COMPUTE_SHADER;
            writes |= Access::SHADER_STORAGE_WRITE;
            reads |= Access::SHADER_STORAGE_READ;
        }
        self.order(frame, (stages, writes), (stages, writes | reads));
    }

    /// Makes copied bytes visible to the host, and also what shaders wrote if the host reads that.
    pub fn show_host(&self, frame: &Frame, by_shaders: bool) {
        use vk::{AccessFlags2 as Access, PipelineStageFlags2 as Stages};
        let (mut stages, mut writes) = (Stages::ALL_TRANSFER, Access::TRANSFER_WRITE);
        if by_shaders {
            stages |= Stages::COMPUTE_SHADER;
            writes |= Access::SHADER_STORAGE_WRITE;
        }
        self.order(frame, (stages, writes), (Stages::HOST, Access::HOST_READ));
    }

    fn order(
        &self,
        frame: &Frame,
        before: (vk::PipelineStageFlags2, vk::AccessFlags2),
        after: (vk::PipelineStageFlags2, vk::AccessFlags2),
    ) {
        let barriers = [vk::MemoryBarrier2::default()
            .src_stage_mask(before.0)
            .src_access_mask(before.1)
            .dst_stage_mask(after.0)
            .dst_access_mask(after.1)];
        let info = vk::DependencyInfo::default().memory_barriers(&barriers);
        // SAFETY: the command buffer is being recorded.
        unsafe { self.gpu.functions.cmd_pipeline_barrier2(frame.commands, &info) };
    }
}
