//! Early optimizer updates: updates run as early as possible.
//!
//! A program's updates come last. Every gradient then waits for the end of the step, on the device or away from it, and every parameter
//! comes to the device once more for its update. If memory is short, an update is instead placed after the first barrier at which
//! everything that it needs is done: its gradient has been computed, and no launch reads the parameter any more. This takes no additional
//! barrier, the gradient does not leave, and the parameter does not come back; moments come and go while the rest of the step runs.
//!
//! No update comes before the step's outputs: a caller that looks at the outputs and stops finds all parameters as they were.

use std::collections::BTreeSet;

use forebay_model::program::{BufferId, Program};

use crate::dependences::Dependences;
use crate::liveness::liveness;
use crate::order::Ordered;

/// Returns the program with its updates as early as they can run, or `None` if no update can run earlier.
pub fn updates_early(program: &Program) -> Option<Ordered> {
    let (count, update_start) = (program.launches.len(), program.update_start);
    let outputs: BTreeSet<BufferId> = program.outputs.iter().map(|named| named.operand.buffer).collect();
    let gives_output =
        |launch: &usize| program.launches[*launch].writes.iter().any(|write| outputs.contains(&write.buffer));
    let outputs_end = (0..count).rev().find(gives_output).map_or(0, |launch| launch + 1);
    let mut walk = Walk::new(program);
    for launch in 0..update_start {
        if walk.needs_barrier(launch) {
            walk.barrier();
            if launch >= outputs_end {
                walk.place_ready();
            }
        }
        walk.place(launch);
    }
    let first_update = walk.order.iter().position(|&launch| launch >= update_start)?;
    walk.place_rest();
    let groups: Vec<Vec<usize>> = walk.order.into_iter().map(|launch| vec![launch]).collect();
    let mut ordered = Ordered::by_groups(program, &groups);
    ordered.program.update_start = first_update;
    Some(ordered)
}

/// Launches while they are put in order.
struct Walk {
    dependences: Dependences,
    update_start: usize,
    /// For each launch, how many of the launches that it needs are not placed yet.
    missing: Vec<usize>,
    /// For each launch that is placed, the number of barriers before it.
    barriers_before: Vec<Option<usize>>,
    barriers: usize,
    /// Updates that are not placed yet and need nothing that is not placed yet.
    ready: BTreeSet<usize>,
    order: Vec<usize>,
}

impl Walk {
    fn new(program: &Program) -> Walk {
        let dependences = Dependences::all(&liveness(program, false));
        let missing: Vec<usize> = dependences.predecessors.iter().map(Vec::len).collect();
        let count = missing.len();
        let ready = (program.update_start..count).filter(|&launch| missing[launch] == 0).collect();
        Walk {
            dependences,
            update_start: program.update_start,
            missing,
            barriers_before: vec![None; count],
            barriers: 0,
            ready,
            order: Vec::with_capacity(count),
        }
    }

    /// Whether a launch needs another that was placed after the last barrier.
    fn needs_barrier(&self, launch: usize) -> bool {
        let needed = &self.dependences.predecessors[launch];
        needed.iter().any(|&before| self.barriers_before[before] == Some(self.barriers))
    }

    fn barrier(&mut self) {
        self.barriers += 1;
    }

    fn place(&mut self, launch: usize) {
        self.order.push(launch);
        self.barriers_before[launch] = Some(self.barriers);
        for &after in &self.dependences.successors[launch] {
            self.missing[after] -= 1;
            if self.missing[after] == 0 && after >= self.update_start {
                self.ready.insert(after);
            }
        }
    }

    /// Places the updates that need only launches before the last barrier.
    fn place_ready(&mut self) {
        for launch in std::mem::take(&mut self.ready) {
            self.place(launch);
        }
    }

    /// Places the remaining updates in the order in which they come.
    fn place_rest(&mut self) {
        for launch in self.update_start..self.barriers_before.len() {
            if self.barriers_before[launch].is_none() {
                self.place(launch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, random_training_program};

    #[test]
    fn updates_come_early_after_what_they_need_and_after_the_outputs() {
        let mut earlier = 0;
        for seed in 1..60 {
            let mut random = Random::new(seed);
            let depth = 1 + random.below(9) as usize;
            let program = random_training_program(&mut random, depth);
            let Some(early) = updates_early(&program) else { continue };
            let place = |launch: usize| early.sources.iter().position(|&source| source == launch).unwrap();
            let needs = Dependences::all(&liveness(&program, false)).predecessors;
            for (launch, needed) in needs.iter().enumerate() {
                assert!(needed.iter().all(|&before| place(before) < place(launch)), "seed {seed}: {launch}");
            }
            let outputs: Vec<BufferId> = program.outputs.iter().map(|named| named.operand.buffer).collect();
            let first_update = early.program.update_start;
            assert!(early.sources[first_update] >= program.update_start, "seed {seed}");
            for (place, launch) in early.program.launches.iter().enumerate() {
                let gives = launch.writes.iter().any(|write| outputs.contains(&write.buffer));
                assert!(!gives || place < first_update, "seed {seed}: an output behind an update");
            }
            // Launches that are not updates keep their order.
            let others: Vec<usize> =
                early.sources.iter().copied().filter(|&launch| launch < program.update_start).collect();
            assert!(others.iter().copied().eq(0..program.update_start), "seed {seed}");
            earlier += usize::from(first_update < program.update_start);
        }
        assert!(earlier > 30, "{earlier} programs with early updates");
    }

    #[test]
    fn early_updates_take_no_barrier_more() {
        for seed in 1..40 {
            let mut random = Random::new(seed);
            let program = random_training_program(&mut random, 6);
            let Some(early) = updates_early(&program) else { continue };
            let barriers = |program: &Program| {
                let mut walk = Walk::new(program);
                for launch in 0..program.launches.len() {
                    if walk.needs_barrier(launch) {
                        walk.barrier();
                    }
                    walk.place(launch);
                }
                walk.barriers
            };
            assert!(barriers(&early.program) <= barriers(&program), "seed {seed}");
        }
    }
}
