//! Separate: launches with several kinds of results can be cut into several launches.

use super::super::Kernel;

/// A separate launch for some of a launch's results, with the same reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Separate {
    /// The kernel.
    pub kernel: Kernel,
    /// The range of writes that it computes, in order.
    pub writes: std::ops::Range<usize>,
}

impl Kernel {
    /// Launches that together write the same bits as a launch of this kernel. Each is cut along other axes than the original, and together
    /// they are slower. Empty for kernels without such launches.
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
