//! Gradients of scatters and scans.

use forebay_base::kernel::{BinaryOp, ScanOp, ScatterOp};
use forebay_base::{DataType, Kernel, Tensor};

use super::{Application, Gradients};
use crate::context::GradientBuilder;
use crate::graph::{TensorType, ValueId};

/// The most updates of a replacing scatter with a gradient: each update has a number.
const UPDATES_MAX: u64 = 1 << 24;

impl Application<'_> {
    /// Returns the gradients with respect to data and updates.
    pub(super) fn scatter(&self, builder: &mut GradientBuilder, op: ScatterOp, dy: ValueId) -> Option<Gradients> {
        let mut gradients = match op {
            ScatterOp::Replace => self.replaced(builder, dy)?,
            ScatterOp::Add => {
                let d_updates = self.needs[2].then(|| self.taken(builder, dy));
                vec![Some(dy), None, d_updates]
            }
            ScatterOp::Multiply => self.multiplied(builder, dy),
            ScatterOp::Minimum | ScatterOp::Maximum => self.extreme(builder, dy),
        };
        gradients.iter_mut().zip(self.needs).filter(|(_, needs)| !**needs).for_each(|(d, _)| *d = None);
        Some(gradients)
    }

    /// Returns the rows of a value at the indices: those that the updates affect.
    fn taken(&self, builder: &mut GradientBuilder, value: ValueId) -> ValueId {
        let (mut ty, updates) = (builder.ty(value), builder.ty(self.inputs[2]));
        ty.shape = updates.shape;
        builder.one(Kernel::Gather { axis: 0 }, &[value, self.inputs[1]], ty)
    }

    /// The gradients of a replacing scatter. Replaced rows have no gradient; of several updates of one row, only the last one has.
    fn replaced(&self, builder: &mut GradientBuilder, dy: ValueId) -> Option<Gradients> {
        let (data, updates) = (builder.ty(dy), builder.ty(self.inputs[2]));
        let mut gradients = vec![None; 3];
        let replace = Kernel::Scatter { op: ScatterOp::Replace };
        if self.needs[2] {
            let count = updates.shape[0];
            if count > UPDATES_MAX {
                return None;
            }
            let taken = self.taken(builder, dy);
            let numbers: Vec<i64> = (0..count as i64).collect();
            let numbers = builder.constant(Tensor::from_i64(&[count], &numbers));
            let of_rows = TensorType::new(DataType::Int64, &data.shape[..1]);
            let none = builder.fill(0.0, &of_rows);
            let last = builder.one(replace.clone(), &[none, self.inputs[1], numbers], of_rows);
            let of_updates = TensorType::new(DataType::Int64, &[count]);
            let last = builder.one(Kernel::Gather { axis: 0 }, &[last, self.inputs[1]], of_updates);
            let is_last = builder.binary(BinaryOp::Equal, last, numbers);
            let mut along = vec![1; updates.shape.len()];
            along[0] = count;
            let is_last = builder.reshape(is_last, &along);
            let zero = builder.zero(dy);
            gradients[2] = Some(builder.select(is_last, taken, zero));
        }
        if self.needs[0] {
            let zeros = builder.fill(0.0, &updates);
            gradients[0] = Some(builder.one(replace, &[dy, self.inputs[1], zeros], data));
        }
        Some(gradients)
    }

    /// The gradient of a factor is the product of the others, without dividing by 0: zeros are counted and left out of the product.
    fn multiplied(&self, builder: &mut GradientBuilder, dy: ValueId) -> Gradients {
        let ty = builder.ty(self.inputs[0]);
        let zero = builder.zero(dy);
        let one = builder.scalar(ty.data_type, 1.0);
        let [data, updates] = [0, 2].map(|i| {
            let is_zero = builder.binary(BinaryOp::Equal, self.inputs[i], zero);
            let factor = builder.select(is_zero, one, self.inputs[i]);
            let own = builder.ty(self.inputs[i]);
            (builder.one(Kernel::cast(), &[is_zero], own), factor)
        });
        let mut scatter =
            |op: ScatterOp, a, b| builder.one(Kernel::Scatter { op }, &[a, self.inputs[1], b], ty.clone());
        let zeros = scatter(ScatterOp::Add, data.0, updates.0);
        let product = scatter(ScatterOp::Multiply, data.1, updates.1);
        let mut gradients = vec![None; 3];
        for (i, (own_zero, factor)) in [(0, data), (2, updates)] {
            if !self.needs[i] {
                continue;
            }
            let mut at = |value| if i == 0 { value } else { self.taken(builder, value) };
            let (zeros, product, dy) = (at(zeros), at(product), at(dy));
            let is_only = builder.binary(BinaryOp::Equal, zeros, own_zero);
            let others = builder.binary(BinaryOp::Divide, product, factor);
            let d = builder.binary(BinaryOp::Multiply, dy, others);
            gradients[i] = Some(builder.select(is_only, d, zero));
        }
        gradients
    }

    /// Equal extremes share the gradient.
    fn extreme(&self, builder: &mut GradientBuilder, dy: ValueId) -> Gradients {
        let (data, updates, y) = (self.inputs[0], self.inputs[2], self.outputs[0]);
        let (ty, of_updates) = (builder.ty(data), builder.ty(updates));
        let largest = self.taken(builder, y);
        let is_data = builder.binary(BinaryOp::Equal, data, y);
        let is_update = builder.binary(BinaryOp::Equal, updates, largest);
        let (of_data, of_update) = (
            builder.one(Kernel::cast(), &[is_data], ty.clone()),
            builder.one(Kernel::cast(), &[is_update], of_updates),
        );
        let count = builder.one(Kernel::Scatter { op: ScatterOp::Add }, &[of_data, self.inputs[1], of_update], ty);
        let share = builder.binary(BinaryOp::Divide, dy, count);
        let zero = builder.zero(dy);
        let d_updates = self.needs[2].then(|| {
            let taken = self.taken(builder, share);
            builder.select(is_update, taken, zero)
        });
        let d_data = self.needs[0].then(|| builder.select(is_data, share, zero));
        vec![d_data, None, d_updates]
    }

    /// Returns the gradient, with respect to x, of cumulative sums or products along an axis. For products, it is the product of the
    /// elements before an element times a combination of the gradients with the elements after it, which is a backward recurrence: nothing
    /// is divided.
    pub(super) fn scan(
        &self,
        builder: &mut GradientBuilder,
        axis: usize,
        op: ScanOp,
        (exclusive, reverse): (bool, bool),
        dy: ValueId,
    ) -> Option<ValueId> {
        let (x, ty) = (self.inputs[0], builder.ty(dy));
        match op {
            ScanOp::Sum => Some(builder.one(Kernel::Scan { axis, op, exclusive, reverse: !reverse }, &[dy], ty)),
            ScanOp::Product => {
                let before = Kernel::Scan { axis, op, exclusive: true, reverse };
                let before = builder.one(before, &[x], ty.clone());
                let behind = Kernel::Scan { axis, op: ScanOp::Recurrence, exclusive, reverse: !reverse };
                let behind = builder.one(behind, &[dy, x], ty);
                Some(builder.binary(BinaryOp::Multiply, before, behind))
            }
            ScanOp::Recurrence => None,
        }
    }
}
