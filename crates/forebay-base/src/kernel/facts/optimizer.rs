//! Optimizers.

use super::super::quantization::QUANTIZATION_BLOCK;
use super::{
    Axes, ByRows, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, OperandRef, SixteenBit, Work,
};

/// The facts of `Sgd`.
pub(super) fn sgd() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Sgd,
        in_place: &[(0, 0), (1, 2)],
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
        axes: Axes::Update,
    }
}

/// The facts of `Adam`.
pub(super) fn adam() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Adam,
        in_place: &[(0, 0), (1, 2), (2, 3)],
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
        axes: Axes::Update,
    }
}

/// The facts of `Adam8Bit`.
pub(super) fn adam_8_bit() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Adam8Bit,
        in_place: &[(0, 0), (1, 2), (2, 3), (3, 4), (4, 5)],
        indices: None,
        types: ElementTypes::Float32,
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
        axes: Axes::BlockUpdate { block: QUANTIZATION_BLOCK, reads: &[3, 5], writes: &[2, 4] },
    }
}
