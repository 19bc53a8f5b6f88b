//! Facts: what is known of each kernel, stated in one place.
//!
//! Passes, checkers, devices and tests ask [`Kernel::facts`] and [`KernelFacts::dimensions`]; none of them keeps a table of its own.
//! One match without a default names every kernel, and every fact is a field without a default: a kernel does not compile until all
//! of them are stated. Each family of kernels states its own in a file of this folder.

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
    /// What it reads, by its place in the kernel's row.
    Read(usize),
    /// What it writes.
    Write(usize),
}

/// Element types that models may ask a kernel to compute in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementTypes {
    /// All of them: elements are moved or chosen, not computed with.
    Every,
    /// All but the narrow types: elements are ordered.
    NotNarrow,
    /// All but the floating types of 16 bits and the narrow types.
    NotSixteenBit,
    /// `float32` and the floating types of 16 bits.
    Products,
    /// The same, and where factors have 16 bits, the result may be `float32`: a sum that others are added to before it is rounded.
    WideningProducts,
    /// `float32`.
    Float32,
}

impl ElementTypes {
    /// Whether floating types of 16 bits are among them.
    pub fn include_sixteen_bit(self) -> bool {
        match self {
            ElementTypes::NotSixteenBit | ElementTypes::Float32 => false,
            ElementTypes::Every | ElementTypes::NotNarrow | ElementTypes::Products | ElementTypes::WideningProducts => {
                true
            }
        }
    }

    /// Whether they are those of sums of products.
    pub fn are_of_products(self) -> bool {
        matches!(self, ElementTypes::Products | ElementTypes::WideningProducts)
    }

    /// Whether a type is among them.
    pub fn include(self, data_type: DataType) -> bool {
        let is_sixteen_bit = data_type.is_sixteen_bit();
        match self {
            ElementTypes::Every => true,
            ElementTypes::NotNarrow => !data_type.is_narrow(),
            ElementTypes::NotSixteenBit => !is_sixteen_bit && !data_type.is_narrow(),
            ElementTypes::Products | ElementTypes::WideningProducts => is_sixteen_bit || data_type == DataType::Float32,
            ElementTypes::Float32 => data_type == DataType::Float32,
        }
    }
}

/// Operands of a kernel that may be float16 or bfloat16 in a launch that computes in float32: elements are widened where they are read,
/// and rounded to the nearest number, to the even one of two, where they are written. So a launch has the bits of
/// three launches: a conversion of what is read, the launch in float32, and a conversion of what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SixteenBit {
    /// Those that are read.
    pub reads: &'static [usize],
    /// Those that are written.
    pub writes: &'static [usize],
}

impl SixteenBit {
    /// No operand.
    const NONE: SixteenBit = SixteenBit { reads: &[], writes: &[] };

    const fn of(reads: &'static [usize], writes: &'static [usize]) -> SixteenBit {
        SixteenBit { reads, writes }
    }

    /// Whether an operand is among them.
    pub fn includes(self, operand: OperandRef) -> bool {
        match operand {
            OperandRef::Read(read) => self.reads.contains(&read),
            OperandRef::Write(write) => self.writes.contains(&write),
        }
    }
}

/// Which of a launch's dimensions it is cut along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutChoice {
    /// Images; of a single image, rows of the first spatial axis; of a single sequence, positions.
    First,
    /// The one whose parts touch least: any may be the longest.
    Least,
    /// The same, and parts that still touch too much are cut again, along other dimensions: the first axes of all operands are one
    /// in another, so that parts along one of them lie together only where those in front of it have one index.
    Nested,
}

/// Operands that may be stored row by row: all channels of the first row of an image, then all of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByRows {
    /// Those that are read.
    pub reads: &'static [usize],
    /// Those that are written.
    pub writes: &'static [usize],
    /// Whether only sums of channels ([`Summing::Channels`]) may: others go by elements in the order in which they lie.
    pub sums_of_channels: bool,
}

impl ByRows {
    /// No operand.
    const NONE: ByRows = ByRows { reads: &[], writes: &[], sums_of_channels: false };

    const fn of(reads: &'static [usize], writes: &'static [usize]) -> ByRows {
        ByRows { reads, writes, sums_of_channels: false }
    }
}

/// Operands whose first two axes may become one: the kernel cannot tell the difference, other than by an axis number that is one
/// less then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadingAxes {
    /// Those that are read and have these axes.
    pub reads: &'static [usize],
    /// How many of those that are written have them.
    pub writes: usize,
    /// Of which launches that is so.
    pub merge: Merge,
}

impl LeadingAxes {
    /// Of all launches.
    const fn of(reads: &'static [usize], writes: usize) -> LeadingAxes {
        LeadingAxes { reads, writes, merge: Merge::All }
    }
}

/// The launches of a kernel whose operands' first two axes may become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// All.
    All,
    /// Sums over rows ([`super::sums_rows`]).
    SumsOfRows,
    /// Products with two axes of batches at least, and without a summand: that one has strides of its own.
    Batches,
}

/// What a gradient reads, besides the gradient of the first result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientReads {
    /// There is no gradient.
    None,
    /// The gradient is zero, whatever the operands.
    Zero,
    /// These of the kernel's reads and writes, or some of them, as its parameters say.
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

/// What the axes of a kernel's operands are, before sizes are known; [`KernelFacts::dimensions`] says it for a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Axes<'a> {
    /// All results and these reads have the same sizes, and each element comes from those in its place.
    Elements {
        /// Reads with the sizes of the results; none for all reads.
        reads: Option<&'static [usize]>,
        /// Along which axes launches are cut.
        cut: CutAxes,
    },
    /// A parameter, its gradient and its state, of the sizes of the results; step and hyperparameters are needed whole.
    Update,
    /// The same in rows of one axis, but for state with an element for each block of them ([`Along::covers`]).
    BlockUpdate {
        /// Elements of a block; the last one may have fewer.
        block: u64,
        /// Reads with an element for each block, by their places.
        reads: &'static [usize],
        /// Writes likewise.
        writes: &'static [usize],
    },
    /// As `Elements` of all reads, but for an axis along which every result needs all elements.
    AllAlong { axis: usize },
    /// Each result comes from all elements along these axes, of which operands may have other sizes; along the others from those in
    /// its place.
    Within { first: usize, count: usize },
    /// The result takes elements of what is read.
    Slice { starts: &'a [u64], steps: &'a [i64] },
    /// What is read stands somewhere in the result.
    Placed { begins: &'a [u64] },
    /// Slices of the first read are chosen.
    Gather { axis: usize },
    /// The transpose of it.
    GatherGradient { axis: usize },
    /// Elements along some axes are combined.
    Reduce { axes: &'a [usize], sums: bool },
    /// The sum of all elements of two reads.
    SquaredError,
    /// A sum over positions with classes along an axis.
    CrossEntropy { axis: usize },
    /// Its gradient.
    CrossEntropyGradient { axis: usize },
    /// A matrix product.
    Product { transpose_a: bool, transpose_b: bool, part: ProductPart, may_add_terms: bool },
    /// A matrix product of integers with zero points, and with what makes a quantised result.
    IntegerProduct { transpose_b: bool },
    /// A convolution from what is read.
    Convolution(&'a Convolution),
    /// From its result back.
    ConvolutionDataGradient(&'a Convolution),
    /// To the weights.
    ConvolutionWeightGradient(&'a Convolution),
    /// Windows of each channel by itself.
    Pool(&'a Window),
    /// From their results back.
    PoolGradient(&'a Window),
    /// Elements of channels, with statistics that are given.
    Channels { images: &'static [usize] },
    /// With statistics of all elements of a channel.
    ChannelStatistics,
    /// The gradient with sums that are computed or given.
    ChannelGradient,
    /// Rows from an axis on, each by itself, with two statistics of it.
    LayerNormalization { axis: usize },
    /// Its gradient.
    LayerNormalizationGradient { axis: usize },
    /// Rows of queries that attend to keys; by the places of the operands that the dimensions run through.
    Attention(AttentionOperands),
    /// Sums over positions.
    Sums { of: Summing },
    /// All is needed for all.
    Whole,
}

/// The operands of attention, by what their axes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionOperands {
    /// \[batch, heads, rows, size].
    pub queries: &'static [OperandRef],
    /// \[batch, heads, rows, value size].
    pub results: &'static [OperandRef],
    /// \[batch, heads, rows].
    pub logarithms: OperandRef,
    /// \[batch, groups, keys, size].
    pub keys: &'static [OperandRef],
    /// \[batch, groups, keys, value size].
    pub values: &'static [OperandRef],
    /// \[batch, heads, rows, keys], the first three of which may be 1.
    pub mask: OperandRef,
    /// Whether rows see keys up to one of their own.
    pub is_causal: bool,
}

/// Along which axes of its results a kernel of elements is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutAxes {
    /// All of them.
    All,
    /// The first.
    First,
    /// None: its operands are small.
    None,
}

/// What is known of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelFacts<'a> {
    /// Which kernel it is.
    pub kind: KernelKind,
    /// The pairs (write, read) of bindings that may be the same region: the write then updates the read in place.
    pub in_place: &'static [(usize, usize)],
    /// The operand of indices, and what they choose from.
    pub indices: Option<Indices>,
    /// Element types that models may ask for: of what is read first.
    pub types: ElementTypes,
    /// Which operands of a launch that computes in float32 may be stored in 16 bits.
    pub sixteen_bit: SixteenBit,
    /// How many operations it takes.
    pub work: Work,
    /// The operand along whose axes parts are counted.
    pub counted_along: OperandRef,
    /// The read that is a result of launches before, which the launch goes on from.
    pub continues: Option<usize>,
    /// How one of the dimensions that launches may be cut along is chosen.
    pub cut_choice: CutChoice,
    /// Which operands may be stored row by row.
    pub by_rows: ByRows,
    /// Which operands' first two axes may become one, in some launches at least ([`KernelFacts::merged_axes`]).
    pub leading_axes: Option<LeadingAxes>,
    /// The first of the reads that take the sizes of the result by repeating elements.
    pub broadcast_from: Option<usize>,
    /// Along how many of its first axes what it reads may lie entangled with what it does not read: it goes by strides.
    pub reads_entangled: usize,
    /// Whether every device runs it, of float32, in less workspace than it asks for, or in none, with the same bits.
    pub runs_in_less_workspace: bool,
    /// Whether it changes parameters or state, once in a step.
    pub updates_state: bool,
    /// Where it is the gradient of a loss: the loss, whose sums a part of it needs, and which reads the reads from the second on.
    pub gradient_of_loss: Option<Summing>,
    /// What its gradient reads.
    pub gradient: GradientReads,
    pub(crate) axes: Axes<'a>,
}

impl KernelFacts<'_> {
    /// Whether each element of the results comes from elements at the same index, or in the same block of few elements, or from operands
    /// of one element, alone, and launches may be cut between any two elements or blocks.
    pub fn is_elementwise(&self) -> bool {
        matches!(self.axes, Axes::Update | Axes::BlockUpdate { .. } | Axes::Elements { cut: CutAxes::All, .. })
    }

    /// Whether the kernel works on packed elements in blocks, whatever the axes of their tensors: operands have one axis each, then.
    pub fn is_in_blocks(&self) -> bool {
        matches!(self.axes, Axes::BlockUpdate { .. })
    }

    /// Which operands' first two axes may become one in a launch that reads these; none where the launch tells them apart.
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
    /// What is known of the kernel: the one place where it is stated.
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
            Kernel::Softmax { axis } => reduction::softmax(*axis),
            Kernel::LogSoftmax { axis } => reduction::log_softmax(*axis),
            Kernel::SoftmaxGradient { axis } => reduction::softmax_gradient(*axis),
            Kernel::LogSoftmaxGradient { axis } => reduction::log_softmax_gradient(*axis),
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

    /// The pairs (write, read) of bindings that may be the same region: the write then updates the read in place. For
    /// elementwise kernels this needs packed operands of the same sizes and element size; planning checks that.
    pub fn in_place(&self) -> &'static [(usize, usize)] {
        self.facts().in_place
    }

    /// Whether all processes of a run take part in it, so that each runs it exactly once in a step.
    pub fn is_collective(&self) -> bool {
        matches!(self, Kernel::Exchange(_))
    }

    /// Whether every device runs the kernel, of float32, in less workspace than it asks for, or in none, with the same bits: workspace
    /// then only makes it faster.
    pub fn runs_in_less_workspace(&self) -> bool {
        self.facts().runs_in_less_workspace
    }

    /// Where a kernel's indices are, and what they choose from; none for kernels without indices.
    pub fn indices(&self) -> Option<Indices> {
        self.facts().indices
    }
}
