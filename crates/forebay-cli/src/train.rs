//! `forebay train`: steps over a data set, checkpoints, validation, and the numbers at the end.

mod storing;
mod validate;

use std::collections::BTreeMap;
use std::path::Path;

use forebay::data::{Batch, DataSet, Loaded, Loader, Normalization};
use forebay::explain::explain;
use forebay::{
    CheckpointFolder, Model, PlanError, Replan, ReplanReason, StepReport, Trainer, TrainerOptions, memory_picture,
};
use forebay_device::process::give_back;
use serde_json::{Value, json};

use crate::arguments::{MemoryKind, TrainArguments};
use crate::best_loss::BestLoss;
use crate::budget_file::BudgetFile;
use crate::compare::{Comparison, compare};
use crate::data_arguments::{Normalize, ValidateBy};
use crate::epoch_loss::EpochLoss;
use crate::failure::Failure;
use crate::feeding;
use crate::interrupt;
use crate::keeping::Keeper;
use crate::limits::{tell_of_budget, tell_of_limit};
use crate::log_file::step_line;
use crate::metrics;
use crate::opening::{self, Opened, found};
use crate::output;
use crate::page::Page;
use crate::processes::{Processes, facts_of};
use crate::progress::Progress;
use crate::record_arguments::Shown;
use crate::records::Records;
use crate::report::{Report, StepNumbers, of_run, resident_peak_bytes, say_json, statistics_of};
use crate::shared_steps::SharedSteps;
use crate::untrained::{tell_of_probabilities, tell_of_untrained};
use crate::validation::Validation;
use storing::Stored;

/// Trains a model, as one of several processes or alone.
///
/// # Errors
/// Fails with anything that prevents training; files that cannot be written are detected before the first step. Later failures to
/// write are reported at the end, after everything else was tried.
pub fn train(arguments: &TrainArguments) -> Result<(), Failure> {
    let processes = &Processes::join(&arguments.processes)?;
    let prepared = prepare(arguments, processes).and_then(|(run, keeper)| {
        let facts = run.facts()?;
        Ok(((run, keeper), facts))
    });
    let (mut run, mut keeper) = processes.agree(prepared)?;
    if let Some(folder) = &arguments.resume {
        keeper.resumed(folder, run.trainer.step_count());
    }
    // Nothing can be refused any more: this replaces lines of earlier runs.
    run.start_records().map_err(|failure| processes.fail(failure))?;
    let steps = run.steps_in_all;
    let is_enough = match run.train(steps, &mut keeper) {
        Ok(is_enough) => is_enough,
        Err(failure) => return Err(processes.fail(run.keep_despite(failure, &mut keeper))),
    };
    let done = run.trainer.step_count();
    let is_interrupted = done < steps && !is_enough;
    if is_interrupted || run.writes_at_the_end() {
        run.trainer.collect_shards().map_err(|error| processes.fail(error.into()))?;
    }
    if is_interrupted && !processes.is_first() {
        return Err(Failure::Interrupted("process 0 has the checkpoint".to_owned()));
    }
    let Stored { mut failures, folder, saved } = run.store(&mut keeper, is_interrupted);
    let place = folder.map(|folder| folder.display().to_string());
    if is_interrupted {
        failures.extend(run.write_page(None).err().map(|failure| failure.to_string()));
        let failures: String = failures.iter().map(|failure| format!("{failure}; ")).collect();
        let text = format!("interrupted after step {done} of {steps}; {failures}");
        return Err(match place {
            Some(folder) if failures.is_empty() => {
                Failure::Interrupted(format!("{text}the checkpoint is in {folder} (continue with --resume {folder})"))
            }
            Some(folder) => {
                Failure::Failed(format!("{text}the checkpoint is in {folder} (continue with --resume {folder})"))
            }
            None => Failure::Failed(format!("{text}there is no checkpoint")),
        });
    }
    failures.iter().for_each(|failure| output::complain(&format!("warning: {failure}")));
    let validation = match (arguments.validation(), run.latest.take()) {
        (Some(_), Some((step, validation))) if step == done => Some(validation),
        (Some(data), _) => {
            let found = run.validate_now(&data).and_then(|found| Ok((run.keep_best(done, found.loss)?, found)));
            let (unwritten, found) = found.map_err(|failure| processes.fail(failure))?;
            let is_best = unwritten.is_none() && run.best.best.is_some_and(|(_, step)| step == done);
            failures.extend(unwritten.map(|error| error.to_string()));
            // A run that resumes from here has to know the lowest loss, or it would replace its checkpoint by that of a higher one.
            if is_best && run.best_folder.is_some() && keeper.has(done) {
                failures.extend(run.keep(done, &mut keeper).err().map(|failure| failure.to_string()));
            }
            Some(found)
        }
        (None, _) => None,
    };
    // The rest changes the parameters or only reports.
    let peaks_bytes = (run.trainer.usage().heap_peak_bytes, resident_peak_bytes());
    if let Some(path) = arguments.trace.trace.as_ref().filter(|_| processes.is_first()) {
        failures.extend(output::write(path, &run.trainer.trace().to_string()).err().map(|failure| failure.to_string()));
    }
    failures.extend(run.write_page(validation.as_ref()).err().map(|failure| failure.to_string()));
    let comparison = run.compare();
    let shared =
        SharedSteps::of(processes, run.trainer.shared_work(), &run.steps).map_err(|failure| processes.fail(failure))?;
    let saved = arguments.save.as_deref().filter(|_| saved);
    run.tell(peaks_bytes, validation.as_ref(), comparison, shared.as_ref(), saved)?;
    if failures.is_empty() {
        return Ok(());
    }
    let model = arguments.model.display();
    let way_out = place.map(|folder| {
        format!("; step {done} is in {folder} (`forebay export {folder} --model {model} --save FILE` writes the model)")
    });
    Err(Failure::Failed(format!("{}{}", failures.join("; "), way_out.unwrap_or_default())))
}

/// Opens everything, and detects what could not be written at the end.
fn prepare<'a>(arguments: &'a TrainArguments, processes: &Processes) -> Result<(Run<'a>, Keeper), Failure> {
    let mut keeper = match processes.is_first() {
        true => {
            check_outputs(arguments)?;
            Keeper::new(arguments.checkpoint.as_deref(), arguments.save.as_deref())?
        }
        false => Keeper::new(None, None)?,
    };
    keeper.keep_last(arguments.keep_checkpoints);
    interrupt::listen()?;
    Ok((Run::start(arguments, processes.clone())?, keeper))
}

/// Detects files that cannot be written and flags that are not valid, before anything is read.
///
/// # Errors
/// Returns the first of them.
pub fn check_outputs(arguments: &TrainArguments) -> Result<(), Failure> {
    let costs = arguments.costs.as_ref().or(arguments.save_costs.as_ref());
    if costs.is_some() && arguments.device.memory != MemoryKind::Planned {
        let reason = "--costs and --save-costs only apply to --memory planned; the other modes have no plan";
        return Err(Failure::Usage(reason.to_owned()));
    }
    let reading = &arguments.reading;
    let has_windows = matches!(reading.validate_by, None | Some(ValidateBy::Windows));
    if !has_windows && (reading.window_overlap.is_some() || reading.window_blend.is_some()) {
        let reason = "--window-overlap and --window-blend only apply to --validate-by windows";
        return Err(Failure::Usage(reason.to_owned()));
    }
    let files = [
        ("--save", &arguments.save),
        ("--save-ema", &arguments.save_ema),
        ("--save-costs", &arguments.save_costs),
        ("--trace", &arguments.trace.trace),
        ("--log", &arguments.records.log),
        ("--report", &arguments.records.report),
    ];
    let files: Vec<(&str, &Path)> =
        files.into_iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?))).collect();
    files.iter().try_for_each(|(_, path)| output::check_writable(path))?;
    output::check_different(&files)?;
    // The trained model can replace the model, but nothing else can.
    let model = arguments.model.as_path();
    let replaces_model =
        |(flag, path): &(&str, &Path)| matches!(*flag, "--save" | "--save-ema") && output::is_same(path, model);
    let others: Vec<(&str, &Path)> = files.into_iter().filter(|file| !replaces_model(file)).collect();
    let data = std::iter::once(&arguments.data).chain(&arguments.validate).map(String::as_str);
    output::check_unread(&others, &data.chain(model.to_str()).collect::<Vec<_>>())?;
    let folders = [&arguments.save_adapters, &arguments.records.tensorboard];
    folders.into_iter().flatten().try_for_each(|folder| output::check_folder(folder))
}

/// A training run.
struct Run<'a> {
    arguments: &'a TrainArguments,
    processes: Processes,
    model: Model,
    options: TrainerOptions,
    trainer: Trainer,
    /// The data, batch by batch.
    loader: Loader,
    /// How samples are normalized.
    normalization: Option<Normalization>,
    /// The digest of the data, once it has been requested.
    digest: Option<String>,
    batch_size: u64,
    shuffle: Option<u64>,
    steps: Vec<StepNumbers>,
    epoch_loss: EpochLoss,
    best: BestLoss,
    /// The folder for the checkpoint with the lowest loss.
    best_folder: Option<CheckpointFolder>,
    /// The validation data.
    validation_data: Option<DataSet>,
    /// The numbers of all validations, and the latest one with its step.
    validations: Vec<Value>,
    latest: Option<(u64, Validation)>,
    /// Whether the validation after the last step is due. A run that fails in it resumes with it.
    validation_is_due: bool,
    records: Records,
    budget_file: Option<BudgetFile>,
    /// The total number of steps, including those before a checkpoint.
    steps_in_all: u64,
}

impl<'a> Run<'a> {
    fn start(arguments: &'a TrainArguments, processes: Processes) -> Result<Run<'a>, Failure> {
        let Opened {
            model,
            mut options,
            mut trainer,
            mut data,
            mut validation,
            mut digest,
            sampler,
            batch_size,
            shuffle,
            position,
            budget_file,
            validation_failure,
        } = opening::open(arguments, &processes)?;
        tell_of_untrained(&model)?;
        tell_of_probabilities(&model, &arguments.training);
        output::complain(&format!("data: {}", found(&arguments.data, &data)?));
        tell_of_limit(trainer.memory_limit());
        tell_of_budget(&arguments.device, trainer.budget_excludes_process());
        arguments.updates.tell(&trainer.plan_as_made().statistics);
        if let Some(failure) = validation_failure {
            output::complain(&format!("warning: {failure}"));
        }
        let steps_in_all = opening::steps_in_all(arguments, sampler.steps_per_epoch(), trainer.step_count())?;
        set_schedule(arguments, steps_in_all, &mut options, &mut trainer)?;
        if digest.is_none() && (arguments.checkpoint.is_some() || processes.group().is_some()) {
            digest = Some(data.digest()?);
        }
        let kept = |key: &str| position.get(key).cloned().unwrap_or_default();
        feeding::augment(&mut data, &arguments.reading.augment, shuffle, Some(&trainer));
        let normalization = normalization(arguments, &kept("normalization"), &mut data)?;
        for set in [&mut data].into_iter().chain(&mut validation) {
            normalization.iter().for_each(|normalization| set.normalize(normalization.clone()));
        }
        let loader = feeding::loader(data, sampler, &trainer, arguments)?;
        let (epoch_loss, best) = (EpochLoss::of(&kept("epoch_loss")), BestLoss::of(&kept("best")));
        if processes.is_first() {
            let names = metrics::names(&options.training.loss, &arguments.metrics)?;
            Records::check(&arguments.records, trainer.step_count(), names)?;
        }
        let best_folder = arguments.records.best_checkpoint.as_ref().filter(|_| processes.is_first());
        let best_folder = best_folder.map(CheckpointFolder::lock).transpose()?;
        Ok(Run {
            arguments,
            processes,
            model,
            options,
            trainer,
            loader,
            normalization,
            digest,
            batch_size,
            shuffle,
            steps: Vec::new(),
            epoch_loss,
            best,
            best_folder,
            validation_data: validation,
            validations: Vec::new(),
            latest: None,
            validation_is_due: kept("validation_is_due").as_bool().unwrap_or_default(),
            records: Records::none(&arguments.records),
            budget_file,
            steps_in_all,
        })
    }

    /// Starts the records, if this process writes them.
    fn start_records(&mut self) -> Result<(), Failure> {
        if self.processes.is_first() {
            let names = metrics::names(&self.options.training.loss, &self.arguments.metrics)?;
            self.records = Records::new(&self.arguments.records, self.trainer.step_count(), names)?;
        }
        Ok(())
    }

    /// Returns what must be the same in all processes.
    fn facts(&self) -> Result<BTreeMap<String, String>, Failure> {
        if self.processes.group().is_none() {
            return Ok(BTreeMap::new());
        }
        let mut facts = facts_of(&self.arguments.configuration, &self.arguments.model)?;
        let digest = self.digest.clone().unwrap_or_default();
        facts.insert("data".to_owned(), format!("{} samples (digest {digest})", self.loader.data().sample_count()));
        if let Some(every) = self.arguments.records.histogram_steps(Shown::Gradients) {
            facts.insert("histograms of gradients".to_owned(), format!("after every {every} steps"));
        }
        facts.insert("first step".to_owned(), (self.trainer.step_count() + 1).to_string());
        Ok(facts)
    }

    /// Trains until `steps` steps are done, the user interrupts, or validations have found no lower loss for long enough, and returns
    /// whether the latter is the case. A failure to write a checkpoint along the way does not stop training.
    fn train(&mut self, steps: u64, keeper: &mut Keeper) -> Result<bool, Failure> {
        let done = self.trainer.step_count();
        let reason = self.best.reason_to_stop(self.arguments.records.patience).filter(|_| done < steps);
        if let Some(reason) = &reason {
            output::complain(&format!(
                "note: the run of this checkpoint stopped after step {done}: {reason}; it trains no further (a --patience \
                 above {} continues)",
                self.best.worse
            ));
        }
        let mut is_enough = reason.is_some();
        self.loader.end_at(steps);
        interrupt::finish_steps();
        let progress = Progress::new(done, steps, self.arguments.report.json);
        is_enough |= self.validate_if_due(&progress)?;
        while self.trainer.step_count() < steps && !is_enough && !self.processes.any(interrupt::requested())? {
            if let Some(file) = &mut self.budget_file {
                file.apply(&mut self.trainer, &progress)?;
            }
            let Loaded { batch, samples, waited_seconds, .. } = self.loader.batch(self.trainer.step_count())?;
            let Batch { inputs, labels } = batch;
            if self.steps.is_empty() {
                // The memory used for planning and the first samples is no longer needed.
                give_back();
            }
            let report = match self.records.step(&mut self.trainer, inputs, labels) {
                Ok(report) => report,
                // It was interrupted before the step began.
                Err(forebay::Error::Plan(PlanError::Stopped)) => break,
                Err(error) => return Err(self.failed_step(error.into(), &samples)),
            };
            progress.step(&report, self.trainer.usage().heap_peak_bytes);
            warn_of_numbers(&report, &progress);
            if let Some(replan) = &report.replan {
                progress.line(&replanned(report.step, replan));
            }
            self.steps.push(StepNumbers::of_training(&report, waited_seconds));
            is_enough = match self.follow(&report, &progress) {
                // A validation was interrupted, and is still due.
                Err(Failure::Interrupted(_)) => break,
                is_enough => is_enough?,
            };
            if self.arguments.checkpoint_every.is_some_and(|every| report.step % every == 0) {
                self.trainer.collect_shards()?;
                if let Err(failure) = self.keep(report.step, keeper) {
                    let safe = keeper.what_is_safe();
                    progress.line(&format!("warning: {failure}; training continues, and {safe}"));
                }
            }
        }
        progress.finish();
        Ok(is_enough)
    }

    /// Follows up on a step: records it and updates the losses for the schedule and early stopping. Returns whether training ends here.
    fn follow(&mut self, report: &StepReport, progress: &Progress) -> Result<bool, Failure> {
        let (step, steps_per_epoch) = (report.step, self.loader.sampler().steps_per_epoch());
        let epoch = self.epoch_of(step);
        let data_seconds = self.steps.last().and_then(|step| step.data_seconds).unwrap_or_default();
        let device_peak_bytes = self.trainer.usage().heap_peak_bytes;
        self.records.line(step_line(report, epoch, data_seconds, device_peak_bytes, resident_peak_bytes()));
        self.records.histograms(&self.trainer, step)?;
        // A step that changed nothing because its loss is not a number says nothing about the epoch.
        let loss = Some(report.loss).filter(|loss| loss.is_finite() || !report.skipped);
        let epoch_mean = self.epoch_loss.add(step, loss, steps_per_epoch);
        let every = self.arguments.records.validation_steps(steps_per_epoch);
        let every = every.filter(|_| self.arguments.validation().is_some());
        self.validation_is_due = every.is_some_and(|every| step.is_multiple_of(every));
        if every.is_none() {
            epoch_mean.into_iter().for_each(|mean| self.trainer.observe(mean));
        }
        self.validate_if_due(progress)
    }

    /// Validates if that is due after the last step, and updates what follows from the loss. Returns whether training ends here.
    fn validate_if_due(&mut self, progress: &Progress) -> Result<bool, Failure> {
        let (true, Some(data)) = (self.validation_is_due, self.arguments.validation()) else { return Ok(false) };
        let step = self.trainer.step_count();
        let validation = self.validate_now(&data)?;
        self.validation_is_due = false;
        progress.line(&format!(
            "step {step}: {}",
            validation.lines().join("; ").split_whitespace().collect::<Vec<_>>().join(" ")
        ));
        self.trainer.observe(validation.loss as f32);
        if let Some(error) = self.keep_best(step, validation.loss)? {
            progress.line(&format!("warning: {error}; training continues without the checkpoint of the lowest loss"));
        }
        self.latest = Some((step, validation));
        let reason = self.best.reason_to_stop(self.arguments.records.patience);
        if let Some(reason) = &reason {
            progress.line(&format!("stopped after step {step}: {reason}"));
        }
        Ok(reason.is_some())
    }

    /// Returns the epoch of a step, from 1.
    fn epoch_of(&self, step: u64) -> u64 {
        step.div_ceil(self.loader.sampler().steps_per_epoch().max(1))
    }

    /// Reports where a step failed, and that nothing before it is lost.
    fn failed_step(&self, failure: Failure, samples: &[u64]) -> Failure {
        let step = self.trainer.step_count() + 1;
        let place = match samples {
            [one] => format!("step {step}, sample {one} of {}", self.arguments.data),
            [first, .., last] if self.shuffle.is_none() => {
                format!("step {step}, samples {first}..={last} of {}", self.arguments.data)
            }
            _ => format!("step {step} on {}", self.arguments.data),
        };
        failure.at(&place)
    }

    /// Returns the number of samples in a part of a step.
    fn part_size(&self) -> u64 {
        (self.batch_size / self.arguments.training.gradients.parts()).max(1)
    }

    /// Measures the cost of the budget; `None` if there is no budget or the user does not want to know.
    fn compare(&mut self) -> Option<Comparison> {
        // An unlimited run would exceed a limit on the process.
        let is_allowed = self.trainer.memory_limit().is_none();
        let is_alone = self.processes.group().is_none();
        let is_wanted = !self.arguments.no_compare && !self.steps.is_empty() && is_allowed && is_alone;
        self.trainer.plan_as_made().statistics.device_budget_bytes.filter(|_| is_wanted)?;
        let samples = self.loader.samples(0);
        let batch = self.loader.data().batch(&samples);
        let compared = batch.map_err(Failure::from).and_then(|batch| {
            let Batch { inputs, labels } = batch;
            compare(&mut self.trainer, self.model.clone(), self.options.clone(), &inputs, &labels)
        });
        // Training is done and saved, so a comparison that does not fit the machine is only reported, not a failure.
        compared.unwrap_or_else(|failure| {
            output::complain(&format!("note: cannot compare with an unlimited run: {failure}"));
            None
        })
    }

    /// Returns the numbers of the run so far.
    fn report(&self, (device_peak_bytes, resident_peak_bytes): (u64, Option<u64>)) -> Report<'_> {
        let (steps, plan, device) = (&self.steps, self.trainer.plan_as_made(), &self.arguments.device);
        let explanation = (device.memory == MemoryKind::Planned)
            .then(|| of_run(explain(plan), &device.device, device_peak_bytes, resident_peak_bytes));
        let limit = self.trainer.memory_limit();
        let statistics = statistics_of(&self.trainer);
        Report { steps, statistics, device_peak_bytes, resident_peak_bytes, limit, explanation }
    }

    /// Writes the page about the run so far, if requested.
    fn write_page(&self, validation: Option<&Validation>) -> Result<(), Failure> {
        let report = self.arguments.records.report.as_ref().filter(|_| self.processes.is_first());
        let Some(path) = report else { return Ok(()) };
        let device = &self.arguments.device;
        let memory = (device.memory == MemoryKind::Planned)
            .then(|| memory_picture(self.trainer.plan_as_made(), "device memory over a step").svg());
        let report = self.report((self.trainer.usage().heap_peak_bytes, resident_peak_bytes()));
        let page = Page {
            model: &self.arguments.model.display().to_string(),
            data: &found(&self.arguments.data, &self.loader.data())?,
            configuration: &self.arguments.configuration,
            device: &device.device,
            lines: self.records.lines(),
            report: &[report.lines(), validation.map(Validation::lines).unwrap_or_default()].concat(),
            memory: memory.as_deref(),
            costs: &serde_json::to_value(self.trainer.measured_costs()).unwrap_or_default(),
        };
        output::write(path, &page.html())
    }

    fn tell(
        &self,
        peaks_bytes: (u64, Option<u64>),
        validation: Option<&Validation>,
        comparison: Option<Comparison>,
        shared: Option<&SharedSteps>,
        saved: Option<&Path>,
    ) -> Result<(), Failure> {
        let report = self.report(peaks_bytes);
        if self.arguments.report.json {
            let mut object = report.json();
            object.insert("bad_samples".to_owned(), self.loader.data().bad_samples().collect::<Vec<_>>().into());
            object.insert("batch_size".to_owned(), self.batch_size.min(self.loader.data().sample_count()).into());
            object.insert("processes".to_owned(), shared.map(SharedSteps::json).into());
            if let Some(validation) = validation {
                object.insert("validation".to_owned(), validation.json());
                object.insert("validations".to_owned(), self.validations.clone().into());
            }
            if let Some(Comparison { pairs, seconds, unlimited_seconds, identical }) = comparison {
                let ratio = seconds / unlimited_seconds;
                object.insert(
                    "comparison".to_owned(),
                    json!({
                        "pairs": pairs,
                        "seconds_median": seconds,
                        "unlimited_seconds_median": unlimited_seconds,
                        "ratio": ratio,
                        "losses_identical": identical,
                    }),
                );
            }
            return say_json(object);
        }
        report.lines().iter().for_each(|line| output::say(line));
        shared.iter().flat_map(|shared| shared.lines()).for_each(|line| output::say(&line));
        let data = self.loader.data();
        let bad = data.bad_samples();
        if bad.len() > 0 {
            output::say(&format!("{:<16} {} samples that cannot be read:", "skipped", bad.len()));
            bad.for_each(|reason| output::say(&format!("{:<16} {reason}", "")));
        }
        if let Some(Comparison { pairs, seconds, unlimited_seconds, identical }) = comparison {
            let (ratio, losses) = (seconds / unlimited_seconds, if identical { "identical" } else { "DIFFERENT" });
            let name = "vs. unlimited";
            output::say(&format!(
                "{name:<16} {seconds:.3} s instead of {unlimited_seconds:.3} s, {ratio:.2} times as long ({pairs} steps of \
                 each, alternating; {losses} losses)"
            ));
        }
        if let Some(validation) = validation {
            validation.lines().iter().for_each(|line| output::say(line));
        }
        if let Some(path) = saved {
            output::say(&format!("{:<16} {}", "saved", path.display()));
        }
        Ok(())
    }
}

/// Sets the learning-rate schedule of a run of `steps` steps.
fn set_schedule(
    arguments: &TrainArguments,
    steps: u64,
    options: &mut TrainerOptions,
    trainer: &mut Trainer,
) -> Result<(), Failure> {
    let schedule = arguments.schedule.schedule(steps)?;
    options.schedule = schedule.clone();
    for (group, schedule) in arguments.training.gradients.schedules(steps)? {
        options.group_schedules.insert(group, schedule.clone());
        trainer.set_group_schedule(group, schedule)?;
    }
    Ok(trainer.set_schedule(schedule)?)
}

/// Returns how samples are normalized, with the values in the checkpoint if it has any.
fn normalization(
    arguments: &TrainArguments,
    kept: &Value,
    data: &mut DataSet,
) -> Result<Option<Normalization>, Failure> {
    match &arguments.reading.normalize {
        None => Ok(None),
        Some(Normalize::Given(normalization)) => Ok(Some(normalization.clone())),
        Some(Normalize::Measured) => {
            let pair = |pair: &Value| Some((pair.get(0)?.as_f64()?, pair.get(1)?.as_f64()?));
            let channels = kept.as_array().map(|pairs| pairs.iter().filter_map(pair).collect::<Vec<_>>());
            let earlier = channels.filter(|channels| !channels.is_empty()).map(|channels| Normalization { channels });
            earlier.map_or_else(|| Ok(Some(data.measure()?)), |earlier| Ok(Some(earlier)))
        }
    }
}

/// Warns about numbers that are not finite.
fn warn_of_numbers(report: &StepReport, progress: &Progress) {
    let StepReport { step, loss, gradient_norm, skipped, .. } = report;
    let what = match gradient_norm.filter(|norm| !norm.is_finite()) {
        _ if !loss.is_finite() => format!("the loss of step {step} is {loss}"),
        Some(norm) => format!("the norm of the gradients of step {step} is {norm}"),
        None => return,
    };
    let consequence = if *skipped { "; its update is skipped" } else { "" };
    progress.line(&format!("warning: {what}{consequence}"));
}

/// Describes a plan that takes over.
fn replanned(step: u64, replan: &Replan) -> String {
    let Replan { reason, measured_seconds, predicted_seconds, old_seconds, new_seconds, .. } = *replan;
    let why = match reason {
        ReplanReason::FirstStep => "a step was measured",
        _ => "steps no longer take as long as predicted",
    };
    format!(
        "new plan from step {}: {why} ({measured_seconds:.3} s, predicted {predicted_seconds:.3} s); it is predicted to \
         take {new_seconds:.3} s/step instead of {old_seconds:.3} s",
        step + 1
    )
}
