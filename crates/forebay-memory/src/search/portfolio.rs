//! Tree searches with several rules and orders in turn, each with few nodes.
//!
//! Which rule and which order suit an instance is not known beforehand, but a suitable pair usually gets through with hardly a wrong
//! decision. All pairs are therefore tried briefly, again and again: later rounds shake the orders and occasionally allow more nodes (after
//! Luby, Sinclair and Zuckerman, "Optimal speedup of Las Vegas algorithms", 1993).

use std::cmp::Reverse;

use super::instance::{Block, Instance};
use super::tree::{Failed, Outcome, Rule, Tree};
use forebay_base::random::Xorshift64;

/// The rules, in the order in which they are tried.
const RULES: [Rule; 2] = [Rule::LowestFloor, Rule::FewestChoices];
/// Later orders move a block by up to the number of blocks divided by this.
const SHAKE_DIVISOR: usize = 3;
/// In the search for the lowest height, each height that is tried gets the number of nodes divided by this.
const HEIGHT_DIVISOR: u64 = 8;

/// A placement within the capacity, as the bases of the blocks.
pub(super) fn within(instance: &Instance, capacity_bytes: u64, nodes: u64) -> Option<Vec<i64>> {
    let capacity = (capacity_bytes / instance.unit_bytes) as i64;
    let mut nodes = nodes;
    match search(instance, capacity, &mut nodes) {
        (Outcome::Found, bases) => Some(bases),
        _ => None,
    }
}

/// A placement lower than `height_bytes`, as low as the nodes allow. No height below `load_bytes` is tried; heights in between are tried by
/// bisection.
pub(super) fn lowest(instance: &Instance, load_bytes: u64, height_bytes: u64, nodes: u64) -> Option<Vec<i64>> {
    let mut best = None;
    let mut tried = load_bytes.div_ceil(instance.unit_bytes) as i64;
    // Nothing was found below `least`, and a placement of height `most` is known.
    let (mut least, mut most) = (tried, (height_bytes / instance.unit_bytes) as i64);
    let mut left = nodes;
    while least < most && left > 0 {
        let mut share = (nodes / HEIGHT_DIVISOR).clamp(1, left);
        left -= share;
        let (outcome, bases) = search(instance, tried, &mut share);
        left += share;
        if outcome == Outcome::Found {
            let top = |(block, base): (&Block, &i64)| base + block.size;
            most = instance.blocks.iter().zip(&bases).map(top).max().unwrap_or(0);
            best = Some(bases);
        } else {
            least = tried + 1;
        }
        tried = least + (most - least) / 2;
    }
    best
}

/// Searches until a placement is found, none exists, or the nodes are spent.
fn search(instance: &Instance, capacity: i64, nodes: &mut u64) -> (Outcome, Vec<i64>) {
    let orders = orders(instance);
    let mut random = Xorshift64::new();
    let mut failed = Failed::new();
    let count = instance.blocks.len();
    for round in 0.. {
        for order in &orders {
            let ranks = if round == 0 { ranks(order) } else { ranks(&shaken(order, &mut random)) };
            for rule in RULES {
                let share = (count as u64 * (1 + luby(round + 1))).min(*nodes);
                *nodes -= share;
                let mut tree = Tree::new(instance, capacity, rule, &ranks, &mut failed);
                let (outcome, left) = tree.run(share);
                *nodes += left;
                if outcome != Outcome::Spent {
                    return (outcome, tree.into_bases());
                }
                if *nodes == 0 {
                    return (outcome, Vec::new());
                }
            }
        }
    }
    (Outcome::Spent, Vec::new())
}

/// The orders that break ties: longest blocks first, blocks in the fullest sections first, and the latter with longer blocks first; then by
/// area.
fn orders(instance: &Instance) -> [Vec<u32>; 3] {
    let size = |&block: &u32| instance.blocks[block as usize].size;
    let loads: Vec<i64> = instance.sections.iter().map(|live| live.iter().map(size).sum()).collect();
    let sorted = |key: &dyn Fn(&Block) -> (i64, i64)| {
        let mut order: Vec<u32> = (0..instance.blocks.len() as u32).collect();
        order.sort_by_key(|&index| {
            let block = &instance.blocks[index as usize];
            let (first, second) = key(block);
            (Reverse((first, second, block.area)), index)
        });
        order
    };
    let load = |block: &Block| loads[block.sections.clone()].iter().copied().max().unwrap_or(0);
    let duration = |block: &Block| i64::from(block.duration);
    [
        sorted(&|block| (duration(block), 0)),
        sorted(&|block| (load(block), 0)),
        sorted(&|block| (load(block), duration(block))),
    ]
}

/// The order with every block moved by a few places.
fn shaken(order: &[u32], random: &mut Xorshift64) -> Vec<u32> {
    let reach = order.len() / SHAKE_DIVISOR + 1;
    let mut places: Vec<(usize, u32)> =
        order.iter().enumerate().map(|(place, &block)| (place + random.below(reach), block)).collect();
    places.sort_unstable();
    places.into_iter().map(|(_, block)| block).collect()
}

/// By block: its place in the order.
fn ranks(order: &[u32]) -> Vec<u32> {
    let mut ranks = vec![0; order.len()];
    for (rank, &block) in order.iter().enumerate() {
        ranks[block as usize] = rank as u32;
    }
    ranks
}

/// The sequence 1, 1, 2, 1, 1, 2, 4, 1, ... from index 1 on.
fn luby(index: u64) -> u64 {
    let bits = u64::BITS - index.leading_zeros();
    if index + 1 == 1 << bits { 1 << (bits - 1) } else { luby(index + 1 - (1 << (bits - 1))) }
}
