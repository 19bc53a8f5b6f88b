//! The null device: records commands and runs nothing.
//!
//! Host blocks really hold bytes, and events fire as soon as they are submitted; everything else is bookkeeping. The device's clock ticks
//! once per command, so that times are the same in every run. Its profiles differ in the features that a device may lack.
//!
//! The Direct3D-12-like profile also has resource states, and records what its queues would receive: the alias of a memory that each
//! command uses, and the barriers and transitions between commands ([`NullDevice::lowered`]). Every `submit` is one submission.
//!
//! ```
//! use forebay_base::{Command, Region};
//! use forebay_device::null::{LoweredCounts, NullDevice, NullProfile};
//! use forebay_device::Device;
//!
//! for aliases in [true, false] {
//!     let device = NullDevice::new(NullProfile::Direct3D12Like);
//!     let device = if aliases { device } else { device.without_aliases() };
//!     let (one, other) = (device.create_placed(64)?, device.create_placed(64)?);
//!     let (stream, region) = (device.create_stream("all", 0)?, |memory| Region::new(memory, 0, 64));
//!     device.submit(&[
//!         Command::Fill { stream, region: region(one), pattern: [0; 4] },
//!         Command::Barrier { stream },
//!         Command::Copy { stream, from: region(one), to: region(other) },
//!     ])?;
//!     let expected = match aliases {
//!         true => LoweredCounts { uav_barriers: 1, aliasing_barriers: 1, transitions: 0 },
//!         false => LoweredCounts { uav_barriers: 1, aliasing_barriers: 0, transitions: 1 },
//!     };
//!     assert_eq!(device.lowered_counts(), expected);
//! }
//! # Ok::<(), forebay_device::DeviceError>(())
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_base::{Command, EventId, HeapId, Kernel, Limits, MemoryId, Region, StreamId, TensorDesc};
use forebay_queue::Events;
use forebay_sync::states::Aliasing;

use crate::device::{Device, DeviceError, DeviceUsage, IndexFault, TraceRecord};
use crate::host::{Use, check_available, kernels};
use crate::readable::Readable;
use crate::tile_size::{TILE_SIZE_BYTES, whole_tiles};

mod backend;
mod lowering;

pub use backend::{NullBackend, described};
pub use lowering::{Lowered, LoweredCounts};

/// The page size that the device claims, in bytes.
const PAGE_BYTES: u64 = 4096;

/// The kind of device that the null device pretends to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NullProfile {
    /// Tiles can be mapped into reservations.
    Tiled,
    /// The device has placed heaps only, and no streams for copies.
    Placed,
    /// Tiles are in the host's own memory. Bytes that the host writes there are not kept: it reads zeros.
    Unified,
    /// The device has tiles, at most 2^32 - 1 elements in a tensor, and resource states with three fixed-state aliases of each memory.
    Direct3D12Like,
}

/// A device that records commands and runs nothing.
pub struct NullDevice {
    limits: Limits,
    /// How the states of resources are handled, if resources have states.
    aliasing: Option<Aliasing>,
    /// Whether kernels need the same workspace as those of the host device; otherwise, they need none.
    workspace: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    commands: Vec<Command>,
    lowered: Vec<Lowered>,
    heaps: BTreeMap<HeapId, u64>,
    placed: BTreeMap<MemoryId, u64>,
    blocks: BTreeMap<MemoryId, Vec<u8>>,
    spills: BTreeMap<MemoryId, u64>,
    events: Events,
    next_id: u32,
    usage: DeviceUsage,
}

impl State {
    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    fn take(&mut self, what: &'static str, size_bytes: u64, cap_bytes: u64) -> Result<(), DeviceError> {
        let total = self.usage.heap_bytes.saturating_add(size_bytes);
        if total > cap_bytes {
            let reason = format!("the device has {cap_bytes} bytes, of which {} are in use", self.usage.heap_bytes);
            return Err(DeviceError::OutOfMemory { what, requested_bytes: size_bytes, reason });
        }
        self.usage.heap_bytes = total;
        self.usage.heap_peak_bytes = self.usage.heap_peak_bytes.max(total);
        Ok(())
    }
}

impl NullDevice {
    /// Creates a null device with 1 TiB of memory.
    pub fn new(profile: NullProfile) -> NullDevice {
        let limits = Limits {
            name: format!("null ({profile:?})"),
            tiled: profile != NullProfile::Placed,
            unified: profile == NullProfile::Unified,
            tile_size_bytes: TILE_SIZE_BYTES,
            heap_size_max_bytes: 32 << 20,
            memory_bytes: 1 << 40,
            offset_alignment_bytes: 16,
            tensor_elements_max: if profile == NullProfile::Direct3D12Like { (1 << 32) - 1 } else { u64::MAX },
            copy_streams: profile != NullProfile::Placed,
            in_process: false,
            copies_use_workers: false,
            link_bytes_per_second: None,
            applies_functions: false,
            workers: 1,
        };
        let aliasing = (profile == NullProfile::Direct3D12Like).then_some(Aliasing::FixedState);
        NullDevice { limits, aliasing, workspace: false, state: Mutex::default() }
    }

    /// Creates a null device that represents a machine with these limits. Its kernels need as much workspace as those of the host device.
    pub fn with_limits(limits: Limits) -> NullDevice {
        NullDevice { limits, aliasing: None, workspace: true, state: Mutex::default() }
    }

    /// Returns the same device with one resource for each memory, whose state changes by transitions. Such a device refuses a copy within
    /// one device memory. Has no effect on a device without resource states.
    pub fn without_aliases(self) -> NullDevice {
        NullDevice { aliasing: self.aliasing.map(|_| Aliasing::None), ..self }
    }

    /// Returns the same device with placed heaps only.
    pub fn without_tiles(mut self) -> NullDevice {
        self.limits.tiled = false;
        self
    }

    /// Returns the same device with tiles of `tile_size_bytes` and heaps behind a reservation of at most `heap_bytes_max`, rounded down to
    /// whole tiles.
    ///
    /// # Errors
    /// [`DeviceError::Setting`] for an impossible tile size.
    pub fn with_heaps(mut self, tile_size_bytes: u64, heap_bytes_max: u64) -> Result<NullDevice, DeviceError> {
        self.limits.heap_size_max_bytes = whole_tiles(tile_size_bytes, heap_bytes_max, PAGE_BYTES)?;
        self.limits.tile_size_bytes = tile_size_bytes;
        Ok(self)
    }

    /// Returns all commands submitted so far, in order.
    pub fn commands(&self) -> Vec<Command> {
        self.state().commands.clone()
    }

    /// Returns what the queues of a device with resource states received for all submissions, in order; empty for other devices.
    pub fn lowered(&self) -> Vec<Lowered> {
        self.state().lowered.clone()
    }

    /// Returns the number of barriers of each kind in [`NullDevice::lowered`].
    pub fn lowered_counts(&self) -> LoweredCounts {
        LoweredCounts::of(&self.state().lowered)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tiles(&self, size_bytes: u64) -> u64 {
        size_bytes.max(1).checked_next_multiple_of(self.limits.tile_size_bytes).unwrap_or(u64::MAX)
    }
}

impl Device for NullDevice {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn workspace_bytes(
        &self,
        kernel: &Kernel,
        reads: &[TensorDesc],
        writes: &[TensorDesc],
    ) -> Result<u64, DeviceError> {
        if self.workspace { kernels::workspace_bytes(kernel, reads, writes) } else { Ok(0) }
    }

    fn host_workspace_bytes(
        &self,
        kernel: &Kernel,
        reads: &[TensorDesc],
        writes: &[TensorDesc],
    ) -> Result<u64, DeviceError> {
        kernels::workspace_bytes(kernel, reads, writes)
    }

    fn create_heap(&self, size_bytes: u64) -> Result<HeapId, DeviceError> {
        let size_bytes = self.tiles(size_bytes);
        let mut state = self.state();
        state.take("a heap", size_bytes, self.limits.memory_bytes)?;
        let id = HeapId(state.id());
        state.heaps.insert(id, size_bytes);
        Ok(id)
    }

    fn check_room(&self, _: u64, host_bytes: u64) -> Result<(), DeviceError> {
        check_available("host blocks", host_bytes, Use::Private)
    }

    fn destroy_heap(&self, heap: HeapId) {
        let mut state = self.state();
        if let Some(size_bytes) = state.heaps.remove(&heap) {
            state.usage.heap_bytes -= size_bytes;
        }
    }

    fn create_reservation(&self, _: u64) -> Result<MemoryId, DeviceError> {
        if !self.limits.tiled {
            let reason = "this device has no tiles".to_string();
            return Err(DeviceError::Unsupported { kernel: "create_reservation", reason });
        }
        Ok(MemoryId(self.state().id()))
    }

    fn create_placed(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        let size_bytes = self.tiles(size_bytes);
        let mut state = self.state();
        state.take("a placed heap", size_bytes, self.limits.memory_bytes)?;
        let id = MemoryId(state.id());
        state.placed.insert(id, size_bytes);
        Ok(id)
    }

    fn create_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        check_available("a host block", size_bytes, Use::Private)?;
        let mut bytes = Vec::new();
        let length = usize::try_from(size_bytes).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(length).map_err(|error| DeviceError::OutOfMemory {
            what: "a host block",
            requested_bytes: size_bytes,
            reason: error.to_string(),
        })?;
        bytes.resize(length, 0);
        let mut state = self.state();
        state.usage.host_bytes += size_bytes;
        state.usage.host_peak_bytes = state.usage.host_peak_bytes.max(state.usage.host_bytes);
        let id = MemoryId(state.id());
        state.blocks.insert(id, bytes);
        Ok(id)
    }

    /// Counts bytes and creates no file.
    fn create_spill(&self, _: &Path, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        let mut state = self.state();
        state.usage.disk_bytes = state.usage.disk_bytes.saturating_add(size_bytes);
        state.usage.disk_peak_bytes = state.usage.disk_peak_bytes.max(state.usage.disk_bytes);
        let id = MemoryId(state.id());
        state.spills.insert(id, size_bytes);
        Ok(id)
    }

    /// Reads nothing.
    fn create_read_only(&self, _: Arc<dyn Readable>) -> Result<MemoryId, DeviceError> {
        let mut state = self.state();
        let id = MemoryId(state.id());
        state.spills.insert(id, 0);
        Ok(id)
    }

    fn destroy_memory(&self, memory: MemoryId) {
        let mut state = self.state();
        if let Some(size_bytes) = state.spills.remove(&memory) {
            state.usage.disk_bytes = state.usage.disk_bytes.saturating_sub(size_bytes);
        }
        if let Some(size_bytes) = state.placed.remove(&memory) {
            state.usage.heap_bytes -= size_bytes;
        }
        if let Some(bytes) = state.blocks.remove(&memory) {
            state.usage.host_bytes -= bytes.len() as u64;
        }
    }

    fn create_stream(&self, _: &str, _: i32) -> Result<StreamId, DeviceError> {
        Ok(StreamId(self.state().id()))
    }

    fn destroy_stream(&self, _: StreamId) {}

    fn create_event(&self) -> Result<EventId, DeviceError> {
        let mut state = self.state();
        let id = EventId(state.id());
        state.events.add(id);
        Ok(id)
    }

    fn destroy_event(&self, event: EventId) {
        self.state().events.remove(event);
    }

    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        let mut state = self.state();
        let lowered = match self.aliasing {
            Some(aliasing) => {
                let beside_device =
                    |memory: MemoryId| state.blocks.contains_key(&memory) || state.spills.contains_key(&memory);
                lowering::lower(commands, state.commands.len(), aliasing, beside_device)
                    .map_err(|error| DeviceError::Unsupported { kernel: "copy", reason: error.to_string() })?
            }
            None => Vec::new(),
        };
        state.events.admit(commands)?;
        state.lowered.extend(lowered);
        for command in commands {
            state.commands.push(command.clone());
            if let Command::Record { event, generation, .. } = command {
                let now = Duration::from_nanos(state.commands.len() as u64);
                state.events.fire(*event, *generation, now);
            }
        }
        Ok(())
    }

    fn synchronize(&self, _: StreamId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn wait_event(&self, event: EventId, generation: u64) -> Result<(), DeviceError> {
        let fired = self.query_event(event);
        if fired < generation {
            return Err(DeviceError::Lost {
                reason: format!("{event}.{generation} was never recorded (latest: {fired})"),
            });
        }
        Ok(())
    }

    fn query_event(&self, event: EventId) -> u64 {
        self.state().events.fired(event)
    }

    fn event_time(&self, event: EventId, generation: u64) -> Option<Duration> {
        self.state().events.time(event, generation)
    }

    fn write_host(&self, region: Region, bytes: &[u8]) {
        let mut state = self.state();
        let Some(block) = state.blocks.get_mut(&region.memory) else {
            assert!(self.limits.unified, "{region} is not in a host block");
            return;
        };
        block[region.range.start as usize..region.range.end as usize].copy_from_slice(bytes);
    }

    fn read_host(&self, region: Region, bytes: &mut [u8]) {
        let state = self.state();
        let Some(block) = state.blocks.get(&region.memory) else {
            assert!(self.limits.unified, "{region} is not in a host block");
            bytes.fill(0);
            return;
        };
        bytes.copy_from_slice(&block[region.range.start as usize..region.range.end as usize]);
    }

    fn take_index_fault(&self) -> Option<IndexFault> {
        None
    }

    fn usage(&self) -> DeviceUsage {
        self.state().usage
    }

    fn set_trace(&self, _: bool) {}

    fn take_trace(&self) -> Vec<TraceRecord> {
        Vec::new()
    }
}
