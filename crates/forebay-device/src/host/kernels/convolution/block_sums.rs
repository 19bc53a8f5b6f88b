//! The sums of one block of positions: tile by tile, for all target channels of a task.

use std::mem::MaybeUninit;

use super::super::cache::prefetch;
use super::super::parallel::copy_run;
use super::super::simd::{Vector, WIDTH_MAX, dispatch_wide};
use super::super::spatial::Spatial;
use super::microkernel::{CHANNELS, CHANNELS_MAX, Start, Terms, TileOutput, VECTORS, correlate};
use super::slab::Span;
use super::tiles::{Layout, Tile};

/// The number of tiles of a plane from which its weights are seen often enough to be read by [`CHANNELS_MAX`] channels at once.
const TILES_MIN: usize = 3;

/// The destination of the sums of some target channels.
#[derive(Clone, Copy)]
pub(super) struct Output {
    /// The first target channel.
    pub base: *mut f32,
    pub layout: Spatial,
    /// The target element at `base`, in each dimension.
    pub first: [usize; 3],
    /// Whether tiles are written past the caches where they fill lines.
    pub bypasses_caches: bool,
}

/// One family of one block, and its operands.
pub(super) struct Job<'a> {
    /// The first position in the output, in each dimension.
    pub at: [usize; 3],
    /// Planes of positions, and elements from one to the next: of the packed source and of the target.
    pub planes: usize,
    pub plane_pitch: usize,
    pub plane_stride: usize,
    /// The positions of a plane.
    pub layout: Layout,
    pub targets: Span,
    pub terms: Terms<'a>,
    /// Whether the next tile's part of the source is prefetched.
    pub prefetches: bool,
    pub bias: Option<&'a [f32]>,
    /// Whether the sums begin here instead of continuing from the values in the target.
    pub first: bool,
    /// The limits of the values that are written.
    pub limits: [f32; 2],
    pub output: &'a Output,
}

dispatch_wide! {
    /// # Safety
    /// The job's packed channels and weights must be readable as far as its offsets reach, its target writable.
    pub(super) fn correlate_block, correlate_block_with(job: &Job)
}

/// # Safety
/// As [`correlate_block`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn correlate_block_with<V: Vector>(job: &Job) {
    let &Job { at, planes, plane_pitch, plane_stride, layout, output, .. } = job;
    let Output { base: target, layout: Spatial { channel: channel_stride, .. }, bypasses_caches, .. } = *output;
    let at = at[0] * output.layout.plane + at[1] * output.layout.row + at[2];
    let tiles = layout.tiles(V::WIDTH, V::Half::WIDTH);
    for plane in 0..planes {
        let base = at + plane * plane_stride;
        for tile in &tiles {
            let mut start = 0;
            while start < job.targets.len {
                let len = match job.targets.len - start {
                    CHANNELS_MAX.. if tile.vectors == 1 || V::REGISTERS >= 32 && tiles.len() >= TILES_MIN => {
                        CHANNELS_MAX
                    }
                    left => left.min(CHANNELS),
                };
                let (channels, plane_start) = (Span { start, len }, plane * plane_pitch);
                // SAFETY: the caller's promises; positions of the tile lie in the block.
                unsafe {
                    let base = target.add(start * channel_stride + base);
                    let place = TileOutput {
                        base,
                        stride: channel_stride,
                        bypasses_caches: bypasses_caches && !tile.is_narrow,
                    };
                    match tile.is_narrow {
                        true => correlate_at::<V::Half>(job, &layout, tile, plane_start, channels, place),
                        false => correlate_at::<V>(job, &layout, tile, plane_start, channels, place),
                    }
                }
                start += len;
            }
        }
    }
}

/// Computes one tile of a plane; `place` is the plane's first position.
///
/// # Safety
/// As [`correlate_block_with`].
#[inline(always)]
unsafe fn correlate_at<V: Vector>(
    job: &Job,
    layout: &Layout,
    tile: &Tile,
    plane: usize,
    channels: Span,
    place: TileOutput,
) {
    // SAFETY: the caller's promises; a tile that is not whole vectors of one row goes through `own`.
    unsafe {
        let terms = Terms {
            packed: job.terms.packed.add(plane + tile.start),
            weights: job.terms.weights.add(channels.start * job.terms.weight_stride),
            ..job.terms
        };
        let first = job.targets.start + channels.start;
        let start = match job.bias {
            _ if !job.first => Start::Target,
            Some(bias) => Start::Values(std::array::from_fn(|c| if c < channels.len { bias[first + c] } else { 0.0 })),
            None => Start::Values([0.0; CHANNELS_MAX]),
        };
        let (row, column) = (tile.start / layout.pitch, tile.start % layout.pitch);
        if layout.column_stride == 1 && column + tile.vectors * V::WIDTH <= layout.columns {
            if job.prefetches {
                // Each part of the target channels prefetches a part of the source channels.
                let term = |channel: usize| terms.offsets.len() * channel / job.targets.len;
                for &offset in &terms.offsets[term(channels.start)..term(channels.start + channels.len)] {
                    let behind = terms.packed.wrapping_add(offset as usize + tile.vectors * V::WIDTH);
                    (0..tile.vectors).for_each(|n| prefetch(behind.wrapping_add(n * V::WIDTH)));
                }
            }
            let base = place.base.add(row * layout.row_stride + column);
            let bypasses_caches = place.bypasses_caches && base.addr().is_multiple_of(V::WIDTH * size_of::<f32>());
            let place = TileOutput { base, bypasses_caches, ..place };
            correlate::<V>(channels.len, tile.vectors, &terms, start, job.limits, place);
            return;
        }
        let mut own = [const { MaybeUninit::<[f32; VECTORS * WIDTH_MAX]>::uninit() }; CHANNELS_MAX];
        if let Start::Target = start {
            for (c, own) in own.iter_mut().enumerate().take(channels.len) {
                let own = own.write([0.0; VECTORS * WIDTH_MAX]);
                let channel = place.base.add(c * place.stride);
                layout.for_each_run(tile, |at, target, count| {
                    let own = &mut own[at..at + count];
                    if layout.column_stride == 1 {
                        copy_run(own, std::slice::from_raw_parts(channel.add(target), count));
                        return;
                    }
                    for (i, own) in own.iter_mut().enumerate() {
                        *own = *channel.add(target + i * layout.column_stride);
                    }
                });
            }
        }
        let local = TileOutput { base: own.as_mut_ptr().cast(), stride: VECTORS * WIDTH_MAX, bypasses_caches: false };
        correlate::<V>(channels.len, tile.vectors, &terms, start, job.limits, local);
        for (c, own) in own.iter().enumerate().take(channels.len) {
            let channel = place.base.add(c * place.stride);
            // All of the tile's vectors are written, and no run reaches beyond them.
            let own = own.as_ptr().cast::<f32>();
            layout.for_each_run(tile, |at, target, count| {
                layout.write_run(std::slice::from_raw_parts(own.add(at), count), channel.add(target));
            });
        }
    }
}
