//! The starting point of training: the model, its plan and the data, as specified by the flags and a checkpoint. Nothing is written.

use forebay::data::{DataSet, Sampler, Transform};
use forebay::training::Loss;
use forebay::{Checkpoint, Model, OnNan, PartsApart, PlanSearch, Trainer, TrainerOptions, documents, format_bytes};
use serde_json::Value;

use crate::arguments::{OnNanKind, TrainArguments};
use crate::budget_file::BudgetFile;
use crate::failure::Failure;
use crate::feeding;
use crate::interrupt;
use crate::limits::{Enough, open_or_name_least, plan_validation};
use crate::metrics;
use crate::output::{self, is_same};
use crate::plan::warn_of_unknown_costs;
use crate::processes::{Processes, ShardKind};
use crate::record_arguments::Shown;
use crate::resuming::{agreed, check_batches, check_data};
use crate::training_options::training_options;

/// The starting point of training.
pub struct Opened {
    /// The model, as read.
    pub model: Model,
    /// How it is trained.
    pub options: TrainerOptions,
    /// The trainer, at the step of the checkpoint.
    pub trainer: Trainer,
    /// The training data.
    pub data: DataSet,
    /// The validation data, if any.
    pub validation: Option<DataSet>,
    /// The digest of the data, if it was needed.
    pub digest: Option<String>,
    /// The sampler, which determines the samples of each batch.
    pub sampler: Sampler,
    /// The number of samples per step.
    pub batch_size: u64,
    /// The seed of the order.
    pub shuffle: Option<u64>,
    /// The position in the checkpoint; null without a checkpoint.
    pub position: Value,
    /// The file that the budget is read from.
    pub budget_file: Option<BudgetFile>,
    /// Why validation will fail, if it will.
    pub validation_failure: Option<Failure>,
}

/// Opens everything, for one of several processes.
///
/// # Errors
/// Fails with anything that prevents training.
pub fn open(arguments: &TrainArguments, processes: &Processes) -> Result<Opened, Failure> {
    if processes.group().is_some() {
        return open_with(arguments, processes, None);
    }
    if arguments.shard.is_some() {
        output::complain("note: --shard has no effect: this is the only process");
    }
    open_or_name_least(|enough| open_with(arguments, processes, enough))
}

/// Opens everything with another limit or budget than was given, if any.
fn open_with(arguments: &TrainArguments, processes: &Processes, enough: Option<Enough>) -> Result<Opened, Failure> {
    // Errors in the flags are reported before anything is read.
    arguments.schedule.schedule(1)?;
    let shard = arguments.shard;
    if shard == Some(ShardKind::Parameters) && arguments.records.histogram_steps(Shown::Parameters).is_some() {
        let reason = "--histograms-every needs whole parameters, which no process has; use --shard gradients, which keeps \
                      them whole, or --histograms gradients, which shows only gradients";
        return Err(Failure::Usage(format!("--shard parameters: {reason}")));
    }
    let checkpoint = arguments.resume.as_ref().map(Checkpoint::read).transpose()?;
    let position = checkpoint.as_ref().map(|checkpoint| &checkpoint.position);
    // Checkpoints of other programs say nothing about batches.
    let earlier = |key: &str| Some(position?.get(key)?.as_u64());
    let shuffle = agreed("--shuffle", arguments.shuffle, earlier("shuffle"))?;
    let asked = agreed("--batch-size", arguments.training.batch_size, earlier("batch_size"))?;
    let mut options = TrainerOptions::new(training_options(&arguments.training, shuffle.unwrap_or(0))?);
    metrics::of_validation(&options.training.loss, &arguments.metrics)?;
    options.engine = arguments.device.options(arguments.trace.trace.is_some());
    processes.enter(&mut options.engine.device);
    if processes.group().is_none() {
        // Several processes stop together, after a step.
        options.engine.planning.stop = interrupt::planning();
    }
    options.engine.device.shard = ShardKind::shard(shard);
    options.engine.planning.updates = arguments.updates.updates();
    if arguments.dry_run {
        // Report the plan that most steps would run by, not the one that training starts with.
        options.engine.planning.search = PlanSearch::Whole;
    }
    options.engine.planning.costs = arguments.costs.as_deref().map(documents::read_costs).transpose()?;
    let budget_file = match arguments.device_memory_file.clone().map(BudgetFile::open).transpose()? {
        Some((file, size)) => {
            let memory = &mut options.engine.memory;
            let budget =
                if memory.simulate_device.is_some() { &mut memory.simulate_device } else { &mut memory.device_memory };
            *budget = Some(size);
            Some(file)
        }
        None => None,
    };
    enough.iter().for_each(|enough| enough.set(&mut options.engine.memory));
    options.batch_size = asked;
    options.on_nan = match arguments.on_nan {
        OnNanKind::Stop => OnNan::Stop,
        OnNanKind::Continue => OnNan::Continue,
        OnNanKind::Skip => OnNan::Skip,
    };
    let model = arguments.training.head.replace(Model::from_file(&arguments.model)?)?;
    let model = arguments.training.adapters.adapt(model)?;
    if arguments.save.is_some() || arguments.save_ema.is_some() {
        model.check_size()?;
    }
    arguments.training.gradients.add_layers(&model, &mut options.training)?;
    // Flags take precedence over the data.
    options.sizes = feeding::sizes_of_data(arguments, &model)?;
    options.sizes.extend(arguments.training.size.iter().cloned());
    let augment = &arguments.reading.augment;
    if augment.iter().any(|transform| matches!(transform, Transform::Mixup { .. })) {
        options.training.loss = soft_loss(&options.training.loss)?;
    }
    let mut trainer = Trainer::new(model.clone(), options.clone())?;
    // Class maps are cut as they are; the plan knows whether there are any.
    let has_maps = trainer.labels().shape.len() > 1;
    if !has_maps && augment.iter().any(|transform| matches!(transform, Transform::Cutmix { .. })) {
        let soft = soft_loss(&options.training.loss)?;
        if soft != options.training.loss {
            drop(trainer);
            options.training.loss = soft;
            trainer = Trainer::new(model.clone(), options.clone())?;
        }
    }
    warn_of_unknown_costs(trainer.unknown_costs());
    if let Some(reason) = trainer.parts_apart() {
        let reason = match reason {
            PartsApart::BatchStatistics => "batch normalization uses the statistics of each part",
            PartsApart::BatchSize => "the model does not accept a larger batch than it states",
        };
        output::complain(&format!(
            "note: --accumulate: {reason}, so the parts of a batch are separate batches, and their losses are averaged; the \
             result differs from that of one large batch"
        ));
    }
    let mut data = feeding::open(&trainer, arguments)?;
    let mut validation = feeding::open_validation(&trainer, arguments)?;
    // The memory that both of them hold counts.
    trainer.keep_memory_limit()?;
    if arguments.records.histogram_steps(Shown::Gradients).is_some() {
        trainer.plan_gradients().map_err(|error| Failure::from(error).at("--histograms gradients"))?;
    }
    if let Some(validation) = &mut validation {
        validation.number_classes_like(&data)?;
        feeding::keep_less(validation, &data, &trainer);
    }
    let mut digest = None;
    if let Some(checkpoint) = &checkpoint {
        check_batches(arguments, &checkpoint.position)?;
        digest = check_data(arguments, &data, &checkpoint.position)?;
        trainer.restore(checkpoint)?;
    }
    let batch_size = trainer.batch_size();
    let validation_failure = match plan_validation(&mut trainer, arguments, batch_size, validation.as_ref()) {
        Err(failure @ Failure::Budget(..)) => return Err(failure),
        planned => planned.err(),
    };
    let sampler = feeding::training_sampler(&mut data, &model, arguments, batch_size, shuffle)?;
    let sample_count = data.sample_count();
    if sample_count < batch_size {
        output::complain(&format!(
            "note: {} has {sample_count} samples, fewer than a batch of {batch_size}: each step trains on {sample_count}, \
             with a separate plan",
            arguments.data
        ));
    }
    let position = position.cloned().unwrap_or_default();
    Ok(Opened {
        model,
        options,
        trainer,
        data,
        validation,
        digest,
        sampler,
        batch_size,
        shuffle,
        position,
        budget_file,
        validation_failure,
    })
}

/// Returns a loss for mixed labels: a loss of classes becomes the loss of their probabilities.
///
/// # Errors
/// Fails if a loss of classes has no such form.
fn soft_loss(loss: &Loss) -> Result<Loss, Failure> {
    if loss.class_axis().is_none() {
        return Ok(loss.clone());
    }
    let reason = "--augment mixup and cutmix mix labels, which turns classes into probabilities; of the losses for classes, only \
                  softmax-cross-entropy accepts these, and only without --ignore-index";
    loss.soft().ok_or_else(|| Failure::Usage(reason.to_owned()))
}

/// Returns the total number of steps, including the `done` steps before a checkpoint.
///
/// # Errors
/// Fails if the number is out of range, or if there is nothing left to do.
pub fn steps_in_all(arguments: &TrainArguments, steps_per_epoch: u64, done: u64) -> Result<u64, Failure> {
    let epochs = arguments.epochs.unwrap_or(1);
    let steps = arguments.steps.or_else(|| epochs.checked_mul(steps_per_epoch));
    let too_large = || Failure::Usage(format!("the number of steps in {epochs} epochs is too large"));
    let steps = steps.ok_or_else(too_large)?;
    if done < steps {
        return Ok(steps);
    }
    let folders = arguments.checkpoint.as_deref().zip(arguments.resume.as_deref());
    let asks_for_checkpoint = folders.is_some_and(|(asked, resumed)| !is_same(asked, resumed));
    let saves = [&arguments.save, &arguments.save_ema, &arguments.save_adapters].into_iter().any(Option::is_some);
    if !saves && arguments.validation().is_none() && !asks_for_checkpoint {
        return Err(Failure::Usage(format!(
            "the checkpoint is at step {done}, so there is nothing left to do up to step {steps}; --steps and --epochs \
             count from the beginning (--save writes the model as it is)"
        )));
    }
    output::complain(&format!("note: the checkpoint is at step {done} of {steps}, so no step is left to train"));
    Ok(done)
}

/// Describes the contents of a data set in one line.
///
/// # Errors
/// Fails if a file no longer exists.
pub fn found(name: &str, data: &DataSet) -> Result<String, Failure> {
    let found = data.description()?;
    let (size, held) = (format_bytes(found.size_bytes), format_bytes(found.held_bytes));
    let reading = match found.held_bytes {
        0 => "read when needed".to_owned(),
        _ => format!("{held} of it in memory"),
    };
    let (samples, kind, tensors) = (found.samples, found.kind, found.tensors.join(", "));
    Ok(format!("{name}: {samples} samples, {kind}: {tensors}; {size}, {reading}"))
}
