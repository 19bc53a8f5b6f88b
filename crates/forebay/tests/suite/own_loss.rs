//! Models that compute their loss themselves.

use std::collections::BTreeMap;

use forebay::data::LabelKind;
use forebay::training::{Loss, Optimizer};
use forebay::{Model, Tensor, Trainer};
use forebay_base::DataType;
use forebay_golden::host;
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder, INT64, Value};

/// A classifier, with or without its loss.
fn model(loss: bool) -> Model {
    let mut graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", "4"])
        .floats("w", &[4, 3], &[0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8, 0.9, -1.0, 1.1, 1.2])
        .node("MatMul", &["x", "w"], &["logits"]);
    graph = match loss {
        false => graph.output("logits", FLOAT, &["N", "3"]),
        true => graph
            .input("wanted", INT64, &["N"])
            .integers("shape", &[1], &[1])
            .node_with(
                "SoftmaxCrossEntropyLoss",
                &["logits", "wanted"],
                &["mean"],
                vec![("ignore_index", Value::Int(-1))],
            )
            .node("Reshape", &["mean", "shape"], &["cost"])
            .output("cost", FLOAT, &["1"])
            .output("logits", FLOAT, &["N", "3"]),
    };
    Model::from_bytes(&graph.build()).unwrap()
}

fn batch(count: u64) -> (BTreeMap<String, Tensor>, Tensor) {
    let x: Vec<f32> = (0..4 * count).map(|i| (i as f32 * 0.7).sin()).collect();
    let labels: Vec<i64> = (0..count as i64).map(|i| if i == 1 { -1 } else { i % 3 }).collect();
    ([("x".to_string(), Tensor::from_f32(&[count, 4], &x))].into(), Tensor::from_i64(&[count], &labels))
}

#[test]
fn training_on_a_models_own_loss_is_training_on_the_same_loss() {
    let builder = |loss| Trainer::builder(&model(loss)).engine(host(2)).optimizer(Optimizer::sgd(0.5)).batch_size(4);
    let usual = Loss::SoftmaxCrossEntropy { class_axis: None, ignore_index: Some(-1) };
    let own = Loss::Output { labels: Some("wanted".to_string()) };
    let mut usual = builder(false).loss(usual).build().unwrap();
    let mut own = builder(true).loss(own).loss_output("cost").build().unwrap();
    for count in [4, 6, 4] {
        let (x, labels) = batch(count);
        let expected = usual.step(x.clone(), labels.clone()).unwrap().loss;
        let found = own.step(x, labels).unwrap().loss;
        assert!((found - expected).abs() <= 1e-6, "{found} {expected}");
    }
    let (found, expected) = (own.parameter("w").unwrap().unwrap(), usual.parameter("w").unwrap().unwrap());
    for (found, expected) in found.to_f32().unwrap().iter().zip(expected.to_f32().unwrap()) {
        assert!((found - expected).abs() <= 1e-6, "{found} {expected}");
    }
    let (x, labels) = batch(3);
    let evaluation = own.evaluate(x, labels).unwrap();
    assert!(evaluation.loss.is_finite() && evaluation.logits.count() == 1);
}

#[test]
fn what_is_no_loss_is_refused() {
    let refused = |loss: Loss, output: &str| {
        let builder = Trainer::builder(&model(true)).engine(host(1)).batch_size(4).loss(loss).loss_output(output);
        builder.build().err().unwrap().to_string()
    };
    let unnamed = refused(Loss::Output { labels: None }, "cost");
    assert!(unnamed.contains("--label-input") && unnamed.contains("x, wanted"), "{unnamed}");
    let matrix = refused(Loss::Output { labels: Some("wanted".to_string()) }, "logits");
    assert!(matrix.contains("'logits' (float32[4, 3]) is not a loss"), "{matrix}");
}

/// Folders of images and sounds and columns of words contain classes.
#[test]
fn integers_that_are_labels_of_samples_or_positions_are_classes() {
    let kind = |label_type, dimensions: &[&str]| {
        let model = GraphBuilder::new()
            .input("x", FLOAT, &["N", "4"])
            .input("labels", label_type, dimensions)
            .floats("w", &[4], &[0.1, 0.2, 0.3, 0.4])
            .node("Mul", &["x", "w"], &["products"])
            .node_with("ReduceMean", &["products"], &["mean"], vec![("keepdims", Value::Int(0))])
            .node_with("Cast", &["labels"], &["numbers"], vec![("to", Value::Int(FLOAT))])
            .node_with("ReduceMean", &["numbers"], &["other"], vec![("keepdims", Value::Int(0))])
            .node("Mul", &["mean", "other"], &["loss"])
            .output("loss", FLOAT, &[])
            .build();
        let model = Model::from_bytes(&model).unwrap();
        let builder = Trainer::builder(&model).engine(host(1)).batch_size(2).loss(Loss::Output { labels: None });
        builder.build().unwrap().data_requirements(1.0).unwrap().labels
    };
    assert_eq!(kind(INT64, &["N"]), LabelKind::Classes);
    assert_eq!(kind(INT64, &["N", "5", "6"]), LabelKind::Classes);
    assert_eq!(kind(INT64, &["N", "5"]), LabelKind::Values(DataType::Int64));
    assert_eq!(kind(FLOAT, &["N"]), LabelKind::Values(DataType::Float32));
}
