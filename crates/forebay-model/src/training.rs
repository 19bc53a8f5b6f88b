//! Turns a forward graph into a training step.
//!
//! `eval graph -> training mode -> loss -> gradients -> optimizer` gives one graph whose only output is the loss and whose updates change
//! the parameters, the optimizer's state and the running statistics at the end of the step.

mod accumulation;
mod averages;
mod clipping;
mod ctc;
mod formula;
mod groups;
mod layers;
mod loss;
mod losses;
mod mixed;
mod mode;
mod open;
mod optimizer;
mod outputs;
mod pattern;
mod regions;
mod term;
mod terms;
#[cfg(test)]
mod tests;
mod updates;

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::kernel::BinaryOp;
use forebay_base::kernel::quantization::{QUANTIZATION_BLOCK, QUANTIZED_ELEMENTS_MIN};
use forebay_base::{DataType, Kernel, Tensor};

use crate::autodiff::gradients;
use crate::error::ModelError;
use crate::graph::{Graph, Node, Operation, TensorType, Update, ValueId};
use crate::infer::infer_node;
use crate::tensor::Contents;

pub use accumulation::check_parts;
use averages::append_averages;
pub use averages::{AVERAGE, average_of};
pub use clipping::Clipping;
use clipping::append_clipping;
use formula::Formula;
pub use groups::ParameterGroup;
use groups::group_of;
pub use layers::layer_groups;
pub use loss::{Ctc, Loss, Region, Shares};
pub use mixed::Precision;
pub(crate) use mode::{is_same_layer, is_used_otherwise};
use open::append_output;
pub use open::{GRADIENT_PREFIX, NEXT_PREFIX, open_gradients, open_graph};
pub use optimizer::Optimizer;
pub use outputs::logits_behind;
pub(crate) use pattern::matches;
use terms::LabelSource;
pub use terms::LossTerm;

/// Names of inputs that are taken as labels if no name is given.
const LABEL_NAMES: [&str; 5] = ["labels", "label", "targets", "target", "y"];

/// Which parameters are subject to weight decay.
///
/// ```
/// use forebay_model::training::{DecayRule, TrainingOptions};
///
/// let mut options = TrainingOptions::default();
/// options.decay = Some(DecayRule::MatricesOnly);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecayRule {
    /// All parameters.
    All,
    /// Parameters with two or more dimensions, which excludes biases and the scales of normalizations.
    MatricesOnly,
}

/// Options for training.
///
/// ```
/// use forebay_model::training::{Loss, Optimizer, TrainingOptions};
///
/// let mut options = TrainingOptions::new(Loss::MeanSquaredError, Optimizer::sgd(0.05));
/// options.freeze.push("conv1.*".to_string());
/// assert_eq!(TrainingOptions::default().loss, Loss::SoftmaxCrossEntropy { class_axis: None, ignore_index: None });
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TrainingOptions {
    /// The loss to minimize.
    pub loss: Loss,
    /// Name of the graph output, or of the value inside the graph, that the loss is computed from. `None`: the only output.
    pub loss_output: Option<String>,
    /// The weight of that loss if there are further losses. `None`: 1.
    pub loss_weight: Option<f32>,
    /// Losses on other outputs, which are added to it.
    pub terms: Vec<LossTerm>,
    /// The optimizer that updates the parameters.
    pub optimizer: Optimizer,
    /// Which parameters are subject to weight decay. `None`: only matrices for decoupled decay (AdamW), otherwise all.
    pub decay: Option<DecayRule>,
    /// Patterns (`*`, `?`) that match the names of initializers that are not trained.
    pub freeze: Vec<String>,
    /// Seed for dropout.
    pub seed: u64,
    /// Whether every parameter's gradient is a graph output named `gradient:NAME`.
    pub gradient_outputs: bool,
    /// How gradients are clipped before the optimizer uses them.
    pub clipping: Option<Clipping>,
    /// Whether the norm of all gradients is a graph output even if nothing needs it.
    pub gradient_norm: bool,
    /// Groups of parameters with their own hyperparameters.
    pub groups: Vec<ParameterGroup>,
    /// The type in which products are computed. `None`: as the model specifies.
    pub precision: Option<Precision>,
    /// Whether steps raise the loss instead of lowering it.
    pub maximize: bool,
    /// The decay of an exponential moving average that is kept for every trained parameter: at least 0 and less than 1.
    pub average: Option<f32>,
    /// The number of parts in which a step processes its batch, one after the other, accumulating their gradients. [`training_graph`] then
    /// takes the graph of one part and repeats it, so that each part is a batch in its own right. 0 and 1: no accumulation.
    pub accumulate: u64,
}

impl TrainingOptions {
    /// Creates options that train everything that can be trained.
    pub fn new(loss: Loss, optimizer: Optimizer) -> TrainingOptions {
        TrainingOptions { loss, optimizer, ..TrainingOptions::default() }
    }

    /// Returns the values to feed for each of [`TrainingGraph::hyperparameters`] in a step at this learning rate; `update` is the number of
    /// its update, from 1. `group_rates` can give groups their own rates, which replace the learning rate and are still multiplied by the
    /// groups' factors. `loss_scale` is the power of two by which float16 gradients are scaled.
    pub fn hyperparameters(
        &self,
        learning_rate: f32,
        group_rates: &[Option<f32>],
        update: u64,
        loss_scale: f32,
    ) -> Vec<Vec<f32>> {
        let of_group = |(number, group): (usize, &ParameterGroup)| {
            let rate = group_rates.get(number).copied().flatten().unwrap_or(learning_rate);
            let mut optimizer = group.optimizer.as_ref().unwrap_or(&self.optimizer).clone();
            optimizer = optimizer.with_learning_rate(rate * group.rate_factor);
            if let Some(decay) = group.weight_decay {
                optimizer = optimizer.with_weight_decay(decay);
            }
            optimizer.hyperparameters_of_step(update.saturating_sub(group.updates_before))
        };
        let groups = self.groups.iter().enumerate().filter(|(_, group)| !group.is_frozen);
        let mut all = vec![self.optimizer.clone().with_learning_rate(learning_rate).hyperparameters_of_step(update)];
        all.extend(groups.map(of_group));
        all.extend(self.clipping.map(|clipping| vec![clipping.limit()]));
        all.extend(self.scales_loss().then(|| vec![loss_scale]));
        all
    }

    /// Whether gradients are scaled by a factor that changes from step to step.
    pub fn scales_loss(&self) -> bool {
        self.precision.as_ref().is_some_and(Precision::scales_loss)
    }
}

/// A training step as a graph.
#[derive(Clone, Debug)]
pub struct TrainingGraph {
    /// The graph. Its outputs are the loss and, if requested, the gradients.
    pub graph: Graph,
    /// The loss, a scalar.
    pub loss: ValueId,
    /// The value that the loss compares with the labels.
    pub prediction: ValueId,
    /// Graph input: the labels or targets.
    pub labels: ValueId,
    /// For each further loss, the prediction and the labels that it compares; `None` for an output that is already a loss.
    pub terms: Vec<Option<(ValueId, ValueId)>>,
    /// Graph input, int64 \[2]: the number of the step, from 1, and the seed. Present only if Adam or dropout needs it.
    pub step: Option<ValueId>,
    /// Graph inputs, float32: [`TrainingOptions::hyperparameters`]. The optimizer's come first, then those of each trained group, then the
    /// clipping limit.
    pub hyperparameters: Vec<ValueId>,
    /// Graph output: the norm of all gradients before clipping, if it is requested or needed.
    pub gradient_norm: Option<ValueId>,
    /// The trained parameters, in the order of the initializers.
    pub parameters: Vec<ValueId>,
    /// The optimizer's state tensors, each with the parameter that it belongs to.
    pub optimizer_state: Vec<(ValueId, ValueId)>,
    /// Moving averages of parameters, each with the parameter that it belongs to.
    pub averages: Vec<(ValueId, ValueId)>,
    /// What every step changes without training it: running statistics of batch normalizations, and the initializers that the model itself
    /// changes.
    pub running_statistics: Vec<ValueId>,
    /// Whether samples are normalized with statistics of their batch, so that the results depend on which samples are in a batch.
    pub has_batch_statistics: bool,
}

/// A graph that computes the loss in evaluation mode.
#[derive(Clone, Debug)]
pub struct LossGraph {
    /// The graph. Its outputs are the loss and the prediction.
    pub graph: Graph,
    /// The loss, a scalar.
    pub loss: ValueId,
    /// The value that the loss compares with the labels.
    pub prediction: ValueId,
    /// Graph input: the labels or targets.
    pub labels: ValueId,
    /// For each further loss, the prediction and the labels that it compares; `None` for an output that is already a loss.
    pub terms: Vec<Option<(ValueId, ValueId)>>,
}

/// Builds the training step of a graph in evaluation form whose values all have types.
///
/// It trains the floating-point initializers on which the loss depends differentiably, except constants of the computation, running
/// statistics, and initializers named by `freeze`.
///
/// # Errors
/// Fails if the loss does not fit the graph's outputs, an operator on the way has no gradient, a pattern matches nothing, nothing is
/// trained, or a number of the optimizer is out of range ([`Optimizer::check`]).
pub fn training_graph(graph: &Graph, options: &TrainingOptions) -> Result<TrainingGraph, ModelError> {
    options.optimizer.check()?;
    let mut graph = graph.clone();
    graph.updates = graph.carried.iter().map(|(&state, &value)| Update { state, value }).collect();
    let prediction = outputs::choose(&mut graph, options)?;
    mixed::narrow(&mut graph, options.precision.as_ref())?;
    hold_frozen(&mut graph, options);
    let statistics = graph.running_statistics();
    let mut mode = mode::enter(&mut graph)?;
    mode.statistics.extend(graph.carried.keys());
    let Losses { loss, labels, terms } = append_losses(&mut graph, prediction, options)?;
    let candidates = candidates(&graph, &statistics, options)?;
    let loss = accumulation::share(&mut graph, loss, options.accumulate);
    let (mut scaled, factor) = mixed::scale(&mut graph, loss, options.precision.as_ref());
    if options.maximize {
        scaled = Formula::new(&mut graph, "loss").scaled(scaled, -1.0);
    }
    mode.factor = factor;
    let backward = graph.nodes.len();
    let gradients = gradients(&mut graph, scaled, &candidates)?;
    if options.precision.is_some() {
        mixed::widen_again(&mut graph, backward);
    }
    let mut trained: Vec<(ValueId, ValueId)> =
        candidates.iter().zip(gradients).filter_map(|(&parameter, d)| Some((parameter, d?))).collect();
    if trained.is_empty() {
        let name = &graph.value(prediction).name;
        let reason =
            format!("nothing to train: output '{name}' does not depend on any float32 initializer that is not frozen");
        return Err(ModelError::Request { reason });
    }
    let loss = accumulation::repeat(&mut graph, &mut mode, loss, &mut trained, options.accumulate)?;
    mixed::unscale(&mut graph, &mut trained, factor);
    graph.outputs = vec![loss];
    if options.gradient_outputs {
        append_gradient_outputs(&mut graph, &trained, options.maximize);
    }
    graph.nodes.append(&mut mode.update_nodes);
    graph.updates.append(&mut mode.updates);
    let clipped = append_clipping(&mut graph, &mut trained, options.clipping, options.gradient_norm);
    let (optimizer_state, mut hyperparameters) = append_optimizer(&mut graph, &mut mode, &trained, options);
    hyperparameters.extend(clipped.limit);
    hyperparameters.extend(factor);
    let averages = append_averages(&mut graph, &trained, options.average)?;
    graph.drop_dead_nodes();
    // What the model itself changes can depend on the whole batch, too.
    let has_batch_statistics = mode.has_batch_statistics || !graph.carried.is_empty();
    Ok(TrainingGraph {
        graph,
        loss,
        prediction,
        labels,
        terms,
        step: mode.step,
        hyperparameters,
        gradient_norm: clipped.norm,
        averages,
        parameters: trained.into_iter().map(|(parameter, _)| parameter).collect(),
        optimizer_state,
        has_batch_statistics,
        running_statistics: mode.statistics.into_iter().collect(),
    })
}

/// Adds the losses named in the options to a graph in evaluation form, for validation.
///
/// # Errors
/// Fails if a loss does not fit the graph's outputs.
pub fn loss_graph(graph: &Graph, options: &TrainingOptions) -> Result<LossGraph, ModelError> {
    let mut graph = graph.clone();
    mode::leave(&mut graph);
    let prediction = outputs::choose(&mut graph, options)?;
    mixed::narrow(&mut graph, options.precision.as_ref())?;
    hold_frozen(&mut graph, options);
    let Losses { loss, labels, terms } = append_losses(&mut graph, prediction, options)?;
    graph.outputs = if loss == prediction { vec![loss] } else { vec![loss, prediction] };
    graph.drop_dead_nodes();
    Ok(LossGraph { graph, loss, prediction, labels, terms })
}

/// The total loss, the labels of the first loss, and the predictions and labels of the others.
struct Losses {
    loss: ValueId,
    labels: ValueId,
    terms: Vec<Option<(ValueId, ValueId)>>,
}

/// Adds the main loss and the further ones, with inputs for their labels.
fn append_losses(graph: &mut Graph, prediction: ValueId, options: &TrainingOptions) -> Result<Losses, ModelError> {
    let (loss, labels) = append_loss(graph, prediction, &options.loss, LabelSource::New)?;
    if options.terms.is_empty() && options.loss_weight.is_none() {
        return Ok(Losses { loss, labels, terms: Vec::new() });
    }
    let mut parts = vec![(loss, options.loss_weight.unwrap_or(1.0))];
    let mut terms = Vec::new();
    for LossTerm { output, loss, weight, labels: name } in &options.terms {
        let prediction = outputs::prediction(graph, Some(output))?;
        if matches!(loss, Loss::Output { .. }) {
            parts.push((own_scalar(graph, prediction)?, *weight));
            terms.push(None);
            continue;
        }
        let source = name.as_deref().map_or(LabelSource::Of(labels), LabelSource::Named);
        let (value, labels) = append_loss(graph, prediction, loss, source)?;
        parts.push((value, *weight));
        terms.push(Some((prediction, labels)));
    }
    Ok(Losses { loss: terms::sum(graph, &parts)?, labels, terms })
}

/// Adds the input for the labels and the loss. Returns the loss and the input.
fn append_loss(
    graph: &mut Graph,
    prediction: ValueId,
    loss: &Loss,
    source: LabelSource,
) -> Result<(ValueId, ValueId), ModelError> {
    let name = graph.value(prediction).name.clone();
    let request = |reason: String| ModelError::Request { reason };
    let ty = graph.ty(prediction).cloned().ok_or_else(|| request(format!("the type of '{name}' is not known")))?;
    if ty.data_type != DataType::Float32 || ty.shape.contains(&0) {
        return Err(request(format!("a loss requires float32 numbers, but output '{name}' is {ty}")));
    }
    let (kernel, labels) = match loss {
        Loss::Output { labels } => return own_loss(graph, prediction, labels.as_deref()),
        Loss::MeanSquaredError => (Kernel::MeanSquaredError, ty.clone()),
        &Loss::SoftmaxCrossEntropy { class_axis, ignore_index } => {
            let axis = term::axis_of(class_axis, &ty, &name)?;
            (Kernel::SoftmaxCrossEntropy { axis, ignore_index }, term::classes_type(&ty, axis))
        }
        other => {
            let pair = other.other_output().map(|name| outputs::prediction(graph, Some(name))).transpose()?;
            return losses::append(graph, prediction, pair, other, source);
        }
    };
    let input = source.labels(graph, loss, &labels)?;
    Ok((losses::append_kernel(graph, kernel, &[prediction, input]), input))
}

/// Returns the loss that the model computes itself, and its input for the labels.
fn own_loss(graph: &mut Graph, output: ValueId, labels: Option<&str>) -> Result<(ValueId, ValueId), ModelError> {
    let request = |reason: String| ModelError::Request { reason };
    let input = |name: &str| graph.inputs.iter().copied().find(|&id| graph.value(id).name == name);
    let found = match labels {
        Some(name) => input(name),
        None => LABEL_NAMES.iter().find_map(|name| input(name)),
    };
    let labels = found.ok_or_else(|| {
        let inputs: Vec<&str> = graph.inputs.iter().map(|&id| graph.value(id).name.as_str()).collect();
        let sought = labels.map_or_else(|| LABEL_NAMES.join("' or '"), str::to_string);
        request(format!(
            "no input is named '{sought}'; choose the input for the labels with --label-input: {}",
            inputs.join(", ")
        ))
    })?;
    Ok((own_scalar(graph, output)?, labels))
}

/// Returns an output of one float32 element as a scalar.
fn own_scalar(graph: &mut Graph, output: ValueId) -> Result<ValueId, ModelError> {
    let (name, ty) = (graph.value(output).name.clone(), graph.ty(output).cloned());
    let Some(ty) = ty.filter(|ty| ty.count() == 1 && ty.data_type == DataType::Float32) else {
        let ty = graph.ty(output).map_or_else(|| "of unknown type".to_string(), |ty| ty.to_string());
        let reason = format!("output '{name}' ({ty}) is not a loss: it must have one float32 element");
        return Err(ModelError::Request { reason });
    };
    if ty.shape.is_empty() {
        return Ok(output);
    }
    let loss = graph.add_value("loss", None);
    graph.nodes.push(Node {
        name: "loss".to_string(),
        operation: Operation::onnx("Squeeze", &[]),
        inputs: vec![Some(output)],
        outputs: vec![Some(loss)],
    });
    infer_node(graph, graph.nodes.len() - 1)?;
    Ok(loss)
}

/// Makes numbers that do not train constants, so that exponents and limits among them can be parts of kernels.
fn hold_frozen(graph: &mut Graph, options: &TrainingOptions) {
    let statistics = graph.running_statistics();
    let is_held = |id: &ValueId| {
        let ty = graph.initializers[id].ty();
        let is_number = ty.count() == 1 && ty.data_type.has_gradients() && !statistics.contains(id);
        is_number && (ty.data_type != DataType::Float32 || is_frozen(graph, *id, options))
    };
    let held: Vec<ValueId> = graph.initializers.keys().copied().filter(is_held).collect();
    graph.constants.extend(held);
}

/// Whether the options say that an initializer does not train.
fn is_frozen(graph: &Graph, id: ValueId, options: &TrainingOptions) -> bool {
    let name = &graph.value(id).name;
    let group = group_of(&options.groups, name).map(|group| &options.groups[group]);
    let by_pattern = options.freeze.iter().any(|pattern| pattern::matches(pattern, name));
    by_pattern || group.is_some_and(|group| group.is_frozen)
}

/// The initializers that can be trained.
fn candidates(
    graph: &Graph,
    statistics: &BTreeSet<ValueId>,
    options: &TrainingOptions,
) -> Result<Vec<ValueId>, ModelError> {
    let weights = graph.initializers.keys().copied().filter(|id| !graph.constants.contains(id));
    let weights: Vec<ValueId> = weights.collect();
    let patterns = options.groups.iter().flat_map(|group| [&group.pattern].into_iter().chain(&group.more_patterns));
    let groups = patterns.map(|pattern| (pattern, "matches no parameter for a group"));
    let frozen = options.freeze.iter().map(|pattern| (pattern, "matches no parameter to freeze"));
    groups::check(&options.groups, &options.optimizer)?;
    for (pattern, what) in frozen.chain(groups) {
        // Patterns can also match initializers that are not trained anyway.
        if !graph.initializers.keys().any(|&id| pattern::matches(pattern, &graph.value(id).name)) {
            let examples: Vec<&str> = weights.iter().take(3).map(|&id| graph.value(id).name.as_str()).collect();
            let reason = format!("'{pattern}' {what}; the initializers include {}", examples.join(", "));
            return Err(ModelError::Request { reason });
        }
    }
    let trains = |id: &ValueId| {
        let is_float = graph.initializers[id].data_type() == DataType::Float32;
        is_float && !statistics.contains(id) && !is_frozen(graph, *id, options)
    };
    Ok(weights.into_iter().filter(trains).collect())
}

/// Adds an output with a known name for every gradient. Each is a view, because two parameters can have the same gradient.
fn append_gradient_outputs(graph: &mut Graph, trained: &[(ValueId, ValueId)], is_negated: bool) {
    for &(parameter, mut d) in trained {
        if is_negated {
            d = Formula::new(graph, "gradient").scaled(d, -1.0);
        }
        let name = format!("{GRADIENT_PREFIX}{}", graph.value(parameter).name);
        append_output(graph, &name, d);
    }
}

/// Name of the graph input that holds the optimizer's hyperparameters.
const HYPERPARAMETERS_NAME: &str = "forebay.hyperparameters";

/// Adds the inputs for the hyperparameters of the optimizer and of each trained group.
fn append_hyperparameters(graph: &mut Graph, options: &TrainingOptions) -> Vec<ValueId> {
    let count = options.optimizer.hyperparameters().len() as u64;
    let groups = options.groups.iter().filter(|group| !group.is_frozen);
    let ty = TensorType::new(DataType::Float32, &[count]);
    (0..=groups.count()).map(|_| graph.add_input(HYPERPARAMETERS_NAME, ty.clone())).collect()
}

/// Returns the step of parameters that begin to train after a number of updates.
fn own_step(graph: &mut Graph, step: ValueId, updates_before: u64) -> ValueId {
    if updates_before == 0 {
        return step;
    }
    let mut f = Formula::new(graph, "step");
    let before = f.constant(Tensor::from_i64(&[2], &[updates_before.min(i64::MAX as u64) as i64, 0]));
    let own = f.subtract(step, before);
    let first = f.constant(Tensor::from_i64(&[2], &[1, i64::MIN]));
    f.binary(BinaryOp::Maximum, own, first)
}

/// Adds the optimizer's nodes, state and updates. Returns the state with its parameters, and the inputs for the hyperparameters.
fn append_optimizer(
    graph: &mut Graph,
    mode: &mut mode::TrainingMode,
    trained: &[(ValueId, ValueId)],
    options: &TrainingOptions,
) -> (Vec<(ValueId, ValueId)>, Vec<ValueId>) {
    let hyperparameters = append_hyperparameters(graph, options);
    let rule = options.decay.unwrap_or(if options.optimizer.is_decoupled() {
        DecayRule::MatricesOnly
    } else {
        DecayRule::All
    });
    let mut states = Vec::new();
    // By the number of updates before the first of a parameter.
    let mut steps = BTreeMap::new();
    let is_formula = options.optimizer.is_formula();
    let mut numbers = Vec::new();
    if is_formula {
        graph.begin_updates();
        numbers = hyperparameters.iter().map(|&own| updates::scalars(graph, own)).collect();
    }
    for &(parameter, d) in trained {
        let ty = graph.ty(parameter).cloned().expect("initializers have types");
        let decays = rule == DecayRule::All || ty.shape.len() >= 2;
        let group = group_of(&options.groups, &graph.value(parameter).name);
        let updates_before = group.map_or(0, |group| options.groups[group].updates_before);
        let trains_before = |group: usize| options.groups[..group].iter().filter(|group| !group.is_frozen).count();
        let group = group.map_or(0, |group| 1 + trains_before(group));
        if is_formula {
            let own = updates::append(graph, (parameter, d), &options.optimizer, &numbers[group], decays);
            states.extend(own.into_iter().map(|state| (state, parameter)));
            continue;
        }
        let (kernel, own_states) = optimizer_kernel(&options.optimizer, decays, &ty);
        let name = graph.value(parameter).name.clone();
        let mut in_place = vec![parameter];
        for (suffix, ty) in own_states {
            let state = graph.add_initializer(&format!("{name}.{suffix}"), Contents::zeros(ty));
            states.push((state, parameter));
            in_place.push(state);
        }
        let mut inputs = vec![Some(parameter), Some(d)];
        inputs.extend(in_place[1..].iter().copied().map(Some));
        if matches!(kernel, Kernel::Adam { .. } | Kernel::Adam8Bit { .. }) {
            let step = mode.step(graph);
            let own = steps.entry(updates_before).or_insert_with(|| own_step(graph, step, updates_before));
            inputs.push(Some(*own));
        }
        inputs.push(Some(hyperparameters[group]));
        let mut outputs = Vec::with_capacity(in_place.len());
        for state in in_place {
            let ty = graph.ty(state).cloned();
            let value = graph.add_value(&format!("{}.next", graph.value(state).name.clone()), ty);
            graph.updates.push(Update { state, value });
            outputs.push(Some(value));
        }
        graph.nodes.push(Node { name, operation: Operation::Kernel(kernel), inputs, outputs });
    }
    (states, hyperparameters)
}

/// Names of the state tensors that optimizers keep per parameter.
const STATES: [&str; 16] = [
    "velocity",
    "first_moment",
    "second_moment",
    "square_average",
    "gradient_average",
    "square_sum",
    "row_squares",
    "column_squares",
    "squares",
    "first_moment_codes",
    "first_moment_scales",
    "second_moment_codes",
    "second_moment_scales",
    "largest_second_moment",
    "largest_gradient",
    "step_square_average",
];

/// The name of the parameter whose optimizer state or moving average has this name; `None` for any other name. The name ends with a number
/// if the model itself has a value of that name.
pub fn state_of(name: &str) -> Option<&str> {
    let (before, suffix) = name.rsplit_once('.')?;
    let (parameter, suffix) = match suffix.parse::<u32>() {
        Ok(_) => before.rsplit_once('.')?,
        Err(_) => (before, suffix),
    };
    (STATES.contains(&suffix) || suffix == AVERAGE).then_some(parameter)
}

/// The kernel of an optimizer, and the names and types of the state that it keeps for a parameter of this type.
fn optimizer_kernel(optimizer: &Optimizer, decays: bool, ty: &TensorType) -> (Kernel, Vec<(&'static str, TensorType)>) {
    let alike = |names: &[&'static str]| names.iter().map(|&name| (name, ty.clone())).collect();
    match *optimizer {
        Optimizer::Sgd { momentum, nesterov, .. } => {
            (Kernel::Sgd { nesterov, decays }, alike(if momentum == 0.0 { &[] } else { &STATES[..1] }))
        }
        Optimizer::Adam8Bit { decoupled, .. } if ty.count() >= QUANTIZED_ELEMENTS_MIN => {
            let codes = TensorType::new(DataType::UInt8, &ty.shape);
            let scales = TensorType::new(DataType::Float32, &[ty.count().div_ceil(QUANTIZATION_BLOCK)]);
            let types = [codes.clone(), scales.clone(), codes, scales];
            (Kernel::Adam8Bit { decoupled, decays }, STATES[9..].iter().copied().zip(types).collect())
        }
        Optimizer::Adam { decoupled, .. } | Optimizer::Adam8Bit { decoupled, .. } => {
            (Kernel::Adam { decoupled, decays }, alike(&STATES[1..3]))
        }
        _ => unreachable!("updates that are formulas have no kernel"),
    }
}
