//! Attention.

use super::{
    AttentionOperands, Axes, ByRows, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, OperandRef,
    SixteenBit, Work,
};
use OperandRef::{Read, Write};

/// The facts of `Attention`.
pub(super) fn attention(is_causal: bool) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Attention,
        in_place: &[],
        indices: None,
        types: ElementTypes::Float32,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Attention { queries: Read(0), keys: Read(1), products: 2 },
        counted_along: Read(1),
        continues: None,
        cut_choice: CutChoice::Nested,
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
            is_causal,
        }),
    }
}

/// The facts of `AttentionGradient`.
pub(super) fn gradient(is_causal: bool) -> KernelFacts<'static> {
    let operands = AttentionOperands {
        queries: &[Read(1), Write(0)],
        keys: &[Read(2), Write(1)],
        values: &[Read(3), Write(2)],
        ..read_by_gradients(is_causal)
    };
    of_gradient(KernelKind::AttentionGradient, 5, operands)
}

/// The facts of `AttentionQueryGradient`.
pub(super) fn query_gradient(is_causal: bool) -> KernelFacts<'static> {
    let operands = AttentionOperands { queries: &[Read(1), Write(0)], ..read_by_gradients(is_causal) };
    of_gradient(KernelKind::AttentionQueryGradient, 3, operands)
}

/// The facts of `AttentionKeyGradient`.
pub(super) fn key_gradient(is_causal: bool) -> KernelFacts<'static> {
    let operands =
        AttentionOperands { keys: &[Read(2), Write(0)], values: &[Read(3), Write(1)], ..read_by_gradients(is_causal) };
    of_gradient(KernelKind::AttentionKeyGradient, 4, operands)
}

/// The operands that every gradient reads.
fn read_by_gradients(is_causal: bool) -> AttentionOperands {
    AttentionOperands {
        queries: &[Read(1)],
        results: &[Read(0), Read(4)],
        logarithms: Read(5),
        keys: &[Read(2)],
        values: &[Read(3)],
        mask: Read(6),
        is_causal,
    }
}

fn of_gradient(kind: KernelKind, products: u32, operands: AttentionOperands) -> KernelFacts<'static> {
    KernelFacts {
        kind,
        in_place: &[],
        indices: None,
        types: ElementTypes::Float32,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Attention { queries: Read(1), keys: Read(2), products },
        counted_along: Read(2),
        continues: None,
        cut_choice: CutChoice::Nested,
        by_rows: ByRows::NONE,
        leading_axes: None,
        broadcast_from: None,
        // A part of the keys reads only the corresponding columns of the mask.
        reads_entangled: 4,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::None,
        axes: Axes::Attention(operands),
    }
}
