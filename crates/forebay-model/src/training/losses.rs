//! Losses as formulas of kernels: their gradients, their parts and their shaders are those of the kernels.

use forebay_base::kernel::{BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::formula::Formula;
use super::loss::Loss;
use super::regions;
use crate::error::ModelError;
use crate::graph::{Dimension, Graph, TensorType, ValueId};

fn refuse<T>(reason: String) -> Result<T, ModelError> {
    Err(ModelError::Request { reason })
}

/// Adds the labels' input.
pub(super) fn labels_input(graph: &mut Graph, ty: &TensorType) -> ValueId {
    let free = ["labels", "y"].into_iter().find(|name| graph.find(name).is_none());
    let input = graph.add_value(free.unwrap_or("labels"), Some(ty.clone()));
    let dimensions = ty.shape.iter().map(|&size| Dimension::Known(size)).collect();
    graph.value_mut(input).declared = Some((ty.data_type, dimensions));
    graph.inputs.push(input);
    input
}

/// An axis of the prediction, from the front. Messages call it by its flag.
pub(super) fn axis_of(given: Option<i64>, ty: &TensorType, name: &str) -> Result<usize, ModelError> {
    let (given, rank) = (given.unwrap_or(1), ty.shape.len() as i64);
    let axis = if given < 0 { given.saturating_add(rank) } else { given };
    if !(0..rank).contains(&axis) || rank < 2 {
        return refuse(format!("class axis {given} is out of range for output '{name}', {ty} (--class-axis)"));
    }
    Ok(axis as usize)
}

/// Labels that are classes along an axis of the prediction.
pub(super) fn classes_type(ty: &TensorType, axis: usize) -> TensorType {
    let mut shape = ty.shape.clone();
    shape.remove(axis);
    TensorType { data_type: DataType::Int64, shape }
}

fn require(holds: bool, what: &str, value: f32, range: &str) -> Result<(), ModelError> {
    if holds {
        return Ok(());
    }
    refuse(format!("{what} must be {range}, not {value}"))
}

fn require_from_zero(what: &str, value: f32) -> Result<(), ModelError> {
    require(value >= 0.0 && value.is_finite(), what, value, "a number from 0")
}

/// Weights of classes: none, or one for each of them.
pub(super) fn require_weights(weights: &[f32], classes: u64, flag: &str) -> Result<(), ModelError> {
    if !weights.is_empty() && weights.len() as u64 != classes {
        return refuse(format!("{} weights were given for {classes} classes ({flag})", weights.len()));
    }
    weights.iter().try_for_each(|&weight| require_from_zero(&format!("a weight ({flag})"), weight))
}

/// A prediction, its name for messages, and the formula that is built of it.
pub(super) struct Term<'f, 'g> {
    /// The formula.
    pub f: &'f mut Formula<'g>,
    /// The prediction.
    pub prediction: ValueId,
    /// Its name.
    pub name: &'f str,
}

/// Adds a loss of a prediction; the loss and the input of its labels.
pub(super) fn append(
    graph: &mut Graph,
    prediction: ValueId,
    other: Option<ValueId>,
    loss: &Loss,
) -> Result<(ValueId, ValueId), ModelError> {
    let name = graph.value(prediction).name.clone();
    let mut formula = Formula::new(graph, "loss");
    let ty = formula.ty(prediction);
    let labels_type = match (loss.class_axis(), other, loss) {
        (Some(axis), ..) => classes_type(&ty, axis_of(Some(axis), &ty, &name)?),
        (None, Some(_), Loss::CosineEmbedding { axis, .. }) => classes_type(&ty, axis_of(*axis, &ty, &name)?),
        _ => ty.clone(),
    };
    let labels = labels_input(formula.graph, &labels_type);
    let mut term = Term { f: &mut formula, prediction, name: &name };
    let value = match loss {
        Loss::WeightedCrossEntropy { class_axis, ignore_index, class_weights, label_smoothing } => {
            let axis = axis_of(*class_axis, &ty, &name)?;
            term.cross_entropy(labels, axis, *ignore_index, class_weights, *label_smoothing)?
        }
        Loss::Focal { class_axis, ignore_index, class_weights, gamma } => {
            let axis = axis_of(*class_axis, &ty, &name)?;
            term.focal(labels, axis, *ignore_index, class_weights, *gamma)?
        }
        Loss::MeanAbsoluteError => term.absolute(labels),
        Loss::Huber { delta } => {
            require(*delta > 0.0 && delta.is_finite(), "delta", *delta, "a number above 0")?;
            term.huber(labels, *delta, 1.0)
        }
        Loss::SmoothL1 { beta } => {
            require_from_zero("beta", *beta)?;
            if *beta == 0.0 {
                term.absolute(labels)
            } else {
                term.huber(labels, *beta, 1.0 / beta)
            }
        }
        Loss::BinaryCrossEntropy { class_axis, positive_weights } => {
            let decisions = term.binary_cross_entropy(labels, *class_axis, positive_weights)?;
            term.f.mean(decisions)
        }
        Loss::BinaryFocal { alpha, gamma } => term.binary_focal(labels, *alpha, *gamma)?,
        Loss::KlDivergence { class_axis, log_targets, elementwise_mean } => {
            term.divergence(labels, *class_axis, *log_targets, *elementwise_mean)?
        }
        Loss::CosineEmbedding { axis, margin, .. } => {
            let axis = axis_of(*axis, &ty, &name)?;
            term.cosine(labels, axis, *margin, other)?
        }
        Loss::Dice(region) => regions::dice(&mut term, labels, region)?,
        Loss::DiceCrossEntropy { region, dice_weight, cross_entropy_weight } => {
            require_from_zero("the factor of Dice", *dice_weight)?;
            require_from_zero("the factor of cross-entropy", *cross_entropy_weight)?;
            regions::dice_cross_entropy(&mut term, labels, region, *dice_weight, *cross_entropy_weight)?
        }
        Loss::Tversky { region, alpha, beta } => {
            require_from_zero("alpha", *alpha)?;
            require_from_zero("beta", *beta)?;
            regions::tversky(&mut term, labels, region, *alpha, *beta)?
        }
        Loss::SoftmaxCrossEntropy { .. } | Loss::MeanSquaredError | Loss::Output { .. } => {
            unreachable!("these have kernels or values of their own")
        }
    };
    let loss = formula.graph.add_value("loss", Some(TensorType::new(DataType::Float32, &[])));
    formula.graph.nodes.push(crate::graph::Node {
        name: "loss".to_string(),
        operation: crate::graph::Operation::Kernel(Kernel::Unary(UnaryOp::Affine { scale: 1.0, shift: 0.0 })),
        inputs: vec![Some(value)],
        outputs: vec![Some(loss)],
    });
    Ok((loss, labels))
}

impl Term<'_, '_> {
    fn ty(&self) -> TensorType {
        self.f.ty(self.prediction)
    }

    /// Numbers for the classes along an axis, to broadcast to the prediction.
    pub(super) fn along(&mut self, axis: usize, values: &[f32]) -> ValueId {
        let mut shape = vec![1; self.ty().shape.len()];
        shape[axis] = values.len() as u64;
        self.f.constant(Tensor::from_f32(&shape, values))
    }

    /// Labels that are classes, with the class axis in its place, of size 1.
    pub(super) fn places(&mut self, labels: ValueId, axis: usize) -> ValueId {
        let mut shape = self.ty().shape;
        shape[axis] = 1;
        self.f.reshape(labels, &shape)
    }

    /// Where the prediction's class is the label.
    pub(super) fn hot(&mut self, places: ValueId, axis: usize) -> ValueId {
        let shape = self.ty().shape;
        let numbers: Vec<i64> = (0..shape[axis] as i64).collect();
        let mut own = vec![1; shape.len()];
        own[axis] = shape[axis];
        let numbers = self.f.constant(Tensor::from_i64(&own, &numbers));
        self.f.binary(BinaryOp::Equal, places, numbers)
    }

    /// Where labels do not count.
    pub(super) fn ignored(&mut self, places: ValueId, ignore_index: Option<i64>) -> Option<ValueId> {
        let ignored = self.f.constant(Tensor::from_i64(&[], &[ignore_index?]));
        Some(self.f.binary(BinaryOp::Equal, places, ignored))
    }

    /// 0 where labels do not count.
    pub(super) fn counting(&mut self, ignored: Option<ValueId>, x: ValueId) -> ValueId {
        let Some(ignored) = ignored else { return x };
        let zero = self.f.number(0.0);
        self.f.select(ignored, zero, x)
    }

    fn log_softmax(&mut self, axis: usize) -> ValueId {
        let ty = self.ty();
        self.f.one(Kernel::LogSoftmax { axis }, &[self.prediction], ty)
    }

    /// A sum of losses by the weights of the labels that count.
    fn by_weights(
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

    /// With smoothing s and C classes, labels have the probability 1 - s + s / C of their class and s / C of each other.
    pub(super) fn cross_entropy(
        &mut self,
        labels: ValueId,
        axis: usize,
        ignore_index: Option<i64>,
        class_weights: &[f32],
        smoothing: f32,
    ) -> Result<ValueId, ModelError> {
        let classes = self.ty().shape[axis];
        require_weights(class_weights, classes, "--class-weights")?;
        require((0.0..=1.0).contains(&smoothing), "label smoothing", smoothing, "from 0 to 1")?;
        let logarithms = self.log_softmax(axis);
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
            // A class that is impossible counts only where it is the label.
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

    fn focal(
        &mut self,
        labels: ValueId,
        axis: usize,
        ignore_index: Option<i64>,
        class_weights: &[f32],
        gamma: f32,
    ) -> Result<ValueId, ModelError> {
        require_weights(class_weights, self.ty().shape[axis], "--class-weights")?;
        require_from_zero("gamma", gamma)?;
        let logarithms = self.log_softmax(axis);
        let places = self.places(labels, axis);
        let hot = self.hot(places, axis);
        let ignored = self.ignored(places, ignore_index);
        let weights = (!class_weights.is_empty()).then(|| self.along(axis, class_weights));
        let zero = self.f.number(0.0);
        let own = self.f.select(hot, logarithms, zero);
        let own = self.f.sum(own, &[axis]);
        let mut losses = self.f.scaled(own, -1.0);
        if gamma > 0.0 {
            let p = self.f.unary(UnaryOp::Exp, own);
            let rest = self.f.affine(p, -1.0, 1.0);
            let factor = self.f.power(rest, gamma);
            losses = self.f.multiply(losses, factor);
        }
        if let Some(weights) = weights {
            let own = self.f.select(hot, weights, zero);
            let own = self.f.sum(own, &[axis]);
            losses = self.f.multiply(losses, own);
        }
        let losses = self.counting(ignored, losses);
        let sum = self.f.total(losses);
        Ok(self.by_weights(sum, places, hot, ignored, weights))
    }

    fn absolute(&mut self, targets: ValueId) -> ValueId {
        let difference = self.f.subtract(self.prediction, targets);
        let distance = self.f.unary(UnaryOp::Abs, difference);
        self.f.mean(distance)
    }

    /// With c the difference d within -delta and delta, the loss c (d - c / 2) is d^2 / 2 there and delta (|d| - delta / 2) outside.
    fn huber(&mut self, targets: ValueId, delta: f32, scale: f32) -> ValueId {
        let difference = self.f.subtract(self.prediction, targets);
        let clipped = self.f.unary(UnaryOp::Clip { low: -delta, high: delta }, difference);
        let half = self.f.affine(clipped, 0.5, 0.0);
        let rest = self.f.subtract(difference, half);
        let losses = self.f.multiply(clipped, rest);
        let mean = self.f.mean(losses);
        self.f.scaled(mean, scale)
    }

    /// The binary cross-entropy of each element: (1 - t) x + (1 + (w - 1) t) softplus(-x), which is right for large logits, too.
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

    fn binary_focal(&mut self, targets: ValueId, alpha: Option<f32>, gamma: f32) -> Result<ValueId, ModelError> {
        require_from_zero("gamma", gamma)?;
        let mut losses = self.binary_cross_entropy(targets, None, &[])?;
        if gamma > 0.0 {
            // 1 - (p t + (1 - p) (1 - t)) = p (1 - 2 t) + t.
            let p = self.f.unary(UnaryOp::Sigmoid, self.prediction);
            let sign = self.f.affine(targets, -2.0, 1.0);
            let signed = self.f.multiply(p, sign);
            let rest = self.f.add(signed, targets);
            let factor = self.f.power(rest, gamma);
            losses = self.f.multiply(losses, factor);
        }
        if let Some(alpha) = alpha {
            require((0.0..=1.0).contains(&alpha), "alpha", alpha, "from 0 to 1")?;
            let weights = self.f.affine(targets, 2.0 * alpha - 1.0, 1.0 - alpha);
            losses = self.f.multiply(losses, weights);
        }
        Ok(self.f.mean(losses))
    }

    fn divergence(
        &mut self,
        targets: ValueId,
        class_axis: Option<i64>,
        log_targets: bool,
        elementwise_mean: bool,
    ) -> Result<ValueId, ModelError> {
        let logarithms = match class_axis {
            Some(_) => {
                let axis = axis_of(class_axis, &self.ty(), self.name)?;
                self.log_softmax(axis)
            }
            None => self.prediction,
        };
        let losses = if log_targets {
            let probabilities = self.f.unary(UnaryOp::Exp, targets);
            let difference = self.f.subtract(targets, logarithms);
            self.f.multiply(probabilities, difference)
        } else {
            // 0 log 0 is 0.
            let (zero, one) = (self.f.number(0.0), self.f.number(1.0));
            let is_possible = self.f.binary(BinaryOp::Greater, targets, zero);
            let positive = self.f.select(is_possible, targets, one);
            let own = self.f.unary(UnaryOp::Log, positive);
            let own = self.f.multiply(targets, own);
            let crossed = self.f.multiply(targets, logarithms);
            self.f.subtract(own, crossed)
        };
        let shape = self.ty().shape;
        let count = if elementwise_mean { self.ty().count() } else { shape.first().copied().unwrap_or(1) };
        let sum = self.f.total(losses);
        Ok(self.f.scaled(sum, (1.0 / count as f64) as f32))
    }

    /// Squares are never 0: PyTorch adds this to them.
    fn cosine(
        &mut self,
        labels: ValueId,
        axis: usize,
        margin: f32,
        other: Option<ValueId>,
    ) -> Result<ValueId, ModelError> {
        const EPSILON: f32 = 1e-12;
        require((-1.0..=1.0).contains(&margin), "the margin", margin, "from -1 to 1")?;
        let (a, b) = (self.prediction, other.unwrap_or(labels));
        if self.f.ty(b) != self.ty() {
            let (a, b) = (self.ty(), self.f.ty(b));
            return refuse(format!("output '{}' is {a}, and its pair is {b}: they must be alike", self.name));
        }
        let mut product = |a: ValueId, b: ValueId| {
            let product = self.f.multiply(a, b);
            self.f.sum(product, &[axis])
        };
        let (both, of_a, of_b) = (product(a, b), product(a, a), product(b, b));
        let (of_a, of_b) = (self.f.affine(of_a, 1.0, EPSILON), self.f.affine(of_b, 1.0, EPSILON));
        let squares = self.f.multiply(of_a, of_b);
        let lengths = self.f.unary(UnaryOp::Sqrt, squares);
        let cosine = self.f.divide(both, lengths);
        let mut losses = self.f.affine(cosine, -1.0, 1.0);
        if other.is_some() {
            let places = self.places(labels, axis);
            let over = self.f.affine(cosine, 1.0, -margin);
            let over = self.f.unary(UnaryOp::Relu, over);
            let zero = self.f.number(0.0);
            let mut is = |label: i64| {
                let label = self.f.constant(Tensor::from_i64(&[], &[label]));
                self.f.binary(BinaryOp::Equal, places, label)
            };
            let (alike, unlike) = (is(1), is(-1));
            let unlike = self.f.select(unlike, over, zero);
            losses = self.f.select(alike, losses, unlike);
        }
        Ok(self.f.mean(losses))
    }
}
