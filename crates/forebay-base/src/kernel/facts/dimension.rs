//! Dimensions: what each axis of a launch's operands is, and which axes of different operands belong together.

use super::super::lines::Leaves;
use super::OperandRef;

/// The axis of an operand that runs along a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Along {
    /// The axis.
    pub axis: usize,
    /// How many indices of the axis belong to one index of the dimension, one after the other.
    pub elements: u64,
    /// The index of the axis that belongs to index 0.
    pub first: u64,
    /// By how many (times `elements`) the axis' index grows from one index to the next.
    pub step: i64,
    /// How many indices of the dimension one index of the axis covers, one after the other; the last index may cover fewer. More
    /// than 1 for what is known of blocks of elements: launches are cut between blocks, then.
    pub covers: u64,
    /// How many indices the dimension has, where the axis runs along another one as well; none where the axis says it.
    pub indices: Option<u64>,
}

impl Along {
    /// The axis itself, index by index.
    pub const fn axis(axis: usize) -> Along {
        Along { axis, elements: 1, first: 0, step: 1, covers: 1, indices: None }
    }
}

/// A window along one spatial dimension: index `t` of the target's axis sees index `t stride + tap dilation - pad_begin` of the
/// source's, for each of its taps, as far as there is such an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingAxis {
    /// Number of taps.
    pub taps: u64,
    /// Step from window to window.
    pub stride: u64,
    /// Step from tap to tap.
    pub dilation: u64,
    /// Elements of padding before the source.
    pub pad_begin: u64,
    /// Elements of padding after the source, where results depend on them.
    pub pad_end: Option<u64>,
}

impl SlidingAxis {
    /// Elements of the source from a window's first tap to behind its last.
    pub fn reach(&self) -> u64 {
        (self.taps.max(1) - 1) * self.dilation + 1
    }
}

/// What a dimension is for a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisRole {
    /// A batch, or any other axis along which each result comes from operands at the same index alone.
    Free,
    /// The same, and parameters or statistics differ from index to index.
    Channel,
    /// The columns of a matrix: a part writes its own where they lie among those of others, and says which they are
    /// ([`ProductPart::Columns`](super::ProductPart::Columns)).
    Columns,
    /// As `Free`, and the kernel says up to which key its first row sees
    /// ([`Placement::Diagonal`](super::Placement::Diagonal)): this number is added to that from one index to the next.
    Diagonal(i64),
    /// Results, or some of them, are sums over it: they lack it.
    Reduced,
    /// A spatial axis with a halo: targets see sources through a window. Where no result has it, it is reduced as well.
    Spatial(SlidingAxis),
    /// Some indices of what is read, at equal distances, each for one result.
    Taken,
    /// Every result needs all of it.
    Whole,
}

/// A dimension of a launch: indices of some axes of its operands that belong together.
///
/// An operand that no dimension runs along is needed whole by every part of the launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Dimension {
    /// What it is.
    pub role: AxisRole,
    /// Whether launches are cut along it; then parts begin at multiples of this number of indices of the operand that they are counted
    /// along, if their results are to have the bits of the whole.
    pub cut: Option<u64>,
    /// How many of these indices devices compute at once, a power of two: parts that begin elsewhere waste some of their work.
    pub at_once: u64,
    /// Where results are sums over it that are added in a tree: the leaves, in indices of the operand that parts are counted along.
    /// Parts are nodes of the tree then.
    pub leaves: Option<Leaves>,
    /// The operands that have an axis along it; of a spatial dimension, those on the target's side.
    pub targets: Vec<(OperandRef, Along)>,
    /// Those on the source's side of a spatial dimension.
    pub sources: Vec<(OperandRef, Along)>,
}

impl Dimension {
    /// An operand's axis on either side, and whether that is the source's.
    pub fn along(&self, operand: OperandRef) -> Option<(Along, bool)> {
        let of = |side: &[(OperandRef, Along)]| side.iter().find(|(own, _)| *own == operand).map(|&(_, along)| along);
        of(&self.targets).map(|along| (along, false)).or_else(|| of(&self.sources).map(|along| (along, true)))
    }

    /// Whether the launch writes an operand that has an axis on the source's side.
    pub fn writes_sources(&self) -> bool {
        self.sources.iter().any(|(operand, _)| matches!(operand, OperandRef::Write(_)))
    }

    /// Whether all of the launch's results are sums over it.
    pub fn is_reduced(&self) -> bool {
        !self.targets.iter().chain(&self.sources).any(|(operand, _)| matches!(operand, OperandRef::Write(_)))
    }
}
