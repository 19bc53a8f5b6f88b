//! Plans that compute a loss, for one training step or an evaluation, and what must be fed to them.

use std::collections::{BTreeMap, BTreeSet};

use forebay_model::graph::Dimension;
use forebay_model::infer::Sizes;
use forebay_model::tensor::Contents;
use forebay_model::training::{
    Loss, LossGraph, TrainingGraph, TrainingOptions, check_parts, loss_graph, training_graph,
};
use forebay_model::{Graph, Tensor, TensorType, ValueId};
use forebay_plan::SavedCosts;

use crate::compile::{Batch, Compiled, compile};
use crate::error::Error;
use crate::labels::{self, Classes};
use crate::machine::LimitedDevice;
use crate::model::Model;
use crate::tensor_info::{self, TensorInfo};

/// A plan that computes a loss.
pub(crate) struct LossPlan {
    /// The plan.
    pub(crate) compiled: Compiled,
    /// The model's own inputs.
    pub(crate) inputs: Vec<TensorInfo>,
    /// The labels.
    pub(crate) labels: TensorInfo,
    /// Whether the labels are one of the model's inputs.
    pub(crate) has_own_labels: bool,
    /// The name of the output that is the loss.
    pub(crate) loss: String,
    /// The value that the loss compares with the labels.
    pub(crate) logits: TensorInfo,
    /// The axis of the logits along which the classes lie.
    pub(crate) class_axis: Option<usize>,
    classes: Option<Classes>,
    /// Inputs that are labels of further losses, and their classes.
    further_classes: Vec<(String, Classes)>,
    /// The name of the input that takes the step number and the seed.
    step: Option<String>,
    /// The names of the inputs that take hyperparameters.
    hyperparameters: Vec<String>,
    /// The name of the output that is the norm of all gradients.
    pub(crate) gradient_norm: Option<String>,
    /// For each parameter whose moving average is kept, the name of the average.
    pub(crate) averages: BTreeMap<String, String>,
    /// Why the parts of a batch whose gradients are accumulated are separate batches, if they are.
    pub(crate) parts_apart: Option<PartsApart>,
}

/// What a training step is fed in addition to its batch.
pub(crate) struct StepNumbers {
    /// The number of the update, from 1.
    pub(crate) update: u64,
    /// The seed of dropout.
    pub(crate) seed: u64,
    /// The elements of each input of hyperparameters.
    pub(crate) hyperparameters: Vec<Vec<f32>>,
}

/// The values of a graph that play a particular role.
struct Landmarks {
    loss: ValueId,
    prediction: ValueId,
    labels: ValueId,
    terms: Vec<Option<(ValueId, ValueId)>>,
    step: Option<ValueId>,
    hyperparameters: Vec<ValueId>,
    gradient_norm: Option<ValueId>,
}

impl LossPlan {
    /// Plans a training step on a batch of these sizes, with the costs of this same step if they are given. The step goes through the
    /// batch in as many parts as the options specify.
    ///
    /// # Errors
    /// Fails if the model cannot be trained as requested, the costs are those of another step, or the budgets are too small.
    pub(crate) fn training(
        model: &Model,
        options: &TrainingOptions,
        sizes: &Sizes,
        machine: &LimitedDevice,
        given_costs: Option<&SavedCosts>,
    ) -> Result<LossPlan, Error> {
        let Step { graph: step, parts, parts_apart } = step_graph(model, options, sizes)?;
        let name = |value: ValueId| step.graph.value(value).name.clone();
        let averages = step.averages.iter().map(|&(average, parameter)| (name(parameter), name(average))).collect();
        let TrainingGraph { loss, prediction, labels, terms, hyperparameters, gradient_norm, .. } = step;
        let landmarks = Landmarks { loss, prediction, labels, terms, step: step.step, hyperparameters, gradient_norm };
        let numbers = landmarks.hyperparameters.iter().chain(&landmarks.step);
        let unshared = numbers.map(|&value| step.graph.value(value).name.clone()).collect();
        let parameters = step.parameters.into_iter().collect();
        let block_elements = options.optimizer.block_elements();
        let batch = Batch { unshared: &unshared, sharded: &BTreeSet::new(), block_elements, parts };
        let compiled = compile(&step.graph, &parameters, machine, given_costs, None, Some(batch))?;
        Ok(LossPlan { averages, parts_apart, ..LossPlan::new(&step.graph, compiled, landmarks, options)? })
    }

    /// Plans an evaluation: the loss and the model's output, with whatever values the parameters have by then. Each process keeps slices
    /// of the parameters in `sharded`.
    ///
    /// # Errors
    /// Fails if the model cannot run or the budgets are too small.
    pub(crate) fn evaluation(
        model: &Model,
        options: &TrainingOptions,
        sizes: &Sizes,
        machine: &LimitedDevice,
        sharded: &BTreeSet<String>,
    ) -> Result<LossPlan, Error> {
        let graph = loss_graph(&model.open_graph(sizes)?, options)?;
        let LossGraph { loss, prediction, labels, terms, .. } = graph;
        let landmarks =
            Landmarks { loss, prediction, labels, terms, step: None, hyperparameters: Vec::new(), gradient_norm: None };
        let block_elements = options.optimizer.block_elements();
        let batch = Batch { unshared: &BTreeSet::new(), sharded, block_elements, parts: 1 };
        let compiled = compile(&graph.graph, &BTreeSet::new(), machine, None, None, Some(batch))?;
        LossPlan::new(&graph.graph, compiled, landmarks, options)
    }

    /// Returns whether the loss depends on nothing but one prediction and labels.
    pub(crate) fn takes_predictions(options: &TrainingOptions) -> bool {
        let is_own = matches!(options.loss, Loss::Output { .. });
        !is_own && options.loss.other_output().is_none() && options.terms.is_empty()
    }

    /// Plans the loss of given predictions.
    ///
    /// # Errors
    /// Fails if the loss depends on more than predictions and labels, or if the budgets are too small.
    pub(crate) fn of_predictions(
        predictions: &TensorInfo,
        options: &TrainingOptions,
        machine: &LimitedDevice,
    ) -> Result<LossPlan, Error> {
        let mut options = options.clone();
        (options.loss_output, options.precision) = (None, None);
        let mut graph = Graph::default();
        let ty = TensorType::new(predictions.data_type, &predictions.shape);
        let input = graph.add_value(&predictions.name, Some(ty));
        let dimensions = predictions.shape.iter().map(|&size| Dimension::Known(size)).collect();
        graph.value_mut(input).declared = Some((predictions.data_type, dimensions));
        (graph.inputs, graph.outputs) = (vec![input], vec![input]);
        let LossGraph { mut graph, loss, prediction, labels, terms } = loss_graph(&graph, &options)?;
        graph.outputs = vec![loss];
        let landmarks =
            Landmarks { loss, prediction, labels, terms, step: None, hyperparameters: Vec::new(), gradient_norm: None };
        let batch = Batch { unshared: &BTreeSet::new(), sharded: &BTreeSet::new(), block_elements: 1, parts: 1 };
        let compiled = compile(&graph, &BTreeSet::new(), machine, None, None, Some(batch))?;
        LossPlan::new(&graph, compiled, landmarks, &options)
    }

    fn new(
        graph: &Graph,
        compiled: Compiled,
        landmarks: Landmarks,
        options: &TrainingOptions,
    ) -> Result<LossPlan, Error> {
        let loss = &options.loss;
        let name = |id: ValueId| graph.value(id).name.clone();
        let (labels_name, step) = (name(landmarks.labels), landmarks.step.map(name));
        let hyperparameters: Vec<String> = landmarks.hyperparameters.into_iter().map(name).collect();
        let mut fed = vec![Some(&labels_name), step.as_ref()];
        fed.extend(hyperparameters.iter().map(Some));
        let (own, added): (Vec<TensorInfo>, Vec<TensorInfo>) =
            compiled.inputs.iter().cloned().partition(|info| !fed.contains(&Some(&info.name)));
        let missing = |what: &str| Error::Option { reason: format!("the {what} of the loss has no type") };
        let labels = added.into_iter().find(|info| info.name == labels_name).ok_or_else(|| missing("label input"))?;
        let ty = graph.ty(landmarks.prediction).ok_or_else(|| missing("input"))?;
        let logits = TensorInfo { name: name(landmarks.prediction), data_type: ty.data_type, shape: ty.shape.clone() };
        let (class_axis, classes) = classes(loss, &logits);
        let further = options.terms.iter().zip(&landmarks.terms).filter_map(|(term, values)| {
            let (prediction, labels) = (*values)?;
            let ty = graph.ty(prediction)?;
            let logits = TensorInfo { name: String::new(), data_type: ty.data_type, shape: ty.shape.clone() };
            // Labels of other places are those of the input all the same.
            let input = graph.inputs.contains(&labels).then(|| name(labels));
            let input = input.or_else(|| term.labels.clone()).unwrap_or_else(|| labels_name.clone());
            Some((input, self::classes(&term.loss, &logits).1?))
        });
        let further_classes = further.collect();
        let has_own_labels = matches!(loss, Loss::Output { .. });
        let loss = name(landmarks.loss);
        Ok(LossPlan {
            compiled,
            inputs: own,
            labels,
            has_own_labels,
            loss,
            logits,
            class_axis,
            classes,
            further_classes,
            step,
            hyperparameters,
            gradient_norm: landmarks.gradient_norm.map(name),
            averages: BTreeMap::new(),
            parts_apart: None,
        })
    }

    /// Checks a batch and its labels, and returns everything that the plan is fed, including the numbers of a training step.
    ///
    /// # Errors
    /// Fails if names, types, shapes, indices or labels do not fit.
    pub(crate) fn check(
        &self,
        batch: BTreeMap<String, Tensor>,
        labels: Tensor,
        numbers: Option<&StepNumbers>,
    ) -> Result<BTreeMap<String, Tensor>, Error> {
        tensor_info::check_inputs(&self.inputs, &batch)?;
        tensor_info::check_indices(&self.compiled.index_limits, &batch)?;
        let mut fed = batch;
        fed.insert(self.labels.name.clone(), labels::prepare(labels, &self.labels, self.classes)?);
        for (name, classes) in &self.further_classes {
            fed.get(name).map_or(Ok(()), |labels| labels::check_classes(labels, *classes))?;
        }
        let Some(StepNumbers { update, seed, hyperparameters }) = numbers else { return Ok(fed) };
        if let Some(name) = &self.step {
            fed.insert(name.clone(), Tensor::from_i64(&[2], &[*update as i64, *seed as i64]));
        }
        for (name, elements) in self.hyperparameters.iter().zip(hyperparameters) {
            fed.insert(name.clone(), Tensor::from_f32(&[elements.len() as u64], elements));
        }
        Ok(fed)
    }

    /// Returns the label value that is ignored, if all labels of a batch have it.
    pub(crate) fn ignored_label(&self, fed: &BTreeMap<String, Tensor>) -> Option<i64> {
        let ignored = self.classes?.ignore_index?;
        let mut labels = fed.get(&self.labels.name)?.integers()?;
        labels.all(|label| label == ignored).then_some(ignored)
    }

    /// Returns the contents of parameters and state before the first step.
    pub(crate) fn initial_values(&self) -> BTreeMap<String, Contents> {
        let value = |name: &String, info: &TensorInfo| {
            let contents = self.compiled.contents.get(name).cloned();
            contents.unwrap_or_else(|| Contents::zeros(self.compiled.kept_type(name, info)))
        };
        self.compiled.changing.iter().map(|(name, (_, info))| (name.clone(), value(name, info))).collect()
    }
}

/// The graph of a training step.
struct Step {
    graph: TrainingGraph,
    /// The number of parts in which its launches go through the batch.
    parts: u64,
    /// Why the graph itself has the parts, if it does.
    parts_apart: Option<PartsApart>,
}

/// Why the parts of a batch whose gradients are accumulated are separate batches. The bits of a step are then not those of the whole
/// batch.
///
/// ```
/// use forebay::{Model, PartsApart, Trainer};
///
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let trainer = Trainer::builder(&model).batch_size(2).accumulate(4).build()?;
/// assert_eq!((trainer.batch_size(), trainer.parts_apart()), (8, Some(PartsApart::BatchStatistics)));
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartsApart {
    /// Batch normalization uses the statistics of each part.
    BatchStatistics,
    /// The model has a batch size of its own, or does not accept the whole batch for another reason.
    BatchSize,
}

/// Returns the graph of a step on a batch of these sizes: that of the whole batch if the model accepts it and no sample depends on its
/// batch, otherwise one that repeats the graph of a part.
fn step_graph(model: &Model, options: &TrainingOptions, sizes: &Sizes) -> Result<Step, Error> {
    if options.accumulate <= 1 {
        let graph = training_graph(&model.open_graph(sizes)?, options)?;
        return Ok(Step { graph, parts: 1, parts_apart: None });
    }
    // A number of parts that no model can have is refused before anything is computed with it.
    check_parts(1, options.accumulate)?;
    let mut whole = options.clone();
    whole.accumulate = 1;
    let taken = model
        .open_graph(sizes)
        .ok()
        .filter(|graph| sizes.batch_size.is_some() && first_size(graph) == sizes.batch_size);
    let step = taken.and_then(|graph| training_graph(&graph, &whole).ok());
    let has_statistics = step.as_ref().is_some_and(|step| step.has_batch_statistics);
    match step.filter(|_| !has_statistics) {
        Some(graph) => {
            let parts = first_size(&graph.graph).map_or(options.accumulate, |images| options.accumulate.min(images));
            check_parts(graph.graph.nodes.len(), parts)?;
            Ok(Step { graph, parts: options.accumulate, parts_apart: None })
        }
        None => {
            let (options, sizes) = in_parts(options, sizes.clone());
            let graph = training_graph(&model.open_graph(&sizes)?, &options)?;
            let reason = if has_statistics { PartsApart::BatchStatistics } else { PartsApart::BatchSize };
            Ok(Step { graph, parts: 1, parts_apart: Some(reason) })
        }
    }
}

/// Returns the number of samples in a batch if no batch size is requested.
pub(crate) fn own_batch_size(model: &Model) -> Option<u64> {
    first_size(&model.open_graph(&Sizes::default()).ok()?)
}

/// Returns the size of the first axis of a graph's first input that has one.
fn first_size(graph: &Graph) -> Option<u64> {
    graph.inputs.iter().find_map(|&input| graph.ty(input)?.shape.first().copied())
}

/// Returns the options of a step on a batch of these sizes, and the sizes of each of its parts. There are as many parts as requested, or
/// the next larger number that divides the batch, so that no part is larger than requested.
fn in_parts(options: &TrainingOptions, mut sizes: Sizes) -> (TrainingOptions, Sizes) {
    let mut options = options.clone();
    if let Some(whole) = sizes.batch_size.filter(|_| options.accumulate > 1) {
        let parts = (options.accumulate.min(whole)..=whole).find(|&parts| whole.is_multiple_of(parts)).unwrap_or(1);
        options.accumulate = parts;
        sizes.batch_size = Some(whole / parts);
        let of_batch = sizes.inputs.values_mut().filter_map(|ty| ty.shape.first_mut()).filter(|size| **size == whole);
        of_batch.for_each(|size| *size /= parts);
    }
    (options, sizes)
}

/// Returns the class axis of the logits, counted from the front, and the classes along it.
fn classes(loss: &Loss, logits: &TensorInfo) -> (Option<usize>, Option<Classes>) {
    if let (Loss::Ctc(_), Some(&count)) = (loss, logits.shape.last()) {
        return (None, Some(Classes { count, axis: logits.shape.len() - 1, ignore_index: Some(-1) }));
    }
    let Some(axis) = loss.class_axis() else { return (None, None) };
    let ignore_index = loss.ignore_index();
    let axis = labels::place_of(axis, &logits.shape);
    (axis, axis.map(|axis| Classes { count: logits.shape[axis], axis, ignore_index }))
}
