//! Matrix products.

use super::super::ProductPart;
use super::{
    Axes, ByRows, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, LeadingAxes, Merge, OperandRef,
    SixteenBit, Work,
};

/// The facts of `MatMul`.
pub(super) fn product(transposed: [bool; 2], alpha: f32, part: ProductPart) -> KernelFacts<'static> {
    let [transpose_a, transpose_b] = transposed;
    KernelFacts {
        kind: KernelKind::MatMul,
        in_place: match part {
            // The summand has only some of the columns, so a result with all of them cannot take its place.
            ProductPart::Columns { first: 0 } => &[],
            ProductPart::Whole | ProductPart::Columns { .. } => &[(0, 2)],
        },
        indices: None,
        types: ElementTypes::WideningProducts,
        sixteen_bit: SixteenBit::NONE,
        work: Work::Product { transpose_a, transpose_b },
        counted_along: OperandRef::Write(0),
        continues: part.reads_result().then_some(2),
        cut_choice: CutChoice::Least,
        by_rows: ByRows::NONE,
        leading_axes: Some(LeadingAxes { merge: Merge::Batches, ..LeadingAxes::of(&[0, 1], 1) }),
        broadcast_from: Some(2),
        reads_entangled: usize::MAX,
        runs_in_less_workspace: false,
        updates_state: false,
        gradient_of_loss: None,
        gradient: GradientReads::of(&[0, 1], &[]),
        axes: Axes::Product { transpose_a, transpose_b, part, may_add_terms: alpha == 1.0 },
    }
}
