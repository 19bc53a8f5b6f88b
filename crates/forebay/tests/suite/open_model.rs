//! A model as part of a larger program that trains: outputs, running statistics and gradients are those of a training step.

use std::collections::BTreeMap;

use forebay::training::Optimizer;
use forebay::{Model, Session, SessionOptions, Tensor, Trainer};

const BATCH: usize = 50;
const CLASSES: usize = 10;

/// Images that look random, with a class for each.
fn batch() -> (Tensor, Tensor) {
    let pixels: Vec<f32> = (0..BATCH * 64).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 1000.0).collect();
    let labels: Vec<i64> = (0..BATCH).map(|i| (i * 7 % CLASSES) as i64).collect();
    (Tensor::from_f32(&[BATCH as u64, 1, 8, 8], &pixels), Tensor::from_i64(&[BATCH as u64], &labels))
}

/// The gradient of the mean cross-entropy with respect to the logits.
fn loss_gradient(logits: &Tensor, labels: &Tensor) -> Tensor {
    let (logits, labels) = (logits.to_f64().unwrap(), labels.to_i64().unwrap());
    let mut gradient = Vec::with_capacity(logits.len());
    for (row, label) in logits.chunks(CLASSES).zip(labels) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|logit| (logit - largest).exp()).sum();
        gradient.extend(row.iter().enumerate().map(|(class, logit)| {
            let probability = (logit - largest).exp() / sum;
            ((probability - f64::from(class as i64 == label)) / BATCH as f64) as f32
        }));
    }
    Tensor::from_f32(&[BATCH as u64, CLASSES as u64], &gradient)
}

#[test]
fn gradients_are_those_of_a_training_step() {
    let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx").unwrap();
    let (x, labels) = batch();
    // After one step without decay, the velocity is the gradient.
    let optimizer = Optimizer::Sgd { learning_rate: 0.0, momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let mut trainer = Trainer::builder(&model).optimizer(optimizer).build().unwrap();
    let mut inputs = trainer.parameters().unwrap();
    inputs.extend(trainer.state().unwrap().into_iter().filter(|(name, _)| !name.ends_with(".velocity")));
    inputs.insert("x".to_string(), x.clone());
    trainer.step(BTreeMap::from([("x".to_string(), x)]), labels.clone()).unwrap();
    let state = trainer.state().unwrap();

    let mut forwards = Session::of_open_model(&model, &SessionOptions::default(), true).unwrap();
    let outputs = forwards.run(inputs.clone()).unwrap();
    let logits = forwards.outputs()[0].name.clone();
    let next: Vec<_> =
        outputs.iter().filter_map(|(name, tensor)| Some((name.strip_prefix("next:")?, tensor))).collect();
    assert_eq!(next.len(), 6);
    for (name, tensor) in next {
        assert_eq!(&state[name], tensor, "{name}");
    }

    let mut backwards = Session::of_gradients(&model, &SessionOptions::default(), true).unwrap();
    inputs.insert(format!("gradient:{logits}"), loss_gradient(&outputs[&logits], &labels));
    let gradients = backwards.run(inputs).unwrap();
    assert!(gradients.contains_key("gradient:x"));
    for (name, velocity) in state.iter().filter_map(|(name, state)| Some((name.strip_suffix(".velocity")?, state))) {
        let (ours, theirs) = (gradients[&format!("gradient:{name}")].to_f32().unwrap(), velocity.to_f32().unwrap());
        let largest = theirs.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert!((ours - theirs).abs() <= 1e-5 * largest + 1e-8, "{name}: {ours} and {theirs}");
        }
    }
}

#[test]
fn within_a_budget_the_bits_are_the_same() {
    let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx").unwrap();
    let (x, labels) = batch();
    let trainer = Trainer::builder(&model).build().unwrap();
    let mut inputs = trainer.parameters().unwrap();
    inputs.extend(trainer.state().unwrap().into_iter().filter(|(name, _)| !name.contains(".velocity")));
    inputs.insert("x".to_string(), x);
    let logits = Tensor::from_f32(&[BATCH as u64, CLASSES as u64], &[0.0; BATCH * CLASSES]);
    inputs.insert("gradient:logits".to_string(), loss_gradient(&logits, &labels));
    let run = |budget: Option<&str>| {
        let mut options = SessionOptions::default();
        options.engine.memory.simulate_device = budget.map(|budget| budget.parse().unwrap());
        let mut session = Session::of_gradients(&model, &options, true).unwrap();
        (session.run(inputs.clone()).unwrap(), session.statistics().unwrap().device_peak_bytes)
    };
    let (whole, bytes) = run(None);
    let (within, fewer) = run(Some("60%"));
    assert_eq!(whole, within);
    assert!(fewer < bytes);
}
