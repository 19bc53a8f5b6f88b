//! Evaluation of samples that are larger than those trained on.

use std::collections::BTreeMap;

use forebay_data::cut_box;
use forebay_model::Tensor;
use forebay_model::training::TrainingOptions;

use super::{OTHER_PLANS_MAX, Trainer};
use crate::engine::{Engine, Purpose};
use crate::error::Error;
use crate::loss_plan::LossPlan;
use crate::machine::LimitedDevice;
use crate::options::EngineOptions;
use crate::session::feed;
use crate::step_report::{Evaluation, scalar};
use crate::tensor_info::TensorInfo;
use crate::windows::{Grid, Merging, Windows};

/// An input of a batch, or its labels.
enum Samples {
    /// A tensor for each sample, without the batch axis. Windows are cut along its last axes.
    Large(Vec<Tensor>),
    /// A row for each sample.
    Rows(Tensor),
    /// The same for all samples.
    Common(Tensor),
}

impl Samples {
    fn of(tensor: &Tensor, samples: u64, sample: &[u64]) -> Samples {
        let Some((&rows, shape)) = tensor.shape().split_first().filter(|(rows, _)| **rows == samples) else {
            return Samples::Common(tensor.clone());
        };
        if !shape.ends_with(sample) {
            return Samples::Rows(tensor.clone());
        }
        let row = |row: u64| if rows == 1 { tensor.clone() } else { tensor.rows(&[row]) };
        Samples::Large((0..rows).filter_map(|number| row(number).reshaped(shape)).collect())
    }

    /// Cuts a batch of windows, each given by its sample and number.
    fn cut(&self, chosen: &[(u64, usize)], grid: &Grid) -> Tensor {
        match self {
            Samples::Large(all) => {
                let boxes: Vec<Tensor> = chosen
                    .iter()
                    .map(|&(row, number)| cut_box(&all[row as usize], &grid.starts[number], &grid.sizes))
                    .collect();
                Tensor::stack(&boxes.iter().collect::<Vec<_>>()).expect("windows of one shape")
            }
            Samples::Rows(tensor) => tensor.rows(&chosen.iter().map(|(row, _)| *row).collect::<Vec<_>>()),
            Samples::Common(tensor) => tensor.clone(),
        }
    }
}

impl Trainer {
    /// Runs the model over samples in windows, in evaluation mode, with the current parameters, which do not change. Predictions are
    /// merged, and the loss is that of the merged predictions. If the loss needs more than one prediction, or if the model computes it
    /// itself, the result is the mean of the windows' losses.
    ///
    /// The first input with more axes than a window determines the sizes of samples. Everything with the same last axes is cut in the same
    /// way, including the labels. If windows do not fill a batch, some go through the model twice, so that one plan is enough. Merged
    /// predictions are in host memory, so the host computes their loss, outside the device budgets but within the limit on the process. The
    /// bits do not depend on budgets.
    ///
    /// # Errors
    /// Fails as [`Trainer::evaluate`] does, and if the windows are invalid, the samples do not have such axes, or predictions do not have
    /// the sizes of a window.
    ///
    /// ```
    /// use forebay::{Model, Tensor, Trainer, Windows};
    ///
    /// # fn main() -> Result<(), forebay::Error> {
    /// let model = Model::from_file("../../testdata/golden/unet3d/model.onnx")?;
    /// let mut trainer = Trainer::builder(&model).build()?;
    /// let window = trainer.inputs()[0].shape[2..].to_vec();
    /// let larger: Vec<u64> = window.iter().map(|size| size + size / 2).collect();
    /// let image = Tensor::zeros(forebay::DataType::Float32, &[&[1, 1], larger.as_slice()].concat()).unwrap();
    /// let labels = Tensor::zeros(forebay::DataType::Int64, &[&[1], larger.as_slice()].concat()).unwrap();
    /// let name = trainer.inputs()[0].name.clone();
    /// let evaluation = trainer.evaluate_windows([(name, image)].into(), labels, &Windows::new(&window))?;
    /// assert_eq!(evaluation.logits.shape()[2..], larger);
    /// # Ok(())
    /// # }
    /// ```
    pub fn evaluate_windows(
        &mut self,
        batch: BTreeMap<String, Tensor>,
        labels: Tensor,
        windows: &Windows,
    ) -> Result<Evaluation, Error> {
        windows.check()?;
        let axes = windows.sizes.len();
        let of_names = self.inputs().iter().filter_map(|info| batch.get(&info.name));
        let sizes = of_names.map(Tensor::shape).find(|shape| shape.len() > axes && shape.iter().all(|&size| size > 0));
        let Some((samples, sample)) = sizes.map(|shape| (shape[0], shape[shape.len() - axes..].to_vec())) else {
            let reason =
                format!("windows of {axes} axes need samples with as many axes, but no input has more than {axes}");
            return Err(Error::Option { reason });
        };
        let grid = windows.grid(&sample);
        self.check_windows(&grid.sizes)?;
        let batch_size = self.windows_at_a_time(windows);
        let is_merged = LossPlan::takes_predictions(&self.options);
        let all: Vec<(u64, usize)> =
            (0..samples).flat_map(|sample| (0..grid.starts.len()).map(move |number| (sample, number))).collect();
        let of = |tensor: &Tensor| Samples::of(tensor, samples, &sample);
        let inputs: BTreeMap<String, Samples> = batch.iter().map(|(name, tensor)| (name.clone(), of(tensor))).collect();
        let classes = of(&labels);
        let (mut merging, mut name, mut loss_sum) = (None, String::new(), 0.0);
        for chosen in all.chunks(batch_size as usize) {
            let mut filled = chosen.to_vec();
            if is_merged {
                filled.resize(batch_size as usize, chosen[chosen.len() - 1]);
            }
            let cut = |(name, all): (&String, &Samples)| (name.clone(), all.cut(&filled, &grid));
            let Evaluation { loss, logits } =
                self.evaluate(inputs.iter().map(cut).collect(), classes.cut(&filled, &grid))?;
            loss_sum += f64::from(loss) * chosen.len() as f64;
            if merging.is_none() {
                let window = logits.shape().get(1..).unwrap_or_default();
                merging = Some(Merging::new(windows, grid.clone(), samples, &sample, window)?);
                name = self.main().logits.name.clone();
            }
            for (row, &(sample, number)) in (0..).zip(chosen) {
                merging.iter_mut().for_each(|merging| merging.add(sample, number, &logits, row));
            }
        }
        let Some(logits) = merging.map(Merging::finish) else {
            return Err(Error::Option { reason: "there are no samples to evaluate".to_string() });
        };
        let mean = (loss_sum / all.len() as f64) as f32;
        let loss = self.loss_of(&name, &logits, labels)?.unwrap_or(mean);
        Ok(Evaluation { loss, logits })
    }

    /// Rejects windows of sizes that the model does not take.
    fn check_windows(&self, sizes: &[u64]) -> Result<(), Error> {
        let Some(info) = self.inputs().iter().find(|info| info.shape.len() > sizes.len()) else { return Ok(()) };
        let first = info.shape.len() - sizes.len();
        let open = self.open.get(&info.name);
        let is_fixed = |axis: usize| !open.is_some_and(|open| open.contains(&(first + axis)));
        let mut wrong =
            sizes.iter().enumerate().filter(|&(axis, &size)| info.shape[first + axis] != size && is_fixed(axis));
        match wrong.next() {
            None => Ok(()),
            Some((axis, _)) => Err(Error::Option {
                reason: format!(
                    "the model does not accept windows of {sizes:?}: input '{info}' does not leave dimension {} open",
                    first + axis
                ),
            }),
        }
    }

    fn windows_at_a_time(&self, windows: &Windows) -> u64 {
        windows.batch_size.unwrap_or_else(|| self.batch_size.div_ceil(self.options.accumulate.max(1)))
    }

    /// Makes the plans of [`Trainer::evaluate_windows`] for samples of these sizes along their last axes, evaluated one at a time, so that
    /// budgets that are too small for them are found before any training. If labels have their own shape, plans are made when they are
    /// needed.
    ///
    /// # Errors
    /// Fails as `evaluate_windows` does, except for errors that depend on the samples.
    pub fn plan_windows(&mut self, sample: &[u64], windows: &Windows) -> Result<(), Error> {
        windows.check()?;
        let axes = windows.sizes.len();
        if sample.len() != axes {
            let reason = format!("windows of {axes} axes need samples with as many axes, not {sample:?}");
            return Err(Error::Option { reason });
        }
        let (main, batch_size, sizes) = (self.main(), self.windows_at_a_time(windows), windows.grid(sample).sizes);
        self.check_windows(&sizes)?;
        let planned = main.inputs.iter().map(|info| info.shape.as_slice()).find(|shape| shape.len() > axes);
        let planned = planned.map(|shape| shape[shape.len() - axes..].to_vec()).filter(|_| !main.has_own_labels);
        let Some(planned) = planned else { return Ok(()) };
        let of_window = |info: &TensorInfo| {
            let mut info = info.with_batch(self.batch_size, batch_size);
            if info.shape.len() > axes && info.shape.ends_with(&planned) {
                let first = info.shape.len() - axes;
                info.shape[first..].copy_from_slice(&sizes);
            }
            info
        };
        let (shapes, of_windows) = self.sizes_with(main.inputs.iter().map(of_window).collect(), batch_size, None);
        if !self.evaluation.contains_key(&shapes) {
            let plan = self.evaluation_plan(&of_windows)?;
            self.evaluation.insert(shapes.clone(), plan);
        }
        let logits = &self.evaluation[&shapes].logits;
        let leading = logits.shape.len().checked_sub(axes).filter(|&leading| leading > 0);
        let Some(leading) = leading.filter(|_| LossPlan::takes_predictions(&self.options)) else { return Ok(()) };
        let shape = [&[1], &logits.shape[1..leading], sample].concat();
        let info = TensorInfo { name: logits.name.clone(), data_type: logits.data_type, shape };
        let options = self.options.clone();
        self.losses()?.plan(&info, &options)
    }

    fn losses(&mut self) -> Result<&mut Losses, Error> {
        if self.losses.is_none() {
            self.losses = Some(Losses::new(&self.engine.machine().options)?);
        }
        match &mut self.losses {
            Some(losses) => Ok(losses),
            None => unreachable!("they were made above"),
        }
    }

    /// Returns the loss of the predictions with this name; `None` if it depends on more than these.
    fn loss_of(&mut self, name: &str, predictions: &Tensor, labels: Tensor) -> Result<Option<f32>, Error> {
        if !LossPlan::takes_predictions(&self.options) {
            return Ok(None);
        }
        // The next window allocates what it needs again, so the loss can use the memory meanwhile.
        self.make_room()?;
        let options = self.options.clone();
        let losses = self.losses()?;
        losses.of(name, predictions, labels, &options).map(Some)
    }
}

/// Computes the losses of merged predictions. These are in host memory, so the host computes their losses, outside the device budgets.
pub(super) struct Losses {
    engine: Engine,
    /// The number of each plan and the plan itself, by the shape of the predictions.
    plans: BTreeMap<Vec<u64>, (u64, LossPlan)>,
    /// The number of plans made so far.
    made: u64,
}

impl Losses {
    fn new(of_trainer: &EngineOptions) -> Result<Losses, Error> {
        let mut options = EngineOptions::default();
        options.device.threads = of_trainer.device.threads;
        options.memory.memory_limit = of_trainer.memory.memory_limit;
        let engine = Engine::new(LimitedDevice::open(&options)?, BTreeMap::new());
        Ok(Losses { engine, plans: BTreeMap::new(), made: 0 })
    }

    /// Makes the plan for these predictions unless there is one already.
    fn plan(&mut self, predictions: &TensorInfo, options: &TrainingOptions) -> Result<(), Error> {
        if self.plans.contains_key(&predictions.shape) {
            return Ok(());
        }
        if self.plans.len() >= OTHER_PLANS_MAX {
            self.plans.clear();
        }
        let plan = LossPlan::of_predictions(predictions, options, self.engine.machine())?;
        self.made += 1;
        self.plans.insert(predictions.shape.clone(), (self.made, plan));
        Ok(())
    }

    fn of(
        &mut self,
        name: &str,
        predictions: &Tensor,
        labels: Tensor,
        options: &TrainingOptions,
    ) -> Result<f32, Error> {
        let shape = predictions.shape().to_vec();
        let info = TensorInfo { name: name.to_string(), data_type: predictions.data_type(), shape: shape.clone() };
        self.plan(&info, options)?;
        let (number, plan) = &self.plans[&shape];
        let fed = plan.check(BTreeMap::from([(plan.logits.name.clone(), predictions.clone())]), labels, None)?;
        let runner = self.engine.activate((Purpose::Inference, *number), &plan.compiled)?;
        feed(runner, fed)?;
        runner.run()?;
        let loss = scalar(&runner.read_output(&plan.loss)?);
        self.engine.forget((Purpose::Inference, *number));
        Ok(loss)
    }
}
