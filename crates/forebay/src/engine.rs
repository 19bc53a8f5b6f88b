//! One device, one plan on it at a time, and the values that outlive plans.
//!
//! A trainer has several plans: one per batch size, and one for evaluation. Two of them at once would not fit a budget
//! that one of them fills, so the values of parameters and state move to the host (or the disk, see [`crate::handover`]), the
//! old plan gives everything back, and only then the new one takes what it needs.

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
    /// The same, whose gradients can be read.
    TrainingWithGradients,
    /// A forward pass of a trainer.
    Inference,
    /// A stage of a session; plans are numbered.
    Session,
}

/// A plan that waits on the device.
struct Parked {
    key: PlanKey,
    runner: Runner,
    shared: Vec<Arc<Block>>,
}

/// A device with at most one plan on it.
pub(crate) struct Engine {
    machine: LimitedDevice,
    active: Option<(PlanKey, Runner)>,
    /// Other plans that are still on the device, the one that ran last at the end: only of plans without values that outlive them.
    parked: Vec<Parked>,
    /// Memory that plans on the device share.
    blocks: PlacedBlocks,
    /// What the active plan uses of that.
    shared: Vec<Arc<Block>>,
    /// Whether a better plan than the active one waits for the next step.
    stale: bool,
    /// Types of parameters and state.
    types: BTreeMap<String, TensorType>,
    /// Values of parameters and state, but for those that are in the active plan alone.
    values: BTreeMap<String, Contents>,
    /// Names of those.
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

    /// What runs a plan, with the newest values; what was on the device before is given back first.
    ///
    /// # Errors
    /// What the device reports. The values are then safe on the host.
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

    /// Makes room for a plan: the active one stays on the device where both fit and no value outlives it, next to those that ran before.
    ///
    /// # Errors
    /// As [`Engine::retire`].
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

    /// Gives back what a plan has on the device: it is not used again.
    pub(crate) fn forget(&mut self, key: PlanKey) {
        self.parked.retain(|parked| parked.key != key);
        if self.active.as_ref().is_some_and(|(active, _)| *active == key) {
            self.active = None;
        }
    }

    /// Puts a plan on the device, and the newest values into it. What the plan alone has from then on leaves memory value by value,
    /// so that it is never there twice.
    ///
    /// # Errors
    /// What the device reports. The values are then where they were, or in a plan that is taken apart before the next one comes.
    fn put_on_device(&mut self, (purpose, batch_size): PlanKey, compiled: &Compiled) -> Result<(), Error> {
        if self.machine.process_limit().is_some() {
            // The limit leaves room for the code of one plan's steps, and not for what ran before them, too.
            forebay_device::process::give_back();
        }
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
        // What may have to be read from files comes first: where that fails, no value has moved.
        for name in runner.missing().iter().filter(|name| !self.values.contains_key(*name)) {
            runner.load(name, compiled.contents.get(name))?;
        }
        if self.machine.options.measuring.trace {
            runner.start_trace();
        }
        let (_, runner) = self.active.insert(((purpose, batch_size), runner));
        let names: Vec<String> = self.values.keys().filter(|name| has(name)).cloned().collect();
        // Values that take no memory of their own stay until all is there.
        let mut kept = Vec::new();
        let mut move_in = |name: String| {
            let value = &self.values[&name];
            runner.load(&name, Some(value))?;
            // Steps of training change it. An evaluation only reads it: what is in a file may stay there.
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
                // The others can still be read.
                let _ = self.machine.device.recover();
            }
            return Err(error.into());
        }
        Ok(())
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

    /// Before another plan is made within a limit on the process: what is on the device goes, so that planning has its memory, and what else
    /// the process takes by now can be measured.
    ///
    /// # Errors
    /// As [`Engine::retire`].
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

    /// Brings the values out of the active plan, into a file where there is a folder for what exceeds memory, and gives back what is on
    /// the device.
    ///
    /// # Errors
    /// What the device reports; the plan then stays where it is.
    pub(crate) fn retire(&mut self) -> Result<(), Error> {
        match self.machine.options.memory.spill_dir.clone() {
            Some(folder) => (self.values, self.in_plan) = (self.copies(Some(&folder))?, BTreeSet::new()),
            None => self.move_to_memory()?,
        }
        self.keep_traces();
        (self.active, self.stale) = (None, false);
        Ok(())
    }

    /// Moves the values that the active plan has to memory. It gives up the memory of each that has moved.
    fn move_to_memory(&mut self) -> Result<(), Error> {
        let Some((_, runner)) = self.active.as_mut().filter(|_| !self.in_plan.is_empty()) else { return Ok(()) };
        // No step runs there any more, even if this ends half-way.
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

    /// The newest values as they are now, whatever steps change later: in memory, or in a file without a name where there is a
    /// folder for what exceeds memory and the folder takes it.
    ///
    /// # Errors
    /// What the device reports.
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

    /// The types of parameters and state.
    pub(crate) fn types(&self) -> &BTreeMap<String, TensorType> {
        &self.types
    }

    /// The newest value of a parameter or of state, in memory; none where there is none of this name.
    ///
    /// # Errors
    /// What the device reports, and initial values that cannot be read.
    pub(crate) fn value(&self, name: &str) -> Result<Option<Tensor>, Error> {
        match self.newest(name) {
            Some(runner) => Ok(Some(runner.read_persistent(name)?)),
            None => Ok(self.values.get(name).map(Contents::to_tensor).transpose()?),
        }
    }

    /// Gives the newest value of a parameter or of state in pieces.
    ///
    /// # Errors
    /// What the device reports, initial values that cannot be read, or what `take` gives.
    pub(crate) fn give(&self, name: &str, take: Take) -> Result<(), Error> {
        match (self.newest(name), self.values.get(name)) {
            (Some(runner), _) => give_persistent(runner, name, take),
            (None, Some(value)) => value.give_in_pieces(take),
            (None, None) => Err(Error::Option { reason: format!("'{name}' is no parameter or state") }),
        }
    }

    /// The plan on the device, where that has the newest value of this name.
    fn newest(&self, name: &str) -> Option<&Runner> {
        self.active.as_ref().filter(|_| self.in_plan.contains(name)).map(|(_, runner)| runner)
    }

    /// Replaces values; what is on the device is given back.
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

    /// Everything that was traced so far, as one document. Each plan is a process of its own in the viewer.
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

/// Bytes that a plan takes of the device and the host, and those of memory that it shares with others, unless that was counted before.
fn bytes_with(plan: &Plan, shared: &[Arc<Block>], counted: &mut BTreeSet<u32>) -> u64 {
    let shared_bytes: u64 = shared.iter().map(|block| block.size_bytes).sum();
    let new = shared.iter().filter(|block| counted.insert(block.number)).map(|block| block.size_bytes);
    let own_bytes = plan.statistics.device_peak_bytes.saturating_sub(shared_bytes);
    own_bytes.saturating_add(plan.statistics.host_bytes).saturating_add(new.sum())
}

fn types(values: &BTreeMap<String, Contents>) -> BTreeMap<String, TensorType> {
    values.iter().map(|(name, value)| (name.clone(), value.ty().clone())).collect()
}
