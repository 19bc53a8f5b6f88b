//! Kernels that combine the elements along axes.

use super::super::ReduceOp;
use super::{
    Axes, ByRows, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, LeadingAxes, Merge, OperandRef,
    SixteenBit, Work,
};

/// The facts of `Reduce`.
pub(super) fn reduce<'a>(op: ReduceOp, axes: &'a [usize]) -> KernelFacts<'a> {
    let leading = LeadingAxes { merge: Merge::SumsOfRows, ..LeadingAxes::of(&[0], 0) };
    KernelFacts {
        kind: KernelKind::Reduce,
        in_place: &[],
        indices: None,
        types: ElementTypes::Numbers,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Read(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows { reads: &[0], writes: &[], sums_of_channels: true },
        leading_axes: (op == ReduceOp::Sum && axes.len() > 1).then_some(leading),
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: match op {
            ReduceOp::Sum | ReduceOp::Mean => GradientReads::of(&[], &[]),
            ReduceOp::SumSquare | ReduceOp::L1 | ReduceOp::Product => GradientReads::of(&[0], &[]),
            ReduceOp::L2 | ReduceOp::Max | ReduceOp::Min => GradientReads::of(&[0], &[0]),
        },
        axes: Axes::Reduce { axes, sums: op == ReduceOp::Sum },
    }
}

/// The facts of `Softmax` and `LogSoftmax`.
pub(super) fn softmax(kind: KernelKind, axis: usize) -> KernelFacts<'static> {
    KernelFacts {
        kind,
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
        gradient: GradientReads::of(&[], &[0]),
        axes: Axes::AllAlong { axis },
    }
}

/// The facts of `SoftmaxGradient` and `LogSoftmaxGradient`.
pub(super) fn softmax_gradient(kind: KernelKind, axis: usize) -> KernelFacts<'static> {
    KernelFacts {
        kind,
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
        axes: Axes::AllAlong { axis },
    }
}
