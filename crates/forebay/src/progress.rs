//! The progress of a training run besides its tensors: what steps change and no plan holds.

use serde::{Deserialize, Serialize};

use crate::schedule::PlateauState;

/// What a checkpoint keeps besides tensors and the step number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Progress {
    /// What a plateau has seen.
    pub(crate) plateau: PlateauState,
    /// The number of steps whose update was skipped.
    pub(crate) skipped: u64,
    /// The factor of float16 gradients.
    pub(crate) loss_scale: LossScale,
}

/// The factor by which float16 gradients are scaled, as in PyTorch's `GradScaler`: halved if they are not finite, doubled after many steps
/// in which they were.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LossScale {
    /// The factor, a power of two.
    pub(crate) factor: f32,
    /// The number of steps since the factor changed.
    steps: u32,
}

impl Default for LossScale {
    fn default() -> LossScale {
        LossScale { factor: 65536.0, steps: 0 }
    }
}

impl LossScale {
    /// The number of steps after which the factor is doubled.
    const GROWTH_STEPS: u32 = 2000;
    /// Beyond this, a loss times the factor overflows float32 before gradients overflow float16.
    const FACTOR_MAX: f32 = (1u64 << 40) as f32;
    /// Below this, it is not the factor that makes gradients infinite.
    const FACTOR_MIN: f32 = 1.0;

    /// Records whether the gradients of a step were finite.
    pub(crate) fn observe(&mut self, is_finite: bool) {
        self.steps = if is_finite { self.steps + 1 } else { 0 };
        if !is_finite {
            self.factor = (self.factor / 2.0).max(Self::FACTOR_MIN);
        } else if self.steps == Self::GROWTH_STEPS {
            (self.factor, self.steps) = ((self.factor * 2.0).min(Self::FACTOR_MAX), 0);
        }
    }

    /// Returns `true` if a smaller factor may help.
    pub(crate) fn may_shrink(&self) -> bool {
        self.factor > Self::FACTOR_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_shrinks_and_grows_as_that_of_pytorch() {
        let mut scale = LossScale::default();
        scale.observe(false);
        assert_eq!(scale.factor, 32768.0);
        (0..1999).for_each(|_| scale.observe(true));
        assert_eq!(scale.factor, 32768.0);
        scale.observe(true);
        assert_eq!((scale.factor, scale.steps), (65536.0, 0));
        (0..100).for_each(|_| scale.observe(false));
        assert!(scale.factor == 1.0 && !scale.may_shrink());
    }
}
