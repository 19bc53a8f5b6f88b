//! Which contents are dropped and recomputed, and the resulting order of launches.
//!
//! A gap ends with a recomputation if running the kernel of the tensor again takes less time than moving the tensor out and back. The
//! inputs of the kernel must be available by then: they are needed later anyway, or they are recomputed as well, or they are kept for
//! longer. What that costs in bytes and time is subtracted from the gain.

use std::collections::{BTreeMap, BTreeSet};

use crate::schedule::MemorySpace;
use crate::tuning::{FRESH, WORTH};
use crate::workload::Workload;

/// A gap that could end with a recomputation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The tensor.
    pub tensor: usize,
    /// The kernel that made it.
    pub maker: usize,
    /// The kernel that needs it again.
    pub to: usize,
    /// The time that a crossing of its bytes takes, minus the cost of keeping the inputs of its kernels for longer.
    pub crossing_ns: f64,
    /// How long the kernels that recompute it run.
    pub spent_ns: f64,
    /// Time saved per time spent, if both crossings are saved.
    pub worth: f64,
}

/// A touch of a tensor.
#[derive(Clone, Copy, Debug)]
struct Touch {
    kernel: usize,
    reads: bool,
    writes: bool,
}

/// The plain step, prepared for queries about which kernel computes what.
pub struct Recomputation<'a> {
    workload: &'a Workload,
    touches: Vec<Vec<Touch>>,
    /// When each kernel starts and ends.
    starts_ns: Vec<f64>,
    ends_ns: Vec<f64>,
    /// The time under pressure before each kernel.
    pressed_ns: Vec<f64>,
    /// The most kernels in a row that may be run again for one tensor.
    chain: usize,
    /// How long a byte takes to cross, out or back.
    crossing_ns_per_byte: f64,
}

impl<'a> Recomputation<'a> {
    /// Prepares a workload. `pressed` states for each kernel whether more is live than the device holds, `waits_ns` how long it waits
    /// before it starts, `chain` how many kernels in a row may be run again for one tensor, and `place` the memory that bytes cross to
    /// otherwise.
    pub fn new(
        workload: &'a Workload,
        pressed: &[bool],
        waits_ns: &[u64],
        chain: usize,
        place: MemorySpace,
    ) -> Recomputation<'a> {
        let mut touches = vec![Vec::new(); workload.tensors.len()];
        let (mut starts_ns, mut ends_ns, mut pressed_ns) = (Vec::new(), Vec::new(), vec![0.0]);
        let mut now_ns = 0.0;
        for (number, ((kernel, pressed), wait_ns)) in workload.kernels.iter().zip(pressed).zip(waits_ns).enumerate() {
            for tensor in kernel.touches() {
                let (reads, writes) = (kernel.reads.contains(&tensor), kernel.writes.contains(&tensor));
                touches[tensor].push(Touch { kernel: number, reads, writes });
            }
            let duration_ns = kernel.duration_ns as f64;
            now_ns += *wait_ns as f64;
            starts_ns.push(now_ns);
            now_ns += duration_ns;
            ends_ns.push(now_ns);
            pressed_ns.push(pressed_ns[number] + if *pressed { duration_ns } else { 0.0 });
        }
        let crossing_ns_per_byte = workload.crossing_ns_per_byte(place);
        Recomputation { workload, touches, starts_ns, ends_ns, pressed_ns, chain, crossing_ns_per_byte }
    }

    /// The gaps that are worth it, the most worthwhile first.
    pub fn candidates(&self) -> Vec<Candidate> {
        self.pool().into_iter().filter(|candidate| candidate.worth > WORTH).collect()
    }

    /// All gaps that could end with recomputations that save a crossing, the most worthwhile first.
    pub fn pool(&self) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for tensor in 0..self.touches.len() {
            for pair in self.touches[tensor].windows(2) {
                if pair[1].reads && pair[0].kernel + 1 < pair[1].kernel {
                    candidates.extend(self.candidate(tensor, pair[0].kernel, pair[1].kernel));
                }
            }
        }
        candidates.sort_by(|left, right| right.worth.total_cmp(&left.worth).then(left.to.cmp(&right.to)));
        candidates
    }

    fn candidate(&self, tensor: usize, from: usize, to: usize) -> Option<Candidate> {
        let span_ns = self.pressed_ns[to] - self.pressed_ns[from + 1];
        let size_bytes = self.workload.tensors[tensor].size_bytes as f64;
        let bytes_per_ns = self.workload.machine.link_bytes_per_s as f64 / 1e9;
        // If a gap is too short to move anything in it, its bytes are kept anyway.
        if span_ns <= 0.0 || self.starts_ns[to] - self.ends_ns[from] < 2.0 * size_bytes / bytes_per_ns {
            return None;
        }
        let (spent_ns, held) = Costs::new(self, to).cost(tensor, self.chain)?;
        let gained_bytes = size_bytes - held / span_ns;
        let (maker, crossing_ns) = (self.maker(tensor, to)?, gained_bytes * self.crossing_ns_per_byte);
        let worth = 2.0 * crossing_ns / spent_ns.max(1.0);
        (worth > 0.0).then_some(Candidate { tensor, maker, to, crossing_ns, spent_ns, worth })
    }

    /// The kernel that made what a tensor holds when kernel `at` starts, if it may run again at that time.
    fn maker(&self, tensor: usize, at: usize) -> Option<usize> {
        let touches = &self.touches[tensor];
        let touch = touches.iter().rev().find(|touch| touch.kernel < at && touch.writes)?;
        let maker = touch.kernel;
        let kernel = &self.workload.kernels[maker];
        let unchanged = |other: &usize| {
            !self.touches[*other].iter().any(|touch| touch.writes && touch.kernel > maker && touch.kernel < at)
        };
        // What it reads and writes must not have changed since.
        let legal =
            !kernel.updates_in_place() && kernel.reads.iter().all(unchanged) && kernel.writes.iter().all(unchanged);
        (legal && !touch.reads && kernel.writes.iter().all(|other| !self.workload.tensors[*other].persistent))
            .then_some(maker)
    }

    /// The next kernel, from `at` on, that reads what the tensor holds.
    fn next_read(&self, tensor: usize, at: usize) -> Option<usize> {
        let touch = self.touches[tensor].iter().find(|touch| touch.kernel >= at)?;
        touch.reads.then_some(touch.kernel)
    }

    /// Returns the launches of a step in which these gaps end with recomputations.
    pub fn launches(&self, chosen: &[Candidate]) -> Vec<(usize, bool)> {
        let mut order = Order {
            recomputation: self,
            chosen: chosen.iter().map(|candidate| (candidate.tensor, candidate.to)).collect(),
            remade: vec![None; self.touches.len()],
            launches: Vec::new(),
        };
        for (number, kernel) in self.workload.kernels.iter().enumerate() {
            for &tensor in &kernel.reads {
                order.ensure(tensor, number, self.chain);
            }
            order.launches.push((number, false));
        }
        order.launches
    }
}

/// What it costs to recompute tensors before one kernel.
struct Costs<'a> {
    recomputation: &'a Recomputation<'a>,
    /// The kernel.
    at: usize,
    /// The costs so far, by tensor and length of the chain: many paths can lead to the same input.
    known: BTreeMap<(usize, usize), Option<(f64, f64)>>,
}

impl<'a> Costs<'a> {
    fn new(recomputation: &'a Recomputation<'a>, at: usize) -> Costs<'a> {
        Costs { recomputation, at, known: BTreeMap::new() }
    }

    /// The time to recompute a tensor, and the bytes times the time for which inputs are held beyond their other uses.
    fn cost(&mut self, tensor: usize, chain: usize) -> Option<(f64, f64)> {
        if let Some(cost) = self.known.get(&(tensor, chain)) {
            return *cost;
        }
        let cost = self.cost_of_maker(tensor, chain);
        self.known.insert((tensor, chain), cost);
        cost
    }

    fn cost_of_maker(&mut self, tensor: usize, chain: usize) -> Option<(f64, f64)> {
        let all = self.recomputation;
        let kernel = &all.workload.kernels[all.maker(tensor, self.at)?];
        let (mut spent_ns, mut held) = (kernel.duration_ns as f64, 0.0);
        for &input in &kernel.reads {
            let (more_ns, more) = self.cost_of_input(input, chain)?;
            spent_ns += more_ns;
            held += more;
        }
        Some((spent_ns, held))
    }

    fn cost_of_input(&mut self, input: usize, chain: usize) -> Option<(f64, f64)> {
        let (all, at) = (self.recomputation, self.at);
        let size_bytes = all.workload.tensors[input].size_bytes as f64;
        if let Some(next) = all.next_read(input, at) {
            return Some((0.0, size_bytes * (all.pressed_ns[next] - all.pressed_ns[at])));
        }
        if all.workload.tensors[input].persistent {
            return Some((0.0, 0.0));
        }
        let last = all.touches[input].iter().rev().find(|touch| touch.kernel < at)?.kernel;
        let kept = (0.0, size_bytes * (all.pressed_ns[at] - all.pressed_ns[last + 1]));
        // A dead input is recomputed if that is allowed; otherwise it is kept until then.
        let remade = if chain > 0 { self.cost(input, chain - 1) } else { None };
        Some(remade.unwrap_or(kept))
    }
}

/// The launches of a step under construction.
struct Order<'a> {
    recomputation: &'a Recomputation<'a>,
    chosen: BTreeSet<(usize, usize)>,
    /// The kernel before which each tensor was last recomputed.
    remade: Vec<Option<usize>>,
    launches: Vec<(usize, bool)>,
}

impl Order<'_> {
    /// Recomputes a tensor before a kernel if it was dropped.
    fn ensure(&mut self, tensor: usize, at: usize, chain: usize) {
        let all = self.recomputation;
        let dropped = match all.next_read(tensor, at) {
            // Dropped in the gap that ends at its next read, and not recomputed within it.
            Some(next) => {
                let from = all.touches[tensor].iter().rev().find(|touch| touch.kernel < at).map(|touch| touch.kernel);
                self.chosen.contains(&(tensor, next))
                    && self.remade[tensor].is_none_or(|remade| from.is_some_and(|from| remade <= from))
            }
            // Dead, and not fresh.
            None => {
                chain > 0
                    && !all.workload.tensors[tensor].persistent
                    && self.remade[tensor].is_none_or(|remade| remade + FRESH < at)
            }
        };
        if !dropped {
            return;
        }
        let Some(maker) = all.maker(tensor, at) else { return };
        for &input in &all.workload.kernels[maker].reads {
            self.ensure(input, at, chain.saturating_sub(1));
        }
        for &output in &all.workload.kernels[maker].writes {
            self.remade[output] = Some(at);
        }
        self.launches.push((maker, true));
    }
}
