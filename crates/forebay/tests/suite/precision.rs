//! Mixed precision as an option: losses compared with PyTorch's autocast, the stored types, and scaled gradients.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, Precision};
use forebay::{Checkpoint, MemorySize, Model, OnNan, Tensor, Trainer, TrainerBuilder};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};

fn digits() -> TrainerBuilder {
    let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx").unwrap();
    Trainer::builder(&model).optimizer(Optimizer::sgd(0.05)).batch_size(50)
}

/// The digits of a step and their classes.
fn batch(step: u64) -> (BTreeMap<String, Tensor>, Tensor) {
    let mut archive = forebay::data::npz::Archive::open("../../examples/digits/digits.npz".as_ref()).unwrap();
    let (x, y) = (archive.read("x").unwrap().to_i64().unwrap(), archive.read("y").unwrap().to_i64().unwrap());
    let (first, last) = (50 * step as usize, 50 * step as usize + 50);
    let x: Vec<f32> = x[64 * first..64 * last].iter().map(|&gray| gray as f32 / 16.0).collect();
    ([("x".to_string(), Tensor::from_f32(&[50, 1, 8, 8], &x))].into(), Tensor::from_i64(&[50], &y[first..last]))
}

fn losses(trainer: &mut Trainer) -> Vec<f32> {
    let step = |step| {
        let (inputs, labels) = batch(step);
        trainer.step(inputs, labels).unwrap().loss
    };
    (0..5).map(step).collect()
}

fn furthest(losses: &[f32], expected: &[f32]) -> f32 {
    losses.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The losses of five steps in float32, and how far the losses with `torch.autocast` are from them in PyTorch 2.15 on a CPU.
#[test]
fn losses_are_as_near_to_those_of_float32_as_those_of_autocast() {
    const FLOAT32: [f32; 5] = [2.392_658, 2.321_889, 2.279_877, 2.307_041, 2.257_628];
    assert!(furthest(&losses(&mut digits().build().unwrap()), &FLOAT32) < 2e-6);
    for (precision, autocast) in [(Precision::bfloat16(), 1.9e-4), (Precision::float16(), 2.8e-5)] {
        let mut trainer = digits().precision(precision.clone()).build().unwrap();
        let found = losses(&mut trainer);
        let distance = furthest(&found, &FLOAT32);
        assert!(distance > 0.0 && distance < 2.0 * autocast, "{precision:?}: {distance} from float32's losses");
        assert!(
            trainer.parameters().unwrap().values().all(|tensor| tensor.to_f32().is_some()),
            "parameters stay float32"
        );
        // The bits are the same within less memory, and evaluation has the same precision.
        let least = MemorySize::Bytes(trainer.statistics().minimum_budget_bytes);
        let mut small = digits().precision(precision).simulate_device(least).build().unwrap();
        assert_eq!(losses(&mut small), found);
        assert_eq!(small.parameters().unwrap(), trainer.parameters().unwrap());
        let (inputs, labels) = batch(0);
        let evaluated = trainer.evaluate(inputs.clone(), labels.clone()).unwrap();
        assert_eq!(small.evaluate(inputs, labels).unwrap(), evaluated);
    }
}

#[test]
fn nodes_stay_float32_where_they_are_named() {
    let mut precision = Precision::bfloat16();
    precision.float32.push("*".to_string());
    let all = losses(&mut digits().precision(precision.clone()).build().unwrap());
    assert_eq!(all, losses(&mut digits().build().unwrap()));
    precision.float32 = vec!["conv?.weight".to_string()];
    let some = losses(&mut digits().precision(precision.clone()).build().unwrap());
    assert!(some != all && some != losses(&mut digits().precision(Precision::bfloat16()).build().unwrap()));
    precision.float32 = vec!["nothing".to_string()];
    let error = digits().precision(precision).build().err().unwrap().to_string();
    assert!(error.contains("'nothing' matches no node"), "{error}");
}

/// A ReLU that stays float32 after a convolution in bfloat16, and a convolution that does before a ReLU and another in float16.
#[test]
fn what_stays_float32_next_to_a_relu_trains_and_validates() {
    let numbers = |count: usize| (0..count).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect::<Vec<_>>();
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["2", "1", "6", "6"])
        .floats("w1", &[1, 1, 3, 3], &numbers(9))
        .floats("w2", &[1, 1, 3, 3], &numbers(9))
        .node("Conv", &["x", "w1"], &["convolved"])
        .node("Relu", &["convolved"], &["rectified"])
        .node("Conv", &["rectified", "w2"], &["y"])
        .output("y", FLOAT, &["2", "1", "2", "2"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let x = BTreeMap::from([("x".to_string(), Tensor::from_f32(&[2, 1, 6, 6], &numbers(72)))]);
    let targets = Tensor::from_f32(&[2, 1, 2, 2], &numbers(8));
    for (mut precision, pattern) in [(Precision::bfloat16(), "rectified"), (Precision::float16(), "w1")] {
        precision.float32.push(pattern.to_string());
        let mut trainer = Trainer::builder(&model).loss(Loss::MeanSquaredError).precision(precision).build().unwrap();
        let before = trainer.evaluate(x.clone(), targets.clone()).unwrap().loss;
        let loss = trainer.step(x.clone(), targets.clone()).unwrap().loss;
        assert!(loss > 0.0 && (loss - before).abs() <= 1e-6 * loss, "{pattern}: {loss}, evaluated {before}");
    }
}

/// Two products with a function between them: what is kept of it takes half as many bytes.
#[test]
fn what_is_stored_takes_half_of_the_memory() {
    let (rows, columns) = (2048usize, 64usize);
    let numbers = |count: usize| (0..count).map(|i| (i * 37 % 101) as f32 / 1010.0 - 0.05).collect::<Vec<_>>();
    let mut graph =
        GraphBuilder::new().input("x", FLOAT, &["2048", "16"]).floats("w0", &[16, columns], &numbers(16 * columns));
    graph = graph.node("MatMul", &["x", "w0"], &["h0"]);
    for layer in 0..16 {
        let [w, b, product, sum, kept] =
            ["w", "b", "product", "sum", "kept"].map(|name| format!("{name}{}", layer + 1));
        let before = if layer == 0 { "h0".to_string() } else { format!("kept{layer}") };
        graph = graph
            .floats(&w, &[columns, columns], &numbers(columns * columns))
            .floats(&b, &[columns], &numbers(columns))
            .node("MatMul", &[&before, &w], &[&product])
            .node("Add", &[&product, &b], &[&sum])
            .node("Tanh", &[&sum], &[&kept]);
    }
    let graph =
        graph.node("Identity", &["kept16"], &["y"]).output("y", FLOAT, &[&rows.to_string(), &columns.to_string()]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let activations = |precision: Option<Precision>| {
        let mut builder = Trainer::builder(&model).loss(Loss::MeanSquaredError);
        if let Some(precision) = precision {
            builder = builder.precision(precision);
        }
        let trainer = builder.build().unwrap();
        let parameters: u64 = (16 * (columns * columns + columns) + 16 * columns) as u64 * 4;
        trainer.statistics().in_core_peak_bytes - parameters
    };
    let (full, half) = (activations(None), activations(Some(Precision::bfloat16())));
    assert!(half < full * 7 / 10, "{half} instead of {full} bytes next to the parameters");
}

/// The scaled gradient of the loss exceeds float16: the step is skipped, and the factor is halved until it fits; a checkpoint keeps the
/// factor.
#[test]
fn gradients_of_float16_are_scaled_and_steps_that_are_too_large_are_left_out() {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["2", "2"])
        .floats("w", &[2, 2], &[0.5, -0.25, 0.75, 1.0])
        .node("MatMul", &["x", "w"], &["y"])
        .output("y", FLOAT, &["2", "2"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let new = |on_nan| {
        let builder = Trainer::builder(&model).loss(Loss::MeanSquaredError).optimizer(Optimizer::sgd(0.01));
        builder.precision(Precision::float16()).on_nan(on_nan).build().unwrap()
    };
    let x = BTreeMap::from([("x".to_string(), Tensor::from_f32(&[2, 2], &[1.0, 2.0, -1.0, 0.5]))]);
    let targets = Tensor::from_f32(&[2, 2], &[9.0, -7.0, 5.0, 3.0]);
    for on_nan in [OnNan::Stop, OnNan::Continue, OnNan::Skip] {
        let mut trainer = new(on_nan);
        let before = trainer.parameters().unwrap();
        let reports: Vec<_> = (0..12).map(|_| trainer.step(x.clone(), targets.clone()).unwrap()).collect();
        let scales: Vec<f32> = reports.iter().map(|report| report.loss_scale.unwrap()).collect();
        // 65536 / 2 (y - target) exceeds 65504 if the difference is above 4.
        assert!(reports[0].skipped && scales[..2] == [65536.0, 32768.0], "{scales:?}");
        let kept: Vec<_> = reports.iter().filter(|report| !report.skipped).collect();
        assert!(kept.len() >= 3 && kept[0].loss == reports[0].loss && kept[2].loss < kept[0].loss, "{reports:?}");
        assert!(trainer.parameters().unwrap() != before);
        assert_eq!(trainer.skipped_count(), reports.iter().filter(|report| report.skipped).count() as u64);

        let folder = tempfile::tempdir().unwrap();
        trainer.save_checkpoint(folder.path(), &serde_json::Value::Null).unwrap();
        let mut resumed = new(on_nan);
        resumed.restore(&Checkpoint::read(folder.path()).unwrap()).unwrap();
        let (next, expected) = (resumed.step(x.clone(), targets.clone()), trainer.step(x.clone(), targets.clone()));
        let (next, expected) = (next.unwrap(), expected.unwrap());
        assert_eq!((next.loss.to_bits(), next.loss_scale), (expected.loss.to_bits(), expected.loss_scale));
    }
}
