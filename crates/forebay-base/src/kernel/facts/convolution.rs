//! Kernels whose results see their operands through a window.

use super::super::{Convolution, PoolOp, Window};
use super::{
    Axes, ByRows, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, OperandRef, SixteenBit, Work,
};

/// The facts of `Convolution`.
pub(super) fn convolution<'a>(convolution: &'a Convolution) -> KernelFacts<'a> {
    KernelFacts {
        kind: KernelKind::Convolution,
        in_place: &[],
        indices: None,
        types: ElementTypes::Products,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Convolution { elements: OperandRef::Write(0), weights: OperandRef::Read(1) },
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
        gradient: GradientReads::of(&[0, 1], &[]),
        axes: Axes::Convolution(convolution),
    }
}

/// The facts of `ConvolutionDataGradient`.
pub(super) fn data_gradient<'a>(convolution: &'a Convolution) -> KernelFacts<'a> {
    KernelFacts {
        kind: KernelKind::ConvolutionDataGradient,
        in_place: &[],
        indices: None,
        types: ElementTypes::Products,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Convolution { elements: OperandRef::Read(0), weights: OperandRef::Read(1) },
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
        gradient: GradientReads::of(&[0, 1], &[]),
        axes: Axes::ConvolutionDataGradient(convolution),
    }
}

/// The facts of `ConvolutionWeightGradient`.
pub(super) fn weight_gradient<'a>(convolution: &'a Convolution) -> KernelFacts<'a> {
    KernelFacts {
        kind: KernelKind::ConvolutionWeightGradient,
        in_place: &[],
        indices: None,
        types: ElementTypes::WideningProducts,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Convolution { elements: OperandRef::Read(1), weights: OperandRef::Write(0) },
        counted_along: OperandRef::Read(1),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::of(&[0, 1], &[]),
        leading_axes: None,
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: true,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::None,
        axes: Axes::ConvolutionWeightGradient(convolution),
    }
}

/// The facts of `Pool`.
pub(super) fn pool<'a>(op: PoolOp, window: &'a Window) -> KernelFacts<'a> {
    KernelFacts {
        kind: KernelKind::Pool,
        in_place: &[],
        indices: None,
        types: ElementTypes::Float32,
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
        gradient: match op {
            PoolOp::Max => GradientReads::of(&[0], &[]),
            PoolOp::Average { .. } => GradientReads::of(&[], &[]),
        },
        axes: Axes::Pool(window),
    }
}

/// The facts of `PoolGradient`.
pub(super) fn pool_gradient<'a>(window: &'a Window) -> KernelFacts<'a> {
    KernelFacts {
        kind: KernelKind::PoolGradient,
        in_place: &[],
        indices: None,
        types: ElementTypes::Float32,
        // If windows overlap, gradients are added.
        sixteen_bit: SixteenBit::of(&[0, 1], if window.overlaps() { &[] } else { &[0] }),
        work: Work::Elements,
        counted_along: OperandRef::Read(0),
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
        axes: Axes::PoolGradient(window),
    }
}

/// The facts of `PoolIndices`. What it writes depends on the position of a window in the channel, so launches are cut only along images and
/// channels.
pub(super) fn pool_indices() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::PoolIndices,
        in_place: &[],
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
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::Zero,
        axes: Axes::Within { first: 2, count: usize::MAX },
    }
}
