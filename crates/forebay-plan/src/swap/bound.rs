//! A time that no schedule can beat.
//!
//! Let `D` be the sum of all durations, and call *stall* whatever time passes without a first run of a kernel: waits, and
//! recomputations. A step takes `D` plus its stalls.
//!
//! While kernel `k` runs, all that is live at `k` beyond the device's capacity must be elsewhere: `need(k)` bytes, of tensors
//! that are idle then.
//!
//! *Before `k`.* Take a kernel `a` before `k`, and the window from the end of `a` to the start of `k`. A tensor's bytes that are
//! elsewhere during `k` have left since the tensor's last write. So of `need(k)` bytes, at most the bytes `S` of idle tensors
//! that were written before `a` can have left before the window; at least `need(k) - S` bytes cross the link outwards within it.
//! The window has the durations between `a` and `k`, and its stalls, so
//!
//! ```text
//! stalls in the window >= (need(k) - S) / rate - durations in the window
//! ```
//!
//! *After `k`.* In the same way, what is elsewhere during `k` is back when it is next touched. So in the window from the end of
//! `k` to the start of `b`, all of `need(k)` but the bytes of tensors that are next touched after `b` crosses the link inwards.
//!
//! *The SSD.* At least `need(k)` less the host's memory is on the SSD, which gives the same inequalities with the SSD's rates.
//!
//! *All of them.* Stalls in windows that share no time add up. A pass over the step, as for the heaviest path, chooses windows
//! with the largest sum `A`. A window does not pass the place at which the step is cut open; two places are tried.
//!
//! *Recomputation.* Bytes that are computed anew need not cross. If kernels run again for `R` in total, a stall of `R` is
//! certain. A run of kernel `j` spares each chosen window at most the bytes of `j`'s outputs that were counted in it, so one
//! nanosecond of recomputing spares at most `(outputs' counted bytes / rate) / duration` nanoseconds of stalls. With the kernels
//! that spare most per nanosecond first, `spared(R)` is the most that `R` can spare, and stalls are at least
//! `max(R, A - spared(R))` for the `R` that was chosen; the bound is the least of this over all `R`.
//!
//! *Kernels side by side.* Nothing above needs kernels to run one by one: a position may stand for several that run between two
//! barriers in any order ([`crate::bound`]). Then a position's duration is the least that they take together, `need` counts the
//! largest of their working sets and what is idle during all of them, and each of them may run again by itself.

use crate::swap::workload::{Kernel, SwapError, Tensor, Workload};

/// Bytes that must be there at some positions of a step, as a whole.
pub(crate) struct Block {
    pub size_bytes: u64,
    /// Whether its contents survive from one step to the next.
    pub persistent: bool,
    /// Who touches it, by ascending position, at most once each.
    pub touches: Vec<Touch>,
}

/// A position at which a block is needed.
#[derive(Clone, Copy)]
pub(crate) struct Touch {
    pub position: usize,
    /// Whether earlier contents are needed.
    pub reads: bool,
    /// The kernel that writes it there, if one does.
    pub writer: Option<usize>,
}

/// The most bytes that cross away from the device and back, in bytes per nanosecond.
#[derive(Clone, Copy)]
pub(crate) struct Rates {
    pub out: f64,
    pub back: f64,
}

/// A step, and the machine on which it runs.
pub(crate) struct Problem {
    pub blocks: Vec<Block>,
    /// The least time that each position takes.
    pub durations_ns: Vec<f64>,
    /// What each position needs on the device at once, at least.
    pub working_sets_bytes: Vec<u64>,
    /// By kernel: how long it takes to run again, where it may.
    pub again_ns: Vec<Option<f64>>,
    pub device_memory_bytes: u64,
    pub host_memory_bytes: u64,
    /// To and from wherever.
    pub all: Rates,
    /// To and from the disk.
    pub disk: Rates,
}

/// A pause of a block between two positions that touch it, of contents that are needed again.
///
/// In the next step positions go on from their number.
#[derive(Clone, Copy, Debug)]
struct Pause {
    bytes: f64,
    /// Where the contents were written, and by which kernel; None if they never were.
    written: Option<i64>,
    writer: Option<usize>,
    /// The position before the pause.
    from: i64,
    /// The position after it.
    to: i64,
}

/// A stretch of the step with a stall that is certain.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// The kernel with the need.
    peak: i64,
    /// The kernel at the window's other end: before the peak where bytes leave, after it where they return.
    other: i64,
    /// The stall, in nanoseconds.
    stall_ns: f64,
    /// The rate that it was found with, in bytes per nanosecond.
    bytes_per_ns: f64,
}

/// A problem, prepared for questions about windows.
struct Step<'a> {
    problem: &'a Problem,
    count: i64,
    pauses: Vec<Pause>,
    /// For each position, pauses that it lies in.
    around: Vec<Vec<usize>>,
    /// For each position, bytes that must be elsewhere meanwhile.
    need_bytes: Vec<f64>,
    /// Durations before each position, over three steps.
    elapsed_ns: Vec<f64>,
}

/// No schedule of the workload has a step shorter than this.
///
/// # Errors
/// A kernel that does not fit the device: there is no schedule at all.
pub fn lower_bound_ns(workload: &Workload) -> Result<u64, SwapError> {
    workload.validate()?;
    Ok(problem(workload).lower_bound_ns())
}

/// A workload whose kernels run one by one.
fn problem(workload: &Workload) -> Problem {
    let mut touches = vec![Vec::new(); workload.tensors.len()];
    for (position, kernel) in workload.kernels.iter().enumerate() {
        for tensor in kernel.touches() {
            let writer = kernel.writes.contains(&tensor).then_some(position);
            touches[tensor].push(Touch { position, reads: kernel.reads.contains(&tensor), writer });
        }
    }
    let machine = &workload.machine;
    let per_ns = |rate: u64| rate as f64 / 1e9;
    let through_link = |rate: u64| per_ns(rate.min(machine.link_bytes_per_s));
    let block = |(tensor, touches): (&Tensor, Vec<Touch>)| Block {
        size_bytes: tensor.size_bytes,
        persistent: tensor.persistent,
        touches,
    };
    let again = |kernel: &Kernel| (!kernel.updates_in_place()).then_some(kernel.duration_ns as f64);
    Problem {
        blocks: workload.tensors.iter().zip(touches).map(block).collect(),
        durations_ns: workload.kernels.iter().map(|kernel| kernel.duration_ns as f64).collect(),
        working_sets_bytes: workload.kernels.iter().map(|kernel| workload.working_set_bytes(kernel)).collect(),
        again_ns: workload.kernels.iter().map(again).collect(),
        device_memory_bytes: machine.device_memory_bytes,
        host_memory_bytes: machine.host_memory_bytes,
        all: Rates { out: per_ns(machine.link_bytes_per_s), back: per_ns(machine.link_bytes_per_s) },
        disk: Rates {
            out: through_link(machine.ssd_write_bytes_per_s),
            back: through_link(machine.ssd_read_bytes_per_s),
        },
    }
}

impl Problem {
    /// No execution has a step shorter than this.
    pub(crate) fn lower_bound_ns(&self) -> u64 {
        let step = Step::new(self);
        let bound_ns = [0, step.count / 2].into_iter().map(|cut| step.certain_stall_ns(cut)).fold(0.0, f64::max);
        let ideal_ns: f64 = self.durations_ns.iter().sum();
        // What floating-point sums may be off by is taken off.
        let margin_ns = 1.0 + 1e-12 * ideal_ns;
        (ideal_ns + (bound_ns - margin_ns).max(0.0)) as u64
    }
}

impl<'a> Step<'a> {
    fn new(problem: &'a Problem) -> Step<'a> {
        let count = problem.durations_ns.len();
        let pauses = pauses(&problem.blocks, count as i64);
        let mut around = vec![Vec::new(); count];
        for (index, pause) in pauses.iter().enumerate() {
            for position in pause.from + 1..pause.to {
                around[position.rem_euclid(count as i64) as usize].push(index);
            }
        }
        let need = |(working_set_bytes, around): (&u64, &Vec<usize>)| {
            let idle_bytes: f64 = around.iter().map(|pause| pauses[*pause].bytes).sum();
            *working_set_bytes as f64 + idle_bytes - problem.device_memory_bytes as f64
        };
        let need_bytes = problem.working_sets_bytes.iter().zip(&around).map(need).collect();
        let mut elapsed_ns = vec![0.0];
        for position in 0..3 * count {
            elapsed_ns.push(elapsed_ns[position] + problem.durations_ns[position % count]);
        }
        Step { problem, count: count as i64, pauses, around, need_bytes, elapsed_ns }
    }

    /// Durations between two positions, both left out.
    fn between_ns(&self, from: i64, to: i64) -> f64 {
        self.elapsed_ns[(to + self.count) as usize] - self.elapsed_ns[(from + 1 + self.count) as usize]
    }

    /// A pause around a position, moved to the step in which that stands at `peak`.
    fn at(&self, pause: usize, peak: i64) -> Pause {
        let pause = self.pauses[pause];
        let mut shift = 0;
        while pause.from + shift >= peak {
            shift -= self.count;
        }
        while pause.to + shift <= peak {
            shift += self.count;
        }
        Pause { written: pause.written.map(|at| at + shift), from: pause.from + shift, to: pause.to + shift, ..pause }
    }

    /// The windows before a position, or after it, with a certain stall, within `limit`.
    fn windows(&self, peak: i64, limit: i64, before: bool) -> Vec<Window> {
        let index = peak.rem_euclid(self.count) as usize;
        let need_bytes = self.need_bytes[index];
        if need_bytes <= 0.0 {
            return Vec::new();
        }
        // Where each idle tensor's crossing becomes possible, or is due, with its bytes; nearest to the peak first.
        let mut crossings: Vec<(i64, f64)> = Vec::new();
        let mut anytime_bytes = 0.0;
        for &pause in &self.around[index] {
            let pause = self.at(pause, peak);
            let bytes = pause.bytes;
            match if before { pause.written } else { Some(pause.to) } {
                Some(at) => crossings.push((at, bytes)),
                None => anytime_bytes += bytes,
            }
        }
        crossings.sort_by_key(|(at, _)| if before { -at } else { *at });
        let mut outside_bytes: f64 = anytime_bytes + crossings.iter().map(|(_, bytes)| bytes).sum::<f64>();
        let problem = self.problem;
        let rate = |rates: Rates| if before { rates.out } else { rates.back };
        let limits =
            [(need_bytes, rate(problem.all)), (need_bytes - problem.host_memory_bytes as f64, rate(problem.disk))];
        let mut windows = Vec::new();
        let mut rest = crossings.iter().peekable();
        while let Some((other, bytes)) = rest.next() {
            if if before { *other < limit } else { *other > limit } {
                break;
            }
            outside_bytes -= bytes;
            if rest.peek().is_some_and(|(next, _)| next == other) {
                continue;
            }
            let time_ns = if before { self.between_ns(*other, peak) } else { self.between_ns(peak, *other) };
            let stall = |(need_bytes, bytes_per_ns): (f64, f64)| Window {
                peak,
                other: *other,
                stall_ns: (need_bytes - outside_bytes) / bytes_per_ns - time_ns,
                bytes_per_ns,
            };
            let best = limits.map(stall).into_iter().max_by(|left, right| left.stall_ns.total_cmp(&right.stall_ns));
            windows.extend(best.filter(|window| window.stall_ns > 0.0));
        }
        windows
    }

    /// The stalls that are certain in a step that is cut open before a position.
    fn certain_stall_ns(&self, cut: i64) -> f64 {
        let length = self.count as usize;
        // The largest sum of windows within the waits before the first so many kernels, and the window that ends there.
        let mut best: Vec<(f64, Option<(usize, Window)>)> = vec![(0.0, None); length + 1];
        for index in 0..length {
            let peak = cut + index as i64;
            // The wait before this kernel ends windows before it.
            let mut here = best[index + 1];
            if best[index].0 > here.0 {
                here = (best[index].0, None);
            }
            for window in self.windows(peak, cut, true) {
                let from = (window.other - cut) as usize + 1;
                if best[from].0 + window.stall_ns > here.0 {
                    here = (best[from].0 + window.stall_ns, Some((from, window)));
                }
            }
            best[index + 1] = here;
            for window in self.windows(peak, cut + self.count - 1, false) {
                let to = (window.other - cut) as usize + 1;
                if here.0 + window.stall_ns > best[to].0 {
                    best[to] = (here.0 + window.stall_ns, Some((index + 1, window)));
                }
            }
        }
        let mut chosen = Vec::new();
        let mut at = length;
        while at > 0 {
            match best[at].1 {
                Some((from, window)) => {
                    chosen.push(window);
                    at = from;
                }
                None => at -= 1,
            }
        }
        self.with_recomputation(best[length].0, &chosen)
    }

    /// What is left of stalls when recomputation spares as much of them as it can.
    fn with_recomputation(&self, stall_ns: f64, chosen: &[Window]) -> f64 {
        let mut spared_ns = vec![0.0; self.problem.again_ns.len()];
        for window in chosen {
            let index = window.peak.rem_euclid(self.count) as usize;
            for &pause in &self.around[index] {
                let pause = self.at(pause, window.peak);
                let (Some(written), Some(writer)) = (pause.written, pause.writer) else { continue };
                let counted =
                    if window.other < window.peak { written >= window.other } else { pause.to <= window.other };
                if counted {
                    spared_ns[writer] += pause.bytes / window.bytes_per_ns;
                }
            }
        }
        let again = spared_ns.into_iter().zip(&self.problem.again_ns);
        let mut runs: Vec<(f64, f64)> = again
            .filter_map(|(spared_ns, again_ns)| again_ns.filter(|_| spared_ns > 0.0).map(|ns| (spared_ns, ns)))
            .collect();
        // The most spared per nanosecond first: spared / duration descends.
        runs.sort_by(|left, right| (right.0 * left.1).total_cmp(&(left.0 * right.1)));
        let (mut left_ns, mut run_ns) = (stall_ns, 0.0);
        for (spared_ns, duration_ns) in runs {
            if left_ns - spared_ns <= run_ns + duration_ns {
                // The two meet within this kernel: left - x * spared = run + x * duration.
                let share = (left_ns - run_ns) / (spared_ns + duration_ns);
                return if (0.0..=1.0).contains(&share) { run_ns + share * duration_ns } else { left_ns.min(run_ns) };
            }
            left_ns -= spared_ns;
            run_ns += duration_ns;
        }
        left_ns
    }
}

/// All pauses of contents that are needed again.
fn pauses(blocks: &[Block], count: i64) -> Vec<Pause> {
    let mut pauses = Vec::new();
    for block in blocks {
        let touches = &block.touches;
        for (index, touch) in touches.iter().enumerate() {
            let (to, reads) = match touches.get(index + 1) {
                Some(next) => (next.position as i64, next.reads),
                None if block.persistent => (touches[0].position as i64 + count, touches[0].reads),
                None => continue,
            };
            let written_here = touches[..=index].iter().rev().find(|touch| touch.writer.is_some());
            let written_before = touches.iter().rev().find(|touch| touch.writer.is_some());
            let written = match (written_here, written_before) {
                (Some(touch), _) => Some((touch.position as i64, touch.writer)),
                (None, Some(touch)) if block.persistent => Some((touch.position as i64 - count, touch.writer)),
                (None, _) if block.persistent => None,
                // What the step is given appears where it is first touched.
                (None, _) => Some((touches[0].position as i64, None)),
            };
            if reads {
                let (at, writer) = written.unzip();
                let (bytes, from) = (block.size_bytes as f64, touch.position as i64);
                pauses.push(Pause { bytes, written: at, writer: writer.flatten(), from, to });
            }
        }
    }
    pauses
}

#[cfg(test)]
mod tests;
