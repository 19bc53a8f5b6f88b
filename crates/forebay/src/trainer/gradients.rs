//! Steps whose gradients can be read.

use std::collections::BTreeMap;

use forebay_model::Tensor;
use forebay_model::training::GRADIENT_PREFIX;

use super::Trainer;
use crate::engine::Purpose;
use crate::error::Error;
use crate::runner::Runner;
use crate::step_report::StepReport;

/// A callback that takes the name of a parameter and its gradient.
pub(super) type Visit<'a> = &'a mut dyn FnMut(&str, Tensor) -> Result<(), Error>;

impl Trainer {
    /// Trains on one batch like [`Trainer::step`], bit for bit, and passes the gradient of each parameter that trains to `visit`, in the
    /// order of their names.
    ///
    /// The gradients are those that the optimizer would take without clipping: of all parts of the batch, and divided by the loss scale
    /// again if there is one. Only one of them is read into host memory at a time. Gradients that can be read must stay until the step
    /// ends, so these steps have a separate plan within the same budgets, which is made at the first of them or by
    /// [`Trainer::plan_gradients`]. Values move from one plan to the other, so a step with gradients between other steps takes longer.
    ///
    /// # Errors
    /// Fails as [`Trainer::step`] does. If the budgets are too small for the separate plan, nothing is changed. If `visit` returns an
    /// error, it is not called again, and the step is done anyway.
    ///
    /// ```
    /// use forebay::{Model, Tensor, Trainer};
    ///
    /// # fn main() -> Result<(), forebay::Error> {
    /// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
    /// let mut trainer = Trainer::builder(&model).build()?;
    /// # let (x, labels) = (Tensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]), Tensor::from_i64(&[50], &[7; 50]));
    /// # let batch = std::collections::BTreeMap::from([("x".to_string(), x)]);
    /// let mut largest = std::collections::BTreeMap::new();
    /// let report = trainer.step_with_gradients(batch, labels, |name, gradient| {
    ///     let elements = gradient.to_f32().unwrap_or_default();
    ///     largest.insert(name.to_string(), elements.iter().fold(0f32, |largest, element| largest.max(element.abs())));
    ///     Ok(())
    /// })?;
    /// assert_eq!(report.step, 1);
    /// assert_eq!(largest.len(), trainer.parameters()?.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn step_with_gradients(
        &mut self,
        batch: BTreeMap<String, Tensor>,
        labels: Tensor,
        mut visit: impl FnMut(&str, Tensor) -> Result<(), Error>,
    ) -> Result<StepReport, Error> {
        self.step_for(batch, labels, Some(&mut visit))
    }

    /// Makes the plan of [`Trainer::step_with_gradients`] for batches of the planned sizes, so that a budget that is too small for it is
    /// found before any training.
    ///
    /// # Errors
    /// Fails as `step_with_gradients` does, except for errors that depend on the samples.
    pub fn plan_gradients(&mut self) -> Result<(), Error> {
        let main = self.main();
        let labels = main.has_own_labels.then(|| main.labels.shape.clone());
        let (shapes, sizes) = self.sizes_with(main.inputs.clone(), self.batch_size, labels);
        if !self.with_gradients.contains_key(&shapes) {
            let plan = self.step_plan(Purpose::TrainingWithGradients, sizes)?;
            self.with_gradients.insert(shapes, plan);
        }
        Ok(())
    }
}

/// Passes the gradients of the step that has just run to `visit`.
pub(super) fn show(runner: &Runner, visit: Visit) -> Result<(), Error> {
    let names = runner.plan().outputs.iter().map(|output| output.name.as_str());
    let mut parameters: Vec<&str> = names.filter_map(|name| name.strip_prefix(GRADIENT_PREFIX)).collect();
    parameters.sort_unstable();
    for parameter in parameters {
        visit(parameter, runner.read_output(&format!("{GRADIENT_PREFIX}{parameter}"))?)?;
    }
    Ok(())
}
