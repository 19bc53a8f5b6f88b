//! The losses and their flags.

use clap::{Args, ValueEnum};

use crate::device_arguments::positive_count;
use crate::numbers::{not_negative, number};

/// The loss to minimize.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LossKind {
    /// Softmax cross-entropy with integer labels, mean over all label positions
    SoftmaxCrossEntropy,
    /// Mean squared error
    Mse,
    /// Binary cross-entropy of logits; labels are numbers of the output's shape, each of them a separate decision
    Bce,
    /// Mean absolute error
    L1,
    /// Squared differences up to --delta, absolute differences beyond
    Huber,
    /// Squared differences up to --loss-beta, absolute differences beyond
    SmoothL1,
    /// Kullback-Leibler divergence of an output that is log probabilities, or logits with --class-axis; labels are probabilities
    Kl,
    /// One minus the cosine similarity to the labels, along --class-axis; or of pairs of outputs (--pair-output), with labels 1 and -1
    Cosine,
    /// Focal loss over classes: cross-entropy that down-weights confident predictions
    Focal,
    /// Focal loss of binary decisions; labels are numbers of the output's shape
    BinaryFocal,
    /// Dice over the classes along axis 1
    Dice,
    /// Dice plus cross-entropy
    DiceCe,
    /// Tversky over the classes along axis 1: --loss-alpha weights false positives, --loss-beta false negatives
    Tversky,
    /// Connectionist temporal classification: labels are sequences of up to --label-length classes, padded with -1
    Ctc,
    /// The model's output is the loss
    Output,
}

/// The function that converts logits to probabilities of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ActivationKind {
    /// Classes are mutually exclusive
    Softmax,
    /// Each class is independent
    Sigmoid,
    /// The output already consists of probabilities
    None,
}

/// The flags of losses.
#[derive(Args, Debug, Default)]
pub struct LossArguments {
    /// For softmax-cross-entropy, focal, dice, dice-ce and tversky: a weight per class, as in 1,2,5; with --multi-label, the weights of
    /// dice-ce apply to Dice only
    #[arg(long, value_name = "X,X,..", value_delimiter = ',', value_parser = not_negative)]
    pub class_weights: Vec<f32>,
    /// For softmax-cross-entropy: the share of each label's probability that is spread over all classes [default: 0]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub label_smoothing: Option<f32>,
    /// For bce: the weight of positive labels, one for all or one per class along --class-axis [default: 1]
    #[arg(long, value_name = "X,X,..", value_delimiter = ',', value_parser = not_negative)]
    pub pos_weight: Vec<f32>,
    /// For huber: the difference up to which the loss is quadratic [default: 1]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub delta: Option<f32>,
    /// For smooth-l1: the difference up to which the loss is quadratic [default: 1]; for tversky: the weight of false negatives
    /// [default: 0.5]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub loss_beta: Option<f32>,
    /// For binary-focal: the weight of positive labels; negative labels have the weight 1 - X [default: 0.25; a negative X turns this off];
    /// for tversky: the weight of false positives [default: 0.5]
    #[arg(long, value_name = "X", value_parser = number, allow_negative_numbers = true)]
    pub loss_alpha: Option<f32>,
    /// For focal and binary-focal: how strongly confident predictions are down-weighted [default: 2]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub focal_gamma: Option<f32>,
    /// For kl: labels are log probabilities as well
    #[arg(long)]
    pub log_targets: bool,
    /// For kl: divide by the number of elements instead of the number of samples
    #[arg(long)]
    pub elementwise_mean: bool,
    /// For cosine with --pair-output: the cosine above which pairs labeled -1 contribute to the loss [default: 0]
    #[arg(long, value_name = "X", value_parser = number, allow_negative_numbers = true)]
    pub margin: Option<f32>,
    /// For cosine: the output with the other vectors of the pairs
    #[arg(long, value_name = "NAME")]
    pub pair_output: Option<String>,
    /// For dice, dice-ce and tversky: the function that converts the output to probabilities [default: softmax; sigmoid with --multi-label]
    #[arg(long, value_enum)]
    pub activation: Option<ActivationKind>,
    /// For dice, dice-ce and tversky: labels are numbers of the output's shape, one per class and position
    #[arg(long)]
    pub multi_label: bool,
    /// For dice, dice-ce and tversky: exclude class 0
    #[arg(long)]
    pub no_background: bool,
    /// For dice, dice-ce and tversky: compute one score per class for the whole batch instead of one for each sample
    #[arg(long)]
    pub batch_regions: bool,
    /// For dice and dice-ce: use squared predictions and labels in the denominator
    #[arg(long)]
    pub squared: bool,
    /// For dice, dice-ce and tversky: the number added to the numerator and the denominator [default: 1e-5]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub smooth: Option<f32>,
    /// For ctc: the maximum number of labels per sample
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub label_length: Option<u64>,
    /// For ctc: the index of the blank class [default: 0]
    #[arg(long, value_name = "N")]
    pub blank: Option<u64>,
    /// For ctc: the output is [positions, samples, classes] instead of [samples, positions, classes]
    #[arg(long)]
    pub time_first: bool,
    /// For ctc: the input or array with the number of valid positions per sample [default: all of them]
    #[arg(long, value_name = "NAME")]
    pub input_lengths: Option<String>,
    /// For ctc: count the loss of a sample as zero instead of infinity if its labels do not fit into its positions
    #[arg(long)]
    pub zero_infinity: bool,
    /// For dice-ce: the factors of Dice and of cross-entropy [default: 1,1]
    #[arg(long, value_name = "X,X", value_delimiter = ',', value_parser = not_negative)]
    pub parts: Vec<f32>,
}
