//! The lowest validation loss so far, and how long it has been the lowest.

use serde_json::{Value, json};

/// The results of validations so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BestLoss {
    /// The lowest loss, and its step.
    pub best: Option<(f64, u64)>,
    /// The number of validations since then.
    pub worse: u64,
}

impl BestLoss {
    /// Records a loss and returns whether it is lower than all previous ones by more than `min_delta`. A run that resumes at its last step
    /// validates that step again, which does not count.
    pub fn observe(&mut self, step: u64, loss: f64, min_delta: f64) -> bool {
        let is_lower = match self.best {
            Some((best, _)) => loss < best - min_delta,
            None => loss.is_finite(),
        };
        let is_same = self.best.is_some_and(|(_, best)| best == step);
        match is_lower {
            true => (self.best, self.worse) = (Some((loss, step)), 0),
            false => self.worse += u64::from(!is_same),
        }
        is_lower
    }

    /// Returns why training ends here if this many validations in a row without a lower loss are enough; `None` if it goes on.
    pub fn reason_to_stop(&self, patience: Option<u64>) -> Option<String> {
        if self.worse < patience? {
            return None;
        }
        let lowest = self.best.map(|(loss, step)| format!("; the lowest was {loss:.6} at step {step}"));
        Some(format!("no lower loss in {} validations{}", self.worse, lowest.unwrap_or_default()))
    }

    /// Converts it to the form stored in a checkpoint's position.
    pub fn json(&self) -> Value {
        let (loss, step) = self.best.unzip();
        json!({ "loss": loss, "step": step, "worse": self.worse })
    }

    /// Reads it from a checkpoint's position, or returns the default if the position has none.
    pub fn of(position: &Value) -> BestLoss {
        let loss = position.get("loss").and_then(Value::as_f64);
        let number = |key: &str| position.get(key).and_then(Value::as_u64);
        BestLoss { best: loss.zip(number("step")), worse: number("worse").unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_loss_is_kept_over_checkpoints() {
        let mut best = BestLoss::default();
        assert!(!best.observe(1, f64::NAN, 0.0));
        assert!(best.observe(2, 0.1 + 0.2, 0.0));
        assert!(!best.observe(3, 0.3, 0.01) && !best.observe(4, f64::NAN, 0.0));
        let text = best.json().to_string();
        let mut read = BestLoss::of(&serde_json::from_str(&text).unwrap());
        assert_eq!((read, read.worse), (best, 2));
        let reason = read.reason_to_stop(Some(2)).unwrap();
        assert_eq!(reason, "no lower loss in 2 validations; the lowest was 0.300000 at step 2");
        assert!(read.reason_to_stop(Some(3)).is_none() && read.reason_to_stop(None).is_none());
        assert!(read.observe(5, 0.29, 0.01) && read.worse == 0);
        assert!(!read.observe(5, 0.29, 0.01) && read.worse == 0, "the same step again");
        assert_eq!(BestLoss::of(&Value::Null), BestLoss::default());
    }
}
