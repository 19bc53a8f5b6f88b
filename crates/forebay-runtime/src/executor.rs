//! Running a plan on a device: obtaining memory, loading, steps, release.
//!
//! A step has two phases. The first computes everything that the outputs need; only the second changes parameters and state. A caller that
//! looks at the outputs in between and stops (because the loss is not a number) finds everything as it was before the step. The host waits
//! only for the outputs: while it looks at them, the rest of the first phase continues. If parameters are on disk, a step writes the new
//! ones to separate places, which become the parameters only once the step has succeeded, so a disk failure loses none either.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use forebay_base::{ByteRange, Command, EventId, Launch, MemoryId, Region, Space, StreamId};
use forebay_device::{Device, DeviceUsage, IndexFault, TraceRecord};
use forebay_model::Tensor;
use forebay_model::tensor::Contents;
use forebay_plan::plan::MemoryKind;
use forebay_plan::{BackingLocation, Plan};

use crate::backing::{
    check_all_backing, check_size, chunks, find, in_pieces, load, padded, read_whole, staging_bytes, tensor,
    tensor_bytes,
};
use crate::binding::{Binding, DiskSources};
use crate::error::RuntimeError;
use crate::feeding::{FedInPlace, give};
use crate::loans::Loans;
use crate::model_files::model_files;
use crate::profile::{Link, Profile, Workers, late_copies};
use crate::releasing;
use crate::step_times::{StepClock, StepTimes};
use crate::trace::Trace;

/// What to do after the first phase of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Run the update phase.
    Continue,
    /// Leave parameters and state as they were before the step.
    Stop,
}

/// The commands of one phase, with the device's ids.
struct Phase {
    commands: Vec<Command>,
    /// The positions of records and waits, each with the plan's event and generation.
    generations: Vec<(usize, usize, u64)>,
    /// How often each event of the plan is recorded.
    records: Vec<u64>,
}

/// A plan on a device. Holds the plan's memories, heaps, streams and events until it is dropped.
pub struct Executor {
    device: Arc<dyn Device>,
    plan: Plan,
    phases: [Phase; 2],
    /// Recorded in the first phase once the outputs are ready; `None` if they are not all written by one stream.
    outputs_event: Option<EventId>,
    /// For each event of the plan, and then the executor's own: how often it has been recorded so far, including the running step.
    recorded: Vec<u64>,
    /// For each event: how often it had been recorded before the running step.
    recorded_before_step: Vec<u64>,
    /// Copies that bring to the device what steps expect to find there, next to the backing locations.
    warm_up: Vec<Command>,
    /// Whether the device holds the results of these copies.
    warmed_up: bool,
    broken: bool,
    trace: Option<Trace>,
    /// The commands of the latest step, with their times.
    records: Vec<TraceRecord>,
    /// For each stream of the device that copies: the direction of the copies.
    links: BTreeMap<StreamId, Link>,
    binding: Binding,
    /// Where inputs are written that are not copied to the device.
    fed_in_place: FedInPlace,
    /// Inputs and outputs that are used in place in the caller's memory.
    loans: Loans,
    /// Memory shared with other plans; it is given back after the binding.
    _shared: Vec<Arc<Executor>>,
}

impl Executor {
    /// Obtains what the plan needs, runs its prologue and loads persistent tensors to their backing locations. A persistent tensor without
    /// contents starts as zeros.
    ///
    /// # Errors
    /// Fails if the device reports an error, if contents have the wrong size, or if the plan uses something that it does not list.
    pub fn new(
        device: Arc<dyn Device>,
        plan: Plan,
        contents: &BTreeMap<String, Contents>,
    ) -> Result<Executor, RuntimeError> {
        Executor::spilling(device, plan, contents, None)
    }

    /// Like [`Executor::new`], for a plan that may spill to disk: its spill files, which have no names, are created in `spill_dir`.
    ///
    /// # Errors
    /// As for [`Executor::new`]; a folder in which the files cannot be created is an error that the device reports.
    pub fn spilling(
        device: Arc<dyn Device>,
        plan: Plan,
        contents: &BTreeMap<String, Contents>,
        spill_dir: Option<&Path>,
    ) -> Result<Executor, RuntimeError> {
        let mut executor = Executor::obtain(device, plan, contents, spill_dir, false, Vec::new())?;
        let names: Vec<String> = executor.persistent_names().map(str::to_owned).collect();
        names.iter().try_for_each(|name| executor.load_persistent(name, contents.get(name)))?;
        executor.complete()?;
        Ok(executor)
    }

    /// Like [`Executor::spilling`], but loads nothing. Call [`Executor::load_persistent`] for all [`Executor::persistent_names`], then
    /// [`Executor::complete`]; only then can steps run. If the device supports it, its host memory is taken as it is written, so contents
    /// that are in memory can be moved in one after the other, each freed once it is loaded, without exceeding what the plan takes. The
    /// contents given here are not loaded, but the plan may read some of them from the model's files at each step.
    ///
    /// # Errors
    /// As for [`Executor::spilling`].
    pub fn empty(
        device: Arc<dyn Device>,
        plan: Plan,
        contents: &BTreeMap<String, Contents>,
        spill_dir: Option<&Path>,
    ) -> Result<Executor, RuntimeError> {
        Executor::obtain(device, plan, contents, spill_dir, true, Vec::new())
    }

    /// Like [`Executor::empty`], for a plan that shares memory with others: `blocks` are its shared blocks ([`crate::shared`]), by number.
    /// Their contents are not loaded again.
    ///
    /// # Errors
    /// As for [`Executor::spilling`].
    pub fn sharing(device: Arc<dyn Device>, plan: Plan, blocks: Vec<Arc<Executor>>) -> Result<Executor, RuntimeError> {
        Executor::obtain(device, plan, &BTreeMap::new(), None, true, blocks)
    }

    fn obtain(
        device: Arc<dyn Device>,
        plan: Plan,
        contents: &BTreeMap<String, Contents>,
        spill_dir: Option<&Path>,
        released: bool,
        shared: Vec<Arc<Executor>>,
    ) -> Result<Executor, RuntimeError> {
        check_all_backing(&plan)?;
        check_events(&plan)?;
        let staging_bytes = staging_bytes(&plan);
        let blocks = shared.iter().map(|block| block.device_memory(MemoryId(0))).collect::<Result<Vec<_>, _>>()?;
        let disk = DiskSources { spill_dir, model_files: model_files(&plan, contents)? };
        let binding = Binding::obtain(device.clone(), &plan, staging_bytes, &disk, released, &blocks)?;
        let fed_in_place = FedInPlace::of(&plan);
        for mapping in fed_in_place.divide(&plan.prologue) {
            let commands =
                mapping.into_iter().map(|command| binding.command(command)).collect::<Result<Vec<_>, _>>()?;
            submit(&*device, &commands, "while mapping memory")?;
            binding.join("while mapping memory")?;
            fed_in_place.release(&*device, &binding);
        }
        let loans = Loans::of(&plan, &binding)?;
        let update_start = plan.update_start.min(plan.commands.len());
        let mut first = plan.commands[..update_start].to_vec();
        let outputs_event = record_outputs(&plan, &mut first);
        let phases = [
            Phase::new(&binding, &first, plan.event_count)?,
            Phase::new(&binding, &plan.commands[update_start..], plan.event_count)?,
        ];
        let warm_up = plan.warm_up.iter().map(|command| binding.command(command)).collect::<Result<Vec<_>, _>>()?;
        let recorded = vec![0; plan.event_count as usize + 1];
        let recorded_before_step = recorded.clone();
        let links = links(&plan, &binding);
        Ok(Executor {
            device,
            plan,
            phases,
            outputs_event,
            recorded,
            recorded_before_step,
            warm_up,
            warmed_up: false,
            broken: false,
            trace: None,
            records: Vec::new(),
            links,
            binding,
            fed_in_place,
            loans,
            _shared: shared,
        })
    }

    /// The names of the persistent tensors that have a place in the plan, except those in memory shared with others.
    pub fn persistent_names(&self) -> impl Iterator<Item = &str> {
        let is_shared =
            |(_, region): &(ByteRange, Region)| matches!(self.plan.memory(region.memory).kind, MemoryKind::Shared(_));
        let is_own =
            move |backing: &&BackingLocation| !backing.pieces.is_empty() && !backing.pieces.iter().any(is_shared);
        let placed = self.plan.persistent.iter().filter(is_own);
        placed.map(|backing| backing.name.as_str())
    }

    /// Writes contents, or zeros, to the backing location of a persistent tensor.
    ///
    /// # Errors
    /// Fails if the name is unknown, if the contents have the wrong size or cannot be read, or if the device reports an error.
    pub fn load_persistent(&mut self, name: &str, contents: Option<&Contents>) -> Result<(), RuntimeError> {
        self.warmed_up = false;
        let backing = find(&self.plan.persistent, "persistent tensor", name)?;
        match contents {
            Some(contents) => self.load(backing, contents),
            None => self.write_pieces(backing, &[]),
        }
    }

    /// Takes all memory that the plan needs, once the persistent tensors have their contents.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn complete(&mut self) -> Result<(), RuntimeError> {
        self.binding.fill_host(&self.plan)?;
        self.device.set_trace(true);
        Ok(())
    }

    /// Gives back the memory of everything except the persistent tensors for which `keep` returns true: host memory, and the memory of
    /// devices that use the host's. No step can run after that.
    pub fn release_all_but(&mut self, keep: &dyn Fn(&str) -> bool) {
        self.broken = true;
        releasing::all_but(&self.plan, keep).into_iter().for_each(|region| self.release(region));
    }

    /// Gives back the memory of a persistent tensor after it was read, as [`Executor::release_all_but`] does. No step can run after that.
    ///
    /// # Errors
    /// Fails if the name is unknown.
    pub fn release_persistent(&mut self, name: &str) -> Result<(), RuntimeError> {
        self.broken = true;
        let backing = find(&self.plan.persistent, "persistent tensor", name)?;
        releasing::of(&self.plan, backing).for_each(|region| self.release(region));
        Ok(())
    }

    fn release(&self, region: Region) {
        if let Ok(region) = self.binding.region(region) {
            self.device.release_host(region);
        }
    }

    /// Gives back what only loading needs. Nothing can be written or read from outside after that.
    pub(crate) fn end_loading(&mut self) {
        self.binding.give_back_staging();
    }

    /// The device's id of a memory of the plan.
    fn device_memory(&self, memory: MemoryId) -> Result<MemoryId, RuntimeError> {
        Ok(self.binding.region(Region::new(memory, 0, 0))?.memory)
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The memory that the device has handed out.
    pub fn usage(&self) -> DeviceUsage {
        self.device.usage()
    }

    /// Starts recording when commands run. [`Executor::take_trace`] returns the recording.
    pub fn start_trace(&mut self) {
        self.trace.get_or_insert_with(|| Trace::new(&self.plan));
    }

    /// Stops recording and returns what was recorded since [`Executor::start_trace`], or `None` if recording was never started.
    pub fn take_trace(&mut self) -> Option<Trace> {
        self.trace.take()
    }

    /// Adds the latest step's durations to a profile. Durations of parts are added to the launch that they are parts of.
    pub fn add_to_profile(&self, profile: &mut Profile, times: StepTimes, workers: Workers<'_>) {
        let (link_of, share_of) = (|stream| self.links.get(&stream).copied(), |label| self.plan.share(label));
        profile.add(&self.records, times.total, link_of, share_of, workers);
    }

    /// Writes an input for the next step. Every input must be written before every step, because a step may overwrite it.
    ///
    /// # Errors
    /// Fails if the name is unknown, or if `bytes` does not have the size of the input.
    pub fn write_input(&mut self, name: &str, bytes: &[u8]) -> Result<(), RuntimeError> {
        if self.loans.has_input(name) {
            return self.give_input(name, bytes.to_vec());
        }
        self.write_backing(find(&self.plan.inputs, "input", name)?, bytes)
    }

    /// Like [`Executor::write_input`], with a tensor that launches may read in place until the step is over.
    ///
    /// # Errors
    /// As for [`Executor::write_input`].
    pub fn lend_input(&mut self, name: &str, tensor: &Tensor) -> Result<(), RuntimeError> {
        if !self.loans.has_input(name) {
            return self.write_input(name, tensor.bytes());
        }
        check_size(find(&self.plan.inputs, "input", name)?, tensor.bytes().len() as u64)?;
        self.loans.lend(&*self.device, name, tensor);
        Ok(())
    }

    /// Like [`Executor::write_input`], for an input that the caller no longer needs: if it is written piece by piece, its memory is given
    /// back piece by piece.
    ///
    /// # Errors
    /// As for [`Executor::write_input`].
    pub fn give_input(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), RuntimeError> {
        let backing = find(&self.plan.inputs, "input", name)?;
        check_size(backing, bytes.len() as u64)?;
        if self.loans.has_input(name) {
            self.loans.write(&*self.device, name, bytes);
            return Ok(());
        }
        match self.fed_in_place.is_empty() {
            true => self.write_pieces(backing, &bytes),
            false => give(backing, bytes, |region, chunk| self.write_chunk(region, chunk)),
        }
    }

    /// Reads a whole output of the latest step.
    ///
    /// # Errors
    /// Fails if the name is unknown, or if the device reports an error.
    pub fn read_output(&self, name: &str) -> Result<Tensor, RuntimeError> {
        let backing = find(&self.plan.outputs, "output", name)?;
        match self.loans.result(name) {
            Some(bytes) => tensor(backing, bytes[..tensor_bytes(backing) as usize].to_vec()),
            None => self.read_backing(backing),
        }
    }

    /// Like [`Executor::read_output`], but moves the output out: no copy is made if launches wrote it to separate memory. Call it once
    /// after each step.
    ///
    /// # Errors
    /// As for [`Executor::read_output`].
    pub fn take_output(&mut self, name: &str) -> Result<Tensor, RuntimeError> {
        let backing = find(&self.plan.outputs, "output", name)?;
        match self.loans.take(backing) {
            Some(bytes) => tensor(backing, bytes),
            None => self.read_backing(backing),
        }
    }

    /// Reads the value that a parameter, state or constant has between two steps.
    ///
    /// # Errors
    /// Fails if the name is unknown, or if the device reports an error.
    pub fn read_persistent(&self, name: &str) -> Result<Tensor, RuntimeError> {
        self.read_backing(find(&self.plan.persistent, "persistent tensor", name)?)
    }

    /// Like [`Executor::read_persistent`], but passes the bytes to `take` piece by piece.
    ///
    /// # Errors
    /// Fails if the name is unknown, if the device reports an error, or if `take` fails.
    pub fn read_persistent_in_pieces(
        &self,
        name: &str,
        take: &mut dyn FnMut(&[u8]) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        let backing = find(&self.plan.persistent, "persistent tensor", name)?;
        in_pieces(backing, |region, chunk| self.read_chunk(region, chunk), take)
    }

    /// Overwrites a parameter, state or constant between two steps.
    ///
    /// # Errors
    /// Fails if the name is unknown, if the number of bytes is wrong, or if the device reports an error.
    pub fn write_persistent(&mut self, name: &str, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.warmed_up = false;
        self.write_backing(find(&self.plan.persistent, "persistent tensor", name)?, bytes)
    }

    /// Runs one step, both phases without a pause.
    ///
    /// # Errors
    /// Fails if the device reports an error; after that, every call returns [`RuntimeError::Broken`]. Parameters and state can still be
    /// read if the device has not lost them. If a disk failed, they are those of before the step.
    pub fn run(&mut self) -> Result<StepTimes, RuntimeError> {
        self.timed(|executor| {
            executor.submit_phase(0)?;
            if executor.uses_disk() {
                // Nothing may change before everything that can fail because of a disk is over.
                executor.binding.join("while running a step")?;
            }
            executor.submit_phase(1)?;
            executor.binding.join("while running a step")?;
            executor.check_indices()?;
            executor.take_turns()
        })
    }

    /// Runs one step. After the first phase, `between` looks at the outputs and decides whether the update phase runs.
    ///
    /// # Errors
    /// Fails if the device reports an error (after that, every call returns [`RuntimeError::Broken`]), or if `between` fails; in that case
    /// the update phase did not run, and parameters and state are as before the step.
    pub fn run_in_phases(
        &mut self,
        between: &mut dyn FnMut(&Executor) -> Result<Decision, RuntimeError>,
    ) -> Result<StepTimes, RuntimeError> {
        self.timed(|executor| {
            executor.submit_phase(0)?;
            executor.await_outputs()?;
            if executor.loans.has_outputs() {
                // Launches may still read inputs.
                executor.binding.join("while running a step")?;
                executor.loans.end(&*executor.device);
            }
            let decision = executor.check_indices().and_then(|()| between(executor));
            match decision {
                Ok(Decision::Continue) => executor.submit_phase(1)?,
                _ => executor.warmed_up = false,
            }
            executor.binding.join("while running a step")?;
            if decision? == Decision::Continue {
                executor.take_turns()?;
            }
            Ok(())
        })
    }

    /// Reports an index out of range that was found by a finished launch.
    fn check_indices(&self) -> Result<(), RuntimeError> {
        self.device.take_index_fault().map_or(Ok(()), |fault| Err(index_error(&self.plan, fault)))
    }

    /// Waits until the outputs of the running step are ready. If a disk could still fail, waits for the whole phase.
    fn await_outputs(&self) -> Result<(), RuntimeError> {
        let action = "while running a step";
        match self.outputs_event.filter(|_| !self.uses_disk()) {
            Some(event) => {
                let (id, generation) = (self.binding.event(event)?, self.recorded[event.0 as usize]);
                self.device.wait_event(id, generation).map_err(|error| RuntimeError::Device { action, error })
            }
            None => self.binding.join(action),
        }
    }

    fn uses_disk(&self) -> bool {
        self.plan.memories.iter().any(|memory| memory.space == Space::Disk)
    }

    fn timed(
        &mut self,
        step: impl FnOnce(&mut Executor) -> Result<(), RuntimeError>,
    ) -> Result<StepTimes, RuntimeError> {
        if self.broken {
            return Err(RuntimeError::Broken);
        }
        self.warm_up()?;
        self.loans.begin(&*self.device);
        let clock = StepClock::start(&*self.device);
        let result = step(self);
        let (mut times, records) = clock.stop(&*self.device);
        let link_of = |record: &TraceRecord| self.links.get(&record.stream).copied();
        let is_swap_in = |record: &TraceRecord| matches!(link_of(record), Some(Link::ToDevice | Link::FromDisk));
        (times.late_copies, times.late) = late_copies(&records, is_swap_in);
        if let Some(trace) = &mut self.trace {
            trace.add(self.binding.streams(), records.clone());
        }
        self.records = records;
        // An index fault of a step that was stopped must not be reported by the next step.
        let _ = self.device.take_index_fault();
        self.broken = matches!(result, Err(RuntimeError::Device { .. }));
        if self.broken {
            // If something is lost, reading it reports the error.
            let _ = self.device.recover();
        }
        self.loans.end(&*self.device);
        // The next batch takes as much memory.
        self.fed_in_place.release(&*self.device, &self.binding);
        result.map(|()| times)
    }

    /// Brings to the device what a step expects to find there, next to the backing locations, unless the previous step left it there.
    fn warm_up(&mut self) -> Result<(), RuntimeError> {
        if !std::mem::replace(&mut self.warmed_up, true) && !self.warm_up.is_empty() {
            let action = "while bringing parameters to the device";
            let result = submit(&*self.device, &self.warm_up, action).and_then(|()| self.binding.join(action));
            self.broken = result.is_err();
            if self.broken {
                // As after a step that failed: if something is lost, reading it reports the error.
                let _ = self.device.recover();
            }
            return result;
        }
        Ok(())
    }

    /// Makes the next step read what this step wrote, by exchanging the memories that take turns.
    fn take_turns(&mut self) -> Result<(), RuntimeError> {
        let Some((current, next)) = self.plan.turns else { return Ok(()) };
        let [one, other] = self.binding.exchange(current, next)?;
        for command in self.phases.iter_mut().flat_map(|phase| &mut phase.commands) {
            let Command::Copy { from, to, .. } = command else { continue };
            for memory in [&mut from.memory, &mut to.memory] {
                *memory = match *memory {
                    id if id == one => other,
                    id if id == other => one,
                    id => id,
                };
            }
        }
        Ok(())
    }

    /// Submits a phase. The generations in a step's commands start at 1, but events keep counting, so each generation is raised by the
    /// number of records in earlier steps.
    fn submit_phase(&mut self, phase: usize) -> Result<(), RuntimeError> {
        if phase == 0 {
            self.recorded_before_step.clone_from(&self.recorded);
        }
        let phase = &mut self.phases[phase];
        for &(index, event, planned) in &phase.generations {
            if let Command::Record { generation, .. } | Command::Wait { generation, .. } = &mut phase.commands[index] {
                *generation = self.recorded_before_step[event] + planned;
            }
        }
        for (recorded, records) in self.recorded.iter_mut().zip(&phase.records) {
            *recorded += records;
        }
        submit(&*self.device, &phase.commands, "while submitting a step")
    }

    fn write_backing(&self, backing: &BackingLocation, bytes: &[u8]) -> Result<(), RuntimeError> {
        check_size(backing, bytes.len() as u64)?;
        self.write_pieces(backing, bytes)
    }

    /// Writes all bytes of a backing location: the given bytes, followed by zeros.
    fn write_pieces(&self, backing: &BackingLocation, bytes: &[u8]) -> Result<(), RuntimeError> {
        chunks(backing).try_for_each(|(range, region)| self.write_chunk(region, &padded(bytes, range)))
    }

    /// Writes contents to their backing location, in pieces.
    fn load(&self, backing: &BackingLocation, contents: &Contents) -> Result<(), RuntimeError> {
        load(&self.plan, backing, contents, |region, chunk| self.write_chunk(region, chunk))
    }

    /// Writes one chunk of a backing location.
    fn write_chunk(&self, region: Region, chunk: &[u8]) -> Result<(), RuntimeError> {
        let device_region = self.binding.region(region)?;
        if self.plan.memory(region.memory).kind == MemoryKind::HostBlock {
            self.device.write_host(device_region, chunk);
            return Ok(());
        }
        let staging = self.staging(chunk.len() as u64)?;
        self.device.write_host(staging, chunk);
        self.copy_now(staging, device_region)
    }

    fn read_backing(&self, backing: &BackingLocation) -> Result<Tensor, RuntimeError> {
        read_whole(backing, |region, chunk| self.read_chunk(region, chunk))
    }

    /// Reads one chunk of a backing location.
    fn read_chunk(&self, region: Region, chunk: &mut [u8]) -> Result<(), RuntimeError> {
        let device_region = self.binding.region(region)?;
        if self.plan.memory(region.memory).kind == MemoryKind::HostBlock {
            self.device.read_host(device_region, chunk);
            return Ok(());
        }
        let staging = self.staging(chunk.len() as u64)?;
        self.copy_now(device_region, staging)?;
        self.device.read_host(staging, chunk);
        Ok(())
    }

    fn staging(&self, size_bytes: u64) -> Result<Region, RuntimeError> {
        let staging = self.binding.staging().map(|staging| staging.part(0, size_bytes));
        staging.ok_or_else(|| RuntimeError::Plan {
            reason: "a piece is on the device, but there is no staging buffer".to_string(),
        })
    }

    /// Copies between steps, while nothing else is running, and waits for the copy. If a disk fails, only the target of the copy is lost:
    /// everything else can be read and written, and the copy can be tried again.
    fn copy_now(&self, from: Region, to: Region) -> Result<(), RuntimeError> {
        let action = "while copying between steps";
        let stream = self.binding.streams()[0];
        let copied = submit(&*self.device, &[Command::Copy { stream, from, to }], action)
            .and_then(|()| self.device.synchronize(stream).map_err(|error| RuntimeError::Device { action, error }));
        copied.inspect_err(|_| {
            // A failure that cannot be cleared is reported by the next copy or step, too.
            let _ = self.device.recover();
        })
    }
}

impl Phase {
    fn new(binding: &Binding, commands: &[Command], event_count: u32) -> Result<Phase, RuntimeError> {
        let mut phase = Phase {
            commands: Vec::with_capacity(commands.len()),
            generations: Vec::new(),
            records: vec![0; event_count as usize + 1],
        };
        for (index, command) in commands.iter().enumerate() {
            phase.commands.push(binding.command(command)?);
            match *command {
                Command::Record { event, generation, .. } => {
                    phase.records[event.0 as usize] += 1;
                    phase.generations.push((index, event.0 as usize, generation));
                }
                Command::Wait { event, generation, .. } => {
                    phase.generations.push((index, event.0 as usize, generation));
                }
                _ => {}
            }
        }
        Ok(phase)
    }
}

/// Inserts a record of an additional event after the last of these commands that writes an output. Returns `None` if several streams write
/// outputs, or none does.
fn record_outputs(plan: &Plan, commands: &mut Vec<Command>) -> Option<EventId> {
    let outputs = || plan.outputs.iter().flat_map(|backing| backing.pieces.iter().map(|(_, region)| *region));
    let gives_output =
        |command: &Command| command.writes().iter().any(|written| outputs().any(|output| output.overlaps(*written)));
    let last = commands.iter().rposition(gives_output)?;
    let stream = commands[last].stream()?;
    let elsewhere = |command: &Command| command.stream() != Some(stream) && gives_output(command);
    if commands.iter().any(elsewhere) {
        return None;
    }
    let event = EventId(plan.event_count);
    commands.insert(last + 1, Command::Record { stream, event, generation: 1 });
    Some(event)
}

/// The direction of the copies of each stream of the device on which the plan copies. Streams that also launch are left out: the copies for
/// launches on the host go both ways and say nothing about the link.
fn links(plan: &Plan, binding: &Binding) -> BTreeMap<StreamId, Link> {
    let launch_stream = |command: &Command| match command {
        Command::Launch { stream, .. } => Some(*stream),
        _ => None,
    };
    let launching: BTreeSet<StreamId> = plan.commands.iter().filter_map(launch_stream).collect();
    let link = |command: &Command| {
        let Command::Copy { stream, from, to } = command else { return None };
        if launching.contains(stream) {
            return None;
        }
        let link = match (plan.memory(from.memory).space, plan.memory(to.memory).space) {
            (Space::Disk, _) => Link::FromDisk,
            (_, Space::Disk) => Link::ToDisk,
            (_, Space::Device(_)) => Link::ToDevice,
            (_, Space::Host) => Link::FromDevice,
        };
        Some((*binding.streams().get(stream.0 as usize)?, link))
    };
    plan.commands.iter().filter_map(link).collect()
}

fn submit(device: &dyn Device, commands: &[Command], action: &'static str) -> Result<(), RuntimeError> {
    device.submit(commands).map_err(|error| RuntimeError::Device { action, error })
}

/// Checks that commands use only events of the plan.
fn check_events(plan: &Plan) -> Result<(), RuntimeError> {
    let events = plan.commands.iter().filter_map(|command| match command {
        Command::Record { event, .. } | Command::Wait { event, .. } => Some(event.0),
        _ => None,
    });
    match events.max().filter(|&event| event >= plan.event_count) {
        Some(event) => {
            Err(RuntimeError::Plan { reason: format!("it refers to event {event} of {}", plan.event_count) })
        }
        None => Ok(()),
    }
}

/// An index fault of a launch of the plan, in terms of the program that was planned. The indices of a launch in parts are the concatenation
/// of the indices of its parts.
pub(crate) fn index_error(plan: &Plan, fault: IndexFault) -> RuntimeError {
    let IndexFault { label, element, index, limit } = fault;
    let whole = plan.share(label).launch;
    let earlier = |launch: &Launch| launch.label < label && plan.share(launch.label).launch == whole;
    let elements = |launch: &Launch| {
        let indices = launch.kernel.indices().and_then(|indices| launch.reads.get(indices.read));
        (launch.label, indices.map_or(0, |binding| binding.desc.element_count()))
    };
    // Each part counts once, however often it runs.
    let before: BTreeMap<u32, u64> = plan.launches().filter(|&launch| earlier(launch)).map(elements).collect();
    let element = before.values().sum::<u64>() + element;
    let name = plan.labels.get(label as usize).cloned().unwrap_or_default();
    RuntimeError::Index { name, launch: whole, element, index, limit }
}
