//! Operands of a recurrence: their sizes, the places of a sequence's rows in them, and its order of steps.

use std::ops::Range;

use forebay_base::kernel::{Recurrence, RecurrentCell};
use forebay_base::{DataType, TensorDesc};

use super::super::View;
use super::super::parallel::{Pointer, require_packed, threads};
use super::cell::Cell;
use super::panels::{COLUMNS, Packing};

/// Sizes of a recurrence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Elements of the longest sequence.
    pub steps: usize,
    /// Sequences.
    pub batch: usize,
    /// Directions.
    pub directions: usize,
    /// Gates.
    pub gates: usize,
    /// Units of a state.
    pub units: usize,
}

impl Sizes {
    /// Returns the sizes according to gates and weights, or `None` if these do not fit each other.
    pub fn of(recurrence: &Recurrence, gates: &TensorDesc, weights: &TensorDesc) -> Option<Sizes> {
        let size = |size: u64| usize::try_from(size).ok();
        let (&[steps, batch, directions, columns], &[own, rows, units]) = (gates.sizes(), weights.sizes()) else {
            return None;
        };
        let count = recurrence.cell.gates();
        let fits = own == directions && rows == columns && columns == count * units;
        let directions = size(directions).filter(|&all| fits && all == recurrence.directions.len())?;
        let (steps, batch, units) = (size(steps)?, size(batch)?, size(units)?);
        Some(Sizes { steps, batch, directions, gates: count as usize, units })
    }

    /// How weights are packed.
    pub fn packing(self) -> Packing {
        Packing { directions: self.directions, gates: self.gates, units: self.units }
    }

    /// Elements of a state in whole panels.
    pub fn pitch(self) -> usize {
        self.packing().unit_panels() * COLUMNS
    }

    /// The number of sequences of all directions.
    pub fn rows(self) -> usize {
        self.directions * self.batch
    }

    /// Checks an operand's number of elements and type.
    ///
    /// # Errors
    /// Returns an error if they differ.
    pub fn check(self, view: &View, what: &str, count: usize, data_type: DataType) -> Result<(), String> {
        require_packed(&[*view])?;
        if view.count() != count || view.desc.data_type() != data_type {
            return Err(format!("{what} must be {count} elements of {data_type}, not {}", view.desc));
        }
        Ok(())
    }
}

/// The operands that a recurrence reads.
pub(super) struct Inputs<'a> {
    /// The parameters.
    pub recurrence: &'a Recurrence,
    /// The sizes.
    pub sizes: Sizes,
    gates: Pointer<f32>,
    /// The recurrent weights.
    pub weights: Pointer<f32>,
    bias: Pointer<f32>,
    lengths: Vec<usize>,
    first_h: Pointer<f32>,
    first_c: Option<Pointer<f32>>,
    peepholes: Option<Pointer<f32>>,
}

impl<'a> Inputs<'a> {
    /// The operands of `Recurrent`.
    ///
    /// # Errors
    /// Returns an error if they do not fit.
    ///
    /// # Safety
    /// As [`super::super::run`].
    pub unsafe fn of(recurrence: &'a Recurrence, reads: &[View]) -> Result<Inputs<'a>, String> {
        let cell = recurrence.cell;
        let (wanted, _) = cell.counts();
        if reads.len() != wanted {
            return Err(format!("found {} operands, expected {wanted}", reads.len()));
        }
        let sizes = Sizes::of(recurrence, reads[0].desc, reads[1].desc);
        let sizes =
            sizes.ok_or_else(|| format!("gates {} and weights {} do not match", reads[0].desc, reads[1].desc))?;
        let (columns, state) = (sizes.gates * sizes.units, sizes.rows() * sizes.units);
        sizes.check(
            &reads[0],
            "the input part of the gates",
            sizes.steps * sizes.rows() * columns,
            DataType::Float32,
        )?;
        sizes.check(&reads[1], "the weights", sizes.directions * columns * sizes.units, DataType::Float32)?;
        sizes.check(&reads[2], "the bias", sizes.directions * columns, DataType::Float32)?;
        sizes.check(&reads[3], "the lengths", sizes.batch, DataType::Int32)?;
        sizes.check(&reads[4], "the initial h", state, DataType::Float32)?;
        if cell.has_cell_state() {
            sizes.check(&reads[5], "the initial c", state, DataType::Float32)?;
            sizes.check(&reads[6], "the peepholes", sizes.directions * 3 * sizes.units, DataType::Float32)?;
        }
        // SAFETY: there are as many elements as sequences, and no one writes them.
        let lengths = unsafe { Pointer::<i32>::of(&reads[3]).slice(0, sizes.batch) };
        let lengths = lengths.iter().map(|&length| usize::try_from(length).unwrap_or(0).min(sizes.steps)).collect();
        Ok(Inputs {
            recurrence,
            sizes,
            gates: Pointer::of(&reads[0]),
            weights: Pointer::of(&reads[1]),
            bias: Pointer::of(&reads[2]),
            lengths,
            first_h: Pointer::of(&reads[4]),
            first_c: reads.get(5).map(Pointer::of),
            peepholes: reads.get(6).map(Pointer::of),
        })
    }

    /// The values that a direction's steps have in common, with this many elements from gate to gate.
    pub fn cell(&self, direction: usize, pitch: usize) -> Cell<'_> {
        let Sizes { gates, units, .. } = self.sizes;
        // SAFETY: this is the direction's own part of each, and no one writes it.
        let (bias, peepholes) = unsafe {
            let peepholes = self.peepholes.map(|all| all.slice(direction * 3 * units, 3 * units));
            (self.bias.slice(direction * gates * units, gates * units), peepholes.unwrap_or_default())
        };
        Cell {
            cell: self.recurrence.cell,
            direction: &self.recurrence.directions[direction],
            clip: self.recurrence.clip,
            units,
            pitch,
            bias,
            peepholes,
        }
    }

    /// Whether the reset gate acts before the candidate's product.
    pub fn resets_before(&self) -> bool {
        self.recurrence.cell == RecurrentCell::Gru { resets_after: false }
    }

    /// The place in the sequence of a direction's step.
    pub fn place(&self, direction: usize, step: usize) -> usize {
        if self.recurrence.directions[direction].reverse { self.sizes.steps - 1 - step } else { step }
    }

    /// Whether a sequence has an element at a place.
    pub fn has(&self, sequence: usize, place: usize) -> bool {
        place < self.lengths[sequence]
    }

    /// The place of the state from which a step continues, or `None` if that is the first state.
    pub fn previous(&self, direction: usize, sequence: usize, place: usize) -> Option<usize> {
        if self.recurrence.directions[direction].reverse {
            Some(place + 1).filter(|&next| next < self.lengths[sequence])
        } else {
            place.checked_sub(1)
        }
    }

    /// The last place that is visited, or `None` for an empty sequence.
    pub fn last(&self, direction: usize, sequence: usize) -> Option<usize> {
        let length = self.lengths[sequence];
        if self.recurrence.directions[direction].reverse { (length > 0).then_some(0) } else { length.checked_sub(1) }
    }

    /// Where a sequence's gates at a place begin, in \[steps, batch, directions, gates units].
    pub fn gates_at(&self, place: usize, sequence: usize, direction: usize) -> usize {
        let Sizes { batch, directions, gates, units, .. } = self.sizes;
        ((place * batch + sequence) * directions + direction) * gates * units
    }

    /// Where a sequence's outputs at a place begin, in \[steps, directions, batch, units].
    pub fn output_at(&self, place: usize, sequence: usize, direction: usize) -> usize {
        let Sizes { batch, directions, units, .. } = self.sizes;
        ((place * directions + direction) * batch + sequence) * units
    }

    /// Where a sequence's state begins, in \[directions, batch, units].
    pub fn state_at(&self, sequence: usize, direction: usize) -> usize {
        (direction * self.sizes.batch + sequence) * self.sizes.units
    }

    /// The contribution of a sequence's element at a place to the gates.
    pub fn input(&self, place: usize, sequence: usize, direction: usize) -> &[f32] {
        let columns = self.sizes.gates * self.sizes.units;
        // SAFETY: in bounds, and no one writes it.
        unsafe { self.gates.slice(self.gates_at(place, sequence, direction), columns) }
    }

    /// A sequence's first h.
    pub fn first_h(&self, sequence: usize, direction: usize) -> &[f32] {
        // SAFETY: in bounds, and no one writes it.
        unsafe { self.first_h.slice(self.state_at(sequence, direction), self.sizes.units) }
    }

    /// A sequence's first c; empty if cells have none.
    pub fn first_c(&self, sequence: usize, direction: usize) -> &[f32] {
        // SAFETY: in bounds, and no one writes it.
        let first_c =
            self.first_c.map(|all| unsafe { all.slice(self.state_at(sequence, direction), self.sizes.units) });
        first_c.unwrap_or_default()
    }

    /// Divides sequences into parts for threads, each with a direction and a range of sequences. Bits do not depend on the parts.
    pub fn parts(&self) -> Vec<(usize, Range<usize>)> {
        let Sizes { batch, directions, .. } = self.sizes;
        let parts = threads().div_ceil(directions).clamp(1, batch.max(1));
        let size = batch.div_ceil(parts).max(1);
        let of = |direction| (0..batch).step_by(size).map(move |first| (direction, first..batch.min(first + size)));
        (0..directions).flat_map(of).collect()
    }
}
