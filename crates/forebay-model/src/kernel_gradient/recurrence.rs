//! The gradient of a recurrent network: the kernel goes back through the steps and returns what is needed to compute the gradients of the
//! weights, with products over all steps at once.

use forebay_base::Kernel;
use forebay_base::kernel::{Recurrence, RecurrentCell};

use super::{Application, Gradients};
use crate::context::GradientBuilder;
use crate::graph::{TensorType, ValueId};

impl Application<'_> {
    /// Returns the gradients of the operands of `Recurrent`, from those of all its results.
    pub(super) fn recurrent(&self, builder: &mut GradientBuilder, recurrence: &Recurrence) -> Gradients {
        let mut gradients = vec![None; self.inputs.len()];
        if self.gradients.iter().all(Option::is_none) || !self.needs.contains(&true) {
            return gradients;
        }
        let mut reads = Vec::new();
        for (&output, gradient) in self.outputs.iter().zip(self.gradients) {
            let ty = builder.ty(output);
            reads.push(gradient.unwrap_or_else(|| builder.fill(0.0, &ty)));
        }
        reads.extend(self.inputs);
        reads.push(self.outputs[0]);
        let (gates, state) = (builder.ty(self.inputs[0]), builder.ty(self.inputs[4]));
        let of = |shape: &[u64]| TensorType::new(gates.data_type, shape);
        let (&[steps, batch, directions, _], units) = (gates.shape.as_slice(), state.shape[2]) else {
            return gradients;
        };
        let before = of(&[directions, steps, batch, units]);
        let mut types = vec![gates.clone(), before.clone(), state.clone()];
        match recurrence.cell {
            RecurrentCell::Lstm { .. } => types.extend([state.clone(), of(&[directions, batch, 3 * units])]),
            RecurrentCell::Gru { resets_after: true } => types.push(gates.clone()),
            RecurrentCell::Gru { resets_after: false } => types.push(before),
            RecurrentCell::Simple => {}
        }
        let kernel = Kernel::RecurrentGradient(recurrence.clone());
        let found = builder.kernel(kernel.name(), kernel.clone(), &reads, &types);
        let d_added = match recurrence.cell {
            RecurrentCell::Gru { resets_after: true } => found[3],
            _ => found[0],
        };
        if self.needs[1] {
            let columns = by_direction(builder, d_added);
            let product = |builder: &mut GradientBuilder, columns: ValueId, state: ValueId| {
                let flat = flat(builder, state);
                weights(builder, columns, flat)
            };
            gradients[1] = Some(if recurrence.cell == (RecurrentCell::Gru { resets_after: false }) {
                let parts = builder.split(columns, 2, &[2 * units, units], &[true, true]);
                let states = [found[1], found[3]];
                let parts: Vec<ValueId> = parts
                    .into_iter()
                    .zip(states)
                    .filter_map(|(columns, state)| columns.map(|columns| product(builder, columns, state)))
                    .collect();
                let ty = builder.ty(self.inputs[1]);
                builder.concatenate(&parts, 1, ty)
            } else {
                product(builder, columns, found[1])
            });
        }
        if self.needs[2] {
            let sum = builder.sum(d_added, &[0, 1]);
            let shape = builder.ty(self.inputs[2]).shape;
            gradients[2] = Some(builder.reshape(sum, &shape));
        }
        gradients[0] = self.needs[0].then_some(found[0]);
        gradients[4] = self.needs[4].then_some(found[2]);
        if recurrence.cell.has_cell_state() {
            gradients[5] = self.needs[5].then_some(found[3]);
            if self.needs[6] {
                let sum = builder.sum(found[4], &[1]);
                let shape = builder.ty(self.inputs[6]).shape;
                gradients[6] = Some(builder.reshape(sum, &shape));
            }
        }
        gradients
    }
}

/// Converts \[steps, batch, directions, columns] to \[directions, steps batch, columns].
fn by_direction(builder: &mut GradientBuilder, gates: ValueId) -> ValueId {
    let shape = builder.ty(gates).shape;
    let gates = if shape[2] == 1 { gates } else { builder.transpose(gates, &[2, 0, 1, 3]) };
    builder.reshape(gates, &[shape[2], shape[0] * shape[1], shape[3]])
}

/// Converts \[directions, steps, batch, units] to \[directions, steps batch, units].
fn flat(builder: &mut GradientBuilder, states: ValueId) -> ValueId {
    let shape = builder.ty(states).shape;
    builder.reshape(states, &[shape[0], shape[1] * shape[2], shape[3]])
}

/// Returns the sum, over steps and sequences, of each column's gradient times the state.
fn weights(builder: &mut GradientBuilder, columns: ValueId, states: ValueId) -> ValueId {
    let (a, b) = (builder.ty(columns), builder.ty(states));
    let ty = TensorType::new(a.data_type, &[a.shape[0], a.shape[2], b.shape[2]]);
    if a.shape[0] > 1 {
        return builder.one(Kernel::product(true, false), &[columns, states], ty);
    }
    let (columns, states) = (builder.reshape(columns, &a.shape[1..]), builder.reshape(states, &b.shape[1..]));
    let matrix = TensorType::new(ty.data_type, &ty.shape[1..]);
    let product = builder.one(Kernel::product(true, false), &[columns, states], matrix);
    builder.reshape(product, &ty.shape)
}
