//! The results of validation, as text and as JSON.

use forebay::metrics::{ClassCounts, Metrics};
use serde_json::{Value, json};

use crate::metrics;

/// The results of validation.
pub struct Validation {
    /// The mean loss of all that counts.
    pub loss: f64,
    /// The correct predictions, for classes.
    pub counts: Option<ClassCounts>,
    /// Whether labels have spatial axes.
    pub spatial: bool,
    /// The other metrics.
    pub metrics: Metrics,
}

impl Validation {
    /// Returns them as JSON.
    pub fn json(&self) -> Value {
        let counts = self.counts.as_ref();
        let mut object = json!({
            "loss": self.loss,
            "accuracy": counts.and_then(ClassCounts::accuracy),
            "right": counts.map(ClassCounts::right),
            "count": counts.map(ClassCounts::count),
            "dice": counts.filter(|_| self.spatial).map(ClassCounts::dice),
            "dice_mean": counts.filter(|_| self.spatial).and_then(ClassCounts::mean_dice),
        });
        metrics::add_to(&mut object, &self.metrics);
        object
    }

    /// Returns them as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{:<16} loss {:.6}", "validation", self.loss)];
        let own = metrics::lines(&self.metrics, self.counts.is_some());
        let Some(counts) = &self.counts else { return [lines, own].concat() };
        let share = |share: Option<f64>| share.map_or("none".to_owned(), |share| format!("{share:.4}"));
        let (right, count) = (counts.right(), counts.count());
        lines.push(format!("{:<16} accuracy {} ({right} of {count})", "", share(counts.accuracy())));
        if self.spatial {
            let classes: Vec<String> = counts
                .dice()
                .into_iter()
                .enumerate()
                .map(|(class, dice)| format!("{class}: {}", share(dice)))
                .collect();
            let mean = share(counts.mean_dice());
            lines.push(format!("{:<16} Dice {mean} (mean of classes {})", "", classes.join(", ")));
        }
        [lines, own].concat()
    }
}
