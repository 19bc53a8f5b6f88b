//! Sums over the positions of each channel, and how workgroups share them.

use forebay_base::kernel::Activation;
use forebay_base::{DataType, TensorDesc};

use super::operands::{bindings, exactly, for_type, require_packed};
use super::shaders::{self, Shader};
use super::strided_layout::StridedLayout;
use super::{Dispatch, Lowered, Operand, Target, groups};

/// With at least this many channels, or at most this many chunks, each channel has a single workgroup.
const CHANNELS_APART: u64 = 128;
const CHUNKS_TOGETHER: u64 = 8;
/// The approximate number of workgroups that share the channels of a sum.
const GROUPS: u64 = 1024;
/// The bytes of a chunk's sums: two float64, and two more if distances to an element are summed.
const CHUNK_SUMS_BYTES: u64 = 16;
const CHUNK_STATISTICS_BYTES: u64 = 32;

/// Returns an activation as a parameter of the shaders of batch normalization and its sums.
///
/// # Errors
/// If there is an activation other than a ReLU.
pub(super) fn is_relu(activation: Activation) -> Result<u32, String> {
    activation.is_relu().map(u32::from)
}

/// How workgroups share the sums of a strided layout's channels.
struct Sharing {
    /// The number of chunks per workgroup, and of workgroups per channel.
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

/// Returns whether several workgroups sum a channel, because there are too few channels to keep a device busy with one workgroup each.
pub(super) fn are_shared(strided_layout: &StridedLayout) -> bool {
    Sharing::of(strided_layout).channel_groups > 1
}

/// The parameters of a sum, apart from its operands.
#[derive(Clone, Copy, Default)]
pub(super) struct Settings {
    /// Whether distances to the first element are summed.
    pub statistics: bool,
    /// Added to a variance before its square root is taken.
    pub epsilon: f32,
    /// The activation, as returned by [`is_relu`].
    pub relu: u32,
    /// How x and dy are stored, as returned by [`format_of`], if the shader needs to know (`batch_operands.slang`).
    ///
    /// [`format_of`]: super::operands::format_of
    pub formats: Option<[u32; 2]>,
}

/// Returns the dispatch that sums over the positions of `x`, one of `reads` operands that are read.
pub(super) fn sum_channels(
    shader: &'static Shader,
    x: StridedLayout,
    dy: StridedLayout,
    settings: Settings,
    reads: usize,
    gpu: &Target,
) -> Lowered {
    let sharing = Sharing::of(&x);
    let count = sharing.channel_groups * x.channels;
    let shared = sharing.channel_groups > 1;
    let groups = groups(count, gpu);
    let mut parameters = vec![
        groups[0],
        count as u32,
        sharing.group_chunks as u32,
        sharing.channel_groups as u32,
        settings.epsilon.to_bits(),
        settings.relu,
    ];
    parameters.extend(x.positions(x.is_seamless() && dy.is_seamless()));
    parameters.extend(x.words());
    parameters.extend(dy.words());
    // All bindings of a shader must be bound, even those that it does not use here.
    let workspace = if shared { Operand::Workspace } else { Operand::Counter };
    let operands = (0..reads).map(Operand::Read).chain([Operand::Write(0), workspace, Operand::Counter]);
    let dispatch = Dispatch {
        shader,
        constants: settings.formats.map_or_else(Vec::new, Vec::from),
        bindings: bindings(operands),
        parameters,
        groups,
    };
    let chunk_bytes = if settings.statistics { CHUNK_STATISTICS_BYTES } else { CHUNK_SUMS_BYTES };
    let workspace_bytes = if shared { x.channels * x.chunks() * chunk_bytes } else { 0 };
    Lowered { workspace_bytes, ..Lowered::from(dispatch) }
}

/// Lowers the reduction that sums along all axes but the second, in the same way as parts would sum it.
pub(super) fn whole_channels(x: &TensorDesc, y: &TensorDesc, gpu: &Target) -> Result<Lowered, String> {
    let shader = for_type(x.data_type(), [&shaders::REDUCE_CHANNELS_F32, &shaders::REDUCE_CHANNELS_F64])?;
    require_packed(&[y], x.data_type(), x.sizes()[1])?;
    let strided_layout = StridedLayout::of(x)?;
    Ok(sum_channels(shader, strided_layout, strided_layout, Settings::default(), 1, gpu))
}

/// Lowers the mean of squared errors, in the same way as parts would sum them.
pub(super) fn mean_squares(reads: &[TensorDesc], gpu: &Target) -> Result<Lowered, String> {
    let x = squares(reads)?;
    Ok(sum_channels(&shaders::MEAN_SQUARES_F32, x, x, Settings::default(), 2, gpu))
}

/// Returns the layout of the elements whose differences are squared: one channel, in which each element is a row.
pub(super) fn squares(reads: &[TensorDesc]) -> Result<StridedLayout, String> {
    let [prediction, target] = exactly(reads, "operands")?;
    let rows = prediction.element_count();
    require_packed(&[prediction, target], DataType::Float32, rows)?;
    let [images, channels, places] = [1; 3];
    let [image_stride, channel_stride] = [rows; 2];
    Ok(StridedLayout { images, channels, rows, places, image_stride, channel_stride, row_stride: 1, first: 0 })
}
