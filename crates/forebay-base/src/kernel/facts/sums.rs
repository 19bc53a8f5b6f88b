//! Sums over positions in parts, and the way in which a kernel that sums is cut into them.

use super::super::{Kernel, ReduceOp, Summing, lines, sums_rows};
use super::{
    Axes, ByRows, CutChoice, ElementTypes, GradientReads, KernelFacts, KernelKind, OperandRef, SixteenBit, Work,
};
use crate::TensorDesc;

/// The facts of `Sums`.
pub(super) fn sums(of: Summing) -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::Sums,
        in_place: &[],
        indices: None,
        types: ElementTypes::Floats,
        sixteen_bit: match of {
            Summing::BatchStatistics { .. } => SixteenBit::of(&[0], &[]),
            Summing::BatchGradient { .. } => SixteenBit::of(&[0, 1], &[]),
            Summing::CrossEntropy { .. }
            | Summing::SquaredError
            | Summing::LayerGradient { .. }
            | Summing::Rows { .. }
            | Summing::Channels => SixteenBit::NONE,
        },
        work: Work::Elements,
        counted_along: OperandRef::Read(0),
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
        axes: Axes::Sums { of },
    }
}

/// The facts of `AddSums`.
pub(super) fn add_sums() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::AddSums,
        in_place: &[(0, 0)],
        indices: None,
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
        gradient: GradientReads::None,
        axes: Axes::Whole,
    }
}

/// The facts of `FromSums`.
pub(super) fn from_sums() -> KernelFacts<'static> {
    KernelFacts {
        kind: KernelKind::FromSums,
        in_place: &[],
        indices: None,
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
        gradient: GradientReads::None,
        axes: Axes::Whole,
    }
}

/// The reads of a kernel from which its sums are computed.
fn inputs(of: Summing) -> &'static [usize] {
    match of {
        Summing::BatchStatistics { .. } | Summing::Rows { .. } | Summing::Channels => &[0],
        Summing::BatchGradient { .. } => &[0, 1, 2, 3, 4, 5],
        Summing::CrossEntropy { .. } | Summing::SquaredError => &[0, 1],
        // The scale does not affect these sums.
        Summing::LayerGradient { .. } => &[0, 1, 3, 4],
    }
}

/// A launch that sums, split into three: its sums ([`Kernel::Sums`]), the results computed from them ([`Kernel::FromSums`]), and the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct SumsInParts {
    /// The kind of sums.
    pub of: Summing,
    /// The launch's reads from which the sums are computed.
    pub reads: &'static [usize],
    /// The launch's reads from which, after the sums, the results are computed.
    pub finish_reads: &'static [usize],
    /// The launch's first write that is computed from the sums; all writes after it are, too.
    pub first_finished: usize,
    /// The computation that remains; `None` if the sums are everything.
    pub rest: Option<Rest>,
}

/// The part of a launch that is not sums, from the first write on.
#[derive(Clone, Debug, PartialEq)]
pub struct Rest {
    /// The kernel.
    pub kernel: Kernel,
    /// The number of the launch's reads that it reads, from the first on.
    pub reads: usize,
    /// Whether it then reads the results computed from the sums.
    pub reads_finished: bool,
    /// Whether it reads the sums last.
    pub reads_sums: bool,
}

impl Kernel {
    /// Splits a launch of this kernel into sums, so that its parts add up to the whole. Returns `None` for kernels that do not sum, or
    /// whose results are sums themselves.
    pub fn sums_in_parts(&self, reads: &[&TensorDesc], writes: &[&TensorDesc]) -> Option<SumsInParts> {
        let all = |of: Summing| SumsInParts { of, reads: inputs(of), finish_reads: &[], first_finished: 0, rest: None };
        match *self {
            Kernel::BatchNormalizationTraining { epsilon, activation, group_size } => {
                let kernel = Kernel::BatchNormalization { epsilon, activation };
                let rest = Rest { kernel, reads: 3, reads_finished: true, reads_sums: false };
                Some(SumsInParts {
                    first_finished: 1,
                    rest: Some(rest),
                    ..all(Summing::BatchStatistics { group_size })
                })
            }
            Kernel::BatchNormalizationGradient { epsilon, activation, .. } if writes.len() == 3 => {
                let rest = Rest { kernel: self.clone(), reads: 6, reads_finished: false, reads_sums: true };
                let sums = all(Summing::BatchGradient { epsilon, activation });
                Some(SumsInParts { finish_reads: &[5], first_finished: 1, rest: Some(rest), ..sums })
            }
            Kernel::SoftmaxCrossEntropy { axis, ignore_index } => {
                Some(all(Summing::CrossEntropy { axis, ignore_index }))
            }
            Kernel::MeanSquaredError => Some(all(Summing::SquaredError)),
            Kernel::LayerNormalizationGradient { axis } if writes.len() == 3 => {
                let sums = all(Summing::LayerGradient { axis });
                let rest = Rest { kernel: self.clone(), reads: 5, reads_finished: false, reads_sums: false };
                Some(SumsInParts { first_finished: 1, rest: Some(rest), ..sums })
            }
            Kernel::Reduce { op: ReduceOp::Sum, ref axes } => {
                let x = reads.first()?;
                if sums_rows(axes, x) {
                    return Some(all(Summing::Rows { axes: axes.len() }));
                }
                lines::are_positions(axes, x).then(|| all(Summing::Channels))
            }
            Kernel::BatchNormalizationGradient { .. }
            | Kernel::LayerNormalizationGradient { .. }
            | Kernel::Reduce { .. }
            | Kernel::Unary(_)
            | Kernel::UnaryGradient(_)
            | Kernel::Binary { .. }
            | Kernel::Select
            | Kernel::Cast(_)
            | Kernel::Copy
            | Kernel::Slice { .. }
            | Kernel::SliceGradient { .. }
            | Kernel::Pad { .. }
            | Kernel::Fill { .. }
            | Kernel::Softmax { .. }
            | Kernel::LogSoftmax { .. }
            | Kernel::SoftmaxGradient { .. }
            | Kernel::LogSoftmaxGradient { .. }
            | Kernel::SoftmaxCrossEntropyGradient { .. }
            | Kernel::MeanSquaredErrorGradient
            | Kernel::MatMul { .. }
            | Kernel::Convolution { .. }
            | Kernel::ConvolutionDataGradient { .. }
            | Kernel::ConvolutionWeightGradient { .. }
            | Kernel::Pool { .. }
            | Kernel::PoolGradient { .. }
            | Kernel::BatchNormalization { .. }
            | Kernel::RunningStatistics { .. }
            | Kernel::LayerNormalization { .. }
            | Kernel::Attention(_)
            | Kernel::AttentionGradient(_)
            | Kernel::AttentionQueryGradient(_)
            | Kernel::AttentionKeyGradient(_)
            | Kernel::LocalResponseNormalization { .. }
            | Kernel::LocalResponseNormalizationGradient { .. }
            | Kernel::Gather { .. }
            | Kernel::GatherGradient { .. }
            | Kernel::Scatter { .. }
            | Kernel::TopK { .. }
            | Kernel::Scan { .. }
            | Kernel::IntegerProduct { .. }
            | Kernel::IntegerConvolution { .. }
            | Kernel::PoolIndices { .. }
            | Kernel::Dropout { .. }
            | Kernel::Random { .. }
            | Kernel::Sgd { .. }
            | Kernel::Adam { .. }
            | Kernel::Adam8Bit { .. }
            | Kernel::Recurrent(_)
            | Kernel::RecurrentGradient(_)
            | Kernel::Sums { .. }
            | Kernel::AddSums { .. }
            | Kernel::FromSums { .. }
            | Kernel::Exchange(_) => None,
        }
    }
}
