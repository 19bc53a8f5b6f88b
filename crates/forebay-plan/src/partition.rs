//! Partition: splits launches that touch many bytes into several that touch fewer.
//!
//! A launch needs everything that it touches on the device at once, so the most demanding launch sets the smallest budget. This pass cuts
//! launches along images or, if there is only one image, along rows of the first spatial dimension (`layout` stores such tensors row by
//! row). Parts read neighboring rows in place, so nothing is computed twice. The parts of a sum are nodes of the tree by which the whole
//! is summed ([`forebay_base::sum_tree`]), and additional launches add the sums of the parts in the order of the tree: no bit changes,
//! whatever the number of parts. Sums that wait for what is to the right of them take few buffers: as many as the tree has levels above the
//! parts.

mod again;
pub(crate) mod cut;
mod interleave;
mod layout;
mod merge;
pub(crate) mod rows;
pub(crate) mod sums;
#[cfg(test)]
mod tests;
mod window;

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::kernel::{Activation, Summing};
use forebay_base::tensor::WORKSPACE_ALIGNMENT_BYTES;
use forebay_base::{ByteRange, DataType, SumTree, TensorDesc};
use forebay_model::program::{Buffer, BufferId, Operand, Program, ProgramLaunch, Role};

pub use crate::divided::Partition;

use cut::{Cutting, cut, cuts, descs};
use interleave::{Placed, interleave};
use rows::{Cut, Rows};

/// The most parts of one launch. A sum, whose parts have a power of two of leaves, can have twice as many.
const PARTS_MAX: u64 = 64;

/// The number of operands that the gradient of a loss reads: the gradient with respect to the loss, then what the loss reads. The number of
/// positions that count is one more operand.
pub(crate) const LOSS_GRADIENT_READS: usize = 3;

/// Returns the bytes that a launch needs on the device at once: the bytes that its operands span, each counted once, and its workspace.
pub fn touched_bytes(launch: &ProgramLaunch) -> u64 {
    if launch.in_host_memory {
        return 0;
    }
    let mut ranges: BTreeMap<BufferId, Vec<ByteRange>> = BTreeMap::new();
    for operand in launch.reads.iter().chain(&launch.writes) {
        ranges.entry(operand.buffer).or_default().push(operand.range());
    }
    let covered = |mut ranges: Vec<ByteRange>| {
        ranges.sort_unstable_by_key(|range| range.start);
        let (mut until, mut bytes) = (0, 0);
        for range in ranges {
            bytes += range.end.saturating_sub(range.start.max(until));
            until = until.max(range.end);
        }
        bytes
    };
    launch.device_workspace_bytes() + ranges.into_values().map(covered).sum::<u64>()
}

/// Cuts launches that touch more than `limit_bytes` into parts that touch no more, or else into the smallest possible parts. Returns `None`
/// if nothing is cut.
pub fn partition(program: &Program, limit_bytes: u64) -> Option<Partition> {
    let mut found = once(program, limit_bytes);
    while let Some(again) = again::again(found.as_ref().map_or(program, |found| &found.program), limit_bytes) {
        found = Some(Partition { earlier: found.map(Box::new), ..again });
    }
    found
}

/// Cuts each launch that touches too much along one axis.
fn once(program: &Program, limit_bytes: u64) -> Option<Partition> {
    let Building { buffers, launches, update_start, .. } = building(program, limit_bytes);
    if launches.len() == program.launches.len() {
        return None;
    }
    let (sources, launches) =
        interleave(launches, update_start).into_iter().map(|placed| (placed.source, placed.launch)).unzip();
    Some(Partition { program: Program { buffers, launches, update_start, ..program.clone() }, sources, earlier: None })
}

/// Returns the smallest limit that can be kept: the bytes that the most demanding launch touches in the finest partition. Parts of a launch
/// are alike, so only the largest is cut along further axes.
pub fn least_limit_bytes(program: &Program) -> u64 {
    let building = building(program, 0);
    let mut largest: BTreeMap<(usize, &str), (u64, &ProgramLaunch)> = BTreeMap::new();
    for Placed { launch, source, .. } in &building.launches {
        let own = (touched_bytes(launch), launch);
        let most = largest.entry((*source, launch.kernel.name())).or_insert(own);
        if own.0 > most.0 {
            *most = own;
        }
    }
    largest.into_values().map(|(_, launch)| again::least_bytes(launch)).max().unwrap_or(0)
}

/// Collects all launches; those that touch too many bytes are in parts.
fn building(program: &Program, limit_bytes: u64) -> Building {
    let candidates = layout::candidates(program);
    let moved = |launch: &ProgramLaunch| layout::stored_by_rows(program, launch, &candidates);
    // With operands stored by rows, a launch may span more bytes: those between the rows that it touches.
    let bytes = |launch: &ProgramLaunch| touched_bytes(launch).max(touched_bytes(&moved(launch)));
    let large: Vec<usize> =
        (0..program.launches.len()).filter(|&launch| needed_bytes(program, launch, bytes) > limit_bytes).collect();
    // If a launch is cut along rows, store what it touches by rows.
    let mut by_rows = BTreeSet::new();
    for &index in &large {
        let launch = &program.launches[index];
        if cut(launch, 0).is_none() && cut(&moved(launch), 2).is_some() {
            let touched = launch.reads.iter().chain(&launch.writes).map(|operand| operand.buffer);
            by_rows.extend(touched.filter(|buffer| candidates.contains(buffer)));
        }
    }
    let mut building = Building {
        buffers: program.buffers.clone(),
        launches: Vec::with_capacity(program.launches.len()),
        source: 0,
        update_start: 0,
        losses: Vec::new(),
    };
    for (index, launch) in program.launches.iter().enumerate() {
        if index == program.update_start {
            building.update_start = building.launches.len();
        }
        building.source = index;
        let launch = layout::stored_by_rows(program, launch, &by_rows);
        match large.binary_search(&index).is_ok().then(|| fitting_cut(&launch, limit_bytes)).flatten() {
            Some((launch, cut)) => building.cut(&launch, &cut, limit_bytes),
            None => building.append(launch),
        }
    }
    if program.update_start >= program.launches.len() {
        building.update_start = building.launches.len();
    }
    building
}

/// Returns a launch and how to cut it. More of its axes are merged as long as its parts touch too many bytes and merging helps.
fn fitting_cut(launch: &ProgramLaunch, limit_bytes: u64) -> Option<(ProgramLaunch, Cut)> {
    // Sums are small, whatever is summed, so any operand will do.
    let sums = Operand {
        buffer: BufferId(u32::MAX),
        offset_bytes: 0,
        desc: TensorDesc::packed(DataType::Float64, &[1]).ok()?,
    };
    let finest_bytes = |launch: &ProgramLaunch, cut: &Cut| {
        let parts = parts(launch, cut, 2 * PARTS_MAX, Some(&sums));
        parts.iter().map(touched_bytes).max().unwrap_or(u64::MAX)
    };
    let mut best: Option<(u64, ProgramLaunch, Cut)> = None;
    let mut next = Some(launch.clone());
    while let Some(launch) = next.filter(|_| best.as_ref().is_none_or(|(bytes, ..)| *bytes > limit_bytes)) {
        let found = cuts(&launch).into_iter().map(|cut| (finest_bytes(&launch, &cut), cut));
        if let Some((bytes, cut)) = found.min_by_key(|(bytes, _)| *bytes)
            && best.as_ref().is_none_or(|(least, ..)| bytes < *least)
        {
            best = Some((bytes, launch.clone(), cut));
        }
        next = merge::merged(&launch);
    }
    best.map(|(_, launch, cut)| (launch, cut))
}

/// Returns the bytes that decide whether a launch is cut. The sums of a loss count as much as its gradient, which needs them if it is cut.
fn needed_bytes(program: &Program, index: usize, bytes: impl Fn(&ProgramLaunch) -> u64) -> u64 {
    let launch = &program.launches[index];
    let own = bytes(launch);
    let Some(of) = sums_of_loss(launch) else { return own };
    // A gradient reads the gradient with respect to the loss, then what the loss reads.
    let is_gradient = |other: &&ProgramLaunch| {
        other.kernel.facts().gradient_of_loss == Some(of) && other.reads.get(1..3) == Some(&launch.reads[..])
    };
    program.launches.iter().filter(is_gradient).map(bytes).fold(own, u64::max)
}

/// Returns the loss whose gradient a launch computes, if the launch counts the positions of the loss itself instead of reading their number
/// ([`mod@crate::accumulate`]) or the sums of the loss.
pub(crate) fn uncounted_loss(launch: &ProgramLaunch) -> Option<Summing> {
    launch.kernel.facts().gradient_of_loss.filter(|_| launch.reads.len() <= LOSS_GRADIENT_READS)
}

/// Returns the sums of a loss. Its gradient needs them when in parts, because no part knows the number of all positions.
fn sums_of_loss(launch: &ProgramLaunch) -> Option<Summing> {
    let sums = launch.kernel.sums_in_parts(&descs(&launch.reads), &descs(&launch.writes))?;
    matches!(sums.of, Summing::CrossEntropy { .. } | Summing::SquaredError).then_some(sums.of)
}

/// The program being built.
struct Building {
    buffers: Vec<Buffer>,
    launches: Vec<Placed>,
    /// The launch that is being cut.
    source: usize,
    update_start: usize,
    /// Losses that were cut: the kind of sums, what they read, and the sums.
    losses: Vec<(Summing, Vec<Operand>, Operand)>,
}

impl Building {
    /// Appends a launch in one piece.
    fn append(&mut self, launch: ProgramLaunch) {
        self.launches.push(Placed { launch, source: self.source, done: (1, 1) });
    }

    /// Appends a launch in parts, along with the launches that its sums need.
    fn cut(&mut self, launch: &ProgramLaunch, cut: &Cut, limit_bytes: u64) {
        let summed = Cutting::new(launch, cut).and_then(Cutting::summed);
        let Some(summed) = summed else {
            let mut launch = launch.clone();
            if let Some(loss) = uncounted_loss(&launch) {
                // Their axes may have been merged.
                let is_same = |(a, b): (&Operand, &Operand)| (a.buffer, a.range()) == (b.buffer, b.range());
                let reads_same = |reads: &[Operand]| reads.iter().zip(&launch.reads[1..3]).all(is_same);
                match self.losses.iter().find(|(of, reads, _)| *of == loss && reads_same(reads)) {
                    Some((_, _, sums)) => launch.reads.push(sums.clone()),
                    // Parts do not know the number of positions.
                    None => return self.append(launch),
                }
            }
            return self.append_parts(&launch, cut, limit_bytes, None);
        };
        let table = sums::table(summed.of, launch);
        let Some(sums) = table.and_then(|desc| self.buffer(format!("sums of {}", launch.name), desc)) else {
            return self.append(launch.clone());
        };
        self.append_parts(launch, cut, limit_bytes, Some(&sums));
        self.losses.push((summed.of, launch.reads.clone(), sums.clone()));
        let (finishing, rest) = sums::finish(launch, summed, &sums);
        self.append(finishing);
        let Some(rest) = rest else { return };
        match cut.axis.and_then(|axis| cut::cut(&rest, axis)) {
            Some(cut) => self.append_parts(&rest, &cut, limit_bytes, None),
            None => self.append(rest),
        }
    }

    /// Adds a separate buffer for an operand.
    fn buffer(&mut self, name: String, desc: TensorDesc) -> Option<Operand> {
        let buffer = BufferId(u32::try_from(self.buffers.len()).ok()?);
        self.buffers.push(Buffer { name, size_bytes: desc.total_size_bytes(), role: Role::Temporary });
        Some(Operand { buffer, offset_bytes: 0, desc })
    }

    /// Appends the fewest parts, a power of two if there are rows, that each touch no more than the limit.
    fn append_parts(&mut self, launch: &ProgramLaunch, cut: &Cut, limit_bytes: u64, sums: Option<&Operand>) {
        let mut parts = parts(launch, cut, 1, sums);
        for doublings in 0..=(2 * PARTS_MAX).ilog2() {
            let finer = self::parts(launch, cut, 1 << doublings, sums);
            if finer.is_empty() || (doublings > 0 && finer.len() == parts.len()) {
                break;
            }
            let fits = finer.iter().all(|part| touched_bytes(part) <= limit_bytes);
            parts = finer;
            if fits {
                break;
            }
        }
        if parts.len() > 1 && Cutting::new(launch, cut).is_some_and(|cutting| cutting.is_tree()) {
            return self.append_tree(launch, parts, limit_bytes);
        }
        let (count, source) = (parts.len() as u64, self.source);
        self.launches.extend((1..).zip(parts).map(|(number, launch)| Placed { launch, source, done: (number, count) }));
    }

    /// Appends parts of a sum, which are nodes of its tree of the same height, and the launches that add their sums. Each part writes its
    /// sums after those that wait for it. The last addition writes where the first part did, which is the launch's result, and applies the
    /// launch's activation.
    fn append_tree(&mut self, launch: &ProgramLaunch, parts: Vec<ProgramLaunch>, limit_bytes: u64) {
        let (count, source) = (parts.len() as u64, self.source);
        let part_bytes = parts.iter().map(touched_bytes).max().unwrap_or(0);
        let mut slots: Vec<Operand> = parts.iter().take(1).map(|part| part.writes[0].clone()).collect();
        let completed = sums::activation(launch);
        let mut waiting = 0;
        for (number, mut part) in (0..).zip(parts) {
            if waiting == slots.len() {
                let name = format!("sums {} of {}", waiting + 1, launch.name);
                let Some(slot) = self.buffer(name, slots[0].desc.clone()) else { return };
                slots.push(slot);
            }
            let done = (number + 1, count);
            part.writes[0] = slots[waiting].clone();
            let addition = |activation: Activation| sums::addition(&part.kernel, activation);
            let (kernel, last_kernel) = (addition(Activation::None), addition(completed));
            self.launches.push(Placed { launch: part, source, done });
            for _ in 0..SumTree::flat(count).merges_after(number) {
                waiting -= 1;
                let is_last = number + 1 == count && waiting == 0;
                let [earlier, later] = [&slots[waiting], &slots[waiting + 1]].map(Operand::clone);
                let sum = ProgramLaunch {
                    name: format!("{} sum up to part {} of {count}", launch.name, number + 1),
                    kernel: if is_last { last_kernel.clone() } else { kernel.clone() },
                    reads: vec![earlier.clone(), later],
                    writes: vec![earlier],
                    workspace_bytes: 0,
                    on_host: launch.on_host,
                    in_host_memory: launch.in_host_memory,
                };
                // It need not touch fewer bytes than the parts.
                let bytes = limit_bytes.max(part_bytes);
                let cut = cut::cut(&sum, 0).filter(|_| touched_bytes(&sum) > bytes);
                let pieces = cut.map(|cut| pieces(&sum, &cut, bytes)).filter(|pieces| !pieces.is_empty());
                let pieces = pieces.unwrap_or_else(|| vec![sum]).into_iter();
                self.launches.extend(pieces.map(|launch| Placed { launch, source, done }));
            }
            waiting += 1;
        }
    }
}

/// Splits a launch into the fewest parts that touch no more than the limit, or else into the smallest possible parts.
fn pieces(launch: &ProgramLaunch, cut: &Cut, limit_bytes: u64) -> Vec<ProgramLaunch> {
    let fits = |parts: &Vec<ProgramLaunch>| parts.iter().all(|part| touched_bytes(part) <= limit_bytes);
    let all = || (0..=PARTS_MAX.ilog2()).map(|doublings| parts(launch, cut, 1 << doublings, None));
    all().find(|parts| !parts.is_empty() && fits(parts)).or_else(|| all().next_back()).unwrap_or_default()
}

/// Splits a launch into this many parts, or as many as possible. The result is empty if it cannot be cut this way.
fn parts(launch: &ProgramLaunch, cut: &Cut, count: u64, sums: Option<&Operand>) -> Vec<ProgramLaunch> {
    let Some(cutting) = Cutting::new(launch, cut) else { return Vec::new() };
    let steps = cut.rows.div_ceil(cut.step);
    // Nodes of a tree, except the last one, have a power of two of leaves.
    let node_steps = (steps.next_power_of_two() / count).max(1);
    let count = match cutting.is_tree() {
        true => steps.div_ceil(node_steps),
        false => count.min(PARTS_MAX).min(steps).max(1),
    };
    let line = |number: u64| match (number == count, cutting.is_tree()) {
        (true, _) => cut.rows,
        (_, true) => number * node_steps * cut.step,
        (_, false) => number * steps / count * cut.step,
    };
    let part = |number: u64| {
        let rows = Rows { start: line(number), end: line(number + 1) };
        let mut part = cutting.part(rows, sums)?;
        if part.kernel.runs_in_less_workspace() {
            // As much for each index as the whole launch has: enough for whatever the part computes at once.
            let (own, all) = (rows.len().div_ceil(cut.step), cut.rows.div_ceil(cut.step));
            let share = launch.workspace_bytes.div_ceil(all).saturating_mul(own);
            part.workspace_bytes = share.next_multiple_of(WORKSPACE_ALIGNMENT_BYTES).min(launch.workspace_bytes);
        }
        let name =
            if count > 1 { format!("{} part {} of {count}", launch.name, number + 1) } else { launch.name.clone() };
        Some(ProgramLaunch { name, ..part })
    };
    (0..count).map(part).collect::<Option<Vec<_>>>().unwrap_or_default()
}
