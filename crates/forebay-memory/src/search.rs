//! Finding a placement: greedy passes first, then a tree search.
//!
//! Greedy passes handle items of every kind, and come close to the load bound at once if there is room. If they leave a gap and no item
//! changes its size, the tree search closes it: it finds placements without any waste for hundreds of items, and proves for small instances
//! that no lower one exists. The result depends only on the items and the effort: searches are limited by counts, never by time, and random
//! generators have fixed seeds.

mod bounds;
mod greedy;
mod instance;
mod overlaps;
mod portfolio;
mod stack;
mod tree;

pub use greedy::FIRST_ORDERS;
use greedy::Greedy;
use instance::Instance;

use crate::load::{height_bound_bytes, load_bound_bytes};
use crate::placement::{ADDRESSES_MAX_BYTES, Fault, Item, Placement, PlacementError};
use crate::verify::verify;

/// The most items that the tree search accepts, since it recurses once for each.
const TREE_ITEMS_MAX: usize = 1000;
/// The most bases that all passes together assign, unless fewer than two passes would remain. The more items, the fewer passes.
const PASSES_ITEMS_MAX: usize = 1_536_000;

/// How long to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// The number of greedy passes after the first ones, of which there are [`FIRST_ORDERS`].
    pub passes: u32,
    /// The number of decisions of the tree search. It handles up to a thousand items that do not change their size and have no given bases;
    /// others are placed by passes alone.
    pub nodes: u64,
}

impl Effort {
    /// For a single instance that matters: takes seconds if no placement without waste is found.
    pub const THOROUGH: Effort = Effort { passes: 128, nodes: 300_000 };
}

impl Default for Effort {
    /// For a planner that places thousands of items again and again: greedy passes alone.
    fn default() -> Effort {
        Effort { passes: 128, nodes: 0 }
    }
}

/// Gives every item a base. Stops at the first placement within the capacity; without a capacity, at [`height_bound_bytes`] or when the
/// effort is spent. A capacity of more than [`ADDRESSES_MAX_BYTES`] holds every placement: greedy passes then look for the lowest one, and
/// there is no tree search.
///
/// # Errors
/// [`PlacementError`]: no placement within the capacity exists, none was found, or the items cannot be placed at all.
pub fn place(items: &[Item], capacity_bytes: Option<u64>, effort: Effort) -> Result<Placement, PlacementError> {
    if items.is_empty() {
        return Ok(Placement { offsets: Vec::new(), height_bytes: 0 });
    }
    check_sizes(items)?;
    check_fixed(items)?;
    let load_bytes = load_bound_bytes(items);
    if let Some(capacity_bytes) = capacity_bytes.filter(|&capacity_bytes| load_bytes > capacity_bytes) {
        return Err(PlacementError::Load { load_bytes, capacity_bytes });
    }
    // A height that no placement is below is low enough, whatever the capacity.
    let limit_bytes = capacity_bytes.filter(|&capacity_bytes| capacity_bytes <= ADDRESSES_MAX_BYTES);
    let enough_bytes = height_bound_bytes(items).max(limit_bytes.unwrap_or(0));
    let affordable = (PASSES_ITEMS_MAX / items.len()).max(2);
    let mut placement = greedy(items, enough_bytes, effort.passes.min(u32::try_from(affordable).unwrap_or(u32::MAX)));
    if placement.height_bytes > enough_bytes.max(capacity_bytes.unwrap_or(0))
        && effort.nodes > 0
        && let Some(instance) = Instance::new(items).filter(|instance| instance.blocks.len() <= TREE_ITEMS_MAX)
    {
        let lower = match capacity_bytes {
            Some(capacity_bytes) => portfolio::within(&instance, capacity_bytes, effort.nodes),
            None => portfolio::lowest(&instance, load_bytes, placement.height_bytes, effort.nodes),
        };
        placement = lower.map_or(placement, |bases| instance.placement(items.len(), &bases));
    }
    match capacity_bytes {
        Some(capacity_bytes) if placement.height_bytes > capacity_bytes => {
            Err(PlacementError::Search { lowest: placement, capacity_bytes })
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

/// Checks that no address can overflow: a pass never leaves a gap wider than an alignment below every item.
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
    use crate::placement::Piece;
    use forebay_base::ByteRange;
    use forebay_testing::Random;

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
            let items = random_items(&mut Random::new(seed), 1 + seed % 40, 20, 100);
            let placement = place(&items, None, Effort::default()).unwrap();
            assert_eq!(verify(&items, &placement), Ok(()), "seed {seed}");
            assert!(placement.height_bytes >= load_bound_bytes(&items), "seed {seed}");
        }
    }

    /// The lowest height over all orders in which each item takes the lowest base that is free.
    fn lowest_height(items: &[Item], placed: &mut Vec<(usize, u64)>) -> u64 {
        let open = (0..items.len()).filter(|&item| placed.iter().all(|&(other, _)| other != item));
        let lowest = open.collect::<Vec<_>>().into_iter().map(|item| {
            let top = |&(other, base): &(usize, u64)| base + items[other].size_bytes();
            let alignment_bytes = items[item].alignment_bytes;
            let bases = placed.iter().map(top).chain([0]).map(|base| base.next_multiple_of(alignment_bytes));
            let free = |&base: &u64| {
                placed.iter().all(|&(other, other_base)| {
                    let apart = base + items[item].size_bytes() <= other_base || top(&(other, other_base)) <= base;
                    apart || !items[item].pieces[0].coincides(&items[other].pieces[0])
                })
            };
            let base = bases.filter(free).min().unwrap();
            placed.push((item, base));
            let height = lowest_height(items, placed).max(base + items[item].size_bytes());
            placed.pop();
            height
        });
        lowest.min().unwrap_or(0)
    }

    /// Items that do not change their size.
    fn random_plain_items(random: &mut Random, count: u64, times: u64, sizes: u64) -> Vec<Item> {
        (0..count)
            .map(|_| {
                let start = random.below(times) as u32;
                let time = start..start + 1 + random.below(times) as u32;
                let bytes = ByteRange::new(0, 1 + random.below(sizes));
                Item::new(1 << random.below(3), vec![Piece { time, bytes }])
            })
            .collect()
    }

    #[test]
    fn small_instances_are_placed_as_low_as_possible() {
        for seed in 1..400u64 {
            let mut random = Random::new(seed);
            let items = random_plain_items(&mut random, 2 + seed % 5, 6, 12);
            let lowest = lowest_height(&items, &mut Vec::new());
            let placement = place(&items, None, Effort { passes: 0, nodes: 10_000 }).unwrap();
            assert_eq!(verify(&items, &placement), Ok(()), "seed {seed}");
            assert_eq!(placement.height_bytes, lowest, "seed {seed}: {items:?}");
            let within = |capacity_bytes| place(&items, Some(capacity_bytes), Effort { passes: 0, nodes: 10_000 });
            assert!(within(lowest).is_ok_and(|placement| placement.height_bytes <= lowest), "seed {seed}");
            assert!(within(lowest - 1).is_err(), "seed {seed}");
        }
    }

    #[test]
    fn the_tree_is_never_worse_and_the_same_in_every_run() {
        for seed in 1..12u64 {
            let mut random = Random::new(seed);
            let items = random_plain_items(&mut random, 60, 30, 1000);
            let searched = |nodes| place(&items, None, Effort { passes: 16, nodes }).unwrap();
            let placement = searched(2_000);
            assert_eq!(verify(&items, &placement), Ok(()), "seed {seed}");
            assert!(placement.height_bytes <= searched(0).height_bytes, "seed {seed}");
            assert_eq!(placement, searched(2_000), "seed {seed}");
        }
    }

    #[test]
    fn the_most_items_at_once_do_not_exhaust_the_stack() {
        let item = |size| Item::new(1, vec![Piece { time: 0..1, bytes: ByteRange::new(0, size) }]);
        let items: Vec<Item> = (1..=TREE_ITEMS_MAX as u64).map(item).collect();
        let load_bytes = load_bound_bytes(&items);
        let instance = Instance::new(&items).unwrap();
        let bases = portfolio::within(&instance, load_bytes, 2 * TREE_ITEMS_MAX as u64).unwrap();
        assert_eq!(verify(&items, &instance.placement(items.len(), &bases)), Ok(()));
    }

    #[test]
    fn many_small_items_under_a_large_capacity_take_no_longer() {
        // Their bounds climb by single bytes when they rest on each other.
        let mut items = vec![Item::new(1, vec![Piece { time: 0..4, bytes: ByteRange::new(0, 1 << 40) }])];
        items.extend((0..40).map(|index| {
            Item::new(1, vec![Piece { time: index % 4..index % 4 + 1, bytes: ByteRange::new(0, 1 + u64::from(index)) }])
        }));
        let load_bytes = load_bound_bytes(&items);
        assert_eq!(
            place(&items, Some(load_bytes), Effort { passes: 0, nodes: 1_000 }).unwrap().height_bytes,
            load_bytes
        );
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
    fn a_capacity_beyond_all_addresses_is_no_limit() {
        for seed in 1..20u64 {
            let items = random_items(&mut Random::new(seed), 40, 20, 100);
            let unlimited = place(&items, None, Effort::default());
            for capacity_bytes in [i64::MAX as u64, 1 << 63, u64::MAX] {
                assert_eq!(place(&items, Some(capacity_bytes), Effort::default()), unlimited, "seed {seed}");
            }
        }
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
        let items = random_items(&mut Random::new(99), 60, 30, 1000);
        let height = |passes| place(&items, None, Effort { passes, nodes: 0 }).unwrap().height_bytes;
        assert!(height(500) <= height(20) && height(20) <= height(0));
        assert_eq!(height(500), height(500));
    }
}
