//! Bound: a time that no other residency of a plan's launches can beat, with these barriers and this budget.
//!
//! Launches between two barriers run in any order, so they are one position of [`crate::swap::bound`]'s proof. It takes at least
//! as long as the longest of them, and as long as they keep all the machine's lanes busy; while the largest of them runs, all that
//! is idle during the whole position and does not fit beside it must be elsewhere. Where a wait stands for a barrier, launches
//! after it may start before others end, so that only barriers are lines. Everything beside that is favourable: copies start
//! without latency, both ways of a link at once, inputs appear where they are used and outputs vanish, steps follow each other
//! without a join, and any launch may run again.

use std::collections::BTreeMap;

use forebay_base::Command;
use forebay_model::program::Program;

use crate::cost::Costs;
use crate::emit::COMPUTE;
use crate::liveness::{Chunk, Liveness};
use crate::order::Ordered;
use crate::plan::Plan;
use crate::residency::kind;
use crate::swap::bound::{Block, Problem, Rates, Touch};

/// No execution of the launches of `plan` in its order, with its barriers, within `capacity_bytes` of the device and the
/// budget for the host, has a step shorter than this, in nanoseconds. `ordered` is what the plan runs, in that order, without
/// what it runs again, `live` its liveness with buffers in one piece, and `costs` its costs.
pub fn lower_bound_ns(plan: &Plan, ordered: &Ordered, live: &Liveness, costs: &Costs, capacity_bytes: u64) -> u64 {
    let by_label = positions(plan);
    let positions: Vec<usize> = ordered.sources.iter().map(|source| by_label[&(*source as u32)]).collect();
    let count = positions.iter().max().map_or(0, |last| last + 1);
    let (mut longest_ns, mut busy_ns) = (vec![0f64; count], vec![0f64; count]);
    for (launch, &position) in positions.iter().enumerate() {
        let duration_ns = costs.launch_ns[launch] as f64;
        longest_ns[position] = longest_ns[position].max(duration_ns);
        busy_ns[position] += duration_ns * costs.launch_lanes[launch] / costs.lanes;
    }
    let mut sets_bytes = vec![0; live.launch_count];
    for chunk in &live.chunks {
        chunk.accesses.iter().for_each(|access| sets_bytes[access.launch] += chunk.range.len());
    }
    let mut working_sets_bytes = vec![0; count];
    for (set_bytes, &position) in sets_bytes.into_iter().zip(&positions) {
        working_sets_bytes[position] = set_bytes.max(working_sets_bytes[position]);
    }
    let spills = plan.statistics.spill_bytes > 0;
    let disk = if spills {
        Rates { out: costs.disk.write.bytes_per_ns(), back: costs.disk.read.bytes_per_ns() }
    } else {
        Rates { out: 0.0, back: 0.0 }
    };
    let link = &costs.link;
    let problem = Problem {
        blocks: live.chunks.iter().map(|chunk| block(&ordered.program, chunk, &positions)).collect(),
        durations_ns: longest_ns.into_iter().zip(busy_ns).map(|(longest, busy)| longest.max(busy)).collect(),
        working_sets_bytes,
        again_ns: costs.launch_ns.iter().map(|&duration_ns| Some(duration_ns as f64)).collect(),
        device_memory_bytes: capacity_bytes,
        host_memory_bytes: plan.statistics.host_budget_bytes.filter(|_| spills).unwrap_or(u64::MAX),
        all: Rates { out: link.from_device.bytes_per_ns() + disk.out, back: link.to_device.bytes_per_ns() + disk.back },
        disk,
    };
    problem.lower_bound_ns()
}

/// By label: how many barriers stand before its first launch, those between the same two launches counted once.
fn positions(plan: &Plan) -> BTreeMap<u32, usize> {
    let (mut positions, mut position, mut barrier) = (BTreeMap::new(), 0, false);
    for command in &plan.commands {
        match command {
            Command::Barrier { stream } if *stream == COMPUTE => barrier = true,
            Command::Launch { launch, .. } => {
                position += usize::from(barrier && !positions.is_empty());
                barrier = false;
                positions.entry(launch.label).or_insert(position);
            }
            _ => {}
        }
    }
    positions
}

/// A chunk as the proof sees it: what launches at one position do with it counts as one touch.
fn block(program: &Program, chunk: &Chunk, positions: &[usize]) -> Block {
    let mut touches: Vec<Touch> = Vec::new();
    for access in &chunk.accesses {
        let position = positions[access.launch];
        let writer = access.writes.then_some(access.launch);
        match touches.last_mut() {
            Some(last) if last.position == position => last.writer = writer.or(last.writer),
            _ => touches.push(Touch { position, reads: access.reads, writer }),
        }
    }
    Block { size_bytes: chunk.range.len(), persistent: kind(program, chunk).persistent, touches }
}
