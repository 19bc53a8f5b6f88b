//! Losses of further outputs, which are added to the first: deep supervision, several tasks, or a penalty that the model computes.

use forebay_base::kernel::UnaryOp;
use forebay_base::{DataType, Tensor};

use super::formula::Formula;
use super::loss::Loss;
use super::term::{refuse, require_from_zero};
use crate::error::ModelError;
use crate::graph::{Attribute, Graph, Node, Operation, TensorType, ValueId};
use crate::infer::infer_node;

/// The loss of a further output, multiplied by a weight.
///
/// ```
/// use forebay_model::training::{Loss, LossTerm, TrainingOptions};
///
/// let mut options = TrainingOptions::default();
/// let mut depth = LossTerm::new("depth", Loss::MeanAbsoluteError);
/// (depth.weight, depth.labels) = (0.5, Some("meters".to_string()));
/// options.terms.push(depth);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LossTerm {
    /// The name of the output.
    pub output: String,
    /// The loss to minimize. [`Loss::Output`] is the output itself, of one element.
    pub loss: Loss,
    /// The factor of the loss, at least 0.
    pub weight: f32,
    /// The batch input with its labels, which may be an input of the model. `None`: the labels of the first loss, or the nearest of them if
    /// the output has fewer places.
    pub labels: Option<String>,
}

impl LossTerm {
    /// Creates a loss with a factor of 1 and the labels of the first loss.
    pub fn new(output: impl Into<String>, loss: Loss) -> LossTerm {
        LossTerm { output: output.into(), loss, weight: 1.0, labels: None }
    }
}

/// The source of the labels of a loss.
#[derive(Clone, Copy)]
pub(super) enum LabelSource<'a> {
    /// A new input.
    New,
    /// The batch input with this name.
    Named(&'a str),
    /// The labels of another loss.
    Of(ValueId),
}

impl LabelSource<'_> {
    /// Returns the labels, of the type that the loss requires; missing inputs are added.
    pub(super) fn labels(self, graph: &mut Graph, loss: &Loss, ty: &TensorType) -> Result<ValueId, ModelError> {
        // Places follow the samples, and the channels of numbers. A sequence of labels has no places.
        let are_classes = ty.data_type == DataType::Int64 && !matches!(loss, Loss::Ctc(_));
        let channels = match loss {
            Loss::SoftCrossEntropy { class_axis: axis, .. }
            | Loss::BinaryCrossEntropy { class_axis: axis, .. }
            | Loss::KlDivergence { class_axis: axis, .. }
            | Loss::CosineEmbedding { axis, .. } => axis.unwrap_or(1),
            _ => 1,
        };
        let channels = if channels < 0 { channels + ty.shape.len() as i64 } else { channels };
        let fixed_axes: &[i64] = if are_classes { &[0] } else { &[0, channels] };
        let name = match self {
            LabelSource::New => ["labels", "y"].into_iter().find(|name| graph.find(name).is_none()).unwrap_or("labels"),
            LabelSource::Of(labels) => return nearest(graph, labels, ty, fixed_axes),
            LabelSource::Named(name) => {
                let found = graph.find(name);
                match found.filter(|id| graph.inputs.contains(id)) {
                    Some(input) => return nearest(graph, input, ty, fixed_axes),
                    None if found.is_some() => {
                        let reason =
                            format!("labels '{name}': the model has a value with this name that is not an input");
                        return refuse(reason);
                    }
                    None => name,
                }
            }
        };
        Ok(graph.add_input(name, ty.clone()))
    }
}

/// Resizes labels to other sizes: each place gets the label of the nearest place, as in PyTorch's `nearest-exact`. The `fixed_axes` must
/// have their sizes already.
fn nearest(graph: &mut Graph, labels: ValueId, ty: &TensorType, fixed_axes: &[i64]) -> Result<ValueId, ModelError> {
    let name = graph.value(labels).name.clone();
    let given = graph.ty(labels).cloned();
    let fits = |given: &&TensorType| {
        let (now, wanted) = (&given.shape, &ty.shape);
        let is_fixed = |axis: usize| fixed_axes.contains(&(axis as i64));
        let is_like =
            now.len() == wanted.len() && (0..now.len()).all(|axis| now[axis] == wanted[axis] || !is_fixed(axis));
        is_like && given.data_type == ty.data_type && (now == wanted || !now.contains(&0))
    };
    let Some(given) = given.as_ref().filter(fits) else {
        let given = given.map_or_else(|| "of unknown type".to_string(), |ty| ty.to_string());
        return refuse(format!(
            "labels '{name}' are {given}, but another loss requires {ty}; name other labels for it"
        ));
    };
    let mut labels = labels;
    for (axis, (&from, &to)) in given.shape.iter().zip(&ty.shape).enumerate().filter(|(_, (from, to))| from != to) {
        let place = |i: u64| ((2 * i + 1) as u128 * u128::from(from) / (2 * u128::from(to))) as i64;
        let places: Vec<i64> = (0..to).map(place).collect();
        let indices = graph.add_initializer("loss.places", Tensor::from_i64(&[to], &places));
        graph.constants.insert(indices);
        let output = graph.add_value("loss.labels", None);
        graph.nodes.push(Node {
            name: "loss.labels".to_string(),
            operation: Operation::onnx("Gather", &[("axis", Attribute::Int(axis as i64))]),
            inputs: vec![Some(labels), Some(indices)],
            outputs: vec![Some(output)],
        });
        infer_node(graph, graph.nodes.len() - 1)?;
        labels = output;
    }
    Ok(labels)
}

/// Returns the weighted sum of losses, a scalar.
pub(super) fn sum(graph: &mut Graph, losses: &[(ValueId, f32)]) -> Result<ValueId, ModelError> {
    let mut formula = Formula::new(graph, "loss");
    let mut sum = None;
    for &(loss, weight) in losses {
        require_from_zero("the weight of a loss", weight)?;
        let loss = formula.unary(UnaryOp::Affine { scale: weight, shift: 0.0 }, loss);
        sum = Some(match sum {
            Some(sum) => formula.add(sum, loss),
            None => loss,
        });
    }
    match sum {
        Some(sum) => Ok(sum),
        None => refuse("there is no loss".to_string()),
    }
}
