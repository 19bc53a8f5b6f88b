//! Interleave: runs a chain of launches in parts part by part, so that the result of a part is used while it is on the device.
//!
//! Parts are ordered by how far through their launch they are, then by launch, and run as soon as what they need is there. Halos make a
//! chain run ahead by a part, and sums make it wait for the last part. Only consecutive launches that are cut are interleaved, a few at a
//! time: each part needs its weights again.

use std::collections::BTreeMap;

use forebay_base::ByteRange;
use forebay_base::kernel::KernelKind;
use forebay_model::program::{BufferId, ProgramLaunch};

use crate::dependences::ordered_by;

/// The most launches that are interleaved.
const CHAIN_MAX: usize = 12;

/// A launch with its position: the launch that it is a part of, and how far through that launch it ends, as a fraction.
pub(super) struct Placed {
    pub launch: ProgramLaunch,
    pub source: usize,
    pub done: (u64, u64),
}

impl Placed {
    /// Returns the fraction in 4096ths, rounded down.
    fn fraction(&self) -> u64 {
        self.done.0 * 4096 / self.done.1
    }
}

/// Reorders the launches, none of them across `update_start`.
pub(super) fn interleave(launches: Vec<Placed>, update_start: usize) -> Vec<Placed> {
    let mut chains: Vec<Vec<Placed>> = Vec::new();
    let mut sources = 0;
    for (index, placed) in launches.into_iter().enumerate() {
        let new_source = |last: &Placed| last.source != placed.source;
        match chains.last_mut() {
            Some(chain) if index != update_start => {
                let begins = chain.last().is_some_and(new_source);
                sources += usize::from(begins);
                // An uncut launch is separate.
                let alone = |placed: &Placed| {
                    placed.done == (1, 1) && placed.launch.kernel.facts().kind != KernelKind::FromSums
                };
                if begins && (sources > CHAIN_MAX || alone(&placed) || chain.iter().any(alone)) {
                    sources = 1;
                    chains.push(vec![placed]);
                } else {
                    chain.push(placed);
                }
            }
            _ => {
                sources = 1;
                chains.push(vec![placed]);
            }
        }
    }
    chains.into_iter().flat_map(ordered).collect()
}

fn ordered(chain: Vec<Placed>) -> Vec<Placed> {
    let mut before = vec![0; chain.len()];
    let mut after = vec![Vec::new(); chain.len()];
    let mut touched: BTreeMap<BufferId, Vec<(usize, ByteRange, bool)>> = BTreeMap::new();
    for (index, placed) in chain.iter().enumerate() {
        let reads = placed.launch.reads.iter().map(|operand| (operand, false));
        let writes = placed.launch.writes.iter().map(|operand| (operand, true));
        for (operand, writes) in reads.chain(writes) {
            let range = operand.range();
            let of_buffer = touched.entry(operand.buffer).or_default();
            for &(other, other_range, other_writes) in of_buffer.iter() {
                if other != index && (writes || other_writes) && other_range.intersection(range).is_some() {
                    before[index] += 1;
                    after[other].push(index);
                }
            }
            of_buffer.push((index, range, writes));
        }
    }
    let order = ordered_by(before, &after, |index| chain[index].fraction());
    let mut chain: Vec<Option<Placed>> = chain.into_iter().map(Some).collect();
    order.into_iter().filter_map(|index| chain[index].take()).collect()
}
