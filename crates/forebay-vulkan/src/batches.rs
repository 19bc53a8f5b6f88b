//! Turns a list of commands into batches, which are first recorded, so that a list that cannot run leaves nothing behind, and then handed
//! to their streams.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::{Command, EventId, Region, StreamId};
use forebay_device::DeviceError;
use forebay_device::host::disk_file::DiskCopy;

use crate::buffer::OwnBlock;
use crate::disk::{BOUNCE_BYTES, Transfer};
use crate::frame::Frame;
use crate::gpu::{Gpu, Queue, Role};
use crate::host_launch::{HostLaunch, runs_on_host};
use crate::memory::BufferLocation;
use crate::record::Recorder;
use crate::state::{Counts, State};
use crate::stream::{Batch, HostWork, Item, Job, Mark, Point, Work};

/// A batch that is being recorded.
struct Open {
    frame: Frame,
    waits: Vec<Point>,
    marks: Vec<Mark>,
    stamps: u32,
    /// Whether a copy wrote to a host block or, on a unified device, whether anything accessed bytes.
    shows_host: bool,
    keep: Option<Arc<OwnBlock>>,
}

/// A stream used by the list.
struct Part {
    id: StreamId,
    queue: Queue,
    role: Role,
    /// The number of commands that access bytes, and thus the maximum number of marks of a batch.
    works: u32,
    open: Option<Open>,
    /// What the next batch waits for.
    waits: Vec<Point>,
    items: Vec<Item>,
    last: u64,
}

/// Records a list and hands it to its streams; returns jobs for the host's threads.
///
/// # Errors
/// If a command cannot run, or if Vulkan returns an error; then nothing in the list runs.
pub(crate) fn submit(gpu: &Arc<Gpu>, state: &mut State, commands: &[Command]) -> Result<Vec<Job>, DeviceError> {
    let mut list = List { gpu, parts: parts(gpu, state, commands)?, recorded: Vec::new(), counts: state.counts };
    let recorded = commands.iter().try_for_each(|command| list.add(state, command));
    let closed = recorded.and_then(|()| list.close_all(state));
    let admitted = closed.and_then(|()| Ok(state.events.admit(commands)?));
    if let Err(error) = admitted {
        for &id in list.parts.keys() {
            state.streams.get(id)?.counters.begin_again();
        }
        let items = list.parts.into_values().flat_map(|part| {
            let open = part.open.map(|open| open.frame);
            let closed = part.items.into_iter().filter_map(|item| match item.work {
                Work::Batch(batch) => Some(batch.frame),
                Work::OnHost(_) => None,
            });
            closed.chain(open).collect::<Vec<_>>()
        });
        items.for_each(|frame| state.streams.put_back(frame));
        return Err(error);
    }
    for (event, generation, point) in list.recorded {
        state.streams.record(event, generation, point);
    }
    for part in list.parts.into_values() {
        state.streams.get(part.id)?.role = part.role;
        part.items.into_iter().for_each(|item| state.streams.push(part.id, item));
    }
    state.counts = list.counts;
    state.pump().inspect_err(|error| state.fail(error.clone()))
}

/// Returns the streams of a list. With its first launch, a stream moves to a compute queue, after what it did before.
fn parts(gpu: &Gpu, state: &mut State, commands: &[Command]) -> Result<BTreeMap<StreamId, Part>, DeviceError> {
    let mut parts = BTreeMap::new();
    for command in commands {
        let Some(id) = command.stream() else { continue };
        let part = match parts.entry(id) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let stream = state.streams.get(id)?;
                let queue = gpu.queue(stream.role, stream.turn);
                let (role, last) = (stream.role, stream.last);
                let (open, waits, items) = (None, Vec::new(), Vec::new());
                entry.insert(Part { id, queue, role, works: 0, open, waits, items, last })
            }
        };
        part.works += u32::from(command.is_work());
        let computes = match command {
            Command::Launch { launch, .. } => !runs_on_host(&state.memories, launch)?,
            _ => false,
        };
        if computes && part.role == Role::Copy {
            part.role = Role::Compute;
            let queue = gpu.queue(Role::Compute, state.streams.get(id)?.turn);
            if queue.handle != part.queue.handle {
                part.queue = queue;
                part.waits.push(Point { stream: id, value: part.last });
            }
        }
    }
    Ok(parts)
}

/// A list that is being recorded.
struct List<'a> {
    gpu: &'a Arc<Gpu>,
    parts: BTreeMap<StreamId, Part>,
    recorded: Vec<(EventId, u64, Point)>,
    counts: Counts,
}

impl List<'_> {
    fn add(&mut self, state: &mut State, command: &Command) -> Result<(), DeviceError> {
        let Some(id) = command.stream() else { return Ok(()) };
        match command {
            Command::Wait { event, generation, .. } => {
                let here = self.recorded.iter().find(|(of, recorded, _)| of == event && recorded >= generation);
                let point = here.map(|(_, _, point)| *point).or_else(|| state.streams.point_of(*event, *generation));
                if let Some(point) = point.filter(|&point| !state.streams.is_done(point)) {
                    self.close(state, id, None)?;
                    self.part(id)?.waits.push(point);
                }
                Ok(())
            }
            Command::Record { event, generation, .. } => self.close(state, id, Some((*event, *generation))),
            Command::Copy { from, to, .. } => self.copy(state, id, *from, *to),
            Command::Barrier { .. } => {
                self.open(state, id)?;
                let (recorder, part) = self.recorder(state, id)?;
                if let Some(open) = &part.open {
                    recorder.barrier(&open.frame, part.role);
                }
                self.counts.barriers += 1;
                Ok(())
            }
            Command::Fill { region, pattern, .. } => {
                let (to, size_bytes) = (state.memories.place(*region)?, region.range.len());
                self.mark(state, id, None, "fill", size_bytes, |recorder, frame| {
                    recorder.fill(frame, to, size_bytes, *pattern);
                    Ok(0)
                })
            }
            Command::Launch { launch, .. } if runs_on_host(&state.memories, launch)? => {
                let launch = HostLaunch::new(&state.memories, launch)?;
                self.on_host(state, id, HostWork::Launch(launch))
            }
            Command::Launch { launch, .. } => {
                self.mark(state, id, Some(launch.label), launch.kernel.name(), 0, |recorder, frame| {
                    recorder.launch(frame, launch)
                })
            }
            Command::Map { .. } | Command::Unmap { .. } => Ok(()),
        }
    }

    fn part(&mut self, id: StreamId) -> Result<&mut Part, DeviceError> {
        self.parts.get_mut(&id).ok_or_else(|| DeviceError::Lost { reason: format!("{id} does not exist") })
    }

    fn recorder<'s>(
        &'s mut self,
        state: &'s mut State,
        id: StreamId,
    ) -> Result<(Recorder<'s>, &'s mut Part), DeviceError> {
        let gpu = self.gpu;
        let part = self.part(id)?;
        let State { memories, pipelines, parameters, streams, .. } = state;
        let counters = &mut streams.get(id)?.counters;
        Ok((Recorder { gpu, memories, pipelines, parameters, counters }, part))
    }

    /// Begins a batch if there is none; everything but a wait or a record needs one.
    fn open(&mut self, state: &mut State, id: StreamId) -> Result<&mut Open, DeviceError> {
        let tracing = state.tracing;
        let part = self.part(id)?;
        if part.open.is_none() {
            let mut frame = state.streams.frame(part.queue.family)?;
            frame.begin(if tracing { 2 * part.works + 1 } else { 1 })?;
            let waits = std::mem::take(&mut part.waits);
            let (marks, keep) = (Vec::new(), None);
            part.open = Some(Open { frame, waits, marks, stamps: 0, shows_host: false, keep });
        }
        part.open.as_mut().ok_or_else(|| DeviceError::Lost { reason: "no batch".to_string() })
    }

    /// Records a command that accesses bytes, between time stamps if a trace is kept.
    fn mark(
        &mut self,
        state: &mut State,
        id: StreamId,
        label: Option<u32>,
        name: &'static str,
        bytes: u64,
        record: impl FnOnce(&mut Recorder, &mut Frame) -> Result<usize, DeviceError>,
    ) -> Result<(), DeviceError> {
        let (tracing, unified) = (state.tracing, state.memories.are_unified());
        self.open(state, id)?;
        let (mut recorder, part) = self.recorder(state, id)?;
        let Some(open) = &mut part.open else { return Ok(()) };
        open.shows_host |= unified;
        let first = open.stamps;
        if tracing {
            open.frame.stamp(first);
        }
        let dispatches = record(&mut recorder, &mut open.frame)?;
        if tracing {
            open.frame.stamp(first + 1);
            open.stamps += 2;
            open.marks.push(Mark { label, name, bytes, stamps: (first, first + 1) });
        }
        self.counts.dispatches += dispatches as u64;
        Ok(())
    }

    /// Ends a stream's batch, with a record at its end. A record with nothing before it in its batch belongs to the previous batch.
    fn close(&mut self, state: &mut State, id: StreamId, record: Option<(EventId, u64)>) -> Result<(), DeviceError> {
        if record.is_some() && self.part(id)?.open.is_none() {
            let part = self.part(id)?;
            let last = part.items.last_mut().filter(|_| part.waits.is_empty());
            if let (Some(item), Some((event, generation))) = (last, record) {
                item.records.push((event, generation));
                let point = Point { stream: id, value: item.value };
                self.recorded.push((event, generation, point));
                return Ok(());
            }
            self.open(state, id)?;
        }
        let unified = state.memories.are_unified();
        let (recorder, part) = self.recorder(state, id)?;
        let Some(open) = part.open.take() else { return Ok(()) };
        let by_shaders = part.role == Role::Compute && (unified || open.frame.notes_faults());
        let shows_host = open.shows_host || open.frame.notes_faults();
        if shows_host {
            recorder.show_host(&open.frame, by_shaders);
        }
        open.frame.stamp(open.stamps);
        let ended = open.frame.end();
        let (stamps, marks) = (open.stamps + 1, open.marks);
        let batch = Batch { frame: open.frame, queue: part.queue, stamps, marks, _keep: open.keep };
        part.last += 1;
        let (value, records) = (part.last, record.into_iter().collect());
        let point = Point { stream: id, value };
        part.items.push(Item { work: Work::Batch(batch), waits: open.waits, value, records });
        let waits = part.items.last().map_or(0, |item| item.waits.len()) as u64;
        self.counts.host_barriers += u64::from(shows_host);
        self.counts.batches += 1;
        self.counts.waits += waits;
        self.recorded.extend(record.map(|(event, generation)| (event, generation, point)));
        ended
    }

    fn close_all(&mut self, state: &mut State) -> Result<(), DeviceError> {
        let ids: Vec<StreamId> = self.parts.keys().copied().collect();
        for id in ids {
            // A wait at the end of a list applies to what comes with the next list, so an empty batch waits.
            if !self.part(id)?.waits.is_empty() {
                self.open(state, id)?;
            }
            self.close(state, id, None)?;
        }
        Ok(())
    }

    fn copy(&mut self, state: &mut State, id: StreamId, from: Region, to: Region) -> Result<(), DeviceError> {
        if from.range.len() != to.range.len() || from.overlaps(to) {
            return Err(DeviceError::Lost { reason: format!("a copy from {from} to {to} is invalid") });
        }
        let Some(DiskCopy { way, on_disk, in_memory }) = state.memories.disk_files.copy(from, to)? else {
            let (source, target) = (state.memories.place(from)?, state.memories.place(to)?);
            let shows_host = state.memories.host_address(to).is_some();
            return self.copy_between(state, id, source, target, from.range.len(), shows_host);
        };
        let (offset_bytes, bytes) = (on_disk.range.start, on_disk.range.len());
        if let Some(address) = state.memories.host_address(in_memory) {
            return self.transfer(state, id, Transfer { way, offset_bytes, address, bytes, _keep: None });
        }
        // Bytes of device memory go through host memory, part by part.
        let place = state.memories.place(in_memory)?;
        let block = state.streams.bounce(id, way.is_to_disk())?;
        let host = BufferLocation { buffer: block.buffer, offset_bytes: 0 };
        let mut moved = 0;
        while moved < bytes {
            let count = (bytes - moved).min(BOUNCE_BYTES);
            let device = BufferLocation { offset_bytes: place.offset_bytes + moved, ..place };
            let (way, address, keep) = (way.clone(), block.address, Some(block.clone()));
            let to_disk = way.is_to_disk();
            let transfer = Transfer { way, offset_bytes: offset_bytes + moved, address, bytes: count, _keep: keep };
            if to_disk {
                self.copy_between(state, id, device, host, count, true)?;
                self.transfer(state, id, transfer)?;
            } else {
                self.transfer(state, id, transfer)?;
                self.copy_between(state, id, host, device, count, false)?;
                // The next part's bytes go into the same host memory.
                self.open(state, id)?.keep = Some(block.clone());
                self.close(state, id, None)?;
            }
            moved += count;
        }
        Ok(())
    }

    fn copy_between(
        &mut self,
        state: &mut State,
        id: StreamId,
        from: BufferLocation,
        to: BufferLocation,
        size_bytes: u64,
        shows_host: bool,
    ) -> Result<(), DeviceError> {
        self.mark(state, id, None, "copy", size_bytes, |recorder, frame| {
            recorder.copy(frame, from, to, size_bytes);
            Ok(0)
        })?;
        self.open(state, id)?.shows_host |= shows_host;
        Ok(())
    }

    /// Adds a copy that the thread for spill files makes.
    fn transfer(&mut self, state: &mut State, id: StreamId, transfer: Transfer) -> Result<(), DeviceError> {
        self.on_host(state, id, HostWork::Transfer(transfer))
    }

    /// Adds work that a thread of the host does after everything earlier in the stream.
    fn on_host(&mut self, state: &mut State, id: StreamId, work: HostWork) -> Result<(), DeviceError> {
        self.close(state, id, None)?;
        let part = self.part(id)?;
        part.last += 1;
        let (waits, value) = (std::mem::take(&mut part.waits), part.last);
        part.items.push(Item { work: Work::OnHost(work), waits, value, records: Vec::new() });
        Ok(())
    }
}
