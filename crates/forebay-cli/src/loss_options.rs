//! Conversion of flags to a loss.

use clap::{Parser, ValueEnum};
use forebay::training::{Ctc, Loss, LossTerm, Region, Shares};

use crate::arguments::TrainingArguments;
use crate::failure::Failure;
use crate::loss_arguments::{ActivationKind, LossArguments, LossKind};
use crate::numbers::not_negative;

/// A loss and its flags.
pub struct LossFlags<'a> {
    loss: LossKind,
    class_axis: Option<i64>,
    ignore_index: Option<i64>,
    label_input: Option<String>,
    of_loss: &'a LossArguments,
}

impl LossFlags<'_> {
    /// Returns the flags of the first loss.
    pub fn of(arguments: &TrainingArguments) -> LossFlags<'_> {
        LossFlags {
            loss: arguments.loss,
            class_axis: arguments.class_axis,
            ignore_index: arguments.ignore_index,
            label_input: arguments.label_input.clone(),
            of_loss: &arguments.of_loss,
        }
    }
}

/// An additional loss, as given by --also-loss.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct FurtherLoss {
    output: String,
    #[arg(value_enum)]
    loss: LossKind,
    #[arg(long, value_parser = not_negative, default_value_t = 1.0)]
    weight: f32,
    #[arg(long)]
    labels: Option<String>,
    #[arg(long, allow_negative_numbers = true)]
    class_axis: Option<i64>,
    #[arg(long, allow_negative_numbers = true)]
    ignore_index: Option<i64>,
    #[command(flatten)]
    of_loss: LossArguments,
}

/// Parses the loss of another output, from words such as `depth huber weight=0.5 labels=meters`.
///
/// # Errors
/// Fails if the words do not name a loss, or if a flag does not apply to it.
pub fn term(text: &str) -> Result<LossTerm, Failure> {
    let refuse = |reason: String| Failure::Usage(format!("--also-loss '{text}': {reason}"));
    let words = text.split_whitespace().enumerate();
    let words = words.map(|(i, word)| if i < 2 { word.to_owned() } else { format!("--{word}") });
    let line = |error: clap::Error| {
        let words = error.to_string();
        let words: Vec<&str> = words.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
        let words = words.join(" ");
        let words = words.trim_start_matches("error: ");
        refuse(format!("{words} (write OUTPUT LOSS, then weight=X, labels=NAME and flags of the loss)"))
    };
    let found = FurtherLoss::try_parse_from(words).map_err(line)?;
    let FurtherLoss { loss: kind, class_axis, ignore_index, ref of_loss, .. } = found;
    if kind == LossKind::Output && found.labels.is_some() {
        return Err(refuse("an output that is a loss has no labels".to_owned()));
    }
    let flags = LossFlags { loss: kind, class_axis, ignore_index, label_input: None, of_loss };
    let mut term = LossTerm::new(&found.output, loss(&flags).map_err(|failure| refuse(failure.to_string()))?);
    (term.weight, term.labels) = (found.weight, found.labels.clone());
    Ok(term)
}

/// Returns the loss that the flags specify.
///
/// # Errors
/// Fails if a flag does not apply to it or a number is out of range.
pub fn loss(arguments: &LossFlags) -> Result<Loss, Failure> {
    refuse_foreign(arguments)?;
    let given = arguments.of_loss;
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
                return Err(Failure::Usage("--margin only applies with --pair-output".to_owned()));
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
                _ => return Err(Failure::Usage("--parts requires two factors, such as 1,0.5".to_owned())),
            };
            Loss::DiceCrossEntropy { region: region(arguments), dice_weight, cross_entropy_weight }
        }
        LossKind::Tversky => Loss::Tversky {
            region: region(arguments),
            alpha: given.loss_alpha.unwrap_or(0.5),
            beta: given.loss_beta.unwrap_or(0.5),
        },
        LossKind::Ctc => {
            let Some(label_length) = given.label_length else {
                let reason = "--loss ctc requires --label-length, the maximum number of labels of a sample".to_owned();
                return Err(Failure::Usage(reason));
            };
            let mut options = Ctc::new(label_length);
            options.blank = given.blank.unwrap_or(0);
            options.lengths.clone_from(&given.input_lengths);
            (options.time_first, options.zero_infinity) = (given.time_first, given.zero_infinity);
            Loss::Ctc(options)
        }
        LossKind::Output => Loss::Output { labels: arguments.label_input.clone() },
    })
}

fn region(arguments: &LossFlags) -> Region {
    let given = arguments.of_loss;
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

/// Rejects flags that do not apply to the loss.
fn refuse_foreign(arguments: &LossFlags) -> Result<(), Failure> {
    use LossKind::{
        Bce, BinaryFocal, Cosine, Ctc, Dice, DiceCe, Focal, Huber, Kl, Output, SmoothL1, SoftmaxCrossEntropy, Tversky,
    };
    let given = arguments.of_loss;
    let regions: &[LossKind] = &[Dice, DiceCe, Tversky];
    let flags: [(bool, &str, &[LossKind]); 26] = [
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
        (given.label_length.is_some(), "--label-length", &[Ctc]),
        (given.blank.is_some(), "--blank", &[Ctc]),
        (given.time_first, "--time-first", &[Ctc]),
        (given.input_lengths.is_some(), "--input-lengths", &[Ctc]),
        (given.zero_infinity, "--zero-infinity", &[Ctc]),
    ];
    let name = |kind: &LossKind| kind.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
    match flags.iter().find(|(is_given, _, kinds)| *is_given && !kinds.contains(&arguments.loss)) {
        Some((_, flag, kinds)) => {
            let kinds: Vec<String> = kinds.iter().map(name).collect();
            let (loss, kinds) = (name(&arguments.loss), kinds.join(", "));
            Err(Failure::Usage(format!("{flag} cannot be used with --loss {loss}; it only applies to {kinds}")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_losses_are_read() {
        let depth = term("depth huber weight=0.5 labels=meters delta=0.2").unwrap();
        let mut expected = LossTerm::new("depth", Loss::Huber { delta: 0.2 });
        (expected.weight, expected.labels) = (0.5, Some("meters".to_owned()));
        assert_eq!(depth, expected);
        let auxiliary = term("aux softmax-cross-entropy class-axis=-1 ignore-index=-100").unwrap();
        let loss = Loss::SoftmaxCrossEntropy { class_axis: Some(-1), ignore_index: Some(-100) };
        assert_eq!(auxiliary, LossTerm::new("aux", loss));
        for (text, words) in [
            ("depth", "write OUTPUT LOSS"),
            ("depth meter", "invalid value 'meter'"),
            ("depth mse delta=1", "--delta cannot be used with --loss mse"),
            ("depth mse weight=-1", "weight"),
            ("balance output labels=y", "has no labels"),
        ] {
            let error = term(text).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{text}");
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
    }
}
