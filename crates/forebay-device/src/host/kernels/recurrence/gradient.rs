//! The backward pass of recurrent networks: the gates are recomputed from the outputs, then gradients go from the last step to the first.

mod again;

use std::ops::Range;

use forebay_base::DataType;
use forebay_base::kernel::{Recurrence, RecurrentCell};

use super::super::super::helper_tasks;
use super::super::View;
use super::super::parallel::{Pointer, for_each, wide};
use super::layout::{Inputs, Sizes};
use super::panels::{COLUMNS, Panels, Product};

/// The number of workspace elements: packed weights in both directions; for each sequence, the state's contribution to the gates and the
/// gradients of h and of the reset h; and c after every step.
pub(super) fn workspace_elements(cell: RecurrentCell, sizes: Sizes) -> usize {
    let packed = sizes.packing().to_gates_elements() + sizes.packing().to_state_elements();
    let states = if cell.has_cell_state() { sizes.steps * sizes.rows() * sizes.units } else { 0 };
    packed + sizes.rows() * (sizes.gates + 2) * sizes.pitch() + states
}

/// One launch.
struct Backward<'a> {
    inputs: Inputs<'a>,
    to_gates: Panels,
    to_state: Panels,
    /// By sequence: the state's contribution to the gates.
    sums: Pointer<f32>,
    /// By sequence: the gradient of h, in whole panels.
    dh: Pointer<f32>,
    /// By sequence: the reset h or its gradient, in whole panels; also anything else that has no other place.
    spare: Pointer<f32>,
    /// c after every step, laid out like the outputs.
    states: Pointer<f32>,
    dy: Pointer<f32>,
    d_last_h: Pointer<f32>,
    y: Pointer<f32>,
    d_gates: Pointer<f32>,
    before: Pointer<f32>,
    d_first_h: Pointer<f32>,
    /// The second gradient of a GRU: with respect to the state's contribution, or the reset h before each step.
    second: Option<Pointer<f32>>,
    c: Option<CellState>,
}

/// The additional operands of an LSTM.
#[derive(Clone, Copy)]
struct CellState {
    d_last: Pointer<f32>,
    d_first: Pointer<f32>,
    d_peepholes: Pointer<f32>,
}

/// Runs the kernel.
///
/// # Errors
/// Operands that do not fit.
///
/// # Safety
/// As [`super::super::run`]; the workspace has [`workspace_elements`].
pub(super) unsafe fn run(
    recurrence: &Recurrence,
    reads: &[View],
    writes: &[View],
    workspace: Pointer<f32>,
) -> Result<(), String> {
    let cell = recurrence.cell;
    let is_lstm = cell.has_cell_state();
    let ((first, wanted), (inner, _)) = (cell.gradient_counts(), cell.counts());
    if reads.len() != first + inner + 1 || writes.len() != wanted {
        return Err(format!(
            "found {} operands and {} results, expected {} and {wanted}",
            reads.len(),
            writes.len(),
            first + inner + 1
        ));
    }
    // SAFETY: the caller's promises.
    let inputs = unsafe { Inputs::of(recurrence, &reads[first..first + inner])? };
    let sizes = inputs.sizes;
    let (state, all) = (sizes.rows() * sizes.units, sizes.steps * sizes.rows() * sizes.units);
    let check = |view: &View, what: &str, count: usize| sizes.check(view, what, count, DataType::Float32);
    check(&reads[0], "the output's gradient", all)?;
    reads[1..first].iter().try_for_each(|read| check(read, "a last state's gradient", state))?;
    check(&reads[first + inner], "the output", all)?;
    check(&writes[0], "the gates' gradient", all * sizes.gates)?;
    check(&writes[1], "h before each step", all)?;
    check(&writes[2], "the initial h's gradient", state)?;
    let second = match cell {
        RecurrentCell::Lstm { .. } => {
            check(&writes[3], "the initial c's gradient", state)?;
            check(&writes[4], "the peepholes' gradient", 3 * state)?;
            None
        }
        RecurrentCell::Gru { resets_after } => {
            check(&writes[3], "the second gradient", if resets_after { all * sizes.gates } else { all })?;
            Some(Pointer::of(&writes[3]))
        }
        RecurrentCell::Simple => None,
    };
    let c = is_lstm.then(|| CellState {
        d_last: Pointer::of(&reads[2]),
        d_first: Pointer::of(&writes[3]),
        d_peepholes: Pointer::of(&writes[4]),
    });
    let (packing, row) = (sizes.packing(), sizes.rows() * sizes.pitch());
    let mut taken = 0;
    let mut take = |elements: usize| {
        // SAFETY: the workspace has room for all of these, one after the other.
        let place = Pointer::new(unsafe { workspace.at(taken as isize) });
        taken += elements;
        place
    };
    // SAFETY: the caller's promises; every sequence has separate places.
    unsafe {
        let to_gates = packing.to_gates(inputs.weights, take(packing.to_gates_elements()));
        let to_state = packing.to_state(inputs.weights, take(packing.to_state_elements()));
        let backward = Backward {
            to_gates,
            to_state,
            sums: take(sizes.gates * row),
            dh: take(row),
            spare: take(row),
            states: take(0),
            dy: Pointer::of(&reads[0]),
            d_last_h: Pointer::of(&reads[1]),
            y: Pointer::of(&reads[first + inner]),
            d_gates: Pointer::of(&writes[0]),
            before: Pointer::of(&writes[1]),
            d_first_h: Pointer::of(&writes[2]),
            second,
            c,
            inputs,
        };
        let parts = backward.inputs.parts();
        for_each(parts.len(), |part| {
            let (direction, sequences) = &parts[part];
            backward.begin(*direction, sequences.clone());
            for step in 0..sizes.steps {
                backward.gates_again(*direction, step, sequences.clone());
                helper_tasks::run();
            }
            for step in (0..sizes.steps).rev() {
                backward.step(*direction, step, sequences.clone());
                helper_tasks::run();
            }
            backward.end(*direction, sequences.clone());
        });
    }
    Ok(())
}

impl Backward<'_> {
    fn row_of(&self, direction: usize, sequence: usize) -> usize {
        direction * self.inputs.sizes.batch + sequence
    }

    /// The gradient of a sequence's h.
    ///
    /// # Safety
    /// The sequences must belong to the calling task alone (this applies to all functions).
    #[allow(clippy::mut_from_ref)]
    unsafe fn dh(&self, direction: usize, sequence: usize) -> &mut [f32] {
        let pitch = self.inputs.sizes.pitch();
        // SAFETY: the sequence's own.
        unsafe { self.dh.slice_mut(self.row_of(direction, sequence) * pitch, pitch) }
    }

    /// # Safety
    /// As [`Backward::dh`].
    #[allow(clippy::mut_from_ref)]
    unsafe fn spare(&self, direction: usize, sequence: usize) -> &mut [f32] {
        let pitch = self.inputs.sizes.pitch();
        // SAFETY: the sequence's own.
        unsafe { self.spare.slice_mut(self.row_of(direction, sequence) * pitch, pitch) }
    }

    /// A sequence's h before a step, in \[directions, steps, batch, units].
    ///
    /// # Safety
    /// As [`Backward::dh`].
    #[allow(clippy::mut_from_ref)]
    unsafe fn before(&self, all: Pointer<f32>, direction: usize, sequence: usize, place: usize) -> &mut [f32] {
        let Sizes { steps, batch, units, .. } = self.inputs.sizes;
        // SAFETY: the sequence's own.
        unsafe { all.slice_mut(((direction * steps + place) * batch + sequence) * units, units) }
    }

    /// A sequence's gates at a place.
    ///
    /// # Safety
    /// As [`Backward::dh`].
    #[allow(clippy::mut_from_ref)]
    unsafe fn gates(&self, all: Pointer<f32>, direction: usize, sequence: usize, place: usize) -> &mut [f32] {
        let columns = self.inputs.sizes.gates * self.inputs.sizes.units;
        // SAFETY: the sequence's own.
        unsafe { all.slice_mut(self.inputs.gates_at(place, sequence, direction), columns) }
    }

    /// A sequence's c after the step at a place.
    ///
    /// # Safety
    /// As [`Backward::dh`].
    #[allow(clippy::mut_from_ref)]
    unsafe fn state(&self, direction: usize, sequence: usize, place: usize) -> &mut [f32] {
        let units = self.inputs.sizes.units;
        // SAFETY: the sequence's own.
        unsafe { self.states.slice_mut(self.inputs.output_at(place, sequence, direction), units) }
    }

    /// Starts with the gradients of the last states.
    ///
    /// # Safety
    /// As [`Backward::dh`].
    unsafe fn begin(&self, direction: usize, sequences: Range<usize>) {
        let units = self.inputs.sizes.units;
        for sequence in sequences {
            let at = self.inputs.state_at(sequence, direction);
            // SAFETY: the sequence's own places.
            unsafe {
                self.dh(direction, sequence)[..units].copy_from_slice(self.d_last_h.slice(at, units));
                if let Some(c) = self.c {
                    c.d_first.slice_mut(at, units).copy_from_slice(c.d_last.slice(at, units));
                    c.d_peepholes.slice_mut(3 * at, 3 * units).fill(0.0);
                }
            }
        }
    }

    /// # Safety
    /// As [`Backward::dh`].
    unsafe fn end(&self, direction: usize, sequences: Range<usize>) {
        let units = self.inputs.sizes.units;
        for sequence in sequences {
            // SAFETY: the sequence's own places.
            unsafe {
                let d_first_h = self.d_first_h.slice_mut(self.inputs.state_at(sequence, direction), units);
                d_first_h.copy_from_slice(&self.dh(direction, sequence)[..units]);
            }
        }
    }

    /// Goes one step back.
    ///
    /// # Safety
    /// As [`Backward::dh`].
    unsafe fn step(&self, direction: usize, step: usize, sequences: Range<usize>) {
        let (inputs, sizes) = (&self.inputs, self.inputs.sizes);
        let (place, units) = (inputs.place(direction, step), sizes.units);
        let present: Vec<usize> = sequences.filter(|&sequence| inputs.has(sequence, place)).collect();
        let cell = inputs.cell(direction, sizes.pitch());
        let resets_before = inputs.resets_before();
        // SAFETY: the sequences' own places.
        unsafe {
            for &sequence in &present {
                let dh = &mut self.dh(direction, sequence)[..units];
                let dy = self.dy.slice(inputs.output_at(place, sequence, direction), units);
                let gates = self.gates(self.d_gates, direction, sequence, place);
                let before = &*self.before(self.before, direction, sequence, place);
                wide(|| dh.iter_mut().zip(dy).for_each(|(dh, &dy)| *dh += dy));
                match (inputs.recurrence.cell, self.c, self.second) {
                    (RecurrentCell::Lstm { .. }, Some(c), _) => {
                        let at = inputs.state_at(sequence, direction);
                        let dc = c.d_first.slice_mut(at, units);
                        let d_peepholes = c.d_peepholes.slice_mut(3 * at, 3 * units);
                        let after = &*self.state(direction, sequence, place);
                        let before = self.c_before(direction, sequence, place);
                        wide(
                            #[inline(always)]
                            || cell.lstm_gradient(gates, (before, after), (dh, dc), d_peepholes),
                        );
                    }
                    (RecurrentCell::Gru { resets_after: true }, _, Some(all)) => {
                        let added = self.gates(all, direction, sequence, place);
                        wide(
                            #[inline(always)]
                            || cell.gru_after_gradient(gates, added, before, dh),
                        );
                    }
                    (RecurrentCell::Gru { resets_after: false }, ..) => {
                        wide(
                            #[inline(always)]
                            || cell.gru_before_gradient(gates, before, dh),
                        );
                    }
                    _ => wide(
                        #[inline(always)]
                        || cell.simple_gradient(gates, dh),
                    ),
                }
            }
            let is_gru = matches!(inputs.recurrence.cell, RecurrentCell::Gru { .. });
            let source = if is_gru && !resets_before { self.second.unwrap_or(self.d_gates) } else { self.d_gates };
            let product = |out: &[*mut f32], gates: Range<usize>, accumulate: bool| {
                let start =
                    |sequence: usize| self.gates(source, direction, sequence, place)[gates.start * units..].as_ptr();
                let x: Vec<*const f32> = present.iter().map(|&sequence| start(sequence)).collect();
                let product = Product {
                    x: &x,
                    out,
                    panels: self.to_state,
                    direction,
                    first_panel: 0,
                    panel_count: sizes.pitch() / COLUMNS,
                    first_term: gates.start * units,
                    terms: gates.len() * units,
                    accumulate,
                };
                product.run();
            };
            let dh = || -> Vec<*mut f32> {
                present.iter().map(|&sequence| self.dh(direction, sequence).as_mut_ptr()).collect()
            };
            if !resets_before {
                return product(&dh(), 0..sizes.gates, is_gru);
            }
            let reset = |sequence: usize| self.spare(direction, sequence);
            let out: Vec<*mut f32> = present.iter().map(|&sequence| reset(sequence).as_mut_ptr()).collect();
            product(&out, 2..3, false);
            for &sequence in &present {
                let gates = self.gates(self.d_gates, direction, sequence, place);
                let before = &*self.before(self.before, direction, sequence, place);
                let dh = &mut self.dh(direction, sequence)[..units];
                wide(
                    #[inline(always)]
                    || cell.gru_reset_gradient(gates, before, reset(sequence), dh),
                );
            }
            product(&dh(), 0..2, true);
        }
    }
}
