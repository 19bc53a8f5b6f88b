//! The forward pass of recurrent networks.

use std::ops::Range;

use forebay_base::DataType;
use forebay_base::kernel::{Recurrence, RecurrentCell, state_steps};

use super::super::super::helper_tasks;
use super::super::View;
use super::super::parallel::{Pointer, for_each, threads, wide};
use super::cell::Row;
use super::layout::{Inputs, Sizes};
use super::panels::{COLUMNS, Panels, Product};

/// The number of weights of a direction from which threads share the units of a single sequence: they then spend less time waiting for each
/// other.
const SHARED_WEIGHTS_MIN: usize = 1 << 17;

/// The number of workspace elements: packed weights, and for each sequence the state's contribution to the gates, and a reset state.
pub(super) fn workspace_elements(sizes: Sizes) -> usize {
    sizes.packing().to_gates_elements() + sizes.rows() * (sizes.gates + 1) * sizes.pitch()
}

/// Rounds a state to 256 steps of its range and zero.
fn quantize(state: &mut [f32]) {
    let least = state.iter().copied().fold(0.0, f32::min);
    let largest = state.iter().copied().fold(0.0, f32::max);
    let (scale, zero) = state_steps(least, largest);
    for h in state {
        *h = (((*h / scale).round_ties_even() + zero).clamp(0.0, 255.0) - zero) * scale;
    }
}

/// One launch.
struct Forward<'a> {
    inputs: Inputs<'a>,
    panels: Panels,
    /// By sequence: the state's contribution to the gates.
    sums: Pointer<f32>,
    /// By sequence: its reset state, and its quantized state if that is multiplied.
    reset: Pointer<f32>,
    y: Pointer<f32>,
    /// The running c.
    c: Option<Pointer<f32>>,
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
    // SAFETY: the caller's promises.
    let inputs = unsafe { Inputs::of(recurrence, reads)? };
    let sizes = inputs.sizes;
    let state = sizes.rows() * sizes.units;
    let (_, wanted) = recurrence.cell.counts();
    if writes.len() != wanted {
        return Err(format!("found {} results, expected {wanted}", writes.len()));
    }
    sizes.check(&writes[0], "the output", sizes.steps * state, DataType::Float32)?;
    writes[1..].iter().try_for_each(|write| sizes.check(write, "a last state", state, DataType::Float32))?;
    // SAFETY: the workspace is long enough, and each sequence has separate places there.
    unsafe {
        let panels = sizes.packing().to_gates(inputs.weights, workspace);
        let sums = Pointer::new(workspace.at(sizes.packing().to_gates_elements() as isize));
        let reset = Pointer::new(sums.at((sizes.rows() * sizes.gates * sizes.pitch()) as isize));
        let (y, c) = (Pointer::of(&writes[0]), writes.get(2).map(Pointer::of));
        let forward = Forward { inputs, panels, sums, reset, y, c };
        forward.begin();
        forward.all_steps();
        forward.end(Pointer::of(&writes[1]));
    }
    Ok(())
}

impl Forward<'_> {
    /// Initializes the running c with the first c.
    ///
    /// # Safety
    /// No one else may touch the results (this applies to all functions).
    unsafe fn begin(&self) {
        let Some(c) = self.c else { return };
        for (direction, sequence) in self.sequences() {
            // SAFETY: this is the sequence's own c.
            let c = unsafe { c.slice_mut(self.inputs.state_at(sequence, direction), self.inputs.sizes.units) };
            c.copy_from_slice(self.inputs.first_c(sequence, direction));
        }
    }

    fn sequences(&self) -> impl Iterator<Item = (usize, usize)> {
        let Sizes { directions, batch, .. } = self.inputs.sizes;
        (0..directions).flat_map(move |direction| (0..batch).map(move |sequence| (direction, sequence)))
    }

    /// # Safety
    /// As [`Forward::begin`].
    unsafe fn all_steps(&self) {
        let Sizes { steps, directions, gates, units, .. } = self.inputs.sizes;
        let parts = self.inputs.parts();
        let is_idle = parts.len() < threads() && gates * units * units >= SHARED_WEIGHTS_MIN;
        if !is_idle || self.inputs.resets_before() || self.inputs.recurrence.quantizes_state {
            for_each(parts.len(), |part| {
                let (direction, sequences) = &parts[part];
                for step in 0..steps {
                    // SAFETY: the sequences belong to this task alone.
                    unsafe { self.step(*direction, step, sequences.clone(), 0..units) };
                    helper_tasks::run();
                }
            });
            return;
        }
        let shares = threads().div_ceil(directions);
        let size = units.div_ceil(shares).next_multiple_of(COLUMNS);
        let blocks = units.div_ceil(size);
        for step in 0..steps {
            for_each(parts.len() * blocks, |task| {
                let (direction, sequences) = &parts[task / blocks];
                let first = task % blocks * size;
                // SAFETY: the units belong to this task alone, and the state before is not written in this step.
                unsafe { self.step(*direction, step, sequences.clone(), first..units.min(first + size)) };
            });
        }
    }

    /// The state before a step.
    ///
    /// # Safety
    /// The state must have been written.
    unsafe fn before(&self, direction: usize, sequence: usize, place: usize) -> &[f32] {
        match self.inputs.previous(direction, sequence, place) {
            None => self.inputs.first_h(sequence, direction),
            // SAFETY: written before, and not again.
            Some(previous) => unsafe {
                self.y.slice(self.inputs.output_at(previous, sequence, direction), self.inputs.sizes.units)
            },
        }
    }

    /// Computes one step of some sequences, for some of their units.
    ///
    /// # Safety
    /// The units of these sequences must belong to the task alone, and their state before the step must be complete.
    unsafe fn step(&self, direction: usize, step: usize, sequences: Range<usize>, units: Range<usize>) {
        let (inputs, sizes) = (&self.inputs, self.inputs.sizes);
        let (place, pitch) = (inputs.place(direction, step), sizes.pitch());
        let (present, absent): (Vec<usize>, Vec<usize>) = sequences.partition(|&sequence| inputs.has(sequence, place));
        // SAFETY: the sequences' own places in y, in the workspace and in c.
        unsafe {
            for sequence in absent {
                let start = inputs.output_at(place, sequence, direction) + units.start;
                self.y.slice_mut(start, units.len()).fill(0.0);
            }
            let row_of = |sequence: usize| direction * sizes.batch + sequence;
            // When tasks share a sequence's units, the sums of each task are contiguous.
            let width = units.len().next_multiple_of(COLUMNS);
            let of_gates = |sequence: usize| (row_of(sequence) * pitch + units.start) * sizes.gates;
            let before: Vec<&[f32]> = present.iter().map(|&sequence| self.before(direction, sequence, place)).collect();
            let quantizes = inputs.recurrence.quantizes_state;
            let resets = |index: usize| self.reset.slice_mut(row_of(present[index]) * pitch, sizes.units);
            let multiplied = |(index, h): (usize, &&[f32])| {
                if !quantizes {
                    return h.as_ptr();
                }
                let own = resets(index);
                own.copy_from_slice(h);
                quantize(own);
                own.as_ptr()
            };
            let x: Vec<*const f32> = before.iter().enumerate().map(multiplied).collect();
            let product = |x: &[*const f32], gate: usize| {
                let (of_gate, first) = (pitch / COLUMNS, units.start / COLUMNS);
                let (panel_count, first_panel) = (width / COLUMNS, gate * of_gate + first);
                let out = present.iter().map(|&sequence| self.sums.at((of_gates(sequence) + gate * width) as isize));
                let out: Vec<*mut f32> = out.collect();
                let product = Product {
                    x,
                    out: &out,
                    panels: self.panels,
                    direction,
                    first_panel,
                    panel_count,
                    first_term: 0,
                    terms: sizes.units,
                    accumulate: false,
                };
                product.run();
            };
            let resets_before = inputs.resets_before();
            (0..sizes.gates - usize::from(resets_before)).for_each(|gate| product(&x, gate));
            let cell = inputs.cell(direction, width);
            let row = |index: usize| {
                let sequence = present[index];
                let start = inputs.output_at(place, sequence, direction) + units.start;
                Row {
                    first: units.start,
                    input: inputs.input(place, sequence, direction),
                    gates: self.sums.slice_mut(of_gates(sequence), sizes.gates * width),
                    kept: None,
                    before: before[index],
                    h: self.y.slice_mut(start, units.len()),
                }
            };
            if resets_before {
                for index in 0..present.len() {
                    let mut row = row(index);
                    wide(
                        #[inline(always)]
                        || {
                            cell.gru_gates(&mut row, units.len());
                            cell.gru_reset(&row, resets(index));
                        },
                    );
                    if quantizes {
                        quantize(resets(index));
                    }
                }
                let x: Vec<*const f32> = (0..present.len()).map(|index| resets(index).as_ptr()).collect();
                product(&x, 2);
            }
            for (index, &sequence) in present.iter().enumerate() {
                let mut row = row(index);
                match (inputs.recurrence.cell, self.c) {
                    (RecurrentCell::Gru { resets_after: true }, _) => wide(
                        #[inline(always)]
                        || {
                            cell.gru_gates(&mut row, units.len());
                            cell.gru(&mut row, units.len(), None);
                        },
                    ),
                    (RecurrentCell::Gru { resets_after: false }, _) => wide(
                        #[inline(always)]
                        || cell.gru(&mut row, units.len(), None),
                    ),
                    (RecurrentCell::Lstm { .. }, Some(c)) => {
                        let c = c.slice_mut(inputs.state_at(sequence, direction) + units.start, units.len());
                        wide(
                            #[inline(always)]
                            || cell.lstm(&mut row, c),
                        );
                    }
                    _ => wide(
                        #[inline(always)]
                        || cell.simple(&mut row, units.len()),
                    ),
                }
            }
        }
    }

    /// Writes the last h of every sequence.
    ///
    /// # Safety
    /// As [`Forward::begin`], after all steps.
    unsafe fn end(&self, last_h: Pointer<f32>) {
        let (inputs, units) = (&self.inputs, self.inputs.sizes.units);
        for (direction, sequence) in self.sequences() {
            // SAFETY: this is the sequence's own last state, and y is complete.
            unsafe {
                let last = match inputs.last(direction, sequence) {
                    None => inputs.first_h(sequence, direction),
                    Some(place) => self.y.slice(inputs.output_at(place, sequence, direction), units),
                };
                last_h.slice_mut(inputs.state_at(sequence, direction), units).copy_from_slice(last);
            }
        }
    }
}
