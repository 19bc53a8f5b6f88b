//! Lines: a launch as ranges of indices that run through its operands' bytes, and what of it a part is.
//!
//! All that is known of a kernel here is what its axes are ([`KernelFacts::dimensions`]). Each dimension of a launch is a line: a
//! number of indices, and for each operand the distance in elements from one to the next. Lines that continue each other are one, so that
//! neither the number of axes nor their order in memory matters. A part is right if its lines are those of the whole, but for one
//! of which it has a range; if every operand begins where that range begins in it; and if a window finds through each of its taps
//! what it finds in the whole.
//!
//! [`KernelFacts::dimensions`]: forebay_base::kernel::KernelFacts::dimensions

use forebay_base::kernel::facts::{Along, AxisNumbers, AxisRole, Dimension, OperandRef, Placement, SlidingAxis};
use forebay_base::kernel::{Activation, ProductPart, Window};
use forebay_base::tensor::packed_strides;
use forebay_base::{Kernel, TensorDesc};
use forebay_model::program::Operand;

use super::windows::{self, Range};

/// A kernel with its operands: a launch, or one of those that it becomes where it sums.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub kernel: Kernel,
    pub reads: Vec<Operand>,
    pub writes: Vec<Operand>,
}

impl Work {
    fn operands(&self) -> impl Iterator<Item = &Operand> {
        self.reads.iter().chain(&self.writes)
    }

    fn operand(&self, of: OperandRef) -> Option<&Operand> {
        match of {
            OperandRef::Read(index) => self.reads.get(index),
            OperandRef::Write(index) => self.writes.get(index),
        }
    }
}

/// One side of a window, or all of a line without one.
#[derive(Clone, Debug, PartialEq)]
struct Side {
    size: u64,
    /// By operand, reads first: elements from one index to the next; 0 where the operand lacks the line.
    strides: Vec<i64>,
}

/// One line of a launch.
#[derive(Clone, Debug)]
struct Line {
    role: AxisRole,
    /// Whether no result has it.
    is_reduced: bool,
    /// Where it may be cut: at multiples of any of these; nowhere if there are none.
    steps: Vec<u64>,
    target: Side,
    /// What a window sees.
    source: Option<(SlidingAxis, Side)>,
    /// Operands of which it takes some indices only, on an axis: more than the line has.
    taken: Vec<(usize, Along)>,
}

/// A launch as lines.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    /// Those that have a window or take some indices only, in their order.
    ordered: Vec<Line>,
    /// All others; where they lie tells them apart.
    others: Vec<Line>,
    /// By operand: the element of its buffer that belongs to all lines' first indices. Last, the number of the first element for
    /// kernels that count them.
    bases: Vec<i64>,
    /// By operand: how many elements the lines run through; none where no line does.
    counts: Vec<Option<u64>>,
}

/// What a part is of its whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Extent {
    /// All of it.
    All,
    /// A range of a line: of its results, or, where they are sums over it, of what they are sums of.
    Range {
        /// Which line.
        line: (bool, usize),
        range: Range,
    },
}

/// A kernel without what depends on where its operands lie and how their axes are numbered, which lines say.
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
        Placement::Accumulates(accumulate) => *accumulate = false,
        Placement::AccumulatesWindow(accumulate, window) => {
            *accumulate = false;
            reset(window);
        }
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

/// Whether two operands are the same elements.
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
    /// The lines of a launch; none where its axes are not known, and it cannot be in parts.
    ///
    /// # Errors
    /// Operands whose sizes do not fit, and axes that no dimension says anything of.
    pub fn of(work: &Work) -> Result<Option<Lines>, String> {
        let descs = |operands: &[Operand]| operands.iter().map(|operand| operand.desc.clone()).collect::<Vec<_>>();
        let (reads, writes) = (descs(&work.reads), descs(&work.writes));
        let mut kernel = work.kernel.clone();
        let facts = work.kernel.facts();
        let found = facts.dimensions(&reads.iter().collect::<Vec<_>>(), &writes.iter().collect::<Vec<_>>());
        let Some(dimensions) = found else { return Ok(None) };
        let (first_element, has_columns) = match kernel.placement() {
            Placement::FirstElement(first) => (Some(*first as i64), false),
            Placement::Product(part, _) => (None, matches!(part, ProductPart::Columns { .. })),
            _ => (None, false),
        };
        let base = |operand: &Operand| (operand.offset_bytes / operand.desc.data_type().size_bytes()) as i64;
        let mut lines = Lines {
            ordered: Vec::new(),
            others: Vec::new(),
            bases: work.operands().map(base).chain([first_element.unwrap_or(0)]).collect(),
            counts: vec![None; work.reads.len() + work.writes.len()],
        };
        for dimension in &dimensions {
            let line = lines.line(work, dimension, first_element.is_some(), has_columns)?;
            match dimension.role {
                AxisRole::Spatial(_) | AxisRole::Taken => lines.ordered.push(line),
                AxisRole::Free | AxisRole::Channel | AxisRole::Reduced | AxisRole::Whole => lines.others.push(line),
            }
        }
        for (index, operand) in work.operands().enumerate() {
            let count = operand.desc.element_count();
            if lines.counts[index].is_some_and(|own| own != count) {
                return Err(format!(
                    "operand {index} of {} has {count} elements, which its axes do not give",
                    work.kernel
                ));
            }
        }
        lines.join();
        Ok(Some(lines))
    }

    /// The same without an operand.
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

    /// The line of a dimension; adds to bases what lies before it.
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
                if counts && index == 0 {
                    // Elements are counted as if they were packed.
                    side.strides[self.bases.len() - 1] = packed_strides(operand.desc.sizes())[along.axis] as i64;
                }
                let size = operand.desc.sizes()[along.axis];
                let may_take = match of {
                    OperandRef::Read(_) => dimension.role == AxisRole::Taken,
                    OperandRef::Write(_) => has_columns && side.size != 0 && (along.first > 0 || size != side.size),
                };
                if may_take {
                    taken.push((index, along));
                } else if side.size == 0 {
                    side.size = size / along.elements;
                }
                // What is taken of an axis says nothing of its size.
                let counted = if may_take { size } else { side.size };
                let count = self.counts[index].get_or_insert(1);
                *count = count.saturating_mul(counted);
            }
            Ok(side)
        };
        let target = side(&dimension.targets)?;
        let source = match dimension.role {
            AxisRole::Spatial(sliding) => Some((sliding, side(&dimension.sources)?)),
            AxisRole::Free | AxisRole::Channel | AxisRole::Reduced | AxisRole::Taken | AxisRole::Whole => None,
        };
        if target.size == 0 || source.as_ref().is_some_and(|(_, source)| source.size == 0) {
            return Err(format!("an axis of {} has no size", work.kernel.name()));
        }
        let role = match dimension.role {
            // Which window it is, `source` says.
            AxisRole::Spatial(_) => AxisRole::Whole,
            role => role,
        };
        let steps = dimension.cut.into_iter().collect();
        Ok(Line { role, is_reduced: dimension.is_reduced(), steps, target, source, taken })
    }

    /// Makes one line of two where the second continues the first in every operand, and leaves out those of one index.
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
            // Where whole indices of the outer line begin, that line says.
            line.steps.retain(|step| step % size != 0);
            line.steps.extend(removed.steps.iter().map(|step| step * size));
            line.target.size *= removed.target.size;
            self.others.remove(outer);
        }
    }

    fn line_of(&self, (is_ordered, index): (bool, usize)) -> &Line {
        if is_ordered {
            &self.ordered[index]
        } else {
            &self.others[index]
        }
    }

    /// Whether a line's results are sums over it.
    pub fn is_reduced(&self, line: (bool, usize)) -> bool {
        self.line_of(line).is_reduced
    }

    /// Whether every result has a line.
    pub fn all_write(&self, line: (bool, usize), writes_from: usize) -> bool {
        let line = self.line_of(line);
        let sources = line.source.as_ref().map(|(_, source)| &source.strides);
        let has = |index: usize| line.target.strides[index] != 0 || sources.is_some_and(|strides| strides[index] != 0);
        (writes_from..self.counts.len()).all(has)
    }

    /// Whether a line may be cut at an index.
    pub fn may_be_cut(&self, line: (bool, usize), at: u64) -> bool {
        self.line_of(line).steps.iter().any(|step| at % step == 0)
    }

    /// How many indices a line has, on the side along which its parts follow each other.
    pub fn size(&self, line: (bool, usize), writes_from: usize) -> u64 {
        let line = self.line_of(line);
        match &line.source {
            Some((_, source)) if writes(source, writes_from) => source.size,
            _ => line.target.size,
        }
    }

    /// What of this launch a part is. Both have their operands in the same order.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn extent(&self, whole: &Work, part: &Work, lines: &Lines) -> Result<Extent, String> {
        for (index, (own, other)) in whole.operands().zip(part.operands()).enumerate() {
            if own.buffer != other.buffer || own.desc.data_type() != other.desc.data_type() {
                return Err(format!("operand {index} is another"));
            }
            if self.counts[index].is_none() && !same_operand(own, other) {
                return Err(format!("operand {index} is not all that is needed"));
            }
        }
        let distances: Vec<i64> = lines.bases.iter().zip(&self.bases).map(|(part, whole)| part - whole).collect();
        let mut found: Option<Extent> = None;
        let mut note = |extent: Extent| match found.replace(extent) {
            Some(_) => Err("it is cut along two axes".to_owned()),
            None => Ok(()),
        };
        let mut explained = vec![0; distances.len()];
        if self.ordered.len() != lines.ordered.len() {
            return Err("it has another number of windows".to_owned());
        }
        let writes_from = whole.reads.len();
        let mut unmatched: Vec<&Line> = lines.others.iter().collect();
        let of_others = self.others.iter().enumerate().map(|(index, own)| {
            let is_same = |other: &&Line| {
                other.role == own.role
                    && other.is_reduced == own.is_reduced
                    && other.target.strides == own.target.strides
            };
            ((false, index), own, unmatched.iter().position(is_same).map(|place| unmatched.remove(place)))
        });
        let of_others: Vec<_> = of_others.collect();
        let of_ordered = self.ordered.iter().zip(&lines.ordered).enumerate();
        let pairs = of_ordered.map(|(index, (own, other))| ((true, index), own, Some(other))).chain(of_others);
        for (line, own, other) in pairs {
            let range = match (&own.source, other) {
                (Some(_), Some(other)) => sliding_range(own, other, &distances, writes_from)?,
                _ => plain_range(own, other, &distances)?,
            };
            takes_the_same(own, other, whole, part, range.is_some())?;
            if let Some((range, moved)) = range {
                note(Extent::Range { line, range })?;
                explained.iter_mut().zip(moved).for_each(|(sum, own)| *sum += own);
            }
        }
        if !unmatched.is_empty() {
            return Err("an axis lies otherwise in memory than in the whole".to_owned());
        }
        if let Some(index) = (0..distances.len()).find(|&index| distances[index] != explained[index]) {
            let (is, should) = (distances[index], explained[index]);
            return Err(format!("operand {index} begins {is} elements behind that of the whole, not {should}"));
        }
        Ok(found.unwrap_or(Extent::All))
    }
}

fn writes(side: &Side, writes_from: usize) -> bool {
    side.strides.iter().skip(writes_from).rev().skip(1).any(|&stride| stride != 0)
}

/// The index at which a part begins by where its operands begin, and how far each of them is moved then.
fn start_of(side: &Side, distances: &[i64]) -> Result<(u64, Vec<i64>), String> {
    let first = side.strides.iter().zip(distances).find(|(&stride, _)| stride != 0);
    let (&stride, &distance) = first.ok_or("an axis is cut that no operand has")?;
    let start = distance / stride;
    if start < 0 || start * stride != distance {
        return Err(format!("{distance} elements are no multiple of {stride} from the whole's first"));
    }
    Ok((start as u64, side.strides.iter().map(|stride| stride * start).collect()))
}

/// The range of a line that a part is, and how far it moves each operand; none for all of it.
fn plain_range(own: &Line, other: Option<&Line>, distances: &[i64]) -> Result<Option<(Range, Vec<i64>)>, String> {
    let size = other.map_or(1, |other| other.target.size);
    if size == own.target.size {
        return Ok(None);
    }
    if other.is_some_and(|other| other.target.strides != own.target.strides) {
        return Err("an axis lies otherwise in memory than in the whole".to_owned());
    }
    let (start, moved) = start_of(&own.target, distances)?;
    let range = Range { start, end: start + size };
    match range.end <= own.target.size {
        true => Ok(Some((range, moved))),
        false => Err(format!("{range:?} is beyond the {} indices of an axis", own.target.size)),
    }
}

/// Whether operands of which a line takes some indices have those: what is read no others, or, if it is not cut, all of the whole's.
fn takes_the_same(own: &Line, other: Option<&Line>, whole: &Work, part: &Work, is_cut: bool) -> Result<(), String> {
    let size_in = |work: &Work, index: usize, axis: usize| -> Option<u64> {
        work.operands().nth(index)?.desc.sizes().get(axis).copied()
    };
    let Some(other) = other else {
        return if own.taken.is_empty() { Ok(()) } else { Err("nothing is taken of an operand".to_owned()) };
    };
    for &(index, along) in &other.taken {
        let (of_whole, size) = (size_in(whole, index, along.axis), size_in(part, index, along.axis));
        let last = along.first as i64 + along.step * (other.target.size as i64 - 1);
        let needed = (along.first as i64).max(last) + 1;
        let is_tight = size.map(|size| size as i64) == Some(needed) && (along.first == 0 || last == 0);
        let is_whole = size == of_whole && size.is_some_and(|size| needed <= size as i64);
        let fits = (is_tight && index < whole.reads.len()) || (is_whole && (!is_cut || index >= whole.reads.len()));
        if !fits || last < 0 {
            return Err(format!("operand {index} has {size:?} indices of an axis, of which {needed} are needed"));
        }
    }
    Ok(())
}

/// The range of a window's line that a part is, and how far it moves each operand; none for all of it.
fn sliding_range(
    own: &Line,
    other: &Line,
    distances: &[i64],
    writes_from: usize,
) -> Result<Option<(Range, Vec<i64>)>, String> {
    let (Some((window, own_source)), Some((moved, source))) = (&own.source, &other.source) else {
        return Err("a window is missing".to_owned());
    };
    let lies_the_same = |a: &Side, b: &Side| a.strides == b.strides || (a.size == 1 && b.size == 1);
    if !lies_the_same(&own.target, &other.target) || !lies_the_same(own_source, source) {
        return Err("what a window sees lies otherwise in memory than in the whole".to_owned());
    }
    if own.target.size == other.target.size && own_source.size == source.size {
        return match window == moved {
            true => Ok(None),
            false => Err("a window is moved".to_owned()),
        };
    }
    let (target_start, target_moved) = start_of(&own.target, distances)?;
    let (source_start, source_moved) = start_of(own_source, distances)?;
    let targets = Range { start: target_start, end: target_start + other.target.size };
    let sources = Range { start: source_start, end: source_start + source.size };
    if targets.end > own.target.size || sources.end > own_source.size {
        return Err(format!("results {targets:?} or what they see, {sources:?}, are beyond the whole's"));
    }
    let is_written = writes(own_source, writes_from);
    let is_read = own_source.strides.iter().take(writes_from).any(|&stride| stride != 0);
    let sizes = (own.target.size, own_source.size);
    windows::judge(window, moved, targets, sources, sizes, (is_read, is_written))?;
    let moved = target_moved.iter().zip(&source_moved).map(|(a, b)| a + b).collect();
    Ok(Some((if is_written { sources } else { targets }, moved)))
}
