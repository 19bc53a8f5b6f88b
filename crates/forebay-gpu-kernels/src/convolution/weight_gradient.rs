//! The gradient by the weights: `kernels/weight_gradient.slang`.
//!
//! A weight is a sum over chunks of positions ([`reduction_block`]) of one image, which are the leaves of the sum tree. Where there are
//! many weights, workgroups share them out and each goes through all chunks; where there are few, the tree is cut into subtrees, and
//! their sums wait in the workspace until all are there. Both give the same bits. Weights of 16 bits are rounded once, at the end. Subgroups
//! multiply no matrices together here: on an NVIDIA H200 that gave wrong sums, for a reason that was not found, and took as long, since loading elements
//! takes the time.

use forebay_base::kernel::reduction_block;
use forebay_base::SumTree;

use super::super::operand_type::{Builds, OperandType};
use super::super::shaders::{
    WEIGHT_GRADIENT_16X128, WEIGHT_GRADIENT_16X128_BF16, WEIGHT_GRADIENT_16X128_F16, WEIGHT_GRADIENT_16X64_NARROW,
    WEIGHT_GRADIENT_32X128, WEIGHT_GRADIENT_32X128_BF16, WEIGHT_GRADIENT_32X128_F16, WEIGHT_GRADIENT_32X64_NARROW,
    WEIGHT_GRADIENT_64X32_NARROW, WEIGHT_GRADIENT_64X64, WEIGHT_GRADIENT_64X64_BF16, WEIGHT_GRADIENT_64X64_F16,
    WEIGHT_GRADIENT_DIRECT, WEIGHT_GRADIENT_DIRECT_BF16, WEIGHT_GRADIENT_DIRECT_F16,
};
use super::super::{groups, Dispatch, Lowered, Operand, Shader, Target};
use super::Geometry;

/// Tiles, by their output channels, and their input channels and taps; and one weight of each workgroup.
const OF_16X128: Builds = [&WEIGHT_GRADIENT_16X128, &WEIGHT_GRADIENT_16X128_F16, &WEIGHT_GRADIENT_16X128_BF16];
const OF_32X128: Builds = [&WEIGHT_GRADIENT_32X128, &WEIGHT_GRADIENT_32X128_F16, &WEIGHT_GRADIENT_32X128_BF16];
const OF_64X64: Builds = [&WEIGHT_GRADIENT_64X64, &WEIGHT_GRADIENT_64X64_F16, &WEIGHT_GRADIENT_64X64_BF16];
const DIRECT: Builds = [&WEIGHT_GRADIENT_DIRECT, &WEIGHT_GRADIENT_DIRECT_F16, &WEIGHT_GRADIENT_DIRECT_BF16];
/// Workgroups up to which tiles are narrow, and their invocations have fewer weights each: a device that is not busy waits for the
/// longest sum, and its invocations get to the end sooner. Bits stay the same.
const NARROW_GROUPS_MAX: u64 = 512;
/// Tiles that keep a device busy.
const TILES_MIN: u64 = 128;
/// The most workspace for subtrees that are summed apart.
const WORKSPACE_MAX_BYTES: u64 = 32 << 20;
/// Levels of a subtree above its chunks at most (`LEVELS_MAX` of `kernels/weights.slang`).
const LEVELS_MAX: u32 = 16;

/// A tile of the weights, output channels by input channels and taps; and the narrow one that float32 may have instead.
type Tiles = (Builds, [u64; 2], Option<(&'static Shader, [u64; 2])>);

fn tiles(outputs: u32) -> Tiles {
    match outputs {
        // A tile would be nearly empty.
        0..=2 => (DIRECT, [1, 1], None),
        3..=16 => (OF_16X128, [16, 128], Some((&WEIGHT_GRADIENT_16X64_NARROW, [16, 64]))),
        17..=32 => (OF_32X128, [32, 128], Some((&WEIGHT_GRADIENT_32X64_NARROW, [32, 64]))),
        _ => (OF_64X64, [64, 64], Some((&WEIGHT_GRADIENT_64X32_NARROW, [64, 32]))),
    }
}

/// How a weight gradient runs.
pub(super) fn lower(geometry: &Geometry, gpu: &Target) -> Lowered {
    let (window, y) = (&geometry.window, &geometry.y);
    let weights_per_output = u64::from(geometry.inputs) * u64::from(window.taps());
    let weights = weights_per_output * u64::from(geometry.outputs) * u64::from(geometry.groups);
    let count_of = |[rows, columns]: [u64; 2]| {
        [u64::from(geometry.outputs).div_ceil(rows), weights_per_output.div_ceil(columns), u64::from(geometry.groups)]
    };
    let (builds, wide, narrow) = tiles(geometry.outputs);
    let wide_tiles: u64 = count_of(wide).iter().product();

    let row_positions: u64 = y.sizes[geometry.first + 1..].iter().map(|&size| u64::from(size)).product();
    let image_rows = u64::from(y.sizes[geometry.first]);
    let block_rows = reduction_block(image_rows, row_positions).rows;
    let image_chunks = image_rows.div_ceil(block_rows);
    let tree = SumTree::new(u64::from(y.images), image_chunks);
    let weight_bytes = weights * 4;
    let room = WORKSPACE_MAX_BYTES.min(gpu.workspace_bytes_max) / weight_bytes.max(1);
    let most = if wide_tiles < TILES_MIN { room.clamp(1, tree.leaves()) } else { 1 };
    // As few as that, unless a subtree would have too many levels.
    let doubled = (0..u64::BITS).map(|doublings| tree.subtrees(most << doublings));
    let subtrees = doubled.into_iter().find(|subtrees| subtrees.depth() <= LEVELS_MAX).unwrap_or(tree.subtrees(most));
    let (count, (own, are_images)) = (subtrees.count(), subtrees.own());
    let is_idle = geometry.operand_type == OperandType::Float32 && wide_tiles * count <= NARROW_GROUPS_MAX;
    let (shader, size) = narrow.filter(|_| is_idle).unwrap_or((geometry.operand_type.build(builds), wide));
    let [row_tiles, column_tiles, _] = count_of(size);
    let tiles = row_tiles * column_tiles * u64::from(geometry.groups);
    let workspace_bytes = if count > 1 { (count * weight_bytes).next_multiple_of(256) } else { 0 };

    let groups = groups(tiles * count, gpu);
    let counts = [
        row_tiles,
        column_tiles,
        tiles,
        u64::from(geometry.outputs),
        u64::from(geometry.inputs),
        count,
        image_chunks,
        block_rows * row_positions,
        y.positions(),
    ];
    let mut parameters = vec![groups[0]];
    parameters.extend(counts.map(|count| count as u32));
    for spatial in [&geometry.x, y] {
        parameters.extend(spatial.sizes);
        parameters.extend(spatial.stride_words());
    }
    parameters.extend([window.kernel, window.strides, window.dilations, window.pads].into_iter().flatten());
    let (own_chunks, own_images) = if are_images { (0, own) } else { (own, 0) };
    let above = subtrees.above();
    let of_tree = [u64::from(y.images), own_chunks, own_images, above.groups(), above.group_leaves()];
    parameters.extend([weights].into_iter().chain(of_tree).map(|word| word as u32));
    // A shader has all of its bindings bound, even those that it does not use here.
    let workspace = if workspace_bytes > 0 { Operand::Workspace } else { Operand::Counter };
    let operands = [Operand::Read(0), Operand::Read(1), Operand::Write(0), workspace, Operand::Counter];
    let dispatch = Dispatch {
        shader,
        constants: vec![u32::from(count > 1)],
        bindings: operands.map(Into::into).to_vec(),
        parameters,
        groups,
    };
    Lowered { workspace_bytes, ..Lowered::from(dispatch) }
}
