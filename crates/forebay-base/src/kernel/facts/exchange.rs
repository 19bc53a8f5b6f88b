//! Exchanges between the processes of a run.

use super::{
    Axes, ByRows, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, OperandRef, SixteenBit, Work,
};

/// The facts of `Exchange`.
pub(super) fn exchange() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Exchange,
        in_place: &[(1, 1)],
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
        axes: Axes::Whole,
    }
}
