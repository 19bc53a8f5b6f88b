//! Builders: sessions, trainers and models with defaults for everything that is not said.

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
    /// A session with defaults for everything that is not said.
    pub fn builder(model: &Model) -> SessionBuilder<'_> {
        SessionBuilder::new(model)
    }
}

/// Builds a [`Session`]: on the host, without budgets, where nothing else is said.
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

    /// Device, budgets, planning and measuring at once.
    pub fn engine(mut self, engine: EngineOptions) -> Self {
        self.options.engine = engine;
        self
    }

    /// The size of the batch dimension, where the model leaves it open.
    pub fn batch_size(mut self, batch_size: u64) -> Self {
        self.options.batch_size = Some(batch_size);
        self
    }

    /// A size that the model leaves open, by the symbol that it gives it. May be said several times.
    pub fn size(mut self, symbol: impl Into<String>, size: u64) -> Self {
        self.options.sizes.insert(symbol.into(), size);
        self
    }

    /// Plans the model on the device that was named.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn build(self) -> Result<Session, Error> {
        Session::new(self.model, &self.options)
    }

    /// Plans the model on a device of the caller's.
    ///
    /// # Errors
    /// As [`Session::with_device`].
    pub fn build_on(self, device: Arc<dyn Device>) -> Result<Session, Error> {
        Session::with_device(self.model, &self.options, device)
    }
}

impl Trainer {
    /// A trainer with defaults for everything that is not said.
    pub fn builder(model: &Model) -> TrainerBuilder {
        TrainerBuilder::new(model.clone())
    }
}

/// Builds a [`Trainer`]: softmax cross-entropy and gradient descent with a step size of 0.01, on the host, without budgets, where
/// nothing else is said.
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

    /// Device, budgets, planning and measuring at once.
    pub fn engine(mut self, engine: EngineOptions) -> Self {
        self.options.engine = engine;
        self
    }

    /// What is minimised.
    pub fn loss(mut self, loss: Loss) -> Self {
        self.options.training.loss = loss;
        self
    }

    /// The output that the loss takes, where the model has several; or a value inside the model, such as the logits in front of its last softmax.
    pub fn loss_output(mut self, name: impl Into<String>) -> Self {
        self.options.training.loss_output = Some(name.into());
        self
    }

    /// How parameters follow their gradients.
    pub fn optimizer(mut self, optimizer: Optimizer) -> Self {
        self.options.training.optimizer = optimizer;
        self
    }

    /// How the learning rate changes from step to step; it stays the optimizer's own where not given.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.options.schedule = schedule;
        self
    }

    /// Which parameters decay; matrices only for AdamW, else all, where not given.
    pub fn decay(mut self, rule: DecayRule) -> Self {
        self.options.training.decay = Some(rule);
        self
    }

    /// Does not train parameters whose names match (`*` and `?` are wildcards). May be said several times.
    pub fn freeze(mut self, pattern: impl Into<String>) -> Self {
        self.options.training.freeze.push(pattern.into());
        self
    }

    /// Limits gradients before the optimizer takes them.
    pub fn clipping(mut self, clipping: Clipping) -> Self {
        self.options.training.clipping = Some(clipping);
        self
    }

    /// Has each step report the norm of all gradients.
    pub fn gradient_norm(mut self) -> Self {
        self.options.training.gradient_norm = true;
        self
    }

    /// Trains parameters whose names match with numbers of their own. May be said several times: a parameter belongs to the first group
    /// that matches.
    pub fn group(mut self, group: ParameterGroup) -> Self {
        self.options.training.groups.push(group);
        self
    }

    /// The same for a group whose learning rate changes by a schedule of its own.
    pub fn group_with_schedule(mut self, group: ParameterGroup, schedule: Schedule) -> Self {
        self.options.group_schedules.insert(self.options.training.groups.len(), schedule);
        self.group(group)
    }

    /// Adds the loss of one more output, times a weight: deep supervision, several tasks.
    pub fn term(mut self, term: LossTerm) -> Self {
        self.options.training.terms.push(term);
        self
    }

    /// Computes products in 16 bits; parameters stay float32.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.options.training.precision = Some(precision);
        self
    }

    /// The factor of the first loss, where there are more; it is 1 where not given.
    pub fn loss_weight(mut self, weight: f32) -> Self {
        self.options.training.loss_weight = Some(weight);
        self
    }

    /// Keeps an exponential moving average of every parameter: [`Trainer::save_average`] writes a model of them.
    pub fn average(mut self, decay: f32) -> Self {
        self.options.training.average = Some(decay);
        self
    }

    /// Goes through the batch of a step in this number of parts, one after the other, whose gradients add up: a step takes that many times
    /// [`TrainerBuilder::batch_size`] samples, and the activations of one part at a time. Results are those of the batch as a whole, bit for
    /// bit. Where samples are normalised with statistics of their batch, parts are batches of their own, whose losses are averaged
    /// ([`Trainer::parts_apart`]).
    pub fn accumulate(mut self, parts: u64) -> Self {
        self.options.training.accumulate = parts;
        self
    }

    /// The seed of dropout.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.training.seed = seed;
        self
    }

    /// The size of a batch, where the model leaves it open or another one is wanted.
    pub fn batch_size(mut self, batch_size: u64) -> Self {
        self.options.batch_size = Some(batch_size);
        self
    }

    /// Another size that the model leaves open, by the symbol that it gives it, or as `input[dimension]`. May be said several times.
    pub fn size(mut self, name: impl Into<String>, size: u64) -> Self {
        self.options.sizes.insert(name.into(), size);
        self
    }

    /// What happens when the loss is not a finite number; the step fails where not given.
    pub fn on_nan(mut self, on_nan: OnNan) -> Self {
        self.options.on_nan = on_nan;
        self
    }

    /// Plans training on the device that was named.
    ///
    /// # Errors
    /// As [`Trainer::new`].
    pub fn build(self) -> Result<Trainer, Error> {
        Trainer::new(self.model, self.options)
    }

    /// Plans training on a device of the caller's.
    ///
    /// # Errors
    /// As [`Trainer::with_device`].
    pub fn build_on(self, device: Arc<dyn Device>) -> Result<Trainer, Error> {
        Trainer::with_device(self.model, self.options, device)
    }
}

impl Model {
    /// Reads a model that needs more than a path says.
    pub fn builder() -> ModelBuilder {
        ModelBuilder::default()
    }
}

/// Reads a [`Model`] that needs more than one path says.
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
    /// The folder of external data files. Where not given: that of the model's file, and none for a model in memory.
    pub fn external_data(mut self, folder: impl Into<PathBuf>) -> Self {
        self.external_data = Some(folder.into());
        self
    }

    /// Reads a model from a file.
    ///
    /// # Errors
    /// As [`Model::from_file`].
    pub fn read_file(self, path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::read_file(path.as_ref(), self.external_data.as_deref())
    }

    /// Reads a model from memory.
    ///
    /// # Errors
    /// As [`Model::from_bytes`].
    pub fn read_bytes(self, bytes: &[u8]) -> Result<Model, Error> {
        Model::read_bytes(bytes, self.external_data.as_deref())
    }
}
