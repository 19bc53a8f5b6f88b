//! Kinds: the kernels without their parameters, as a list.

/// Lists the kinds once: the enumeration, all of them, and their names come from it.
macro_rules! kinds {
    ($($kind:ident)*) => {
        /// Which kernel a [`super::Kernel`] is: its variant without parameters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum KernelKind {
            $(
                #[doc = concat!("[`super::Kernel::", stringify!($kind), "`].")]
                $kind,
            )*
        }

        impl KernelKind {
            /// All of them, in the order of the table of kernels.
            pub const ALL: &'static [KernelKind] = &[$(KernelKind::$kind),*];

            /// The kernel's name in plans and traces.
            pub const fn name(self) -> &'static str {
                match self {
                    $(KernelKind::$kind => stringify!($kind),)*
                }
            }
        }
    };
}

kinds! {
    Unary UnaryGradient Binary Select Cast Copy Slice SliceGradient Pad Fill Reduce Softmax LogSoftmax SoftmaxGradient LogSoftmaxGradient SoftmaxCrossEntropy SoftmaxCrossEntropyGradient MeanSquaredError MeanSquaredErrorGradient MatMul Convolution ConvolutionDataGradient ConvolutionWeightGradient IntegerProduct IntegerConvolution Pool PoolGradient BatchNormalization BatchNormalizationTraining BatchNormalizationGradient RunningStatistics LayerNormalization LayerNormalizationGradient Attention AttentionGradient AttentionQueryGradient AttentionKeyGradient LocalResponseNormalization LocalResponseNormalizationGradient Gather GatherGradient Scatter TopK Scan PoolIndices Dropout Random Sgd Adam Adam8Bit Recurrent RecurrentGradient Sums AddSums FromSums Exchange
}
