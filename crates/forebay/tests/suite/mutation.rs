//! No barrier or wait of a plan is redundant, and the race checker detects every missing one: each is deleted in turn from the plans of the
//! test models.

use std::path::PathBuf;

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{LaunchOrder, MemorySize, Model, Plan, ProcessGroup, Session, Shard};
use forebay_base::Command;
use forebay_device_testing::local_communicator::local_communicators;
use forebay_golden::{Case, host};
use forebay_sync::{StepBoundary, check_races};

/// What a plan of a model computes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Inference,
    Training,
}

fn plan(path: &str, step: Step, order: LaunchOrder, device_memory: Option<MemorySize>) -> Plan {
    let model = Model::from_file(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap();
    let mut engine = host(2).order(order);
    engine.memory.simulate_device = device_memory;
    match step {
        Step::Inference => Session::builder(&model).engine(engine).build().unwrap().plan().unwrap().clone(),
        Step::Training => {
            let training = TrainingOptions::new(
                Loss::MeanSquaredError,
                Optimizer::Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 },
            );
            forebay_golden::trainer(model, training, engine).plan().clone()
        }
    }
}

/// Returns whether the checker objects to a list of commands. A race in the first step is a race in every step.
fn objects(plan: &Plan, commands: &[Command]) -> bool {
    check_races(&plan.prologue, commands, 1, StepBoundary::HostJoin).is_err()
}

/// Returns whether the checker objects to a plan without this command. A fault of a list shows in every longer list that begins with it, so
/// it suffices to check up to the stream's next launch or copy, and only then the whole.
fn objects_without(plan: &Plan, index: usize) -> bool {
    let stream = plan.commands[index].stream();
    let guarded = |command: &Command| command.is_work() && command.stream() == stream;
    let next = plan.commands[index + 1..].iter().position(guarded).map(|offset| index + 1 + offset);
    let mut commands = plan.commands.clone();
    commands.remove(index);
    next.is_some_and(|next| objects(plan, &commands[..next])) || objects(plan, &commands)
}

/// Deletes each barrier and each wait in turn; returns how many there were.
fn delete_each(plan: &Plan, what: &str) -> usize {
    assert!(!objects(plan, &plan.commands), "{what}");
    let synchronization = |command: &Command| matches!(command, Command::Barrier { .. } | Command::Wait { .. });
    let indices: Vec<usize> =
        (0..plan.commands.len()).filter(|&index| synchronization(&plan.commands[index])).collect();
    for &index in &indices {
        let command = &plan.commands[index];
        assert!(objects_without(plan, index), "{what}: the checker does not miss command {index} ({command})");
    }
    assert_eq!(indices.len(), plan.statistics.barriers + plan.statistics.waits, "{what}");
    indices.len()
}

/// Mutates plans without a budget in both orders, and training plans within these shares of the memory in the better one; prints how many
/// commands were deleted.
fn mutate(path: &str, steps: &[Step], percents: &[u64]) {
    let mut deleted = 0;
    for &step in steps {
        for order in [LaunchOrder::File, LaunchOrder::Barriers] {
            let what = format!("{path}, {step:?} in {order:?} order");
            deleted += delete_each(&plan(path, step, order, None), &what);
        }
    }
    for percent in percents {
        let memory = format!("{percent}%").parse().unwrap();
        let what = format!("{path}, training within {percent} %");
        deleted += delete_each(&plan(path, Step::Training, LaunchOrder::Barriers, Some(memory)), &what);
    }
    println!("{path}: {deleted} barriers and waits deleted, each of them missed");
    assert!(deleted > 10, "{path}: {deleted} deleted");
}

const BOTH: [Step; 2] = [Step::Inference, Step::Training];

/// Exchanges are ordered like everything else: nothing can be left out of the plan of either of two processes.
#[test]
fn processes() {
    for (rank, communicator) in local_communicators(2).into_iter().enumerate() {
        let case = Case::read("digits-cnn");
        let mut engine = host(2).processes(ProcessGroup::new(communicator));
        engine.device.shard = Shard::State;
        let training = forebay_golden::recipe(&case);
        let plan = forebay_golden::trainer(case.model(), training, engine).plan().clone();
        let deleted = delete_each(&plan, &format!("process {rank} of 2"));
        println!("process {rank} of 2: {deleted} barriers and waits deleted, each of them missed");
        assert!(deleted > 10, "{deleted} deleted");
    }
}

#[test]
fn digits() {
    mutate("testdata/golden/digits-cnn/model.onnx", &BOTH, &[75, 50]);
}

#[test]
fn residual_network() {
    mutate("testdata/golden/resnet20/model.onnx", &BOTH, &[50]);
}

#[test]
fn transformer() {
    mutate("testdata/golden/tiny-gpt/model.onnx", &BOTH, &[50]);
}

#[test]
fn u_net() {
    mutate("testdata/golden/unet3d/model.onnx", &BOTH, &[50]);
}

#[test]
fn alexnet() {
    mutate("crates/forebay-model/tests/data/light/light_bvlc_alexnet.onnx", &[Step::Inference], &[]);
}

#[test]
fn inception() {
    mutate("crates/forebay-model/tests/data/light/light_inception_v1.onnx", &BOTH, &[]);
}

#[test]
fn squeezenet() {
    mutate("crates/forebay-model/tests/data/light/light_squeezenet.onnx", &BOTH, &[50]);
}

#[test]
fn deep_residual_network() {
    mutate("crates/forebay-model/tests/data/light/light_resnet50.onnx", &BOTH, &[]);
}

#[test]
fn vgg() {
    mutate("crates/forebay-model/tests/data/light/light_vgg19.onnx", &BOTH, &[]);
}

#[test]
fn the_examples() {
    mutate("examples/barriers/chain.onnx", &BOTH, &[]);
    mutate("examples/barriers/diamond.onnx", &BOTH, &[]);
}
