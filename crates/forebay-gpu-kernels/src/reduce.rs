//! Reductions, which combine many elements into one, and softmax, which divides by such a sum.

use std::ops::Range;

use forebay_base::kernel::{ReduceOp, sums_rows};
use forebay_base::{DataType, Kernel, TensorDesc};

use super::channels::whole_channels;
use super::operands::{bindings, exactly, require_packed};
use super::parts::{Beginning, Rows, parts};
use super::shaders::{self, Shader};
use super::strided_layout::StridedLayout;
use super::teams::{INVOCATION_ELEMENTS, SMALL_TEAM, WORKGROUP_SIZE, team_of, team_words};
use super::{Dispatch, Lowered, Operand, Target, Unsupported, groups, rows, unsupported};

/// The number of elements in a chunk of a reduction, and the maximum number of chunks.
const CHUNK_ELEMENTS: u64 = 2048;
const CHUNKS_MAX: u64 = 4096;
/// The maximum number of elements in an integer mean, so that quotients and remainders of two of them stay within 32 bits.
const INTEGER_MEAN_MAX: u64 = 1 << 30;

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let lowered = match kernel {
        Kernel::Reduce { op, axes } => reduce(*op, axes, reads, writes, gpu),
        Kernel::Softmax { axis } | Kernel::SoftmaxGradient { axis } => softmax(*axis, false, reads, writes, gpu),
        Kernel::LogSoftmax { axis } | Kernel::LogSoftmaxGradient { axis } => softmax(*axis, true, reads, writes, gpu),
        _ => Err("not a reduction".into()),
    };
    lowered.map_err(|reason| unsupported(kernel, reason))
}

fn softmax(
    axis: usize,
    logarithm: bool,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let [y] = exactly(writes, "results")?;
    let sizes = y.sizes();
    if axis >= sizes.len() {
        return Err(format!("{y} has no axis {axis}"));
    }
    let operands: Vec<&TensorDesc> = reads.iter().chain([y]).collect();
    require_packed(&operands, DataType::Float32, y.element_count())?;
    let shader = match reads {
        [_] => &shaders::SOFTMAX_F32,
        [_, _] => &shaders::SOFTMAX_GRADIENT_F32,
        _ => return Err(format!("{} operands", reads.len())),
    };
    let (size, inner) = (sizes[axis], sizes[axis + 1..].iter().product::<u64>());
    let outer = y.element_count() / size / inner;
    let team = team_of(size);
    let reads = (0..reads.len()).map(Operand::Read);
    let slabs: Vec<Rows> =
        reads.chain([Operand::Write(0)]).map(|operand| Rows { operand, row_bytes: 4 * size * inner }).collect();
    let dispatch = |part: &Range<u64>| {
        let columns = (part.end - part.start) * inner;
        let groups = groups(columns.div_ceil(WORKGROUP_SIZE / team), gpu);
        Dispatch {
            shader,
            constants: Vec::new(),
            bindings: slabs.iter().map(|slab| slab.bound(part, outer)).collect(),
            parameters: [
                team_words(groups, team, inner > 1).to_vec(),
                vec![columns as u32, size as u32, inner as u32, u32::from(logarithm)],
            ]
            .concat(),
            groups,
        }
    };
    let dispatches: Vec<_> = parts(&slabs, outer, Beginning::Aligned, gpu).iter().map(dispatch).collect();
    Ok(Lowered::from(dispatches))
}

/// Dimensions of one kind: sizes and strides, the innermost first, merged where possible.
#[derive(Debug, Default, PartialEq, Eq)]
struct Dimensions(Vec<(u64, u64)>);

impl Dimensions {
    fn of(dimensions: impl DoubleEndedIterator<Item = (u64, u64)>) -> Dimensions {
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (size, stride) in dimensions.rev().filter(|&(size, _)| size > 1) {
            match merged.last_mut() {
                Some((inner, inner_stride)) if *inner * *inner_stride == stride => *inner *= size,
                _ => merged.push((size, stride)),
            }
        }
        Dimensions(merged)
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|&(size, _)| size).product()
    }

    /// Returns the stride of the innermost dimension; if there is none, a larger number than any stride.
    fn inner_stride(&self) -> u64 {
        self.0.first().map_or(u64::MAX, |&(_, stride)| stride)
    }
}

fn reduce(
    op: ReduceOp,
    axes: &[usize],
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, String> {
    let ([x], [y]) = (exactly(reads, "operands")?, exactly(writes, "results")?);
    if op == ReduceOp::Sum && are_positions(axes, x) {
        return whole_channels(x, y, gpu);
    }
    if op == ReduceOp::Sum && sums_rows(axes, x) {
        return rows::whole(axes.len(), x, y, gpu);
    }
    let strides = x.effective_strides();
    let all = || x.sizes().iter().copied().zip(strides.iter().copied()).enumerate();
    let part = |reduced: bool| {
        let own: Vec<_> = all().filter(|(axis, _)| axes.contains(axis) == reduced).collect();
        Dimensions::of(own.into_iter().map(|(_, dimension)| dimension))
    };
    let (kept, reduced) = (part(false), part(true));
    if axes.iter().any(|&axis| axis >= x.sizes().len()) {
        return Err(format!("{x} has no axes {axes:?}"));
    }
    require_packed(&[y], x.data_type(), kept.count())?;
    let shader = match x.data_type() {
        DataType::Float32 => &shaders::REDUCE_F32,
        DataType::Float64 => &shaders::REDUCE_F64,
        DataType::Int32 => &shaders::REDUCE_I32,
        DataType::UInt32 => &shaders::REDUCE_U32,
        other => return Err(format!("data type {other} is not supported; cast to float32 or int32 first")),
    };
    if x.data_type().is_integer() && (op == ReduceOp::L2 || op == ReduceOp::Mean && reduced.count() > INTEGER_MEAN_MAX)
    {
        return Err(format!("{op:?} of {} elements of {} requires wider integers", reduced.count(), x.data_type()));
    }
    Ok(dispatch(shader, op, &kept, &reduced, x.data_type(), gpu))
}

/// Returns whether the reduced axes are all but the second, so that the sums are those of channels.
fn are_positions(axes: &[usize], x: &TensorDesc) -> bool {
    let rank = x.sizes().len();
    x.data_type().is_float()
        && rank > 2
        && axes.iter().copied().eq((0..rank).filter(|&axis| axis != 1))
        && StridedLayout::of(x).is_ok()
}

fn dispatch(
    shader: &'static Shader,
    op: ReduceOp,
    kept: &Dimensions,
    reduced: &Dimensions,
    data_type: DataType,
    gpu: &Target,
) -> Lowered {
    let (outputs, depth) = (kept.count(), reduced.count());
    let chunk = depth.div_ceil(CHUNKS_MAX).next_power_of_two().max(CHUNK_ELEMENTS);
    let chunks = depth.div_ceil(chunk);
    let team = if depth <= INVOCATION_ELEMENTS { 1 } else { SMALL_TEAM };
    let count = (outputs * chunks).div_ceil(WORKGROUP_SIZE / team);
    let groups = groups(count, gpu);
    let words =
        [u64::from(op.opcode()), count, outputs, depth, chunk, chunks, kept.0.len() as u64, reduced.0.len() as u64];
    let dimensions = kept.0.iter().chain(&reduced.0).flat_map(|&(size, stride)| [size, stride]);
    let parameters = words.into_iter().chain(dimensions).map(|word| word as u32);
    let interleaved = kept.inner_stride() < reduced.inner_stride();
    // All bindings of a shader must be bound, even those that it does not use here.
    let workspace = if chunks > 1 { Operand::Workspace } else { Operand::Counter };
    let operands = [Operand::Read(0), Operand::Write(0), workspace, Operand::Counter];
    let dispatch = Dispatch {
        shader,
        constants: Vec::new(),
        bindings: bindings(operands),
        parameters: team_words(groups, team, interleaved).into_iter().chain(parameters).collect(),
        groups,
    };
    let workspace_bytes = if chunks > 1 { outputs * chunks * 2 * data_type.size_bytes() } else { 0 };
    Lowered { workspace_bytes, ..Lowered::from(dispatch) }
}
