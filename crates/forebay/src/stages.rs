//! The plans of a model whose sizes come with its inputs. Plans are made when they are needed, and kept by what decided them.
//!
//! A model is a tree of what is still to be decided ([`Point`]): the types of the inputs, then perhaps the elements of some of them, then
//! what a first plan computed, and so on ([`forebay_model::stages`]). A run goes from the root to the last plan.

mod kept;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_model::stages::{self, Evaluation, Form, Next, Repetition, Source, Structured, is_true, trip_count, truth};
use forebay_model::tensor::Contents;
use forebay_model::{Graph, Tensor, TensorType, ValueId, infer, recognize};
use forebay_plan::SavedCosts;
use forebay_plan::orders::Orders;
use forebay_runtime::{RuntimeError, StepTimes};

use crate::between::{Between, Values};
use crate::compile::{Batch, Common, Compiled, compile};
use crate::engine::{Engine, Purpose};
use crate::error::Error;
use crate::machine::LimitedDevice;
use crate::stage_budget::{self, Granted, StageBudget};
use crate::tensor_info::{self, Value};
use crate::weights::Weights;
use kept::{find, give_up_oldest_root};

/// The approximate number of bytes of plans that are kept.
const PLAN_BYTES_MAX: usize = 256 << 20;

/// Statistics about the plans that a session keeps.
///
/// ```
/// use forebay::{Model, Session, Tensor};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../examples/digits/model.onnx")?;
/// let mut session = Session::builder(&model).build()?;
/// for batch in [3, 5, 3] {
///     let x = Tensor::from_f32(&[batch, 1, 8, 8], &vec![0.5; 64 * batch as usize]);
///     session.run([("x".to_string(), x)].into())?;
/// }
/// let plans = session.plan_cache();
/// assert_eq!((plans.plans, plans.made, plans.found), (2, 2, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanCache {
    /// The number of plans that are kept.
    pub plans: usize,
    /// The approximate number of bytes that they take.
    pub bytes: usize,
    /// The number of plans that were made, including those that are no longer kept.
    pub made: u64,
    /// How often a plan already existed when it was needed.
    pub found: u64,
}

/// All plans of a model.
pub(crate) struct Stages {
    /// The model's graphs, by the names of the inputs with defaults that are given.
    graphs: BTreeMap<BTreeSet<String>, Whole>,
    roots: BTreeMap<RootKey, Root>,
    cache: PlanCache,
    /// The costs for the first plan; those of other sizes are estimated.
    costs: Option<SavedCosts>,
    /// What plans have in common.
    common: Common,
    /// Counts uses of plans.
    clock: u64,
    /// The plan with the most launches in the latest run, or the first plan.
    main: Option<u64>,
    /// By input: the rows that this process reads in runs that [`Stages::prepare`] planned for last, unless it reads all.
    pub(crate) own_rows: BTreeMap<String, Range<u64>>,
    /// The times of the plans that ran in this run.
    times: StepTimes,
    /// The number of launches of the largest plan in this run.
    most_launches: usize,
    /// Values between the stages of this run.
    between: Between,
    /// What the stages of this run were granted beyond their shares.
    budget: StageBudget,
    /// Outputs of this run that are not tensors.
    gathered: BTreeMap<String, Value>,
}

/// A graph of the whole model.
struct Whole {
    graph: Graph,
    /// Inputs that are not declared as tensors.
    structured: Vec<ValueId>,
}

impl Whole {
    fn new(graph: Graph) -> Whole {
        let structured = graph.inputs.iter().copied().filter(|&id| graph.value(id).structure.is_some()).collect();
        Whole { graph, structured }
    }
}

/// What decides where runs begin: the names of the inputs with defaults that are given, and what is given for inputs that are not declared
/// as tensors.
type RootKey = (BTreeSet<String>, Vec<Form>);

/// The point at which runs begin.
struct Root {
    point: Point,
    /// The inputs that take the place of each input that is not declared as a tensor.
    tensors: BTreeMap<String, Vec<String>>,
}

/// Where a run has to know types before it continues.
struct Point {
    /// What is left to compute.
    graph: Graph,
    /// What comes next, by the types of the inputs.
    steps: BTreeMap<Vec<TensorType>, Step>,
}

/// What comes next.
struct Step {
    /// When a run last came by.
    used: u64,
    kind: Kind,
}

/// The kinds of steps, as in [`Next`].
enum Kind {
    /// A plan runs, or nothing if there is nothing to compute; then what is left.
    Run {
        plan: Option<Box<Planned>>,
        constants: Vec<(String, Contents)>,
        /// Outputs that are not tensors.
        structured: Vec<(String, Structured)>,
        rest: Option<Box<Point>>,
    },
    /// The elements of inputs decide what comes next.
    Pin { inputs: Vec<String>, by_elements: BTreeMap<Vec<u8>, Point> },
    /// A node is computed on the host.
    Evaluate { node: Box<Evaluation>, rest: Box<Point> },
    /// A loop runs.
    Repeat { repetition: Box<Repetition>, body: Box<Point>, rest: Box<Point> },
}

/// A plan with its number.
struct Planned {
    id: u64,
    compiled: Compiled,
    size_bytes: usize,
    /// The number of bytes of values between stages that the plan leaves room for, if host memory is limited.
    room_bytes: u64,
    /// What it was granted beyond its share of device memory.
    granted: Option<Granted>,
}

impl Planned {
    /// Plans again if values between stages take more of a limited host memory than the plan leaves.
    ///
    /// # Errors
    /// Fails if the budget is too small for both.
    fn leave_room(&mut self, engine: &mut Engine, bytes: u64) -> Result<(), Error> {
        if bytes <= self.room_bytes {
            return Ok(());
        }
        // The values of a loop grow from iteration to iteration, which should not mean another plan for each iteration.
        for room_bytes in [bytes.saturating_add(bytes / 2), bytes] {
            let Some(machine) = engine.machine().with_values_next_to_plans(room_bytes) else { return Ok(()) };
            match self.compiled.replan(&machine) {
                Ok(()) => {
                    self.room_bytes = room_bytes;
                    break;
                }
                Err(error) if room_bytes == bytes => {
                    return Err(Error::BetweenStages { bytes, error: Box::new(error) });
                }
                Err(_) => {}
            }
        }
        engine.forget((Purpose::Session, self.id));
        Ok(())
    }
}

impl Point {
    fn new(graph: Graph) -> Point {
        Point { graph, steps: BTreeMap::new() }
    }

    /// When a run last came by.
    fn used(&self) -> u64 {
        self.steps.values().map(|step| step.used).max().unwrap_or(0)
    }

    /// Returns the names of the inputs.
    fn inputs(&self) -> impl Iterator<Item = &str> {
        self.graph.inputs.iter().map(|&id| self.graph.value(id).name.as_str())
    }
}

impl Stages {
    /// Creates the plans of a graph, the first one with these costs.
    pub(crate) fn new(graph: Graph, costs: Option<SavedCosts>) -> Stages {
        Stages {
            common: Common { weights: Weights::of(&graph), orders: Orders::default() },
            graphs: [(BTreeSet::new(), Whole::new(graph))].into(),
            roots: BTreeMap::new(),
            cache: PlanCache::default(),
            costs,
            clock: 0,
            main: None,
            own_rows: BTreeMap::new(),
            times: StepTimes::default(),
            most_launches: 0,
            between: Between::default(),
            budget: StageBudget::default(),
            gathered: BTreeMap::new(),
        }
    }

    /// Returns whether there is a graph in which these inputs with defaults are inputs.
    pub(crate) fn knows(&self, given: &BTreeSet<String>) -> bool {
        self.graphs.contains_key(given)
    }

    /// Adds the graph in which these inputs with defaults are inputs.
    pub(crate) fn add(&mut self, given: BTreeSet<String>, graph: Graph) {
        self.graphs.insert(given, Whole::new(graph));
    }

    /// Returns the point at which runs begin, and its key. `form` says what is given for an input that is not declared as a tensor.
    fn root(&mut self, given: &BTreeSet<String>, form: impl Fn(&str) -> Form) -> (RootKey, Root) {
        let Some(Whole { graph, structured }) = self.graphs.get(given) else { unreachable!("it was added") };
        let name = |id: ValueId| graph.value(id).name.as_str();
        let forms: Vec<Form> = structured.iter().map(|&id| form(name(id))).collect();
        let key = (given.clone(), forms);
        if let Some(root) = self.roots.remove(&key) {
            return (key, root);
        }
        let (mut bound, mut tensors) = (graph.clone(), BTreeMap::new());
        for (&input, &form) in structured.iter().zip(&key.1) {
            tensors.insert(name(input).to_owned(), stages::bind(&mut bound, input, form));
        }
        (key, Root { point: Point::new(bound), tensors })
    }

    /// Plans the first stage for inputs of these types, so that errors are found before the first run. `given` names those with defaults,
    /// whose graph is known.
    ///
    /// # Errors
    /// Fails if the model cannot run or the budgets are too small.
    pub(crate) fn prepare(
        &mut self,
        types: &BTreeMap<String, TensorType>,
        given: &BTreeSet<String>,
        machine: &LimitedDevice,
    ) -> Result<(), Error> {
        let (key, mut root) = self.root(given, |_| Form::Tensor);
        let result = self.prepare_at(&mut root.point, types, machine);
        self.roots.insert(key, root);
        result
    }

    fn prepare_at(
        &mut self,
        point: &mut Point,
        types: &BTreeMap<String, TensorType>,
        machine: &LimitedDevice,
    ) -> Result<(), Error> {
        let key = point.inputs().map(|name| types.get(name).cloned()).collect::<Option<Vec<_>>>();
        let Some(key) = key else { return Ok(()) };
        if !point.steps.contains_key(&key) {
            let step = make(&point.graph, types, machine, self.makes())?;
            if let Kind::Run { plan: Some(plan), .. } = &step.kind {
                self.main = Some(plan.id);
            }
            point.steps.insert(key.clone(), step);
        }
        self.own_rows = point.steps.get(&key).map_or_else(BTreeMap::new, own_rows);
        Ok(())
    }

    /// Runs the model on these inputs and returns the outputs that are `wanted`. Other values are dropped when no stage needs them. `given`
    /// names the inputs with defaults, whose graph is known.
    ///
    /// # Errors
    /// Fails if the model cannot run on these inputs, the budgets are too small, or the device reports an error.
    pub(crate) fn run(
        &mut self,
        engine: &mut Engine,
        inputs: BTreeMap<String, Value>,
        given: &BTreeSet<String>,
        wanted: &BTreeSet<String>,
    ) -> Result<(StepTimes, BTreeMap<String, Value>), Error> {
        self.times = StepTimes::default();
        self.most_launches = 0;
        self.gathered.clear();
        let (key, mut root) = self.root(given, |name| inputs.get(name).map_or(Form::Absent, Value::form));
        let mut values = Values::new();
        for (name, value) in inputs {
            match root.tensors.get(&name) {
                Some(names) => values.extend(names.iter().cloned().zip(value.into_tensors())),
                None => values.extend(value.into_tensors().into_iter().map(|tensor| (name.clone(), tensor))),
            }
        }
        self.between = Between::new(&values);
        self.budget.begin(engine.machine());
        let result = self.go(&mut root.point, engine, &mut values, wanted);
        self.roots.insert(key, root);
        self.keep_within(engine);
        result?;
        self.budget.check(engine.machine())?;
        let mut outputs = std::mem::take(&mut self.gathered);
        for name in wanted {
            if let Some(tensor) = values.remove(name).filter(|_| !outputs.contains_key(name)) {
                outputs.insert(name.clone(), Value::Tensor(tensor));
            }
        }
        Ok((self.times, outputs))
    }

    /// Returns the peak number of bytes of values between stages in the latest run.
    pub(crate) fn between_peak_bytes(&self) -> u64 {
        self.between.peak_bytes
    }

    /// Returns statistics about the plans that are kept.
    pub(crate) fn cache(&self) -> PlanCache {
        self.cache
    }

    /// Returns the plan with the most launches in the latest run; before the first run, the first plan.
    pub(crate) fn main(&self) -> Option<&Compiled> {
        let id = self.main?;
        self.roots.values().find_map(|root| find(&root.point, id))
    }

    fn makes(&mut self) -> Makes<'_> {
        Makes { cache: &mut self.cache, costs: &mut self.costs, common: &mut self.common }
    }

    /// Runs from a point to the last plan after it.
    fn go(
        &mut self,
        point: &mut Point,
        engine: &mut Engine,
        values: &mut Values,
        wanted: &BTreeSet<String>,
    ) -> Result<(), Error> {
        if values.len() > wanted.len() {
            let needed: BTreeSet<&str> = point.inputs().collect();
            values.retain(|name, _| needed.contains(name.as_str()) || wanted.contains(name));
        }
        let types = point.inputs().map(|name| Ok(value(values, name)?.ty())).collect::<Result<Vec<_>, Error>>()?;
        if !point.steps.contains_key(&types) {
            let named = point.inputs().map(str::to_owned).zip(types.iter().cloned()).collect();
            let step = make(&point.graph, &named, engine.machine(), self.makes())?;
            point.steps.insert(types.clone(), step);
        } else {
            self.cache.found += 1;
        }
        let Some(step) = point.steps.get_mut(&types) else { unreachable!("it was made above") };
        self.clock += 1;
        step.used = self.clock;
        match &mut step.kind {
            Kind::Run { plan, constants, structured, rest } => {
                if let Some(plan) = plan {
                    let later: BTreeSet<&str> = rest.iter().flat_map(|rest| rest.inputs()).collect();
                    let may_go =
                        |name: &str| !later.contains(name) && !wanted.contains(name) && !is_element(structured, name);
                    self.compute(plan, engine, values, &may_go, rest.is_some())?;
                }
                for (name, contents) in constants {
                    values.insert(name.clone(), contents.to_tensor()?);
                }
                for (name, output) in structured.iter() {
                    let gathered = match output {
                        Structured::Sequence(elements) => {
                            let elements = elements.iter().map(|element| value(values, element).cloned());
                            Value::Sequence(elements.collect::<Result<_, _>>()?)
                        }
                        Structured::Absent => Value::Absent,
                    };
                    self.gathered.insert(name.clone(), gathered);
                }
                match rest {
                    Some(rest) => self.go(rest, engine, values, wanted),
                    None => Ok(()),
                }
            }
            Kind::Pin { inputs, by_elements } => {
                let mut key = Vec::new();
                for name in inputs.iter() {
                    key.extend_from_slice(value(values, name)?.bytes());
                }
                if !by_elements.contains_key(&key) {
                    let mut graph = point.graph.clone();
                    for name in inputs.iter() {
                        if let Some(id) = graph.find(name) {
                            stages::pin(&mut graph, id, value(values, name)?.clone());
                        }
                    }
                    by_elements.insert(key.clone(), Point::new(graph));
                }
                let Some(point) = by_elements.get_mut(&key) else { unreachable!("it was made above") };
                self.go(point, engine, values, wanted)
            }
            Kind::Evaluate { node, rest } => {
                let inputs =
                    node.inputs.iter().map(|name| value(values, name).cloned()).collect::<Result<Vec<_>, Error>>()?;
                values.extend(node.outputs.iter().cloned().zip(node.compute(&inputs)?));
                self.go(rest, engine, values, wanted)
            }
            Kind::Repeat { repetition, body, rest } => {
                self.repeat(repetition, body, engine, values)?;
                self.go(rest, engine, values, wanted)
            }
        }
    }

    /// Runs a plan. Inputs that are no longer needed are dropped as soon as they are written, so that the plan runs without a second copy
    /// of them. If its outputs go on to another stage, they are values between stages.
    fn compute(
        &mut self,
        plan: &mut Planned,
        engine: &mut Engine,
        values: &mut Values,
        may_go: &dyn Fn(&str) -> bool,
        goes_on: bool,
    ) -> Result<(), Error> {
        let (before_bytes, after_bytes) = self.between.around(&plan.compiled, values, may_go, goes_on);
        plan.leave_room(engine, before_bytes.max(after_bytes))?;
        self.between.note(before_bytes.max(after_bytes));
        self.budget.note(engine.machine(), &plan.compiled, plan.granted.as_ref());
        let compiled = &mut plan.compiled;
        tensor_info::check_indices(&compiled.index_limits, values)?;
        let runner = engine.activate((Purpose::Session, plan.id), compiled)?;
        for backing in runner.plan().inputs.clone() {
            let given = value(values, &backing.name)?;
            let own = compiled.own_bytes(&backing.name, given);
            match own.len() == given.bytes().len() {
                true => runner.lend_input(&backing.name, given)?,
                false => runner.write_input(&backing.name, own)?,
            }
            if may_go(&backing.name) {
                values.remove(&backing.name);
            }
        }
        let times = match runner.run() {
            Ok(times) => times,
            Err(error) => {
                if matches!(error, RuntimeError::Device { .. }) {
                    // No step can run there any more. The next run puts the plan on the device again.
                    engine.forget((Purpose::Session, plan.id));
                }
                return Err(error.into());
            }
        };
        for info in &compiled.outputs {
            values.insert(info.name.clone(), runner.take_output(&info.name)?);
        }
        self.times.total += times.total;
        self.times.stall += times.stall;
        self.times.exchange_stall += times.exchange_stall;
        self.times.late_copies += times.late_copies;
        self.times.late += times.late;
        self.times.moves = times.moves;
        let launches = compiled.step.plan().statistics.launches;
        if launches >= self.most_launches {
            (self.most_launches, self.main) = (launches, Some(plan.id));
        }
        engine.watch(compiled, times)?;
        Ok(())
    }

    /// Runs a loop.
    fn repeat(
        &mut self,
        repetition: &Repetition,
        body: &mut Point,
        engine: &mut Engine,
        values: &mut Values,
    ) -> Result<(), Error> {
        let given = |source: &Source| match source {
            Source::Input(name) => value(values, name).cloned(),
            Source::Constant(contents) => Ok(contents.to_tensor()?),
        };
        let count = repetition.count.as_ref().map(given).transpose()?;
        let count = count.as_ref().map_or(i64::MAX, trip_count);
        let condition = repetition.condition.as_ref().map(given).transpose()?;
        let mut condition = condition.map_or_else(|| Ok(truth(true)), Ok::<Tensor, Error>)?;
        let mut carried = repetition.carried.iter().map(given).collect::<Result<Vec<_>, Error>>()?;
        let captured = repetition.captured.iter().map(|(name, source)| Ok((name.clone(), given(source)?)));
        let captured = captured.collect::<Result<Vec<_>, Error>>()?;
        let name = |id: &forebay_model::ValueId| body.graph.value(*id).name.clone();
        let inputs: Vec<String> = body.graph.inputs.iter().map(name).collect();
        let outputs: Vec<String> = body.graph.outputs.iter().map(name).collect();
        let wanted: BTreeSet<String> = outputs.iter().cloned().collect();
        let mut collected = vec![Vec::new(); outputs.len() - 1 - carried.len()];
        let (mut iteration, outside_bytes) = (0, self.between.enter(values, &captured));
        while iteration < count && is_true(&condition) {
            let mut inside: Values = captured.iter().cloned().collect();
            let given = [Tensor::from_i64(&[], &[iteration]), condition].into_iter().chain(carried);
            inside.extend(inputs.iter().cloned().zip(given));
            self.go(body, engine, &mut inside, &wanted)?;
            let mut results = outputs.iter().map(|name| value(&inside, name).cloned());
            condition = results.next().transpose()?.unwrap_or_else(|| truth(false));
            carried = results.by_ref().take(repetition.carried.len()).collect::<Result<_, _>>()?;
            for (all, result) in collected.iter_mut().zip(results) {
                let result = result?;
                self.between.collect(&result);
                all.push(result);
            }
            iteration += 1;
        }
        self.between.leave(outside_bytes);
        let stacked = collected.iter().zip(&repetition.nothing).map(|(all, nothing)| stack(all, nothing.as_ref()));
        let results: Vec<Option<Tensor>> = carried.into_iter().map(Some).chain(stacked).collect();
        for (name, result) in repetition.outputs.iter().zip(results) {
            let Some(name) = name else { continue };
            let reason =
                || format!("the results of a loop's iterations for '{name}' differ in size, or no iteration ran");
            values.insert(name.clone(), result.ok_or_else(|| Error::Option { reason: reason() })?);
        }
        Ok(())
    }

    /// Drops the least recently used plans until the others are within the bound.
    fn keep_within(&mut self, engine: &mut Engine) {
        while self.cache.bytes > PLAN_BYTES_MAX {
            let mut given_up = Vec::new();
            if !give_up_oldest_root(&mut self.roots, &mut given_up) {
                return;
            }
            for (id, size_bytes) in given_up {
                engine.forget((Purpose::Session, id));
                self.cache.plans -= 1;
                self.cache.bytes -= size_bytes;
            }
        }
    }
}

/// Returns the value with this name.
fn value<'a>(values: &'a Values, name: &str) -> Result<&'a Tensor, Error> {
    values
        .get(name)
        .ok_or_else(|| Error::MissingInput { expected: name.to_string(), given: values.keys().cloned().collect() })
}

/// Joins tensors of the same type along a new first axis.
fn stack(all: &[Tensor], nothing: Option<&Tensor>) -> Option<Tensor> {
    if all.is_empty() {
        return nothing.cloned();
    }
    Tensor::stack(&all.iter().collect::<Vec<_>>())
}

/// What planning changes.
struct Makes<'a> {
    cache: &'a mut PlanCache,
    costs: &'a mut Option<SavedCosts>,
    common: &'a mut Common,
}

/// Decides what comes next for inputs of these types, and plans it.
fn make(
    graph: &Graph,
    types: &BTreeMap<String, TensorType>,
    machine: &LimitedDevice,
    Makes { cache, costs, common }: Makes,
) -> Result<Step, Error> {
    // If there can be only one plan, it has nothing in common with others.
    let is_whole_model = common.weights.is_all_of(graph) && infer::open_sizes(graph).is_empty();
    let mut planned = |mut graph: Graph, is_last: bool| -> Result<_, Error> {
        // Constants and inputs are already there.
        let constants = graph.outputs.iter().filter_map(|&id| {
            let contents = graph.initializers.get(&id)?;
            Some((graph.value(id).name.clone(), contents.clone()))
        });
        let constants: Vec<(String, Contents)> = constants.collect();
        let computed: BTreeSet<_> =
            graph.nodes.iter().flat_map(|node| node.outputs.iter().flatten().copied()).collect();
        graph.outputs.retain(|id| computed.contains(id) && !graph.initializers.contains_key(id));
        if graph.outputs.is_empty() {
            return Ok((None, constants));
        }
        // Merge operators whose parameters were computed from constants; the others were merged when the model was read.
        recognize::normalizations(&mut graph);
        recognize::attention(&mut graph, true)?;
        recognize::group_normalizations(&mut graph)?;
        recognize::activations(&mut graph);
        let transposed = recognize::transposed_weights(&mut graph, machine.has_budget());
        common.weights.share(&mut graph, &transposed);
        let nothing = BTreeSet::new();
        let batch = Batch { unshared: &nothing, sharded: &nothing, block_elements: 1, parts: 1 };
        let costs = costs.take();
        let is_only = is_whole_model && is_last;
        let mut compile = |machine: &LimitedDevice| {
            let common = (!is_only).then_some(&mut *common);
            compile(&graph, &BTreeSet::new(), machine, costs.as_ref(), common, Some(batch))
        };
        let (compiled, granted) = match is_only {
            true => (compile(machine)?, None),
            false => stage_budget::plan(machine, compile)?,
        };
        let size_bytes = compiled.size_bytes();
        cache.made += 1;
        cache.plans += 1;
        cache.bytes += size_bytes;
        Ok((Some(Box::new(Planned { id: cache.made, compiled, size_bytes, room_bytes: 0, granted })), constants))
    };
    let point = |graph: Graph| Box::new(Point::new(graph));
    let kind = match stages::next(graph, types)? {
        Next::Whole { graph, structured } => {
            let (plan, constants) = planned(graph, true)?;
            Kind::Run { plan, constants, structured, rest: None }
        }
        Next::Compute { first, rest } => {
            let (plan, constants) = planned(*first, false)?;
            Kind::Run { plan, constants, structured: Vec::new(), rest: Some(point(rest)) }
        }
        Next::Pin(inputs) => {
            let inputs = inputs.into_iter().map(|id| graph.value(id).name.clone()).collect();
            Kind::Pin { inputs, by_elements: BTreeMap::new() }
        }
        Next::Evaluate { node, rest } => Kind::Evaluate { node, rest: point(rest) },
        Next::Repeat { repetition, rest } => {
            let body = point(repetition.body.clone());
            Kind::Repeat { repetition, body, rest: point(rest) }
        }
    };
    Ok(Step { used: 0, kind })
}

/// Returns whether a value is an element of one of these outputs.
fn is_element(outputs: &[(String, Structured)], name: &str) -> bool {
    outputs.iter().any(|(_, output)| match output {
        Structured::Sequence(elements) => elements.iter().any(|element| element == name),
        Structured::Absent => false,
    })
}

/// Returns the rows of each input that this process reads in a run that begins with a step, for inputs of which it does not read all.
fn own_rows(step: &Step) -> BTreeMap<String, Range<u64>> {
    let Kind::Run { plan: Some(plan), structured, rest, .. } = &step.kind else { return BTreeMap::new() };
    let is_needed_later = |name: &str| rest.iter().any(|rest| rest.inputs().any(|input| input == name));
    let inputs = plan.compiled.step.plan().inputs.iter().map(|backing| backing.name.as_str());
    let shared = inputs.filter(|name| !is_element(structured, name) && !is_needed_later(name));
    let rows = shared.filter_map(|name| match plan.compiled.own_samples(name)? {
        [own] => Some((name.to_owned(), own.clone())),
        _ => None,
    });
    rows.collect()
}
