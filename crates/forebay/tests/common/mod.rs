//! What the product's tests share.
#![allow(dead_code)] // Every test file uses its own part.

pub mod golden;
pub mod indices;
pub mod matrices;
pub mod onnx;
pub mod reference;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay::device::chaos::ChaosDevice;
use forebay::device::host::{HostDevice, HostOptions};
use forebay::training::{DecayRule, Loss, Optimizer, TrainingOptions};
use forebay::{Device, DeviceOptions, HostTensor, Model, Trainer, TrainerOptions};
use golden::Case;

/// The host device with this many threads.
pub fn host(threads: usize) -> DeviceOptions {
    DeviceOptions { threads: Some(threads), ..DeviceOptions::default() }
}

/// The host device in the most permissive order, with random delays.
pub fn chaos(threads: usize, seed: u64) -> Arc<dyn Device> {
    let host = HostDevice::new(&HostOptions { threads: Some(threads), ..HostOptions::default() }).unwrap();
    Arc::new(ChaosDevice::new(Arc::new(host), seed).unwrap())
}

/// A trainer on the device that the options name.
pub fn trainer(model: Model, training: TrainingOptions, device: DeviceOptions) -> Trainer {
    trainer_on(model, training, device, None)
}

/// A trainer on this device, if one is given.
pub fn trainer_on(
    model: Model,
    training: TrainingOptions,
    options: DeviceOptions,
    device: Option<Arc<dyn Device>>,
) -> Trainer {
    let options = TrainerOptions { device: options, ..TrainerOptions::new(training) };
    match device {
        Some(device) => Trainer::with_device(model, options, device).unwrap(),
        None => Trainer::new(model, options).unwrap(),
    }
}

fn options(case: &Case, optimizer: Optimizer) -> TrainingOptions {
    let class_axis = Some(case.number("/loss/class_axis") as i64);
    TrainingOptions {
        loss: Loss::SoftmaxCrossEntropy { class_axis, ignore_index: None },
        loss_output: None,
        optimizer,
        decay: None,
        freeze: Vec::new(),
        seed: 0,
        gradient_outputs: false,
    }
}

/// Plain gradient descent with this learning rate.
pub fn with_learning_rate(case: &Case, learning_rate: f32) -> TrainingOptions {
    options(case, Optimizer::Sgd { learning_rate, momentum: 0.0, nesterov: false, weight_decay: 0.0 })
}

/// The case's own recipe.
pub fn recipe(case: &Case) -> TrainingOptions {
    let number = |name: &str| case.number(&format!("/optimizer/{name}")) as f32;
    match case.log["optimizer"]["kind"].as_str() {
        Some("sgd") => options(
            case,
            Optimizer::Sgd {
                learning_rate: number("lr"),
                momentum: number("momentum"),
                nesterov: false,
                weight_decay: number("weight_decay"),
            },
        ),
        Some("adamw") => {
            let optimizer = Optimizer::Adam {
                learning_rate: number("lr"),
                beta1: number("beta1"),
                beta2: number("beta2"),
                epsilon: number("epsilon"),
                weight_decay: number("weight_decay"),
                decoupled: true,
            };
            TrainingOptions { decay: Some(DecayRule::MatricesOnly), ..options(case, optimizer) }
        }
        kind => panic!("{}: an unknown optimizer {kind:?}", case.name),
    }
}

/// Losses, and everything that the steps changed.
#[derive(Debug, PartialEq)]
pub struct Run {
    /// One per step.
    pub losses: Vec<u32>,
    /// By name.
    pub values: BTreeMap<String, HostTensor>,
}

/// Trains on the case's first batches.
pub fn run(case: &Case, trainer: &mut Trainer, steps: usize) -> Run {
    let mut losses = Vec::new();
    for step in 0..steps {
        let (batch, labels) = case.batch(step);
        losses.push(trainer.step(batch, labels).unwrap().loss.to_bits());
    }
    let mut values = trainer.parameters().unwrap();
    values.extend(trainer.state().unwrap());
    Run { losses, values }
}

/// The same losses and values, bit for bit; else the names of tensors that differ.
pub fn assert_same(expected: &Run, found: &Run, what: &str) {
    assert_eq!(expected.losses, found.losses, "{what}: losses");
    let differing: Vec<&String> = expected
        .values
        .iter()
        .filter(|(name, value)| found.values.get(*name) != Some(value))
        .map(|(name, _)| name)
        .collect();
    assert!(differing.is_empty(), "{what}: {differing:?}");
    assert_eq!(expected.values.len(), found.values.len(), "{what}");
}
