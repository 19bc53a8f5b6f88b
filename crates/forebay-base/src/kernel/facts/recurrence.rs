//! Recurrent networks.

use super::super::RecurrentCell;
use super::{
    Axes, ByRows, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, OperandRef, SixteenBit, Work,
};

/// The facts of `Recurrent`. Steps follow each other, and at every step the sequences are adjacent in memory, so it is not cut.
pub(super) fn recurrent(cell: RecurrentCell) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Recurrent,
        in_place: &[],
        indices: None,
        types: ElementTypes::Float32,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Recurrence { gates: OperandRef::Read(0), weights: OperandRef::Read(1), times: 1 },
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::NONE,
        leading_axes: None,
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: match cell.has_cell_state() {
            true => GradientReads::of(&[0, 1, 2, 3, 4, 5, 6], &[0]),
            false => GradientReads::of(&[0, 1, 2, 3, 4], &[0]),
        },
        axes: Axes::Whole,
    }
}

/// The facts of `RecurrentGradient`, which recomputes the gates and multiplies by the weights backwards from each step.
pub(super) fn recurrent_gradient(cell: RecurrentCell) -> KernelFacts<'static> {
    let (first, _) = cell.gradient_counts();
    KernelFacts {
        kind: KernelKind::RecurrentGradient,
        in_place: &[],
        indices: None,
        types: ElementTypes::Float32,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Recurrence { gates: OperandRef::Read(first), weights: OperandRef::Read(first + 1), times: 2 },
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::NONE,
        leading_axes: None,
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::None,
        axes: Axes::Whole,
    }
}
