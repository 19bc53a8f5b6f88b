//! Sums over images: each process computes nodes of the tree by which the whole is summed, and all of them are added in the order of the
//! tree.

use std::ops::Range;

use forebay_base::kernel::facts::SumsInParts;
use forebay_base::kernel::{Activation, Exchange};
use forebay_base::sum_tree::{PartialSums, nodes_of};
use forebay_base::tensor::BASE_OFFSET_ALIGNMENT_BYTES;
use forebay_base::{ByteRange, DataType, Kernel, TensorDesc};
use forebay_model::program::{BufferId, Operand, ProgramLaunch};

use super::exchange::bytes_of;
use super::{ALL_LOOKED_AT, Building, largest_share};
use crate::distribute::sharing::{Sharing, Sliced, State};
use crate::partition::cut::Cutting;
use crate::partition::rows::Rows;
use crate::partition::sums;

/// The slices of a process's nodes begin at multiples of this many bytes.
const SLICE_ALIGNMENT_BYTES: u64 = 64;

/// Sums are added slice by slice if that saves a process sending at least this many bytes: about what a fast network moves while one more
/// exchange begins.
const SAVED_BYTES_MIN: u64 = 64 << 10;

/// Returns the additions of a tree whose nodes are in slots, process by process: the slots of the two summands, the first of which receives
/// the sum.
fn additions(nodes: &[Vec<Range<u64>>]) -> Vec<(usize, usize)> {
    let (mut additions, mut sums) = (Vec::new(), PartialSums::default());
    let mut add = |earlier: usize, later: usize| {
        additions.push((earlier, later));
        earlier
    };
    for (slot, node) in nodes.iter().flatten().enumerate() {
        sums.push(node.clone(), slot, &mut add);
    }
    sums.total(add);
    additions
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
        let part = |node: &Range<u64>, sums: &Operand| {
            let rows = Rows { start: node.start * cut.step, end: (node.end * cut.step).min(cut.rows) };
            let mut part = cutting.part(rows, Some(sums))?;
            part.writes = vec![sums.clone()];
            Some(part)
        };
        let nowhere = slot(BufferId(u32::MAX), 0);
        let looked_at = if nodes.len() <= ALL_LOOKED_AT { 0..nodes.len() } else { 0..2 };
        let nodes_of_some = nodes[looked_at].iter().chain(nodes.last()).flatten();
        nodes_of_some.into_iter().try_for_each(|node| part(node, &nowhere).map(drop))?;
        let parts = nodes[self.rank].iter().map(|node| {
            let part = part(node, &nowhere)?;
            let own = |read: Operand| self.own_operand(read);
            Some(ProgramLaunch { reads: part.reads.into_iter().map(own).collect::<Option<_>>()?, ..part })
        });
        let parts = parts.collect::<Option<Vec<_>>>()?;
        // From here on, nothing can fail.
        let own_sums = self.buffer(format!("sums of {}", launch.name), parts.len() as u64 * sum_bytes)?;
        if sum_bytes > desc.total_size_bytes() {
            // The bytes between sums are exchanged with them.
            let all = TensorDesc::packed(DataType::Float32, &[parts.len() as u64 * sum_bytes / 4]).ok()?;
            let all = Operand { buffer: own_sums, offset_bytes: 0, desc: all };
            self.push(format!("sums of {}", launch.name), Kernel::Fill { value: 0.0 }, Vec::new(), vec![all]);
        }
        for (number, part) in parts.into_iter().enumerate() {
            self.launches.push(ProgramLaunch { writes: vec![slot(own_sums, number)], ..part });
        }
        self.work.shared_launches += 1;
        self.count(launch, largest_share(&rows));
        if let Some(summed) = summed {
            let sizes: Vec<u64> = nodes.iter().map(|own| own.len() as u64 * sum_bytes).collect();
            let all_sums = self.gather_sums(launch, own_sums, &sizes)?;
            let kernel = Kernel::AddSums { of: summed.of };
            for (earlier, later) in additions(&nodes) {
                let [earlier, later] = [earlier, later].map(|number| slot(all_sums, number));
                let name = format!("{} sum", launch.name);
                self.push(name, kernel.clone(), vec![earlier.clone(), later], vec![earlier]);
            }
            return self.finish_sums(launch, summed, slot(all_sums, 0));
        }
        let is_kept = self.sharding.kept.contains(&launch.writes[0].buffer);
        let is_large = is_kept || self.saved_by_slices(desc.total_size_bytes()) >= SAVED_BYTES_MIN;
        match is_large.then(|| self.byte_slices(&Sliced::of(&desc, self.sharding.unit))).flatten() {
            Some(slices) => self.add_slices(launch, own_sums, &nodes, sum_bytes, &slices)?,
            None => {
                let sizes: Vec<u64> = nodes.iter().map(|own| own.len() as u64 * sum_bytes).collect();
                let all_sums = self.gather_sums(launch, own_sums, &sizes)?;
                self.add_tree(launch, &nodes, |number| slot(all_sums, number), launch.writes[0].clone());
                self.states[launch.writes[0].buffer.0 as usize] = State::Whole;
            }
        }
        Some(())
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

    /// Adds the additions of a tree whose nodes are in slots. The last one writes the result, and applies the launch's activation to it.
    fn add_tree(
        &mut self,
        launch: &ProgramLaunch,
        nodes: &[Vec<Range<u64>>],
        slot: impl Fn(usize) -> Operand,
        result: Operand,
    ) {
        let completed = sums::activation(launch);
        let additions = additions(nodes);
        let last = additions.len();
        for (number, (earlier, later)) in (1..).zip(additions) {
            let [earlier, later] = [earlier, later].map(&slot);
            let (activation, target) = match number == last {
                true => (completed, result.clone()),
                false => (Activation::None, earlier.clone()),
            };
            let name = format!("{} sum {number} of {last}", launch.name);
            self.push(name, sums::addition(&launch.kernel, activation), vec![earlier, later], vec![target]);
        }
    }

    /// Adds large sums slice by slice: each process receives its slice of all sums, adds it, and sends the result to all others. That takes
    /// fewer bytes than sending all sums to all processes.
    fn add_slices(
        &mut self,
        launch: &ProgramLaunch,
        own_sums: BufferId,
        nodes: &[Vec<Range<u64>>],
        sum_bytes: u64,
        slices: &[ByteRange],
    ) -> Option<()> {
        let (rank, result) = (self.rank, &launch.writes[0]);
        let all_bytes: u64 = slices.iter().map(|slice| slice.len()).sum();
        let own = slices[rank];
        let pitch_bytes = own.len().next_multiple_of(SLICE_ALIGNMENT_BYTES);
        let mut first = 0;
        let mut receives = Vec::with_capacity(nodes.len());
        for nodes in nodes {
            let of_node = |number: u64| ByteRange::new(number * pitch_bytes, number * pitch_bytes + own.len());
            receives.push((first..first + nodes.len() as u64).map(of_node).collect());
            first += nodes.len() as u64;
        }
        let of_slice = |slice: &ByteRange| -> Vec<ByteRange> {
            let of_node = |number: u64| number * sum_bytes;
            let nodes = 0..nodes[rank].len() as u64;
            nodes.map(|number| ByteRange::new(of_node(number) + slice.start, of_node(number) + slice.end)).collect()
        };
        let sends = slices.iter().map(of_slice).collect();
        let all = self.buffer(format!("all sums of a slice of {}", launch.name), first * pitch_bytes)?;
        let own_bytes = nodes[rank].len() as u64 * sum_bytes;
        let (x, y) = (bytes_of(own_sums, own_bytes)?, bytes_of(all, first * pitch_bytes)?);
        let of_process = |(nodes, slice): (&Vec<_>, &ByteRange)| nodes.len() as u64 * (all_bytes - slice.len());
        let sent_bytes = nodes.iter().zip(slices).map(of_process).sum();
        self.exchange(&launch.name, (x, y), sends, receives, sent_bytes)?;
        let elements = own.len() / result.desc.data_type().size_bytes();
        let desc = TensorDesc::packed(result.desc.data_type(), &[elements]).ok()?;
        let slot =
            |number: usize| Operand { buffer: all, offset_bytes: number as u64 * pitch_bytes, desc: desc.clone() };
        if self.sharding.kept.contains(&result.buffer) {
            let kept = self.kept_slice(result, &own)?;
            self.add_tree(launch, nodes, slot, kept);
            return Some(());
        }
        let sum = self.buffer(format!("a slice of {}", launch.name), pitch_bytes)?;
        self.add_tree(launch, nodes, slot, Operand { buffer: sum, offset_bytes: 0, desc: desc.clone() });
        let y = Operand { offset_bytes: result.offset_bytes, ..bytes_of(result.buffer, all_bytes)? };
        self.states[result.buffer.0 as usize] = State::Whole;
        let gathered = Exchange::gather(0, rank, &slices.iter().map(|slice| slice.len()).collect::<Vec<_>>());
        let operands = (bytes_of(sum, own.len())?, y);
        let sent_bytes = all_bytes * (self.processes as u64 - 1);
        self.exchange(&launch.name, operands, gathered.sends, gathered.receives, sent_bytes)
    }

    /// Adds what is computed from sums, and what else the launch computes.
    fn finish_sums(&mut self, launch: &ProgramLaunch, summed: SumsInParts, sums: Operand) -> Option<()> {
        self.losses.push((summed.of, launch.reads.clone(), sums.clone()));
        let (finishing, rest) = sums::finish(launch, summed, &sums);
        finishing.writes.iter().for_each(|write| self.states[write.buffer.0 as usize] = State::Whole);
        self.launches.push(finishing);
        rest.map_or(Some(()), |rest| self.add(rest))
    }
}
