//! A step over managed memory: the same launches as in a plan, one by one, with bytes that move as a strategy says.
//!
//! The strategies are those of Negishi and others ("Consideration on Application of CUDA Unified Memory to Deep Learning",
//! 2018, section 4): the framework says every move, or hints, or says nothing but what it needs no more. None of them changes
//! what a launch finds, so that results are those of a plan, bit for bit.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_base::{ByteRange, Command, Region};
use forebay_device::{Device, DeviceUsage, IndexFault};
use forebay_memory::eviction::Access;
use forebay_model::Tensor;
use forebay_model::tensor::Contents;
use forebay_plan::paging::{Move, UnitUse};
use forebay_plan::plan::PlanStream;
use forebay_plan::{BackingLocation, Paging, Plan};

use crate::backing::{check_backing, chunks, find, in_pieces, load, padded, tensor_bytes};
use crate::eager::managed::{Location, Policy, Work, stream_id};
use crate::eager::{Context, ContextOptions, ManagedBuffer, ManagedMemory, ManagedOptions, ManagedStatistics, Stream};
use crate::error::RuntimeError;
use crate::executor::{Decision, index_error};
use crate::step_times::{StepClock, StepMoves, StepTimes};
use crate::trace::Trace;

/// How many launches ahead of the next one hints prefetch what launches read.
const LAUNCHES_AHEAD: usize = 4;

/// Who decides what is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The framework says every move ([`Paging::moves`]), and stays within the budget: nothing is evicted on demand.
    Direct,
    /// The framework tells what comes, prefetches a few launches ahead, and discards what died.
    Cooperative,
    /// Managed memory alone, with this order of eviction. It is told only what is not needed any more.
    Automatic(Policy),
}

impl Strategy {
    /// What changes the order of eviction.
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
    /// Whether device memory is taken as launches need it. Without, all of it is taken at the start.
    pub growth: bool,
    /// The most bytes on the host; none for as many as it takes.
    pub host_bytes: Option<u64>,
    /// A folder for a file that takes what exceeds `host_bytes`; without, that is an error.
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
    /// All addresses of the plan.
    buffer: ManagedBuffer,
    /// By launch.
    work: Vec<Work>,
    /// By launch: bytes that it needs as they are.
    needed: Vec<Vec<Range<u64>>>,
    broken: bool,
    trace: Option<Trace>,
}

impl PagedExecutor {
    /// Takes addresses for everything, and gives persistent tensors their contents: zeros where none are given.
    ///
    /// # Errors
    /// A device that cannot map tiles, contents of the wrong size, no host memory, or what the device reports.
    pub fn new(
        device: Arc<dyn Device>,
        mut paging: Paging,
        contents: &BTreeMap<String, Contents>,
        options: &PagedOptions,
    ) -> Result<PagedExecutor, RuntimeError> {
        let plan = &mut paging.plan;
        for backing in plan.inputs.iter().chain(&plan.outputs).chain(&plan.persistent) {
            check_backing(plan, backing)?;
        }
        plan.streams = ["compute", "copies"].map(|name| PlanStream { name: name.to_string() }).to_vec();
        if !device.limits().tiled {
            let name = &device.limits().name;
            let reason = format!("{name} cannot map tiles, which a model in managed memory needs: let it be planned");
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

    /// Its launches, and where everything is.
    pub fn plan(&self) -> &Plan {
        &self.paging.plan
    }

    /// What the device has handed out.
    pub fn usage(&self) -> DeviceUsage {
        self.device.usage()
    }

    /// What was moved and waited for so far.
    pub fn statistics(&self) -> ManagedStatistics {
        self.memory.statistics()
    }

    /// Starts to keep when commands run. [`PagedExecutor::take_trace`] gives what was kept.
    pub fn start_trace(&mut self) {
        self.trace.get_or_insert_with(|| Trace::new(&self.paging.plan));
    }

    /// Takes what was kept since [`PagedExecutor::start_trace`] and stops keeping; none where it was never started.
    pub fn take_trace(&mut self) -> Option<Trace> {
        self.trace.take()
    }

    /// Writes an input for the next step. Every input is written before every step: a step may overwrite it.
    ///
    /// # Errors
    /// An unknown name, another number of bytes than the input has, or no host memory.
    pub fn write_input(&mut self, name: &str, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.write_backing(find(&self.plan().inputs, "input", name)?, bytes)
    }

    /// Reads an output of the latest step, whole.
    ///
    /// # Errors
    /// An unknown name, no host memory, or what the device reports.
    pub fn read_output(&self, name: &str) -> Result<Tensor, RuntimeError> {
        self.read_backing(find(&self.plan().outputs, "output", name)?)
    }

    /// Reads a parameter, state or constant as it is between two steps.
    ///
    /// # Errors
    /// An unknown name, no host memory, or what the device reports.
    pub fn read_persistent(&self, name: &str) -> Result<Tensor, RuntimeError> {
        self.read_backing(find(&self.plan().persistent, "persistent tensor", name)?)
    }

    /// The same in pieces, one after the other.
    ///
    /// # Errors
    /// An unknown name, no host memory, what the device reports, or what `take` gives.
    pub fn read_persistent_in_pieces(
        &self,
        name: &str,
        take: &mut dyn FnMut(&[u8]) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        let backing = find(&self.plan().persistent, "persistent tensor", name)?;
        in_pieces(backing, |region, chunk| self.buffer.read(region.range.start, chunk), take)
    }

    /// Overwrites a parameter, state or constant between two steps.
    ///
    /// # Errors
    /// An unknown name, another number of bytes than it has, no host memory, or what the device reports.
    pub fn write_persistent(&mut self, name: &str, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.write_backing(find(&self.plan().persistent, "persistent tensor", name)?, bytes)
    }

    /// Runs one step.
    ///
    /// # Errors
    /// As [`PagedExecutor::run_in_phases`].
    pub fn run(&mut self) -> Result<StepTimes, RuntimeError> {
        self.run_in_phases(&mut |_| Ok(Decision::Continue))
    }

    /// Runs one step. After the first phase `between` looks at the outputs and decides whether the update phase runs.
    ///
    /// # Errors
    /// What managed memory or the device reports, or what `between` returns. Before the update phase parameters and state
    /// are as before the step then, and another step may be tried unless the device failed. Later only
    /// [`RuntimeError::Broken`] follows.
    pub fn run_in_phases(
        &mut self,
        between: &mut dyn FnMut(&PagedExecutor) -> Result<Decision, RuntimeError>,
    ) -> Result<StepTimes, RuntimeError> {
        if self.broken {
            return Err(RuntimeError::Broken);
        }
        let clock = StepClock::start(&*self.device);
        let before = self.memory.statistics();
        let mut updating = false;
        let result = self.phases(between, &mut updating).map_err(|error| self.explained(error));
        if result.is_err() {
            // What the step's other launches find out is not the next step's.
            let _ = self.context.synchronize();
            let _ = self.device.take_index_fault();
        }
        let (times, records) = clock.stop(&*self.device);
        if let Some(trace) = &mut self.trace {
            trace.add(&[stream_id(&self.stream), self.memory.copy_stream_id()], records);
        }
        self.broken = result.is_err() && (updating || matches!(result, Err(RuntimeError::Device { .. })));
        if self.broken {
            // What is lost shows when it is read.
            let _ = self.device.recover();
        }
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

    /// The context's errors in the plan's terms.
    fn explained(&self, error: RuntimeError) -> RuntimeError {
        let RuntimeError::Index { launch: label, element, index, limit, .. } = error else { return error };
        index_error(self.plan(), IndexFault { label, element, index, limit })
    }

    /// Submits launches, and says what the strategy says before and after each.
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

    /// Prefetches what a launch a few launches later needs; before the first one, what those until then need, too.
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

    fn write_backing(&self, backing: &BackingLocation, bytes: &[u8]) -> Result<(), RuntimeError> {
        let expected_bytes = tensor_bytes(backing);
        if bytes.len() as u64 != expected_bytes {
            let (name, given_bytes) = (backing.name.clone(), bytes.len() as u64);
            return Err(RuntimeError::Size { name, given_bytes, expected_bytes });
        }
        self.write_pieces(backing, bytes)
    }

    /// Writes all bytes of a backing location: the given ones, then zeros.
    fn write_pieces(&self, backing: &BackingLocation, bytes: &[u8]) -> Result<(), RuntimeError> {
        chunks(backing).try_for_each(|(range, region)| self.buffer.write(region.range.start, &padded(bytes, range)))
    }

    fn read_backing(&self, backing: &BackingLocation) -> Result<Tensor, RuntimeError> {
        let size_bytes = tensor_bytes(backing);
        let covered = backing.pieces.last().map_or(0, |(range, _)| range.end);
        let mut bytes = vec![0u8; covered.max(size_bytes) as usize];
        for (ByteRange { start, end }, region) in chunks(backing) {
            self.buffer.read(region.range.start, &mut bytes[start as usize..end as usize])?;
        }
        bytes.truncate(size_bytes as usize);
        Tensor::new(backing.data_type, &backing.shape, bytes)
            .ok_or_else(|| RuntimeError::Plan { reason: format!("'{}' has a shape that overflows", backing.name) })
    }
}

/// The plan's launches over the buffer's addresses, with what they do to its bytes.
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

/// Bytes that work needs as they are; it overwrites the others.
fn needed(work: &Work) -> Vec<Range<u64>> {
    let needed = work.uses.iter().filter(|(_, access)| *access != Access::Overwrite);
    needed.map(|(range, _)| range.clone()).collect()
}

/// What was done between two readings.
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
