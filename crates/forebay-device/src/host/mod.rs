//! The host device: the CPU as a device, and the reference for all others.
//!
//! Heaps are memory files, fully reserved when made; reservations are address space; tiles are mapped with `mmap`; streams
//! are threads that coordinate, and everything that works (kernels and copies alike) runs on one work-stealing pool of a
//! given number of threads. Copies between spaces really move bytes.

pub(crate) mod kernels;
mod memory;
mod stream;
mod sys;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_base::{Command, DataType, EventId, HeapId, Kernel, Limits, MemoryId, Region, StreamId, TensorDesc};

use crate::device::{Device, DeviceError, DeviceUsage, TraceRecord};
use memory::{system, Memories, TILE_SIZE_BYTES};
use stream::{Shared, Stream, Task};

/// Largest heap behind a reservation, in bytes.
const HEAP_SIZE_MAX_BYTES: u64 = 32 << 20;

/// Settings of a host device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostOptions {
    /// Threads that work; none for as many as the machine runs at once.
    pub threads: Option<usize>,
    /// Bytes that count as device memory; none for all that the machine has.
    pub memory_bytes: Option<u64>,
    /// Slows copies between host and device space down to this speed, for experiments.
    pub link_bytes_per_second: Option<u64>,
}

/// The CPU as a device.
pub struct HostDevice {
    limits: Limits,
    memories: Mutex<Memories>,
    streams: Mutex<BTreeMap<StreamId, Stream>>,
    shared: Arc<Shared>,
    next_id: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostDevice {
    /// A host device with its pool of threads.
    ///
    /// # Errors
    /// Where the system refuses the threads.
    pub fn new(options: &HostOptions) -> Result<HostDevice, DeviceError> {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = options.threads.unwrap_or(available).max(1);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("host device {index}"))
            .build()
            .map_err(|error| system("threads", std::io::Error::other(error)))?;
        let memory_bytes = options.memory_bytes.or_else(sys::total_bytes).unwrap_or(u64::MAX);
        let limits = Limits {
            name: format!("host ({threads} thread{})", if threads == 1 { "" } else { "s" }),
            tiled: true,
            tile_size_bytes: TILE_SIZE_BYTES,
            heap_size_max_bytes: HEAP_SIZE_MAX_BYTES,
            memory_bytes,
            offset_alignment_bytes: 16,
            tensor_elements_max: u64::MAX,
            copy_streams: true,
            lanes: threads as u32,
        };
        let mut memories = Memories::new(memory_bytes);
        memories.count_host(kernels::PACKING_BYTES_PER_THREAD * threads as u64);
        Ok(HostDevice {
            limits,
            memories: Mutex::new(memories),
            streams: Mutex::default(),
            shared: Arc::new(Shared::new(pool, options.link_bytes_per_second)),
            next_id: AtomicU32::new(1),
        })
    }

    /// A command of a stream with its addresses.
    fn task(memories: &Memories, command: &Command) -> Result<Task, DeviceError> {
        Ok(match command {
            Command::Launch { launch, .. } => {
                let resolve = |bindings: &[forebay_base::Binding]| {
                    bindings
                        .iter()
                        .map(|binding| {
                            let (start, length) = (binding.region.range.start, binding.region.range.len());
                            let check = binding.desc.check_binding(start, length);
                            check.map_err(|error| DeviceError::Lost { reason: error.to_string() })?;
                            memories.resolve(binding.region)
                        })
                        .collect::<Result<Vec<_>, DeviceError>>()
                };
                let (reads, writes) = (resolve(&launch.reads)?, resolve(&launch.writes)?);
                let scratch = launch.scratch.filter(|region| !region.range.is_empty()).map(|region| {
                    let desc = TensorDesc::packed(DataType::UInt8, &[region.range.len()]);
                    let desc = desc.map_err(|error| DeviceError::Lost { reason: error.to_string() })?;
                    Ok((desc, memories.resolve(region)?))
                });
                let scratch = scratch.transpose()?;
                Task::Launch { launch: launch.clone(), reads, writes, scratch }
            }
            Command::Copy { from, to, .. } => {
                if from.range.len() != to.range.len() || from.overlaps(*to) {
                    return Err(DeviceError::Lost { reason: format!("a copy from {from} to {to} cannot be") });
                }
                Task::Copy {
                    from: memories.resolve(*from)?,
                    to: memories.resolve(*to)?,
                    bytes: from.range.len() as usize,
                    throttled: memories.is_host(from.memory) != memories.is_host(to.memory),
                }
            }
            Command::Fill { region, pattern, .. } => {
                Task::Fill { to: memories.resolve(*region)?, bytes: region.range.len() as usize, pattern: *pattern }
            }
            Command::Record { event, generation, .. } => Task::Record { event: *event, generation: *generation },
            Command::Wait { event, generation, .. } => Task::Wait { event: *event, generation: *generation },
            Command::Barrier { .. } | Command::Map { .. } | Command::Unmap { .. } => Task::Barrier,
        })
    }

    fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
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

    fn create_heap(&self, size_bytes: u64) -> Result<HeapId, DeviceError> {
        lock(&self.memories).create_heap(size_bytes)
    }

    fn destroy_heap(&self, heap: HeapId) {
        lock(&self.memories).destroy_heap(heap);
    }

    fn create_reservation(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        lock(&self.memories).create_reservation(size_bytes)
    }

    fn create_placed(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        lock(&self.memories).create_placed(size_bytes)
    }

    fn create_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        lock(&self.memories).create_host_block(size_bytes)
    }

    fn destroy_memory(&self, memory: MemoryId) {
        lock(&self.memories).destroy_memory(memory);
    }

    fn create_stream(&self, name: &str) -> Result<StreamId, DeviceError> {
        let id = StreamId(self.next_id());
        let stream = Stream::new(id, name, self.shared.clone()).map_err(|error| system("a stream", error))?;
        lock(&self.streams).insert(id, stream);
        Ok(id)
    }

    fn destroy_stream(&self, stream: StreamId) {
        let stream = lock(&self.streams).remove(&stream);
        drop(stream);
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        let id = EventId(self.next_id());
        self.shared.add_event(id);
        Ok(id)
    }

    fn destroy_event(&self, event: EventId) {
        self.shared.remove_event(event);
    }

    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        self.shared.check()?;
        for command in commands {
            let task = {
                let mut memories = lock(&self.memories);
                match command {
                    Command::Map { region, heap, heap_offset_bytes } => {
                        memories.map(*region, *heap, *heap_offset_bytes)?;
                        continue;
                    }
                    Command::Unmap { region } => {
                        memories.unmap(*region)?;
                        continue;
                    }
                    command => HostDevice::task(&memories, command)?,
                }
            };
            let Some(id) = command.stream() else { continue };
            let streams = lock(&self.streams);
            let stream = streams.get(&id);
            let stream = stream.ok_or_else(|| DeviceError::Lost { reason: format!("stream {id} does not exist") })?;
            stream.push(task);
        }
        Ok(())
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        let joined = lock(&self.streams).get(&stream).map(Stream::join_handle);
        if let Some(joined) = joined {
            // A coordinator that is gone has finished everything.
            let _ = joined.recv();
        }
        self.shared.check()
    }

    fn wait_event(&self, event: EventId, generation: u64) -> Result<(), DeviceError> {
        self.shared.wait(event, generation)
    }

    fn query_event(&self, event: EventId) -> u64 {
        self.shared.generation(event)
    }

    fn write_host(&self, region: Region, bytes: &[u8]) {
        assert_eq!(region.range.len(), bytes.len() as u64, "as many bytes as the region holds");
        let address = lock(&self.memories).resolve_host(region);
        // SAFETY: the region lies in a live host block; the caller orders the access against commands.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.0, bytes.len()) };
    }

    fn read_host(&self, region: Region, bytes: &mut [u8]) {
        assert_eq!(region.range.len(), bytes.len() as u64, "as many bytes as the region holds");
        let address = lock(&self.memories).resolve_host(region);
        // SAFETY: as for `write_host`.
        unsafe { std::ptr::copy_nonoverlapping(address.0, bytes.as_mut_ptr(), bytes.len()) };
    }

    fn usage(&self) -> DeviceUsage {
        lock(&self.memories).usage()
    }

    fn set_trace(&self, enabled: bool) {
        self.shared.set_trace(enabled);
    }

    fn take_trace(&self) -> Vec<TraceRecord> {
        self.shared.take_trace()
    }
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        // Streams finish their commands before the memories go.
        lock(&self.streams).clear();
    }
}
