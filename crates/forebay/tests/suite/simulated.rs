//! All processes of a run, simulated together, compared to the plans that each process makes.

use forebay::training::{Optimizer, TrainingOptions};
use forebay::{
    EngineOptions, MemoryMode, MemorySize, Model, PlanSearch, ProcessGroup, Ranks, Session, SessionOptions, Shard,
    SimulatedStep, Trainer, TrainerOptions, documents,
};
use forebay_golden::{Case, recipe};

/// Options for training on a described machine, within a share of the memory that a step takes.
fn options(training: TrainingOptions, batch_size: u64, budget: Option<&str>, shard: Shard) -> TrainerOptions {
    let mut engine = EngineOptions::default().machine(documents::machine("h200").unwrap()).shard(shard);
    engine.memory.device_memory = budget.map(|budget| budget.parse::<MemorySize>().unwrap());
    engine.planning.search = PlanSearch::Whole;
    let mut options = TrainerOptions::new(training);
    (options.engine, options.batch_size) = (engine, Some(batch_size));
    options
}

/// Returns the seconds and the device memory of each process, as its own plan predicts them.
fn planned_alone(model: &Model, options: &TrainerOptions, processes: usize) -> Vec<(f64, u64)> {
    let of_rank = |rank| {
        let mut options = options.clone();
        options.engine.device.processes = Some(ProcessGroup::for_plan_of(rank, processes));
        let trainer = Trainer::new(model.clone(), options).unwrap();
        let statistics = &trainer.plan_as_made().statistics;
        (statistics.predicted_ns as f64 / 1e9, statistics.device_peak_bytes)
    };
    (0..processes).map(of_rank).collect()
}

fn numbers(step: &SimulatedStep) -> Vec<(f64, u64)> {
    step.ranks.iter().map(|rank| (rank.seconds, rank.device_peak_bytes)).collect()
}

fn memory(of: &[(f64, u64)]) -> Vec<u64> {
    of.iter().map(|one| one.1).collect()
}

#[test]
fn even_processes_take_as_long_together_as_each_plan_predicts() {
    for (name, batch_size, budget, shard, processes) in [
        ("digits-cnn", 64, None, Shard::Nothing, 1),
        ("digits-cnn", 64, None, Shard::Nothing, 4),
        ("digits-cnn", 64, None, Shard::State, 2),
        ("tiny-gpt", 32, None, Shard::Nothing, 4),
        ("resnet20", 16, Some("70%"), Shard::Nothing, 4),
    ] {
        let (model, mut training) = (Case::read(name).model(), recipe(&Case::read(name)));
        training.optimizer = Optimizer::adam(1e-3);
        let options = options(training, batch_size, budget, shard);
        let step = Trainer::simulate(&model, &options, &Ranks::new(processes)).unwrap();
        let expected = planned_alone(&model, &options, processes);
        assert_eq!(memory(&numbers(&step)), memory(&expected), "{name}");
        // Plans of the first and the last process can differ a little from those between.
        let longest = expected.iter().map(|one| one.0).fold(0.0, f64::max);
        assert!((0.999..1.03).contains(&(step.seconds / longest)), "{name}: {} s, {expected:?}", step.seconds);
        if expected.iter().all(|one| *one == expected[0]) {
            assert_eq!(numbers(&step), expected, "{name}");
            assert!(step.ranks.iter().all(|rank| rank.waiting_seconds == 0.0), "{name}: {step:?}");
        }
        assert!(step.groups().count() <= 3, "{name}: one plan stands for all processes between the first and the last");
    }
}

#[test]
fn uneven_processes_wait_for_the_one_that_is_busiest() {
    for (name, batch_size, shard, processes) in [
        ("digits-cnn", 50, Shard::Nothing, 3),
        ("digits-cnn", 50, Shard::Parameters, 4),
        ("tiny-gpt", 10, Shard::Gradients, 3),
    ] {
        let (model, training) = (Case::read(name).model(), recipe(&Case::read(name)));
        let options = options(training, batch_size, None, shard);
        let step = Trainer::simulate(&model, &options, &Ranks::new(processes)).unwrap();
        let expected = planned_alone(&model, &options, processes);
        assert_eq!(memory(&numbers(&step)), memory(&expected), "{name}");
        let longest = expected.iter().map(|one| one.0).fold(0.0, f64::max);
        assert!((0.99..1.5).contains(&(step.seconds / longest)), "{name}: {} s, {expected:?}", step.seconds);
        assert!(
            step.groups().count() > 1 && step.ranks.iter().any(|rank| rank.waiting_seconds > 0.0),
            "{name}: {step:?}"
        );
        // The others wait for a slow process, whichever it is.
        for slow in 0..processes {
            let step = Trainer::simulate(&model, &options, &Ranks::new(processes).slow(slow, 5.0)).unwrap();
            assert_eq!(step.slowest(), slow, "{name}");
            assert!(step.seconds > 1.5 * longest, "{name}: {} s, {longest} s", step.seconds);
            let waiting = |rank: usize| step.ranks[rank].waiting_seconds;
            assert!((0..processes).all(|rank| rank == slow || waiting(rank) > waiting(slow)), "{name}: {step:?}");
        }
    }
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let model = Case::read("digits-cnn").model();
    let refused =
        |options: &SessionOptions, ranks: &Ranks| Session::simulate(&model, options, ranks).unwrap_err().to_string();
    let mut options = SessionOptions::default();
    options.batch_size = Some(8);
    assert_eq!(Session::simulate(&model, &options, &Ranks::new(2)).unwrap().ranks.len(), 2);
    for (ranks, words) in [
        (Ranks::new(0), "0 processes cannot be simulated; expected 1 to 4096"),
        (Ranks::new(2).slow(2, 2.0), "process 2 cannot be slow: the processes are numbered 0 to 1"),
        (Ranks::new(2).slow(0, f64::NAN), "process 0 cannot be NaN times as slow"),
    ] {
        let error = refused(&options, &ranks);
        assert!(error.contains(words), "{error}");
    }
    options.engine.memory.mode = MemoryMode::Automatic;
    let error = refused(&options, &Ranks::new(2));
    assert!(error.contains("only planned memory can be simulated"), "{error}");
}
