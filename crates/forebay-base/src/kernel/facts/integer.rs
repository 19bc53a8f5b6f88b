//! Products and convolutions of integers.

use super::super::Convolution;
use super::{
    Axes, ByRows, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, OperandRef, SixteenBit, Work,
};

/// The facts of `IntegerProduct`.
pub(super) fn product(transpose_b: bool) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::IntegerProduct,
        in_place: &[],
        indices: None,
        types: ElementTypes::Bytes,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Product { transpose_a: false, transpose_b },
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::Least,
        by_rows: ByRows::NONE,
        leading_axes: None,
        broadcast_from: None,
        reads_entangled: usize::MAX,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::Zero,
        axes: Axes::IntegerProduct { transpose_b },
    }
}

/// The facts of `IntegerConvolution`.
pub(super) fn convolution<'a>(convolution: &'a Convolution) -> KernelFacts<'a> {
    KernelFacts {
        kind: KernelKind::IntegerConvolution,
        in_place: &[],
        indices: None,
        types: ElementTypes::Bytes,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Convolution { elements: OperandRef::Write(0), weights: OperandRef::Read(1) },
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
        gradient: GradientReads::Zero,
        axes: Axes::Convolution(convolution),
    }
}
