//! Takes arbitrary bytes as an ONNX model through import, shape inference, the training graph and lowering. Any result is fine, but a
//! panic, an allocation beyond libFuzzer's limit or an endless loop is not. A model that was read must also survive being written.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use forebay_model::training::{training_graph, Loss, Optimizer, TrainingOptions};
use forebay_model::{infer, lower, onnx};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(model) = onnx::read(bytes, None) else { return };
    if let Ok(written) = onnx::write(&model, &BTreeMap::new()) {
        let again = onnx::read(&written, None).expect("what was written can be read");
        assert_eq!(again.graph.initializers, model.graph.initializers);
    }
    let mut graph = model.graph;
    if infer::infer(&mut graph, Some(2)).is_err() {
        return;
    }
    if let Ok(program) = lower::lower(&graph, &BTreeSet::new()) {
        program.validate().expect("what is lowered is valid");
    }
    let optimizer = Optimizer::Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.1 };
    let mut options = TrainingOptions::new(Loss::default(), optimizer);
    options.gradient_outputs = true;
    if let Ok(mut training) = training_graph(&graph, &options) {
        if infer::infer(&mut training.graph, Some(2)).is_ok() {
            let parameters = training.parameters.iter().copied().collect();
            if let Ok(program) = lower::lower(&training.graph, &parameters) {
                program.validate().expect("what is lowered is valid");
            }
        }
    }
});
