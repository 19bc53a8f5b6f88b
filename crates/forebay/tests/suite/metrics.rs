//! Metrics, compared with scikit-learn.

use forebay::Tensor;
use forebay::metrics::{Metric, Metrics};
use forebay::training::Loss;
use serde_json::Value;

fn table() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/training/metrics.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn floats(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn chosen(row: &Value) -> Vec<Metric> {
    row["values"].as_object().unwrap().keys().map(|name| name.parse().unwrap()).collect()
}

fn compare(row: &Value, metrics: &Metrics) {
    assert!(!metrics.chosen().is_empty());
    for &metric in metrics.chosen() {
        let expected = row["values"][metric.to_string()].as_f64().unwrap();
        let found = metrics.value(metric).unwrap();
        assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{metric} is {found}, not {expected}");
    }
}

#[test]
fn metrics_of_classes() {
    let row = &table()["classes"];
    let (logits, labels) = (floats(&row["logits"]), floats(&row["labels"]));
    let labels: Vec<i64> = labels.into_iter().map(|label| label as i64).collect();
    let mut metrics = Metrics::new(&Loss::default(), &chosen(row)).unwrap();
    // In two batches.
    for part in [0..13, 13..40] {
        let logits = Tensor::from_f32(&[part.len() as u64, 5], &logits[5 * part.start..5 * part.end]);
        metrics.add(&logits, &Tensor::from_i64(&[part.len() as u64], &labels[part]));
    }
    compare(row, &metrics);
    let mut confused = Metrics::new(&Loss::default(), &[Metric::Confusion]).unwrap();
    confused.add(&Tensor::from_f32(&[40, 5], &logits), &Tensor::from_i64(&[40], &labels));
    assert_eq!(serde_json::json!(confused.confusion()), row["confusion"]);
}

#[test]
fn classes_along_another_axis_and_ignored_labels() {
    let row = &table()["classes"];
    let logits = floats(&row["logits"]);
    let labels: Vec<i64> = floats(&row["labels"]).into_iter().map(|label| label as i64).collect();
    // One image of 5 channels with 41 places, the last of which does not count.
    let places = 41;
    let mut image = vec![9.0; 5 * places];
    for (i, &logit) in logits.iter().enumerate() {
        image[i % 5 * places + i / 5] = logit;
    }
    let labels = [labels, vec![255]].concat();
    let loss = Loss::SoftmaxCrossEntropy { class_axis: None, ignore_index: Some(255) };
    let mut metrics = Metrics::new(&loss, &chosen(row)).unwrap();
    metrics.add(&Tensor::from_f32(&[1, 5, places as u64], &image), &Tensor::from_i64(&[1, places as u64], &labels));
    compare(row, &metrics);
}

#[test]
fn metrics_of_decisions_and_numbers() {
    let table = table();
    let row = &table["decisions"];
    let loss = Loss::BinaryCrossEntropy { class_axis: None, positive_weights: Vec::new() };
    let mut metrics = Metrics::new(&loss, &chosen(row)).unwrap();
    metrics.add(
        &Tensor::from_f32(&[30, 3], &floats(&row["scores"])),
        &Tensor::from_f32(&[30, 3], &floats(&row["targets"])),
    );
    compare(row, &metrics);
    // With the classes last.
    let loss = Loss::BinaryCrossEntropy { class_axis: Some(-1), positive_weights: Vec::new() };
    let mut metrics = Metrics::new(&loss, &chosen(row)).unwrap();
    metrics.add(
        &Tensor::from_f32(&[10, 3, 3], &floats(&row["scores"])),
        &Tensor::from_f32(&[10, 3, 3], &floats(&row["targets"])),
    );
    compare(row, &metrics);
    let row = &table["numbers"];
    let mut metrics = Metrics::new(&Loss::MeanAbsoluteError, &chosen(row)).unwrap();
    metrics
        .add(&Tensor::from_f32(&[12], &floats(&row["predicted"])), &Tensor::from_f32(&[12], &floats(&row["targets"])));
    compare(row, &metrics);
}

#[test]
fn predictions_that_are_not_numbers_are_not_right() {
    let chosen = [Metric::TopK(2), Metric::Auc];
    let mut metrics = Metrics::new(&Loss::default(), &chosen).unwrap();
    let logits = [f32::NAN, f32::NAN, f32::NAN, 1.0, 2.0, 3.0];
    metrics.add(&Tensor::from_f32(&[2, 3], &logits), &Tensor::from_i64(&[2], &[0, 1]));
    assert_eq!(chosen.map(|metric| metrics.value(metric)), [Some(0.5), None]);
    let loss = Loss::BinaryCrossEntropy { class_axis: None, positive_weights: Vec::new() };
    let mut metrics = Metrics::new(&loss, &[Metric::Auc]).unwrap();
    let decisions = Tensor::from_f32(&[2, 2], &[1.0, f32::NAN, -1.0, 0.0]);
    metrics.add(&decisions, &Tensor::from_f32(&[2, 2], &[1.0, 1.0, 0.0, 0.0]));
    assert_eq!(metrics.value(Metric::Auc), None);
}

#[test]
fn metrics_that_do_not_fit_are_refused() {
    let error = Metrics::new(&Loss::MeanSquaredError, &[Metric::F1]).unwrap_err().to_string();
    assert!(error.contains("'f1' does not fit") && error.contains("mae"), "{error}");
    let error = "best".parse::<Metric>().unwrap_err().to_string();
    assert!(error.contains("'best'") && error.contains("perplexity"), "{error}");
    let empty = Metrics::new(&Loss::default(), &[Metric::Auc]).unwrap();
    assert_eq!(empty.value(Metric::Auc), None);
}
