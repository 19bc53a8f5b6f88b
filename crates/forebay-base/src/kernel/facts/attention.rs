//! Attention.

use super::{
    AttentionOperands, Axes, ByRows, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, OperandRef, Work,
};
use OperandRef::{Read, Write};

/// Of `Attention`.
pub(super) fn attention() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Attention,
        in_place: &[],
        indices: None,
        types: ElementTypes::Float32,
        work: Work::Attention { queries: Read(0), keys: Read(1), products: 2 },
        counted_along: Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::NONE,
        leading_axes: None,
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::of(&[0, 1, 2, 3], &[0, 1]),
        axes: Axes::Attention(AttentionOperands {
            queries: &[Read(0)],
            results: &[Write(0)],
            logarithms: Write(1),
            keys: &[Read(1)],
            values: &[Read(2)],
            mask: Read(3),
        }),
    }
}

/// Of `AttentionGradient`.
pub(super) fn gradient() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::AttentionGradient,
        in_place: &[],
        indices: None,
        types: ElementTypes::Float32,
        work: Work::Attention { queries: Read(1), keys: Read(2), products: 5 },
        counted_along: Write(0),
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
        axes: Axes::Attention(AttentionOperands {
            queries: &[Read(1), Write(0)],
            results: &[Read(0), Read(4)],
            logarithms: Read(5),
            keys: &[Read(2), Write(1)],
            values: &[Read(3), Write(2)],
            mask: Read(6),
        }),
    }
}
