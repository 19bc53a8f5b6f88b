//! Training steps of the test models.

use std::path::Path;

use forebay_model::program::Program;
use forebay_model::training::{training_graph, Loss, Optimizer, TrainingOptions};
use forebay_model::{infer, lower, onnx};

const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
const ADAM: Optimizer = Optimizer::Adam {
    learning_rate: 1e-3,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.01,
    decoupled: true,
};

/// The steps with both losses and optimizers.
pub fn training(name: &str) -> Vec<(&'static str, Program)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(name).join("model.onnx");
    let mut graph = onnx::read_file(&path).unwrap().graph;
    infer::infer(&mut graph, None).unwrap();
    // The classes of a model of language are the last axis.
    let class_axis = (name == "tiny-gpt").then_some(-1);
    let classes = Loss::SoftmaxCrossEntropy { class_axis, ignore_index: None };
    let steps = [("squared error and SGD", Loss::MeanSquaredError, SGD), ("cross entropy and AdamW", classes, ADAM)];
    let step = |(what, loss, optimizer): (_, Loss, Optimizer)| {
        let options = TrainingOptions::new(loss, optimizer);
        let training = training_graph(&graph, &options).unwrap();
        let parameters = training.parameters.iter().copied().collect();
        (what, forebay_plan::fuse::fuse(lower::lower(&training.graph, &parameters).unwrap()))
    };
    steps.into_iter().map(step).collect()
}
