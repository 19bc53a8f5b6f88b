//! What a run leaves behind: checkpoints, models, and where they are if something fails.

use std::path::{Path, PathBuf};

use forebay::{Checkpoint, CheckpointFolder, documents};
use serde_json::{Value, json};

use super::Run;
use crate::arguments::TrainArguments;
use crate::config_file;
use crate::failure::Failure;
use crate::keeping::Keeper;
use crate::output;
use crate::resuming::batches;

/// The outcome of storing the results of training.
pub(super) struct Stored {
    /// What could not be written.
    pub(super) failures: Vec<String>,
    /// Where the checkpoint of the last step is, if there is one.
    pub(super) folder: Option<PathBuf>,
    /// Whether the model was saved.
    pub(super) saved: bool,
}

impl Run<'_> {
    /// Returns whether the run is to store any results.
    pub(super) fn writes_at_the_end(&self) -> bool {
        let TrainArguments { checkpoint, save, save_ema, save_adapters, .. } = self.arguments;
        [checkpoint, save, save_ema, save_adapters].into_iter().any(Option::is_some)
    }

    /// Writes the results of training. Each one is tried even if another failed; what would otherwise be lost goes wherever possible.
    pub(super) fn store(&mut self, keeper: &mut Keeper, interrupted: bool) -> Stored {
        let mut failures = Vec::new();
        if !self.processes.is_first() {
            return Stored { failures, folder: None, saved: false };
        }
        let done = self.trainer.step_count();
        if keeper.folder().is_some()
            && !keeper.has(done)
            && let Err(failure) = self.keep(done, keeper)
        {
            failures.push(format!("{failure} ({})", keeper.what_is_safe()));
        }
        let mut folder = keeper.folder().filter(|_| keeper.has(done)).map(Path::to_owned);
        let mut saved = false;
        if let Some(path) = &self.arguments.save {
            match self.trainer.save(path) {
                Ok(()) => saved = true,
                Err(error) => failures.push(error.to_string()),
            }
        }
        if let Some(path) = &self.arguments.save_ema {
            failures.extend(self.trainer.save_average(path).err().map(|error| error.to_string()));
        }
        if let Some(folder) = &self.arguments.save_adapters {
            failures.extend(self.trainer.save_adapters(folder).err().map(|error| error.to_string()));
        }
        match &self.arguments.save_costs {
            Some(_) if self.steps.is_empty() => {
                output::complain("note: no step was measured, so there are no costs to save")
            }
            Some(path) => failures.extend(
                documents::write_costs(path, &self.trainer.measured_costs()).err().map(|error| error.to_string()),
            ),
            None => {}
        }
        let is_lost = folder.is_none() && (interrupted || !failures.is_empty() && !saved && !self.steps.is_empty());
        if is_lost {
            match self.rescue(keeper) {
                Ok(rescued) => folder = Some(rescued),
                Err(failure) => failures.push(failure.to_string()),
            }
        }
        Stored { failures, folder, saved }
    }

    /// Writes the checkpoint of a step into the specified folder, if any.
    pub(super) fn keep(&mut self, step: u64, keeper: &mut Keeper) -> Result<(), Failure> {
        let position = self.position();
        keeper.keep(step, |folder| self.write_checkpoint(folder, &position))
    }

    /// Writes a checkpoint that would otherwise be lost, and returns its folder.
    fn rescue(&mut self, keeper: &Keeper) -> Result<PathBuf, Failure> {
        let position = self.position();
        keeper.rescue(|folder| self.write_checkpoint(folder, &position))
    }

    /// Writes a checkpoint and, next to it, the configuration of the run.
    fn write_checkpoint(&self, folder: &CheckpointFolder, position: &Value) -> Result<(), forebay::Error> {
        self.trainer.write_checkpoint(folder, position)?;
        let (path, text) = (folder.path().join(config_file::FILE_NAME), &self.arguments.configuration);
        let is_there = std::fs::read(&path).is_ok_and(|found| found == text.as_bytes());
        if let Some(failure) = (!is_there).then(|| output::write(&path, text)).and_then(Result::err) {
            output::complain(&format!("warning: {failure}; the checkpoint itself is intact"));
        }
        Ok(())
    }

    /// Returns the position in the data that another run needs to resume from here.
    fn position(&mut self) -> Value {
        if self.digest.is_none() {
            // Data that can no longer be read is no reason to lose what was learned from it.
            self.digest = self.loader.data().digest().ok();
        }
        let mut position = json!({
            "data": self.arguments.data,
            "samples": self.loader.data().sample_count(),
            "digest": self.digest,
            "batch_size": self.part_size(),
            "shuffle": self.shuffle,
            "normalization": self.normalization.as_ref().map(|normalization| &normalization.channels),
            "epoch_loss": self.epoch_loss.json(),
            "best": self.best.json(),
            "validation_is_due": self.validation_is_due,
        });
        let batches = batches(self.arguments);
        batches.as_object().into_iter().flatten().for_each(|(key, value)| position[key] = value.clone());
        position
    }

    /// Records the loss of a validation and, if it is the lowest so far, writes the checkpoint for that, if requested. Returns why that
    /// checkpoint could not be written.
    pub(super) fn keep_best(&mut self, step: u64, loss: f64) -> Result<Option<forebay::Error>, Failure> {
        let records = &self.arguments.records;
        let is_lower = self.best.observe(step, loss, records.min_delta.unwrap_or(0.0));
        if !is_lower || records.best_checkpoint.is_none() {
            return Ok(None);
        }
        self.trainer.collect_shards()?;
        let position = self.position();
        Ok(self.best_folder.iter().try_for_each(|folder| self.write_checkpoint(folder, &position)).err())
    }

    /// After a failure that left the values of the last complete step intact, such as data that cannot be read, writes a checkpoint of that
    /// step if results were requested, and adds to the failure where it is. After a loss that is not a number, these values may be useless,
    /// so that happens only in a specified folder without an earlier checkpoint.
    pub(super) fn keep_despite(&mut self, failure: Failure, keeper: &mut Keeper) -> Failure {
        let done = self.trainer.step_count();
        // Other processes may no longer answer.
        let is_intact = !matches!(failure, Failure::Device(_)) && self.processes.group().is_none();
        let has_earlier =
            self.arguments.resume.is_some() || keeper.folder().is_some_and(|at| Checkpoint::written_at(at).is_some());
        let is_unwanted = matches!(failure, Failure::Numbers(_)) && (has_earlier || keeper.folder().is_none());
        if self.steps.is_empty() || !self.writes_at_the_end() || !is_intact || is_unwanted {
            return failure;
        }
        let kept = match keeper.folder().map(Path::to_owned) {
            Some(folder) if keeper.has(done) => Ok(folder),
            Some(folder) => self.keep(done, keeper).map(|()| folder),
            None => self.rescue(keeper),
        };
        let consequence = match kept {
            Ok(folder) => {
                let folder = folder.display();
                format!("the checkpoint of step {done} is in {folder} (continue with --resume {folder})")
            }
            Err(reason) => format!("there is no checkpoint of step {done}: {reason}"),
        };
        failure.map(|text| format!("{text}; {consequence}"))
    }
}
