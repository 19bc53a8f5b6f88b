//! The first two promises: at any budget for which a plan exists, the bits are those of the unlimited run, and the budget is never
//! exceeded.

use forebay::{Device, MemoryLimit, MemorySize, Statistics, Trainer};
use forebay_golden::{Case, Run, assert_same, chaos, everything, host, recipe, run, trainer_on, trainer_options};
use std::sync::Arc;

fn trainer_within(case: &Case, budget_bytes: Option<u64>, threads: usize, device: Option<Arc<dyn Device>>) -> Trainer {
    let mut options = host(threads);
    options.planning.check = true;
    options.memory.simulate_device = budget_bytes.map(MemorySize::Bytes);
    trainer_on(case.model(), recipe(case), options, device)
}

fn same_bits_within_every_budget(name: &'static str, steps: usize) {
    let case = Case::read(name);
    let mut unlimited = trainer_within(&case, None, 2, None);
    let (peak, minimum) = (unlimited.statistics().in_core_peak_bytes, unlimited.statistics().minimum_budget_bytes);
    assert_eq!(unlimited.statistics().bytes_to_device, bytes_of_inputs(&unlimited), "in core only inputs move");
    let expected = run(&case, &mut unlimited, steps);
    assert_eq!(unlimited.usage().heap_peak_bytes, peak, "the plan says what it takes");
    drop(unlimited);
    for (budget, threads) in [(peak * 3 / 4, 1), (peak / 2, 2), (minimum, 1), (minimum, 2)] {
        let budget = budget.max(minimum);
        let what = format!("{name} within {budget} of {peak} bytes, {threads} threads");
        let mut limited = trainer_within(&case, Some(budget), threads, None);
        assert_same(&expected, &run(&case, &mut limited, steps), &what);
        let usage = limited.usage();
        assert!(usage.heap_peak_bytes <= budget, "{what}: {} heap bytes", usage.heap_peak_bytes);
    }
}

fn bytes_of_inputs(trainer: &Trainer) -> u64 {
    let backing = trainer.plan().inputs.iter().flat_map(|backing| &backing.pieces);
    backing.map(|(range, _)| range.len()).sum()
}

#[test]
fn digits_cnn() {
    same_bits_within_every_budget("digits-cnn", 10);
}

#[test]
fn resnet20() {
    same_bits_within_every_budget("resnet20", 3);
}

#[test]
fn tiny_gpt() {
    same_bits_within_every_budget("tiny-gpt", 3);
}

#[test]
fn unet3d() {
    same_bits_within_every_budget("unet3d", 2);
}

#[test]
fn matrices_larger_than_the_budget() {
    let mut options = host(2);
    options.planning.check = true;
    forebay_golden::matrices::same_bits_within_every_budget(&options);
}

#[test]
fn placed_heaps_and_other_sizes_of_heap_give_the_same_bits() {
    let case = Case::read("digits-cnn");
    let mut usual = trainer_within(&case, None, 2, None);
    let (minimum, expected) = (usual.statistics().minimum_budget_bytes, run(&case, &mut usual, 3));
    assert_eq!(usual.plan().heaps.len(), 1, "tiles are mapped where the device has them");
    for (tiled, heap_size) in [(false, None), (false, Some(64 << 10)), (true, Some(64 << 10))] {
        for budget in [None, Some(MemorySize::Bytes(minimum))] {
            let mut options = host(2);
            options.planning.check = true;
            (options.memory.simulate_device, options.device.tiled, options.device.heap_size) =
                (budget, tiled, heap_size);
            let mut trainer = trainer_on(case.model(), recipe(&case), options, None);
            let what = format!("tiled: {tiled}, heaps of {heap_size:?}, within {budget:?}");
            assert_eq!(trainer.plan().heaps.len() > 1, tiled, "{what}");
            assert_eq!(trainer.plan().heaps.is_empty(), !tiled, "{what}");
            assert_same(&expected, &run(&case, &mut trainer, 3), &what);
        }
    }
}

#[test]
fn other_sizes_of_tile_give_the_same_bits_out_of_core() {
    let case = Case::read("digits-cnn");
    let mut usual = trainer_within(&case, None, 2, None);
    let (peak, expected) = (usual.statistics().in_core_peak_bytes, run(&case, &mut usual, 3));
    for (tile_size, heap_size) in [(4 << 10, 64 << 10), (256 << 10, 512 << 10), (1 << 20, 1 << 20)] {
        let mut options = host(2);
        options.planning.check = true;
        (options.device.tile_size, options.device.heap_size) = (Some(tile_size), Some(heap_size));
        let minimum = trainer_on(case.model(), recipe(&case), options.clone(), None).statistics().minimum_budget_bytes;
        let what = format!("tiles of {tile_size}, heaps of {heap_size}, within {minimum} of {peak}");
        assert!(minimum < peak && minimum.is_multiple_of(tile_size), "{what}");
        options.memory.simulate_device = Some(MemorySize::Bytes(minimum));
        let mut trainer = trainer_on(case.model(), recipe(&case), options, None);
        assert!(trainer.plan().heaps.iter().all(|bytes| bytes % tile_size == 0), "{what}");
        assert!(trainer.statistics().bytes_to_device > bytes_of_inputs(&trainer), "{what}: data moves");
        assert_same(&expected, &run(&case, &mut trainer, 3), &what);
        assert!(trainer.usage().heap_peak_bytes <= minimum, "{what}");
    }
}

#[test]
fn the_most_permissive_order_gives_the_same_bits() {
    for (name, steps) in [("digits-cnn", 3), ("resnet20", 1)] {
        let case = Case::read(name);
        let expected = run(&case, &mut trainer_within(&case, None, 2, None), steps);
        let minimum = trainer_within(&case, None, 2, None).statistics().minimum_budget_bytes;
        for (seed, budget) in [(1, None), (2, None), (3, Some(minimum)), (4, Some(minimum * 3 / 2))] {
            let mut shuffled = trainer_within(&case, budget, 2, Some(chaos(2, seed)));
            assert_same(&expected, &run(&case, &mut shuffled, steps), &format!("{name}, seed {seed}, {budget:?}"));
        }
    }
}

#[test]
fn the_budget_changes_between_steps_and_no_bit_does() {
    let case = Case::read("digits-cnn");
    let mut unlimited = trainer_within(&case, None, 2, None);
    let expected = run(&case, &mut unlimited, 5);
    let (peak, minimum) = (unlimited.statistics().in_core_peak_bytes, unlimited.statistics().minimum_budget_bytes);
    drop(unlimited);
    // Budgets of a simulated device: with a CPU alone, budgets are limits on the process.
    let mut trainer = trainer_within(&case, Some(peak), 2, None);
    let mut losses = Vec::new();
    let budgets = [None, Some(minimum), Some(peak / 2), None, Some(minimum)];
    for (step, budget) in budgets.into_iter().enumerate() {
        trainer.set_device_memory(budget.map(MemorySize::Bytes)).unwrap();
        let error = trainer.set_device_memory(Some(MemorySize::Bytes(minimum - 1))).unwrap_err().to_string();
        assert!(error.contains(&minimum.to_string()), "{error}");
        let (batch, labels) = case.batch(step);
        losses.push(trainer.step(batch, labels).unwrap().loss.to_bits());
        let heap_bytes = trainer.usage().heap_bytes;
        assert!(budget.is_none_or(|budget| heap_bytes <= budget), "step {step}: {heap_bytes} of {budget:?}");
        assert_eq!(trainer.statistics().device_budget_bytes, budget, "a refused budget changes nothing");
    }
    assert_same(&expected, &Run { losses, values: everything(&trainer) }, "with five budgets");
}

/// Validation data is read while the plan of training steps would still be on the device. Within a limit on the process, its memory is given
/// back first.
#[test]
fn training_leaves_the_device_before_evaluation_only_within_a_limit_on_the_process() {
    let case = Case::read("digits-cnn");
    let trainer_within = |limit| {
        let mut options = host(2);
        options.memory.memory_limit = Some(limit);
        trainer_on(case.model(), recipe(&case), options, None)
    };
    let expected = run(&case, &mut trainer_within(MemoryLimit::Unlimited), 2);
    for (limit, leaves) in [(MemoryLimit::Unlimited, false), (MemoryLimit::Size(MemorySize::Bytes(64 << 30)), true)] {
        let (mut trainer, mut losses) = (trainer_within(limit), Vec::new());
        for step in 0..2 {
            let (batch, labels) = case.batch(step);
            losses.push(trainer.step(batch.clone(), labels.clone()).unwrap().loss.to_bits());
            trainer.prepare_to_evaluate().unwrap();
            assert_eq!(trainer.usage().heap_bytes == 0, leaves, "{limit:?}");
            for _ in 0..2 {
                trainer.evaluate(batch.clone(), labels.clone()).unwrap();
                // An evaluation leaves what the next one uses.
                trainer.prepare_to_evaluate().unwrap();
                assert!(trainer.usage().heap_bytes > 0, "{limit:?}");
            }
        }
        assert_same(&expected, &Run { losses, values: everything(&trainer) }, &format!("{limit:?}"));
    }
}

#[test]
fn a_slow_link_makes_another_plan_and_the_same_bits() {
    let case = Case::read("digits-cnn");
    let mut unlimited = trainer_within(&case, None, 1, None);
    let expected = run(&case, &mut unlimited, 3);
    let peak = unlimited.statistics().in_core_peak_bytes;
    let trainer_at = |link_bytes_per_second| {
        let mut options = host(1);
        options.planning.check = true;
        options.memory.simulate_device = Some(MemorySize::Bytes(peak * 6 / 10));
        options.device.link_bytes_per_second = link_bytes_per_second;
        trainer_on(case.model(), recipe(&case), options, None)
    };
    let (fast, mut slow) = (trainer_at(None), trainer_at(Some(20_000_000)));
    let link_ns = |statistics: &Statistics| (statistics.bytes_to_device as f64 / 20e6 * 1e9) as u64;
    let (moved_bytes, planned) = (fast.statistics().bytes_to_device, slow.statistics().clone());
    assert!(planned.bytes_to_device < moved_bytes, "as much is moved as by a fast link: {moved_bytes} bytes");
    let (planned_ns, least_ns) = (planned.predicted_ns, link_ns(&planned));
    assert!(planned_ns >= least_ns, "{planned_ns} ns are predicted before the first step, the link takes {least_ns}");
    assert_same(&expected, &run(&case, &mut slow, 3), "at 20 MB/s");
    let measured = slow.statistics();
    let (measured_ns, least_ns) = (measured.predicted_ns, link_ns(measured));
    assert!(measured_ns >= least_ns / 2, "{measured_ns} ns are predicted, the link takes {least_ns}");
}

#[test]
fn a_budget_below_the_minimum_names_the_minimum_and_its_launch() {
    let case = Case::read("digits-cnn");
    let statistics = trainer_within(&case, None, 2, None).statistics().clone();
    let mut options = host(2);
    options.memory.simulate_device = Some(MemorySize::Bytes(statistics.minimum_budget_bytes - 1));
    let training = trainer_options(recipe(&case), options);
    let error = Trainer::new(case.model(), training).err().expect("too small").to_string();
    assert!(error.contains(&statistics.minimum_budget_bytes.to_string()), "{error}");
    assert!(error.contains(&statistics.minimum_launch), "{error}");
}

#[test]
fn a_host_budget_that_is_too_small_says_what_is_needed() {
    let case = Case::read("digits-cnn");
    let mut options = host(2);
    options.memory.host_memory = Some(MemorySize::Bytes(4096));
    let training = trainer_options(recipe(&case), options);
    let error = Trainer::new(case.model(), training).err().expect("too small").to_string();
    assert!(error.contains("host budget of 4096 bytes is too small"), "{error}");
}

#[test]
fn the_same_options_give_the_same_plan() {
    let case = Case::read("resnet20");
    let budget = trainer_within(&case, None, 2, None).statistics().in_core_peak_bytes / 2;
    let one = trainer_within(&case, Some(budget), 2, None);
    let other = trainer_within(&case, Some(budget), 2, None);
    assert!(one.plan() == other.plan());
}
