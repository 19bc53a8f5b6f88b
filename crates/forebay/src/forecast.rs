//! Forecast: what a plan expects of the machine, and a new plan where the machine turns out to be another.
//!
//! A plan is a function of costs. The first are estimates; the first step measures the real ones, and every later step is
//! compared with what was predicted. No result depends on it: every plan computes the same bits.

use std::collections::BTreeSet;

use forebay_plan::cost::Costs;
use forebay_plan::simulate::simulate;
use forebay_plan::{Plan, costs_of_parts};
use forebay_runtime::profile::{Link, Profile, Workers};
use forebay_runtime::{Executor, StepTimes};

/// A step that takes longer or shorter than predicted by this factor is off.
const OFF_RATIO: f64 = 1.25;
/// This many steps in a row must be off before a plan is made again.
const OFF_STEPS: usize = 3;
/// A new plan must promise to take at most this part of the old one's time: making room for it costs time, too.
const GAIN: f64 = 0.98;

/// What a plan expects, and what was measured.
pub(crate) struct Forecast {
    costs: Costs,
    profile: Profile,
    /// Whether the costs are measured.
    measured: bool,
    /// Whether a step has run that warmed up the device.
    is_warm: bool,
    /// Steps in a row that were off.
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
    /// The first step was measured; or the second one, where the search for a plan goes on while steps run
    /// ([`PlanSearch::Continued`](crate::PlanSearch::Continued)).
    FirstStep,
    /// Steps take another time than predicted.
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
    /// Why.
    pub reason: ReplanReason,
    /// Seconds that the step took after which this was decided.
    pub measured_seconds: f64,
    /// Seconds that had been predicted for it.
    pub predicted_seconds: f64,
    /// Seconds that the old plan would take with the measured costs, as predicted now.
    pub old_seconds: f64,
    /// Seconds that the new plan will take, as predicted now.
    pub new_seconds: f64,
}

impl Forecast {
    /// Nothing measured yet.
    pub(crate) fn new(costs: Costs) -> Forecast {
        Forecast { costs, profile: Profile::default(), measured: false, is_warm: false, off: 0 }
    }

    /// The costs that plans are made with.
    pub(crate) fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Looks at a step that has just run; says whether it is time to plan again, with the measured costs: after the first step, or after the
    /// second one where the first `warms_up` the device (it compiles kernels, for example) and is not counted.
    pub(crate) fn watch(
        &mut self,
        plan: &Plan,
        executor: &Executor,
        times: StepTimes,
        warms_up: bool,
    ) -> Option<ReplanReason> {
        let is_cold = warms_up && !self.is_warm;
        if self.is_warm && !self.measured {
            // What the first step took is not what the others take.
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

    /// Seconds that a step of the plan takes with what was measured so far, as predicted.
    pub(crate) fn predicted_seconds(&self, plan: &Plan) -> f64 {
        simulate(plan, &costs_of_parts(&self.measured_costs(), &plan.shares)).step_ns as f64 / 1e9
    }

    /// Predicts a plan's step with the costs that plans are made with.
    pub(crate) fn predict(&self, plan: &mut Plan) {
        plan.statistics.predicted_ns = simulate(plan, &costs_of_parts(&self.costs, &plan.shares)).step_ns;
    }

    /// The costs, with the durations that the latest steps measured.
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

    /// Whether `new` is worth to take over from `old`; and what to tell of it. The old plan's predicted time is made true.
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
