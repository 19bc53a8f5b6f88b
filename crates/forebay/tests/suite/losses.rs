//! Losses: values and gradients compared with PyTorch and MONAI, the same bits within every budget, and invalid options.

use std::collections::BTreeMap;

use forebay::training::{Loss, Optimizer, Region, Shares, TrainingOptions};
use forebay::{EngineOptions, MemorySize, Model, Tensor, Trainer};
use forebay_golden::losses::cases;
use forebay_golden::{Case, host, onnx, trainer};
use onnx::builder::{FLOAT, GraphBuilder};

#[test]
fn losses_and_gradients_are_those_of_pytorch() {
    let cases = cases();
    assert!(cases.len() > 40);
    for case in cases {
        case.check(host(2));
    }
}

/// Two convolutions over volumes, with three classes.
fn volumes() -> Model {
    let numbers = |count: usize| (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 150.0).collect::<Vec<f32>>();
    let pads = || vec![("pads", onnx::builder::Value::Ints(vec![1; 6]))];
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["2", "1", "20", "18", "16"])
        .floats("w1", &[4, 1, 3, 3, 3], &numbers(108))
        .floats("w2", &[3, 4, 3, 3, 3], &numbers(324))
        .node_with("Conv", &["x", "w1"], &["c1"], pads())
        .node("Relu", &["c1"], &["r1"])
        .node_with("Conv", &["r1", "w2"], &["logits"], pads())
        .output("logits", FLOAT, &["2", "3", "20", "18", "16"]);
    Model::from_bytes(&graph.build()).unwrap()
}

/// The volumes leave the device, and the operands of the loss are cut into parts.
#[test]
fn dice_keeps_its_bits_within_a_budget() {
    let x: Vec<f32> = (0..11520).map(|i| (i as f32 * 0.37).sin()).collect();
    let labels: Vec<i64> = (0..11520).map(|i| i / 7 % 3).collect();
    let batch = BTreeMap::from([("x".to_string(), Tensor::from_f32(&[2, 1, 20, 18, 16], &x))]);
    let labels = Tensor::from_i64(&[2, 20, 18, 16], &labels);
    let mut region = Region::default();
    region.include_background = false;
    let run = |loss: &Loss, engine: EngineOptions| {
        let mut trainer = trainer(volumes(), TrainingOptions::new(loss.clone(), Optimizer::sgd(0.5)), engine);
        let losses: Vec<u32> =
            (0..2).map(|_| trainer.step(batch.clone(), labels.clone()).unwrap().loss.to_bits()).collect();
        (losses, trainer.parameters().unwrap(), trainer.statistics().clone())
    };
    for loss in [
        Loss::DiceCrossEntropy { region: region.clone(), dice_weight: 1.0, cross_entropy_weight: 1.0 },
        Loss::Tversky { region, alpha: 0.3, beta: 0.7 },
    ] {
        let (losses, parameters, statistics) = run(&loss, host(2).check(true));
        assert!(losses[1] != losses[0]);
        let (least, peak) = (statistics.minimum_budget_bytes, statistics.in_core_peak_bytes);
        assert!(least < peak / 3, "{least} of {peak} bytes: not even the loss is cut into parts");
        for size in [MemorySize::Percent(40.0), MemorySize::Bytes(least)] {
            let limited = run(&loss, host(2).simulate_device(size).check(true));
            assert!(limited.0 == losses && limited.1 == parameters, "{loss:?} within {size:?}");
        }
    }
}

/// Where a prediction is certain, the power of what is left has no derivative if gamma is below 1, but the loss does.
#[test]
fn focal_losses_of_certain_predictions_have_gradients() {
    let one_hot = |scale: f32| (0..9).map(|i| if i % 4 == 0 { scale } else { 0.0 }).collect::<Vec<f32>>();
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["3", "3"])
        .floats("w", &[3, 3], &one_hot(200.0))
        .node("MatMul", &["x", "w"], &["logits"])
        .output("logits", FLOAT, &["3", "3"]);
    let model = Model::from_bytes(&graph.build()).unwrap();
    let x = Tensor::from_f32(&[3, 3], &one_hot(1.0));
    let of_classes = Loss::Focal { class_axis: None, ignore_index: None, class_weights: vec![], gamma: 0.5 };
    for (loss, labels) in
        [(of_classes, Tensor::from_i64(&[3], &[0, 1, 2])), (Loss::BinaryFocal { alpha: None, gamma: 0.5 }, x.clone())]
    {
        let mut options = TrainingOptions::new(loss, Optimizer::sgd(0.1));
        options.gradient_norm = true;
        let mut trainer = trainer(model.clone(), options, host(1));
        let report = trainer.step(BTreeMap::from([("x".to_string(), x.clone())]), labels).unwrap();
        assert!(report.gradient_norm.unwrap().is_finite(), "{report:?}");
    }
}

#[test]
fn losses_that_do_not_fit_are_refused() {
    let case = Case::read("digits-cnn");
    let refused = |loss: Loss| Trainer::builder(&case.model()).loss(loss).build().err().unwrap().to_string();
    let entropy = |class_weights, label_smoothing| Loss::WeightedCrossEntropy {
        class_axis: None,
        ignore_index: None,
        class_weights,
        label_smoothing,
    };
    let weights = refused(entropy(vec![1.0, 2.0], 0.0));
    assert!(weights.contains("2 weights were given for 10 classes"), "{weights}");
    let smoothing = refused(entropy(vec![], 1.5));
    assert!(smoothing.contains("label smoothing must be from 0 to 1, not 1.5"), "{smoothing}");
    assert!(refused(Loss::Huber { delta: 0.0 }).contains("delta must be a finite number above 0, not 0"));
    let other = Loss::CosineEmbedding { axis: None, margin: 0.0, other_output: Some("pair".to_string()) };
    assert!(refused(other).contains("'pair'"));
    let mut region = Region::default();
    (region.has_targets, region.shares, region.ignore_index) = (true, Shares::Sigmoid, Some(0));
    assert!(refused(Loss::Dice(region)).contains("no label to ignore"));
}
