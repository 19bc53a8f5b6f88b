//! Golden cases: models in `testdata/golden` with PyTorch's results, and the helpers that the library's tests share to train and compare
//! them. A development dependency only.
//!
//! | module | holds |
//! |---|---|
//! | [`accumulation`] | models whose steps process a batch in parts |
//! | [`case`] | the cases, and how to compare with them |
//! | [`dropout`] | models with dropout between products of 16 bits |
//! | [`mod@reference`] | comparisons of a device with what PyTorch computes |
//! | [`matrices`] | a model whose matrices are larger than its activations |
//! | [`indices`] | a model that computes the indices of a table's rows |
//! | [`losses`] | losses compared with PyTorch's |

pub mod accumulation;
pub mod case;
pub mod dropout;
pub mod indices;
pub mod losses;
pub mod matrices;
pub mod reference;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use forebay::training::{DecayRule, Loss, Optimizer, TrainingOptions};
use forebay::{Device, EngineOptions, Model, Tensor, Trainer, TrainerOptions};
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};

pub use case::{Case, to_f64};
pub use forebay_testing::onnx;

/// Returns options for the host device with this number of threads.
pub fn host(threads: usize) -> EngineOptions {
    EngineOptions::default().threads(threads)
}

/// Returns the host device with the most permissive order and random delays.
pub fn chaos(threads: usize, seed: u64) -> Arc<dyn Device> {
    let host = HostDevice::new(&HostOptions { threads: Some(threads), ..HostOptions::default() }).unwrap();
    Arc::new(ChaosDevice::new(Arc::new(host), seed).unwrap())
}

/// Returns a trainer on the device that the options name.
pub fn trainer(model: Model, training: TrainingOptions, engine: EngineOptions) -> Trainer {
    trainer_on(model, training, engine, None)
}

/// Returns options for this training on this engine.
pub fn trainer_options(training: TrainingOptions, engine: EngineOptions) -> TrainerOptions {
    let mut options = TrainerOptions::new(training);
    options.engine = engine;
    options
}

/// Returns a trainer on this device, if one is given.
pub fn trainer_on(
    model: Model,
    training: TrainingOptions,
    engine: EngineOptions,
    device: Option<Arc<dyn Device>>,
) -> Trainer {
    let options = trainer_options(training, engine);
    match device {
        Some(device) => Trainer::with_device(model, options, device).unwrap(),
        None => Trainer::new(model, options).unwrap(),
    }
}

fn options(case: &Case, optimizer: Optimizer) -> TrainingOptions {
    let class_axis = Some(case.number("/loss/class_axis") as i64);
    TrainingOptions::new(Loss::SoftmaxCrossEntropy { class_axis, ignore_index: None }, optimizer)
}

/// Returns options for plain gradient descent with this learning rate.
pub fn with_learning_rate(case: &Case, learning_rate: f32) -> TrainingOptions {
    options(case, Optimizer::sgd(learning_rate))
}

/// Returns the case's own recipe.
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
            let mut training = options(case, optimizer);
            training.decay = Some(DecayRule::MatricesOnly);
            training
        }
        kind => panic!("{}: an unknown optimizer {kind:?}", case.name),
    }
}

/// Losses, and everything that the steps changed.
#[derive(Debug, PartialEq)]
pub struct Run {
    /// The bits of the losses, one per step.
    pub losses: Vec<u32>,
    /// Parameters and state, by name.
    pub values: BTreeMap<String, Tensor>,
}

/// Trains on the case's first batches.
pub fn run(case: &Case, trainer: &mut Trainer, steps: usize) -> Run {
    Run { losses: self::steps(case, trainer, 0..steps), values: everything(trainer) }
}

/// Trains on these batches of the case. Returns the bits of the losses.
pub fn steps(case: &Case, trainer: &mut Trainer, steps: Range<usize>) -> Vec<u32> {
    let step = |step| {
        let (batch, labels) = case.batch(step);
        trainer.step(batch, labels).unwrap().loss.to_bits()
    };
    steps.map(step).collect()
}

/// Returns everything that steps change: parameters and state, by name.
pub fn everything(trainer: &Trainer) -> BTreeMap<String, Tensor> {
    let mut values = trainer.parameters().unwrap();
    values.extend(trainer.state().unwrap());
    values
}

/// Asserts that losses and values are the same, bit for bit; the message names the tensors that differ.
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
