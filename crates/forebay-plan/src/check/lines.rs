//! Lines: a launch as ranges of indices that run through the bytes of its operands, and which piece of it a part computes.
//!
//! All that is known about a kernel here is the meaning of its axes ([`KernelFacts::dimensions`]). Each dimension of a launch is a line: a
//! number of indices and, for each operand, the distance in elements from one index to the next. Lines that continue each other are joined,
//! so that neither the number of axes nor their order in memory matters. A part is correct if it has the same lines as the whole, except
//! for one of which it has a range; if every operand begins where that range begins in it; and if a window finds through each of its taps
//! what it finds in the whole.
//!
//! [`KernelFacts::dimensions`]: forebay_base::kernel::KernelFacts::dimensions

use std::ops::Range;

use forebay_base::kernel::facts::{
    Along, AxisNumbers, AxisRole, Dimension, Leaves, OperandRef, Placement, SlidingAxis,
};
use forebay_base::kernel::{Activation, ProductPart, Window};
use forebay_base::tensor::packed_strides;
use forebay_base::{Kernel, TensorDesc, sum_tree};
use forebay_model::program::Operand;

/// A kernel with its operands: a launch, or one of the launches that replace it if it sums.
#[derive(Clone, Debug)]
pub(super) struct Work {
    /// The kernel.
    pub kernel: Kernel,
    /// What it reads.
    pub reads: Vec<Operand>,
    /// What it writes.
    pub writes: Vec<Operand>,
}

impl Work {
    /// Returns the reads, then the writes.
    pub fn operands(&self) -> impl Iterator<Item = &Operand> {
        self.reads.iter().chain(&self.writes)
    }

    /// Returns an operand.
    pub fn operand(&self, of: OperandRef) -> Option<&Operand> {
        match of {
            OperandRef::Read(index) => self.reads.get(index),
            OperandRef::Write(index) => self.writes.get(index),
        }
    }
}

/// One side of a window, or the whole of a line without a window.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Side {
    /// The number of indices.
    pub size: u64,
    /// By operand, reads first: elements from one index to the next; 0 if the operand lacks the line.
    pub strides: Vec<i64>,
}

/// The tree of a sum over a line.
#[derive(Clone, Copy, Debug)]
struct Tree {
    leaves: Leaves,
    /// The number of indices that have a separate tree: all of them, or those of an image.
    indices: u64,
}

/// Some leaves of a tree, and how many leaves the tree has.
type LeavesOf = (Range<u64>, u64);

impl Tree {
    /// Returns the leaves of some of a line's indices; `None` if these belong to several trees, or split a leaf.
    fn leaves(&self, range: &Range<u64>, size: u64) -> Option<LeavesOf> {
        let first = range.start / self.indices * self.indices;
        let own_size = self.indices.min(size - first);
        let own = range.start - first..range.end.checked_sub(first).filter(|&end| end <= own_size)?;
        let (Leaves { block, of_index }, leaves) = (self.leaves, self.leaves.of_range(&own, own_size)?);
        Some((leaves, (own_size * of_index).div_ceil(block)))
    }
}

/// One line of a launch.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Its role; for a window, see `source`.
    pub role: AxisRole,
    /// Whether no result has this line.
    pub is_reduced: bool,
    /// Where it can be cut: at multiples of any of these; nowhere if there are none.
    pub steps: Vec<u64>,
    /// The trees by which sums over it are added; the one with the fewest indices comes first.
    trees: Vec<Tree>,
    /// The indices themselves, or those of a window's results.
    pub target: Side,
    /// What a window sees.
    pub source: Option<(SlidingAxis, Side)>,
    /// Operands of which it takes only some indices of an axis, which has more indices than the line.
    pub taken: Vec<(usize, Along)>,
}

/// A launch as lines.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    /// Lines that have a window or take only some indices, in their order.
    pub ordered: Vec<Line>,
    /// All other lines, which are distinguished by their layout.
    pub others: Vec<Line>,
    /// By operand: the element of its buffer that belongs to the first indices of all lines. The last entry is the number of the first
    /// element for kernels that count elements, or the last key that the first row sees.
    pub bases: Vec<i64>,
    /// By operand: the number of elements that lines run through; `None` if no line does.
    pub counts: Vec<Option<u64>>,
}

/// Returns a kernel without what depends on the layout of its operands and the numbering of their axes, which is what lines describe.
pub(super) fn function(kernel: &Kernel) -> Kernel {
    let mut kernel = kernel.clone();
    let reset = |window: &mut Window| {
        window.pads_begin.fill(0);
        window.pads_end.fill(0);
    };
    match kernel.placement() {
        Placement::None => {}
        Placement::Window(window) => reset(window),
        Placement::Starts(starts) => starts.fill(0),
        Placement::FirstElement(first) => *first = 0,
        Placement::Diagonal(last) => *last = 0,
        Placement::Product(part, activation) => {
            *part = ProductPart::Whole;
            *activation = Activation::None;
        }
    }
    match kernel.axis_numbers() {
        AxisNumbers::None => {}
        AxisNumbers::One(axis) | AxisNumbers::First(axis) => *axis = 0,
        AxisNumbers::Some(axes) => axes.clear(),
    }
    kernel
}

/// Returns whether two operands are the same elements.
pub(super) fn same_operand(a: &Operand, b: &Operand) -> bool {
    let lies = |desc: &TensorDesc| -> Vec<(u64, u64)> {
        let all = desc.sizes().iter().copied().zip(desc.effective_strides());
        all.filter(|&(size, _)| size > 1).collect()
    };
    (a.buffer, a.offset_bytes, a.desc.data_type()) == (b.buffer, b.offset_bytes, b.desc.data_type())
        && (a.desc == b.desc || lies(&a.desc) == lies(&b.desc) || both_packed(&a.desc, &b.desc))
}

fn both_packed(a: &TensorDesc, b: &TensorDesc) -> bool {
    a.is_packed() && b.is_packed() && a.element_count() == b.element_count()
}

impl Lines {
    /// Returns the lines of a launch; `None` if its axes are not known, so that it cannot be in parts.
    ///
    /// # Errors
    /// Fails if the sizes of operands do not match, or if no dimension describes an axis.
    pub fn of(work: &Work) -> Result<Option<Lines>, String> {
        let descs = |operands: &[Operand]| operands.iter().map(|operand| operand.desc.clone()).collect::<Vec<_>>();
        let (reads, writes) = (descs(&work.reads), descs(&work.writes));
        let mut kernel = work.kernel.clone();
        let facts = work.kernel.facts();
        let found = facts.dimensions(&reads.iter().collect::<Vec<_>>(), &writes.iter().collect::<Vec<_>>());
        let Some(dimensions) = found else { return Ok(None) };
        let (first_element, has_columns, last_key) = match kernel.placement() {
            Placement::FirstElement(first) => (Some(*first as i64), false, None),
            Placement::Product(part, _) => (None, matches!(part, ProductPart::Columns { .. }), None),
            Placement::Diagonal(last) => (None, false, Some(*last)),
            _ => (None, false, None),
        };
        let covered = covered(&dimensions, work);
        let base = |(operand, covers): (&Operand, &u64)| {
            (operand.offset_bytes / operand.desc.data_type().size_bytes() * covers) as i64
        };
        let mut lines = Lines {
            ordered: Vec::new(),
            others: Vec::new(),
            bases: work.operands().zip(&covered).map(base).chain([first_element.or(last_key).unwrap_or(0)]).collect(),
            counts: vec![None; work.reads.len() + work.writes.len()],
        };
        for dimension in &dimensions {
            let line = lines.line(work, dimension, first_element.is_some(), has_columns)?;
            match dimension.role {
                AxisRole::Spatial(_) | AxisRole::Taken => lines.ordered.push(line),
                AxisRole::Free
                | AxisRole::Channel
                | AxisRole::Columns
                | AxisRole::Diagonal(_)
                | AxisRole::Reduced
                | AxisRole::Whole => lines.others.push(line),
            }
        }
        for ((index, operand), covers) in work.operands().enumerate().zip(covered) {
            let count = operand.desc.element_count();
            if lines.counts[index].is_some_and(|own| own.div_ceil(covers) != count) {
                return Err(format!(
                    "operand {index} of {} has {count} elements, which does not match its axes",
                    work.kernel
                ));
            }
        }
        lines.join();
        Ok(Some(lines))
    }

    /// Returns the lines without an operand.
    pub fn without(mut self, index: usize) -> Lines {
        let remove = |side: &mut Side| {
            side.strides.remove(index);
        };
        for line in self.ordered.iter_mut().chain(&mut self.others) {
            remove(&mut line.target);
            line.source.iter_mut().for_each(|(_, source)| remove(source));
            line.taken.retain(|&(own, _)| own != index);
            line.taken.iter_mut().for_each(|(own, _)| *own -= usize::from(*own > index));
        }
        self.bases.remove(index);
        self.counts.remove(index);
        self
    }

    /// Returns the line of a dimension, and adds to `bases` what precedes it.
    fn line(&mut self, work: &Work, dimension: &Dimension, counts: bool, has_columns: bool) -> Result<Line, String> {
        let (mut taken, reads) = (Vec::new(), work.reads.len());
        let mut side = |all: &[(OperandRef, Along)]| -> Result<Side, String> {
            let mut side = Side { size: 0, strides: vec![0; self.bases.len()] };
            let index_of = |of| match of {
                OperandRef::Read(index) => index,
                OperandRef::Write(index) => reads + index,
            };
            for &(of, along) in all {
                let (index, operand) = (index_of(of), work.operand(of).ok_or("an operand is missing")?);
                let stride = operand.desc.effective_strides()[along.axis] as i64 * along.elements as i64;
                self.bases[index] += along.first as i64 * stride;
                side.strides[index] = stride * along.step;
                if counts && index == reads {
                    // Elements of the first result are counted as if they were packed.
                    side.strides[self.bases.len() - 1] = packed_strides(operand.desc.sizes())[along.axis] as i64;
                }
                let size = operand.desc.sizes()[along.axis];
                let may_take = match of {
                    OperandRef::Read(_) => dimension.role == AxisRole::Taken,
                    OperandRef::Write(_) => has_columns && side.size != 0 && (along.first > 0 || size != side.size),
                };
                if may_take {
                    taken.push((index, along));
                } else if side.size == 0 && along.covers == 1 {
                    side.size = along.indices.unwrap_or(size / along.elements);
                }
                // What is taken of an axis says nothing about its size.
                let counted = if may_take { size } else { side.size };
                let count = self.counts[index].get_or_insert(1);
                *count = count.saturating_mul(counted);
            }
            Ok(side)
        };
        let mut target = side(&dimension.targets)?;
        if let (AxisRole::Diagonal(step), Some(last)) = (dimension.role, target.strides.last_mut()) {
            *last = step;
        }
        let source = match dimension.role {
            AxisRole::Spatial(sliding) => Some((sliding, side(&dimension.sources)?)),
            AxisRole::Free
            | AxisRole::Channel
            | AxisRole::Columns
            | AxisRole::Diagonal(_)
            | AxisRole::Reduced
            | AxisRole::Taken
            | AxisRole::Whole => None,
        };
        if target.size == 0 || source.as_ref().is_some_and(|(_, source)| source.size == 0) {
            return Err(format!("an axis of {} has no size", work.kernel.name()));
        }
        let role = match dimension.role {
            // `source` identifies the window.
            AxisRole::Spatial(_) => AxisRole::Whole,
            role => role,
        };
        let steps = dimension.cut.into_iter().collect();
        let trees = dimension.leaves.map(|leaves| Tree { leaves, indices: target.size }).into_iter().collect();
        Ok(Line { role, is_reduced: dimension.is_reduced(), steps, trees, target, source, taken })
    }

    /// Joins two lines if the second continues the first in every operand, and removes lines with one index.
    fn join(&mut self) {
        self.others.retain(|line| line.target.size > 1 || !line.taken.is_empty());
        let continues = |outer: &Line, inner: &Line| {
            let (a, b) = (&outer.target, &inner.target);
            let size = b.size as i64;
            outer.role == inner.role
                && outer.is_reduced == inner.is_reduced
                && outer.steps.is_empty() == inner.steps.is_empty()
                && outer.taken.is_empty()
                && inner.taken.is_empty()
                && a.strides.iter().zip(&b.strides).all(|(outer, inner)| *outer == size * inner)
        };
        let pairs = |lines: &[Line]| {
            let all = (0..lines.len()).flat_map(|a| (0..lines.len()).map(move |b| (a, b))).collect::<Vec<_>>();
            all.into_iter().find(|&(a, b)| a != b && continues(&lines[a], &lines[b]))
        };
        while let Some((outer, inner)) = pairs(&self.others) {
            let removed = self.others[outer].clone();
            let line = &mut self.others[inner];
            let size = line.target.size;
            // The outer line determines cuts where its whole indices begin.
            line.steps.retain(|step| step % size != 0);
            line.steps.extend(removed.steps.iter().map(|step| step * size));
            line.trees = joined(&line.trees, &removed.trees, size, removed.target.size);
            line.target.size *= removed.target.size;
            self.others.remove(outer);
        }
    }

    fn line_of(&self, (is_ordered, index): (bool, usize)) -> &Line {
        if is_ordered { &self.ordered[index] } else { &self.others[index] }
    }

    /// Returns whether a line's results are sums over it.
    pub fn is_reduced(&self, line: (bool, usize)) -> bool {
        self.line_of(line).is_reduced
    }

    /// Returns whether every result has a line.
    pub fn all_write(&self, line: (bool, usize), writes_from: usize) -> bool {
        let line = self.line_of(line);
        let sources = line.source.as_ref().map(|(_, source)| &source.strides);
        let has = |index: usize| line.target.strides[index] != 0 || sources.is_some_and(|strides| strides[index] != 0);
        (writes_from..self.counts.len()).all(has)
    }

    /// Returns whether a line can be cut at an index.
    pub fn may_be_cut(&self, line: (bool, usize), at: u64) -> bool {
        self.line_of(line).steps.iter().any(|step| at.is_multiple_of(*step))
    }

    /// Returns whether some indices of a line are a node of its tree.
    pub fn is_node(&self, line: (bool, usize), range: &Range<u64>) -> bool {
        let line = self.line_of(line);
        let mut leaves = line.trees.iter().filter_map(|tree| tree.leaves(range, line.target.size));
        leaves.any(|(leaves, count)| sum_tree::is_node(&leaves, count))
    }

    /// Returns whether some indices of a line and those after them are the halves of a node of its tree.
    pub fn are_halves(&self, line: (bool, usize), left: &Range<u64>, right: &Range<u64>) -> bool {
        let line = self.line_of(line);
        let both = left.start..right.end;
        let found = line.trees.iter().find_map(|tree| Some((tree, tree.leaves(&both, line.target.size)?)));
        let Some((tree, (leaves, count))) = found else { return false };
        let of_left = tree.leaves(left, line.target.size).map(|(leaves, _)| leaves.end);
        left.end == right.start && sum_tree::is_node(&leaves, count) && of_left == sum_tree::middle(&leaves)
    }

    /// Returns the number of indices of a line on the side along which its parts follow each other.
    pub fn size(&self, line: (bool, usize), writes_from: usize) -> u64 {
        let line = self.line_of(line);
        match &line.source {
            Some((_, source)) if writes(source, writes_from) => source.size,
            _ => line.target.size,
        }
    }
}

/// Returns by operand how many indices of its dimension one element covers. Lines run through such an operand as if each of its elements
/// were repeated this many times, and its bases are counted accordingly.
fn covered(dimensions: &[Dimension], work: &Work) -> Vec<u64> {
    let reads = (0..work.reads.len()).map(OperandRef::Read);
    let covers = |of: OperandRef| dimensions.iter().find_map(|one| one.along(of)).map_or(1, |(along, _)| along.covers);
    reads.chain((0..work.writes.len()).map(OperandRef::Write)).map(covers).collect()
}

/// Returns the trees of a line that is joined from two: the inner one, with `size` indices, and the outer one.
fn joined(inner: &[Tree], outer: &[Tree], size: u64, outer_size: u64) -> Vec<Tree> {
    let goes_through =
        |inner: &Leaves, outer: &Leaves| inner.block == outer.block && outer.of_index == inner.of_index * size;
    if let ([first, ..], [above, ..]) = (inner, outer)
        && goes_through(&first.leaves, &above.leaves)
    {
        return vec![Tree { leaves: first.leaves, indices: size * outer_size }];
    }
    // A leaf that is the whole inner line is a leaf of the outer line.
    let is_cut = |tree: &&Tree| tree.leaves.block < size * tree.leaves.of_index;
    let outer = outer.iter().map(|tree| {
        let Leaves { block, of_index } = tree.leaves;
        Tree { leaves: Leaves { block: block * size, of_index }, indices: tree.indices * size }
    });
    inner.iter().filter(is_cut).copied().chain(outer).collect()
}

/// Returns whether what is written has a side of a line.
pub(super) fn writes(side: &Side, writes_from: usize) -> bool {
    side.strides.iter().skip(writes_from).rev().skip(1).any(|&stride| stride != 0)
}
