use forebay_base::kernel::{Activation, BinaryOp};
use forebay_base::{DataType, Kernel, Space, TensorDesc};

use super::*;
use crate::check::check;
use crate::cost::estimate;
use crate::emit::COMPUTE;
use crate::error::PlanError;
use crate::partition::partition;
use crate::plan::Plan;
use crate::planner::{PlanOptions, plan};
use crate::testing::{ProgramBuilder, Random, limits, random_training_program};

/// The most copies of one plan that are changed.
const COPIES_CHANGED: usize = 8;

/// Returns a random program in which some launches run on the host.
fn program(random: &mut Random) -> Program {
    let depth = 1 + random.below(5) as usize;
    let mut program = crate::fuse::fuse(random_training_program(random, depth));
    for launch in &mut program.launches {
        launch.on_host = random.once_in(3);
        launch.workspace_bytes = if random.once_in(2) { 1000 } else { 0 };
    }
    program
}

fn planned(program: &Program, options: &PlanOptions) -> Result<Plan, PlanError> {
    plan(program, &PlanOptions { check: true, ..options.clone() }, &limits(), &estimate(program, &limits()))
}

fn checked(program: &Program, plan: &Plan) -> Result<(), PlanError> {
    let parts = plan.cut_bytes.and_then(|limit_bytes| partition(program, limit_bytes));
    check(program, parts.as_ref(), plan)
}

fn copies(plan: &Plan) -> Vec<usize> {
    let is_copy = |command: &Command| matches!(command, Command::Copy { stream: COMPUTE, .. });
    (0..plan.commands.len()).filter(|&index| is_copy(&plan.commands[index])).collect()
}

#[test]
fn every_budget_has_a_checked_plan_and_copies_are_missed() {
    let (mut changed_count, mut in_parts, mut spilled) = (0, 0, 0);
    for seed in 1..6 {
        let program = program(&mut Random::new(seed));
        let whole = planned(&program, &PlanOptions::default()).unwrap();
        let (low, high) = (whole.statistics.minimum_budget_bytes, whole.statistics.in_core_peak_bytes);
        let launches = program.launches.iter().filter(|launch| launch.on_host).count();
        assert_eq!(whole.statistics.host_launches, launches, "seed {seed}");
        // The smallest budget takes longest to plan.
        let least = if [1, 3].contains(&seed) { 0 } else { 20 };
        for percent in [least, 50] {
            let what = format!("seed {seed}, {percent} %");
            let budget_bytes = low + (high - low) * percent / 100;
            let options = PlanOptions { device_budget_bytes: Some(budget_bytes), ..PlanOptions::default() };
            let roomy = planned(&program, &options).unwrap_or_else(|error| panic!("{what}: {error}"));
            let spilling = PlanOptions { spill: true, host_budget_bytes: Some(0), ..options.clone() };
            let Err(PlanError::HostBudget { needed_bytes, .. }) = planned(&program, &spilling) else {
                panic!("{what}: inputs and launches on the host need host memory")
            };
            let tight_bytes = needed_bytes + roomy.statistics.host_bytes.saturating_sub(needed_bytes) / 2;
            let tight = planned(&program, &PlanOptions { host_budget_bytes: Some(tight_bytes), ..spilling }).unwrap();
            for plan in [roomy, tight] {
                let statistics = &plan.statistics;
                assert!(statistics.device_peak_bytes <= budget_bytes, "{what}");
                assert!(statistics.lower_bound_ns <= statistics.predicted_ns, "{what}");
                in_parts += usize::from(plan.cut_bytes.is_some());
                spilled += usize::from(statistics.spill_bytes > 0);
                let copies = copies(&plan);
                let bytes =
                    copies.iter().flat_map(|&copy| plan.commands[copy].reads()).map(|region| region.range.len());
                assert_eq!(bytes.sum::<u64>(), statistics.host_launch_bytes, "{what}");
                // Only some of them, because each requires a check of the whole plan.
                for &copy in copies.iter().step_by(copies.len().div_ceil(COPIES_CHANGED).max(1)) {
                    assert!(plan.movements.iter().any(|movement| movement.command == copy), "{what}: no reason");
                    // Without the copy, or with bytes from elsewhere, something is missing: always for copies to the device; for copies to
                    // the host, if the bytes are not already there.
                    let mut changed = plan.clone();
                    let Command::Copy { from, to, .. } = &mut changed.commands[copy] else { unreachable!() };
                    let (space, size_bytes) = (plan.memory(to.memory).space, plan.memory(from.memory).size_bytes);
                    let distance = if from.range.end + 64 <= size_bytes { 64 } else { 0u64.wrapping_sub(64) };
                    from.range.start = from.range.start.wrapping_add(distance);
                    from.range.end = from.range.end.wrapping_add(distance);
                    assert!(checked(&program, &changed).is_err(), "{what}: {}", plan.commands[copy]);
                    if space != Space::Host {
                        changed.commands[copy] = Command::Barrier { stream: COMPUTE };
                        assert!(checked(&program, &changed).is_err(), "{what}: {}", plan.commands[copy]);
                    }
                }
                changed_count += copies.len().min(COPIES_CHANGED);
            }
        }
    }
    assert!(
        changed_count > 60 && in_parts > 1 && spilled > 1,
        "{changed_count} changed, {in_parts} in parts, {spilled} spilled"
    );
}

#[test]
fn a_launch_runs_where_the_program_says() {
    let program = program(&mut Random::new(3));
    let plan = planned(&program, &PlanOptions::default()).unwrap();
    for on_host in [true, false] {
        let other = program.launches.iter().position(|launch| launch.on_host == on_host).unwrap();
        let mut moved = program.clone();
        moved.launches[other].on_host = !on_host;
        let error = checked(&moved, &plan).unwrap_err().to_string();
        assert!(error.contains(if on_host { "runs on the host" } else { "runs on the device" }), "{error}");
    }
    let is_on_host = |command: &Command| matches!(command, Command::Launch { launch, .. } if plan.runs_on_host(launch));
    let mut split = plan.clone();
    let launch = split.commands.iter_mut().find(|command| is_on_host(command)).unwrap();
    let Command::Launch { launch, .. } = launch else { unreachable!() };
    launch.writes[0].region.memory = MemoryId(0);
    let error = checked(&program, &split).unwrap_err().to_string();
    assert!(error.contains("not all in one space"), "{error}");
}

/// Returns a chain of launches, each on the result of the previous one.
fn chain(on_host: &[bool]) -> Program {
    let mut build = ProgramBuilder::default();
    let mut value = build.input("x", 4096);
    let relu = Kernel::Unary(forebay_base::kernel::UnaryOp::Relu);
    for number in 0..on_host.len() {
        let next = build.temporary(&format!("v{number}"), 4096);
        build.launch(relu.clone(), &[value], &[next]);
        value = next;
    }
    let mut program = build.finish(&[value]);
    program.launches.iter_mut().zip(on_host).for_each(|(launch, &on_host)| launch.on_host = on_host);
    program
}

#[test]
fn launches_in_a_row_hand_over_on_the_host() {
    for (on_host, expected) in [
        (&[false, true, false][..], 2),
        (&[true, true, true, true, true, true], 2),
        (&[true, false, true], 4),
        (&[false, true, true, false, true, true, true, false], 4),
        (&[false, false], 0),
    ] {
        let program = chain(on_host);
        let plan = planned(&program, &PlanOptions::default()).unwrap();
        assert_eq!(copies(&plan).len(), expected, "{on_host:?}");
        assert_eq!(host_launch_bytes(&program), if expected > 0 { 2 * 4096 } else { 0 });
        assert!(plan.statistics.host_bytes <= 2 * 4096 + 2 * 4096, "{on_host:?}");
    }
}

/// Pieces of one buffer are written by a launch each, and read together: what overlaps is one area, and what a launch does not write stays
/// as it was.
#[test]
fn operands_that_overlap_are_one_area() {
    let mut build = ProgramBuilder::default();
    let (x, both, sum) = (build.input("x", 4096), build.temporary("both", 8192), build.temporary("sum", 4096));
    let add = Kernel::Binary { op: BinaryOp::Add, activation: Activation::None };
    (0..3).for_each(|_| build.launch(add.clone(), &[x, x], &[sum]));
    let mut program = build.finish(&[sum]);
    let packed = TensorDesc::packed(DataType::Float32, &[32, 32]).unwrap();
    let whole = |buffer| Operand { buffer, offset_bytes: 0, desc: packed.clone() };
    let half = |column: u64| {
        let desc = TensorDesc::strided(DataType::Float32, &[32, 32], &[64, 1]).unwrap();
        Operand { buffer: both, offset_bytes: column * 128, desc }
    };
    let operands = [
        (vec![whole(x), whole(x)], half(0)),
        (vec![whole(x), whole(x)], half(1)),
        (vec![half(1), half(0)], whole(sum)),
    ];
    for (launch, (reads, write)) in program.launches.iter_mut().zip(operands) {
        (launch.on_host, launch.reads, launch.writes) = (true, reads, vec![write]);
    }
    let of_both =
        |launch: usize| areas(&program.launches[launch]).into_iter().find(|area| area.buffer == both).unwrap();
    assert_eq!(areas(&program.launches[2]).len(), 2);
    assert_eq!((of_both(2).range, of_both(2).is_written), (ByteRange::new(0, 8192), false));
    assert!(of_both(1).is_read && of_both(1).is_written, "a write with gaps needs what is in them");
    let plan = planned(&program, &PlanOptions::default()).unwrap();
    let last = plan.launches().last().unwrap();
    let distance = last.reads[0].region.range.start - last.reads[1].region.range.start;
    assert_eq!(distance, 128, "as far from each other as on the device");
    assert!(last.writes.iter().all(|binding| plan.memory(binding.region.memory).space == Space::Host));
}
