//! Arena: offsets on the device for every stay of every chunk.
//!
//! Chunks of one buffer that a launch touches together must lie as the tensor says, so their stays share a base; stays that
//! no launch connects are free to lie anywhere. Each such *component* is one item of static placement, with a piece per
//! stay.

use std::collections::BTreeMap;

use crate::liveness::{Liveness, Owner};
use crate::residency::{root, Residency, Segment, DEVICE_ALIGNMENT_BYTES};
use forebay_base::ByteRange;
use forebay_memory::{place, Effort, Item, Piece};

/// So many items get a single pass beyond the first ones, and no number of items gets fewer passes than this.
const MANY_ITEMS: usize = 12_000;
const PASSES_MIN: usize = 2;

/// Byte ranges of an item by the time (first launch, one past the last) during which they are taken.
pub(crate) type PiecesByTime = BTreeMap<(u32, u32), Vec<ByteRange>>;

/// Where everything lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// By stay: offset of its chunk's first byte in device memory.
    pub device_offsets: Vec<u64>,
    /// Device bytes used.
    pub device_bytes: u64,
}

/// Places every stay within `capacity_bytes` of the device; `None` where no placement was found.
///
/// With `groups`, the number of each launch's group in ascending order, bytes are taken for whole groups: then launches of
/// one group share none that one of them writes.
pub fn arena(live: &Liveness, residency: &Residency, groups: Option<&[u32]>, capacity_bytes: u64) -> Option<Arena> {
    let (components, count) = components(live, residency);
    let mut origins = vec![u64::MAX; count];
    for (segment, &component) in residency.segments.iter().zip(&components) {
        origins[component] = origins[component].min(live.chunks[segment.chunk].range.start);
    }
    let mut pieces: Vec<PiecesByTime> = vec![BTreeMap::new(); count];
    for (segment, &component) in residency.segments.iter().zip(&components) {
        let range = live.chunks[segment.chunk].range;
        let bytes = ByteRange::new(range.start - origins[component], range.end - origins[component]);
        pieces[component].entry(taken_during(segment, groups)).or_default().push(bytes);
    }
    let items: Vec<Item> = pieces.into_iter().map(|pieces| item(pieces, DEVICE_ALIGNMENT_BYTES)).collect();
    let placement = place(&items, Some(capacity_bytes), effort(items.len())).ok()?;
    let device_offsets = residency
        .segments
        .iter()
        .zip(&components)
        .map(|(segment, &component)| {
            placement.offsets[component] + (live.chunks[segment.chunk].range.start - origins[component])
        })
        .collect();
    Some(Arena { device_offsets, device_bytes: placement.height_bytes })
}

/// A pass takes time with the square of the number of items: many items get fewer passes.
fn effort(item_count: usize) -> Effort {
    let usual = Effort::default();
    let affordable = MANY_ITEMS * MANY_ITEMS / item_count.pow(2).max(1);
    Effort { passes: affordable.clamp(PASSES_MIN, usual.passes as usize) as u32, ..usual }
}

/// When a stay's bytes are taken: half-open, in launches or in groups.
fn taken_during(segment: &Segment, groups: Option<&[u32]>) -> (u32, u32) {
    match groups {
        Some(groups) => (groups[segment.start], groups[segment.end] + 1),
        None => (segment.start as u32, segment.end as u32 + 1),
    }
}

/// An item from pieces by time; pieces of the same time that touch become one.
pub(crate) fn item(pieces: PiecesByTime, alignment_bytes: u64) -> Item {
    let mut merged = Vec::new();
    for ((start, end), mut ranges) in pieces {
        ranges.sort_unstable();
        let mut joined: Vec<ByteRange> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        merged.extend(joined.into_iter().map(|bytes| Piece { time: start..end, bytes }));
    }
    Item::new(alignment_bytes, merged)
}

/// By stay: its component; and how many components there are.
fn components(live: &Liveness, residency: &Residency) -> (Vec<usize>, usize) {
    let mut parent: Vec<usize> = (0..residency.segments.len()).collect();
    let mut first: BTreeMap<(Owner, usize), usize> = BTreeMap::new();
    for (index, segment) in residency.segments.iter().enumerate() {
        let chunk = &live.chunks[segment.chunk];
        for access in &chunk.accesses[segment.accesses.clone()] {
            let other = *first.entry((chunk.owner, access.launch)).or_insert(index);
            let (a, b) = (root(&mut parent, other), root(&mut parent, index));
            parent[a.max(b)] = a.min(b);
        }
    }
    let mut numbers = BTreeMap::new();
    let components = (0..parent.len())
        .map(|index| {
            let next = numbers.len();
            *numbers.entry(root(&mut parent, index)).or_insert(next)
        })
        .collect();
    (components, numbers.len())
}
