//! Losses and their gradients.

use super::super::Summing;
use super::{
    Axes, ByRows, CutAxes, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, LeadingAxes, OperandRef,
    SixteenBit, Work,
};

/// The facts of `SoftmaxCrossEntropy`.
pub(super) fn cross_entropy(axis: usize) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::SoftmaxCrossEntropy,
        in_place: &[],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Read(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: if axis == 1 { ByRows::of(&[0], &[]) } else { ByRows::NONE },
        leading_axes: None,
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::of(&[0, 1], &[]),
        axes: Axes::CrossEntropy { axis },
    }
}

/// The facts of `SoftmaxCrossEntropyGradient`.
pub(super) fn cross_entropy_gradient(axis: usize, ignore_index: Option<i64>) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::SoftmaxCrossEntropyGradient,
        in_place: &[(0, 1)],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: if axis == 1 { ByRows::of(&[1], &[0]) } else { ByRows::NONE },
        leading_axes: None,
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: Some(Summing::CrossEntropy { axis, ignore_index }),
        gradient: GradientReads::None,
        axes: Axes::CrossEntropyGradient { axis },
    }
}

/// The facts of `MeanSquaredError`.
pub(super) fn squared_error() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::MeanSquaredError,
        in_place: &[],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Read(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::NONE,
        leading_axes: Some(LeadingAxes::of(&[0, 1], 0)),
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::of(&[0, 1], &[]),
        axes: Axes::SquaredError,
    }
}

/// The facts of `MeanSquaredErrorGradient`.
pub(super) fn squared_error_gradient() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::MeanSquaredErrorGradient,
        in_place: &[(0, 1), (0, 2)],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::NONE,
        leading_axes: Some(LeadingAxes::of(&[1, 2], 1)),
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: Some(Summing::SquaredError),
        gradient: GradientReads::None,
        axes: Axes::Elements { reads: Some(&[1, 2]), cut: CutAxes::All },
    }
}
