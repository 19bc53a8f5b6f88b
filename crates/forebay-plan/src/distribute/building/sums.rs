//! Sums over images: each process computes nodes of the tree by which the whole is summed, and all of them are added in the order of the
//! tree.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_base::kernel::facts::SumsInParts;
use forebay_base::kernel::{Activation, Summing};
use forebay_base::sum_tree::{PartialSums, nodes_of};
use forebay_base::tensor::BASE_OFFSET_ALIGNMENT_BYTES;
use forebay_base::{ByteRange, DataType, Kernel, TensorDesc};
use forebay_model::program::{BufferId, Operand, ProgramLaunch};

use super::exchange::bytes_of;
use super::{ALL_LOOKED_AT, Building, witnesses};
use crate::distribute::shares::shares;
use crate::distribute::sharing::{Sharing, Sliced, State};
use crate::partition::cut::Cutting;
use crate::partition::rows::Rows;
use crate::partition::sums;

/// The slices of a process's nodes begin at multiples of this many bytes.
const SLICE_ALIGNMENT_BYTES: u64 = 64;

/// Sums are added slice by slice if that saves a process sending at least this many bytes: about what a fast network moves while one more
/// exchange begins.
const SAVED_BYTES_MIN: u64 = 64 << 10;

/// Of many processes, a process adds at least this many bytes of a sum, if any.
const SLICE_BYTES_MIN: u64 = 4 << 10;

/// Returns the additions of a tree whose nodes are in slots, from left to right: the slots of the two summands, the first of which receives
/// the sum.
fn additions(nodes: &[(Range<u64>, usize)]) -> Vec<(usize, usize)> {
    let (mut additions, mut sums) = (Vec::new(), PartialSums::default());
    let mut add = |earlier: usize, later: usize| {
        additions.push((earlier, later));
        earlier
    };
    for (node, slot) in nodes {
        sums.push(node.clone(), *slot, &mut add);
    }
    sums.total(add);
    additions
}

/// Returns additions in groups: each group needs only the results of those before it.
fn levels(additions: &[(usize, usize)]) -> Vec<Vec<(usize, usize)>> {
    let mut level_of: BTreeMap<usize, usize> = BTreeMap::new();
    let mut levels: Vec<Vec<(usize, usize)>> = Vec::new();
    for &(earlier, later) in additions {
        let level = [earlier, later].iter().filter_map(|slot| level_of.get(slot)).max().copied().unwrap_or(0);
        if levels.len() == level {
            levels.push(Vec::new());
        }
        levels[level].push((earlier, later));
        level_of.insert(earlier, level + 1);
    }
    levels
}

/// Returns how many of the first additions have summands that lie equally far apart.
fn alike(additions: &[(usize, usize)], slots: &[Operand]) -> usize {
    let apart = |slot: usize, next: usize| {
        let (slot, next) = (&slots[slot], &slots[next]);
        let bytes = next.offset_bytes.checked_sub(slot.offset_bytes)?;
        (slot.buffer == next.buffer && slot.desc == next.desc && slot.desc.is_packed()).then_some(bytes)
    };
    let steps = additions.windows(2).map(|pair| Some((apart(pair[0].0, pair[1].0)?, apart(pair[0].1, pair[1].1)?)));
    let mut steps = steps.peekable();
    let first = steps.peek().copied().flatten();
    1 + steps.take_while(|step| step.is_some() && *step == first).count()
}

/// A sum that is added slice by slice.
#[derive(Clone, Copy)]
struct Sum<'a> {
    name: &'a str,
    /// The kernel whose results are added.
    kernel: &'a Kernel,
    /// What is applied to the sum.
    activation: Activation,
    /// The sum of a process, and its bytes up to the next one.
    desc: &'a TensorDesc,
    sum_bytes: u64,
    result: &'a Operand,
}

/// The sum over the parts of a batch, as far as they have been added: sums that wait for those to their right.
struct Waiting {
    sums: PartialSums<usize>,
    /// The operands that the sums are in.
    slots: Vec<Operand>,
}

/// Returns the number of nodes that a process has in all parts; `nodes` begin with those that it has in the first one.
fn count_of(nodes: &[Vec<Range<u64>>], processes: usize) -> u64 {
    nodes.iter().step_by(processes).map(Vec::len).sum::<usize>() as u64
}

impl Building<'_> {
    /// Adds this process's part of a sum over images, the exchange of all parts, and the launches that add them. `None` if that is
    /// impossible; in this case nothing has changed.
    pub(super) fn add_sum(&mut self, launch: &ProgramLaunch, sharing: &Sharing) -> Option<()> {
        let (cut, cutting) = (&sharing.cut, Cutting::new(launch, &sharing.cut)?);
        let rows = self.rows(sharing, cut.step)?;
        let leaves = cut.rows.div_ceil(cut.step);
        let nodes = rows.iter().map(|own| nodes_of(own.start / cut.step..own.end.div_ceil(cut.step), leaves));
        let nodes: Vec<Vec<Range<u64>>> = nodes.collect();
        let (is_tree, summed) = (cutting.is_tree(), Cutting::new(launch, cut)?.summed());
        let desc = match &summed {
            Some(SumsInParts { of, .. }) => sums::table(*of, launch)?,
            None => launch.writes.first().filter(|write| is_tree && write.desc.is_packed())?.desc.clone(),
        };
        if summed.is_none() && launch.writes.len() > 1 {
            return None;
        }
        let sum_bytes = desc.total_size_bytes().next_multiple_of(BASE_OFFSET_ALIGNMENT_BYTES);
        let slot = |buffer: BufferId, number: usize| Operand {
            buffer,
            offset_bytes: number as u64 * sum_bytes,
            desc: desc.clone(),
        };
        // Check the parts of all processes, so that all processes decide alike.
        let rows_of =
            |node: &Range<u64>| Rows { start: node.start * cut.step, end: (node.end * cut.step).min(cut.rows) };
        let part = |rows: Rows| {
            let nowhere = slot(BufferId(u32::MAX), 0);
            Some(ProgramLaunch { writes: vec![nowhere.clone()], ..cutting.part(rows, Some(&nowhere))? })
        };
        let all_rows: Vec<Rows> = nodes.iter().flatten().map(rows_of).collect();
        witnesses(&all_rows).into_iter().try_for_each(|rows| part(rows).map(drop))?;
        let own: Vec<Vec<Range<u64>>> = self.own_of(&nodes).collect();
        let own = self.each_part(own.len(), |building, number| {
            let of_node = |node: &Range<u64>| {
                let part = part(rows_of(node))?;
                Some(ProgramLaunch { reads: building.own_operands(part.reads)?, ..part })
            };
            own[number].iter().map(of_node).collect::<Option<Vec<_>>>()
        })?;
        // From here on, nothing can fail.
        self.work.shared_launches += 1;
        self.count(launch, self.largest_share(&rows));
        let of = summed.as_ref().map(|summed| summed.of);
        let kernel = of.map_or_else(|| launch.kernel.clone(), |of| Kernel::Sums { of });
        let activation = sums::activation(launch);
        let sum = |result| Sum { name: &launch.name, kernel: &kernel, activation, desc: &desc, sum_bytes, result };
        if let Some(slices) = self.slices_of_sum(launch, &desc, of) {
            let result = match &summed {
                Some(_) => {
                    let table = self.buffer(format!("all sums of {}", launch.name), desc.total_size_bytes())?;
                    Operand { buffer: table, offset_bytes: 0, desc: desc.clone() }
                }
                None => launch.writes[0].clone(),
            };
            let mut waiting = Waiting { sums: PartialSums::default(), slots: Vec::new() };
            let mut parts = own.into_iter().zip(nodes.chunks(self.processes));
            self.each_part(parts.len(), |building, _| {
                let (own, nodes) = parts.next()?;
                let own_sums = building.own_sums(launch, vec![own], &desc)?;
                let is_last = parts.len() == 0;
                building.add_slices(&sum(&result), own_sums, nodes, &slices, (&mut waiting, is_last))
            })?;
            return summed.map_or(Some(()), |summed| self.finish_sums(launch, summed, result));
        }
        let counts: Vec<u64> = (0..self.processes).map(|rank| count_of(&nodes[rank..], self.processes)).collect();
        let sizes: Vec<u64> = counts.iter().map(|count| count * sum_bytes).collect();
        let own_sums = self.own_sums(launch, own, &desc)?;
        let all_sums = self.gather_sums(launch, own_sums, &sizes)?;
        // The sums of a process follow each other.
        let mut next: Vec<usize> =
            counts.iter().scan(0, |end, count| Some(std::mem::replace(end, *end + *count as usize))).collect();
        let mut slots = Vec::with_capacity(all_rows.len());
        for (piece, nodes) in nodes.iter().enumerate() {
            for node in nodes {
                let next = &mut next[piece % self.processes];
                slots.push((node.clone(), *next));
                *next += 1;
            }
        }
        let mut operands: Vec<Operand> = (0..slots.len()).map(|number| slot(all_sums, number)).collect();
        let Some(summed) = summed else {
            let result = &launch.writes[0];
            self.add_tree(&sum(result), additions(&slots), &mut operands, Some(result.clone()))?;
            self.states[result.buffer.0 as usize] = State::Whole;
            return Some(());
        };
        let table = slot(all_sums, 0);
        self.add_tree(&sum(&table), additions(&slots), &mut operands, None)?;
        self.finish_sums(launch, summed, operands.swap_remove(0))
    }

    /// Adds the launches that compute this process's sums, part by part, and returns the buffer that they are in, one after the other.
    fn own_sums(
        &mut self,
        launch: &ProgramLaunch,
        parts: Vec<Vec<ProgramLaunch>>,
        desc: &TensorDesc,
    ) -> Option<BufferId> {
        let sum_bytes = desc.total_size_bytes().next_multiple_of(BASE_OFFSET_ALIGNMENT_BYTES);
        let bytes = parts.iter().map(Vec::len).sum::<usize>() as u64 * sum_bytes;
        let buffer = self.buffer(format!("sums of {}", launch.name), bytes)?;
        if sum_bytes > desc.total_size_bytes() {
            // The bytes between sums are exchanged with them.
            let all = TensorDesc::packed(DataType::Float32, &[bytes / 4]).ok()?;
            let all = Operand { buffer, offset_bytes: 0, desc: all };
            self.push(format!("sums of {}", launch.name), Kernel::Fill { value: 0.0 }, Vec::new(), vec![all]);
        }
        let (first, mut offset_bytes) = (self.part, 0);
        for (part, launches) in (first..).zip(parts) {
            self.part = part;
            for launch in launches {
                let launch = self.with_own_slices(launch)?;
                let sum = Operand { buffer, offset_bytes, desc: desc.clone() };
                self.push_launch(ProgramLaunch { writes: vec![sum], ..launch });
                offset_bytes += sum_bytes;
            }
        }
        self.part = first;
        Some(buffer)
    }

    /// Returns the bytes that a process need not send if a sum is added slice by slice: it sends a slice to each other process, and then
    /// its slice of the result, instead of everything that it has.
    fn saved_by_slices(&self, bytes: u64) -> u64 {
        let others = self.processes as u64 - 1;
        let slice_bytes = bytes / self.processes as u64;
        bytes.saturating_sub(2 * slice_bytes).saturating_mul(others)
    }

    /// Returns the sums of all processes, one after the other.
    fn gather_sums(&mut self, launch: &ProgramLaunch, own_sums: BufferId, sizes: &[u64]) -> Option<BufferId> {
        let all_sums = self.buffer(format!("all sums of {}", launch.name), sizes.iter().sum())?;
        self.exchange_all(&launch.name, own_sums, all_sums, sizes)?;
        Some(all_sums)
    }

    /// Returns the slices by which a sum is added, if it is: by all processes, or, if there are many, by as many as are worth while. Sums that
    /// a kernel computes in a table are not separated.
    fn slices_of_sum(
        &self,
        launch: &ProgramLaunch,
        desc: &TensorDesc,
        table: Option<Summing>,
    ) -> Option<Vec<ByteRange>> {
        let bytes = desc.total_size_bytes();
        let is_many = self.processes > ALL_LOOKED_AT;
        let is_large = self.saved_by_slices(bytes) >= SAVED_BYTES_MIN;
        if table.is_some() {
            return (is_many && is_large).then(|| self.few_slices(bytes, bytes)).flatten();
        }
        let is_kept = self.sharding.kept.contains(&launch.writes[0].buffer);
        if !is_kept && !is_large {
            return None;
        }
        let slices = self.byte_slices(&Sliced::of(desc, self.sharding.unit));
        match is_many && !is_kept {
            true => self.few_slices(bytes, SLICE_BYTES_MIN),
            false => slices,
        }
    }

    /// Returns slices of at least this many bytes for some of the processes, and empty slices for the others. Other sums begin with other
    /// processes.
    fn few_slices(&self, bytes: u64, slice_bytes: u64) -> Option<Vec<ByteRange>> {
        let units = bytes.div_ceil(slice_bytes);
        let mut slices = vec![ByteRange::new(0, 0); self.processes];
        for (number, units) in shares(units, units.min(self.processes as u64), 1)?.into_iter().enumerate() {
            let end = (units.end * slice_bytes).min(bytes);
            slices[(self.work.exchanges + number) % self.processes] = ByteRange::new(units.start * slice_bytes, end);
        }
        Some(slices)
    }

    /// Adds the additions of a tree whose nodes are in slots. If there is a result, the last one writes it, and applies the launch's
    /// activation to it.
    fn add_tree(
        &mut self,
        sum: &Sum,
        additions: Vec<(usize, usize)>,
        slots: &mut [Operand],
        result: Option<Operand>,
    ) -> Option<()> {
        let is_many = self.processes > ALL_LOOKED_AT;
        let last = additions.len();
        let groups = if is_many { levels(&additions) } else { additions.into_iter().map(|pair| vec![pair]).collect() };
        let mut number = 0;
        for group in groups {
            let mut rest = &group[..];
            while let [(earlier, later), ..] = *rest {
                let count = if is_many { alike(rest, slots) } else { 1 };
                number += count;
                let name = format!("{} sum {number} of {last}", sum.name);
                if count > 1 {
                    self.add_at_once(name, sum, &rest[..count], slots)?;
                } else {
                    let [earlier, later] = [earlier, later].map(|slot| slots[slot].clone());
                    let (activation, target) = match result.clone().filter(|_| number == last) {
                        Some(result) => (sum.activation, result),
                        None => (Activation::None, earlier.clone()),
                    };
                    self.push(name, sums::addition(sum.kernel, activation), vec![earlier, later], vec![target]);
                }
                rest = &rest[count..];
            }
        }
        Some(())
    }

    /// Adds one launch for several additions whose summands lie equally far apart.
    fn add_at_once(
        &mut self,
        name: String,
        sum: &Sum,
        additions: &[(usize, usize)],
        slots: &mut [Operand],
    ) -> Option<()> {
        let (count, (first, second)) = (additions.len() as u64, (additions[0], additions[1]));
        let (data_type, elements) = (slots[first.0].desc.data_type(), slots[first.0].desc.element_count());
        let at_once = |apart: u64| match (sum.kernel, slots[first.0].desc.sizes()) {
            (Kernel::Sums { .. }, &[rows, channels]) => {
                TensorDesc::strided(data_type, &[count, rows, channels], &[apart, channels, 1])
            }
            _ => TensorDesc::strided(data_type, &[count, elements], &[apart, 1]),
        };
        let all = |slot: usize, next: usize| {
            let apart = (slots[next].offset_bytes - slots[slot].offset_bytes) / data_type.size_bytes();
            Some(Operand { desc: at_once(apart).ok()?, ..slots[slot].clone() })
        };
        let reads = vec![all(first.0, second.0)?, all(first.1, second.1)?];
        let pitch_bytes = (elements * data_type.size_bytes()).next_multiple_of(SLICE_ALIGNMENT_BYTES);
        let desc = at_once(pitch_bytes / data_type.size_bytes()).ok()?;
        let buffer = self.buffer(format!("sums of sums of {}", sum.name), count * pitch_bytes)?;
        for (number, (earlier, _)) in (0..).zip(additions) {
            slots[*earlier] = Operand { buffer, offset_bytes: number * pitch_bytes, ..slots[*earlier].clone() };
        }
        let target = Operand { buffer, offset_bytes: 0, desc };
        self.push(name, sums::addition(sum.kernel, Activation::None), reads, vec![target]);
        Some(())
    }

    /// Adds large sums over a part slice by slice: each process with a slice receives this slice of all sums, and adds it to those of the
    /// parts before. After the last part, it sends the result to all others, unless each process keeps its slice. That takes fewer bytes than
    /// sending all sums to all processes.
    fn add_slices(
        &mut self,
        sum: &Sum,
        own_sums: BufferId,
        nodes: &[Vec<Range<u64>>],
        slices: &[ByteRange],
        (waiting, is_last): (&mut Waiting, bool),
    ) -> Option<()> {
        let (rank, Sum { desc, sum_bytes, result, .. }) = (self.rank, *sum);
        let all_bytes: u64 = slices.iter().map(|slice| slice.len()).sum();
        let own = slices[rank];
        let pitch_bytes = own.len().next_multiple_of(SLICE_ALIGNMENT_BYTES);
        let mut first = 0;
        let mut receives = Vec::with_capacity(nodes.len());
        for nodes in nodes {
            let of_node = |number: u64| ByteRange::new(number * pitch_bytes, number * pitch_bytes + own.len());
            let count = if own.is_empty() { 0 } else { nodes.len() as u64 };
            receives.push((first..first + count).map(of_node).collect());
            first += count;
        }
        let of_slice = |slice: &ByteRange| -> Vec<ByteRange> {
            let of_node = |number: u64| number * sum_bytes;
            let nodes = 0..if slice.is_empty() { 0 } else { nodes[rank].len() as u64 };
            nodes.map(|number| ByteRange::new(of_node(number) + slice.start, of_node(number) + slice.end)).collect()
        };
        let sends = slices.iter().map(of_slice).collect();
        // An exchange has a result in every process.
        let received_bytes = (first * pitch_bytes).max(4);
        let all = self.buffer(format!("all sums of a slice of {}", sum.name), received_bytes)?;
        let own_bytes = nodes[rank].len() as u64 * sum_bytes;
        let (x, y) = (bytes_of(own_sums, own_bytes)?, bytes_of(all, received_bytes)?);
        let of_process = |(nodes, slice): (&Vec<_>, &ByteRange)| nodes.len() as u64 * (all_bytes - slice.len());
        let sent_bytes = nodes.iter().zip(slices).map(of_process).sum();
        self.exchange(sum.name, (x.clone(), y), sends, receives, sent_bytes)?;
        let mut added = x;
        if !own.is_empty() {
            let elements = own.len() / desc.data_type().size_bytes();
            let desc = match own.len() == all_bytes {
                true => desc.clone(),
                false => TensorDesc::packed(desc.data_type(), &[elements]).ok()?,
            };
            let Waiting { sums, slots } = waiting;
            let (earlier, mut additions) = (slots.len(), Vec::new());
            let mut add = |earlier: usize, later: usize| {
                additions.push((earlier, later));
                earlier
            };
            for (number, node) in (0..).zip(nodes.iter().flatten()) {
                sums.push(node.clone(), slots.len(), &mut add);
                slots.push(Operand { buffer: all, offset_bytes: number * pitch_bytes, desc: desc.clone() });
            }
            if !is_last {
                self.add_tree(sum, additions, slots, None)?;
                // What waits for the next part needs less room than all sums of this one.
                for &(_, slot) in sums.nodes().iter().filter(|(_, slot)| *slot >= earlier) {
                    let buffer = self.buffer(format!("a slice of a sum of {}", sum.name), pitch_bytes)?;
                    let kept = Operand { buffer, offset_bytes: 0, desc: desc.clone() };
                    let waiting = std::mem::replace(&mut slots[slot], kept.clone());
                    self.push(format!("{} slice", sum.name), Kernel::Copy, vec![waiting], vec![kept]);
                }
                return Some(());
            }
            std::mem::take(sums).total(add);
            if self.sharding.kept.contains(&result.buffer) {
                let kept = self.kept_slice(result, &own)?;
                return self.add_tree(sum, additions, slots, Some(kept));
            }
            let slice = match sum.kernel {
                // Tables are added in place.
                Kernel::Sums { .. } => slots[earlier].clone(),
                _ => {
                    let buffer = self.buffer(format!("a slice of {}", sum.name), pitch_bytes)?;
                    Operand { buffer, offset_bytes: 0, desc }
                }
            };
            self.add_tree(sum, additions, slots, Some(slice.clone()))?;
            added = Operand { offset_bytes: slice.offset_bytes, ..bytes_of(slice.buffer, own.len())? };
        }
        if !is_last {
            return Some(());
        }
        let y = Operand { offset_bytes: result.offset_bytes, ..bytes_of(result.buffer, all_bytes)? };
        self.states[result.buffer.0 as usize] = State::Whole;
        let ranges = |range: ByteRange| if range.is_empty() { Vec::new() } else { vec![range] };
        let sends = vec![ranges(ByteRange::new(0, own.len())); self.processes];
        let receives = slices.iter().map(|slice| ranges(*slice)).collect();
        let sent_bytes = all_bytes * (self.processes as u64 - 1);
        self.exchange(sum.name, (added, y), sends, receives, sent_bytes)
    }

    /// Adds what is computed from sums, and what else the launch computes.
    fn finish_sums(&mut self, launch: &ProgramLaunch, summed: SumsInParts, sums: Operand) -> Option<()> {
        self.losses.push((summed.of, launch.reads.clone(), sums.clone()));
        let (finishing, rest) = sums::finish(launch, summed, &sums);
        finishing.writes.iter().for_each(|write| self.states[write.buffer.0 as usize] = State::Whole);
        self.push_launch(finishing);
        rest.map_or(Some(()), |rest| self.add(rest))
    }
}
