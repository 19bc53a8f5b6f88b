//! Flags as a loss.

use clap::ValueEnum;
use forebay::training::{Loss, Region, Shares};

use crate::arguments::TrainingArguments;
use crate::failure::Failure;
use crate::loss_arguments::{ActivationKind, LossKind};

/// The loss that the flags name.
///
/// # Errors
/// Flags that mean nothing for it, or numbers out of range.
pub fn loss(arguments: &TrainingArguments) -> Result<Loss, Failure> {
    refuse_foreign(arguments)?;
    let given = &arguments.of_loss;
    let (class_axis, ignore_index) = (arguments.class_axis, arguments.ignore_index);
    let class_weights = given.class_weights.clone();
    Ok(match arguments.loss {
        LossKind::SoftmaxCrossEntropy => match given.label_smoothing.unwrap_or(0.0) {
            0.0 if class_weights.is_empty() => Loss::SoftmaxCrossEntropy { class_axis, ignore_index },
            label_smoothing => Loss::WeightedCrossEntropy { class_axis, ignore_index, class_weights, label_smoothing },
        },
        LossKind::Mse => Loss::MeanSquaredError,
        LossKind::L1 => Loss::MeanAbsoluteError,
        LossKind::Huber => Loss::Huber { delta: given.delta.unwrap_or(1.0) },
        LossKind::SmoothL1 => Loss::SmoothL1 { beta: given.loss_beta.unwrap_or(1.0) },
        LossKind::Bce => Loss::BinaryCrossEntropy { class_axis, positive_weights: given.pos_weight.clone() },
        LossKind::Kl => {
            Loss::KlDivergence { class_axis, log_targets: given.log_targets, elementwise_mean: given.elementwise_mean }
        }
        LossKind::Cosine => {
            if given.margin.is_some() && given.pair_output.is_none() {
                return Err(Failure::Usage("--margin has a meaning only with --pair-output".to_owned()));
            }
            let (margin, other_output) = (given.margin.unwrap_or(0.0), given.pair_output.clone());
            Loss::CosineEmbedding { axis: class_axis, margin, other_output }
        }
        LossKind::Focal => {
            Loss::Focal { class_axis, ignore_index, class_weights, gamma: given.focal_gamma.unwrap_or(2.0) }
        }
        LossKind::BinaryFocal => Loss::BinaryFocal {
            alpha: Some(given.loss_alpha.unwrap_or(0.25)).filter(|&alpha| alpha >= 0.0),
            gamma: given.focal_gamma.unwrap_or(2.0),
        },
        LossKind::Dice => Loss::Dice(region(arguments)),
        LossKind::DiceCe => {
            let (dice_weight, cross_entropy_weight) = match *given.parts.as_slice() {
                [] => (1.0, 1.0),
                [dice, cross_entropy] => (dice, cross_entropy),
                _ => return Err(Failure::Usage("--parts takes two factors, as 1,0.5".to_owned())),
            };
            Loss::DiceCrossEntropy { region: region(arguments), dice_weight, cross_entropy_weight }
        }
        LossKind::Tversky => Loss::Tversky {
            region: region(arguments),
            alpha: given.loss_alpha.unwrap_or(0.5),
            beta: given.loss_beta.unwrap_or(0.5),
        },
        LossKind::Output => Loss::Output { labels: arguments.label_input.clone() },
    })
}

fn region(arguments: &TrainingArguments) -> Region {
    let given = &arguments.of_loss;
    let mut region = Region::default();
    region.shares = match given.activation {
        Some(ActivationKind::Softmax) => Shares::Softmax,
        Some(ActivationKind::Sigmoid) => Shares::Sigmoid,
        Some(ActivationKind::None) => Shares::Given,
        None if given.multi_label => Shares::Sigmoid,
        None => Shares::Softmax,
    };
    region.has_targets = given.multi_label;
    region.include_background = !given.no_background;
    region.batch = given.batch_regions;
    region.squared = given.squared;
    region.ignore_index = arguments.ignore_index;
    region.class_weights.clone_from(&given.class_weights);
    if let Some(smooth) = given.smooth {
        (region.smooth_numerator, region.smooth_denominator) = (smooth, smooth);
    }
    region
}

/// Refuses flags that mean nothing for the loss.
fn refuse_foreign(arguments: &TrainingArguments) -> Result<(), Failure> {
    use LossKind::{
        Bce, BinaryFocal, Cosine, Dice, DiceCe, Focal, Huber, Kl, Output, SmoothL1, SoftmaxCrossEntropy, Tversky,
    };
    let given = &arguments.of_loss;
    let regions: &[LossKind] = &[Dice, DiceCe, Tversky];
    let flags: [(bool, &str, &[LossKind]); 21] = [
        (arguments.label_input.is_some(), "--label-input", &[Output]),
        (arguments.class_axis.is_some(), "--class-axis", &[SoftmaxCrossEntropy, Focal, Bce, Kl, Cosine]),
        (arguments.ignore_index.is_some(), "--ignore-index", &[SoftmaxCrossEntropy, Focal, Dice, DiceCe, Tversky]),
        (!given.class_weights.is_empty(), "--class-weights", &[SoftmaxCrossEntropy, Focal, Dice, DiceCe, Tversky]),
        (given.label_smoothing.is_some(), "--label-smoothing", &[SoftmaxCrossEntropy]),
        (!given.pos_weight.is_empty(), "--pos-weight", &[Bce]),
        (given.delta.is_some(), "--delta", &[Huber]),
        (given.loss_beta.is_some(), "--loss-beta", &[SmoothL1, Tversky]),
        (given.loss_alpha.is_some(), "--loss-alpha", &[BinaryFocal, Tversky]),
        (given.focal_gamma.is_some(), "--focal-gamma", &[Focal, BinaryFocal]),
        (given.log_targets, "--log-targets", &[Kl]),
        (given.elementwise_mean, "--elementwise-mean", &[Kl]),
        (given.margin.is_some(), "--margin", &[Cosine]),
        (given.pair_output.is_some(), "--pair-output", &[Cosine]),
        (given.activation.is_some(), "--activation", regions),
        (given.multi_label, "--multi-label", regions),
        (given.no_background, "--no-background", regions),
        (given.batch_regions, "--batch-regions", regions),
        (given.squared, "--squared", &[Dice, DiceCe]),
        (given.smooth.is_some(), "--smooth", regions),
        (!given.parts.is_empty(), "--parts", &[DiceCe]),
    ];
    let name = |kind: &LossKind| kind.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
    match flags.iter().find(|(is_given, _, kinds)| *is_given && !kinds.contains(&arguments.loss)) {
        Some((_, flag, kinds)) => {
            let kinds: Vec<String> = kinds.iter().map(name).collect();
            let (loss, kinds) = (name(&arguments.loss), kinds.join(", "));
            Err(Failure::Usage(format!("{flag} has no meaning for --loss {loss}; it is a flag of {kinds}")))
        }
        None => Ok(()),
    }
}
