//! Arena: offsets on the device for every interval of every chunk.
//!
//! Chunks of one buffer that a launch touches together must be laid out as the tensor requires, so their intervals share a base; intervals
//! that no launch connects can lie anywhere. Each set of connected intervals, a *component*, is one item of static placement, with a piece
//! per interval.

use std::collections::BTreeMap;

use crate::liveness::{DEVICE_ALIGNMENT_BYTES, Liveness, Owner};
use crate::residency::{Residency, Segment, root};
use crate::tuning::{CLOSE, MANY_ITEMS, PASSES_AT_LENGTH, PASSES_MIN, QUICK};
use forebay_base::ByteRange;
use forebay_memory::{Effort, FIRST_ORDERS, Item, Piece, Placement, PlacementError, place};
use forebay_model::program::BufferId;

/// The byte ranges of an item by the time (first launch, one past the last) during which they are in use.
pub(crate) type PiecesByTime = BTreeMap<(u32, u32), Vec<ByteRange>>;

/// Where every interval lies on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// For each interval, the offset of its chunk's first byte in device memory.
    pub device_offsets: Vec<u64>,
    /// The number of device bytes used.
    pub device_bytes: u64,
}

/// Where buffers lie in blocks of device memory that are shared with other plans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedLayout {
    /// The size of each block in bytes, a whole number of tiles.
    pub blocks: Vec<u64>,
    /// For each buffer, the offset of its first byte, with the blocks counted one after the other.
    pub offsets: BTreeMap<BufferId, u64>,
}

impl SharedLayout {
    /// Returns the total size of all blocks in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.blocks.iter().sum()
    }

    /// Returns the block that holds a byte, and the offset at which the block begins.
    pub(crate) fn block(&self, offset_bytes: u64) -> (usize, u64) {
        let mut start = 0;
        for (number, &size_bytes) in self.blocks.iter().enumerate() {
            if offset_bytes < start + size_bytes {
                return (number, start);
            }
            start += size_bytes;
        }
        (self.blocks.len(), start)
    }
}

/// Places every interval within `capacity_bytes` of the device. Returns `None` if no placement was found; with `at_length`, the search
/// takes longer.
///
/// `groups` holds the group number of each launch, in ascending order. With it, bytes are reserved for whole groups, so that launches of
/// one group share no bytes that one of them writes.
pub fn arena(
    live: &Liveness,
    residency: &Residency,
    groups: Option<&[u32]>,
    capacity_bytes: u64,
    at_length: bool,
) -> Option<Arena> {
    let components = Components::new(live, residency, groups);
    let usual = effort(components.items.len());
    let effort = match at_length {
        true => Effort { passes: usual.passes * PASSES_AT_LENGTH, ..Effort::THOROUGH },
        false => usual,
    };
    Some(components.arena(live, residency, &place(&components.items, Some(capacity_bytes), effort).ok()?))
}

/// The same, with some of what stays on the device at given places at its beginning, where nothing else is placed.
pub fn arena_behind(
    live: &Liveness,
    residency: &Residency,
    groups: Option<&[u32]>,
    capacity_bytes: u64,
    layout: &SharedLayout,
) -> Option<Arena> {
    let components = Components::new(live, residency, groups);
    let mut given = vec![None; components.items.len()];
    for (segment, &component) in residency.segments.iter().zip(&components.numbers) {
        let Owner::Buffer(buffer) = live.chunks[segment.chunk].owner else { continue };
        let base = layout.offsets.get(&buffer).filter(|_| residency.backing_on_device[segment.chunk]);
        given[component] = base.map(|base| base + components.origins[component]);
    }
    let (others, items): (Vec<usize>, Vec<Item>) =
        components.items.iter().cloned().enumerate().filter(|(component, _)| given[*component].is_none()).unzip();
    let first = layout.size_bytes();
    let placement = place(&items, Some(capacity_bytes.checked_sub(first)?), effort(items.len())).ok()?;
    let mut offsets: Vec<u64> = given.iter().map(|given| given.unwrap_or_default()).collect();
    for (component, offset) in others.into_iter().zip(placement.offsets) {
        offsets[component] = first + offset;
    }
    let placement = Placement { offsets, height_bytes: first + placement.height_bytes };
    Some(components.arena(live, residency, &placement))
}

/// The effort spent on searching for placements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looks {
    /// How many more times the search may continue when something nearly fits.
    pub long: u32,
    /// An upper bound on the number of addresses assigned in all passes so far.
    pub placed: u64,
}

/// Places every interval within `capacity_bytes` of the device, or returns, for each launch, how many bytes the device lacks to hold what
/// is there together with what found no place. The first search is quick; if something nearly fits, a longer search follows, as long as
/// `looks` allows it.
pub fn arena_or_lack(
    live: &Liveness,
    residency: &Residency,
    capacity_bytes: u64,
    looks: &mut Looks,
) -> Result<Arena, Vec<u64>> {
    let components = Components::new(live, residency, None);
    let effort = effort(components.items.len());
    let quick = Effort { passes: effort.passes / QUICK, ..effort };
    let count = components.items.len() as u64;
    let mut place = |effort: Effort| {
        looks.placed += count * u64::from(FIRST_ORDERS as u32 + effort.passes);
        place(&components.items, Some(capacity_bytes), effort)
    };
    let is_close = |lowest: &Placement| lowest.height_bytes - capacity_bytes <= capacity_bytes / CLOSE;
    let mut placement = place(quick);
    if looks.long > 0 && matches!(&placement, Err(PlacementError::Search { lowest, .. }) if is_close(lowest)) {
        looks.long -= 1;
        placement = place(effort);
    }
    match placement {
        Ok(placement) => Ok(components.arena(live, residency, &placement)),
        Err(PlacementError::Search { lowest, .. }) => Err(components.lack(&lowest, live.launch_count, capacity_bytes)),
        Err(_) => Err(Vec::new()),
    }
}

/// Gives every interval its own place, as if the device's memory were unlimited, to find out what a plan would take if placement did not
/// matter.
pub fn boundless(live: &Liveness, residency: &Residency) -> Arena {
    let components = Components::new(live, residency, None);
    let mut offsets = Vec::with_capacity(components.items.len());
    let mut height_bytes = 0;
    for item in &components.items {
        offsets.push(height_bytes);
        height_bytes += item.size_bytes().next_multiple_of(DEVICE_ALIGNMENT_BYTES);
    }
    components.arena(live, residency, &Placement { offsets, height_bytes })
}

/// Sets of intervals that share a base.
struct Components {
    /// The component of each interval.
    numbers: Vec<usize>,
    /// For each component, the offset of its lowest byte in its buffer.
    origins: Vec<u64>,
    /// For each component, the item that is placed.
    items: Vec<Item>,
}

impl Components {
    fn new(live: &Liveness, residency: &Residency, groups: Option<&[u32]>) -> Components {
        let (numbers, count) = components(live, residency);
        let mut origins = vec![u64::MAX; count];
        for (segment, &component) in residency.segments.iter().zip(&numbers) {
            origins[component] = origins[component].min(live.chunks[segment.chunk].range.start);
        }
        let mut pieces: Vec<PiecesByTime> = vec![BTreeMap::new(); count];
        for (segment, &component) in residency.segments.iter().zip(&numbers) {
            let range = live.chunks[segment.chunk].range;
            let bytes = ByteRange::new(range.start - origins[component], range.end - origins[component]);
            pieces[component].entry(taken_during(segment, groups)).or_default().push(bytes);
        }
        let items = pieces.into_iter().map(|pieces| item(pieces, DEVICE_ALIGNMENT_BYTES)).collect();
        Components { numbers, origins, items }
    }

    fn arena(&self, live: &Liveness, residency: &Residency, placement: &Placement) -> Arena {
        let offset = |(segment, &component): (&Segment, &usize)| {
            placement.offsets[component] + (live.chunks[segment.chunk].range.start - self.origins[component])
        };
        let device_offsets = residency.segments.iter().zip(&self.numbers).map(offset).collect();
        Arena { device_offsets, device_bytes: placement.height_bytes }
    }

    /// Returns, for each launch, how far the highest component in use during it reaches beyond the capacity, then or at any other time.
    fn lack(&self, placement: &Placement, launch_count: usize, capacity_bytes: u64) -> Vec<u64> {
        let mut lack = vec![0; launch_count];
        for (item, base) in self.items.iter().zip(&placement.offsets) {
            let beyond_bytes = (base + item.size_bytes()).saturating_sub(capacity_bytes);
            for launch in item.pieces.iter().flat_map(|piece| piece.time.clone()) {
                lack[launch as usize] = beyond_bytes.max(lack[launch as usize]);
            }
        }
        lack
    }
}

/// The time of a pass grows with the square of the number of items, so many items get fewer passes.
fn effort(item_count: usize) -> Effort {
    let usual = Effort::default();
    let affordable = MANY_ITEMS * MANY_ITEMS / item_count.pow(2).max(1);
    Effort { passes: affordable.clamp(PASSES_MIN, usual.passes as usize) as u32, ..usual }
}

/// The half-open range of launches, or of groups, during which an interval's bytes are in use.
fn taken_during(segment: &Segment, groups: Option<&[u32]>) -> (u32, u32) {
    match groups {
        Some(groups) => (groups[segment.start], groups[segment.end] + 1),
        None => (segment.start as u32, segment.end as u32 + 1),
    }
}

/// Makes an item from pieces by time, joining pieces of the same time that touch.
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

/// Returns the component of each interval, and the number of components.
fn components(live: &Liveness, residency: &Residency) -> (Vec<usize>, usize) {
    let mut parent: Vec<usize> = (0..residency.segments.len()).collect();
    let mut join = |one: usize, other: usize| {
        let (a, b) = (root(&mut parent, one), root(&mut parent, other));
        parent[a.max(b)] = a.min(b);
    };
    let mut first: BTreeMap<(Owner, usize), usize> = BTreeMap::new();
    let mut first_interval: BTreeMap<usize, usize> = BTreeMap::new();
    for (index, segment) in residency.segments.iter().enumerate() {
        let chunk = &live.chunks[segment.chunk];
        for access in &chunk.accesses[segment.accesses.clone()] {
            join(*first.entry((chunk.owner, access.launch)).or_insert(index), index);
        }
        // What is resident across steps begins the next step where it ends this one.
        let goes_round = residency.across_steps[segment.chunk] && segment.end + 1 == live.launch_count;
        let start = *first_interval.entry(segment.chunk).or_insert(index);
        if goes_round {
            join(start, index);
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
