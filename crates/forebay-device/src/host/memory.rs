//! The memories of the host device (heaps, reservations, placed heaps, host blocks, spill files) and the addresses of regions.

use std::collections::BTreeMap;
use std::io;

use forebay_base::{HeapId, MemoryId, Region};
pub use forebay_limits::Use;

pub(super) use super::address::Address;
use super::disk_file::{DiskFile, DiskFiles};
use super::loans::Loans;
use super::sys::{AddressRange, MemoryFile};
use crate::device::{DeviceError, DeviceUsage};
use crate::mapping::Mapping;

struct Heap {
    file: MemoryFile,
    size_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reservation,
    Placed,
    HostBlock,
}

struct Memory {
    range: AddressRange,
    size_bytes: u64,
    kind: Kind,
    /// The mapped parts of a reservation.
    mapped: Mapping,
}

/// All memories of one host device.
#[derive(Default)]
pub(super) struct Memories {
    /// The unit of mapping, in bytes.
    tile_bytes: u64,
    heaps: BTreeMap<HeapId, Heap>,
    memories: BTreeMap<MemoryId, Memory>,
    pub disk_files: DiskFiles,
    /// Memories that are backed by memory that the process lends.
    pub loans: Loans,
    next_id: u32,
    usage: DeviceUsage,
    /// Whether the host bytes include buffers for spill files.
    counts_disk_buffers: bool,
    /// Whether device memory is allocated when it is written, not when it is mapped.
    pub allocates_late: bool,
    /// The maximum number of heap bytes.
    heap_cap_bytes: u64,
    /// The maximum number of host bytes.
    host_cap_bytes: u64,
}

fn out_of_memory(what: &'static str, requested_bytes: u64, reason: impl ToString) -> DeviceError {
    DeviceError::OutOfMemory { what, requested_bytes, reason: reason.to_string() }
}

/// Refuses a request that exceeds what the machine, a control group or a resource limit has left at this moment: the system would grant it
/// and kill a process later.
///
/// # Errors
/// [`DeviceError::OutOfMemory`], with the limit and possible remedies.
pub fn check_available(what: &'static str, requested_bytes: u64, purpose: Use) -> Result<(), DeviceError> {
    forebay_limits::check(requested_bytes, purpose).map_err(|shortage| {
        let way_out =
            "lower --device-memory or --host-memory, move what exceeds both to disk with --spill-dir, or raise the \
             limit";
        out_of_memory(what, requested_bytes, format!("{shortage} ({way_out})"))
    })
}

fn misuse(reason: String) -> DeviceError {
    DeviceError::Lost { reason }
}

impl Memories {
    /// Creates an empty set of memories with these limits for the bytes of heaps and host memory. A tile has at least one byte.
    pub fn new(tile_bytes: u64, heap_cap_bytes: u64, host_cap_bytes: u64) -> Memories {
        Memories { tile_bytes, heap_cap_bytes, host_cap_bytes, ..Memories::default() }
    }

    /// Returns the size rounded up to whole tiles.
    fn whole_tiles(&self, size_bytes: u64) -> u64 {
        size_bytes.max(1).checked_next_multiple_of(self.tile_bytes).unwrap_or(u64::MAX)
    }

    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    fn new_file(&mut self, what: &'static str, size_bytes: u64) -> Result<MemoryFile, DeviceError> {
        if self.usage.heap_bytes.saturating_add(size_bytes) > self.heap_cap_bytes {
            let reason =
                format!("the device has {} bytes, of which {} are in use", self.heap_cap_bytes, self.usage.heap_bytes);
            return Err(out_of_memory(what, size_bytes, reason));
        }
        check_available(what, size_bytes, Use::Memory)?;
        let file = MemoryFile::new(size_bytes).map_err(|error| out_of_memory(what, size_bytes, error))?;
        self.usage.heap_bytes += size_bytes;
        self.usage.heap_peak_bytes = self.usage.heap_peak_bytes.max(self.usage.heap_bytes);
        Ok(file)
    }

    fn add_memory(&mut self, range: AddressRange, size_bytes: u64, kind: Kind) -> MemoryId {
        let id = MemoryId(self.id());
        self.memories.insert(id, Memory { range, size_bytes, kind, mapped: Mapping::default() });
        id
    }

    pub fn create_heap(&mut self, size_bytes: u64) -> Result<HeapId, DeviceError> {
        let size_bytes = self.whole_tiles(size_bytes);
        let file = self.new_file("a heap", size_bytes)?;
        let id = HeapId(self.id());
        self.heaps.insert(id, Heap { file, size_bytes });
        Ok(id)
    }

    pub fn destroy_heap(&mut self, heap: HeapId) {
        if let Some(heap) = self.heaps.remove(&heap) {
            self.usage.heap_bytes -= heap.size_bytes;
        }
    }

    pub fn create_reservation(&mut self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        let size_bytes = self.whole_tiles(size_bytes);
        let what = "a reservation";
        check_available(what, size_bytes, Use::Addresses)?;
        let range = AddressRange::reserve(size_bytes).map_err(|error| out_of_memory(what, size_bytes, error))?;
        Ok(self.add_memory(range, size_bytes, Kind::Reservation))
    }

    pub fn create_placed(&mut self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        let size_bytes = self.whole_tiles(size_bytes);
        let what = "a placed heap";
        check_available(what, size_bytes, Use::Addresses)?;
        let range = AddressRange::reserve(size_bytes).map_err(|error| out_of_memory(what, size_bytes, error))?;
        let file = self.new_file(what, size_bytes)?;
        // The mapping keeps the pages of the file; the file itself is no longer needed.
        if let Err(error) = range.map(0, &file, 0, size_bytes, !self.allocates_late) {
            self.usage.heap_bytes -= size_bytes;
            return Err(out_of_memory(what, size_bytes, error));
        }
        Ok(self.add_memory(range, size_bytes, Kind::Placed))
    }

    /// Adds a memory for a loan that the process will make.
    pub fn create_loan(&mut self, size_bytes: u64) -> MemoryId {
        let id = MemoryId(self.id());
        self.loans.add(id, size_bytes);
        id
    }

    pub fn create_host_block(&mut self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        let block = self.create_released_host_block(size_bytes)?;
        self.fill_host(block).inspect_err(|_| self.destroy_memory(block))?;
        Ok(block)
    }

    /// Creates a host block whose pages are allocated when they are written.
    pub fn create_released_host_block(&mut self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        let size_bytes = size_bytes.max(1);
        let what = "a host block";
        check_available(what, size_bytes, Use::Private)?;
        self.count_host(what, size_bytes)?;
        let range = AddressRange::host_block(size_bytes).map_err(|error| {
            self.usage.host_bytes -= size_bytes;
            out_of_memory(what, size_bytes, error)
        })?;
        Ok(self.add_memory(range, size_bytes, Kind::HostBlock))
    }

    /// Makes all pages of a host block present.
    pub fn fill_host(&mut self, block: MemoryId) -> Result<(), DeviceError> {
        let Some(memory) = self.memories.get(&block).filter(|memory| memory.kind == Kind::HostBlock) else {
            return Err(misuse(format!("{block} is not a host block")));
        };
        memory.range.fill().map_err(|error| out_of_memory("a host block", memory.size_bytes, error))
    }

    /// Returns the pages of a part of a memory to the system.
    pub fn release_host(&mut self, region: Region) {
        let memory = self.memories.get(&region.memory);
        let Some(memory) = memory.filter(|memory| region.range.end <= memory.size_bytes) else { return };
        match memory.kind {
            Kind::HostBlock => memory.range.release(region.range.start, region.range.end),
            Kind::Reservation | Kind::Placed => memory.range.release_file(region.range.start, region.range.end),
        }
    }

    pub fn add_disk_file(&mut self, file: DiskFile) -> MemoryId {
        let id = MemoryId(self.id());
        self.disk_files.add(id, file, &mut self.usage);
        id
    }

    pub fn destroy_memory(&mut self, memory: MemoryId) {
        self.disk_files.remove(memory, &mut self.usage);
        self.loans.remove(memory);
        let Some(memory) = self.memories.remove(&memory) else { return };
        match memory.kind {
            Kind::Reservation => {}
            Kind::Placed => self.usage.heap_bytes -= memory.size_bytes,
            Kind::HostBlock => self.usage.host_bytes -= memory.size_bytes,
        }
    }

    pub fn map(&mut self, region: Region, heap: HeapId, heap_offset_bytes: u64) -> Result<(), DeviceError> {
        let memory = self.memories.get_mut(&region.memory).filter(|memory| memory.kind == Kind::Reservation);
        let memory = memory.ok_or_else(|| misuse(format!("{region} is not in a reservation")))?;
        let source = self.heaps.get(&heap).ok_or_else(|| misuse(format!("{heap} does not exist")))?;
        let (offset, length) = (region.range.start, region.range.len());
        let whole_tiles = [offset, length, heap_offset_bytes].iter().all(|bytes| bytes % self.tile_bytes == 0);
        let inside = region.range.end <= memory.size_bytes
            && heap_offset_bytes.checked_add(length).is_some_and(|end| end <= source.size_bytes);
        if !whole_tiles || !inside || length == 0 {
            return Err(misuse(format!(
                "mapping {region} from {heap} at {heap_offset_bytes} does not cover whole tiles inside both"
            )));
        }
        if memory.mapped.touches(region.range) {
            return Err(misuse(format!("tiles of {region} are already mapped")));
        }
        memory
            .range
            .map(offset, &source.file, heap_offset_bytes, length, !self.allocates_late)
            .map_err(|error| out_of_memory("a mapping", length, error))?;
        memory.mapped.map(region.range, heap);
        Ok(())
    }

    pub fn unmap(&mut self, region: Region) -> Result<(), DeviceError> {
        let memory = self.memories.get_mut(&region.memory).filter(|memory| memory.kind == Kind::Reservation);
        let memory = memory.ok_or_else(|| misuse(format!("{region} is not in a reservation")))?;
        let (start, end) = (region.range.start, region.range.end);
        if start % self.tile_bytes != 0 || end % self.tile_bytes != 0 || end > memory.size_bytes || start == end {
            return Err(misuse(format!("unmapping {region} does not cover whole tiles")));
        }
        memory.range.unmap(start, end - start).map_err(|error| out_of_memory("a mapping", end - start, error))?;
        memory.mapped.unmap(region.range);
        Ok(())
    }

    /// Returns the address of a region that a command reads, after checking that memory backs all of its bytes.
    pub fn resolve(&self, region: Region) -> Result<Address, DeviceError> {
        self.loans.resolve(region, false).unwrap_or_else(|| self.resolve_own(region))
    }

    /// Like [`Memories::resolve`], for a region that a command writes.
    pub fn resolve_to_write(&self, region: Region) -> Result<Address, DeviceError> {
        self.loans.resolve(region, true).unwrap_or_else(|| self.resolve_own(region))
    }

    fn resolve_own(&self, region: Region) -> Result<Address, DeviceError> {
        let memory = self.memories.get(&region.memory);
        let memory = memory.ok_or_else(|| self.disk_files.why_no_address(region.memory))?;
        let range = region.range;
        if range.end > memory.size_bytes {
            return Err(misuse(format!("{region} exceeds its memory of {} bytes", memory.size_bytes)));
        }
        if memory.kind == Kind::Reservation
            && let Some(byte) = memory.mapped.hole(range)
        {
            return Err(misuse(format!("byte {byte} of {region} is not mapped")));
        }
        // SAFETY: the offset lies inside the memory's address range.
        Ok(Address(unsafe { memory.range.base().add(range.start as usize) }))
    }

    /// Returns the address of a region that the host itself may use: a part of a host block, or of any memory on a `unified` device.
    ///
    /// # Panics
    /// If the region is not inside such a memory.
    pub fn resolve_host(&self, region: Region, unified: bool) -> Address {
        let memory = self.memories.get(&region.memory);
        let memory = memory.unwrap_or_else(|| panic!("{} is not in host memory", region.memory));
        assert!(unified || memory.kind == Kind::HostBlock, "{} is not a host block", region.memory);
        self.resolve(region).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns whether the memory is in host space.
    pub fn is_host(&self, memory: MemoryId) -> bool {
        self.memories.get(&memory).is_some_and(|memory| memory.kind == Kind::HostBlock)
    }

    pub fn usage(&self) -> DeviceUsage {
        self.usage
    }

    /// Counts the buffers for spill files as host memory, once.
    ///
    /// # Errors
    /// As for [`Memories::count_host`].
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
        let taken = self.usage.host_bytes;
        let total = taken.checked_add(bytes).filter(|&total| total <= self.host_cap_bytes);
        self.usage.host_bytes = total.ok_or_else(|| {
            out_of_memory(
                what,
                bytes,
                format!("host memory is limited to {} bytes, of which {taken} are in use", self.host_cap_bytes),
            )
        })?;
        self.usage.host_peak_bytes = self.usage.host_peak_bytes.max(self.usage.host_bytes);
        Ok(())
    }
}

/// Converts a system error about something other than memory.
pub(super) fn system(what: impl Into<String>, error: io::Error) -> DeviceError {
    DeviceError::Refused { what: what.into(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testing::Random;

    const TILE: u64 = 64 << 10;
    const TILES: u64 = 16;

    /// Compares random mappings with a list that gives the heap and the tile behind each tile of the reservation.
    #[test]
    fn mappings_equal_a_list_of_tiles() {
        for seed in 0..8u64 {
            let mut random = Random::new(seed);
            let mut memories = Memories::new(TILE, u64::MAX, u64::MAX);
            let heaps = [memories.create_heap(TILES * TILE).unwrap(), memories.create_heap(TILES * TILE).unwrap()];
            let memory = memories.create_reservation(TILES * TILE).unwrap();
            let mut model: Vec<Option<(usize, u64)>> = vec![None; TILES as usize];
            for step in 0..200 {
                let first = random.below(TILES);
                let count = 1 + random.below((TILES - first).min(5));
                let region = Region::new(memory, first * TILE, count * TILE);
                let tiles = first as usize..(first + count) as usize;
                if random.once_in(3) {
                    memories.unmap(region).unwrap();
                    model[tiles].fill(None);
                } else {
                    let (heap, offset) = (random.index(2), random.below(TILES - count + 1));
                    let mapped = memories.map(region, heaps[heap], offset * TILE);
                    let free = model[tiles.clone()].iter().all(Option::is_none);
                    assert_eq!(mapped.is_ok(), free, "seed {seed}, step {step}: {mapped:?}");
                    if free {
                        tiles.zip(offset..).for_each(|(tile, behind)| model[tile] = Some((heap, behind)));
                    }
                }
                let first = random.below(TILES);
                let asked = first..(first + 1 + random.below(3)).min(TILES);
                let region = Region::new(memory, asked.start * TILE + 5, (asked.end - asked.start) * TILE - 5);
                let expected = model[asked.start as usize..asked.end as usize].iter().all(Option::is_some);
                assert_eq!(memories.resolve(region).is_ok(), expected, "seed {seed}, step {step}: {region}");
            }
            same_tiles(&memories, memory, &model, seed);
        }
    }

    /// Checks that places behind which the model has the same tile hold the same byte, and others different ones.
    fn same_tiles(memories: &Memories, memory: MemoryId, model: &[Option<(usize, u64)>], seed: u64) {
        let addresses: Vec<_> =
            (0..TILES).map(|tile| memories.resolve(Region::new(memory, tile * TILE, TILE))).collect();
        for (tile, address) in addresses.iter().enumerate() {
            let Ok(address) = address else { continue };
            // SAFETY: the tile is mapped, and no one else uses it.
            unsafe { address.0.write(tile as u8) };
        }
        for (tile, address) in addresses.iter().enumerate() {
            let Ok(address) = address else { continue };
            let last = model.iter().rposition(|behind| *behind == model[tile]);
            // SAFETY: as above.
            assert_eq!(Some(usize::from(unsafe { address.0.read() })), last, "seed {seed}, tile {tile}");
        }
    }

    /// Uses heaps of several large pages, and gives back a part of one.
    #[test]
    fn large_heaps_are_zeroed_and_parts_of_them_can_be_released() {
        const SIZE: u64 = (5 << 20) + TILE;
        let mut memories = Memories::new(TILE, u64::MAX, u64::MAX);
        let (heap, reservation) = (memories.create_heap(SIZE).unwrap(), memories.create_reservation(SIZE).unwrap());
        memories.map(Region::new(reservation, 0, SIZE), heap, 0).unwrap();
        for memory in [reservation, memories.create_placed(SIZE).unwrap()] {
            let address = memories.resolve(Region::new(memory, 0, SIZE)).unwrap().0;
            assert_eq!(address as usize % (2 << 20), 0, "large pages are possible");
            // SAFETY: the region is mapped, and no one else uses it.
            let bytes = || unsafe { std::slice::from_raw_parts(address, SIZE as usize).to_vec() };
            assert!(bytes().iter().all(|&byte| byte == 0));
            // SAFETY: as above.
            unsafe { address.write_bytes(7, SIZE as usize) };
            let released = 3 * TILE..5 * TILE;
            memories.release_host(Region::new(memory, released.start, released.end - released.start));
            let expected = (0..SIZE).map(|at| if released.contains(&at) { 0 } else { 7 });
            assert!(expected.eq(bytes()));
        }
    }

    #[test]
    fn caps_hold_and_failures_count_nothing() {
        let mut memories = Memories::new(TILE, 2 * TILE, TILE);
        memories.create_heap(1).unwrap();
        memories.create_placed(TILE).unwrap();
        assert!(matches!(memories.create_heap(1), Err(DeviceError::OutOfMemory { .. })));
        assert!(matches!(memories.create_host_block(TILE + 1), Err(DeviceError::OutOfMemory { .. })));
        assert!(matches!(memories.create_host_block(u64::MAX), Err(DeviceError::OutOfMemory { .. })));
        let expected = DeviceUsage { heap_bytes: 2 * TILE, heap_peak_bytes: 2 * TILE, ..DeviceUsage::default() };
        assert_eq!(memories.usage(), expected);
    }
}
