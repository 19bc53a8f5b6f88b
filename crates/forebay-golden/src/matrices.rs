//! A model whose matrices are larger than its activations: few rows, large layers, and a squared error. With the minimum budget, no matrix
//! is ever on the device as a whole.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{DataType, EngineOptions, Error, MemorySize, Model, Tensor, Trainer};
use serde_json::Value;

use crate::{Run, assert_same, everything, onnx, trainer};

const ROWS: usize = 48;
const FEATURES: usize = 640;
const WIDE: usize = 1100;
const NARROW: usize = 700;
const OUTPUTS: usize = 520;

/// Returns numbers around 0, each of which is a function of its position.
fn numbers(seed: usize, count: usize, scale: f64) -> Vec<f64> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f64 / 504.5 - 1.0).map(|value| value * scale).collect()
}

fn model() -> Model {
    let transposed: &[(&str, &[i64], bool)] = &[("transB", &[1], false)];
    let nodes = [
        onnx::node("Gemm", &["x", "w1", "b1"], "sum1", transposed),
        onnx::node("Relu", &["sum1"], "h1", &[]),
        onnx::node("MatMul", &["h1", "w2"], "sum2", &[]),
        onnx::node("Tanh", &["sum2"], "t2", &[]),
        onnx::node("LayerNormalization", &["t2", "scale", "shift"], "h2", &[]),
        onnx::node("Gemm", &["h2", "w3"], "y", transposed),
    ];
    let initializers = [
        onnx::floats("w1", &[WIDE, FEATURES], &numbers(1, WIDE * FEATURES, 0.05)),
        onnx::floats("b1", &[WIDE], &numbers(2, WIDE, 0.1)),
        onnx::floats("w2", &[WIDE, NARROW], &numbers(3, WIDE * NARROW, 0.05)),
        onnx::floats("scale", &[NARROW], &vec![1.0; NARROW]),
        onnx::floats("shift", &[NARROW], &numbers(4, NARROW, 0.1)),
        onnx::floats("w3", &[OUTPUTS, NARROW], &numbers(5, OUTPUTS * NARROW, 0.05)),
    ];
    let bytes = onnx::model(&nodes, &initializers, ("x", &[ROWS, FEATURES]), ("y", &[ROWS, OUTPUTS]));
    Model::from_bytes(&bytes).unwrap()
}

fn tensor(seed: usize, columns: usize) -> Tensor {
    let values = numbers(seed, ROWS * columns, 1.0);
    let bytes: Vec<u8> = values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
    Tensor::new(DataType::Float32, &[ROWS as u64, columns as u64], bytes).unwrap()
}

/// Runs steps, including one that stops before it changes anything, and writes parameters from outside, after which what a step left on the
/// device for the next one is not what that step needs.
fn run(trainer: &mut Trainer) -> Run {
    let batch = |x: Tensor| BTreeMap::from([("x".to_string(), x)]);
    let step = |trainer: &mut Trainer, step: usize| {
        trainer.step(batch(tensor(10 + step, FEATURES)), tensor(20 + step, OUTPUTS)).unwrap().loss.to_bits()
    };
    let mut losses = vec![step(trainer, 0)];
    let checkpoint = trainer.checkpoint(&Value::Null).unwrap();
    losses.push(step(trainer, 1));
    let nan = f32::NAN.to_le_bytes().repeat(ROWS * FEATURES);
    let nan = Tensor::new(DataType::Float32, &[ROWS as u64, FEATURES as u64], nan).unwrap();
    assert!(matches!(trainer.step(batch(nan), tensor(20, OUTPUTS)), Err(Error::NanLoss { .. })));
    losses.push(step(trainer, 2));
    trainer.restore(&checkpoint).unwrap();
    losses.extend([step(trainer, 1), step(trainer, 2)]);
    assert_eq!((losses[1], losses[2]), (losses[3], losses[4]), "neither a stopped step nor a way back leaves traces");
    Run { losses, values: everything(trainer) }
}

/// Trains within budgets down to the minimum, and checks that the bits are those of the unlimited run.
pub fn same_bits_within_every_budget(engine: &EngineOptions) {
    let within = |budget: Option<u64>| {
        let optimizer = Optimizer::Sgd { learning_rate: 0.05, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let training = TrainingOptions::new(Loss::MeanSquaredError, optimizer);
        let mut engine = engine.clone();
        engine.memory.simulate_device = budget.map(MemorySize::Bytes);
        trainer(model(), training, engine)
    };
    let mut unlimited = within(None);
    let (peak, minimum) = (unlimited.statistics().in_core_peak_bytes, unlimited.statistics().minimum_budget_bytes);
    let expected = run(&mut unlimited);
    drop(unlimited);
    let largest_bytes = (4 * WIDE * NARROW) as u64;
    assert!(minimum < largest_bytes / 2, "the minimum is {minimum} bytes, and the largest matrix has {largest_bytes}");
    let mut carried = 0;
    for budget in [peak / 2, peak / 5, minimum] {
        let mut limited = within(Some(budget.max(minimum)));
        carried += limited.plan().warm_up.len();
        assert_same(&expected, &run(&mut limited), &format!("within {budget} of {peak} bytes, at least {minimum}"));
        assert!(limited.usage().heap_peak_bytes <= budget.max(minimum), "within {budget}");
    }
    assert!(carried > 0, "nothing crosses the boundary between steps");
}
