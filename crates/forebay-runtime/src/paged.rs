//! A step over managed memory: the launches of a plan, one by one, with bytes moved as a strategy decides.
//!
//! The strategies are those of Negishi and others ("Consideration on Application of CUDA Unified Memory to Deep Learning", 2018, section
//! 4): the framework requests every move, or gives hints, or only says what it no longer needs. None of them changes what a launch reads,
//! so results are those of a plan, bit for bit.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::{Command, Region};
use forebay_device::{Device, DeviceUsage, IndexFault};
use forebay_memory::eviction::Access;
use forebay_model::Tensor;
use forebay_model::tensor::Contents;
use forebay_plan::paging::{Move, UnitUse};
use forebay_plan::plan::PlanStream;
use forebay_plan::{BackingLocation, Paging, Plan};

use crate::backing::{check_all_backing, check_size, chunks, find, in_pieces, load, padded, read_whole};
use crate::eager::managed::{Location, Policy, Work, stream_id};
use crate::eager::{Context, ContextOptions, ManagedBuffer, ManagedMemory, ManagedOptions, ManagedStatistics, Stream};
use crate::error::RuntimeError;
use crate::executor::{Decision, index_error};
use crate::step_times::{StepClock, StepMoves, StepTimes};
use crate::trace::Trace;

/// How many launches ahead [`Strategy::Cooperative`] prefetches what launches read.
const LAUNCHES_AHEAD: usize = 4;

/// Who decides what is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The framework requests every move ([`Paging::moves`]) and stays within the budget: nothing is evicted on demand.
    Direct,
    /// The framework announces coming uses, prefetches a few launches ahead, and discards what is dead.
    Cooperative,
    /// Managed memory decides, with this eviction order. It is only told what is no longer needed.
    Automatic(Policy),
}

impl Strategy {
    /// The policy that determines the eviction order.
    pub fn policy(self) -> Policy {
        match self {
            Strategy::Direct => Policy::Driver,
            Strategy::Cooperative => Policy::Planned,
            Strategy::Automatic(policy) => policy,
        }
    }
}

/// How a step runs over managed memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedOptions {
    /// Who decides what is on the device.
    pub strategy: Strategy,
    /// Whether device memory is taken as launches need it. If not, all of it is taken at the start.
    pub growth: bool,
    /// The most bytes on the host, or `None` for no limit.
    pub host_bytes: Option<u64>,
    /// A folder for a file that takes what exceeds `host_bytes`. Without it, exceeding the limit is an error.
    pub spill_dir: Option<PathBuf>,
}

/// A step in managed memory on a device. Holds its memory and streams until it is dropped.
pub struct PagedExecutor {
    device: Arc<dyn Device>,
    paging: Paging,
    strategy: Strategy,
    context: Context,
    stream: Stream,
    memory: ManagedMemory,
    /// The buffer that covers all addresses of the plan.
    buffer: ManagedBuffer,
    /// The work of each launch.
    work: Vec<Work>,
    /// For each launch: the bytes that it reads.
    needed: Vec<Vec<Range<u64>>>,
    broken: bool,
    /// Whether the device failed. Managed memory counts on copies that may have failed or never run, so nothing can be read any more, even
    /// if someone else who uses the device has cleared its failure.
    device_failed: AtomicBool,
    trace: Option<Trace>,
    /// Dropped last, when nothing is left of the managed memory.
    _recovery: Recovery,
}

/// Clears a failure of the device when it is dropped. Before that, the failure stays, because managed memory counts on copies that may have
/// failed or never run: reading must report the failure.
struct Recovery(Arc<dyn Device>);

impl Drop for Recovery {
    fn drop(&mut self) {
        // Recovering waits for everything on the device. If the failure cannot be cleared, the next call to the device reports it.
        if self.0.submit(&[]).is_err() {
            let _ = self.0.recover();
        }
    }
}

impl PagedExecutor {
    /// Takes addresses for everything, and writes the contents of persistent tensors; those without contents are filled with zeros.
    ///
    /// # Errors
    /// Fails if the device cannot map tiles, if contents have the wrong size, if host memory runs out, or if the device reports an error.
    pub fn new(
        device: Arc<dyn Device>,
        mut paging: Paging,
        contents: &BTreeMap<String, Contents>,
        options: &PagedOptions,
    ) -> Result<PagedExecutor, RuntimeError> {
        let plan = &mut paging.plan;
        check_all_backing(plan)?;
        plan.streams = ["compute", "copies"].map(|name| PlanStream { name: name.to_string() }).to_vec();
        if !device.limits().tiled {
            let name = &device.limits().name;
            let reason =
                format!("{name} cannot map tiles, which a model in managed memory requires; use a plan instead");
            return Err(RuntimeError::Tensor { reason });
        }
        let context = Context::new(device.clone(), &ContextOptions::default())?;
        let memory = ManagedMemory::new(
            &context,
            &ManagedOptions {
                device_bytes: paging.capacity * paging.unit_bytes,
                growth: options.growth,
                policy: options.strategy.policy(),
                host_bytes: options.host_bytes,
                spill_dir: options.spill_dir.clone(),
                unit_bytes: Some(paging.unit_bytes),
            },
        )?;
        let buffer = memory.buffer(paging.unit_count * paging.unit_bytes)?;
        let stream = context.default_stream();
        let work = work(&paging, &buffer, &stream);
        let needed = work.iter().map(needed).collect();
        let strategy = options.strategy;
        let executor = PagedExecutor {
            _recovery: Recovery(device.clone()),
            device,
            paging,
            strategy,
            context,
            stream,
            memory,
            buffer,
            work,
            needed,
            broken: false,
            device_failed: AtomicBool::new(false),
            trace: None,
        };
        for backing in &executor.plan().persistent {
            match contents.get(&backing.name) {
                Some(contents) => {
                    load(&executor.paging.plan, backing, contents, |region, chunk| {
                        executor.buffer.write(region.range.start, chunk)
                    })?;
                }
                None => executor.write_pieces(backing, &[])?,
            }
        }
        executor.device.set_trace(true);
        Ok(executor)
    }

    /// The plan: its launches, and where everything is.
    pub fn plan(&self) -> &Plan {
        &self.paging.plan
    }

    /// The memory that the device has handed out.
    pub fn usage(&self) -> DeviceUsage {
        self.device.usage()
    }

    /// What has been moved and waited for so far.
    pub fn statistics(&self) -> ManagedStatistics {
        self.memory.statistics()
    }

    /// Starts recording when commands run. [`PagedExecutor::take_trace`] returns the recording.
    pub fn start_trace(&mut self) {
        self.trace.get_or_insert_with(|| Trace::new(&self.paging.plan));
    }

    /// Stops recording and returns what was recorded since [`PagedExecutor::start_trace`], or `None` if recording was never started.
    pub fn take_trace(&mut self) -> Option<Trace> {
        self.trace.take()
    }

    /// Writes an input for the next step. Every input must be written before every step, because a step may overwrite it.
    ///
    /// # Errors
    /// Fails if the name is unknown, if `bytes` does not have the size of the input, or if host memory runs out.
    pub fn write_input(&mut self, name: &str, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.write_backing(find(&self.plan().inputs, "input", name)?, bytes)
    }

    /// Reads a whole output of the latest step.
    ///
    /// # Errors
    /// Fails if the name is unknown, if host memory runs out, or if the device reports an error.
    pub fn read_output(&self, name: &str) -> Result<Tensor, RuntimeError> {
        self.read_backing(find(&self.plan().outputs, "output", name)?)
    }

    /// Reads the value that a parameter, state or constant has between two steps.
    ///
    /// # Errors
    /// Fails if the name is unknown, if host memory runs out, or if the device reports an error.
    pub fn read_persistent(&self, name: &str) -> Result<Tensor, RuntimeError> {
        self.read_backing(find(&self.plan().persistent, "persistent tensor", name)?)
    }

    /// Like [`PagedExecutor::read_persistent`], but passes the bytes to `take` piece by piece.
    ///
    /// # Errors
    /// Fails if the name is unknown, if host memory runs out, if the device reports an error, or if `take` fails.
    pub fn read_persistent_in_pieces(
        &self,
        name: &str,
        take: &mut dyn FnMut(&[u8]) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        let backing = find(&self.plan().persistent, "persistent tensor", name)?;
        in_pieces(backing, |region, chunk| self.access(|| self.buffer.read(region.range.start, chunk)), take)
    }

    /// Overwrites a parameter, state or constant between two steps.
    ///
    /// # Errors
    /// Fails if the name is unknown, if the number of bytes is wrong, if host memory runs out, or if the device reports an error.
    pub fn write_persistent(&mut self, name: &str, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.write_backing(find(&self.plan().persistent, "persistent tensor", name)?, bytes)
    }

    /// Runs one step.
    ///
    /// # Errors
    /// As for [`PagedExecutor::run_in_phases`].
    pub fn run(&mut self) -> Result<StepTimes, RuntimeError> {
        self.run_in_phases(&mut |_| Ok(Decision::Continue))
    }

    /// Runs one step. After the first phase, `between` looks at the outputs and decides whether the update phase runs.
    ///
    /// # Errors
    /// Fails if managed memory or the device reports an error, or if `between` fails. If the error occurs before the update phase,
    /// parameters and state are as before the step, and another step may be tried unless the device failed. After a later error, every call
    /// returns [`RuntimeError::Broken`]. If the device failed, even if only a disk did, parameters and state cannot be read any more.
    pub fn run_in_phases(
        &mut self,
        between: &mut dyn FnMut(&PagedExecutor) -> Result<Decision, RuntimeError>,
    ) -> Result<StepTimes, RuntimeError> {
        if self.broken || self.has_device_failed() {
            return Err(RuntimeError::Broken);
        }
        let clock = StepClock::start(&*self.device);
        let before = self.memory.statistics();
        let mut updating = false;
        let result = self.phases(between, &mut updating).map_err(|error| self.explained(error));
        if result.is_err() {
            // Faults found by the step's other launches must not be reported by the next step.
            let _ = self.context.synchronize();
            let _ = self.device.take_index_fault();
        }
        let (times, records) = clock.stop(&*self.device);
        if let Some(trace) = &mut self.trace {
            trace.add(&[stream_id(&self.stream), self.memory.copy_stream_id()], records);
        }
        if matches!(result, Err(RuntimeError::Device { .. })) {
            self.device_failed.store(true, Ordering::Relaxed);
        }
        self.broken = result.is_err() && updating;
        result.map(|()| StepTimes { moves: Some(moved(&before, &self.memory.statistics())), ..times })
    }

    fn phases(
        &self,
        between: &mut dyn FnMut(&PagedExecutor) -> Result<Decision, RuntimeError>,
        updating: &mut bool,
    ) -> Result<(), RuntimeError> {
        let commands = &self.plan().commands;
        let first_phase = commands[..self.plan().update_start.min(commands.len())].iter();
        let update_start = first_phase.filter(|command| command.is_work()).count();
        if self.strategy.policy() == Policy::Planned {
            self.buffer.set_next_uses(&self.needed);
        }
        self.launch(0..update_start)?;
        self.context.synchronize()?;
        if between(self)? == Decision::Continue {
            *updating = true;
            self.launch(update_start..self.work.len())?;
            self.context.synchronize()?;
        }
        Ok(())
    }

    /// Translates the context's errors to the plan's terms.
    fn explained(&self, error: RuntimeError) -> RuntimeError {
        let RuntimeError::Index { launch: label, element, index, limit, .. } = error else { return error };
        index_error(self.plan(), IndexFault { label, element, index, limit })
    }

    /// Submits launches, and carries out the strategy's moves and hints before and after each.
    fn launch(&self, launches: Range<usize>) -> Result<(), RuntimeError> {
        for launch in launches {
            match self.strategy {
                Strategy::Direct => self.say(&self.paging.moves[launch].before)?,
                Strategy::Cooperative => self.hint(launch)?,
                Strategy::Automatic(_) => {}
            }
            self.buffer.submit(&self.stream, &self.work[launch])?;
            if self.strategy == Strategy::Direct {
                self.say(&self.paging.moves[launch].after)?;
            }
            for &unit in &self.paging.launches[launch].dies {
                self.buffer.discard(self.bytes(unit))?;
            }
        }
        Ok(())
    }

    /// Prefetches what the launch `LAUNCHES_AHEAD` later needs; before the first launch, also what the launches until then need.
    fn hint(&self, launch: usize) -> Result<(), RuntimeError> {
        let first = if launch == 0 { 1 } else { launch + LAUNCHES_AHEAD };
        let coming = self.needed.iter().take(launch + LAUNCHES_AHEAD + 1).skip(first);
        coming.flatten().try_for_each(|range| self.buffer.prefetch(range.clone(), Location::Device))
    }

    fn say(&self, moves: &[Move]) -> Result<(), RuntimeError> {
        moves.iter().try_for_each(|&said| match said {
            Move::ToHost(unit) => self.buffer.prefetch(self.bytes(unit), Location::Host),
            Move::ToDevice(unit) => self.buffer.prefetch(self.bytes(unit), Location::Device),
        })
    }

    fn bytes(&self, unit: u64) -> Range<u64> {
        unit * self.paging.unit_bytes..(unit + 1) * self.paging.unit_bytes
    }

    fn has_device_failed(&self) -> bool {
        self.device_failed.load(Ordering::Relaxed)
    }

    /// Reads or writes managed memory, which also moves data, and remembers a failure of the device.
    ///
    /// # Errors
    /// The error of `access`; [`RuntimeError::Broken`] if the device failed before.
    fn access<T>(&self, access: impl FnOnce() -> Result<T, RuntimeError>) -> Result<T, RuntimeError> {
        if self.has_device_failed() {
            return Err(RuntimeError::Broken);
        }
        access().inspect_err(|_| {
            if self.device.submit(&[]).is_err() {
                self.device_failed.store(true, Ordering::Relaxed);
            }
        })
    }

    fn write_backing(&self, backing: &BackingLocation, bytes: &[u8]) -> Result<(), RuntimeError> {
        check_size(backing, bytes.len() as u64)?;
        self.write_pieces(backing, bytes)
    }

    /// Writes all bytes of a backing location: the given ones, then zeros.
    fn write_pieces(&self, backing: &BackingLocation, bytes: &[u8]) -> Result<(), RuntimeError> {
        chunks(backing).try_for_each(|(range, region)| {
            self.access(|| self.buffer.write(region.range.start, &padded(bytes, range)))
        })
    }

    fn read_backing(&self, backing: &BackingLocation) -> Result<Tensor, RuntimeError> {
        read_whole(backing, |region, chunk| self.access(|| self.buffer.read(region.range.start, chunk)))
    }
}

/// The plan's launches over the buffer's addresses, with how each accesses its bytes.
fn work(paging: &Paging, buffer: &ManagedBuffer, stream: &Stream) -> Vec<Work> {
    let (memory, own_stream) = (buffer.region().memory, stream_id(stream));
    let moved = |region: Region| Region { memory, range: region.range };
    let launches = paging.plan.launches().cloned().map(Box::new);
    let work = |(mut launch, units): (Box<forebay_base::Launch>, &forebay_plan::paging::LaunchUnits)| {
        for binding in launch.reads.iter_mut().chain(&mut launch.writes) {
            binding.region = moved(binding.region);
        }
        launch.workspace = launch.workspace.map(moved);
        let name = paging.plan.labels.get(launch.label as usize).map_or("launch", String::as_str).into();
        let uses = units.uses.iter().map(|used| {
            let UnitUse { unit, reads, writes } = *used;
            let access = match (reads, writes) {
                (_, false) => Access::Read,
                (true, true) => Access::Update,
                (false, true) => Access::Overwrite,
            };
            (unit * paging.unit_bytes..(unit + 1) * paging.unit_bytes, access)
        });
        Work { uses: uses.collect(), command: Command::Launch { stream: own_stream, launch }, name }
    };
    launches.zip(&paging.launches).map(work).collect()
}

/// The bytes that work needs to have their values; it overwrites the others.
fn needed(work: &Work) -> Vec<Range<u64>> {
    let needed = work.uses.iter().filter(|(_, access)| *access != Access::Overwrite);
    needed.map(|(range, _)| range.clone()).collect()
}

/// The difference between two readings of the statistics.
fn moved(before: &ManagedStatistics, after: &ManagedStatistics) -> StepMoves {
    StepMoves {
        faults: after.faults - before.faults,
        evictions: after.evictions - before.evictions,
        prefetches: after.prefetches - before.prefetches,
        bytes_to_device: after.fetched_bytes - before.fetched_bytes,
        bytes_from_device: after.copied_back_bytes - before.copied_back_bytes,
        bytes_to_disk: after.spilled_bytes - before.spilled_bytes,
        bytes_from_disk: after.unspilled_bytes - before.unspilled_bytes,
        stalls: after.stalls - before.stalls,
        stalled: after.stall.saturating_sub(before.stall),
    }
}
