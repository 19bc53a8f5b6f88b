//! Host updates: the update phase runs on the host's processor, next to the optimizer's state, as ZeRO-Offload does (Ren et al., 2021).
//!
//! Launches of the update phase work in place in host memory: their operands are in the host block, at the backing locations of parameters
//! and state and where gradients are swapped out to. So state never crosses the link; a gradient crosses it once, as soon as it is
//! computed, and a parameter crosses it once, when a later step needs it. These launches have their own stream, so that the device
//! continues meanwhile.
//!
//! Which launches these are is decided before budgets are known, and in the same way for all budgets. For the rest of planning, what they
//! touch counts as accesses of host memory ([`crate::liveness::Chunk::host_accesses`]), which take no memory on the device.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{Binding, Command, Launch, MemoryId, Region, StreamId};
use forebay_model::program::{Buffer, BufferId, Operand, Program, Role};

use crate::backing_stores::BackingStores;
use crate::error::PlanError;
use crate::liveness::{Access, Liveness, Owner};
use crate::plan::Movement;

/// Makes the update phase run on the host: its launches, except for exchanges with other processes, and everything computed before it for
/// these launches alone from inputs and from what lasts, such as numbers that the optimizer needs. Must be called before workspace is set
/// ([`Program::set_workspace`]), which also says whether the host can run them.
pub fn update_on_host(program: &mut Program) {
    let count = program.launches.len();
    let mut touching: Vec<Vec<usize>> = vec![Vec::new(); program.buffers.len()];
    for (index, launch) in program.launches.iter().enumerate() {
        let operands = launch.reads.iter().chain(&launch.writes);
        operands.for_each(|operand| touching[operand.buffer.0 as usize].push(index));
    }
    let mut on_host: Vec<bool> = (0..count).map(|launch| may_serve(program, launch)).collect();
    // Buffers of a launch that leaves the host are no longer the host's, so other launches that touch them may have to leave, too.
    let mut leaving: Vec<usize> = (0..count).filter(|&launch| !on_host[launch]).collect();
    let mut is_of_host = vec![true; program.buffers.len()];
    while let Some(left) = leaving.pop() {
        for operand in program.launches[left].reads.iter().chain(&program.launches[left].writes) {
            let buffer = operand.buffer.0 as usize;
            if !std::mem::take(&mut is_of_host[buffer]) {
                continue;
            }
            for &launch in &touching[buffer] {
                if on_host[launch] && !stays(program, launch, |buffer| is_of_host[buffer.0 as usize]) {
                    on_host[launch] = false;
                    leaving.push(launch);
                }
            }
        }
    }
    for (launch, on_host) in program.launches.iter_mut().zip(on_host) {
        launch.in_host_memory = on_host;
    }
}

/// Whether any launch of a program has its operands in host memory.
pub fn updates_on_host(program: &Program) -> bool {
    program.launches.iter().any(|launch| launch.in_host_memory)
}

/// Whether a launch belongs to the update phase, or might exist for it alone, judging by the launch itself.
fn may_serve(program: &Program, index: usize) -> bool {
    let launch = &program.launches[index];
    let is_output = |buffer: BufferId| program.outputs.iter().any(|named| named.operand.buffer == buffer);
    let is_own = |write: &Operand| program.buffer(write.buffer).role.is_temporary() && !is_output(write.buffer);
    !launch.kernel.is_collective() && (index >= program.update_start || launch.writes.iter().all(is_own))
}

/// Whether a launch belongs to the update phase, or reads nothing that the device computes and writes nothing that the device reads.
/// Buffers that only launches on the host touch belong to the host.
fn stays(program: &Program, index: usize, is_of_host: impl Fn(BufferId) -> bool) -> bool {
    if index >= program.update_start {
        return true;
    }
    let launch = &program.launches[index];
    let is_there = |read: &Operand| match program.buffer(read.buffer).role {
        Role::Input | Role::Constant | Role::Parameter | Role::State => true,
        Role::Temporary | Role::Gradient => is_of_host(read.buffer),
    };
    launch.reads.iter().all(is_there) && launch.writes.iter().all(|write| is_of_host(write.buffer))
}

/// Turns updates on the host into commands.
pub(crate) struct HostUpdates<'a> {
    program: &'a Program,
    live: &'a Liveness,
    backing_stores: &'a BackingStores,
    /// The host block.
    host: MemoryId,
    /// The streams of copies from a disk and to it, and the stream of the launches.
    streams: [StreamId; 3],
    /// The chunks of each owner that the updates touch.
    chunks: BTreeMap<Owner, Vec<usize>>,
    /// For each launch, the chunks that it touches and that are on disk between steps.
    staged: BTreeMap<usize, Vec<usize>>,
}

impl<'a> HostUpdates<'a> {
    pub fn new(
        program: &'a Program,
        live: &'a Liveness,
        backing_stores: &'a BackingStores,
        host: MemoryId,
        streams: [StreamId; 3],
    ) -> HostUpdates<'a> {
        let owners: BTreeSet<Owner> =
            live.chunks.iter().filter(|chunk| !chunk.host_accesses.is_empty()).map(|chunk| chunk.owner).collect();
        let (mut chunks, mut staged) = (BTreeMap::<_, Vec<usize>>::new(), BTreeMap::<_, Vec<usize>>::new());
        for (index, chunk) in live.chunks.iter().enumerate().filter(|(_, chunk)| owners.contains(&chunk.owner)) {
            chunks.entry(chunk.owner).or_default().push(index);
            if backing_stores.staged[index].is_some() {
                let launches = chunk.host_accesses.iter().map(|access| access.launch);
                launches.for_each(|launch| staged.entry(launch).or_default().push(index));
            }
        }
        HostUpdates { program, live, backing_stores, host, streams, chunks, staged }
    }

    /// Adds the commands of a launch, with copies from and to a disk of what it touches, and the reasons for these copies.
    ///
    /// # Errors
    /// [`PlanError::Check`] if an operand has no place in the host block.
    pub fn launch(
        &self,
        index: usize,
        label: u32,
        commands: &mut Vec<Command>,
        reasons: &mut Vec<Movement>,
    ) -> Result<(), PlanError> {
        let source = &self.program.launches[index];
        let [disk_in, disk_out, stream] = self.streams;
        let mut copy = |chunk: usize, command: Command, reason: String, commands: &mut Vec<Command>| {
            let Owner::Buffer(buffer) = self.live.chunks[chunk].owner else { return };
            let Buffer { name, role, .. } = self.program.buffer(buffer).clone();
            reasons.push(Movement { command: 0, name, role, reason });
            commands.push(command);
        };
        let staged = || self.staged.get(&index).into_iter().flatten().copied();
        for chunk in staged().filter(|&chunk| self.is_missing(chunk, index)) {
            let changed = self.live.chunks[chunk].is_changed_before(index);
            let Some((on_disk, on_host)) = self.ends(chunk, changed) else { continue };
            let reason = format!("'{}' needs it to update on the host, from disk", source.name);
            copy(chunk, Command::Copy { stream: disk_in, from: on_disk, to: on_host }, reason, commands);
        }
        let bind = |operands: &[Operand]| operands.iter().map(|operand| self.bind(operand)).collect::<Result<_, _>>();
        let workspace_bytes = Some(source.workspace_bytes).filter(|&bytes| bytes > 0);
        let launch = Launch {
            kernel: source.kernel.clone(),
            reads: bind(&source.reads)?,
            writes: bind(&source.writes)?,
            workspace: workspace_bytes.and_then(|bytes| self.region(Owner::Workspace(index), 0, bytes)),
            label,
        };
        commands.push(Command::Launch { stream, launch: Box::new(launch) });
        for chunk in staged().filter(|&chunk| self.is_done(chunk, index)) {
            let Some((on_disk, on_host)) = self.ends(chunk, true) else { continue };
            let reason = format!("changed by '{}' on the host, kept on disk between steps", source.name);
            copy(chunk, Command::Copy { stream: disk_out, from: on_host, to: on_disk }, reason, commands);
        }
        Ok(())
    }

    fn bind(&self, operand: &Operand) -> Result<Binding, PlanError> {
        let owner = Owner::Buffer(operand.buffer);
        let region = self.region(owner, operand.offset_bytes, operand.desc.total_size_bytes());
        let region = region.ok_or_else(|| PlanError::Check {
            reason: format!("'{}' has no place on the host", self.program.buffer(operand.buffer).name),
        })?;
        Ok(Binding { region, desc: operand.desc.clone() })
    }

    /// Returns the region of an owner's bytes in the host block.
    fn region(&self, owner: Owner, offset_bytes: u64, bytes: u64) -> Option<Region> {
        let chunks = self.chunks.get(&owner)?;
        let chunk = *chunks.iter().rfind(|&&chunk| self.live.chunks[chunk].range.start <= offset_bytes)?;
        let place = self.backing_stores.in_host_block(chunk)?;
        Some(Region::new(self.host, place + (offset_bytes - self.live.chunks[chunk].range.start), bytes))
    }

    /// Whether a launch needs a chunk that is on disk and not in the host block.
    fn is_missing(&self, chunk: usize, launch: usize) -> bool {
        let all = self.live.chunks[chunk].all_accesses();
        let before = all.iter().take_while(|(access, _)| access.launch < launch);
        let last = before.filter(|(access, on_host)| *on_host || access.writes).last();
        let reads = all.iter().any(|(access, on_host)| *on_host && access.launch == launch && access.reads);
        reads && last.is_none_or(|(_, on_host)| !on_host)
    }

    /// Whether a launch is the last one to change a chunk in the host block before the device needs it or the step ends.
    fn is_done(&self, chunk: usize, launch: usize) -> bool {
        let all = self.live.chunks[chunk].all_accesses();
        let writes = |(access, on_host): &(Access, bool)| *on_host && access.writes;
        let is_written = all.iter().any(|access| writes(access) && access.0.launch == launch);
        let mut behind = all.iter().filter(|(access, _)| access.launch > launch).take_while(|(_, on_host)| *on_host);
        is_written && !behind.any(writes)
    }

    /// Returns where a chunk is on disk, as it was before the step or as it has `changed`, and where it is in the host block.
    fn ends(&self, chunk: usize, changed: bool) -> Option<(Region, Region)> {
        let bytes = self.live.chunks[chunk].range.len();
        let place = self.backing_stores.places[chunk]?;
        let on_disk = Region::new(self.backing_stores.memory(place.store, changed), place.offset_bytes, bytes);
        Some((on_disk, Region::new(self.host, self.backing_stores.staged[chunk]?, bytes)))
    }
}

#[cfg(test)]
mod tests;
