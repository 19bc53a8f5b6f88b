//! A budget's price: steps with the budget in turn with unlimited ones, in the same process, so that both see the same
//! machine in the same mood.

use std::time::{Duration, Instant};

use forebay::{EngineOptions, MemoryLimit, MemoryMode, Model, Tensor, Trainer, TrainerOptions};
use serde_json::Value;

use crate::failure::Failure;
use crate::feeding::Tensors;
use crate::interrupt;
use crate::report::median;

/// Pairs of steps to run.
const PAIRS_MAX: usize = 3;
/// No further pair starts after this long.
const TIME_MAX: Duration = Duration::from_secs(20);

/// What the steps took, and whether they agreed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Pairs that ran.
    pub pairs: usize,
    /// Median time of a step with the budget.
    pub seconds: f64,
    /// Median time of a step without it.
    pub unlimited_seconds: f64,
    /// Whether the losses were the same, bit for bit.
    pub identical: bool,
}

/// Runs a few more steps on one batch, and the same ones without a budget on a copy of the model. The trainer's parameters
/// move on: everything worth keeping is to be saved before.
///
/// # Errors
/// Where the unlimited run does not fit the machine, for example.
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
    // Where it does not fit the machine, it is no comparison.
    memory.memory_limit = Some(MemoryLimit::Unlimited);
    // Without a budget nothing moves, so durations decide nothing.
    planning.costs = None;
    measuring.trace = false;
    let mut unlimited = Trainer::new(model, options)?;
    let state = trainer.checkpoint(&Value::Null)?;
    unlimited.restore(&state)?;
    // A first step touches memory for the first time; the other trainer's did so long ago.
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
