//! Cut: one launch as several over rows of its tensors.
//!
//! Each part is a launch of its own, of the same kernel on fewer rows. Where a kernel sums over the rows, its parts go on from
//! each other's sums, on the chunk lines that the whole sums by ([`reduction_block`]), and another launch finishes.

use std::ops::Range;

use forebay_base::kernel::{
    reduction_block, reduction_block_of_channels, reduction_block_of_losses, reduction_block_rows, sums_rows,
    Convolution, ReduceOp, Summing, Window,
};
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_model::program::{Operand, ProgramLaunch};

use super::rows::{aligned_rows, rows_of, slice_of, Rows};
use super::{product, window};

/// What a launch is cut along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// An axis of tensors.
    Of(usize),
    /// The columns of a matrix product.
    Columns,
    /// The terms of a matrix product's sums.
    Terms,
}

/// How a launch is cut: along which axis, and where.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub axis: Axis,
    /// The rows that parts are counted in: of which operand, and how many.
    pub rows: u64,
    /// Parts begin at multiples of this many rows.
    pub step: u64,
}

/// Which operand's rows the parts of a kernel are counted in.
enum Driver {
    Read(usize),
    Write(usize),
}

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
    cut.rows > cut.step && part(launch, cut, Rows { start: cut.step, end: cut.rows }, None).is_some()
}

/// Where a launch may be cut along an axis; none where it cannot be.
pub(super) fn cut(launch: &ProgramLaunch, axis: usize) -> Option<Cut> {
    if let Kernel::MatMul { .. } = launch.kernel {
        let cuts = product::cuts(launch).into_iter();
        return cuts.filter(|cut| cut.axis == Axis::Of(axis)).find(|cut| is_possible(launch, cut));
    }
    let driver = match launch.kernel {
        Kernel::ConvolutionWeightGradient { .. } => Driver::Read(1),
        Kernel::PoolGradient { .. }
        | Kernel::Reduce { .. }
        | Kernel::SoftmaxCrossEntropy { .. }
        | Kernel::MeanSquaredError => Driver::Read(0),
        _ => Driver::Write(0),
    };
    let operand = match driver {
        Driver::Read(index) => launch.reads.get(index)?,
        Driver::Write(index) => launch.writes.get(index)?,
    };
    let sizes = operand.desc.sizes();
    let rows = *sizes.get(axis)?;
    if axis > 0 && (sizes[0] > 1 || (axis == 1 && has_channels(&launch.kernel))) {
        return None;
    }
    let mut step = summed_rows(&launch.kernel, &operand.desc, axis)?;
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

/// Kernels for which the second axis is not one of positions.
fn has_channels(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::Convolution { .. }
            | Kernel::ConvolutionDataGradient { .. }
            | Kernel::ConvolutionWeightGradient { .. }
            | Kernel::Pool { .. }
            | Kernel::PoolGradient { .. }
            | Kernel::BatchNormalization { .. }
            | Kernel::BatchNormalizationTraining { .. }
            | Kernel::BatchNormalizationGradient { .. }
            | Kernel::SoftmaxCrossEntropy { .. }
            | Kernel::SoftmaxCrossEntropyGradient { .. }
    )
}

/// Rows of a chunk of the sums that a kernel makes along the axis; none where chunks have no whole rows.
fn summed_rows(kernel: &Kernel, desc: &TensorDesc, axis: usize) -> Option<u64> {
    let sizes = desc.sizes();
    let product = |sizes: &[u64]| sizes.iter().product::<u64>();
    let rows_and_places = (sizes.get(2).copied().unwrap_or(1), product(sizes.get(3..).unwrap_or(&[])));
    // The fewest rows that hold a multiple of what a chunk holds.
    let whole = |chunk: u64, of_row: u64| chunk / gcd(chunk, of_row);
    let sums = match kernel {
        &Kernel::SoftmaxCrossEntropy { axis: along, .. } => {
            let inner = product(sizes.get(along + 1..)?);
            let (rows, places) = match (along, inner) {
                (0 | 1, _) => rows_and_places,
                (_, 1) => (1, product(&sizes[1..along])),
                _ => (product(&sizes[1..along]), inner),
            };
            let chunk = reduction_block_of_losses(sizes[along], rows, places);
            return Some(if axis == 0 { chunk.images } else { chunk.rows });
        }
        Kernel::MeanSquaredError => {
            return Some(whole(reduction_block_of_channels(product(sizes), 1).rows, product(&sizes[axis + 1..])))
        }
        Kernel::Reduce { op: ReduceOp::Sum, axes } if sums_rows(axes, desc) && axes.contains(&axis) => {
            let [all, length] = [&sizes[..axes.len()], &sizes[axes.len()..]].map(product);
            return Some(whole(reduction_block_rows(all, length), product(&sizes[axis + 1..axes.len()])));
        }
        Kernel::LayerNormalizationGradient { axis: along } => {
            let (rows, length) = (sizes.get(axis + 1..*along)?, product(sizes.get(*along..)?));
            return Some(whole(reduction_block_rows(product(&sizes[..*along]), length), product(rows)));
        }
        // A chunk of a weight gradient never has more than one image.
        Kernel::ConvolutionWeightGradient { .. } => axis == 2,
        Kernel::BatchNormalizationTraining { .. } | Kernel::BatchNormalizationGradient { .. } => true,
        Kernel::Reduce { axes, .. } => axes.contains(&axis),
        _ => false,
    };
    if !sums {
        return Some(1);
    }
    let (rows, places) = rows_and_places;
    let chunk = match kernel {
        Kernel::ConvolutionWeightGradient { .. } => reduction_block(rows, places),
        _ => reduction_block_of_channels(rows, places),
    };
    Some(if axis == 0 { chunk.images } else { chunk.rows })
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

/// The sums of a launch that is cut, and whether they have begun.
#[derive(Clone, Copy)]
pub(super) struct Sums<'a> {
    pub operand: &'a Operand,
    pub begun: bool,
}

/// The sums that a kernel makes along an axis, which its parts then make together.
pub(super) fn summing(launch: &ProgramLaunch, axis: usize) -> Option<Summing> {
    match launch.kernel {
        Kernel::BatchNormalizationTraining { .. } => Some(Summing::BatchStatistics),
        Kernel::BatchNormalizationGradient { epsilon, activation } if launch.writes.len() == 3 => {
            Some(Summing::BatchGradient { epsilon, activation })
        }
        Kernel::SoftmaxCrossEntropy { axis, ignore_index } => Some(Summing::CrossEntropy { axis, ignore_index }),
        Kernel::MeanSquaredError => Some(Summing::SquaredError),
        Kernel::LayerNormalizationGradient { axis: along } if launch.writes.len() == 3 && axis < along => {
            let sizes = launch.reads[1].desc.sizes();
            let [rows, length] = [&sizes[..along], &sizes[along..]].map(|sizes| sizes.iter().product());
            Some(Summing::LayerGradient { axis: along, block_rows: reduction_block_rows(rows, length) })
        }
        Kernel::Reduce { op: ReduceOp::Sum, ref axes }
            if axes.contains(&axis) && sums_rows(axes, &launch.reads[0].desc) =>
        {
            let sizes = launch.reads[0].desc.sizes();
            let [rows, length] = [&sizes[..axes.len()], &sizes[axes.len()..]].map(|sizes| sizes.iter().product());
            Some(Summing::Rows { axes: axes.len(), block_rows: reduction_block_rows(rows, length) })
        }
        Kernel::Reduce { op: ReduceOp::Sum, ref axes } if axes.contains(&axis) && are_positions(axes, launch) => {
            Some(Summing::Channels)
        }
        _ => None,
    }
}

/// Whether a reduction's axes are all but the second, that of channels.
fn are_positions(axes: &[usize], launch: &ProgramLaunch) -> bool {
    let desc = &launch.reads[0].desc;
    let rank = desc.sizes().len();
    rank > 2 && desc.data_type() == DataType::Float32 && axes.iter().copied().eq((0..rank).filter(|&axis| axis != 1))
}

/// The part of a launch on some of its rows: where it is made of sums, the launch that adds to them.
pub(super) fn part(launch: &ProgramLaunch, cut: &Cut, rows: Rows, sums: Option<Sums>) -> Option<ProgramLaunch> {
    let axis = match cut.axis {
        Axis::Of(axis) if !matches!(launch.kernel, Kernel::MatMul { .. }) => axis,
        axis => return product::part(launch, axis, rows),
    };
    let own = |operand: &Operand| rows_of(operand, axis, rows);
    if let Some(of) = summing(launch, axis) {
        let mut reads = launch.reads.clone();
        let sliced: &[usize] = match of {
            Summing::BatchStatistics | Summing::Channels | Summing::Rows { .. } => {
                reads.truncate(1);
                &[0]
            }
            Summing::BatchGradient { .. } | Summing::SquaredError => &[0, 1],
            Summing::LayerGradient { axis: along, .. } => {
                for read in &mut reads[3..5] {
                    *read = statistics_of_rows(read, &launch.reads[1], axis..along, rows)?;
                }
                // The scale has no part in these sums.
                reads.remove(2);
                &[0, 1]
            }
            Summing::CrossEntropy { axis: class_axis, .. } => {
                reads[1] = labels(&launch.reads[1], class_axis, axis, rows)?;
                &[0]
            }
        };
        for &read in sliced {
            reads[read] = own(&reads[read])?;
        }
        let Some(sums) = sums else { return Some(launch.clone()) };
        reads.extend(sums.begun.then(|| sums.operand.clone()));
        let kernel = Kernel::Sums { of, accumulate: sums.begun };
        return Some(ProgramLaunch { kernel, reads, writes: vec![sums.operand.clone()], ..launch.clone() });
    }
    let mut part = launch.clone();
    match &mut part.kernel {
        Kernel::Convolution { convolution, .. } => {
            part.writes[0] = own(&part.writes[0])?;
            part.reads[0] = seen(convolution, axis, rows, &part.reads[0], window::input_rows)?;
        }
        Kernel::ConvolutionDataGradient { convolution, .. } => {
            part.writes[0] = own(&part.writes[0])?;
            part.reads[0] = seen(convolution, axis, rows, &part.reads[0], window::output_rows)?;
        }
        // Parts would go on from what was rounded.
        Kernel::ConvolutionWeightGradient { .. } if part.writes[0].desc.data_type() != DataType::Float32 => {
            return None
        }
        Kernel::ConvolutionWeightGradient { convolution, accumulate } => {
            part.reads[1] = own(&part.reads[1])?;
            part.reads[0] = seen(convolution, axis, rows, &part.reads[0], window::input_rows)?;
            if rows.start > 0 && !*accumulate {
                *accumulate = true;
                part.reads.push(part.writes[0].clone());
            }
        }
        Kernel::Pool { window, .. } => {
            part.writes[0] = own(&part.writes[0])?;
            let input = &mut part.reads[0];
            if axis == 0 {
                *input = own(input)?;
            } else {
                let seen = window::input_rows(window, rows, input.desc.sizes()[2])?;
                (*window, *input) = (seen.window, rows_of(input, axis, seen.rows)?);
            }
        }
        Kernel::PoolGradient { window, .. } => {
            let (output, input) = (part.reads[0].desc.sizes()[axis], part.writes[0].desc.sizes()[axis]);
            part.reads[0] = own(&part.reads[0])?;
            let mut input_rows = rows;
            if axis > 0 {
                let seen = window::own_input_rows(window, rows, output, input)?;
                (*window, input_rows) = (seen.window, seen.rows);
            }
            for operand in part.reads[1..].iter_mut().chain(&mut part.writes) {
                *operand = rows_of(operand, axis, input_rows)?;
            }
        }
        Kernel::Reduce { axes, .. } if axes.contains(&axis) => return None,
        Kernel::Reduce { axes, .. } => {
            part.reads[0] = own(&part.reads[0])?;
            let kept = part.writes[0].desc.sizes().len() == launch.reads[0].desc.sizes().len();
            let before = axes.iter().filter(|&&reduced| reduced < axis).count();
            let target = if kept { axis } else { axis - before };
            part.writes[0] = rows_of(&part.writes[0], target, rows)?;
        }
        Kernel::SoftmaxCrossEntropyGradient { axis: class_axis, .. } => {
            part.reads[1] = own(&part.reads[1])?;
            part.reads[2] = labels(&launch.reads[2], *class_axis, axis, rows)?;
            part.writes[0] = own(&part.writes[0])?;
        }
        Kernel::Slice { starts, steps } => {
            let (start, step) = (*starts.get(axis)?, u64::try_from(*steps.get(axis)?).ok().filter(|&step| step > 0)?);
            let taken = Rows { start: start + rows.start * step, end: start + (rows.end - 1) * step + 1 };
            starts[axis] = 0;
            part.reads[0] = rows_of(&part.reads[0], axis, taken)?;
            part.writes[0] = own(&part.writes[0])?;
        }
        Kernel::Dropout { first, .. } => {
            let row_elements: u64 = launch.reads[0].desc.sizes()[axis + 1..].iter().product();
            *first += rows.start * row_elements;
            part.reads[0] = own(&part.reads[0])?;
            for write in &mut part.writes {
                *write = own(write)?;
            }
        }
        &mut Kernel::LayerNormalization { axis: along, .. } if axis < along => {
            part.reads[0] = own(&part.reads[0])?;
            part.writes[0] = own(&part.writes[0])?;
            for write in &mut part.writes[1..] {
                *write = statistics_of_rows(write, &launch.reads[0], axis..along, rows)?;
            }
        }
        // Cut where dscale and dbias have been found.
        &mut Kernel::LayerNormalizationGradient { axis: along } if axis < along && launch.writes.len() == 1 => {
            for read in &mut part.reads[..2] {
                *read = own(read)?;
            }
            for read in &mut part.reads[3..] {
                *read = statistics_of_rows(read, &launch.reads[1], axis..along, rows)?;
            }
            part.writes[0] = own(&part.writes[0])?;
        }
        Kernel::Copy if axis < 2 => {
            // What is transposed is read where it lies, among the rows of other parts.
            part.reads[0] = slice_of(&part.reads[0], axis, rows)?;
            part.writes[0] = own(&part.writes[0])?;
        }
        kernel => {
            let same = same_rows(kernel, axis, launch)?;
            for index in same {
                part.reads[index] = own(&part.reads[index])?;
            }
            for write in &mut part.writes {
                *write = own(write)?;
            }
        }
    }
    Some(part)
}

/// What a layer normalisation knows of rows of x, which are cut along the first of some axes and normalised behind the last: one
/// element for each of theirs, in one dimension or in those of x.
fn statistics_of_rows(operand: &Operand, x: &Operand, axes: Range<usize>, rows: Rows) -> Option<Operand> {
    let sizes = x.desc.sizes();
    let of_index: u64 = sizes.get(axes.start + 1..axes.end)?.iter().product();
    match operand.desc.sizes() {
        [count] if *count == sizes[axes.start] * of_index => {
            slice_of(operand, 0, Rows { start: rows.start * of_index, end: rows.end * of_index })
        }
        own => (own.get(axes.start) == sizes.get(axes.start)).then(|| rows_of(operand, axes.start, rows))?,
    }
}

/// The operand on the other side of a convolution that a part needs, whose padding changes accordingly.
fn seen(
    convolution: &mut Convolution,
    axis: usize,
    rows: Rows,
    operand: &Operand,
    look: fn(&Window, Rows, u64) -> Option<window::Seen>,
) -> Option<Operand> {
    if axis == 0 {
        return rows_of(operand, axis, rows);
    }
    let seen = look(&convolution.window, rows, operand.desc.sizes()[2])?;
    convolution.window = seen.window;
    rows_of(operand, axis, seen.rows)
}

/// The labels of rows of logits: they lack the class axis.
fn labels(labels: &Operand, class_axis: usize, axis: usize, rows: Rows) -> Option<Operand> {
    match axis {
        axis if axis < class_axis => rows_of(labels, axis, rows),
        axis if axis > class_axis => rows_of(labels, axis - 1, rows),
        _ => None,
    }
}

/// Which reads of a kernel have the rows of its outputs, if it computes each row from the same row alone.
fn same_rows(kernel: &Kernel, axis: usize, launch: &ProgramLaunch) -> Option<Vec<usize>> {
    let all = || (0..launch.reads.len()).collect::<Vec<_>>();
    match kernel {
        Kernel::Unary(_)
        | Kernel::UnaryGradient(_)
        | Kernel::Binary { .. }
        | Kernel::Select
        | Kernel::Cast
        | Kernel::Copy
        | Kernel::Fill { .. } => {
            launch.reads.iter().all(|read| read.desc.sizes() == launch.writes[0].desc.sizes()).then(all)
        }
        Kernel::Softmax { axis: along } | Kernel::LogSoftmax { axis: along } if *along != axis => Some(all()),
        Kernel::SoftmaxGradient { axis: along } | Kernel::LogSoftmaxGradient { axis: along } if *along != axis => {
            Some(all())
        }
        Kernel::BatchNormalization { .. } => Some(vec![0]),
        // Cut where the sums of all rows are known.
        Kernel::BatchNormalizationGradient { .. } => Some(vec![0, 1]),
        Kernel::LocalResponseNormalization { .. } | Kernel::LocalResponseNormalizationGradient { .. } if axis == 0 => {
            Some(all())
        }
        Kernel::MeanSquaredErrorGradient => Some(vec![1, 2]),
        Kernel::Gather { axis: 0 } if axis < launch.reads[1].desc.sizes().len() => Some(vec![1]),
        // Along an axis in which nothing is left out or added.
        Kernel::SliceGradient { starts: begins, .. } | Kernel::Pad { begins, .. } => {
            let sizes = |operand: &Operand| operand.desc.sizes().get(axis).copied();
            let is_whole = begins.get(axis) == Some(&0) && sizes(&launch.reads[0]) == sizes(&launch.writes[0]);
            is_whole.then(|| vec![0])
        }
        Kernel::Sgd { .. } => Some(all()),
        Kernel::Adam { .. } => Some(vec![0, 1, 2, 3]),
        _ => None,
    }
}
