//! The blocks of all segments: each segment is a chain of blocks in ascending addresses without gaps.

use forebay_base::ByteRange;

use super::{BlockId, SegmentId};

/// No block: the end of a chain.
pub const NONE: u32 = u32::MAX;

/// Which of the allocator's pools, in the order of their first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolIndex(pub u32);

/// The pool that all take from.
pub const SHARED: PoolIndex = PoolIndex(0);

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No block at all: the place is free for the next one.
    Vacant,
    /// Free for this pool.
    Free(PoolIndex),
    /// Allocated for this pool.
    Live(PoolIndex),
    /// The tiles that lay here are in another segment.
    Hole,
}

/// A block and its neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub segment: SegmentId,
    pub offset_bytes: u64,
    pub size_bytes: u64,
    pub state: State,
    /// The blocks before and after it in its segment.
    pub previous: u32,
    pub next: u32,
    /// While it is free: the blocks before and after it in its bin.
    pub bin_previous: u32,
    pub bin_next: u32,
    /// Counts how often the place was live, so that an id names one life only.
    pub generation: u32,
}

/// What is told about a live block. It is kept apart from [`Entry`], which neighbours look at: the fewer bytes those are, the
/// more of them stay in the processor's caches.
#[derive(Clone, Debug, Default)]
pub struct Label {
    /// As it was asked for.
    pub requested_bytes: u64,
    /// Kept when the block is freed, so that the next owner's name needs no memory of its own.
    pub owner: String,
}

impl Entry {
    pub fn range(&self) -> ByteRange {
        ByteRange::new(self.offset_bytes, self.offset_bytes + self.size_bytes)
    }
}

/// All blocks, found by index; indices of blocks that are gone are used again.
#[derive(Default)]
pub struct Blocks {
    entries: Vec<Entry>,
    labels: Vec<Label>,
    vacant: Vec<u32>,
}

impl Blocks {
    /// A block with no neighbours.
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

    /// Cuts the block after `size_bytes`; the rest becomes a block of the same state.
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

    /// The block takes in the one after it.
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

    /// Gives the place of a block back.
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

    /// Every block that is live, in no order that means anything.
    pub fn live(&self) -> impl Iterator<Item = (&Entry, &Label)> + '_ {
        self.entries.iter().zip(&self.labels).filter(|(entry, _)| matches!(entry.state, State::Live(_)))
    }

    /// The name of this life of the block.
    pub fn id(&self, index: u32) -> BlockId {
        BlockId(u64::from(self.at(index).generation) << 32 | u64::from(index))
    }

    /// The block of that name, and how often its place has been live.
    pub fn find(&self, id: BlockId) -> Option<(u32, &Entry)> {
        let index = id.0 as u32;
        self.entries.get(index as usize).map(|entry| (index, entry))
    }
}
