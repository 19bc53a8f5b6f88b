//! Losses that a model computes itself.

use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::indices::{integer, offsets, require_indices, steps, take_rows};
use super::shapes::product;
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("NegativeLogLikelihoodLoss", negative_log_likelihood),
    composed!("SoftmaxCrossEntropyLoss", softmax_cross_entropy),
];

/// The labels of every position, in the form that the loss uses.
struct Labels {
    /// Which labels are ignored, if any can be.
    ignored: Option<Part>,
    /// The classes, with 0 for labels that are ignored. Invalid classes are rejected where they are used.
    classes: Part,
}

/// An ignored label can be any number. A negative label that is not ignored would count from the end, so it is moved out of range to be
/// rejected.
fn labels(c: &mut Composer, labels: &Part, classes: u64) -> Result<Labels, ModelError> {
    require_indices(&c.view, labels)?;
    let data_type = labels.ty.data_type;
    let zero = integer(c, data_type, 0)?;
    let (mut ignored, mut counting) = (None, labels.clone());
    let ignore_index = match c.view.attribute("ignore_index") {
        Some(_) => Some(c.view.int("ignore_index", 0)?),
        None => None,
    };
    // No 32-bit label equals a number that needs more bits.
    let can_be = |&value: &i64| data_type == DataType::Int64 || i32::try_from(value).is_ok();
    if let Some(value) = ignore_index.filter(can_be) {
        let value = integer(c, data_type, value)?;
        let is_ignored = c.binary(BinaryOp::Equal, labels, &value)?;
        counting = c.select(&is_ignored, &zero, &counting)?;
        ignored = Some(is_ignored);
    }
    let is_negative = c.binary(BinaryOp::Less, &counting, &zero)?;
    let classes = integer(c, data_type, i64::try_from(classes).unwrap_or(i64::MAX))?;
    let outside = c.binary(BinaryOp::Subtract, &counting, &classes)?;
    let classes = c.select(&is_negative, &outside, &counting)?;
    Ok(Labels { ignored, classes })
}

/// The batch size, the number of classes and the number of positions, if scores \[n, classes, ..] and labels \[n, ..] fit each other.
fn sizes(view: &NodeView, scores: &TensorType, labels: &TensorType) -> Result<[u64; 3], ModelError> {
    let [batches, classes, places @ ..] = scores.shape.as_slice() else {
        return Err(view.error(format!("expected scores [n, classes, ..], found {scores}")));
    };
    if labels.shape != [&[*batches], places].concat() {
        return Err(view.error(format!("labels {labels} do not match scores {scores}")));
    }
    Ok([*batches, *classes, product(view, places)?])
}

fn zero(c: &mut Composer, data_type: DataType) -> Result<Part, ModelError> {
    let zero = Tensor::zeros(data_type, &[]).ok_or_else(|| c.view.error("cannot create a zero"))?;
    Ok(c.constant(zero))
}

/// The sum of all elements, as a scalar.
fn total(c: &mut Composer, op: ReduceOp, x: &Part) -> Result<Part, ModelError> {
    let count = product(&c.view, &x.ty.shape)?;
    let list = c.reshape(x, &[count])?;
    let sum = c.reduce(op, &[0], &list)?;
    c.reshape(&sum, &[])
}

/// The negative log likelihood loss of log probabilities \[n, classes, ..].
fn likelihood(c: &mut Composer, scores: &Part, given: &Part) -> Result<Part, ModelError> {
    let view = c.view;
    let [batches, classes, places] = sizes(&view, &scores.ty, &given.ty)?;
    let Labels { ignored, classes: labels } = labels(c, given, classes)?;
    let shape = given.ty.shape.clone();
    let count = product(&view, &shape)?;
    // The element numbers of the labels' scores.
    let labels = c.reshape(&labels, &[batches, places])?;
    let mut numbers = offsets(c, &labels, classes, places)?;
    for (size, step, at) in [(batches, classes.saturating_mul(places), [batches, 1]), (places, 1, [1, places])] {
        if size > 1 {
            let own = steps(c, size, step)?;
            let own = c.reshape(&own, &at)?;
            numbers = c.binary(BinaryOp::Add, &numbers, &own)?;
        }
    }
    let numbers = c.reshape(&numbers, &[count])?;
    let all = product(&view, &scores.ty.shape)?;
    let taken = take_rows(c, scores, [all, 1], &numbers, &shape)?;
    let mut loss = c.affine(&taken, -1.0, 0.0)?;
    let mut weights = None;
    if view.has_input(2) {
        let weight = c.input(2)?;
        if weight.ty.shape != [classes] {
            return Err(view.error(format!("expected {classes} weights, found {}", weight.ty)));
        }
        let labels = c.reshape(&labels, &[count])?;
        let own = take_rows(c, &weight, [classes, 1], &labels, &shape)?;
        loss = c.binary(BinaryOp::Multiply, &loss, &own)?;
        weights = Some(own);
    }
    if let Some(is_ignored) = &ignored {
        let zero = zero(c, loss.ty.data_type)?;
        loss = c.select(is_ignored, &zero, &loss)?;
        weights = Some(match weights {
            Some(weights) => c.select(is_ignored, &zero, &weights)?,
            None => {
                let counts = c.unary(UnaryOp::Not, is_ignored)?;
                c.cast(&counts, loss.ty.data_type)
            }
        });
    }
    match (view.string("reduction", "mean")?, weights) {
        ("none", _) => Ok(loss),
        ("sum", _) => total(c, ReduceOp::Sum, &loss),
        ("mean", None) => total(c, ReduceOp::Mean, &loss),
        ("mean", Some(weights)) => {
            let (sum, weight) = (total(c, ReduceOp::Sum, &loss)?, total(c, ReduceOp::Sum, &weights)?);
            c.binary(BinaryOp::Divide, &sum, &weight)
        }
        (other, _) => Err(view.error(format!("attribute reduction must be none, sum or mean, not '{other}'"))),
    }
}

fn negative_log_likelihood(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (scores, given) = (c.input(0)?, c.input(1)?);
    let loss = likelihood(&mut c, &scores, &given)?;
    c.finish(loss)
}

/// A mean without weights is one kernel, which keeps nothing of the scores' size. Its labels are looked up first, so that invalid ones are
/// rejected.
fn softmax_cross_entropy(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let (scores, given) = (c.input(0)?, c.input(1)?);
    let [_, classes, _] = sizes(&view, &scores.ty, &given.ty)?;
    let gives_probabilities = matches!(view.node.outputs.get(1), Some(Some(_)));
    let is_mean = view.string("reduction", "mean")? == "mean" && !view.has_input(2);
    if is_mean && !gives_probabilities && scores.ty.data_type == DataType::Float32 {
        let Labels { ignored, classes: known } = labels(&mut c, &given, classes)?;
        let checked = offsets(&mut c, &known, classes, 1)?;
        let (ignore_index, labels) = match &ignored {
            Some(is_ignored) => {
                let none = integer(&mut c, DataType::Int64, -1)?;
                (Some(-1), c.select(is_ignored, &none, &checked)?)
            }
            None => (None, checked),
        };
        let kernel = Kernel::SoftmaxCrossEntropy { axis: 1, ignore_index };
        let loss = c.kernel(kernel, &[&scores, &labels], TensorType::new(DataType::Float32, &[]));
        return c.finish(loss);
    }
    let probabilities = c.kernel(Kernel::LogSoftmax { axis: 1 }, &[&scores], scores.ty.clone());
    let loss = likelihood(&mut c, &probabilities, &given)?;
    c.finish_all(if gives_probabilities { vec![loss, probabilities] } else { vec![loss] })
}
