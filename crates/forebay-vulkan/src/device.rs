//! The Vulkan device.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use ash::{Entry, vk};
use forebay_base::tensor::BASE_OFFSET_ALIGNMENT_BYTES;
use forebay_base::{Command, EventId, HeapId, Kernel, Limits, MemoryId, Region, StreamId, TensorDesc};
use forebay_device::host::disk_file::DiskFile;
use forebay_device::host::processor::Processor;
use forebay_device::host::spill_file::SpillFile;
use forebay_device::tile_size::{TILE_SIZE_BYTES, whole_tiles};
use forebay_device::{Device, DeviceError, DeviceUsage, IndexFault, Readable, TraceRecord};
use forebay_gpu_kernels::{Target, workspace_bytes};
use forebay_queue::Events;

use crate::batches::submit;
use crate::buffer::{HostAddress, bind_sparse, is_unified, sparse_needs};
use crate::disk::DISK_BYTES;
use crate::frame::{Frame, ParameterMemory};
use crate::gpu::{Asked, Gpu, Role, failed, unsupported};
use crate::host_launch::runs_on_host;
use crate::memory::{Caps, Memories};
use crate::pipeline::{Pipelines, usual_folder};
use crate::state::{Counts, State};
use crate::stream::{Clock, Done, Point, Streams};
use crate::system::entry;
use crate::workers::{Shared, WAIT_NS};

/// The default size in bytes of the largest heap behind a reservation.
const HEAP_SIZE_MAX_BYTES: u64 = 32 << 20;

/// Settings of a Vulkan device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VulkanOptions {
    /// The device's number or a part of its name; `None` for the first GPU, or the CPU if there is no GPU.
    pub device: Option<String>,
    /// The number of bytes that count as device memory; `None` for what the driver says is free.
    pub memory_bytes: Option<u64>,
    /// The maximum number of bytes of host blocks; `None` for all that the machine has.
    pub host_memory_bytes: Option<u64>,
    /// Whether heaps are mapped tile by tile if the device supports it.
    pub tiled: bool,
    /// The unit in which heaps are mapped; `None` for 64 KiB, or more if the device requires it.
    pub tile_size_bytes: Option<u64>,
    /// The largest heap behind a reservation, rounded down to whole tiles.
    pub heap_bytes_max: u64,
    /// Whether the Khronos validation layer, including synchronization validation, checks everything. Any message is then a failure of the
    /// device. The layer is configured through the environment when the first such device opens: at that time, no other thread may be in C
    /// code that reads the environment.
    pub validate: bool,
    /// The maximum number of bytes of an operand that one binding of a shader holds, for tests and experiments: larger operands are
    /// processed in parts or accessed through their addresses. `None`, or any larger value, for what the device supports.
    pub binding_bytes_max: Option<u64>,
    /// The alignment of shader bindings in bytes, for tests and experiments: an operand that begins elsewhere is accessed through its
    /// address. `None`, or any smaller value, for what the device requires.
    pub binding_alignment_bytes: Option<u64>,
    /// Whether shaders do without float64, 16-bit storage and cooperative matrices, as on devices that have none, for tests and
    /// experiments.
    pub portable: bool,
    /// The folder in which compiled shaders are kept between runs.
    pub cache: Option<PathBuf>,
}

impl Default for VulkanOptions {
    /// Returns the default options; `validate` is set by `FOREBAY_VALIDATE=1` in the environment. Devices do not open if the variable has a
    /// value that is not valid.
    fn default() -> VulkanOptions {
        VulkanOptions {
            device: None,
            memory_bytes: None,
            host_memory_bytes: None,
            tiled: true,
            tile_size_bytes: None,
            heap_bytes_max: HEAP_SIZE_MAX_BYTES,
            validate: validates(std::env::var_os("FOREBAY_VALIDATE").as_deref()).unwrap_or(false),
            binding_bytes_max: None,
            binding_alignment_bytes: None,
            portable: false,
            cache: usual_folder(),
        }
    }
}

/// A device of the machine's Vulkan drivers.
pub struct VulkanDevice {
    limits: Limits,
    gpu: Arc<Gpu>,
    shared: Arc<Shared>,
    clock: Clock,
    next_id: AtomicU32,
}

fn lost(reason: String) -> DeviceError {
    DeviceError::Lost { reason }
}

/// Returns whether this value of `FOREBAY_VALIDATE` turns on validation.
fn validates(value: Option<&OsStr>) -> Result<bool, DeviceError> {
    match value.map(OsStr::to_string_lossy).as_deref() {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(DeviceError::Setting { reason: format!("FOREBAY_VALIDATE must be 0 or 1, not '{other}'") }),
    }
}

/// Makes the settings of the validation layer that can only be made through the environment.
fn set_up_validation() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let settings = [
            // Also look for hazards between submissions.
            ("VK_LAYER_ENABLES", "VALIDATION_CHECK_ENABLE_SYNCHRONIZATION_VALIDATION_QUEUE_SUBMIT"),
            // For newer layers: take into account what shaders access, and report a message even if it has been reported ten times.
            ("VK_LAYER_SYNCVAL_SHADER_ACCESSES_HEURISTIC", "1"),
            ("VK_LAYER_ENABLE_MESSAGE_LIMIT", "0"),
        ];
        for (name, value) in settings {
            // SAFETY: the standard library locks the environment against its own readers, and callers that set `VulkanOptions::validate`
            // guarantee that no other thread reads the environment from C code.
            unsafe { std::env::set_var(name, value) };
        }
    });
}

impl VulkanDevice {
    /// Opens a device.
    ///
    /// # Errors
    /// [`DeviceError::Setting`] if there is no Vulkan, no such device, or no such tiles, or if `FOREBAY_VALIDATE` has a value that is not
    /// valid; other errors if the driver refuses a call.
    pub fn open(options: &VulkanOptions) -> Result<VulkanDevice, DeviceError> {
        VulkanDevice::open_through(entry()?, options)
    }

    /// Opens a device through the caller's Vulkan loader, or through a wrapper around one.
    ///
    /// # Errors
    /// The same as those of [`VulkanDevice::open`].
    pub fn open_through(entry: Entry, options: &VulkanOptions) -> Result<VulkanDevice, DeviceError> {
        let birth = Instant::now();
        // The default options cannot refuse a value.
        validates(std::env::var_os("FOREBAY_VALIDATE").as_deref())?;
        if options.validate {
            set_up_validation();
        }
        let VulkanOptions { validate, binding_bytes_max, binding_alignment_bytes, portable, .. } = *options;
        let device = options.device.as_deref();
        let asked = Asked { device, validate, binding_bytes_max, binding_alignment_bytes, portable };
        let gpu = Gpu::open(entry, &asked)?;
        let (heap_types, least) = sparse_needs(&gpu)?;
        let tile_bytes = options.tile_size_bytes.unwrap_or(TILE_SIZE_BYTES.max(least));
        let tiled = options.tiled && gpu.adapter.tiled;
        let heap_bytes_max = whole_tiles(tile_bytes, options.heap_bytes_max, least)?;
        let is_cpu = gpu.adapter.kind == "CPU";
        let unified = is_unified(&gpu, heap_types)?;
        let (free_bytes, _) = gpu.memory_bytes();
        let memory_bytes = options.memory_bytes.unwrap_or(free_bytes);
        let limits = Limits {
            name: format!("vulkan:{} ({})", gpu.adapter.index, gpu.adapter.name),
            tiled,
            unified,
            tile_size_bytes: tile_bytes,
            heap_size_max_bytes: heap_bytes_max.min(gpu.allocation_bytes_max),
            memory_bytes,
            offset_alignment_bytes: BASE_OFFSET_ALIGNMENT_BYTES,
            tensor_elements_max: u64::from(u32::MAX),
            copy_streams: true,
            in_process: is_cpu,
            copies_use_workers: is_cpu,
            link_bytes_per_second: None,
            applies_functions: false,
            workers: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
        };
        let caps = Caps {
            tile_bytes,
            heap_types,
            heap_bytes: memory_bytes,
            host_bytes: options.host_memory_bytes.unwrap_or(u64::MAX),
            checked: is_cpu,
            unified,
        };
        let clock = clock(&gpu, birth)?;
        let state = State {
            streams: Streams::new(gpu.clone()),
            pipelines: Pipelines::new(gpu.clone(), options.cache.as_deref())?,
            parameters: ParameterMemory::default(),
            memories: Memories::new(gpu.clone(), caps),
            events: Events::default(),
            failure: None,
            jobs: 0,
            tracing: false,
            trace: Vec::new(),
            index_fault: None,
            counts: Counts::default(),
            birth,
        };
        let shared = Arc::new(Shared::new(state));
        Ok(VulkanDevice { limits, gpu, shared, clock, next_id: AtomicU32::new(1) })
    }

    /// Returns the properties that determine how kernels run here.
    pub fn target(&self) -> &Target {
        &self.gpu.target
    }

    /// Returns counts of what the driver has been given so far.
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// Takes the validation layer's messages so far; there are none without [`VulkanOptions::validate`].
    pub fn take_messages(&self) -> Vec<String> {
        self.gpu.system.messages.take()
    }

    fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes note of what is done.
    fn catch_up(&self, state: &mut State) -> Result<(), DeviceError> {
        let caught_up = state.streams.retire(&self.clock);
        let Done { fired, trace, index_faults } = caught_up.inspect_err(|error| state.fail(error.clone()))?;
        fired.into_iter().for_each(|(event, generation, time)| state.events.fire(event, generation, time));
        state.trace.extend(trace);
        state.index_fault = state.index_fault.take().into_iter().chain(index_faults).min();
        // Messages make everything fail until they are taken.
        self.gpu.check_messages()
    }

    /// Waits until everything that was submitted is over, whether anything has failed or not.
    ///
    /// # Errors
    /// If the device is lost.
    fn finish<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>, DeviceError> {
        while state.jobs > 0 {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        // SAFETY: the lock is held, so no one submits meanwhile.
        unsafe { self.gpu.functions.device_wait_idle() }.map_err(failed("waiting"))?;
        let _ = self.catch_up(&mut state);
        Ok(state)
    }

    /// Waits until a point is done.
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>, point: Point) -> Result<(), DeviceError> {
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            self.catch_up(&mut state)?;
            if state.streams.is_done(point) {
                return Ok(());
            }
            let Some(semaphore) = state.streams.semaphore(point) else {
                state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let (semaphores, values) = ([semaphore], [point.value]);
            let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
            // SAFETY: the semaphore lives as long as its stream, which the caller keeps.
            let waited = unsafe { self.gpu.functions.wait_semaphores(&info, WAIT_NS) };
            state = self.shared.lock();
            if let Err(error) = waited.or_else(|error| if error == vk::Result::TIMEOUT { Ok(()) } else { Err(error) }) {
                state.fail(failed("waiting")(error));
            }
        }
    }
}

/// Returns how the device's ticks and our clock relate to each other.
fn clock(gpu: &Arc<Gpu>, birth: Instant) -> Result<Clock, DeviceError> {
    let queue = gpu.queue(Role::Compute, 0);
    let mut frame = Frame::new(gpu, queue.family)?;
    frame.begin(1)?;
    frame.stamp(0);
    frame.end()?;
    let before = birth.elapsed();
    let buffers = [vk::CommandBufferSubmitInfo::default().command_buffer(frame.commands)];
    let info = vk::SubmitInfo2::default().command_buffer_infos(&buffers);
    // SAFETY: no one else has the queue yet, and the frame lives until the queue is idle.
    unsafe {
        gpu.functions
            .queue_submit2(queue.handle, &[info], vk::Fence::null())
            .and_then(|()| gpu.functions.queue_wait_idle(queue.handle))
            .map_err(failed("reading the device's clock"))?;
    }
    let at = (before + birth.elapsed()) / 2;
    let (ticks, period_ns) = (frame.stamps(1)?[0], f64::from(gpu.limits.timestamp_period));
    Ok(Clock { birth, ticks, at, bits: gpu.timestamp_bits, period_ns })
}

impl Device for VulkanDevice {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn workspace_bytes(
        &self,
        kernel: &Kernel,
        reads: &[TensorDesc],
        writes: &[TensorDesc],
    ) -> Result<u64, DeviceError> {
        workspace_bytes(kernel, reads, writes, &self.gpu.target).map_err(unsupported)
    }

    fn host_workspace_bytes(
        &self,
        kernel: &Kernel,
        reads: &[TensorDesc],
        writes: &[TensorDesc],
    ) -> Result<u64, DeviceError> {
        let bytes = Processor::workspace_bytes(kernel, reads, writes)?;
        self.shared.start_launches(&self.gpu)?;
        Ok(bytes)
    }

    fn check_room(&self, heap_bytes: u64, host_bytes: u64) -> Result<(), DeviceError> {
        self.shared.lock().memories.check_room(heap_bytes, host_bytes)
    }

    fn create_heap(&self, size_bytes: u64) -> Result<HeapId, DeviceError> {
        self.shared.lock().memories.create_heap(size_bytes)
    }

    fn destroy_heap(&self, heap: HeapId) {
        self.shared.lock().memories.destroy_heap(heap);
    }

    fn create_reservation(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        if !self.limits.tiled {
            let reason = "the device has no sparse buffers, or was opened without tiles".to_string();
            return Err(DeviceError::Unsupported { kernel: "create_reservation", reason });
        }
        self.shared.lock().memories.create_reservation(size_bytes)
    }

    fn create_placed(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.shared.lock().memories.create_placed(size_bytes)
    }

    fn create_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.shared.lock().memories.create_host_block(size_bytes)
    }

    fn create_spill(&self, folder: &Path, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.shared.lock().memories.count_disk_buffers(DISK_BYTES)?;
        self.shared.start_disk(&self.gpu)?;
        // Reserving can take a while, and other threads continue meanwhile.
        let file = DiskFile::Spill(Arc::new(SpillFile::new(folder, size_bytes)?));
        Ok(self.shared.lock().memories.add_disk_file(file))
    }

    fn create_read_only(&self, bytes: Arc<dyn Readable>) -> Result<MemoryId, DeviceError> {
        self.shared.start_disk(&self.gpu)?;
        Ok(self.shared.lock().memories.add_disk_file(DiskFile::ReadOnly(bytes)))
    }

    fn destroy_memory(&self, memory: MemoryId) {
        self.shared.lock().memories.destroy_memory(memory);
    }

    fn create_stream(&self, _: &str, _: i32) -> Result<StreamId, DeviceError> {
        let id = StreamId(self.next_id());
        self.shared.lock().streams.create(id)?;
        Ok(id)
    }

    fn destroy_stream(&self, stream: StreamId) {
        // A failure is reported to all other callers.
        let _ = self.synchronize(stream);
        self.shared.lock().streams.remove(stream);
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        let id = EventId(self.next_id());
        self.shared.lock().events.add(id);
        Ok(id)
    }

    fn destroy_event(&self, event: EventId) {
        let mut state = self.shared.lock();
        state.events.remove(event);
        state.streams.forget_event(event);
    }

    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        if !self.shared.runs_launches() && self.launches_on_host(commands)? {
            self.shared.start_launches(&self.gpu)?;
        }
        let mut state = self.shared.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        self.catch_up(&mut state)?;
        map(&self.gpu, &mut state, commands)?;
        let jobs = submit(&self.gpu, &mut state, commands)?;
        drop(state);
        self.shared.hand_over(jobs);
        Ok(())
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        let state = self.shared.lock();
        match state.streams.end(stream) {
            Some(end) => self.wait(state, end).inspect_err(|_| {
                // What was submitted before the failure still runs, unless the device is lost.
                drop(self.finish(self.shared.lock()));
            }),
            None => Err(lost(format!("{stream} does not exist"))),
        }
    }

    fn recover(&self) -> Result<(), DeviceError> {
        let state = self.shared.lock();
        match &state.failure {
            None => return Ok(()),
            Some(DeviceError::Spill { .. } | DeviceError::Read { .. }) => {}
            Some(failure) => return Err(failure.clone()),
        }
        let mut state = self.finish(state)?;
        state.streams.abandon()?;
        state.failure = None;
        Ok(())
    }

    fn wait_event(&self, event: EventId, generation: u64) -> Result<(), DeviceError> {
        let mut state = self.shared.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        self.catch_up(&mut state)?;
        if state.events.fired(event) >= generation {
            return Ok(());
        }
        match state.streams.point_of(event, generation) {
            Some(point) => self.wait(state, point),
            None => Err(lost(format!("nothing records generation {generation} of {event}"))),
        }
    }

    fn query_event(&self, event: EventId) -> u64 {
        let mut state = self.shared.lock();
        // A failure is reported to whoever waits.
        let _ = self.catch_up(&mut state);
        state.events.fired(event)
    }

    fn event_time(&self, event: EventId, generation: u64) -> Option<Duration> {
        let mut state = self.shared.lock();
        let _ = self.catch_up(&mut state);
        state.events.time(event, generation)
    }

    fn write_host(&self, region: Region, bytes: &[u8]) {
        let mut rest = bytes;
        for (address, length) in self.host_pieces(region, bytes.len()) {
            let (piece, behind) = rest.split_at(length as usize);
            // SAFETY: the piece lies in live memory that is mapped; the caller orders the access against commands.
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), address.0, piece.len()) };
            rest = behind;
        }
    }

    fn read_host(&self, region: Region, bytes: &mut [u8]) {
        let mut rest = bytes;
        for (address, length) in self.host_pieces(region, rest.len()) {
            let (piece, behind) = rest.split_at_mut(length as usize);
            // SAFETY: as for `write_host`.
            unsafe { std::ptr::copy_nonoverlapping(address.0, piece.as_mut_ptr(), piece.len()) };
            rest = behind;
        }
    }

    fn take_index_fault(&self) -> Option<IndexFault> {
        let mut state = self.shared.lock();
        // A failure is reported to whoever waits.
        let _ = self.catch_up(&mut state);
        state.index_fault.take()
    }

    fn usage(&self) -> DeviceUsage {
        self.shared.lock().memories.usage()
    }

    fn set_trace(&self, enabled: bool) {
        self.shared.lock().tracing = enabled;
    }

    fn take_trace(&self) -> Vec<TraceRecord> {
        let mut state = self.shared.lock();
        let _ = self.catch_up(&mut state);
        std::mem::take(&mut state.trace)
    }
}

impl VulkanDevice {
    /// Returns whether any of these launches runs on the host.
    fn launches_on_host(&self, commands: &[Command]) -> Result<bool, DeviceError> {
        let state = self.shared.lock();
        for command in commands {
            if let Command::Launch { launch, .. } = command
                && runs_on_host(&state.memories, launch)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns where the host sees a region of `length` bytes, piece by piece.
    fn host_pieces(&self, region: Region, length: usize) -> Vec<(HostAddress, u64)> {
        assert_eq!(region.range.len(), length as u64, "as many bytes as the region holds");
        let pieces = self.shared.lock().memories.host_pieces(region);
        pieces.unwrap_or_else(|| panic!("{region} is not a host block"))
    }
}

impl Drop for VulkanDevice {
    fn drop(&mut self) {
        self.shared.stop();
        // SAFETY: no one submits any more.
        let _ = unsafe { self.gpu.functions.device_wait_idle() };
    }
}

/// Maps and unmaps tiles, before anything else in the list.
fn map(gpu: &Gpu, state: &mut State, commands: &[Command]) -> Result<(), DeviceError> {
    let (mut binds, mut mapped) = (Vec::new(), Vec::new());
    let memories = &mut state.memories;
    let mut note = || -> Result<(), DeviceError> {
        for command in commands {
            match command {
                Command::Map { region, heap, heap_offset_bytes } => {
                    binds.push(memories.map(*region, *heap, *heap_offset_bytes)?);
                    mapped.push(*region);
                }
                Command::Unmap { region } => binds.push(memories.unmap(*region)?),
                _ => {}
            }
        }
        Ok(())
    };
    let noted = note();
    noted.and_then(|()| bind_sparse(gpu, &binds)).inspect_err(|_| {
        // Mappings that the driver does not know about do not exist.
        mapped.into_iter().for_each(|region| drop(memories.unmap(region)));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_values_of_the_variable_are_refused() {
        let found = [None, Some("0"), Some(""), Some("1")].map(|value| validates(value.map(OsStr::new)));
        assert_eq!(found, [Ok(false), Ok(false), Ok(false), Ok(true)]);
        let error = validates(Some(OsStr::new("yes"))).unwrap_err().to_string();
        assert!(error.contains("FOREBAY_VALIDATE must be 0 or 1, not 'yes'"), "{error}");
    }
}
