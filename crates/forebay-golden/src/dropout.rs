//! Models with dropout between products of 16 bits, whose numbers 16 bits hold exactly.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, Precision, TrainingOptions};
use forebay::{DataType, EngineOptions, Model, Tensor};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, Value};
use forebay_testing::onnx::{BFLOAT16, FLOAT16};

use crate::trainer_options;

const SAMPLES: u64 = 8;
const UNITS: usize = 32;

/// Returns x (ones) w (1/4) -> dropout of one half -> v (2 / units): each output is 2 times the fraction of units that are kept, which are
/// scaled by 2. With `own`, the model itself converts to this type and back.
fn model(own: Option<i64>, ratio_is_attribute: bool) -> Model {
    let mut graph = GraphBuilder::new()
        .input("x", FLOAT, &["n", "4"])
        .floats("w", &[4, UNITS], &[0.25; 4 * UNITS])
        .floats("v", &[UNITS, 3], &[1.0 / UNITS as f32; UNITS * 3]);
    graph = match own {
        Some(FLOAT16) => graph.raw("ratio", FLOAT16, &[], &[0x00, 0x38]),
        Some(_) => graph.raw("ratio", BFLOAT16, &[], &[0x00, 0x3f]),
        None => graph.floats("ratio", &[], &[0.5]),
    };
    let mut names = ["x", "w", "v"];
    if let Some(kind) = own {
        for (name, narrow) in names.iter_mut().zip(["x16", "w16", "v16"]) {
            graph = graph.node_with("Cast", &[*name], &[narrow], vec![("to", Value::Int(kind))]);
            *name = narrow;
        }
    }
    let [x, w, v] = names;
    graph = graph.node("MatMul", &[x, w], &["a"]);
    graph = match ratio_is_attribute {
        true => graph.node_with("Dropout", &["a"], &["b"], vec![("ratio", Value::Float(0.5))]),
        false => graph.node("Dropout", &["a", "ratio"], &["b"]),
    };
    graph = graph.node("MatMul", &["b", v], &["c"]).node_with("Cast", &["c"], &["y"], vec![("to", Value::Int(FLOAT))]);
    Model::from_bytes(&graph.output("y", FLOAT, &["n", "3"]).build()).unwrap()
}

/// Checks that such models train in bfloat16 and float16, wherever the ratio is, whether the trainer or the model chooses the type, and in
/// parts as at once.
pub fn trains_in_sixteen_bits(engine: &EngineOptions) {
    let x = Tensor::from_f32(&[SAMPLES, 4], &[1.0; SAMPLES as usize * 4]);
    let labels = Tensor::from_f32(&[SAMPLES, 3], &[0.0; SAMPLES as usize * 3]);
    for (precision, own) in [(Precision::bfloat16(), BFLOAT16), (Precision::float16(), FLOAT16)] {
        for is_own in [false, true] {
            let run = |ratio_is_attribute: bool, parts: u64| {
                let mut training = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(1.0 / 64.0));
                training.precision = (!is_own).then(|| precision.clone());
                training.accumulate = parts;
                let mut options = trainer_options(training, engine.clone());
                options.batch_size = Some(SAMPLES / parts);
                let model = model(is_own.then_some(own), ratio_is_attribute);
                let mut trainer = forebay::Trainer::new(model, options).unwrap();
                let batch = || BTreeMap::from([("x".to_string(), x.clone())]);
                let mut losses = Vec::new();
                for _ in 0..2 {
                    losses.push(trainer.step(batch(), labels.clone()).unwrap().loss);
                }
                (losses, trainer.parameters().unwrap())
            };
            let what = format!("{}, own conversions: {is_own}", precision.kind);
            let (losses, parameters) = run(false, 1);
            // The mean of ((kept units) / 16)^2, about 1 plus its variance.
            let squares = f64::from(losses[0]) * 256.0 * SAMPLES as f64;
            assert!((losses[0] - 1.0).abs() < 0.5 && losses[0] != 1.0, "{what}: {losses:?}");
            assert!((squares - squares.round()).abs() < 1e-2, "{what}: {losses:?}");
            assert!(losses[1] < losses[0], "{what}: {losses:?}");
            assert!(parameters.values().all(|value| value.data_type() == DataType::Float32));
            assert!(run(true, 1) == (losses.clone(), parameters.clone()), "{what}: the ratio is an attribute");
            assert!(run(false, 2) == (losses, parameters), "{what}: in two parts");
        }
    }
}
