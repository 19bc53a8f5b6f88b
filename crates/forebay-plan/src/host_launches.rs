//! Host launches: the host runs what the device cannot, with operands in the host block.
//!
//! For the rest of planning, such a launch touches device memory like any other: its operands are there, and its results go there. When
//! work is turned into commands, it becomes copies of what it reads to a part of the host block, the launch with operands there, and copies
//! back of what it wrote. All of them are in the stream of kernels, so barriers order them.
//!
//! What consecutive launches on the host pass to each other stays on the host as long as it fits their part of the block, which is as large
//! as the most demanding of them needs. Bytes are copied back when a launch on the device, or a copy, may need them, and never if no launch
//! reads them any more.

use std::collections::BTreeMap;

use forebay_base::{Binding, ByteRange, Command, Launch, MemoryId, Region, StreamId};
use forebay_model::program::{BufferId, Operand, Program, ProgramLaunch, Role};

use crate::liveness::{Chunk, Liveness, Owner};
use crate::plan::Movement;

/// Alignment in bytes of what lies in the host block: the alignment that kernels require for their workspace.
pub const HOST_LAUNCH_ALIGNMENT_BYTES: u64 = 256;

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(HOST_LAUNCH_ALIGNMENT_BYTES)
}

/// Bytes of a buffer that a launch uses together; operands that overlap form one area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Area {
    buffer: BufferId,
    range: ByteRange,
    /// Whether the launch needs the bytes that were there before.
    is_read: bool,
    /// Whether it writes there.
    is_written: bool,
}

/// Returns the areas of a launch, sorted by buffer and position.
fn areas(launch: &ProgramLaunch) -> Vec<Area> {
    let read =
        |operand: &Operand| Area { buffer: operand.buffer, range: operand.range(), is_read: true, is_written: false };
    // A write that leaves gaps keeps what is in them.
    let written = |operand: &Operand| Area { is_read: !operand.desc.is_dense(), is_written: true, ..read(operand) };
    let mut areas: Vec<Area> = launch.reads.iter().map(read).chain(launch.writes.iter().map(written)).collect();
    areas.sort_unstable_by_key(|area| (area.buffer, area.range));
    areas.dedup_by(|next, last| {
        let is_same = next.buffer == last.buffer && (next.range == last.range || next.range.overlaps(last.range));
        if is_same {
            // If an area has several operands, none of them writes every byte.
            last.is_read |= next.is_read || next.range != last.range;
            last.is_written |= next.is_written;
            last.range.end = last.range.end.max(next.range.end);
        }
        is_same
    });
    areas
}

/// Returns the number of bytes that a launch takes in the host block.
fn needed_bytes(launch: &ProgramLaunch) -> u64 {
    let operands: u64 = areas(launch).iter().map(|area| aligned(area.range.len())).sum();
    operands + aligned(launch.workspace_bytes)
}

/// Returns the number of bytes of the host block that launches on the host take: as many as the most demanding one needs, or 0 if there are
/// none.
pub fn host_launch_bytes(program: &Program) -> u64 {
    program
        .launches
        .iter()
        .filter(|launch| launch.on_host && !launch.in_host_memory)
        .map(needed_bytes)
        .max()
        .unwrap_or(0)
}

/// An area that the host block holds.
#[derive(Clone, Debug)]
struct Held {
    area: Area,
    /// Where it is on the device.
    device: Region,
    /// The offset of its first byte in the part of the block.
    offset_bytes: u64,
    /// The launch that changed it, if the device does not have the change yet.
    changed_by: Option<usize>,
}

impl Held {
    fn end_bytes(&self) -> u64 {
        self.offset_bytes + aligned(self.device.range.len())
    }
}

/// Turns launches on the host into commands.
pub struct HostLaunches<'a> {
    program: &'a Program,
    /// The chunks of each buffer, with the launches that touch them.
    uses: BTreeMap<BufferId, Vec<&'a Chunk>>,
    stream: StreamId,
    /// The part of the host block that launches on the host have.
    part: Region,
    held: Vec<Held>,
}

impl<'a> HostLaunches<'a> {
    /// For the launches of a program in a stream; `part` is the part of the host block that they have.
    pub fn new(program: &'a Program, live: &'a Liveness, stream: StreamId, part: Region) -> HostLaunches<'a> {
        let mut uses: BTreeMap<BufferId, Vec<&Chunk>> = BTreeMap::new();
        for chunk in &live.chunks {
            if let Owner::Buffer(buffer) = chunk.owner {
                uses.entry(buffer).or_default().push(chunk);
            }
        }
        HostLaunches { program, uses, stream, part, held: Vec::new() }
    }

    /// Adds the commands of a launch on the host whose operands are bound to device memory, with the reasons for its copies.
    pub fn launch(&mut self, index: usize, bound: Launch, commands: &mut Vec<Command>, reasons: &mut Vec<Movement>) {
        let program = self.program;
        let source = &program.launches[index];
        let areas: Vec<(Area, Region)> =
            areas(source).into_iter().map(|area| (area, on_device(source, &bound, area))).collect();
        // Bytes that overlap an area without matching it exactly could not be told apart later.
        let is_in_the_way =
            |held: &Held| areas.iter().any(|(_, region)| *region != held.device && region.overlaps(held.device));
        self.put_back(index, is_in_the_way, commands, reasons);
        let own = |held: &Held| areas.iter().any(|(_, region)| *region == held.device);
        let needed_bytes = |held: &[Held]| -> Vec<u64> {
            let missing = areas.iter().filter(|(_, region)| held.iter().all(|held| held.device != *region));
            missing.map(|(area, _)| area.range.len()).chain([source.workspace_bytes]).map(aligned).collect()
        };
        // Keeps everything if it fits, else what the device does not have, else what this launch uses, else nothing.
        let (mut offsets, mut round) = (self.room(&needed_bytes(&self.held)), 0);
        while offsets.is_none() && round < 3 {
            match round {
                0 => self.put_back(index, |held| held.changed_by.is_none() && !own(held), commands, reasons),
                1 => self.put_back(index, |held| !own(held), commands, reasons),
                _ => self.put_back(index, |_| true, commands, reasons),
            }
            offsets = self.room(&needed_bytes(&self.held));
            round += 1;
        }
        let mut offsets = offsets.expect("the part is as large as each launch needs").into_iter();
        let missing = areas.iter().filter(|(_, region)| self.held.iter().all(|held| held.device != *region));
        for (area, device) in missing.copied().collect::<Vec<_>>() {
            let offset_bytes = offsets.next().expect("each missing area has a place");
            let held = Held { area, device, offset_bytes, changed_by: None };
            if area.is_read && !area.range.is_empty() {
                commands.push(Command::Copy { stream: self.stream, from: device, to: self.place(&held) });
                let reason = format!("'{}' runs on the host and needs it", source.name);
                reasons.push(self.movement(area.buffer, reason));
            }
            self.held.push(held);
        }
        let workspace = offsets.next().filter(|_| source.workspace_bytes > 0);
        let workspace = workspace.map(|offset_bytes| self.part.part(offset_bytes, source.workspace_bytes));
        let on_host = |bindings: Vec<Binding>| bindings.into_iter().map(|binding| self.bind(binding)).collect();
        let launch = Launch { reads: on_host(bound.reads), writes: on_host(bound.writes), workspace, ..bound };
        commands.push(Command::Launch { stream: self.stream, launch: Box::new(launch) });
        for held in &mut self.held {
            if let Some((area, _)) = areas.iter().find(|(_, region)| *region == held.device) {
                // Another buffer may have taken the place of one that is no longer needed.
                held.area = *area;
                held.changed_by = if area.is_written { Some(index) } else { held.changed_by };
            }
        }
    }

    /// Copies back everything that the device needs. Comes before anything other than another launch on the host. `next` is the launch that
    /// comes next.
    pub fn finish(&mut self, next: usize, commands: &mut Vec<Command>, reasons: &mut Vec<Movement>) {
        self.put_back(next, |_| true, commands, reasons);
    }

    /// Gives up the chosen areas of the host block. What launches from `next` on may need is copied to the device.
    fn put_back(
        &mut self,
        next: usize,
        is_chosen: impl Fn(&Held) -> bool,
        commands: &mut Vec<Command>,
        reasons: &mut Vec<Movement>,
    ) {
        let (chosen, kept): (Vec<Held>, Vec<Held>) = std::mem::take(&mut self.held).into_iter().partition(is_chosen);
        self.held = kept;
        for held in chosen {
            let is_wanted = !held.area.range.is_empty() && self.is_wanted(&held.area, next);
            let Some(writer) = held.changed_by.filter(|_| is_wanted) else { continue };
            commands.push(Command::Copy { stream: self.stream, from: self.place(&held), to: held.device });
            let reason = format!("computed on the host by '{}'", self.program.launches[writer].name);
            reasons.push(self.movement(held.area.buffer, reason));
        }
    }

    /// Whether the contents of an area are still needed when the launch `next` begins: the next launch that touches it reads it, or no
    /// launch touches it and it lasts or is an output.
    fn is_wanted(&self, area: &Area, next: usize) -> bool {
        let outputs = self.program.outputs.iter().map(|named| &named.operand);
        let mut outputs = outputs.filter(|operand| operand.buffer == area.buffer);
        let is_read_later = self.program.buffer(area.buffer).role.is_persistent()
            || outputs.any(|operand| operand.range().overlaps(area.range));
        let chunks = self.uses.get(&area.buffer).into_iter().flatten();
        let mut inside = chunks.filter(|chunk| chunk.range.overlaps(area.range));
        inside.any(|chunk| {
            let following = chunk.accesses.partition_point(|access| access.launch < next);
            chunk.accesses.get(following).map_or(is_read_later, |access| access.reads)
        })
    }

    /// Returns offsets for pieces of these sizes next to what the block holds, or `None` if they do not fit.
    fn room(&self, sizes: &[u64]) -> Option<Vec<u64>> {
        let mut taken: Vec<(u64, u64)> = self.held.iter().map(|held| (held.offset_bytes, held.end_bytes())).collect();
        let mut offsets = Vec::with_capacity(sizes.len());
        for &bytes in sizes {
            taken.sort_unstable();
            let mut offset = 0;
            for &(start, end) in &taken {
                if offset + bytes <= start {
                    break;
                }
                offset = offset.max(end);
            }
            if offset + bytes > self.part.range.len() {
                return None;
            }
            taken.push((offset, offset + bytes));
            offsets.push(offset);
        }
        Some(offsets)
    }

    /// Where an area lies in the host block.
    fn place(&self, held: &Held) -> Region {
        self.part.part(held.offset_bytes, held.device.range.len())
    }

    /// Moves a binding in device memory to where the host block holds its bytes.
    fn bind(&self, binding: Binding) -> Binding {
        let inside = |held: &&Held| {
            held.device.memory == binding.region.memory && held.device.range.contains(binding.region.range)
        };
        let held = self.held.iter().find(inside).expect("every operand lies in an area");
        let offset_bytes = binding.region.range.start - held.device.range.start;
        Binding { region: self.place(held).part(offset_bytes, binding.region.range.len()), ..binding }
    }

    fn movement(&self, buffer: BufferId, reason: String) -> Movement {
        let buffer = self.program.buffer(buffer);
        let (name, role): (String, Role) = (buffer.name.clone(), buffer.role);
        Movement { command: 0, name, role, reason }
    }
}

/// Where an area of a launch is on the device: as far from its first operand as it is in its buffer.
fn on_device(source: &ProgramLaunch, bound: &Launch, area: Area) -> Region {
    let operands = source.reads.iter().chain(&source.writes).zip(bound.reads.iter().chain(&bound.writes));
    let mut inside = operands.filter(|(operand, _)| {
        operand.buffer == area.buffer
            && area.range.contains(operand.range())
            && operand.offset_bytes == area.range.start
    });
    let (_, binding) = inside.next().expect("an area begins with an operand");
    let memory: MemoryId = binding.region.memory;
    Region::new(memory, binding.region.range.start, area.range.len())
}

#[cfg(test)]
mod tests;
