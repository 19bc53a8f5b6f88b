//! The forward pass of one step for one sequence and some of its units.

use forebay_base::kernel::{RecurrentCell, RecurrentDirection};

use super::activation::apply;

/// The values that are the same at every step of a direction.
#[derive(Clone, Copy)]
pub(super) struct Cell<'a> {
    /// What a step computes.
    pub cell: RecurrentCell,
    /// Its functions.
    pub direction: &'a RecurrentDirection,
    /// The limit of the arguments of the gates' functions.
    pub clip: Option<f32>,
    /// Units of the state.
    pub units: usize,
    /// Elements from gate to gate in the state's contribution to the units that are computed.
    pub pitch: usize,
    /// Added to the state's contribution: \[gates, units].
    pub bias: &'a [f32],
    /// The weights from c to the input, output and forget gates: \[3, units]; empty if there is no c.
    pub peepholes: &'a [f32],
}

/// One sequence at one step.
pub(super) struct Row<'a> {
    /// The first of the units that are computed.
    pub first: usize,
    /// The element's contribution to the gates: \[gates, units].
    pub input: &'a [f32],
    /// The state's contribution to these units, later their gates: \[gates, pitch].
    pub gates: &'a mut [f32],
    /// Receives the gates' arguments if they are wanted: \[gates, units].
    pub kept: Option<&'a mut [f32]>,
    /// h before the step.
    pub before: &'a [f32],
    /// h after the step, for these units.
    pub h: &'a mut [f32],
}

impl Cell<'_> {
    /// The arguments of a gate: the contributions of the element, the state, the bias and the peepholes.
    #[inline(always)]
    fn sum<'r>(&self, row: &'r mut Row, gate: usize, count: usize, peephole: Option<(usize, &[f32])>) -> &'r mut [f32] {
        let (own, of_all) = (gate * self.pitch, gate * self.units + row.first);
        let sums = &mut row.gates[own..own + count];
        let (input, bias) = (&row.input[of_all..of_all + count], &self.bias[of_all..of_all + count]);
        for ((sum, &input), &bias) in sums.iter_mut().zip(input).zip(bias) {
            *sum += input + bias;
        }
        if let Some((peephole, c)) = peephole {
            let first = peephole * self.units + row.first;
            let weights = &self.peepholes[first..first + count];
            for ((sum, &weight), &c) in sums.iter_mut().zip(weights).zip(c) {
                *sum += weight * c;
            }
        }
        if let Some(kept) = &mut row.kept {
            kept[of_all..of_all + count].copy_from_slice(sums);
        }
        sums
    }

    /// Computes a step of an LSTM: `c` holds c before the step, and then c after it.
    #[inline(always)]
    pub fn lstm(&self, row: &mut Row, c: &mut [f32]) {
        let (count, [gate, candidate, state]) = (c.len(), self.direction.activations);
        let at = |gate: usize| gate * self.pitch..gate * self.pitch + count;
        apply(gate, self.clip, self.sum(row, 0, count, Some((0, c))));
        let couples = matches!(self.cell, RecurrentCell::Lstm { couples_forget: true });
        apply(gate, self.clip, self.sum(row, 2, count, Some((2, c))));
        if couples {
            let (input, forget) = row.gates.split_at_mut(2 * self.pitch);
            for (forget, &input) in forget[at(0)].iter_mut().zip(&input[at(0)]) {
                *forget = 1.0 - input;
            }
        }
        apply(candidate, self.clip, self.sum(row, 3, count, None));
        let gates = &*row.gates;
        let (input, forget, cell) = (&gates[at(0)], &gates[at(2)], &gates[at(3)]);
        for (((c, &input), &forget), &cell) in c.iter_mut().zip(input).zip(forget).zip(cell) {
            *c = forget * *c + input * cell;
        }
        apply(gate, self.clip, self.sum(row, 1, count, Some((1, c))));
        let h = &mut row.h[..count];
        h.copy_from_slice(c);
        apply(state, None, h);
        for (h, &output) in h.iter_mut().zip(&row.gates[at(1)]) {
            *h *= output;
        }
    }

    /// Computes the update and the reset gate of a GRU.
    #[inline(always)]
    pub fn gru_gates(&self, row: &mut Row, count: usize) {
        let gate = self.direction.activations[0];
        apply(gate, self.clip, self.sum(row, 0, count, None));
        apply(gate, self.clip, self.sum(row, 1, count, None));
    }

    /// Computes the reset h, from which the state's part of the candidate is computed.
    #[inline(always)]
    pub fn gru_reset(&self, row: &Row, reset: &mut [f32]) {
        let gates = &row.gates[self.pitch..];
        for ((reset, &gate), &before) in reset.iter_mut().zip(gates).zip(&row.before[row.first..]) {
            *reset = gate * before;
        }
    }

    /// Computes the candidate of a GRU and its step. If the reset gate acts on the state's contribution to the candidate, that contribution
    /// is kept in `added` if it is wanted: \[gates, units].
    #[inline(always)]
    pub fn gru(&self, row: &mut Row, count: usize, added: Option<&mut [f32]>) {
        let of_all = 2 * self.units + row.first;
        if matches!(self.cell, RecurrentCell::Gru { resets_after: true }) {
            let (gates, sums) = row.gates.split_at_mut(2 * self.pitch);
            let (reset, sums) = (&gates[self.pitch..], &mut sums[..count]);
            for (sum, &bias) in sums.iter_mut().zip(&self.bias[of_all..]) {
                *sum += bias;
            }
            if let Some(added) = added {
                added[of_all..of_all + count].copy_from_slice(sums);
            }
            for ((sum, &reset), &input) in sums.iter_mut().zip(reset).zip(&row.input[of_all..]) {
                *sum = reset * *sum + input;
            }
            if let Some(kept) = &mut row.kept {
                kept[of_all..of_all + count].copy_from_slice(sums);
            }
            apply(self.direction.activations[1], self.clip, sums);
        } else {
            apply(self.direction.activations[1], self.clip, self.sum(row, 2, count, None));
        }
        let (update, candidate) = (&row.gates[..], &row.gates[2 * self.pitch..]);
        let before = &row.before[row.first..];
        for (((h, &update), &candidate), &before) in row.h[..count].iter_mut().zip(update).zip(candidate).zip(before) {
            *h = (1.0 - update) * candidate + update * before;
        }
    }

    /// Computes a step of a simple network.
    #[inline(always)]
    pub fn simple(&self, row: &mut Row, count: usize) {
        apply(self.direction.activations[0], self.clip, self.sum(row, 0, count, None));
        row.h[..count].copy_from_slice(&row.gates[..count]);
    }
}
