//! Operators that a device cannot run, executed on the host within the device's plan: the same bits as on a device that runs them itself,
//! at every budget, with copies that are counted and explained. The device is the host with some kernels disabled, so its bits are known.

use std::path::Path;
use std::sync::Arc;

use forebay::{Device, EngineOptions, HostOperators, MemorySize, Session, Trainer};
use forebay_base::Kernel;
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device_testing::Lacking;
use forebay_golden::{Case, assert_same, host, recipe, run, trainer_on, trainer_options};

/// Kernels from the middle and the ends of a network: of the forward pass, the loss and the gradients.
fn some(kernel: &Kernel) -> bool {
    use Kernel::{Pool, PoolGradient, SoftmaxCrossEntropy, SoftmaxCrossEntropyGradient};
    matches!(
        kernel,
        Pool { .. } | PoolGradient { .. } | SoftmaxCrossEntropy { .. } | SoftmaxCrossEntropyGradient { .. }
    ) || matches!(kernel, Kernel::BatchNormalizationTraining { .. } | Kernel::LayerNormalization { .. })
        || matches!(kernel, Kernel::Gather { .. } | Kernel::GatherGradient { .. })
}

/// Nearly all kernels: the device keeps only copies and products.
fn most(kernel: &Kernel) -> bool {
    !matches!(kernel, Kernel::Copy | Kernel::MatMul { .. })
}

fn device() -> Arc<dyn Device> {
    Arc::new(HostDevice::new(&HostOptions { threads: Some(2), ..HostOptions::default() }).unwrap())
}

fn trained(case: &Case, engine: EngineOptions, device: Arc<dyn Device>) -> Trainer {
    trainer_on(case.model(), recipe(case), engine, Some(device))
}

/// Checks that the bits are those of a device that lacks nothing, whichever kernels it lacks and whatever the budget.
fn same_bits_at_any_budget(name: &'static str, steps: usize, lacks: fn(&Kernel) -> bool) {
    let case = Case::read(name);
    let expected = run(&case, &mut trained(&case, host(2), device()), steps);
    let whole = trained(&case, host(2), Arc::new(Lacking::new(device(), lacks)));
    let statistics = whole.statistics().clone();
    let (peak, minimum) = (statistics.in_core_peak_bytes, statistics.minimum_budget_bytes);
    drop(whole);
    for budget in [None, Some(peak / 2), Some(peak / 4), Some(minimum)] {
        let budget = budget.map(|bytes| bytes.max(minimum));
        let what = format!("{name} within {budget:?} of {peak} bytes");
        let lacking = Arc::new(Lacking::new(device(), lacks));
        let mut options = host(2).check(true);
        options.memory.simulate_device = budget.map(MemorySize::Bytes);
        let mut trainer = trained(&case, options, lacking.clone());
        let planned_bytes = trainer.statistics().host_bytes;
        assert_same(&expected, &run(&case, &mut trainer, steps), &what);
        let (statistics, usage) = (trainer.statistics(), trainer.usage());
        // The first step may have led to another plan, with which the others ran.
        let host_bytes = planned_bytes.max(statistics.host_bytes);
        assert!(statistics.host_launches > 0 && statistics.host_launch_bytes > 0, "{what}");
        assert!(lacking.host_launches() >= steps * statistics.host_launches.min(2), "{what}");
        assert!(budget.is_none_or(|budget| usage.heap_peak_bytes <= budget), "{what}: {}", usage.heap_peak_bytes);
        assert!(usage.host_peak_bytes <= host_bytes, "{what}: {} of {host_bytes} host bytes", usage.host_peak_bytes);
    }
}

#[test]
fn a_convolutional_network_has_the_same_bits() {
    same_bits_at_any_budget("digits-cnn", 3, some);
}

#[test]
fn a_convolutional_network_has_the_same_bits_with_next_to_nothing_on_the_device() {
    same_bits_at_any_budget("digits-cnn", 2, most);
}

#[test]
fn a_transformer_has_the_same_bits() {
    same_bits_at_any_budget("tiny-gpt", 1, some);
}

#[test]
fn the_order_of_commands_holds_on_a_device_that_uses_all_its_freedom() {
    let case = Case::read("digits-cnn");
    let expected = run(&case, &mut trained(&case, host(2), device()), 2);
    for seed in 0..3 {
        let chaos = Arc::new(ChaosDevice::new(device(), seed).unwrap());
        let lacking = Arc::new(Lacking::new(chaos, some));
        let mut trainer = trained(&case, host(2).simulate_device("60%".parse().unwrap()), lacking);
        assert_same(&expected, &run(&case, &mut trainer, 2), &format!("seed {seed}"));
    }
}

#[test]
fn a_spilling_plan_holds_its_budget_for_the_host() {
    let case = Case::read("digits-cnn");
    let expected = run(&case, &mut trained(&case, host(2), device()), 2);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let lacking = || Arc::new(Lacking::new(device(), some));
    let half = host(2).check(true).simulate_device("50%".parse().unwrap()).spill_dir(folder);
    let roomy = trained(&case, half.clone(), lacking()).statistics().host_bytes;
    let refused = Trainer::with_device(
        case.model(),
        trainer_options(recipe(&case), half.clone().host_memory(MemorySize::Bytes(1))),
        lacking(),
    );
    let refused = refused.map(|_| ()).unwrap_err();
    let forebay::Error::Plan(forebay::PlanError::HostBudget { needed_bytes, .. }) = refused else {
        panic!("{refused}");
    };
    let budget = (needed_bytes + roomy) / 2;
    let mut trainer = trained(&case, half.host_memory(MemorySize::Bytes(budget)), lacking());
    let spilled_bytes = trainer.statistics().spill_bytes;
    assert_same(&expected, &run(&case, &mut trainer, 2), "spilling");
    let host_peak_bytes = trainer.usage().host_peak_bytes;
    assert!(
        host_peak_bytes <= budget,
        "{host_peak_bytes} host bytes of {budget}, {needed_bytes} needed, {roomy} at most"
    );
    assert!(spilled_bytes > 0, "nothing spills within {budget} bytes: {needed_bytes} needed, {roomy} at most");
}

#[test]
fn what_runs_on_the_host_is_named_and_can_be_forbidden() {
    let case = Case::read("digits-cnn");
    let lacks = |kernel: &Kernel| matches!(kernel, Kernel::Pool { .. });
    let lacking = || Arc::new(Lacking::new(device(), lacks));
    let session = |engine: EngineOptions| Session::builder(&case.model()).engine(engine).build_on(lacking());
    let explanation = session(host(2)).unwrap().explain().unwrap();
    let text = explanation.to_string();
    assert!(explanation.host_operators.iter().all(|one| one.kernel == "Pool" && one.data_type == "float32"), "{text}");
    assert_eq!(explanation.host_operators.len(), explanation.host_launches);
    let name = &explanation.host_operators[0].name;
    assert!(text.contains("launches that the device cannot run") && text.contains(name.as_str()), "{text}");
    let reasons = explanation.movement_lines();
    for reason in [format!("'{name}' runs on the host and needs it"), format!("computed on the host by '{name}'")] {
        assert!(reasons.iter().any(|line| line.contains(&reason)), "{reason} is missing in {reasons:?}");
    }
    let error = session(host(2).host_operators(HostOperators::Never)).map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains(name.as_str()) && error.contains("on purpose") && error.contains("--host-operators"),
        "{error}"
    );
    let direct = host(2).memory_mode(forebay::MemoryMode::Direct);
    let error = session(direct).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(name.as_str()) && error.contains("managed memory"), "{error}");
}
