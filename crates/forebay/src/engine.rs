//! One device, one plan on it at a time, and the values that outlive plans.
//!
//! A trainer has several plans: one per batch size, and one for evaluation. Two of them at once would not fit a budget that one of them
//! fills. The values of parameters and state therefore move to the host (or to disk, see [`crate::handover`]), the old plan gives
//! everything back, and only then does the new one take what it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_device::DeviceUsage;
use forebay_model::tensor::Contents;
use forebay_model::{Tensor, TensorType};
use forebay_plan::Plan;
use forebay_runtime::StepTimes;
use forebay_runtime::trace::{Trace, document};
use serde_json::Value;

use crate::compile::Compiled;
use crate::error::Error;
use crate::forecast::Replan;
use crate::handover::{Handover, in_memory};
use crate::machine::LimitedDevice;
use crate::pieces::{Take, give_persistent};
use crate::runner::Runner;
use crate::weights::{Block, PlacedBlocks, parking_bytes};

/// What a plan is for, and the number of its sizes or of the plan.
pub(crate) type PlanKey = (Purpose, u64);

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// One training step.
    Training,
    /// One training step, whose gradients can be read.
    TrainingWithGradients,
    /// A forward pass of a trainer.
    Inference,
    /// A stage of a session; plans are numbered.
    Session,
}

/// A plan that stays on the device while it is not active.
struct Parked {
    key: PlanKey,
    runner: Runner,
    shared: Vec<Arc<Block>>,
}

/// A device with at most one plan on it.
pub(crate) struct Engine {
    machine: LimitedDevice,
    active: Option<(PlanKey, Runner)>,
    /// Other plans that are still on the device, the most recently run last. Only plans without values that outlive them are kept here.
    parked: Vec<Parked>,
    /// Memory that plans on the device share.
    blocks: PlacedBlocks,
    /// The shared memory that the active plan uses.
    shared: Vec<Arc<Block>>,
    /// Whether a better plan than the active one is waiting for the next step.
    stale: bool,
    /// Types of parameters and state.
    types: BTreeMap<String, TensorType>,
    /// Values of parameters and state, except those that only the active plan has.
    values: BTreeMap<String, Contents>,
    /// Names of the values that only the active plan has.
    in_plan: BTreeSet<String>,
    traces: Vec<(PlanKey, Trace)>,
}

impl Engine {
    pub(crate) fn new(machine: LimitedDevice, values: BTreeMap<String, Contents>) -> Engine {
        let types = types(&values);
        Engine {
            machine,
            active: None,
            parked: Vec::new(),
            blocks: PlacedBlocks::default(),
            shared: Vec::new(),
            stale: false,
            types,
            values,
            in_plan: BTreeSet::new(),
            traces: Vec::new(),
        }
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

    /// Returns the runner of a plan, with the newest values. What was on the device before is given back first.
    ///
    /// # Errors
    /// Fails if the device reports an error. The values are then safe on the host.
    pub(crate) fn activate(&mut self, key: PlanKey, compiled: &Compiled) -> Result<&mut Runner, Error> {
        if self.stale || self.active.as_ref().is_none_or(|(active, _)| *active != key) {
            self.park_or_retire(compiled)?;
            match self.parked.iter().position(|parked| parked.key == key) {
                Some(place) => {
                    let Parked { key, runner, shared } = self.parked.remove(place);
                    (self.active, self.shared) = (Some((key, runner)), shared);
                }
                None => self.put_on_device(key, compiled)?,
            }
        }
        match &mut self.active {
            Some((_, runner)) => Ok(runner),
            None => unreachable!("it was made above"),
        }
    }

    /// Makes room for a plan. The active one stays on the device, next to those that ran before, if both fit and no value outlives it.
    ///
    /// # Errors
    /// Same as [`Engine::retire`].
    fn park_or_retire(&mut self, next: &Compiled) -> Result<(), Error> {
        if self.stale || !self.types.is_empty() {
            return self.retire();
        }
        self.keep_traces();
        let shared = std::mem::take(&mut self.shared);
        self.parked.extend(self.active.take().map(|(key, runner)| Parked { key, runner, shared }));
        let mut counted = BTreeSet::new();
        let taken_bytes = bytes_with(next.step.plan(), &next.shared, &mut counted);
        let mut free_bytes = parking_bytes(&self.machine).saturating_sub(taken_bytes);
        let mut kept = self.parked.len();
        while let Some(parked) = kept.checked_sub(1).and_then(|last| self.parked.get(last)) {
            let taken_bytes = bytes_with(parked.runner.plan(), &parked.shared, &mut counted);
            let Some(left) = free_bytes.checked_sub(taken_bytes) else { break };
            (free_bytes, kept) = (left, kept - 1);
        }
        self.parked.drain(..kept);
        Ok(())
    }

    /// Gives back what a plan has on the device. If the plan is activated again, it is put on the device again.
    pub(crate) fn forget(&mut self, key: PlanKey) {
        self.parked.retain(|parked| parked.key != key);
        if self.active.as_ref().is_some_and(|(active, _)| *active == key) {
            self.active = None;
        }
    }

    /// Puts a plan on the device, and the newest values into it. Values that only the plan has from then on leave memory one by one, so
    /// that they are never held twice.
    ///
    /// # Errors
    /// Fails if the device reports an error. The values are then where they were, or in a plan that is retired before the next one is
    /// activated.
    fn put_on_device(&mut self, (purpose, batch_size): PlanKey, compiled: &Compiled) -> Result<(), Error> {
        let has_limit = self.machine.process_limit().is_some();
        if has_limit {
            // The limit leaves room for the code of one plan's steps, but not also for what ran before them.
            forebay_device::process::give_back();
        }
        // Nor does it leave room for values both in memory and on the device.
        self.machine.device.allocate_late(has_limit);
        let has = |name: &str| {
            compiled.step.plan().persistent.iter().any(|backing| backing.name == name && !backing.pieces.is_empty())
        };
        let all = || {
            let newest = self.values.iter().filter(|(name, _)| has(name));
            let mut contents = compiled.contents.clone();
            contents.extend(newest.map(|(name, value)| (name.clone(), value.clone())));
            contents
        };
        let shared = self.blocks.bring(&self.machine.device, &compiled.shared)?;
        let mut runner = Runner::new(self.machine.device.clone(), &compiled.step, &all, shared)?;
        self.shared.clone_from(&compiled.shared);
        // What may have to be read from files comes first: if that fails, no value has moved.
        for name in runner.missing().iter().filter(|name| !self.values.contains_key(*name)) {
            runner.load(name, compiled.contents.get(name))?;
        }
        if self.machine.options.measuring.trace {
            runner.start_trace();
        }
        let (_, runner) = self.active.insert(((purpose, batch_size), runner));
        let names: Vec<String> = self.values.keys().filter(|name| has(name)).cloned().collect();
        // Values that take no memory of their own are kept until everything is loaded.
        let mut kept = Vec::new();
        let mut move_in = |name: String| {
            let value = &self.values[&name];
            runner.load(&name, Some(value))?;
            // Training steps change the value. An evaluation only reads it, so a value in a file can stay there.
            let trains = matches!(purpose, Purpose::Training | Purpose::TrainingWithGradients);
            if trains || value.is_held() {
                let value = self.values.remove(&name).filter(|value| !value.is_held());
                kept.extend(value.map(|value| (name.clone(), value)));
                self.in_plan.insert(name);
            }
            Ok(())
        };
        let loaded = names.into_iter().try_for_each(&mut move_in);
        if let Err(error) = loaded.and_then(|()| runner.complete()) {
            for (name, value) in kept {
                self.in_plan.remove(&name);
                self.values.insert(name, value);
            }
            self.stale = true;
            if self.in_plan.is_empty() {
                self.active = None;
            } else {
                // The other values can still be read.
                let _ = self.machine.device.recover();
            }
            return Err(error.into());
        }
        Ok(())
    }

    /// Checks the step that the active plan has just run. If a better plan has replaced it, the old one is removed before the next step.
    ///
    /// # Errors
    /// Fails if a new plan breaks an invariant (a defect).
    pub(crate) fn watch(&mut self, compiled: &mut Compiled, times: StepTimes) -> Result<Option<Replan>, Error> {
        let Some((_, runner)) = &self.active else { return Ok(None) };
        let replan = compiled.watch(runner, times, &self.machine)?;
        self.stale |= replan.is_some();
        Ok(replan)
    }

    /// Removes what is on the device, within a limit on the process, before another plan is made or data is read for one. That can then use
    /// the memory, and what else the process takes by now can be measured.
    ///
    /// # Errors
    /// Same as [`Engine::retire`].
    pub(crate) fn make_room_to_plan(&mut self) -> Result<(), Error> {
        if self.machine.process_limit().is_none() || self.active.is_none() {
            return Ok(());
        }
        self.retire()?;
        let held = self.values.values().filter(|value| value.is_held());
        let bytes = held.map(|value| value.ty().checked_size_bytes().unwrap_or(0)).fold(0, u64::saturating_add);
        self.machine.waiting_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Returns what the plan on the device is for.
    pub(crate) fn active_purpose(&self) -> Option<Purpose> {
        self.active.as_ref().map(|((purpose, _), _)| *purpose)
    }

    /// Moves the values out of the active plan, into a file if there is a spill folder, and gives back what is on the device.
    ///
    /// # Errors
    /// Fails if the device reports an error; the plan then stays where it is.
    pub(crate) fn retire(&mut self) -> Result<(), Error> {
        match self.machine.options.memory.spill_dir.clone() {
            Some(folder) => (self.values, self.in_plan) = (self.copies(Some(&folder))?, BTreeSet::new()),
            None => self.move_to_memory()?,
        }
        self.keep_traces();
        (self.active, self.stale) = (None, false);
        Ok(())
    }

    /// Moves the active plan's values to memory. The plan gives up the memory of each value that has moved.
    fn move_to_memory(&mut self) -> Result<(), Error> {
        let Some((_, runner)) = self.active.as_mut().filter(|_| !self.in_plan.is_empty()) else { return Ok(()) };
        // No step runs there any more, even if this fails half-way.
        self.stale = true;
        runner.release_all_but(&|name| self.in_plan.contains(name));
        while let Some(name) = self.in_plan.first().cloned() {
            let value = in_memory(&name, &self.types[&name], runner)?;
            runner.release_persistent(&name)?;
            self.values.insert(name.clone(), value);
            self.in_plan.remove(&name);
        }
        Ok(())
    }

    /// Returns the newest values as they are now, whatever later steps change: in memory, or in an unnamed file if there is a spill
    /// folder that accepts it.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub(crate) fn snapshot(&self) -> Result<BTreeMap<String, Contents>, Error> {
        let folder = self.machine.options.memory.spill_dir.as_deref();
        self.copies(folder).or_else(|error| if folder.is_some() { self.copies(None) } else { Err(error) })
    }

    fn copies(&self, folder: Option<&Path>) -> Result<BTreeMap<String, Contents>, Error> {
        let in_plan = self.types.iter().filter(|(name, _)| self.newest(name).is_some());
        let sizes = in_plan.map(|(_, ty)| ty.checked_size_bytes().unwrap_or(u64::MAX));
        let mut handover = Handover::new(folder, sizes.fold(0, u64::saturating_add))?;
        for (name, ty) in &self.types {
            match (self.newest(name), self.values.get(name)) {
                (Some(runner), _) => handover.add(name, ty, runner)?,
                (None, Some(value)) => handover.keep(name, value),
                (None, None) => {}
            }
        }
        handover.finish()
    }

    /// Returns the types of parameters and state.
    pub(crate) fn types(&self) -> &BTreeMap<String, TensorType> {
        &self.types
    }

    /// Returns the newest value of a parameter or of state, in memory, or `None` if there is none of this name.
    ///
    /// # Errors
    /// Fails if the device reports an error or initial values cannot be read.
    pub(crate) fn value(&self, name: &str) -> Result<Option<Tensor>, Error> {
        match self.newest(name) {
            Some(runner) => Ok(Some(runner.read_persistent(name)?)),
            None => Ok(self.values.get(name).map(Contents::to_tensor).transpose()?),
        }
    }

    /// Passes the newest value of a parameter or of state to `take`, in pieces.
    ///
    /// # Errors
    /// Fails if the device reports an error, initial values cannot be read, or `take` fails.
    pub(crate) fn give(&self, name: &str, take: Take) -> Result<(), Error> {
        match (self.newest(name), self.values.get(name)) {
            (Some(runner), _) => give_persistent(runner, name, take),
            (None, Some(value)) => value.give_in_pieces(take),
            (None, None) => Err(Error::Option { reason: format!("'{name}' is neither a parameter nor state") }),
        }
    }

    /// Returns the plan on the device, if it has the newest value of this name.
    fn newest(&self, name: &str) -> Option<&Runner> {
        self.active.as_ref().filter(|_| self.in_plan.contains(name)).map(|(_, runner)| runner)
    }

    /// Replaces the values, and gives back what is on the device.
    pub(crate) fn set_values(&mut self, values: BTreeMap<String, Contents>) {
        self.keep_traces();
        (self.active, self.stale) = (None, false);
        (self.types, self.values, self.in_plan) = (types(&values), values, BTreeSet::new());
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

    /// Returns everything traced so far as one document. Each plan is a separate process in the viewer.
    pub(crate) fn trace(&mut self) -> Value {
        self.keep_traces();
        let mut processes: Vec<PlanKey> = self.traces.iter().map(|(key, _)| *key).collect();
        processes.sort_unstable();
        processes.dedup();
        let events = self.traces.iter().flat_map(|(key, trace)| {
            let process = processes.iter().position(|known| known == key).unwrap_or_default() as u32 + 1;
            let name = match key {
                (Purpose::Training, number) => format!("training, sizes {number}"),
                (Purpose::TrainingWithGradients, number) => format!("training with gradients, sizes {number}"),
                (Purpose::Inference, number) => format!("evaluation, sizes {number}"),
                (Purpose::Session, number) => format!("plan {number}"),
            };
            trace.events(process, &name)
        });
        document(events.collect())
    }
}

/// Returns the bytes that a plan takes on the device and the host, including memory that it shares with other plans unless that is
/// already counted.
fn bytes_with(plan: &Plan, shared: &[Arc<Block>], counted: &mut BTreeSet<u32>) -> u64 {
    let shared_bytes: u64 = shared.iter().map(|block| block.size_bytes).sum();
    let new = shared.iter().filter(|block| counted.insert(block.number)).map(|block| block.size_bytes);
    let own_bytes = plan.statistics.device_peak_bytes.saturating_sub(shared_bytes);
    own_bytes.saturating_add(plan.statistics.host_bytes).saturating_add(new.sum())
}

fn types(values: &BTreeMap<String, Contents>) -> BTreeMap<String, TensorType> {
    values.iter().map(|(name, value)| (name.clone(), value.ty().clone())).collect()
}
