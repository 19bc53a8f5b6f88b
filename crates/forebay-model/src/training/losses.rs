//! Losses as formulas of kernels, which provide the gradients, partitions and shaders.

use forebay_base::kernel::{BinaryOp, UnaryOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::formula::Formula;
use super::loss::Loss;
use super::term::{Term, axis_of, classes_type, refuse, require, require_from_zero, require_weights};
use super::terms::LabelSource;
use super::{ctc, regions};
use crate::error::ModelError;
use crate::graph::{Graph, Node, Operation, TensorType, ValueId};

/// Adds a loss of a prediction. Returns the loss and the input of its labels.
pub(super) fn append(
    graph: &mut Graph,
    prediction: ValueId,
    other: Option<ValueId>,
    loss: &Loss,
    source: LabelSource,
) -> Result<(ValueId, ValueId), ModelError> {
    let name = graph.value(prediction).name.clone();
    let mut formula = Formula::new(graph, "loss");
    let ty = formula.ty(prediction);
    let labels_type = match (loss.class_axis(), other, loss) {
        (Some(axis), ..) if !loss.takes_soft_labels() => classes_type(&ty, axis_of(Some(axis), &ty, &name)?),
        (None, Some(_), Loss::CosineEmbedding { axis, .. }) => classes_type(&ty, axis_of(*axis, &ty, &name)?),
        (None, None, Loss::Ctc(options)) => ctc::labels_type(&ty, options, &name)?,
        _ => ty.clone(),
    };
    let labels = source.labels(formula.graph, loss, &labels_type)?;
    let mut term = Term { f: &mut formula, prediction, name: &name };
    let value = match loss {
        Loss::WeightedCrossEntropy { class_axis, ignore_index, class_weights, label_smoothing } => {
            let axis = axis_of(*class_axis, &ty, &name)?;
            term.cross_entropy(labels, axis, *ignore_index, class_weights, *label_smoothing)?
        }
        Loss::SoftCrossEntropy { class_axis, class_weights, label_smoothing } => {
            let axis = axis_of(*class_axis, &ty, &name)?;
            term.soft_cross_entropy(labels, axis, class_weights, *label_smoothing)?
        }
        Loss::Focal { class_axis, ignore_index, class_weights, gamma } => {
            let axis = axis_of(*class_axis, &ty, &name)?;
            term.focal(labels, axis, *ignore_index, class_weights, *gamma)?
        }
        Loss::MeanAbsoluteError => term.absolute(labels),
        Loss::Huber { delta } => {
            require(*delta > 0.0 && delta.is_finite(), "delta", *delta, "a finite number above 0")?;
            term.huber(labels, *delta, 1.0)
        }
        Loss::SmoothL1 { beta } => {
            require_from_zero("beta", *beta)?;
            if *beta == 0.0 { term.absolute(labels) } else { term.huber(labels, *beta, 1.0 / beta) }
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
        Loss::Ctc(options) => {
            let lengths = options.lengths.as_deref().map(|lengths| {
                let ty = ctc::lengths_type(&ty, options, &name)?;
                LabelSource::Named(lengths).labels(term.f.graph, loss, &ty)
            });
            ctc::ctc(&mut term, labels, lengths.transpose()?, options)?
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
    let copy = Kernel::Unary(UnaryOp::Affine { scale: 1.0, shift: 0.0 });
    Ok((append_kernel(formula.graph, copy, &[value]), labels))
}

/// Appends a kernel whose result is named as the loss.
pub(super) fn append_kernel(graph: &mut Graph, kernel: Kernel, inputs: &[ValueId]) -> ValueId {
    let loss = graph.add_value("loss", Some(TensorType::new(DataType::Float32, &[])));
    graph.nodes.push(Node {
        name: "loss".to_string(),
        operation: Operation::Kernel(kernel),
        inputs: inputs.iter().copied().map(Some).collect(),
        outputs: vec![Some(loss)],
    });
    loss
}

impl Term<'_, '_> {
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
            let factor = self.down_weighting(rest, gamma);
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

    /// Returns the rest of a probability to the power gamma. For a gamma below 1, this has an infinite slope at 0, where the loss is flat.
    fn down_weighting(&mut self, mut rest: ValueId, gamma: f32) -> ValueId {
        if gamma < 1.0 {
            rest = self.f.unary(UnaryOp::Clip { low: f32::MIN_POSITIVE, high: f32::MAX }, rest);
        }
        self.f.power(rest, gamma)
    }

    fn absolute(&mut self, targets: ValueId) -> ValueId {
        let difference = self.f.subtract(self.prediction, targets);
        let distance = self.f.unary(UnaryOp::Abs, difference);
        self.f.mean(distance)
    }

    /// With c the difference d clamped between -delta and delta, the loss c (d - c / 2) is d^2 / 2 inside and delta (|d| - delta / 2)
    /// outside.
    fn huber(&mut self, targets: ValueId, delta: f32, scale: f32) -> ValueId {
        let difference = self.f.subtract(self.prediction, targets);
        let clipped = self.f.unary(UnaryOp::Clip { low: -delta, high: delta }, difference);
        let half = self.f.affine(clipped, 0.5, 0.0);
        let rest = self.f.subtract(difference, half);
        let losses = self.f.multiply(clipped, rest);
        let mean = self.f.mean(losses);
        self.f.scaled(mean, scale)
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
            let factor = self.down_weighting(rest, gamma);
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

    /// The cosine loss. Like PyTorch, it adds `EPSILON` to the sums of squares, so that they are never 0.
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
            return refuse(format!("output '{}' is {a}, but its pair is {b}; both must be the same", self.name));
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
