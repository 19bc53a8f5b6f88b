//! The records of a run: lines in a file, events for TensorBoard, and the data of the page at the end.

use std::collections::BTreeMap;
use std::path::Path;

use forebay::data::{Batch, convert, sheet};
use forebay::{Error, StepReport, Tensor, Trainer};
use serde_json::Value;

use crate::event_file::EventFile;
use crate::failure::Failure;
use crate::log_file::LogFile;
use crate::output;
use crate::record_arguments::{RecordArguments, Shown};

/// The destinations of lines.
pub struct Records {
    log: Option<LogFile>,
    events: Option<EventFile>,
    /// All lines of this run, if a page at the end shows them.
    lines: Option<Vec<Value>>,
    /// The number of steps after which histograms of parameters are written.
    parameters_every: Option<u64>,
    /// The same for gradients.
    gradients_every: Option<u64>,
    predictions: Option<u64>,
}

impl Records {
    /// Returns no records, for a process that takes the same steps as the one that writes the records specified by the flags.
    pub fn none(arguments: &RecordArguments) -> Records {
        let gradients_every = arguments.histogram_steps(Shown::Gradients);
        Records { log: None, events: None, lines: None, parameters_every: None, gradients_every, predictions: None }
    }

    /// Checks that [`Records::new`] can continue the records of an earlier run, without changing anything.
    ///
    /// # Errors
    /// Fails if a file is not one of these records.
    pub fn check(arguments: &RecordArguments, done: u64, metrics: Vec<String>) -> Result<(), Failure> {
        arguments.log.as_deref().map_or(Ok(()), |path: &Path| LogFile::check(path, done, metrics))
    }

    /// Starts the records that the flags specify, for a run that resumes from step `done`, with these validation metrics.
    ///
    /// # Errors
    /// Fails if a file cannot be written or is not one of these records.
    pub fn new(arguments: &RecordArguments, done: u64, metrics: Vec<String>) -> Result<Records, Failure> {
        let log = arguments.log.as_deref().map(|path: &Path| LogFile::new(path, done, metrics)).transpose()?;
        let events = arguments.tensorboard.as_deref().map(|folder| EventFile::new(folder, done)).transpose()?;
        let lines = arguments.report.is_some().then(Vec::new);
        let predictions = arguments.show_predictions;
        let [parameters_every, gradients_every] =
            [Shown::Parameters, Shown::Gradients].map(|of| arguments.histogram_steps(of));
        Ok(Records { log, events, lines, parameters_every, gradients_every, predictions })
    }

    /// Writes a line.
    pub fn line(&mut self, line: Value) {
        self.log.iter_mut().for_each(|log| log.line(&line));
        self.events.iter_mut().for_each(|events| events.line(&line));
        self.lines.iter_mut().for_each(|lines| lines.push(line.clone()));
    }

    /// Writes histograms of all parameters, if they are due at this step.
    ///
    /// # Errors
    /// Returns the error of the device.
    pub fn histograms(&mut self, trainer: &Trainer, step: u64) -> Result<(), Failure> {
        let (Some(every), Some(events)) = (self.parameters_every, &mut self.events) else { return Ok(()) };
        if step.is_multiple_of(every) {
            trainer.for_each_parameter(|name, tensor| {
                events.histogram(step, &format!("parameters/{name}"), convert::each_f64(&tensor));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Runs a step, with histograms of its gradients if they are due. All processes run the same kind of step; the first one writes.
    ///
    /// # Errors
    /// Returns the errors of [`Trainer::step`].
    pub fn step(
        &mut self,
        trainer: &mut Trainer,
        inputs: BTreeMap<String, Tensor>,
        labels: Tensor,
    ) -> Result<StepReport, Error> {
        let step = trainer.step_count() + 1;
        if !self.gradients_every.is_some_and(|every| step.is_multiple_of(every)) {
            return trainer.step(inputs, labels);
        }
        trainer.step_with_gradients(inputs, labels, |name, gradient| {
            let events = self.events.iter_mut();
            events
                .for_each(|events| events.histogram(step, &format!("gradients/{name}"), convert::each_f64(&gradient)));
            Ok(())
        })
    }

    /// Returns the first samples of a batch, if they are to be drawn with the model's predictions.
    pub fn to_draw(&self, inputs: &BTreeMap<String, Tensor>, labels: &Tensor) -> Option<Batch> {
        let most = self.predictions?.min(labels.shape().first().copied().unwrap_or(0));
        let rows: Vec<u64> = (0..most).collect();
        let inputs = inputs.iter().map(|(name, input)| (name.clone(), input.rows(&rows)));
        Some(Batch { inputs: inputs.collect(), labels: labels.rows(&rows) })
    }

    /// Draws samples with their labels and the predicted classes, which have these names, if any. Samples that are not pictures are
    /// reported, and training continues.
    pub fn draw(&mut self, step: u64, samples: Batch, scores: &Tensor, class_axis: Option<usize>, names: &[String]) {
        let Some(events) = &mut self.events else { return };
        let predicted = class_axis.and_then(|axis| highest(scores, axis));
        let predicted = predicted.filter(|labels| labels.shape()[1..] == samples.labels.shape()[1..]);
        let rows: Vec<u64> = (0..samples.labels.shape()[0]).collect();
        let predicted = predicted.map(|labels| Batch { labels: labels.rows(&rows), inputs: samples.inputs.clone() });
        for (name, batch) in [("labels", Some(samples)), ("predictions", predicted)] {
            match batch.map(|batch| sheet::png(&batch, names)).transpose() {
                Ok(png) => png.iter().for_each(|png| events.picture(step, &format!("validation/{name}"), png)),
                Err(error) => {
                    self.predictions = None;
                    return output::complain(&format!("warning: --show-predictions draws nothing: {error}"));
                }
            }
        }
    }

    /// Returns the lines so far; empty if nothing shows them.
    pub fn lines(&self) -> &[Value] {
        self.lines.as_deref().unwrap_or_default()
    }
}

/// Returns the classes with the highest scores along an axis, the first one in case of ties.
fn highest(scores: &Tensor, axis: usize) -> Option<Tensor> {
    let (values, shape) = (scores.to_f32()?, scores.shape());
    let count = |sizes: &[u64]| sizes.iter().product::<u64>() as usize;
    let (classes, inner) = (*shape.get(axis)? as usize, count(&shape[axis + 1..]));
    let labels = (0..count(&shape[..axis]) * inner).map(|place| {
        let score = |class: usize| values[(place / inner * classes + class) * inner + place % inner];
        (1..classes).fold(0, |best, class| if score(class) > score(best) { class } else { best }) as i64
    });
    let labels: Vec<i64> = labels.collect();
    Some(Tensor::from_i64(&[&shape[..axis], &shape[axis + 1..]].concat(), &labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_score_is_the_class() {
        let scores = Tensor::from_f32(&[1, 3, 2], &[0.0, 5.0, 2.0, 5.0, 1.0, 4.0]);
        assert_eq!(highest(&scores, 1), Some(Tensor::from_i64(&[1, 2], &[1, 0])));
    }
}
