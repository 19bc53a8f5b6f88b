//! The last accesses of all bytes: for every physical byte the last write, and each stream's last read since then.
//!
//! A new command need not be ordered after anything else. Whatever happened before the last write is ordered before that write, and within
//! a stream "complete up to a position" covers every earlier position.

use std::collections::BTreeMap;

use forebay_base::ByteRange;

use crate::physical::{PhysicalBytes, PhysicalMemory};

/// The place of a command: the number of its stream, and its position in that stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPosition {
    /// The stream's number.
    pub stream: usize,
    /// The position of the command in the stream, counted from 1.
    pub position: u32,
}

/// A run of bytes with the same history.
#[derive(Clone, Debug, Default)]
struct Fragment {
    end: u64,
    write: Option<StreamPosition>,
    reads: Vec<StreamPosition>,
}

/// The last accesses of all bytes.
#[derive(Clone, Debug, Default)]
pub struct History {
    memories: BTreeMap<PhysicalMemory, BTreeMap<u64, Fragment>>,
}

/// Raises the position that a stream must have completed.
fn need(needs: &mut [u32], place: StreamPosition) {
    needs[place.stream] = needs[place.stream].max(place.position);
}

/// Splits the fragment that contains `at`, so that a fragment starts there.
fn cut(fragments: &mut BTreeMap<u64, Fragment>, at: u64) {
    if let Some((&start, fragment)) = fragments.range_mut(..at).next_back()
        && start < at
        && at < fragment.end
    {
        let rest = fragment.clone();
        fragment.end = at;
        fragments.insert(at, rest);
    }
}

/// The start of the first fragment that may overlap a range beginning at `at`.
fn first_start(fragments: &BTreeMap<u64, Fragment>, at: u64) -> u64 {
    fragments.range(..=at).next_back().map_or(at, |(&start, _)| start)
}

impl History {
    /// Raises `needs` (a position per stream) to what a read of the bytes must come after.
    pub fn needs_of_read(&self, bytes: PhysicalBytes, needs: &mut [u32]) {
        self.for_each_fragment(bytes, |fragment| {
            if let Some(write) = fragment.write {
                need(needs, write);
            }
        });
    }

    /// Raises `needs` (a position per stream) to what a write of the bytes must come after.
    pub fn needs_of_write(&self, bytes: PhysicalBytes, needs: &mut [u32]) {
        self.for_each_fragment(bytes, |fragment| {
            fragment.write.iter().chain(&fragment.reads).for_each(|&place| need(needs, place));
        });
    }

    fn for_each_fragment(&self, bytes: PhysicalBytes, mut visit: impl FnMut(&Fragment)) {
        let ByteRange { start, end } = bytes.range;
        if let Some(fragments) = self.memories.get(&bytes.memory).filter(|_| start < end) {
            let overlapping = fragments.range(first_start(fragments, start)..end);
            overlapping.filter(|(_, fragment)| fragment.end > start).for_each(|(_, fragment)| visit(fragment));
        }
    }

    /// Adds a read.
    pub fn read(&mut self, bytes: PhysicalBytes, place: StreamPosition) {
        let ByteRange { start, end } = bytes.range;
        if start == end {
            return;
        }
        let fragments = self.memories.entry(bytes.memory).or_default();
        cut(fragments, start);
        cut(fragments, end);
        let mut gaps = Vec::new();
        let mut at = start;
        for (&fragment_start, fragment) in fragments.range_mut(start..end) {
            if at < fragment_start {
                gaps.push((at, fragment_start));
            }
            at = fragment.end;
            match fragment.reads.iter_mut().find(|read| read.stream == place.stream) {
                Some(read) => read.position = read.position.max(place.position),
                None => fragment.reads.push(place),
            }
        }
        if at < end {
            gaps.push((at, end));
        }
        for (start, end) in gaps {
            fragments.insert(start, Fragment { end, write: None, reads: vec![place] });
        }
    }

    /// Adds a write, which replaces all older history of the bytes.
    pub fn write(&mut self, bytes: PhysicalBytes, place: StreamPosition) {
        let ByteRange { start, end } = bytes.range;
        if start == end {
            return;
        }
        let fragments = self.memories.entry(bytes.memory).or_default();
        cut(fragments, start);
        cut(fragments, end);
        while let Some((&inside, _)) = fragments.range(start..end).next() {
            fragments.remove(&inside);
        }
        fragments.insert(start, Fragment { end, write: Some(place), reads: Vec::new() });
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::MemoryId;

    use super::*;

    fn bytes(start: u64, end: u64) -> PhysicalBytes {
        PhysicalBytes { memory: PhysicalMemory::Memory(MemoryId(0)), range: ByteRange::new(start, end) }
    }

    fn place(stream: usize, position: u32) -> StreamPosition {
        StreamPosition { stream, position }
    }

    fn needs_of_write(history: &History, start: u64, end: u64) -> [u32; 2] {
        let mut needs = [0; 2];
        history.needs_of_write(bytes(start, end), &mut needs);
        needs
    }

    #[test]
    fn a_read_needs_writes_and_a_write_needs_both() {
        let mut history = History::default();
        history.write(bytes(0, 8), place(0, 1));
        history.read(bytes(4, 12), place(1, 1));
        let mut needs = [0; 2];
        history.needs_of_read(bytes(4, 12), &mut needs);
        assert_eq!(needs, [1, 0]);
        assert_eq!(needs_of_write(&history, 0, 4), [1, 0]);
        assert_eq!(needs_of_write(&history, 7, 9), [1, 1]);
        assert_eq!(needs_of_write(&history, 8, 12), [0, 1]);
        assert_eq!(needs_of_write(&history, 12, 16), [0, 0]);
    }

    #[test]
    fn a_write_forgets_what_it_covers_and_nothing_else() {
        let mut history = History::default();
        history.read(bytes(0, 12), place(1, 1));
        history.write(bytes(4, 8), place(0, 1));
        assert_eq!(needs_of_write(&history, 4, 8), [1, 0]);
        assert_eq!(needs_of_write(&history, 3, 5), [1, 1]);
        assert_eq!(needs_of_write(&history, 8, 9), [0, 1]);
        assert_eq!(needs_of_write(&history, 8, 8), [0, 0]);
    }
}
