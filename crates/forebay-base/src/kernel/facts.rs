//! Facts: the properties of each kernel, stated in one place.
//!
//! Passes, checkers, devices and tests use [`Kernel::facts`] and [`KernelFacts::dimensions`]; none of them keeps a separate table. One
//! match without a default names every kernel, and every fact is a field without a default, so a kernel does not compile until all of its
//! facts are stated. Each family of kernels states its facts in a file of this folder.
//! Only the types of operands have a default ([`Kernel::check_types`]): an operand has the type in which the launch computes.

mod attention;
mod axes;
mod convolution;
mod dimension;
mod elementwise;
mod exchange;
mod indices;
mod integer;
mod loss;
mod movement;
mod normalization;
mod operand_types;
mod optimizer;
mod placement;
mod product;
mod recurrence;
mod reduction;
mod scan;
mod separate;
mod sums;
#[cfg(test)]
mod tests;
mod work;

pub use super::lines::Leaves;
pub use dimension::{Along, AxisRole, Dimension, SlidingAxis};
pub use indices::Indices;
pub use placement::{AxisNumbers, Placement};
pub use separate::Separate;
pub use sums::{Rest, SumsInParts};
pub use work::Work;

use super::{Convolution, Kernel, KernelKind, ProductPart, Summing, Window, sums_rows};
use crate::{DataType, TensorDesc};

/// An operand of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandRef {
    /// An operand that it reads, by its position in the kernel's row.
    Read(usize),
    /// An operand that it writes.
    Write(usize),
}

/// The element types in which models can ask a kernel to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementTypes {
    /// All types: elements are moved or selected, not computed with.
    Every,
    /// All types except the narrow ones: elements are ordered.
    NotNarrow,
    /// All types except the 16-bit floating-point types and the narrow types.
    NotSixteenBit,
    /// `float32`, `float64` and the integers of at least 8 bits.
    Numbers,
    /// The integers of at least 8 bits.
    Integers,
    /// `float32` and `float64`.
    Floats,
    /// `int8` and `uint8`.
    Bytes,
    /// `bool`.
    Booleans,
    /// `float32` and the 16-bit floating-point types.
    Products,
    /// Like [`ElementTypes::Products`], but with 16-bit factors the result may be `float32`: a sum to which others are added before it is
    /// rounded.
    WideningProducts,
    /// `float32`.
    Float32,
}

impl ElementTypes {
    /// Whether 16-bit floating-point types are included.
    pub fn include_sixteen_bit(self) -> bool {
        match self {
            ElementTypes::NotSixteenBit
            | ElementTypes::Numbers
            | ElementTypes::Integers
            | ElementTypes::Floats
            | ElementTypes::Bytes
            | ElementTypes::Booleans
            | ElementTypes::Float32 => false,
            ElementTypes::Every | ElementTypes::NotNarrow | ElementTypes::Products | ElementTypes::WideningProducts => {
                true
            }
        }
    }

    /// Whether these are the types of sums of products.
    pub fn are_of_products(self) -> bool {
        matches!(self, ElementTypes::Products | ElementTypes::WideningProducts)
    }

    /// Whether a type is included.
    pub fn include(self, data_type: DataType) -> bool {
        let (is_sixteen_bit, is_narrow) = (data_type.is_sixteen_bit(), data_type.is_narrow());
        match self {
            ElementTypes::Every => true,
            ElementTypes::NotNarrow => !is_narrow,
            ElementTypes::NotSixteenBit => !is_sixteen_bit && !is_narrow,
            ElementTypes::Numbers => !is_sixteen_bit && !is_narrow && data_type != DataType::Bool,
            ElementTypes::Integers => data_type.is_integer() && !is_narrow,
            ElementTypes::Floats => matches!(data_type, DataType::Float32 | DataType::Float64),
            ElementTypes::Bytes => matches!(data_type, DataType::Int8 | DataType::UInt8),
            ElementTypes::Booleans => data_type == DataType::Bool,
            ElementTypes::Products | ElementTypes::WideningProducts => is_sixteen_bit || data_type == DataType::Float32,
            ElementTypes::Float32 => data_type == DataType::Float32,
        }
    }
}

/// The operands of a kernel that can be float16 or bfloat16 in a launch that computes in float32. Elements are widened when they are read
/// and rounded to nearest even when they are written. So a launch gives the same bits as three launches: a conversion of what is read, the
/// launch in float32, and a conversion of what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SixteenBit {
    /// The reads among them.
    pub reads: &'static [usize],
    /// The writes among them.
    pub writes: &'static [usize],
}

impl SixteenBit {
    /// No operand.
    const NONE: SixteenBit = SixteenBit { reads: &[], writes: &[] };

    const fn of(reads: &'static [usize], writes: &'static [usize]) -> SixteenBit {
        SixteenBit { reads, writes }
    }

    /// Whether an operand is included.
    pub fn includes(self, operand: OperandRef) -> bool {
        match operand {
            OperandRef::Read(read) => self.reads.contains(&read),
            OperandRef::Write(write) => self.writes.contains(&write),
        }
    }
}

/// How the dimension that a launch is cut along is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutChoice {
    /// Images; for a single image, rows of the first spatial axis; for a single sequence, positions.
    First,
    /// The dimension whose parts touch the least, since any of them may be the longest.
    Least,
    /// Like [`CutChoice::Least`], but parts that still touch too much are cut again along other dimensions. The first axes of all operands
    /// are nested, so the parts along one of them are contiguous only if the axes before it have a single index.
    Nested,
}

/// Operands that can be stored row by row: all channels of the first row of an image, then all channels of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByRows {
    /// The reads among them.
    pub reads: &'static [usize],
    /// The writes among them.
    pub writes: &'static [usize],
    /// Whether this holds only for sums per channel ([`Summing::Channels`]), because other sums take elements in memory order.
    pub sums_of_channels: bool,
}

impl ByRows {
    /// No operand.
    const NONE: ByRows = ByRows { reads: &[], writes: &[], sums_of_channels: false };

    const fn of(reads: &'static [usize], writes: &'static [usize]) -> ByRows {
        ByRows { reads, writes, sums_of_channels: false }
    }
}

/// Operands whose first two axes can be merged into one: the kernel cannot tell the difference, apart from axis numbers, which decrease by
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadingAxes {
    /// The reads that have these axes.
    pub reads: &'static [usize],
    /// The number of writes that have them.
    pub writes: usize,
    /// The launches for which this holds.
    pub merge: Merge,
}

impl LeadingAxes {
    /// For all launches.
    const fn of(reads: &'static [usize], writes: usize) -> LeadingAxes {
        LeadingAxes { reads, writes, merge: Merge::All }
    }
}

/// The launches of a kernel in which the first two axes of its operands can be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// All launches.
    All,
    /// Sums over rows ([`super::sums_rows`]).
    SumsOfRows,
    /// Products with at least two batch axes and without a summand, which has strides of its own.
    Batches,
}

/// The operands that a gradient reads, besides the gradient of the first result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientReads {
    /// There is no gradient.
    None,
    /// The gradient is zero, regardless of the operands.
    Zero,
    /// These reads and writes of the kernel, or some of them, depending on its parameters.
    Some {
        /// The reads.
        reads: &'static [usize],
        /// The writes.
        writes: &'static [usize],
    },
}

impl GradientReads {
    const fn of(reads: &'static [usize], writes: &'static [usize]) -> GradientReads {
        GradientReads::Some { reads, writes }
    }
}

/// The meaning of the axes of a kernel's operands, before sizes are known; [`KernelFacts::dimensions`] applies it to a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Axes<'a> {
    /// All results and these reads have the same sizes, and each element is computed from the elements at the same position.
    Elements {
        /// The reads that have the sizes of the results; `None` for all reads.
        reads: Option<&'static [usize]>,
        /// The axes along which launches are cut.
        cut: CutAxes,
    },
    /// A parameter, its gradient and its state, all with the sizes of the results; step and hyperparameters are needed whole.
    Update,
    /// Like `Update`, with one axis, but some of the state has one element per block ([`Along::covers`]).
    BlockUpdate {
        /// Elements in a block; the last block may have fewer.
        block: u64,
        /// The indices of reads that have one element per block.
        reads: &'static [usize],
        /// The indices of writes that have one element per block.
        writes: &'static [usize],
    },
    /// Like `Elements` with all reads, but every result needs all elements along one axis.
    AllAlong { axis: usize },
    /// Each result is computed from all elements along these axes, in which the sizes of operands can differ, and from the elements at the
    /// same position along the others.
    Within { first: usize, count: usize },
    /// The result consists of elements selected from the read.
    Slice { starts: &'a [u64], steps: &'a [i64] },
    /// The read is placed somewhere in the result.
    Placed { begins: &'a [u64] },
    /// Slices of the first read are selected.
    Gather { axis: usize },
    /// The transpose of `Gather`.
    GatherGradient { axis: usize },
    /// Elements along some axes are combined.
    Reduce { axes: &'a [usize], sums: bool },
    /// The sum of all elements of two reads.
    SquaredError,
    /// A sum over positions with classes along an axis.
    CrossEntropy { axis: usize },
    /// The gradient of `CrossEntropy`.
    CrossEntropyGradient { axis: usize },
    /// A matrix product.
    Product { transpose_a: bool, transpose_b: bool, part: ProductPart, may_add_terms: bool },
    /// A matrix product of integers with zero points, and optionally the operands that produce a quantized result.
    IntegerProduct { transpose_b: bool },
    /// A convolution of the first read.
    Convolution(&'a Convolution),
    /// The gradient of a convolution with respect to its input.
    ConvolutionDataGradient(&'a Convolution),
    /// The gradient of a convolution with respect to its weights.
    ConvolutionWeightGradient(&'a Convolution),
    /// Windows over each channel separately.
    Pool(&'a Window),
    /// The gradient of `Pool`.
    PoolGradient(&'a Window),
    /// Elementwise on channels, with given statistics.
    Channels { images: &'static [usize] },
    /// Elementwise on channels, with statistics over all elements of a channel.
    ChannelStatistics,
    /// The gradient of `ChannelStatistics`, with sums that are computed or given.
    ChannelGradient,
    /// Rows from an axis on, each normalized separately and with two statistics.
    LayerNormalization { axis: usize },
    /// The gradient of `LayerNormalization`.
    LayerNormalizationGradient { axis: usize },
    /// Rows of queries that attend to keys; the operands that each dimension runs through.
    Attention(AttentionOperands),
    /// Sums over positions.
    Sums { of: Summing },
    /// Every result needs all operands whole.
    Whole,
}

/// The operands of attention, grouped by the meaning of their axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionOperands {
    /// \[batch, heads, rows, size].
    pub queries: &'static [OperandRef],
    /// \[batch, heads, rows, value size].
    pub results: &'static [OperandRef],
    /// \[batch, heads, rows, 2].
    pub logarithms: OperandRef,
    /// \[batch, groups, keys, size].
    pub keys: &'static [OperandRef],
    /// \[batch, groups, keys, value size].
    pub values: &'static [OperandRef],
    /// \[batch, heads, rows, keys], where the first three sizes may be 1.
    pub mask: OperandRef,
    /// Whether each row attends only to keys up to a last one that depends on the row.
    pub is_causal: bool,
}

/// The axes of its results along which an elementwise kernel is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutAxes {
    /// All of them.
    All,
    /// The first.
    First,
    /// None, because its operands are small.
    None,
}

/// The facts of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelFacts<'a> {
    /// The kind of the kernel.
    pub kind: KernelKind,
    /// The pairs (write, read) of bindings that may be the same region, so that the write updates the read in place.
    pub in_place: &'static [(usize, usize)],
    /// The operand that holds indices, and what they select from.
    pub indices: Option<Indices>,
    /// The element types that models can ask for, as the type of the first read.
    pub types: ElementTypes,
    /// The operands that can be stored in 16 bits in a launch that computes in float32.
    pub sixteen_bit: SixteenBit,
    /// The number of operations.
    pub work: Work,
    /// The operand along whose axes parts are counted.
    pub counted_along: OperandRef,
    /// The read that is a result of earlier launches and that this launch continues from.
    pub continues: Option<usize>,
    /// How the dimension to cut along is chosen from those along which launches can be cut.
    pub cut_choice: CutChoice,
    /// The operands that can be stored row by row.
    pub by_rows: ByRows,
    /// The operands whose first two axes can be merged, at least in some launches ([`KernelFacts::merged_axes`]).
    pub leading_axes: Option<LeadingAxes>,
    /// The first of the reads that broadcast to the sizes of the result.
    pub broadcast_from: Option<usize>,
    /// The number of leading axes along which a read may be interleaved with elements that are not read, because the kernel uses strides.
    pub reads_entangled: usize,
    /// Whether every device can run it on float32 with less workspace than it asks for, or with none, and give the same bits.
    pub runs_in_less_workspace: bool,
    /// Whether it changes parameters or state, once per step.
    pub updates_state: bool,
    /// The loss of which this is the gradient, if any. A part of the gradient needs the sums of that loss, whose reads are the gradient's
    /// reads from the second on.
    pub gradient_of_loss: Option<Summing>,
    /// The operands that its gradient reads.
    pub gradient: GradientReads,
    pub(crate) axes: Axes<'a>,
}

impl KernelFacts<'_> {
    /// Whether launches can have a first read of this type.
    ///
    /// ```
    /// use forebay_base::{DataType, Kernel};
    ///
    /// let softmax = Kernel::Softmax { axis: 0 };
    /// assert!(softmax.facts().take(DataType::Float64));
    /// assert!(!softmax.facts().take(DataType::Int32));
    /// ```
    pub fn take(&self, first_read: DataType) -> bool {
        let is_stored = self.sixteen_bit.includes(OperandRef::Read(0));
        self.types.include(if is_stored { first_read.computed_in() } else { first_read })
    }

    /// Whether launches can be cut between any two elements or blocks, because each element of the results is computed only from elements
    /// at the same index, from elements in the same small block, or from operands with a single element.
    pub fn is_elementwise(&self) -> bool {
        matches!(self.axes, Axes::Update | Axes::BlockUpdate { .. } | Axes::Elements { cut: CutAxes::All, .. })
    }

    /// Whether the kernel processes packed elements in blocks, whatever the axes of their tensors; operands then have one axis each.
    pub fn is_in_blocks(&self) -> bool {
        matches!(self.axes, Axes::BlockUpdate { .. })
    }

    /// The operands whose first two axes can be merged in a launch with these reads; `None` if the launch distinguishes the two axes.
    pub fn merged_axes(&self, reads: &[&TensorDesc]) -> Option<LeadingAxes> {
        let leading = self.leading_axes?;
        let may_merge = match (leading.merge, self.axes) {
            (Merge::All, _) => true,
            (Merge::SumsOfRows, Axes::Reduce { axes, .. }) => reads.first().is_some_and(|x| sums_rows(axes, x)),
            (Merge::SumsOfRows, _) => false,
            (Merge::Batches, _) => reads.len() == 2 && reads.iter().all(|read| read.sizes().len() >= 4),
        };
        may_merge.then_some(leading)
    }
}

impl Kernel {
    /// The facts of the kernel: the one place where they are stated.
    pub fn facts(&self) -> KernelFacts<'_> {
        match self {
            Kernel::Unary(op) => elementwise::unary(*op),
            Kernel::UnaryGradient(_) => elementwise::unary_gradient(),
            Kernel::Binary { op, activation: _ } => elementwise::binary(*op),
            Kernel::Select => elementwise::select(),
            Kernel::Cast(_) => elementwise::cast(),
            Kernel::Copy => movement::copy(),
            Kernel::Slice { starts, steps } => movement::slice(starts, steps),
            Kernel::SliceGradient { starts, steps: _ } => movement::slice_gradient(starts),
            Kernel::Pad { begins, mode: _ } => movement::pad(begins),
            Kernel::Fill { value: _ } => elementwise::fill(),
            Kernel::Reduce { op, axes } => reduction::reduce(*op, axes),
            Kernel::Softmax { axis } => reduction::softmax(KernelKind::Softmax, *axis),
            Kernel::LogSoftmax { axis } => reduction::softmax(KernelKind::LogSoftmax, *axis),
            Kernel::SoftmaxGradient { axis } => reduction::softmax_gradient(KernelKind::SoftmaxGradient, *axis),
            Kernel::LogSoftmaxGradient { axis } => reduction::softmax_gradient(KernelKind::LogSoftmaxGradient, *axis),
            Kernel::SoftmaxCrossEntropy { axis, ignore_index: _ } => loss::cross_entropy(*axis),
            Kernel::SoftmaxCrossEntropyGradient { axis, ignore_index } => {
                loss::cross_entropy_gradient(*axis, *ignore_index)
            }
            Kernel::MeanSquaredError => loss::squared_error(),
            Kernel::MeanSquaredErrorGradient => loss::squared_error_gradient(),
            Kernel::MatMul { transpose_a, transpose_b, alpha, beta: _, activation: _, part } => {
                product::product([*transpose_a, *transpose_b], *alpha, *part)
            }
            Kernel::Convolution { convolution, activation: _ } => convolution::convolution(convolution),
            Kernel::ConvolutionDataGradient { convolution, activation: _ } => convolution::data_gradient(convolution),
            Kernel::ConvolutionWeightGradient { convolution } => convolution::weight_gradient(convolution),
            Kernel::IntegerProduct { transpose_b } => integer::product(*transpose_b),
            Kernel::IntegerConvolution { convolution } => integer::convolution(convolution),
            Kernel::Pool { op, window } => convolution::pool(*op, window),
            Kernel::PoolGradient { op: _, window } => convolution::pool_gradient(window),
            Kernel::BatchNormalization { .. } => normalization::batch(),
            Kernel::BatchNormalizationTraining { .. } => normalization::batch_training(),
            Kernel::BatchNormalizationGradient { .. } => normalization::batch_gradient(),
            Kernel::RunningStatistics { .. } => normalization::running_statistics(),
            Kernel::LayerNormalization { axis, epsilon: _ } => normalization::layer(*axis),
            Kernel::LayerNormalizationGradient { axis } => normalization::layer_gradient(*axis),
            Kernel::Attention(options) => attention::attention(options.causal.is_some()),
            Kernel::AttentionGradient(options) => attention::gradient(options.causal.is_some()),
            Kernel::AttentionQueryGradient(options) => attention::query_gradient(options.causal.is_some()),
            Kernel::AttentionKeyGradient(options) => attention::key_gradient(options.causal.is_some()),
            Kernel::LocalResponseNormalization { .. } => normalization::local_response(),
            Kernel::LocalResponseNormalizationGradient { .. } => normalization::local_response_gradient(),
            Kernel::Gather { axis } => movement::gather(*axis),
            Kernel::GatherGradient { axis } => movement::gather_gradient(*axis),
            Kernel::Scatter { op } => movement::scatter(*op),
            Kernel::TopK { axis, largest: _, nan_first: _, last: _ } => scan::top_k(*axis),
            Kernel::Scan { axis, op, exclusive: _, reverse: _ } => scan::scan(*axis, *op),
            Kernel::PoolIndices { window: _ } => convolution::pool_indices(),
            Kernel::Dropout { .. } => elementwise::dropout(),
            Kernel::Random { .. } => elementwise::random(),
            Kernel::Sgd { .. } => optimizer::sgd(),
            Kernel::Adam { .. } => optimizer::adam(),
            Kernel::Adam8Bit { .. } => optimizer::adam_8_bit(),
            Kernel::Recurrent(recurrence) => recurrence::recurrent(recurrence.cell),
            Kernel::RecurrentGradient(recurrence) => recurrence::recurrent_gradient(recurrence.cell),
            Kernel::Sums { of } => sums::sums(*of),
            Kernel::AddSums { of: _ } => sums::add_sums(),
            Kernel::FromSums { of: _ } => sums::from_sums(),
            Kernel::Exchange(_) => exchange::exchange(),
        }
    }

    /// The kernel's name in plans and traces.
    pub fn name(&self) -> &'static str {
        self.facts().kind.name()
    }

    /// The pairs (write, read) of bindings that may be the same region, so that the write updates the read in place. For elementwise
    /// kernels this requires packed operands with the same sizes and element size; planning checks that.
    pub fn in_place(&self) -> &'static [(usize, usize)] {
        self.facts().in_place
    }

    /// Whether all processes of a run take part in it, so that each runs it exactly once per step.
    pub fn is_collective(&self) -> bool {
        matches!(self, Kernel::Exchange(_))
    }

    /// Whether every device can run the kernel on float32 with less workspace than it asks for, or with none, and give the same bits.
    /// Workspace then only makes it faster.
    pub fn runs_in_less_workspace(&self) -> bool {
        self.facts().runs_in_less_workspace
    }

    /// The operand that holds a kernel's indices, and what they select from; `None` for kernels without indices.
    pub fn indices(&self) -> Option<Indices> {
        self.facts().indices
    }
}
