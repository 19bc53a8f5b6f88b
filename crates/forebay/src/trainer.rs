//! Training a model.
//!
//! A trainer keeps a plan for each set of input sizes and further plans for evaluation, all within the same budgets. At most one of them is
//! on the device at a time (`engine.rs`).

mod evaluation;
mod gradients;
mod values;
mod windows;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use forebay_data::{FreeSizes, InputDescription, LabelKind, Requirements};
use forebay_device::{Device, DeviceUsage};
use forebay_memory::size::MemorySize;
use forebay_model::graph::Dimension;
use forebay_model::infer::Sizes;
use forebay_model::training::{Loss, Optimizer, ParameterGroup, TrainingOptions};
use forebay_model::{Tensor, TensorType};
use forebay_plan::distribute::SharedWork;
use forebay_plan::plan::Statistics;
use forebay_plan::saved_costs::Unknown;
use forebay_plan::{Plan, SavedCosts};
use forebay_runtime::Decision;
use serde_json::Value;

use crate::engine::{Engine, Purpose};
use crate::error::Error;
use crate::explain::{Explanation, explain};
use crate::loss_plan::{LossPlan, PartsApart, StepNumbers, own_batch_size};
use crate::machine::LimitedDevice;
use crate::model::Model;
use crate::options::{OnNan, ProcessLimit, TrainerOptions};
use crate::progress::Progress;
use crate::schedule::{Curve, Schedule};
use crate::session::{RunTimes, feed};
use crate::shards::Shards;
use crate::step_report::{StepReport, scalar};
use crate::tensor_info::{self, TensorInfo};
use crate::training::{check_clipping, check_group_schedules};

/// The shapes of a model's inputs, in order.
type Shapes = Vec<Vec<u64>>;

/// The number of plans for sizes other than the first that are kept; beyond it, they are all dropped and made again.
const OTHER_PLANS_MAX: usize = 64;

/// A model in training within its budgets. Memory is allocated at the first step and released on drop.
///
/// ```
/// use forebay::training::Optimizer;
/// use forebay::{Model, Tensor, Trainer};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let mut trainer = Trainer::builder(&model).optimizer(Optimizer::sgd(0.05)).build()?;
/// # let (x, labels) = (Tensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]), Tensor::from_i64(&[50], &[7; 50]));
/// # let batch = std::collections::BTreeMap::from([("x".to_string(), x)]);
/// let first = trainer.step(batch.clone(), labels.clone())?;
/// let second = trainer.step(batch, labels)?;
/// assert!(second.loss < first.loss);
/// let trained = std::env::temp_dir().join(format!("forebay-trained-example-{}.onnx", std::process::id()));
/// trainer.save(&trained)?;
/// # std::fs::remove_file(trained).ok();
/// # Ok(())
/// # }
/// ```
pub struct Trainer {
    model: Model,
    options: TrainingOptions,
    schedule: Schedule,
    /// The schedules of parameter groups, by the index of the group.
    group_schedules: BTreeMap<usize, Schedule>,
    on_nan: OnNan,
    engine: Engine,
    /// The values of which each of several processes keeps a slice.
    shards: Shards,
    /// Plans of training steps, by the shapes of the inputs.
    training: BTreeMap<Shapes, LossPlan>,
    /// Plans of training steps that also return their gradients.
    with_gradients: BTreeMap<Shapes, LossPlan>,
    /// Plans of evaluations.
    evaluation: BTreeMap<Shapes, LossPlan>,
    /// Computes the losses of merged predictions; created when the first is needed.
    losses: Option<windows::Losses>,
    /// The numbers of the shapes, in the order in which they first occurred.
    numbers: BTreeMap<Shapes, u64>,
    /// The shapes that were planned first.
    main: Shapes,
    /// The batch size that was planned first.
    batch_size: u64,
    /// The dimensions that the model leaves open, by input.
    open: BTreeMap<String, Vec<usize>>,
    step_count: u64,
    progress: Progress,
}

impl Trainer {
    /// Plans training on the device that the options name.
    ///
    /// # Errors
    /// Fails if the model cannot be trained as requested, the device cannot be opened, or the budgets are too small.
    pub fn new(model: Model, options: TrainerOptions) -> Result<Trainer, Error> {
        let machine = LimitedDevice::open(&options.engine)?;
        Trainer::on(model, options, machine)
    }

    /// Like [`Trainer::new`], on a device that the caller provides.
    ///
    /// # Errors
    /// Fails if the model cannot be trained as requested or the budgets are too small.
    pub fn with_device(model: Model, options: TrainerOptions, device: Arc<dyn Device>) -> Result<Trainer, Error> {
        let machine = LimitedDevice::with_device(&options.engine, device)?;
        Trainer::on(model, options, machine)
    }

    pub(crate) fn on(model: Model, options: TrainerOptions, mut machine: LimitedDevice) -> Result<Trainer, Error> {
        let TrainerOptions { training: mut options, engine, batch_size, sizes, on_nan, schedule, group_schedules } =
            options;
        schedule.check()?;
        check_group_schedules(&group_schedules, options.groups.len())?;
        check_clipping(options.clipping)?;
        // The norm of the gradients shows which steps to skip.
        options.gradient_norm |= on_nan == OnNan::Skip || options.scales_loss();
        let first = model.clone().with_sizes(&sizes)?;
        let sizes = match options.accumulate {
            0 | 1 => Sizes::of_batch(batch_size),
            parts => {
                let of_part = batch_size.or_else(|| own_batch_size(&first));
                Sizes::of_batch(of_part.map(|size| size.saturating_mul(parts)))
            }
        };
        let plan = LossPlan::training(&first, &options, &sizes, &machine, engine.planning.costs.as_ref())?;
        machine.options.memory.fix_budgets(plan.compiled.step.plan().statistics.in_core_peak_bytes);
        let batch_size = plan.inputs.iter().find_map(|info| info.shape.first().copied()).unwrap_or(1);
        let shards = plan.compiled.shards(&machine);
        let engine = Engine::new(machine, plan.initial_values());
        let mut main: Shapes = plan.inputs.iter().map(|info| info.shape.clone()).collect();
        main.extend(plan.has_own_labels.then(|| plan.labels.shape.clone()));
        let open = model.inputs().into_iter().map(|info| {
            let is_open = |&i: &usize| matches!(info.dimensions[i], Dimension::Symbol(_));
            ((0..info.dimensions.len()).filter(is_open).collect(), info.name)
        });
        let open = open.map(|(dimensions, name)| (name, dimensions)).collect();
        Ok(Trainer {
            model,
            options,
            schedule,
            group_schedules,
            on_nan,
            engine,
            shards,
            training: BTreeMap::from([(main.clone(), plan)]),
            with_gradients: BTreeMap::new(),
            evaluation: BTreeMap::new(),
            losses: None,
            numbers: BTreeMap::from([(main.clone(), 1)]),
            main,
            batch_size,
            open,
            step_count: 0,
            progress: Progress::default(),
        })
    }

    /// Returns the inputs that a batch holds besides the labels, at the planned batch size.
    pub fn inputs(&self) -> &[TensorInfo] {
        &self.main().inputs
    }

    /// Returns the number of samples in a batch, as planned first.
    pub fn batch_size(&self) -> u64 {
        self.batch_size
    }

    /// Returns why the parts that a step goes through ([`TrainingOptions::accumulate`]) are separate batches, if they are. Results are then
    /// not those of the batch as a whole.
    pub fn parts_apart(&self) -> Option<PartsApart> {
        self.main().parts_apart
    }

    /// Returns the labels, at the planned batch size.
    pub fn labels(&self) -> &TensorInfo {
        &self.main().labels
    }

    /// Returns the axis of the logits that holds the classes; `None` if the loss has no classes.
    pub fn class_axis(&self) -> Option<usize> {
        self.main().class_axis
    }

    /// Returns the number of classes and the axis of the labels that holds their probabilities, if the loss takes soft labels.
    /// [`DataSet::soften_labels`](crate::data::DataSet::soften_labels) takes both.
    pub fn soft_label_classes(&self) -> Option<(u64, usize)> {
        let axis = self.class_axis().filter(|_| self.options.loss.takes_soft_labels())?;
        Some((*self.labels().shape.get(axis)?, axis))
    }

    /// Returns what a data set must hold for training, for use with [`data::open`](crate::data::open()). Inputs that become floating-point
    /// numbers are multiplied by `input_scale`.
    ///
    /// # Errors
    /// Returns [`Error::NoBatchAxis`] if an input has no batch axis.
    pub fn data_requirements(&self, input_scale: f64) -> Result<Requirements, Error> {
        let describe = |info: &TensorInfo| match info.shape.split_first() {
            Some((_, sample_shape)) => Ok(InputDescription {
                name: info.name.clone(),
                data_type: info.data_type,
                sample_shape: sample_shape.to_vec(),
            }),
            None => Err(Error::NoBatchAxis { input: info.to_string() }),
        };
        let labels = self.labels();
        let inputs = self.inputs().iter().map(describe).collect::<Result<_, _>>()?;
        let mut label_shape = labels.shape.clone();
        if let Some((_, axis)) = self.soft_label_classes() {
            label_shape.remove(axis);
        }
        label_shape.drain(..1.min(label_shape.len()));
        // For a loss of the model's own, an integer for each sample or position is a class; a row of integers can be anything.
        let is_own =
            matches!(self.options.loss, Loss::Output { .. }) && labels.data_type == forebay_base::DataType::Int64;
        let kind = match self.class_axis().is_some() || (is_own && label_shape.len() != 1) {
            true => LabelKind::Classes,
            false => LabelKind::Values(labels.data_type),
        };
        Ok(Requirements { inputs, input_scale, labels: kind, label_shape })
    }

    /// Returns which sizes can differ between samples: those that the model leaves open.
    ///
    /// [`data::open_free`](crate::data::open_free()) takes them along with the requirements. With `pad_to`, the samples of a batch are
    /// padded to the largest of them, rounded up to a multiple of `pad_to`. Padded positions get the label that the loss ignores.
    pub fn free_sizes(&self, pad_to: Option<u64>) -> FreeSizes {
        let axes =
            |dimensions: &Vec<usize>| dimensions.iter().filter_map(|dimension| dimension.checked_sub(1)).collect();
        let axes = self.open.iter().map(|(name, dimensions)| (name.clone(), axes(dimensions)));
        let label_padding = self.options.loss.ignore_index();
        FreeSizes { axes: axes.collect(), pad_to, label_padding }
    }

    /// Returns the number of steps done, including those before a restored checkpoint.
    pub fn step_count(&self) -> u64 {
        self.step_count
    }

    /// Returns the number of steps whose update was skipped ([`OnNan::Skip`]), including those before a restored checkpoint.
    pub fn skipped_count(&self) -> u64 {
        self.progress.skipped
    }

    /// Returns the model as it was before training.
    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn main(&self) -> &LossPlan {
        &self.training[&self.main]
    }

    /// Trains on one batch.
    ///
    /// The batch size and sizes that the model leaves open can differ from the planned ones; each new set of sizes gets its own plan.
    ///
    /// # Errors
    /// Fails if inputs or labels do not fit, if the loss is not finite and that stops training, or if the device reports an error. In the
    /// first two cases, and with [`MemoryMode::Planned`](crate::MemoryMode::Planned) also if a disk fails, everything stays as it was
    /// before the step: parameters and state can still be read and saved, and a new trainer can continue from there. In other memory modes,
    /// values can be lost with a disk; reading them then fails, and training continues from the last checkpoint.
    pub fn step(&mut self, batch: BTreeMap<String, Tensor>, labels: Tensor) -> Result<StepReport, Error> {
        self.step_for(batch, labels, None)
    }

    /// Runs a step and passes its gradients to `visit`.
    fn step_for(
        &mut self,
        batch: BTreeMap<String, Tensor>,
        labels: Tensor,
        visit: Option<gradients::Visit>,
    ) -> Result<StepReport, Error> {
        let (shapes, sizes) = self.sizes_of(&batch, &labels)?;
        let purpose = if visit.is_some() { Purpose::TrainingWithGradients } else { Purpose::Training };
        if !self.plans(purpose).contains_key(&shapes) {
            self.make_room()?;
            let plan = self.step_plan(purpose, sizes)?;
            self.plans(purpose).insert(shapes.clone(), plan);
        }
        let number = self.number(&shapes);
        let plans = if visit.is_some() { &mut self.with_gradients } else { &mut self.training };
        let Some(plan) = plans.get_mut(&shapes) else { unreachable!("it was made above") };
        let step = self.step_count + 1;
        let base = self.options.optimizer.learning_rate();
        let learning_rate = self.schedule.rate_after(base, step, self.progress.plateau.reductions);
        let update = step - self.progress.skipped;
        let rate_of = |(number, group): (usize, &ParameterGroup)| {
            let own = group.optimizer.as_ref().map(Optimizer::learning_rate);
            let base = own.unwrap_or(base);
            match self.group_schedules.get(&number) {
                Some(schedule) => Some(schedule.rate_after(base, step, 0)),
                None => own.map(|_| self.schedule.rate_after(base, step, self.progress.plateau.reductions)),
            }
        };
        let group_rates: Vec<Option<f32>> = self.options.groups.iter().enumerate().map(rate_of).collect();
        let (scales, scale) = (self.options.scales_loss(), self.progress.loss_scale);
        let hyperparameters = self.options.hyperparameters(learning_rate, &group_rates, update, scale.factor);
        let numbers = StepNumbers { update, seed: self.options.seed, hyperparameters };
        let fed = plan.check(batch, labels, Some(&numbers))?;
        let ignored_label = plan.ignored_label(&fed);
        let runner = self.engine.activate((purpose, number), &plan.compiled)?;
        feed(runner, plan.compiled.own_share(fed))?;
        let (mut loss, mut gradient_norm) = (f32::NAN, None);
        let updates = |loss: f32, norm: Option<f32>| {
            self.on_nan == OnNan::Continue && !scales || loss.is_finite() && norm.is_none_or(f32::is_finite)
        };
        self.shards.forget();
        let times = runner.run_in_phases(&mut |read_output| {
            loss = scalar(&read_output(&plan.loss)?);
            gradient_norm = plan.gradient_norm.as_ref().map(|name| read_output(name)).transpose()?.as_ref().map(scalar);
            Ok(if updates(loss, gradient_norm) { Decision::Continue } else { Decision::Stop })
        })?;
        let skipped = !updates(loss, gradient_norm);
        // Scaled gradients may have overflowed only because of their scale.
        let is_scaled = scales && loss.is_finite() && scale.may_shrink();
        if skipped && self.on_nan == OnNan::Stop && !is_scaled {
            return Err(match ignored_label {
                Some(ignore_index) => Error::NothingCounts { step, ignore_index },
                None if !loss.is_finite() => Error::NanLoss { step, loss },
                None => Error::NanGradients { step },
            });
        }
        self.step_count = step;
        self.progress.skipped += u64::from(skipped);
        if scales {
            self.progress.loss_scale.observe(!skipped);
        }
        // A step without updates says nothing about how long other steps take.
        let replan = match (skipped, visit) {
            (_, Some(visit)) => {
                gradients::show(runner, visit)?;
                None
            }
            (true, None) => None,
            (false, None) => self.engine.watch(&mut plan.compiled, times)?,
        };
        let RunTimes { seconds, stall_seconds, exchange_stall_seconds, late_copies, late_seconds, moves } =
            times.into();
        Ok(StepReport {
            step,
            loss,
            learning_rate,
            gradient_norm,
            skipped,
            loss_scale: scales.then_some(scale.factor),
            seconds,
            stall_seconds,
            exchange_stall_seconds,
            late_copies,
            late_seconds,
            moves,
            replan,
        })
    }

    /// Returns the plans of one kind of training step.
    fn plans(&mut self, purpose: Purpose) -> &mut BTreeMap<Shapes, LossPlan> {
        match purpose {
            Purpose::TrainingWithGradients => &mut self.with_gradients,
            _ => &mut self.training,
        }
    }

    /// Makes a plan of training steps other than the first one.
    fn step_plan(&self, purpose: Purpose, sizes: Sizes) -> Result<LossPlan, Error> {
        let mut options = self.options.clone();
        options.gradient_outputs = purpose == Purpose::TrainingWithGradients;
        let plan = LossPlan::training(&self.model, &options, &sizes, self.engine.machine(), None)?;
        plan.compiled.check_shards(&self.main().compiled)?;
        Ok(plan)
    }

    /// Returns the shapes of a batch. Its tensors must have the planned types and, except for the batch size and sizes that the model
    /// leaves open, the planned shapes.
    fn sizes_of(&self, batch: &BTreeMap<String, Tensor>, labels: &Tensor) -> Result<(Shapes, Sizes), Error> {
        let main = self.main();
        let given = main.inputs.iter().find_map(|info| batch.get(&info.name)?.shape().first().copied());
        let batch_size = given.filter(|&size| size > 0).unwrap_or(self.batch_size);
        let expected = |info: &TensorInfo| {
            let mut info = info.with_batch(self.batch_size, batch_size);
            let given = batch.get(&info.name).map(Tensor::shape).filter(|given| given.len() == info.shape.len());
            for &i in self.open.get(&info.name).into_iter().flatten() {
                info.shape[i] = given.map_or(info.shape[i], |given| given[i].max(1));
            }
            info
        };
        let infos: Vec<TensorInfo> = main.inputs.iter().map(expected).collect();
        tensor_info::check_inputs(&infos, batch)?;
        let own = main.has_own_labels.then(|| labels.shape().to_vec());
        Ok(self.sizes_with(infos, batch_size, own.filter(|shape| shape.iter().all(|&size| size > 0))))
    }

    /// Returns what plans are told about inputs, and about labels if these have their own shape.
    fn sizes_with(&self, infos: Vec<TensorInfo>, batch_size: u64, labels: Option<Vec<u64>>) -> (Shapes, Sizes) {
        let ty = |info: &TensorInfo| (info.name.clone(), TensorType::new(info.data_type, &info.shape));
        let mut inputs: BTreeMap<String, TensorType> = infos.iter().map(ty).collect();
        let mut shapes: Shapes = infos.into_iter().map(|info| info.shape).collect();
        if let Some(shape) = labels {
            let labels = &self.main().labels;
            inputs.insert(labels.name.clone(), TensorType::new(labels.data_type, &shape));
            shapes.push(shape);
        }
        (shapes, Sizes { batch_size: Some(batch_size), inputs, ..Sizes::default() })
    }

    /// Returns the number of these shapes; new shapes get the next number.
    fn number(&mut self, shapes: &Shapes) -> u64 {
        let next = self.numbers.len() as u64 + 1;
        *self.numbers.entry(shapes.clone()).or_insert(next)
    }

    /// Makes room for another plan and for planning: drops the plans for sizes other than the first if there are too many.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    fn make_room(&mut self) -> Result<(), Error> {
        if self.training.len() + self.with_gradients.len() + self.evaluation.len() > OTHER_PLANS_MAX {
            self.training.retain(|shapes, _| *shapes == self.main);
            self.with_gradients.clear();
            self.evaluation.clear();
        }
        self.engine.make_room_to_plan()
    }

    /// Sets another learning rate schedule, from the next step on. It counts steps from the first step of the run and continues from the
    /// losses that [`Trainer::observe`] has already recorded.
    ///
    /// # Errors
    /// Returns [`Error::Option`] if a number is invalid.
    pub fn set_schedule(&mut self, schedule: Schedule) -> Result<(), Error> {
        schedule.check()?;
        self.schedule = schedule;
        Ok(())
    }

    /// Sets another schedule for the parameter group with this index, from the next step on.
    ///
    /// # Errors
    /// Returns [`Error::Option`] if the group does not exist or a number is invalid.
    pub fn set_group_schedule(&mut self, group: usize, schedule: Schedule) -> Result<(), Error> {
        let schedules = BTreeMap::from([(group, schedule)]);
        check_group_schedules(&schedules, self.options.groups.len())?;
        self.group_schedules.extend(schedules);
        Ok(())
    }

    /// Reports a loss, either a validation loss or the mean of an epoch, to a schedule that follows losses ([`Curve::Plateau`]). Other
    /// schedules ignore it. Checkpoints keep what the schedule has recorded.
    pub fn observe(&mut self, loss: f32) {
        if let Curve::Plateau(plateau) = &self.schedule.curve {
            self.progress.plateau.observe(plateau, loss);
        }
    }

    /// Sets other hyperparameters, from the next step on. If there is a schedule, its rates start from the learning rate of this optimizer.
    /// The plan and the optimizer's state do not change.
    ///
    /// # Errors
    /// Returns [`Error::Option`] if the optimizer is of another kind or has other state per parameter (because momentum was added or
    /// removed). In that case, start another trainer from a checkpoint or the saved model. Also fails if a number is out of range.
    pub fn set_optimizer(&mut self, optimizer: Optimizer) -> Result<(), Error> {
        self.check_optimizer(&optimizer)?;
        self.options.optimizer = optimizer;
        Ok(())
    }

    /// Sets other hyperparameters for the parameter group with this index, from the next step on; see [`ParameterGroup::optimizer`].
    ///
    /// # Errors
    /// Returns [`Error::Option`] if the group does not exist, and otherwise as [`Trainer::set_optimizer`] does.
    pub fn set_group_optimizer(&mut self, group: usize, optimizer: Optimizer) -> Result<(), Error> {
        self.check_optimizer(&optimizer)?;
        let count = self.options.groups.len();
        let Some(group) = self.options.groups.get_mut(group) else {
            let reason = format!("there is no parameter group {group}: there are {count} groups, numbered from 0");
            return Err(Error::Option { reason });
        };
        group.optimizer = Some(optimizer);
        Ok(())
    }

    fn check_optimizer(&self, optimizer: &Optimizer) -> Result<(), Error> {
        optimizer.check()?;
        let current = &self.options.optimizer;
        if optimizer.has_the_plan_of(current) {
            return Ok(());
        }
        let reason = format!(
            "training continues with {current:?}; {optimizer:?} needs different state: only the learning rate, momentum (not \
             from or to 0), betas, epsilon and weight decay can change between steps"
        );
        Err(Error::Option { reason })
    }

    /// Sets another gradient clipping limit, from the next step on. The plan does not change.
    ///
    /// # Errors
    /// Returns [`Error::Option`] if gradients are not clipped or the limit is not a number of at least 0.
    pub fn set_clipping_limit(&mut self, limit: f32) -> Result<(), Error> {
        let clipping = self.options.clipping.map(|clipping| clipping.with_limit(limit));
        let Some(clipping) = clipping else {
            let reason = "gradients are not clipped; create a trainer with clipping to set a limit".to_string();
            return Err(Error::Option { reason });
        };
        check_clipping(Some(clipping))?;
        self.options.clipping = Some(clipping);
        Ok(())
    }

    /// Sets another device memory budget, from the next step on; `None` allows as much as is needed.
    ///
    /// If device memory is the host's, the budget is a limit on the process, as in
    /// [`MemoryOptions::device_memory`](crate::MemoryOptions::device_memory). Parameters, state and all results stay the same.
    ///
    /// # Errors
    /// Fails if the budget is too small, including for steps that show gradients if these have a plan; everything then stays as before.
    /// Also fails if the device reports an error.
    pub fn set_device_memory(&mut self, size: Option<MemorySize>) -> Result<(), Error> {
        let in_core_peak_bytes = self.main().compiled.step.plan().statistics.in_core_peak_bytes;
        let machine = self.engine.machine_mut();
        let size = match machine.has_one_pool() {
            // Shares in a limit on the process are relative to what the process takes.
            true => size,
            false => size.map(|size| MemorySize::Bytes(size.resolve(in_core_peak_bytes))),
        };
        let budget = machine.budget(size);
        let before = machine.exchange_budget(budget);
        let Some(main) = self.training.get_mut(&self.main) else { unreachable!("it is made with the trainer") };
        let shown = self.with_gradients.get_mut(&self.main);
        let replanned =
            shown.into_iter().chain([main]).try_for_each(|plan| plan.compiled.replan(self.engine.machine()));
        if let Err(error) = replanned {
            self.engine.machine_mut().exchange_budget(before);
            // The plan with gradients may already have been made for the refused budget.
            self.with_gradients.clear();
            return Err(error);
        }
        // The others are made again when they are needed.
        self.training.retain(|shapes, _| *shapes == self.main);
        self.with_gradients.retain(|shapes, _| *shapes == self.main);
        self.evaluation.clear();
        self.engine.retire()
    }

    /// Returns the plan of a training step at the planned batch size.
    pub fn plan(&self) -> &Plan {
        self.main().compiled.plan(self.engine.machine())
    }

    /// Returns [`Trainer::plan`] without the smallest budget, unless that is known: 0 in its statistics means unknown. Looking for it can
    /// take as long as planning.
    ///
    /// ```
    /// use forebay::{Model, Trainer};
    ///
    /// # fn main() -> Result<(), forebay::Error> {
    /// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
    /// let trainer = Trainer::builder(&model).build()?;
    /// assert_eq!(trainer.plan_as_made().statistics.minimum_budget_bytes, 0);
    /// assert!(trainer.plan().statistics.minimum_budget_bytes > 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn plan_as_made(&self) -> &Plan {
        self.main().compiled.plan_as_made()
    }

    /// Returns statistics about the plan of a training step, with the smallest budget.
    pub fn statistics(&self) -> &Statistics {
        self.main().compiled.statistics(self.engine.machine())
    }

    /// Returns how the launches of a step are divided among processes; `None` if this process computes all of it.
    pub fn shared_work(&self) -> Option<&SharedWork> {
        self.main().compiled.shared_work.as_ref()
    }

    /// Returns which samples of a batch of the planned size this process computes, as ranges, if it needs no others; `None` if it needs all
    /// samples or their sizes can differ.
    pub fn own_samples(&self) -> Option<Vec<Range<u64>>> {
        let plan = self.main();
        let names = plan.inputs.iter().chain([&plan.labels]).map(|info| &info.name);
        let mut shares = names.map(|name| plan.compiled.own_samples(name));
        let first = shares.next()??;
        let is_alike = shares.all(|share| share == Some(first));
        let varies = self.open.values().flatten().any(|&dimension| dimension > 0);
        (is_alike && !varies).then(|| first.to_vec())
    }

    /// Returns the predicted duration of a step, in seconds, based on the durations measured in the latest steps.
    pub fn predicted_seconds(&self) -> f64 {
        self.main().compiled.predicted_seconds()
    }

    /// Returns the durations from which the plan of a training step was made: given, estimated, or measured.
    pub fn costs(&self) -> SavedCosts {
        self.main().compiled.costs()
    }

    /// Like [`Trainer::costs`], with the durations measured in the latest steps.
    pub fn measured_costs(&self) -> SavedCosts {
        self.main().compiled.measured_costs()
    }

    /// Returns the launches whose durations are estimated because [`PlanningOptions::costs`](crate::PlanningOptions::costs) does not
    /// include them.
    pub fn unknown_costs(&self) -> Option<&Unknown> {
        self.main().compiled.unknown_costs()
    }

    /// Returns the limit on the process that plans stay within: a limit that was given, or one that was chosen because a step would take
    /// more memory than is free.
    pub fn memory_limit(&self) -> Option<ProcessLimit> {
        self.engine.machine().process_limit()
    }

    /// Returns `true` if the device memory budget limits only tensors, separately from the rest of the host's memory, because the whole
    /// process cannot stay within it. [`MemoryOptions::simulate_device`](crate::MemoryOptions::simulate_device) does the same.
    pub fn budget_excludes_process(&self) -> bool {
        self.engine.machine().budget_excludes_process()
    }

    /// Plans again within the limit on the process if memory allocated since the plan was made, such as that of a data set, leaves too
    /// little for it. Call this before the first step: later, such memory cannot be told apart from the plan's own.
    ///
    /// # Errors
    /// Fails if the limit is too small; everything then stays as before.
    pub fn keep_memory_limit(&mut self) -> Result<(), Error> {
        let machine = self.engine.machine();
        let Some(main) = self.training.get_mut(&self.main) else { unreachable!("it is made with the trainer") };
        if main.compiled.exceeds_limit(machine) {
            main.compiled.replan(machine)?;
            self.engine.retire()?;
        }
        Ok(())
    }

    /// Returns the number of bytes that a data set may keep of its samples within the limit on the process; `None` if there is no limit.
    pub fn data_memory_bytes(&self) -> Option<u64> {
        self.main().compiled.kept_bytes(self.engine.machine())
    }

    /// Returns the memory that the device has allocated.
    pub fn usage(&self) -> DeviceUsage {
        self.engine.usage()
    }

    /// Returns an explanation of the plan in words.
    pub fn explain(&self) -> Explanation {
        explain(self.plan())
    }

    /// Returns when every command so far ran, in the format of Perfetto and chrome://tracing. The trace is empty unless
    /// [`MeasuringOptions::trace`](crate::MeasuringOptions::trace) was set.
    pub fn trace(&mut self) -> Value {
        self.engine.trace()
    }
}
