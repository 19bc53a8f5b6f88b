//! Axes of operands that are related through a window.

use super::super::super::{Convolution, Window, lines};
use super::super::{Along, AxisRole, OperandRef, SlidingAxis};
use super::{Cut, Operands, read, write};
use crate::DataType;

/// The window along one spatial dimension. Convolutions see nothing beyond the end of their operands, however much padding follows.
fn sliding(window: &Window, dimension: usize, has_end: bool) -> Option<SlidingAxis> {
    Some(SlidingAxis {
        taps: *window.kernel.get(dimension)?,
        stride: *window.strides.get(dimension)?,
        dilation: *window.dilations.get(dimension)?,
        pad_begin: *window.pads_begin.get(dimension)?,
        pad_end: if has_end { Some(*window.pads_end.get(dimension)?) } else { None },
    })
}

impl Operands<'_> {
    pub(super) fn convolution(
        &mut self,
        convolution: &Convolution,
        source: OperandRef,
        target: OperandRef,
    ) -> Option<()> {
        let along = |operand, axis| (operand, Along::axis(axis));
        self.free(Some(1), &[along(source, 0), along(target, 0)]);
        self.whole(&[along(source, 1)]);
        self.whole(&[along(target, 1)]);
        for dimension in 0..convolution.window.kernel.len() {
            let role = AxisRole::Spatial(sliding(&convolution.window, dimension, false)?);
            let cut = (dimension == 0).then_some(1);
            self.add(role, cut, &[along(target, dimension + 2)], &[along(source, dimension + 2)]);
        }
        self.has_images(&[source, target], convolution.window.kernel.len())
    }

    pub(super) fn weight_gradient(&mut self, convolution: &Convolution) -> Option<()> {
        let dy = self.read(1)?.sizes();
        // Parts would be rounded before being added.
        let is_single = self.write(0)?.data_type() == DataType::Float32;
        self.add(AxisRole::Reduced, is_single.then(|| lines::of_weights(dy, 0)), &[read(0, 0), read(1, 0)], &[]);
        self.whole(&[read(0, 1)]);
        self.whole(&[read(1, 1)]);
        for dimension in 0..convolution.window.kernel.len() {
            let role = AxisRole::Spatial(sliding(&convolution.window, dimension, false)?);
            let cut = (dimension == 0 && is_single).then(|| lines::of_weights(dy, 2));
            self.add(role, cut, &[read(1, dimension + 2)], &[read(0, dimension + 2)]);
        }
        self.has_images(&[OperandRef::Read(0), OperandRef::Read(1)], convolution.window.kernel.len())
    }

    pub(super) fn pool(&mut self, window: &Window) -> Option<()> {
        self.free(Some(1), &[read(0, 0), write(0, 0)]);
        self.add(AxisRole::Channel, Cut::NONE, &[read(0, 1), write(0, 1)], &[]);
        for dimension in 0..window.kernel.len() {
            let role = AxisRole::Spatial(sliding(window, dimension, true)?);
            self.add(role, (dimension == 0).then_some(1), &[write(0, dimension + 2)], &[read(0, dimension + 2)]);
        }
        self.has_images(&[OperandRef::Read(0), OperandRef::Write(0)], window.kernel.len())
    }

    /// Overlapping windows cannot be separated by rows of the source.
    pub(super) fn pool_gradient(&mut self, window: &Window) -> Option<()> {
        self.free(Some(1), &[read(0, 0), read(1, 0), write(0, 0)]);
        self.add(AxisRole::Channel, Cut::NONE, &[read(0, 1), read(1, 1), write(0, 1)], &[]);
        for dimension in 0..window.kernel.len() {
            let axis = sliding(window, dimension, true)?;
            let cut = (dimension == 0 && axis.reach() <= axis.stride).then_some(1);
            let sources = [read(1, dimension + 2), write(0, dimension + 2)];
            self.add(AxisRole::Spatial(axis), cut, &[read(0, dimension + 2)], &sources);
        }
        self.has_images(&[OperandRef::Read(0), OperandRef::Write(0)], window.kernel.len())
    }

    /// Checks that operands have axes for images and channels and this many spatial dimensions.
    pub(super) fn has_images(&self, operands: &[OperandRef], spatial: usize) -> Option<()> {
        let has = |&operand: &OperandRef| {
            let desc = match operand {
                OperandRef::Read(index) => self.read(index),
                OperandRef::Write(index) => self.write(index),
            };
            desc.is_some_and(|desc| desc.sizes().len() == spatial + 2)
        };
        operands.iter().all(has).then_some(())
    }
}
