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
        let mut alive: Vec<(u32, usize)> = Vec::new();
        for (start, end, item) in spans {
            alive.retain(|&(end, _)| end > start);
            for &(_, other) in &alive {
                if conflicts.simple[item].is_none() || conflicts.simple[other].is_none() {
                    conflicts.compare(items, item, other);
                }
            }
            alive.push((end, item));
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

    /// The last item that forbids bases below one of `bases`, and not that one itself; of those to which `placed` gives a base.
    /// Items of several pieces come after simple ones.
    pub fn last_below(
        &self,
        item: usize,
        bases: RangeInclusive<i64>,
        placed: impl Fn(usize) -> Option<i64>,
    ) -> Option<usize> {
        let ends_there = |high: i64| high > 0 && bases.contains(&high);
        let shaped = self.shaped[item].iter().rev().find(|(other, clashes)| {
            placed(*other as usize).is_some_and(|base| clashes.iter().any(|clash| ends_there(base + clash.high)))
        });
        if let Some((other, _)) = shaped {
            return Some(*other as usize);
        }
        let own = self.simple[item]?;
        let meets = |(other, piece): (usize, &Option<Simple>)| {
            let piece = piece.as_ref()?;
            // Few end there: so this comes before times are compared.
            let is_below = ends_there(placed(other)? + piece.bytes.1 - own.bytes.0);
            (is_below && piece.coincides(own.times) && other != item).then_some(other)
        };
        self.simple.iter().enumerate().rev().find_map(meets)
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
