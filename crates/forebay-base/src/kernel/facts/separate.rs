//! Separate: launches that have results of several kinds become several launches, where they are cut.

use super::super::Kernel;

/// A launch of its own for some results of a launch, which reads all that this reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Separate {
    /// The kernel.
    pub kernel: Kernel,
    /// The writes that are its results, in their order.
    pub writes: std::ops::Range<usize>,
}

impl Kernel {
    /// Launches that together write the bits that a launch of this kernel writes, each cut along other axes than it is, and together
    /// slower; none for kernels that there are no such launches of.
    pub fn separate(&self) -> Vec<Separate> {
        match *self {
            Kernel::AttentionGradient(options) => vec![
                Separate { kernel: Kernel::AttentionQueryGradient(options), writes: 0..1 },
                Separate { kernel: Kernel::AttentionKeyGradient(options), writes: 1..3 },
            ],
            Kernel::Unary(_)
            | Kernel::UnaryGradient(_)
            | Kernel::Binary { .. }
            | Kernel::Select
            | Kernel::Cast(_)
            | Kernel::Copy
            | Kernel::SliceGradient { .. }
            | Kernel::Pad { .. }
            | Kernel::Fill { .. }
            | Kernel::Reduce { .. }
            | Kernel::Softmax { .. }
            | Kernel::LogSoftmax { .. }
            | Kernel::SoftmaxGradient { .. }
            | Kernel::LogSoftmaxGradient { .. }
            | Kernel::SoftmaxCrossEntropy { .. }
            | Kernel::SoftmaxCrossEntropyGradient { .. }
            | Kernel::IntegerProduct { .. }
            | Kernel::IntegerConvolution { .. }
            | Kernel::MeanSquaredError
            | Kernel::MeanSquaredErrorGradient
            | Kernel::BatchNormalization { .. }
            | Kernel::BatchNormalizationTraining { .. }
            | Kernel::BatchNormalizationGradient { .. }
            | Kernel::RunningStatistics { .. }
            | Kernel::LayerNormalization { .. }
            | Kernel::LayerNormalizationGradient { .. }
            | Kernel::LocalResponseNormalization { .. }
            | Kernel::LocalResponseNormalizationGradient { .. }
            | Kernel::Gather { .. }
            | Kernel::GatherGradient { .. }
            | Kernel::Scatter { .. }
            | Kernel::TopK { .. }
            | Kernel::Scan { .. }
            | Kernel::PoolIndices { .. }
            | Kernel::Sgd { .. }
            | Kernel::Adam { .. }
            | Kernel::Adam8Bit { .. }
            | Kernel::Recurrent(_)
            | Kernel::RecurrentGradient(_)
            | Kernel::Sums { .. }
            | Kernel::AddSums { .. }
            | Kernel::FromSums { .. }
            | Kernel::Exchange(_)
            | Kernel::Slice { .. }
            | Kernel::Dropout { .. }
            | Kernel::Random { .. }
            | Kernel::Convolution { .. }
            | Kernel::ConvolutionDataGradient { .. }
            | Kernel::ConvolutionWeightGradient { .. }
            | Kernel::Pool { .. }
            | Kernel::PoolGradient { .. }
            | Kernel::MatMul { .. }
            | Kernel::Attention(_)
            | Kernel::AttentionQueryGradient(_)
            | Kernel::AttentionKeyGradient(_) => Vec::new(),
        }
    }
}
