//! Which bytes leave the device in which gaps, and in which slots they cross the links.
//!
//! A sweep decides both ([`sweep`]). Before it, what the host memory cannot hold at all is chosen for the SSD, greedily: the gap that takes
//! the most pressure off the device per byte moved comes first. Pressure is what exceeds the capacity of device and host together, in each
//! slot. Within a gap, the first bytes to leave are the last to return. The absence of each byte therefore encloses that of the bytes after
//! it, and bytes move only while what they enclose still has pressure. Transfers out start as early as the link is free after the write,
//! transfers in as late as it is free.

mod extremes;
mod free;
mod least;
mod proposal;
mod returns;
pub mod sweep;

use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use crate::reuse_gaps::Needs;
use crate::schedule::MemorySpace;
use crate::timeline::Timeline;
use crate::tuning::{LEAST_DWELL_LIMIT, NEARLY};
use crate::workload::Workload;
use extremes::{BLOCK_SLOTS, greatest_of_blocks};
use proposal::{Proposal, Proposer, Source};

/// A copy of a version's bytes in another memory.
#[derive(Clone, Debug)]
pub struct Copy {
    /// The number of the version.
    pub version: usize,
    /// Where the bytes start in the tensor.
    pub offset_bytes: u64,
    /// The number of bytes.
    pub size_bytes: u64,
    /// The memory.
    pub place: MemorySpace,
    /// The slot in which it is made; `None` if it exists forever, because nothing writes the tensor.
    pub made: Option<usize>,
    /// The absences that it serves.
    pub absences: Vec<Absence>,
}

/// A span of slots for which the bytes of a copy are not on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// The number of the gap.
    pub span: usize,
    /// The first slot without them.
    pub from: usize,
    /// The slot in which they cross the link to return.
    pub back: usize,
}

/// What is left of links and memories in each slot.
#[derive(Clone, Debug)]
struct FreeCapacity {
    link_out: Vec<u64>,
    link_in: Vec<u64>,
    ssd_out: Vec<u64>,
    ssd_in: Vec<u64>,
    host: Vec<i64>,
    /// The minimum of `host` in each block of slots.
    host_blocks: Vec<i64>,
}

/// The state of the search, and its result.
#[derive(Clone, Debug)]
pub struct Layout<'a> {
    workload: &'a Workload,
    timeline: &'a Timeline,
    needs: &'a Needs,
    unused: FreeCapacity,
    /// The bytes beyond the capacity of the device in each slot; fits if not positive.
    pub excess: Vec<i64>,
    /// The maximum of `excess` in each block of slots.
    excess_blocks: Vec<i64>,
    /// Every copy.
    pub copies: Vec<Copy>,
    /// Copies of each version.
    of_version: Vec<Vec<usize>>,
    /// The bytes of each version that have a copy; copies follow one after the other.
    copied_bytes: Vec<u64>,
    /// The longest that bytes may stay on the device in their gap.
    dwell_limit_ns: u64,
    /// On the links, transfers are rounded up to a multiple of this.
    transfer_quantum_bytes: u64,
    /// Whether the host can hold everything that is live at any time, so that its room need not be counted.
    host_is_ample: bool,
}

/// The least that a link is charged for a transfer: a page, or what it carries in a quarter of a microsecond. No transfer is then too short
/// for its times to differ in whole nanoseconds.
pub fn transfer_quantum_bytes(link_bytes_per_s: u64) -> u64 {
    (link_bytes_per_s / 4_000_000).next_multiple_of(4096).max(4096)
}

/// A gap in the queue, the most valuable first.
#[derive(PartialEq)]
struct Entry {
    value: f64,
    span: usize,
}

impl Eq for Entry {}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        self.value.total_cmp(&other.value).then(other.span.cmp(&self.span))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// What a slot can still carry to or from a memory, given what is left of the link and the SSD in each slot.
fn room(link: &[u64], ssd: &[u64], slot: usize, place: MemorySpace) -> u64 {
    let slot = slot % link.len();
    if place == MemorySpace::Ssd { link[slot].min(ssd[slot]) } else { link[slot] }
}

impl<'a> Layout<'a> {
    /// Creates a layout in which nothing moves yet.
    pub fn new(workload: &'a Workload, launches: &[usize], timeline: &'a Timeline, needs: &'a Needs) -> Layout<'a> {
        let machine = &workload.machine;
        let [device_bytes, host_bytes] = machine.memories_bytes();
        let count = timeline.slots.len();
        let transfer_quantum_bytes = transfer_quantum_bytes(machine.link_bytes_per_s);
        let unused = FreeCapacity {
            link_out: timeline.capacities_bytes(machine.link_bytes_per_s, transfer_quantum_bytes),
            link_in: timeline.capacities_bytes(machine.link_bytes_per_s, transfer_quantum_bytes),
            ssd_out: timeline.capacities_bytes(machine.ssd_write_bytes_per_s, transfer_quantum_bytes),
            ssd_in: timeline.capacities_bytes(machine.ssd_read_bytes_per_s, transfer_quantum_bytes),
            host: vec![host_bytes; count],
            host_blocks: vec![host_bytes; count.div_ceil(BLOCK_SLOTS)],
        };
        let mut excess = vec![-device_bytes; count];
        for (run, &kernel) in timeline.runs.iter().zip(launches) {
            let bytes = workload.working_set_bytes(&workload.kernels[kernel]) as i64;
            excess[run.clone()].iter_mut().for_each(|excess| *excess += bytes);
        }
        let mut changes = vec![0; count];
        for span in &needs.reuse_gaps {
            let bytes = workload.tensors[needs.versions[span.version].tensor].size_bytes as i64;
            // A gap lasts for less than a step.
            changes[span.begin % count] += bytes;
            changes[span.end % count] -= bytes;
            changes[0] += if span.begin / count < span.end / count { bytes } else { 0 };
        }
        let mut gap_bytes = 0;
        for (excess, change) in excess.iter_mut().zip(changes) {
            gap_bytes += change;
            *excess += gap_bytes;
        }
        let live_bytes = excess.iter().max().map_or(0, |most| most + device_bytes);
        Layout {
            workload,
            timeline,
            host_is_ample: live_bytes <= host_bytes,
            needs,
            unused,
            excess_blocks: greatest_of_blocks(&excess),
            excess,
            copies: Vec::new(),
            of_version: vec![Vec::new(); needs.versions.len()],
            copied_bytes: vec![0; needs.versions.len()],
            dwell_limit_ns: u64::MAX,
            transfer_quantum_bytes,
        }
    }

    /// The highest pressure that is left, in bytes.
    fn worst_bytes(&self) -> i64 {
        self.excess.iter().copied().max().unwrap_or(0)
    }

    /// Moves what the host memory cannot hold to the SSD. The SSD is slow: gaps whose bytes would stay idle on the device for long because
    /// of it are left for the host, unless nothing else helps.
    fn find_for_ssd(&mut self) {
        let [_, host_bytes] = self.workload.machine.memories_bytes();
        let mut dwell_limit_ns = self.timeline.step_ns / LEAST_DWELL_LIMIT;
        while self.worst_bytes() > host_bytes && dwell_limit_ns <= self.timeline.step_ns && dwell_limit_ns > 0 {
            self.dwell_limit_ns = dwell_limit_ns;
            self.move_to_ssd(host_bytes);
            dwell_limit_ns *= 2;
        }
        self.dwell_limit_ns = u64::MAX;
    }

    /// Uses gaps with copies on the SSD until pressure is below a tolerance, or nothing more helps.
    fn move_to_ssd(&mut self, tolerance: i64) {
        let mut pressure = self.pressure_sums(tolerance);
        let mut queue = BinaryHeap::new();
        for span in 0..self.needs.reuse_gaps.len() {
            let value = self.propose(span, tolerance, &pressure).value;
            if value > 0.0 {
                queue.push(Entry { value, span });
            }
        }
        while let Some(Entry { span, .. }) = queue.pop() {
            let proposal = self.propose(span, tolerance, &pressure);
            if proposal.moves.is_empty() {
                continue;
            }
            let next = queue.peek().map_or(0.0, |entry| entry.value);
            if proposal.value < next * NEARLY {
                queue.push(Entry { value: proposal.value, span });
                continue;
            }
            self.commit(span, &proposal);
            pressure = self.pressure_sums(tolerance);
            let value = self.propose(span, tolerance, &pressure).value;
            if value > 0.0 {
                queue.push(Entry { value, span });
            }
        }
    }

    /// Nanoseconds under pressure before each slot, over two steps.
    fn pressure_sums(&self, tolerance: i64) -> Vec<u64> {
        let count = self.excess.len();
        let mut sums = Vec::with_capacity(2 * count + 1);
        let mut sum = 0;
        for slot in 0..2 * count {
            sums.push(sum);
            if self.excess[slot % count] > tolerance {
                sum += self.timeline.slots[slot % count].duration_ns;
            }
        }
        sums.push(sum);
        sums
    }

    fn time_ns(&self, slot: usize) -> u64 {
        let count = self.excess.len();
        self.timeline.step_ns * (slot / count) as u64 + self.timeline.slots[slot % count].start_ns
    }

    fn room_out(&self, slot: usize, place: MemorySpace) -> u64 {
        room(&self.unused.link_out, &self.unused.ssd_out, slot, place)
    }

    fn room_in(&self, slot: usize, place: MemorySpace) -> u64 {
        room(&self.unused.link_in, &self.unused.ssd_in, slot, place)
    }

    /// The copies of the version of a gap that the gap does not use yet, the oldest first.
    fn usable_copies(&self, span: usize) -> Vec<usize> {
        let gap = self.needs.reuse_gaps[span];
        let usable = |copy: &&usize| {
            let copy = &self.copies[**copy];
            let is_used = copy.absences.iter().any(|absence| absence.span == span);
            !is_used && copy.made.is_none_or(|made| made < gap.end)
        };
        let mut copies: Vec<usize> = self.of_version[gap.version].iter().filter(usable).copied().collect();
        copies.sort_by_key(|copy| self.copies[*copy].made);
        copies
    }

    /// Proposes how the gap could relieve the device.
    fn propose(&self, span: usize, tolerance: i64, pressed_ns: &[u64]) -> Proposal {
        Proposer::new(self, span, tolerance).propose(pressed_ns)
    }

    /// The slots for which a copy is kept; `None` for all slots.
    pub fn stay(&self, copy: &Copy) -> Option<(usize, usize)> {
        let last = copy.absences.iter().map(|absence| absence.back).max().unwrap_or(0);
        copy.made.map(|made| (made, last.max(made) + 1))
    }

    fn commit(&mut self, span: usize, proposal: &Proposal) {
        // A copy that is used in parts is split; the rest continues under another number.
        let mut rests = BTreeMap::new();
        let mut relief = Vec::with_capacity(proposal.moves.len());
        for step in &proposal.moves {
            let absence = Absence { span, from: step.from, back: step.back };
            match step.source {
                Source::Existing(original) => {
                    let copy = rests.get(&original).copied().unwrap_or(original);
                    if let Some(rest) = self.split(copy, step.size_bytes) {
                        rests.insert(original, rest);
                    }
                    self.use_copy(copy, absence);
                }
                Source::Made(slot) => self.add_copy(MemorySpace::Ssd, Some(slot), step.size_bytes, absence),
                Source::Eternal => self.add_copy(MemorySpace::Ssd, None, step.size_bytes, absence),
            }
            let charge = step.size_bytes.next_multiple_of(self.transfer_quantum_bytes);
            let slot = step.back % self.excess.len();
            self.unused.link_in[slot] -= charge;
            self.unused.ssd_in[slot] -= charge;
            relief.push((step.from, step.back, step.size_bytes as i64));
        }
        self.take_pressure(&relief);
    }

    /// Lets a copy serve another absence; it may have to be kept for longer.
    fn use_copy(&mut self, copy: usize, absence: Absence) {
        let before = self.stay(&self.copies[copy]);
        self.copies[copy].absences.push(absence);
        let after = self.stay(&self.copies[copy]);
        if let (Some((_, before)), Some((_, after)), MemorySpace::Host) = (before, after, self.copies[copy].place) {
            self.take_host(before, after, self.copies[copy].size_bytes);
        }
    }

    /// Makes a copy of the next bytes of the version.
    fn add_copy(&mut self, place: MemorySpace, made: Option<usize>, size_bytes: u64, absence: Absence) {
        let version = self.needs.reuse_gaps[absence.span].version;
        let offset_bytes = self.copied_bytes[version];
        self.copied_bytes[version] += size_bytes;
        if let Some(slot) = made {
            let (slot, charge) = (slot % self.excess.len(), size_bytes.next_multiple_of(self.transfer_quantum_bytes));
            self.unused.link_out[slot] -= charge;
            if place == MemorySpace::Ssd {
                self.unused.ssd_out[slot] -= charge;
            }
        }
        let copy = Copy { version, offset_bytes, size_bytes, place, made, absences: vec![absence] };
        if place == MemorySpace::Host {
            let (start, end) = self.stay(&copy).unwrap_or((0, self.excess.len()));
            self.take_host(start, end, size_bytes);
        }
        self.of_version[version].push(self.copies.len());
        self.copies.push(copy);
    }

    /// Subtracts bytes from the excess in ranges of slots that each enclose the next.
    fn take_pressure(&mut self, relief: &[(usize, usize, i64)]) {
        let count = self.excess.len();
        let Some(start) = relief.iter().map(|(from, ..)| *from).min() else { return };
        let Some(end) = relief.iter().map(|(_, back, _)| *back).max() else { return };
        let mut changes = vec![0; end - start + 1];
        for (from, back, bytes) in relief {
            changes[from - start] += bytes;
            changes[back - start] -= bytes;
        }
        let mut absent_bytes = 0;
        for (slot, change) in (start..end).zip(changes) {
            absent_bytes += change;
            self.excess[slot % count] -= absent_bytes;
        }
        self.timeline.for_each_part(start..end, |part| {
            let (first, last) = (part.start / BLOCK_SLOTS, part.end.div_ceil(BLOCK_SLOTS));
            let changed = &self.excess[first * BLOCK_SLOTS..(last * BLOCK_SLOTS).min(count)];
            self.excess_blocks[first..last].copy_from_slice(&greatest_of_blocks(changed));
        });
    }

    fn take_host(&mut self, start: usize, end: usize, bytes: u64) {
        if self.host_is_ample {
            return;
        }
        let (host, blocks) = (&mut self.unused.host, &mut self.unused.host_blocks);
        self.timeline.for_each_part(start..end, |part| {
            host[part.clone()].iter_mut().for_each(|unused| *unused -= bytes as i64);
            let (first, end) = (part.start / BLOCK_SLOTS, part.end.div_ceil(BLOCK_SLOTS));
            let whole = host.chunks(BLOCK_SLOTS).zip(blocks.iter_mut());
            for (slots, least) in whole.take(end).skip(first) {
                *least = slots.iter().copied().min().unwrap_or(0);
            }
        });
    }

    /// The least room that the host has in the given slots.
    fn host_least(&self, slots: Range<usize>) -> i64 {
        let (host, blocks) = (&self.unused.host, &self.unused.host_blocks);
        let mut least = i64::MAX;
        self.timeline.for_each_part(slots, |part| {
            let mut slot = part.start;
            while slot < part.end {
                if slot % BLOCK_SLOTS == 0 && slot + BLOCK_SLOTS <= part.end {
                    least = least.min(blocks[slot / BLOCK_SLOTS]);
                    slot += BLOCK_SLOTS;
                } else {
                    least = least.min(host[slot]);
                    slot += 1;
                }
            }
        });
        least
    }

    /// Splits a copy in two, the first of the given size; returns the number of the second.
    fn split(&mut self, copy: usize, size_bytes: u64) -> Option<usize> {
        let whole = &mut self.copies[copy];
        if whole.size_bytes == size_bytes {
            return None;
        }
        let mut rest = whole.clone();
        whole.size_bytes = size_bytes;
        rest.offset_bytes += size_bytes;
        rest.size_bytes -= size_bytes;
        let version = rest.version;
        self.of_version[version].push(self.copies.len());
        self.copies.push(rest);
        Some(self.copies.len() - 1)
    }
}
