//! Kernels that compute each element from the elements at the same position.

use super::super::{BinaryOp, UnaryOp};
use super::{
    Axes, ByRows, CutAxes, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, LeadingAxes, OperandRef,
    SixteenBit, Work,
};

/// The facts of `Unary`.
pub(super) fn unary(op: UnaryOp) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Unary,
        in_place: &[(0, 0)],
        indices: None,
        types: match op {
            UnaryOp::Not => ElementTypes::Booleans,
            UnaryOp::Relu
            | UnaryOp::Clip { .. }
            | UnaryOp::Abs
            | UnaryOp::Sign
            | UnaryOp::Floor
            | UnaryOp::Ceil
            | UnaryOp::Round => ElementTypes::Numbers,
            UnaryOp::Affine { scale, shift } if scale.fract() == 0.0 && shift.fract() == 0.0 => ElementTypes::Numbers,
            _ => ElementTypes::Floats,
        },
        sixteen_bit: SixteenBit::of(&[0], &[0]),
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::of(&[0, 1, 2], &[0, 1, 2]),
        leading_axes: Some(LeadingAxes::of(&[0], 1)),
        broadcast_from: Some(0),
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: match op {
            UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Not => GradientReads::None,
            UnaryOp::Affine { .. } => GradientReads::of(&[], &[]),
            _ if op.gradient_uses_output() => GradientReads::of(&[], &[0]),
            _ => GradientReads::of(&[0], &[]),
        },
        axes: Axes::Elements { reads: None, cut: CutAxes::All },
    }
}

/// The facts of `UnaryGradient`.
pub(super) fn unary_gradient() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::UnaryGradient,
        in_place: &[(0, 0), (0, 1)],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::of(&[0, 1], &[0]),
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::of(&[0, 1, 2], &[0, 1, 2]),
        leading_axes: Some(LeadingAxes::of(&[0, 1], 1)),
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::None,
        axes: Axes::Elements { reads: None, cut: CutAxes::All },
    }
}

/// The facts of `Binary`.
pub(super) fn binary(op: BinaryOp) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Binary,
        in_place: &[(0, 0), (0, 1)],
        indices: None,
        types: match op {
            BinaryOp::Equal => ElementTypes::NotSixteenBit,
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => ElementTypes::Booleans,
            BinaryOp::BitAnd | BinaryOp::BitOr | BinaryOp::BitXor | BinaryOp::ShiftLeft | BinaryOp::ShiftRight => {
                ElementTypes::Integers
            }
            _ => ElementTypes::Numbers,
        },
        sixteen_bit: SixteenBit::of(&[0, 1], if op.is_comparison() { &[] } else { &[0] }),
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::of(&[0, 1, 2], &[0, 1, 2]),
        leading_axes: Some(LeadingAxes::of(&[0, 1], 1)),
        broadcast_from: Some(0),
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: match op {
            BinaryOp::Add | BinaryOp::Subtract => GradientReads::of(&[], &[]),
            BinaryOp::Multiply | BinaryOp::Minimum | BinaryOp::Maximum => GradientReads::of(&[0, 1], &[]),
            BinaryOp::Divide => GradientReads::of(&[1], &[0]),
            BinaryOp::Power | BinaryOp::Modulo | BinaryOp::Remainder => GradientReads::of(&[0, 1], &[0]),
            BinaryOp::Equal
            | BinaryOp::Less
            | BinaryOp::LessOrEqual
            | BinaryOp::Greater
            | BinaryOp::GreaterOrEqual
            | BinaryOp::And
            | BinaryOp::Or
            | BinaryOp::Xor
            | BinaryOp::BitAnd
            | BinaryOp::BitOr
            | BinaryOp::BitXor
            | BinaryOp::ShiftLeft
            | BinaryOp::ShiftRight => GradientReads::Zero,
        },
        axes: Axes::Elements { reads: None, cut: CutAxes::All },
    }
}

/// The facts of `Select`.
pub(super) fn select() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Select,
        in_place: &[(0, 1), (0, 2)],
        indices: None,
        types: ElementTypes::Every,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::of(&[0, 1, 2], &[0, 1, 2]),
        leading_axes: Some(LeadingAxes::of(&[0, 1, 2], 1)),
        broadcast_from: Some(0),
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::of(&[0], &[]),
        axes: Axes::Elements { reads: None, cut: CutAxes::All },
    }
}

/// The facts of `Cast`.
pub(super) fn cast() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Cast,
        in_place: &[(0, 0)],
        indices: None,
        types: ElementTypes::Every,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::of(&[0], &[0]),
        leading_axes: Some(LeadingAxes::of(&[0], 1)),
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::of(&[], &[]),
        axes: Axes::Elements { reads: None, cut: CutAxes::All },
    }
}

/// The facts of `Fill`.
pub(super) fn fill() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Fill,
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
        gradient: GradientReads::Zero,
        axes: Axes::Elements { reads: None, cut: CutAxes::All },
    }
}

/// The facts of `Dropout`.
pub(super) fn dropout() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Dropout,
        in_place: &[(0, 0)],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::NONE,
        leading_axes: Some(LeadingAxes::of(&[0], usize::MAX)),
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::of(&[1], &[]),
        axes: Axes::Elements { reads: Some(&[0]), cut: CutAxes::All },
    }
}

/// The facts of `Random`.
pub(super) fn random() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Random,
        in_place: &[],
        indices: None,
        types: ElementTypes::Every,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Elements,
        counted_along: OperandRef::Write(0),
        continues: None,
        cut_choice: CutChoice::First,
        by_rows: ByRows::NONE,
        leading_axes: Some(LeadingAxes::of(&[], 1)),
        broadcast_from: None,
        reads_entangled: 0,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::Zero,
        axes: Axes::Elements { reads: Some(&[]), cut: CutAxes::All },
    }
}
