//! The cost of a budget: steps with the budget alternate with unlimited ones in the same process, so that both run on the same
//! machine in the same state.

use std::time::{Duration, Instant};

use forebay::{EngineOptions, MemoryLimit, MemoryMode, Model, Tensor, Trainer, TrainerOptions};
use serde_json::Value;

use crate::failure::Failure;
use crate::feeding::Tensors;
use crate::interrupt;
use crate::report::median;

/// The maximum number of pairs of steps to run.
const PAIRS_MAX: usize = 3;
/// The time after which no further pair starts.
const TIME_MAX: Duration = Duration::from_secs(20);

/// How long the steps took, and whether their losses agreed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// The number of pairs that ran.
    pub pairs: usize,
    /// Median time of a step with the budget.
    pub seconds: f64,
    /// Median time of a step without it.
    pub unlimited_seconds: f64,
    /// Whether the losses were the same, bit for bit.
    pub identical: bool,
}

/// Runs a few more steps on one batch, and the same steps without a budget on a copy of the model. This changes the trainer's
/// parameters, so save everything worth keeping first.
///
/// # Errors
/// Fails if the unlimited run does not fit the machine, for example.
pub fn compare(
    trainer: &mut Trainer,
    model: Model,
    mut options: TrainerOptions,
    batch: &Tensors,
    labels: &Tensor,
) -> Result<Option<Comparison>, Failure> {
    let EngineOptions { memory, planning, measuring, .. } = &mut options.engine;
    (memory.device_memory, memory.simulate_device) = (None, None);
    (memory.mode, memory.eviction) = (MemoryMode::Planned, None);
    // If it does not fit the machine, there is no comparison.
    memory.memory_limit = Some(MemoryLimit::Unlimited);
    // Without a budget nothing moves, so durations have no influence.
    planning.costs = None;
    measuring.trace = false;
    let mut unlimited = Trainer::new(model, options)?;
    let state = trainer.checkpoint(&Value::Null)?;
    unlimited.restore(&state)?;
    // The first step touches memory for the first time, which the other trainer did long ago.
    unlimited.step(batch.clone(), labels.clone())?;
    unlimited.restore(&state)?;
    let (mut seconds, mut unlimited_seconds, mut identical) = (Vec::new(), Vec::new(), true);
    let start = Instant::now();
    while seconds.len() < PAIRS_MAX && start.elapsed() < TIME_MAX && !interrupt::requested() {
        let ours = trainer.step(batch.clone(), labels.clone())?;
        let theirs = unlimited.step(batch.clone(), labels.clone())?;
        seconds.push(ours.seconds);
        unlimited_seconds.push(theirs.seconds);
        identical &= ours.loss.to_bits() == theirs.loss.to_bits();
    }
    let pairs = seconds.len();
    Ok(median(seconds).zip(median(unlimited_seconds)).map(|(seconds, unlimited_seconds)| Comparison {
        pairs,
        seconds,
        unlimited_seconds,
        identical,
    }))
}
