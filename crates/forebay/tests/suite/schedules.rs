//! Scheduled learning rates: the rate of each step, and its state in a checkpoint.

use std::ops::Range;

use forebay::training::{Curve, Plateau, Schedule};
use forebay::{Checkpoint, Error, MemorySize, Trainer};
use forebay_golden::{Case, everything, host, recipe, trainer};
use serde_json::json;

fn scheduled(case: &Case, schedule: &Schedule, budget: Option<f64>) -> Trainer {
    let mut engine = host(2);
    engine.memory.simulate_device = budget.map(MemorySize::Percent);
    let mut trainer = trainer(case.model(), recipe(case), engine);
    trainer.set_schedule(schedule.clone()).unwrap();
    trainer
}

/// Returns the losses and rates of steps; after each step, the trainer is told a loss.
fn steps(case: &Case, trainer: &mut Trainer, steps: Range<usize>) -> Vec<(u32, f32)> {
    let step = |step| {
        let (batch, labels) = case.batch(step);
        let report = trainer.step(batch, labels).unwrap();
        trainer.observe(1.0);
        (report.loss.to_bits(), report.learning_rate)
    };
    steps.map(step).collect()
}

#[test]
fn a_scheduled_step_is_one_with_an_optimizer_of_that_rate() {
    let schedule = Schedule::new(Curve::Cosine { steps: 4, min_rate: 1e-4 }).warmup(1, 0.5);
    for name in ["digits-cnn", "tiny-gpt"] {
        let case = Case::read(name);
        let optimizer = recipe(&case).optimizer;
        let mut by_schedule = scheduled(&case, &schedule, Some(60.0));
        let done = steps(&case, &mut by_schedule, 0..4);
        let mut by_hand = trainer(case.model(), recipe(&case), host(1));
        for (step, (loss, rate)) in done.into_iter().enumerate() {
            assert_eq!(rate, schedule.rate(optimizer.learning_rate(), step as u64 + 1));
            by_hand.set_optimizer(optimizer.clone().with_learning_rate(rate)).unwrap();
            assert_eq!(steps(&case, &mut by_hand, step..step + 1), [(loss, rate)], "{name}: step {step}");
        }
        assert!(everything(&by_schedule) == everything(&by_hand), "{name}");
    }
}

#[test]
fn a_schedule_changes_no_plan() {
    let case = Case::read("digits-cnn");
    let constant = trainer(case.model(), recipe(&case), host(1));
    let schedule = Schedule::new(Curve::Exponential { gamma: 0.5 });
    let by_builder = Trainer::builder(&case.model()).loss(recipe(&case).loss).optimizer(recipe(&case).optimizer);
    let by_builder = by_builder.engine(host(1)).schedule(schedule).build().unwrap();
    assert!(constant.plan() == by_builder.plan());
}

#[test]
fn a_plateau_goes_on_from_a_checkpoint() {
    let case = Case::read("digits-cnn");
    let mut plateau = Plateau::default();
    (plateau.factor, plateau.patience, plateau.cooldown) = (0.5, 1, 1);
    let schedule = Schedule::new(Curve::Plateau(plateau));
    let mut whole = scheduled(&case, &schedule, None);
    let first = steps(&case, &mut whole, 0..4);
    let folder = std::env::temp_dir().join(format!("forebay-plateau-{}", std::process::id()));
    whole.save_checkpoint(&folder, &json!(null)).unwrap();
    let rest = steps(&case, &mut whole, 4..7);
    let base = recipe(&case).optimizer.learning_rate();
    // The losses do not fall: the first is the best, two are worse, one is the cooldown, two are worse again.
    let rates: Vec<f32> = first.iter().chain(&rest).map(|(_, rate)| rate / base).collect();
    assert_eq!(rates, [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]);

    let mut resumed = scheduled(&case, &schedule, Some(60.0));
    resumed.restore(&Checkpoint::read(&folder).unwrap()).unwrap();
    assert_eq!(steps(&case, &mut resumed, 4..7), rest);
    assert!(everything(&resumed) == everything(&whole));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_schedule_without_a_meaning_is_refused() {
    let case = Case::read("digits-cnn");
    let mut trainer = trainer(case.model(), recipe(&case), host(1));
    let error = trainer.set_schedule(Schedule::new(Curve::Step { every: 0, gamma: 0.1 })).unwrap_err();
    assert!(matches!(&error, Error::Option { reason } if reason.contains("at least one step")), "{error}");
}
