//! Steps that process their batch in parts produce the same bits as with the whole batch.

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{Model, PartsApart, Trainer};
use forebay_golden::accumulation::{
    convolutions, images_have_the_bits_of_the_batch, rows_have_the_bits_of_the_batch,
    sixteen_bits_have_the_bits_of_the_batch, trainer,
};
use forebay_golden::onnx::builder::{FLOAT, GraphBuilder};
use forebay_golden::{host, trainer_options};

#[test]
fn images_in_parts_have_the_bits_of_the_batch() {
    images_have_the_bits_of_the_batch(
        &host(2),
        &["8", "13", "32"],
        &[(6, 2, 6), (6, 3, 6), (8, 8, 8), (9, 3, 9), (8, 4, 7), (6, 2, 1)],
    );
}

#[test]
fn rows_in_parts_have_the_bits_of_the_batch() {
    rows_have_the_bits_of_the_batch(&host(2), &[(12, 3, 12), (1024, 4, 1024), (700, 7, 650), (64, 2, 33), (5, 5, 5)]);
}

#[test]
fn sixteen_bits_in_parts_have_the_bits_of_the_batch() {
    sixteen_bits_have_the_bits_of_the_batch(&host(2), &[(1024, 2, 1024), (48, 3, 48)]);
}

/// Batches that are more than their individual samples are computed part by part, and so are those of a model with a fixed batch size.
#[test]
fn what_depends_on_its_batch_is_told() {
    let case = forebay_golden::Case::read("digits-cnn");
    let normalized = trainer(&case.model(), &forebay_golden::recipe(&case), (8, 2), host(1));
    assert_eq!(normalized.parts_apart(), Some(PartsApart::BatchStatistics));
    let graph = GraphBuilder::new().input("x", FLOAT, &["4", "3"]).integers("sizes", &[2], &[4, 2]);
    let bytes = graph
        .floats("w", &[3, 2], &[0.5; 6])
        .node("MatMul", &["x", "w"], &["product"])
        .node("Reshape", &["product", "sizes"], &["y"])
        .output("y", FLOAT, &["4", "2"])
        .build();
    let mut options = trainer_options(TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(0.1)), host(1));
    options.training.accumulate = 3;
    let fixed = Trainer::new(Model::from_bytes(&bytes).unwrap(), options).unwrap();
    assert_eq!((fixed.parts_apart(), fixed.inputs()[0].shape[0]), (Some(PartsApart::BatchSize), 12));
}

/// A part's activations are freed before the next part begins.
#[test]
fn parts_take_the_memory_of_one() {
    let classes = Loss::SoftmaxCrossEntropy { class_axis: None, ignore_index: None };
    let options = TrainingOptions::new(classes, Optimizer::sgd(0.1));
    let peak_bytes = |batch: u64, parts: u64| {
        let trainer = trainer(&convolutions("64"), &options, (batch, parts), host(1));
        trainer.statistics().in_core_peak_bytes
    };
    let (one, eight, in_parts) = (peak_bytes(4, 1), peak_bytes(32, 1), peak_bytes(32, 8));
    assert!(eight > 6 * one, "{eight} bytes for 32 images, {one} for 4");
    let inputs = 32 * 3 * 64 * 64 * 4;
    assert!(in_parts < one + one / 4 + inputs, "{in_parts} bytes for 32 images in 8 parts, {one} for 4");
}
