//! The blocks of all segments: each segment is a chain of blocks in ascending order of address, without gaps.

use forebay_base::ByteRange;

use super::{BlockId, SegmentId};

/// No block: the end of a chain.
pub const NONE: u32 = u32::MAX;

/// The index of a pool of the allocator, in order of first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolIndex(pub u32);

/// The pool that all streams allocate from.
pub const SHARED: PoolIndex = PoolIndex(0);

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not a block: the entry is free for the next one.
    Vacant,
    /// Free for this pool.
    Free(PoolIndex),
    /// Allocated for this pool.
    Live(PoolIndex),
    /// The tiles that were here are in another segment.
    Hole,
}

/// A block and its neighbors.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub segment: SegmentId,
    pub offset_bytes: u64,
    pub size_bytes: u64,
    pub state: State,
    /// The blocks before and after it in its segment.
    pub previous: u32,
    pub next: u32,
    /// While the block is free: the blocks before and after it in its bin.
    pub bin_previous: u32,
    pub bin_next: u32,
    /// How often the entry has been live, so that an id identifies a single allocation.
    pub generation: u32,
}

/// What is reported about a live block. It is kept apart from [`Entry`], which neighbors read: the smaller the entries, the more of them
/// stay in the processor's caches.
#[derive(Clone, Debug, Default)]
pub struct Label {
    /// The size as requested.
    pub requested_bytes: u64,
    /// Kept when the block is freed, so that the name of the next owner reuses its memory.
    pub owner: String,
}

impl Entry {
    pub fn range(&self) -> ByteRange {
        ByteRange::new(self.offset_bytes, self.offset_bytes + self.size_bytes)
    }
}

/// All blocks, by index; indices of removed blocks are reused.
#[derive(Default)]
pub struct Blocks {
    entries: Vec<Entry>,
    labels: Vec<Label>,
    vacant: Vec<u32>,
}

impl Blocks {
    /// Adds a block without neighbors.
    pub fn add(&mut self, segment: SegmentId, offset_bytes: u64, size_bytes: u64, state: State) -> u32 {
        let index = self.vacant.pop().unwrap_or(self.entries.len() as u32);
        let mut entry = Entry {
            segment,
            offset_bytes,
            size_bytes,
            state,
            previous: NONE,
            next: NONE,
            bin_previous: NONE,
            bin_next: NONE,
            generation: 0,
        };
        match self.entries.get_mut(index as usize) {
            Some(place) => {
                entry.generation = place.generation;
                *place = entry;
            }
            None => {
                self.entries.push(entry);
                self.labels.push(Label::default());
            }
        }
        index
    }

    pub fn at(&self, index: u32) -> &Entry {
        &self.entries[index as usize]
    }

    pub fn at_mut(&mut self, index: u32) -> &mut Entry {
        &mut self.entries[index as usize]
    }

    pub fn label(&self, index: u32) -> &Label {
        &self.labels[index as usize]
    }

    pub fn label_mut(&mut self, index: u32) -> &mut Label {
        &mut self.labels[index as usize]
    }

    /// Splits the block after `size_bytes`; the rest becomes a block in the same state.
    pub fn split(&mut self, index: u32, size_bytes: u64) -> u32 {
        let Entry { segment, offset_bytes, size_bytes: whole_bytes, state, next, .. } = *self.at(index);
        let rest = self.add(segment, offset_bytes + size_bytes, whole_bytes - size_bytes, state);
        (self.at_mut(rest).previous, self.at_mut(rest).next) = (index, next);
        if next != NONE {
            self.at_mut(next).previous = rest;
        }
        (self.at_mut(index).size_bytes, self.at_mut(index).next) = (size_bytes, rest);
        rest
    }

    /// Merges the block after this one into it.
    pub fn absorb_next(&mut self, index: u32) {
        let absorbed = self.at(index).next;
        let (size_bytes, next) = (self.at(absorbed).size_bytes, self.at(absorbed).next);
        self.at_mut(index).size_bytes += size_bytes;
        self.at_mut(index).next = next;
        if next != NONE {
            self.at_mut(next).previous = index;
        }
        self.vacate(absorbed);
    }

    /// Frees the entry of a block.
    pub fn vacate(&mut self, index: u32) {
        self.at_mut(index).state = State::Vacant;
        self.vacant.push(index);
    }

    /// The blocks from this one to the end of its segment.
    pub fn chain(&self, first: u32) -> impl Iterator<Item = (u32, &Entry)> + '_ {
        let some = |index: u32| (index != NONE).then_some(index);
        let indices = std::iter::successors(some(first), move |index| some(self.at(*index).next));
        indices.map(|index| (index, self.at(index)))
    }

    /// Every live block, in no particular order.
    pub fn live(&self) -> impl Iterator<Item = (&Entry, &Label)> + '_ {
        self.entries.iter().zip(&self.labels).filter(|(entry, _)| matches!(entry.state, State::Live(_)))
    }

    /// The id of the block in its current generation.
    pub fn id(&self, index: u32) -> BlockId {
        BlockId(u64::from(self.at(index).generation) << 32 | u64::from(index))
    }

    /// The index and the entry of the block with this id, whatever its generation.
    pub fn find(&self, id: BlockId) -> Option<(u32, &Entry)> {
        let index = id.0 as u32;
        self.entries.get(index as usize).map(|entry| (index, entry))
    }
}
