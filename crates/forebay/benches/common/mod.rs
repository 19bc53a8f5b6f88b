//! What benches share: how they train, inputs made here, and medians.
#![allow(dead_code)] // Every bench uses its own part.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay::training::{Loss, Optimizer, TrainingOptions};
use forebay::{DataType, Tensor, TensorInfo, Trainer};
use forebay_testing::Random;

/// Whatever ends a bench.
pub type Failure = Box<dyn std::error::Error>;

/// The U-Net of the brain example.
pub fn brain() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/brain/unet3d.onnx")
}

/// Softmax cross-entropy with momentum.
pub fn training(class_axis: Option<i64>) -> TrainingOptions {
    TrainingOptions::new(
        Loss::SoftmaxCrossEntropy { class_axis, ignore_index: None },
        Optimizer::Sgd { learning_rate: 0.01, momentum: 0.9, nesterov: false, weight_decay: 0.0 },
    )
}

/// The value in the middle; the mean of the two middle ones where there are two; no number of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count => (values[count / 2] + values[(count - 1) / 2]) / 2.0,
    }
}

/// A batch of inputs and labels that fit a trainer, the same in every run.
pub fn batch(trainer: &Trainer) -> (BTreeMap<String, Tensor>, Tensor) {
    let inputs = trainer.inputs().iter().map(|info| (info.name.clone(), noise(info))).collect();
    (inputs, labels(trainer.labels()))
}

/// Numbers that look random, the same in every run.
fn noise(info: &TensorInfo) -> Tensor {
    let count = info.shape.iter().product::<u64>();
    let mut random = Random::new(0);
    let values: Vec<f32> = (0..count).map(|_| random.float()).collect();
    match info.data_type {
        DataType::Int64 => Tensor::from_i64(&info.shape, &vec![0; count as usize]),
        _ => Tensor::from_f32(&info.shape, &values),
    }
}

/// Two classes in turn, in pieces as objects have them.
fn labels(info: &TensorInfo) -> Tensor {
    let count = info.shape.iter().product::<u64>();
    let values: Vec<i64> = (0..count).map(|i| i64::from(i / 16 % 2 == 0)).collect();
    Tensor::from_i64(&info.shape, &values)
}
