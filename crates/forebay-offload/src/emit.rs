//! Converts a layout to a schedule: slots become times, absences become transfers and drops.

use std::collections::BTreeMap;

use crate::layout::{Layout, transfer_quantum_bytes};
use crate::reuse_gaps::Needs;
use crate::schedule::{Direction, Drop, Launch, MemorySpace, Piece, Resident, Schedule, Transfer};
use crate::timeline::Timeline;
use crate::workload::Workload;

/// The state of the conversion.
struct Emitter<'a> {
    workload: &'a Workload,
    timeline: &'a Timeline,
    needs: &'a Needs,
    layout: &'a Layout<'a>,
    transfer_quantum_bytes: u64,
    /// Pieces by slot, direction and memory.
    crossings: BTreeMap<(usize, Direction, MemorySpace), Vec<Piece>>,
    schedule: Schedule,
}

/// Returns the schedule of a layout. `launches` has the kernel of each launch, and whether it is a recomputation.
pub fn emit(
    workload: &Workload,
    launches: &[(usize, bool)],
    timeline: &Timeline,
    needs: &Needs,
    layout: &Layout<'_>,
) -> Schedule {
    let launch = |(&(kernel, recomputation), run): (&(usize, bool), &std::ops::Range<usize>)| Launch {
        kernel,
        start_ns: timeline.slots[run.start].start_ns,
        recomputation,
    };
    let schedule = Schedule {
        step_ns: timeline.step_ns,
        resident: Vec::new(),
        launches: launches.iter().zip(&timeline.runs).map(launch).collect(),
        transfers: Vec::new(),
        drops: Vec::new(),
    };
    let transfer_quantum_bytes = transfer_quantum_bytes(workload.machine.link_bytes_per_s);
    let mut emitter =
        Emitter { workload, timeline, needs, layout, transfer_quantum_bytes, crossings: BTreeMap::new(), schedule };
    emitter.add_copies();
    emitter.add_deaths(launches);
    emitter.add_residents(launches);
    emitter.add_transfers();
    let mut schedule = emitter.schedule;
    schedule.drops.sort_by_key(|drop| (drop.at_ns, drop.place, drop.piece));
    schedule.transfers.sort_by_key(|transfer| (transfer.start_ns, transfer.end_ns, transfer.direction, transfer.piece));
    schedule.resident.sort();
    schedule
}

impl Emitter<'_> {
    /// When a slot starts, within the step.
    fn start_ns(&self, slot: usize) -> u64 {
        self.timeline.slots[slot % self.timeline.slots.len()].start_ns
    }

    /// Whether a step starts after slot `from` starts, and not after slot `to` starts.
    fn spans_boundary(&self, from: usize, to: usize) -> bool {
        let count = self.timeline.slots.len();
        from / count != to / count
    }

    fn add_copies(&mut self) {
        let count = self.timeline.slots.len();
        for copy in &self.layout.copies {
            let tensor = self.needs.versions[copy.version].tensor;
            let piece = Piece { tensor, offset_bytes: copy.offset_bytes, size_bytes: copy.size_bytes };
            match self.layout.stay(copy) {
                Some((made, end)) => {
                    self.crossings.entry((made % count, Direction::Out, copy.place)).or_default().push(piece);
                    self.schedule.drops.push(Drop { piece, place: copy.place, at_ns: self.start_ns(end) });
                    if self.spans_boundary(made, end) {
                        self.schedule.resident.push(Resident { piece, place: copy.place });
                    }
                }
                None => self.schedule.resident.push(Resident { piece, place: copy.place }),
            }
            for absence in &copy.absences {
                self.crossings.entry((absence.back % count, Direction::In, copy.place)).or_default().push(piece);
                self.schedule.drops.push(Drop {
                    piece,
                    place: MemorySpace::Device,
                    at_ns: self.start_ns(absence.from),
                });
            }
        }
    }

    /// Drops what nothing reads again: after the last touch, and before a launch that writes without reading.
    fn add_deaths(&mut self, launches: &[(usize, bool)]) {
        let mut next_reads: Vec<Option<bool>> = vec![None; self.workload.tensors.len()];
        for round in 0..2 {
            for (launch, &(kernel, _)) in launches.iter().enumerate().rev() {
                let kernel = &self.workload.kernels[kernel];
                for tensor in kernel.touches() {
                    let shape = &self.workload.tensors[tensor];
                    let dies = match next_reads[tensor] {
                        Some(reads) => !reads,
                        None => !shape.persistent,
                    };
                    // For each last touch, the second round knows the first touch in the next step.
                    if round == 1 && dies && shape.size_bytes > 0 {
                        let piece = Piece { tensor, offset_bytes: 0, size_bytes: shape.size_bytes };
                        let run = &self.timeline.runs[launch];
                        let at_ns =
                            self.timeline.slots[run.end - 1].start_ns + self.timeline.slots[run.end - 1].duration_ns;
                        self.schedule.drops.push(Drop { piece, place: MemorySpace::Device, at_ns });
                    }
                    next_reads[tensor] = Some(kernel.reads.contains(&tensor));
                }
            }
            for (tensor, next) in next_reads.iter_mut().enumerate() {
                if !self.workload.tensors[tensor].persistent {
                    *next = None;
                }
            }
        }
    }

    /// Adds what the device holds when the step starts: persistent tensors that are read before they are written, except for what is
    /// absent. Also adds the tensors that nothing touches.
    fn add_residents(&mut self, launches: &[(usize, bool)]) {
        let mut absent: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
        for copy in &self.layout.copies {
            for absence in &copy.absences {
                if self.spans_boundary(absence.from, absence.back) {
                    let tensor = self.needs.versions[copy.version].tensor;
                    absent.entry(tensor).or_default().push((copy.offset_bytes, copy.size_bytes));
                }
            }
        }
        let mut first_reads = vec![None; self.workload.tensors.len()];
        for &(kernel, _) in launches {
            let kernel = &self.workload.kernels[kernel];
            for tensor in kernel.touches() {
                first_reads[tensor].get_or_insert(kernel.reads.contains(&tensor));
            }
        }
        for (tensor, shape) in self.workload.tensors.iter().enumerate() {
            if !shape.persistent || first_reads[tensor] != Some(true) {
                continue;
            }
            let mut ranges = absent.remove(&tensor).unwrap_or_default();
            ranges.sort_unstable();
            ranges.push((shape.size_bytes, 0));
            let mut from = 0;
            for (offset_bytes, size_bytes) in ranges {
                if offset_bytes > from {
                    let piece = Piece { tensor, offset_bytes: from, size_bytes: offset_bytes - from };
                    self.schedule.resident.push(Resident { piece, place: MemorySpace::Device });
                }
                from = offset_bytes + size_bytes;
            }
        }
        for &tensor in &self.needs.untouched {
            // The disk has room for what is never needed.
            let piece = Piece { tensor, offset_bytes: 0, size_bytes: self.workload.tensors[tensor].size_bytes };
            self.schedule.resident.push(Resident { piece, place: MemorySpace::Ssd });
        }
    }

    /// Adds transfers. Within a slot, the pieces for each direction and memory follow one after the other, at one rate.
    fn add_transfers(&mut self) {
        for ((slot, direction, place), pieces) in std::mem::take(&mut self.crossings) {
            let slot = self.timeline.slots[slot];
            let charge = |piece: &Piece| u128::from(piece.size_bytes.next_multiple_of(self.transfer_quantum_bytes));
            let total: u128 = pieces.iter().map(charge).sum();
            let (mut moved, mut start_ns) = (0, slot.start_ns);
            for piece in pieces {
                moved += charge(&piece);
                let end_ns = slot.start_ns + (u128::from(slot.duration_ns) * moved / total) as u64;
                self.schedule.transfers.push(Transfer { piece, direction, place, start_ns, end_ns });
                start_ns = end_ns;
            }
        }
    }
}
