//! The memories of a Vulkan device (heaps, sparse buffers, placed buffers, host blocks and spill files), and where the bytes of a region
//! are.

use std::collections::BTreeMap;
use std::sync::Arc;

use ash::vk;
use forebay_base::{HeapId, MemoryId, Region};
use forebay_device::host::disk_file::{DiskFile, DiskFiles};
use forebay_device::host::{Use, check_available};
use forebay_device::mapping::Mapping;
use forebay_device::{DeviceError, DeviceUsage};

use crate::buffer::{
    HostAddress, UNIFIED, allocate, bind, destroy_buffer, free, host_block, map_memory, out_of_memory, requirements,
};
use crate::gpu::{Gpu, SPARSE};

/// Physical memory, and its size in bytes.
struct Heap {
    memory: vk::DeviceMemory,
    size_bytes: u64,
    /// The address at which the host sees it, on a unified device.
    address: Option<HostAddress>,
}

enum Kind {
    /// Addresses, which parts of them have memory, and, on a unified device, where the host sees it, by the offset of each tile.
    Reservation(Mapping, BTreeMap<u64, HostAddress>),
    /// With its own device memory, and, on a unified device, where the host sees it.
    Placed(vk::DeviceMemory, Option<HostAddress>),
    /// With host memory, which is permanently mapped.
    HostBlock(vk::DeviceMemory, HostAddress),
}

struct Memory {
    buffer: vk::Buffer,
    size_bytes: u64,
    kind: Kind,
}

/// A location in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferLocation {
    pub buffer: vk::Buffer,
    pub offset_bytes: u64,
}

/// The limits on the memory of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    pub tile_bytes: u64,
    /// The types of memory that heaps can have.
    pub heap_types: u32,
    pub heap_bytes: u64,
    pub host_bytes: u64,
    /// Whether device memory is that of the machine (a CPU as a device), which promises more than it has.
    pub checked: bool,
    /// Whether the host reads and writes device memory in place.
    pub unified: bool,
}

/// All memories of one device.
pub(crate) struct Memories {
    gpu: Arc<Gpu>,
    caps: Caps,
    heaps: BTreeMap<HeapId, Heap>,
    memories: BTreeMap<MemoryId, Memory>,
    pub disk_files: DiskFiles,
    /// Whether buffers for spill files are included in the host bytes.
    counts_disk_buffers: bool,
    next_id: u32,
    usage: DeviceUsage,
}

/// Returns the error for an incorrect use of memories by the caller.
fn misuse(reason: String) -> DeviceError {
    DeviceError::Lost { reason }
}

impl Memories {
    pub fn new(gpu: Arc<Gpu>, caps: Caps) -> Memories {
        let (heaps, memories, disk_files) = (BTreeMap::new(), BTreeMap::new(), DiskFiles::default());
        Memories {
            gpu,
            caps,
            heaps,
            memories,
            disk_files,
            counts_disk_buffers: false,
            next_id: 0,
            usage: DeviceUsage::default(),
        }
    }

    fn whole_tiles(&self, size_bytes: u64) -> u64 {
        size_bytes.max(1).checked_next_multiple_of(self.caps.tile_bytes).unwrap_or(u64::MAX)
    }

    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    /// Whether the host reads and writes device memory in place.
    pub fn are_unified(&self) -> bool {
        self.caps.unified
    }

    /// Allocates device memory of one of these types, and returns, on a unified device, where the host sees it.
    fn allocate(
        &mut self,
        what: &'static str,
        size_bytes: u64,
        types: u32,
    ) -> Result<(vk::DeviceMemory, Option<HostAddress>), DeviceError> {
        let refused = |reason: String| out_of_memory(what, size_bytes, reason);
        let taken = self.usage.heap_bytes;
        if taken.saturating_add(size_bytes) > self.caps.heap_bytes {
            return Err(refused(format!("the device has {} bytes, of which {taken} are in use", self.caps.heap_bytes)));
        }
        if size_bytes > self.gpu.allocation_bytes_max {
            let max = self.gpu.allocation_bytes_max;
            return Err(refused(format!("the device allocates at most {max} bytes at once")));
        }
        if self.caps.checked {
            check_available(what, size_bytes, Use::Private)?;
        }
        let wanted = if self.caps.unified { UNIFIED } else { vk::MemoryPropertyFlags::DEVICE_LOCAL };
        let memory = allocate(&self.gpu, size_bytes, types, wanted).map_err(refused)?;
        let address = self.caps.unified.then(|| map_memory(&self.gpu, memory)).transpose();
        let address = address.map_err(|reason| {
            // SAFETY: no one has it yet.
            unsafe { self.gpu.functions.free_memory(memory, None) };
            out_of_memory(what, size_bytes, reason)
        })?;
        self.usage.heap_bytes += size_bytes;
        self.usage.heap_peak_bytes = self.usage.heap_peak_bytes.max(self.usage.heap_bytes);
        Ok((memory, address))
    }

    /// Fails if the machine does not have this much host memory, including device memory if that is the machine's own.
    pub fn check_room(&self, heap_bytes: u64, host_bytes: u64) -> Result<(), DeviceError> {
        let bytes = if self.caps.checked { heap_bytes.saturating_add(host_bytes) } else { host_bytes };
        check_available("device and host memory", bytes, Use::Private)
    }

    pub fn create_heap(&mut self, size_bytes: u64) -> Result<HeapId, DeviceError> {
        let size_bytes = self.whole_tiles(size_bytes);
        let (memory, address) = self.allocate("a heap", size_bytes, self.caps.heap_types)?;
        let id = HeapId(self.id());
        self.heaps.insert(id, Heap { memory, size_bytes, address });
        Ok(id)
    }

    pub fn destroy_heap(&mut self, heap: HeapId) {
        if let Some(heap) = self.heaps.remove(&heap) {
            self.usage.heap_bytes -= heap.size_bytes;
            // SAFETY: the caller promises that no tile of it is mapped and nothing uses it.
            unsafe { self.gpu.functions.free_memory(heap.memory, None) };
        }
    }

    pub fn create_reservation(&mut self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        let size_bytes = self.whole_tiles(size_bytes);
        let space_bytes = self.gpu.limits.sparse_address_space_size;
        let taken: u64 = self.memories.values().map(Memory::addresses_bytes).sum();
        if size_bytes > space_bytes.saturating_sub(taken) {
            let reason = format!("the device has {space_bytes} bytes of address space, of which {taken} are in use");
            return Err(out_of_memory("a reservation", size_bytes, reason));
        }
        let buffer = self.gpu.buffer("a reservation", size_bytes, SPARSE)?;
        Ok(self.add(buffer, size_bytes, Kind::Reservation(Mapping::default(), BTreeMap::new())))
    }

    pub fn create_placed(&mut self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        let (what, size_bytes) = ("a placed heap", self.whole_tiles(size_bytes));
        let buffer = self.gpu.buffer(what, size_bytes, vk::BufferCreateFlags::empty())?;
        let requirements = requirements(&self.gpu, buffer);
        let memory = self.allocate(what, requirements.size, requirements.memory_type_bits);
        let (memory, address) = memory.inspect_err(|_| destroy_buffer(&self.gpu, buffer))?;
        // What a driver adds to the size does not count.
        self.usage.heap_bytes -= requirements.size - size_bytes;
        if let Err(error) = bind(&self.gpu, buffer, memory) {
            self.usage.heap_bytes -= size_bytes;
            free(&self.gpu, buffer, memory);
            return Err(out_of_memory(what, size_bytes, error));
        }
        Ok(self.add(buffer, size_bytes, Kind::Placed(memory, address)))
    }

    pub fn create_host_block(&mut self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        let (what, size_bytes) = ("a host block", size_bytes.max(1));
        check_available(what, size_bytes, Use::Private)?;
        self.count_host(what, size_bytes)?;
        let made = host_block(&self.gpu, size_bytes, vk::MemoryPropertyFlags::HOST_CACHED);
        let made = made.inspect_err(|_| self.usage.host_bytes -= size_bytes)?;
        let (buffer, memory, address) = made;
        Ok(self.add(buffer, size_bytes, Kind::HostBlock(memory, address)))
    }

    pub fn add_disk_file(&mut self, file: DiskFile) -> MemoryId {
        let id = MemoryId(self.id());
        self.disk_files.add(id, file, &mut self.usage);
        id
    }

    fn add(&mut self, buffer: vk::Buffer, size_bytes: u64, kind: Kind) -> MemoryId {
        let id = MemoryId(self.id());
        self.memories.insert(id, Memory { buffer, size_bytes, kind });
        id
    }

    pub fn destroy_memory(&mut self, memory: MemoryId) {
        self.disk_files.remove(memory, &mut self.usage);
        let Some(memory) = self.memories.remove(&memory) else { return };
        match memory.kind {
            // Destroying a sparse buffer releases its tiles.
            Kind::Reservation(..) => destroy_buffer(&self.gpu, memory.buffer),
            Kind::Placed(allocation, _) => {
                self.usage.heap_bytes -= memory.size_bytes;
                free(&self.gpu, memory.buffer, allocation);
            }
            Kind::HostBlock(allocation, _) => {
                self.usage.host_bytes -= memory.size_bytes;
                free(&self.gpu, memory.buffer, allocation);
            }
        }
    }

    /// Notes a mapping, and returns what the driver must be told.
    pub fn map(
        &mut self,
        region: Region,
        heap: HeapId,
        heap_offset_bytes: u64,
    ) -> Result<(vk::Buffer, vk::SparseMemoryBind), DeviceError> {
        let tile = self.caps.tile_bytes;
        let source = self.heaps.get(&heap).ok_or_else(|| misuse(format!("{heap} does not exist")))?;
        let (source, source_bytes, address) = (source.memory, source.size_bytes, source.address);
        let (memory, mapping, seen) = self.reservation(region)?;
        let (offset, length) = (region.range.start, region.range.len());
        let whole_tiles = [offset, length, heap_offset_bytes].iter().all(|bytes| bytes % tile == 0);
        let inside = heap_offset_bytes.checked_add(length).is_some_and(|end| end <= source_bytes);
        if !whole_tiles || !inside || length == 0 {
            let reason =
                format!("mapping {region} from {heap} at {heap_offset_bytes} does not cover whole tiles inside both");
            return Err(misuse(reason));
        }
        if mapping.touches(region.range) {
            return Err(misuse(format!("tiles of {region} are already mapped")));
        }
        mapping.map(region.range, heap);
        if let Some(address) = address {
            let tiles = (0..length).step_by(tile as usize);
            seen.extend(tiles.map(|at| (offset + at, address.at(heap_offset_bytes + at))));
        }
        let bind = vk::SparseMemoryBind::default()
            .resource_offset(offset)
            .size(length)
            .memory(source)
            .memory_offset(heap_offset_bytes);
        Ok((memory, bind))
    }

    /// Notes that nothing is mapped in a region any more, and returns what the driver must be told.
    pub fn unmap(&mut self, region: Region) -> Result<(vk::Buffer, vk::SparseMemoryBind), DeviceError> {
        let tile = self.caps.tile_bytes;
        let (memory, mapping, seen) = self.reservation(region)?;
        let (offset, length) = (region.range.start, region.range.len());
        if offset % tile != 0 || length % tile != 0 || length == 0 {
            return Err(misuse(format!("unmapping {region} does not cover whole tiles")));
        }
        mapping.unmap(region.range);
        seen.retain(|tile, _| !(region.range.start..region.range.end).contains(tile));
        Ok((memory, vk::SparseMemoryBind::default().resource_offset(offset).size(length)))
    }

    fn reservation(
        &mut self,
        region: Region,
    ) -> Result<(vk::Buffer, &mut Mapping, &mut BTreeMap<u64, HostAddress>), DeviceError> {
        let wrong = || misuse(format!("{region} is not in a reservation"));
        let memory = self.memories.get_mut(&region.memory).ok_or_else(wrong)?;
        match &mut memory.kind {
            Kind::Reservation(mapping, seen) if region.range.end <= memory.size_bytes => {
                Ok((memory.buffer, mapping, seen))
            }
            _ => Err(wrong()),
        }
    }

    /// Returns the location of a region's bytes, all of which must have memory behind them.
    pub fn place(&self, region: Region) -> Result<BufferLocation, DeviceError> {
        let memory = self.memories.get(&region.memory);
        let memory = memory.ok_or_else(|| self.disk_files.why_no_address(region.memory))?;
        if region.range.end > memory.size_bytes {
            return Err(misuse(format!("{region} exceeds its memory of {} bytes", memory.size_bytes)));
        }
        match &memory.kind {
            Kind::Reservation(mapping, _) => match mapping.hole(region.range) {
                Some(byte) => Err(misuse(format!("byte {byte} of {region} is not mapped"))),
                None => Ok(BufferLocation { buffer: memory.buffer, offset_bytes: region.range.start }),
            },
            _ => Ok(BufferLocation { buffer: memory.buffer, offset_bytes: region.range.start }),
        }
    }

    /// Returns whether a memory is a host block.
    pub fn is_host_block(&self, memory: MemoryId) -> bool {
        self.memories.get(&memory).is_some_and(|memory| matches!(memory.kind, Kind::HostBlock(..)))
    }

    /// Returns where the host sees a region of a host block; `None` for other memories.
    pub fn host_address(&self, region: Region) -> Option<HostAddress> {
        let memory = self.memories.get(&region.memory)?;
        match memory.kind {
            Kind::HostBlock(_, address) if region.range.end <= memory.size_bytes => {
                Some(address.at(region.range.start))
            }
            _ => None,
        }
    }

    /// Returns where the host sees a region, piece by piece, in a host block or, on a unified device, in any memory.
    pub fn host_pieces(&self, region: Region) -> Option<Vec<(HostAddress, u64)>> {
        let (memory, range) = (self.memories.get(&region.memory)?, region.range);
        match &memory.kind {
            Kind::HostBlock(..) => Some(vec![(self.host_address(region)?, range.len())]),
            Kind::Placed(_, address) if range.end <= memory.size_bytes => {
                address.map(|address| vec![(address.at(range.start), range.len())])
            }
            Kind::Reservation(_, seen) => {
                let (tile, mut pieces, mut start) = (self.caps.tile_bytes, Vec::new(), range.start);
                while start < range.end {
                    let first = start / tile * tile;
                    let end = range.end.min(first + tile);
                    pieces.push((seen.get(&first)?.at(start - first), end - start));
                    start = end;
                }
                Some(pieces)
            }
            Kind::Placed(..) => None,
        }
    }

    pub fn usage(&self) -> DeviceUsage {
        self.usage
    }

    /// Counts the buffers for spill files as host memory, once.
    ///
    /// # Errors
    /// The same as those of [`Memories::count_host`].
    pub fn count_disk_buffers(&mut self, bytes: u64) -> Result<(), DeviceError> {
        if !self.counts_disk_buffers {
            self.count_host("buffers for spill files", bytes)?;
            self.counts_disk_buffers = true;
        }
        Ok(())
    }

    /// Counts bytes as host memory.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if they exceed the cap; then they are not counted.
    pub fn count_host(&mut self, what: &'static str, bytes: u64) -> Result<(), DeviceError> {
        let (taken, cap) = (self.usage.host_bytes, self.caps.host_bytes);
        let total = taken.checked_add(bytes).filter(|&total| total <= cap);
        self.usage.host_bytes = total.ok_or_else(|| {
            out_of_memory(what, bytes, format!("host memory is limited to {cap} bytes, of which {taken} are in use"))
        })?;
        self.usage.host_peak_bytes = self.usage.host_peak_bytes.max(self.usage.host_bytes);
        Ok(())
    }
}

impl Memory {
    /// Returns the bytes of the address space for sparse buffers that the memory takes.
    fn addresses_bytes(&self) -> u64 {
        if matches!(self.kind, Kind::Reservation(..)) { self.size_bytes } else { 0 }
    }
}

impl Drop for Memories {
    fn drop(&mut self) {
        let memories: Vec<MemoryId> = self.memories.keys().copied().collect();
        memories.into_iter().for_each(|memory| self.destroy_memory(memory));
        let heaps: Vec<HeapId> = self.heaps.keys().copied().collect();
        heaps.into_iter().for_each(|heap| self.destroy_heap(heap));
    }
}
