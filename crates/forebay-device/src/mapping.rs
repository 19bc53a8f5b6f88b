//! The mapped tiles of a reservation: the bookkeeping of devices that map heaps.

use std::collections::BTreeMap;

use forebay_base::{ByteRange, HeapId};

/// The mapped parts of one reservation. Parts are disjoint, and each lies in one heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// From offset to length and heap.
    parts: BTreeMap<u64, (u64, HeapId)>,
}

impl Mapping {
    /// Returns whether any byte of the range is mapped.
    pub fn touches(&self, range: ByteRange) -> bool {
        // Parts are disjoint, so the last of those that begin before the end of the range reaches furthest.
        let last = self.parts.range(..range.end).next_back();
        last.is_some_and(|(&start, &(length, _))| range.start < start + length)
    }

    /// Records a mapped part. No byte of it may have been mapped before.
    pub fn map(&mut self, range: ByteRange, heap: HeapId) {
        self.parts.insert(range.start, (range.len(), heap));
    }

    /// Removes the mapped parts of the range.
    pub fn unmap(&mut self, range: ByteRange) {
        let met: Vec<(u64, (u64, HeapId))> = self
            .parts
            .range(..range.end)
            .rev()
            .take_while(|&(&offset, &(length, _))| range.start < offset + length)
            .map(|(&offset, &part)| (offset, part))
            .collect();
        for (offset, (length, heap)) in met {
            self.parts.remove(&offset);
            if offset < range.start {
                self.parts.insert(offset, (range.start - offset, heap));
            }
            if offset + length > range.end {
                self.parts.insert(range.end, (offset + length - range.end, heap));
            }
        }
    }

    /// Returns the first byte of the range that is not mapped.
    pub fn hole(&self, range: ByteRange) -> Option<u64> {
        let mut reached = range.start;
        while reached < range.end {
            let part = self.parts.range(..=reached).next_back();
            match part.filter(|&(&offset, &(length, _))| offset + length > reached) {
                Some((&offset, &(length, _))) => reached = offset + length,
                None => return Some(reached),
            }
        }
        None
    }
}
