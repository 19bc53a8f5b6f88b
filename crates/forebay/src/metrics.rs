//! Metrics of how well a model does on labeled data. They fit its loss, cover any number of batches, and are defined as in scikit-learn.
//!
//! ```
//! use forebay::metrics::{Metric, Metrics};
//! use forebay::training::Loss;
//! use forebay::Tensor;
//!
//! let mut metrics = Metrics::new(&Loss::default(), &["accuracy".parse()?, Metric::TopK(2)])?;
//! let logits = Tensor::from_f32(&[2, 3], &[1.0, 3.0, 2.0, 0.0, 1.0, 5.0]);
//! metrics.add(&logits, &Tensor::from_i64(&[2], &[2, 2]));
//! assert_eq!(metrics.value(Metric::TopK(2)), Some(1.0));
//! # Ok::<(), forebay::Error>(())
//! ```

mod classes;
mod ranking;

use std::fmt;
use std::str::FromStr;

use forebay_model::Tensor;
use forebay_model::training::{Loss, Region, Shares};

use crate::error::Error;
use crate::labels::place_of;
use classes::{mean, place};
use ranking::Ranking;

pub use classes::ClassCounts;

/// A metric of classes, or of targets that are 0 or 1 if the loss takes those, with each class a separate decision. `Mae` is a metric of
/// numbers.
///
/// ```
/// use forebay::metrics::Metric;
///
/// let metric: Metric = "top5".parse()?;
/// assert_eq!((metric, metric.to_string().as_str()), (Metric::TopK(5), "top5"));
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Metric {
    /// The share of positions whose prediction is the label: `accuracy`.
    Accuracy,
    /// The share of positions whose label is among the k largest logits: `top5`, `top3`.
    TopK(u64),
    /// The mean over classes of the harmonic mean of precision and recall: `f1`.
    F1,
    /// The mean over classes of the area under the ROC curve, each class against the rest: `auc`.
    Auc,
    /// The mean over classes of the intersection over the union: `iou`.
    Iou,
    /// The mean over classes of twice the intersection over the sum, which is the same as `f1`: `dice`.
    Dice,
    /// The mean absolute error: `mae`.
    Mae,
    /// The exponential of the mean cross-entropy: `perplexity`.
    Perplexity,
    /// Positions by label (rows) and prediction (columns): `confusion`.
    Confusion,
}

/// Metrics by name, except `topK`.
const NAMES: [(&str, Metric); 8] = [
    ("accuracy", Metric::Accuracy),
    ("f1", Metric::F1),
    ("auc", Metric::Auc),
    ("iou", Metric::Iou),
    ("dice", Metric::Dice),
    ("mae", Metric::Mae),
    ("perplexity", Metric::Perplexity),
    ("confusion", Metric::Confusion),
];

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, NAMES.iter().find(|(_, metric)| metric == self)) {
            (Metric::TopK(k), _) => write!(f, "top{k}"),
            (_, Some((name, _))) => f.write_str(name),
            (_, None) => Ok(()),
        }
    }
}

impl FromStr for Metric {
    type Err = Error;

    fn from_str(text: &str) -> Result<Metric, Error> {
        let top = text.strip_prefix("top").and_then(|k| k.parse().ok()).filter(|&k| k > 0).map(Metric::TopK);
        let named = NAMES.iter().find(|(name, _)| *name == text).map(|(_, metric)| *metric);
        top.or(named).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            let reason = format!("unknown metric '{text}'; the metrics are {} and top5 (any number)", names.join(", "));
            Error::Option { reason }
        })
    }
}

/// What labels are, as far as metrics are concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Labels {
    /// Classes along an axis, which counts from the end if negative.
    Classes {
        axis: i64,
        ignored: Option<i64>,
    },
    /// Decisions, with classes along an axis, which counts from the end if negative; a prediction above the threshold means yes.
    Decisions {
        axis: i64,
        threshold: f32,
    },
    Numbers,
    Other,
}

fn labels_of(loss: &Loss) -> Labels {
    if let Some(axis) = loss.class_axis() {
        return Labels::Classes { axis, ignored: loss.ignore_index() };
    }
    match loss {
        Loss::BinaryCrossEntropy { class_axis, .. } => {
            Labels::Decisions { axis: class_axis.unwrap_or(1), threshold: 0.0 }
        }
        Loss::BinaryFocal { .. } => Labels::Decisions { axis: 1, threshold: 0.0 },
        Loss::Dice(region) | Loss::DiceCrossEntropy { region, .. } | Loss::Tversky { region, .. } => match region {
            Region { shares: Shares::Sigmoid, .. } => Labels::Decisions { axis: 1, threshold: 0.0 },
            Region { shares: Shares::Given, .. } => Labels::Decisions { axis: 1, threshold: 0.5 },
            _ => Labels::Other,
        },
        Loss::MeanSquaredError | Loss::MeanAbsoluteError | Loss::Huber { .. } | Loss::SmoothL1 { .. } => {
            Labels::Numbers
        }
        _ => Labels::Other,
    }
}

/// The largest number of classes in a confusion matrix.
const CONFUSED_CLASSES_MAX: usize = 1000;

/// Metrics over any number of batches.
///
/// ```
/// use forebay::metrics::{Metric, Metrics};
/// use forebay::training::Loss;
///
/// assert!(Metrics::new(&Loss::MeanSquaredError, &[Metric::Mae]).is_ok());
/// assert!(Metrics::new(&Loss::MeanSquaredError, &[Metric::Auc]).is_err(), "numbers have no classes");
/// ```
#[derive(Clone, Debug)]
pub struct Metrics {
    chosen: Vec<Metric>,
    labels: Labels,
    counts: ClassCounts,
    /// For decisions, the counts of each class.
    decisions: Vec<ClassCounts>,
    ranking: Ranking,
    /// For each metric that is `TopK`, the positions whose label is among the largest logits.
    among: Vec<u64>,
    /// The sum of cross-entropies or of absolute errors, and their number.
    sum: f64,
    count: u64,
    confusion: Vec<Vec<u64>>,
}

impl Metrics {
    /// Creates metrics for the predictions and labels of a loss.
    ///
    /// # Errors
    /// Fails with [`Error::Option`] if a metric does not fit the loss.
    pub fn new(loss: &Loss, chosen: &[Metric]) -> Result<Metrics, Error> {
        let labels = labels_of(loss);
        let fitting = |metric: &Metric| match labels {
            Labels::Classes { .. } => *metric != Metric::Mae,
            Labels::Decisions { .. } => {
                matches!(metric, Metric::Accuracy | Metric::F1 | Metric::Auc | Metric::Iou | Metric::Dice)
            }
            Labels::Numbers => *metric == Metric::Mae,
            Labels::Other => false,
        };
        if let Some(metric) = chosen.iter().find(|metric| !fitting(metric)) {
            let fitting: Vec<String> =
                NAMES.iter().filter(|(_, metric)| fitting(metric)).map(|(name, _)| name.to_string()).collect();
            let fitting = if fitting.is_empty() { "none".to_string() } else { fitting.join(", ") };
            let reason = format!("metric '{metric}' does not fit the loss; metrics that fit: {fitting}");
            return Err(Error::Option { reason });
        }
        Ok(Metrics {
            chosen: chosen.to_vec(),
            labels,
            counts: ClassCounts::default(),
            decisions: Vec::new(),
            ranking: Ranking::default(),
            among: vec![0; chosen.len()],
            sum: 0.0,
            count: 0,
            confusion: Vec::new(),
        })
    }

    /// Returns the default metrics of a loss, in addition to the accuracy and Dice of classes: accuracy and Dice for decisions, the mean
    /// absolute error for numbers.
    pub fn usual(loss: &Loss) -> Vec<Metric> {
        match (labels_of(loss), loss) {
            (Labels::Decisions { .. }, _) => vec![Metric::Accuracy, Metric::Dice],
            // The error itself is the loss.
            (Labels::Numbers, Loss::MeanSquaredError | Loss::MeanAbsoluteError) => Vec::new(),
            (Labels::Numbers, _) => vec![Metric::Mae],
            _ => Vec::new(),
        }
    }

    /// Returns the chosen metrics, in the order in which they were chosen.
    pub fn chosen(&self) -> &[Metric] {
        &self.chosen
    }

    /// Adds a batch: the model's output ([`Evaluation::logits`](crate::Evaluation::logits)) and its labels.
    pub fn add(&mut self, prediction: &Tensor, labels: &Tensor) {
        if self.chosen.is_empty() {
            return;
        }
        // Predictions can take up much of a limited memory, so they are not copied.
        let Some(value) = prediction.reals() else { return };
        let shape = prediction.shape();
        match self.labels {
            Labels::Classes { axis, ignored } => {
                let Some(axis) = place_of(axis, shape) else { return };
                let Some(all) = labels.integers() else { return };
                self.counts.add_tensors(prediction, axis, labels, ignored);
                // The counts are enough for these.
                let is_of_counts =
                    |metric: &Metric| matches!(metric, Metric::Accuracy | Metric::F1 | Metric::Iou | Metric::Dice);
                if self.chosen.iter().all(is_of_counts) {
                    return;
                }
                let (classes, inner) = (shape[axis] as usize, shape[axis + 1..].iter().product::<u64>() as usize);
                for (position, label) in all.enumerate() {
                    let Ok(class) = usize::try_from(label) else { continue };
                    if ignored == Some(label) || class >= classes {
                        continue;
                    }
                    let logits: Vec<f32> =
                        (0..classes).map(|class| value(place(position, class, classes, inner))).collect();
                    self.add_position(&logits, class);
                }
            }
            Labels::Decisions { axis, threshold } => {
                let Some(targets) = labels.to_f32() else { return };
                // Without such an axis, there is one class.
                let axis = place_of(axis, shape);
                let classes = axis.map_or(1, |axis| shape[axis] as usize);
                let inner = axis.map_or(1, |axis| shape[axis + 1..].iter().product::<u64>() as usize);
                self.decisions.resize(classes, ClassCounts::default());
                let count = prediction.count() as usize;
                for (i, (value, &target)) in (0..count).map(value).zip(&targets).enumerate() {
                    let class = i / inner.max(1) % classes;
                    self.decisions[class].add_decision(target > 0.5, value > threshold);
                    if self.chosen.contains(&Metric::Auc) {
                        self.ranking.add(class, value, target > 0.5);
                    }
                }
            }
            Labels::Numbers => {
                let Some(targets) = labels.to_f32() else { return };
                let values = (0..prediction.count() as usize).map(value);
                let errors = values.zip(&targets).map(|(a, b)| (f64::from(a) - f64::from(*b)).abs());
                self.sum += errors.sum::<f64>();
                self.count += prediction.count();
            }
            Labels::Other => {}
        }
    }

    fn add_position(&mut self, logits: &[f32], label: usize) {
        let largest = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        let exponentials: Vec<f64> = logits.iter().map(|&logit| libm::exp(f64::from(logit - largest))).collect();
        let total: f64 = exponentials.iter().sum();
        self.sum += libm::log(total) - f64::from(logits[label] - largest);
        self.count += 1;
        // Among equal logits, the first one ranks first.
        let rank = |class: usize| {
            let before =
                |&other: &usize| logits[other] > logits[class] || (logits[other] == logits[class] && other < class);
            (0..logits.len()).filter(before).count() as u64
        };
        for (metric, among) in self.chosen.iter().zip(&mut self.among) {
            if let Metric::TopK(k) = metric {
                // A logit that is not a number has no rank.
                *among += u64::from(!logits[label].is_nan() && rank(label) < *k);
            }
        }
        if self.chosen.contains(&Metric::Auc) {
            for (class, share) in exponentials.iter().enumerate() {
                self.ranking.add(class, (share / total) as f32, class == label);
            }
        }
        if self.chosen.contains(&Metric::Confusion) && logits.len() <= CONFUSED_CLASSES_MAX {
            let predicted = (1..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
            self.confusion.resize(logits.len(), vec![0; logits.len()]);
            self.confusion[label][predicted] += 1;
        }
    }

    /// Returns a metric over everything that was added, or `None` if it is not defined, such as an area without positive labels, or was
    /// not chosen.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        let position = self.chosen.iter().position(|chosen| *chosen == metric)?;
        let is_decisions = matches!(self.labels, Labels::Decisions { .. });
        let mean_count = |sum: f64| (self.count > 0).then(|| sum / self.count as f64);
        // For a decision, only yes counts as a class.
        let yes = |of: fn(&ClassCounts) -> Vec<Option<f64>>| {
            mean(self.decisions.iter().map(|counts| of(counts).get(1).copied().flatten()))
        };
        match metric {
            Metric::Accuracy if is_decisions => {
                let sum = |of: fn(&ClassCounts) -> u64| self.decisions.iter().map(of).sum::<u64>();
                let count = sum(ClassCounts::count);
                (count > 0).then(|| sum(ClassCounts::right) as f64 / count as f64)
            }
            Metric::Accuracy => self.counts.accuracy(),
            Metric::TopK(_) => mean_count(self.among[position] as f64),
            Metric::F1 | Metric::Dice if is_decisions => yes(ClassCounts::dice),
            Metric::F1 | Metric::Dice => self.counts.mean_dice(),
            Metric::Iou if is_decisions => yes(ClassCounts::iou),
            Metric::Iou => mean(self.counts.iou()),
            Metric::Auc => self.ranking.area(),
            Metric::Mae => mean_count(self.sum),
            Metric::Perplexity => mean_count(self.sum).map(libm::exp),
            Metric::Confusion => None,
        }
    }

    /// Returns the number of positions by label and prediction, if that was chosen and there are at most 1000 classes.
    pub fn confusion(&self) -> &[Vec<u64>] {
        &self.confusion
    }
}
