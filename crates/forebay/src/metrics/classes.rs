//! Counts per class, and what follows from them: accuracy, Dice and others.

use forebay_model::Tensor;

/// Returns the index of a position's class in logits whose classes have `inner` elements each.
pub(super) fn place(position: usize, class: usize, classes: usize, inner: usize) -> usize {
    (position / inner) * classes * inner + position % inner + class * inner
}

/// Counts per class, over any number of batches.
///
/// ```
/// use forebay::metrics::ClassCounts;
///
/// let mut counts = ClassCounts::default();
/// assert_eq!(counts.add(&[0.5, 2.0, 3.0, 1.0], &[2, 2], 1, &[1, 1], None), 2);
/// assert_eq!(counts.accuracy(), Some(0.5));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// Positions whose label and prediction are the class.
    right: Vec<u64>,
    /// Positions whose prediction is the class.
    predicted: Vec<u64>,
    /// Positions whose label is the class.
    labeled: Vec<u64>,
}

impl ClassCounts {
    /// Adds a batch: `logits` is row-major of `shape`, with the classes along `class_axis`; `labels` has the other axes. The prediction
    /// is the class of the largest logit, or the first of several equal ones. Labels that equal `ignored` do not count. Returns the
    /// number of positions that did.
    pub fn add(
        &mut self,
        logits: &[f32],
        shape: &[u64],
        class_axis: usize,
        labels: &[i64],
        ignored: Option<i64>,
    ) -> u64 {
        self.count_all(|index| logits[index], shape, class_axis, labels.iter().copied(), ignored)
    }

    /// Same as `add`, for tensors and without copying them. Returns `None` if their types do not fit.
    pub fn add_tensors(
        &mut self,
        logits: &Tensor,
        class_axis: usize,
        labels: &Tensor,
        ignored: Option<i64>,
    ) -> Option<u64> {
        Some(self.count_all(logits.reals()?, logits.shape(), class_axis, labels.integers()?, ignored))
    }

    fn count_all(
        &mut self,
        logits: impl Fn(usize) -> f32,
        shape: &[u64],
        class_axis: usize,
        labels: impl Iterator<Item = i64>,
        ignored: Option<i64>,
    ) -> u64 {
        let classes = shape[class_axis] as usize;
        let inner = shape[class_axis + 1..].iter().product::<u64>() as usize;
        for counts in [&mut self.right, &mut self.predicted, &mut self.labeled] {
            counts.resize(classes, 0);
        }
        let mut counted = 0;
        for (position, label) in labels.enumerate() {
            let Ok(class) = usize::try_from(label) else { continue };
            if ignored == Some(label) || class >= classes {
                continue;
            }
            let logit = |class: usize| logits(place(position, class, classes, inner));
            let best = (1..classes).fold(0, |best, class| if logit(class) > logit(best) { class } else { best });
            counted += 1;
            self.count_one(class, best);
        }
        counted
    }

    fn count_one(&mut self, labeled: usize, predicted: usize) {
        self.labeled[labeled] += 1;
        self.predicted[predicted] += 1;
        self.right[labeled] += u64::from(labeled == predicted);
    }

    /// Adds a decision between no and yes, for one class with its own counts.
    pub(super) fn add_decision(&mut self, labeled: bool, predicted: bool) {
        for counts in [&mut self.right, &mut self.predicted, &mut self.labeled] {
            counts.resize(2, 0);
        }
        self.count_one(usize::from(labeled), usize::from(predicted));
    }

    /// Returns the number of positions counted.
    pub fn count(&self) -> u64 {
        self.labeled.iter().sum()
    }

    /// Returns the number of positions whose prediction is the label.
    pub fn right(&self) -> u64 {
        self.right.iter().sum()
    }

    /// Returns the share of positions whose prediction is the label, or `None` if nothing was counted.
    pub fn accuracy(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.right() as f64 / self.count() as f64)
    }

    /// Returns the Dice of each class: twice the overlap of predictions and labels over their sum. It is `None` for a class that neither
    /// has.
    pub fn dice(&self) -> Vec<Option<f64>> {
        let sums = self.predicted.iter().zip(&self.labeled).map(|(predicted, labeled)| predicted + labeled);
        self.right.iter().zip(sums).map(|(&right, sum)| (sum > 0).then(|| 2.0 * right as f64 / sum as f64)).collect()
    }

    /// Returns the intersection over union of each class. It is `None` for a class that neither predictions nor labels have.
    pub fn iou(&self) -> Vec<Option<f64>> {
        let share = |dice: f64| dice / (2.0 - dice);
        self.dice().into_iter().map(|dice| dice.map(share)).collect()
    }

    /// Returns the mean Dice of the classes for which it is defined.
    pub fn mean_dice(&self) -> Option<f64> {
        mean(self.dice())
    }
}

/// Returns the mean of the values that are defined.
pub(super) fn mean(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    let defined: Vec<f64> = values.into_iter().flatten().collect();
    (!defined.is_empty()).then(|| defined.iter().sum::<f64>() / defined.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_last_and_classes_first_agree() {
        // Two positions, three classes: predictions 2 and 0.
        let last = [0.0, 1.0, 2.0, 5.0, 1.0, 5.0];
        let first = [0.0, 5.0, 1.0, 1.0, 2.0, 5.0];
        let (mut a, mut b) = (ClassCounts::default(), ClassCounts::default());
        assert_eq!(a.add(&last, &[1, 2, 3], 2, &[2, 1], None), 2);
        assert_eq!(b.add(&first, &[1, 3, 2], 1, &[2, 1], None), 2);
        assert_eq!(a, b);
        assert_eq!(a.accuracy(), Some(0.5));
        assert_eq!(a.dice(), [Some(0.0), Some(0.0), Some(1.0)]);
        assert_eq!(a.mean_dice(), Some(1.0 / 3.0));
    }

    #[test]
    fn ignored_labels_and_absent_classes_do_not_count() {
        let mut counts = ClassCounts::default();
        assert_eq!(counts.accuracy(), None);
        counts.add(&[1.0, 0.0, 0.0, 1.0, 0.0, 0.0], &[2, 3], 1, &[0, -100], Some(-100));
        assert_eq!((counts.count(), counts.right()), (1, 1));
        assert_eq!(counts.dice(), [Some(1.0), None, None]);
        assert_eq!(counts.mean_dice(), Some(1.0));
    }
}
