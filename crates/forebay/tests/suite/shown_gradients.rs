//! Steps that show their gradients: these match PyTorch's, and the steps are bit for bit the same as without showing them.

use std::collections::BTreeMap;

use forebay::training::{Clipping, Precision, TrainingOptions};
use forebay::{Error, MemoryMode, MemorySize, ProcessGroup, Shard, Tensor, Trainer};
use forebay_device_testing::local_communicator::local_communicators;
use forebay_golden::{
    Case, Run, assert_same, chaos, everything, host, recipe, run, to_f64, trainer, trainer_on, trainer_options,
};

/// The gradients shown, by step.
type Shown = BTreeMap<usize, BTreeMap<String, Tensor>>;

/// Runs steps on the case's first batches; the steps in `showing`, numbered from 0, show their gradients.
fn run_showing(case: &Case, trainer: &mut Trainer, steps: usize, showing: &[usize]) -> (Run, Shown) {
    let (mut losses, mut shown) = (Vec::new(), Shown::new());
    for step in 0..steps {
        let (batch, labels) = case.batch(step);
        let report = match showing.contains(&step) {
            true => {
                let gradients = shown.entry(step).or_default();
                trainer.step_with_gradients(batch, labels, |name, gradient| {
                    assert!(gradients.insert(name.to_string(), gradient).is_none(), "{name} comes once");
                    Ok(())
                })
            }
            false => trainer.step(batch, labels),
        };
        losses.push(report.unwrap().loss.to_bits());
    }
    trainer.collect_shards().unwrap();
    let mut values = trainer.parameters().unwrap_or_default();
    values.extend(trainer.state().unwrap_or_default());
    (Run { losses, values }, shown)
}

#[test]
fn gradients_are_those_of_pytorch() {
    for name in ["digits-cnn", "resnet20", "tiny-gpt"] {
        let case = Case::read(name);
        let mut trainer = trainer(case.model(), recipe(&case), host(2));
        let (_, mut shown) = run_showing(&case, &mut trainer, 1, &[0]);
        let gradients = shown.remove(&0).unwrap();
        assert!(gradients.keys().eq(trainer.parameters().unwrap().keys()), "{name}");
        let gradients = gradients.into_iter().map(|(name, gradient)| (name, to_f64(&gradient))).collect();
        case.compare_tensors("grad_step_1", "grad_step_1_rel_l2", &gradients);
    }
}

#[test]
fn steps_that_show_gradients_are_the_same_steps_within_the_same_budget() {
    for name in ["digits-cnn", "unet3d", "tiny-gpt"] {
        let case = Case::read(name);
        let expected = run(&case, &mut trainer(case.model(), recipe(&case), host(2)), 4);
        let (found, first) = run_showing(&case, &mut trainer(case.model(), recipe(&case), host(1)), 4, &[1, 2]);
        assert_same(&expected, &found, name);
        let managed = host(2).memory_mode(MemoryMode::Automatic);
        for (what, engine, percent, device) in [
            ("planned", host(2), 60, None),
            ("managed memory", managed, 75, None),
            ("another order", host(2), 70, Some(chaos(2, 7))),
        ] {
            let mut engine = engine;
            engine.memory.simulate_device = Some(MemorySize::Percent(f64::from(percent)));
            let mut limited = trainer_on(case.model(), recipe(&case), engine, device);
            let budget = limited.statistics().device_budget_bytes.unwrap();
            limited.plan_gradients().unwrap();
            let (found, shown) = run_showing(&case, &mut limited, 4, &[1, 2]);
            assert_same(&expected, &found, &format!("{name}, {what}"));
            assert!(shown == first, "{name}, {what}: other gradients");
            assert!(limited.usage().heap_peak_bytes <= budget, "{name}, {what}");
        }
    }
}

#[test]
fn gradients_are_those_before_limits_of_all_parts_and_without_a_scale() {
    let case = Case::read("digits-cnn");
    let variant = |change: &dyn Fn(&mut TrainingOptions)| {
        let mut training = recipe(&case);
        change(&mut training);
        let expected = run(&case, &mut trainer(case.model(), training.clone(), host(2)), 3);
        let (found, shown) = run_showing(&case, &mut trainer(case.model(), training, host(2)), 3, &[0, 2]);
        assert_same(&expected, &found, "a variant");
        shown[&0].clone()
    };
    let plain = variant(&|_| {});
    assert_eq!(variant(&|training| training.clipping = Some(Clipping::GlobalNorm(0.01))), plain, "limited later");
    assert_eq!(variant(&|training| training.average = Some(0.9)), plain);
    let norm = |gradients: &BTreeMap<String, Tensor>| {
        gradients.values().flat_map(to_f64).map(|element| element * element).sum::<f64>().sqrt()
    };
    let parts = variant(&|training| training.accumulate = 2);
    assert!((norm(&parts) / norm(&plain) - 1.0).abs() < 0.2, "{} and {}", norm(&parts), norm(&plain));
    let scaled = variant(&|training| training.precision = Some(Precision::float16()));
    assert!((norm(&scaled) / norm(&plain) - 1.0).abs() < 0.05, "{} and {}", norm(&scaled), norm(&plain));
}

#[test]
fn every_process_is_shown_the_gradients_of_the_whole_batch() {
    for shard in [Shard::Nothing, Shard::State, Shard::Gradients, Shard::Parameters] {
        let case = Case::read("digits-cnn");
        let mut alone = trainer(case.model(), recipe(&case), host(2));
        let (expected, gradients) = run_showing(&case, &mut alone, 3, &[1]);
        let threads: Vec<_> = local_communicators(2)
            .into_iter()
            .map(|communicator| {
                std::thread::spawn(move || {
                    let case = Case::read("digits-cnn");
                    let mut engine = host(1).processes(ProcessGroup::new(communicator));
                    engine.device.shard = shard;
                    let mut trainer = Trainer::new(case.model(), trainer_options(recipe(&case), engine)).unwrap();
                    run_showing(&case, &mut trainer, 3, &[1])
                })
            })
            .collect();
        for (rank, thread) in threads.into_iter().enumerate() {
            let (found, shown) = thread.join().unwrap();
            assert_eq!(found.losses, expected.losses, "process {rank}, {shard:?}");
            assert!(rank > 0 || found.values == expected.values, "{shard:?}");
            assert!(shown == gradients, "process {rank}, {shard:?}");
        }
    }
}

#[test]
fn what_fails_is_said_and_training_goes_on() {
    let case = Case::read("digits-cnn");
    let (batch, labels) = case.batch(0);
    let mut trainer = trainer(case.model(), recipe(&case), host(2));
    let mut calls = 0;
    let error = trainer.step_with_gradients(batch.clone(), labels.clone(), |_, _| {
        calls += 1;
        Err(Error::Option { reason: "enough".to_string() })
    });
    assert_eq!((error.unwrap_err().to_string().contains("enough"), calls), (true, 1));
    assert_eq!(trainer.step_count(), 1, "the step is done all the same");
    let none = Tensor::from_f32(&[1], &[f32::NAN]);
    let wrong = trainer.step_with_gradients([("x".to_string(), none)].into(), labels.clone(), |_, _| Ok(()));
    assert!(wrong.is_err() && trainer.step_count() == 1);
    trainer.step(batch, labels).unwrap();
    assert_eq!(trainer.step_count(), 2);
}

#[test]
fn budgets_may_change_between_steps_that_show_gradients() {
    let case = Case::read("tiny-gpt");
    let expected = run(&case, &mut trainer(case.model(), recipe(&case), host(2)), 3);
    let mut changing = trainer(case.model(), recipe(&case), host(2).simulate_device("100%".parse().unwrap()));
    changing.plan_gradients().unwrap();
    let mut losses = Vec::new();
    for (step, percent) in [100.0, 70.0, 85.0].into_iter().enumerate() {
        changing.set_device_memory(Some(MemorySize::Percent(percent))).unwrap();
        let (batch, labels) = case.batch(step);
        losses.push(changing.step_with_gradients(batch, labels, |_, _| Ok(())).unwrap().loss.to_bits());
        assert!(changing.set_device_memory(Some(MemorySize::Bytes(1 << 10))).is_err(), "too small");
    }
    assert_same(&expected, &Run { losses, values: everything(&changing) }, "budgets that change");
}
