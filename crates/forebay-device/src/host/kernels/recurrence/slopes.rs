//! The backward pass of one step for one sequence: from the gradients of h and c after the step to those of its gates' arguments, and to
//! the part of the gradients of h and c before the step that does not go through the weights.

use forebay_base::kernel::RecurrentCell;

use super::activation::{apply, slopes};
use super::cell::Cell;

/// Units that are computed at once.
const BLOCK: usize = 64;

/// One number for each unit of a block.
type Block = [f32; BLOCK];

/// A gate of a block's units: its values and slopes.
struct Gate {
    values: Block,
    slopes: Block,
}

impl Cell<'_> {
    #[inline(always)]
    fn gate(&self, arguments: &[f32], gate: usize, activation: usize, (first, count): (usize, usize)) -> Gate {
        let mut found = Gate { values: [0.0; BLOCK], slopes: [0.0; BLOCK] };
        let start = gate * self.units + first;
        let (arguments, values) = (&arguments[start..start + count], &mut found.values[..count]);
        values.copy_from_slice(arguments);
        let activation = self.direction.activations[activation];
        apply(activation, self.clip, values);
        slopes(activation, self.clip, (arguments, values), &mut found.slopes[..count]);
        found
    }

    fn blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        let units = self.units;
        (0..units).step_by(BLOCK).map(move |first| (first, BLOCK.min(units - first)))
    }

    /// Computes a step of an LSTM. `gates` holds the gates' arguments and receives their gradients; `dc` is the gradient of c after the
    /// step, and becomes that of c before it. This step's part of the peepholes' gradients is added to `d_peepholes`.
    #[inline(always)]
    pub fn lstm_gradient(
        &self,
        gates: &mut [f32],
        (before, after): (&[f32], &[f32]),
        (dh, dc): (&[f32], &mut [f32]),
        d_peepholes: &mut [f32],
    ) {
        let units = self.units;
        let couples = matches!(self.cell, RecurrentCell::Lstm { couples_forget: true });
        for block in self.blocks() {
            let (first, count) = block;
            let [input, output, mut forget] = [0, 1, 2].map(|gate| self.gate(gates, gate, 0, block));
            let cell = self.gate(gates, 3, 1, block);
            if couples {
                forget.values.iter_mut().zip(&input.values).for_each(|(forget, input)| *forget = 1.0 - input);
            }
            let (c, mut state, mut slope) = (&after[first..first + count], [0.0; BLOCK], [0.0; BLOCK]);
            state[..count].copy_from_slice(c);
            apply(self.direction.activations[2], None, &mut state[..count]);
            slopes(self.direction.activations[2], None, (c, &state[..count]), &mut slope[..count]);
            for unit in 0..count {
                let at = first + unit;
                let (dh, before) = (dh[at], before[at]);
                let peephole = |gate: usize| self.peepholes[gate * units + at];
                let d_output = dh * state[unit] * output.slopes[unit];
                let d = dc[at] + dh * output.values[unit] * slope[unit] + d_output * peephole(1);
                let through_input = if couples { cell.values[unit] - before } else { cell.values[unit] };
                let d_input = d * through_input * input.slopes[unit];
                let d_forget = if couples { 0.0 } else { d * before * forget.slopes[unit] };
                gates[at] = d_input;
                gates[units + at] = d_output;
                gates[2 * units + at] = d_forget;
                gates[3 * units + at] = d * input.values[unit] * cell.slopes[unit];
                d_peepholes[at] += d_input * before;
                d_peepholes[units + at] += d_output * c[unit];
                d_peepholes[2 * units + at] += d_forget * before;
                dc[at] = d * forget.values[unit] + d_input * peephole(0) + d_forget * peephole(2);
            }
        }
    }

    /// Computes a step of a GRU whose reset gate acts after the product. `gates` holds the gates' arguments and receives their gradients;
    /// `added` holds the state's contribution to the candidate and receives the gradients of its contributions to all gates. `dh` becomes
    /// the part of the gradient of h before the step that does not go through the weights.
    #[inline(always)]
    pub fn gru_after_gradient(&self, gates: &mut [f32], added: &mut [f32], before: &[f32], dh: &mut [f32]) {
        let units = self.units;
        for block in self.blocks() {
            let (first, count) = block;
            let [update, reset] = [0, 1].map(|gate| self.gate(gates, gate, 0, block));
            let candidate = self.gate(gates, 2, 1, block);
            for unit in 0..count {
                let at = first + unit;
                let d = dh[at];
                let d_candidate = d * (1.0 - update.values[unit]) * candidate.slopes[unit];
                let d_update = d * (before[at] - candidate.values[unit]) * update.slopes[unit];
                let d_reset = d_candidate * added[2 * units + at] * reset.slopes[unit];
                gates[at] = d_update;
                gates[units + at] = d_reset;
                gates[2 * units + at] = d_candidate;
                added[at] = d_update;
                added[units + at] = d_reset;
                added[2 * units + at] = d_candidate * reset.values[unit];
                dh[at] = d * update.values[unit];
            }
        }
    }

    /// Computes the gradients of the update gate's and the candidate's arguments, for a GRU whose reset gate acts before the product. `dh`
    /// is as in [`Cell::gru_after_gradient`].
    #[inline(always)]
    pub fn gru_before_gradient(&self, gates: &mut [f32], before: &[f32], dh: &mut [f32]) {
        let units = self.units;
        for block in self.blocks() {
            let (first, count) = block;
            let update = self.gate(gates, 0, 0, block);
            let candidate = self.gate(gates, 2, 1, block);
            for unit in 0..count {
                let at = first + unit;
                let d = dh[at];
                gates[at] = d * (before[at] - candidate.values[unit]) * update.slopes[unit];
                gates[2 * units + at] = d * (1.0 - update.values[unit]) * candidate.slopes[unit];
                dh[at] = d * update.values[unit];
            }
        }
    }

    /// Continues once the gradient of the reset h is known: computes the gradient of the reset gate, and the part that goes to h itself.
    #[inline(always)]
    pub fn gru_reset_gradient(&self, gates: &mut [f32], before: &[f32], d_reset: &[f32], dh: &mut [f32]) {
        let units = self.units;
        for block in self.blocks() {
            let (first, count) = block;
            let reset = self.gate(gates, 1, 0, block);
            for unit in 0..count {
                let at = first + unit;
                gates[units + at] = d_reset[at] * before[at] * reset.slopes[unit];
                dh[at] += d_reset[at] * reset.values[unit];
            }
        }
    }

    /// Computes a step of a simple network; the whole gradient of h goes through the weights.
    #[inline(always)]
    pub fn simple_gradient(&self, gates: &mut [f32], dh: &[f32]) {
        for block in self.blocks() {
            let (first, count) = block;
            let gate = self.gate(gates, 0, 0, block);
            let dh = &dh[first..first + count];
            for ((gate, &dh), &slope) in gates[first..first + count].iter_mut().zip(dh).zip(&gate.slopes) {
                *gate = dh * slope;
            }
        }
    }
}
