//! Accumulate: a step processes its batch in parts, one after the other.
//!
//! This is another way to cut a program ([`mod@crate::partition`]): each launch runs once for every part, on the part's images, and all
//! launches of a part run before those of the next, as far as their operands are available. What a part keeps for its backward pass is
//! therefore freed before the next part begins. Sums over images are built from nodes of the sum tree of the whole batch
//! ([`forebay_base::sum_tree`]); a launch that cannot be cut between two parts runs as soon as the images that it needs are complete. Every
//! result is therefore bit-identical to that of the whole batch.
//!
//! The mean of a loss is taken over all positions of a batch. [`count_positions`] counts them before the first part, so that the backward
//! pass of one part does not have to wait for the losses of the others.

mod images;
mod order;
mod positions;

use std::collections::BTreeSet;

use forebay_base::kernel::Activation;
use forebay_base::kernel::facts::{AxisRole, SumsInParts};
use forebay_base::sum_tree::{PartialSums, nodes_of};
use forebay_base::{Kernel, TensorDesc};
use forebay_model::program::{Buffer, BufferId, Operand, Program, ProgramLaunch, Role};

use crate::divided::Partition;
use crate::partition::cut::Cutting;
use crate::partition::rows::Rows;
use crate::partition::{sums, uncounted_loss};
use images::{Images, Sharing};

pub(crate) use order::by_parts;
pub use positions::count_positions;

/// A launch, with its source and its part.
pub(crate) struct Placed {
    pub launch: ProgramLaunch,
    /// The launch of the original program that it is a part of.
    pub source: usize,
    /// The part of the batch that it belongs to. A launch that needs several parts, or none, belongs to the first: it runs as soon as it
    /// can.
    pub part: u64,
}

/// Returns the program of a step that processes its batch in `parts` parts, or in as many as there are images if there are fewer. Images
/// lie along the first axis of the inputs in `batch`. Call [`count_positions`] first: the gradient of a loss is cut only if it reads the
/// number of the batch's positions. Returns `None` if nothing can be cut.
pub fn accumulate(program: &Program, batch: &BTreeSet<String>, parts: u64) -> Option<Partition> {
    let of_batch = || program.inputs.iter().filter(|input| batch.contains(&input.name));
    let images = of_batch().find_map(|input| input.operand.desc.sizes().first().copied())?;
    let parts = parts.min(images);
    if parts < 2 {
        return None;
    }
    let lines: Vec<u64> = (0..=parts).map(|part| images * part / parts).collect();
    let mut building = Building {
        images: Images::new(program, images),
        lines,
        buffers: program.buffers.clone(),
        launches: Vec::with_capacity(program.launches.len()),
        source: 0,
    };
    of_batch().for_each(|input| building.images.note_input(&input.operand));
    let (before, updates) = program.phases();
    for (source, launch) in before.iter().enumerate() {
        building.source = source;
        building.add(launch);
    }
    if building.launches.len() == before.len() {
        return None;
    }
    let Building { buffers, launches, .. } = building;
    let (mut sources, mut launches): (Vec<usize>, Vec<ProgramLaunch>) =
        by_parts(&buffers, launches).into_iter().map(|placed| (placed.source, placed.launch)).unzip();
    let update_start = launches.len();
    sources.extend(before.len()..program.launches.len());
    launches.extend_from_slice(updates);
    let program = Program { buffers, launches, update_start, ..program.clone() };
    debug_assert_eq!(program.validate().map_err(|error| error.to_string()), Ok(()));
    Some(Partition { program, sources, earlier: None })
}

/// The program under construction.
struct Building<'a> {
    images: Images<'a>,
    /// The first image of each part, and the end of the last part.
    lines: Vec<u64>,
    buffers: Vec<Buffer>,
    launches: Vec<Placed>,
    /// The launch that is being cut.
    source: usize,
}

impl Building<'_> {
    /// Appends a launch, in parts if it can be cut.
    fn add(&mut self, launch: &ProgramLaunch) {
        if self.add_parts(launch).is_none() {
            self.images.note_whole(launch);
            self.push(launch.clone(), 0);
        }
    }

    fn push(&mut self, launch: ProgramLaunch, part: u64) {
        self.launches.push(Placed { launch, source: self.source, part });
    }

    /// Appends the parts of a launch. Returns `None` if it cannot be cut; nothing has changed in that case.
    fn add_parts(&mut self, launch: &ProgramLaunch) -> Option<()> {
        let sharing = self.images.sharing(launch)?;
        let rows = self.rows(&sharing);
        if rows.len() < 2 {
            return None;
        }
        let cutting = Cutting::new(launch, &sharing.cut)?;
        if sharing.role == AxisRole::Reduced {
            return self.add_sum(launch, &sharing, &rows);
        }
        // The gradient of a loss is divided by the number of positions in the whole batch. This launch does not read that number but counts
        // the positions that it sees, and a part would see only some of them.
        if uncounted_loss(launch).is_some() {
            return None;
        }
        let parts = rows.iter().map(|&(part, rows)| Some((part, cutting.part(rows, None)?)));
        let parts = parts.collect::<Option<Vec<_>>>()?;
        self.images.note(&sharing.written);
        for (part, own) in parts {
            self.push(ProgramLaunch { name: self.name(launch, part), ..own }, part);
        }
        Some(())
    }

    fn name(&self, launch: &ProgramLaunch, part: u64) -> String {
        format!("{} part {} of {}", launch.name, part + 1, self.lines.len() - 1)
    }

    /// Returns the rows that each part completes, with the number of the part. They reach to the last line before its end at which a part
    /// may begin.
    fn rows(&self, sharing: &Sharing) -> Vec<(u64, Rows)> {
        let Sharing { cut, first, count, unit, .. } = *sharing;
        let mut start = 0;
        let mut rows = Vec::with_capacity(self.lines.len());
        for (part, &end) in (0..).zip(&self.lines[1..]) {
            let images = end.saturating_sub(first).min(count);
            let end = if images == count { cut.rows } else { images * unit / cut.step * cut.step };
            if end > start {
                rows.push((part, Rows { start, end }));
            }
            start = start.max(end);
        }
        rows
    }

    /// Appends a sum over images: the nodes of its sum tree that each part completes, and the launches that add them. Sums that wait for
    /// the nodes to their right need only a few buffers. Returns `None` if the sum cannot be cut; nothing has changed in that case.
    fn add_sum(&mut self, launch: &ProgramLaunch, sharing: &Sharing, rows: &[(u64, Rows)]) -> Option<()> {
        let cut = &sharing.cut;
        let cutting = Cutting::new(launch, cut)?;
        let is_tree = cutting.is_tree();
        let summed = Cutting::new(launch, cut)?.summed();
        if !is_tree || (summed.is_none() && launch.writes.len() > 1) {
            return None;
        }
        let result = match &summed {
            Some(SumsInParts { of, .. }) => {
                Operand { buffer: BufferId(u32::MAX), offset_bytes: 0, desc: sums::table(*of, launch)? }
            }
            None => launch.writes[0].clone(),
        };
        let leaves = cut.rows.div_ceil(cut.step);
        let of_part = |&(part, rows): &(u64, Rows)| {
            let nodes = nodes_of(rows.start / cut.step..rows.end.div_ceil(cut.step), leaves);
            nodes.into_iter().map(move |node| (part, node))
        };
        let nodes = rows.iter().flat_map(of_part).map(|(part, node)| {
            let rows = Rows { start: node.start * cut.step, end: (node.end * cut.step).min(cut.rows) };
            Some((part, node, cutting.part(rows, Some(&result))?))
        });
        let nodes = nodes.collect::<Option<Vec<_>>>()?;
        // From here on, nothing can fail.
        let mut slots = Slots { launch, slots: Vec::new(), result };
        if summed.is_some() {
            slots.result = self.buffer(&format!("sums of {}", launch.name), &slots.result.desc)?;
        }
        let last = nodes.len() - 1;
        let mut sums = PartialSums::default();
        for (number, (part, node, own)) in nodes.into_iter().enumerate() {
            let place = sums.nodes().len();
            let slot = self.slot(&mut slots, place)?;
            let kernel = own.kernel.clone();
            self.push(ProgramLaunch { name: self.name(launch, part), writes: vec![slot], ..own }, part);
            let mut additions = Vec::new();
            let mut add = |earlier: usize, later: usize| {
                additions.push((earlier, later));
                earlier
            };
            sums.push(node, place, &mut add);
            if number == last {
                std::mem::take(&mut sums).total(add);
            }
            let count = additions.len();
            for (done, (earlier, later)) in (1..).zip(additions) {
                let is_last = number == last && done == count;
                let addition = slots.addition(&kernel, is_last, earlier, later);
                self.push(
                    ProgramLaunch { name: format!("{} sum up to part {}", launch.name, part + 1), ..addition },
                    part,
                );
            }
        }
        summed.map_or(Some(()), |summed| self.finish_sums(launch, summed, slots.result))
    }

    /// Returns the operand of the waiting sum at a place; the first one is the operand of the result.
    fn slot(&mut self, slots: &mut Slots, place: usize) -> Option<Operand> {
        while slots.slots.len() <= place {
            let slot = match slots.slots.len() {
                0 => slots.result.clone(),
                number => self.buffer(&format!("sums {} of {}", number + 1, slots.launch.name), &slots.result.desc)?,
            };
            slots.slots.push(slot);
        }
        Some(slots.slots[place].clone())
    }

    /// Appends the launch that computes the result from the sums, and whatever else the launch computes.
    fn finish_sums(&mut self, launch: &ProgramLaunch, summed: SumsInParts, sums: Operand) -> Option<()> {
        let (finishing, rest) = sums::finish(launch, summed, &sums);
        self.push(finishing, 0);
        rest.iter().for_each(|rest| self.add(rest));
        Some(())
    }

    /// Adds a buffer for an operand and returns the operand.
    fn buffer(&mut self, name: &str, desc: &TensorDesc) -> Option<Operand> {
        let buffer = BufferId(u32::try_from(self.buffers.len()).ok()?);
        self.buffers.push(Buffer {
            name: name.to_string(),
            size_bytes: desc.total_size_bytes(),
            role: Role::Temporary,
        });
        Some(Operand { buffer, offset_bytes: 0, desc: desc.clone() })
    }
}

/// The operands in which the sums of a launch wait for the nodes to their right.
struct Slots<'a> {
    launch: &'a ProgramLaunch,
    slots: Vec<Operand>,
    result: Operand,
}

impl Slots<'_> {
    /// Returns the launch that adds the later of two sums to the earlier one. The last addition applies the activation that the launch
    /// applies to its result.
    fn addition(&self, part: &Kernel, is_last: bool, earlier: usize, later: usize) -> ProgramLaunch {
        let activation = if is_last { sums::activation(self.launch) } else { Activation::None };
        let kernel = sums::addition(part, activation);
        let [earlier, later] = [earlier, later].map(|place| self.slots[place].clone());
        ProgramLaunch { kernel, reads: vec![earlier.clone(), later], writes: vec![earlier], ..self.launch.clone() }
    }
}
