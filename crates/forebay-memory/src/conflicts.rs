//! Which items meet which, and at which bases.
//!
//! An item of one piece is *simple*: whether two of them meet is seen from their times, and a pass finds a simple item's
//! base by going through the simple items below. An item that changes its size meets others in ways that depend on the
//! pair; these are found once, for all passes.

use std::ops::RangeInclusive;

use crate::placement::{Item, Piece};

/// The only piece of a simple item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Simple {
    /// When the bytes are taken.
    pub times: (u32, u32),
    /// Which bytes, from the base.
    pub bytes: (i64, i64),
}

impl Simple {
    /// Whether both are taken at some common time.
    pub fn coincides(&self, times: (u32, u32)) -> bool {
        self.times.0 < times.1 && times.0 < self.times.1
    }
}

/// An open interval of differences between the bases of two items at which they overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Clash {
    low: i64,
    high: i64,
}

/// What each item must keep clear of.
#[derive(Clone, Debug)]
pub(crate) struct Conflicts {
    /// By item: its piece, if it is simple.
    simple: Vec<Option<Simple>>,
    /// By item: others that share a time with it, where one of both is not simple, each with the intervals of this item's
    /// base less the other's.
    shaped: Vec<Vec<(u32, Vec<Clash>)>>,
}

/// Items that have begun and not ended, in the order in which they began, among some that have ended.
#[derive(Default)]
struct Alive {
    /// One past the last time, and the item.
    items: Vec<(u32, usize)>,
    /// How many items there may be before those that have ended are dropped.
    full: usize,
}

impl Alive {
    fn at(&self, time: u32) -> impl Iterator<Item = usize> + '_ {
        self.items.iter().filter(move |(end, _)| *end > time).map(|&(_, item)| item)
    }

    fn add(&mut self, time: u32, end: u32, item: usize) {
        if self.items.len() >= self.full {
            self.items.retain(|&(end, _)| end > time);
            self.full = 2 * self.items.len() + 16;
        }
        self.items.push((end, item));
    }
}

fn taken(item: &Item) -> impl Iterator<Item = &Piece> {
    item.pieces.iter().filter(|piece| piece.is_taken())
}

impl Conflicts {
    /// Compares all items that are alive together. Sizes are at most
    /// [`ADDRESSES_MAX_BYTES`](crate::placement::ADDRESSES_MAX_BYTES).
    pub fn new(items: &[Item]) -> Conflicts {
        let mut conflicts =
            Conflicts { simple: items.iter().map(simple).collect(), shaped: vec![Vec::new(); items.len()] };
        let mut spans: Vec<(u32, u32, usize)> = items
            .iter()
            .enumerate()
            .filter_map(|(index, item)| {
                let start = taken(item).map(|piece| piece.time.start).min()?;
                Some((start, taken(item).map(|piece| piece.time.end).max()?, index))
            })
            .collect();
        spans.sort_unstable();
        // Pairs of simple items are not compared, so a simple item looks at the others alone.
        let (mut alive, mut alive_shaped) = (Alive::default(), Alive::default());
        for (start, end, item) in spans {
            let is_shaped = conflicts.simple[item].is_none();
            let met = if is_shaped { &alive } else { &alive_shaped };
            for other in met.at(start) {
                conflicts.compare(items, item, other);
            }
            alive.add(start, end, item);
            if is_shaped {
                alive_shaped.add(start, end, item);
            }
        }
        conflicts
    }

    fn compare(&mut self, items: &[Item], item: usize, other: usize) {
        let clashes = clashes(&items[item], &items[other]);
        if !clashes.is_empty() {
            let mirrored = clashes.iter().rev().map(|clash| Clash { low: -clash.high, high: -clash.low }).collect();
            self.shaped[other].push((item as u32, mirrored));
            self.shaped[item].push((other as u32, clashes));
        }
    }

    /// The only piece of an item, if it is simple.
    pub fn simple(&self, item: usize) -> Option<&Simple> {
        self.simple[item].as_ref()
    }

    /// Calls `visit` with the other item and the open interval of bases that it forbids, for every item that `placed`
    /// gives a base, but for pairs of simple items.
    pub fn shaped(&self, item: usize, placed: impl Fn(usize) -> Option<i64>, mut visit: impl FnMut(usize, i64, i64)) {
        for (other, clashes) in &self.shaped[item] {
            if let Some(base) = placed(*other as usize) {
                clashes.iter().for_each(|clash| visit(*other as usize, base + clash.low, base + clash.high));
            }
        }
    }

    /// The last item that forbids bases below one of `bases`, of those to which `placed` gives a base; pairs of simple items
    /// left out.
    pub fn last_shaped_below(
        &self,
        item: usize,
        bases: RangeInclusive<i64>,
        placed: impl Fn(usize) -> Option<i64>,
    ) -> Option<usize> {
        let ends_there = |high: i64| high > 0 && bases.contains(&high);
        let shaped = self.shaped[item].iter().rev().find(|(other, clashes)| {
            placed(*other as usize).is_some_and(|base| clashes.iter().any(|clash| ends_there(base + clash.high)))
        });
        shaped.map(|&(other, _)| other as usize)
    }
}

fn simple(item: &Item) -> Option<Simple> {
    let mut pieces = taken(item);
    let only = pieces.next().filter(|_| pieces.next().is_none())?;
    let bytes = (only.bytes.start as i64, only.bytes.end as i64);
    Some(Simple { times: (only.time.start, only.time.end), bytes })
}

/// The differences (base of `item` less base of `other`) at which pieces overlap, as disjoint intervals in order.
fn clashes(item: &Item, other: &Item) -> Vec<Clash> {
    let mut all: Vec<Clash> = Vec::new();
    for piece in taken(item) {
        for met in taken(other).filter(|met| met.coincides(piece)) {
            let low = met.bytes.start as i64 - piece.bytes.end as i64;
            all.push(Clash { low, high: met.bytes.end as i64 - piece.bytes.start as i64 });
        }
    }
    all.sort_unstable();
    // Open intervals that only touch stay apart: the base between them is free.
    let mut joined: Vec<Clash> = Vec::new();
    for clash in all {
        match joined.last_mut() {
            Some(last) if clash.low < last.high => last.high = last.high.max(clash.high),
            _ => joined.push(clash),
        }
    }
    joined
}
