//! Adam with 8-bit moments: the size of its state, its closeness to Adam, the same bits within every budget and across processes, and
//! checkpoints.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay::training::{Clipping, Loss, Optimizer, ParameterGroup, Precision, TrainingOptions};
use forebay::{EngineOptions, JsonValue, MemorySize, Model, ProcessGroup, Shard, Tensor, Trainer};
use forebay_base::{Command, DataType};
use forebay_device::Communicator;
use forebay_device_testing::local_communicator::local_communicators;
use forebay_golden::{everything, host, trainer};
use forebay_testing::Random;
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};

/// Samples per batch, features, units of the hidden layer, results. The last quantization block of the second matrix is only partly filled.
const SIZES: [usize; 4] = [8, 128, 250, 41];

/// relu(x w1 + b1) w2.
fn model() -> Model {
    let [samples, features, units, results] = SIZES;
    let numbers = |count: usize| (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 300.0).collect::<Vec<f32>>();
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &[&samples.to_string(), &features.to_string()])
        .floats("w1", &[features, units], &numbers(features * units))
        .floats("b1", &[units], &numbers(units))
        .floats("w2", &[units, results], &numbers(units * results))
        .node("MatMul", &["x", "w1"], &["product1"])
        .node("Add", &["product1", "b1"], &["sum1"])
        .node("Relu", &["sum1"], &["hidden"])
        .node("MatMul", &["hidden", "w2"], &["y"])
        .output("y", FLOAT, &[&samples.to_string(), &results.to_string()]);
    Model::from_bytes(&graph.build()).unwrap()
}

/// The batch of a step, which is one of four.
fn batch(step: usize) -> (BTreeMap<String, Tensor>, Tensor) {
    let step = step % 4;
    let [samples, features, _, results] = SIZES;
    let mut random = Random::new(step as u64 + 1);
    let x: Vec<f32> = (0..samples * features).map(|_| random.float()).collect();
    let y: Vec<f32> = (0..samples * results).map(|_| random.float()).collect();
    let x = Tensor::from_f32(&[samples as u64, features as u64], &x);
    (BTreeMap::from([("x".to_string(), x)]), Tensor::from_f32(&[samples as u64, results as u64], &y))
}

fn options(optimizer: Optimizer) -> TrainingOptions {
    TrainingOptions::new(Loss::MeanSquaredError, optimizer)
}

fn steps(trainer: &mut Trainer, steps: std::ops::Range<usize>) -> Vec<f32> {
    let mut step = |step| {
        let (x, y) = batch(step);
        trainer.step(x, y).unwrap().loss
    };
    steps.map(&mut step).collect()
}

/// Counts the launches of the plan that update in blocks.
fn updates(trainer: &Trainer) -> usize {
    let is_update = |command: &&Command| match command {
        Command::Launch { launch, .. } => launch.kernel.facts().is_in_blocks(),
        _ => false,
    };
    trainer.plan().commands.iter().filter(is_update).count()
}

#[test]
fn large_parameters_have_codes_and_small_ones_numbers() {
    let mut trainer = trainer(model(), options(Optimizer::adamw_8_bit(1e-3)), host(2).check(true));
    steps(&mut trainer, 0..2);
    let state = trainer.state().unwrap();
    let of = |name: &str| (state[name].data_type(), state[name].shape().to_vec());
    let [_, features, units, results] = SIZES.map(|size| size as u64);
    for (name, shape) in [("w1", [features, units]), ("w2", [units, results])] {
        let blocks = (shape[0] * shape[1]).div_ceil(256);
        for moment in ["first", "second"] {
            assert_eq!(of(&format!("{name}.{moment}_moment_codes")), (DataType::UInt8, shape.to_vec()));
            assert_eq!(of(&format!("{name}.{moment}_moment_scales")), (DataType::Float32, vec![blocks]));
            let scales = state[&format!("{name}.{moment}_moment_scales")].to_f32().unwrap();
            assert!(scales.iter().all(|&scale| scale > 0.0));
        }
    }
    assert_eq!(of("b1.first_moment"), (DataType::Float32, vec![units]));
    assert_eq!(state.len(), 2 * 4 + 2);
}

#[test]
fn training_goes_as_with_float32() {
    let run = |optimizer: Optimizer| {
        let mut trainer = trainer(model(), options(optimizer), host(2));
        let losses = steps(&mut trainer, 0..60);
        let state = trainer.state().unwrap();
        (losses, state.values().map(|tensor| tensor.bytes().len()).sum::<usize>())
    };
    for (codes, numbers) in
        [(Optimizer::adam_8_bit(2e-3), Optimizer::adam(2e-3)), (Optimizer::adamw_8_bit(2e-3), Optimizer::adamw(2e-3))]
    {
        let ((codes, codes_bytes), (numbers, numbers_bytes)) = (run(codes), run(numbers));
        println!("{codes_bytes} and {numbers_bytes} bytes; {} and {}", codes[59], numbers[59]);
        assert_eq!(codes[0], numbers[0]);
        assert!(numbers[59] < numbers[0] / 10.0, "{numbers:?}");
        for (a, b) in codes.iter().zip(&numbers) {
            assert!((a - b).abs() <= 0.02 * numbers[0], "{a} instead of {b}");
        }
        let share = codes_bytes as f64 / numbers_bytes as f64;
        assert!(share < 0.265, "{share}");
    }
}

/// Recipes with everything that can come between a gradient and its update.
fn recipes() -> Vec<(&'static str, TrainingOptions)> {
    let plain = || options(Optimizer::adamw_8_bit(1e-2));
    let mut others = plain();
    others.optimizer = Optimizer::adam_8_bit(1e-2).with_weight_decay(0.1);
    others.clipping = Some(Clipping::GlobalNorm(0.5));
    others.average = Some(0.9);
    let mut group = ParameterGroup::new("w1");
    group.rate_factor = 0.5;
    group.weight_decay = Some(0.3);
    others.groups.push(group);
    let (mut narrow, mut scaled, mut accumulated) = (plain(), plain(), plain());
    narrow.precision = Some(Precision::bfloat16());
    scaled.precision = Some(Precision::float16());
    accumulated.accumulate = 2;
    vec![("plain", plain()), ("others", others), ("bf16", narrow), ("f16", scaled), ("accumulated", accumulated)]
}

#[test]
fn budgets_keep_the_bits() {
    let mut cut = 0;
    for (name, training) in recipes() {
        let run = |engine: EngineOptions| {
            let mut trainer = trainer(model(), training.clone(), engine.check(true));
            let losses = steps(&mut trainer, 0..3);
            (losses, everything(&trainer), trainer)
        };
        let (losses, expected, whole) = run(host(2));
        assert_eq!(updates(&whole), 2, "{name}");
        let minimum = MemorySize::Bytes(whole.statistics().minimum_budget_bytes);
        for size in [minimum, MemorySize::Percent(50.0), MemorySize::Percent(75.0)] {
            let limited = run(host(2).simulate_device(size));
            assert_eq!(limited.0, losses, "{name} within {size:?}");
            assert!(limited.1 == expected, "{name} within {size:?}");
            cut += usize::from(updates(&limited.2) > 2);
        }
    }
    assert!(cut >= 5, "updates were cut in {cut} plans");
}

#[test]
fn checkpoints_have_codes_and_scales() {
    let training = options(Optimizer::adamw_8_bit(1e-2));
    let make = |training: &TrainingOptions| trainer(model(), training.clone(), host(2));
    let mut whole = make(&training);
    steps(&mut whole, 0..2);
    let checkpoint = whole.checkpoint(&JsonValue::Null).unwrap();
    let losses = steps(&mut whole, 2..4);
    let mut resumed = make(&training);
    resumed.restore(&checkpoint).unwrap();
    assert_eq!(steps(&mut resumed, 2..4), losses);
    assert!(everything(&resumed) == everything(&whole));
    // State of another kind is refused, and the error names it.
    let error = make(&options(Optimizer::adamw(1e-2))).restore(&checkpoint).unwrap_err().to_string();
    assert!(error.contains("w1.first_moment"), "{error}");
    assert!(whole.set_optimizer(Optimizer::adamw(1e-2)).is_err());
    assert!(whole.set_optimizer(Optimizer::adam_8_bit(1e-2)).is_err());
    let plan = whole.plan().commands.len();
    whole.set_optimizer(Optimizer::adamw_8_bit(1e-4)).unwrap();
    assert_eq!(whole.plan().commands.len(), plan);
}

/// Trains with several processes and returns the first process's losses, values, the bytes of everything sharded and the bytes of its own
/// slices.
fn together(shard: Shard, processes: usize, average: Option<f32>) -> (Vec<f32>, BTreeMap<String, Tensor>, u64, u64) {
    let run = move |communicator: Arc<dyn Communicator>| {
        let rank = communicator.rank();
        let mut training = options(Optimizer::adamw_8_bit(1e-2));
        training.average = average;
        let mut engine = host(1).processes(ProcessGroup::new(communicator)).shard(shard).check(true);
        if rank % 2 == 1 {
            engine = engine.simulate_device("90%".parse().unwrap());
        }
        let mut trainer = trainer(model(), training, engine);
        let mut losses = steps(&mut trainer, 0..2);
        let (x, y) = batch(3);
        losses.push(trainer.evaluate(x, y).unwrap().loss);
        trainer.collect_shards().unwrap();
        let work = trainer.shared_work().map_or((0, 0), |work| (work.sharded_bytes, work.own_shard_bytes));
        (rank == 0).then(|| (losses, everything(&trainer), work.0, work.1))
    };
    let threads = local_communicators(processes).into_iter();
    let threads: Vec<_> = threads.map(|communicator| std::thread::spawn(move || run(communicator))).collect();
    let found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    found.into_iter().flatten().next().unwrap()
}

#[test]
fn processes_keep_slices_of_codes_and_scales() {
    let of_w1 = 128 * 250;
    for average in [None, Some(0.9)] {
        let mut training = options(Optimizer::adamw_8_bit(1e-2));
        training.average = average;
        let mut alone = trainer(model(), training, host(2));
        let mut losses = steps(&mut alone, 0..2);
        let (x, y) = batch(3);
        losses.push(alone.evaluate(x, y).unwrap().loss);
        let expected = everything(&alone);
        for (shard, processes) in [(Shard::State, 2), (Shard::State, 3), (Shard::Gradients, 2), (Shard::Parameters, 4)]
        {
            let found = together(shard, processes, average);
            assert_eq!(found.0, losses, "{shard:?} {processes}");
            for (name, value) in &expected {
                assert!(found.1[name] == *value, "{name}, {shard:?} {processes}");
            }
            // These are at least the codes of both moments, and a process has about its share of them.
            let (all, own) = (found.2, found.3);
            assert!(all >= 2 * of_w1, "{all} bytes are sharded");
            assert!(own <= all / processes as u64 * 5 / 4, "{own} of {all} bytes are the first process's");
        }
    }
}
