//! One device, one plan on it at a time, and the values that outlive plans.
//!
//! A trainer has several plans: one per batch size, and one for evaluation. Two of them at once would not fit a budget
//! that one of them fills, so the values of parameters and state move to the host (or the disk, see [`crate::handover`]), the
//! old plan gives everything back, and only then the new one takes what it needs.

use std::collections::BTreeMap;

use forebay_device::DeviceUsage;
use forebay_model::tensor::Contents;
use forebay_model::{Tensor, TensorType};
use forebay_runtime::trace::{document, Trace};
use forebay_runtime::StepTimes;
use serde_json::Value;

use crate::compile::Compiled;
use crate::error::Error;
use crate::forecast::Replan;
use crate::handover::Handover;
use crate::machine::LimitedDevice;
use crate::runner::Runner;

/// What a plan is for: evaluation or not, and the batch size.
pub(crate) type PlanKey = (Purpose, u64);

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// One training step.
    Training,
    /// A forward pass.
    Inference,
}

/// A device with at most one plan on it.
pub(crate) struct Engine {
    machine: LimitedDevice,
    active: Option<(PlanKey, Runner)>,
    /// Whether a better plan than the active one waits for the next step.
    stale: bool,
    /// Values of parameters and state that steps have changed. While a training plan is active, its own are newer.
    values: BTreeMap<String, Contents>,
    traces: Vec<(PlanKey, Trace)>,
}

impl Engine {
    pub(crate) fn new(machine: LimitedDevice, values: BTreeMap<String, Contents>) -> Engine {
        Engine { machine, active: None, stale: false, values, traces: Vec::new() }
    }

    pub(crate) fn machine(&self) -> &LimitedDevice {
        &self.machine
    }

    pub(crate) fn machine_mut(&mut self) -> &mut LimitedDevice {
        &mut self.machine
    }

    pub(crate) fn usage(&self) -> DeviceUsage {
        self.machine.device.usage()
    }

    /// What runs a plan, with the newest values; what was on the device before is given back first.
    ///
    /// # Errors
    /// What the device reports. The values are then safe on the host.
    pub(crate) fn activate(&mut self, key: PlanKey, compiled: &Compiled) -> Result<&mut Runner, Error> {
        if self.stale || self.active.as_ref().is_none_or(|(active, _)| *active != key) {
            self.retire()?;
            let mut contents = compiled.contents.clone();
            for (name, content) in &self.values {
                if compiled.step.plan().persistent.iter().any(|backing| backing.name == *name) {
                    contents.insert(name.clone(), content.clone());
                }
            }
            let mut runner = Runner::new(self.machine.device.clone(), &compiled.step, &contents)?;
            if self.machine.options.measuring.trace {
                runner.start_trace();
            }
            self.active = Some((key, runner));
        }
        match &mut self.active {
            Some((_, runner)) => Ok(runner),
            None => unreachable!("it was made above"),
        }
    }

    /// Looks at the step that the active plan has just run; where a better one has taken its place, the old one goes before the
    /// next step.
    ///
    /// # Errors
    /// A broken invariant of a new plan (a defect).
    pub(crate) fn watch(&mut self, compiled: &mut Compiled, times: StepTimes) -> Result<Option<Replan>, Error> {
        let Some((_, runner)) = &self.active else { return Ok(None) };
        let replan = compiled.watch(runner, times, &self.machine)?;
        self.stale |= replan.is_some();
        Ok(replan)
    }

    /// Brings the values to the host and gives back what is on the device.
    ///
    /// # Errors
    /// What the device reports; the plan then stays where it is.
    pub(crate) fn retire(&mut self) -> Result<(), Error> {
        let total_bytes = self.values.values().fold(0u64, |sum, value| sum.saturating_add(value.size_bytes()));
        let folder = self.machine.options.memory.spill_dir.as_deref();
        let mut handover = Handover::new(folder.filter(|_| self.active.is_some()), total_bytes)?;
        for (name, value) in &self.values {
            handover.add(name, value, self.newest(name))?;
        }
        self.values = handover.finish()?;
        self.keep_traces();
        (self.active, self.stale) = (None, false);
        Ok(())
    }

    /// The newest values of parameters and state, in memory.
    ///
    /// # Errors
    /// What the device reports, and initial values that cannot be read.
    pub(crate) fn values(&self) -> Result<BTreeMap<String, Tensor>, Error> {
        let mut values = BTreeMap::new();
        for name in self.values.keys() {
            if let Some(value) = self.value(name)? {
                values.insert(name.clone(), value.to_tensor()?);
            }
        }
        Ok(values)
    }

    /// The types of parameters and state.
    pub(crate) fn types(&self) -> BTreeMap<String, TensorType> {
        self.values.iter().map(|(name, value)| (name.clone(), value.ty().clone())).collect()
    }

    /// The newest value of a parameter or of state; none where there is none of this name.
    ///
    /// # Errors
    /// What the device reports.
    pub(crate) fn value(&self, name: &str) -> Result<Option<Contents>, Error> {
        let Some(value) = self.values.get(name) else { return Ok(None) };
        match self.newest(name) {
            Some(runner) => Ok(Some(runner.read_persistent(name)?.into())),
            None => Ok(Some(value.clone())),
        }
    }

    /// The plan on the device, where that has the newest value of this name.
    fn newest(&self, name: &str) -> Option<&Runner> {
        let Some(((Purpose::Training, _), runner)) = &self.active else { return None };
        let is_there =
            runner.plan().persistent.iter().any(|backing| backing.name == name && !backing.pieces.is_empty());
        is_there.then_some(runner)
    }

    /// Replaces values; what is on the device is given back.
    pub(crate) fn set_values(&mut self, values: BTreeMap<String, Tensor>) {
        self.keep_traces();
        (self.active, self.stale) = (None, false);
        self.values = values.into_iter().map(|(name, value)| (name, value.into())).collect();
    }

    fn keep_traces(&mut self) {
        if let Some((key, runner)) = &mut self.active {
            if let Some(trace) = runner.take_trace().filter(|trace| !trace.is_empty()) {
                self.traces.push((*key, trace));
            }
            if self.machine.options.measuring.trace {
                runner.start_trace();
            }
        }
    }

    /// Everything that was traced so far, as one document. Each plan is a process of its own in the viewer.
    pub(crate) fn trace(&mut self) -> Value {
        self.keep_traces();
        let mut processes: Vec<PlanKey> = self.traces.iter().map(|(key, _)| *key).collect();
        processes.sort_unstable();
        processes.dedup();
        let events = self.traces.iter().flat_map(|(key, trace)| {
            let process = processes.iter().position(|known| known == key).unwrap_or_default() as u32 + 1;
            let name = match key {
                (Purpose::Training, batch_size) => format!("training, batch {batch_size}"),
                (Purpose::Inference, batch_size) => format!("inference, batch {batch_size}"),
            };
            trace.events(process, &name)
        });
        document(events.collect())
    }
}
