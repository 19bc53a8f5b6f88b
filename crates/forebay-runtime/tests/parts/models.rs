//! Training steps of the test models.

use std::path::Path;

use forebay_model::program::Program;
use forebay_model::training::{Loss, Optimizer, TrainingOptions, training_graph};
use forebay_model::{Graph, infer, lower, onnx};
use forebay_testing::onnx::builder::{FLOAT, GraphBuilder};

const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
const ADAM: Optimizer = Optimizer::Adam {
    learning_rate: 1e-3,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.01,
    decoupled: true,
};

/// A training step: classes with cross-entropy and AdamW, or predicted images with squared error and SGD.
pub fn training(name: &str) -> Program {
    training_by(name, if name == "unet3d" { SGD } else { ADAM })
}

/// The same step with another optimizer.
pub fn training_by(name: &str, optimizer: Optimizer) -> Program {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(name).join("model.onnx");
    let graph = onnx::read_file(&path).unwrap().graph;
    // The classes of a language model are the last axis.
    let class_axis = (name == "tiny-gpt").then_some(-1);
    let loss = match name {
        "unet3d" => Loss::MeanSquaredError,
        _ => Loss::SoftmaxCrossEntropy { class_axis, ignore_index: None },
    };
    step(graph, TrainingOptions::new(loss, optimizer))
}

/// A step of a product with a matrix of the given size.
pub fn product(rows: u64, columns: u64, optimizer: Optimizer) -> Program {
    let weights = vec![0.5; (rows * columns) as usize];
    let model = GraphBuilder::new()
        .input("x", FLOAT, &["2", &rows.to_string()])
        .floats("w", &[rows as usize, columns as usize], &weights)
        .node("MatMul", &["x", "w"], &["y"])
        .output("y", FLOAT, &["2", &columns.to_string()]);
    let graph = onnx::read(&model.build(), None).unwrap().graph;
    step(graph, TrainingOptions::new(Loss::MeanSquaredError, optimizer))
}

fn step(mut graph: Graph, options: TrainingOptions) -> Program {
    infer::infer(&mut graph, None).unwrap();
    let training = training_graph(&graph, &options).unwrap();
    let parameters = training.parameters.iter().copied().collect();
    forebay_plan::fuse::fuse(lower::lower(&training.graph, &parameters).unwrap())
}
