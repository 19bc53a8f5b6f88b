//! Correlations of one source channel with one target channel in each group, as in depthwise convolutions.
//!
//! There is little to compute for what is packed, so a task takes many channels, and sums run over all positions of a plane
//! at once, those between rows included: rows of a few positions then fill whole vectors. Each sum has the order that it has in
//! [`super::correlation`].

use super::super::simd::{dispatch_wide, Vector, WIDTH_MAX};

/// Vectors of positions that are summed together.
const VECTORS: usize = 4;
/// Elements behind the last position that whole tiles read and write.
pub(super) const BEHIND: usize = VECTORS * WIDTH_MAX;

/// Sums over the taps of a plane: `sums[p] = bias + sum over e of weights[e] x packed[offsets[e] + p]` for `count` positions.
pub(super) struct Plane<'a> {
    pub packed: *const f32,
    /// By tap.
    pub offsets: &'a [u32],
    /// As many.
    pub weights: *const f32,
    pub bias: f32,
    /// What sums are limited to.
    pub limits: [f32; 2],
    pub count: usize,
    pub sums: *mut f32,
}

dispatch_wide! {
    /// # Safety
    /// The packed elements must be readable, and the sums writable, up to [`BEHIND`] elements behind the last position.
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
            || match plane.offsets.len() {
                9 => sum_tiles::<V, 9>(plane),
                _ => sum_tiles::<V, 0>(plane),
            },
        );
    }
}

/// The sums for `TAPS` taps, or for any number where that is 0.
///
/// # Safety
/// As [`sum_plane_with`].
#[inline(always)]
unsafe fn sum_tiles<V: Vector, const TAPS: usize>(plane: &Plane) {
    let taps = if TAPS == 0 { plane.offsets.len() } else { TAPS };
    // SAFETY: the caller's promises.
    let [low, high] = plane.limits.map(|limit| unsafe { V::splat(limit) });
    let mut start = 0;
    while start < plane.count {
        // SAFETY: the caller's promises.
        unsafe {
            let mut sums = [V::splat(plane.bias); VECTORS];
            for tap in 0..taps {
                let seen = plane.packed.add(start + *plane.offsets.get_unchecked(tap) as usize);
                let seen: [V; VECTORS] = std::array::from_fn(|n| V::load(seen.add(n * V::WIDTH)));
                sums = V::add_multiples(sums, plane.weights.add(tap), seen);
            }
            for (n, sum) in sums.into_iter().enumerate() {
                sum.limited(low, high).store(plane.sums.add(start + n * V::WIDTH));
            }
        }
        start += VECTORS * V::WIDTH;
    }
}
