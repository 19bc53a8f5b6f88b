//! Region losses: Dice and Tversky compare the shares of classes with labels, summed over all places.

use forebay_base::Kernel;
use forebay_base::kernel::{BinaryOp, UnaryOp};

use super::formula::Formula;
use super::loss::{Region, Shares};
use super::term::{Term, require_weights};
use crate::error::ModelError;
use crate::graph::{TensorType, ValueId};

/// Shares of classes and their labels, \[n, classes, ..].
struct Compared {
    shares: ValueId,
    /// Whether each class is the label, or targets.
    labels: Labels,
}

#[derive(Clone, Copy)]
enum Labels {
    Classes(ValueId),
    Targets(ValueId),
}

impl Compared {
    /// Returns x where the label is the class, or x times the target.
    fn labeled(&self, f: &mut Formula, x: ValueId) -> ValueId {
        match self.labels {
            Labels::Targets(targets) => f.multiply(x, targets),
            Labels::Classes(hot) => {
                let zero = f.number(0.0);
                f.select(hot, x, zero)
            }
        }
    }

    /// Returns the rest of x.
    fn unlabeled(&self, f: &mut Formula, x: ValueId) -> ValueId {
        match self.labels {
            Labels::Targets(targets) => {
                let rest = f.affine(targets, -1.0, 1.0);
                f.multiply(x, rest)
            }
            Labels::Classes(hot) => {
                let zero = f.number(0.0);
                f.select(hot, zero, x)
            }
        }
    }
}

/// Returns shares and labels, 0 where labels do not count.
fn compared(term: &mut Term, labels: ValueId, region: &Region) -> Result<Compared, ModelError> {
    let ty = term.f.ty(term.prediction);
    let [_, classes, ..] = *ty.shape.as_slice() else {
        let reason =
            format!("output '{}' is {ty}, but regions need an axis of samples and an axis of classes", term.name);
        return Err(ModelError::Request { reason });
    };
    require_weights(&region.class_weights, classes, "--class-weights")?;
    let way_out = match (classes, region) {
        (1, Region { shares: Shares::Softmax, .. }) => Some("its softmax is always 1; use the sigmoid"),
        (1, Region { has_targets: false, .. }) => {
            Some("labels cannot choose between classes; use targets (--multi-label)")
        }
        (1, Region { include_background: false, .. }) => Some("without the background nothing is left"),
        (_, Region { has_targets: true, ignore_index: Some(_), .. }) => Some("targets have no label to ignore"),
        _ => None,
    };
    if let Some(way_out) = way_out {
        let reason =
            format!("output '{}' is {ty}, which has size {classes} along its class axis: {way_out}", term.name);
        return Err(ModelError::Request { reason });
    }
    let mut shares = match region.shares {
        Shares::Softmax => term.f.one(Kernel::Softmax { axis: 1 }, &[term.prediction], ty),
        Shares::Sigmoid => term.f.unary(UnaryOp::Sigmoid, term.prediction),
        Shares::Given => term.prediction,
    };
    if region.has_targets {
        return Ok(Compared { shares, labels: Labels::Targets(labels) });
    }
    let places = term.places(labels, 1);
    let mut hot = term.hot(places, 1);
    if let Some(ignored) = term.ignored(places, region.ignore_index) {
        shares = term.counting(Some(ignored), shares);
        let counts = term.f.unary(UnaryOp::Not, ignored);
        hot = term.f.binary(BinaryOp::And, hot, counts);
    }
    Ok(Compared { shares, labels: Labels::Classes(hot) })
}

/// Sums over the places of each sample and class, \[n, classes], or of each class only.
fn over_places(f: &mut Formula, x: ValueId, region: &Region) -> ValueId {
    let shape = f.ty(x).shape;
    let (n, classes) = (shape[0], shape[1]);
    let (samples, channels) = if region.batch { (n, classes) } else { (1, n * classes) };
    // The rows are those of the first spatial axis.
    let rows = shape.get(2).copied().unwrap_or(1);
    let x = f.reshape(x, &[samples, channels, rows, shape.iter().skip(3).product()]);
    let sums = f.sum(x, &[0, 2, 3]);
    f.reshape(sums, &[channels / classes, classes])
}

/// Returns the mean of 1 - score over samples and classes, without the background if it does not count.
fn mean_of_losses(f: &mut Formula, scores: ValueId, region: &Region) -> ValueId {
    let mut losses = f.affine(scores, -1.0, 1.0);
    let [samples, classes] = *f.ty(losses).shape.as_slice() else { unreachable!("sums are of samples and classes") };
    if !region.class_weights.is_empty() {
        let weights = f.constant(forebay_base::Tensor::from_f32(&[1, classes], &region.class_weights));
        losses = f.multiply(losses, weights);
    }
    if !region.include_background {
        let output = TensorType::new(f.ty(losses).data_type, &[samples, classes - 1]);
        losses = f.one(Kernel::Slice { starts: vec![0, 1], steps: vec![1, 1] }, &[losses], output);
    }
    f.mean(losses)
}

/// Returns (numerator + smooth) / (denominator + smooth).
fn ratio(f: &mut Formula, numerator: ValueId, denominator: ValueId, region: &Region) -> ValueId {
    let numerator = f.affine(numerator, 1.0, region.smooth_numerator);
    let denominator = f.affine(denominator, 1.0, region.smooth_denominator);
    f.divide(numerator, denominator)
}

pub(super) fn dice(term: &mut Term, labels: ValueId, region: &Region) -> Result<ValueId, ModelError> {
    let compared = compared(term, labels, region)?;
    let f = &mut *term.f;
    let overlap = compared.labeled(f, compared.shares);
    let labeled = match compared.labels {
        Labels::Classes(hot) => f.floats(hot),
        Labels::Targets(targets) if region.squared => f.multiply(targets, targets),
        Labels::Targets(targets) => targets,
    };
    let predicted = if region.squared { f.multiply(compared.shares, compared.shares) } else { compared.shares };
    let [overlap, labeled, predicted] = [overlap, labeled, predicted].map(|x| over_places(f, x, region));
    let sum = f.add(labeled, predicted);
    let twice = f.affine(overlap, 2.0, 0.0);
    let scores = ratio(f, twice, sum, region);
    Ok(mean_of_losses(f, scores, region))
}

pub(super) fn dice_cross_entropy(
    term: &mut Term,
    labels: ValueId,
    region: &Region,
    dice_weight: f32,
    cross_entropy_weight: f32,
) -> Result<ValueId, ModelError> {
    let dice = dice(term, labels, region)?;
    let entropy = if region.has_targets {
        let decisions = term.binary_cross_entropy(labels, None, &[])?;
        term.f.mean(decisions)
    } else {
        term.cross_entropy(labels, 1, region.ignore_index, &region.class_weights, 0.0)?
    };
    let dice = term.f.scaled(dice, dice_weight);
    let entropy = term.f.scaled(entropy, cross_entropy_weight);
    Ok(term.f.add(dice, entropy))
}

pub(super) fn tversky(
    term: &mut Term,
    labels: ValueId,
    region: &Region,
    alpha: f32,
    beta: f32,
) -> Result<ValueId, ModelError> {
    let compared = compared(term, labels, region)?;
    let f = &mut *term.f;
    let overlap = compared.labeled(f, compared.shares);
    let wrong = compared.unlabeled(f, compared.shares);
    let rest = f.affine(compared.shares, -1.0, 1.0);
    let missed = compared.labeled(f, rest);
    let [overlap, wrong, missed] = [overlap, wrong, missed].map(|x| over_places(f, x, region));
    let (wrong, missed) = (f.scaled(wrong, alpha), f.scaled(missed, beta));
    let sum = f.add(overlap, wrong);
    let sum = f.add(sum, missed);
    let scores = ratio(f, overlap, sum, region);
    Ok(mean_of_losses(f, scores, region))
}
