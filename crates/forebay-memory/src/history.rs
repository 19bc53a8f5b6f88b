//! The history of an allocator: who held which block from when to when, for a picture of it. What is kept is bounded.

use std::collections::{BTreeMap, VecDeque};

use forebay_base::ByteRange;

use crate::allocator::{Block, BlockId, BlockState, PoolId, SegmentId, Snapshot};
use crate::picture::{Bar, Picture};

/// A block from its allocation to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLife {
    /// Its segment.
    pub segment: SegmentId,
    /// Its bytes in the segment.
    pub range: ByteRange,
    /// Who requested it.
    pub owner: String,
    /// The pool that it was allocated for.
    pub pool: PoolId,
    /// The event at which it was allocated.
    pub start: u64,
    /// The event at which it was freed; `None` while it is live.
    pub end: Option<u64>,
}

/// A segment from when it was obtained to when it was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentLife {
    /// Its size.
    pub size_bytes: u64,
    /// The event at which it was added.
    pub start: u64,
    /// The event at which it was removed; `None` while it exists.
    pub end: Option<u64>,
}

/// The events of an allocator: every change is an event, counted from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    count_max: usize,
    event_count: u64,
    /// Everything that ended before this event is forgotten.
    known_from: u64,
    segments: BTreeMap<SegmentId, SegmentLife>,
    live: BTreeMap<BlockId, BlockLife>,
    /// The blocks that were freed, the earliest first.
    past: VecDeque<BlockLife>,
}

impl History {
    /// Creates a history that begins with the current segments and blocks, and keeps at most `count_max` freed blocks.
    pub fn new(count_max: usize, now: &Snapshot) -> History {
        let mut history = History { count_max, ..History::default() };
        for segment in &now.segments {
            let life = SegmentLife { size_bytes: segment.size_bytes, start: 0, end: None };
            history.segments.insert(segment.segment, life);
            for block in &segment.blocks {
                if let BlockState::Live { id, pool, owner, .. } = &block.state {
                    let (range, owner, pool) = (block.range, owner.clone(), *pool);
                    let life = BlockLife { segment: segment.segment, range, owner, pool, start: 0, end: None };
                    history.live.insert(*id, life);
                }
            }
        }
        history
    }

    fn next_event(&mut self) -> u64 {
        self.event_count += 1;
        self.event_count - 1
    }

    /// Notes a new segment.
    pub fn segment_added(&mut self, segment: SegmentId, size_bytes: u64) {
        let start = self.next_event();
        self.segments.insert(segment, SegmentLife { size_bytes, start, end: None });
    }

    /// Notes that a segment was removed.
    pub fn segment_removed(&mut self, segment: SegmentId) {
        let event = self.next_event();
        if let Some(life) = self.segments.get_mut(&segment) {
            life.end = Some(event);
        }
    }

    /// Notes an allocation.
    pub fn allocated(&mut self, block: &Block, pool: PoolId, owner: &str) {
        let start = self.next_event();
        let range = ByteRange::new(block.offset_bytes, block.offset_bytes + block.size_bytes);
        let owner = owner.to_string();
        self.live.insert(block.id, BlockLife { segment: block.segment, range, owner, pool, start, end: None });
    }

    /// Notes that a block was freed.
    pub fn freed(&mut self, block: BlockId) {
        let event = self.next_event();
        let Some(life) = self.live.remove(&block) else { return };
        self.past.push_back(BlockLife { end: Some(event), ..life });
        while self.past.len() > self.count_max {
            let forgotten = self.past.pop_front().and_then(|life| life.end);
            self.known_from = forgotten.unwrap_or(self.known_from).max(self.known_from);
        }
        let known_from = self.known_from;
        self.segments.retain(|_, life| life.end.is_none_or(|end| end > known_from));
    }

    /// The number of events so far.
    pub fn event_count(&self) -> u64 {
        self.event_count
    }

    /// The event since which nothing has been forgotten.
    pub fn known_from(&self) -> u64 {
        self.known_from
    }

    /// All known blocks: the freed ones in the order in which they were freed, then the live ones.
    pub fn blocks(&self) -> impl Iterator<Item = &BlockLife> + '_ {
        self.past.iter().chain(self.live.values())
    }

    /// All known segments, by number.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentId, &SegmentLife)> + '_ {
        self.segments.iter().map(|(&id, life)| (id, life))
    }

    /// Draws the history: segments above each other, events from left to right.
    pub fn picture(&self, title: &str) -> Picture {
        let mut picture = Picture {
            title: title.to_string(),
            time_name: "event".to_string(),
            time: self.known_from..self.event_count,
            ..Picture::default()
        };
        let mut bases = BTreeMap::new();
        for (&id, life) in &self.segments {
            bases.insert(id, picture.size_bytes);
            let bytes = ByteRange::new(picture.size_bytes, picture.size_bytes.saturating_add(life.size_bytes));
            picture.size_bytes = bytes.end;
            let time = life.start..life.end.unwrap_or(self.event_count);
            picture.backgrounds.push(Bar { owner: id.to_string(), time, bytes });
        }
        for life in self.blocks() {
            // A block's segment outlives it.
            let base = bases.get(&life.segment).copied().unwrap_or(0);
            let bytes = ByteRange::new(base + life.range.start, base + life.range.end);
            let time = life.start..life.end.unwrap_or(self.event_count);
            picture.bars.push(Bar { owner: life.owner.clone(), time, bytes });
        }
        picture
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Allocator;

    #[test]
    fn lives_are_from_allocation_to_release_and_their_number_is_bounded() {
        let mut allocator = Allocator::new(256);
        let pool = PoolId(3);
        let first = allocator.add_segment(4096);
        let old = allocator.allocate(pool, 100, "old").unwrap();
        let mut history = History::new(2, &allocator.snapshot());
        let second = allocator.add_segment(1024);
        history.segment_added(second, 1024);
        let mut ids = Vec::new();
        for owner in ["a", "b", "c", "d"] {
            let block = allocator.allocate(pool, 256, owner).unwrap();
            history.allocated(&block, pool, owner);
            ids.push(block.id);
        }
        let found: Vec<_> = history.blocks().map(|life| (life.owner.as_str(), life.start, life.end)).collect();
        let all = [("old", 0, None), ("a", 1, None), ("b", 2, None), ("c", 3, None), ("d", 4, None)];
        assert_eq!(found, all, "in the order of their places");
        ids[..3].iter().for_each(|&id| history.freed(id));
        history.segment_removed(second);
        let found: Vec<_> = history.blocks().map(|life| (life.owner.as_str(), life.start, life.end)).collect();
        assert_eq!(found, [("b", 2, Some(6)), ("c", 3, Some(7)), ("old", 0, None), ("d", 4, None)]);
        assert_eq!((history.known_from(), history.event_count()), (5, 9));
        let picture = history.picture("test");
        assert_eq!((picture.time.clone(), picture.size_bytes), (5..9, 5120));
        assert_eq!(picture.backgrounds[1].bytes, ByteRange::new(4096, 5120));
        assert_eq!(history.segments().map(|(id, _)| id).collect::<Vec<_>>(), [first, second]);
        history.freed(old.id);
        history.freed(ids[3]);
        assert_eq!(history.blocks().count(), 2);
        assert_eq!(history.known_from(), 7);
        (0..3).for_each(|_| {
            let block = allocator.allocate(pool, 256, "e").unwrap();
            history.allocated(&block, pool, "e");
            history.freed(block.id);
        });
        assert_eq!(history.segments().count(), 1, "what ended before is forgotten");
    }
}
