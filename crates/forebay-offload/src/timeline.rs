//! The step, cut into slots: short spans of time in which one kernel runs or everything waits.
//!
//! Within a slot, a transfer out frees its memory only at the end of the slot, and a transfer in takes its memory from the start of the
//! slot. The order of transfers within a slot therefore does not matter, and a plan that fits slot by slot fits at every instant.

use std::ops::Range;

/// A span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// When it starts.
    pub start_ns: u64,
    /// How long it lasts.
    pub duration_ns: u64,
}

/// The bytes that a link of this rate carries in this time, in whole transfer quanta.
pub fn carried_bytes(time_ns: u64, bytes_per_s: u64, transfer_quantum_bytes: u64) -> u64 {
    let bytes = u64::try_from(u128::from(time_ns) * u128::from(bytes_per_s) / 1_000_000_000).unwrap_or(u64::MAX);
    bytes - bytes % transfer_quantum_bytes
}

/// How long a link of this rate takes to carry these bytes, at most [`u64::MAX`].
pub fn carrying_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    u64::try_from((u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s))).unwrap_or(u64::MAX)
}

/// The slots of a step, and which of them belong to which launch.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// All slots, in order and without gaps.
    pub slots: Vec<Slot>,
    /// The slots in which each launch runs; slots between them and those of the previous launch are a wait.
    pub runs: Vec<Range<usize>>,
    /// How long the step takes.
    pub step_ns: u64,
}

impl Timeline {
    /// Creates the timeline of launches that each follow a wait. No slot is longer than `longest_ns`.
    pub fn new(durations_ns: &[u64], waits_ns: &[u64], longest_ns: u64) -> Timeline {
        Timeline::of(durations_ns, waits_ns, longest_ns, false)
    }

    /// The same as [`Timeline::new`], with two gates before each launch. Gates are slots of no length that can be widened: in the one
    /// before the wait, bytes leave; in the one after it, others come back.
    pub fn with_gates(durations_ns: &[u64], waits_ns: &[u64], longest_ns: u64) -> Timeline {
        Timeline::of(durations_ns, waits_ns, longest_ns, true)
    }

    fn of(durations_ns: &[u64], waits_ns: &[u64], longest_ns: u64, has_gates: bool) -> Timeline {
        let mut timeline = Timeline { slots: Vec::new(), runs: Vec::new(), step_ns: 0 };
        for (duration_ns, wait_ns) in durations_ns.iter().zip(waits_ns) {
            if has_gates {
                timeline.add_gate();
            }
            // Within a wait, bytes leave before others take their place, which needs several slots.
            timeline.extend(*wait_ns, longest_ns.min((wait_ns / 8).max(1)));
            if has_gates {
                timeline.add_gate();
            }
            let first = timeline.slots.len();
            timeline.extend((*duration_ns).max(1), longest_ns);
            timeline.runs.push(first..timeline.slots.len());
        }
        timeline
    }

    fn add_gate(&mut self) {
        self.slots.push(Slot { start_ns: self.step_ns, duration_ns: 0 });
    }

    /// Returns the same slots, each longer by `added_ns`.
    pub fn widened(&self, added_ns: &[u64]) -> Timeline {
        let mut timeline = self.clone();
        timeline.step_ns = 0;
        for (slot, added_ns) in timeline.slots.iter_mut().zip(added_ns) {
            slot.start_ns = timeline.step_ns;
            slot.duration_ns += added_ns;
            timeline.step_ns += slot.duration_ns;
        }
        timeline
    }

    fn extend(&mut self, span_ns: u64, longest_ns: u64) {
        let count = span_ns.div_ceil(longest_ns);
        let start_ns = self.step_ns;
        for index in 0..count {
            let from_ns = start_ns + span_ns * index / count;
            let to_ns = start_ns + span_ns * (index + 1) / count;
            self.slots.push(Slot { start_ns: from_ns, duration_ns: to_ns - from_ns });
        }
        self.step_ns += span_ns;
    }

    /// The bytes that a link of this rate carries in each slot, in whole transfer quanta.
    pub fn capacities_bytes(&self, bytes_per_s: u64, transfer_quantum_bytes: u64) -> Vec<u64> {
        self.slots.iter().map(|slot| carried_bytes(slot.duration_ns, bytes_per_s, transfer_quantum_bytes)).collect()
    }

    /// Calls `visit` with the indices of a range that can pass the end of the step, as one or two ordinary ranges.
    pub fn for_each_part(&self, range: Range<usize>, mut visit: impl FnMut(Range<usize>)) {
        let count = self.slots.len();
        let mut from = range.start;
        while from < range.end {
            let index = from % count;
            let to = range.end.min(from - index + count);
            visit(index..index + (to - from));
            from = to;
        }
    }
}
