//! Validation of a run, while it trains and at its end.

use forebay::data::{Batch, DataSet};
use forebay::metrics::ClassCounts;

use super::Run;
use crate::failure::Failure;
use crate::feeding;
use crate::log_file::validation_line;
use crate::metrics;
use crate::validation::Validation;

impl Run<'_> {
    /// Validates and records the results.
    pub(super) fn validate_now(&mut self, data: &str) -> Result<Validation, Failure> {
        let validation = self.validate(data)?;
        let (step, numbers) = (self.trainer.step_count(), validation.json());
        let epoch = self.epoch_of(step);
        self.records.line(validation_line(step, epoch, &numbers));
        let mut row = numbers;
        row["step"] = step.into();
        self.validations.push(row);
        Ok(validation)
    }

    fn validate(&mut self, data: &str) -> Result<Validation, Failure> {
        let mut set = self.validation_data.take();
        let outcome = match &mut set {
            Some(set) => self.validate_on(set, data),
            None => Err(Failure::Usage("there is no validation data".to_owned())),
        };
        self.validation_data = set;
        outcome
    }

    /// Validates on opened data.
    fn validate_on(&mut self, set: &mut DataSet, data: &str) -> Result<Validation, Failure> {
        let loss = &self.options.training.loss;
        let ignored = loss.ignore_index();
        let mut metrics = metrics::of_validation(loss, &self.arguments.metrics)?;
        let class_axis = self.trainer.class_axis();
        let windows = self.arguments.reading.windows(self.arguments.pad_to);
        let batch_size = if windows.is_some() { 1 } else { self.part_size() };
        let mut sampler = feeding::sampler(set, &self.model, self.arguments, batch_size, None)?;
        self.trainer.prepare_to_evaluate()?;
        let (mut counts, mut loss_sum, mut weight_sum) = (ClassCounts::default(), 0.0, 0.0);
        for step in 0..sampler.steps_per_epoch() {
            let samples = sampler.batch(step);
            let Batch { inputs, labels } = set.batch(&samples)?;
            let to_draw = self.records.to_draw(&inputs, &labels).filter(|_| step == 0);
            let evaluation = match &windows {
                Some(windows) => self.trainer.evaluate_windows(inputs, labels.clone(), windows),
                None => self.trainer.evaluate(inputs, labels.clone()),
            };
            let evaluation = evaluation.map_err(|error| Failure::from(error).at(data))?;
            if let Some(samples) = to_draw {
                // Predictions are numbered as the training data is, and so are the labels of the validation data.
                let (step, trained_on) = (self.trainer.step_count(), self.loader.data());
                let names = trained_on.class_names().unwrap_or_default();
                self.records.draw(step, samples, &evaluation.logits, class_axis, names);
            }
            metrics.add(&evaluation.logits, &labels);
            if let Some(axis) = class_axis {
                counts.add_tensors(&evaluation.logits, axis, &labels, ignored);
            }
            // A batch's loss is a mean, so the loss of the whole set weights each batch by what it counted.
            let weight = loss.batch_weight(&labels);
            if weight > 0.0 {
                loss_sum += f64::from(evaluation.loss) * weight;
                weight_sum += weight;
            }
        }
        let spatial = !self.trainer.data_requirements(1.0)?.label_shape.is_empty();
        Ok(Validation { loss: loss_sum / weight_sum, counts: class_axis.map(|_| counts), spatial, metrics })
    }
}
