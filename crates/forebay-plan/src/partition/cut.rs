//! Cut: one launch as several over rows of its tensors.
//!
//! What an axis is, which axes of other operands belong to it, and where parts may begin, is what the kernel's facts say
//! ([`forebay_base::kernel::facts`]). Each part is a launch of its own, of the same kernel on fewer rows. Where a kernel sums over
//! the rows, its parts are nodes of the tree that the whole sums by ([`forebay_base::sum_tree`]); other launches add their sums, and
//! one finishes.

use forebay_base::kernel::facts::{Along, AxisRole, Dimension, OperandRef, Placement, SumsInParts};
use forebay_base::{Kernel, TensorDesc};
use forebay_model::program::{Operand, ProgramLaunch};

use super::rows::{aligned_rows, rows_of, slice_of, Axis, Cut, Rows};
use super::{product, window};

/// The axes along which launches are cut, the first that can be: images; of a single image, rows of the first spatial
/// dimension; of a single sequence, positions.
const AXES: [usize; 3] = [0, 2, 1];

/// The ways in which a launch may be cut, the best first.
pub(super) fn cuts(launch: &ProgramLaunch) -> Vec<Cut> {
    match launch.kernel {
        Kernel::MatMul { .. } => product::cuts(launch).into_iter().filter(|cut| is_possible(launch, cut)).collect(),
        _ => AXES.into_iter().find_map(|axis| cut(launch, axis)).into_iter().collect(),
    }
}

/// Whether there are two parts, of which the last may be shorter. What holds for the first rows holds for all.
fn is_possible(launch: &ProgramLaunch, cut: &Cut) -> bool {
    let last = Rows { start: cut.step, end: cut.rows };
    cut.rows > cut.step && Cutting::new(launch, cut).is_some_and(|cutting| cutting.part(last, None).is_some())
}

/// The descriptors of operands.
pub(super) fn descs(operands: &[Operand]) -> Vec<&TensorDesc> {
    operands.iter().map(|operand| &operand.desc).collect()
}

/// The dimension that an axis of the operand that parts are counted along is.
fn dimension(launch: &ProgramLaunch, axis: usize) -> Option<Dimension> {
    let facts = launch.kernel.facts();
    let dimensions = facts.dimensions(&descs(&launch.reads), &descs(&launch.writes))?;
    let is_own = |found: &Dimension| found.along(facts.counted_along).is_some_and(|(along, _)| along.axis == axis);
    dimensions.into_iter().find(is_own)
}

/// Where a launch may be cut along an axis; none where it cannot be.
pub(super) fn cut(launch: &ProgramLaunch, axis: usize) -> Option<Cut> {
    if let Kernel::MatMul { .. } = launch.kernel {
        let cuts = product::cuts(launch).into_iter();
        return cuts.filter(|cut| cut.axis == Axis::Of(axis)).find(|cut| is_possible(launch, cut));
    }
    let sizes = launch.desc(launch.kernel.facts().counted_along)?.sizes();
    let rows = *sizes.get(axis)?;
    if axis > 0 && sizes[0] > 1 {
        return None;
    }
    let own = dimension(launch, axis)?;
    let mut step = own.cut?;
    // Parts are nodes of the tree: a power of two of leaves.
    if own.leaves.is_some_and(|leaves| !leaves.of_step().is_power_of_two()) {
        return None;
    }
    let aligned: Vec<u64> = launch
        .reads
        .iter()
        .chain(&launch.writes)
        .filter(|operand| operand.desc.sizes().get(axis) == Some(&rows) && operand.desc.sizes().len() > axis)
        .filter_map(|operand| aligned_rows(&operand.desc, axis))
        .collect();
    let aligned = aligned.into_iter().max().unwrap_or(1);
    // Both are needed; alignments are powers of two.
    while step % aligned != 0 {
        step *= 2;
    }
    let cut = Cut { axis: Axis::Of(axis), rows, step };
    is_possible(launch, &cut).then_some(cut)
}

/// The sums that a kernel makes along an axis, which its parts then make together.
pub(super) fn summing(launch: &ProgramLaunch, axis: usize) -> Option<SumsInParts> {
    let sums = launch.kernel.sums_in_parts(&descs(&launch.reads), &descs(&launch.writes))?;
    (dimension(launch, axis)?.role == AxisRole::Reduced).then_some(sums)
}

/// A launch that is cut.
pub(super) struct Cutting<'a> {
    launch: &'a ProgramLaunch,
    axis: Axis,
    /// What it is cut along, and the sums that its parts add to; none for products, which are cut in ways of their own.
    along: Option<(usize, Dimension, Option<SumsInParts>)>,
}

impl<'a> Cutting<'a> {
    /// None where a launch cannot be cut so.
    pub fn new(launch: &'a ProgramLaunch, cut: &Cut) -> Option<Cutting<'a>> {
        let along = match cut.axis {
            Axis::Of(axis) if !matches!(launch.kernel, Kernel::MatMul { .. }) => {
                let dimension = dimension(launch, axis).filter(|dimension| dimension.cut.is_some())?;
                let sums = launch.kernel.sums_in_parts(&descs(&launch.reads), &descs(&launch.writes));
                let sums = sums.filter(|_| dimension.role == AxisRole::Reduced);
                Some((axis, dimension, sums))
            }
            _ => None,
        };
        Some(Cutting { launch, axis: cut.axis, along })
    }

    /// Whether its results are sums over what it is cut along, which parts make by nodes of their tree.
    pub fn is_tree(&self) -> bool {
        self.along.as_ref().is_some_and(|(_, dimension, _)| dimension.leaves.is_some())
    }

    /// The part on some rows: where it is made of sums, the launch that makes them.
    pub fn part(&self, rows: Rows, sums: Option<&Operand>) -> Option<ProgramLaunch> {
        let launch = self.launch;
        let Some((axis, dimension, summed)) = &self.along else { return product::part(launch, self.axis, rows) };
        let seen = Seen::of(launch, dimension, rows)?;
        if let Some(summed) = summed {
            let reads = summed.reads.iter().map(|&read| seen.part(launch, dimension, OperandRef::Read(read)));
            let reads = reads.collect::<Option<Vec<_>>>()?;
            let Some(sums) = sums else { return Some(launch.clone()) };
            let kernel = Kernel::Sums { of: summed.of };
            return Some(ProgramLaunch { kernel, reads, writes: vec![sums.clone()], ..launch.clone() });
        }
        let all = |count: usize, of: fn(usize) -> OperandRef| {
            (0..count).map(|index| seen.part(launch, dimension, of(index))).collect::<Option<Vec<_>>>()
        };
        let reads = all(launch.reads.len(), OperandRef::Read)?;
        let writes = all(launch.writes.len(), OperandRef::Write)?;
        let mut part = ProgramLaunch { reads, writes, ..launch.clone() };
        seen.place(launch, *axis, rows, &mut part);
        Some(part)
    }
}

/// What a part needs of a dimension: rows of targets, and of the sources that they see through a window of its own.
struct Seen {
    targets: Rows,
    sources: Rows,
    window: Option<forebay_base::kernel::Window>,
}

impl Seen {
    /// What a part with some rows of the operand that parts are counted along needs.
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

    /// The part of an operand, or all of it where the dimension is none of its own.
    fn part(&self, launch: &ProgramLaunch, dimension: &Dimension, of: OperandRef) -> Option<Operand> {
        let own = launch.operand(of)?;
        let Some((Along { axis, elements, first, step }, is_source)) = dimension.along(of) else {
            return Some(own.clone());
        };
        let rows = if is_source { self.sources } else { self.targets };
        let step = u64::try_from(step).ok().filter(|&step| step > 0)?;
        let start = first + rows.start * step;
        let rows = Rows { start: start * elements, end: (start + (rows.len() - 1) * step + 1) * elements };
        // What is transposed is read where it lies, among the rows of other parts.
        let is_entangled = launch.kernel.facts().reads_entangled && axis < 2 && matches!(of, OperandRef::Read(_));
        if is_entangled || elements > 1 {
            return slice_of(own, axis, rows);
        }
        rows_of(own, axis, rows)
    }

    /// Says in a part's kernel where it is.
    fn place(self, launch: &ProgramLaunch, axis: usize, rows: Rows, part: &mut ProgramLaunch) {
        match part.kernel.placement() {
            Placement::Window(window) => *window = self.window.unwrap_or_else(|| window.clone()),
            Placement::Starts(starts) => starts[axis] = 0,
            Placement::FirstElement(first) => {
                let row_elements: u64 = launch.reads[0].desc.sizes()[axis + 1..].iter().product();
                *first += rows.start * row_elements;
            }
            Placement::None | Placement::Product(..) => {}
        }
    }
}
