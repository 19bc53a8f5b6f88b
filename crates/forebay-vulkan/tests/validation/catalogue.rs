//! A small launch of every kernel.

use forebay_base::kernel::{
    Activation, BinaryOp, Convolution, PadMode, PoolOp, ProductPart, ReduceOp, Summing, UnaryOp, Window,
};
use forebay_base::DataType::{self, BFloat16, Bool, Float16, Float32, Float64, Int64};
use forebay_base::{Kernel, TensorDesc};

/// A kernel with the descriptors of what it reads and writes.
pub struct Sample {
    pub kernel: Kernel,
    pub reads: Vec<TensorDesc>,
    pub writes: Vec<TensorDesc>,
}

fn desc(data_type: DataType, sizes: &[u64]) -> TensorDesc {
    TensorDesc::packed(data_type, sizes).unwrap()
}

fn sample(kernel: Kernel, reads: &[(DataType, &[u64])], writes: &[(DataType, &[u64])]) -> Sample {
    let descs = |all: &[(DataType, &[u64])]| all.iter().map(|&(kind, sizes)| desc(kind, sizes)).collect();
    Sample { kernel, reads: descs(reads), writes: descs(writes) }
}

/// As [`sample`], all of float32.
fn floats(kernel: Kernel, reads: &[&[u64]], writes: &[&[u64]]) -> Sample {
    let descs = |all: &[&[u64]]| all.iter().map(|&sizes| desc(Float32, sizes)).collect();
    Sample { kernel, reads: descs(reads), writes: descs(writes) }
}

fn window() -> Window {
    let of = |value: u64| vec![value; 2];
    Window { kernel: of(3), strides: of(1), dilations: of(1), pads_begin: of(1), pads_end: of(1) }
}

/// All images, channels and places.
const IMAGE: &[u64] = &[2, 4, 6, 5];
const CHANNELS: &[u64] = &[4];
const WEIGHTS: &[u64] = &[4, 4, 3, 3];
const ROWS: &[u64] = &[6, 32];
const VECTOR: &[u64] = &[96];
const ONE: &[u64] = &[1];

/// At least one launch of every kernel: see [`number`].
pub fn samples() -> Vec<Sample> {
    let (epsilon, activation) = (1e-5, Activation::Relu);
    let convolution = Convolution { window: window(), groups: 1 };
    let gradient = Summing::BatchGradient { epsilon, activation };
    let entropy = Summing::CrossEntropy { axis: 1, ignore_index: None };
    let (starts, steps) = (vec![1, 2], vec![2, 3]);
    vec![
        floats(Kernel::Unary(UnaryOp::Tanh), &[VECTOR], &[VECTOR]),
        floats(Kernel::UnaryGradient(UnaryOp::Sigmoid), &[VECTOR, VECTOR], &[VECTOR]),
        floats(Kernel::Binary { op: BinaryOp::Add, activation }, &[VECTOR, VECTOR], &[VECTOR]),
        sample(Kernel::Select, &[(Bool, VECTOR), (Float32, VECTOR), (Float32, VECTOR)], &[(Float32, VECTOR)]),
        sample(Kernel::Cast, &[(Float32, VECTOR)], &[(Bool, VECTOR)]),
        floats(Kernel::Copy, &[ROWS], &[ROWS]),
        floats(Kernel::Slice { starts: starts.clone(), steps: steps.clone() }, &[ROWS], &[&[2, 10]]),
        floats(Kernel::SliceGradient { starts, steps }, &[&[2, 10]], &[ROWS]),
        floats(Kernel::Pad { begins: vec![1, 1], mode: PadMode::Constant(0.5) }, &[ROWS], &[&[8, 34]]),
        floats(Kernel::Fill { value: 3.0 }, &[], &[VECTOR]),
        floats(Kernel::Reduce { op: ReduceOp::Sum, axes: vec![1] }, &[ROWS], &[&[6, 1]]),
        floats(Kernel::Softmax { axis: 1 }, &[ROWS], &[ROWS]),
        floats(Kernel::LogSoftmax { axis: 1 }, &[ROWS], &[ROWS]),
        floats(Kernel::SoftmaxGradient { axis: 1 }, &[ROWS, ROWS], &[ROWS]),
        floats(Kernel::LogSoftmaxGradient { axis: 1 }, &[ROWS, ROWS], &[ROWS]),
        sample(
            Kernel::SoftmaxCrossEntropy { axis: 1, ignore_index: None },
            &[(Float32, ROWS), (Int64, &[6])],
            &[(Float32, ONE)],
        ),
        sample(
            Kernel::SoftmaxCrossEntropyGradient { axis: 1, ignore_index: None },
            &[(Float32, ONE), (Float32, ROWS), (Int64, &[6])],
            &[(Float32, ROWS)],
        ),
        floats(Kernel::MeanSquaredError, &[VECTOR, VECTOR], &[ONE]),
        floats(Kernel::MeanSquaredErrorGradient, &[ONE, VECTOR, VECTOR], &[VECTOR]),
        floats(
            Kernel::MatMul {
                transpose_a: false,
                transpose_b: true,
                alpha: 1.0,
                beta: 1.0,
                activation,
                part: ProductPart::Whole,
            },
            &[&[10, 18], &[14, 18], &[14]],
            &[&[10, 14]],
        )
        .with_read(2, TensorDesc::strided(Float32, &[10, 14], &[0, 1]).unwrap()),
        floats(
            Kernel::Convolution { convolution: convolution.clone(), activation },
            &[IMAGE, WEIGHTS, CHANNELS],
            &[IMAGE],
        ),
        floats(
            Kernel::ConvolutionDataGradient { convolution: convolution.clone(), activation: Activation::None },
            &[IMAGE, WEIGHTS],
            &[IMAGE],
        ),
        floats(Kernel::ConvolutionWeightGradient { convolution, accumulate: false }, &[IMAGE, IMAGE], &[WEIGHTS]),
        floats(Kernel::Pool { op: PoolOp::Max, window: window() }, &[IMAGE], &[IMAGE]),
        floats(Kernel::PoolGradient { op: PoolOp::Max, window: window() }, &[IMAGE, IMAGE], &[IMAGE]),
        floats(
            Kernel::BatchNormalization { epsilon, activation },
            &[IMAGE, CHANNELS, CHANNELS, CHANNELS, CHANNELS],
            &[IMAGE],
        ),
        floats(
            Kernel::BatchNormalizationTraining { epsilon, activation },
            &[IMAGE, CHANNELS, CHANNELS],
            &[IMAGE, CHANNELS, CHANNELS],
        ),
        floats(
            Kernel::BatchNormalizationGradient { epsilon, activation },
            &[IMAGE, IMAGE, CHANNELS, CHANNELS, CHANNELS, CHANNELS],
            &[IMAGE, CHANNELS, CHANNELS],
        ),
        floats(Kernel::RunningStatistics { momentum: 0.9, correction: 1.0 }, &[CHANNELS, CHANNELS], &[CHANNELS]),
        floats(Kernel::LayerNormalization { axis: 1, epsilon }, &[ROWS, &[32], &[32]], &[ROWS, &[6], &[6]]),
        floats(Kernel::LayerNormalizationGradient { axis: 1 }, &[ROWS, ROWS, &[32], &[6], &[6]], &[ROWS, &[32], &[32]]),
        floats(Kernel::LocalResponseNormalization { size: 3, alpha: 1e-4, beta: 0.75, bias: 1.0 }, &[IMAGE], &[IMAGE]),
        floats(
            Kernel::LocalResponseNormalizationGradient { size: 3, alpha: 1e-4, beta: 0.75, bias: 1.0 },
            &[IMAGE, IMAGE],
            &[IMAGE],
        ),
        sample(Kernel::Gather { axis: 0 }, &[(Float32, ROWS), (Int64, &[4])], &[(Float32, &[4, 32])]),
        sample(Kernel::GatherGradient { axis: 0 }, &[(Float32, &[4, 32]), (Int64, &[4])], &[(Float32, ROWS)]),
        sample(
            Kernel::Dropout { ratio: 0.5, seed: 1, node: 2, first: 0 },
            &[(Float32, VECTOR), (Int64, ONE)],
            &[(Float32, VECTOR), (Bool, VECTOR)],
        ),
        floats(
            Kernel::Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0, nesterov: false },
            &[VECTOR, VECTOR, VECTOR],
            &[VECTOR, VECTOR],
        ),
        sample(
            Kernel::Adam {
                learning_rate: 0.1,
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                weight_decay: 0.0,
                decoupled: false,
            },
            &[(Float32, VECTOR), (Float32, VECTOR), (Float32, VECTOR), (Float32, VECTOR), (Int64, ONE)],
            &[(Float32, VECTOR), (Float32, VECTOR), (Float32, VECTOR)],
        ),
        sample(
            Kernel::Sums { of: Summing::BatchStatistics, accumulate: false },
            &[(Float32, IMAGE)],
            &[(Float64, &[4, 4])],
        ),
        sample(
            Kernel::Sums { of: gradient, accumulate: true },
            &[
                (Float32, IMAGE),
                (Float32, IMAGE),
                (Float32, CHANNELS),
                (Float32, CHANNELS),
                (Float32, CHANNELS),
                (Float32, CHANNELS),
                (Float64, &[3, 4]),
            ],
            &[(Float64, &[3, 4])],
        ),
        sample(
            Kernel::FromSums { of: Summing::BatchStatistics },
            &[(Float64, &[4, 4])],
            &[(Float32, CHANNELS), (Float32, CHANNELS)],
        ),
        sample(
            Kernel::Sums { of: Summing::SquaredError, accumulate: true },
            &[(Float32, VECTOR), (Float32, VECTOR), (Float64, &[2, 1])],
            &[(Float64, &[2, 1])],
        ),
        sample(
            Kernel::Sums { of: Summing::LayerGradient { axis: 1, block_rows: 32 }, accumulate: false },
            &[(Float32, ROWS), (Float32, ROWS), (Float32, &[6]), (Float32, &[6])],
            &[(Float64, &[2, 32])],
        ),
        sample(
            Kernel::Sums { of: Summing::Rows { axes: 1, block_rows: 32 }, accumulate: false },
            &[(Float32, ROWS)],
            &[(Float64, &[2, 32])],
        ),
        floats(Kernel::Reduce { op: ReduceOp::Sum, axes: vec![0] }, &[ROWS], &[&[32]]),
        sample(Kernel::FromSums { of: entropy }, &[(Float64, &[2, 1])], &[(Float32, ONE)]),
    ]
}

/// The products among the samples once more with operands of 16 bits, which other shaders compute.
pub fn half_samples() -> Vec<Sample> {
    let products = || samples().into_iter().filter(|sample| matches!(number(&sample.kernel), 19..=22));
    [Float16, BFloat16].into_iter().flat_map(|kind| products().map(move |sample| sample.in_type(kind))).collect()
}

impl Sample {
    /// The kernel and the type of what it writes first, for people.
    pub fn name(&self) -> String {
        format!("{} of {}", self.kernel.name(), self.writes[0].data_type())
    }

    /// The same with all operands of another type, strides included.
    fn in_type(mut self, data_type: DataType) -> Sample {
        for desc in self.reads.iter_mut().chain(&mut self.writes) {
            *desc = TensorDesc::strided(data_type, desc.sizes(), &desc.effective_strides()).unwrap();
        }
        self
    }

    fn with_read(mut self, index: usize, desc: TensorDesc) -> Sample {
        self.reads[index] = desc;
        self
    }
}

/// Kernels that there are.
pub const KERNELS: usize = 40;

/// The place of a kernel in base's list: a new kernel does not compile here until it is added, and is missed among the
/// samples then.
pub fn number(kernel: &Kernel) -> usize {
    match kernel {
        Kernel::Unary(_) => 0,
        Kernel::UnaryGradient(_) => 1,
        Kernel::Binary { .. } => 2,
        Kernel::Select => 3,
        Kernel::Cast => 4,
        Kernel::Copy => 5,
        Kernel::Slice { .. } => 6,
        Kernel::SliceGradient { .. } => 7,
        Kernel::Pad { .. } => 8,
        Kernel::Fill { .. } => 9,
        Kernel::Reduce { .. } => 10,
        Kernel::Softmax { .. } => 11,
        Kernel::LogSoftmax { .. } => 12,
        Kernel::SoftmaxGradient { .. } => 13,
        Kernel::LogSoftmaxGradient { .. } => 14,
        Kernel::SoftmaxCrossEntropy { .. } => 15,
        Kernel::SoftmaxCrossEntropyGradient { .. } => 16,
        Kernel::MeanSquaredError => 17,
        Kernel::MeanSquaredErrorGradient => 18,
        Kernel::MatMul { .. } => 19,
        Kernel::Convolution { .. } => 20,
        Kernel::ConvolutionDataGradient { .. } => 21,
        Kernel::ConvolutionWeightGradient { .. } => 22,
        Kernel::Pool { .. } => 23,
        Kernel::PoolGradient { .. } => 24,
        Kernel::BatchNormalization { .. } => 25,
        Kernel::BatchNormalizationTraining { .. } => 26,
        Kernel::BatchNormalizationGradient { .. } => 27,
        Kernel::RunningStatistics { .. } => 28,
        Kernel::LayerNormalization { .. } => 29,
        Kernel::LayerNormalizationGradient { .. } => 30,
        Kernel::LocalResponseNormalization { .. } => 31,
        Kernel::LocalResponseNormalizationGradient { .. } => 32,
        Kernel::Gather { .. } => 33,
        Kernel::GatherGradient { .. } => 34,
        Kernel::Dropout { .. } => 35,
        Kernel::Sgd { .. } => 36,
        Kernel::Adam { .. } => 37,
        Kernel::Sums { .. } => 38,
        Kernel::FromSums { .. } => 39,
    }
}
