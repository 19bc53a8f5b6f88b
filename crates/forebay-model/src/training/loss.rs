//! What training minimises: the choice of a loss. What each computes is in `losses.rs` and `regions.rs`.

/// What is minimised. Labels that are *classes* are int64 numbers of classes, of the prediction's shape without the class axis;
/// *targets* are float32 numbers of the prediction's shape. A class axis counts from the end where negative; `None` is axis 1.
///
/// ```
/// use forebay_model::training::{Loss, Region};
///
/// let pixels = Loss::SoftmaxCrossEntropy { class_axis: Some(1), ignore_index: Some(255) };
/// assert_ne!(pixels, Loss::default());
/// assert_eq!(pixels.ignore_index(), Some(255));
/// let mut organs = Region::default();
/// organs.include_background = false;
/// assert_eq!(Loss::Dice(organs).class_axis(), Some(1));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Loss {
    /// Mean over all label positions of -log softmax(logits)\[label]. Labels are classes.
    SoftmaxCrossEntropy {
        /// The class axis of the logits.
        class_axis: Option<i64>,
        /// Label that does not count.
        ignore_index: Option<i64>,
    },
    /// The same with weights and smoothed labels, as PyTorch's `CrossEntropyLoss`: a mean that weighs each position by the weight of
    /// its class. Labels are classes.
    WeightedCrossEntropy {
        /// The class axis of the logits.
        class_axis: Option<i64>,
        /// Label that does not count.
        ignore_index: Option<i64>,
        /// A weight for each class; empty: 1 for each.
        class_weights: Vec<f32>,
        /// What all classes share of each label's probability, from 0 to 1.
        label_smoothing: f32,
    },
    /// The same of soft labels: the mean over positions of -sum of target log softmax(logits). Labels are targets: the probabilities of the classes at a
    /// position, as PyTorch's `CrossEntropyLoss` takes them; a trainer also takes classes, each as the only one that is possible.
    SoftCrossEntropy {
        /// The class axis of the logits.
        class_axis: Option<i64>,
        /// A factor for each class; empty: 1 for each. They do not weigh the mean.
        class_weights: Vec<f32>,
        /// What all classes share of each label's probability, from 0 to 1.
        label_smoothing: f32,
    },
    /// Mean of (prediction - target)^2. Targets are of the prediction's type.
    MeanSquaredError,
    /// Mean of |prediction - target|.
    MeanAbsoluteError,
    /// Mean of (prediction - target)^2 / 2 where the difference is at most delta, else of delta (|difference| - delta / 2).
    Huber {
        /// Where squares end, above 0.
        delta: f32,
    },
    /// Mean of (prediction - target)^2 / (2 beta) where the difference is below beta, else of |difference| - beta / 2.
    SmoothL1 {
        /// Where squares end; 0: nowhere squares.
        beta: f32,
    },
    /// Binary cross-entropy of logits: mean of -(w target log p + (1 - target) log(1 - p)) with p = sigmoid(logit). Each number is a
    /// decision of its own.
    BinaryCrossEntropy {
        /// The axis along which `positive_weights` lie.
        class_axis: Option<i64>,
        /// Weights of positive targets, w: one for all, or one for each class; empty: 1.
        positive_weights: Vec<f32>,
    },
    /// Kullback-Leibler divergence: sum of target (log target - prediction), by the number of samples or elements. The prediction is the
    /// logarithm of a probability.
    KlDivergence {
        /// The class axis of a prediction that is logits: their log-softmax is taken. `None`: it is logarithms already.
        class_axis: Option<i64>,
        /// Whether targets are logarithms of probabilities, too.
        log_targets: bool,
        /// Whether the sum is divided by the number of elements, as PyTorch's `mean`, instead of that of samples (`batchmean`).
        elementwise_mean: bool,
    },
    /// Mean of 1 - cos(prediction, target), the cosine of vectors along an axis. Or, of pairs of outputs: 1 - cos where the label is 1,
    /// and max(0, cos - margin) where it is -1; labels are int64 then, of the output's shape without the axis.
    CosineEmbedding {
        /// The axis along which a vector lies.
        axis: Option<i64>,
        /// Cosine from which on vectors of a pair that do not belong together cost something, from -1 to 1.
        margin: f32,
        /// The name of the output with the pair's other vectors. `None`: these are the targets.
        other_output: Option<String>,
    },
    /// Focal loss over classes: the mean of -(1 - p)^gamma log p, where p is the softmax's probability of the label. With gamma 0 it is
    /// [`Loss::WeightedCrossEntropy`] without smoothing. Labels are classes.
    Focal {
        /// The class axis of the logits.
        class_axis: Option<i64>,
        /// Label that does not count.
        ignore_index: Option<i64>,
        /// A weight for each class, which weigh the mean, too; empty: 1 for each.
        class_weights: Vec<f32>,
        /// How much less sure predictions count, from 0.
        gamma: f32,
    },
    /// Focal loss of binary decisions, as torchvision's `sigmoid_focal_loss` with its mean: that of binary cross-entropy times
    /// (1 - p)^gamma, where p is the probability of what the target says.
    BinaryFocal {
        /// Weight of positive targets, from 0 to 1; negative ones have the rest. `None`: both count alike.
        alpha: Option<f32>,
        /// How much less sure predictions count, from 0.
        gamma: f32,
    },
    /// Dice: the mean over samples and classes of 1 - (2 overlap + smooth) / (predicted + labelled + smooth), as MONAI's `DiceLoss`.
    Dice(Region),
    /// Dice plus cross-entropy, as MONAI's `DiceCELoss`; for targets, plus binary cross-entropy.
    DiceCrossEntropy {
        /// What Dice is of. Its class weights are those of the cross-entropy, too.
        region: Region,
        /// Factor of Dice.
        dice_weight: f32,
        /// Factor of cross-entropy.
        cross_entropy_weight: f32,
    },
    /// Tversky: the mean over samples and classes of 1 - (overlap + smooth) / (overlap + alpha wrongly predicted + beta missed + smooth),
    /// as MONAI's `TverskyLoss`.
    Tversky {
        /// What it is of.
        region: Region,
        /// Weight of what is wrongly predicted.
        alpha: f32,
        /// Weight of what is missed.
        beta: f32,
    },
    /// Connectionist temporal classification, as PyTorch's `CTCLoss` with its mean: labels are sequences of classes whose places are not known.
    Ctc(Ctc),
    /// The output itself, of one element: the model computes its loss, from one of its inputs as labels.
    Output {
        /// The name of that input. `None`: `labels`, `label`, `targets`, `target` or `y`, the first that there is.
        labels: Option<String>,
    },
}

impl Default for Loss {
    /// Softmax cross-entropy along axis 1; every label counts.
    fn default() -> Loss {
        Loss::SoftmaxCrossEntropy { class_axis: None, ignore_index: None }
    }
}

impl Loss {
    /// The axis of the prediction along which the classes lie that labels are of, from the end where negative; none where labels are not of
    /// classes.
    pub fn class_axis(&self) -> Option<i64> {
        match self {
            Loss::SoftmaxCrossEntropy { class_axis, .. }
            | Loss::WeightedCrossEntropy { class_axis, .. }
            | Loss::SoftCrossEntropy { class_axis, .. }
            | Loss::Focal { class_axis, .. } => Some(class_axis.unwrap_or(1)),
            Loss::Dice(region) | Loss::DiceCrossEntropy { region, .. } | Loss::Tversky { region, .. } => {
                (!region.has_targets).then_some(1)
            }
            _ => None,
        }
    }

    /// The label that does not count, where there is one.
    pub fn ignore_index(&self) -> Option<i64> {
        match self {
            Loss::SoftmaxCrossEntropy { ignore_index, .. }
            | Loss::WeightedCrossEntropy { ignore_index, .. }
            | Loss::Focal { ignore_index, .. } => *ignore_index,
            Loss::Dice(region) | Loss::DiceCrossEntropy { region, .. } | Loss::Tversky { region, .. } => {
                region.ignore_index
            }
            Loss::Ctc(_) => Some(-1),
            _ => None,
        }
    }

    /// Whether labels of classes are their probabilities instead of one class.
    pub fn takes_soft_labels(&self) -> bool {
        matches!(self, Loss::SoftCrossEntropy { .. })
    }

    /// The same loss of soft labels, for samples that are mixed; none where it has none.
    pub fn soft(&self) -> Option<Loss> {
        match self.clone() {
            Loss::SoftmaxCrossEntropy { class_axis, ignore_index: None } => {
                Some(Loss::SoftCrossEntropy { class_axis, class_weights: Vec::new(), label_smoothing: 0.0 })
            }
            Loss::WeightedCrossEntropy { class_axis, ignore_index: None, class_weights, label_smoothing } => {
                Some(Loss::SoftCrossEntropy { class_axis, class_weights, label_smoothing })
            }
            loss if loss.takes_soft_labels() => Some(loss),
            _ => None,
        }
    }

    /// The output that the loss takes next to its prediction, where there is one.
    pub fn other_output(&self) -> Option<&str> {
        match self {
            Loss::CosineEmbedding { other_output, .. } => other_output.as_deref(),
            _ => None,
        }
    }
}

/// How sequences of labels belong to a prediction \[samples, positions, classes] of logits or of log probabilities. Labels are int64
/// \[samples, label_length]: classes, and -1 behind the last one of a sample.
///
/// ```
/// use forebay_model::training::{Ctc, Loss};
///
/// let mut text = Ctc::new(16);
/// text.zero_infinity = true;
/// assert_eq!(Loss::Ctc(text).ignore_index(), Some(-1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ctc {
    /// How many labels a sample may have.
    pub label_length: u64,
    /// The class of places without a label.
    pub blank: u64,
    /// Whether positions are the first axis of the prediction and samples the second, as PyTorch has it.
    pub time_first: bool,
    /// The name of an input of a batch, int64 \[samples], with the numbers of positions that count. `None`: all.
    pub lengths: Option<String>,
    /// Whether the loss of labels that do not fit into their positions is 0 instead of infinite.
    pub zero_infinity: bool,
}

impl Ctc {
    /// Blanks are class 0, and all positions count.
    pub fn new(label_length: u64) -> Ctc {
        Ctc { label_length, blank: 0, time_first: false, lengths: None, zero_infinity: false }
    }
}

/// How logits become the share of a class.
///
/// ```
/// use forebay_model::training::{Region, Shares};
///
/// assert_eq!(Region::default().shares, Shares::Softmax);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shares {
    /// Softmax along axis 1: classes exclude each other.
    #[default]
    Softmax,
    /// Sigmoid: each class by itself.
    Sigmoid,
    /// The prediction is shares already.
    Given,
}

/// What Dice and Tversky compare: shares of classes, along axis 1 of a prediction \[n, classes, ..], with labels. Axes behind it are
/// places, any number of them.
///
/// ```
/// use forebay_model::training::{Loss, Region, Shares};
///
/// let mut lesions = Region::default();
/// (lesions.shares, lesions.has_targets) = (Shares::Sigmoid, true);
/// let loss = Loss::Tversky { region: lesions, alpha: 0.3, beta: 0.7 };
/// assert_eq!(loss.class_axis(), None, "labels are targets");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Region {
    /// How the prediction becomes shares.
    pub shares: Shares,
    /// Whether labels are targets, one for each class and place, instead of classes.
    pub has_targets: bool,
    /// Whether class 0 counts.
    pub include_background: bool,
    /// Whether all samples of a batch are one region, instead of one each.
    pub batch: bool,
    /// Whether what is predicted and what is labelled are sums of squares, for Dice.
    pub squared: bool,
    /// Label that does not count, where labels are classes.
    pub ignore_index: Option<i64>,
    /// A weight for each class, class 0 included; empty: 1 for each.
    pub class_weights: Vec<f32>,
    /// Added to what is divided.
    pub smooth_numerator: f32,
    /// Added to what it is divided by.
    pub smooth_denominator: f32,
}

impl Default for Region {
    /// Softmax, classes, each sample by itself, class 0 included; 1e-5 is added above and below.
    fn default() -> Region {
        Region {
            shares: Shares::Softmax,
            has_targets: false,
            include_background: true,
            batch: false,
            squared: false,
            ignore_index: None,
            class_weights: Vec::new(),
            smooth_numerator: 1e-5,
            smooth_denominator: 1e-5,
        }
    }
}
