//! Comparisons of a device with what PyTorch computes.

use std::collections::BTreeMap;

use forebay::{EngineOptions, Session, Tensor, Trainer};

use crate::case::{Case, to_f64};
use crate::{recipe, trainer, with_learning_rate};

/// A learning rate so large that the gradient can be read off one step of plain gradient descent: a power of two, so that scaling is exact,
/// and so large that the parameter is negligible next to it.
const READING_RATE: f32 = (1u32 << 20) as f32;

/// Checks that the forward pass agrees.
pub fn forward(case: &Case, engine: EngineOptions) {
    let mut session = Session::builder(&case.model()).engine(engine).build().unwrap();
    let outputs = session.run(case.input()).unwrap();
    let (output, expected) = (to_f64(&outputs["logits"]), to_f64(&case.output()));
    assert_eq!(output.len(), expected.len());
    let distance = output.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let tolerance = case.number("/forward/abs_tolerance");
    assert!(distance <= tolerance, "{}: {distance} is more than {tolerance}", case.name);
}

/// Checks that the gradients of the first step agree.
pub fn gradients(case: &Case, engine: EngineOptions) {
    let mut trainer = trainer(case.model(), with_learning_rate(case, READING_RATE), engine);
    let before = trainer.parameters().unwrap();
    let (batch, labels) = case.batch(0);
    trainer.step(batch, labels).unwrap();
    let after = trainer.parameters().unwrap();
    let gradients: BTreeMap<String, Vec<f64>> = before
        .iter()
        .map(|(name, before)| {
            let pairs = to_f64(before).into_iter().zip(to_f64(&after[name]));
            (name.clone(), pairs.map(|(before, after)| (before - after) / f64::from(READING_RATE)).collect())
        })
        .collect();
    case.compare_tensors("grad_step_1", "grad_step_1_rel_l2", &gradients);
}

/// Checks that the losses of the first steps agree.
pub fn first_losses(case: &Case, engine: EngineOptions, steps: usize) {
    losses(case, &mut trainer(case.model(), recipe(case), engine), steps);
}

fn losses(case: &Case, trainer: &mut Trainer, steps: usize) {
    for step in 0..steps {
        let (batch, labels) = case.batch(step);
        case.compare_loss(step, trainer.step(batch, labels).unwrap().loss);
    }
}

/// Checks that the losses, parameters and statistics of all steps agree.
pub fn training(case: &Case, engine: EngineOptions) {
    let mut trainer = trainer(case.model(), recipe(case), engine);
    losses(case, &mut trainer, case.number("/steps") as usize);
    let values = |tensors: BTreeMap<String, Tensor>| -> BTreeMap<String, Vec<f64>> {
        let floats = tensors.iter().filter(|(_, tensor)| tensor.to_f32().is_some());
        floats.map(|(name, tensor)| (name.clone(), to_f64(tensor))).collect()
    };
    case.compare_tensors("params_after", "params_after_rel_l2", &values(trainer.parameters().unwrap()));
    if case.log.get("buffers_after").is_some() {
        case.compare_tensors("buffers_after", "buffers_after_rel_l2", &values(trainer.state().unwrap()));
    }
    let trainable: Vec<String> = serde_json::from_value(case.log["trainable"].clone()).unwrap();
    let mut trained: Vec<String> = trainer.parameters().unwrap().into_keys().collect();
    let mut expected = trainable;
    trained.sort();
    expected.sort();
    assert_eq!(trained, expected, "what trains");
}
