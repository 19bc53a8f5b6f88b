//! Axes: derives the dimensions of a launch from the facts of its kernel and the sizes of its operands.

mod attention;
mod integer;
mod positions;
mod windows;

use std::ops::Range;

use super::super::lines;
use super::super::{PRODUCT_COLUMNS, PRODUCT_ROWS, ProductPart};
use super::{Along, Axes, AxisRole, CutAxes, Dimension, KernelFacts, Leaves, OperandRef};
use crate::{DataType, TensorDesc};

/// The operands of a launch, and the dimensions found so far.
struct Operands<'a> {
    reads: &'a [&'a TensorDesc],
    writes: &'a [&'a TensorDesc],
    found: Vec<Dimension>,
}

/// Operands, each with one of its axes.
type AxesOf<'a> = &'a [(OperandRef, Along)];

/// The boundaries at which launches are cut along a dimension, if any, and the leaves of sums over it.
#[derive(Clone, Copy)]
struct Cut {
    step: Option<u64>,
    leaves: Option<Leaves>,
}

impl Cut {
    /// No cuts.
    const NONE: Cut = Cut { step: None, leaves: None };
}

impl From<Option<u64>> for Cut {
    fn from(step: Option<u64>) -> Cut {
        Cut { step, leaves: None }
    }
}

impl From<Option<Leaves>> for Cut {
    fn from(leaves: Option<Leaves>) -> Cut {
        Cut { step: leaves.map(Leaves::step), leaves }
    }
}

/// Makes an axis from an operand's index and an axis number.
type AxisOf = fn(usize, usize) -> (OperandRef, Along);

const fn read(index: usize, axis: usize) -> (OperandRef, Along) {
    (OperandRef::Read(index), Along::axis(axis))
}

const fn write(index: usize, axis: usize) -> (OperandRef, Along) {
    (OperandRef::Write(index), Along::axis(axis))
}

impl<'a> Operands<'a> {
    fn read(&self, index: usize) -> Option<&'a TensorDesc> {
        self.reads.get(index).copied()
    }

    fn write(&self, index: usize) -> Option<&'a TensorDesc> {
        self.writes.get(index).copied()
    }

    /// Adds a dimension, leaving out operands that the launch lacks.
    fn add(&mut self, role: AxisRole, cut: impl Into<Cut>, targets: AxesOf, sources: AxesOf) {
        let Cut { step: cut, leaves } = cut.into();
        let is_there = |&(operand, _): &(OperandRef, Along)| match operand {
            OperandRef::Read(index) => index < self.reads.len(),
            OperandRef::Write(index) => index < self.writes.len(),
        };
        let those = |all: AxesOf| all.iter().copied().filter(is_there).collect();
        let dimension = Dimension { role, cut, at_once: 1, leaves, targets: those(targets), sources: those(sources) };
        self.found.push(dimension);
    }

    fn free(&mut self, cut: Option<u64>, targets: AxesOf) {
        self.add(AxisRole::Free, cut, targets, &[]);
    }

    /// Adds the rows of a product, each of which is computed from its own terms alone.
    fn product_rows(&mut self, may_be_cut: bool, targets: AxesOf) {
        self.free(may_be_cut.then_some(1), targets);
        self.found.iter_mut().last().into_iter().for_each(|rows| rows.at_once = PRODUCT_ROWS);
    }

    fn whole(&mut self, targets: AxesOf) {
        self.add(AxisRole::Whole, Cut::NONE, targets, &[]);
    }

    /// Adds all axes of writes and reads of equal sizes, each with its role and cut. Returns `None` if sizes differ.
    fn elements<C: Into<Cut>>(
        &mut self,
        reads: &[usize],
        writes: &[usize],
        of_axis: impl Fn(usize) -> (AxisRole, C),
    ) -> Option<()> {
        let reads: Vec<usize> = reads.iter().copied().filter(|&read| read < self.reads.len()).collect();
        let first = writes.first().map(|&at| self.writes[at]).or_else(|| reads.first().map(|&at| self.reads[at]))?;
        let sizes = first.sizes();
        let is_same = |desc: &TensorDesc| desc.sizes() == sizes;
        if !reads.iter().all(|&at| is_same(self.reads[at])) || !writes.iter().all(|&at| is_same(self.writes[at])) {
            return None;
        }
        for axis in 0..sizes.len() {
            let (role, cut) = of_axis(axis);
            let targets = reads.iter().map(|&at| self::read(at, axis));
            let targets: Vec<_> = targets.chain(writes.iter().map(|&at| self::write(at, axis))).collect();
            self.add(role, cut, &targets, &[]);
        }
        Some(())
    }
}

impl KernelFacts<'_> {
    /// The dimensions of a launch with operands of these descriptors. Returns `None` if the operands do not match the kernel's row; such a
    /// launch is not cut.
    pub fn dimensions(&self, reads: &[&TensorDesc], writes: &[&TensorDesc]) -> Option<Vec<Dimension>> {
        let mut operands = Operands { reads, writes, found: Vec::new() };
        operands.find(self)?;
        Some(operands.found)
    }
}

impl Operands<'_> {
    fn find(&mut self, facts: &KernelFacts) -> Option<()> {
        let all_writes: Vec<usize> = (0..self.writes.len()).collect();
        match facts.axes {
            Axes::Elements { reads, cut } => {
                let all_reads: Vec<usize> = (0..self.reads.len()).collect();
                let reads = reads.map_or(all_reads, <[usize]>::to_vec);
                let cut = move |axis| match cut {
                    CutAxes::All => Some(1),
                    CutAxes::First => (axis == 0).then_some(1),
                    CutAxes::None => None,
                };
                self.elements(&reads, &all_writes, |axis| (AxisRole::Free, cut(axis)))
            }
            Axes::Update => {
                let reads: Vec<usize> = (0..=self.writes.len()).collect();
                self.elements(&reads, &all_writes, |_| (AxisRole::Free, Some(1)))
            }
            Axes::BlockUpdate { block, reads, writes } => self.block_update(block, reads, writes),
            Axes::AllAlong { axis: along } => {
                let reads: Vec<usize> = (0..self.reads.len()).collect();
                self.elements(&reads, &all_writes, |axis| match axis == along {
                    true => (AxisRole::Whole, None),
                    false => (AxisRole::Free, Some(1)),
                })
            }
            Axes::Within { first, count } => self.within(first..first.saturating_add(count)),
            Axes::Slice { starts, steps } => self.slice(starts, steps),
            Axes::Placed { begins } => self.placed(begins),
            Axes::Gather { axis } => self.gather(axis, false),
            Axes::GatherGradient { axis } => self.gather(axis, true),
            Axes::Reduce { axes, sums } => self.reduce(axes, sums),
            Axes::SquaredError => {
                let sizes = self.read(0)?.sizes();
                self.elements(&[0, 1], &[], |axis| (AxisRole::Reduced, Some(lines::of_squares(sizes, axis))))
            }
            Axes::CrossEntropy { axis } => self.cross_entropy(axis, false),
            Axes::CrossEntropyGradient { axis } => self.cross_entropy(axis, true),
            Axes::Product { transpose_a, transpose_b, part, may_add_terms } => {
                let first = match part {
                    ProductPart::Columns { first } => first,
                    ProductPart::Whole => 0,
                };
                let summand = 2 + usize::from(part.reads_result());
                self.product([transpose_a, transpose_b], (part, first), summand, may_add_terms)
            }
            Axes::IntegerProduct { transpose_b } => self.integer_product(transpose_b),
            Axes::Convolution(convolution) => self.convolution(convolution, OperandRef::Read(0), OperandRef::Write(0)),
            Axes::ConvolutionDataGradient(convolution) => {
                self.convolution(convolution, OperandRef::Write(0), OperandRef::Read(0))
            }
            Axes::ConvolutionWeightGradient(convolution) => self.weight_gradient(convolution),
            Axes::Pool(window) => self.pool(window),
            Axes::PoolGradient(window) => self.pool_gradient(window),
            Axes::Channels { images } => self.channels(images, &[0], |_| (AxisRole::Free, Some(1))),
            Axes::ChannelStatistics => {
                let sizes = self.read(0)?.sizes();
                self.channels(&[0], &[0], |axis| (AxisRole::Reduced, lines::of_channels(sizes, axis)))
            }
            Axes::ChannelGradient => {
                let sizes = self.read(0)?.sizes();
                // If the sums are given, nothing is summed.
                let is_sum = all_writes.len() > 1;
                let role = if is_sum { AxisRole::Reduced } else { AxisRole::Free };
                self.channels(&[0, 1], &[0], |axis| (role, lines::of_channels(sizes, axis)))?;
                self.found.iter_mut().filter(|_| !is_sum).for_each(|found| found.leaves = None);
                Some(())
            }
            Axes::LayerNormalization { axis } => self.layer(axis, &[0], &[], &[0], &[1, 2], |_| Some(1).into()),
            Axes::LayerNormalizationGradient { axis } => {
                let sizes = self.read(1)?.sizes();
                self.layer(axis, &[0, 1], &[3, 4], &[0], &[], |along| lines::of_layers(sizes, axis, along).into())
            }
            Axes::Attention(of) => self.attention(&of),
            Axes::Sums { of } => self.sums(of),
            Axes::Whole => Some(()),
        }
    }

    /// Operands with one axis, some of which have one element per block of the others' elements. Step and hyperparameters, the last reads,
    /// are needed whole.
    fn block_update(&mut self, block: u64, of_blocks: &[usize], written_of_blocks: &[usize]) -> Option<()> {
        let &[count] = self.write(0)?.sizes() else { return None };
        let reads = 0..=self.writes.len();
        let reads = reads.map(|at| (OperandRef::Read(at), self.reads.get(at), of_blocks.contains(&at)));
        let writes = self.writes.iter().enumerate();
        let writes = writes.map(|(at, desc)| (OperandRef::Write(at), Some(desc), written_of_blocks.contains(&at)));
        let mut targets = Vec::new();
        for (operand, desc, is_of_blocks) in reads.chain(writes) {
            let covers = if is_of_blocks { block } else { 1 };
            if desc?.sizes() != [count.div_ceil(covers)] {
                return None;
            }
            targets.push((operand, Along { covers, ..Along::axis(0) }));
        }
        self.free(Some(block), &targets);
        Some(())
    }

    /// All operands have the same axes, with the same sizes except along some of them.
    fn within(&mut self, inside: Range<usize>) -> Option<()> {
        let sizes = self.write(0)?.sizes();
        let (reads, writes) = (self.reads, self.writes);
        if reads.iter().chain(writes).any(|desc| desc.sizes().len() != sizes.len()) {
            return None;
        }
        for (axis, &size) in sizes.iter().enumerate() {
            let own: Vec<_> = (0..reads.len()).map(|at| read(at, axis)).collect();
            let targets: Vec<_> = own.into_iter().chain((0..writes.len()).map(|at| write(at, axis))).collect();
            if inside.contains(&axis) {
                targets.iter().for_each(|&target| self.whole(&[target]));
            } else if reads.iter().chain(writes).all(|desc| desc.sizes()[axis] == size) {
                self.free(Some(1), &targets);
            } else {
                return None;
            }
        }
        Some(())
    }

    fn slice(&mut self, starts: &[u64], steps: &[i64]) -> Option<()> {
        for axis in 0..self.write(0)?.sizes().len() {
            let (&first, &step) = (starts.get(axis)?, steps.get(axis)?);
            let taken = Along { first, step, ..Along::axis(axis) };
            let cut = (step > 0).then_some(1);
            self.add(AxisRole::Taken, cut, &[write(0, axis), (OperandRef::Read(0), taken)], &[]);
        }
        Some(())
    }

    /// Along an axis on which nothing is left out or added, each index comes from the same index.
    fn placed(&mut self, begins: &[u64]) -> Option<()> {
        let (from, to) = (self.read(0)?.sizes(), self.write(0)?.sizes());
        for (axis, &size) in to.iter().enumerate() {
            if begins.get(axis) == Some(&0) && from.get(axis) == Some(&size) {
                self.free(Some(1), &[read(0, axis), write(0, axis)]);
            } else {
                self.whole(&[read(0, axis)]);
                self.whole(&[write(0, axis)]);
            }
        }
        (from.len() == to.len()).then_some(())
    }

    /// `chosen` has the axes of the data, with one of them replaced by those of the indices.
    fn gather(&mut self, axis: usize, is_gradient: bool) -> Option<()> {
        let (data, chosen): (AxisOf, AxisOf) = if is_gradient { (write, read) } else { (read, write) };
        let data_desc = if is_gradient { self.write(0)? } else { self.read(0)? };
        let chosen_desc = if is_gradient { self.read(0)? } else { self.write(0)? };
        let (rank, indices) = (data_desc.sizes().len(), self.read(1)?.sizes());
        let places = indices.len();
        if axis >= rank || chosen_desc.sizes().len() + 1 != rank + places {
            return None;
        }
        let is_same = chosen_desc.sizes()[axis..axis + places] == *indices;
        (0..axis).for_each(|own| self.free(None, &[data(0, own), chosen(0, own)]));
        for place in 0..places {
            let role = if is_gradient { AxisRole::Reduced } else { AxisRole::Free };
            let cut = (!is_gradient && axis == 0).then_some(1);
            self.add(role, cut, &[read(1, place), chosen(0, axis + place)], &[]);
        }
        self.whole(&[data(0, axis)]);
        (axis + 1..rank).for_each(|own| self.free(None, &[data(0, own), chosen(0, own + places - 1)]));
        is_same.then_some(())
    }

    /// Batches, rows, columns, and the terms of the sums.
    fn product(
        &mut self,
        transposed: [bool; 2],
        (part, first_column): (ProductPart, u64),
        summand: usize,
        may_add_terms: bool,
    ) -> Option<()> {
        let y = self.write(0)?;
        let rank = y.sizes().len();
        let ranks = [self.read(0)?.sizes().len(), self.read(1)?.sizes().len()];
        if rank < 2 || ranks.iter().any(|&rank| rank < 2) {
            return None;
        }
        // The rows and columns of a factor are its last two axes, swapped if it is transposed.
        let of = |factor: usize, of_rows: bool| ranks[factor] - if of_rows == transposed[factor] { 1 } else { 2 };
        // A factor may lack the first axes of the result, or broadcast along them.
        let own = |operand: &TensorDesc, axis: usize| {
            let sizes = operand.sizes();
            (axis + sizes.len()).checked_sub(rank).filter(|&own| sizes[own] > 1)
        };
        for axis in 0..rank - 2 {
            let of_read = |at: usize| Some(read(at, own(self.reads[at], axis)?));
            let skips = |at: usize| summand == 3 && at == 2;
            let reads = (0..self.reads.len()).filter(|&at| !skips(at)).filter_map(of_read);
            let targets: Vec<_> = reads.chain([write(0, axis)]).collect();
            self.free(Some(1), &targets);
        }
        let has_summand = self.reads.len() > summand;
        let with_summand = |targets: [(OperandRef, Along); 2], axis: usize| -> Vec<_> {
            targets.into_iter().chain(has_summand.then(|| read(summand, axis))).collect()
        };
        // A part of a product is not cut again.
        let is_whole = part == ProductPart::Whole;
        self.product_rows(is_whole, &with_summand([read(0, of(0, true)), write(0, rank - 2)], rank - 2));
        // With batches, rows are packed.
        let is_one_matrix = y.sizes()[..rank - 2].iter().all(|&size| size == 1);
        let may_be_cut = is_whole && is_one_matrix;
        let columns = (OperandRef::Write(0), Along { first: first_column, ..Along::axis(rank - 1) });
        let targets = with_summand([read(1, of(1, false)), columns], rank - 1);
        self.add(AxisRole::Columns, may_be_cut.then_some(PRODUCT_COLUMNS), &targets, &[]);
        // 16-bit sums are rounded, so nothing can be added to them.
        let may_be_added = may_add_terms && !has_summand && y.data_type() == DataType::Float32;
        let leaves = (may_be_cut && y.is_packed() && may_be_added).then_some(lines::PRODUCT);
        self.add(AxisRole::Reduced, leaves, &[read(0, of(0, false)), read(1, of(1, true))], &[]);
        Some(())
    }
}
