//! Updates on the host, next to the optimizer's state: the same bits as updates on the device if the host is the device, at every budget,
//! and no byte of state crosses the link.

use std::sync::Arc;

use forebay::training::{Clipping, LoraOptions, Optimizer, ParameterGroup, Precision, TrainingOptions};
use forebay::{
    Checkpoint, EngineOptions, MemoryMode, MemorySize, Model, PlanError, ProcessGroup, Shard, Trainer, Updates,
};
use forebay_base::{Command, Space};
use forebay_device::Communicator;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device_testing::local_communicator::local_communicators;
use forebay_golden::{
    Case, Run, assert_same, chaos, everything, host, recipe, run, steps, trainer, trainer_on, trainer_options,
};
use forebay_model::program::Role;

/// The case's recipe with a change.
fn changed(case: &Case, change: impl Fn(&mut TrainingOptions)) -> TrainingOptions {
    let mut training = recipe(case);
    change(&mut training);
    training
}

/// Two pools on one processor; without `device_bytes`, the device has no budget.
fn two_pools(updates: Updates, device_bytes: Option<u64>) -> EngineOptions {
    let mut engine = host(2).check(true).updates(updates);
    engine.memory.simulate_device = device_bytes.map(MemorySize::Bytes);
    engine.memory.host_memory = device_bytes.is_none().then_some(MemorySize::Bytes(1 << 40));
    engine
}

/// Returns the bytes of state that cross between host and device in a step, and the bytes of gradients that cross to the host.
fn crossing(trainer: &Trainer) -> (u64, u64) {
    let plan = trainer.plan();
    let (mut state, mut gradients) = (0, 0);
    for movement in &plan.movements {
        let Command::Copy { from, to, .. } = &plan.commands[movement.command] else { continue };
        let [from_device, to_device] = [from, to].map(|end| matches!(plan.memory(end.memory).space, Space::Device(_)));
        state += if movement.role == Role::State && (from_device || to_device) { from.range.len() } else { 0 };
        gradients += if movement.role == Role::Gradient && from_device { from.range.len() } else { 0 };
    }
    (state, gradients)
}

/// Trains with updates on the device without a budget, and on the host within several budgets; the bits of all runs must be the same.
fn same_bits(model: &Model, case: &Case, training: &TrainingOptions, steps: usize, what: &str) {
    let expected = run(case, &mut trainer(model.clone(), training.clone(), two_pools(Updates::Device, None)), steps);
    let mut whole = trainer(model.clone(), training.clone(), two_pools(Updates::Host, None));
    let (peak, minimum) = (whole.statistics().in_core_peak_bytes, whole.statistics().minimum_budget_bytes);
    assert_same(&expected, &run(case, &mut whole, steps), &format!("{what} in core"));
    for budget in [peak / 2, peak / 4, minimum] {
        let budget = budget.max(minimum);
        let what = format!("{what} within {budget} of {peak} bytes");
        let mut limited = trainer(model.clone(), training.clone(), two_pools(Updates::Host, Some(budget)));
        let planned_bytes = limited.statistics().host_bytes;
        assert_same(&expected, &run(case, &mut limited, steps), &what);
        let (statistics, usage) = (limited.statistics(), limited.usage());
        // The first step may have led to another plan, with which the others ran.
        let host_bytes = planned_bytes.max(statistics.host_bytes);
        assert!(statistics.host_updates > 0, "{what}");
        assert!(usage.heap_peak_bytes <= budget, "{what}: {} heap bytes", usage.heap_peak_bytes);
        assert!(usage.host_peak_bytes <= host_bytes, "{what}: {} of {host_bytes} host bytes", usage.host_peak_bytes);
        let (state, gradients) = crossing(&limited);
        assert!(state == 0 && gradients > 0, "{what}: {state} bytes of state cross, and {gradients} of gradients");
    }
}

#[test]
fn optimizers_have_the_bits_of_updates_on_the_device() {
    let case = Case::read("digits-cnn");
    let momentum = Optimizer::Sgd { learning_rate: 0.05, momentum: 0.9, nesterov: true, weight_decay: 1e-4 };
    let optimizers =
        [momentum, Optimizer::adamw(1e-3), Optimizer::lamb(1e-3), Optimizer::adafactor(1e-2), Optimizer::sgd(0.1)];
    for optimizer in optimizers {
        let what = format!("{optimizer:?}");
        let training = changed(&case, |training| training.optimizer = optimizer.clone());
        same_bits(&case.model(), &case, &training, 3, &what);
    }
}

#[test]
fn a_transformer_has_the_bits_of_updates_on_the_device() {
    let case = Case::read("tiny-gpt");
    same_bits(&case.model(), &case, &recipe(&case), 2, "tiny-gpt");
}

#[test]
fn recipes_have_the_bits_of_updates_on_the_device() {
    let case = Case::read("digits-cnn");
    let adam = |change: &dyn Fn(&mut TrainingOptions)| {
        changed(&case, |training| {
            training.optimizer = Optimizer::adam(1e-3);
            change(training);
        })
    };
    let clipped = adam(&|training| {
        training.clipping = Some(Clipping::GlobalNorm(0.5));
        training.average = Some(0.9);
    });
    same_bits(&case.model(), &case, &clipped, 3, "a global norm and averages");
    let grouped = adam(&|training| {
        let mut group = ParameterGroup::new("conv*");
        group.rate_factor = 0.1;
        training.groups = vec![group];
        training.clipping = Some(Clipping::Value(0.01));
    });
    same_bits(&case.model(), &case, &grouped, 3, "groups and a limit of each element");
    let half = adam(&|training| {
        training.precision = Some(Precision::float16());
        training.gradient_norm = true;
    });
    same_bits(&case.model(), &case, &half, 3, "float16 and scaled losses");
}

#[test]
fn gradients_that_add_up_over_parts_have_the_bits_of_updates_on_the_device() {
    let case = Case::read("digits-cnn");
    let parts = |updates, budget| {
        let training = changed(&case, |training| training.accumulate = 2);
        let mut options = trainer_options(training, two_pools(updates, budget));
        options.batch_size = Some(case.batch(0).1.shape()[0] / 2);
        Trainer::new(case.model(), options).unwrap()
    };
    let expected = run(&case, &mut parts(Updates::Device, None), 2);
    let minimum = parts(Updates::Host, None).statistics().minimum_budget_bytes;
    for budget in [None, Some(minimum * 2)] {
        assert_same(&expected, &run(&case, &mut parts(Updates::Host, budget), 2), &format!("within {budget:?}"));
    }
}

#[test]
fn adapters_have_the_bits_of_updates_on_the_device() {
    let case = Case::read("tiny-gpt");
    let model = case.model().with_adapters(&LoraOptions::new("*qkv*")).unwrap();
    same_bits(&model, &case, &recipe(&case), 2, "adapters");
}

#[test]
fn bits_do_not_depend_on_the_order_in_which_a_device_runs_what_it_may() {
    let case = Case::read("digits-cnn");
    let expected = run(&case, &mut trainer(case.model(), recipe(&case), two_pools(Updates::Device, None)), 2);
    let peak = trainer(case.model(), recipe(&case), two_pools(Updates::Host, None)).statistics().in_core_peak_bytes;
    for seed in 0..3 {
        let engine = two_pools(Updates::Host, Some(peak / 2));
        let mut chaotic = trainer_on(case.model(), recipe(&case), engine, Some(chaos(2, seed)));
        assert_same(&expected, &run(&case, &mut chaotic, 2), &format!("seed {seed}"));
    }
}

#[test]
fn state_is_on_disk_where_the_host_does_not_hold_it_and_does_not_cross_the_link_either() {
    let case = Case::read("digits-cnn");
    let training = changed(&case, |training| training.optimizer = Optimizer::adam(1e-3));
    let expected = run(&case, &mut trainer(case.model(), training.clone(), two_pools(Updates::Device, None)), 3);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let within = |device: u64, host_bytes: Option<u64>| {
        let mut engine = two_pools(Updates::Host, Some(device)).spill_dir(folder.path());
        engine.memory.host_memory = host_bytes.map(MemorySize::Bytes);
        Trainer::new(case.model(), trainer_options(training.clone(), engine))
    };
    let peak = within(1 << 40, None).unwrap().statistics().in_core_peak_bytes;
    let mut turning = 0;
    for device in [peak / 2, 1 << 40] {
        let least = match within(device, Some(1)) {
            Err(forebay::Error::Plan(PlanError::HostBudget { needed_bytes, .. })) => needed_bytes,
            other => panic!("{:?}", other.map(|_| ())),
        };
        let roomy = within(device, None).unwrap().statistics().host_bytes;
        for budget in [least, least + roomy.saturating_sub(least) / 2] {
            let what = format!("within {device} and {budget} bytes");
            let mut limited = within(device, Some(budget)).unwrap();
            assert_same(&expected, &run(&case, &mut limited, 3), &what);
            assert!(limited.usage().host_peak_bytes <= budget, "{what}");
            assert_eq!(crossing(&limited).0, 0, "{what}");
            turning += usize::from(limited.plan().turns.is_some());
        }
    }
    assert!(turning > 1, "{turning} plans keep state on disk");
}

#[test]
fn a_checkpoint_goes_on_with_the_other_choice() {
    let case = Case::read("tiny-gpt");
    let make = |updates, budget| trainer(case.model(), recipe(&case), two_pools(updates, budget));
    let budget = Some(make(Updates::Host, None).statistics().minimum_budget_bytes * 2);
    for (first, second) in [(Updates::Device, Updates::Host), (Updates::Host, Updates::Device)] {
        let folder = tempfile::tempdir().unwrap();
        let mut whole = make(first, budget);
        let mut losses = steps(&case, &mut whole, 0..2);
        whole.save_checkpoint(folder.path(), &serde_json::json!({})).unwrap();
        losses.extend(steps(&case, &mut whole, 2..4));
        let mut resumed = make(second, None);
        resumed.restore(&Checkpoint::read(folder.path()).unwrap()).unwrap();
        assert_eq!(steps(&case, &mut resumed, 2..4), losses[2..]);
        assert!(everything(&resumed) == everything(&whole), "{first:?} to {second:?}");
    }
}

#[test]
fn evaluations_and_other_budgets_between_steps_change_nothing() {
    let case = Case::read("digits-cnn");
    let trained = |updates, budget| {
        let mut trainer = trainer(case.model(), recipe(&case), two_pools(updates, budget));
        let mut losses = steps(&case, &mut trainer, 0..2);
        let (batch, labels) = case.batch(2);
        losses.push(trainer.evaluate(batch, labels).unwrap().loss.to_bits());
        trainer.set_device_memory(budget.map(|bytes| MemorySize::Bytes(bytes * 3 / 2))).unwrap();
        losses.extend(steps(&case, &mut trainer, 2..4));
        Run { losses, values: everything(&trainer) }
    };
    let expected = trained(Updates::Device, None);
    let minimum =
        trainer(case.model(), recipe(&case), two_pools(Updates::Host, None)).statistics().minimum_budget_bytes;
    for budget in [None, Some(minimum * 2)] {
        assert_same(&expected, &trained(Updates::Host, budget), &format!("within {budget:?}"));
    }
}

/// Trains with two processes and returns the losses and final values of the first. The second one updates on the device.
fn together(training: &TrainingOptions, shard: Shard) -> Run {
    let train = |communicator: Arc<dyn Communicator>| {
        let training = training.clone();
        std::thread::spawn(move || {
            let case = Case::read("digits-cnn");
            let is_first = communicator.rank() == 0;
            let engine = host(1).check(true).processes(ProcessGroup::new(communicator)).shard(shard);
            let engine = engine.simulate_device("60%".parse().unwrap());
            let engine = if is_first { engine.updates(Updates::Host) } else { engine };
            let mut trainer = Trainer::new(case.model(), trainer_options(training, engine)).unwrap();
            assert_eq!(trainer.statistics().host_updates > 0, is_first);
            let losses = steps(&case, &mut trainer, 0..3);
            trainer.collect_shards().unwrap();
            is_first.then(|| Run { losses, values: everything(&trainer) })
        })
    };
    let threads: Vec<_> = local_communicators(2).into_iter().map(train).collect();
    let found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    found.into_iter().flatten().next().unwrap()
}

#[test]
fn processes_have_the_bits_of_one_wherever_each_of_them_updates() {
    let case = Case::read("digits-cnn");
    let training = changed(&case, |training| {
        training.optimizer = Optimizer::adam(0.01);
        training.average = Some(0.9);
    });
    let mut alone = trainer(case.model(), training.clone(), host(2));
    let losses = steps(&case, &mut alone, 0..3);
    let expected = Run { losses, values: everything(&alone) };
    for shard in [Shard::Nothing, Shard::State, Shard::Gradients, Shard::Parameters] {
        assert_same(&expected, &together(&training, shard), &format!("{shard:?}"));
    }
}

#[test]
fn where_memory_is_one_nothing_changes_and_managed_memory_is_refused() {
    let case = Case::read("digits-cnn");
    let plan = |updates| trainer(case.model(), recipe(&case), host(2).updates(updates)).plan().clone();
    assert_eq!(plan(Updates::Host).commands, plan(Updates::Device).commands);
    let engine = host(2).updates(Updates::Host).memory_mode(MemoryMode::Automatic);
    let error = Trainer::new(case.model(), trainer_options(recipe(&case), engine)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("--updates host") && error.contains("--memory"), "{error}");
}

#[test]
fn a_device_of_the_caller_updates_on_the_host() {
    let case = Case::read("digits-cnn");
    let device = HostDevice::new(&HostOptions { threads: Some(2), ..HostOptions::default() }).unwrap();
    let mut given = trainer_on(case.model(), recipe(&case), two_pools(Updates::Host, None), Some(Arc::new(device)));
    let expected = run(&case, &mut trainer(case.model(), recipe(&case), host(2)), 2);
    assert_same(&expected, &run(&case, &mut given, 2), "a device of the caller's");
}
