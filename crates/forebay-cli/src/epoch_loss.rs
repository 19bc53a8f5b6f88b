//! The mean loss of a training epoch, even if a checkpoint falls in the middle of it.

use serde_json::{Value, json};

/// The losses of the current epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EpochLoss {
    sum: f64,
    count: u64,
}

impl EpochLoss {
    /// Adds the loss of step `step`, from 1, unless it does not count. At the end of an epoch, returns the mean, which is NaN if no step
    /// counts, and starts the next epoch.
    pub fn add(&mut self, step: u64, loss: Option<f32>, steps_per_epoch: u64) -> Option<f32> {
        if let Some(loss) = loss {
            (self.sum, self.count) = (self.sum + f64::from(loss), self.count + 1);
        }
        if !step.is_multiple_of(steps_per_epoch) {
            return None;
        }
        let EpochLoss { sum, count } = std::mem::take(self);
        Some((sum / count as f64) as f32)
    }

    /// Converts it to the form stored in a checkpoint's position.
    pub fn json(&self) -> Value {
        // JSON has no NaN, so the bits are stored.
        json!({ "sum_bits": self.sum.to_bits(), "count": self.count })
    }

    /// Reads it from a checkpoint's position, or returns the default if the position has none.
    pub fn of(position: &Value) -> EpochLoss {
        let number = |key: &str| position.get(key).and_then(Value::as_u64).unwrap_or_default();
        EpochLoss { sum: f64::from_bits(number("sum_bits")), count: number("count") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_goes_on_from_a_checkpoint() {
        let mut epoch = EpochLoss::default();
        assert_eq!((epoch.add(1, Some(1.0), 3), epoch.add(2, Some(f32::NAN), 3)), (None, None));
        let text = epoch.json().to_string();
        let mut epoch = EpochLoss::of(&serde_json::from_str(&text).unwrap());
        assert!(epoch.add(3, Some(2.0), 3).unwrap().is_nan());
        let mut of = |step, loss| epoch.add(step, Some(loss), 3);
        assert_eq!((of(4, 1.0), of(5, 2.0), of(6, 6.0)), (None, None, Some(3.0)));
    }

    #[test]
    fn steps_that_do_not_count_are_left_out() {
        let mut epoch = EpochLoss::default();
        assert_eq!(
            (epoch.add(1, Some(1.0), 3), epoch.add(2, Some(3.0), 3), epoch.add(3, None, 3)),
            (None, None, Some(2.0))
        );
        assert!(epoch.add(4, None, 1).unwrap().is_nan());
    }
}
