//! The closed set of kernels: what lowering emits and devices run.
//!
//! A kernel's shapes and data types come from the descriptors of its bindings; its variant holds only what they do not say.
//! Unless stated, tensors are packed `float32`. Every result is a function of operands alone: never of addresses, budgets
//! or the number of threads. `[...]` after a name gives its shape.
//!
//! | kernel | reads | writes |
//! |---|---|---|
//! | `Unary` | x (strides allowed) | y |
//! | `UnaryGradient` | dy, x or y (see [`UnaryOp::gradient_uses_output`]) | dx |
//! | `Binary` | a, b (strides allowed: 0 broadcasts) | y (bool for comparisons) |
//! | `Select` | condition (bool), a, b (strides allowed) | y |
//! | `Cast` | x | y (another type) |
//! | `Copy` | x (strides allowed) | y (strides allowed), same sizes and type |
//! | `Slice` | x | y |
//! | `SliceGradient` | dy | dx, 0 where nothing was taken |
//! | `Pad` | x | y |
//! | `Fill` | | y |
//! | `Reduce` | x | y, reduced axes of size 1 or absent |
//! | `Softmax`, `LogSoftmax` | x | y |
//! | `SoftmaxGradient`, `LogSoftmaxGradient` | dy, y | dx |
//! | `SoftmaxCrossEntropy` | logits, labels (int64 or int32) | loss\[1] |
//! | `SoftmaxCrossEntropyGradient` | dloss\[1], logits, labels, optional sums | dlogits |
//! | `MeanSquaredError` | prediction, target | loss\[1] |
//! | `MeanSquaredErrorGradient` | dloss\[1], prediction, target, optional sums | dprediction |
//! | `MatMul` | a[.., m, k], b[.., k, n], y unless `Whole` (see [`ProductPart`]), optional c (broadcast by strides to y) | y[.., m, n] |
//! | `Convolution` | x[n, c, ..], w[k, c/g, ..], optional bias\[k] | y[n, k, ..] |
//! | `ConvolutionDataGradient` | dy[n, k, ..], w[k, c/g, ..], optional bias\[c] | dx[n, c, ..] |
//! | `ConvolutionWeightGradient` | x[n, c, ..], dy[n, k, ..] | dw[k, c/g, ..] |
//! | `IntegerProduct` | a[.., m, k], b[.., k, n] (uint8, int8), zero points of a[.., m or 1, 1] and b[.., 1, n or 1] | y[.., m, n] (int32) |
//! | | the same, bias (int32), scale, y's zero point (all broadcast to y) | y[.., m, n] (uint8, int8) |
//! | `IntegerConvolution` | x[n, c, ..], w[k, c/g, ..] (uint8, int8), zero points of x\[1] and w\[k or 1] | y[n, k, ..] (int32) |
//! | | the same, bias\[k or 1] (int32), scale\[k or 1], y's zero point\[1] | y[n, k, ..] (uint8, int8) |
//! | `Pool` | x[n, c, ..] | y[n, c, ..] |
//! | `PoolGradient` | dy, and x for `Max` | dx |
//! | `BatchNormalization` | x[n, c, ..], scale\[c], bias\[c], mean\[c], variance\[c] | y |
//! | `BatchNormalizationTraining` | x, scale, bias | y, mean\[c], variance\[c] (of the batch, biased; each channel has those of its group) |
//! | `BatchNormalizationGradient` | dy, x, scale, bias, mean, variance (of the batch) | dx, dscale, dbias |
//! | | the same, sums | dx |
//! | `RunningStatistics` | running\[c], batch\[c] | running\[c] |
//! | `LayerNormalization` | x, scale, optional bias | y, mean\[rows], inverse_deviation\[rows] |
//! | `LayerNormalizationGradient` | dy, x, scale, mean, inverse_deviation | dx, dscale, dbias; or dx alone |
//! | `Attention` | q[n, h, m, d], k[n, g, l, d], v[n, g, l, e], optional mask (see [`AttentionOptions`]) | y[n, h, m, e], logarithms\[n, h, m] |
//! | `AttentionGradient` | dy, q, k, v, y, logarithms, optional mask | dq, dk, dv |
//! | `AttentionQueryGradient` | the same | dq |
//! | `AttentionKeyGradient` | the same | dk, dv |
//! | `LocalResponseNormalization` | x[n, c, ..] | y |
//! | `LocalResponseNormalizationGradient` | dy, x | dx |
//! | `Gather` | data, indices (int32, int64) | y |
//! | `GatherGradient` | dy, indices | ddata |
//! | `Scatter` | data\[n, ..], indices\[m] (int32, int64), updates\[m, ..] | y\[n, ..] |
//! | `TopK` | x | indices along the axis (int64), of size k there |
//! | `Scan` | x, and factors for `Recurrence` | y |
//! | `PoolIndices` | x[n, c, ..] | places in the channel (int64)\[n, c, ..] |
//! | `Dropout` | x, step\[2] (int64: the step's number, the seed) | y (a bool mask second, where two outputs are bound) |
//! | `Random` | step\[2] (as above) | y, of numbers in 0..1 |
//! | `Sgd` | parameter, gradient, velocity where there is momentum, hyperparameters\[3] (float32) | parameter, velocity likewise |
//! | `Adam` | parameter, gradient, first, second, step\[2] (as above, from 1), hyperparameters\[10] (float32) | parameter, first, second |
//! | `Adam8Bit` | parameter\[n], gradient\[n], codes\[n] (uint8) and scales\[blocks] of first, codes and scales of second, step\[2] (as above), hyperparameters\[10] (float32); see [`quantization`] | parameter, codes and scales of first, codes and scales of second |
//! | `Recurrent` | gates\[steps, n, directions, g h] without what the state adds, w\[directions, g h, h], bias\[directions, g h], lengths\[n] (int32), first h\[directions, n, h]; of an LSTM: first c, peepholes\[directions, 3 h] | y\[steps, directions, n, h], last h, last c of an LSTM |
//! | `RecurrentGradient` | dy, dlast h, dlast c of an LSTM; what `Recurrent` reads; y | dgates, h before each step\[directions, steps, n, h], dfirst h; of an LSTM: dfirst c, dpeepholes\[directions, n, 3 h]; of a GRU: dgates as the state sees them (`resets_after`), or the reset h before each step |
//! | `Sums` | what the summing kernel reads | sums (float64, see [`Summing`]) |
//! | `AddSums` | sums of some positions, sums of those behind them | sums of both |
//! | `Exchange` | x, order\[1] (see [`Exchange`]) | y, order\[1] |
//! | `FromSums` | sums, and for `BatchNormalizationGradient` the batch's variance\[c] | what the kernel writes per channel or once |
//!
//! # Operands of 16 bits
//!
//! Products and convolutions take operands that are all float16 or all bfloat16; their sums are float32, and each result is rounded once.
//! Other kernels that compute in float32 may read or write some of their operands in 16 bits, each in a type of its own
//! ([`KernelFacts::sixteen_bit`]): elementwise functions their numbers, batch normalisation x, dy, y and dx. Such a launch has the bits of
//! conversions (`Cast`) around the launch in float32.
//!
//! # Reduction block boundaries
//!
//! A sum over positions (images and spatial places) is made of *reduction blocks*: a reduction block is a number of whole images, or
//! as many rows of one image, as [`reduction_block`] (weights), [`reduction_block_of_channels`], [`reduction_block_of_losses`] or
//! [`reduction_block_rows`] says. A row is what one index of the first spatial dimension holds. Within a block, terms are added in a
//! fixed order; blocks are the leaves of a [sum tree](crate::sum_tree), those of an image a subtree. Where blocks lie does not depend
//! on how much there is to sum, so a part that is a node of the tree makes the sum that the whole has there: parts whose sums are
//! added as the tree says ([`Kernel::AddSums`]) add up to the bits of the whole.
//!
//! The reduction blocks of a matrix product are [`PRODUCT_TERMS`] of its terms each, counted from the first on. A row is computed from its own
//! terms alone, whichever rows are computed with it. [`PRODUCT_ROWS`] and [`PRODUCT_COLUMNS`] are what devices compute at once; parts of columns
//! begin at multiples of these.
//!
//! # 16-bit products
//!
//! `MatMul`, `Convolution`, `ConvolutionDataGradient` and `ConvolutionWeightGradient` also take operands that are all `float16`
//! or all `bfloat16`. Everything is computed in `float32`, of the widened operands: products, sums (with the same reduction
//! blocks), factors, summand or bias, activation. What is written is rounded once, to nearest even. Parts of a sum would be rounded
//! before they are added, and not add up to the bits of the whole: terms of products and positions of weight gradients of 16 bits
//! are never cut.
//!
//! # Integer products
//!
//! `IntegerProduct` and `IntegerConvolution` multiply integers of 8 bits less their zero points, which have the types of what they belong
//! to. Sums are exact in 32 bits, and wrap around. Padding is the zero point. A result of 8 bits is the sum and the bias as float32,
//! times the scale, rounded to the nearest integer (even in the middle), plus y's zero point, saturated.

mod attention;
mod exchange;
pub mod facts;
mod functions;
mod hyperparameters;
mod kinds;
mod lines;
pub mod opcodes;
pub mod quantization;
mod recurrence;
pub mod samples;
mod summing;

use std::fmt;

use crate::narrow::Narrowing;

pub use attention::{ATTENTION_KEYS, ATTENTION_ROWS, ATTENTION_SIZE_MAX, AttentionOptions};
pub use exchange::{EXCHANGES_MAX, Exchange};
pub use facts::{Indices, KernelFacts};
pub use functions::{BinaryOp, UnaryOp};
pub use hyperparameters::{AdamHyperparameters, SgdHyperparameters};
pub use kinds::KernelKind;
pub use recurrence::{Recurrence, RecurrentActivation, RecurrentCell, RecurrentDirection, state_steps};
pub use summing::{
    ReductionBlock, Summing, add_statistics, check_group_size, reduction_block, reduction_block_of_channels,
    reduction_block_of_losses, reduction_block_rows, reduction_block_rows_of_image, sums_rows,
};

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Arithmetic mean.
    Mean,
    /// Largest.
    Max,
    /// Smallest.
    Min,
    /// Product.
    Product,
    /// Sum of absolute values.
    L1,
    /// Square root of the sum of squares.
    L2,
    /// Sum of squares.
    SumSquare,
}

/// What becomes of an element that a scatter gives updates to, which come in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterOp {
    /// The last update takes its place.
    Replace,
    /// Updates are added to it.
    Add,
    /// It is multiplied by updates.
    Multiply,
    /// The smallest; NaN if any is.
    Minimum,
    /// The largest; NaN if any is.
    Maximum,
}

/// How a scan goes on from one element to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanOp {
    /// Sums, from 0.
    Sum,
    /// Products, from 1.
    Product,
    /// y\[t] = x\[t] + factors\[t - 1] y\[t - 1], from 0; exclusive: y\[t] = x\[t - 1] + factors\[t - 1] y\[t - 1].
    Recurrence,
}

/// How pooling combines a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolOp {
    /// Largest; the gradient goes to the first largest in row-major order.
    Max,
    /// Mean.
    Average {
        /// Whether padding counts in the divisor.
        count_include_pad: bool,
    },
}

/// A window that slides over the spatial dimensions: one entry per spatial dimension (1 to 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Extent in elements.
    pub kernel: Vec<u64>,
    /// Step in elements.
    pub strides: Vec<u64>,
    /// Distance between taps in elements.
    pub dilations: Vec<u64>,
    /// Padding before, in elements.
    pub pads_begin: Vec<u64>,
    /// Padding after, in elements. Outputs are given by their descriptors, so this is only for the record.
    pub pads_end: Vec<u64>,
}

impl Window {
    /// Whether an element may be seen from several places of the window, so that neighbours share elements.
    ///
    /// ```
    /// use forebay_base::kernel::Window;
    ///
    /// let (dilations, pads) = (vec![1, 1], vec![0, 0]);
    /// let (kernel, strides) = (vec![2, 2], vec![2, 2]);
    /// let window = Window { kernel, strides, dilations, pads_begin: pads.clone(), pads_end: pads };
    /// assert!(!window.overlaps());
    /// assert!(Window { kernel: vec![2, 3], ..window }.overlaps());
    /// ```
    pub fn overlaps(&self) -> bool {
        let reach = self
            .kernel
            .iter()
            .zip(&self.dilations)
            .map(|(&taps, &dilation)| (taps.max(1) - 1).saturating_mul(dilation));
        reach.zip(&self.strides).any(|(reach, &stride)| reach >= stride)
    }
}

/// A convolution; all three directions use the same description (that of the forward one).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// The sliding window.
    pub window: Window,
    /// Number of channel groups.
    pub groups: u64,
}

/// What is applied to a result before it is written (set by fusion).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// Nothing.
    None,
    /// max(x, 0).
    Relu,
    /// min(max(x, low), high), as [`UnaryOp::Clip`]. Products, convolutions and `Binary` of float32 have it.
    Clip {
        /// Lower limit.
        low: f32,
        /// Upper limit.
        high: f32,
    },
    /// Another function of one variable. Products and convolutions of float32 have it, and what adds the parts of a product.
    Function(UnaryOp),
}

impl Activation {
    /// What applies this function to a result.
    pub fn of(op: UnaryOp) -> Activation {
        match op {
            UnaryOp::Relu => Activation::Relu,
            UnaryOp::Clip { low, high } => Activation::Clip { low, high },
            op => Activation::Function(op),
        }
    }

    /// The function that it applies where limits alone do not say what it does.
    pub fn function(self) -> Option<UnaryOp> {
        match self {
            Activation::Function(op) => Some(op),
            Activation::None | Activation::Relu | Activation::Clip { .. } => None,
        }
    }

    /// The limits that it applies, lower and upper. NaN stays NaN.
    pub fn limits(self) -> [f32; 2] {
        match self {
            Activation::None | Activation::Function(_) => [f32::NEG_INFINITY, f32::INFINITY],
            Activation::Relu => [0.0, f32::INFINITY],
            Activation::Clip { low, high } => [low, high],
        }
    }

    /// Whether it is a ReLU, for kernels that apply one or nothing.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn is_relu(self) -> Result<bool, String> {
        match self {
            Activation::None => Ok(false),
            Activation::Relu => Ok(true),
            Activation::Clip { .. } | Activation::Function(_) => {
                Err(format!("batch normalisation applies a ReLU or nothing, not {self:?}"))
            }
        }
    }
}

/// How padding is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// With a constant.
    Constant(f32),
    /// By reflection without repeating the edge.
    Reflect,
    /// With the nearest element.
    Edge,
}

/// Which part of a matrix product a launch computes. Where there are no batches, rows of operands may lie apart (strides),
/// so that columns of a larger matrix are an operand, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductPart {
    /// All of it: y = activation(alpha a b + beta c).
    Whole,
    /// The columns from `first` on, as many as b has. The others stay as they are in y, which is read in its place, unless
    /// `first` is 0: then nothing is said of them.
    Columns {
        /// The first column.
        first: u64,
    },
}

impl ProductPart {
    /// Whether y is read (third) as well as written.
    pub fn reads_result(self) -> bool {
        match self {
            ProductPart::Whole => false,
            ProductPart::Columns { first } => first > 0,
        }
    }
}

/// Rows of a product that devices compute at once.
pub const PRODUCT_ROWS: u64 = 128;
/// Columns of a product in parts begin at multiples of this.
pub const PRODUCT_COLUMNS: u64 = 256;
/// Terms of a reduction block of a product, but for the last one, which may have fewer.
pub const PRODUCT_TERMS: u64 = 256;

/// One kernel of the closed set; the module's table says what each reads and writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    /// y = op(x).
    Unary(UnaryOp),
    /// dx = dy op'(x).
    UnaryGradient(UnaryOp),
    /// y = op(a, b).
    Binary {
        /// The function.
        op: BinaryOp,
        /// Applied to the result.
        activation: Activation,
    },
    /// y = condition ? a : b.
    Select,
    /// Conversion between data types, as C and NumPy convert; to bool by comparison with 0; to narrow types as [`crate::narrow::encode`].
    Cast(Narrowing),
    /// Moves elements between two strided layouts (any data type).
    Copy,
    /// y\[i] = x\[starts + i steps] per dimension (any data type).
    Slice {
        /// First index per dimension.
        starts: Vec<u64>,
        /// Step per dimension, may be negative.
        steps: Vec<i64>,
    },
    /// The transpose of `Slice`.
    SliceGradient {
        /// First index per dimension.
        starts: Vec<u64>,
        /// Step per dimension, may be negative.
        steps: Vec<i64>,
    },
    /// Adds elements around x; the sizes after follow from the descriptors.
    Pad {
        /// Elements before, per dimension.
        begins: Vec<u64>,
        /// What is added.
        mode: PadMode,
    },
    /// Every element is `value` (converted to y's type).
    Fill {
        /// The value.
        value: f64,
    },
    /// Combines the elements along axes.
    Reduce {
        /// The combination.
        op: ReduceOp,
        /// Axes of x, ascending.
        axes: Vec<usize>,
    },
    /// exp(x - max) / sum along an axis.
    Softmax {
        /// The axis.
        axis: usize,
    },
    /// x - max - ln(sum(exp(x - max))) along an axis.
    LogSoftmax {
        /// The axis.
        axis: usize,
    },
    /// Gradient of `Softmax`.
    SoftmaxGradient {
        /// The axis.
        axis: usize,
    },
    /// Gradient of `LogSoftmax`.
    LogSoftmaxGradient {
        /// The axis.
        axis: usize,
    },
    /// Mean over all label positions that are not ignored of -log softmax(logits)\[label]. A label outside 0..classes
    /// gives NaN (callers check labels first). All ignored gives NaN, as PyTorch.
    SoftmaxCrossEntropy {
        /// The class axis of logits.
        axis: usize,
        /// Label value that does not count.
        ignore_index: Option<i64>,
    },
    /// Gradient of `SoftmaxCrossEntropy` by the logits.
    SoftmaxCrossEntropyGradient {
        /// The class axis of logits.
        axis: usize,
        /// Label value that does not count.
        ignore_index: Option<i64>,
    },
    /// Mean of (prediction - target)^2.
    MeanSquaredError,
    /// Gradient of `MeanSquaredError` by the prediction.
    MeanSquaredErrorGradient,
    /// y = activation(alpha a b + beta c). Batch dimensions broadcast.
    MatMul {
        /// a is given as [.., k, m].
        transpose_a: bool,
        /// b is given as [.., n, k].
        transpose_b: bool,
        /// Factor of the product.
        alpha: f32,
        /// Factor of c.
        beta: f32,
        /// Applied to the result.
        activation: Activation,
        /// What of it is computed.
        part: ProductPart,
    },
    /// Cross-correlation, as every framework's "convolution".
    Convolution {
        /// The description.
        convolution: Convolution,
        /// Applied to the result.
        activation: Activation,
    },
    /// The transposed convolution: gradient by x, and forward pass of ConvTranspose (then with an optional bias).
    ConvolutionDataGradient {
        /// The description (of the forward convolution from dx to dy).
        convolution: Convolution,
        /// Applied to the result.
        activation: Activation,
    },
    /// Gradient by w: sums over images and output positions.
    ConvolutionWeightGradient {
        /// The description.
        convolution: Convolution,
    },
    /// The product of two matrices of 8-bit integers, each less its zero points ([integer products](self#integer-products)). Batch
    /// dimensions broadcast.
    IntegerProduct {
        /// b is given as [.., n, k].
        transpose_b: bool,
    },
    /// The cross-correlation of 8-bit integers, each less its zero point ([integer products](self#integer-products)).
    IntegerConvolution {
        /// The description.
        convolution: Convolution,
    },
    /// Pooling over windows.
    Pool {
        /// The combination.
        op: PoolOp,
        /// The sliding window.
        window: Window,
    },
    /// Gradient of `Pool`.
    PoolGradient {
        /// The combination.
        op: PoolOp,
        /// The sliding window.
        window: Window,
    },
    /// activation(scale (x - mean) / sqrt(variance + epsilon) + bias) with given statistics.
    BatchNormalization {
        /// Added to the variance.
        epsilon: f32,
        /// Applied to the result.
        activation: Activation,
    },
    /// The same with the batch's own statistics, which it also writes.
    BatchNormalizationTraining {
        /// Added to the variance.
        epsilon: f32,
        /// Applied to the result.
        activation: Activation,
        /// Neighbouring channels that share one mean and variance, a divisor of their number: 1 in batch normalization, more in
        /// group normalization of one image.
        group_size: u64,
    },
    /// Gradient of `BatchNormalizationTraining`. With an activation, dy is the gradient by the activated output, and the
    /// activation's mask is computed again from x with the forward pass's own arithmetic.
    BatchNormalizationGradient {
        /// Added to the variance.
        epsilon: f32,
        /// What the forward kernel applied.
        activation: Activation,
        /// Neighbouring channels that shared one mean and variance.
        group_size: u64,
    },
    /// running = momentum running + (1 - momentum) correction batch.
    RunningStatistics {
        /// ONNX's momentum (1 minus PyTorch's).
        momentum: f32,
        /// Factor of the batch statistic (n / (n - 1) makes a biased variance unbiased).
        correction: f32,
    },
    /// Normalisation over the axes from `axis` on.
    LayerNormalization {
        /// First normalised axis of x.
        axis: usize,
        /// Added to the variance.
        epsilon: f32,
    },
    /// Gradient of `LayerNormalization`.
    LayerNormalizationGradient {
        /// First normalised axis of x.
        axis: usize,
    },
    /// y = softmax(scores of q and k) v for every head, without the matrix of scores in memory, and the logarithm of the sum of the
    /// exponentials of each row's scores.
    Attention(AttentionOptions),
    /// Gradient of `Attention` by q, k and v.
    AttentionGradient(AttentionOptions),
    /// The gradient by q alone, of the same bits: for parts of it.
    AttentionQueryGradient(AttentionOptions),
    /// The gradients by k and v alone, of the same bits: for parts of them.
    AttentionKeyGradient(AttentionOptions),
    /// y = x / (bias + alpha / size sum of x^2 over `size` channels around)^beta.
    LocalResponseNormalization {
        /// Number of channels summed.
        size: u64,
        /// Scale of the sum.
        alpha: f32,
        /// Exponent.
        beta: f32,
        /// Summand.
        bias: f32,
    },
    /// Gradient of `LocalResponseNormalization`.
    LocalResponseNormalizationGradient {
        /// Number of channels summed.
        size: u64,
        /// Scale of the sum.
        alpha: f32,
        /// Exponent.
        beta: f32,
        /// Summand.
        bias: f32,
    },
    /// y = slices of data along an axis (any data type). Negative indices count from the end; an index out of range
    /// gives zeros, and the device says so when it is asked.
    Gather {
        /// The axis of data.
        axis: usize,
    },
    /// ddata = sum of dy's slices by index, in row-major order of the indices. Slices whose index is out of range are left
    /// out, and the device says so when it is asked.
    GatherGradient {
        /// The axis of data.
        axis: usize,
    },
    /// y = data, with updates at the rows that the indices name, in the order of the indices. Negative indices count from the end;
    /// updates whose index is out of range are left out, and the device says so when it is asked.
    Scatter {
        /// What becomes of a row that has updates.
        op: ScatterOp,
    },
    /// Where along an axis the first k elements in an order are, of each row; of equal ones that with the lower index comes first.
    /// Zeros of both signs are equal, and so is NaN to NaN.
    TopK {
        /// The axis.
        axis: usize,
        /// From the largest on (else from the smallest).
        largest: bool,
        /// Whether NaN comes before all numbers (else behind them).
        nan_first: bool,
        /// Whether of equal elements that with the higher index comes first.
        last: bool,
    },
    /// Sums or the like of all elements up to each along an axis, one after the other.
    Scan {
        /// The axis.
        axis: usize,
        /// How it goes on.
        op: ScanOp,
        /// Whether an element itself is left out.
        exclusive: bool,
        /// Whether it goes from the last element to the first.
        reverse: bool,
    },
    /// Where in its channel the largest element of each window lies, in row-major order: the first of several, NaN before everything.
    PoolIndices {
        /// The sliding window.
        window: Window,
    },
    /// Zeroes elements with probability `ratio` and scales the others by 1 / (1 - ratio); the mask is a function of
    /// (seed, step, node, element), so the gradient is the same kernel applied to dy.
    Dropout {
        /// Probability of zero, in 0..1.
        ratio: f32,
        /// Number of the node.
        node: u64,
        /// Number of x's first element: parts of a tensor go on counting.
        first: u64,
    },
    /// Numbers in 0..1, equally likely multiples of 2^-24: each is a function of (seed, step, node, element).
    Random {
        /// Number of the node.
        node: u64,
        /// Number of y's first element: parts of a tensor go on counting.
        first: u64,
    },
    /// g = gradient + weight_decay p; v = momentum v + g; p -= learning_rate (nesterov ? g + momentum v : v); without a
    /// velocity, v = g. In place. The numbers are [`SgdHyperparameters`].
    Sgd {
        /// Nesterov's variant.
        nesterov: bool,
        /// Whether the parameter decays; else `weight_decay` is 0 for it.
        decays: bool,
    },
    /// Bias-corrected Adam, epsilon outside the square root; `decoupled` is AdamW. In place. The numbers are
    /// [`AdamHyperparameters`].
    Adam {
        /// Whether decay acts on the parameter (AdamW) instead of the gradient.
        decoupled: bool,
        /// Whether the parameter decays; else `weight_decay` is 0 for it.
        decays: bool,
    },
    /// The same with moments of 8 bits (Dettmers et al. 2021): codes of [`quantization`], each block of elements with a scale. The
    /// parameter follows moments as they are before they become codes. In place.
    Adam8Bit {
        /// Whether decay acts on the parameter (AdamW) instead of the gradient.
        decoupled: bool,
        /// Whether the parameter decays; else `weight_decay` is 0 for it.
        decays: bool,
    },
    /// A recurrent network over whole sequences. Sequence `i` has lengths\[i] elements; what y has behind them is 0.
    Recurrent(Recurrence),
    /// Gradient of `Recurrent`. It computes gates again, from y.
    RecurrentGradient(Recurrence),
    /// The sums of a kernel over some of its positions.
    Sums {
        /// Which sums.
        of: Summing,
    },
    /// Sums of some positions and of those behind them, as one.
    AddSums {
        /// Which sums.
        of: Summing,
    },
    /// What becomes of a kernel's sums once they are complete.
    FromSums {
        /// Which sums.
        of: Summing,
    },
    /// Bytes go from process to process. The second operand, of any contents, is read and written by all exchanges of a step, which
    /// keeps them in order.
    Exchange(Exchange),
}

impl Kernel {
    /// A conversion as ONNX's `Cast` without attributes.
    pub fn cast() -> Kernel {
        Kernel::Cast(Narrowing::default())
    }

    /// y = a b, with factors given as they are or transposed.
    pub const fn product(transpose_a: bool, transpose_b: bool) -> Kernel {
        let (activation, part) = (Activation::None, ProductPart::Whole);
        Kernel::MatMul { transpose_a, transpose_b, alpha: 1.0, beta: 0.0, activation, part }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
