//! Budgets of stages that are shares of what a run takes.
//!
//! What a run takes is known once its largest stage is planned, but the stages before it run earlier. One that cannot keep to a share of
//! what is known so far gets the least that it needs; after the run, that must be within the share of the largest stage.

use std::sync::atomic::Ordering;

use forebay_memory::size::MemorySize;
use forebay_plan::{DeviceBudgetSetting, PlanError};

use crate::compile::Compiled;
use crate::error::Error;
use crate::machine::LimitedDevice;

/// How often a stage is planned again with the least that it was found to need.
const TRIES_MAX: usize = 4;

/// The device memory that a stage was granted beyond its share of what was known to be taken.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    bytes: u64,
    /// The launch that needs it.
    launch: String,
    /// The setting that the share comes from.
    setting: DeviceBudgetSetting,
}

/// Returns the share that is the budget, if it is one.
fn share(machine: &LimitedDevice) -> Option<MemorySize> {
    machine.options.memory.device_memory.filter(|size| matches!(size, MemorySize::Percent(_)))
}

/// Plans a stage within its share of the device memory that the run takes, or with the least that it needs.
///
/// # Errors
/// Fails as `plan` does, except for a share that is too small.
pub(crate) fn plan(
    machine: &LimitedDevice,
    mut plan: impl FnMut(&LimitedDevice) -> Result<Compiled, Error>,
) -> Result<(Compiled, Option<Granted>), Error> {
    let (mut result, mut granted) = (plan(machine), None);
    for _ in 0..TRIES_MAX {
        let Err(Error::Plan(PlanError::DeviceBudget { minimum_bytes, launch, setting, .. })) = &result else { break };
        if share(machine).is_none() {
            break;
        }
        granted = Some(Granted { bytes: *minimum_bytes, launch: launch.clone(), setting: *setting });
        result = plan(&machine.with_device_memory(*minimum_bytes));
    }
    Ok((result?, granted))
}

/// The stages of a run.
#[derive(Default)]
pub(crate) struct StageBudget {
    largest: Option<Granted>,
}

impl StageBudget {
    /// Begins a run.
    pub(crate) fn begin(&mut self, machine: &LimitedDevice) {
        self.largest = None;
        machine.stage_bytes.store(0, Ordering::Relaxed);
    }

    /// Records a stage that runs.
    pub(crate) fn note(&mut self, machine: &LimitedDevice, compiled: &Compiled, granted: Option<&Granted>) {
        let in_core_bytes = compiled.plan_as_made().statistics.in_core_peak_bytes;
        machine.stage_bytes.fetch_max(in_core_bytes, Ordering::Relaxed);
        let most_bytes = self.largest.as_ref().map_or(0, |granted| granted.bytes);
        if let Some(granted) = granted.filter(|granted| granted.bytes > most_bytes) {
            self.largest = Some(granted.clone());
        }
    }

    /// Checks, after the run, that no stage was granted more than the share of what the run takes.
    ///
    /// # Errors
    /// Fails if one was.
    pub(crate) fn check(&self, machine: &LimitedDevice) -> Result<(), Error> {
        let (Some(size), Some(Granted { bytes, launch, setting })) = (share(machine), &self.largest) else {
            return Ok(());
        };
        let budget_bytes = size.resolve(machine.stage_bytes.load(Ordering::Relaxed));
        if *bytes <= budget_bytes {
            return Ok(());
        }
        let (minimum_bytes, launch, setting) = (*bytes, launch.clone(), *setting);
        Err(Error::Plan(PlanError::DeviceBudget { budget_bytes, minimum_bytes, launch, setting }))
    }
}
