//! Kernels that sort the elements along an axis or process them one after another.

use super::super::ScanOp;
use super::{
    Axes, ByRows, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, OperandRef, SixteenBit, Work,
};

/// The facts of `TopK`.
pub(super) fn top_k(axis: usize) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::TopK,
        in_place: &[],
        indices: None,
        types: ElementTypes::NotNarrow,
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
        axes: Axes::Within { first: axis, count: 1 },
    }
}

/// The facts of `Scan`.
pub(super) fn scan(axis: usize, op: ScanOp) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Scan,
        in_place: &[],
        indices: None,
        types: ElementTypes::Numbers,
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
        gradient: match op {
            ScanOp::Sum => GradientReads::of(&[], &[]),
            ScanOp::Product => GradientReads::of(&[0], &[]),
            // Only gradients use this operation.
            ScanOp::Recurrence => GradientReads::None,
        },
        axes: Axes::AllAlong { axis },
    }
}
