//! No plan is predicted to be faster than its bound: neither the planner's plans nor others.

use crate::alias::alias;
use crate::arena::arena;
use crate::backing_stores::backing_stores;
use crate::bound::{bound_of, problem};
use crate::cost::{Costs, estimate};
use crate::emit::{COMPUTE, Decisions, emit};
use crate::liveness::{Liveness, liveness};
use crate::loans::Loans;
use crate::order::Ordered;
use crate::parts::costs_of_parts;
use crate::planner::{PlanOptions, plan};
use crate::residency::{Leaving, OccupancyLimit, Residency, kinds, residency};
use crate::schedule::schedule;
use crate::simulate::simulate;
use crate::split::split_barriers;
use crate::testing::{Random, limits, random_training_program};
use crate::widen::{Route, widen};
use forebay_model::program::Program;

/// A plan that takes at most this many times its bound leaves little room for a wrong bound.
const NEAR: f64 = 1.2;

fn random_program(random: &mut Random, depths: u64) -> Program {
    let depth = 1 + random.below(depths) as usize;
    crate::fuse::fuse(random_training_program(random, depth))
}

/// Returns a machine that differs from the usual one in its links, in what copies cost its workers, or in both.
fn random_machine(random: &mut Random, program: &Program) -> Costs {
    let mut costs = estimate(program, &limits());
    let slower = [1.0, 4.0, 30.0][random.below(3) as usize];
    for way in [&mut costs.link.to_device, &mut costs.link.from_device] {
        way.bytes_per_second /= slower * (1.0 + random.below(3) as f64 / 2.0);
        way.latency_ns = [0, 5_000, 50_000][random.below(3) as usize];
    }
    costs.link.duplex = random.once_in(2);
    costs.link.carries_disk = random.once_in(2);
    costs.workers = [2.0, 3.0, 8.0][random.below(3) as usize];
    for workers in &mut costs.launch_workers {
        *workers = if random.once_in(4) { 1.0 } else { costs.workers - random.below(100) as f64 / 100.0 };
    }
    // On half of the machines, workers copy.
    costs.copy_worker_ns_per_byte = [0.0, 0.0, 0.05, 0.3][random.below(4) as usize];
    costs.step_ns = random.below(3) * 1_000;
    costs
}

#[test]
fn plans_for_all_kinds_of_machines_keep_the_bound_and_it_says_more_than_durations() {
    // Counts for plans with parts, for workers that copy, for links that both directions share, and for all.
    let mut tighter = [0; 4];
    for seed in 1..40 {
        let mut random = Random::new(seed);
        let program = random_program(&mut random, 4);
        let costs = random_machine(&mut random, &program);
        let planned = |device_budget_bytes| {
            let options = PlanOptions { device_budget_bytes, ..PlanOptions::default() };
            plan(&program, &options, &limits(), &costs).unwrap_or_else(|error| panic!("seed {seed}: {error}"))
        };
        let whole = planned(None);
        let (low, high) = (whole.statistics.minimum_budget_bytes, whole.statistics.in_core_peak_bytes);
        let within = low + (high - low) * [0, 10, 30, 60][random.below(4) as usize] / 100;
        for plan in [planned(Some(within)), whole] {
            let found = &plan.statistics;
            let (bound_ns, predicted_ns) = (found.lower_bound_ns, found.predicted_ns);
            assert!(bound_ns <= predicted_ns, "seed {seed}: {predicted_ns} ns beat {bound_ns} ns: {costs:?}");
            let durations_ns = costs_of_parts(&costs, &plan.shares).launch_ns.iter().sum::<u64>() + costs.step_ns;
            let kinds = [found.launches_cut > 0, costs.copy_worker_ns_per_byte > 0.0, !costs.link.duplex, true];
            for (count, is_of) in tighter.iter_mut().zip(kinds) {
                *count += usize::from(is_of && bound_ns > durations_ns);
            }
        }
    }
    assert!(tighter.iter().all(|&count| count > 0), "{tighter:?} plans have a bound above their durations");
}

/// Returns a residency that keeps random gaps.
fn random_residency(random: &mut Random, program: &Program, live: &Liveness) -> Residency {
    let once_in = 1 + random.below(10);
    let mut residency = Residency::default();
    for (chunk, kind) in live.chunks.iter().zip(kinds(program, live)) {
        let gaps = chunk.accesses.len() - usize::from(!kind.persistent && !chunk.accesses.is_empty());
        let kept: Vec<bool> = (0..gaps).map(|_| !random.once_in(once_in)).collect();
        residency.add(chunk, kind, &kept, live.launch_count);
    }
    residency
}

/// Returns the most bytes that residency intervals take during a launch.
fn taken_bytes(live: &Liveness, residency: &Residency) -> u64 {
    let mut taken = vec![0; live.launch_count];
    for segment in &residency.segments {
        let bytes = live.chunks[segment.chunk].range.len();
        taken[segment.start..=segment.end].iter_mut().for_each(|taken| *taken += bytes);
    }
    taken.into_iter().max().unwrap_or(0)
}

#[test]
fn no_residency_that_takes_as_many_bytes_beats_the_bound() {
    let (mut near, mut all) = (0, 0);
    for seed in 1..60 {
        let mut random = Random::new(seed);
        let program = random_program(&mut random, 3);
        let costs = random_machine(&mut random, &program);
        let ordered = Ordered::as_it_comes(program);
        let ordered = Ordered { program: alias(ordered.program, &ordered.groups), ..ordered };
        let program = &ordered.program;
        let live = liveness(program, false);
        let needed_bytes = live.most_needed_bytes();
        for attempt in 0..6 {
            let room_bytes = needed_bytes + random.below(6) * needed_bytes / 2;
            let limit =
                OccupancyLimit { keep_bytes: room_bytes, transfer_bytes: 0, isolate: false, joined_bytes: u64::MAX };
            let mut residency = match attempt {
                0 => random_residency(&mut random, program, &live),
                _ => residency(program, &live, &costs, limit, &[], &Leaving::Anything),
            };
            let backing_stores = backing_stores(program, &live, &residency, &costs, None);
            let transfer_bytes = room_bytes + random.below(3) * needed_bytes / 4;
            let over_boundary = random.once_in(2);
            let kinds = kinds(program, &live);
            let route =
                |chunk: usize| Route { on_disk: false, over_boundary: over_boundary && kinds[chunk].persistent };
            widen(&mut residency, &live, &costs, route, transfer_bytes, &[]);
            let arena = &arena(&live, &residency, None, u64::MAX, false).expect("no limit");
            let work = schedule(&live, &residency);
            let (sources, limits) = (&ordered.sources, &limits());
            let decisions = Decisions {
                program,
                sources,
                live: &live,
                residency: &residency,
                backing_stores: &backing_stores,
                arena,
                loans: &Loans::default(),
                limits,
            };
            let mut plan = emit(&decisions, &work).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            if random.once_in(2) {
                plan = split_barriers(plan, COMPUTE, &costs);
            }
            // Nothing runs again here, so the proof may leave it out.
            let mut problem = problem(&plan, &ordered, &live, &costs, taken_bytes(&live, &residency));
            problem.again_ns.fill(None);
            let bound_ns = bound_of(&plan, problem, &costs);
            let predicted_ns = simulate(&plan, &costs).step_ns;
            assert!(bound_ns <= predicted_ns, "seed {seed}: {predicted_ns} ns beat {bound_ns} ns: {costs:?}");
            near += usize::from(predicted_ns as f64 <= bound_ns as f64 * NEAR);
            all += 1;
        }
    }
    assert!(near * 10 > all, "{near} of {all} are near the bound");
}
