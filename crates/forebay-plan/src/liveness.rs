//! Liveness: which launches touch which bytes.
//!
//! The unit is a *chunk*: a byte range of a buffer that every launch touches wholly or not at all. Buffers are cut where operands begin and
//! end (so that the two halves of a concatenation are independent), and large buffers are cut into a few more chunks, so that a part of a
//! buffer can be swapped.
//!
//! Updates on the host touch bytes in host memory. These accesses are listed separately and take no memory on the device.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::ByteRange;
use forebay_model::program::{BufferId, Operand, Program};

/// Alignment in bytes of what is placed on the device.
pub const DEVICE_ALIGNMENT_BYTES: u64 = 256;
/// The smallest chunk that a large buffer is cut into, in bytes.
const CHUNK_MIN_BYTES: u64 = 1 << 20;
/// The most chunks that a large buffer is cut into.
const CHUNKS_PER_BUFFER: u64 = 8;
/// Chunk boundaries inside a buffer are multiples of this many bytes.
const CHUNK_ALIGNMENT_BYTES: u64 = 4096;

/// What a chunk belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A buffer of the program.
    Buffer(BufferId),
    /// The workspace bytes of a launch.
    Workspace(usize),
}

/// One launch that touches a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The launch.
    pub launch: usize,
    /// Whether it needs the bytes that were there before.
    pub reads: bool,
    /// Whether it changes them.
    pub writes: bool,
}

/// A byte range of a buffer that launches touch wholly or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// What it belongs to.
    pub owner: Owner,
    /// Its bytes within the owner.
    pub range: ByteRange,
    /// Launches with operands on the device that touch it, in ascending order.
    pub accesses: Vec<Access>,
    /// Launches with operands in host memory that touch it, in ascending order: updates on the host.
    pub host_accesses: Vec<Access>,
}

impl Chunk {
    /// Returns a chunk that only launches with operands on the device touch.
    pub fn on_device(owner: Owner, range: ByteRange, accesses: Vec<Access>) -> Chunk {
        Chunk { owner, range, accesses, host_accesses: Vec::new() }
    }

    /// Whether any launch writes it.
    pub fn is_changed(&self) -> bool {
        self.accesses.iter().chain(&self.host_accesses).any(|access| access.writes)
    }

    /// Whether any launch before `launch` writes it.
    pub fn is_changed_before(&self, launch: usize) -> bool {
        let mut accesses = self.accesses.iter().chain(&self.host_accesses);
        accesses.any(|access| access.writes && access.launch < launch)
    }

    /// Returns all accesses in ascending order of launches, each with whether it is an access of host memory.
    pub fn all_accesses(&self) -> Vec<(Access, bool)> {
        let on_device = self.accesses.iter().map(|&access| (access, false));
        let mut all: Vec<(Access, bool)> =
            on_device.chain(self.host_accesses.iter().map(|&access| (access, true))).collect();
        all.sort_by_key(|(access, _)| access.launch);
        all
    }

    /// Returns the last launch before `launch` that changes it in host memory.
    pub fn last_host_write_before(&self, launch: usize) -> Option<usize> {
        let mut writes = self.host_accesses.iter().rev().filter(|access| access.writes);
        writes.find(|access| access.launch < launch).map(|access| access.launch)
    }

    /// Returns the launch after the last one before `launch` that changes it in host memory, or 0 if none does.
    pub fn host_writes_end(&self, launch: usize) -> usize {
        self.last_host_write_before(launch).map_or(0, |last| last + 1)
    }

    /// Returns the first launch before which a swap-in for its access number `access` can be placed. If there is no such access, this is
    /// the swap-in for the next step.
    pub fn earliest_swap_in(&self, access: usize) -> usize {
        self.host_writes_end(self.accesses.get(access).map_or(usize::MAX, |access| access.launch))
    }

    /// Whether it cannot stay on the device from its access number `after` to the next one, because the host changes it meanwhile or needs
    /// what the device has changed. The last access is followed by the first one of the next step.
    pub fn is_wanted_by_host(&self, after: usize) -> bool {
        if self.host_accesses.is_empty() {
            return false;
        }
        let last = self.accesses[after].launch;
        let within = |access: &&Access| match self.accesses.get(after + 1) {
            Some(next) => last < access.launch && access.launch < next.launch,
            None => last < access.launch || access.launch < self.accesses[0].launch,
        };
        let changed = self.accesses[..=after].iter().any(|access| access.writes);
        self.host_accesses.iter().filter(within).any(|access| access.writes || changed)
    }

    /// Returns the number of bytes that it takes on the device, including alignment.
    pub fn device_bytes(&self) -> u64 {
        self.range.len().next_multiple_of(DEVICE_ALIGNMENT_BYTES)
    }
}

/// All chunks of a program, with those of one buffer next to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// The chunks.
    pub chunks: Vec<Chunk>,
    /// Number of launches.
    pub launch_count: usize,
}

impl Liveness {
    /// Returns the number of bytes that each launch needs at once: its operands and its workspace.
    pub fn needed_bytes(&self) -> Vec<u64> {
        let mut needed_bytes = vec![0; self.launch_count];
        for chunk in &self.chunks {
            for access in &chunk.accesses {
                needed_bytes[access.launch] += chunk.device_bytes();
            }
        }
        needed_bytes
    }

    /// Returns the most bytes that any launch needs at once.
    pub fn most_needed_bytes(&self) -> u64 {
        self.needed_bytes().into_iter().max().unwrap_or(0)
    }

    /// Merges accesses of host memory into the others, for code that considers the order of launches.
    #[must_use]
    pub fn with_all_accesses(mut self) -> Liveness {
        for chunk in self.chunks.iter_mut().filter(|chunk| !chunk.host_accesses.is_empty()) {
            chunk.accesses = chunk.all_accesses().into_iter().map(|(access, _)| access).collect();
        }
        self
    }
}

/// Finds the chunks and their accesses. With `split`, large buffers are cut into several chunks.
pub fn liveness(program: &Program, split: bool) -> Liveness {
    let cuts = cut_points(program, split);
    let mut chunks = Vec::new();
    let mut chunks_of = BTreeMap::new();
    for (&buffer, points) in &cuts {
        let first = chunks.len();
        let points: Vec<u64> = points.iter().copied().collect();
        let chunk =
            |pair: &[u64]| Chunk::on_device(Owner::Buffer(buffer), ByteRange::new(pair[0], pair[1]), Vec::new());
        chunks.extend(points.windows(2).map(chunk));
        chunks_of.insert(buffer, first..chunks.len());
    }
    for (launch, item) in program.launches.iter().enumerate() {
        let reads = item.reads.iter().map(|operand| (operand, true, false));
        let writes = item.writes.iter().map(|operand| (operand, false, true));
        for (operand, reads, writes) in reads.chain(writes) {
            let range = touched(program, operand);
            // A write that leaves gaps keeps what others wrote into them, so it needs the old bytes.
            let keeps_gaps = writes && !operand.desc.is_dense();
            let of_buffer = &mut chunks[chunks_of[&operand.buffer].clone()];
            let first = of_buffer.partition_point(|chunk| chunk.range.start < range.start);
            for chunk in of_buffer[first..].iter_mut().take_while(|chunk| range.contains(chunk.range)) {
                let fresh = chunk.accesses.is_empty() && chunk.host_accesses.is_empty();
                let accesses = if item.in_host_memory { &mut chunk.host_accesses } else { &mut chunk.accesses };
                note(accesses, Access { launch, reads: reads || (keeps_gaps && !fresh), writes });
            }
        }
        let access = Access { launch, reads: false, writes: true };
        let workspace = |bytes| Chunk::on_device(Owner::Workspace(launch), ByteRange::new(0, bytes), Vec::new());
        if item.in_host_memory && item.workspace_bytes > 0 {
            chunks.push(Chunk { host_accesses: vec![access], ..workspace(item.workspace_bytes) });
        } else if item.device_workspace_bytes() > 0 {
            chunks.push(Chunk { accesses: vec![access], ..workspace(item.device_workspace_bytes()) });
        }
    }
    Liveness { chunks, launch_count: program.launches.len() }
}

fn note(accesses: &mut Vec<Access>, access: Access) {
    match accesses.last_mut() {
        Some(last) if last.launch == access.launch => {
            last.reads |= access.reads;
            last.writes |= access.writes;
        }
        _ => accesses.push(access),
    }
}

/// The bytes of its buffer that an operand spans, including gaps between its elements.
fn touched(program: &Program, operand: &Operand) -> ByteRange {
    let size_bytes = program.buffer(operand.buffer).size_bytes;
    let end = (operand.offset_bytes + operand.desc.total_size_bytes()).min(size_bytes);
    ByteRange::new(operand.offset_bytes.min(end), end)
}

fn cut_points(program: &Program, split: bool) -> BTreeMap<BufferId, BTreeSet<u64>> {
    let mut cuts: BTreeMap<BufferId, BTreeSet<u64>> = BTreeMap::new();
    let launched = program.launches.iter().flat_map(|launch| launch.reads.iter().chain(&launch.writes));
    let named = program.inputs.iter().chain(&program.outputs).chain(&program.persistent).map(|named| &named.operand);
    for operand in launched.chain(named) {
        let range = touched(program, operand);
        let points = cuts.entry(operand.buffer).or_default();
        points.extend([0, program.buffer(operand.buffer).size_bytes, range.start, range.end]);
    }
    if split {
        for (&buffer, points) in &mut cuts {
            let size_bytes = program.buffer(buffer).size_bytes;
            let step = (size_bytes / CHUNKS_PER_BUFFER).max(CHUNK_MIN_BYTES).next_multiple_of(CHUNK_ALIGNMENT_BYTES);
            let lines = (1..).map(|i| i * step).take_while(|&line| line + CHUNK_MIN_BYTES / 2 <= size_bytes);
            points.extend(lines.collect::<Vec<_>>());
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ProgramBuilder;
    use forebay_base::Kernel;
    use forebay_base::kernel::UnaryOp;

    #[test]
    fn large_buffers_are_cut_and_small_ones_are_not() {
        let mut build = ProgramBuilder::default();
        let x = build.input("x", 16 << 20);
        let y = build.temporary("y", 64);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &[y]);
        let program = build.finish(&[y]);
        assert_eq!(liveness(&program, false).chunks.len(), 2);
        let live = liveness(&program, true);
        assert_eq!(live.chunks.iter().filter(|c| c.owner == Owner::Buffer(x)).count(), 8);
        assert!(live.chunks.iter().all(|chunk| chunk.accesses.len() == 1));
    }

    #[test]
    fn an_update_in_place_reads_and_writes() {
        let mut build = ProgramBuilder::default();
        let x = build.temporary("x", 64);
        build.launch(Kernel::Fill { value: 1.0 }, &[], &[x]);
        build.launch(Kernel::Unary(UnaryOp::Exp), &[x], &[x]);
        let live = liveness(&build.finish(&[x]), true);
        assert_eq!(live.chunks[0].accesses[1], Access { launch: 1, reads: true, writes: true });
    }
}
