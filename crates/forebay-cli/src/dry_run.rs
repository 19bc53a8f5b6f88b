//! `forebay train --dry-run`: whether a run can start, what it needs, and how long it is predicted to take. It neither trains nor writes
//! anything.

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay::{Checkpoint, Trainer, files, format_bytes};
use serde_json::{Value, json};

use crate::arguments::{MemoryKind, TrainArguments};
use crate::failure::Failure;
use crate::feeding;
use crate::limits::{tell_of_budget, tell_of_limit};
use crate::metrics;
use crate::opening::{self, Opened};
use crate::output;
use crate::processes::Processes;
use crate::records::Records;
use crate::report::{Report, say_json, statistics_of};
use crate::train::check_outputs;
use crate::untrained::{tell_of_probabilities, tell_of_untrained};

/// Checks a run and reports what it needs.
///
/// # Errors
/// Fails with anything that would prevent the run from training or from storing its results.
pub fn dry_run(arguments: &TrainArguments) -> Result<(), Failure> {
    check_outputs(arguments)?;
    let folders = [&arguments.checkpoint, &arguments.records.best_checkpoint];
    folders.into_iter().flatten().try_for_each(|folder| output::check_folder(folder))?;
    let Opened {
        model, options, trainer, mut data, validation, sampler, batch_size, shuffle, validation_failure, ..
    } = opening::open(arguments, &Processes::default())?;
    if let Some(failure) = validation_failure {
        return Err(failure);
    }
    let (model, trainer) = (&model, &trainer);
    let per_epoch = sampler.steps_per_epoch();
    let steps = opening::steps_in_all(arguments, per_epoch, trainer.step_count())?;
    let names = metrics::names(&options.training.loss, &arguments.metrics)?;
    Records::check(&arguments.records, trainer.step_count(), names)?;
    arguments.schedule.schedule(steps)?;
    arguments.training.gradients.schedules(steps)?;
    feeding::augment(&mut data, &arguments.reading.augment, shuffle, Some(trainer));
    // The first samples are read as in training.
    let mut loader = feeding::loader(data, sampler, trainer, arguments)?;
    loader.end_at(trainer.step_count() + 1);
    loader.batch(trainer.step_count())?;
    let data = &*loader.data();
    let validation = match (arguments.validation(), validation) {
        (Some(name), Some(set)) => Some(opening::found(&name, &set)?),
        _ => None,
    };
    let disk = disk(arguments, trainer, steps)?;
    tell_of_untrained(model)?;
    tell_of_probabilities(model, &arguments.training);
    tell_of_limit(trainer.memory_limit());
    tell_of_budget(&arguments.device, trainer.budget_excludes_process());
    arguments.updates.tell(&trainer.plan_as_made().statistics);
    let left = steps.saturating_sub(trainer.step_count());
    let step_seconds = (arguments.device.memory == MemoryKind::Planned).then(|| trainer.predicted_seconds());
    let (parameters, state_bytes) = (trainer.parameter_count(), trainer.checkpoint_bytes());
    let statistics = statistics_of(trainer);
    let report = Report {
        steps: &[],
        statistics,
        device_peak_bytes: statistics.device_peak_bytes,
        resident_peak_bytes: None,
        limit: trainer.memory_limit(),
        explanation: None,
    };
    // JSON has no names that are not UTF-8.
    let path = arguments.model.display().to_string();
    if arguments.report.json {
        let found = data.description()?;
        let mut object = report.json();
        let disk: Vec<Value> = disk.iter().map(Need::json).collect();
        for (key, value) in [
            ("ready", json!(true)),
            ("model", json!({"path": path, "parameters": parameters, "checkpoint_bytes": state_bytes})),
            (
                "data",
                json!({
                    "name": arguments.data,
                    "kind": found.kind,
                    "samples": found.samples,
                    "tensors": found.tensors,
                    "size_bytes": found.size_bytes,
                    "held_bytes": found.held_bytes,
                }),
            ),
            ("batch_size", batch_size.min(data.sample_count()).into()),
            ("steps_per_epoch", per_epoch.into()),
            ("steps_to_train", left.into()),
            ("predicted_step_seconds", json!(step_seconds)),
            ("predicted_epoch_seconds", json!(step_seconds.map(|seconds| seconds * per_epoch as f64))),
            ("predicted_seconds", json!(step_seconds.map(|seconds| seconds * left as f64))),
            ("disk", disk.into()),
        ] {
            object.insert(key.to_owned(), value);
        }
        return say_json(object);
    }
    let line = |name: &str, text: String| output::say(&format!("{name:<16} {text}"));
    line("model", format!("{path}: {parameters} parameters, {} with the training state", format_bytes(state_bytes)));
    line("data", opening::found(&arguments.data, data)?);
    validation.into_iter().for_each(|found| line("validation", found));
    report.lines().iter().for_each(|line| output::say(line));
    for Need { what, folder, needed_bytes, free_bytes, .. } in &disk {
        let (needed, free) = (format_bytes(*needed_bytes), format_bytes(*free_bytes));
        line("disk", format!("{needed} in {} for {what} ({free} free)", folder.display()));
    }
    match step_seconds {
        Some(seconds) => {
            let (epoch, all) = (duration(seconds * per_epoch as f64), duration(seconds * left as f64));
            line("predicted", format!("{seconds:.3} s/step, {epoch} for an epoch of {per_epoch} steps"));
            line("", format!("{all} for the {left} steps of this run"));
        }
        None => line("predicted", "nothing; only the plans of --memory planned predict durations".to_owned()),
    }
    line("dry run", "no problems found; nothing was trained or written".to_owned());
    Ok(())
}

/// The space that a run needs on a disk.
struct Need {
    what: &'static str,
    folder: PathBuf,
    needed_bytes: u64,
    free_bytes: u64,
    /// The disk's number, which tells whether two folders share its free space (except that each subvolume of btrfs or ZFS has its own).
    disk: Option<u64>,
}

impl Need {
    fn json(&self) -> Value {
        let Need { what, folder, needed_bytes, free_bytes, .. } = self;
        let folder = folder.display().to_string();
        json!({"what": what, "folder": folder, "needed_bytes": needed_bytes, "free_bytes": free_bytes})
    }
}

/// Returns the space that a run up to a step needs on its disks.
///
/// # Errors
/// Fails if a disk has too little space or does not report its free space.
fn disk(arguments: &TrainArguments, trainer: &Trainer, steps: u64) -> Result<Vec<Need>, Failure> {
    let state_bytes = trainer.checkpoint_bytes();
    // Weights can be outside the model's file.
    let weight_bytes = trainer.parameter_count().saturating_mul(4);
    let model_bytes = std::fs::metadata(&arguments.model).map_or(0, |found| found.len()).max(weight_bytes);
    let spill_bytes = trainer.plan_as_made().statistics.spill_bytes;
    let parent = |path: &Path| match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => PathBuf::from("."),
    };
    // The old checkpoints are kept until the new one is complete.
    let left = steps.saturating_sub(trainer.step_count());
    let written = arguments.checkpoint_every.map_or(0, |every| left / every).saturating_add(1);
    let old = arguments.keep_checkpoints.unwrap_or(1).min(written);
    // Checkpoints that are already there take up part of that space, but there has to be room for at least one more.
    let checkpoints_bytes = |folder: &Option<PathBuf>, count: u64| {
        let present_bytes = folder.as_ref().map_or(0, Checkpoint::present_bytes);
        state_bytes.saturating_mul(count).saturating_sub(present_bytes).max(state_bytes)
    };
    let best = &arguments.records.best_checkpoint;
    let wanted = [
        ("checkpoints", arguments.checkpoint.clone(), checkpoints_bytes(&arguments.checkpoint, old.saturating_add(1))),
        ("the checkpoint of the lowest loss", best.clone(), checkpoints_bytes(best, 2)),
        ("the trained model", arguments.save.as_deref().map(parent), model_bytes),
        ("the model of averages", arguments.save_ema.as_deref().map(parent), model_bytes),
        ("the adapters", arguments.save_adapters.clone(), weight_bytes),
        ("what is spilled", arguments.device.spill_dir.clone().filter(|_| spill_bytes > 0), spill_bytes),
    ];
    let mut needs = Vec::new();
    for (what, folder, needed_bytes) in wanted {
        let Some(folder) = folder else { continue };
        let free_bytes = files::free_bytes(&folder).map_err(|error| {
            Failure::Failed(format!("cannot determine the free disk space in {}: {error}", folder.display()))
        })?;
        let there = |at: &Path| metadata(if at.as_os_str().is_empty() { Path::new(".") } else { at }).ok();
        let disk = folder.ancestors().find_map(there).map(|found| found.dev());
        needs.push(Need { what, folder, needed_bytes, free_bytes, disk });
    }
    check_space(&needs)?;
    Ok(needs)
}

/// Checks that everything on a disk fits there together.
///
/// # Errors
/// Fails with the first need for which there is too little space.
fn check_space(needs: &[Need]) -> Result<(), Failure> {
    for (place, Need { what, folder, needed_bytes, free_bytes, disk }) in needs.iter().enumerate() {
        let before = needs[..place].iter().filter(|before| before.disk == *disk).map(|before| before.needed_bytes);
        let before_bytes = before.fold(0, u64::saturating_add);
        if needed_bytes.saturating_add(before_bytes) > *free_bytes {
            let (needed, free) = (format_bytes(*needed_bytes), format_bytes(*free_bytes));
            let others = match before_bytes {
                0 => String::new(),
                _ => format!(" in addition to {} for other files on this disk", format_bytes(before_bytes)),
            };
            let folder = folder.display();
            let reason = format!("{needed} needed{others}, {free} available");
            return Err(Failure::Failed(format!("not enough disk space in {folder} for {what}: {reason}")));
        }
    }
    Ok(())
}

/// Formats seconds for people.
fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 120.0 => format!("{seconds:.1} s"),
        _ if seconds < 7200.0 => format!("{:.1} min", seconds / 60.0),
        _ if seconds < 172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        assert_eq!([3.06, 600.0, 7200.0, 864_000.0].map(duration), ["3.1 s", "10.0 min", "2.0 h", "10.0 days"]);
    }

    #[test]
    fn everything_on_a_disk_has_to_fit_there_together() {
        let need = |what, needed_bytes, disk| Need { what, folder: "d".into(), needed_bytes, free_bytes: 100, disk };
        check_space(&[need("one", 60, Some(1)), need("other", 60, Some(2)), need("last", 40, Some(1))]).unwrap();
        let error = check_space(&[need("one", 60, Some(1)), need("other", 41, Some(1))]).unwrap_err().to_string();
        let words =
            "in d for other: 41 bytes needed in addition to 60 bytes for other files on this disk, 100 bytes available";
        assert!(error.contains(words), "{error}");
        let error = check_space(&[need("one", 101, Some(1))]).unwrap_err().to_string();
        assert!(error.ends_with("for one: 101 bytes needed, 100 bytes available"), "{error}");
    }

    #[test]
    fn checkpoints_that_are_present_count_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("step-00000002")).unwrap();
        std::fs::create_dir_all(path("other")).unwrap();
        for name in ["tensors-2.safetensors", "step-00000002/tensors-1.safetensors", "other/tensors-9.safetensors"] {
            std::fs::write(path(name), [0; 10]).unwrap();
        }
        std::fs::hard_link(path("tensors-2.safetensors"), path("step-00000002/tensors-2.safetensors")).unwrap();
        std::fs::write(path("checkpoint.json"), [0; 1000]).unwrap();
        assert_eq!((Checkpoint::present_bytes(folder.path()), Checkpoint::present_bytes(path("missing"))), (20, 0));
    }
}
