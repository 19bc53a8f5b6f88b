//! Samples: a small launch of every kernel, for tests that cover all kernels.
//!
//! Devices are compared on the samples, and facts are tested on them. A kernel without a sample does not compile.

use std::ops::Range;

use super::facts::ElementTypes;
use super::{
    Activation, AttentionOptions, BinaryOp, Convolution, Exchange, Kernel, KernelKind, PadMode, PoolOp, ProductPart,
    Recurrence, RecurrentActivation, RecurrentCell, RecurrentDirection, ReduceOp, ScanOp, ScatterOp, Summing, UnaryOp,
    Window,
};
use crate::DataType::{self, Bool, Float32, Float64, Int8, Int32, Int64, UInt8};
use crate::{TensorDesc, TensorError};

/// A kernel with the descriptors of its reads and writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The kernel.
    pub kernel: Kernel,
    /// Descriptors of the reads.
    pub reads: Vec<TensorDesc>,
    /// Descriptors of the writes.
    pub writes: Vec<TensorDesc>,
}

/// Sizes of operands.
type Sizes = &'static [u64];

fn sample(kernel: Kernel, reads: &[(DataType, Sizes)], writes: &[(DataType, Sizes)]) -> Result<Sample, TensorError> {
    let descs = |all: &[(DataType, Sizes)]| {
        all.iter().map(|&(kind, sizes)| TensorDesc::packed(kind, sizes)).collect::<Result<Vec<_>, _>>()
    };
    Ok(Sample { kernel, reads: descs(reads)?, writes: descs(writes)? })
}

/// Like [`sample`], with all operands in float32.
fn floats(kernel: Kernel, reads: &[Sizes], writes: &[Sizes]) -> Result<Sample, TensorError> {
    let typed = |all: &[Sizes]| all.iter().map(|&sizes| (Float32, sizes)).collect::<Vec<_>>();
    sample(kernel, &typed(reads), &typed(writes))
}

fn window() -> Window {
    let of = |value: u64| vec![value; 2];
    Window { kernel: of(3), strides: of(1), dilations: of(1), pads_begin: of(1), pads_end: of(1) }
}

/// A recurrence with both directions of a cell.
fn recurrence(cell: RecurrentCell) -> Recurrence {
    let activations = [RecurrentActivation::Sigmoid, RecurrentActivation::Tanh, RecurrentActivation::Tanh];
    let directions = [false, true].map(|reverse| RecurrentDirection { reverse, activations });
    Recurrence { cell, directions: directions.to_vec(), clip: None, quantizes_state: false }
}

const LSTM: RecurrentCell = RecurrentCell::Lstm { couples_forget: false };
const GRU: RecurrentCell = RecurrentCell::Gru { resets_after: true };
/// Sizes for steps, sequences, directions and the gates of 6 units; then a state; then all outputs.
const LSTM_GATES: Sizes = &[5, 3, 2, 24];
const GRU_GATES: Sizes = &[5, 3, 2, 18];
const UNITS: Sizes = &[2, 3, 6];
const OUTPUTS: Sizes = &[5, 2, 3, 6];

/// The operands that a recurrent kernel reads.
fn recurrent_reads(cell: RecurrentCell) -> Vec<(DataType, Sizes)> {
    match cell.has_cell_state() {
        true => vec![
            (Float32, LSTM_GATES),
            (Float32, &[2, 24, 6]),
            (Float32, &[2, 24]),
            (Int32, &[3]),
            (Float32, UNITS),
            (Float32, UNITS),
            (Float32, &[2, 18]),
        ],
        false => {
            vec![(Float32, GRU_GATES), (Float32, &[2, 18, 6]), (Float32, &[2, 18]), (Int32, &[3]), (Float32, UNITS)]
        }
    }
}

fn recurrent(cell: RecurrentCell) -> Result<Sample, TensorError> {
    let all = [(Float32, OUTPUTS), (Float32, UNITS), (Float32, UNITS)];
    let writes = if cell.has_cell_state() { &all[..] } else { &all[..2] };
    sample(Kernel::Recurrent(recurrence(cell)), &recurrent_reads(cell), writes)
}

fn recurrent_gradient(cell: RecurrentCell) -> Result<Sample, TensorError> {
    let (is_lstm, before): (bool, Sizes) = (cell.has_cell_state(), &[2, 5, 3, 6]);
    let d_outputs = [(Float32, OUTPUTS), (Float32, UNITS), (Float32, UNITS)];
    let mut reads = d_outputs[..if is_lstm { 3 } else { 2 }].to_vec();
    reads.extend(recurrent_reads(cell));
    reads.push((Float32, OUTPUTS));
    let gates = if is_lstm { LSTM_GATES } else { GRU_GATES };
    let mut writes = vec![(Float32, gates), (Float32, before), (Float32, UNITS)];
    match is_lstm {
        true => writes.extend([(Float32, UNITS), (Float32, &[2, 3, 18])]),
        false => writes.push((Float32, gates)),
    }
    sample(Kernel::RecurrentGradient(recurrence(cell)), &reads, &writes)
}

/// Samples of some gradients of attention with respect to queries, keys and values.
fn attention_gradients(of: fn(AttentionOptions) -> Kernel, writes: Range<usize>) -> Vec<Result<Sample, TensorError>> {
    let logarithms: Sizes = &[2, 4, 12, 2];
    let capped = AttentionOptions { softcap: 2.0, causal: None, ..ATTENDS };
    // The first rows attend to no key, as can happen in a part of the keys.
    let later = AttentionOptions { causal: Some(-5), ..ATTENDS };
    let mut samples = vec![
        floats(of(ATTENDS), &[HEADS, HEADS, HEADS, HEADS, HEADS, logarithms], &[HEADS; 3][writes.clone()]),
        floats(
            of(capped),
            &[HEADS, HEADS, GROUPS, GROUPS, HEADS, logarithms, &[1, 4, 12, 20]],
            &[HEADS, GROUPS, GROUPS][writes.clone()],
        ),
    ];
    if !writes.contains(&0) {
        samples.push(floats(of(later), &[HEADS, HEADS, GROUPS, GROUPS, HEADS, logarithms], &[GROUPS; 2]));
    }
    samples
}

const SIXTEEN_BITS: [DataType; 2] = [DataType::Float16, DataType::BFloat16];
/// Images, channels and spatial sizes.
const IMAGE: Sizes = &[2, 4, 6, 5];
const CHANNELS: Sizes = &[4];
const WEIGHTS: Sizes = &[4, 4, 3, 3];
const ROWS: Sizes = &[6, 32];
const VECTOR: Sizes = &[96];
const ONE: Sizes = &[1];
/// Sizes of queries, and of keys with the same number of heads.
const HEADS: Sizes = &[2, 4, 12, 8];
/// Sizes of keys that are each shared by two heads.
const GROUPS: Sizes = &[2, 2, 20, 8];
const ATTENDS: AttentionOptions = AttentionOptions { scale: 0.25, softcap: 0.0, causal: Some(0) };

/// At least one launch of every kernel.
pub fn all() -> Vec<Sample> {
    KernelKind::ALL.iter().copied().flat_map(of).collect()
}

/// Like [`all`], without exchanges between processes, which go through the host on every device.
pub fn on_devices() -> Vec<Sample> {
    let kinds = KernelKind::ALL.iter().copied().filter(|kind| *kind != KernelKind::Exchange);
    kinds.flat_map(of).collect()
}

/// The samples again with 16-bit operands: products with all operands in 16 bits and, if allowed, with float32 results, and
/// [`stored_in_sixteen_bits`].
pub fn of_sixteen_bits() -> Vec<Sample> {
    let is_product = |sample: &Sample| sample.kernel.facts().types.are_of_products();
    let products: Vec<Sample> = all().into_iter().filter(is_product).collect();
    let of_kind = |kind| products.iter().filter_map(move |sample| sample.clone().in_type(kind));
    let narrow: Vec<Sample> = SIXTEEN_BITS.into_iter().flat_map(of_kind).collect();
    let stays_wide = |sample: &&Sample| sample.kernel.facts().types == ElementTypes::WideningProducts;
    let wide = |sample: &Sample| {
        let writes = sample.writes.iter().map(|desc| in_type(desc, Float32)).collect::<Option<_>>()?;
        Some(Sample { writes, ..sample.clone() })
    };
    let wide: Vec<Sample> = narrow.iter().filter(stays_wide).filter_map(wide).collect();
    [narrow, wide, stored_in_sixteen_bits()].concat()
}

/// The samples in which some operands can be stored in 16 bits ([`SixteenBit`]): with all of these operands in 16 bits, with only the
/// reads, and with only the writes.
///
/// [`SixteenBit`]: super::facts::SixteenBit
pub fn stored_in_sixteen_bits() -> Vec<Sample> {
    let choices = [[true, true], [true, false], [false, true]].into_iter();
    let all_choices = SIXTEEN_BITS.into_iter().flat_map(|kind| choices.clone().map(move |choice| (kind, choice)));
    let mut samples: Vec<Sample> = Vec::new();
    for sample in all() {
        let own = sample.kernel.facts().sixteen_bit;
        let stored = |(kind, [reads, writes]): (DataType, [bool; 2])| {
            let chosen = |descs: &[TensorDesc], numbers: &[usize]| {
                let desc = |(number, desc): (usize, &TensorDesc)| match numbers.contains(&number) {
                    true => in_type(desc, kind),
                    false => Some(desc.clone()),
                };
                descs.iter().enumerate().map(desc).collect::<Option<Vec<_>>>()
            };
            let reads = chosen(&sample.reads, if reads { own.reads } else { &[] })?;
            let writes = chosen(&sample.writes, if writes { own.writes } else { &[] })?;
            Some(Sample { kernel: sample.kernel.clone(), reads, writes }).filter(|other| *other != sample)
        };
        samples.extend(all_choices.clone().filter_map(stored));
    }
    // Kernels that only read or only write such operands have fewer variants.
    samples.dedup();
    samples
}

/// The same descriptor, strides included, with another element type.
fn in_type(desc: &TensorDesc, data_type: DataType) -> Option<TensorDesc> {
    TensorDesc::strided(data_type, desc.sizes(), &desc.effective_strides()).ok()
}

/// The samples of a kernel.
pub fn of(kind: KernelKind) -> Vec<Sample> {
    let samples = launches(kind).into_iter().collect::<Result<Vec<_>, _>>();
    // Always valid: sizes are small, and every dimension has one.
    samples.unwrap_or_default()
}

fn launches(kind: KernelKind) -> Vec<Result<Sample, TensorError>> {
    let (epsilon, activation) = (1e-5, Activation::Relu);
    let convolution = Convolution { window: window(), groups: 1 };
    let gradient = Summing::BatchGradient { epsilon, activation };
    let entropy = Summing::CrossEntropy { axis: 1, ignore_index: None };
    let (starts, steps) = (vec![1, 2], vec![2, 3]);
    match kind {
        KernelKind::Unary => vec![floats(Kernel::Unary(UnaryOp::Tanh), &[VECTOR], &[VECTOR])],
        KernelKind::UnaryGradient => {
            vec![floats(Kernel::UnaryGradient(UnaryOp::Sigmoid), &[VECTOR, VECTOR], &[VECTOR])]
        }
        KernelKind::Binary => {
            vec![floats(Kernel::Binary { op: BinaryOp::Add, activation }, &[VECTOR, VECTOR], &[VECTOR])]
        }
        KernelKind::Select => {
            vec![sample(Kernel::Select, &[(Bool, VECTOR), (Float32, VECTOR), (Float32, VECTOR)], &[(Float32, VECTOR)])]
        }
        KernelKind::Cast => vec![sample(Kernel::cast(), &[(Float32, VECTOR)], &[(Bool, VECTOR)])],
        KernelKind::Copy => vec![floats(Kernel::Copy, &[ROWS], &[ROWS])],
        KernelKind::Slice => vec![floats(Kernel::Slice { starts, steps }, &[ROWS], &[&[2, 10]])],
        KernelKind::SliceGradient => vec![floats(Kernel::SliceGradient { starts, steps }, &[&[2, 10]], &[ROWS])],
        KernelKind::Pad => {
            vec![floats(Kernel::Pad { begins: vec![1, 1], mode: PadMode::Constant(0.5) }, &[ROWS], &[&[8, 34]])]
        }
        KernelKind::Fill => vec![floats(Kernel::Fill { value: 3.0 }, &[], &[VECTOR])],
        KernelKind::Reduce => vec![
            floats(Kernel::Reduce { op: ReduceOp::Sum, axes: vec![1] }, &[ROWS], &[&[6, 1]]),
            floats(Kernel::Reduce { op: ReduceOp::Sum, axes: vec![0] }, &[ROWS], &[&[32]]),
        ],
        KernelKind::Softmax => vec![floats(Kernel::Softmax { axis: 1 }, &[ROWS], &[ROWS])],
        KernelKind::LogSoftmax => vec![floats(Kernel::LogSoftmax { axis: 1 }, &[ROWS], &[ROWS])],
        KernelKind::SoftmaxGradient => vec![floats(Kernel::SoftmaxGradient { axis: 1 }, &[ROWS, ROWS], &[ROWS])],
        KernelKind::LogSoftmaxGradient => vec![floats(Kernel::LogSoftmaxGradient { axis: 1 }, &[ROWS, ROWS], &[ROWS])],
        KernelKind::SoftmaxCrossEntropy => vec![sample(
            Kernel::SoftmaxCrossEntropy { axis: 1, ignore_index: None },
            &[(Float32, ROWS), (Int64, &[6])],
            &[(Float32, ONE)],
        )],
        KernelKind::SoftmaxCrossEntropyGradient => vec![sample(
            Kernel::SoftmaxCrossEntropyGradient { axis: 1, ignore_index: None },
            &[(Float32, ONE), (Float32, ROWS), (Int64, &[6])],
            &[(Float32, ROWS)],
        )],
        KernelKind::MeanSquaredError => vec![floats(Kernel::MeanSquaredError, &[VECTOR, VECTOR], &[ONE])],
        KernelKind::MeanSquaredErrorGradient => {
            vec![floats(Kernel::MeanSquaredErrorGradient, &[ONE, VECTOR, VECTOR], &[VECTOR])]
        }
        KernelKind::MatMul => vec![
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
            .and_then(|sample| sample.with_read(2, TensorDesc::strided(Float32, &[10, 14], &[0, 1])?)),
        ],
        KernelKind::Convolution => {
            vec![floats(Kernel::Convolution { convolution, activation }, &[IMAGE, WEIGHTS, CHANNELS], &[IMAGE])]
        }
        KernelKind::ConvolutionDataGradient => vec![floats(
            Kernel::ConvolutionDataGradient { convolution, activation: Activation::None },
            &[IMAGE, WEIGHTS],
            &[IMAGE],
        )],
        KernelKind::ConvolutionWeightGradient => {
            vec![floats(Kernel::ConvolutionWeightGradient { convolution }, &[IMAGE, IMAGE], &[WEIGHTS])]
        }
        KernelKind::IntegerProduct => vec![
            sample(
                Kernel::IntegerProduct { transpose_b: false },
                &[(UInt8, &[2, 10, 18]), (Int8, &[18, 14]), (UInt8, &[1, 1]), (Int8, &[1, 14])],
                &[(Int32, &[2, 10, 14])],
            ),
            sample(
                Kernel::IntegerProduct { transpose_b: true },
                &[
                    (Int8, &[10, 19]),
                    (Int8, &[14, 19]),
                    (Int8, &[10, 1]),
                    (Int8, &[1, 1]),
                    (Int32, &[1, 14]),
                    (Float32, &[1, 1]),
                    (UInt8, &[1, 1]),
                ],
                &[(UInt8, &[10, 14])],
            ),
        ],
        KernelKind::IntegerConvolution => vec![
            sample(
                Kernel::IntegerConvolution { convolution: convolution.clone() },
                &[(UInt8, IMAGE), (Int8, WEIGHTS), (UInt8, ONE), (Int8, CHANNELS)],
                &[(Int32, IMAGE)],
            ),
            sample(
                Kernel::IntegerConvolution { convolution },
                &[
                    (UInt8, IMAGE),
                    (Int8, WEIGHTS),
                    (UInt8, ONE),
                    (Int8, ONE),
                    (Int32, CHANNELS),
                    (Float32, CHANNELS),
                    (Int8, ONE),
                ],
                &[(Int8, IMAGE)],
            ),
        ],
        KernelKind::Pool => vec![floats(Kernel::Pool { op: PoolOp::Max, window: window() }, &[IMAGE], &[IMAGE])],
        KernelKind::PoolGradient => {
            vec![floats(Kernel::PoolGradient { op: PoolOp::Max, window: window() }, &[IMAGE, IMAGE], &[IMAGE])]
        }
        KernelKind::BatchNormalization => vec![floats(
            Kernel::BatchNormalization { epsilon, activation },
            &[IMAGE, CHANNELS, CHANNELS, CHANNELS, CHANNELS],
            &[IMAGE],
        )],
        KernelKind::BatchNormalizationTraining => {
            let of_groups = |group_size| {
                let kernel = Kernel::BatchNormalizationTraining { epsilon, activation, group_size };
                floats(kernel, &[IMAGE, CHANNELS, CHANNELS], &[IMAGE, CHANNELS, CHANNELS])
            };
            vec![of_groups(1), of_groups(2)]
        }
        KernelKind::BatchNormalizationGradient => {
            let of_groups = |group_size| {
                let kernel = Kernel::BatchNormalizationGradient { epsilon, activation, group_size };
                let reads = [IMAGE, IMAGE, CHANNELS, CHANNELS, CHANNELS, CHANNELS];
                floats(kernel, &reads, &[IMAGE, CHANNELS, CHANNELS])
            };
            vec![of_groups(1), of_groups(2)]
        }
        KernelKind::RunningStatistics => vec![floats(
            Kernel::RunningStatistics { momentum: 0.9, correction: 1.0 },
            &[CHANNELS, CHANNELS],
            &[CHANNELS],
        )],
        KernelKind::LayerNormalization => {
            vec![floats(Kernel::LayerNormalization { axis: 1, epsilon }, &[ROWS, &[32], &[32]], &[ROWS, &[6], &[6]])]
        }
        KernelKind::LayerNormalizationGradient => vec![floats(
            Kernel::LayerNormalizationGradient { axis: 1 },
            &[ROWS, ROWS, &[32], &[6], &[6]],
            &[ROWS, &[32], &[32]],
        )],
        KernelKind::Attention => vec![
            floats(Kernel::Attention(ATTENDS), &[HEADS, HEADS, HEADS, &[2, 1, 12, 12]], &[HEADS, &[2, 4, 12, 2]]),
            sample(
                Kernel::Attention(AttentionOptions { softcap: 2.0, causal: None, ..ATTENDS }),
                &[(Float32, HEADS), (Float32, GROUPS), (Float32, GROUPS), (Bool, &[2, 1, 1, 20])],
                &[(Float32, HEADS), (Float32, &[2, 4, 12, 2])],
            ),
        ],
        KernelKind::AttentionGradient => attention_gradients(Kernel::AttentionGradient, 0..3),
        KernelKind::AttentionQueryGradient => attention_gradients(Kernel::AttentionQueryGradient, 0..1),
        KernelKind::AttentionKeyGradient => attention_gradients(Kernel::AttentionKeyGradient, 1..3),
        KernelKind::LocalResponseNormalization => vec![floats(
            Kernel::LocalResponseNormalization { size: 3, alpha: 1e-4, beta: 0.75, bias: 1.0 },
            &[IMAGE],
            &[IMAGE],
        )],
        KernelKind::LocalResponseNormalizationGradient => vec![floats(
            Kernel::LocalResponseNormalizationGradient { size: 3, alpha: 1e-4, beta: 0.75, bias: 1.0 },
            &[IMAGE, IMAGE],
            &[IMAGE],
        )],
        KernelKind::Gather => {
            vec![sample(Kernel::Gather { axis: 0 }, &[(Float32, ROWS), (Int64, &[4])], &[(Float32, &[4, 32])])]
        }
        KernelKind::GatherGradient => {
            vec![sample(Kernel::GatherGradient { axis: 0 }, &[(Float32, &[4, 32]), (Int64, &[4])], &[(Float32, ROWS)])]
        }
        KernelKind::Scatter => [ScatterOp::Replace, ScatterOp::Add, ScatterOp::Multiply, ScatterOp::Maximum]
            .map(|op| {
                let reads = [(Float32, ROWS), (Int64, &[4][..]), (Float32, &[4, 32][..])];
                sample(Kernel::Scatter { op }, &reads, &[(Float32, ROWS)])
            })
            .into(),
        KernelKind::TopK => {
            let kernel = Kernel::TopK { axis: 1, largest: true, nan_first: true, last: false };
            vec![sample(kernel, &[(Float32, ROWS)], &[(Int64, &[6, 5])])]
        }
        KernelKind::Scan => vec![
            floats(Kernel::Scan { axis: 1, op: ScanOp::Sum, exclusive: false, reverse: false }, &[ROWS], &[ROWS]),
            floats(Kernel::Scan { axis: 1, op: ScanOp::Product, exclusive: true, reverse: false }, &[ROWS], &[ROWS]),
            floats(
                Kernel::Scan { axis: 1, op: ScanOp::Recurrence, exclusive: false, reverse: true },
                &[ROWS, ROWS],
                &[ROWS],
            ),
        ],
        KernelKind::PoolIndices => {
            vec![sample(Kernel::PoolIndices { window: window() }, &[(Float32, IMAGE)], &[(Int64, IMAGE)])]
        }
        KernelKind::Dropout => vec![sample(
            Kernel::Dropout { ratio: 0.5, node: 2, first: 0 },
            &[(Float32, VECTOR), (Int64, &[2])],
            &[(Float32, VECTOR), (Bool, VECTOR)],
        )],
        KernelKind::Random => {
            vec![sample(Kernel::Random { node: 2, first: 0 }, &[(Int64, &[2])], &[(Float32, VECTOR)])]
        }
        KernelKind::Sgd => vec![
            floats(Kernel::Sgd { nesterov: false, decays: true }, &[VECTOR, VECTOR, VECTOR, &[3]], &[VECTOR, VECTOR]),
            floats(Kernel::Sgd { nesterov: false, decays: false }, &[VECTOR, VECTOR, &[3]], &[VECTOR]),
        ],
        KernelKind::Adam => vec![sample(
            Kernel::Adam { decoupled: false, decays: true },
            &[
                (Float32, VECTOR),
                (Float32, VECTOR),
                (Float32, VECTOR),
                (Float32, VECTOR),
                (Int64, &[2]),
                (Float32, &[10]),
            ],
            &[(Float32, VECTOR), (Float32, VECTOR), (Float32, VECTOR)],
        )],
        KernelKind::Adam8Bit => {
            // Nine full blocks and a partial one.
            let (elements, blocks): (&[u64], &[u64]) = (&[2400], &[10]);
            let state = [(UInt8, elements), (Float32, blocks), (UInt8, elements), (Float32, blocks)];
            let reads = [&[(Float32, elements); 2], &state[..], &[(Int64, &[2]), (Float32, &[10])]].concat();
            let writes = [&[(Float32, elements)], &state[..]].concat();
            vec![sample(Kernel::Adam8Bit { decoupled: false, decays: true }, &reads, &writes)]
        }
        KernelKind::Recurrent => vec![recurrent(LSTM), recurrent(GRU)],
        KernelKind::RecurrentGradient => vec![recurrent_gradient(LSTM), recurrent_gradient(GRU)],
        KernelKind::Sums => vec![
            sample(
                Kernel::Sums { of: Summing::BatchStatistics { group_size: 1 } },
                &[(Float32, IMAGE)],
                &[(Float64, &[4, 4])],
            ),
            sample(
                Kernel::Sums { of: gradient },
                &[
                    (Float32, IMAGE),
                    (Float32, IMAGE),
                    (Float32, CHANNELS),
                    (Float32, CHANNELS),
                    (Float32, CHANNELS),
                    (Float32, CHANNELS),
                ],
                &[(Float64, &[3, 4])],
            ),
            sample(
                Kernel::Sums { of: Summing::SquaredError },
                &[(Float32, VECTOR), (Float32, VECTOR)],
                &[(Float64, &[2, 1])],
            ),
            sample(
                Kernel::Sums { of: Summing::LayerGradient { axis: 1 } },
                &[(Float32, ROWS), (Float32, ROWS), (Float32, &[6]), (Float32, &[6])],
                &[(Float64, &[2, 32])],
            ),
            sample(Kernel::Sums { of: Summing::Rows { axes: 1 } }, &[(Float32, ROWS)], &[(Float64, &[2, 32])]),
            sample(Kernel::Sums { of: entropy }, &[(Float32, ROWS), (Int64, &[6])], &[(Float64, &[2, 1])]),
            sample(Kernel::Sums { of: Summing::Channels }, &[(Float32, IMAGE)], &[(Float64, &[1, 4])]),
        ],
        KernelKind::AddSums => vec![
            sample(
                Kernel::AddSums { of: Summing::BatchStatistics { group_size: 1 } },
                &[(Float64, &[4, 4]), (Float64, &[4, 4])],
                &[(Float64, &[4, 4])],
            ),
            sample(Kernel::AddSums { of: gradient }, &[(Float64, &[3, 4]), (Float64, &[3, 4])], &[(Float64, &[3, 4])]),
            sample(
                Kernel::AddSums { of: Summing::Rows { axes: 1 } },
                &[(Float64, &[2, 32]), (Float64, &[2, 32])],
                &[(Float64, &[2, 32])],
            ),
        ],
        KernelKind::Exchange => {
            // An exchange of a single process.
            let exchange = Exchange::gather(0, 0, &[384]);
            let kernel = Kernel::Exchange(exchange);
            vec![sample(kernel, &[(Float32, VECTOR), (Float32, ONE)], &[(Float32, VECTOR), (Float32, ONE)])]
        }
        KernelKind::FromSums => vec![
            sample(
                Kernel::FromSums { of: Summing::BatchStatistics { group_size: 1 } },
                &[(Float64, &[4, 4])],
                &[(Float32, CHANNELS), (Float32, CHANNELS)],
            ),
            sample(
                Kernel::FromSums { of: Summing::BatchStatistics { group_size: 2 } },
                &[(Float64, &[4, 4])],
                &[(Float32, CHANNELS), (Float32, CHANNELS)],
            ),
            sample(Kernel::FromSums { of: entropy }, &[(Float64, &[2, 1])], &[(Float32, ONE)]),
        ],
    }
}

impl Sample {
    /// The kernel and the type of its first write, for display.
    pub fn name(&self) -> String {
        let data_type = self.writes.first().map(|desc| desc.data_type().to_string());
        format!("{} of {}", self.kernel.name(), data_type.unwrap_or_default())
    }

    fn with_read(mut self, index: usize, desc: TensorDesc) -> Result<Sample, TensorError> {
        self.reads[index] = desc;
        Ok(self)
    }

    /// The same sample, strides included, with another type for all operands.
    fn in_type(mut self, data_type: DataType) -> Option<Sample> {
        for desc in self.reads.iter_mut().chain(&mut self.writes) {
            *desc = in_type(desc, data_type)?;
        }
        Some(self)
    }
}
