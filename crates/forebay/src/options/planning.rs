//! How to plan, and what to measure.

use forebay_plan::{LaunchOrder, SavedCosts};

/// How a step is planned.
///
/// ```
/// let mut planning = forebay::PlanningOptions::default();
/// planning.order = forebay::LaunchOrder::File;
/// assert!(planning.fuse && planning.costs.is_none());
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlanningOptions {
    /// Durations to plan with until others are measured; estimates where not given. They are those of one model and batch size:
    /// a trainer's plans for other batch sizes, and for evaluation, begin with estimates.
    pub costs: Option<SavedCosts>,
    /// Whether operators are merged: neighbouring kernels become one, and the pieces of a concatenation are computed in
    /// their place.
    pub fuse: bool,
    /// In which order launches are planned. No result depends on it.
    pub order: LaunchOrder,
    /// Whether every plan is checked for races and lost data before it runs. Always so in debug builds.
    pub check: bool,
}

impl Default for PlanningOptions {
    fn default() -> PlanningOptions {
        PlanningOptions { costs: None, fuse: true, order: LaunchOrder::default(), check: false }
    }
}

/// What is measured while steps run, besides their durations.
///
/// ```
/// let mut measuring = forebay::MeasuringOptions::default();
/// measuring.trace = true;
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct MeasuringOptions {
    /// Whether to keep when every command ran: see [`Session::trace`](crate::Session::trace) and
    /// [`Trainer::trace`](crate::Trainer::trace).
    pub trace: bool,
}
