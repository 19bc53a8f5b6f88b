//! Device memory for units: heaps cut into slots of one unit each.

use forebay_base::HeapId;
use forebay_device::{Device, DeviceError};

/// Device memory for one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The heap.
    pub heap: HeapId,
    /// Its first byte there.
    pub offset_bytes: u64,
}

/// All slots of a managed memory.
#[derive(Debug)]
pub struct Slots {
    unit_bytes: u64,
    count: u64,
    count_max: u64,
    /// The most slots of one heap.
    heap_count_max: u64,
    heaps: Vec<HeapId>,
    free: Vec<Slot>,
}

impl Slots {
    /// No slots yet, and never more than `count_max` of `unit_bytes`.
    pub fn new(unit_bytes: u64, count_max: u64, heap_bytes_max: u64) -> Slots {
        let heap_count_max = (heap_bytes_max / unit_bytes).max(1);
        Slots { unit_bytes, count: 0, count_max, heap_count_max, heaps: Vec::new(), free: Vec::new() }
    }

    /// Takes a heap from the device for about `wanted` slots. Whether there may be more.
    ///
    /// # Errors
    /// What the device reports.
    pub fn grow(&mut self, device: &dyn Device, wanted: u64) -> Result<bool, DeviceError> {
        // At least doubling keeps the number of heaps small.
        let count = wanted.max(self.count).min(self.heap_count_max).min(self.count_max - self.count);
        if count == 0 {
            return Ok(false);
        }
        let heap = device.create_heap(count * self.unit_bytes)?;
        self.heaps.push(heap);
        self.count += count;
        self.free.extend((0..count).rev().map(|i| Slot { heap, offset_bytes: i * self.unit_bytes }));
        Ok(true)
    }

    /// Slots that nobody has.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Bytes taken from the device.
    pub fn reserved_bytes(&self) -> u64 {
        self.count * self.unit_bytes
    }

    /// A slot that nobody has, where there is one.
    pub fn take(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Takes slots back, which are mapped nowhere.
    pub fn give_back(&mut self, slots: impl IntoIterator<Item = Slot>) {
        self.free.extend(slots);
    }

    /// Gives everything back to the device: the end.
    pub fn clear(&mut self, device: &dyn Device) {
        self.free.clear();
        self.heaps.drain(..).for_each(|heap| device.destroy_heap(heap));
    }
}
