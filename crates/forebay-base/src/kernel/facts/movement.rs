//! Kernels that move elements.

use super::super::{Indices, ScatterOp};
use super::{
    Axes, ByRows, CutAxes, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, OperandRef, SixteenBit,
    Work,
};

/// The facts of `Copy`.
pub(super) fn copy() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Copy,
        in_place: &[],
        indices: None,
        types: ElementTypes::Every,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::of(&[0, 1, 2], &[0, 1, 2]),
        leading_axes: None,
        broadcast_from: None,
        reads_entangled: 2,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::None,
        axes: Axes::Elements { reads: None, cut: CutAxes::All },
    }
}

/// The facts of `Slice`.
pub(super) fn slice<'a>(starts: &'a [u64], steps: &'a [i64]) -> KernelFacts<'a> {
    KernelFacts {
        kind: KernelKind::Slice,
        in_place: &[],
        indices: None,
        types: ElementTypes::Every,
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
        gradient: GradientReads::of(&[], &[]),
        axes: Axes::Slice { starts, steps },
    }
}

/// The facts of `SliceGradient`.
pub(super) fn slice_gradient<'a>(starts: &'a [u64]) -> KernelFacts<'a> {
    KernelFacts {
        kind: KernelKind::SliceGradient,
        in_place: &[],
        indices: None,
        types: ElementTypes::Every,
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
        axes: Axes::Placed { begins: starts },
    }
}

/// The facts of `Pad`.
pub(super) fn pad<'a>(begins: &'a [u64]) -> KernelFacts<'a> {
    KernelFacts {
        kind: KernelKind::Pad,
        in_place: &[],
        indices: None,
        types: ElementTypes::Every,
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
        gradient: GradientReads::of(&[], &[]),
        axes: Axes::Placed { begins },
    }
}

/// The facts of `Gather`.
pub(super) fn gather(axis: usize) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Gather,
        in_place: &[],
        indices: Some(Indices { read: 1, axis, data: OperandRef::Read(0) }),
        types: ElementTypes::Every,
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
        gradient: GradientReads::of(&[1], &[]),
        axes: Axes::Gather { axis },
    }
}

/// The facts of `GatherGradient`.
pub(super) fn gather_gradient(axis: usize) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::GatherGradient,
        in_place: &[],
        indices: Some(Indices { read: 1, axis, data: OperandRef::Write(0) }),
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
        gradient: GradientReads::of(&[1], &[]),
        axes: Axes::GatherGradient { axis },
    }
}

/// The facts of `Scatter`. Any update can go to any row, so launches are not cut.
pub(super) fn scatter(op: ScatterOp) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Scatter,
        in_place: &[(0, 0)],
        indices: Some(Indices { read: 1, axis: 0, data: OperandRef::Write(0) }),
        types: if op == ScatterOp::Replace { ElementTypes::Every } else { ElementTypes::Numbers },
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
            ScatterOp::Replace | ScatterOp::Add => GradientReads::of(&[1], &[]),
            ScatterOp::Multiply => GradientReads::of(&[0, 1, 2], &[]),
            ScatterOp::Minimum | ScatterOp::Maximum => GradientReads::of(&[0, 1, 2], &[0]),
        },
        axes: Axes::Whole,
    }
}
