//! Flags of losses: which there are, and what each takes.

use clap::{Args, ValueEnum};

use crate::device_arguments::positive_count;
use crate::numbers::{not_negative, number};

/// What is minimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LossKind {
    /// Softmax cross-entropy with integer labels, mean over all label positions
    SoftmaxCrossEntropy,
    /// Mean squared error
    Mse,
    /// Binary cross-entropy of logits; labels are numbers of the output's shape, as many decisions as there are
    Bce,
    /// Mean absolute error
    L1,
    /// Squares up to --delta, absolute differences beyond
    Huber,
    /// Squares up to --loss-beta, absolute differences beyond
    SmoothL1,
    /// Kullback-Leibler divergence of an output that is log probabilities, or logits with --class-axis; labels are probabilities
    Kl,
    /// One minus the cosine to the labels, along --class-axis; or of pairs of outputs (--pair-output), with labels 1 and -1
    Cosine,
    /// Focal loss over classes: cross-entropy in which sure predictions count less
    Focal,
    /// Focal loss of binary decisions; labels are numbers of the output's shape
    BinaryFocal,
    /// Dice over the classes along axis 1
    Dice,
    /// Dice plus cross-entropy
    DiceCe,
    /// Tversky over the classes along axis 1: --loss-alpha weighs what is wrongly predicted, --loss-beta what is missed
    Tversky,
    /// Connectionist temporal classification: labels are sequences of classes, up to --label-length, with -1 behind the last one
    Ctc,
    /// The model's output is the loss
    Output,
}

/// How logits become shares of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ActivationKind {
    /// Classes exclude each other
    Softmax,
    /// Each class by itself
    Sigmoid,
    /// The output is shares already
    None,
}

/// What losses take.
#[derive(Args, Debug, Default)]
pub struct LossArguments {
    /// A weight for each class, as 1,2,5: of softmax-cross-entropy, focal, dice, dice-ce and tversky
    #[arg(long, value_name = "X,X,..", value_delimiter = ',', value_parser = not_negative)]
    pub class_weights: Vec<f32>,
    /// What all classes share of each label's probability: of softmax-cross-entropy [default: 0]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub label_smoothing: Option<f32>,
    /// The weight of positive labels, one for all or one for each class along --class-axis: of bce [default: 1]
    #[arg(long, value_name = "X,X,..", value_delimiter = ',', value_parser = not_negative)]
    pub pos_weight: Vec<f32>,
    /// Where squares end: of huber [default: 1]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub delta: Option<f32>,
    /// Where squares end: of smooth-l1 [default: 1]; the weight of what is missed: of tversky [default: 0.5]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub loss_beta: Option<f32>,
    /// The weight of positive labels against negative ones: of binary-focal [default: 0.25; negative: none]; that of what is wrongly
    /// predicted: of tversky [default: 0.5]
    #[arg(long, value_name = "X", value_parser = number, allow_negative_numbers = true)]
    pub loss_alpha: Option<f32>,
    /// How much less sure predictions count: of focal and binary-focal [default: 2]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub focal_gamma: Option<f32>,
    /// Labels are log probabilities, too: of kl
    #[arg(long)]
    pub log_targets: bool,
    /// Divide by the number of elements instead of that of samples: of kl
    #[arg(long)]
    pub elementwise_mean: bool,
    /// The cosine from which on pairs labelled -1 cost something: of cosine with --pair-output [default: 0]
    #[arg(long, value_name = "X", value_parser = number, allow_negative_numbers = true)]
    pub margin: Option<f32>,
    /// The output with the other vectors of pairs: of cosine
    #[arg(long, value_name = "NAME")]
    pub pair_output: Option<String>,
    /// How the output becomes shares of classes: of dice, dice-ce and tversky [default: softmax; sigmoid with --multi-label]
    #[arg(long, value_enum)]
    pub activation: Option<ActivationKind>,
    /// Labels are numbers of the output's shape, one for each class and place: of dice, dice-ce and tversky
    #[arg(long)]
    pub multi_label: bool,
    /// Leave class 0 out: of dice, dice-ce and tversky
    #[arg(long)]
    pub no_background: bool,
    /// Take all samples of a batch as one region: of dice, dice-ce and tversky
    #[arg(long)]
    pub batch_regions: bool,
    /// Divide by sums of squares: of dice and dice-ce
    #[arg(long)]
    pub squared: bool,
    /// Added above and below the line: of dice, dice-ce and tversky [default: 1e-5]
    #[arg(long, value_name = "X", value_parser = not_negative)]
    pub smooth: Option<f32>,
    /// How many labels a sample may have: of ctc
    #[arg(long, value_name = "N", value_parser = positive_count)]
    pub label_length: Option<u64>,
    /// The class of places without a label: of ctc [default: 0]
    #[arg(long, value_name = "N")]
    pub blank: Option<u64>,
    /// The output has positions first and samples second: of ctc
    #[arg(long)]
    pub time_first: bool,
    /// The input or array with the numbers of positions that count: of ctc [default: all of them]
    #[arg(long, value_name = "NAME")]
    pub input_lengths: Option<String>,
    /// Labels that do not fit into their positions cost nothing, instead of infinitely much: of ctc
    #[arg(long)]
    pub zero_infinity: bool,
    /// Factors of Dice and of cross-entropy: of dice-ce [default: 1,1]
    #[arg(long, value_name = "X,X", value_delimiter = ',', value_parser = not_negative)]
    pub parts: Vec<f32>,
}
