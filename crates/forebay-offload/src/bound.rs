//! A time that no schedule can beat.
//!
//! A step's kernels stand at *positions*, one after the other: between two lines that none of them crosses, one kernel runs or
//! several do. Let `D` be the sum of the least times that the positions take, and call *stall* by how much a step is longer:
//! waits between positions, and whatever positions take longer than that. A step takes `D` plus its stalls. Where a kernel runs
//! more than once, its first run is meant, the one that ends first.
//!
//! While kernel `k` runs, all that is live at `k` beyond the device's capacity must be elsewhere: `need(k)` bytes, of tensors
//! that are idle then.
//!
//! *Before `k`.* Take a position `a` before `k`, and the window from the end of `a` to the start of `k`. A tensor's bytes that
//! are elsewhere during `k` have left since the tensor's last write. So of `need(k)` bytes, at most the bytes `S` of idle tensors
//! that were written before `a`, or that somebody else has had all the time, can have left before the window; at least
//! `need(k) - S` bytes cross the link outwards within it, in copies that begin and end in it. So copies move for at least
//!
//! ```text
//! x = latency + (need(k) - S) / rate
//! ```
//!
//! nanoseconds of the window.
//!
//! *After `k`.* In the same way, what is elsewhere during `k` is back when it is next touched. So in the window from the end of
//! `k` to the start of `b`, all of `need(k)` but the bytes of tensors that are next touched after `b` crosses the link inwards.
//!
//! *Positions of several kernels.* What is written at `a` may leave before `a` ends: at the earliest when the chain of kernels
//! that ends with its writer is done. Likewise `k` may start later than its position. That time at both ends is the window's,
//! too: copies move there for nothing. Such a window includes the positions at its ends, so that no other counts their stalls.
//!
//! *What copies cost.* A position of least time `d` lasts `d` and its stall. If nothing but time is short, `x` nanoseconds of
//! copies need a window of that length, so its stall is at least `x` less the durations in it. Where copies take workers from
//! kernels, they cost more: let `r` be the part of its speed that a kernel loses while copies move. If they do so for `y`
//! nanoseconds of its time, it takes at least `d + r * y`, and of course at least `y`. So `y` nanoseconds of copies cost `r * y`
//! as long as `y` is at most `d / (1 - r)`, and a nanosecond each beyond that, as they do while nothing runs. The least stall
//! in which a window's copies have room is found by filling the cheapest kernels first (`overlap`). With `r = 0` it is what
//! time alone asks for.
//!
//! *The SSD.* At least `need(k)` less the host's memory is on the SSD, which gives the same inequalities with the SSD's rates.
//!
//! *All of them.* Stalls in windows that share no time add up. A pass over the step, as for the heaviest path, chooses windows
//! with the largest sum `A`. A window does not pass the place at which the step is cut open; several places are tried. Nothing is
//! assumed of what is where at these places, but that the next step finds the same. Cut open next to the position with the
//! greatest need, a step has a window for all that is elsewhere there: contents that last are idle for nearly a step, and no
//! shorter window sees all of them cross.
//!
//! *Both ways.* Windows of one direction that share no time have copies of their own, so the times for which these move add up,
//! and so they do within a part of the step that several windows lie in. On a link that both ways share, those outwards and
//! those inwards add up, too: of one nanosecond, they cannot both have the whole. On one that is duplex, copies move for at
//! least half of the sum, which says less of the link, but more of workers, where two copies at once take more from kernels than
//! one. This gives the stall of a part of the step, from the windows with the longest copies in it. A second pass chooses how to
//! divide the step, and for each part whether both ways count together or windows by themselves (`division`).
//!
//! *Workers.* What runs, what copies and what runs again cannot take more workers than there are. So a step is at least as long as
//! all of that together keeps all workers busy: kernels for `D` less the time `I` for which they leave workers idle, copies that take
//! the part `q` of the workers and move for `x` nanoseconds for `q * x`. Copies one way are those of windows that share no time,
//! copies the other way are others; when they move does not matter here, nor next to what (`workers`).
//!
//! *Inputs and outputs.* In a whole step, what the host gives again crosses inwards and what it takes crosses outwards, whatever
//! stays where. No window counts the first way of an input, for it ends before the first touch, and windows begin after a
//! touch. Outputs count here if no one touches them after they were written, because no window is about them then.
//!
//! *Recomputation.* Bytes that are recomputed need not cross. A run of kernel `j` spares each chosen window at most the bytes
//! of `j`'s outputs that were counted in it, and each byte at most what one less takes from the window's stall: that is convex
//! in the bytes, so what the last one costs is enough. Let `w(j)` be the time for which a run keeps all workers busy. Several
//! kernels side by side may leave workers idle, and a run may use them: a position that idles for `i` hides so much of what runs
//! again in it. For any threshold `t`, that is at most `t` for each run, and what the positions have beyond `t` in all, `I(t)`:
//! stalls are at least the sum of `max(w(j) - t, 0)`, less `I(t)`. With the kernels that spare most per nanosecond first,
//! `spared(R)` is the most that a sum of `R` can spare, and stalls are at least `max(R - I(t), A - spared(R))` for the `R` that
//! was chosen; the bound is the least of this over all `R`, for the best of a few `t`. Copies may hide behind what runs again.
//! But where each nanosecond less of them spares only `p < 1` of a stall, a run of `R` nanoseconds gives them room that is worth
//! `p * R` at most, and the rest of it comes on top: stalls are at least `A - spared(R) + (1 - p) * (R - I(t))`, too.
//! All of this holds for any of the windows, so it is tried for those with `p < 1` by themselves, for those of either
//! direction, and for fewer and fewer of them: a window that is spared more than its whole stall has `A` fall by what the
//! others do not lose.
//!
//! Where workers are what is short, a run of `j` takes `w(j)` of them in any case, and spares what copies of its outputs would
//! take: it is worth it only where that is more, so that stalls are at least the sum of `q * x`, less `I`, and less
//! `spared(j) - w(j)` of each kernel for which that is positive.

mod division;
mod gaps;
mod overlap;
mod recomputation;
mod windows;
mod workers;

use crate::workload::{Kernel, SwapError, Tensor, Workload};
pub use gaps::{Block, Origin, Touch, Written};
use windows::Step;

/// How long copies one way move.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    /// Nanoseconds for each byte.
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

/// Away from the device, and back.
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

/// Where copies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyDirection {
    Out,
    Back,
}

/// By how much kernels take longer for each nanosecond in which copies move meanwhile, at least.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prices {
    /// For each nanosecond of copies away from the device.
    pub out: f64,
    /// For each nanosecond of copies back to it.
    pub back: f64,
    /// For each nanosecond of [`Problem::both`].
    pub both: f64,
}

/// The part of all workers that copies take while they move.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    /// While copies away from the device move.
    pub out: f64,
    /// While copies back to it move.
    pub back: f64,
}

/// What runs between two lines.
#[derive(Clone, Debug)]
pub struct Position {
    /// The least time that it takes.
    pub duration_ns: f64,
    /// What runs one after the other for that long, each with what it takes longer for copies.
    pub covers: Vec<(f64, Prices)>,
    /// Whether several kernels run here, in any order.
    pub several: bool,
    /// What one of them needs on the device at once.
    pub set_bytes: u64,
    /// From the position's start to the end of that one, at least.
    pub done_ns: f64,
    /// From the start of that one to the position's end, at least.
    pub due_ns: f64,
    /// How long all workers together would have nothing to do here.
    pub idle_ns: f64,
}

/// A step, and the machine on which it runs.
pub struct Problem {
    /// What the step touches.
    pub blocks: Vec<Block>,
    /// What runs, in its order.
    pub positions: Vec<Position>,
    /// By kernel: for how long it keeps the whole machine busy when it runs again, where it may.
    pub again_ns: Vec<Option<f64>>,
    /// Bytes that fit on the device.
    pub device_memory_bytes: u64,
    /// Bytes that fit on the host; the disk holds the others.
    pub host_memory_bytes: u64,
    /// To and from wherever.
    pub all: Passages,
    /// To and from the disk.
    pub disk: Passages,
    /// What both ways together take of what they share, or on average: copies of a step move for at least as long.
    pub both: Passages,
    /// Whether `both` can say more than each way by itself.
    pub shares: bool,
    /// Bytes that cross to the device in every step, whatever stays there.
    pub given_bytes: u64,
    /// Bytes that cross away from the device in every step, whatever stays there.
    pub taken_bytes: u64,
    /// The part of the machine's workers that copies each way take, if workers do that.
    pub workers: Option<Workers>,
    /// By how much copies of a step may be shorter in all than the passages say.
    pub rounding_ns: f64,
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
        // What floating-point sums may be off by is taken off.
        let margin_ns = self.rounding_ns + 1.0 + 1e-12 * ideal_ns;
        (ideal_ns + (stall_ns - margin_ns).max(0.0)) as u64
    }
}

#[cfg(test)]
mod tests;
