//! How far a training run is, next to its tensors: what steps change that no plan holds.

use serde::{Deserialize, Serialize};

use crate::schedule::PlateauState;

/// What a checkpoint keeps next to tensors and the number of the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Progress {
    /// What a plateau has seen.
    pub(crate) plateau: PlateauState,
    /// Steps whose update was left out.
    pub(crate) skipped: u64,
}
