//! Areas under ROC curves, from all scores.

use super::classes::mean;

/// The most scores that are kept.
const SCORES_MAX: usize = 1 << 25;

/// Scores by class, each with whether its label is positive.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranking {
    scores: Vec<Vec<(f32, bool)>>,
    count: usize,
}

impl Ranking {
    /// Adds a score. Once there are so many scores that they would take too much memory, there is no area.
    pub(super) fn add(&mut self, class: usize, score: f32, is_positive: bool) {
        self.count += 1;
        if self.count > SCORES_MAX {
            self.scores = Vec::new();
            return;
        }
        if self.scores.len() <= class {
            self.scores.resize(class + 1, Vec::new());
        }
        self.scores[class].push((score, is_positive));
    }

    /// Returns the mean area of the classes that have positive and negative labels. Scores that are not numbers have no order, and so no
    /// area.
    pub(super) fn area(&self) -> Option<f64> {
        if self.count > SCORES_MAX || self.scores.iter().flatten().any(|(score, _)| score.is_nan()) {
            return None;
        }
        mean(self.scores.iter().map(|scores| area(scores)))
    }
}

/// Returns the probability that a positive score is above a negative one; equal scores count half.
fn area(scores: &[(f32, bool)]) -> Option<f64> {
    let mut sorted = scores.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let positives = sorted.iter().filter(|(_, is_positive)| *is_positive).count() as f64;
    let negatives = sorted.len() as f64 - positives;
    if positives == 0.0 || negatives == 0.0 {
        return None;
    }
    let (mut below, mut pairs) = (0.0, 0.0);
    for equal in sorted.chunk_by(|a, b| a.0 == b.0) {
        let own = equal.iter().filter(|(_, is_positive)| *is_positive).count() as f64;
        let others = equal.len() as f64 - own;
        pairs += own * (below + others / 2.0);
        below += others;
    }
    Some(pairs / (positives * negatives))
}
