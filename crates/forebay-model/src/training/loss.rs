//! The choice of the loss that training minimizes. The formulas are in `losses.rs` and `regions.rs`.

use forebay_base::Tensor;

/// The loss that training minimizes. Labels that are *classes* are int64 class indices, of the prediction's shape without the class axis;
/// *targets* are float32 numbers of the prediction's shape. A negative class axis counts from the end; `None` is axis 1.
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
    /// The mean over all label positions of -log softmax(logits)\[label]. Labels are classes.
    SoftmaxCrossEntropy {
        /// The class axis of the logits.
        class_axis: Option<i64>,
        /// The label that does not count.
        ignore_index: Option<i64>,
    },
    /// Softmax cross-entropy with class weights and label smoothing, like PyTorch's `CrossEntropyLoss`: a mean that weights each position
    /// by the weight of its class. Labels are classes.
    WeightedCrossEntropy {
        /// The class axis of the logits.
        class_axis: Option<i64>,
        /// The label that does not count.
        ignore_index: Option<i64>,
        /// A weight for each class; empty: 1 for each.
        class_weights: Vec<f32>,
        /// The part of each label's probability that all classes share, from 0 to 1.
        label_smoothing: f32,
    },
    /// Softmax cross-entropy with soft labels: the mean over positions of -sum of target log softmax(logits). Labels are targets: the
    /// probabilities of the classes at a position, as for PyTorch's `CrossEntropyLoss`; a trainer also accepts classes, each with a
    /// probability of 1.
    SoftCrossEntropy {
        /// The class axis of the logits.
        class_axis: Option<i64>,
        /// A factor for each class; empty: 1 for each. They do not weight the mean.
        class_weights: Vec<f32>,
        /// The part of each label's probability that all classes share, from 0 to 1.
        label_smoothing: f32,
    },
    /// The mean of (prediction - target)^2. Targets are of the prediction's type.
    MeanSquaredError,
    /// The mean of |prediction - target|.
    MeanAbsoluteError,
    /// The mean of (prediction - target)^2 / 2 where the difference is at most delta, and of delta (|difference| - delta / 2) elsewhere.
    Huber {
        /// The difference up to which the loss is quadratic, above 0.
        delta: f32,
    },
    /// The mean of (prediction - target)^2 / (2 beta) where the difference is below beta, and of |difference| - beta / 2 elsewhere.
    SmoothL1 {
        /// The difference below which the loss is quadratic; 0: nowhere.
        beta: f32,
    },
    /// Binary cross-entropy of logits: the mean of -(w target log p + (1 - target) log(1 - p)) with p = sigmoid(logit). Each number is a
    /// separate decision.
    BinaryCrossEntropy {
        /// The axis of `positive_weights`.
        class_axis: Option<i64>,
        /// Weights of positive targets, w: one for all, or one for each class; empty: 1.
        positive_weights: Vec<f32>,
    },
    /// Kullback-Leibler divergence: the sum of target (log target - prediction), divided by the number of samples or elements. The
    /// prediction is the logarithm of a probability.
    KlDivergence {
        /// The class axis if the prediction is logits, whose log-softmax is taken. `None`: the prediction is already logarithms.
        class_axis: Option<i64>,
        /// Whether targets are logarithms of probabilities as well.
        log_targets: bool,
        /// Whether the sum is divided by the number of elements, like PyTorch's `mean`, instead of the number of samples (`batchmean`).
        elementwise_mean: bool,
    },
    /// The mean of 1 - cos(prediction, target), the cosine of vectors along an axis. For pairs of outputs: the mean of 1 - cos where the
    /// label is 1, and of max(0, cos - margin) where it is -1; labels are then int64, of the output's shape without the axis.
    CosineEmbedding {
        /// The axis of the vectors.
        axis: Option<i64>,
        /// The cosine above which a dissimilar pair of vectors is penalized, from -1 to 1.
        margin: f32,
        /// The name of the output with the other vectors of the pairs. `None`: these are the targets.
        other_output: Option<String>,
    },
    /// Focal loss over classes: the mean of -(1 - p)^gamma log p, where p is the softmax's probability of the label. With gamma 0 it is
    /// [`Loss::WeightedCrossEntropy`] without smoothing. Labels are classes.
    Focal {
        /// The class axis of the logits.
        class_axis: Option<i64>,
        /// The label that does not count.
        ignore_index: Option<i64>,
        /// A weight for each class, which also weights the mean; empty: 1 for each.
        class_weights: Vec<f32>,
        /// How strongly confident predictions are down-weighted, at least 0.
        gamma: f32,
    },
    /// Focal loss of binary decisions, like torchvision's `sigmoid_focal_loss` with reduction `mean`: the mean of binary cross-entropy
    /// times (1 - p)^gamma, where p is the probability of the target.
    BinaryFocal {
        /// The weight of positive targets, from 0 to 1; negative targets have the rest. `None`: both have the same weight.
        alpha: Option<f32>,
        /// How strongly confident predictions are down-weighted, at least 0.
        gamma: f32,
    },
    /// Dice: the mean over samples and classes of 1 - (2 overlap + smooth) / (predicted + labeled + smooth), like MONAI's `DiceLoss`.
    Dice(Region),
    /// Dice plus cross-entropy, like MONAI's `DiceCELoss`; for targets, Dice plus binary cross-entropy.
    DiceCrossEntropy {
        /// The region that Dice compares. Its class weights also apply to the cross-entropy if labels are classes.
        region: Region,
        /// The factor of Dice.
        dice_weight: f32,
        /// The factor of cross-entropy.
        cross_entropy_weight: f32,
    },
    /// Tversky: the mean over samples and classes of 1 - (overlap + smooth) / (overlap + alpha wrongly predicted + beta missed + smooth),
    /// like MONAI's `TverskyLoss`.
    Tversky {
        /// The region that is compared.
        region: Region,
        /// The weight of false positives.
        alpha: f32,
        /// The weight of false negatives.
        beta: f32,
    },
    /// Connectionist temporal classification, like PyTorch's `CTCLoss` with reduction `mean`: labels are sequences of classes whose
    /// positions are unknown.
    Ctc(Ctc),
    /// The output itself, of one element: the model computes the loss, with one of its inputs as labels.
    Output {
        /// The name of that input. `None`: the first that exists of `labels`, `label`, `targets`, `target` and `y`.
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
    /// Returns the class axis of the prediction, counted from the end if negative, or `None` if labels do not refer to classes.
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

    /// Returns the label that does not count, if there is one.
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

    /// Returns whether labels are probabilities of the classes instead of single classes.
    pub fn takes_soft_labels(&self) -> bool {
        matches!(self, Loss::SoftCrossEntropy { .. })
    }

    /// Returns the same loss with soft labels, for mixed samples, or `None` if there is no such loss.
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

    /// Returns the weight of a batch with these labels in the mean over several batches: what the loss of the batch was divided by, or a
    /// multiple of it that is the same for all batches. For the sum of two means ([`Loss::DiceCrossEntropy`]), it is that of the second;
    /// a region of a whole batch ([`Region::batch`]) has no such weight and counts by its samples.
    ///
    /// ```
    /// use forebay_base::Tensor;
    /// use forebay_model::training::Loss;
    ///
    /// let loss = Loss::SoftmaxCrossEntropy { class_axis: None, ignore_index: Some(255) };
    /// assert_eq!(loss.batch_weight(&Tensor::from_i64(&[4], &[2, 0, 255, 1])), 3.0);
    /// ```
    pub fn batch_weight(&self, labels: &Tensor) -> f64 {
        let weights: &[f32] = match self {
            Loss::WeightedCrossEntropy { class_weights, .. } | Loss::Focal { class_weights, .. } => class_weights,
            Loss::DiceCrossEntropy { region, .. } if !region.has_targets => &region.class_weights,
            Loss::SoftmaxCrossEntropy { .. } => &[],
            Loss::Dice(_) | Loss::Tversky { .. } | Loss::KlDivergence { elementwise_mean: false, .. } => {
                return labels.shape().first().map_or(1.0, |&samples| samples as f64);
            }
            _ => return labels.count() as f64,
        };
        let Some(classes) = labels.integers() else { return labels.count() as f64 };
        let counting = classes.filter(|&class| Some(class) != self.ignore_index());
        let weight = |class: i64| match weights.is_empty() {
            true => 1.0,
            false => {
                usize::try_from(class).ok().and_then(|class| weights.get(class)).map_or(0.0, |&weight| weight.into())
            }
        };
        counting.map(weight).sum()
    }

    /// Returns the output that the loss takes in addition to its prediction, if there is one.
    pub fn other_output(&self) -> Option<&str> {
        match self {
            Loss::CosineEmbedding { other_output, .. } => other_output.as_deref(),
            _ => None,
        }
    }
}

/// How sequences of labels relate to a prediction \[samples, positions, classes] of logits or log probabilities. Labels are int64
/// \[samples, label_length]: classes, with -1 after the last one of a sample.
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
    /// The most labels that a sample can have.
    pub label_length: u64,
    /// The index of the blank class.
    pub blank: u64,
    /// Whether positions are the first axis of the prediction and samples the second, as in PyTorch.
    pub time_first: bool,
    /// The name of a batch input, int64 \[samples], with the number of positions that count in each sample. `None`: all.
    pub lengths: Option<String>,
    /// Whether the loss of labels that do not fit into their positions is 0 instead of infinite.
    pub zero_infinity: bool,
}

impl Ctc {
    /// Creates options in which blanks are class 0 and all positions count.
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
    /// Sigmoid: each class is independent.
    Sigmoid,
    /// The prediction is already shares.
    Given,
}

/// What Dice and Tversky compare: the shares of classes along axis 1 of a prediction \[n, classes, ..], and labels. Any number of axes can
/// follow; they are places.
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
    /// Whether all samples of a batch form one region, instead of one region each.
    pub batch: bool,
    /// Whether Dice sums squares for `predicted` and `labeled`.
    pub squared: bool,
    /// The label that does not count, if labels are classes.
    pub ignore_index: Option<i64>,
    /// A weight for each class, including class 0; empty: 1 for each.
    pub class_weights: Vec<f32>,
    /// Added to the numerator.
    pub smooth_numerator: f32,
    /// Added to the denominator.
    pub smooth_denominator: f32,
}

impl Default for Region {
    /// Softmax, classes, each sample a separate region, class 0 included; 1e-5 is added to numerator and denominator.
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
