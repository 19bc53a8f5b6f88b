//! Greedy passes in several orders, then passes in better ones.
//!
//! One pass gives each item in turn the lowest base that no item placed before it forbids. Which order is good depends on
//! the instance, so several are tried. The best is then improved: first the items that reach the top are moved to the
//! front, all at once; then single items of the chain that holds up the highest one change their turns, and an order that
//! is not worse is kept.

use std::cmp::Reverse;

use super::random::Random;
use crate::conflicts::{Conflicts, Simple};
use crate::placement::{Item, Piece};

/// Passes that move everything near the top to the front, before single items are moved.
const TOP_FIRST_PASSES: u32 = 16;
/// Passes without a lower height after which the search goes back to the best order.
const PATIENCE_PASSES: u32 = 400;

/// An order of the items with what a pass makes of it.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    order: Vec<u32>,
    /// By item: its turn in the order.
    turns: Vec<u32>,
    /// By item: its base.
    pub bases: Vec<i64>,
    /// The simple items that have a base, lowest first byte first.
    stack: Vec<Placed>,
    pub height: i64,
}

/// A simple item with a base.
#[derive(Clone, Copy, Debug)]
struct Placed {
    /// First byte, and one past the last.
    bytes: (i64, i64),
    times: (u32, u32),
    item: u32,
}

impl Attempt {
    pub fn new(order: Vec<u32>) -> Attempt {
        let count = order.len();
        Attempt { order, turns: vec![0; count], bases: vec![0; count], stack: Vec::new(), height: 0 }
    }
}

/// Items with what every pass needs of them.
pub(super) struct Greedy<'a> {
    items: &'a [Item],
    conflicts: Conflicts,
    sizes: Vec<i64>,
    /// Number of items with given bases; they come first in every order.
    fixed_count: usize,
    /// Scratch: the intervals that are forbidden to one item.
    forbidden: Vec<(i64, i64)>,
    random: Random,
}

impl<'a> Greedy<'a> {
    pub fn new(items: &'a [Item]) -> Greedy<'a> {
        Greedy {
            items,
            conflicts: Conflicts::new(items),
            sizes: items.iter().map(|item| item.size_bytes() as i64).collect(),
            fixed_count: items.iter().filter(|item| item.fixed_offset.is_some()).count(),
            forbidden: Vec::new(),
            random: Random::new(),
        }
    }

    /// The lowest of the orders that are tried first.
    pub fn best_first_order(&mut self, enough: i64) -> Attempt {
        let mut best: Option<Attempt> = None;
        for order in self.first_orders() {
            let mut attempt = Attempt::new(order);
            let limit = best.as_ref().map_or(i64::MAX, |best| best.height);
            self.pass(&mut attempt, 0, limit);
            if attempt.height < limit {
                best = Some(attempt);
            }
            if best.as_ref().is_some_and(|best| best.height <= enough) {
                break;
            }
        }
        best.unwrap_or_else(|| Attempt::new(Vec::new()))
    }

    fn first_orders(&self) -> Vec<Vec<u32>> {
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
        vec![
            sorted(&|item| (size(item), duration(item))),
            sorted(&|item| (area(item), size(item))),
            sorted(&|item| (duration(item), size(item))),
            sorted(&|item| (u128::from(u32::MAX - start(item)), size(item))),
            sorted(&|item| (start(item).into(), size(item))),
        ]
    }

    /// One greedy pass over the turns from `first` on; what comes before keeps its bases. A pass that gets higher than
    /// `limit` is given up: it leaves that height, and bases that mean nothing.
    pub fn pass(&mut self, attempt: &mut Attempt, first: usize, limit: i64) {
        for (turn, &item) in attempt.order.iter().enumerate().skip(first) {
            attempt.turns[item as usize] = turn as u32;
        }
        let Attempt { order, turns, bases, stack, height } = attempt;
        stack.retain(|placed| (turns[placed.item as usize] as usize) < first);
        let tops = order[..first].iter().map(|&item| bases[item as usize] + self.sizes[item as usize]);
        *height = tops.max().unwrap_or(0);
        for (turn, &item) in order.iter().enumerate().skip(first) {
            let index = item as usize;
            let base = match self.items[index].fixed_offset {
                Some(base) => base as i64,
                None => self.lowest_base(index, stack, |other| (turns[other] < turn as u32).then(|| bases[other])),
            };
            bases[index] = base;
            *height = (base + self.sizes[index]).max(*height);
            if *height > limit {
                return;
            }
            if let Some(&Simple { bytes: (start, end), times }) = self.conflicts.simple(index) {
                let placed = Placed { bytes: (base + start, base + end), times, item };
                stack.insert(stack.partition_point(|other| other.bytes.0 <= placed.bytes.0), placed);
            }
        }
    }

    /// The lowest aligned base that no item with a base forbids.
    fn lowest_base(&mut self, index: usize, stack: &[Placed], placed: impl Fn(usize) -> Option<i64>) -> i64 {
        let forbidden = &mut self.forbidden;
        forbidden.clear();
        self.conflicts.shaped(index, placed, |_, low, high| {
            if high > 0 {
                forbidden.push((low, high));
            }
        });
        forbidden.sort_unstable();
        let alignment = self.items[index].alignment_bytes.max(1) as i64;
        let mut base = 0;
        // Both kinds of intervals come in the order of their low ends: the first that begins at the base or above leaves
        // it free, and so does whatever comes later. What ends at the base or below forbids nothing more.
        let mut shaped = forbidden.iter().copied().peekable();
        if let Some(own) = self.conflicts.simple(index) {
            for other in stack {
                // Most end too low, few are in the way: so this comes before times are compared.
                let high = other.bytes.1 - own.bytes.0;
                if high <= base || !own.coincides(other.times) {
                    continue;
                }
                let low = other.bytes.0 - own.bytes.1;
                while let Some((_, high)) = shaped.next_if(|shaped| shaped.0 < low.min(base)) {
                    base = aligned(high.max(base), alignment);
                }
                if shaped.peek().is_some_and(|shaped| shaped.0 < low) || low >= base {
                    return base;
                }
                base = aligned(high.max(base), alignment);
            }
        }
        while let Some((_, high)) = shaped.next_if(|shaped| shaped.0 < base) {
            base = aligned(high.max(base), alignment);
        }
        base
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
            if stuck == PATIENCE_PASSES {
                // A plateau that leads nowhere: a few blind moves lead to another.
                current.clone_from(&best);
                (0..3).for_each(|_| self.change_turns(&mut current, i64::MAX));
                tried.clone_from(&current);
                stuck = 0;
            }
        }
        best
    }

    /// Moves the items of the highest hundredth to the front: those that a better order must lower.
    fn top_first(&mut self, attempt: &mut Attempt) {
        let line = attempt.height - attempt.height / 100;
        let low = |&item: &u32| attempt.bases[item as usize] + self.sizes[item as usize] < line;
        let (low, high): (Vec<u32>, Vec<u32>) = attempt.order[self.fixed_count..].iter().partition(|item| low(item));
        attempt.order.truncate(self.fixed_count);
        attempt.order.extend(high);
        attempt.order.extend(low);
        self.pass(attempt, self.fixed_count, i64::MAX);
    }

    /// Gives one item of the chain below the top an earlier turn, alone or in exchange, unless that gets higher than
    /// `limit`.
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
        while let Some(&item) = chain.last().filter(|&&item| self.items[item].fixed_offset.is_none()) {
            let alignment = self.items[item].alignment_bytes.max(1) as i64;
            let base = attempt.bases[item];
            let placed = |other: usize| (attempt.turns[other] < attempt.turns[item]).then(|| attempt.bases[other]);
            let below = self.conflicts.last_below(item, base - alignment + 1..=base, placed);
            match below {
                Some(other) => chain.push(other),
                None => break,
            }
        }
        chain
    }
}

/// The lowest multiple of the alignment from a base on.
fn aligned(base: i64, alignment: i64) -> i64 {
    (base + alignment - 1) / alignment * alignment
}
