//! Greedy passes in several orders, then in improved ones.
//!
//! A pass gives each item in turn the lowest base that no item placed before it forbids. Which order is good depends on the instance, so
//! several are tried. The best is then improved: first the items that reach the top are moved to the front, all at once; then single items
//! of the chain that supports the highest item change their turns, and an order is kept if it is no worse.

use std::cmp::Reverse;
use std::iter::Peekable;
use std::ops::RangeInclusive;
use std::vec::Drain;

use forebay_base::random::Xorshift64;

use super::overlaps::Overlaps;
use super::stack::{Placed, Stack};
use crate::conflicts::{Conflicts, Simple};
use crate::load::grain_bytes;
use crate::placement::{Item, Piece};

/// The number of orders that are tried first, with one greedy pass each.
pub const FIRST_ORDERS: usize = 5;
/// The number of passes that move everything near the top to the front, before single items are moved.
const TOP_FIRST_PASSES: u32 = 16;
/// The number of passes without a lower height after which the search goes back to the best order.
const STUCK_PASSES_MAX: u32 = 400;
/// The items that share a time with an item are looked up and sorted if their number times this is less than the number of simple items
/// with a base.
const CROWD_DIVISOR: usize = 16;

/// The base of an item before its turn.
const UNPLACED: i64 = i64::MIN;

/// An order of the items and the result of a pass over it.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    order: Vec<u32>,
    /// By item: its turn in the order.
    turns: Vec<u32>,
    /// By item: its base.
    pub bases: Vec<i64>,
    /// The simple items that have a base.
    stack: Stack,
    pub height: i64,
}

impl Attempt {
    fn new(order: Vec<u32>, grain: i64) -> Attempt {
        let count = order.len();
        Attempt { order, turns: vec![0; count], bases: vec![0; count], stack: Stack::new(grain), height: 0 }
    }
}

/// The items with what every pass needs to know about them.
pub(super) struct Greedy<'a> {
    items: &'a [Item],
    conflicts: Conflicts,
    /// Which simple items are live together.
    overlaps: Overlaps,
    /// By item: how many simple items it shares a time with, itself included.
    crowds: Vec<usize>,
    sizes: Vec<i64>,
    /// Every base that is not given is a multiple of this.
    grain: i64,
    /// The number of items with given bases; they come first in every order.
    fixed_count: usize,
    /// Workspace: the intervals that are forbidden to one item.
    forbidden: Vec<(i64, i64)>,
    /// Workspace: the bytes of simple items that share a time with one.
    crowd: Vec<(i64, i64)>,
    random: Xorshift64,
}

impl<'a> Greedy<'a> {
    pub fn new(items: &'a [Item]) -> Greedy<'a> {
        let conflicts = Conflicts::new(items);
        let simple = (0..items.len()).filter_map(|item| Some((item, *conflicts.simple(item)?)));
        let overlaps = Overlaps::new(simple);
        let crowd = |item: usize| conflicts.simple(item).map_or(0, |simple| overlaps.count(simple.times));
        Greedy {
            items,
            crowds: (0..items.len()).map(crowd).collect(),
            conflicts,
            overlaps,
            grain: grain_bytes(items) as i64,
            sizes: items.iter().map(|item| item.size_bytes() as i64).collect(),
            fixed_count: items.iter().filter(|item| item.fixed_offset.is_some()).count(),
            forbidden: Vec::new(),
            crowd: Vec::new(),
            random: Xorshift64::new(),
        }
    }

    /// The lowest attempt among the orders that are tried first.
    pub fn best_first_order(&mut self, enough: i64) -> Attempt {
        let mut best: Option<Attempt> = None;
        for order in self.first_orders() {
            let mut attempt = Attempt::new(order, self.grain);
            let limit = best.as_ref().map_or(i64::MAX, |best| best.height);
            self.pass(&mut attempt, 0, limit);
            if attempt.height < limit {
                best = Some(attempt);
            }
            if best.as_ref().is_some_and(|best| best.height <= enough) {
                break;
            }
        }
        best.unwrap_or_else(|| Attempt::new(Vec::new(), self.grain))
    }

    fn first_orders(&self) -> [Vec<u32>; FIRST_ORDERS] {
        let items = self.items;
        let length = |piece: &Piece| u64::from(piece.time.end.saturating_sub(piece.time.start));
        let start = |item: usize| items[item].pieces.iter().map(|piece| piece.time.start).min().unwrap_or(0);
        let size = |item: usize| u128::from(items[item].size_bytes());
        let duration = |item: usize| items[item].pieces.iter().map(|piece| u128::from(length(piece))).sum::<u128>();
        let area = |item: usize| {
            let of = |piece: &Piece| u128::from(length(piece)) * u128::from(piece.bytes.len());
            items[item].pieces.iter().map(of).sum::<u128>()
        };
        let sorted = |key: &dyn Fn(usize) -> (u128, u128)| {
            let mut order: Vec<u32> = (0..items.len() as u32).collect();
            order.sort_by_key(|&item| {
                let index = item as usize;
                (items[index].fixed_offset.is_none(), Reverse(key(index)), item)
            });
            order
        };
        [
            sorted(&|item| (size(item), duration(item))),
            sorted(&|item| (area(item), size(item))),
            sorted(&|item| (duration(item), size(item))),
            sorted(&|item| (u128::from(u32::MAX - start(item)), size(item))),
            sorted(&|item| (start(item).into(), size(item))),
        ]
    }

    /// Makes a greedy pass over the turns from `first` on; the items before keep their bases. A pass that gets higher than `limit` is
    /// abandoned: it leaves that height, and meaningless bases.
    pub fn pass(&mut self, attempt: &mut Attempt, first: usize, limit: i64) {
        for (turn, &item) in attempt.order.iter().enumerate().skip(first) {
            attempt.turns[item as usize] = turn as u32;
        }
        let Attempt { order, turns, bases, stack, height } = attempt;
        order[first..].iter().for_each(|&item| bases[item as usize] = UNPLACED);
        stack.retain(|placed| (turns[placed as usize] as usize) < first);
        let tops = order[..first].iter().map(|&item| bases[item as usize] + self.sizes[item as usize]);
        *height = tops.max().unwrap_or(0);
        for &item in &order[first..] {
            let index = item as usize;
            let base = match self.items[index].fixed_offset {
                Some(base) => base as i64,
                None => self.lowest_base(index, stack, |other| Some(bases[other]).filter(|base| *base != UNPLACED)),
            };
            bases[index] = base;
            *height = (base + self.sizes[index]).max(*height);
            if *height > limit {
                return;
            }
            if let Some(&Simple { bytes: (start, end), times }) = self.conflicts.simple(index) {
                stack.insert(Placed { bytes: (base + start, base + end), times, item });
            }
        }
    }

    /// The lowest aligned base that no item with a base forbids.
    fn lowest_base(&mut self, index: usize, stack: &Stack, placed: impl Fn(usize) -> Option<i64>) -> i64 {
        let Greedy { forbidden, crowd, conflicts, .. } = self;
        forbidden.clear();
        conflicts.shaped(index, &placed, |_, low, high| {
            if high > 0 {
                forbidden.push((low, high));
            }
        });
        forbidden.sort_unstable();
        let alignment = self.items[index].alignment_bytes.max(1) as i64;
        let mut rise = Rise { base: 0, alignment, shaped: forbidden.drain(..).peekable() };
        if let Some(own) = conflicts.simple(index) {
            if self.crowds[index] * CROWD_DIVISOR < stack.len() {
                self.overlaps.visit(own.times, |other| {
                    if let Some((base, other)) = placed(other).zip(conflicts.simple(other)) {
                        crowd.push((base + other.bytes.0, base + other.bytes.1));
                    }
                });
                crowd.sort_unstable();
                let is_free = crowd.drain(..).any(|bytes| rise.is_below(own, bytes));
                if is_free {
                    return rise.base;
                }
            } else if rise.through(stack, own, own.bytes.0 % self.grain == 0) {
                return rise.base;
            }
        }
        rise.beyond_shaped()
    }

    /// Searches for a lower attempt.
    pub fn improve(&mut self, mut best: Attempt, enough: i64, passes: u32) -> Attempt {
        let mut current = best.clone();
        for _ in 0..passes.min(TOP_FIRST_PASSES) {
            self.top_first(&mut current);
            if current.height < best.height {
                best.clone_from(&current);
            }
            if best.height <= enough {
                return best;
            }
        }
        current.clone_from(&best);
        let mut tried = best.clone();
        let mut stuck = 0;
        for _ in TOP_FIRST_PASSES..passes {
            self.change_turns(&mut tried, current.height);
            if tried.height <= current.height {
                current.clone_from(&tried);
            } else {
                tried.clone_from(&current);
            }
            stuck += 1;
            if current.height < best.height {
                best.clone_from(&current);
                stuck = 0;
            }
            if best.height <= enough {
                break;
            }
            if stuck == STUCK_PASSES_MAX {
                // This plateau leads nowhere: a few blind moves lead to another one.
                current.clone_from(&best);
                (0..3).for_each(|_| self.change_turns(&mut current, i64::MAX));
                tried.clone_from(&current);
                stuck = 0;
            }
        }
        best
    }

    /// Moves the items that reach the highest hundredth to the front, because a better order must lower them.
    fn top_first(&mut self, attempt: &mut Attempt) {
        let line = attempt.height - attempt.height / 100;
        let low = |&item: &u32| attempt.bases[item as usize] + self.sizes[item as usize] < line;
        let (low, high): (Vec<u32>, Vec<u32>) = attempt.order[self.fixed_count..].iter().partition(|item| low(item));
        attempt.order.truncate(self.fixed_count);
        attempt.order.extend(high);
        attempt.order.extend(low);
        self.pass(attempt, self.fixed_count, i64::MAX);
    }

    /// Gives one item of the chain below the top an earlier turn, by moving it or by exchanging it for another, unless that gets higher
    /// than `limit`.
    fn change_turns(&mut self, attempt: &mut Attempt, limit: i64) {
        let chain = self.chain(attempt);
        let item = chain[self.random.below(chain.len())];
        let turn = attempt.turns[item] as usize;
        if turn <= self.fixed_count {
            return;
        }
        let earlier = self.fixed_count + self.random.below(turn - self.fixed_count);
        if self.random.below(2) == 0 {
            attempt.order.swap(earlier, turn);
        } else {
            attempt.order[earlier..=turn].rotate_right(1);
        }
        self.pass(attempt, earlier, limit);
    }

    /// The highest item, the item that it rests on, and so on down.
    fn chain(&self, attempt: &Attempt) -> Vec<usize> {
        let top = |item: &usize| (attempt.bases[*item] + self.sizes[*item], Reverse(*item));
        let mut chain: Vec<usize> = (0..self.items.len()).max_by_key(top).into_iter().collect();
        let mut tops: Vec<Placed> = attempt.stack.blocks().flat_map(|(_, block)| block.iter().copied()).collect();
        tops.sort_unstable_by_key(|placed| placed.bytes.1);
        while let Some(&item) = chain.last().filter(|&&item| self.items[item].fixed_offset.is_none()) {
            let alignment = self.items[item].alignment_bytes.max(1) as i64;
            let base = attempt.bases[item];
            let placed = |other: usize| (attempt.turns[other] < attempt.turns[item]).then(|| attempt.bases[other]);
            let bases = base - alignment + 1..=base;
            let simple_below = || self.last_simple_below(item, &bases, &tops, placed);
            // Items of several pieces come before simple ones.
            match self.conflicts.last_shaped_below(item, bases.clone(), placed).or_else(simple_below) {
                Some(other) => chain.push(other),
                None => break,
            }
        }
        chain
    }

    /// The last simple item that forbids a simple `item` the bases below one of `bases`, among those to which `placed` gives a base. `tops`
    /// are the simple items with bases, the one that ends lowest first.
    fn last_simple_below(
        &self,
        item: usize,
        bases: &RangeInclusive<i64>,
        tops: &[Placed],
        placed: impl Fn(usize) -> Option<i64>,
    ) -> Option<usize> {
        let own = self.conflicts.simple(item)?;
        let (low, high) = ((*bases.start()).max(1) + own.bytes.0, bases.end() + own.bytes.0);
        let ends_there = &tops[tops.partition_point(|top| top.bytes.1 < low)..];
        let ends_there = ends_there.iter().take_while(|top| top.bytes.1 <= high);
        let meets = ends_there.filter(|top| own.coincides(top.times)).map(|top| top.item as usize);
        meets.filter(|&other| other != item && placed(other).is_some()).max()
    }
}

/// A base that is raised past everything that forbids it. The forbidden bases come as open intervals in the order of their low ends: the
/// first interval that begins at the base or above leaves it free, and so do all later ones.
struct Rise<'a> {
    base: i64,
    alignment: i64,
    /// The intervals that items of several pieces forbid.
    shaped: Peekable<Drain<'a, (i64, i64)>>,
}

impl Rise<'_> {
    /// Goes on through the simple items; returns whether the base is free. An item whose bytes begin at a multiple of the grain skips dense
    /// blocks as a whole.
    fn through(&mut self, stack: &Stack, own: &Simple, passes_blocks: bool) -> bool {
        for (outline, block) in stack.blocks() {
            if !outline.may_meet(own, self.base) {
                continue;
            }
            if passes_blocks && outline.is_solid_for(own) {
                if self.is_below(own, outline.bytes) {
                    return true;
                }
                continue;
            }
            for other in block {
                // Most items end too low and few are in the way, so this is checked before times are compared.
                let is_in_the_way = other.bytes.1 - own.bytes.0 > self.base && own.coincides(other.times);
                if is_in_the_way && self.is_below(own, other.bytes) {
                    return true;
                }
            }
        }
        false
    }

    /// Whether an item at the base lies below these bytes and clear of everything else; if not, raises the base above them.
    fn is_below(&mut self, own: &Simple, bytes: (i64, i64)) -> bool {
        let (low, high) = (bytes.0 - own.bytes.1, bytes.1 - own.bytes.0);
        if high <= self.base {
            return false;
        }
        while let Some((_, high)) = self.shaped.next_if(|shaped| shaped.0 < low.min(self.base)) {
            self.raise(high);
        }
        if self.shaped.peek().is_some_and(|shaped| shaped.0 < low) || low >= self.base {
            return true;
        }
        self.raise(high);
        false
    }

    /// The base once no simple item is left.
    fn beyond_shaped(mut self) -> i64 {
        while let Some((_, high)) = self.shaped.next_if(|shaped| shaped.0 < self.base) {
            self.raise(high);
        }
        self.base
    }

    /// Raises the base to the lowest aligned one at or above both itself and `base`.
    fn raise(&mut self, base: i64) {
        self.base = (base.max(self.base) + self.alignment - 1) / self.alignment * self.alignment;
    }
}

#[cfg(test)]
mod tests;
