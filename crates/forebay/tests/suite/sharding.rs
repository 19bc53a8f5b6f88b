//! Several processes, each of which keeps a slice of parameters and state: here they are threads, each with its own device.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay::training::{Clipping, Loss, Optimizer, Precision, TrainingOptions};
use forebay::{Checkpoint, EngineOptions, JsonValue, Model, ProcessGroup, Shard, SharedWork, Tensor, Trainer};
use forebay_device::Communicator;
use forebay_device_testing::local_communicator::local_communicators;
use forebay_golden::{Case, chaos, host, recipe, trainer_options};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};

const ALL: [Shard; 3] = [Shard::State, Shard::Gradients, Shard::Parameters];

/// The results of a run: the losses of steps, the loss of an evaluation, and all parameters and state.
#[derive(Debug, PartialEq)]
struct Outcome {
    losses: Vec<u32>,
    evaluation: u32,
    values: BTreeMap<String, Tensor>,
}

/// The results of the first process of a run.
struct Together {
    outcome: Outcome,
    work: SharedWork,
    peak_bytes: u64,
    checkpoint: Checkpoint,
}

/// Returns all parameters and state, if this process collects them.
fn collected(trainer: &mut Trainer) -> Option<BTreeMap<String, Tensor>> {
    trainer.collect_shards().unwrap();
    let mut values = trainer.parameters().ok()?;
    values.extend(trainer.state().ok()?);
    Some(values)
}

fn outcome(case: &Case, trainer: &mut Trainer, steps: std::ops::Range<usize>) -> Option<Outcome> {
    let losses = forebay_golden::steps(case, trainer, steps);
    let (batch, labels) = case.batch(0);
    let evaluation = trainer.evaluate(batch, labels).unwrap().loss.to_bits();
    Some(Outcome { losses, evaluation, values: collected(trainer)? })
}

/// A trainer of one of several processes: on an ordinary device, with half of the memory, or on a device that reorders commands that may
/// run concurrently.
fn sharded(case: &Case, training: TrainingOptions, shard: Shard, communicator: Arc<dyn Communicator>) -> Trainer {
    let rank = communicator.rank();
    let engine = host(1).processes(ProcessGroup::new(communicator)).shard(shard);
    match rank % 3 {
        1 => {
            let options = trainer_options(training, engine.simulate_device("60%".parse().unwrap()));
            Trainer::new(case.model(), options).unwrap()
        }
        2 => Trainer::with_device(case.model(), trainer_options(training, engine), chaos(1, rank as u64)).unwrap(),
        _ => Trainer::new(case.model(), trainer_options(training, engine)).unwrap(),
    }
}

/// Runs steps with several processes, starting from a checkpoint if one is given.
fn run_together(
    name: &'static str,
    training: &TrainingOptions,
    shard: Shard,
    processes: usize,
    (from, steps): (Option<&Checkpoint>, std::ops::Range<usize>),
) -> Together {
    let threads: Vec<_> = local_communicators(processes)
        .into_iter()
        .map(|communicator| {
            let (training, steps, from) = (training.clone(), steps.clone(), from.cloned());
            std::thread::spawn(move || {
                let case = Case::read(name);
                let is_first = communicator.rank() == 0;
                let mut trainer = sharded(&case, training, shard, communicator);
                from.iter().for_each(|checkpoint| trainer.restore(checkpoint).unwrap());
                let outcome = outcome(&case, &mut trainer, steps);
                is_first.then(|| Together {
                    outcome: outcome.expect("the first process has collected all"),
                    work: trainer.shared_work().unwrap().clone(),
                    peak_bytes: trainer.statistics().in_core_peak_bytes,
                    checkpoint: trainer.checkpoint(&JsonValue::Null).unwrap(),
                })
            })
        })
        .collect();
    let found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    found.into_iter().flatten().next().unwrap()
}

fn trained_by(name: &'static str, optimizer: Optimizer) -> TrainingOptions {
    let mut training = recipe(&Case::read(name));
    training.optimizer = optimizer;
    training
}

fn alone(name: &'static str, training: &TrainingOptions, steps: usize) -> Outcome {
    let case = Case::read(name);
    let mut trainer = Trainer::new(case.model(), trainer_options(training.clone(), host(2))).unwrap();
    outcome(&case, &mut trainer, 0..steps).unwrap()
}

#[test]
fn slices_have_the_bits_of_the_whole() {
    let averaged = {
        let mut training = trained_by("digits-cnn", Optimizer::adam(0.01));
        training.average = Some(0.9);
        training
    };
    let recipes = [
        ("tiny-gpt", recipe(&Case::read("tiny-gpt")), 2),
        ("digits-cnn", averaged, 3),
        ("digits-cnn", trained_by("digits-cnn", Optimizer::lamb(0.01)), 4),
        ("digits-cnn", trained_by("digits-cnn", Optimizer::adafactor(0.01)), 2),
        ("resnet20", recipe(&Case::read("resnet20")), 2),
    ];
    for (name, training, processes) in recipes {
        let expected = alone(name, &training, 2);
        for shard in ALL {
            let found = run_together(name, &training, shard, processes, (None, 0..2));
            assert_eq!(found.outcome.losses, expected.losses, "losses of {name}, {shard:?}, {processes} processes");
            assert!(found.outcome == expected, "{name}, {shard:?}, {processes} processes");
        }
    }
}

#[test]
fn each_stage_takes_less() {
    let training = trained_by("tiny-gpt", Optimizer::adam(0.001));
    let of = |shard| run_together("tiny-gpt", &training, shard, 4, (None, 0..1));
    let [nothing, state, gradients, parameters] = [Shard::Nothing, ALL[0], ALL[1], ALL[2]].map(of);
    let SharedWork { sharded_bytes, own_shard_bytes, .. } = parameters.work;
    assert!(sharded_bytes > 0 && own_shard_bytes < sharded_bytes / 3, "{own_shard_bytes} of {sharded_bytes}");
    // Updates run as soon as their gradients are ready, so few gradients exist at any time; slices save their exchange.
    let peaks = [nothing.peak_bytes, state.peak_bytes, gradients.peak_bytes, parameters.peak_bytes];
    assert!(peaks[1] < peaks[0] && peaks[2] <= peaks[1] && peaks[3] < peaks[2], "{peaks:?}");
    // The whole sums of gradients are not exchanged.
    let sent = |shard| {
        let engine = host(1).processes(ProcessGroup::for_plans(3)).shard(shard);
        let case = Case::read("resnet20");
        let trainer = Trainer::new(case.model(), trainer_options(recipe(&case), engine)).unwrap();
        trainer.shared_work().unwrap().sent_bytes
    };
    let [nothing, state, gradients] = [Shard::Nothing, Shard::State, Shard::Gradients].map(sent);
    assert!(nothing < state && gradients < state, "{nothing}, {state}, {gradients}");
}

#[test]
fn a_checkpoint_goes_on_with_other_processes_and_other_shards() {
    let training = trained_by("digits-cnn", Optimizer::adam(0.01));
    let expected = alone("digits-cnn", &training, 3);
    let first = run_together("digits-cnn", &training, Shard::Parameters, 3, (None, 0..1));
    let then = run_together("digits-cnn", &training, Shard::State, 2, (Some(&first.checkpoint), 1..2));
    let last = run_together("digits-cnn", &training, Shard::Gradients, 4, (Some(&then.checkpoint), 2..3));
    assert_eq!(last.outcome.losses, expected.losses[2..]);
    assert!(last.outcome.values == expected.values);
    // A single process has nothing to shard.
    let case = Case::read("digits-cnn");
    let mut trainer = Trainer::new(case.model(), trainer_options(training, host(1).shard(Shard::Parameters))).unwrap();
    trainer.restore(&then.checkpoint).unwrap();
    assert_eq!(forebay_golden::steps(&case, &mut trainer, 2..3), expected.losses[2..]);
}

#[test]
fn each_process_takes_its_slice_of_values_that_are_set() {
    let threads = local_communicators(2).into_iter().map(|communicator| {
        std::thread::spawn(move || {
            let case = Case::read("digits-cnn");
            let is_first = communicator.rank() == 0;
            let training = trained_by("digits-cnn", Optimizer::adam(0.01));
            let mut trainer = sharded(&case, training, Shard::Parameters, communicator);
            let numbers: Vec<f32> = (0..640).map(|number| number as f32).collect();
            let weight = Tensor::from_f32(&[10, 64], &numbers);
            let values = |tensor: &Tensor| BTreeMap::from([("fc.weight".to_string(), tensor.clone())]);
            let error = trainer.set_values(values(&Tensor::from_f32(&[1], &[0.0])), None).unwrap_err().to_string();
            assert!(error.contains("expected float32[10, 64] for 'fc.weight', found float32[1]"), "{error}");
            trainer.set_values(values(&weight), Some(3)).unwrap();
            assert_eq!(trainer.step_count(), 3);
            assert!(trainer.parameter("fc.weight").is_err(), "each process keeps a slice");
            trainer.collect_shards().unwrap();
            if is_first {
                assert_eq!(trainer.parameter("fc.weight").unwrap(), Some(weight));
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn what_was_not_collected_is_not_there() {
    let communicator = local_communicators(2).remove(0);
    let case = Case::read("digits-cnn");
    let training = trained_by("digits-cnn", Optimizer::adam(0.01));
    let trainer = sharded(&case, training, Shard::State, communicator);
    assert!(trainer.parameters().is_ok(), "every process has all parameters");
    let error = trainer.state().unwrap_err().to_string();
    assert!(error.contains("keeps a slice of") && error.contains("collect_shards"), "{error}");
    assert!(trainer.checkpoint(&JsonValue::Null).is_err());
}

const FEATURES: usize = 96;
const HIDDEN: usize = 160;
/// The number of samples in a batch, or in a part of one: the shares of four processes in a part consist of whole reduction blocks.
fn batch(training: &TrainingOptions) -> u64 {
    if training.accumulate > 1 { 256 } else { 64 }
}

/// A model of matrices, `scale` times as large in each direction. One of them is used twice, the second time transposed.
fn matrices(scale: usize) -> Model {
    let (inputs, hidden) = (FEATURES * scale, HIDDEN * scale);
    let numbers = |count: usize| (0..count).map(|i| ((i * 7919) % 1009) as f32 / 5045.0 - 0.1).collect::<Vec<f32>>();
    let features = inputs.to_string();
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", &features])
        .floats("w1", &[inputs, hidden], &numbers(inputs * hidden))
        .floats("w2", &[hidden, hidden], &numbers(hidden * hidden))
        .floats("b2", &[hidden], &numbers(hidden))
        .floats("w3", &[hidden, hidden], &numbers(hidden * hidden))
        .node("MatMul", &["x", "w1"], &["sum1"])
        .node("Relu", &["sum1"], &["h1"])
        .node("MatMul", &["h1", "w2"], &["sum2"])
        .node("Add", &["sum2", "b2"], &["biased2"])
        .node("Tanh", &["biased2"], &["h2"])
        .node("MatMul", &["h2", "w3"], &["h3"])
        .node("Transpose", &["w1"], &["turned"])
        .node("MatMul", &["h3", "turned"], &["y"])
        .output("y", FLOAT, &["N", &features]);
    Model::from_bytes(&graph.build()).unwrap()
}

/// Recipes in which something else happens between a gradient and its update; in the first, nothing does.
fn recipes() -> Vec<(&'static str, TrainingOptions)> {
    let with = |change: &dyn Fn(&mut TrainingOptions)| {
        let mut training = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::adam(0.01));
        change(&mut training);
        training
    };
    vec![
        ("plain", with(&|_| {})),
        ("clipped together", with(&|training| training.clipping = Some(Clipping::GlobalNorm(0.01)))),
        ("clipped alone", with(&|training| training.clipping = Some(Clipping::Norm(0.01)))),
        ("clamped", with(&|training| training.clipping = Some(Clipping::Value(1e-4)))),
        ("in parts", with(&|training| training.accumulate = 2)),
        ("float16", with(&|training| training.precision = Some(Precision::float16()))),
        ("lion", with(&|training| training.optimizer = Optimizer::lion(0.001))),
        ("lamb", with(&|training| training.optimizer = Optimizer::lamb(0.01))),
        (
            "all of it",
            with(&|training| {
                training.clipping = Some(Clipping::GlobalNorm(0.01));
                training.accumulate = 2;
                training.precision = Some(Precision::bfloat16());
            }),
        ),
    ]
}

fn trainer_of(model: Model, training: &TrainingOptions, engine: EngineOptions, chaos_seed: Option<u64>) -> Trainer {
    let mut options = trainer_options(training.clone(), engine);
    options.batch_size = Some(batch(training));
    match chaos_seed {
        Some(seed) => Trainer::with_device(model, options, chaos(1, seed)).unwrap(),
        None => Trainer::new(model, options).unwrap(),
    }
}

/// The losses of steps, and all parameters and state if this process has collected them.
type Trained = (Vec<u32>, Option<BTreeMap<String, Tensor>>);

/// Returns the losses of two steps, and all parameters and state if this process has collected them.
fn train_matrices(mut trainer: Trainer) -> Trained {
    let rows = trainer.batch_size();
    let values =
        |seed: usize| (0..rows as usize * FEATURES).map(move |i| ((i * 31 + seed * 17) % 101) as f32 / 50.0 - 1.0);
    let tensor = |seed| Tensor::from_f32(&[rows, FEATURES as u64], &values(seed).collect::<Vec<f32>>());
    let step = |step| {
        let batch = BTreeMap::from([("x".to_string(), tensor(step))]);
        trainer.step(batch, tensor(step + 5)).unwrap().loss.to_bits()
    };
    let losses = (0..2).map(step).collect();
    (losses, collected(&mut trainer))
}

#[test]
fn what_happens_between_gradients_and_updates_has_the_bits_of_the_whole() {
    let runs = [(2, Shard::Gradients), (3, Shard::Gradients), (4, Shard::Gradients), (3, Shard::Parameters)];
    for (what, training) in recipes() {
        let expected = train_matrices(trainer_of(matrices(1), &training, host(2), None));
        for (processes, shard) in runs {
            let found = train_sharded(&|| matrices(1), &training, processes, shard);
            assert!(found.iter().all(|(losses, _)| *losses == expected.0), "{what}, {shard:?}, {processes} processes");
            assert!(found[0].1 == expected.1, "values, {what}, {shard:?}, {processes} processes");
        }
    }
}

/// Of more than 16 processes, each checks the parts of a few instead of all.
#[test]
fn slices_of_many_processes_have_the_bits_of_the_whole() {
    let mut training = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::adam(0.01));
    for (processes, parts) in [(17, 1), (24, 1), (32, 2)] {
        training.accumulate = parts;
        let expected = train_matrices(trainer_of(matrices(1), &training, host(2), None));
        let found = train_sharded(&|| matrices(1), &training, processes, Shard::Parameters);
        assert!(found.iter().all(|(losses, _)| *losses == expected.0), "{processes} processes");
        assert!(found[0].1 == expected.1, "values, {processes} processes");
    }
}

/// Trains in several processes: one of three with a budget, one with commands that complete in any order.
fn train_sharded(
    model: &(dyn Fn() -> Model + Sync),
    training: &TrainingOptions,
    processes: usize,
    shard: Shard,
) -> Vec<Trained> {
    std::thread::scope(|scope| {
        let threads = local_communicators(processes).into_iter().map(|communicator| {
            scope.spawn(move || {
                let rank = communicator.rank();
                let mut engine = host(1).processes(ProcessGroup::new(communicator)).shard(shard);
                engine.memory.simulate_device = (rank % 3 == 1).then(|| "75%".parse().unwrap());
                let chaos = (rank % 3 == 2).then_some(rank as u64);
                train_matrices(trainer_of(model(), training, engine, chaos))
            })
        });
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn one_element_of_a_slice_is_there_in_every_process() {
    let features = FEATURES.to_string();
    let numbers = |count: usize| (0..count).map(|i| ((i * 7919) % 1009) as f32 / 2018.0 + 0.1).collect::<Vec<f32>>();
    for element in [0, 300, 9000] {
        let model = || {
            let graph = GraphBuilder::new()
                .input("x", FLOAT, &["N", &features])
                .floats("v", &[FEATURES, FEATURES], &numbers(FEATURES * FEATURES))
                .floats("w", &[FEATURES * FEATURES], &numbers(FEATURES * FEATURES))
                .integers("first", &[1], &[element])
                .integers("end", &[1], &[element + 1])
                .node("Slice", &["w", "first", "end"], &["one"])
                .node("Mul", &["v", "one"], &["scaled"])
                .node("MatMul", &["x", "scaled"], &["y"])
                .output("y", FLOAT, &["N", &features]);
            Model::from_bytes(&graph.build()).unwrap()
        };
        let training = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::adam(0.01));
        let expected = train_matrices(trainer_of(model(), &training, host(2), None));
        for shard in [Shard::Gradients, Shard::Parameters] {
            let found = train_sharded(&model, &training, 3, shard);
            assert!(found.iter().all(|(losses, _)| *losses == expected.0), "{element}, {shard:?}");
            assert!(found[0].1 == expected.1, "values, {element}, {shard:?}");
        }
    }
}

#[test]
fn all_processes_go_through_the_same_part_if_they_keep_slices_of_parameters() {
    let mut training = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::adam(0.01));
    training.accumulate = 2;
    let samples = |shard| {
        let engine = host(1).processes(ProcessGroup::for_plans(4)).shard(shard);
        trainer_of(matrices(1), &training, engine, None).own_samples()
    };
    let of_gradients = samples(Shard::Gradients).unwrap();
    assert_eq!((of_gradients.len(), &of_gradients[0]), (1, &(0..128)));
    assert_eq!(samples(Shard::Parameters), Some(vec![0..64, 256..320]));
}

#[test]
fn each_process_keeps_its_slice_of_gradients_until_the_update() {
    let scale = 4;
    let matrices_bytes = (4 * scale * scale * (FEATURES * HIDDEN + 2 * HIDDEN * HIDDEN)) as u64;
    for (what, training) in recipes() {
        let peak = |shard| {
            let engine = host(1).processes(ProcessGroup::for_plans(4)).shard(shard);
            let mut options = trainer_options(training.clone(), engine);
            options.batch_size = Some(64);
            Trainer::new(matrices(scale), options).unwrap().statistics().in_core_peak_bytes
        };
        let [state, gradients, parameters] = ALL.map(peak);
        assert!(gradients < state && parameters <= gradients, "{what}: {state}, {gradients}, {parameters}");
        if matches!(training.clipping, Some(Clipping::GlobalNorm(_))) && training.accumulate == 1 {
            // All gradients wait for their norm. Three quarters of them are elsewhere, but one gradient at a time is summed or squared.
            assert!(state - gradients > matrices_bytes / 2, "{what}: {state}, {gradients} of {matrices_bytes}");
        }
    }
}
