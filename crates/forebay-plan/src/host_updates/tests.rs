use std::collections::BTreeSet;

use forebay_base::{Command, Kernel, Space};
use forebay_model::program::{ProgramLaunch, Workspace};

use super::*;
use crate::cost::{Costs, estimate};
use crate::plan::Plan;
use crate::planner::{PlanOptions, plan};
use crate::testing::{ProgramBuilder, Random, limits, random_training_program};

/// Returns a training program that updates on the host, with workspace for some of its updates.
fn program(seed: u64) -> Program {
    let mut random = Random::new(seed);
    let depth = 1 + random.below(7) as usize;
    let mut program = crate::fuse::fuse(random_training_program(&mut random, depth));
    update_on_host(&mut program);
    let workspace = |launch: &ProgramLaunch, _: &[_], _: &[_]| {
        let bytes = if launch.name.len().is_multiple_of(2) { 100 } else { 0 };
        Ok::<_, ()>(Workspace { bytes: bytes * u64::from(launch.in_host_memory), on_host: launch.in_host_memory })
    };
    program.set_workspace(workspace).unwrap();
    program
}

fn planned(program: &Program, costs: &Costs, budgets: [Option<u64>; 2]) -> Result<Plan, PlanError> {
    let [device_budget_bytes, host_budget_bytes] = budgets;
    let options =
        PlanOptions { device_budget_bytes, host_budget_bytes, spill: true, check: true, ..PlanOptions::default() };
    plan(program, &options, &limits(), costs)
}

/// Returns the bytes of buffers with a role that are copied between host and device, and the number of these buffers.
fn crossing(program: &Program, plan: &Plan, role: Role, to_device: bool) -> (u64, usize) {
    let (mut bytes, mut names) = (0, BTreeSet::new());
    for movement in plan.movements.iter().filter(|movement| movement.role == role) {
        let Command::Copy { from, to, .. } = &plan.commands[movement.command] else { continue };
        let ends = [from, to].map(|end| plan.memory(end.memory).space);
        if matches!(ends[usize::from(to_device)], Space::Device(_)) {
            bytes += from.range.len();
            names.insert(movement.name.clone());
        }
    }
    assert!(names.iter().all(|name| program.buffers.iter().any(|buffer| buffer.name == *name)));
    (bytes, names.len())
}

#[test]
fn at_every_budget_state_stays_on_the_host_and_gradients_and_parameters_cross_once() {
    let mut early = 0;
    for seed in 1..5 {
        let program = program(seed);
        let costs = estimate(&program, &limits());
        let updated: BTreeSet<BufferId> = program.launches[program.update_start..]
            .iter()
            .flat_map(|launch| &launch.writes)
            .map(|write| write.buffer)
            .filter(|&buffer| program.buffer(buffer).role == Role::Parameter)
            .collect();
        let parameter_bytes: u64 = updated.iter().map(|&buffer| program.buffer(buffer).size_bytes).sum();
        let whole = planned(&program, &costs, [None, None]).unwrap();
        let (low, high) = (whole.statistics.minimum_budget_bytes, whole.statistics.in_core_peak_bytes);
        for percent in [0, 10, 40, 100] {
            let budget = low + (high - low) * percent / 100;
            let plan = planned(&program, &costs, [Some(budget), None])
                .unwrap_or_else(|error| panic!("seed {seed}, {percent} %: {error}"));
            let what = format!("seed {seed}, {percent} %");
            assert!(plan.statistics.device_peak_bytes <= budget, "{what}");
            assert!(plan.statistics.lower_bound_ns <= plan.statistics.predicted_ns, "{what}");
            assert_eq!(plan.statistics.host_updates, updated.len(), "{what}");
            assert_eq!(plan.host_updates().count(), updated.len(), "{what}");
            for to_device in [false, true] {
                assert_eq!(crossing(&program, &plan, Role::State, to_device), (0, 0), "{what}");
            }
            assert_eq!(crossing(&program, &plan, Role::Parameter, false), (0, 0), "{what}: only the host changes them");
            if percent == 100 {
                assert_eq!(crossing(&program, &plan, Role::Parameter, true).0, parameter_bytes, "{what}");
            }
            let launches: Vec<&Command> =
                plan.commands.iter().filter(|command| matches!(command, Command::Launch { .. })).collect();
            let last = launches.iter().rposition(|command| command.stream() == Some(StreamId(0))).unwrap();
            early += usize::from(launches[..last].iter().any(|command| command.stream() != Some(StreamId(0))));
            assert!(plan.streams.iter().any(|stream| stream.name == "host"), "{what}");
        }
    }
    assert!(early > 8, "{early} plans update next to the backward pass");
}

#[test]
fn what_the_host_does_not_hold_is_on_disk_between_steps() {
    let (mut turning, mut crossed) = (0, 0);
    for seed in 1..4 {
        let program = program(seed);
        let costs = estimate(&program, &limits());
        let whole = planned(&program, &costs, [None, None]).unwrap().statistics;
        let (low, high) = (whole.minimum_budget_bytes, whole.in_core_peak_bytes);
        for device_bytes in [Some(low), Some((low + high) / 2), None] {
            let what = format!("seed {seed}, device {device_bytes:?}");
            let roomy = planned(&program, &costs, [device_bytes, None]).unwrap().statistics;
            let least_bytes = match planned(&program, &costs, [device_bytes, Some(0)]) {
                Err(PlanError::HostBudget { needed_bytes, spilled: true, .. }) => needed_bytes,
                other => panic!("{what}: {other:?}"),
            };
            for part in [0, 50, 100] {
                let budget = least_bytes + (roomy.host_bytes.max(least_bytes) - least_bytes) * part / 100;
                let plan = planned(&program, &costs, [device_bytes, Some(budget)])
                    .unwrap_or_else(|error| panic!("{what}, host {part} %: {error}"));
                assert!(plan.statistics.host_bytes <= budget, "{what}, host {part} %");
                turning += usize::from(plan.turns.is_some());
                for to_device in [false, true] {
                    assert_eq!(crossing(&program, &plan, Role::State, to_device), (0, 0), "{what}, host {part} %");
                }
                crossed += usize::from(plan.statistics.bytes_to_disk > 0);
            }
        }
    }
    assert!(turning > 3 && crossed > 3, "{turning} plans take turns, {crossed} write to disk");
}

/// A chain of launches. If its first or last value is an output, all of them stay on the device; if it only serves an update, all run on
/// the host. This takes minutes if there is a pass over all launches for each of them.
#[test]
fn launches_of_a_long_chain_follow_each_other() {
    const LENGTH: usize = 100_000;
    for (output, serves) in [(Some(1), false), (Some(LENGTH), false), (None, true)] {
        let mut build = ProgramBuilder::default();
        let mut values = vec![build.input("x", 64)];
        for value in 0..LENGTH {
            values.push(build.temporary("value", 64));
            build.launch(Kernel::Copy, &[values[value]], &[values[value + 1]]);
        }
        build.start_updates();
        let parameter = build.persistent("parameter", 64, Role::Parameter);
        build.launch(Kernel::Copy, &[values[LENGTH]], &[parameter]);
        let outputs: Vec<BufferId> = output.map(|value| values[value]).into_iter().collect();
        let mut program = build.finish(&outputs);
        update_on_host(&mut program);
        let (before, updates) = program.phases();
        assert!(before.iter().all(|launch| launch.in_host_memory == serves), "output {output:?}");
        assert!(updates.iter().all(|launch| launch.in_host_memory));
    }
}

#[test]
fn numbers_of_the_optimizer_are_computed_next_to_it() {
    let mut program = random_training_program(&mut Random::new(2), 3);
    // A number that only updates read, computed from an input, and one that a launch on the device reads as well.
    let input = program.inputs.iter().find(|named| named.name == "hyperparameters").unwrap().operand.clone();
    let number = |program: &mut Program, name: &str| {
        let role = Role::Temporary;
        program.buffers.push(Buffer { name: name.to_string(), size_bytes: 64, role });
        Operand { buffer: BufferId(program.buffers.len() as u32 - 1), ..input.clone() }
    };
    let [own, shared] = ["own", "shared"].map(|name| number(&mut program, name));
    let launch = |write: &Operand| ProgramLaunch::new("number", Kernel::Copy, vec![input.clone()], vec![write.clone()]);
    let result = number(&mut program, "result");
    let reader = ProgramLaunch { reads: vec![shared.clone()], ..launch(&result) };
    program.launches.splice(0..0, [launch(&own), launch(&shared), reader]);
    program.outputs.push(forebay_model::program::NamedOperand {
        name: "result".to_string(),
        shape: vec![16],
        operand: result,
    });
    program.update_start += 3;
    for launch in &mut program.launches[program.update_start..] {
        launch.reads[3] = own.clone();
    }
    update_on_host(&mut program);
    let on_host: Vec<bool> = program.launches.iter().map(|launch| launch.in_host_memory).collect();
    assert_eq!(on_host[..3], [true, false, false]);
    assert!(on_host[3..program.update_start].iter().all(|on_host| !on_host));
    assert!(on_host[program.update_start..].iter().all(|on_host| *on_host));
    program.set_workspace(|launch, _, _| Ok::<_, ()>(Workspace { bytes: 0, on_host: launch.in_host_memory })).unwrap();
    let costs = estimate(&program, &limits());
    let plan = planned(&program, &costs, [None, None]).unwrap();
    assert_eq!(plan.statistics.host_updates, on_host.iter().filter(|on_host| **on_host).count());
}
