//! The mean loss of an epoch of training, also where a checkpoint lies in the middle of it.

use serde_json::{Value, json};

/// Losses of an epoch that is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EpochLoss {
    sum: f64,
    count: u64,
}

impl EpochLoss {
    /// Adds the loss of step `step`, from 1; at the end of an epoch the mean, and the next epoch begins.
    pub fn add(&mut self, step: u64, loss: f32, steps_per_epoch: u64) -> Option<f32> {
        (self.sum, self.count) = (self.sum + f64::from(loss), self.count + 1);
        if !step.is_multiple_of(steps_per_epoch) {
            return None;
        }
        let EpochLoss { sum, count } = std::mem::take(self);
        Some((sum / count as f64) as f32)
    }

    /// As the position of a checkpoint keeps it.
    pub fn json(&self) -> Value {
        // JSON has no NaN: the bits are kept.
        json!({ "sum_bits": self.sum.to_bits(), "count": self.count })
    }

    /// What a checkpoint's position says; nothing where it has none.
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
        assert_eq!((epoch.add(1, 1.0, 3), epoch.add(2, f32::NAN, 3)), (None, None));
        let text = epoch.json().to_string();
        let mut epoch = EpochLoss::of(&serde_json::from_str(&text).unwrap());
        assert!(epoch.add(3, 2.0, 3).unwrap().is_nan());
        assert_eq!((epoch.add(4, 1.0, 3), epoch.add(5, 2.0, 3), epoch.add(6, 6.0, 3)), (None, None, Some(3.0)));
    }
}
