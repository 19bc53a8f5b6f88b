//! Training through the kernel of attention is training through products and a softmax.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{Model, Tensor};
use forebay_base::Command;
use forebay_golden::{host, onnx, to_f64, trainer};
use forebay_testing::Random;

/// Batches, heads, rows, and elements of a head.
const SIZES: [usize; 4] = [2, 3, 6, 8];
const WEIGHTS: [&str; 3] = ["wq", "wk", "wv"];

/// Queries, keys and values are x times a matrix each; a trained bias [1, 3, 6, 6] is added to the scores.
fn model(seed: u64, end: &[Vec<u8>]) -> Model {
    let mut random = Random::new(seed);
    let size = SIZES[3];
    let mut nodes: Vec<Vec<u8>> =
        WEIGHTS.iter().map(|weights| onnx::node("MatMul", &["x", weights], &weights[1..], &[])).collect();
    nodes.extend_from_slice(end);
    let mut initializers: Vec<Vec<u8>> =
        WEIGHTS.iter().map(|weights| onnx::floats(weights, &[size, size], &random.values(size * size))).collect();
    let bias = [1, SIZES[1], SIZES[2], SIZES[2]];
    initializers.push(onnx::floats("bias", &bias, &random.values(bias.iter().product())));
    initializers.push(onnx::floats("scale", &[], &[1.0 / (size as f64).sqrt()]));
    Model::from_bytes(&onnx::model(&nodes, &initializers, ("x", &SIZES), ("y", &SIZES))).unwrap()
}

/// The losses of some steps, the parameters after them, and the names of the kernels.
fn trained(model: Model) -> (Vec<f64>, BTreeMap<String, Vec<f64>>, Vec<&'static str>) {
    let mut options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(0.5));
    options.freeze.push("scale".to_string());
    let mut trainer = trainer(model, options, host(2));
    let shape = SIZES.map(|size| size as u64);
    let mut random = Random::new(7);
    let mut tensor = || {
        let values: Vec<f32> = random.values(SIZES.iter().product()).into_iter().map(|value| value as f32).collect();
        Tensor::from_f32(&shape, &values)
    };
    let (x, y) = (tensor(), tensor());
    let step = |_| f64::from(trainer.step([("x".to_string(), x.clone())].into(), y.clone()).unwrap().loss);
    let losses = (0..3).map(step).collect();
    let parameters = trainer.parameters().unwrap();
    let parameters = parameters.iter().map(|(name, tensor)| (name.clone(), to_f64(tensor))).collect();
    let launches = trainer.plan().commands.iter().filter_map(|command| match command {
        Command::Launch(launch) => Some(launch.kernel.name()),
        _ => None,
    });
    let kernels = launches.collect();
    (losses, parameters, kernels)
}

fn compare(fused: Model, plain: Model) {
    let (losses, parameters, kernels) = trained(fused);
    assert!(kernels.contains(&"Attention") && kernels.contains(&"AttentionGradient"), "{kernels:?}");
    let (plain_losses, plain_parameters, kernels) = trained(plain);
    assert!(!kernels.contains(&"Attention"), "{kernels:?}");
    let close = |a: &[f64], b: &[f64], what: &str| {
        let distance = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(a.len() == b.len() && distance < 2e-5, "{what}: {distance}");
    };
    close(&losses, &plain_losses, "losses");
    assert!(losses[2] < losses[0], "{losses:?}");
    for (name, values) in &parameters {
        close(values, &plain_parameters[name], name);
    }
}

/// Products of q and k up to the scores.
fn products() -> Vec<Vec<u8>> {
    vec![
        onnx::node("Transpose", &["k"], "turned", &[("perm", &[0, 1, 3, 2], true)]),
        onnx::node("MatMul", &["q", "turned"], "products", &[]),
    ]
}

#[test]
fn the_operator_trains_as_what_it_means_and_its_mask_too() {
    let fused = [onnx::node("Attention", &["q", "k", "v", "bias"], "y", &[])];
    // A scale that might train is no constant: this stays as it is.
    let plain = [
        products(),
        vec![
            onnx::node("Mul", &["products", "scale"], "scaled", &[]),
            onnx::node("Add", &["scaled", "bias"], "scores", &[]),
            onnx::node("Softmax", &["scores"], "p", &[]),
            onnx::node("MatMul", &["p", "v"], "y", &[]),
        ],
    ];
    compare(model(1, &fused), model(1, &plain.concat()));
}

#[test]
fn what_is_recognized_trains_as_it_was_written() {
    let ends = ["p", "same"].map(|p| {
        let written = vec![
            onnx::node("Add", &["bias", "products"], "scores", &[]),
            onnx::node("Softmax", &["scores"], "p", &[]),
            onnx::node("Identity", &["p"], "same", &[]),
            onnx::node("MatMul", &[p, "v"], "y", &[]),
        ];
        [products(), written].concat()
    });
    compare(model(2, &ends[0]), model(2, &ends[1]));
}
