//! Running a model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_device::{Device, DeviceUsage};
use forebay_model::infer::Sizes;
use forebay_model::training::{open_gradients, open_graph};
use forebay_model::{Graph, Tensor};
use forebay_plan::distribute::SharedWork;
use forebay_plan::plan::Statistics;
use forebay_plan::saved_costs::Unknown;
use forebay_plan::{Plan, SavedCosts};
use forebay_runtime::{StepMoves, StepTimes};

use crate::engine::Engine;
use crate::error::Error;
use crate::explain::{Explanation, explain};
use crate::machine::LimitedDevice;
use crate::model::{Model, other_batch};
use crate::options::{ProcessLimit, SessionOptions};
use crate::runner::Runner;
use crate::stages::{PlanCache, Stages};
use crate::tensor_info::{self, Value, ValueInfo};

/// When a run took place.
///
/// ```
/// use forebay::{Model, Session, Tensor};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let mut session = Session::builder(&model).build()?;
/// session.run([("x".to_string(), Tensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]))].into())?;
/// let times = session.last_run();
/// assert!(times.stall_seconds <= times.seconds);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RunTimes {
    /// Seconds from the first command to the last result.
    pub seconds: f64,
    /// The part of them in which no kernel ran.
    pub stall_seconds: f64,
    /// The part of `stall_seconds` in which an exchange with other processes was under way.
    pub exchange_stall_seconds: f64,
    /// Copies to the device that kernels had to wait for.
    pub late_copies: usize,
    /// The part of `stall_seconds` that those cost.
    pub late_seconds: f64,
    /// What managed memory did; none where a plan says every move.
    pub moves: Option<StepMoves>,
}

impl From<StepTimes> for RunTimes {
    fn from(times: StepTimes) -> RunTimes {
        RunTimes {
            seconds: times.total.as_secs_f64(),
            stall_seconds: times.stall.as_secs_f64(),
            exchange_stall_seconds: times.exchange_stall.as_secs_f64(),
            late_copies: times.late_copies,
            late_seconds: times.late.as_secs_f64(),
            moves: times.moves,
        }
    }
}

/// A model, ready to run within its budgets. Sizes that it leaves open are those of the inputs of each run: there is a plan for each, made
/// at the first run with these sizes and kept. Memory is taken at the first run and given back on drop.
///
/// ```
/// use forebay::{Model, Session, Tensor};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let mut session = Session::builder(&model).simulate_device("1MiB".parse()?).build()?;
/// let x = Tensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]);
/// let outputs = session.run([("x".to_string(), x)].into())?;
/// assert_eq!(outputs["logits"].shape(), [50, 10]);
/// assert!(session.usage().heap_peak_bytes <= 1 << 20);
/// # Ok(())
/// # }
/// ```
pub struct Session {
    inputs: Vec<ValueInfo>,
    outputs: Vec<ValueInfo>,
    stages: Stages,
    engine: Engine,
    last_run: RunTimes,
}

impl Session {
    /// A session on the device that the options name. Where all sizes are known, it is planned now.
    ///
    /// # Errors
    /// A model that cannot run, a device that cannot be had, or budgets that are too small.
    pub fn new(model: &Model, options: &SessionOptions) -> Result<Session, Error> {
        Session::on(model, options, LimitedDevice::open(&options.engine)?)
    }

    /// The same on a device of the caller's.
    ///
    /// # Errors
    /// A model that cannot run there, or budgets that are too small.
    pub fn with_device(model: &Model, options: &SessionOptions, device: Arc<dyn Device>) -> Result<Session, Error> {
        Session::on(model, options, LimitedDevice::with_device(&options.engine, device)?)
    }

    fn on(model: &Model, options: &SessionOptions, machine: LimitedDevice) -> Result<Session, Error> {
        let (graph, stated) = model.inference_graph(options.batch_size, &options.sizes)?;
        Session::of_graph(graph, stated, options, machine)
    }

    /// Runs the model as a part of a larger program that trains: its weights are inputs of every run. In training mode, batch normalisation
    /// takes the batch's statistics and the next running ones are outputs, called `next:` and their name; dropout and random numbers are
    /// a function of the input `forebay.step`, two int64 numbers: a step from 1, and a seed.
    ///
    /// ```
    /// use forebay::{Model, Session, SessionOptions};
    ///
    /// let model = Model::from_file("../../examples/digits/model.onnx")?;
    /// let mut options = SessionOptions::default();
    /// options.batch_size = Some(8);
    /// let forwards = Session::of_open_model(&model, &options, true)?;
    /// let backwards = Session::of_gradients(&model, &options, true)?;
    /// // Backwards takes what forwards does, and the gradients of its outputs.
    /// assert_eq!(backwards.inputs().len(), forwards.inputs().len() + 1);
    /// assert!(backwards.outputs().iter().any(|info| info.name == "gradient:x"));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::new`]; sizes that are left open.
    pub fn of_open_model(model: &Model, options: &SessionOptions, training: bool) -> Result<Session, Error> {
        let graph = open_graph(&model.open_graph(&open_sizes(options))?, training)?;
        Session::of_graph(graph, None, options, LimitedDevice::open(&options.engine)?)
    }

    /// Runs the gradients of the same: by `gradient:` and its name, it takes the gradient of each float32 output, and gives that of each
    /// float32 input and weight on which outputs depend. The forward pass is computed again.
    ///
    /// # Errors
    /// As [`Session::of_open_model`]; an operator without a gradient.
    pub fn of_gradients(model: &Model, options: &SessionOptions, training: bool) -> Result<Session, Error> {
        let graph = open_gradients(&model.open_graph(&open_sizes(options))?, training)?;
        Session::of_graph(graph, None, options, LimitedDevice::open(&options.engine)?)
    }

    fn of_graph(
        graph: Graph,
        stated: Option<u64>,
        options: &SessionOptions,
        machine: LimitedDevice,
    ) -> Result<Session, Error> {
        let inputs = ValueInfo::of(&graph, &graph.inputs);
        let outputs = ValueInfo::of(&graph, &graph.outputs);
        let known = inputs.iter().map(|info| Some((info.name.clone(), info.ty()?))).collect::<Option<_>>();
        let mut stages = Stages::new(graph, options.engine.planning.costs.clone());
        if let Some(types) = known {
            stages.prepare(&types, &machine).map_err(|error| match (options.batch_size, stated, error) {
                (Some(size), Some(stated), Error::Model(error)) if size != stated => other_batch(size, stated, &error),
                (_, _, error) => error,
            })?;
        }
        let engine = Engine::new(machine, BTreeMap::new());
        Ok(Session { inputs, outputs, stages, engine, last_run: RunTimes::default() })
    }

    /// What a run takes. Dimensions that are symbols may have any size.
    pub fn inputs(&self) -> &[ValueInfo] {
        &self.inputs
    }

    /// What a run gives.
    pub fn outputs(&self) -> &[ValueInfo] {
        &self.outputs
    }

    /// Plans for inputs of these types now instead of at the first run with them: what is wrong is found before it. Where inputs are no
    /// tensors, [`Session::run_values`] plans.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn prepare(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<(), Error> {
        let values = inputs.iter().map(|(name, tensor)| (name.clone(), Value::from(tensor.clone()))).collect();
        tensor_info::check_values(&self.inputs, &values)?;
        let types = inputs.iter().map(|(name, tensor)| (name.clone(), tensor.ty())).collect();
        self.stages.prepare(&types, self.engine.machine())
    }

    /// Runs the model: all inputs by name, all outputs by name.
    ///
    /// # Errors
    /// An input that is missing, unknown, or of the wrong type or shape; sizes that the model cannot run with, or whose plan does not fit
    /// the budgets; what the device reports.
    pub fn run(&mut self, inputs: BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, Error> {
        let inputs = inputs.into_iter().map(|(name, tensor)| (name, Value::Tensor(tensor))).collect();
        let tensor = |(name, value)| match value {
            Value::Tensor(tensor) => Ok((name, tensor)),
            other => Err(Error::Option { reason: format!("output '{name}' is {other}: Session::run_values gives it") }),
        };
        self.run_values(inputs)?.into_iter().map(tensor).collect()
    }

    /// The same where inputs or outputs are sequences of tensors, or optional values. There are plans for each number of elements.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_values(&mut self, inputs: BTreeMap<String, Value>) -> Result<BTreeMap<String, Value>, Error> {
        tensor_info::check_values(&self.inputs, &inputs)?;
        let wanted: BTreeSet<String> = self.outputs.iter().map(|info| info.name.clone()).collect();
        let (times, outputs) = self.stages.run(&mut self.engine, inputs, &wanted)?;
        self.last_run = times.into();
        Ok(outputs)
    }

    /// When the latest run took place.
    pub fn last_run(&self) -> RunTimes {
        self.last_run
    }

    /// The plan of the latest run, or the one that was made before the first; of several stages, the one with the most launches. None
    /// where sizes are not known yet, or where there is nothing to compute.
    pub fn plan(&self) -> Option<&Plan> {
        Some(self.stages.main()?.step.plan())
    }

    /// What is kept of plans.
    pub fn plan_cache(&self) -> PlanCache {
        self.stages.cache()
    }

    /// The most bytes of values that lay between two stages at once in the latest run: what a stage gave and a later one takes, in host
    /// memory, next to what plans take there. A budget for host memory, or a limit on the process, holds both.
    pub fn between_stages_peak_bytes(&self) -> u64 {
        self.stages.between_peak_bytes()
    }

    /// Numbers about [`Session::plan`].
    pub fn statistics(&self) -> Option<&Statistics> {
        Some(&self.plan()?.statistics)
    }

    /// How the launches of [`Session::plan`] are shared out among processes; none where every process computes all of it, or where
    /// there is one.
    pub fn shared_work(&self) -> Option<&SharedWork> {
        self.stages.main()?.shared_work.as_ref()
    }

    /// The durations that the plan is a function of: those given, estimated, or measured.
    pub fn costs(&self) -> Option<SavedCosts> {
        Some(self.stages.main()?.costs())
    }

    /// Launches of which [`PlanningOptions::costs`](crate::PlanningOptions::costs) says nothing, so that they are estimated.
    pub fn unknown_costs(&self) -> Option<&Unknown> {
        self.stages.main()?.unknown_costs()
    }

    /// The limit on the process that plans keep to: one that was given, or one that was chosen because a run would take more than is
    /// free.
    pub fn memory_limit(&self) -> Option<ProcessLimit> {
        self.engine.machine().process_limit()
    }

    /// Whether the budget for device memory bounds tensors alone, next to the rest of the host's memory, because the whole process cannot
    /// stay within it: as [`MemoryOptions::simulate_device`](crate::MemoryOptions::simulate_device) does.
    pub fn budget_excludes_process(&self) -> bool {
        self.engine.machine().budget_excludes_process()
    }

    /// What the device has handed out.
    pub fn usage(&self) -> DeviceUsage {
        self.engine.usage()
    }

    /// The plan in words.
    pub fn explain(&self) -> Option<Explanation> {
        self.plan().map(explain)
    }

    /// When every command of every run so far ran, in the format of Perfetto and chrome://tracing. Empty unless
    /// [`MeasuringOptions::trace`](crate::MeasuringOptions::trace) was set.
    pub fn trace(&mut self) -> serde_json::Value {
        self.engine.trace()
    }
}

/// The sizes that options give.
fn open_sizes(options: &SessionOptions) -> Sizes {
    let mut sizes = Sizes::of_batch(options.batch_size);
    sizes.symbols.clone_from(&options.sizes);
    sizes
}

/// Writes the inputs that the plan uses, and gives each up as soon as it is written: a step runs without a second copy of its batch.
pub(crate) fn feed(runner: &mut Runner, inputs: BTreeMap<String, Tensor>) -> Result<(), Error> {
    for (name, tensor) in inputs {
        // An input that no kernel reads has no place in the plan.
        if runner.plan().inputs.iter().any(|backing| backing.name == name) {
            match tensor.try_into_bytes() {
                Ok(bytes) => runner.give_input(&name, bytes)?,
                Err(shared) => runner.write_input(&name, shared.bytes())?,
            }
        }
    }
    Ok(())
}
