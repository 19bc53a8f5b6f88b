//! Models whose steps process a batch in parts, compared with steps on the whole batch: the bits are the same.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, Precision, TrainingOptions};
use forebay::{EngineOptions, MemorySize, Model, Tensor, Trainer};
use forebay_testing::Random;
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, Value};

use crate::trainer_options;

/// So large that a step replaces parameters by multiples of their gradients, down to the last bits.
const LEARNING_RATE: f32 = 1e6;

/// The number of samples of a batch as planned, of its parts, and of samples of a step.
pub type Parts = (u64, u64, u64);

/// Returns a trainer whose step takes `batch` samples in this many parts.
pub fn trainer(
    model: &Model,
    training: &TrainingOptions,
    (batch, parts): (u64, u64),
    engine: EngineOptions,
) -> Trainer {
    let mut options = trainer_options(training.clone(), engine);
    (options.batch_size, options.training.accumulate) = (Some(batch / parts), parts);
    Trainer::new(model.clone(), options).unwrap()
}

/// Returns a batch of this many samples for a trainer; if `classes` is given, labels are classes below it.
fn batch(trainer: &Trainer, samples: u64, classes: Option<u64>, seed: u64) -> (BTreeMap<String, Tensor>, Tensor) {
    let mut random = Random::new(seed);
    let of = |shape: &[u64]| [&[samples], &shape[1..]].concat();
    let mut floats = |shape: &[u64]| {
        let values: Vec<f32> =
            random.values(shape.iter().product::<u64>() as usize).iter().map(|&value| value as f32).collect();
        Tensor::from_f32(shape, &values)
    };
    let x = trainer.inputs().iter().map(|info| (info.name.clone(), floats(&of(&info.shape)))).collect();
    let shape = of(&trainer.labels().shape);
    let labels = match classes {
        Some(classes) => {
            let count = shape.iter().product::<u64>();
            let labels: Vec<i64> = (0..count).map(|_| random.below(classes) as i64).collect();
            Tensor::from_i64(&shape, &labels)
        }
        None => floats(&shape),
    };
    (x, labels)
}

/// The results of two steps: losses, norms, parameters and state.
type Left = (Vec<f32>, Vec<Option<f32>>, BTreeMap<String, Tensor>, BTreeMap<String, Tensor>);

fn steps(trainer: &mut Trainer, samples: u64, classes: Option<u64>) -> Left {
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for step in 0..2 {
        let (x, labels) = batch(trainer, samples, classes, 77 + step);
        let report = trainer.step(x, labels).unwrap();
        losses.push(report.loss);
        norms.push(report.gradient_norm);
    }
    (losses, norms, trainer.parameters().unwrap(), trainer.state().unwrap())
}

fn assert_same(found: &Left, expected: &Left, what: &str) {
    assert_eq!((&found.0, &found.1), (&expected.0, &expected.1), "{what}: losses and norms");
    let other: Vec<&String> = expected.2.keys().filter(|&name| found.2[name] != expected.2[name]).collect();
    assert!(other.is_empty(), "{what}: other bits in {other:?}");
    assert!(found.3 == expected.3, "{what}: state");
}

/// Compares parts with the whole batch, without a budget and with one that is a little above the minimum.
fn check(
    engine: &EngineOptions,
    name: &str,
    model: &Model,
    training: &TrainingOptions,
    classes: Option<u64>,
    cases: &[Parts],
) {
    for &(planned, parts, samples) in cases {
        let what = format!("{name}, {samples} of {planned} samples in {parts} parts");
        let whole = steps(&mut trainer(model, training, (planned, 1), engine.clone()), samples, classes);
        let mut in_parts = trainer(model, training, (planned, parts), engine.clone());
        assert_eq!(in_parts.parts_apart(), None, "{what}");
        assert_eq!(in_parts.labels().shape[0], planned, "{what}");
        let least = in_parts.statistics().minimum_budget_bytes;
        assert_same(&steps(&mut in_parts, samples, classes), &whole, &what);
        let engine = engine.clone().simulate_device(MemorySize::Bytes(least + least / 4));
        let found = steps(&mut trainer(model, training, (planned, parts), engine), samples, classes);
        assert_same(&found, &whole, &format!("{what}, within {least} bytes and a quarter"));
    }
}

fn floats(graph: GraphBuilder, name: &str, shape: &[usize], seed: u64) -> GraphBuilder {
    let values: Vec<f32> =
        Random::new(seed).values(shape.iter().product()).iter().map(|&value| value as f32 * 0.3).collect();
    graph.floats(name, shape, &values)
}

/// Returns a model that takes images through convolutions, instance normalization, pooling and a classifier.
pub fn convolutions(size: &str) -> Model {
    let mut graph = GraphBuilder::new().input("x", FLOAT, &["n", "3", size, size]);
    for (seed, (name, shape)) in [
        ("w1", vec![8, 3, 3, 3]),
        ("b1", vec![8]),
        ("scale", vec![8]),
        ("shift", vec![8]),
        ("w2", vec![6, 8, 3, 3]),
        ("b2", vec![6]),
        ("w3", vec![5, 6]),
        ("b3", vec![5]),
    ]
    .into_iter()
    .enumerate()
    {
        graph = floats(graph, name, &shape, seed as u64 + 3);
    }
    let pads = || vec![("pads", Value::Ints(vec![1; 4]))];
    let bytes = graph
        .node_with("Conv", &["x", "w1", "b1"], &["c1"], pads())
        .node("InstanceNormalization", &["c1", "scale", "shift"], &["n1"])
        .node("Relu", &["n1"], &["r1"])
        .node_with(
            "MaxPool",
            &["r1"],
            &["p1"],
            vec![("kernel_shape", Value::Ints(vec![2, 2])), ("strides", Value::Ints(vec![2, 2]))],
        )
        .node_with("Conv", &["p1", "w2", "b2"], &["c2"], pads())
        .node("Tanh", &["c2"], &["t2"])
        .node("GlobalAveragePool", &["t2"], &["g"])
        .node("Flatten", &["g"], &["f"])
        .node_with("Gemm", &["f", "w3", "b3"], &["y"], vec![("transB", Value::Int(1))])
        .output("y", FLOAT, &["n", "5"])
        .build();
    Model::from_bytes(&bytes).unwrap()
}

/// Returns a model that takes rows through dense layers, layer normalization and dropout.
fn dense(inputs: usize, outputs: usize) -> Model {
    let width = 48;
    let mut graph = GraphBuilder::new().input("x", FLOAT, &["n", &inputs.to_string()]);
    for (seed, (name, shape)) in [
        ("w1", vec![inputs, width]),
        ("b1", vec![width]),
        ("scale", vec![width]),
        ("shift", vec![width]),
        ("w2", vec![width, outputs]),
        ("b2", vec![outputs]),
    ]
    .into_iter()
    .enumerate()
    {
        graph = floats(graph, name, &shape, seed as u64 + 31);
    }
    let bytes = graph
        .floats("ratio", &[], &[0.25])
        .node("MatMul", &["x", "w1"], &["m1"])
        .node("Add", &["m1", "b1"], &["a1"])
        .node_with("LayerNormalization", &["a1", "scale", "shift"], &["l1"], vec![("axis", Value::Int(-1))])
        .node("Relu", &["l1"], &["r1"])
        .node("Dropout", &["r1", "ratio"], &["d1"])
        .node("MatMul", &["d1", "w2"], &["m2"])
        .node("Add", &["m2", "b2"], &["y"])
        .output("y", FLOAT, &["n", &outputs.to_string()])
        .build();
    Model::from_bytes(&bytes).unwrap()
}

fn with_norm(loss: Loss, optimizer: Optimizer) -> TrainingOptions {
    let mut options = TrainingOptions::new(loss, optimizer);
    options.gradient_norm = true;
    options
}

/// Checks images of several sizes.
pub fn images_have_the_bits_of_the_batch(engine: &EngineOptions, sizes: &[&str], cases: &[Parts]) {
    let classes = Loss::SoftmaxCrossEntropy { class_axis: None, ignore_index: None };
    for size in sizes {
        let options = with_norm(classes.clone(), Optimizer::sgd(LEARNING_RATE));
        check(engine, &format!("images of {size}"), &convolutions(size), &options, Some(5), cases);
    }
}

/// Checks rows, with losses of several kinds.
pub fn rows_have_the_bits_of_the_batch(engine: &EngineOptions, cases: &[Parts]) {
    let squares = with_norm(Loss::MeanSquaredError, Optimizer::sgd(LEARNING_RATE));
    check(engine, "squared errors", &dense(19, 7), &squares, None, cases);
    // With ignored labels, parts have different numbers of positions.
    let ignoring = Loss::SoftmaxCrossEntropy { class_axis: None, ignore_index: Some(2) };
    let ignoring = with_norm(ignoring, Optimizer::adamw(1e-2));
    check(engine, "ignored labels", &dense(10, 4), &ignoring, Some(4), cases);
    let of_operators = with_norm(Loss::Huber { delta: 0.7 }, Optimizer::sgd(LEARNING_RATE));
    check(engine, "a loss of operators", &dense(6, 3), &of_operators, None, cases);
}

/// Checks 16-bit products; float16 with scaled gradients.
pub fn sixteen_bits_have_the_bits_of_the_batch(engine: &EngineOptions, cases: &[Parts]) {
    let classes = Loss::SoftmaxCrossEntropy { class_axis: None, ignore_index: None };
    for precision in [Precision::bfloat16(), Precision::float16()] {
        let mut options = with_norm(classes.clone(), Optimizer::sgd(0.1));
        options.precision = Some(precision);
        check(engine, "16 bits", &dense(24, 5), &options, Some(5), cases);
        check(engine, "16 bits, images", &convolutions("16"), &options, Some(5), &[(6, 3, 6)]);
    }
}
