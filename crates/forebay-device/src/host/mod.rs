//! The host device: the CPU as a device, and the reference for all others.
//!
//! Heaps are memory files, fully reserved when they are created; reservations are address space; tiles are mapped with `mmap`. All work
//! (kernels and copies alike) runs on one work-stealing pool of a given number of threads, except lists of so little work that the
//! submitting thread does it itself. A thread that finishes work resumes the streams that waited for it. Copies between spaces really move
//! bytes.

mod address;
mod at_once;
mod backend;
mod copying;
mod disk;
pub mod disk_file;
mod exchange;
mod helper_tasks;
mod isa;
pub(crate) mod kernels;
mod link;
mod loans;
mod lock;
mod memory;
pub mod panics;
mod pool;
pub mod processor;
mod shared;
pub mod spill_file;
mod sys;
mod tracer;
mod urgency;
mod work;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_base::{Binding, Command, EventId, HeapId, Kernel, Limits, MemoryId, Region, StreamId, TensorDesc};
use forebay_queue::{Origin, Progress, Streams};

use crate::communicator::Communicator;
use crate::device::{Device, DeviceError, DeviceUsage, IndexFault, TraceRecord};
use crate::loan::Loan;
use crate::readable::Readable;
use crate::tile_size::{TILE_SIZE_BYTES, whole_tiles};
pub use backend::HostBackend;
use disk::{DISK_BYTES, Disk, Transfer};
use disk_file::{DiskCopy, DiskFile};
pub use kernels::peak;
use link::Link;
use lock::lock;
use memory::{Address, Memories, system};
pub use memory::{Use, check_available};
use shared::Shared;
use spill_file::SpillFile;
pub(crate) use sys::page_bytes;
use work::{CopyDirection, Submitted, Work, workspace_desc};

/// The size of the largest heap behind a reservation, in bytes.
const HEAP_SIZE_MAX_BYTES: u64 = 32 << 20;
/// The address space for the stack of a worker thread, in bytes. A thread that waits inside a kernel may help with another launch, and
/// inside that with a third.
const STACK_SIZE_BYTES: usize = 16 << 20;

/// The maximum number of threads of a device, unless the machine runs more at once: more threads cost memory and do not help.
pub const THREADS_MAX: usize = 256;

/// Returns the number of threads of a device that is asked for `asked`: at most [`THREADS_MAX`], or as many as the machine runs at once if
/// those are more.
pub fn threads_of(asked: Option<usize>) -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    asked.unwrap_or(available).clamp(1, available.max(THREADS_MAX))
}

/// Settings of a host device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// The number of worker threads; `None` for as many as the machine runs at once. No more are created than [`threads_of`] allows.
    pub threads: Option<usize>,
    /// The number of bytes that count as device memory; `None` for all memory of the machine.
    pub memory_bytes: Option<u64>,
    /// The maximum number of bytes of host blocks, including packing buffers of kernels; `None` for all memory of the machine.
    pub host_memory_bytes: Option<u64>,
    /// Slows copies between host and device space down to this speed in each direction, for experiments.
    pub link_bytes_per_second: Option<u64>,
    /// Slows spill files down to this speed in each direction, for experiments.
    pub disk_bytes_per_second: Option<u64>,
    /// Lets this many pieces be written to spill files and then refuses writes as a full disk would, for tests.
    pub disk_writes_before_failure: Option<u64>,
    /// Whether heaps can be mapped tile by tile. If not, the device has placed heaps only.
    pub tiled: bool,
    /// The unit in which heaps are mapped: a power of two, a multiple of the page size, and at most
    /// [`TILE_SIZE_MAX_BYTES`](crate::tile_size::TILE_SIZE_MAX_BYTES) and `heap_bytes_max`.
    pub tile_size_bytes: u64,
    /// The size of the largest heap behind a reservation, rounded down to whole tiles.
    pub heap_bytes_max: u64,
    /// Whether the device reports that its memory is the host's, as it is. By default, it does not, because it represents devices with
    /// their own memory, where copies are real.
    pub unified: bool,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions {
            threads: None,
            memory_bytes: None,
            host_memory_bytes: None,
            link_bytes_per_second: None,
            disk_bytes_per_second: None,
            disk_writes_before_failure: None,
            tiled: true,
            tile_size_bytes: TILE_SIZE_BYTES,
            heap_bytes_max: HEAP_SIZE_MAX_BYTES,
            unified: false,
        }
    }
}

/// The CPU as a device.
pub struct HostDevice {
    options: HostOptions,
    limits: Limits,
    memories: Mutex<Memories>,
    streams: Streams<Shared>,
    progress: Arc<Progress<DeviceError>>,
    shared: Arc<Shared>,
    next_id: AtomicU32,
}

impl HostDevice {
    /// Starts the threads that move bytes from and to disks, once. Read-only files do not use their buffers, which take no memory until
    /// they are used.
    fn start_disk(&self, spills: bool) -> Result<(), DeviceError> {
        let mut memories = lock(&self.memories);
        if spills {
            memories.count_disk_buffers(DISK_BYTES)?;
        }
        if self.shared.disk.get().is_none() {
            let disk = Disk::new(&self.options).map_err(|error| system("buffers and threads for files", error))?;
            // No other thread sets it: the lock is held.
            let _ = self.shared.disk.set(disk);
        }
        Ok(())
    }

    /// Creates a host device with its pool of threads.
    ///
    /// # Errors
    /// [`DeviceError::Setting`] for an impossible tile size; another error if the system refuses the threads, or if the packing buffers of
    /// kernels do not fit into `host_memory_bytes`.
    pub fn new(options: &HostOptions) -> Result<HostDevice, DeviceError> {
        isa::check()?;
        let tile_size_bytes = options.tile_size_bytes;
        let heap_size_max_bytes = whole_tiles(tile_size_bytes, options.heap_bytes_max, page_bytes())?;
        let threads = threads_of(options.threads);
        check_available("thread stacks", (STACK_SIZE_BYTES * threads) as u64, Use::Addresses)?;
        let total = forebay_limits::total();
        let limited_by =
            total.as_ref().and_then(|total| total.source.as_ref()).filter(|_| options.memory_bytes.is_none());
        let limited_by = limited_by.map(|source| format!(", memory limited by {source}")).unwrap_or_default();
        let memory_bytes = options.memory_bytes.or(total.map(|total| total.bytes)).unwrap_or(u64::MAX);
        let limits = Limits {
            name: format!("host ({threads} thread{}{limited_by})", if threads == 1 { "" } else { "s" }),
            tiled: options.tiled,
            unified: options.unified,
            tile_size_bytes,
            heap_size_max_bytes,
            memory_bytes,
            offset_alignment_bytes: 16,
            tensor_elements_max: u64::MAX,
            copy_streams: true,
            in_process: true,
            copies_use_workers: true,
            link_bytes_per_second: options.link_bytes_per_second,
            applies_functions: true,
            workers: threads as u32,
        };
        let host_memory_bytes = options.host_memory_bytes.unwrap_or(u64::MAX);
        let mut memories = Memories::new(tile_size_bytes, memory_bytes, host_memory_bytes);
        memories.count_host("packing buffers", kernels::PACKING_BYTES_PER_THREAD * threads as u64)?;
        let link = |name, rate| Link::new(name, rate).map_err(|error| system("a link", error));
        let links = match options.link_bytes_per_second {
            Some(rate) => Some([link("link to device", rate)?, link("link from device", rate)?]),
            None => None,
        };
        let birth = Instant::now();
        let shared = Shared::new(threads, links, birth).map_err(|error| {
            let error = std::io::Error::other(format!("{error} (use fewer threads with --threads)"));
            system(format!("{threads} threads"), error)
        })?;
        let (progress, shared) = (Arc::new(Progress::new(birth)), Arc::new(shared));
        Ok(HostDevice {
            options: options.clone(),
            limits,
            memories: Mutex::new(memories),
            streams: Streams::new(shared.clone(), progress.clone()),
            progress,
            shared,
            next_id: AtomicU32::new(1),
        })
    }

    fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

/// Returns the work of a command that touches bytes, with its addresses; `None` for other commands.
fn work(memories: &Memories, command: &Command) -> Result<Option<Work>, DeviceError> {
    Ok(Some(match command {
        Command::Launch { launch, .. } => {
            let reads = resolve(&launch.reads, |region| memories.resolve(region))?;
            let writes = resolve(&launch.writes, |region| memories.resolve_to_write(region))?;
            let workspace = match &launch.workspace {
                Some(region) => workspace_desc(region)?
                    .map(|desc| Ok::<_, DeviceError>((desc, memories.resolve_to_write(*region)?))),
                None => None,
            };
            Work::Launch { launch: launch.clone(), reads, writes, workspace: workspace.transpose()? }
        }
        Command::Copy { from, to, .. } => {
            if from.range.len() != to.range.len() || from.overlaps(*to) {
                return Err(DeviceError::Lost { reason: format!("a copy from {from} to {to} is invalid") });
            }
            if let Some(DiskCopy { way, on_disk, in_memory }) = memories.disk_files.copy(*from, *to)? {
                let address = match way.is_to_disk() {
                    true => memories.resolve(in_memory)?,
                    false => memories.resolve_to_write(in_memory)?,
                };
                let (offset_bytes, bytes) = (on_disk.range.start, on_disk.range.len());
                return Ok(Some(Work::Transfer(Transfer { way, offset_bytes, address, bytes })));
            }
            let direction = match (memories.is_host(from.memory), memories.is_host(to.memory)) {
                (true, false) => CopyDirection::ToDevice,
                (false, true) => CopyDirection::FromDevice,
                _ => CopyDirection::Inside,
            };
            let (bytes, from, to) =
                (from.range.len() as usize, memories.resolve(*from)?, memories.resolve_to_write(*to)?);
            Work::Copy { from, to, bytes, direction }
        }
        Command::Fill { region, pattern, .. } => {
            let (to, bytes) = (memories.resolve_to_write(*region)?, region.range.len() as usize);
            Work::Fill { to, bytes, pattern: *pattern }
        }
        _ => return Ok(None),
    }))
}

/// Returns the addresses of bindings, after checking that each is long enough and aligned for its tensor.
fn resolve(
    bindings: &[Binding],
    find: impl Fn(Region) -> Result<Address, DeviceError>,
) -> Result<Vec<Address>, DeviceError> {
    let address = |binding: &Binding| {
        let check = binding.desc.check_binding(binding.region.range.start, binding.region.range.len());
        check.map_err(|error| DeviceError::Lost { reason: format!("{}: {error}", binding.region) })?;
        find(binding.region)
    };
    bindings.iter().map(address).collect()
}

impl Device for HostDevice {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn workspace_bytes(
        &self,
        kernel: &Kernel,
        reads: &[TensorDesc],
        writes: &[TensorDesc],
    ) -> Result<u64, DeviceError> {
        kernels::workspace_bytes(kernel, reads, writes)
    }

    fn host_workspace_bytes(
        &self,
        kernel: &Kernel,
        reads: &[TensorDesc],
        writes: &[TensorDesc],
    ) -> Result<u64, DeviceError> {
        kernels::workspace_bytes(kernel, reads, writes)
    }

    fn check_room(&self, heap_bytes: u64, host_bytes: u64) -> Result<(), DeviceError> {
        // Both are in the machine's memory here, but only host blocks are private data of this process.
        check_available("device and host memory", heap_bytes.saturating_add(host_bytes), Use::Memory)?;
        check_available("host blocks", host_bytes, Use::Private)
    }

    fn create_heap(&self, size_bytes: u64) -> Result<HeapId, DeviceError> {
        lock(&self.memories).create_heap(size_bytes)
    }

    fn destroy_heap(&self, heap: HeapId) {
        lock(&self.memories).destroy_heap(heap);
    }

    fn create_reservation(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        if !self.limits.tiled {
            let reason = "the device was opened without tiles".to_string();
            return Err(DeviceError::Unsupported { kernel: "create_reservation", reason });
        }
        lock(&self.memories).create_reservation(size_bytes)
    }

    fn create_placed(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        lock(&self.memories).create_placed(size_bytes)
    }

    fn create_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        lock(&self.memories).create_host_block(size_bytes)
    }

    fn create_released_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        lock(&self.memories).create_released_host_block(size_bytes)
    }

    fn release_host(&self, region: Region) {
        lock(&self.memories).release_host(region);
    }

    fn allocate_late(&self, enabled: bool) {
        lock(&self.memories).allocates_late = enabled;
    }

    fn fill_host(&self, block: MemoryId) -> Result<(), DeviceError> {
        lock(&self.memories).fill_host(block)
    }

    fn create_spill(&self, folder: &Path, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.start_disk(true)?;
        // Reserving may take a while, so the lock is not held meanwhile.
        let file = DiskFile::Spill(Arc::new(SpillFile::new(folder, size_bytes)?));
        Ok(lock(&self.memories).add_disk_file(file))
    }

    fn create_read_only(&self, bytes: Arc<dyn Readable>) -> Result<MemoryId, DeviceError> {
        self.start_disk(false)?;
        Ok(lock(&self.memories).add_disk_file(DiskFile::ReadOnly(bytes)))
    }

    fn takes_loans(&self) -> bool {
        true
    }

    fn create_loan(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        Ok(lock(&self.memories).create_loan(size_bytes))
    }

    fn lend(&self, memory: MemoryId, loan: Loan) -> Result<(), Loan> {
        lock(&self.memories).loans.lend(memory, loan)
    }

    fn give_back(&self, memory: MemoryId) -> Option<Loan> {
        lock(&self.memories).loans.give_back(memory)
    }

    fn host_address(&self, region: Region) -> Option<*mut u8> {
        lock(&self.memories).resolve_to_write(region).ok().map(|address| address.0)
    }

    fn destroy_memory(&self, memory: MemoryId) {
        lock(&self.memories).destroy_memory(memory);
    }

    fn create_stream(&self, _name: &str, priority: i32) -> Result<StreamId, DeviceError> {
        let stream = StreamId(self.next_id());
        self.streams.create(Origin { stream, priority });
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamId) {
        self.streams.destroy(stream);
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        let id = EventId(self.next_id());
        self.progress.add_event(id);
        Ok(id)
    }

    fn destroy_event(&self, event: EventId) {
        self.progress.remove_event(event);
    }

    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        self.progress.check()?;
        // Only the packing buffers of the pool's threads are counted: with a budget for host memory, other threads run no kernels.
        let at_once = self.options.host_memory_bytes.is_none() && at_once::is_brief(commands);
        // Everything is looked up before anything starts: a refused list has no effect but its mappings.
        let mut works = Vec::with_capacity(commands.len());
        let mut memories = lock(&self.memories);
        for command in commands {
            match command {
                Command::Map { region, heap, heap_offset_bytes } => memories.map(*region, *heap, *heap_offset_bytes)?,
                Command::Unmap { region } => memories.unmap(*region)?,
                _ => works.extend(work(&memories, command)?.map(|work| Submitted { work, at_once })),
            }
        }
        drop(memories);
        Ok(self.streams.submit(commands, works)?)
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.streams.synchronize(stream)
    }

    fn recover(&self) -> Result<(), DeviceError> {
        self.streams.join();
        self.progress.forgive(|failure| matches!(failure, DeviceError::Spill { .. } | DeviceError::Read { .. }));
        self.progress.check()
    }

    fn wait_event(&self, event: EventId, generation: u64) -> Result<(), DeviceError> {
        self.progress.wait(event, generation)
    }

    fn query_event(&self, event: EventId) -> u64 {
        self.progress.fired(event)
    }

    fn event_time(&self, event: EventId, generation: u64) -> Option<Duration> {
        self.progress.event_time(event, generation)
    }

    fn write_host(&self, region: Region, bytes: &[u8]) {
        assert_eq!(region.range.len(), bytes.len() as u64, "as many bytes as the region holds");
        let address = lock(&self.memories).resolve_host(region, self.limits.unified);
        // SAFETY: the region lies in a live memory with bytes behind it; the caller orders the access against commands.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.0, bytes.len()) };
    }

    fn read_host(&self, region: Region, bytes: &mut [u8]) {
        assert_eq!(region.range.len(), bytes.len() as u64, "as many bytes as the region holds");
        let address = lock(&self.memories).resolve_host(region, self.limits.unified);
        // SAFETY: as for `write_host`.
        unsafe { std::ptr::copy_nonoverlapping(address.0, bytes.as_mut_ptr(), bytes.len()) };
    }

    fn join(&self, communicator: Arc<dyn Communicator>) -> Result<(), DeviceError> {
        let lost =
            |_| DeviceError::Setting { reason: "the device already belongs to a run of several processes".to_string() };
        self.shared.communicator.set(communicator).map_err(lost)
    }

    fn take_index_fault(&self) -> Option<IndexFault> {
        self.shared.take_index_fault()
    }

    fn usage(&self) -> DeviceUsage {
        lock(&self.memories).usage()
    }

    fn set_trace(&self, enabled: bool) {
        self.shared.tracer.set(enabled);
    }

    fn take_trace(&self) -> Vec<TraceRecord> {
        self.shared.tracer.take()
    }
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        // Streams finish their commands before the memories are dropped.
        self.streams.destroy_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use forebay_base::{DataType, Launch};

    use super::*;

    /// Blocks the only thread of a device until something is sent.
    fn hold_up(device: &HostDevice) -> mpsc::Sender<()> {
        let (open, gate) = mpsc::channel::<()>();
        let (arrive, arrived) = mpsc::channel::<()>();
        device.shared.spawn(0, move || {
            arrive.send(()).expect("the test waits");
            gate.recv().expect("the test opens the gate");
        });
        arrived.recv().expect("the thread is taken");
        open
    }

    /// The only thread is blocked until everything waits for it.
    #[test]
    fn waiting_work_of_urgent_streams_starts_first() {
        const SIZE_BYTES: u64 = 3 << 20;
        let device = HostDevice::new(&HostOptions { threads: Some(1), ..HostOptions::default() }).expect("a device");
        let block = device.create_host_block(7 * SIZE_BYTES).expect("a block");
        let open = hold_up(&device);
        device.set_trace(true);
        let priorities = [0, 7, i32::MIN, 0, -1];
        let streams = priorities.map(|priority| device.create_stream("urgent", priority).expect("a stream"));
        for (index, &stream) in streams.iter().enumerate() {
            let region = |number| Region::new(block, number * SIZE_BYTES, SIZE_BYTES);
            // The copy takes several turns, and does not yield to work of its own priority once it has begun.
            let command = match index {
                0 => Command::Copy { stream, from: region(0), to: region(1) },
                _ => Command::Fill { stream, region: region(2 + index as u64), pattern: [1; 4] },
            };
            device.submit(&[command]).expect("work");
            while device.shared.waiting_count() <= index {
                std::thread::yield_now();
            }
        }
        open.send(()).expect("the thread waits");
        streams.iter().for_each(|&stream| device.synchronize(stream).expect("everything runs"));
        let order: Vec<StreamId> = device.take_trace().iter().map(|record| record.stream).collect();
        assert_eq!(order, [2, 4, 0, 3, 1].map(|index: usize| streams[index]));
    }

    /// The pool's only thread is blocked all the time.
    #[test]
    fn lists_of_little_work_need_no_thread_of_the_pool() {
        const ELEMENTS: u64 = 1000;
        let device = HostDevice::new(&HostOptions { threads: Some(1), ..HostOptions::default() }).expect("a device");
        let block = device.create_host_block(3 * 4096).expect("a block");
        let [first, second] = [0; 2].map(|priority| device.create_stream("stream", priority).expect("a stream"));
        let event = device.create_event().expect("an event");
        let open = hold_up(&device);
        let operand = |start| {
            let desc = TensorDesc::packed(DataType::Float32, &[ELEMENTS]).expect("a descriptor");
            Binding { region: Region::new(block, start, 4 * ELEMENTS), desc }
        };
        let (reads, writes) = (vec![operand(0)], vec![operand(4096)]);
        let launch = Launch { kernel: Kernel::Copy, reads, writes, workspace: None, label: 0 };
        let region = |start| Region::new(block, start, 4 * ELEMENTS);
        let commands = [
            Command::Fill { stream: first, region: region(0), pattern: [7; 4] },
            Command::Barrier { stream: first },
            Command::Launch { stream: first, launch: Box::new(launch) },
            Command::Record { stream: first, event, generation: 1 },
            Command::Wait { stream: second, event, generation: 1 },
            Command::Copy { stream: second, from: region(4096), to: region(8192) },
        ];
        device.submit(&commands).expect("work");
        device.synchronize(second).expect("everything runs");
        let mut copied = [0; 4 * ELEMENTS as usize];
        device.read_host(region(8192), &mut copied);
        assert!(copied.iter().all(|&byte| byte == 7), "the copy comes last");
        open.send(()).expect("the thread waits");
    }

    /// A kernel occupies the only thread when a copy is submitted.
    #[test]
    fn a_copy_is_moved_between_the_tasks_of_a_kernel() {
        const ELEMENTS: u64 = 16 << 20;
        let device = HostDevice::new(&HostOptions { threads: Some(1), ..HostOptions::default() }).expect("a device");
        let block = device.create_host_block(8 * ELEMENTS + (6 << 20)).expect("a block");
        let [kernels, copies] = [0; 2].map(|priority| device.create_stream("stream", priority).expect("a stream"));
        let desc = TensorDesc::packed(DataType::Float32, &[ELEMENTS]).expect("a descriptor");
        let operand = |start| Binding { region: Region::new(block, start, 4 * ELEMENTS), desc: desc.clone() };
        let (reads, writes) = (vec![operand(0)], vec![operand(4 * ELEMENTS)]);
        let launch = Launch { kernel: Kernel::Copy, reads, writes, workspace: None, label: 0 };
        let region = |start| Region::new(block, 8 * ELEMENTS + start, 3 << 20);
        device.set_trace(true);
        let commands = [
            Command::Launch { stream: kernels, launch: Box::new(launch) },
            Command::Copy { stream: copies, from: region(0), to: region(3 << 20) },
        ];
        let copy_ends_first = || {
            device.submit(&commands).expect("work");
            for stream in [kernels, copies] {
                device.synchronize(stream).expect("everything runs");
            }
            let order: Vec<StreamId> = device.take_trace().iter().map(|record| record.stream).collect();
            order == [copies, kernels]
        };
        // On a busy machine, a kernel may end before the copy is submitted. Without this, the copy always ends last.
        assert!((0..50).any(|_| copy_ends_first()), "the copy waits for the kernel");
    }
}
