//! Which items conflict with each other, and at which bases.
//!
//! An item of one piece is *simple*: whether two simple items conflict follows from their times, and a pass finds the base of a simple item
//! by going through the simple items below it. How an item that changes its size conflicts with another depends on the pair; this is
//! determined once, for all passes.

use std::ops::RangeInclusive;

use crate::placement::{Item, Piece};

/// The only piece of a simple item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Simple {
    /// When the bytes are in use.
    pub times: (u32, u32),
    /// The bytes, relative to the base.
    pub bytes: (i64, i64),
}

impl Simple {
    /// Whether both are in use at some common time.
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

/// A clash of one item with another: the difference is the base of the item minus that of the other.
#[derive(Clone, Copy, Debug)]
struct Met {
    other: u32,
    clash: Clash,
}

/// The conflicts of each item with others.
#[derive(Clone, Debug)]
pub(crate) struct Conflicts {
    /// By item: its piece, if it is simple.
    simple: Vec<Option<Simple>>,
    /// The clashes of pairs of items that are not both simple, grouped by item, because passes go through them again and again.
    met: Vec<Met>,
    /// By item: where its clashes begin in `met`, with one more entry for the end.
    starts: Vec<usize>,
}

/// Items that have begun and not ended, in the order in which they began, mixed with some that have ended.
#[derive(Default)]
struct Alive {
    /// One past the last time of each item, and the item.
    items: Vec<(u32, usize)>,
    /// The number of entries at which those that have ended are dropped.
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
    /// Compares all items that are live at the same time. Sizes are at most [`ADDRESSES_MAX_BYTES`](crate::placement::ADDRESSES_MAX_BYTES).
    pub fn new(items: &[Item]) -> Conflicts {
        let simple: Vec<Option<Simple>> = items.iter().map(simple).collect();
        let mut spans: Vec<(u32, u32, usize)> = items
            .iter()
            .enumerate()
            .filter_map(|(index, item)| {
                let start = taken(item).map(|piece| piece.time.start).min()?;
                Some((start, taken(item).map(|piece| piece.time.end).max()?, index))
            })
            .collect();
        spans.sort_unstable();
        // Pairs of simple items are not compared, so a simple item is compared only with those that are not simple.
        let (mut alive, mut alive_shaped) = (Alive::default(), Alive::default());
        let mut pairs: Vec<(u32, Met)> = Vec::new();
        let mut workspace = Vec::new();
        for (start, end, item) in spans {
            let is_shaped = simple[item].is_none();
            let met = if is_shaped { &alive } else { &alive_shaped };
            for other in met.at(start) {
                clashes(&items[item], &items[other], &mut workspace);
                pairs.extend(workspace.drain(..).map(|clash| (item as u32, Met { other: other as u32, clash })));
            }
            alive.add(start, end, item);
            if is_shaped {
                alive_shaped.add(start, end, item);
            }
        }
        let (met, starts) = by_item(&pairs, items.len());
        Conflicts { simple, met, starts }
    }

    fn of(&self, item: usize) -> &[Met] {
        &self.met[self.starts[item]..self.starts[item + 1]]
    }

    /// The only piece of an item, if it is simple.
    pub fn simple(&self, item: usize) -> Option<&Simple> {
        self.simple[item].as_ref()
    }

    /// Calls `visit` for every other item to which `placed` gives a base, with the open interval of bases that it forbids. Pairs of simple
    /// items are left out.
    pub fn shaped(&self, item: usize, placed: impl Fn(usize) -> Option<i64>, mut visit: impl FnMut(usize, i64, i64)) {
        for Met { other, clash } in self.of(item) {
            if let Some(base) = placed(*other as usize) {
                visit(*other as usize, base + clash.low, base + clash.high);
            }
        }
    }

    /// The last item that forbids the bases below one of `bases`, among those to which `placed` gives a base. Pairs of simple items are
    /// left out.
    pub fn last_shaped_below(
        &self,
        item: usize,
        bases: RangeInclusive<i64>,
        placed: impl Fn(usize) -> Option<i64>,
    ) -> Option<usize> {
        let ends_there = |high: i64| high > 0 && bases.contains(&high);
        let forbids = |met: &&Met| placed(met.other as usize).is_some_and(|base| ends_there(base + met.clash.high));
        self.of(item).iter().rev().find(forbids).map(|met| met.other as usize)
    }
}

/// The clashes grouped by item, in the order in which they were found; each is listed for both items.
fn by_item(pairs: &[(u32, Met)], items_count: usize) -> (Vec<Met>, Vec<usize>) {
    let mut starts = vec![0; items_count + 1];
    for (item, met) in pairs {
        starts[*item as usize + 1] += 1;
        starts[met.other as usize + 1] += 1;
    }
    for item in 0..items_count {
        starts[item + 1] += starts[item];
    }
    let mut next = starts.clone();
    let mut sorted = vec![Met { other: 0, clash: Clash { low: 0, high: 0 } }; 2 * pairs.len()];
    let mut put = |item: u32, met: Met| {
        sorted[next[item as usize]] = met;
        next[item as usize] += 1;
    };
    for &(item, Met { other, clash: Clash { low, high } }) in pairs {
        put(item, Met { other, clash: Clash { low, high } });
        put(other, Met { other: item, clash: Clash { low: -high, high: -low } });
    }
    (sorted, starts)
}

fn simple(item: &Item) -> Option<Simple> {
    let mut pieces = taken(item);
    let only = pieces.next().filter(|_| pieces.next().is_none())?;
    let bytes = (only.bytes.start as i64, only.bytes.end as i64);
    Some(Simple { times: (only.time.start, only.time.end), bytes })
}

/// The differences (base of `item` minus base of `other`) at which pieces overlap, as disjoint intervals in order.
fn clashes(item: &Item, other: &Item, joined: &mut Vec<Clash>) {
    joined.clear();
    for piece in taken(item) {
        for met in taken(other).filter(|met| met.coincides(piece)) {
            let low = met.bytes.start as i64 - piece.bytes.end as i64;
            joined.push(Clash { low, high: met.bytes.end as i64 - piece.bytes.start as i64 });
        }
    }
    joined.sort_unstable();
    // Open intervals that only touch stay apart: the base between them is free.
    joined.dedup_by(|clash, last| {
        let overlap = clash.low < last.high;
        last.high = if overlap { last.high.max(clash.high) } else { last.high };
        overlap
    });
}
