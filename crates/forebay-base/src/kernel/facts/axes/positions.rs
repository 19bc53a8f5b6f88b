//! Axes of sums over positions: reductions, losses, normalizations.

use super::super::super::{Summing, lines};
use super::super::{Along, AxisRole, OperandRef};
use super::{Cut, Operands, read, write};
use crate::TensorDesc;

impl Operands<'_> {
    pub(super) fn reduce(&mut self, axes: &[usize], sums: bool) -> Option<()> {
        let (x, y) = (self.read(0)?, self.write(0)?.sizes());
        let rank = x.sizes().len();
        let keeps = y.len() == rank;
        let mut before = 0;
        for axis in 0..rank {
            if axes.contains(&axis) {
                before += 1;
                let cut = sums.then(|| lines::of_reduction(axes, x, axis)).flatten();
                self.add(AxisRole::Reduced, cut, &[read(0, axis)], &[]);
            } else {
                let target = if keeps { axis } else { axis - before };
                self.free(Some(1), &[read(0, axis), write(0, target)]);
            }
        }
        Some(())
    }

    pub(super) fn cross_entropy(&mut self, along: usize, is_gradient: bool) -> Option<()> {
        let (logits, labels) = if is_gradient { (1, 2) } else { (0, 1) };
        let sizes = self.read(logits)?.sizes();
        if along >= sizes.len() {
            return None;
        }
        for axis in 0..sizes.len() {
            let of_labels = if axis < along { axis } else { axis.saturating_sub(1) };
            let own = (axis != along && of_labels < self.read(labels)?.sizes().len()).then(|| read(labels, of_labels));
            let mut targets: Vec<_> = [read(logits, axis)].into_iter().chain(own).collect();
            if is_gradient {
                targets.push(write(0, axis));
            }
            // In images, the second axis is that of the classes.
            let cut = match (axis == along, axis == 1, is_gradient) {
                (true, ..) | (_, true, _) => Cut::NONE,
                (.., true) => Some(1).into(),
                (.., false) => Cut::from(Some(lines::of_losses(sizes, along, axis))),
            };
            let role = match (axis == along, is_gradient) {
                (true, _) => AxisRole::Whole,
                (_, true) => AxisRole::Free,
                (_, false) => AxisRole::Reduced,
            };
            self.add(role, cut, &targets, &[]);
        }
        Some(())
    }

    /// The axes of x\[n, c, ..] and of everything with the same sizes.
    pub(super) fn channels<C: Into<Cut>>(
        &mut self,
        reads: &[usize],
        writes: &[usize],
        of_axis: impl Fn(usize) -> (AxisRole, C),
    ) -> Option<()> {
        self.elements(reads, writes, |axis| {
            let (role, cut) = of_axis(axis);
            if axis == 1 { (AxisRole::Channel, Cut::NONE) } else { (role, cut.into()) }
        })
    }

    /// The axes of x\[.., rows, row ..], normalized from an axis on, with the statistics of each row either in one dimension or in those of
    /// x.
    pub(super) fn layer(
        &mut self,
        normalized: usize,
        reads: &[usize],
        statistics_read: &[usize],
        writes: &[usize],
        statistics_written: &[usize],
        lines: impl Fn(usize) -> Cut,
    ) -> Option<()> {
        let sizes = self.read(reads[0])?.sizes();
        let is_sum = self.writes.len() == 3 && !statistics_read.is_empty();
        let statistics_of = |operand: &TensorDesc, axis: usize| {
            let of_index: u64 = sizes[axis + 1..normalized].iter().product();
            let rows: u64 = sizes[..normalized].iter().product();
            match operand.sizes() {
                [count] if *count == rows => Some(Along { elements: of_index, ..Along::axis(0) }),
                own => (own.get(axis) == sizes.get(axis)).then_some(Along::axis(axis)),
            }
        };
        if normalized > sizes.len() {
            return None;
        }
        for axis in 0..sizes.len() {
            let mut targets: Vec<_> = reads.iter().map(|&at| self::read(at, axis)).collect();
            targets.extend(writes.iter().map(|&at| self::write(at, axis)));
            if axis >= normalized {
                self.whole(&targets);
                continue;
            }
            for &at in statistics_read {
                targets.push((OperandRef::Read(at), statistics_of(self.read(at)?, axis)?));
            }
            for &at in statistics_written.iter().filter(|&&at| at < self.writes.len()) {
                targets.push((OperandRef::Write(at), statistics_of(self.write(at)?, axis)?));
            }
            let role = if is_sum { AxisRole::Reduced } else { AxisRole::Free };
            let cut = lines(axis);
            self.add(role, if is_sum { cut } else { cut.step.into() }, &targets, &[]);
        }
        Some(())
    }

    pub(super) fn sums(&mut self, of: Summing) -> Option<()> {
        let x = self.read(0)?;
        let sizes = x.sizes();
        match of {
            Summing::BatchStatistics { .. } | Summing::Channels => {
                self.channels(&[0], &[], |axis| (AxisRole::Reduced, lines::of_channels(sizes, axis)))
            }
            Summing::BatchGradient { .. } => {
                self.channels(&[0, 1], &[], |axis| (AxisRole::Reduced, lines::of_channels(sizes, axis)))
            }
            Summing::CrossEntropy { axis, .. } => self.cross_entropy(axis, false),
            Summing::SquaredError => {
                self.elements(&[0, 1], &[], |axis| (AxisRole::Reduced, Some(lines::of_squares(sizes, axis))))
            }
            Summing::LayerGradient { axis } => {
                let first = self.found.len();
                self.layer(axis, &[0, 1], &[2, 3], &[], &[], |along| lines::of_layers(sizes, axis, along).into())?;
                for (along, found) in self.found[first..].iter_mut().enumerate().take(axis) {
                    (found.role, found.leaves) = (AxisRole::Reduced, lines::of_layers(sizes, axis, along));
                }
                Some(())
            }
            Summing::Rows { axes } => {
                for axis in 0..sizes.len() {
                    if axis < axes {
                        self.add(AxisRole::Reduced, lines::of_rows(sizes, axes, axis), &[read(0, axis)], &[]);
                    } else {
                        self.whole(&[read(0, axis)]);
                    }
                }
                Some(())
            }
        }
    }
}
