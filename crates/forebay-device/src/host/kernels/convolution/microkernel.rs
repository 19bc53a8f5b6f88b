//! The inner loops: a tile of target channels times adjacent positions in registers.

use super::super::cache::{LINE, prefetch};
use super::super::simd::{LANES, SummedVector, Vector};

/// Target channels of a tile.
pub(super) const CHANNELS: usize = 4;
/// Target channels of a tile if there are that many, and enough registers, which there are for one vector. With fewer sums, a tile of one
/// vector would have to wait for them.
pub(super) const CHANNELS_MAX: usize = 8;
/// Vectors of positions in a tile. With four channels they fill AVX2's sixteen registers: 12 sums, 3 vectors, 1 factor.
pub(super) const VECTORS: usize = 3;

/// The initial value of a sum.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// These values, one for each channel.
    Values([f32; CHANNELS_MAX]),
    /// The values in the target.
    Target,
}

/// The terms that are summed into a tile: `sum over e of weights[channel][e] x packed[offsets[e] + position]`, in the order of e.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub offsets: &'a [u32],
    pub packed: *const f32,
    pub weights: *const f32,
    /// Elements between the weights of adjacent channels.
    pub weight_stride: usize,
}

/// Where a tile is written.
#[derive(Clone, Copy)]
pub(super) struct TileOutput {
    pub base: *mut f32,
    /// Elements between channels.
    pub stride: usize,
    /// Whether it is written past the caches ([`Vector::store_past`]).
    pub bypasses_caches: bool,
}

/// Sums a tile of `channels` times `vectors` vectors: up to [`CHANNELS`] channels, or [`CHANNELS_MAX`] with one vector, or with any number
/// of vectors given 32 registers. The values written are clamped to the limits.
///
/// # Safety
/// All addresses must be readable or writable in whole vectors, and the CPU must have the vector's instructions.
#[inline(always)]
pub(super) unsafe fn correlate<V: Vector>(
    channels: usize,
    vectors: usize,
    terms: &Terms,
    start: Start,
    limits: [f32; 2],
    place: TileOutput,
) {
    // SAFETY: the caller's promises.
    unsafe {
        match (channels, vectors) {
            (CHANNELS_MAX, 3) if V::REGISTERS >= 32 => outlined::<V, CHANNELS_MAX, 3>(terms, start, limits, place),
            (CHANNELS_MAX, 2) if V::REGISTERS >= 32 => outlined::<V, CHANNELS_MAX, 2>(terms, start, limits, place),
            (CHANNELS_MAX, _) => outlined::<V, CHANNELS_MAX, 1>(terms, start, limits, place),
            (4, 3) => outlined::<V, 4, 3>(terms, start, limits, place),
            (4, 2) => outlined::<V, 4, 2>(terms, start, limits, place),
            (4, _) => outlined::<V, 4, 1>(terms, start, limits, place),
            (3, 3) => outlined::<V, 3, 3>(terms, start, limits, place),
            (3, 2) => outlined::<V, 3, 2>(terms, start, limits, place),
            (3, _) => outlined::<V, 3, 1>(terms, start, limits, place),
            (2, 3) => outlined::<V, 2, 3>(terms, start, limits, place),
            (2, 2) => outlined::<V, 2, 2>(terms, start, limits, place),
            (2, _) => outlined::<V, 2, 1>(terms, start, limits, place),
            (_, 3) => outlined::<V, 1, 3>(terms, start, limits, place),
            (_, 2) => outlined::<V, 1, 2>(terms, start, limits, place),
            (_, _) => outlined::<V, 1, 1>(terms, start, limits, place),
        }
    }
}

/// # Safety
/// As [`correlate`].
#[inline(always)]
unsafe fn outlined<V: Vector, const C: usize, const N: usize>(
    terms: &Terms,
    start: Start,
    limits: [f32; 2],
    place: TileOutput,
) {
    // SAFETY: the caller's promises.
    unsafe {
        V::outline(
            #[inline(always)]
            || correlate_tile::<V, C, N>(terms, start, limits, place),
        );
    }
}

/// # Safety
/// As [`correlate`].
#[inline(always)]
unsafe fn correlate_tile<V: Vector, const C: usize, const N: usize>(
    terms: &Terms,
    start: Start,
    limits: [f32; 2],
    place: TileOutput,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let mut sums = [[V::splat(0.0); N]; C];
        for (c, sums) in sums.iter_mut().enumerate() {
            for (n, sum) in sums.iter_mut().enumerate() {
                let target = place.base.wrapping_add(c * place.stride + n * V::WIDTH);
                // Otherwise, stores would wait for lines that are in no cache.
                if !place.bypasses_caches {
                    prefetch(target);
                }
                *sum = match start {
                    Start::Values(values) => V::splat(values[c]),
                    Start::Target => V::load(target),
                };
            }
        }
        let weights: [*const f32; C] = std::array::from_fn(|c| terms.weights.add(c * terms.weight_stride));
        for (line, offsets) in terms.offsets.chunks(LINE).enumerate() {
            let weights = weights.map(|weights| weights.add(line * LINE));
            // The weights of the next channels.
            weights.iter().for_each(|weights| prefetch(weights.wrapping_add(C * terms.weight_stride)));
            for (e, &offset) in offsets.iter().enumerate() {
                let seen = terms.packed.add(offset as usize);
                let seen: [V; N] = std::array::from_fn(|n| V::load(seen.add(n * V::WIDTH)));
                for (sums, weights) in sums.iter_mut().zip(weights) {
                    *sums = V::add_multiples(*sums, weights.add(e), seen);
                }
            }
        }
        let [low, high] = limits.map(|limit| V::splat(limit));
        if place.bypasses_caches {
            for (c, sums) in sums.iter().enumerate() {
                for (n, &sum) in sums.iter().enumerate() {
                    sum.limited(low, high).store_past(place.base.add(c * place.stride + n * V::WIDTH));
                }
            }
            return;
        }
        for (c, sums) in sums.iter().enumerate() {
            for (n, &sum) in sums.iter().enumerate() {
                sum.limited(low, high).store(place.base.add(c * place.stride + n * V::WIDTH));
            }
        }
    }
}

/// Rows of packed gradients and places of packed sources, over a run of positions.
#[derive(Clone, Copy)]
pub(super) struct Run {
    /// The first channel's gradients; the run is a whole number of vectors.
    pub gradient: *const f32,
    /// Elements between the gradients of adjacent channels.
    pub gradient_stride: usize,
    pub packed: *const f32,
    pub vectors: usize,
}

/// Adds to `sums[e x CHANNELS + channel]`, for each e, the sum over the run of `gradient[channel][p] x packed[offsets[e] + p]`.
///
/// # Safety
/// As [`correlate`]; `channels` is 1 to [`CHANNELS`].
#[inline(always)]
pub(super) unsafe fn project<V: SummedVector>(channels: usize, run: &Run, offsets: &[u32], sums: &mut [f32]) {
    // SAFETY: the caller's promises.
    unsafe {
        V::outline(
            #[inline(always)]
            || match channels {
                4 => project_rows::<V, 4>(run, offsets, sums),
                3 => project_rows::<V, 3>(run, offsets, sums),
                2 => project_rows::<V, 2>(run, offsets, sums),
                _ => project_rows::<V, 1>(run, offsets, sums),
            },
        );
    }
}

/// # Safety
/// As [`project`].
#[inline(always)]
unsafe fn project_rows<V: SummedVector, const C: usize>(run: &Run, offsets: &[u32], sums: &mut [f32]) {
    let mut groups = offsets.chunks_exact(VECTORS);
    let mut targets = sums.chunks_exact_mut(VECTORS * CHANNELS);
    // SAFETY: the caller's promises.
    unsafe {
        for (offsets, sums) in (&mut groups).zip(&mut targets) {
            project_tile::<V, C, VECTORS>(run, offsets, sums);
        }
        for (offset, sums) in groups.remainder().chunks(1).zip(targets.into_remainder().chunks_exact_mut(CHANNELS)) {
            project_tile::<V, C, 1>(run, offset, sums);
        }
    }
}

/// # Safety
/// As [`project`].
#[inline(always)]
unsafe fn project_tile<V: SummedVector, const C: usize, const N: usize>(
    run: &Run,
    offsets: &[u32],
    targets: &mut [f32],
) {
    // SAFETY: the caller's promises.
    unsafe {
        let mut sums = [[V::splat(0.0); CHANNELS]; N];
        let seen: [*const f32; N] = std::array::from_fn(|n| run.packed.add(offsets[n] as usize));
        for vector in 0..run.vectors {
            let seen: [V; N] = std::array::from_fn(|n| V::load(seen[n].add(vector * LANES)));
            for c in 0..C {
                let gradient = V::load(run.gradient.add(c * run.gradient_stride + vector * LANES));
                for (sums, &seen) in sums.iter_mut().zip(&seen) {
                    sums[c] = sums[c].add_product(gradient, seen);
                }
            }
        }
        for (target, sums) in targets.chunks_exact_mut(CHANNELS).zip(sums) {
            let sums = V::sums(sums);
            target.iter_mut().zip(sums).for_each(|(target, sum)| *target += sum);
        }
    }
}
