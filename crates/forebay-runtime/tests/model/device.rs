//! A device whose streams are threads of the model checker. It copies and fills, and finds bytes through mapped tiles.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::{Command, EventId, HeapId, Kernel, Limits, MemoryId, Region, StreamId, TensorDesc};
use forebay_device::{Device, DeviceError, DeviceUsage, IndexFault, Readable, TraceRecord};
use forebay_queue::shim::sync::{Condvar, Mutex};
use forebay_queue::shim::{lock, thread, wait};

/// Each tensor in the cases takes one tile.
pub const TILE_BYTES: u64 = 256;

/// The storage of one tile: part of a heap, or of a memory that has its own bytes.
type Tile = (bool, u32, u64);

#[derive(Default)]
struct State {
    next_id: u32,
    heaps: BTreeMap<HeapId, u64>,
    mapped: BTreeMap<(MemoryId, u64), Tile>,
    contents: BTreeMap<Tile, Vec<u8>>,
    queues: BTreeMap<StreamId, VecDeque<Command>>,
    fired: BTreeMap<EventId, u64>,
    /// The tiles that running commands use, and whether they write them.
    running: Vec<(Tile, bool)>,
}

/// The device.
pub struct ModelDevice {
    limits: Limits,
    shared: Arc<Shared>,
    threads: Mutex<Vec<(StreamId, thread::JoinHandle<()>)>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl State {
    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    /// Returns the location of a region's bytes; all regions in the cases are within one tile.
    fn tile(&self, region: Region) -> Tile {
        let start = region.range.start / TILE_BYTES * TILE_BYTES;
        let own = (false, region.memory.0, start);
        *self.mapped.get(&(region.memory, start)).unwrap_or(&own)
    }

    fn read(&mut self, region: Region) -> Vec<u8> {
        let (tile, start) = (self.tile(region), (region.range.start % TILE_BYTES) as usize);
        let bytes = self.contents.entry(tile).or_insert_with(|| vec![0; TILE_BYTES as usize]);
        bytes[start..start + region.range.len() as usize].to_vec()
    }

    fn write(&mut self, region: Region, new: &[u8]) {
        let (tile, start) = (self.tile(region), (region.range.start % TILE_BYTES) as usize);
        let bytes = self.contents.entry(tile).or_insert_with(|| vec![0; TILE_BYTES as usize]);
        bytes[start..start + new.len()].copy_from_slice(new);
    }

    fn perform(&mut self, command: &Command) {
        match command {
            Command::Copy { from, to, .. } => {
                let bytes = self.read(*from);
                self.write(*to, &bytes);
            }
            Command::Fill { region, pattern, .. } => {
                let bytes: Vec<u8> = (0..region.range.len()).map(|byte| pattern[byte as usize % 4]).collect();
                self.write(*region, &bytes);
            }
            other => panic!("the cases have no '{other}'"),
        }
    }
}

/// Runs a stream's commands in order until an empty unmapping, which marks the stream's end.
fn run(shared: &Shared, stream: StreamId) {
    loop {
        let mut state = lock(&shared.state);
        let command = loop {
            match state.queues.get_mut(&stream).map(VecDeque::pop_front) {
                Some(Some(command)) => break command,
                Some(None) => state = wait(&shared.changed, state),
                None => return,
            }
        };
        match command {
            Command::Record { event, generation, .. } => {
                state.fired.insert(event, generation);
                shared.changed.notify_all();
            }
            Command::Wait { event, generation, .. } => {
                while state.fired.get(&event).is_none_or(|&fired| fired < generation) {
                    state = wait(&shared.changed, state);
                }
            }
            Command::Barrier { .. } => {}
            work => {
                let uses: Vec<(Tile, bool)> = (work.reads().iter().map(|&region| (state.tile(region), false)))
                    .chain(work.writes().iter().map(|&region| (state.tile(region), true)))
                    .collect();
                let meets = |(tile, writes): &(Tile, bool)| {
                    state.running.iter().any(|(other, other_writes)| tile == other && (*writes || *other_writes))
                };
                assert!(!uses.iter().any(meets), "'{work}' runs beside another user of its bytes");
                state.running.extend(&uses);
                drop(state);
                let mut state = lock(&shared.state);
                state.perform(&work);
                for used in uses {
                    let place = state.running.iter().position(|other| *other == used).expect("still running");
                    state.running.swap_remove(place);
                }
            }
        }
    }
}

impl ModelDevice {
    pub fn new() -> ModelDevice {
        let limits = Limits {
            name: "model".to_string(),
            tiled: true,
            unified: false,
            tile_size_bytes: TILE_BYTES,
            heap_size_max_bytes: TILE_BYTES,
            memory_bytes: 1 << 20,
            offset_alignment_bytes: 16,
            tensor_elements_max: u64::MAX,
            copy_streams: false,
            in_process: false,
            copies_use_workers: false,
            link_bytes_per_second: None,
            applies_functions: false,
            workers: 1,
        };
        ModelDevice { limits, shared: Arc::default(), threads: Mutex::default() }
    }
}

impl Device for ModelDevice {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn workspace_bytes(&self, _: &Kernel, _: &[TensorDesc], _: &[TensorDesc]) -> Result<u64, DeviceError> {
        Ok(0)
    }

    fn create_heap(&self, size_bytes: u64) -> Result<HeapId, DeviceError> {
        let mut state = lock(&self.shared.state);
        let heap = HeapId(state.id());
        state.heaps.insert(heap, size_bytes);
        Ok(heap)
    }

    fn destroy_heap(&self, heap: HeapId) {
        let mut state = lock(&self.shared.state);
        assert!(!state.mapped.values().any(|tile| tile.0 && tile.1 == heap.0), "no tile of a heap that goes is mapped");
        state.heaps.remove(&heap);
    }

    fn create_reservation(&self, _: u64) -> Result<MemoryId, DeviceError> {
        Ok(MemoryId(lock(&self.shared.state).id()))
    }

    fn create_placed(&self, _: u64) -> Result<MemoryId, DeviceError> {
        Ok(MemoryId(lock(&self.shared.state).id()))
    }

    fn create_host_block(&self, _: u64) -> Result<MemoryId, DeviceError> {
        Ok(MemoryId(lock(&self.shared.state).id()))
    }

    fn create_spill(&self, _: &Path, _: u64) -> Result<MemoryId, DeviceError> {
        Ok(MemoryId(lock(&self.shared.state).id()))
    }

    fn create_read_only(&self, _: Arc<dyn Readable>) -> Result<MemoryId, DeviceError> {
        Ok(MemoryId(lock(&self.shared.state).id()))
    }

    fn destroy_memory(&self, memory: MemoryId) {
        lock(&self.shared.state).mapped.retain(|(of, _), _| *of != memory);
    }

    fn create_stream(&self, _: &str, _: i32) -> Result<StreamId, DeviceError> {
        let mut state = lock(&self.shared.state);
        let stream = StreamId(state.id());
        state.queues.insert(stream, VecDeque::new());
        drop(state);
        let shared = self.shared.clone();
        lock(&self.threads).push((stream, thread::spawn(move || run(&shared, stream))));
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamId) {
        lock(&self.shared.state).queues.remove(&stream);
        self.shared.changed.notify_all();
        let mut threads = lock(&self.threads);
        let place = threads.iter().position(|(other, _)| *other == stream).expect("a stream has a thread");
        let (_, thread) = threads.swap_remove(place);
        drop(threads);
        thread.join().expect("no command failed");
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        let mut state = lock(&self.shared.state);
        let event = EventId(state.id());
        state.fired.insert(event, 0);
        Ok(event)
    }

    fn destroy_event(&self, _: EventId) {}

    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        let mut state = lock(&self.shared.state);
        for command in commands {
            match command {
                Command::Map { region, heap, heap_offset_bytes } => {
                    for tile in 0..region.range.len() / TILE_BYTES {
                        let place = (true, heap.0, heap_offset_bytes + tile * TILE_BYTES);
                        state.mapped.insert((region.memory, region.range.start + tile * TILE_BYTES), place);
                    }
                }
                Command::Unmap { region } => {
                    let gone = |(memory, start): &(MemoryId, u64)| {
                        *memory == region.memory && region.range.start <= *start && *start < region.range.end
                    };
                    let used = |key| state.running.iter().any(|(tile, _)| state.mapped.get(key) == Some(tile));
                    assert!(!state.mapped.keys().filter(|key| gone(key)).any(used), "tiles in use are not unmapped");
                    state.mapped.retain(|key, _| !gone(key));
                }
                work => {
                    let queue = work.stream().and_then(|stream| state.queues.get_mut(&stream));
                    queue.expect("the stream is there").push_back(work.clone());
                }
            }
        }
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        let event = self.create_event()?;
        self.submit(&[Command::Record { stream, event, generation: 1 }])?;
        self.wait_event(event, 1)
    }

    fn wait_event(&self, event: EventId, generation: u64) -> Result<(), DeviceError> {
        let mut state = lock(&self.shared.state);
        while state.fired[&event] < generation {
            state = wait(&self.shared.changed, state);
        }
        Ok(())
    }

    fn query_event(&self, event: EventId) -> u64 {
        lock(&self.shared.state).fired[&event]
    }

    fn event_time(&self, _: EventId, _: u64) -> Option<Duration> {
        None
    }

    fn write_host(&self, region: Region, bytes: &[u8]) {
        lock(&self.shared.state).write(region, bytes);
    }

    fn read_host(&self, region: Region, bytes: &mut [u8]) {
        bytes.copy_from_slice(&lock(&self.shared.state).read(region));
    }

    fn take_index_fault(&self) -> Option<IndexFault> {
        None
    }

    fn usage(&self) -> DeviceUsage {
        let heap_bytes = lock(&self.shared.state).heaps.values().sum();
        DeviceUsage { heap_bytes, ..DeviceUsage::default() }
    }

    fn set_trace(&self, _: bool) {}

    fn take_trace(&self) -> Vec<TraceRecord> {
        Vec::new()
    }
}
