//! Sums over positions in parts, and what becomes of them.

use forebay_base::kernel::{Activation, Summing};
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_device::DeviceError;

use super::operands::{exactly, require_packed};
use super::shaders::{self, Shader};
use super::strided_layout::{strided_layouts, StridedLayout};
use super::{groups, loss, normalization, rows, unsupported, Bound, Dispatch, Lowered, Offer, Operand};

/// Invocations of a workgroup: must be `WORKGROUP_SIZE` of the shaders.
pub(super) const WORKGROUP_SIZE: u64 = 256;
/// Channels from which on each has one workgroup, and chunks up to which one does with one.
const CHANNELS_APART: u64 = 128;
const CHUNKS_TOGETHER: u64 = 8;
/// Workgroups that share the channels of a sum, about.
const GROUPS: u64 = 1024;
/// Bytes of a chunk's sums: two float64.
const CHUNK_SUMS_BYTES: u64 = 16;

/// How a kernel of this family runs.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    offer: &Offer,
) -> Result<Lowered, DeviceError> {
    let lowered = match *kernel {
        Kernel::Sums { of, accumulate } => add(of, accumulate, reads, writes, offer),
        Kernel::FromSums { of } => finish(of, reads, writes, offer),
        _ => Err("not a sum".into()),
    };
    lowered.map_err(|reason| unsupported(kernel, reason))
}

/// The shader for elements of a type.
pub(super) fn for_type(data_type: DataType, shaders: [&'static Shader; 2]) -> Result<&'static Shader, String> {
    match data_type {
        DataType::Float32 => Ok(shaders[0]),
        DataType::Float64 => Ok(shaders[1]),
        other => Err(format!("data type {other} is not supported; cast to float32 or float64 first")),
    }
}

/// Bindings of operands, all of each.
pub(super) fn bindings(operands: impl IntoIterator<Item = Operand>) -> Vec<Bound> {
    operands.into_iter().map(Bound::from).collect()
}

/// What the shaders of batch normalisation and its sums are told of an activation.
pub(super) fn is_relu(activation: Activation) -> u32 {
    u32::from(activation == Activation::Relu)
}

/// The sums of a strided layout's channels: how workgroups share them.
struct Sharing {
    /// Chunks of a workgroup, and workgroups of a channel.
    group_chunks: u64,
    channel_groups: u64,
}

impl Sharing {
    fn of(strided_layout: &StridedLayout) -> Sharing {
        let chunks = strided_layout.chunks();
        if strided_layout.channels >= CHANNELS_APART || chunks <= CHUNKS_TOGETHER {
            return Sharing { group_chunks: chunks, channel_groups: 1 };
        }
        let group_chunks = (chunks * strided_layout.channels).div_ceil(GROUPS).next_multiple_of(4);
        Sharing { group_chunks, channel_groups: chunks.div_ceil(group_chunks) }
    }
}

/// What a kernel sums, apart from its operands.
#[derive(Clone, Copy, Default)]
struct Settings {
    accumulate: bool,
    epsilon: f32,
    relu: u32,
}

/// The dispatch that sums over the positions of `x`, which has been read `count` operands among.
fn sum_channels(
    shader: &'static Shader,
    x: StridedLayout,
    dy: StridedLayout,
    settings: Settings,
    reads: usize,
    offer: &Offer,
) -> Lowered {
    let sharing = Sharing::of(&x);
    let count = sharing.channel_groups * x.channels;
    let shared = sharing.channel_groups > 1;
    let groups = groups(count, offer);
    let mut parameters = vec![
        groups[0],
        count as u32,
        sharing.group_chunks as u32,
        sharing.channel_groups as u32,
        u32::from(settings.accumulate),
        settings.epsilon.to_bits(),
        settings.relu,
    ];
    parameters.extend(x.positions(x.is_seamless() && dy.is_seamless()));
    parameters.extend(x.words());
    parameters.extend(dy.words());
    // A shader has all of its bindings bound, even those that it does not use here.
    let workspace = if shared { Operand::Workspace } else { Operand::Counter };
    let before = if settings.accumulate { Operand::Read(reads) } else { Operand::Write(0) };
    let operands = (0..reads).map(Operand::Read).chain([Operand::Write(0), workspace, Operand::Counter, before]);
    let dispatch = Dispatch { shader, constants: Vec::new(), bindings: bindings(operands), parameters, groups };
    let workspace_bytes = if shared { x.channels * x.chunks() * CHUNK_SUMS_BYTES } else { 0 };
    Lowered { dispatches: vec![dispatch], workspace_bytes }
}

fn add(
    of: Summing,
    accumulate: bool,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    offer: &Offer,
) -> Result<Lowered, String> {
    match of {
        Summing::CrossEntropy { axis, ignore_index } => {
            return loss::sums(axis, ignore_index, accumulate, reads, writes, offer)
        }
        Summing::LayerGradient { axis, block_rows } => {
            return normalization::layer_sums((axis, block_rows), accumulate, reads, writes, offer)
        }
        Summing::Rows { axes, block_rows } => return rows::sums((axes, block_rows), accumulate, reads, writes, offer),
        _ => {}
    }
    let [sums] = exactly(writes, "results")?;
    let own = reads.len().saturating_sub(usize::from(accumulate));
    let (reads, before) = reads.split_at(own);
    let x = reads.get(usize::from(reads.len() > 1)).ok_or("nothing to sum")?;
    let channels = if of == Summing::SquaredError { 1 } else { x.sizes().get(1).copied().unwrap_or(1) };
    let data_type = x.data_type();
    let tables: Vec<&TensorDesc> = before.iter().chain([sums]).collect();
    require_packed(&tables, DataType::Float64, of.rows() * channels)?;
    let mut settings = Settings { accumulate, ..Settings::default() };
    let (shaders, [x, dy]) = match of {
        Summing::BatchStatistics => {
            let [x] = exactly(reads, "operands")?;
            ([&shaders::SUMS_STATISTICS_F32, &shaders::SUMS_STATISTICS_F64], strided_layouts([x, x])?)
        }
        Summing::BatchGradient { epsilon, activation } => {
            let [dy, x, parameters @ ..] = exactly::<6>(reads, "operands")?;
            require_packed(&parameters, data_type, channels)?;
            settings = Settings { accumulate, epsilon, relu: is_relu(activation) };
            ([&shaders::SUMS_GRADIENT_F32, &shaders::SUMS_GRADIENT_F64], strided_layouts([x, dy])?)
        }
        Summing::SquaredError => {
            let x = squares(reads)?;
            ([&shaders::SUMS_SQUARES_F32; 2], [x, x])
        }
        Summing::CrossEntropy { .. } | Summing::LayerGradient { .. } | Summing::Rows { .. } | Summing::Channels => {
            let [x] = exactly(reads, "operands")?;
            ([&shaders::SUMS_CHANNELS_F32, &shaders::SUMS_CHANNELS_F64], strided_layouts([x, x])?)
        }
    };
    Ok(sum_channels(for_type(data_type, shaders)?, x, dy, settings, own, offer))
}

/// The reduction that sums along all axes but the second, as parts would sum it.
pub(super) fn whole_channels(x: &TensorDesc, y: &TensorDesc, offer: &Offer) -> Result<Lowered, String> {
    let shader = for_type(x.data_type(), [&shaders::REDUCE_CHANNELS_F32, &shaders::REDUCE_CHANNELS_F64])?;
    require_packed(&[y], x.data_type(), x.sizes()[1])?;
    let strided_layout = StridedLayout::of(x)?;
    let mut lowered = sum_channels(shader, strided_layout, strided_layout, Settings::default(), 1, offer);
    // There is nothing to go on from.
    lowered.dispatches.iter_mut().for_each(|dispatch| dispatch.bindings.truncate(4));
    Ok(lowered)
}

/// The mean of squared errors, as parts would sum them.
pub(super) fn mean_squares(reads: &[TensorDesc], offer: &Offer) -> Result<Lowered, String> {
    let x = squares(reads)?;
    let mut lowered = sum_channels(&shaders::MEAN_SQUARES_F32, x, x, Settings::default(), 2, offer);
    // There is nothing to go on from.
    lowered.dispatches.iter_mut().for_each(|dispatch| dispatch.bindings.truncate(5));
    Ok(lowered)
}

/// Elements whose differences are squared: one channel, each element a row.
fn squares(reads: &[TensorDesc]) -> Result<StridedLayout, String> {
    let [prediction, target] = exactly(reads, "operands")?;
    let rows = prediction.element_count();
    require_packed(&[prediction, target], DataType::Float32, rows)?;
    let [images, channels, places] = [1; 3];
    let [image_stride, channel_stride] = [rows; 2];
    Ok(StridedLayout { images, channels, rows, places, image_stride, channel_stride, row_stride: 1, first: 0 })
}

fn finish(of: Summing, reads: &[TensorDesc], writes: &[TensorDesc], offer: &Offer) -> Result<Lowered, String> {
    let result = writes.first().ok_or("no results")?;
    let (data_type, channels) = (result.data_type(), result.element_count());
    let (shaders, operands, epsilon) = match of {
        Summing::BatchStatistics => {
            ([&shaders::FROM_SUMS_STATISTICS_F32, &shaders::FROM_SUMS_STATISTICS_F64], (1, 2), 0.0)
        }
        Summing::BatchGradient { epsilon, .. } => {
            ([&shaders::FROM_SUMS_GRADIENT_F32, &shaders::FROM_SUMS_GRADIENT_F64], (2, 2), epsilon)
        }
        // Losses are float32 alone.
        Summing::CrossEntropy { .. } | Summing::SquaredError if data_type == DataType::Float32 => {
            ([&shaders::FROM_SUMS_MEAN_F32; 2], (1, 1), 0.0)
        }
        Summing::LayerGradient { .. } if data_type == DataType::Float32 => {
            ([&shaders::FROM_SUMS_LAYER_F32; 2], (1, 2), 0.0)
        }
        Summing::Rows { .. } if data_type == DataType::Float32 => ([&shaders::FROM_SUMS_ROWS_F32; 2], (1, 1), 0.0),
        Summing::CrossEntropy { .. } | Summing::SquaredError | Summing::LayerGradient { .. } | Summing::Rows { .. } => {
            return Err(format!("data type {data_type} is not supported; cast to float32 first"))
        }
        Summing::Channels => ([&shaders::FROM_SUMS_CHANNELS_F32, &shaders::FROM_SUMS_CHANNELS_F64], (1, 1), 0.0),
    };
    if (reads.len(), writes.len()) != operands {
        return Err(format!("{} operands and {} results where {operands:?} are needed", reads.len(), writes.len()));
    }
    require_packed(&[&reads[0]], DataType::Float64, of.rows() * channels)?;
    let others: Vec<&TensorDesc> = reads[1..].iter().chain(writes).collect();
    require_packed(&others, data_type, channels)?;
    let groups = groups(channels.div_ceil(WORKGROUP_SIZE), offer);
    let operands = (0..reads.len()).map(Operand::Read).chain((0..writes.len()).map(Operand::Write));
    Ok(Lowered::from(Dispatch {
        shader: for_type(data_type, shaders)?,
        constants: Vec::new(),
        bindings: bindings(operands),
        parameters: vec![groups[0], channels as u32, epsilon.to_bits()],
        groups,
    }))
}
