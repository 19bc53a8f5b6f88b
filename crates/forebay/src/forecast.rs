//! Forecasts: what a plan expects of the machine, and a new plan if the machine turns out to be different.
//!
//! A plan is a function of costs. The first costs are estimates. The first step measures the real ones, and every later step is compared
//! with its prediction. No result depends on this: every plan computes the same bits.

use std::collections::BTreeSet;

use forebay_plan::cost::Costs;
use forebay_plan::simulate::simulate;
use forebay_plan::{Plan, costs_of_parts};
use forebay_runtime::profile::{Link, Profile, Workers};
use forebay_runtime::{Executor, StepTimes};

/// A step is off if it takes longer or shorter than predicted by this factor.
const OFF_RATIO: f64 = 1.25;
/// This many steps in a row must be off before the step is planned again.
const OFF_STEPS: usize = 3;
/// A new plan must promise to take at most this fraction of the old one's time, because making room for it takes time, too.
const GAIN: f64 = 0.98;

/// What a plan expects and what was measured.
pub(crate) struct Forecast {
    costs: Costs,
    profile: Profile,
    /// Whether the costs are measured.
    measured: bool,
    /// Whether a step that warms up the device has run.
    is_warm: bool,
    /// The number of steps in a row that were off.
    off: usize,
}

/// Why a plan was made again.
///
/// ```
/// use forebay::{Model, ReplanReason, Tensor, Trainer};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let mut trainer = Trainer::builder(&model).device_memory("60%".parse()?).build()?;
/// # let (x, labels) = (Tensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]), Tensor::from_i64(&[50], &[7; 50]));
/// # let batch = std::collections::BTreeMap::from([("x".to_string(), x)]);
/// if let Some(replan) = trainer.step(batch, labels)?.replan {
///     assert_eq!(replan.reason, ReplanReason::FirstStep); // later ones are for drift
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplanReason {
    /// The first step was measured, or the second one if the search for a plan continues while steps run
    /// ([`PlanSearch::Continued`](crate::PlanSearch::Continued)).
    FirstStep,
    /// Steps take longer or shorter than predicted.
    Drift,
}

/// A plan that was made again and takes over at the next step.
///
/// ```
/// use forebay::{Model, Tensor, Trainer};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let mut trainer = Trainer::builder(&model).device_memory("60%".parse()?).build()?;
/// # let (x, labels) = (Tensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]), Tensor::from_i64(&[50], &[7; 50]));
/// # let batch = std::collections::BTreeMap::from([("x".to_string(), x)]);
/// if let Some(replan) = trainer.step(batch, labels)?.replan {
///     assert!(replan.new_seconds < replan.old_seconds);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Replan {
    /// Why the plan was made again.
    pub reason: ReplanReason,
    /// The duration in seconds of the step after which this was decided.
    pub measured_seconds: f64,
    /// The duration in seconds that had been predicted for that step.
    pub predicted_seconds: f64,
    /// The duration in seconds now predicted for the old plan, with the measured costs.
    pub old_seconds: f64,
    /// The duration in seconds now predicted for the new plan.
    pub new_seconds: f64,
}

impl Forecast {
    /// Creates a forecast for which nothing has been measured yet.
    pub(crate) fn new(costs: Costs) -> Forecast {
        Forecast { costs, profile: Profile::default(), measured: false, is_warm: false, off: 0 }
    }

    /// Returns the costs that plans are made with.
    pub(crate) fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Checks a step that has just run, and returns why it is time to plan again with the measured costs, if it is: after the first step,
    /// or after the second one if the first `warms_up` the device (by compiling kernels, for example) and is not counted.
    pub(crate) fn watch(
        &mut self,
        plan: &Plan,
        executor: &Executor,
        times: StepTimes,
        warms_up: bool,
    ) -> Option<ReplanReason> {
        let is_cold = warms_up && !self.is_warm;
        if self.is_warm && !self.measured {
            // The durations of the first step differ from those of the others.
            self.profile = Profile::default();
        }
        self.is_warm = true;
        let Costs { workers, launch_workers, copy_worker_ns_per_byte, host_workers, .. } =
            costs_of_parts(&self.costs, &plan.shares);
        let updates: BTreeSet<u32> = plan.host_updates().collect();
        let workers = Workers {
            count: workers,
            of_launches: &launch_workers,
            copy_ns_per_byte: copy_worker_ns_per_byte,
            host: (host_workers > 0.0).then_some((host_workers, &updates)),
        };
        executor.add_to_profile(&mut self.profile, times, workers);
        if is_cold {
            return None;
        }
        let ratio = times.total.as_nanos() as f64 / plan.statistics.predicted_ns.max(1) as f64;
        self.off = if (1.0 / OFF_RATIO..OFF_RATIO).contains(&ratio) { 0 } else { self.off + 1 };
        let reason = match self.measured {
            false => ReplanReason::FirstStep,
            true if self.off >= OFF_STEPS => ReplanReason::Drift,
            true => return None,
        };
        self.measured = true;
        self.off = 0;
        self.costs = self.measured_costs();
        Some(reason)
    }

    /// Returns the predicted duration of the plan's step in seconds, given what has been measured so far.
    pub(crate) fn predicted_seconds(&self, plan: &Plan) -> f64 {
        simulate(plan, &costs_of_parts(&self.measured_costs(), &plan.shares)).step_ns as f64 / 1e9
    }

    /// Predicts the duration of a plan's step from the costs that plans are made with.
    pub(crate) fn predict(&self, plan: &mut Plan) {
        plan.statistics.predicted_ns = simulate(plan, &costs_of_parts(&self.costs, &plan.shares)).step_ns;
    }

    /// Returns the costs with the durations measured in the latest steps.
    pub(crate) fn measured_costs(&self) -> Costs {
        let mut costs = self.costs.clone();
        let measured = self.profile.launch_ns();
        for (label, cost) in (0..).zip(&mut costs.launch_ns) {
            *cost = measured.get(&label).copied().unwrap_or(*cost);
        }
        costs.copy_worker_ns_per_byte = self.profile.copy_worker_ns_per_byte().unwrap_or(costs.copy_worker_ns_per_byte);
        costs.step_ns = self.profile.step_ns().unwrap_or(costs.step_ns);
        for (way, link) in [
            (&mut costs.link.to_device, Link::ToDevice),
            (&mut costs.link.from_device, Link::FromDevice),
            (&mut costs.disk.read, Link::FromDisk),
            (&mut costs.disk.write, Link::ToDisk),
        ] {
            way.bytes_per_second = self.profile.bytes_per_ns(link).map_or(way.bytes_per_second, |rate| rate * 1e9);
        }
        costs
    }

    /// Returns what to report if it is worth replacing `old` with `new`. Corrects the old plan's predicted time.
    pub(crate) fn compare(&self, old: &mut Plan, new: &Plan, reason: ReplanReason, times: StepTimes) -> Option<Replan> {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let predicted_seconds = seconds(old.statistics.predicted_ns);
        self.predict(old);
        old.statistics.in_core_predicted_ns = new.statistics.in_core_predicted_ns;
        // The bound of another order, or of other barriers, may be a little higher.
        old.statistics.lower_bound_ns = new.statistics.lower_bound_ns.min(old.statistics.predicted_ns);
        let (old_seconds, new_seconds) = (seconds(old.statistics.predicted_ns), seconds(new.statistics.predicted_ns));
        (new_seconds <= old_seconds * GAIN).then_some(Replan {
            reason,
            measured_seconds: times.total.as_secs_f64(),
            predicted_seconds,
            old_seconds,
            new_seconds,
        })
    }
}
