//! Brute force on tiny workloads: no schedule in whole units of time beats the bound.

use std::collections::BTreeSet;

use crate::bound::lower_bound_ns;
use crate::workload::{Kernel, Machine, Tensor, Workload};
use forebay_testing::Random;

const TENSORS: usize = 3;
/// Time advances in steps of this; the link carries a byte in one step.
const UNIT_NS: u64 = 1000;
/// Contents that are being written.
const UNDER_WAY: u8 = 255;
/// The contents with which tensor 0 starts; those of the next tensors follow. Kernel 0 writes contents 1.
const OLD: u8 = 100;

/// Tensors of one byte, kernels of one or two units of time, a link that carries a byte in one, and the least memory.
fn tiny(seed: u64) -> Workload {
    let mut random = Random::new(seed);
    let tensors: Vec<Tensor> = (0..TENSORS).map(|_| Tensor { size_bytes: 1, persistent: !random.once_in(3) }).collect();
    let mut kernels = Vec::new();
    for number in 0..2 + random.below(3) {
        let choose = |random: &mut Random| (0..TENSORS).filter(|_| random.once_in(3)).collect::<Vec<usize>>();
        let (mut reads, mut writes) = (choose(&mut random), choose(&mut random));
        reads.truncate(1);
        writes.truncate(1);
        let (name, duration_ns) = (format!("kernel{number}"), UNIT_NS * (1 + random.below(2)));
        kernels.push(Kernel { name, duration_ns, reads, writes, workspace_bytes: random.below(2) });
    }
    let machine = Machine {
        device_memory_bytes: 0,
        host_memory_bytes: 100,
        link_bytes_per_s: 1_000_000,
        ssd_read_bytes_per_s: 1_000_000,
        ssd_write_bytes_per_s: 1_000_000,
    };
    let mut workload = Workload { tensors, kernels, machine };
    let sets = workload.kernels.iter().map(|kernel| workload.working_set_bytes(kernel));
    workload.machine.device_memory_bytes = sets.max().unwrap_or(0).max(1);
    workload
}

/// Contents on the device and on the host (0: none), the next kernel, and the one that runs with what is left of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    device: [u8; TENSORS],
    host: [u8; TENSORS],
    next: usize,
    running: Option<(usize, u64)>,
}

/// Every way to play a step.
struct Game<'a> {
    workload: &'a Workload,
    /// What each kernel must find.
    expected: Vec<Vec<u8>>,
    /// Contents of each tensor when the step ends.
    last: [u8; TENSORS],
}

impl Game<'_> {
    fn new(workload: &Workload) -> Game<'_> {
        let mut last = [OLD, OLD + 1, OLD + 2];
        let mut expected = Vec::new();
        for (number, kernel) in workload.kernels.iter().enumerate() {
            expected.push(kernel.reads.iter().map(|tensor| last[*tensor]).collect());
            kernel.writes.iter().for_each(|tensor| last[*tensor] = number as u8 + 1);
        }
        Game { workload, expected, last }
    }

    /// The shortest step over all states in which it can start.
    fn shortest(&self, most: u64) -> Option<u64> {
        (0..4usize.pow(TENSORS as u32)).filter_map(|code| self.shortest_from(code, most)).min()
    }

    fn shortest_from(&self, code: usize, most: u64) -> Option<u64> {
        let mut start = State { device: [0; TENSORS], host: [0; TENSORS], next: 0, running: None };
        for tensor in 0..TENSORS {
            let places = code / 4usize.pow(tensor as u32) % 4;
            // Persistent tensors start somewhere, others nowhere.
            if (places > 0) != self.workload.tensors[tensor].persistent {
                return None;
            }
            start.device[tensor] = if places & 1 > 0 { OLD + tensor as u8 } else { 0 };
            start.host[tensor] = if places & 2 > 0 { OLD + tensor as u8 } else { 0 };
        }
        let mut layer = BTreeSet::from([start.clone()]);
        for time in 0..=most {
            if layer.iter().any(|state| self.ends_as(state, &start)) {
                return Some(time);
            }
            layer = layer.iter().flat_map(|state| self.moves(state)).collect();
        }
        None
    }

    fn ends_as(&self, state: &State, start: &State) -> bool {
        let same =
            |now: &[u8; TENSORS], then: &[u8; TENSORS]| (0..TENSORS).all(|t| then[t] == 0 || now[t] == self.last[t]);
        let is_done = state.next == self.workload.kernels.len() && state.running.is_none();
        is_done && same(&state.device, &start.device) && same(&state.host, &start.host)
    }

    /// Every possible state one unit of time later.
    fn moves(&self, state: &State) -> Vec<State> {
        let mut found = Vec::new();
        for dropped in 0..1usize << TENSORS {
            let mut state = state.clone();
            let is_free = |tensor: usize| {
                state.running.is_none_or(|(kernel, _)| !self.workload.kernels[kernel].touches().contains(&tensor))
            };
            if (0..TENSORS).any(|tensor| dropped >> tensor & 1 > 0 && (state.device[tensor] == 0 || !is_free(tensor))) {
                continue;
            }
            (0..TENSORS).filter(|tensor| dropped >> tensor & 1 > 0).for_each(|tensor| state.device[tensor] = 0);
            let starts = (0..self.workload.kernels.len()).filter_map(|kernel| self.started(&state, kernel));
            for state in starts.chain([state.clone()]) {
                self.transfers(&state, &mut found);
            }
        }
        found
    }

    /// The state after a kernel has started, if it can start.
    fn started(&self, state: &State, number: usize) -> Option<State> {
        let kernel = &self.workload.kernels[number];
        if state.running.is_some() || number > state.next || number < state.next && kernel.updates_in_place() {
            return None;
        }
        let mut state = state.clone();
        for (tensor, expected) in kernel.reads.iter().zip(&self.expected[number]) {
            let is_born = *expected >= OLD && !self.workload.tensors[*tensor].persistent;
            if is_born && state.device[*tensor] == 0 && number == state.next {
                state.device[*tensor] = *expected;
            }
            if state.device[*tensor] != *expected {
                return None;
            }
        }
        kernel.writes.iter().for_each(|tensor| state.device[*tensor] = UNDER_WAY);
        state.next = state.next.max(number + 1);
        state.running = Some((number, kernel.duration_ns / UNIT_NS));
        Some(state)
    }

    /// A unit of time with at most one transfer each way.
    fn transfers(&self, state: &State, found: &mut Vec<State>) {
        let workspace = state.running.map_or(0, |(kernel, _)| self.workload.kernels[kernel].workspace_bytes);
        let used = workspace + state.device.iter().filter(|contents| **contents > 0).count() as u64;
        for out in 0..=TENSORS {
            for back in 0..=TENSORS {
                let takes = u64::from(back < TENSORS);
                let is_out = out == TENSORS || !matches!(state.device[out], 0 | UNDER_WAY);
                let is_back = back == TENSORS || (state.device[back] == 0 && state.host[back] > 0);
                if !is_out || !is_back || used + takes > self.workload.machine.device_memory_bytes {
                    continue;
                }
                let mut after = state.clone();
                if out < TENSORS {
                    after.host[out] = state.device[out];
                }
                if back < TENSORS {
                    after.device[back] = state.host[back];
                }
                after.running = state.running.map(|(kernel, left)| (kernel, left - 1));
                if let Some((number, 0)) = after.running {
                    let writes = &self.workload.kernels[number].writes;
                    writes.iter().for_each(|tensor| after.device[*tensor] = number as u8 + 1);
                    after.running = None;
                }
                found.push(after);
            }
        }
    }
}

#[test]
fn no_schedule_of_a_tiny_workload_beats_the_bound() {
    let (mut tight, mut stalled) = (0, 0);
    for seed in 0..24 {
        let workload = tiny(seed);
        let bound_ns = lower_bound_ns(&workload).unwrap();
        let Some(shortest) = Game::new(&workload).shortest(16) else { continue };
        let shortest_ns = shortest * UNIT_NS;
        assert!(bound_ns <= shortest_ns, "seed {seed}: bound {bound_ns}, but a step takes {shortest_ns}: {workload:?}");
        stalled += usize::from(shortest_ns > workload.ideal_ns());
        tight += usize::from(bound_ns > workload.ideal_ns());
    }
    assert!(stalled > 3, "only {stalled} workloads stall at all");
    assert!(tight > 0, "the bound never says more than the ideal time");
}
