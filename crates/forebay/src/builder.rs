//! Builders for sessions, trainers and models, with defaults for everything that is not set.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_device::Device;
use forebay_model::training::{Clipping, DecayRule, Loss, LossTerm, Optimizer, ParameterGroup, Precision};

use crate::error::Error;
use crate::model::Model;
use crate::options::{EngineOptions, OnNan, SessionOptions, TrainerOptions, engine_setters};
use crate::schedule::Schedule;
use crate::session::Session;
use crate::trainer::Trainer;

impl Session {
    /// Returns a builder for a session, with defaults for everything that is not set.
    pub fn builder(model: &Model) -> SessionBuilder<'_> {
        SessionBuilder::new(model)
    }
}

/// Builds a [`Session`]: by default on the host and without budgets.
///
/// ```
/// use forebay::{Model, Session};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let session = Session::builder(&model).device("null".parse()?).device_memory("1MiB".parse()?).build()?;
/// assert!(session.statistics().expect("the sizes are known").device_peak_bytes <= 1 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct SessionBuilder<'a> {
    model: &'a Model,
    options: SessionOptions,
}

impl<'a> SessionBuilder<'a> {
    pub(crate) fn new(model: &'a Model) -> SessionBuilder<'a> {
        SessionBuilder { model, options: SessionOptions::default() }
    }

    engine_setters!(options.engine);

    /// Sets the options for the device, budgets, planning and measuring at once.
    pub fn engine(mut self, engine: EngineOptions) -> Self {
        self.options.engine = engine;
        self
    }

    /// Sets the size of the batch dimension, if the model leaves it open.
    pub fn batch_size(mut self, batch_size: u64) -> Self {
        self.options.batch_size = Some(batch_size);
        self
    }

    /// Sets a size that the model leaves open, by its symbol in the model. Can be called several times.
    pub fn size(mut self, symbol: impl Into<String>, size: u64) -> Self {
        self.options.sizes.insert(symbol.into(), size);
        self
    }

    /// Plans the model on the device that the options name.
    ///
    /// # Errors
    /// Same as [`Session::new`].
    pub fn build(self) -> Result<Session, Error> {
        Session::new(self.model, &self.options)
    }

    /// Plans the model on the given device.
    ///
    /// # Errors
    /// Same as [`Session::with_device`].
    pub fn build_on(self, device: Arc<dyn Device>) -> Result<Session, Error> {
        Session::with_device(self.model, &self.options, device)
    }
}

impl Trainer {
    /// Returns a builder for a trainer, with defaults for everything that is not set.
    pub fn builder(model: &Model) -> TrainerBuilder {
        TrainerBuilder::new(model.clone())
    }
}

/// Builds a [`Trainer`]: by default with softmax cross-entropy and gradient descent with a step size of 0.01, on the host and without
/// budgets.
///
/// ```
/// use forebay::training::Optimizer;
/// use forebay::{Model, Trainer};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let trainer = Trainer::builder(&model)
///     .optimizer(Optimizer::adamw(1e-3))
///     .freeze("conv1.*")
///     .simulate_device("50%".parse()?) // of what a step takes without a budget
///     .build()?;
/// assert_eq!(trainer.step_count(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct TrainerBuilder {
    model: Model,
    options: TrainerOptions,
}

impl TrainerBuilder {
    pub(crate) fn new(model: Model) -> TrainerBuilder {
        TrainerBuilder { model, options: TrainerOptions::default() }
    }

    engine_setters!(options.engine);

    /// Sets the options for the device, budgets, planning and measuring at once.
    pub fn engine(mut self, engine: EngineOptions) -> Self {
        self.options.engine = engine;
        self
    }

    /// Sets the loss to minimize.
    pub fn loss(mut self, loss: Loss) -> Self {
        self.options.training.loss = loss;
        self
    }

    /// Sets the output that the loss takes, if the model has several, or a value inside the model, such as the logits before its last
    /// softmax.
    pub fn loss_output(mut self, name: impl Into<String>) -> Self {
        self.options.training.loss_output = Some(name.into());
        self
    }

    /// Sets how parameters are updated from their gradients.
    pub fn optimizer(mut self, optimizer: Optimizer) -> Self {
        self.options.training.optimizer = optimizer;
        self
    }

    /// Sets how the learning rate changes from step to step. By default, it stays the optimizer's own.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.options.schedule = schedule;
        self
    }

    /// Sets which parameters decay. By default, only matrices decay with AdamW, and all parameters otherwise.
    pub fn decay(mut self, rule: DecayRule) -> Self {
        self.options.training.decay = Some(rule);
        self
    }

    /// Freezes parameters whose names match (`*` and `?` are wildcards). Can be called several times.
    pub fn freeze(mut self, pattern: impl Into<String>) -> Self {
        self.options.training.freeze.push(pattern.into());
        self
    }

    /// Clips gradients before the optimizer uses them.
    pub fn clipping(mut self, clipping: Clipping) -> Self {
        self.options.training.clipping = Some(clipping);
        self
    }

    /// Makes each step report the norm of all gradients.
    pub fn gradient_norm(mut self) -> Self {
        self.options.training.gradient_norm = true;
        self
    }

    /// Trains the parameters whose names match the group with hyperparameters of their own. Can be called several times: a parameter
    /// belongs to the first group that matches.
    pub fn group(mut self, group: ParameterGroup) -> Self {
        self.options.training.groups.push(group);
        self
    }

    /// Same as `group`, for a group whose learning rate follows its own schedule.
    pub fn group_with_schedule(mut self, group: ParameterGroup, schedule: Schedule) -> Self {
        self.options.group_schedules.insert(self.options.training.groups.len(), schedule);
        self.group(group)
    }

    /// Adds the weighted loss of another output, for deep supervision or several tasks.
    pub fn term(mut self, term: LossTerm) -> Self {
        self.options.training.terms.push(term);
        self
    }

    /// Computes products in 16 bits; parameters stay float32.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.options.training.precision = Some(precision);
        self
    }

    /// Sets the factor of the first loss, if there are several. The default is 1.
    pub fn loss_weight(mut self, weight: f32) -> Self {
        self.options.training.loss_weight = Some(weight);
        self
    }

    /// Keeps an exponential moving average of every parameter. [`Trainer::save_average`] writes a model with the averages.
    pub fn average(mut self, decay: f32) -> Self {
        self.options.training.average = Some(decay);
        self
    }

    /// Splits the batch of a step into this many parts, which run one after the other and whose gradients are accumulated. A step takes
    /// that many times [`TrainerBuilder::batch_size`] samples, but holds the activations of only one part at a time. Results are those of
    /// the whole batch, bit for bit. If samples are normalized with statistics of their batch, parts are separate batches, whose losses
    /// are averaged ([`Trainer::parts_apart`]).
    pub fn accumulate(mut self, parts: u64) -> Self {
        self.options.training.accumulate = parts;
        self
    }

    /// Sets the seed of dropout.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.training.seed = seed;
        self
    }

    /// Sets the batch size, if the model leaves it open or a different one is wanted.
    pub fn batch_size(mut self, batch_size: u64) -> Self {
        self.options.batch_size = Some(batch_size);
        self
    }

    /// Sets another size that the model leaves open, by its symbol in the model or as `input[dimension]`. Can be called several times.
    pub fn size(mut self, name: impl Into<String>, size: u64) -> Self {
        self.options.sizes.insert(name.into(), size);
        self
    }

    /// Sets what happens when the loss is not a finite number. By default, the step fails.
    pub fn on_nan(mut self, on_nan: OnNan) -> Self {
        self.options.on_nan = on_nan;
        self
    }

    /// Plans training on the device that the options name.
    ///
    /// # Errors
    /// Same as [`Trainer::new`].
    pub fn build(self) -> Result<Trainer, Error> {
        Trainer::new(self.model, self.options)
    }

    /// Plans training on the given device.
    ///
    /// # Errors
    /// Same as [`Trainer::with_device`].
    pub fn build_on(self, device: Arc<dyn Device>) -> Result<Trainer, Error> {
        Trainer::with_device(self.model, self.options, device)
    }
}

impl Model {
    /// Returns a builder for a model that needs more than a path.
    pub fn builder() -> ModelBuilder {
        ModelBuilder::default()
    }
}

/// Reads a [`Model`] that needs more than one path.
///
/// ```
/// use forebay::Model;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let folder = "../../testdata/golden/digits-cnn";
/// let bytes = std::fs::read(format!("{folder}/model.onnx"))?;
/// let model = Model::builder().external_data(folder).read_bytes(&bytes)?;
/// assert_eq!(model.inputs()[0].name, "x");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing before it reads"]
pub struct ModelBuilder {
    external_data: Option<PathBuf>,
}

impl ModelBuilder {
    /// Sets the folder of external data files. The default is the folder of the model's file; a model in memory has none.
    pub fn external_data(mut self, folder: impl Into<PathBuf>) -> Self {
        self.external_data = Some(folder.into());
        self
    }

    /// Reads a model from a file.
    ///
    /// # Errors
    /// Same as [`Model::from_file`].
    pub fn read_file(self, path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::read_file(path.as_ref(), self.external_data.as_deref())
    }

    /// Reads a model from memory.
    ///
    /// # Errors
    /// Same as [`Model::from_bytes`].
    pub fn read_bytes(self, bytes: &[u8]) -> Result<Model, Error> {
        Model::read_bytes(bytes, self.external_data.as_deref())
    }
}
