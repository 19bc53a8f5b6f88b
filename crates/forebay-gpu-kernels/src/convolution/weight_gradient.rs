//! The gradient with respect to the weights: `kernels/weight_gradient.slang`.
//!
//! Each weight is a sum over chunks of positions ([`reduction_block`]) of one image; the chunks are the leaves of the sum tree. If there
//! are many weights, they are distributed over workgroups, each of which goes through all chunks. If there are few, the tree is cut into
//! subtrees, whose sums a second dispatch adds. Both give the same bits. 16-bit weights are rounded once, at the end.

use forebay_base::SumTree;
use forebay_base::kernel::reduction_block;

use super::super::operand_type::{Builds, CooperativeBuilds, OperandType};
use super::super::operands::{BINDING_ALIGNMENT_BYTES, bindings};
use super::super::shaders::{
    WEIGHT_GRADIENT_16X64_NARROW, WEIGHT_GRADIENT_16X128, WEIGHT_GRADIENT_16X128_BF16, WEIGHT_GRADIENT_16X128_F16,
    WEIGHT_GRADIENT_32X64_NARROW, WEIGHT_GRADIENT_32X128, WEIGHT_GRADIENT_32X128_BF16, WEIGHT_GRADIENT_32X128_F16,
    WEIGHT_GRADIENT_64X32_NARROW, WEIGHT_GRADIENT_64X64, WEIGHT_GRADIENT_64X64_BF16,
    WEIGHT_GRADIENT_64X64_BF16_COOPERATIVE, WEIGHT_GRADIENT_64X64_F16, WEIGHT_GRADIENT_64X64_F16_COOPERATIVE,
    WEIGHT_GRADIENT_128X128_BF16_COOPERATIVE, WEIGHT_GRADIENT_128X128_F16_COOPERATIVE, WEIGHT_GRADIENT_DIRECT,
    WEIGHT_GRADIENT_DIRECT_BF16, WEIGHT_GRADIENT_DIRECT_F16, WEIGHT_GRADIENT_SUMS, WEIGHT_GRADIENT_SUMS_BF16,
    WEIGHT_GRADIENT_SUMS_F16,
};
use super::super::{Dispatch, Lowered, Operand, Shader, Target, groups};
use super::Geometry;

/// Shaders by the size of their tiles (output channels by input channels and taps); the last computes one weight per workgroup.
const OF_16X128: Builds = [&WEIGHT_GRADIENT_16X128, &WEIGHT_GRADIENT_16X128_F16, &WEIGHT_GRADIENT_16X128_BF16];
const OF_32X128: Builds = [&WEIGHT_GRADIENT_32X128, &WEIGHT_GRADIENT_32X128_F16, &WEIGHT_GRADIENT_32X128_BF16];
const OF_64X64: Builds = [&WEIGHT_GRADIENT_64X64, &WEIGHT_GRADIENT_64X64_F16, &WEIGHT_GRADIENT_64X64_BF16];
const COOPERATIVE_64X64: CooperativeBuilds =
    [&WEIGHT_GRADIENT_64X64_F16_COOPERATIVE, &WEIGHT_GRADIENT_64X64_BF16_COOPERATIVE];
const COOPERATIVE_128X128: CooperativeBuilds =
    [&WEIGHT_GRADIENT_128X128_F16_COOPERATIVE, &WEIGHT_GRADIENT_128X128_BF16_COOPERATIVE];
const DIRECT: Builds = [&WEIGHT_GRADIENT_DIRECT, &WEIGHT_GRADIENT_DIRECT_F16, &WEIGHT_GRADIENT_DIRECT_BF16];
/// The shaders that add the sums of subtrees, and the number of weights per workgroup.
const SUMS: Builds = [&WEIGHT_GRADIENT_SUMS, &WEIGHT_GRADIENT_SUMS_F16, &WEIGHT_GRADIENT_SUMS_BF16];
const SUMS_WEIGHTS: u64 = 256;
/// With at most this many workgroups, tiles are narrow and each invocation has fewer weights: a device that is not busy waits for the
/// longest sum, and its invocations then finish sooner. The bits stay the same.
const NARROW_GROUPS_MAX: u64 = 512;
/// The number of workgroups that keeps a large device busy to the end: if there are fewer tiles, several workgroups share a tile, each with
/// a subtree.
const GROUPS_BUSY: u64 = 1536;
/// With fewer workgroups than this, tiles of 128 rows and columns are too large.
const LARGE_GROUPS_MIN: u64 = 128;
/// The maximum bytes of workspace for subtrees that are summed separately.
const WORKSPACE_MAX_BYTES: u64 = 32 << 20;
/// The maximum number of levels of a subtree above its chunks (`LEVELS_MAX` in `kernels/weights.slang`): in tiles of 128 rows and columns,
/// and in others.
const LARGE_LEVELS_MAX: u32 = 8;
const LEVELS_MAX: u32 = 16;

/// A tile of the weights (output channels by input channels and taps), and the narrow tile that float32 can use instead.
type Tiles = (&'static Shader, [u64; 2], Option<(&'static Shader, [u64; 2])>);

fn tiles(outputs: u32, operand_type: OperandType, gpu: &Target) -> Tiles {
    let build = |builds: Builds| operand_type.build(builds);
    let narrow = |shader, size| (operand_type == OperandType::Float32).then_some((shader, size));
    match outputs {
        // A tile would be nearly empty.
        0..=2 => (build(DIRECT), [1, 1], None),
        3..=16 => (build(OF_16X128), [16, 128], narrow(&WEIGHT_GRADIENT_16X64_NARROW, [16, 64])),
        17..=32 => (build(OF_32X128), [32, 128], narrow(&WEIGHT_GRADIENT_32X64_NARROW, [32, 64])),
        _ => {
            let shader = operand_type.best(OF_64X64, COOPERATIVE_64X64, gpu);
            (shader, [64, 64], narrow(&WEIGHT_GRADIENT_64X32_NARROW, [64, 32]))
        }
    }
}

/// Lowers a weight gradient. If the operands that are read are 16-bit, results can stay float32.
pub(super) fn lower(geometry: &Geometry, stays_wide: bool, gpu: &Target) -> Lowered {
    let (window, y) = (&geometry.window, &geometry.y);
    let weights_per_output = u64::from(geometry.inputs) * u64::from(window.taps());
    let weights = weights_per_output * u64::from(geometry.outputs) * u64::from(geometry.groups);
    let count_of = |[rows, columns]: [u64; 2]| {
        [u64::from(geometry.outputs).div_ceil(rows), weights_per_output.div_ceil(columns), u64::from(geometry.groups)]
    };

    let row_positions: u64 = y.sizes[geometry.first + 1..].iter().map(|&size| u64::from(size)).product();
    let image_rows = u64::from(y.sizes[geometry.first]);
    let block_rows = reduction_block(image_rows, row_positions).rows;
    let image_chunks = image_rows.div_ceil(block_rows);
    let tree = SumTree::new(u64::from(y.images), image_chunks);
    let weight_bytes = weights * 4;
    let room = WORKSPACE_MAX_BYTES.min(gpu.workspace_bytes_max) / weight_bytes.max(1);
    // The subtrees that are summed separately for a tile size, and the number of workgroups.
    let subtrees_of = |size: [u64; 2]| {
        let tiles: u64 = count_of(size).iter().product();
        let most = room.min(GROUPS_BUSY / tiles.max(1)).min(tree.leaves()).max(1);
        // At most this many, unless a subtree would have too many levels.
        let mut doubled = (0..u64::BITS).map(|doublings| tree.subtrees(most << doublings));
        let subtrees = doubled.find(|subtrees| subtrees.depth() <= LEVELS_MAX).unwrap_or(tree.subtrees(most));
        (subtrees, tiles * subtrees.count())
    };
    let large = geometry.operand_type.cooperative(gpu).filter(|_| geometry.outputs > 64 && weights_per_output > 64);
    let large = large.map(|number| (COOPERATIVE_128X128[number], [128, 128], subtrees_of([128, 128])));
    let large =
        large.filter(|(.., (subtrees, groups))| *groups >= LARGE_GROUPS_MIN && subtrees.depth() <= LARGE_LEVELS_MAX);
    let (shader, size, subtrees) = match large {
        Some((shader, size, (subtrees, _))) => (shader, size, subtrees),
        None => {
            let (shader, size, narrow) = tiles(geometry.outputs, geometry.operand_type, gpu);
            let (subtrees, groups) = subtrees_of(size);
            let (shader, size) = narrow.filter(|_| groups <= NARROW_GROUPS_MAX).unwrap_or((shader, size));
            (shader, size, subtrees)
        }
    };
    let (count, (own, are_images)) = (subtrees.count(), subtrees.own());
    let [row_tiles, column_tiles, _] = count_of(size);
    let tiles = row_tiles * column_tiles * u64::from(geometry.groups);
    let workspace_bytes = if count > 1 { (count * weight_bytes).next_multiple_of(BINDING_ALIGNMENT_BYTES) } else { 0 };

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
    parameters.extend([weights, u64::from(y.images), own_chunks, own_images].map(|word| word as u32));
    // All bindings of a shader must be bound, even those that it does not use here. Results that stay float32 are the sums of the only
    // subtree.
    let of_subtrees = if count > 1 { Operand::Between } else { Operand::Write(0) };
    let dispatch = Dispatch {
        shader,
        constants: vec![u32::from(count > 1 || stays_wide)],
        bindings: bindings([Operand::Read(0), Operand::Read(1), Operand::Write(0), of_subtrees]),
        parameters,
        groups,
    };
    if count == 1 {
        return dispatch.into();
    }
    let above = subtrees.above();
    let groups = super::super::groups(weights.div_ceil(SUMS_WEIGHTS), gpu);
    let counts = [u64::from(groups[0]), weights, count, above.groups(), above.group_leaves()];
    let sums = Dispatch {
        shader: if stays_wide { OperandType::Float32 } else { geometry.operand_type }.build(SUMS),
        constants: Vec::new(),
        bindings: bindings([Operand::Between, Operand::Write(0)]),
        parameters: counts.map(|word| word as u32).to_vec(),
        groups,
    };
    Lowered { dispatches: vec![dispatch, sums], ordered: true, workspace_bytes }
}
