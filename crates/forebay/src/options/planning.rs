//! How to plan, and what to measure.

use forebay_plan::{LaunchOrder, SavedCosts};

/// Whether operators may run on the host that the device cannot run.
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
    /// Those that the device cannot run. Their operands are copied to the host and back within the step, as the plan says.
    #[default]
    Needed,
    /// None: an operator that the device cannot run is an error, which names it and what the device lacks.
    Never,
}

impl HostOperators {
    /// All of them.
    pub const ALL: [HostOperators; 2] = [HostOperators::Needed, HostOperators::Never];

    /// As it is written on the command line.
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
    /// On the device, to which state comes as far as it does not stay there.
    #[default]
    Device,
    /// On the host's processor, in host memory: state never crosses the link. Gradients cross it to the host, as soon as they are there, and
    /// parameters to the device. Where the device's memory is the host's, this changes nothing. Results have the bits of the host
    /// device's kernels, whatever the budget.
    Host,
}

impl Updates {
    /// All of them.
    pub const ALL: [Updates; 2] = [Updates::Device, Updates::Host];

    /// As it is written on the command line.
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
    /// A program of more than 500 launches begins with the first plan that is found. The search goes on while steps run, and a better plan
    /// takes over between two of them ([`Replan`](crate::Replan)). When it does depends on how fast the machine is; results do not depend on
    /// it. Within a limit on the process, and for a machine that is only described, all of the search comes before the first step.
    #[default]
    Continued,
    /// All of the search comes before the first step. On two cores that takes up to half a minute for two thousand launches, and up to two
    /// minutes for ten thousand.
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
    /// Durations to plan with until others are measured; estimates where not given. They are those of one model and batch size:
    /// a trainer's plans for other batch sizes, and for evaluation, begin with estimates.
    pub costs: Option<SavedCosts>,
    /// Whether operators are merged: neighbouring kernels become one, and the pieces of a concatenation are computed in
    /// their place.
    pub fuse: bool,
    /// In which order launches are planned. No result depends on it.
    pub order: LaunchOrder,
    /// Whether operators may run on the host that the device cannot run.
    pub host_operators: HostOperators,
    /// Where training steps update parameters and the optimizer's state.
    pub updates: Updates,
    /// How long to look for the fastest plan within a budget.
    pub search: PlanSearch,
    /// Whether every plan is checked for races and lost data before it runs. Always so in debug builds.
    pub check: bool,
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
    /// Whether to keep when every command ran: see [`Session::trace`](crate::Session::trace) and
    /// [`Trainer::trace`](crate::Trainer::trace).
    pub trace: bool,
}
