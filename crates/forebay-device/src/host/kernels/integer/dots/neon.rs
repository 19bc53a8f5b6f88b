//! Sums of four products on aarch64 processors that have instructions for them.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Lanes, Rows, tile};

/// Returns whether the processor has the instructions.
pub(super) fn has_dots() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}

/// Eight sums.
#[derive(Clone, Copy)]
struct Dots([int32x4_t; 2]);

impl Lanes for Dots {
    // The instruction multiplies signed bytes: those of the panel, less 128.
    type Panel = [int8x16_t; 2];
    // The bytes of a row, and -128 times their sum.
    type Quad = (int8x16_t, int32x4_t);

    #[inline(always)]
    unsafe fn load(sums: *const i32) -> Self {
        // SAFETY: by the caller's promises (this applies to all functions).
        Dots([0, 1].map(|half| unsafe { vld1q_s32(sums.add(4 * half)) }))
    }

    #[inline(always)]
    unsafe fn store(self, sums: *mut i32) {
        for (half, own) in self.0.into_iter().enumerate() {
            // SAFETY: see `load`.
            unsafe { vst1q_s32(sums.add(4 * half), own) };
        }
    }

    #[inline(always)]
    unsafe fn panel(bytes: *const u8) -> Self::Panel {
        // SAFETY: see `load`.
        [0, 1].map(|half| unsafe { vreinterpretq_s8_u8(veorq_u8(vld1q_u8(bytes.add(16 * half)), vdupq_n_u8(128))) })
    }

    #[inline(always)]
    unsafe fn quad(bytes: u32) -> Self::Quad {
        // SAFETY: see `load`.
        unsafe {
            let quad = vreinterpretq_s8_u32(vdupq_n_u32(bytes));
            (quad, added(vdupq_n_s32(0), vdupq_n_s8(-128), quad))
        }
    }

    #[inline(always)]
    unsafe fn add(self, panel: Self::Panel, (quad, correction): Self::Quad) -> Self {
        // SAFETY: see `load`.
        Dots([0, 1].map(|half| unsafe { added(vsubq_s32(self.0[half], correction), panel[half], quad) }))
    }
}

/// Adds the sums of products of four bytes: `sdot`, for which stable compilers have no intrinsic.
///
/// # Safety
/// The processor must have it.
#[inline]
#[target_feature(enable = "dotprod")]
unsafe fn added(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut own = sums;
    // SAFETY: writes one register.
    unsafe {
        asm!(
            "sdot {own:v}.4s, {a:v}.16b, {b:v}.16b",
            own = inout(vreg) own,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    own
}

/// As for [`super::tile`].
///
/// # Safety
/// As for [`super::add_products`].
#[target_feature(enable = "dotprod")]
pub(super) unsafe fn tile_dots(rows: Rows, panel: (*const u8, usize), quads: usize, sums: *mut i32) -> usize {
    // SAFETY: the caller's promises.
    unsafe { tile::<Dots>(rows, panel, quads, sums) }
}
