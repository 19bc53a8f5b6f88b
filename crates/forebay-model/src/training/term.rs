//! The common parts of losses: a prediction with labels that are classes or targets, and their cross-entropies.

use forebay_base::kernel::{BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::formula::Formula;
use crate::error::ModelError;
use crate::graph::{TensorType, ValueId};

/// Returns an error about the request.
pub(super) fn refuse<T>(reason: String) -> Result<T, ModelError> {
    Err(ModelError::Request { reason })
}

/// Returns an axis of the prediction, counted from the front. Error messages call it by its flag.
pub(super) fn axis_of(given: Option<i64>, ty: &TensorType, name: &str) -> Result<usize, ModelError> {
    let (given, rank) = (given.unwrap_or(1), ty.shape.len() as i64);
    let axis = if given < 0 { given.saturating_add(rank) } else { given };
    if !(0..rank).contains(&axis) || rank < 2 {
        return refuse(format!("class axis {given} is out of range for output '{name}', {ty} (--class-axis)"));
    }
    Ok(axis as usize)
}

/// Returns the type of labels that are classes along an axis of the prediction.
pub(super) fn classes_type(ty: &TensorType, axis: usize) -> TensorType {
    let mut shape = ty.shape.clone();
    shape.remove(axis);
    TensorType { data_type: DataType::Int64, shape }
}

/// Returns an error if a number is out of range.
pub(super) fn require(holds: bool, what: &str, value: f32, range: &str) -> Result<(), ModelError> {
    if holds {
        return Ok(());
    }
    refuse(format!("{what} must be {range}, not {value}"))
}

/// Checks that a number is finite and at least 0.
pub(super) fn require_from_zero(what: &str, value: f32) -> Result<(), ModelError> {
    require(value >= 0.0 && value.is_finite(), what, value, "a finite number of at least 0")
}

/// Checks the class weights: none, or one for each class.
pub(super) fn require_weights(weights: &[f32], classes: u64, flag: &str) -> Result<(), ModelError> {
    if !weights.is_empty() && weights.len() as u64 != classes {
        return refuse(format!("{} weights were given for {classes} classes ({flag})", weights.len()));
    }
    weights.iter().try_for_each(|&weight| require_from_zero(&format!("a weight ({flag})"), weight))
}

/// A prediction, its name for messages, and the formula built from it.
pub(super) struct Term<'f, 'g> {
    /// The formula.
    pub f: &'f mut Formula<'g>,
    /// The prediction.
    pub prediction: ValueId,
    /// Its name.
    pub name: &'f str,
}

impl Term<'_, '_> {
    /// Returns the type of the prediction.
    pub(super) fn ty(&self) -> TensorType {
        self.f.ty(self.prediction)
    }

    /// Returns numbers for the classes along an axis, to broadcast to the prediction.
    pub(super) fn along(&mut self, axis: usize, values: &[f32]) -> ValueId {
        let mut shape = vec![1; self.ty().shape.len()];
        shape[axis] = values.len() as u64;
        self.f.constant(Tensor::from_f32(&shape, values))
    }

    /// Returns labels that are classes, with the class axis inserted with size 1.
    pub(super) fn places(&mut self, labels: ValueId, axis: usize) -> ValueId {
        let mut shape = self.ty().shape;
        shape[axis] = 1;
        self.f.reshape(labels, &shape)
    }

    /// Returns which class of the prediction is the label, as a mask.
    pub(super) fn hot(&mut self, places: ValueId, axis: usize) -> ValueId {
        let shape = self.ty().shape;
        let numbers: Vec<i64> = (0..shape[axis] as i64).collect();
        let mut own = vec![1; shape.len()];
        own[axis] = shape[axis];
        let numbers = self.f.constant(Tensor::from_i64(&own, &numbers));
        self.f.binary(BinaryOp::Equal, places, numbers)
    }

    /// Returns which labels do not count, as a mask.
    pub(super) fn ignored(&mut self, places: ValueId, ignore_index: Option<i64>) -> Option<ValueId> {
        let ignored = self.f.constant(Tensor::from_i64(&[], &[ignore_index?]));
        Some(self.f.binary(BinaryOp::Equal, places, ignored))
    }

    /// Returns x, with 0 where labels do not count.
    pub(super) fn counting(&mut self, ignored: Option<ValueId>, x: ValueId) -> ValueId {
        let Some(ignored) = ignored else { return x };
        let zero = self.f.number(0.0);
        self.f.select(ignored, zero, x)
    }

    /// Returns the logarithms of the softmax along an axis.
    pub(super) fn log_softmax(&mut self, axis: usize) -> ValueId {
        let ty = self.ty();
        self.f.one(Kernel::LogSoftmax { axis }, &[self.prediction], ty)
    }

    /// Returns a sum of losses divided by the total weight of the labels that count.
    pub(super) fn by_weights(
        &mut self,
        sum: ValueId,
        places: ValueId,
        hot: ValueId,
        ignored: Option<ValueId>,
        weights: Option<ValueId>,
    ) -> ValueId {
        let count = self.f.ty(places).count();
        let of_places = match (weights, ignored) {
            (None, None) => return self.f.scaled(sum, (1.0 / count as f64) as f32),
            (None, Some(ignored)) => {
                let counts = self.f.unary(UnaryOp::Not, ignored);
                self.f.floats(counts)
            }
            (Some(weights), ignored) => {
                let zero = self.f.number(0.0);
                let own = self.f.select(hot, weights, zero);
                self.counting(ignored, own)
            }
        };
        let weight = self.f.total(of_places);
        self.f.divide(sum, weight)
    }

    /// Returns the number of classes and the logarithms of their probabilities, if the weights and the smoothing are valid.
    fn log_probabilities(
        &mut self,
        axis: usize,
        class_weights: &[f32],
        smoothing: f32,
    ) -> Result<(u64, ValueId), ModelError> {
        let classes = self.ty().shape[axis];
        require_weights(class_weights, classes, "--class-weights")?;
        require((0.0..=1.0).contains(&smoothing), "label smoothing", smoothing, "from 0 to 1")?;
        Ok((classes, self.log_softmax(axis)))
    }

    /// The cross-entropy. With smoothing s and C classes, a label's class has the probability 1 - s + s / C and each other class s / C.
    pub(super) fn cross_entropy(
        &mut self,
        labels: ValueId,
        axis: usize,
        ignore_index: Option<i64>,
        class_weights: &[f32],
        smoothing: f32,
    ) -> Result<ValueId, ModelError> {
        let (classes, logarithms) = self.log_probabilities(axis, class_weights, smoothing)?;
        let places = self.places(labels, axis);
        let hot = self.hot(places, axis);
        let ignored = self.ignored(places, ignore_index);
        let ones = [1.0];
        let weights = if class_weights.is_empty() { &ones[..] } else { class_weights };
        let share = f64::from(smoothing) / classes as f64;
        let mut scaled = |share: f64| {
            let values: Vec<f32> = weights.iter().map(|&weight| (-share * f64::from(weight)) as f32).collect();
            self.along(axis, &values)
        };
        let own = scaled(1.0 - f64::from(smoothing) + share);
        let others = (smoothing > 0.0).then(|| scaled(share));
        let losses = match others {
            // An impossible class counts only where it is the label.
            None => {
                let all = self.f.multiply(logarithms, own);
                let zero = self.f.number(0.0);
                self.f.select(hot, all, zero)
            }
            Some(others) => {
                let probabilities = self.f.select(hot, own, others);
                self.f.multiply(logarithms, probabilities)
            }
        };
        let losses = self.counting(ignored, losses);
        let sum = self.f.total(losses);
        let weights = (!class_weights.is_empty()).then(|| self.along(axis, class_weights));
        Ok(self.by_weights(sum, places, hot, ignored, weights))
    }

    /// Returns the mean cross-entropy over positions whose labels are probabilities of classes. An impossible class counts only where its
    /// target is above 0.
    pub(super) fn soft_cross_entropy(
        &mut self,
        probabilities: ValueId,
        axis: usize,
        class_weights: &[f32],
        smoothing: f32,
    ) -> Result<ValueId, ModelError> {
        let (classes, logarithms) = self.log_probabilities(axis, class_weights, smoothing)?;
        let mut targets = probabilities;
        if smoothing > 0.0 {
            targets = self.f.affine(targets, 1.0 - smoothing, smoothing / classes as f32);
        }
        if !class_weights.is_empty() {
            let weights = self.along(axis, class_weights);
            targets = self.f.multiply(targets, weights);
        }
        let zero = self.f.number(0.0);
        let is_possible = self.f.binary(BinaryOp::Greater, targets, zero);
        let losses = self.f.multiply(targets, logarithms);
        let losses = self.f.select(is_possible, losses, zero);
        let sum = self.f.total(losses);
        let positions = (self.ty().count() / classes).max(1);
        Ok(self.f.scaled(sum, (-1.0 / positions as f64) as f32))
    }

    /// Returns the binary cross-entropy of each element: (1 - t) x + (1 + (w - 1) t) softplus(-x), which is accurate for large logits, too.
    pub(super) fn binary_cross_entropy(
        &mut self,
        targets: ValueId,
        class_axis: Option<i64>,
        positive_weights: &[f32],
    ) -> Result<ValueId, ModelError> {
        let x = self.prediction;
        let negative = self.f.affine(targets, -1.0, 1.0);
        let linear = self.f.multiply(negative, x);
        let minus = self.f.affine(x, -1.0, 0.0);
        let mut log_odds = self.f.unary(UnaryOp::Softplus, minus);
        if !positive_weights.is_empty() {
            let weights = match positive_weights {
                [one] => {
                    require_from_zero("a weight (--pos-weight)", *one)?;
                    self.f.number(one - 1.0)
                }
                each => {
                    let axis = axis_of(class_axis, &self.ty(), self.name)?;
                    require_weights(each, self.ty().shape[axis], "--pos-weight")?;
                    let more: Vec<f32> = each.iter().map(|weight| weight - 1.0).collect();
                    self.along(axis, &more)
                }
            };
            let more = self.f.multiply(targets, weights);
            let weights = self.f.affine(more, 1.0, 1.0);
            log_odds = self.f.multiply(weights, log_odds);
        }
        Ok(self.f.add(linear, log_odds))
    }
}
