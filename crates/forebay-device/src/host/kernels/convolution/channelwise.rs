//! Correlations of one source channel with one target channel in each group, as in depthwise convolutions.
//!
//! There is little computation per packed element, so a task takes many channels, and sums run over all positions of a plane at once,
//! including those between rows: even short rows then fill whole vectors. Each sum is in the same order as in [`super::correlation`].

use super::super::simd::{Vector, WIDTH_MAX, dispatch_wide};

/// Vectors of positions that are summed together.
const VECTORS: usize = 4;
/// Elements after the last position that whole tiles write, and that they read for each step.
pub(super) const BEHIND: usize = VECTORS * WIDTH_MAX;

/// Sums over the taps of a plane: `sums[p] = bias + sum over e of weights[e] x packed[offsets[e] + step p]` for `count` positions of each
/// row. Rows of elements and of sums start `pitch` apart.
pub(super) struct Plane<'a> {
    /// 1, or 2 for every second element.
    pub step: usize,
    pub rows: usize,
    pub pitch: usize,
    pub packed: *const f32,
    /// By tap.
    pub offsets: &'a [u32],
    /// One per offset.
    pub weights: *const f32,
    pub bias: f32,
    /// The range to which sums are limited.
    pub limits: [f32; 2],
    pub count: usize,
    pub sums: *mut f32,
}

dispatch_wide! {
    /// # Safety
    /// The packed elements must be readable and the sums writable up to [`BEHIND`] elements after the last position; for the packed ones,
    /// up to `step` times as many.
    pub(super) fn sum_plane, sum_plane_with(plane: &Plane)
}

/// # Safety
/// As [`sum_plane`], and the CPU must have the vector's instructions.
#[inline(always)]
unsafe fn sum_plane_with<V: Vector>(plane: &Plane) {
    // SAFETY: the caller's promises.
    unsafe {
        V::outline(
            #[inline(always)]
            || match (plane.step, plane.offsets.len()) {
                (1, 9) => sum_rows::<V, 1, 9>(plane),
                (1, _) => sum_rows::<V, 1, 0>(plane),
                (_, 9) => sum_rows::<V, 2, 9>(plane),
                (_, _) => sum_rows::<V, 2, 0>(plane),
            },
        );
    }
}

/// Computes the sums for `TAPS` taps, or for any number of taps if `TAPS` is 0.
///
/// # Safety
/// As [`sum_plane_with`].
#[inline(always)]
unsafe fn sum_rows<V: Vector, const STEP: usize, const TAPS: usize>(plane: &Plane) {
    for row in 0..plane.rows {
        let mut start = 0;
        while start < plane.count {
            let vectors = (plane.count - start).div_ceil(V::WIDTH).min(VECTORS);
            // SAFETY: the caller's promises.
            unsafe {
                let packed = plane.packed.add(row * plane.pitch + STEP * start);
                let sums = plane.sums.add(row * plane.pitch + start);
                match vectors {
                    1 => sum_tile::<V, 1, STEP, TAPS>(plane, packed, sums),
                    2 => sum_tile::<V, 2, STEP, TAPS>(plane, packed, sums),
                    _ => sum_tile::<V, VECTORS, STEP, TAPS>(plane, packed, sums),
                }
            }
            start += vectors * V::WIDTH;
        }
    }
}

/// Computes the sums of `N` vectors of positions.
///
/// # Safety
/// As [`sum_plane_with`].
#[inline(always)]
unsafe fn sum_tile<V: Vector, const N: usize, const STEP: usize, const TAPS: usize>(
    plane: &Plane,
    packed: *const f32,
    target: *mut f32,
) {
    let taps = if TAPS == 0 { plane.offsets.len() } else { TAPS };
    // SAFETY: the caller's promises.
    unsafe {
        let [low, high] = plane.limits.map(|limit| V::splat(limit));
        let mut sums = [V::splat(plane.bias); N];
        for tap in 0..taps {
            let seen = packed.add(*plane.offsets.get_unchecked(tap) as usize);
            let seen: [V; N] = std::array::from_fn(
                #[inline(always)]
                |n| match STEP {
                    1 => V::load(seen.add(n * V::WIDTH)),
                    _ => V::load_even(seen.add(2 * n * V::WIDTH)),
                },
            );
            sums = V::add_multiples(sums, plane.weights.add(tap), seen);
        }
        for (n, sum) in sums.into_iter().enumerate() {
            sum.limited(low, high).store(target.add(n * V::WIDTH));
        }
    }
}
