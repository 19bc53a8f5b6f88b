//! Evaluation on batches of samples.

use std::collections::{BTreeMap, BTreeSet};

use forebay_model::Tensor;
use forebay_model::infer::Sizes;

use super::Trainer;
use crate::engine::Purpose;
use crate::error::Error;
use crate::loss_plan::LossPlan;
use crate::machine::LimitedDevice;
use crate::session::feed;
use crate::step_report::{Evaluation, scalar};
use crate::tensor_info::TensorInfo;

impl Trainer {
    /// Gives back what training steps have on the device, if there is a limit on the process, so that reading a batch for
    /// [`Trainer::evaluate`] takes memory that a training step no longer needs. It costs no time: `evaluate` would do it next.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    ///
    /// ```
    /// use forebay::{Model, Trainer};
    ///
    /// # fn main() -> Result<(), forebay::Error> {
    /// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
    /// let mut trainer = Trainer::builder(&model).build()?;
    /// trainer.prepare_to_evaluate()?;
    /// // Now read the batches of the validation set, and evaluate them one by one.
    /// # Ok(())
    /// # }
    /// ```
    pub fn prepare_to_evaluate(&mut self) -> Result<(), Error> {
        if self.engine.active_purpose() == Some(Purpose::Inference) {
            return Ok(());
        }
        self.engine.make_room_to_plan()
    }

    /// Runs the model on one batch in evaluation mode, with the current parameters, which do not change.
    ///
    /// # Errors
    /// Fails if inputs or labels do not fit or the device reports an error.
    pub fn evaluate(&mut self, batch: BTreeMap<String, Tensor>, labels: Tensor) -> Result<Evaluation, Error> {
        let (shapes, sizes) = self.sizes_of(&batch, &labels)?;
        if !self.evaluation.contains_key(&shapes) {
            self.make_room()?;
            self.evaluation.insert(shapes.clone(), self.evaluation_plan(&sizes)?);
        }
        let number = self.number(&shapes);
        let plan = &self.evaluation[&shapes];
        let fed = plan.check(batch, labels, None)?;
        let runner = self.engine.activate((Purpose::Inference, number), &plan.compiled)?;
        feed(runner, plan.compiled.own_share(fed))?;
        runner.run()?;
        let loss = scalar(&runner.read_output(&plan.loss)?);
        Ok(Evaluation { loss, logits: runner.read_output(&plan.logits.name)? })
    }

    /// Makes the plan of [`Trainer::evaluate`] for batches of this many samples and otherwise of the planned sizes, so that a budget that
    /// is too small for it is found before any training.
    ///
    /// # Errors
    /// Fails as `evaluate` does, except for errors that depend on the samples.
    pub fn plan_evaluation(&mut self, batch_size: u64) -> Result<(), Error> {
        let main = self.main();
        let of_batch = |info: &TensorInfo| info.with_batch(self.batch_size, batch_size);
        let labels = main.has_own_labels.then(|| of_batch(&main.labels).shape);
        let (shapes, sizes) = self.sizes_with(main.inputs.iter().map(of_batch).collect(), batch_size, labels);
        if !self.evaluation.contains_key(&shapes) {
            self.evaluation.insert(shapes, self.evaluation_plan(&sizes)?);
        }
        Ok(())
    }

    /// Makes a plan for evaluation. If the optimizer's state is in host memory while it runs, the plan takes no more than the rest of
    /// the budget: always within a limit on the process, and within a host budget if possible.
    pub(super) fn evaluation_plan(&self, sizes: &Sizes) -> Result<LossPlan, Error> {
        let sharded: BTreeSet<String> = self.shards.names().cloned().collect();
        let plan = |machine: &LimitedDevice| LossPlan::evaluation(&self.model, &self.options, sizes, machine, &sharded);
        let graph = self.model.graph();
        let state = self.engine.types().iter().filter(|(name, _)| graph.find(name).is_none());
        let state_bytes = state.map(|(_, ty)| ty.checked_size_bytes().unwrap_or(u64::MAX));
        let machine = self.engine.machine();
        let with_state = machine.with_values_in_memory(state_bytes.fold(0, u64::saturating_add));
        match with_state.as_ref().map(plan) {
            Some(Ok(plan)) => Ok(plan),
            // The limit counts the state, wherever it is.
            Some(refused) if machine.process_limit().is_some() => refused,
            _ => plan(machine),
        }
    }
}
