//! Finding a placement: greedy passes in several orders, then passes in better ones.
//!
//! One pass gives each item in turn the lowest base that no item placed before it forbids. Which order is good depends on
//! the instance, so several are tried. The best is then improved: first the items that reach the top are moved to the
//! front, all at once; then single items of the chain that holds up the highest one change their turns, and an order that
//! is not worse is kept. Everything is a function of the items and the effort: the generator has a fixed seed.

use std::cmp::Reverse;

use crate::conflicts::{Conflicts, Simple};
use crate::placement::{load_bound_bytes, verify, Fault, Item, Piece, Placement, PlacementError, ADDRESSES_MAX_BYTES};

/// Passes that move everything near the top to the front, before single items are moved.
const TOP_FIRST_PASSES: u32 = 16;
/// Passes without a lower height after which the search goes back to the best order.
const PATIENCE_PASSES: u32 = 400;

/// How long to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of greedy passes after the first ones.
    pub passes: u32,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { passes: 128 }
    }
}

/// Gives every item a base. Stops at the first placement within the capacity; without one, at the load bound or when the
/// effort is spent.
///
/// # Errors
/// [`PlacementError`]: no placement within the capacity exists, none was found, or the items cannot be placed at all.
pub fn place(items: &[Item], capacity_bytes: Option<u64>, effort: Effort) -> Result<Placement, PlacementError> {
    check_sizes(items)?;
    check_fixed(items)?;
    let load_bytes = load_bound_bytes(items);
    if let Some(capacity_bytes) = capacity_bytes.filter(|&capacity_bytes| load_bytes > capacity_bytes) {
        return Err(PlacementError::Load { load_bytes, capacity_bytes });
    }
    let enough = capacity_bytes.unwrap_or(load_bytes) as i64;
    let mut search = Search::new(items);
    let mut best = search.best_first_order(enough);
    if best.height > enough {
        best = search.improve(best, enough, effort.passes);
    }
    let height_bytes = best.height as u64;
    match capacity_bytes {
        Some(capacity_bytes) if height_bytes > capacity_bytes => {
            Err(PlacementError::Search { height_bytes, capacity_bytes })
        }
        _ => Ok(Placement { offsets: best.bases.iter().map(|&base| base as u64).collect(), height_bytes }),
    }
}

/// No address can overflow: a pass never leaves a gap wider than an alignment below every item.
fn check_sizes(items: &[Item]) -> Result<(), PlacementError> {
    let taken = |item: &Item| {
        let size = u128::from(item.size_bytes());
        size + u128::from(item.alignment_bytes) + u128::from(item.fixed_offset.unwrap_or(0))
    };
    let total_bytes = items.iter().map(taken).sum::<u128>();
    if total_bytes > u128::from(ADDRESSES_MAX_BYTES) {
        return Err(PlacementError::TooLarge { total_bytes });
    }
    Ok(())
}

fn check_fixed(items: &[Item]) -> Result<(), PlacementError> {
    let fixed: Vec<usize> = (0..items.len()).filter(|&index| items[index].fixed_offset.is_some()).collect();
    let given: Vec<Item> = fixed.iter().map(|&index| items[index].clone()).collect();
    let offsets = given.iter().filter_map(|item| item.fixed_offset).collect();
    verify(&given, &Placement { offsets, height_bytes: u64::MAX }).map_err(|fault| {
        PlacementError::Fixed(match fault {
            Fault::Overlap { first, second } => Fault::Overlap { first: fixed[first], second: fixed[second] },
            Fault::Misaligned { item } => Fault::Misaligned { item: fixed[item] },
            other => other,
        })
    })
}

/// An order of the items with what a pass makes of it.
#[derive(Clone, Debug)]
struct Attempt {
    order: Vec<u32>,
    /// By item: its turn in the order.
    turns: Vec<u32>,
    /// By item: its base.
    bases: Vec<i64>,
    /// The simple items that have a base, lowest first byte first.
    stack: Vec<Placed>,
    height: i64,
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
    fn new(order: Vec<u32>) -> Attempt {
        let count = order.len();
        Attempt { order, turns: vec![0; count], bases: vec![0; count], stack: Vec::new(), height: 0 }
    }
}

/// Items with what every pass needs of them.
struct Search<'a> {
    items: &'a [Item],
    conflicts: Conflicts,
    sizes: Vec<i64>,
    /// Number of items with given bases; they come first in every order.
    fixed_count: usize,
    /// Scratch: the intervals that are forbidden to one item.
    forbidden: Vec<(i64, i64)>,
    random: u64,
}

impl<'a> Search<'a> {
    fn new(items: &'a [Item]) -> Search<'a> {
        Search {
            items,
            conflicts: Conflicts::new(items),
            sizes: items.iter().map(|item| item.size_bytes() as i64).collect(),
            fixed_count: items.iter().filter(|item| item.fixed_offset.is_some()).count(),
            forbidden: Vec::new(),
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// A number below `limit`, by xorshift.
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) % limit.max(1) as u64) as usize
    }

    /// The lowest of the orders that are tried first.
    fn best_first_order(&mut self, enough: i64) -> Attempt {
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
    fn pass(&mut self, attempt: &mut Attempt, first: usize, limit: i64) {
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
        // it free, and so does whatever comes later.
        let mut free_below = |(low, high): (i64, i64)| {
            if low < base && high > base {
                base = (high + alignment - 1) / alignment * alignment;
            }
            low >= base
        };
        let mut shaped = forbidden.iter().copied().peekable();
        if let Some(own) = self.conflicts.simple(index) {
            for other in stack.iter().filter(|other| own.coincides(other.times)) {
                let (low, high) = (other.bytes.0 - own.bytes.1, other.bytes.1 - own.bytes.0);
                while let Some(interval) = shaped.next_if(|shaped| shaped.0 < low) {
                    if free_below(interval) {
                        return base;
                    }
                }
                if free_below((low, high)) {
                    return base;
                }
            }
        }
        shaped.any(free_below);
        base
    }

    /// Searches for a lower attempt.
    fn improve(&mut self, mut best: Attempt, enough: i64, passes: u32) -> Attempt {
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
        let item = chain[self.below(chain.len())];
        let turn = attempt.turns[item] as usize;
        if turn <= self.fixed_count {
            return;
        }
        let earlier = self.fixed_count + self.below(turn - self.fixed_count);
        if self.below(2) == 0 {
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
            let mut below = None;
            let placed = |other: usize| (attempt.turns[other] < attempt.turns[item]).then(|| attempt.bases[other]);
            self.conflicts.all(item, placed, |other, _, high| {
                if high > base - alignment && high <= base && high > 0 {
                    below = Some(other);
                }
            });
            match below {
                Some(other) => chain.push(other),
                None => break,
            }
        }
        chain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::verify;
    use forebay_base::ByteRange;

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    fn random_items(random: &mut Random, count: u64, times: u64, sizes: u64) -> Vec<Item> {
        (0..count)
            .map(|_| {
                let alignment_bytes = 1 << random.below(3);
                let pieces = (0..1 + random.below(3)).map(|_| {
                    let start = random.below(times) as u32;
                    let low = random.below(sizes);
                    Piece {
                        time: start..start + 1 + random.below(times) as u32,
                        bytes: ByteRange::new(low, low + 1 + random.below(sizes)),
                    }
                });
                Item::new(alignment_bytes, pieces.collect())
            })
            .collect()
    }

    #[test]
    fn placements_of_random_items_are_legal() {
        for seed in 1..200u64 {
            let items = random_items(&mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)), 1 + seed % 40, 20, 100);
            let placement = place(&items, None, Effort::default()).unwrap();
            assert_eq!(verify(&items, &placement), Ok(()), "seed {seed}");
            assert!(placement.height_bytes >= load_bound_bytes(&items), "seed {seed}");
        }
    }

    /// The lowest height over all orders of greedy passes: for plain items some order is optimal.
    fn best_order(items: &[Item]) -> u64 {
        fn permute(search: &mut Search, attempt: &mut Attempt, from: usize, best: &mut i64) {
            if from == attempt.order.len() {
                search.pass(attempt, 0, i64::MAX);
                *best = attempt.height.min(*best);
            }
            for turn in from..attempt.order.len() {
                attempt.order.swap(from, turn);
                permute(search, attempt, from + 1, best);
                attempt.order.swap(from, turn);
            }
        }
        let mut attempt = Attempt::new((0..items.len() as u32).collect());
        let mut best = i64::MAX;
        permute(&mut Search::new(items), &mut attempt, 0, &mut best);
        best as u64
    }

    #[test]
    fn small_instances_are_placed_nearly_as_low_as_possible() {
        let (mut ours, mut lowest) = (0, 0);
        for seed in 1..60u64 {
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut items = random_items(&mut random, 6, 10, 50);
            items.iter_mut().for_each(|item| item.pieces.truncate(1));
            let best = best_order(&items);
            let height = place(&items, None, Effort::default()).unwrap().height_bytes;
            assert!(height >= best, "seed {seed}: {height} is lower than the lowest, {best}");
            ours += height;
            lowest += best;
        }
        assert!(ours * 100 <= lowest * 103, "{ours} bytes in all, the lowest are {lowest}");
    }

    #[test]
    fn a_buffer_without_its_tail_lends_the_bytes_to_others() {
        let whole = |time| Piece { time, bytes: ByteRange::new(0, 100) };
        let head = Piece { time: 2..8, bytes: ByteRange::new(0, 40) };
        let items = [
            Item::new(1, vec![whole(0..2), head, whole(8..10)]),
            Item::new(1, vec![Piece { time: 2..8, bytes: ByteRange::new(0, 60) }]),
        ];
        assert_eq!(place(&items, Some(100), Effort::default()).unwrap().height_bytes, 100);
    }

    #[test]
    fn capacity_and_given_bases_are_kept_or_refused() {
        let piece = |time| vec![Piece { time, bytes: ByteRange::new(0, 10) }];
        let mut fixed = Item::new(1, piece(0..2));
        fixed.fixed_offset = Some(5);
        let items = [fixed.clone(), Item::new(1, piece(1..3))];
        assert_eq!(place(&items, None, Effort::default()).unwrap().offsets, [5, 15]);
        let load = place(&items, Some(19), Effort::default());
        assert_eq!(load, Err(PlacementError::Load { load_bytes: 20, capacity_bytes: 19 }));
        assert!(matches!(place(&items, Some(20), Effort::default()), Err(PlacementError::Search { .. })));
        assert!(matches!(place(&[fixed.clone(), fixed], None, Effort::default()), Err(PlacementError::Fixed(_))));
    }

    #[test]
    fn what_cannot_be_placed_is_refused() {
        let piece = |end| vec![Piece { time: 0..1, bytes: ByteRange::new(0, end) }];
        let huge = [Item::new(1, piece(u64::MAX)), Item::new(1, piece(u64::MAX))];
        assert!(matches!(place(&huge, None, Effort::default()), Err(PlacementError::TooLarge { .. })));
        let misaligned = Item { alignment_bytes: 16, pieces: piece(8), fixed_offset: Some(8) };
        let refused = place(&[misaligned], None, Effort::default());
        assert_eq!(refused, Err(PlacementError::Fixed(Fault::Misaligned { item: 0 })));
        assert_eq!(place(&[], Some(0), Effort::default()).unwrap().height_bytes, 0);
        let empty = [Item::new(0, Vec::new()), Item::new(0, piece(0))];
        assert_eq!(place(&empty, Some(0), Effort::default()).unwrap().offsets, [0, 0]);
    }

    #[test]
    fn more_effort_is_never_worse() {
        let items = random_items(&mut Random(99), 60, 30, 1000);
        let height = |passes| place(&items, None, Effort { passes }).unwrap().height_bytes;
        assert!(height(500) <= height(20) && height(20) <= height(0));
        assert_eq!(height(500), height(500));
    }
}
