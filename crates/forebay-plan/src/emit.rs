//! Emit: turns work into commands with regions and streams, adds barriers and waits, and records backing locations.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{Binding, ByteRange, Command, HeapId, Launch, Limits, MemoryId, Region, Space, StreamId};
use forebay_model::program::{NamedOperand, Operand, Program, ProgramLaunch};
use forebay_sync::{StepBoundary, insert_barriers};

use crate::arena::Arena;
use crate::backing_stores::{BackingStores, DISK_ALIGNMENT_BYTES, HOST, HOST_ALIGNMENT_BYTES, Store};
use crate::error::PlanError;
use crate::host_launches::{HostLaunches, host_launch_bytes};
use crate::host_updates::{HostUpdates, updates_on_host};
use crate::liveness::{Liveness, Owner};
use crate::loans::Loans;
use crate::plan::{
    BackingLocation, HOST_STREAM, MemoryKind, Movement, Plan, PlanMemory, PlanStream, ResidencyInterval, Statistics,
};
use crate::residency::Residency;
use crate::schedule::Work;

/// The device's arena among a plan's memories.
pub(crate) const DEVICE: MemoryId = MemoryId(0);
/// The stream of kernels, and of copies for kernels that run on the host.
pub const COMPUTE: StreamId = StreamId(0);
/// Copies from the host to the device.
const COPY_IN: StreamId = StreamId(1);
/// Copies from the device to the host.
const COPY_OUT: StreamId = StreamId(2);
/// Copies from a disk to the device, separate so that a slow disk does not hold up copies from the host.
const DISK_IN: StreamId = StreamId(3);
/// Copies from the device to a disk.
const DISK_OUT: StreamId = StreamId(4);

/// The stream of updates on the host, after the streams that a plan has in any case.
fn host_stream(backing_stores: &BackingStores) -> StreamId {
    StreamId(if backing_stores.uses_disk() { 5 } else { 3 })
}

/// Everything that the earlier passes decided.
pub struct Decisions<'a> {
    /// The program, fused, ordered and aliased.
    pub program: &'a Program,
    /// For each launch, its position in the order in which launches came; a launch that runs again appears twice. Commands identify
    /// launches by this position.
    pub sources: &'a [usize],
    /// The chunks of the program.
    pub live: &'a Liveness,
    /// The intervals of the chunks.
    pub residency: &'a Residency,
    /// Where chunks are while they are not on the device.
    pub backing_stores: &'a BackingStores,
    /// The offsets of the intervals on the device.
    pub arena: &'a Arena,
    /// What the caller lends.
    pub loans: &'a Loans,
    /// The limits of the device.
    pub limits: &'a Limits,
}

/// Returns the plan for a list of work. Its statistics hold counts and bytes; the planner adds budgets and predictions.
///
/// # Errors
/// [`PlanError::Check`] if an operand of a launch has no place.
pub fn emit(decisions: &Decisions, work: &[Work]) -> Result<Plan, PlanError> {
    let mut plan = memories(decisions);
    let places = Places::new(decisions);
    let (commands, reasons) = commands(decisions, &places, work)?;
    let synchronized = insert_barriers(&plan.prologue, commands, StepBoundary::HostJoin)
        .map_err(|error| PlanError::Check { reason: error.to_string() })?;
    plan.event_count = synchronized.event_count;
    plan.commands = synchronized.commands;
    plan.update_start = update_start(&plan.commands, decisions.program);
    plan.labels = vec![String::new(); decisions.sources.iter().max().map_or(0, |last| last + 1)];
    for (&source, launch) in decisions.sources.iter().zip(&decisions.program.launches) {
        plan.labels[source].clone_from(&launch.name);
    }
    let copies = plan.commands.iter().enumerate().filter(|(_, command)| matches!(command, Command::Copy { .. }));
    plan.movements = copies.zip(reasons).map(|((command, _), reason)| Movement { command, ..reason }).collect();
    plan.warm_up = warm_up(decisions, &places);
    plan.intervals = intervals(decisions);
    plan.inputs = decisions.program.inputs.iter().filter_map(|named| places.host_backing(named)).collect();
    plan.outputs = decisions.program.outputs.iter().filter_map(|named| places.host_backing(named)).collect();
    plan.persistent = decisions.program.persistent.iter().map(|named| places.backing(named)).collect();
    plan.statistics = count(&plan);
    Ok(plan)
}

/// What lies where, and when. Parts of one buffer that lie side by side for the same time are joined into one interval.
fn intervals(decisions: &Decisions) -> Vec<ResidencyInterval> {
    let Decisions { program, live, residency, arena, .. } = decisions;
    let mut intervals: Vec<(Owner, ResidencyInterval)> = Vec::new();
    for (segment, &offset_bytes) in residency.segments.iter().zip(&arena.device_offsets) {
        let chunk = &live.chunks[segment.chunk];
        let (name, role) = match chunk.owner {
            Owner::Buffer(buffer) => (program.buffer(buffer).name.clone(), Some(program.buffer(buffer).role)),
            Owner::Workspace(_) => ("scratch".to_string(), None),
        };
        let (first_launch, last_launch) = (segment.start, segment.end);
        let interval = ResidencyInterval { name, role, part: chunk.range, offset_bytes, first_launch, last_launch };
        intervals.push((chunk.owner, interval));
    }
    intervals
        .sort_by_key(|(owner, interval)| (*owner, interval.first_launch, interval.last_launch, interval.part.start));
    intervals.dedup_by(|(owner, next), (last_owner, last)| {
        let goes_on = owner == last_owner
            && (next.first_launch, next.last_launch) == (last.first_launch, last.last_launch)
            && next.part.start == last.part.end
            && next.offset_bytes == last.offset_bytes + last.part.len();
        if goes_on {
            last.part.end = next.part.end;
        }
        goes_on
    });
    intervals.into_iter().map(|(_, interval)| interval).collect()
}

fn memories(decisions: &Decisions) -> Plan {
    let limits = decisions.limits;
    let backing_stores = decisions.backing_stores;
    let host_bytes = backing_stores.host_bytes.max(HOST_ALIGNMENT_BYTES);
    let mut plan = Plan {
        streams: ["compute", "copy in", "copy out"].map(|name| PlanStream { name: name.to_string() }).to_vec(),
        ..Plan::default()
    };
    device_memory(&mut plan, decisions.arena.device_bytes, limits);
    plan.memories.push(PlanMemory { kind: MemoryKind::HostBlock, space: Space::Host, size_bytes: host_bytes });
    plan.memories.extend(decisions.loans.memories());
    let on_disk = |kind, bytes: u64| {
        let size_bytes = bytes.max(1).next_multiple_of(DISK_ALIGNMENT_BYTES);
        PlanMemory { kind, space: Space::Disk, size_bytes }
    };
    if backing_stores.model_files_bytes > 0 {
        plan.memories.push(on_disk(MemoryKind::ModelFiles, backing_stores.model_files_bytes));
    }
    if backing_stores.spills() {
        let turns = if backing_stores.turns_bytes > 0 { vec![backing_stores.turns_bytes; 2] } else { Vec::new() };
        let sizes = [backing_stores.disk_bytes].into_iter().chain(turns);
        plan.memories.extend(sizes.map(|bytes| on_disk(MemoryKind::SpillFile, bytes)));
        let turns = [false, true].map(|changed| backing_stores.memory(Store::Turns, changed));
        plan.turns = (backing_stores.turns_bytes > 0).then_some(turns.into());
    }
    if backing_stores.uses_disk() {
        plan.streams.extend(["disk in", "disk out"].map(|name| PlanStream { name: name.to_string() }));
    }
    if updates_on_host(decisions.program) {
        plan.streams.push(PlanStream { name: HOST_STREAM.to_string() });
    }
    plan
}

/// Returns the size of the device memory of a plan that uses `size_bytes`: whole tiles.
pub(crate) fn device_memory_bytes(size_bytes: u64, limits: &Limits) -> u64 {
    size_bytes.max(1).next_multiple_of(limits.tile_size_bytes)
}

/// Gives a plan without memories a device memory of at least `size_bytes`, and the heaps for it.
pub(crate) fn device_memory(plan: &mut Plan, size_bytes: u64, limits: &Limits) {
    let size_bytes = device_memory_bytes(size_bytes, limits);
    let kind = if limits.tiled { MemoryKind::Reservation } else { MemoryKind::Placed };
    plan.memories.push(PlanMemory { kind, space: Space::Device(0), size_bytes });
    if limits.tiled {
        let mut offset = 0;
        while offset < size_bytes {
            let heap_bytes = limits.heap_size_max_bytes.min(size_bytes - offset);
            let heap = HeapId(plan.heaps.len() as u32);
            plan.heaps.push(heap_bytes);
            plan.prologue.push(Command::Map {
                region: Region::new(DEVICE, offset, heap_bytes),
                heap,
                heap_offset_bytes: 0,
            });
            offset += heap_bytes;
        }
    }
}

/// Looks up chunks by owner and intervals by chunk, to find where bytes are during a launch and between steps.
struct Places<'a> {
    decisions: &'a Decisions<'a>,
    /// The chunks of each owner.
    chunks: BTreeMap<Owner, Vec<usize>>,
    /// The intervals of each chunk.
    intervals: Vec<Vec<usize>>,
    /// For each access of each chunk, the interval that it falls into.
    holding: Vec<Vec<Option<usize>>>,
}

impl<'a> Places<'a> {
    fn new(decisions: &'a Decisions<'a>) -> Places<'a> {
        let mut chunks: BTreeMap<Owner, Vec<usize>> = BTreeMap::new();
        for (index, chunk) in decisions.live.chunks.iter().enumerate() {
            chunks.entry(chunk.owner).or_default().push(index);
        }
        let mut intervals = vec![Vec::new(); decisions.live.chunks.len()];
        let mut holding: Vec<Vec<Option<usize>>> =
            decisions.live.chunks.iter().map(|chunk| vec![None; chunk.accesses.len()]).collect();
        for (index, segment) in decisions.residency.segments.iter().enumerate() {
            intervals[segment.chunk].push(index);
            holding[segment.chunk][segment.accesses.clone()].fill(Some(index));
        }
        Places { decisions, chunks, intervals, holding }
    }

    /// The device offset of byte `offset_bytes` of an owner during a launch.
    fn device_offset(&self, owner: Owner, offset_bytes: u64, launch: usize) -> Option<u64> {
        let live = self.decisions.live;
        // The chunks of an owner are in the order of their bytes, and their accesses are in the order of launches.
        let chunks = self.chunks.get(&owner)?;
        let chunk = chunks[..chunks.partition_point(|&chunk| live.chunks[chunk].range.start <= offset_bytes)].last()?;
        let chunk = Some(*chunk).filter(|&chunk| offset_bytes < live.chunks[chunk].range.end)?;
        let access = live.chunks[chunk].accesses.binary_search_by_key(&launch, |access| access.launch).ok()?;
        let interval = self.holding[chunk][access]?;
        Some(self.decisions.arena.device_offsets[interval] + (offset_bytes - live.chunks[chunk].range.start))
    }

    fn binding(&self, operand: &Operand, launch: usize) -> Result<Binding, PlanError> {
        if let Some(memory) = self.decisions.loans.memory(operand.buffer) {
            let region = Region::new(memory, operand.offset_bytes, operand.desc.total_size_bytes());
            return Ok(Binding { region, desc: operand.desc.clone() });
        }
        let offset = self.device_offset(Owner::Buffer(operand.buffer), operand.offset_bytes, launch);
        let offset = offset.ok_or_else(|| PlanError::Check {
            reason: format!(
                "'{}' has no place for '{}'",
                self.decisions.program.launches[launch].name,
                self.decisions.program.buffer(operand.buffer).name
            ),
        })?;
        let region = Region::new(DEVICE, offset, operand.desc.total_size_bytes());
        Ok(Binding { region, desc: operand.desc.clone() })
    }

    /// Where the bytes of a named operand are between steps, chunk by chunk.
    fn backing(&self, named: &NamedOperand) -> BackingLocation {
        let operand = &named.operand;
        let wanted = ByteRange::new(operand.offset_bytes, operand.offset_bytes + operand.desc.total_size_bytes());
        let mut pieces: Vec<(ByteRange, Region)> = Vec::new();
        let Decisions { live, residency, backing_stores, arena, loans, .. } = self.decisions;
        if let Some(memory) = loans.memory(operand.buffer) {
            pieces.push((ByteRange::new(0, wanted.len()), Region { memory, range: wanted }));
        }
        for &index in self.chunks.get(&Owner::Buffer(operand.buffer)).into_iter().flatten() {
            let chunk = &live.chunks[index];
            let Some(part) = chunk.range.intersection(wanted) else { continue };
            let (memory, base) = match (backing_stores.places[index], self.intervals[index].first()) {
                (Some(place), _) if !residency.backing_on_device[index] => {
                    (backing_stores.memory(place.store, false), place.offset_bytes)
                }
                (_, Some(&interval)) => (DEVICE, arena.device_offsets[interval]),
                _ => continue,
            };
            let region = Region::new(memory, base + (part.start - chunk.range.start), part.len());
            let tensor = ByteRange::new(part.start - wanted.start, part.end - wanted.start);
            match pieces.last_mut() {
                Some((bytes, last)) if last.memory == region.memory && last.range.end == region.range.start => {
                    bytes.end = tensor.end;
                    last.range.end = region.range.end;
                }
                _ => pieces.push((tensor, region)),
            }
        }
        BackingLocation {
            name: named.name.clone(),
            shape: named.shape.clone(),
            data_type: operand.desc.data_type(),
            pieces,
        }
    }

    /// The backing location of an input or output: in the host block, or on the device if the caller writes or reads it there. Returns
    /// `None` for an input that no launch reads.
    fn host_backing(&self, named: &NamedOperand) -> Option<BackingLocation> {
        let backing = self.backing(named);
        (!backing.pieces.is_empty()).then_some(backing)
    }
}

/// For each copy, in list order, the name of the copied buffer and why it is copied.
type Reasons = Vec<Movement>;

fn commands(decisions: &Decisions, places: &Places, work: &[Work]) -> Result<(Vec<Command>, Reasons), PlanError> {
    let mut commands: Vec<Command> = Vec::new();
    let mut reasons: Reasons = Vec::new();
    let Decisions { program, live, backing_stores, .. } = decisions;
    let bytes = host_launch_bytes(program);
    let part = Region::new(HOST, backing_stores.host_bytes.saturating_sub(bytes), bytes);
    let mut host_launches = HostLaunches::new(program, live, COMPUTE, part);
    let streams = [DISK_IN, DISK_OUT, host_stream(backing_stores)];
    let updates = HostUpdates::new(program, live, backing_stores, HOST, streams);
    let mut next_launch = 0;
    for &item in work {
        let runs_between_copies = |launch: &ProgramLaunch| launch.on_host && !launch.in_host_memory;
        let on_host = matches!(item, Work::Launch(index) if runs_between_copies(&program.launches[index]));
        if !on_host || matches!(item, Work::Launch(index) if index == program.update_start) {
            host_launches.finish(next_launch, &mut commands, &mut reasons);
        }
        match item {
            Work::Launch(index) if program.launches[index].in_host_memory => {
                next_launch = index + 1;
                updates.launch(index, decisions.sources[index] as u32, &mut commands, &mut reasons)?;
            }
            Work::Launch(index) => {
                next_launch = index + 1;
                let source = &program.launches[index];
                let bind = |operands: &[Operand]| -> Result<Vec<Binding>, PlanError> {
                    operands.iter().map(|operand| places.binding(operand, index)).collect()
                };
                let workspace = places
                    .device_offset(Owner::Workspace(index), 0, index)
                    .map(|offset| Region::new(DEVICE, offset, source.device_workspace_bytes()));
                let launch = Launch {
                    kernel: source.kernel.clone(),
                    reads: bind(&source.reads)?,
                    writes: bind(&source.writes)?,
                    workspace,
                    label: decisions.sources[index] as u32,
                };
                match on_host {
                    true => host_launches.launch(index, launch, &mut commands, &mut reasons),
                    false => commands.push(Command::Launch { stream: COMPUTE, launch: Box::new(launch) }),
                }
            }
            Work::SwapIn(interval) | Work::SwapOut(interval) => {
                let swap_in = matches!(item, Work::SwapIn(_));
                let (command, movement) = (copy(decisions, interval, swap_in), movement(decisions, interval, swap_in));
                let same = reasons.last().is_some_and(|last| last.name == movement.name);
                if !same || !commands.last_mut().is_some_and(|last| extend(last, &command)) {
                    reasons.push(movement);
                    commands.push(command);
                }
            }
        }
    }
    host_launches.finish(next_launch, &mut commands, &mut reasons);
    Ok((commands, reasons))
}

/// The copies that put what is resident across steps where steps expect it.
fn warm_up(decisions: &Decisions, places: &Places) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    let across_steps =
        decisions.residency.across_steps.iter().zip(&places.intervals).filter(|&(&across_steps, _)| across_steps);
    for first_interval in across_steps.filter_map(|(_, intervals)| intervals.first()) {
        let command = copy(decisions, *first_interval, true);
        if !commands.last_mut().is_some_and(|last| extend(last, &command)) {
            commands.push(command);
        }
    }
    commands
}

fn copy(decisions: &Decisions, interval: usize, swap_in: bool) -> Command {
    let segment = &decisions.residency.segments[interval];
    let chunk = &decisions.live.chunks[segment.chunk];
    let bytes = chunk.range.len();
    let device = Region::new(DEVICE, decisions.arena.device_offsets[interval], bytes);
    let place = decisions.backing_stores.places[segment.chunk].expect("a copied chunk has a place beside the device");
    let changed = match chunk.accesses[segment.accesses.clone()] {
        [first, ..] if swap_in => chunk.is_changed_before(first.launch),
        [.., last] => chunk.is_changed_before(last.launch + 1),
        [] => false,
    };
    let away = Region::new(decisions.backing_stores.memory(place.store, changed), place.offset_bytes, bytes);
    let stream = match (place.store, swap_in) {
        (Store::Host, true) => COPY_IN,
        (Store::Host, false) => COPY_OUT,
        (_, true) => DISK_IN,
        (_, false) => DISK_OUT,
    };
    let (from, to) = if swap_in { (away, device) } else { (device, away) };
    Command::Copy { stream, from, to }
}

/// Extends a copy by the next one, if that continues where the copy ends on both sides.
fn extend(last: &mut Command, next: &Command) -> bool {
    match (last, next) {
        (Command::Copy { stream, from, to }, Command::Copy { stream: next_stream, from: next_from, to: next_to })
            if stream == next_stream
                && from.range.end == next_from.range.start
                && to.range.end == next_to.range.start =>
        {
            from.range.end = next_from.range.end;
            to.range.end = next_to.range.end;
            true
        }
        _ => false,
    }
}

/// What an interval's copy moves, and why; its command is not known yet.
fn movement(decisions: &Decisions, interval: usize, swap_in: bool) -> Movement {
    let segment = &decisions.residency.segments[interval];
    let chunk = &decisions.live.chunks[segment.chunk];
    let Owner::Buffer(buffer) = chunk.owner else { unreachable!("workspace bytes never move") };
    let launch_name = |access: usize| &decisions.program.launches[chunk.accesses[access].launch].name;
    let buffer = decisions.program.buffer(buffer);
    let on_disk = decisions.backing_stores.on_disk(segment.chunk);
    let store = decisions.backing_stores.places[segment.chunk].map(|place| place.store);
    let from = match store {
        Some(Store::ModelFiles) => ", from the model's file",
        Some(Store::Disk | Store::Turns) => ", from disk",
        Some(Store::Host) | None => "",
    };
    let reason = if swap_in && segment.accesses.is_empty() {
        format!("'{}' of the next step needs it", launch_name(0))
    } else if swap_in {
        format!("'{}' needs it{from}", launch_name(segment.accesses.start))
    } else if let Some(update) = chunk.host_accesses.iter().find(|access| access.launch > segment.swap_out_after) {
        format!("'{}' needs it to update on the host", decisions.program.launches[update.launch].name)
    } else {
        match chunk.accesses.get(segment.accesses.end) {
            Some(_) => {
                format!(
                    "'{}' was the last to need it before '{}'",
                    launch_name(segment.accesses.end - 1),
                    launch_name(segment.accesses.end)
                )
            }
            None if buffer.role.is_temporary() => {
                format!("an output, computed by '{}'", launch_name(segment.accesses.end - 1))
            }
            None => {
                let place = if on_disk { "on disk" } else { "on the host" };
                format!("changed by '{}', kept {place} between steps", launch_name(segment.accesses.end - 1))
            }
        }
    };
    let full = on_disk && !swap_in;
    let reason = if full { format!("{reason}; to disk, because the host is full") } else { reason };
    Movement { command: 0, name: buffer.name.clone(), role: buffer.role, reason }
}

/// The first command of the update phase: the position of its first launch, or the end.
fn update_start(commands: &[Command], program: &Program) -> usize {
    let launches = commands.iter().enumerate().filter(|(_, command)| matches!(command, Command::Launch { .. }));
    launches.map(|(index, _)| index).nth(program.update_start).unwrap_or(commands.len())
}

fn count(plan: &Plan) -> Statistics {
    let of_kind =
        |kind| plan.memories.iter().filter(|memory| memory.kind == kind).map(|memory| memory.size_bytes).sum();
    let mut statistics = Statistics {
        device_peak_bytes: plan.memory(DEVICE).size_bytes,
        host_bytes: plan.memory(HOST).size_bytes,
        lent_bytes: of_kind(MemoryKind::Lent),
        spill_bytes: of_kind(MemoryKind::SpillFile),
        model_files_bytes: of_kind(MemoryKind::ModelFiles),
        ..Statistics::default()
    };
    let bytes_if = |region: &Region, counts: bool| if counts { region.range.len() } else { 0 };
    let disk_bytes = |region: &Region| bytes_if(region, plan.memory(region.memory).space == Space::Disk);
    let model_files_bytes =
        |region: &Region| bytes_if(region, plan.memory(region.memory).kind == MemoryKind::ModelFiles);
    statistics.host_updates = plan.host_updates().count();
    let mut labels = BTreeSet::new();
    for command in &plan.commands {
        if let Command::Copy { stream: COMPUTE, from, .. } = command {
            statistics.host_launch_bytes += from.range.len();
        }
        match command {
            Command::Launch { stream, launch } => {
                statistics.launches += 1;
                let on_host = plan.runs_on_host(launch);
                statistics.host_launches += usize::from(on_host && *stream == COMPUTE);
                statistics.recomputations += usize::from(!labels.insert(launch.label));
            }
            Command::Barrier { .. } => statistics.barriers += 1,
            Command::Wait { .. } => statistics.waits += 1,
            Command::Copy { from, to, .. } if to.memory == DEVICE => {
                statistics.bytes_to_device += from.range.len();
                statistics.bytes_from_disk += disk_bytes(from);
                statistics.bytes_from_model_files += model_files_bytes(from);
            }
            Command::Copy { from, to, .. } if from.memory != DEVICE => {
                statistics.bytes_from_disk += disk_bytes(from);
                statistics.bytes_to_disk += disk_bytes(to);
            }
            Command::Copy { from, to, .. } => {
                statistics.bytes_from_device += from.range.len();
                statistics.bytes_to_disk += disk_bytes(to);
            }
            _ => {}
        }
    }
    statistics
}
