//! The order of launches in parts: part by part.

use std::collections::BTreeSet;

use forebay_model::program::{Buffer, BufferId, Program, ProgramLaunch};

use super::{Placed, positions};
use crate::dependences::{Dependences, ordered_by};
use crate::liveness::liveness;

/// Sorts launches by part, as far as their dependences allow. The counts that gradients of losses need come first.
pub(crate) fn by_parts(buffers: &[Buffer], mut placed: Vec<Placed>) -> Vec<Placed> {
    let launches: Vec<ProgramLaunch> = placed.iter().map(|placed| placed.launch.clone()).collect();
    let program = Program { buffers: buffers.to_vec(), update_start: launches.len(), launches, ..Program::default() };
    let live = liveness(&program, false);
    for launch in counting(&program, &Dependences::of_reads(&live)) {
        placed[launch].part = 0;
    }
    let Dependences { predecessors, successors } = Dependences::all(&live);
    let before = predecessors.iter().map(Vec::len).collect();
    let order = ordered_by(before, &successors, |index| placed[index].part);
    let mut placed: Vec<Option<Placed>> = placed.into_iter().map(Some).collect();
    order.into_iter().filter_map(|index| placed[index].take()).collect()
}

/// Returns the launches that compute the counts of positions.
fn counting(program: &Program, dependences: &Dependences) -> BTreeSet<usize> {
    let counts: BTreeSet<BufferId> =
        program.launches.iter().filter_map(positions::counts).map(|counts| counts.buffer).collect();
    let writes_counts = |launch: &ProgramLaunch| launch.writes.iter().any(|write| counts.contains(&write.buffer));
    let all = program.launches.iter().enumerate();
    let mut next: Vec<usize> = all.filter(|(_, launch)| writes_counts(launch)).map(|(index, _)| index).collect();
    let mut found = BTreeSet::new();
    while let Some(launch) = next.pop() {
        if found.insert(launch) {
            next.extend(&dependences.predecessors[launch]);
        }
    }
    found
}
