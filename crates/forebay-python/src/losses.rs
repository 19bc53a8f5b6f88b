//! Losses, which Python passes with the options of all losses.

use forebay::Error;
use forebay::training::{Ctc, Loss, LossTerm, Region, Shares};
use pyo3::prelude::*;

use crate::errors::exception;

/// A loss, by the name of its class.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct LossGiven {
    kind: String,
    class_axis: Option<i64>,
    ignore_index: Option<i64>,
    labels: Option<String>,
    class_weights: Vec<f32>,
    label_smoothing: f32,
    positive_weights: Vec<f32>,
    delta: f32,
    alpha: Option<f32>,
    beta: f32,
    gamma: f32,
    log_targets: bool,
    elementwise_mean: bool,
    margin: f32,
    other_output: Option<String>,
    activation: String,
    multi_label: bool,
    include_background: bool,
    batch: bool,
    squared: bool,
    smooth: f32,
    dice_weight: f32,
    cross_entropy_weight: f32,
    label_length: u64,
    blank: u64,
    time_first: bool,
    lengths: Option<String>,
    zero_infinity: bool,
}

impl LossGiven {
    fn region(&self) -> Option<Region> {
        let mut region = Region::default();
        region.shares = match self.activation.as_str() {
            "softmax" => Shares::Softmax,
            "sigmoid" => Shares::Sigmoid,
            "none" => Shares::Given,
            _ => return None,
        };
        region.has_targets = self.multi_label;
        region.include_background = self.include_background;
        region.batch = self.batch;
        region.squared = self.squared;
        region.ignore_index = self.ignore_index;
        region.class_weights.clone_from(&self.class_weights);
        (region.smooth_numerator, region.smooth_denominator) = (self.smooth, self.smooth);
        Some(region)
    }
}

/// The loss of an additional output.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct TermGiven {
    output: String,
    loss: LossGiven,
    weight: f32,
    labels: Option<String>,
}

impl TermGiven {
    /// Converts it to the library's type.
    ///
    /// # Errors
    /// Returns the errors of [`loss`].
    pub fn term(self, py: Python<'_>) -> PyResult<LossTerm> {
        let mut term = LossTerm::new(self.output, loss(py, self.loss)?);
        (term.weight, term.labels) = (self.weight, self.labels);
        Ok(term)
    }
}

/// Converts a loss.
///
/// # Errors
/// Fails if no loss or activation has the name.
pub fn loss(py: Python<'_>, given: LossGiven) -> PyResult<Loss> {
    let Some(region) = given.region() else {
        let activation = given.activation;
        let reason = format!("unknown activation '{activation}'; expected one of softmax, sigmoid, none");
        return Err(exception(py, &Error::Option { reason }));
    };
    let LossGiven { kind, class_axis, ignore_index, class_weights, label_smoothing, gamma, alpha, beta, .. } = given;
    Ok(match kind.as_str() {
        "SoftmaxCrossEntropy" if class_weights.is_empty() && label_smoothing == 0.0 => {
            Loss::SoftmaxCrossEntropy { class_axis, ignore_index }
        }
        "SoftmaxCrossEntropy" => {
            Loss::WeightedCrossEntropy { class_axis, ignore_index, class_weights, label_smoothing }
        }
        "SoftCrossEntropy" => Loss::SoftCrossEntropy { class_axis, class_weights, label_smoothing },
        "MeanSquaredError" => Loss::MeanSquaredError,
        "MeanAbsoluteError" => Loss::MeanAbsoluteError,
        "Huber" => Loss::Huber { delta: given.delta },
        "SmoothL1" => Loss::SmoothL1 { beta },
        "BinaryCrossEntropy" => Loss::BinaryCrossEntropy { class_axis, positive_weights: given.positive_weights },
        "KLDivergence" => {
            Loss::KlDivergence { class_axis, log_targets: given.log_targets, elementwise_mean: given.elementwise_mean }
        }
        "CosineEmbedding" => {
            Loss::CosineEmbedding { axis: class_axis, margin: given.margin, other_output: given.other_output }
        }
        "Focal" => Loss::Focal { class_axis, ignore_index, class_weights, gamma },
        "BinaryFocal" => Loss::BinaryFocal { alpha, gamma },
        "Dice" => Loss::Dice(region),
        "DiceCrossEntropy" => Loss::DiceCrossEntropy {
            region,
            dice_weight: given.dice_weight,
            cross_entropy_weight: given.cross_entropy_weight,
        },
        "Tversky" => Loss::Tversky { region, alpha: alpha.unwrap_or(0.5), beta },
        "CTC" => {
            let mut options = Ctc::new(given.label_length);
            (options.blank, options.lengths) = (given.blank, given.lengths);
            (options.time_first, options.zero_infinity) = (given.time_first, given.zero_infinity);
            Loss::Ctc(options)
        }
        "OutputLoss" => Loss::Output { labels: given.labels },
        other => return Err(exception(py, &Error::Option { reason: format!("unknown loss '{other}'") })),
    })
}
