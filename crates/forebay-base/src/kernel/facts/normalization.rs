//! Normalizations.

use super::{
    Axes, ByRows, CutAxes, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, LeadingAxes, OperandRef,
    SixteenBit, Work,
};

/// The facts of `BatchNormalization`.
pub(super) fn batch() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::BatchNormalization,
        in_place: &[(0, 0)],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::of(&[0], &[0]),
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::of(&[0], &[0]),
        leading_axes: None,
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::of(&[0, 1, 3, 4], &[]),
        axes: Axes::Channels { images: &[0] },
    }
}

/// The facts of `BatchNormalizationTraining`.
pub(super) fn batch_training() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::BatchNormalizationTraining,
        in_place: &[(0, 0)],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::of(&[0], &[0]),
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::of(&[0], &[0]),
        leading_axes: None,
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::of(&[0, 1, 2], &[1, 2]),
        axes: Axes::ChannelStatistics,
    }
}

/// The facts of `BatchNormalizationGradient`.
pub(super) fn batch_gradient() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::BatchNormalizationGradient,
        in_place: &[(0, 0), (0, 1)],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::of(&[0, 1], &[0]),
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::of(&[0, 1], &[0]),
        leading_axes: None,
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::None,
        axes: Axes::ChannelGradient,
    }
}

/// The facts of `RunningStatistics`.
pub(super) fn running_statistics() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::RunningStatistics,
        in_place: &[(0, 0)],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::NONE,
        leading_axes: None,
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: true,
        gradient_of_loss: None,
        gradient: GradientReads::None,
        axes: Axes::Elements { reads: None, cut: CutAxes::None },
    }
}

/// The facts of `LayerNormalization`.
pub(super) fn layer(axis: usize) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::LayerNormalization,
        in_place: &[(0, 0)],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::NONE,
        leading_axes: (axis > 1).then_some(LeadingAxes::of(&[0], 1)),
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::of(&[0, 1], &[1, 2]),
        axes: Axes::LayerNormalization { axis },
    }
}

/// The facts of `LayerNormalizationGradient`.
pub(super) fn layer_gradient(axis: usize) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::LayerNormalizationGradient,
        in_place: &[(0, 0), (0, 1)],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::NONE,
        leading_axes: (axis > 1).then_some(LeadingAxes::of(&[0, 1], 1)),
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::None,
        axes: Axes::LayerNormalizationGradient { axis },
    }
}

/// The facts of `LocalResponseNormalization`.
pub(super) fn local_response() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::LocalResponseNormalization,
        in_place: &[],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
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
        gradient: GradientReads::of(&[0], &[]),
        axes: Axes::Elements { reads: None, cut: CutAxes::First },
    }
}

/// The facts of `LocalResponseNormalizationGradient`.
pub(super) fn local_response_gradient() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::LocalResponseNormalizationGradient,
        in_place: &[],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
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
        axes: Axes::Elements { reads: None, cut: CutAxes::First },
    }
}
