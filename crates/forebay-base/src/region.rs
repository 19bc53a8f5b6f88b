//! Memories, byte ranges and regions: the only way in which commands refer to bytes.

use std::fmt;

/// The space that a memory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// Memory of the device with this number.
    Device(u32),
    /// Host memory, pinned if the device can pin it.
    Host,
    /// A spill file.
    Disk,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Space::Device(index) => write!(f, "device {index}"),
            Space::Host => f.write_str("host"),
            Space::Disk => f.write_str("disk"),
        }
    }
}

/// One addressable piece of a space: a reservation, a placed heap, a host block or a spill file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId(pub u32);

impl fmt::Display for MemoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

/// Physical device memory obtained in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeapId(pub u32);

impl fmt::Display for HeapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}", self.0)
    }
}

/// A half-open range of bytes, `start..end`.
///
/// ```
/// use forebay_base::ByteRange;
///
/// let range = ByteRange::new(16, 48);
/// assert_eq!(range.len(), 32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl ByteRange {
    /// The range `start..end`.
    ///
    /// # Panics
    /// If `end < start`.
    pub fn new(start: u64, end: u64) -> ByteRange {
        assert!(start <= end, "byte range {start}..{end} ends before it starts");
        ByteRange { start, end }
    }

    /// Length in bytes.
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether the range is empty.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether the ranges have a byte in common. An empty range overlaps nothing.
    pub fn overlaps(self, other: ByteRange) -> bool {
        self.start.max(other.start) < self.end.min(other.end)
    }

    /// The bytes that both ranges have in common, if any.
    pub fn intersection(self, other: ByteRange) -> Option<ByteRange> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(ByteRange { start, end })
    }

    /// Whether `other` lies entirely inside this range.
    pub const fn contains(self, other: ByteRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// A byte range of one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region {
    /// The memory.
    pub memory: MemoryId,
    /// The bytes of that memory.
    pub range: ByteRange,
}

impl Region {
    /// The `size_bytes` bytes of `memory` that start at `offset_bytes`.
    ///
    /// # Panics
    /// If the end does not fit into 64 bits.
    pub fn new(memory: MemoryId, offset_bytes: u64, size_bytes: u64) -> Region {
        let end = offset_bytes.checked_add(size_bytes).expect("a region ends within 64 bits");
        Region { memory, range: ByteRange::new(offset_bytes, end) }
    }

    /// Whether the regions have a byte of one memory in common.
    pub fn overlaps(self, other: Region) -> bool {
        self.memory == other.memory && self.range.overlaps(other.range)
    }

    /// The `size_bytes` bytes of this region that start `offset_bytes` after its start.
    ///
    /// # Panics
    /// If the part does not lie inside this region.
    pub fn part(self, offset_bytes: u64, size_bytes: u64) -> Region {
        let part = self.checked_part(offset_bytes, size_bytes);
        part.unwrap_or_else(|| panic!("{size_bytes} bytes starting at {offset_bytes} are not inside {self}"))
    }

    /// Like [`Region::part`], but returns `None` if the part does not lie inside this region.
    pub fn checked_part(self, offset_bytes: u64, size_bytes: u64) -> Option<Region> {
        let start = self.range.start.checked_add(offset_bytes)?;
        let end = start.checked_add(size_bytes).filter(|&end| end <= self.range.end)?;
        Some(Region { memory: self.memory, range: ByteRange { start, end } })
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.memory, self.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_ranges_overlap_nothing() {
        let empty = ByteRange::new(4, 4);
        assert!(!empty.overlaps(ByteRange::new(0, 8)));
        assert!(!ByteRange::new(0, 8).overlaps(empty));
    }

    #[test]
    fn touching_ranges_do_not_overlap() {
        assert!(!ByteRange::new(0, 4).overlaps(ByteRange::new(4, 8)));
        assert_eq!(ByteRange::new(0, 5).intersection(ByteRange::new(4, 8)), Some(ByteRange::new(4, 5)));
    }

    #[test]
    fn regions_of_different_memories_never_overlap() {
        let a = Region::new(MemoryId(0), 0, 16);
        assert!(!a.overlaps(Region::new(MemoryId(1), 0, 16)));
        assert!(a.overlaps(Region::new(MemoryId(0), 15, 1)));
    }

    #[test]
    #[should_panic(expected = "are not inside")]
    fn a_part_stays_inside() {
        Region::new(MemoryId(0), 16, 16).part(8, 9);
    }

    #[test]
    fn parts_are_checked_without_overflow() {
        let all = Region::new(MemoryId(0), 16, 16);
        assert_eq!(all.checked_part(8, 8), Some(Region::new(MemoryId(0), 24, 8)));
        assert_eq!(all.checked_part(16, 0), Some(Region::new(MemoryId(0), 32, 0)));
        for (offset_bytes, size_bytes) in [(8, 9), (17, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(all.checked_part(offset_bytes, size_bytes), None, "{offset_bytes}, {size_bytes}");
        }
    }
}
