//! Finding a placement: greedy passes first, then a tree search.
//!
//! Greedy passes come close to the load bound at once where there is room, and take items of every kind. Where they leave a
//! gap and every item has one size, the tree search closes it: it finds placements without any waste among hundreds of
//! items, and proves for small instances that there is none lower. Everything is a function of the items and the effort:
//! searches are limited by counts, never by time, and generators have fixed seeds.

mod bounds;
mod greedy;
mod instance;
mod portfolio;
mod random;
mod tree;

use greedy::Greedy;
use instance::Instance;

use crate::placement::{load_bound_bytes, verify, Fault, Item, Placement, PlacementError, ADDRESSES_MAX_BYTES};

/// How long to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of greedy passes after the first ones.
    pub passes: u32,
    /// Number of decisions of the tree search.
    pub nodes: u64,
}

impl Effort {
    /// For one instance that matters: seconds where no placement without waste is found.
    pub const THOROUGH: Effort = Effort { passes: 128, nodes: 400_000 };
}

impl Default for Effort {
    /// For a planner that places thousands of items again and again: greedy passes alone.
    fn default() -> Effort {
        Effort { passes: 128, nodes: 0 }
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
    let enough_bytes = capacity_bytes.unwrap_or(load_bytes);
    let mut placement = greedy(items, enough_bytes, effort.passes);
    if placement.height_bytes > enough_bytes && effort.nodes > 0 {
        if let Some(instance) = Instance::new(items) {
            let lower = match capacity_bytes {
                Some(capacity_bytes) => portfolio::within(&instance, capacity_bytes, effort.nodes),
                None => portfolio::lowest(&instance, load_bytes, placement.height_bytes, effort.nodes),
            };
            placement = lower.map_or(placement, |bases| instance.placement(items.len(), &bases));
        }
    }
    match capacity_bytes {
        Some(capacity_bytes) if placement.height_bytes > capacity_bytes => {
            Err(PlacementError::Search { height_bytes: placement.height_bytes, capacity_bytes })
        }
        _ => Ok(placement),
    }
}

/// The lowest placement by greedy passes, or the first one that is low enough.
fn greedy(items: &[Item], enough_bytes: u64, passes: u32) -> Placement {
    let enough = enough_bytes as i64;
    let mut search = Greedy::new(items);
    let mut best = search.best_first_order(enough);
    if best.height > enough {
        best = search.improve(best, enough, passes);
    }
    Placement { offsets: best.bases.iter().map(|&base| base as u64).collect(), height_bytes: best.height as u64 }
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
