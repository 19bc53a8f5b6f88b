//! What becomes of scores: probabilities, and labels.

use forebay_base::kernel::{BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::super::decomposition::{Composer, Part};
use super::super::selection::gathered;
use crate::error::ModelError;
use crate::graph::TensorType;
use crate::operator::NodeView;

/// What attribute `post_transform` asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Transform {
    None,
    Softmax,
    Logistic,
    /// A softmax in which scores of 0 stay 0.
    SoftmaxZero,
    /// The inverse of the normal distribution function.
    Probit,
}

/// The transforms by their names, in the order of their numbers in `TreeEnsemble`.
const NAMES: [(&str, Transform); 5] = [
    ("NONE", Transform::None),
    ("SOFTMAX", Transform::Softmax),
    ("LOGISTIC", Transform::Logistic),
    ("SOFTMAX_ZERO", Transform::SoftmaxZero),
    ("PROBIT", Transform::Probit),
];

impl Transform {
    /// The transform that the attribute names.
    pub(super) fn named(view: &NodeView) -> Result<Transform, ModelError> {
        let name = view.string("post_transform", "NONE")?;
        let found = NAMES.iter().find(|(own, _)| *own == name).map(|(_, transform)| *transform);
        found.ok_or_else(|| view.error(format!("there is no post_transform '{name}'")))
    }

    /// The transform with the number that the attribute gives.
    pub(super) fn numbered(view: &NodeView) -> Result<Transform, ModelError> {
        let number = view.int("post_transform", 0)?;
        let found = usize::try_from(number).ok().and_then(|number| NAMES.get(number));
        found.map(|(_, transform)| *transform).ok_or_else(|| view.error(format!("there is no post_transform {number}")))
    }

    /// The error for a case in which ONNX does not say what a transform means.
    pub(super) fn refused(self, view: &NodeView, what: &str) -> ModelError {
        let name = NAMES.iter().find(|(_, transform)| *transform == self).map_or("", |(name, _)| name);
        view.error(format!(
            "post_transform {name} of {what} is not supported, because implementations differ; convert without it, \
             and add an operator such as Sigmoid"
        ))
    }
}

/// Transforms scores \[rows, classes].
pub(super) fn transformed(c: &mut Composer, scores: &Part, transform: Transform) -> Result<Part, ModelError> {
    match transform {
        Transform::None => Ok(scores.clone()),
        Transform::Logistic => c.unary(UnaryOp::Sigmoid, scores),
        Transform::Softmax => Ok(c.kernel(Kernel::Softmax { axis: 1 }, &[scores], scores.ty.clone())),
        Transform::SoftmaxZero => softmax_zero(c, scores),
        Transform::Probit => probit(c, scores),
    }
}

/// The scores of a regression. ONNX Runtime transforms a single score only by PROBIT.
pub(super) fn of_regression(c: &mut Composer, scores: &Part, transform: Transform) -> Result<Part, ModelError> {
    let is_one = scores.ty.shape.get(1) == Some(&1);
    if is_one && !matches!(transform, Transform::None | Transform::Probit) {
        return Err(transform.refused(&c.view, "a single target"));
    }
    transformed(c, scores, transform)
}

fn softmax_zero(c: &mut Composer, scores: &Part) -> Result<Part, ModelError> {
    let largest = c.reduce(ReduceOp::Max, &[1], scores)?;
    let above = c.binary(BinaryOp::Subtract, scores, &largest)?;
    let powers = c.unary(UnaryOp::Exp, &above)?;
    let size = c.unary(UnaryOp::Abs, scores)?;
    let least = c.scalar(scores.ty.data_type, 1e-7)?;
    let counts = c.binary(BinaryOp::Greater, &size, &least)?;
    let zero = c.scalar(scores.ty.data_type, 0.0)?;
    let powers = c.select(&counts, &powers, &zero)?;
    let sum = c.reduce(ReduceOp::Sum, &[1], &powers)?;
    c.binary(BinaryOp::Divide, &powers, &sum)
}

/// The square root of 2 times the inverse error function of 2 x - 1, by the approximation that ONNX Runtime uses.
fn probit(c: &mut Composer, x: &Part) -> Result<Part, ModelError> {
    const A: f32 = 0.147;
    let x = c.affine(x, 2.0, -1.0)?;
    let sign = c.unary(UnaryOp::Sign, &x)?;
    let (below, above) = (c.affine(&x, -1.0, 1.0)?, c.affine(&x, 1.0, 1.0)?);
    let rest = c.binary(BinaryOp::Multiply, &below, &above)?;
    let log = c.unary(UnaryOp::Log, &rest)?;
    let v = c.affine(&log, 0.5, 2.0 / (std::f32::consts::PI * A))?;
    let squared = c.binary(BinaryOp::Multiply, &v, &v)?;
    let quotient = c.affine(&log, 1.0 / A, 0.0)?;
    let under = c.binary(BinaryOp::Subtract, &squared, &quotient)?;
    let root = c.unary(UnaryOp::Sqrt, &under)?;
    let under = c.binary(BinaryOp::Subtract, &root, &v)?;
    let root = c.unary(UnaryOp::Sqrt, &under)?;
    let y = c.binary(BinaryOp::Multiply, &sign, &root)?;
    c.affine(&y, std::f32::consts::SQRT_2, 0.0)
}

/// The label of the first largest score of each row: int64\[rows].
pub(super) fn top(c: &mut Composer, scores: &Part, labels: &[i64]) -> Result<Part, ModelError> {
    let rows = scores.ty.shape[0];
    if labels.len() as u64 != scores.ty.shape[1] {
        return Err(c.view.error(format!("{} labels are given for the scores {}", labels.len(), scores.ty)));
    }
    let first = Kernel::TopK { axis: 1, largest: true, nan_first: false, last: false };
    let place = c.kernel(first, &[scores], TensorType::new(DataType::Int64, &[rows, 1]));
    let place = c.reshape(&place, &[rows])?;
    let table = c.constant(Tensor::from_i64(&[labels.len() as u64], labels));
    gathered(c, &table, &place, 0)
}

/// The second label for rows whose only score, \[rows, 1], is above a threshold, else the first: int64\[rows].
pub(super) fn above(c: &mut Composer, score: &Part, threshold: f64, labels: [i64; 2]) -> Result<Part, ModelError> {
    let threshold = c.scalar(score.ty.data_type, threshold)?;
    let is_above = c.binary(BinaryOp::Greater, score, &threshold)?;
    let is_above = c.reshape(&is_above, &[score.ty.shape[0]])?;
    let [first, second] = labels.map(|label| Tensor::from_i64(&[1], &[label]));
    let (first, second) = (c.constant(first), c.constant(second));
    c.select(&is_above, &second, &first)
}

/// The scores of both classes from that of the second, \[rows, 1]: 1 - score or -score, and the score.
pub(super) fn both(c: &mut Composer, score: &Part, is_probability: bool) -> Result<Part, ModelError> {
    let other = c.affine(score, -1.0, if is_probability { 1.0 } else { 0.0 })?;
    c.concatenate(&[&other, score], 1)
}
