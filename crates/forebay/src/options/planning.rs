//! How to plan, and what to measure.

use forebay_plan::{LaunchOrder, SavedCosts, StopRequest};

/// Whether operators that the device cannot run may run on the host.
///
/// ```
/// use forebay::HostOperators;
///
/// assert_eq!(HostOperators::default(), HostOperators::Needed);
/// assert_eq!(HostOperators::ALL.map(HostOperators::name), ["needed", "never"]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostOperators {
    /// Operators that the device cannot run may run on the host. Their operands are copied to the host and back within the step, as
    /// planned.
    #[default]
    Needed,
    /// No operator may run on the host. One that the device cannot run is an error, which names it and what the device lacks.
    Never,
}

impl HostOperators {
    /// All variants.
    pub const ALL: [HostOperators; 2] = [HostOperators::Needed, HostOperators::Never];

    /// Returns the name that is used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            HostOperators::Needed => "needed",
            HostOperators::Never => "never",
        }
    }
}

/// Where a training step updates parameters and the optimizer's state.
///
/// ```
/// use forebay::Updates;
///
/// assert_eq!(Updates::default(), Updates::Device);
/// assert_eq!(Updates::ALL.map(Updates::name), ["device", "host"]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Updates {
    /// On the device. State that does not stay there is copied to it.
    #[default]
    Device,
    /// On the host's processor, in host memory, so that state never crosses the link. Gradients cross it to the host as soon as they are
    /// available, and parameters cross it to the device. If the device's memory is the host's, this changes nothing. Results have the bits
    /// of the host device's kernels, whatever the budget.
    Host,
}

impl Updates {
    /// All variants.
    pub const ALL: [Updates; 2] = [Updates::Device, Updates::Host];

    /// Returns the name that is used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Updates::Device => "device",
            Updates::Host => "host",
        }
    }
}

/// How long to look for the fastest plan within a budget.
///
/// ```
/// use forebay::PlanSearch;
///
/// assert_eq!(PlanSearch::default(), PlanSearch::Continued);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanSearch {
    /// A program of more than 500 launches starts with the first plan that is found.
    ///
    /// The search continues while steps run, and a better plan takes over between two steps ([`Replan`](crate::Replan)). The time at which
    /// that happens depends on the speed of the machine; results do not. With a limit on the process, and for a machine that is only
    /// described, the whole search takes place before the first step.
    #[default]
    Continued,
    /// The whole search takes place before the first step. On two cores, it takes up to half a minute for two thousand launches, and up to
    /// two minutes for ten thousand.
    Whole,
}

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
    /// The durations to plan with until others are measured; by default, estimates. They apply to one model and batch size: a trainer's
    /// plans for other batch sizes and for evaluation start with estimates.
    pub costs: Option<SavedCosts>,
    /// Whether operators are fused: neighboring kernels become one, and the pieces of a concatenation are computed in their place.
    pub fuse: bool,
    /// The order in which launches are planned. Results do not depend on it.
    pub order: LaunchOrder,
    /// Whether operators that the device cannot run may run on the host.
    pub host_operators: HostOperators,
    /// Where training steps update parameters and the optimizer's state.
    pub updates: Updates,
    /// How long to look for the fastest plan within a budget.
    pub search: PlanSearch,
    /// Whether every plan is checked for races and lost data before it runs. Debug builds always check.
    pub check: bool,
    /// A request to stop planning. Whatever needs a plan then fails with [`PlanError::Stopped`](crate::PlanError::Stopped); values stay as
    /// they are.
    pub stop: StopRequest,
}

impl Default for PlanningOptions {
    fn default() -> PlanningOptions {
        PlanningOptions {
            costs: None,
            fuse: true,
            order: LaunchOrder::default(),
            host_operators: HostOperators::default(),
            updates: Updates::default(),
            search: PlanSearch::default(),
            check: false,
            stop: StopRequest::default(),
        }
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
    /// Whether to record when every command ran: see [`Session::trace`](crate::Session::trace) and
    /// [`Trainer::trace`](crate::Trainer::trace).
    pub trace: bool,
}
