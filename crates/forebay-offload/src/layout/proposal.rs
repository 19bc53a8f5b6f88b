//! What one gap could do to relieve the device with copies on the SSD.
//!
//! The first bytes to leave are the last to return: the absence of each move encloses those of the moves after it. What earlier moves take
//! off the pressure therefore counts for every later one, and moving stops when the enclosed slots have no pressure left.

use crate::layout::Layout;
use crate::layout::extremes::greatest;
use crate::reuse_gaps::{ReuseGap, Version};
use crate::schedule::MemorySpace;

/// Where the bytes of a move are while they are absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the existing copy with this number.
    Existing(usize),
    /// In a copy that is made in this slot.
    Made(usize),
    /// In a copy that exists forever, because nothing writes the tensor.
    Eternal,
}

/// Bytes that leave and return together.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// Where they are in the meantime.
    pub source: Source,
    /// The number of bytes.
    pub size_bytes: u64,
    /// The first slot without them.
    pub from: usize,
    /// The slot in which they return.
    pub back: usize,
}

/// How a gap could be used.
#[derive(Clone, Debug, Default)]
pub struct Proposal {
    /// The moves.
    pub moves: Vec<Move>,
    /// The pressure taken off, in bytes times nanoseconds, per byte that crosses a link.
    pub value: f64,
}

/// A proposal under construction.
pub struct Proposer<'l, 'w> {
    layout: &'l Layout<'w>,
    tolerance: i64,
    gap: ReuseGap,
    version: Version,
    existing: std::vec::IntoIter<usize>,
    /// Where the next bytes go, and how many of them at most.
    next: Option<(Source, u64)>,
    /// Bytes without a copy.
    fresh_bytes: u64,
    /// The next slot for a new copy.
    out: usize,
    /// The slot in which the next bytes return, and its room.
    back: usize,
    back_room: u64,
    /// Bytes proposed so far.
    assigned: i64,
    /// The slot with the highest pressure among those that the last move enclosed, and that pressure.
    pressed: Option<(usize, i64)>,
    moves: Vec<Move>,
    relief: f64,
    cost: f64,
}

impl<'l, 'w> Proposer<'l, 'w> {
    /// Starts a proposal for a gap; pressure below the tolerance does not count.
    pub fn new(layout: &'l Layout<'w>, span: usize, tolerance: i64) -> Proposer<'l, 'w> {
        let gap = layout.needs.reuse_gaps[span];
        let version = layout.needs.versions[gap.version];
        let size_bytes = layout.workload.tensors[version.tensor].size_bytes;
        let back = gap.end - 1;
        Proposer {
            layout,
            tolerance,
            gap,
            version,
            existing: layout.usable_copies(span).into_iter(),
            next: None,
            fresh_bytes: size_bytes - layout.copied_bytes[gap.version],
            out: version.written_before.unwrap_or(gap.begin),
            back,
            back_room: layout.room_in(back, MemorySpace::Ssd),
            assigned: 0,
            pressed: None,
            moves: Vec::new(),
            relief: 0.0,
            cost: 0.0,
        }
    }

    /// Makes the proposal. `pressed_ns` has the time under pressure before each slot, over two steps.
    pub fn propose(mut self, pressed_ns: &[u64]) -> Proposal {
        let count = self.layout.excess.len();
        let time_ns = |from: usize, to: usize| pressed_ns[from % count + (to - from)] - pressed_ns[from % count];
        if time_ns(self.gap.begin, self.gap.end) == 0 {
            return Proposal::default();
        }
        while let Some((source, left)) = self.next_source() {
            let from = self.first_slot_without(source);
            while self.back > from && self.back_room == 0 {
                self.back -= 1;
                self.back_room = self.layout.room_in(self.back, MemorySpace::Ssd);
            }
            if from >= self.back || self.lingers(from) {
                match source {
                    // Another copy may have been made earlier.
                    Source::Existing(_) if self.gap.begin < self.back => continue,
                    _ => break,
                }
            }
            let size_bytes = left.min(self.back_room).min(self.needed_bytes(from));
            if size_bytes == 0 {
                break;
            }
            self.relief += size_bytes as f64 * time_ns(from, self.back) as f64;
            self.take(source, size_bytes, from);
            self.next = Some((source, left - size_bytes)).filter(|(_, left)| *left > 0);
        }
        let value = if self.cost > 0.0 { self.relief / self.cost } else { 0.0 };
        Proposal { moves: self.moves, value }
    }

    /// Where the next bytes go: existing copies, then new ones, as early as there is room on the link.
    fn next_source(&mut self) -> Option<(Source, u64)> {
        if let Some(next) = self.next.take() {
            return Some(next);
        }
        if let Some(copy) = self.existing.next() {
            return Some((Source::Existing(copy), self.layout.copies[copy].size_bytes));
        }
        if self.fresh_bytes == 0 {
            return None;
        }
        if self.version.written_before.is_none() {
            return Some((Source::Eternal, self.fresh_bytes));
        }
        while self.out < self.back && self.layout.room_out(self.out, MemorySpace::Ssd) == 0 {
            self.out += 1;
        }
        let slot = self.out;
        self.out += 1;
        (slot < self.back)
            .then(|| (Source::Made(slot), self.fresh_bytes.min(self.layout.room_out(slot, MemorySpace::Ssd))))
    }

    fn first_slot_without(&self, source: Source) -> usize {
        let made = match source {
            Source::Existing(copy) => self.layout.copies[copy].made,
            Source::Made(slot) => Some(slot),
            Source::Eternal => None,
        };
        made.map_or(self.gap.begin, |made| self.gap.begin.max(made + 1))
    }

    /// Whether the next bytes would be idle on the device for longer than is acceptable.
    fn lingers(&self, from: usize) -> bool {
        let time = |slot: usize| self.layout.time_ns(slot);
        let idle_ns = time(from) - time(self.gap.begin) + time(self.gap.end) - time(self.back);
        idle_ns > self.layout.dwell_limit_ns
    }

    /// The pressure left in the slots that the next move encloses, in whole transfer quanta.
    fn needed_bytes(&mut self, from: usize) -> u64 {
        let Layout { excess, excess_blocks, .. } = self.layout;
        if self.pressed.is_none_or(|(slot, _)| slot < from || slot >= self.back) {
            self.pressed = greatest(excess, excess_blocks, from..self.back);
        }
        let left = self.pressed.map_or(0, |(_, bytes)| bytes - self.tolerance - self.assigned);
        (left.max(0) as u64).next_multiple_of(self.layout.transfer_quantum_bytes)
    }

    fn take(&mut self, source: Source, size_bytes: u64, from: usize) {
        self.moves.push(Move { source, size_bytes, from, back: self.back });
        self.assigned += size_bytes as i64;
        // A new copy crosses the link twice, others only on the way back.
        self.cost += size_bytes as f64 * if matches!(source, Source::Made(_)) { 2.0 } else { 1.0 };
        self.back_room -= size_bytes.next_multiple_of(self.layout.transfer_quantum_bytes);
        if !matches!(source, Source::Existing(_)) {
            self.fresh_bytes -= size_bytes;
        }
    }
}
