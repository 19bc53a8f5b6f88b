//! Running a model.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
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

use crate::compile::Compiled;
use crate::engine::Engine;
use crate::error::Error;
use crate::explain::{Explanation, explain};
use crate::machine::LimitedDevice;
use crate::model::{Model, other_batch};
use crate::options::{ProcessLimit, SessionOptions};
use crate::runner::Runner;
use crate::stages::{PlanCache, Stages};
use crate::tensor_info::{self, Value, ValueInfo};

/// The timing of a run.
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
    /// The number of seconds from the first command to the last result.
    pub seconds: f64,
    /// The part of `seconds` during which no kernel ran.
    pub stall_seconds: f64,
    /// The part of `stall_seconds` during which an exchange with other processes was in progress.
    pub exchange_stall_seconds: f64,
    /// The number of copies to the device that kernels had to wait for.
    pub late_copies: usize,
    /// The part of `stall_seconds` that these copies caused.
    pub late_seconds: f64,
    /// What managed memory did; `None` if a plan determines every move.
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

/// A model that is ready to run within its budgets.
///
/// Sizes that the model leaves open are those of the inputs of each run. Each set of sizes has its own plan, which is made at the first run
/// with these sizes and kept. Memory is allocated at the first run and released on drop.
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
    defaults: Defaults,
    outputs: Vec<ValueInfo>,
    stages: Stages,
    engine: Engine,
    last_run: RunTimes,
}

/// The inputs for which the model has a value, and what makes the graphs in which they are inputs like the others.
#[derive(Default)]
struct Defaults {
    infos: BTreeMap<String, ValueInfo>,
    /// The model, unless there are no such inputs.
    model: Option<Model>,
    batch_size: Option<u64>,
    sizes: BTreeMap<String, u64>,
}

impl Defaults {
    fn of(model: &Model, options: &SessionOptions) -> Defaults {
        let infos: BTreeMap<String, ValueInfo> =
            model.inputs_with_defaults().into_iter().map(|info| (info.name.clone(), info)).collect();
        let model = (!infos.is_empty()).then(|| model.clone());
        Defaults { infos, model, batch_size: options.batch_size, sizes: options.sizes.clone() }
    }
}

impl Session {
    /// Creates a session on the device that the options name. If all sizes are known, the model is planned now.
    ///
    /// # Errors
    /// Fails if the model cannot run, the device cannot be opened, or the budgets are too small.
    pub fn new(model: &Model, options: &SessionOptions) -> Result<Session, Error> {
        Session::on(model, options, LimitedDevice::open(&options.engine)?)
    }

    /// Like [`Session::new`], on a device that the caller provides.
    ///
    /// # Errors
    /// Fails if the model cannot run on the device or the budgets are too small.
    pub fn with_device(model: &Model, options: &SessionOptions, device: Arc<dyn Device>) -> Result<Session, Error> {
        Session::on(model, options, LimitedDevice::with_device(&options.engine, device)?)
    }

    pub(crate) fn on(model: &Model, options: &SessionOptions, machine: LimitedDevice) -> Result<Session, Error> {
        let (graph, stated) = model.inference_graph(options.batch_size, &options.sizes, &BTreeSet::new())?;
        let defaults = Defaults::of(model, options);
        Ok(Session { defaults, ..Session::of_graph(graph, stated, options, machine)? })
    }

    /// Creates a session that runs the model as part of a larger training program: the weights are inputs of every run.
    ///
    /// In training mode, batch normalization uses the statistics of the batch, and the updated running statistics are outputs named `next:`
    /// followed by their name. Dropout and random numbers are a function of the input `forebay.step`, which holds two int64 numbers: a
    /// step, counted from 1, and a seed.
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
    /// Fails as [`Session::new`] does, and if sizes are left open.
    pub fn of_open_model(model: &Model, options: &SessionOptions, training: bool) -> Result<Session, Error> {
        let graph = open_graph(&model.open_graph(&open_sizes(options))?, training)?;
        Session::of_graph(graph, None, options, LimitedDevice::open(&options.engine)?)
    }

    /// Creates a session that computes the gradients of the model that [`Session::of_open_model`] runs.
    ///
    /// It takes the gradient of each float32 output and returns the gradient of each float32 input and weight on which outputs depend, all
    /// named `gradient:` followed by the name of the value. The forward pass is computed again.
    ///
    /// # Errors
    /// Fails as [`Session::of_open_model`] does, and if an operator has no gradient.
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
            stages.prepare(&types, &BTreeSet::new(), &machine).map_err(|error| {
                match (options.batch_size, stated, error) {
                    (Some(size), Some(stated), Error::Model(error)) if size != stated => {
                        other_batch(size, stated, &error)
                    }
                    (_, _, error) => error,
                }
            })?;
        }
        let engine = Engine::new(machine, BTreeMap::new());
        Ok(Session { inputs, defaults: Defaults::default(), outputs, stages, engine, last_run: RunTimes::default() })
    }

    /// Returns the inputs of a run. Dimensions that are symbols can have any size.
    pub fn inputs(&self) -> &[ValueInfo] {
        &self.inputs
    }

    /// Returns the outputs of a run.
    pub fn outputs(&self) -> &[ValueInfo] {
        &self.outputs
    }

    /// Plans for inputs of these types now instead of at the first run with them, so that errors are found before that run.
    ///
    /// If some inputs are not tensors, [`Session::run_values`] does the planning.
    ///
    /// # Errors
    /// Fails as [`Session::run`] does.
    pub fn prepare(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<(), Error> {
        let values = inputs.iter().map(|(name, tensor)| (name.clone(), Value::from(tensor.clone()))).collect();
        let given = self.check(&values)?;
        let types = inputs.iter().map(|(name, tensor)| (name.clone(), tensor.ty())).collect();
        self.stages.prepare(&types, &given, self.engine.machine())
    }

    /// Returns which rows of an input (along its first axis) this one of several processes reads in runs with inputs of the types that were
    /// planned for last; `None` if it reads all of them. The others can have any contents.
    ///
    /// ```
    /// use forebay::{Model, ProcessGroup, Session, Tensor};
    ///
    /// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
    /// let second = forebay::EngineOptions::default().processes(ProcessGroup::for_plan_of(1, 2));
    /// let mut session = Session::builder(&model).engine(second).build()?;
    /// session.prepare(&[("x".to_owned(), Tensor::from_f32(&[50, 1, 8, 8], &[0.0; 3200]))].into())?;
    /// assert_eq!(session.own_rows("x").map(|rows| rows.end), Some(50));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn own_rows(&self, input: &str) -> Option<Range<u64>> {
        let is_output = self.outputs.iter().any(|output| output.name == input);
        self.stages.own_rows.get(input).filter(|_| !is_output).cloned()
    }

    /// Checks inputs, and returns the names of those for which the model has a value.
    fn check(&mut self, inputs: &BTreeMap<String, Value>) -> Result<BTreeSet<String>, Error> {
        let Defaults { infos, model, batch_size, sizes } = &self.defaults;
        let given: Vec<ValueInfo> = inputs.keys().filter_map(|name| infos.get(name).cloned()).collect();
        if given.is_empty() {
            tensor_info::check_values(&self.inputs, inputs)?;
            return Ok(BTreeSet::new());
        }
        tensor_info::check_values(&[self.inputs.as_slice(), &given].concat(), inputs)?;
        let given: BTreeSet<String> = given.into_iter().map(|info| info.name).collect();
        if let Some(model) = model.as_ref().filter(|_| !self.stages.knows(&given)) {
            let (graph, _) = model.inference_graph(*batch_size, sizes, &given)?;
            self.stages.add(given.clone(), graph);
        }
        Ok(given)
    }

    /// Runs the model. It takes all inputs by name and returns all outputs by name.
    ///
    /// Inputs for which the model has a value ([`Model::inputs_with_defaults`]) can be given, too. Each set of such inputs has its own
    /// plans.
    ///
    /// # Errors
    /// Fails if an input is missing, unknown, or of the wrong type or shape; if the model cannot run with these sizes, or their plan does
    /// not fit the budgets; or if the device reports an error.
    pub fn run(&mut self, inputs: BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, Error> {
        let inputs = inputs.into_iter().map(|(name, tensor)| (name, Value::Tensor(tensor))).collect();
        let tensor = |(name, value)| match value {
            Value::Tensor(tensor) => Ok((name, tensor)),
            other => Err(Error::Option { reason: format!("output '{name}' is {other}; use Session::run_values") }),
        };
        self.run_values(inputs)?.into_iter().map(tensor).collect()
    }

    /// Like [`Session::run`], for inputs or outputs that are sequences of tensors or optional values. Each number of elements has its own
    /// plans.
    ///
    /// # Errors
    /// Fails as [`Session::run`] does.
    pub fn run_values(&mut self, inputs: BTreeMap<String, Value>) -> Result<BTreeMap<String, Value>, Error> {
        let given = self.check(&inputs)?;
        let wanted: BTreeSet<String> = self.outputs.iter().map(|info| info.name.clone()).collect();
        let (times, outputs) = self.stages.run(&mut self.engine, inputs, &given, &wanted)?;
        self.last_run = times.into();
        Ok(outputs)
    }

    /// Returns the timing of the latest run.
    pub fn last_run(&self) -> RunTimes {
        self.last_run
    }

    /// Returns the plan of the latest run, or the plan that was made before the first run.
    ///
    /// If there are several stages, this is the plan with the most launches. Returns `None` if sizes are not known yet or there is nothing
    /// to compute.
    pub fn plan(&self) -> Option<&Plan> {
        Some(self.stages.main()?.plan(self.engine.machine()))
    }

    /// Returns [`Session::plan`] without the smallest budget, unless that is known: 0 in its statistics means unknown. Looking for it takes
    /// time and memory, which a limit on the process may not leave once the model has run.
    pub fn plan_as_made(&self) -> Option<&Plan> {
        Some(self.stages.main()?.plan_as_made())
    }

    /// Returns what [`Session::plan`] is a part of.
    pub(crate) fn compiled(&self) -> Option<&Compiled> {
        self.stages.main()
    }

    /// Returns statistics about the plans that are kept.
    pub fn plan_cache(&self) -> PlanCache {
        self.stages.cache()
    }

    /// Returns the peak number of bytes of values between two stages in the latest run: results of one stage that a later stage takes.
    ///
    /// They are in host memory, in addition to what plans take there. A host memory budget or a limit on the process covers both.
    pub fn between_stages_peak_bytes(&self) -> u64 {
        self.stages.between_peak_bytes()
    }

    /// Returns statistics about [`Session::plan`].
    pub fn statistics(&self) -> Option<&Statistics> {
        Some(self.stages.main()?.statistics(self.engine.machine()))
    }

    /// Returns how the launches of [`Session::plan`] are divided among processes; `None` if every process computes all of it or there is
    /// only one process.
    pub fn shared_work(&self) -> Option<&SharedWork> {
        self.stages.main()?.shared_work.as_ref()
    }

    /// Returns the durations from which the plan was made: given, estimated, or measured.
    pub fn costs(&self) -> Option<SavedCosts> {
        Some(self.stages.main()?.costs())
    }

    /// Returns the launches whose durations are estimated because [`PlanningOptions::costs`](crate::PlanningOptions::costs) does not
    /// include them.
    pub fn unknown_costs(&self) -> Option<&Unknown> {
        self.stages.main()?.unknown_costs()
    }

    /// Returns the limit on the process that plans stay within: a limit that was given, or one that was chosen because a run would take
    /// more memory than is free.
    pub fn memory_limit(&self) -> Option<ProcessLimit> {
        self.engine.machine().process_limit()
    }

    /// Returns `true` if the device memory budget limits only tensors, separately from the rest of the host's memory, because the whole
    /// process cannot stay within it. [`MemoryOptions::simulate_device`](crate::MemoryOptions::simulate_device) does the same.
    pub fn budget_excludes_process(&self) -> bool {
        self.engine.machine().budget_excludes_process()
    }

    /// Returns the memory that the device has allocated.
    pub fn usage(&self) -> DeviceUsage {
        self.engine.usage()
    }

    /// Returns an explanation of the plan in words.
    pub fn explain(&self) -> Option<Explanation> {
        self.plan().map(explain)
    }

    /// Returns when every command of every run so far ran, in the format of Perfetto and chrome://tracing. The trace is empty unless
    /// [`MeasuringOptions::trace`](crate::MeasuringOptions::trace) was set.
    pub fn trace(&mut self) -> serde_json::Value {
        self.engine.trace()
    }
}

/// Returns the sizes that the options specify.
fn open_sizes(options: &SessionOptions) -> Sizes {
    let mut sizes = Sizes::of_batch(options.batch_size);
    sizes.symbols.clone_from(&options.sizes);
    sizes
}

/// Writes the inputs that the plan uses and drops each as soon as it is written, so that a step runs without a second copy of its batch.
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
