//! The closed set of kernels: lowering emits them and devices run them.
//!
//! The shapes and data types of a kernel come from the descriptors of its bindings; its variant holds only what they do not state. Unless
//! noted otherwise, tensors are packed `float32`. Every result is a function of the operands alone: never of addresses, budgets or the
//! number of threads. `[...]` after a name gives its shape.
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
//! | `SliceGradient` | dy | dx, 0 for elements that were not taken |
//! | `Pad` | x | y |
//! | `Fill` | | y |
//! | `Reduce` | x | y, with reduced axes of size 1 or removed |
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
//! | `BatchNormalizationTraining` | x, scale, bias | y, mean\[c], variance\[c] (of the batch, biased; the same for all channels of a group) |
//! | `BatchNormalizationGradient` | dy, x, scale, bias, mean, variance (of the batch) | dx, dscale, dbias |
//! | | the same, sums | dx |
//! | `RunningStatistics` | running\[c], batch\[c] | running\[c] |
//! | `LayerNormalization` | x, scale, optional bias | y, mean\[rows], inverse_deviation\[rows] |
//! | `LayerNormalizationGradient` | dy, x, scale, mean, inverse_deviation | dx, dscale, dbias; or dx alone |
//! | `Attention` | q[n, h, m, d], k[n, g, l, d], v[n, g, l, e], optional mask (see [`AttentionOptions`]) | y[n, h, m, e], logarithms\[n, h, m, 2] |
//! | `AttentionGradient` | dy, q, k, v, y, logarithms, optional mask | dq, dk, dv |
//! | `AttentionQueryGradient` | the same | dq |
//! | `AttentionKeyGradient` | the same | dk, dv |
//! | `LocalResponseNormalization` | x[n, c, ..] | y |
//! | `LocalResponseNormalizationGradient` | dy, x | dx |
//! | `Gather` | data, indices (int32, int64) | y |
//! | `GatherGradient` | dy, indices | ddata |
//! | `Scatter` | data\[n, ..], indices\[m] (int32, int64), updates\[m, ..] | y\[n, ..] |
//! | `TopK` | x | indices along the axis (int64), with size k along it |
//! | `Scan` | x, and factors for `Recurrence` | y |
//! | `PoolIndices` | x[n, c, ..] | positions in the channel (int64)\[n, c, ..] |
//! | `Dropout` | x, step\[2] (int64: the step's number, the seed) | y (and a bool mask, if two outputs are bound) |
//! | `Random` | step\[2] (as above) | y, numbers in 0..1 |
//! | `Sgd` | parameter, gradient, velocity if there is momentum, hyperparameters\[3] (float32) | parameter, velocity if read |
//! | `Adam` | parameter, gradient, first, second, step\[2] (as above, from 1), hyperparameters\[10] (float32) | parameter, first, second |
//! | `Adam8Bit` | parameter\[n], gradient\[n], codes\[n] (uint8) and scales\[blocks] of first, codes and scales of second, step\[2] (as above), hyperparameters\[10] (float32); see [`quantization`] | parameter, codes and scales of first, codes and scales of second |
//! | `Recurrent` | gates\[steps, n, directions, g h] without the contribution of the state, w\[directions, g h, h], bias\[directions, g h], lengths\[n] (int32), first h\[directions, n, h]; of an LSTM: first c, peepholes\[directions, 3 h] | y\[steps, directions, n, h], last h, last c of an LSTM |
//! | `RecurrentGradient` | dy, dlast h, dlast c of an LSTM; what `Recurrent` reads; y | dgates, h before each step\[directions, steps, n, h], dfirst h; of an LSTM: dfirst c, dpeepholes\[directions, n, 3 h]; of a GRU: dgates as seen by the state (`resets_after`), or the reset h before each step |
//! | `Sums` | what the summing kernel reads | sums (float64, see [`Summing`]) |
//! | `AddSums` | sums of some positions, sums of the positions after them | sums of both |
//! | `Exchange` | x, order\[1] (see [`Exchange`]) | y, order\[1] |
//! | `FromSums` | sums, and for `BatchNormalizationGradient` the batch's variance\[c] | the kernel's results per channel or in total |
//!
//! # Operands of 16 bits
//!
//! Products and convolutions take operands that are all float16 or all bfloat16; their sums are float32, and each result is rounded once.
//! Other kernels that compute in float32 can read or write some of their operands in 16 bits, each operand in its own type
//! ([`KernelFacts::sixteen_bit`]): elementwise functions all numbers, batch normalization x, dy, y and dx. Such a launch gives the same
//! bits as a float32 launch with conversions (`Cast`) around it.
//!
//! # Reduction block boundaries
//!
//! A sum over positions (images and spatial positions) is made of *reduction blocks*. A reduction block is either one or more whole images
//! or one or more rows of one image, as determined by [`reduction_block`] (weights), [`reduction_block_of_channels`],
//! [`reduction_block_of_losses`] or [`reduction_block_rows`]. A row is everything at one index of the first spatial dimension. Within a
//! block, terms are added in a fixed order; blocks are the leaves of a [sum tree](crate::sum_tree), and the blocks of one image form a
//! subtree. Block boundaries do not depend on how much is summed, so a part that is a node of the tree computes the sum that the whole has
//! at that node: parts whose sums are added along the tree ([`Kernel::AddSums`]) give the same bits as the whole.
//!
//! Each reduction block of a matrix product has [`PRODUCT_TERMS`] of its terms, counted from the first. A row is computed from its own
//! terms alone, whichever rows are computed with it. Devices compute [`PRODUCT_ROWS`] rows and [`PRODUCT_COLUMNS`] columns at once; parts
//! of columns begin at multiples of the latter.
//!
//! # 16-bit products
//!
//! `MatMul`, `Convolution`, `ConvolutionDataGradient` and `ConvolutionWeightGradient` also take operands that are all `float16` or all
//! `bfloat16`. Everything is computed in `float32` from the widened operands: products, sums (with the same reduction blocks), factors,
//! summand or bias, activation. Each result is rounded once, to nearest even. Parts of a sum would be rounded before they are added and
//! would not give the same bits as the whole, so 16-bit products are never cut along their terms, nor 16-bit weight gradients along
//! positions.
//!
//! # Integer products
//!
//! `IntegerProduct` and `IntegerConvolution` multiply 8-bit integers after subtracting their zero points, which have the same types as the
//! operands that they belong to. Sums are computed exactly in 32 bits and wrap around on overflow. Padding is the zero point. An 8-bit
//! result is the sum plus the bias as float32, times the scale, rounded to the nearest integer (ties to even), plus the zero point of y,
//! saturated.

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
mod window;

use std::fmt;

use crate::narrow::Narrowing;

pub use attention::{ATTENTION_KEYS, ATTENTION_LOGARITHM_LARGE, ATTENTION_ROWS, ATTENTION_SIZE_MAX, AttentionOptions};
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
pub use window::{Convolution, Window, fills_vectors_with_channels};

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

/// How a scatter combines an element with its updates, which are applied in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterOp {
    /// The last update replaces it.
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

/// How a scan continues from one element to the next.
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

/// The function applied to a result before it is written (set by fusion).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// Nothing.
    None,
    /// max(x, 0).
    Relu,
    /// min(max(x, low), high), like [`UnaryOp::Clip`]. Supported by products, convolutions and `Binary` on float32.
    Clip {
        /// Lower limit.
        low: f32,
        /// Upper limit.
        high: f32,
    },
    /// Another function of one variable. Supported by products and convolutions on float32, and by the kernel that adds the parts of a
    /// product.
    Function(UnaryOp),
}

impl Activation {
    /// The activation that applies this function.
    pub fn of(op: UnaryOp) -> Activation {
        match op {
            UnaryOp::Relu => Activation::Relu,
            UnaryOp::Clip { low, high } => Activation::Clip { low, high },
            op => Activation::Function(op),
        }
    }

    /// The function that is applied, if limits alone do not describe it.
    pub fn function(self) -> Option<UnaryOp> {
        match self {
            Activation::Function(op) => Some(op),
            Activation::None | Activation::Relu | Activation::Clip { .. } => None,
        }
    }

    /// The lower and the upper limit that are applied. NaN stays NaN.
    pub fn limits(self) -> [f32; 2] {
        match self {
            Activation::None | Activation::Function(_) => [f32::NEG_INFINITY, f32::INFINITY],
            Activation::Relu => [0.0, f32::INFINITY],
            Activation::Clip { low, high } => [low, high],
        }
    }

    /// Whether it is a ReLU, for kernels that support only a ReLU or nothing.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn is_relu(self) -> Result<bool, String> {
        match self {
            Activation::None => Ok(false),
            Activation::Relu => Ok(true),
            Activation::Clip { .. } | Activation::Function(_) => {
                Err(format!("batch normalization applies a ReLU or nothing, not {self:?}"))
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

/// The part of a matrix product that a launch computes. Without batches, the rows of operands may be strided, so that columns of a larger
/// matrix can be an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductPart {
    /// All of it: y = activation(alpha a b + beta c).
    Whole,
    /// As many columns as b has, starting at `first`. The others keep their values in y, which is read as well, unless `first` is 0; then
    /// the others are unspecified.
    Columns {
        /// The first column.
        first: u64,
    },
}

impl ProductPart {
    /// Whether y is read (as the third operand) as well as written.
    pub fn reads_result(self) -> bool {
        match self {
            ProductPart::Whole => false,
            ProductPart::Columns { first } => first > 0,
        }
    }
}

/// Rows of a product that devices compute at once.
pub const PRODUCT_ROWS: u64 = 128;
/// The columns of a product that is computed in parts begin at multiples of this.
pub const PRODUCT_COLUMNS: u64 = 256;
/// Terms in a reduction block of a product; the last block may have fewer.
pub const PRODUCT_TERMS: u64 = 256;

/// One kernel of the closed set; the table in the module documentation lists what each reads and writes.
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
    /// Conversion between data types, as in C and NumPy; to bool by comparison with 0; to narrow types like [`crate::narrow::encode`].
    Cast(Narrowing),
    /// Copies elements between two strided layouts (any data type).
    Copy,
    /// y\[i] = x\[starts + i steps] per dimension (any data type).
    Slice {
        /// First index per dimension.
        starts: Vec<u64>,
        /// Step per dimension; may be negative.
        steps: Vec<i64>,
    },
    /// The transpose of `Slice`.
    SliceGradient {
        /// First index per dimension.
        starts: Vec<u64>,
        /// Step per dimension; may be negative.
        steps: Vec<i64>,
    },
    /// Adds elements around x; the numbers of elements after it follow from the descriptors.
    Pad {
        /// Elements before, per dimension.
        begins: Vec<u64>,
        /// The values of the elements.
        mode: PadMode,
    },
    /// Every element is `value` (converted to y's type).
    Fill {
        /// The value.
        value: f64,
    },
    /// Combines the elements along axes.
    Reduce {
        /// How they are combined.
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
    /// Mean of -log softmax(logits)\[label] over all label positions that are not ignored. A label outside 0..classes gives NaN (callers
    /// check labels first). If all labels are ignored, the result is NaN, as in PyTorch.
    SoftmaxCrossEntropy {
        /// The class axis of logits.
        axis: usize,
        /// The label value that is ignored.
        ignore_index: Option<i64>,
    },
    /// Gradient of `SoftmaxCrossEntropy` with respect to the logits.
    SoftmaxCrossEntropyGradient {
        /// The class axis of logits.
        axis: usize,
        /// The label value that is ignored.
        ignore_index: Option<i64>,
    },
    /// Mean of (prediction - target)^2.
    MeanSquaredError,
    /// Gradient of `MeanSquaredError` with respect to the prediction.
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
        /// The part of the product that is computed.
        part: ProductPart,
    },
    /// Cross-correlation, which every framework calls "convolution".
    Convolution {
        /// The description.
        convolution: Convolution,
        /// Applied to the result.
        activation: Activation,
    },
    /// Transposed convolution: the gradient with respect to x, and the forward pass of ConvTranspose (then with an optional bias).
    ConvolutionDataGradient {
        /// The description (of the forward convolution from dx to dy).
        convolution: Convolution,
        /// Applied to the result.
        activation: Activation,
    },
    /// Gradient with respect to w: sums over images and output positions.
    ConvolutionWeightGradient {
        /// The description.
        convolution: Convolution,
    },
    /// The product of two matrices of 8-bit integers, after subtracting zero points ([integer products](self#integer-products)). Batch
    /// dimensions broadcast.
    IntegerProduct {
        /// b is given as [.., n, k].
        transpose_b: bool,
    },
    /// The cross-correlation of 8-bit integers, after subtracting zero points ([integer products](self#integer-products)).
    IntegerConvolution {
        /// The description.
        convolution: Convolution,
    },
    /// Pooling over windows.
    Pool {
        /// How a window is combined.
        op: PoolOp,
        /// The sliding window.
        window: Window,
    },
    /// Gradient of `Pool`.
    PoolGradient {
        /// How a window is combined.
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
    /// Like [`Kernel::BatchNormalization`], with the statistics of the batch, which it also writes.
    BatchNormalizationTraining {
        /// Added to the variance.
        epsilon: f32,
        /// Applied to the result.
        activation: Activation,
        /// The number of neighboring channels that share one mean and variance, a divisor of the number of channels: 1 in batch
        /// normalization, more in group normalization of one image.
        group_size: u64,
    },
    /// Gradient of `BatchNormalizationTraining`. With an activation, dy is the gradient with respect to the activated output, and the
    /// activation mask is recomputed from x with the arithmetic of the forward pass.
    BatchNormalizationGradient {
        /// Added to the variance.
        epsilon: f32,
        /// The activation that the forward kernel applied.
        activation: Activation,
        /// The number of neighboring channels that shared one mean and variance.
        group_size: u64,
    },
    /// running = momentum running + (1 - momentum) correction batch.
    RunningStatistics {
        /// ONNX's momentum (1 minus PyTorch's).
        momentum: f32,
        /// Factor of the batch statistic (n / (n - 1) makes a biased variance unbiased).
        correction: f32,
    },
    /// Normalization over all axes from `axis` on.
    LayerNormalization {
        /// First normalized axis of x.
        axis: usize,
        /// Added to the variance.
        epsilon: f32,
    },
    /// Gradient of `LayerNormalization`.
    LayerNormalizationGradient {
        /// First normalized axis of x.
        axis: usize,
    },
    /// y = softmax(scores of q and k) v for every head, without materializing the matrix of scores. Also writes the logarithm of the sum of
    /// the exponentials of each row's scores, and what rounding left of it if it is at least [`ATTENTION_LOGARITHM_LARGE`] in size.
    Attention(AttentionOptions),
    /// Gradient of `Attention` with respect to q, k and v.
    AttentionGradient(AttentionOptions),
    /// The gradient with respect to q alone, with the same bits; used to compute it in parts.
    AttentionQueryGradient(AttentionOptions),
    /// The gradients with respect to k and v alone, with the same bits; used to compute them in parts.
    AttentionKeyGradient(AttentionOptions),
    /// y = x / (bias + alpha / size sum of x^2 over the `size` surrounding channels)^beta.
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
    /// y = slices of data along an axis (any data type). Negative indices count from the end. An index out of range gives zeros, and the
    /// device reports it when asked.
    Gather {
        /// The axis of data.
        axis: usize,
    },
    /// ddata = sum of the slices of dy by index, in row-major order of the indices. Slices whose index is out of range are skipped, and the
    /// device reports them when asked.
    GatherGradient {
        /// The axis of data.
        axis: usize,
    },
    /// y = data, with updates applied at the rows given by the indices, in the order of the indices. Negative indices count from the end.
    /// Updates whose index is out of range are skipped, and the device reports them when asked.
    Scatter {
        /// How a row is combined with its updates.
        op: ScatterOp,
    },
    /// The positions, along an axis and for each row, of the first k elements in sorted order. Among equal elements, the one with the lower
    /// index comes first. Zeros of both signs are equal, and so are NaNs.
    TopK {
        /// The axis.
        axis: usize,
        /// Whether the order is from the largest down (otherwise from the smallest up).
        largest: bool,
        /// Whether NaN comes before all numbers (otherwise after them).
        nan_first: bool,
        /// Whether, among equal elements, the one with the higher index comes first instead.
        last: bool,
    },
    /// Cumulative sums, products or recurrences along an axis, one element after another.
    Scan {
        /// The axis.
        axis: usize,
        /// How it continues from one element to the next.
        op: ScanOp,
        /// Whether the element itself is excluded.
        exclusive: bool,
        /// Whether it runs from the last element to the first.
        reverse: bool,
    },
    /// The position, in row-major order within its channel, of the largest element of each window; the first if there are several. NaN
    /// counts as larger than everything.
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
        /// Index of the first element of x within the whole tensor, so that parts continue the count.
        first: u64,
    },
    /// Numbers in 0..1, uniformly distributed over multiples of 2^-24: each is a function of (seed, step, node, element).
    Random {
        /// Number of the node.
        node: u64,
        /// Index of the first element of y within the whole tensor, so that parts continue the count.
        first: u64,
    },
    /// g = gradient + weight_decay p; v = momentum v + g; p -= learning_rate (nesterov ? g + momentum v : v). Without a velocity, v = g. In
    /// place. The hyperparameters are [`SgdHyperparameters`].
    Sgd {
        /// Nesterov's variant.
        nesterov: bool,
        /// Whether the parameter decays; otherwise its `weight_decay` is 0.
        decays: bool,
    },
    /// Bias-corrected Adam with epsilon outside the square root; `decoupled` makes it AdamW. In place. The hyperparameters are
    /// [`AdamHyperparameters`].
    Adam {
        /// Whether decay acts on the parameter (AdamW) instead of the gradient.
        decoupled: bool,
        /// Whether the parameter decays; otherwise its `weight_decay` is 0.
        decays: bool,
    },
    /// Like [`Kernel::Adam`], with 8-bit moments (Dettmers et al. 2021) stored as codes of [`quantization`], with one scale per block of
    /// elements. The parameter is updated with the moments before they are quantized. In place.
    Adam8Bit {
        /// Whether decay acts on the parameter (AdamW) instead of the gradient.
        decoupled: bool,
        /// Whether the parameter decays; otherwise its `weight_decay` is 0.
        decays: bool,
    },
    /// A recurrent network over whole sequences. Sequence `i` has lengths\[i] elements; y is 0 after them.
    Recurrent(Recurrence),
    /// Gradient of `Recurrent`. It recomputes the gates from y.
    RecurrentGradient(Recurrence),
    /// The sums of a kernel over some of its positions.
    Sums {
        /// Which sums.
        of: Summing,
    },
    /// Adds the sums of some positions and the sums of the positions after them: tables\[rows, channels], or several tables along a first
    /// axis, with gaps between them.
    AddSums {
        /// Which sums.
        of: Summing,
    },
    /// Computes a kernel's results from its complete sums.
    FromSums {
        /// Which sums.
        of: Summing,
    },
    /// Sends bytes from process to process. All exchanges of a step read and write the second operand, whose contents do not matter, which
    /// keeps them in order.
    Exchange(Exchange),
}

impl Kernel {
    /// A conversion like ONNX's `Cast` without attributes.
    pub fn cast() -> Kernel {
        Kernel::Cast(Narrowing::default())
    }

    /// y = a b, with each factor given as it is or transposed.
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
