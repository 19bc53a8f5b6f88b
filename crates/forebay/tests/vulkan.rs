//! The golden models on this machine's first Vulkan device: correct, the same bits within every budget, and no more barriers than in the
//! plan. With `FOREBAY_VALIDATE=1`, the validation layer must report nothing.

use std::path::Path;
use std::sync::Arc;

use forebay::training::Optimizer;
use forebay::{Device, EngineOptions, MemorySize, Model, Session, Tensor, Updates, ValueInfo};
use forebay_base::{Binding, Command, Kernel, Space};
use forebay_golden::reference::{first_losses, forward, gradients, training};
use forebay_golden::{Case, assert_same, recipe, run, to_f64, trainer, trainer_on};
use forebay_model::program::Role;
use forebay_plan::plan::Movement;
use forebay_testing::parts::skipped;
use forebay_vulkan::{VulkanDevice, VulkanOptions, adapters};

/// The size of a binding that most tensors exceed.
const SMALL_BINDING_BYTES: u64 = 4096;

/// Returns whether there is a Vulkan device to test on.
///
/// # Panics
/// Panics if there is none although `FOREBAY_REQUIRE` names vulkan.
fn present() -> bool {
    let reason = match adapters() {
        Ok(adapters) if adapters.iter().any(|adapter| adapter.lacks.is_none()) => return true,
        Ok(adapters) => format!("no device can be used: {adapters:?}"),
        Err(error) => error.to_string(),
    };
    skipped("vulkan", reason);
    false
}

fn vulkan() -> EngineOptions {
    EngineOptions::default().device("vulkan".parse().unwrap()).check(true)
}

/// Checks for the same bits within budgets, with tiles and with placed heaps.
fn same_bits_within_every_budget(name: &'static str, steps: usize) {
    if !present() {
        return;
    }
    let case = Case::read(name);
    let mut unlimited = trainer(case.model(), recipe(&case), vulkan());
    let (peak, minimum) = (unlimited.statistics().in_core_peak_bytes, unlimited.statistics().minimum_budget_bytes);
    let expected = run(&case, &mut unlimited, steps);
    drop(unlimited);
    for (budget, tiled) in [(peak / 4, true), (peak / 2, false)] {
        let budget = budget.max(minimum);
        let what = format!("{name} within {budget} of {peak} bytes, tiled: {tiled}");
        let mut options = vulkan().tiled(tiled);
        options.memory.simulate_device = Some(MemorySize::Bytes(budget));
        let mut limited = trainer(case.model(), recipe(&case), options);
        assert_same(&expected, &run(&case, &mut limited, steps), &what);
        let heap_peak_bytes = limited.usage().heap_peak_bytes;
        assert!(heap_peak_bytes <= budget, "{what}: {heap_peak_bytes} heap bytes");
    }
}

#[test]
fn updates_on_the_host_have_the_same_bits_at_any_budget() {
    if !present() {
        return;
    }
    let case = Case::read("digits-cnn");
    let mut training = recipe(&case);
    training.optimizer = Optimizer::adam(1e-3);
    let within = |budget: Option<u64>| {
        let mut engine = vulkan().updates(Updates::Host);
        // Two pools, also on a driver that runs on the host.
        engine.memory.simulate_device = budget.map(MemorySize::Bytes);
        engine.memory.host_memory = budget.is_none().then_some(MemorySize::Bytes(1 << 40));
        trainer(case.model(), training.clone(), engine)
    };
    let mut whole = within(None);
    let (peak, minimum) = (whole.statistics().in_core_peak_bytes, whole.statistics().minimum_budget_bytes);
    let expected = run(&case, &mut whole, 3);
    drop(whole);
    // Updates on the device can differ in the last bits.
    let on_device = run(&case, &mut trainer(case.model(), training.clone(), vulkan()), 3);
    for (ours, its) in expected.losses.iter().zip(&on_device.losses) {
        let [ours, its] = [ours, its].map(|bits| f32::from_bits(*bits));
        assert!((ours - its).abs() <= 1e-3 * its.abs(), "{ours} on the host, {its} on the device");
    }
    for budget in [peak / 2, minimum] {
        let mut limited = within(Some(budget.max(minimum)));
        assert_same(&expected, &run(&case, &mut limited, 3), &format!("within {budget} of {peak} bytes"));
        assert!(limited.statistics().host_updates > 0);
        let plan = limited.plan();
        let crosses = |movement: &Movement| {
            let command = &plan.commands[movement.command];
            let mut regions = command.reads().into_iter().chain(command.writes());
            regions.any(|region| matches!(plan.memory(region.memory).space, Space::Device(_)))
        };
        let mut state = plan.movements.iter().filter(|movement| movement.role == Role::State);
        assert!(!state.any(crosses), "state stays on the host");
    }
}

/// Checks for the same bits with very small bindings, so that most tensors run in parts or are reached by their addresses.
fn same_bits_with_small_bindings(name: &'static str, steps: usize) {
    if !present() {
        return;
    }
    let case = Case::read(name);
    let mut usual = trainer(case.model(), recipe(&case), vulkan());
    let expected = run(&case, &mut usual, steps);
    drop(usual);
    let options = VulkanOptions { binding_bytes_max: Some(SMALL_BINDING_BYTES), ..VulkanOptions::default() };
    let device = Arc::new(VulkanDevice::open(&options).unwrap());
    let mut small = trainer_on(case.model(), recipe(&case), vulkan(), Some(device.clone()));
    assert_same(&expected, &run(&case, &mut small, steps), name);
    let dispatches = device.counts().dispatches;
    assert!(dispatches > (steps * small.statistics().launches) as u64, "{dispatches} dispatches: nothing ran in parts");
}

macro_rules! cases {
    ($($module:ident: $name:literal, $steps:literal;)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn forward_pass() {
                if present() {
                    forward(&Case::read($name), vulkan());
                }
            }

            #[test]
            fn gradients_of_the_first_step() {
                if present() {
                    gradients(&Case::read($name), vulkan());
                }
            }

            #[test]
            fn first_training_steps() {
                if present() {
                    first_losses(&Case::read($name), vulkan(), 3);
                }
            }

            #[test]
            fn the_same_bits_within_every_budget() {
                same_bits_within_every_budget($name, $steps);
            }
        }
    )*};
}

cases! {
    digits_cnn: "digits-cnn", 3;
    resnet20: "resnet20", 1;
    tiny_gpt: "tiny-gpt", 1;
    unet3d: "unet3d", 1;
}

#[test]
fn digits_train_to_the_end() {
    if present() {
        training(&Case::read("digits-cnn"), vulkan());
    }
}

/// Launches have the workspace that they need even if a small budget cuts them into parts. Nothing runs, so budgets can be as small as
/// possible.
#[test]
fn parts_have_the_workspace_that_they_need() {
    if !present() {
        return;
    }
    let device = VulkanDevice::open(&VulkanOptions::default()).unwrap();
    let case = Case::read("unet3d");
    let whole = trainer(case.model(), recipe(&case), vulkan()).statistics().clone();
    for share in [10, 40] {
        let budget_bytes = (whole.in_core_peak_bytes / share).max(whole.minimum_budget_bytes);
        let options = vulkan().simulate_device(MemorySize::Bytes(budget_bytes));
        let trainer = trainer(case.model(), recipe(&case), options);
        let plan = trainer.plan();
        let mut sums = 0;
        for command in &plan.commands {
            let Command::Launch { launch, .. } = command else { continue };
            let descs = |bindings: &[Binding]| bindings.iter().map(|one| one.desc.clone()).collect::<Vec<_>>();
            let (reads, writes) = (descs(&launch.reads), descs(&launch.writes));
            if launch.kernel.runs_in_less_workspace() {
                continue;
            }
            let needed_bytes = device.workspace_bytes(&launch.kernel, &reads, &writes).unwrap();
            let workspace_bytes = launch.workspace.map_or(0, |region| region.range.len());
            let name = &plan.labels[launch.label as usize];
            assert!(
                needed_bytes <= workspace_bytes,
                "'{name}' has only {workspace_bytes} of the {needed_bytes} bytes of workspace that it needs"
            );
            sums += usize::from(matches!(launch.kernel, Kernel::Sums { .. }));
        }
        assert!(sums > 0, "nothing is summed in parts within {budget_bytes} bytes");
    }
}

#[test]
fn matrices_larger_than_the_budget() {
    if present() {
        forebay_golden::matrices::same_bits_within_every_budget(&vulkan());
    }
}

#[test]
fn steps_in_parts_have_the_bits_of_their_batch() {
    if present() {
        forebay_golden::accumulation::images_have_the_bits_of_the_batch(&vulkan(), &["13"], &[(6, 3, 6)]);
        forebay_golden::accumulation::rows_have_the_bits_of_the_batch(&vulkan(), &[(64, 2, 33)]);
        forebay_golden::accumulation::sixteen_bits_have_the_bits_of_the_batch(&vulkan(), &[(48, 3, 48)]);
    }
}

#[test]
fn dropout_trains_in_sixteen_bits() {
    if present() {
        forebay_golden::dropout::trains_in_sixteen_bits(&vulkan());
    }
}

#[test]
fn a_computed_index_beyond_the_table_is_refused() {
    if present() {
        forebay_golden::indices::are_refused_when_out_of_range(&vulkan());
    }
}

#[test]
fn the_same_bits_of_convolutions_with_small_bindings() {
    same_bits_with_small_bindings("digits-cnn", 2);
}

#[test]
fn the_same_bits_of_a_transformer_with_small_bindings() {
    same_bits_with_small_bindings("tiny-gpt", 1);
}

#[test]
fn the_same_bits_of_batch_normalization_with_small_bindings() {
    same_bits_with_small_bindings("unet3d", 1);
}

#[test]
fn the_driver_is_given_the_plans_barriers_and_no_others() {
    if !present() {
        return;
    }
    let case = Case::read("digits-cnn");
    for budget in [None, Some(MemorySize::Bytes(4 << 20))] {
        let device = Arc::new(VulkanDevice::open(&VulkanOptions::default()).unwrap());
        let mut options = vulkan();
        options.memory.simulate_device = budget;
        let mut trainer = trainer_on(case.model(), recipe(&case), options, Some(device.clone()));
        for step in 0..3 {
            let (batch, labels) = case.batch(step);
            // The measurements of a step can lead to another plan for the next one.
            let (barriers, launches) = (trainer.statistics().barriers as u64, trainer.statistics().launches as u64);
            let before = device.counts();
            trainer.step(batch, labels).unwrap();
            let after = device.counts();
            assert_eq!(after.barriers - before.barriers, barriers, "step {step} within {budget:?}");
            let dispatches = after.dispatches - before.dispatches;
            assert!(dispatches >= launches, "step {step}: {dispatches} dispatches");
        }
    }
}

/// Checks that a whole classifier gives the same outputs as on the host for an input of ramps.
fn classifies_as_the_host(name: &str) {
    if !present() {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/light").join(format!("light_{name}.onnx"));
    let model = Model::from_file(path).unwrap();
    let outputs = [vulkan(), EngineOptions::default()].map(|device| {
        let mut session = Session::builder(&model).engine(device).build().unwrap();
        let infos = session.inputs().to_vec();
        let ramp = |info: &ValueInfo| {
            let ty = info.ty().unwrap();
            let values: Vec<f32> = (0..ty.count()).map(|index| index as f32 / ty.count() as f32).collect();
            (info.name.clone(), Tensor::from_f32(&ty.shape, &values))
        };
        session.run(infos.iter().map(ramp).collect()).unwrap()
    });
    for (info, found) in &outputs[0] {
        let (found, expected) = (to_f64(found), to_f64(&outputs[1][info]));
        assert!(found.len() == 1000 && (expected.iter().sum::<f64>() - 1.0).abs() < 1e-3, "{name}: 1000 classes");
        for (class, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() <= 1e-3 * expected.abs(), "{name}, {class}: {found}, not {expected}");
        }
    }
}

macro_rules! classifiers {
    ($($name:ident)*) => {
        mod classifies_as_the_host {
            $(#[test]
            fn $name() {
                super::classifies_as_the_host(stringify!($name));
            })*
        }
    };
}

classifiers! { bvlc_alexnet inception_v1 resnet50 squeezenet vgg19 }

/// Losses consist of kernels, and all of these have shaders. Together, these losses use every kernel that any loss uses.
#[test]
fn losses_are_those_of_pytorch() {
    if !present() {
        return;
    }
    let chosen = [
        "cross_entropy_all",
        "focal_weighted",
        "binary_focal_no_alpha",
        "huber_delta",
        "kl",
        "soft_all",
        "cosine_pairs",
        "dice_ce_3d",
    ];
    let cases = forebay_golden::losses::cases();
    let found: Vec<_> = cases.iter().filter(|case| chosen.contains(&case.name.as_str())).collect();
    assert_eq!(found.len(), chosen.len());
    found.into_iter().for_each(|case| case.check(vulkan()));
}
