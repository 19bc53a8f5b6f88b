//! Dimensions: the meaning of each axis of a launch's operands, and which axes of different operands belong together.

use super::super::lines::Leaves;
use super::OperandRef;

/// The axis of an operand that runs along a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Along {
    /// The axis.
    pub axis: usize,
    /// The number of consecutive indices of the axis that belong to one index of the dimension.
    pub elements: u64,
    /// The index of the axis that belongs to index 0 of the dimension.
    pub first: u64,
    /// The step of the axis's index (in units of `elements`) from one index of the dimension to the next.
    pub step: i64,
    /// The number of consecutive indices of the dimension that one index of the axis covers; the last one may cover fewer. It is more than
    /// 1 for data that has one element per block: launches are then cut between blocks.
    pub covers: u64,
    /// The number of indices of the dimension if the axis also runs along another dimension; otherwise `None`, and the axis determines it.
    pub indices: Option<u64>,
}

impl Along {
    /// The axis itself, index by index.
    pub const fn axis(axis: usize) -> Along {
        Along { axis, elements: 1, first: 0, step: 1, covers: 1, indices: None }
    }
}

/// A window along one spatial dimension: index `t` of the target's axis sees index `t stride + tap dilation - pad_begin` of the source's
/// axis for each tap, if that index exists.
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
    /// Elements of padding after the source, if results depend on them.
    pub pad_end: Option<u64>,
}

impl SlidingAxis {
    /// The number of source elements from the first tap of a window to the last, both included.
    pub fn reach(&self) -> u64 {
        (self.taps.max(1) - 1) * self.dilation + 1
    }
}

/// The role of a dimension in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisRole {
    /// A batch axis, or any other along which each result is computed only from operands at the same index.
    Free,
    /// Like `Free`, but parameters or statistics differ from index to index.
    Channel,
    /// The columns of a matrix: a part writes its own between those of other parts, and states which they are
    /// ([`ProductPart::Columns`](super::ProductPart::Columns)).
    Columns,
    /// Like `Free`, but the kernel has a parameter for the last key that its first row sees
    /// ([`Placement::Diagonal`](super::Placement::Diagonal)): this number is added to it from one index to the next.
    Diagonal(i64),
    /// Some or all results are sums over the dimension and do not have it as an axis.
    Reduced,
    /// A spatial axis with a halo: targets see sources through a window. If no result has it, it is also reduced.
    Spatial(SlidingAxis),
    /// Equally spaced indices of a read, each selected for one result.
    Taken,
    /// Every result needs the whole dimension.
    Whole,
}

impl AxisRole {
    /// Whether a dimension of this role can hold the images of a batch, so that a launch can be divided between them.
    ///
    /// ```
    /// use forebay_base::kernel::facts::AxisRole;
    ///
    /// assert!(AxisRole::Reduced.may_hold_images(), "a sum over images");
    /// assert!(!AxisRole::Columns.may_hold_images());
    /// ```
    pub fn may_hold_images(self) -> bool {
        matches!(self, AxisRole::Free | AxisRole::Channel | AxisRole::Reduced | AxisRole::Taken)
    }
}

/// A dimension of a launch: corresponding indices of some axes of its operands.
///
/// An operand that no dimension runs along is needed whole by every part of the launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Dimension {
    /// The role of the dimension.
    pub role: AxisRole,
    /// If launches can be cut along the dimension, the boundaries: for results with the same bits as the whole, parts begin at multiples of
    /// this number of indices, of the operand along which parts are counted.
    pub cut: Option<u64>,
    /// The number of these indices that devices compute at once, a power of two: parts that begin elsewhere waste some work.
    pub at_once: u64,
    /// If results are sums over the dimension that are added in a tree, the leaves, in indices of the operand along which parts are
    /// counted. Parts are then nodes of the tree.
    pub leaves: Option<Leaves>,
    /// The operands that have an axis along the dimension; for a spatial dimension, those on the target side.
    pub targets: Vec<(OperandRef, Along)>,
    /// The operands on the source side of a spatial dimension.
    pub sources: Vec<(OperandRef, Along)>,
}

impl Dimension {
    /// The axis of an operand on either side, and whether that is the source side.
    pub fn along(&self, operand: OperandRef) -> Option<(Along, bool)> {
        let of = |side: &[(OperandRef, Along)]| side.iter().find(|(own, _)| *own == operand).map(|&(_, along)| along);
        of(&self.targets).map(|along| (along, false)).or_else(|| of(&self.sources).map(|along| (along, true)))
    }

    /// Whether the launch writes an operand that has an axis on the source side.
    pub fn writes_sources(&self) -> bool {
        self.sources.iter().any(|(operand, _)| matches!(operand, OperandRef::Write(_)))
    }

    /// Whether all results of the launch are sums over the dimension.
    pub fn is_reduced(&self) -> bool {
        !self.targets.iter().chain(&self.sources).any(|(operand, _)| matches!(operand, OperandRef::Write(_)))
    }
}
