//! Cut: replaces one launch by several on rows of its tensors.
//!
//! The kernel's facts ([`forebay_base::kernel::facts`]) define the meaning of an axis, which axes of other operands correspond to it, and
//! where parts can begin. Each part is a separate launch of the same kernel on fewer rows. If a kernel sums over the rows, its parts are
//! nodes of the tree by which the whole is summed ([`forebay_base::sum_tree`]); other launches add their sums, and one computes the result.

use forebay_base::kernel::facts::{Along, AxisRole, CutChoice, Dimension, OperandRef, Placement, SumsInParts};
use forebay_base::kernel::{Activation, ProductPart};
use forebay_base::{Kernel, TensorDesc};
use forebay_model::program::{Operand, ProgramLaunch};

use super::rows::{Cut, Rows, aligned_rows, rows_of, slice_of};
use super::window;

/// The axes along which launches are cut, in order of preference: images; rows of the first spatial dimension of a single image; positions
/// of a single sequence.
const AXES: [usize; 3] = [0, 2, 1];

/// Returns the ways in which a launch can be cut, the best first.
pub(crate) fn cuts(launch: &ProgramLaunch) -> Vec<Cut> {
    match launch.kernel.facts().cut_choice {
        CutChoice::First => AXES.into_iter().find_map(|axis| cut(launch, axis)).into_iter().collect(),
        CutChoice::Least | CutChoice::Nested => {
            let all = dimensions(launch).into_iter().enumerate();
            all.filter_map(|(number, dimension)| cut_between_tiles(launch, number, &dimension)).collect()
        }
    }
}

/// Returns the descriptors of operands.
pub(crate) fn descs(operands: &[Operand]) -> Vec<&TensorDesc> {
    operands.iter().map(|operand| &operand.desc).collect()
}

/// Returns the dimensions of a launch; empty if it cannot be cut.
pub(crate) fn dimensions(launch: &ProgramLaunch) -> Vec<Dimension> {
    let facts = launch.kernel.facts();
    facts.dimensions(&descs(&launch.reads), &descs(&launch.writes)).unwrap_or_default()
}

/// Returns the axis for a dimension in the operand by which parts are counted.
fn counted_axis(launch: &ProgramLaunch, dimension: &Dimension) -> Option<usize> {
    dimension.along(launch.kernel.facts().counted_along).map(|(along, _)| along.axis)
}

/// Returns the sums that a kernel computes along an axis, which its parts compute together.
pub(crate) fn summing(launch: &ProgramLaunch, axis: usize) -> Option<SumsInParts> {
    let sums = launch.kernel.sums_in_parts(&descs(&launch.reads), &descs(&launch.writes))?;
    let own = dimensions(launch).into_iter().find(|found| counted_axis(launch, found) == Some(axis))?;
    (own.role == AxisRole::Reduced).then_some(sums)
}

/// Returns where a launch can be cut along an axis of the operand by which parts are counted; `None` if it cannot be.
pub(crate) fn cut(launch: &ProgramLaunch, axis: usize) -> Option<Cut> {
    let sizes = launch.desc(launch.kernel.facts().counted_along)?.sizes();
    if axis > 0 && *sizes.first()? > 1 {
        return None;
    }
    let found = dimensions(launch).into_iter().enumerate();
    let mut own = found.filter(|(_, found)| counted_axis(launch, found) == Some(axis));
    own.next().and_then(|(number, dimension)| cut_between_tiles(launch, number, &dimension))
}

/// Returns where a launch can be cut along a dimension, between the tiles that devices compute at once.
fn cut_between_tiles(launch: &ProgramLaunch, number: usize, dimension: &Dimension) -> Option<Cut> {
    let finest = cut_along(launch, number, dimension)?;
    let mut cut = finest;
    while !cut.step.is_multiple_of(dimension.at_once) {
        cut.step *= 2;
    }
    (cut.step == finest.step || is_possible(launch, &cut)).then_some(cut)
}

/// Returns where a launch can be cut along a dimension; `None` if it cannot be.
pub(crate) fn cut_along(launch: &ProgramLaunch, number: usize, dimension: &Dimension) -> Option<Cut> {
    let mut step = dimension.cut?;
    // Parts are nodes of the tree, with a power of two of leaves.
    if dimension.leaves.is_some_and(|leaves| !leaves.of_step().is_power_of_two()) {
        return None;
    }
    let axis = counted_axis(launch, dimension);
    let rows = match axis {
        // Columns of a part are counted separately, not among all columns of the result.
        Some(axis) if dimension.role != AxisRole::Columns => {
            *launch.desc(launch.kernel.facts().counted_along)?.sizes().get(axis)?
        }
        _ => {
            let &(of, along) = dimension.targets.first()?;
            *launch.desc(of)?.sizes().get(along.axis)?
        }
    };
    let operands = (0..launch.reads.len()).map(OperandRef::Read).chain((0..launch.writes.len()).map(OperandRef::Write));
    let aligned = operands.filter_map(|of| {
        let (desc, along) = (launch.desc(of)?, dimension.along(of)?.0);
        let aligned = aligned_rows(desc, along.axis)?.saturating_mul(along.covers);
        (desc.sizes().get(along.axis) == Some(&rows.div_ceil(along.covers))).then_some(aligned)
    });
    let aligned = aligned.max().unwrap_or(1);
    // Both are needed; alignments are powers of two.
    while step % aligned != 0 {
        step *= 2;
    }
    let cut = Cut { dimension: number, axis, rows, step };
    is_possible(launch, &cut).then_some(cut)
}

/// Returns whether there are at least two parts, the last of which may be shorter. What holds for the first rows holds for all.
fn is_possible(launch: &ProgramLaunch, cut: &Cut) -> bool {
    let last = Rows { start: cut.step, end: cut.rows };
    cut.rows > cut.step && Cutting::new(launch, cut).is_some_and(|cutting| cutting.part(last, None).is_some())
}

/// A launch that is being cut.
pub(crate) struct Cutting<'a> {
    launch: &'a ProgramLaunch,
    cut: Cut,
    /// The dimension along which it is cut.
    dimension: Dimension,
    /// The sums to which its parts contribute.
    summed: Option<SumsInParts>,
}

impl<'a> Cutting<'a> {
    /// Returns `None` if the launch cannot be cut this way.
    pub fn new(launch: &'a ProgramLaunch, cut: &Cut) -> Option<Cutting<'a>> {
        let dimension = dimensions(launch).into_iter().nth(cut.dimension).filter(|own| own.cut.is_some())?;
        let sums = launch.kernel.sums_in_parts(&descs(&launch.reads), &descs(&launch.writes));
        let summed = sums.filter(|_| dimension.role == AxisRole::Reduced);
        Some(Cutting { launch, cut: *cut, dimension, summed })
    }

    /// Returns whether its results are sums over the dimension along which it is cut, so that parts compute nodes of their tree.
    pub fn is_tree(&self) -> bool {
        self.dimension.leaves.is_some()
    }

    /// Returns the sums that the kernel computes along the dimension along which it is cut, which its parts compute together.
    pub fn summed(self) -> Option<SumsInParts> {
        self.summed
    }

    /// Returns the part on some rows; if it is computed from sums, the launch that computes these.
    pub fn part(&self, rows: Rows, sums: Option<&Operand>) -> Option<ProgramLaunch> {
        let Cutting { launch, cut, dimension, summed } = self;
        let seen = Seen::of(launch, dimension, rows)?;
        if let Some(summed) = summed {
            let reads = summed.reads.iter().map(|&read| seen.part(launch, dimension, OperandRef::Read(read)));
            let reads = reads.collect::<Option<Vec<_>>>()?;
            let Some(sums) = sums else { return Some(ProgramLaunch::clone(launch)) };
            let kernel = Kernel::Sums { of: summed.of };
            return Some(ProgramLaunch { kernel, reads, writes: vec![sums.clone()], ..ProgramLaunch::clone(launch) });
        }
        let all = |count: usize, of: fn(usize) -> OperandRef| {
            (0..count).map(|index| seen.part(launch, dimension, of(index))).collect::<Option<Vec<_>>>()
        };
        let reads = all(launch.reads.len(), OperandRef::Read)?;
        let writes = all(launch.writes.len(), OperandRef::Write)?;
        let mut part = ProgramLaunch { reads, writes, ..ProgramLaunch::clone(launch) };
        seen.place(launch, (dimension.role, cut.axis), rows, &mut part);
        Some(part)
    }
}

/// What a part needs of a dimension: rows of targets, and rows of the sources that they see through the part's own window.
struct Seen {
    targets: Rows,
    sources: Rows,
    window: Option<forebay_base::kernel::Window>,
}

impl Seen {
    /// Returns what a part needs, given its rows of the operand by which parts are counted.
    fn of(launch: &ProgramLaunch, dimension: &Dimension, rows: Rows) -> Option<Seen> {
        let AxisRole::Spatial(_) = dimension.role else {
            return Some(Seen { targets: rows, sources: rows, window: None });
        };
        let mut kernel = launch.kernel.clone();
        let window = match kernel.placement() {
            Placement::Window(window) => window,
            _ => return None,
        };
        let size = |side: &[(OperandRef, Along)]| {
            let &(of, along) = side.first()?;
            launch.desc(of)?.sizes().get(along.axis).copied()
        };
        let (targets, sources) = (size(&dimension.targets)?, size(&dimension.sources)?);
        let is_written = dimension.writes_sources();
        let counts_sources = dimension.along(launch.kernel.facts().counted_along)?.1;
        if counts_sources {
            let seen = window::output_rows(window, rows, targets)?;
            return Some(Seen { targets: seen.rows, sources: rows, window: Some(seen.window) });
        }
        let seen = match is_written {
            true => window::own_input_rows(window, rows, targets, sources)?,
            false => window::input_rows(window, rows, sources)?,
        };
        Some(Seen { targets: rows, sources: seen.rows, window: Some(seen.window) })
    }

    /// Returns the part of an operand, or all of it if it lacks the dimension.
    fn part(&self, launch: &ProgramLaunch, dimension: &Dimension, of: OperandRef) -> Option<Operand> {
        let own = launch.operand(of)?;
        let Some((Along { axis, elements, first, step, covers, indices: _ }, is_source)) = dimension.along(of) else {
            return Some(own.clone());
        };
        let rows = if is_source { self.sources } else { self.targets };
        let step = u64::try_from(step).ok().filter(|&step| step > 0)?;
        let start = first + rows.start * step;
        let rows = Rows { start: start * elements, end: (start + (rows.len() - 1) * step + 1) * elements };
        // The indices that one index of the operand covers are not separated.
        if !rows.start.is_multiple_of(covers) {
            return None;
        }
        let rows = Rows { start: rows.start / covers, end: rows.end.div_ceil(covers) };
        // What is transposed is read in place, among the rows of other parts.
        let is_entangled = axis < launch.kernel.facts().reads_entangled && matches!(of, OperandRef::Read(_));
        if dimension.role == AxisRole::Columns && matches!(of, OperandRef::Write(_)) {
            return Some(own.clone());
        }
        if is_entangled || elements > 1 {
            return slice_of(own, axis, rows);
        }
        rows_of(own, axis, rows)
    }

    /// Sets a part's position in its kernel.
    fn place(
        self,
        launch: &ProgramLaunch,
        (role, axis): (AxisRole, Option<usize>),
        rows: Rows,
        part: &mut ProgramLaunch,
    ) {
        match (part.kernel.placement(), axis) {
            (Placement::Window(window), _) => *window = self.window.unwrap_or_else(|| window.clone()),
            (Placement::Starts(starts), Some(axis)) => starts[axis] = 0,
            (Placement::FirstElement(first), Some(axis)) => {
                let row_elements: u64 = launch.writes[0].desc.sizes()[axis + 1..].iter().product();
                *first += rows.start * row_elements;
            }
            (Placement::Product(own, activation), _) => match role {
                AxisRole::Columns => *own = ProductPart::Columns { first: rows.start },
                // Sums are complete once all parts are added.
                AxisRole::Reduced => *activation = Activation::None,
                _ => {}
            },
            (Placement::Diagonal(last), _) => {
                if let AxisRole::Diagonal(step) = role {
                    *last += step * rows.start as i64;
                }
            }
            (Placement::Starts(_) | Placement::FirstElement(_), None) | (Placement::None, _) => {}
        }
        if let Some(read) = part.kernel.facts().continues.filter(|_| launch.kernel.facts().continues.is_none()) {
            part.reads.insert(read, part.writes[0].clone());
        }
    }
}
