//! A time that no schedule can beat.
//!
//! The kernels of a step are at *positions*, one after the other: between two lines that no kernel crosses, one or several kernels run. Let
//! `D` be the sum of the least times that the positions take. A *stall* is the time by which a step is longer: waits between positions, and
//! whatever positions take beyond their least times. A step takes `D` plus its stalls. If a kernel runs more than once, its first run is
//! meant, the one that ends first.
//!
//! While kernel `k` runs, everything that is live at `k` beyond the capacity of the device must be elsewhere: `need(k)` bytes, of tensors
//! that are idle at that time.
//!
//! *Before `k`.* Take a position `a` before `k`, and the window from the end of `a` to the start of `k`. Bytes of a tensor that are
//! elsewhere during `k` have left since the tensor was last written. Of the `need(k)` bytes, at most the bytes `S` of idle tensors that
//! were written before `a`, or that another memory has held all the time, can have left before the window. At least `need(k) - S` bytes
//! cross the link outwards within the window, in copies that begin and end in it. Copies therefore move for at least
//!
//! ```text
//! x = latency + (need(k) - S) / rate
//! ```
//!
//! nanoseconds of the window.
//!
//! *After `k`.* Likewise, what is elsewhere during `k` is back when it is next touched. In the window from the end of `k` to the start of
//! `b`, all of `need(k)` crosses the link inwards, except for the bytes of tensors that are next touched after `b`.
//!
//! *Positions of several kernels.* What is written at `a` can leave before `a` ends: at the earliest when the chain of kernels that ends
//! with its writer is done. Likewise, `k` can start later than its position. The time at both ends also belongs to the window: copies move
//! there at no cost. Such a window includes the positions at its ends, so that no other window counts their stalls.
//!
//! *What copies cost.* A position with least time `d` lasts `d` plus its stall. If only time is short, `x` nanoseconds of copies need a
//! window of that length, so its stall is at least `x` minus the durations in it. If copies take workers from kernels, they cost more: let
//! `r` be the fraction of its speed that a kernel loses while copies move. If copies move for `y` nanoseconds of its time, the kernel takes
//! at least `d + r * y`, and of course at least `y`. So `y` nanoseconds of copies cost `r * y` as long as `y` is at most `d / (1 - r)`, and
//! a nanosecond each beyond that, as they do while nothing runs. The least stall in which the copies of a window have room is found by
//! filling the cheapest kernels first (`overlap`). With `r = 0`, it is what time alone requires.
//!
//! *The SSD.* At least `need(k)` minus the host memory is on the SSD, which gives the same inequalities with the rates of the SSD.
//!
//! *All of them.* Stalls in windows that share no time add up. A pass over the step, as for the heaviest path, chooses windows with the
//! largest sum `A`. A window does not cross the place at which the step is cut open; several places are tried. Nothing is assumed about
//! what is where at these places, except that the next step finds the same. If it is cut open next to the position with the greatest need,
//! a step has a window for everything that is elsewhere there: lasting contents are idle for nearly a step, and no shorter window sees all
//! of them cross.
//!
//! *Both directions.* Windows of one direction that share no time have separate copies, so the times for which these copies move add up,
//! also within a part of the step that contains several windows. On a link that both directions share, outward and inward copies add up,
//! too: they cannot both have the whole of a nanosecond. On a duplex link, copies in both directions can move at once, so that they move
//! for at least half of the sum. For the link, this is no better than what each direction requires alone; but if kernels are slower while
//! copies move, both directions together can cost kernels more than one does. This gives the stall of a part of the step, from
//! the windows with the longest copies in it. A second pass chooses how to divide the step, and for each part whether both directions count
//! together or each window counts alone (`division`).
//!
//! *Workers.* Kernels, copies and recomputations cannot take more workers than there are. A step is therefore at least as long as all of
//! these together keep all workers busy: kernels for `D` minus the time `I` for which they leave workers idle; copies that take the
//! fraction `q` of the workers and move for `x` nanoseconds, for `q * x`. The copies in one direction are those of windows that share no
//! time; those in the other direction are separate. When they move, and next to what, does not matter here (`workers`).
//!
//! *Inputs and outputs.* Over a whole step, what the host provides anew crosses inwards and what it takes crosses outwards, whatever stays
//! where. No window counts the first crossing of an input, because it ends before the first touch and windows begin after a touch. Outputs
//! count here if nothing touches them after they were written, because no window covers them in that case.
//!
//! *Recomputation.* Bytes that are recomputed need not cross. A run of kernel `j` spares each chosen window at most the bytes of the
//! outputs of `j` that were counted in it, and each of these bytes spares at most what one byte less takes off the stall of the window: the
//! stall is convex in the bytes, so the cost of the last one is enough. Let `w(j)` be the time for which a run keeps all workers busy.
//! Several kernels side by side may leave workers idle, and a run may use them: a position that idles for `i` hides that much of what runs
//! again in it. For any threshold `t`, this is at most `t` for each run, plus the total `I(t)` that the positions have beyond `t`: stalls
//! are at least the sum of `max(w(j) - t, 0)`, minus `I(t)`. If the kernels that spare the most per nanosecond come first, `spared(R)` is
//! the most that a sum of `R` can spare, and stalls are at least `max(R - I(t), A - spared(R))` for the `R` that was chosen; the bound is
//! the least of this over all `R`, for the best of a few `t`. Copies may hide behind recomputations. But if each nanosecond less of copies
//! spares only `p < 1` of a stall, runs of `R` nanoseconds give them room that is worth at most `p * R`, and the rest of `R` comes on top:
//! stalls are at least `A - spared(R) + (1 - p) * (R - I(t))`, too. All of this holds for any subset of the windows, so it is tried for
//! those with `p < 1` alone, for those of either direction, and for fewer and fewer of them: a window that is spared more than its whole
//! stall lowers `A` by what the others do not lose.
//!
//! If workers are short, a run of `j` takes `w(j)` of their time in any case, and spares what copies of its outputs would take. A run pays
//! off only if the latter is more, so stalls are at least the sum of `q * x`, minus `I`, and minus `spared(j) - w(j)` for each kernel for
//! which this is positive.

mod division;
mod gaps;
mod overlap;
mod recomputation;
mod windows;
mod workers;

use crate::workload::{Kernel, SwapError, Tensor, Workload};
pub use gaps::{Block, Origin, Touch, Written};
use windows::Step;

/// How long copies in one direction move.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    /// Nanoseconds per byte.
    pub ns_per_byte: f64,
    /// Nanoseconds before the first byte.
    pub latency_ns: f64,
}

impl Passage {
    /// The least time for which copies of this many bytes move.
    fn ns(&self, bytes: f64) -> f64 {
        self.latency_ns + bytes * self.ns_per_byte
    }
}

/// How long copies away from the device and back to it move.
#[derive(Clone, Copy, Debug)]
pub struct Passages {
    /// Away from the device.
    pub out: Passage,
    /// Back to the device.
    pub back: Passage,
}

impl Passages {
    fn of(&self, direction: CopyDirection) -> Passage {
        match direction {
            CopyDirection::Out => self.out,
            CopyDirection::Back => self.back,
        }
    }
}

/// The direction of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyDirection {
    Out,
    Back,
}

/// The least time by which kernels take longer for each nanosecond in which copies move at the same time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prices {
    /// For each nanosecond of copies away from the device.
    pub out: f64,
    /// For each nanosecond of copies back to it.
    pub back: f64,
    /// For each nanosecond of the sum of [`Problem::both`].
    pub both: f64,
}

/// The fraction of all workers that copies take while they move.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    /// While copies away from the device move.
    pub out: f64,
    /// While copies back to it move.
    pub back: f64,
}

/// The kernels that run between two lines.
#[derive(Clone, Debug)]
pub struct Position {
    /// The least time that it takes.
    pub duration_ns: f64,
    /// What runs one after the other for that long, each with how much longer it takes because of copies.
    pub covers: Vec<(f64, Prices)>,
    /// Whether several kernels run here, in any order.
    pub several: bool,
    /// The bytes that one of them needs on the device at once.
    pub set_bytes: u64,
    /// The least time from the start of the position to the end of that kernel.
    pub done_ns: f64,
    /// The least time from the start of that kernel to the end of the position.
    pub due_ns: f64,
    /// How long all workers together would have nothing to do here.
    pub idle_ns: f64,
}

/// A step, and the machine on which it runs.
pub struct Problem {
    /// The blocks that the step touches.
    pub blocks: Vec<Block>,
    /// What runs, in order.
    pub positions: Vec<Position>,
    /// By kernel: for how long it keeps the whole machine busy when it runs again, if it may.
    pub again_ns: Vec<Option<f64>>,
    /// The bytes that fit on the device.
    pub device_memory_bytes: u64,
    /// The bytes that fit on the host; the disk holds the others.
    pub host_memory_bytes: u64,
    /// To and from any memory.
    pub all: Passages,
    /// To and from the disk.
    pub disk: Passages,
    /// The contribution of each direction to a sum over both, such that copies move for at least that sum: their whole time on a link that
    /// both directions share, about half of it on a duplex link, where both can move at once.
    pub both: Passages,
    /// Whether `both` can give a better bound than each direction alone.
    pub shares: bool,
    /// Bytes that cross to the device in every step, whatever stays there.
    pub given_bytes: u64,
    /// Bytes that cross away from the device in every step, whatever stays there.
    pub taken_bytes: u64,
    /// The fraction of the machine's workers that copies in each direction take, if workers do the copying.
    pub workers: Option<Workers>,
    /// By how much the copies of a step may be shorter in total than the passages say.
    pub rounding_ns: f64,
}

/// No schedule of the workload has a step shorter than this.
///
/// # Errors
/// If a kernel does not fit the device: there is no schedule at all.
pub fn lower_bound_ns(workload: &Workload) -> Result<u64, SwapError> {
    workload.validate()?;
    Ok(problem(workload).lower_bound_ns())
}

/// The problem for a workload whose kernels run one at a time.
fn problem(workload: &Workload) -> Problem {
    let mut touches = vec![Vec::new(); workload.tensors.len()];
    for (position, kernel) in workload.kernels.iter().enumerate() {
        let duration_ns = kernel.duration_ns as f64;
        for tensor in kernel.touches() {
            let written = Written { kernel: position, done_ns: duration_ns };
            let written = kernel.writes.contains(&tensor).then_some(written);
            let reads = kernel.reads.contains(&tensor);
            touches[tensor].push(Touch { position, reads, written, due_ns: duration_ns });
        }
    }
    let machine = &workload.machine;
    let passage = |rate: u64| Passage { ns_per_byte: 1e9 / rate as f64, latency_ns: 0.0 };
    let through_link = |rate: u64| passage(rate.min(machine.link_bytes_per_s));
    let block = |(tensor, touches): (&Tensor, Vec<Touch>)| Block {
        size_bytes: tensor.size_bytes,
        origin: if tensor.persistent { Origin::Lasting } else { Origin::Made },
        touches,
    };
    let position = |kernel: &Kernel| Position {
        duration_ns: kernel.duration_ns as f64,
        several: false,
        set_bytes: workload.working_set_bytes(kernel),
        done_ns: kernel.duration_ns as f64,
        due_ns: kernel.duration_ns as f64,
        covers: vec![(kernel.duration_ns as f64, Prices::default())],
        idle_ns: 0.0,
    };
    let again = |kernel: &Kernel| (!kernel.updates_in_place()).then_some(kernel.duration_ns as f64);
    let link = passage(machine.link_bytes_per_s);
    let all = Passages { out: link, back: link };
    Problem {
        blocks: workload.tensors.iter().zip(touches).map(block).collect(),
        positions: workload.kernels.iter().map(position).collect(),
        again_ns: workload.kernels.iter().map(again).collect(),
        device_memory_bytes: machine.device_memory_bytes,
        host_memory_bytes: machine.host_memory_bytes,
        all,
        disk: Passages {
            out: through_link(machine.ssd_write_bytes_per_s),
            back: through_link(machine.ssd_read_bytes_per_s),
        },
        both: all,
        shares: false,
        given_bytes: 0,
        taken_bytes: 0,
        workers: None,
        rounding_ns: 0.0,
    }
}

impl Problem {
    /// No execution has a step shorter than this.
    pub fn lower_bound_ns(&self) -> u64 {
        if self.positions.is_empty() {
            return 0;
        }
        let step = Step::new(self);
        let mut cuts = [&[0, step.count / 2][..], &step.around_worst()].concat();
        cuts.sort_unstable();
        cuts.dedup();
        let stall_ns = cuts.into_iter().map(|cut| step.certain_stall_ns(cut)).fold(0.0, f64::max);
        let ideal_ns: f64 = self.positions.iter().map(|position| position.duration_ns).sum();
        // The possible error of floating-point sums is subtracted.
        let margin_ns = self.rounding_ns + 1.0 + 1e-12 * ideal_ns;
        (ideal_ns + (stall_ns - margin_ns).max(0.0)) as u64
    }
}

#[cfg(test)]
mod tests;
