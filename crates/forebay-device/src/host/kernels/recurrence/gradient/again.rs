//! Recomputes the results of the forward steps: the gates' arguments, c after every step, and h before it.

use std::ops::Range;

use forebay_base::kernel::RecurrentCell;

use super::super::super::parallel::wide;
use super::super::cell::Row;
use super::super::panels::{COLUMNS, Product};
use super::Backward;

impl Backward<'_> {
    /// Multiplies by some rows of the packed weights to the gates.
    ///
    /// # Safety
    /// As [`Backward::dh`]; the rows must hold a state.
    unsafe fn to_gates(&self, direction: usize, x: &[*const f32], present: &[usize], gates: Range<usize>) {
        let sizes = self.inputs.sizes;
        let (pitch, of_gate) = (sizes.pitch(), sizes.pitch() / COLUMNS);
        let start = |sequence: usize| (self.row_of(direction, sequence) * sizes.gates + gates.start) * pitch;
        // SAFETY: the sequences' own sums.
        unsafe {
            let out: Vec<*mut f32> = present.iter().map(|&sequence| self.sums.at(start(sequence) as isize)).collect();
            let product = Product {
                x,
                out: &out,
                panels: self.to_gates,
                direction,
                first_panel: gates.start * of_gate,
                panel_count: gates.len() * of_gate,
                first_term: 0,
                terms: sizes.units,
                accumulate: false,
            };
            product.run();
        }
    }

    /// Recomputes the arguments of the gates at a place, c after it, and h before it.
    ///
    /// # Safety
    /// As [`Backward::dh`].
    pub(super) unsafe fn gates_again(&self, direction: usize, step: usize, sequences: Range<usize>) {
        let (inputs, sizes) = (&self.inputs, self.inputs.sizes);
        let (place, pitch) = (inputs.place(direction, step), sizes.pitch());
        let (present, absent): (Vec<usize>, Vec<usize>) = sequences.partition(|&sequence| inputs.has(sequence, place));
        let resets_before = inputs.resets_before();
        // SAFETY: the sequences' own places.
        unsafe {
            for sequence in absent {
                self.gates(self.d_gates, direction, sequence, place).fill(0.0);
                self.before(self.before, direction, sequence, place).fill(0.0);
                match self.second {
                    Some(all) if resets_before => self.before(all, direction, sequence, place).fill(0.0),
                    Some(all) => self.gates(all, direction, sequence, place).fill(0.0),
                    None => {}
                }
            }
            for &sequence in &present {
                let before = self.before(self.before, direction, sequence, place);
                match inputs.previous(direction, sequence, place) {
                    None => before.copy_from_slice(inputs.first_h(sequence, direction)),
                    Some(previous) => {
                        let previous = inputs.output_at(previous, sequence, direction);
                        before.copy_from_slice(self.y.slice(previous, sizes.units));
                    }
                }
            }
            let before = |sequence: usize| &*self.before(self.before, direction, sequence, place);
            let x: Vec<*const f32> = present.iter().map(|&sequence| before(sequence).as_ptr()).collect();
            self.to_gates(direction, &x, &present, 0..sizes.gates - usize::from(resets_before));
            let cell = inputs.cell(direction, pitch);
            let row = |sequence: usize| Row {
                first: 0,
                input: inputs.input(place, sequence, direction),
                gates: self.sums.slice_mut(self.row_of(direction, sequence) * sizes.gates * pitch, sizes.gates * pitch),
                kept: Some(self.gates(self.d_gates, direction, sequence, place)),
                before: before(sequence),
                h: &mut self.spare(direction, sequence)[..sizes.units],
            };
            if let Some(all) = self.second.filter(|_| resets_before) {
                let reset = |sequence: usize| self.before(all, direction, sequence, place);
                for &sequence in &present {
                    let mut row = row(sequence);
                    wide(
                        #[inline(always)]
                        || {
                            cell.gru_gates(&mut row, sizes.units);
                            cell.gru_reset(&row, reset(sequence));
                        },
                    );
                }
                let x: Vec<*const f32> = present.iter().map(|&sequence| reset(sequence).as_ptr()).collect();
                self.to_gates(direction, &x, &present, 2..3);
            }
            for &sequence in &present {
                let mut row = row(sequence);
                match inputs.recurrence.cell {
                    RecurrentCell::Gru { resets_after: true } => {
                        let added = self.second.map(|all| self.gates(all, direction, sequence, place));
                        wide(
                            #[inline(always)]
                            || {
                                cell.gru_gates(&mut row, sizes.units);
                                cell.gru(&mut row, sizes.units, added);
                            },
                        );
                    }
                    RecurrentCell::Gru { resets_after: false } => wide(
                        #[inline(always)]
                        || cell.gru(&mut row, sizes.units, None),
                    ),
                    RecurrentCell::Lstm { .. } => {
                        let c = self.state(direction, sequence, place);
                        c.copy_from_slice(self.c_before(direction, sequence, place));
                        wide(
                            #[inline(always)]
                            || cell.lstm(&mut row, c),
                        );
                    }
                    RecurrentCell::Simple => wide(
                        #[inline(always)]
                        || cell.simple(&mut row, sizes.units),
                    ),
                }
            }
        }
    }

    /// c before the step at a place.
    ///
    /// # Safety
    /// As [`Backward::dh`], and that step must have been recomputed.
    pub(super) unsafe fn c_before(&self, direction: usize, sequence: usize, place: usize) -> &[f32] {
        match self.inputs.previous(direction, sequence, place) {
            None => self.inputs.first_c(sequence, direction),
            // SAFETY: the sequence's own.
            Some(previous) => unsafe { self.state(direction, sequence, previous) },
        }
    }
}
