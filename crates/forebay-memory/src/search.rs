//! Finding a placement: greedy passes in several orders, then passes that move the items at the top to the front.
//!
//! One pass gives each item in turn the lowest base that no item placed before it forbids. Which order is good depends on
//! the instance, so several are tried; the result is the lowest, ties to the first. Everything is a function of the items.

use std::cmp::Reverse;

use crate::placement::{load_bound_bytes, Item, Overlap, Placement, PlacementError};

/// How long to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of greedy passes after the first ones.
    pub passes: u32,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { passes: 24 }
    }
}

/// Gives every item a base. Stops at the first placement within the capacity; without one, at the load bound or when the
/// effort is spent.
///
/// # Errors
/// [`PlacementError`]: no placement within the capacity exists, or none was found.
pub fn place(items: &[Item], capacity_bytes: Option<u64>, effort: Effort) -> Result<Placement, PlacementError> {
    let load_bytes = load_bound_bytes(items);
    if let Some(capacity_bytes) = capacity_bytes.filter(|&capacity_bytes| load_bytes > capacity_bytes) {
        return Err(PlacementError::Load { load_bytes, capacity_bytes });
    }
    check_fixed(items)?;
    let enough = capacity_bytes.unwrap_or(load_bytes);
    let instance = Instance::new(items);
    let mut best: Option<(Placement, Vec<usize>)> = None;
    for order in instance.first_orders() {
        let placement = instance.pass(&order);
        if best.as_ref().is_none_or(|(lowest, _)| placement.height_bytes < lowest.height_bytes) {
            best = Some((placement, order));
        }
        if best.as_ref().is_some_and(|(lowest, _)| lowest.height_bytes <= enough) {
            break;
        }
    }
    let Some((mut lowest, mut order)) = best else {
        return Ok(Placement { offsets: Vec::new(), height_bytes: 0 });
    };
    let mut current = lowest.clone();
    for _ in 0..effort.passes {
        if lowest.height_bytes <= enough {
            break;
        }
        order = instance.top_first(&current, &order);
        current = instance.pass(&order);
        if current.height_bytes < lowest.height_bytes {
            lowest = current.clone();
        }
    }
    match capacity_bytes {
        Some(capacity_bytes) if lowest.height_bytes > capacity_bytes => {
            Err(PlacementError::Search { height_bytes: lowest.height_bytes, capacity_bytes })
        }
        _ => Ok(lowest),
    }
}

fn check_fixed(items: &[Item]) -> Result<(), PlacementError> {
    let fixed: Vec<usize> = (0..items.len()).filter(|&i| items[i].fixed_offset.is_some()).collect();
    let of: Vec<Item> = fixed.iter().map(|&i| items[i].clone()).collect();
    let offsets = of.iter().filter_map(|item| item.fixed_offset).collect();
    crate::placement::verify(&of, &Placement { offsets, height_bytes: 0 })
        .map_err(|o| PlacementError::Fixed(Overlap { first: fixed[o.first], second: fixed[o.second] }))
}

/// Items with what every pass needs of them.
struct Instance<'a> {
    items: &'a [Item],
    /// By item: items that share a time with it.
    neighbours: Vec<Vec<usize>>,
}

impl<'a> Instance<'a> {
    fn new(items: &'a [Item]) -> Instance<'a> {
        let spans: Vec<(u32, u32)> = items
            .iter()
            .map(|item| {
                let start = item.pieces.iter().map(|piece| piece.time.start).min().unwrap_or(0);
                (start, item.pieces.iter().map(|piece| piece.time.end).max().unwrap_or(0))
            })
            .collect();
        let mut by_start: Vec<usize> = (0..items.len()).collect();
        by_start.sort_by_key(|&item| spans[item]);
        let mut neighbours = vec![Vec::new(); items.len()];
        let mut alive: Vec<usize> = Vec::new();
        for &item in &by_start {
            alive.retain(|&other| spans[other].1 > spans[item].0);
            for &other in &alive {
                neighbours[item].push(other);
                neighbours[other].push(item);
            }
            alive.push(item);
        }
        Instance { items, neighbours }
    }

    /// The orders that are tried first. Items with given bases come first in each.
    fn first_orders(&self) -> Vec<Vec<usize>> {
        let size = |item: usize| self.items[item].size_bytes();
        let duration = |item: usize| {
            self.items[item].pieces.iter().map(|piece| u64::from(piece.time.end - piece.time.start)).sum::<u64>()
        };
        let area = |item: usize| {
            let of = |piece: &crate::placement::Piece| {
                u128::from(piece.time.end - piece.time.start) * u128::from(piece.bytes.len())
            };
            self.items[item].pieces.iter().map(of).sum::<u128>()
        };
        let start = |item: usize| self.items[item].pieces.iter().map(|piece| piece.time.start).min().unwrap_or(0);
        let sorted = |key: &dyn Fn(usize) -> (u128, u128)| {
            let mut order: Vec<usize> = (0..self.items.len()).collect();
            order.sort_by_key(|&item| (self.items[item].fixed_offset.is_none(), Reverse(key(item)), item));
            order
        };
        vec![
            sorted(&|item| (size(item).into(), duration(item).into())),
            sorted(&|item| (area(item), size(item).into())),
            sorted(&|item| (duration(item).into(), size(item).into())),
            sorted(&|item| (u128::from(u32::MAX - start(item)), size(item).into())),
            sorted(&|item| (start(item).into(), size(item).into())),
        ]
    }

    /// One greedy pass: each item in turn takes the lowest base that is free during its pieces.
    fn pass(&self, order: &[usize]) -> Placement {
        let mut offsets: Vec<Option<u64>> = vec![None; self.items.len()];
        let mut height_bytes = 0;
        let mut forbidden: Vec<(i128, i128)> = Vec::new();
        for &index in order {
            let item = &self.items[index];
            let base = item.fixed_offset.unwrap_or_else(|| {
                self.forbidden_bases(index, &offsets, &mut forbidden);
                lowest_base(&mut forbidden, item.alignment_bytes)
            });
            offsets[index] = Some(base);
            height_bytes = height_bytes.max(base + item.size_bytes());
        }
        Placement { offsets: offsets.into_iter().map(|offset| offset.unwrap_or(0)).collect(), height_bytes }
    }

    /// The open intervals of bases at which the item would meet an item placed before it.
    fn forbidden_bases(&self, index: usize, offsets: &[Option<u64>], forbidden: &mut Vec<(i128, i128)>) {
        forbidden.clear();
        for &other in &self.neighbours[index] {
            let Some(base) = offsets[other] else { continue };
            for taken in &self.items[other].pieces {
                for piece in &self.items[index].pieces {
                    if taken.time.start.max(piece.time.start) < taken.time.end.min(piece.time.end) {
                        let low = i128::from(base + taken.bytes.start) - i128::from(piece.bytes.end);
                        let high = i128::from(base + taken.bytes.end) - i128::from(piece.bytes.start);
                        forbidden.push((low, high));
                    }
                }
            }
        }
    }

    /// The order with the items that reach the top moved to the front, the highest first.
    fn top_first(&self, placement: &Placement, order: &[usize]) -> Vec<usize> {
        let top = |item: usize| placement.offsets[item] + self.items[item].size_bytes();
        let mut front: Vec<usize> = order.to_vec();
        // The items in the highest hundredth of the placement: those that a better order must lower.
        let line = placement.height_bytes - placement.height_bytes / 100;
        front.sort_by_key(|&item| {
            let movable = self.items[item].fixed_offset.is_none();
            (movable, movable && top(item) < line)
        });
        front
    }
}

/// The lowest aligned base outside all open intervals.
fn lowest_base(forbidden: &mut [(i128, i128)], alignment_bytes: u64) -> u64 {
    forbidden.sort_unstable();
    let mut base = 0i128;
    for &(low, high) in forbidden.iter() {
        if low < base && base < high {
            let alignment = i128::from(alignment_bytes);
            base = (high + alignment - 1) / alignment * alignment;
        }
    }
    base as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{verify, Piece};
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
            assert!(items.iter().zip(&placement.offsets).all(|(i, o)| o + i.size_bytes() <= placement.height_bytes));
        }
    }

    /// The lowest height over all orders of greedy passes: for plain items some order is optimal.
    fn best_order(items: &[Item]) -> u64 {
        fn permute(instance: &Instance, order: &mut Vec<usize>, from: usize, best: &mut u64) {
            if from == order.len() {
                *best = instance.pass(order).height_bytes.min(*best);
                return;
            }
            for i in from..order.len() {
                order.swap(from, i);
                permute(instance, order, from + 1, best);
                order.swap(from, i);
            }
        }
        let (mut best, mut order) = (u64::MAX, (0..items.len()).collect());
        permute(&Instance::new(items), &mut order, 0, &mut best);
        best
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
}
