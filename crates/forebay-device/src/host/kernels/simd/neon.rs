//! Vectors of aarch64 processors, which all have NEON.

use std::arch::aarch64::*;

use super::{LANES, SummedVector, Vector};
use crate::host::isa::{self, InstructionSet};

/// Whether kernels use NEON.
pub(in super::super) fn has_neon() -> bool {
    isa::has(InstructionSet::Neon)
}

/// Two NEON vectors.
#[derive(Clone, Copy)]
pub(in super::super) struct Neon([float32x4_t; 2]);

impl Neon {
    /// Computes both vectors.
    #[inline(always)]
    fn both(vector: impl FnMut(usize) -> float32x4_t) -> Neon {
        Neon(std::array::from_fn(vector))
    }
}

/// Transposes four lines of four numbers.
///
/// # Safety
/// See [`Vector::load`].
#[inline(always)]
unsafe fn transposed(lines: [float32x4_t; 4]) -> [float32x4_t; 4] {
    // SAFETY: every aarch64 processor has NEON (as in all functions).
    unsafe {
        let [a, b, c, d] = lines;
        let [even_ab, odd_ab] = [vtrn1q_f32(a, b), vtrn2q_f32(a, b)];
        let [even_cd, odd_cd] = [vtrn1q_f32(c, d), vtrn2q_f32(c, d)];
        [
            vcombine_f32(vget_low_f32(even_ab), vget_low_f32(even_cd)),
            vcombine_f32(vget_low_f32(odd_ab), vget_low_f32(odd_cd)),
            vcombine_f32(vget_high_f32(even_ab), vget_high_f32(even_cd)),
            vcombine_f32(vget_high_f32(odd_ab), vget_high_f32(odd_cd)),
        ]
    }
}

impl Vector for Neon {
    type Half = Neon;
    const WIDTH: usize = LANES;
    const REGISTERS: usize = 16;

    #[inline(always)]
    unsafe fn load(address: *const f32) -> Self {
        // SAFETY: by the caller's promises (as in all functions).
        Neon::both(|half| unsafe { vld1q_f32(address.add(4 * half)) })
    }

    #[inline(always)]
    unsafe fn load_even(address: *const f32) -> Self {
        // SAFETY: see `load`.
        Neon::both(|half| unsafe { vld2q_f32(address.add(8 * half)).0 })
    }

    #[inline(always)]
    unsafe fn load_thirds(address: *const f32) -> [Self; 3] {
        // SAFETY: see `load`.
        unsafe {
            let [low, high] = [address, address.add(12)].map(|address| vld3q_f32(address));
            [Neon([low.0, high.0]), Neon([low.1, high.1]), Neon([low.2, high.2])]
        }
    }

    #[inline(always)]
    unsafe fn store(self, address: *mut f32) {
        for (half, numbers) in self.0.into_iter().enumerate() {
            // SAFETY: see `load`.
            unsafe { vst1q_f32(address.add(4 * half), numbers) };
        }
    }

    #[inline(always)]
    unsafe fn store_first(self, address: *mut f32, count: usize) {
        let mut numbers = [0.0; LANES];
        // SAFETY: the array has as many numbers as a vector; the caller's promise.
        unsafe {
            self.store(numbers.as_mut_ptr());
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), address, count.min(LANES));
        }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see `load`.
        Neon([unsafe { vdupq_n_f32(value) }; 2])
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: see `load`.
        Neon::both(|half| unsafe { vfmaq_f32(self.0[half], a.0[half], b.0[half]) })
    }

    #[inline(always)]
    unsafe fn transpose(source: *const f32, stride: isize, target: *mut f32, target_stride: usize) {
        // SAFETY: the caller's promises.
        unsafe {
            for (row, column) in Self::columns(source, stride).into_iter().enumerate() {
                column.store(target.add(row * target_stride));
            }
        }
    }

    #[inline(always)]
    unsafe fn interleaved(self, other: Self) -> [Self; 2] {
        // SAFETY: see `load`.
        [0, 1].map(|half| unsafe {
            let (a, b) = (self.0[half], other.0[half]);
            Neon([vzip1q_f32(a, b), vzip2q_f32(a, b)])
        })
    }

    #[inline(always)]
    unsafe fn limited(self, low: Self, high: Self) -> Self {
        // SAFETY: see `load`. Comparisons with NaN are false; the instructions for minima and maxima order zeros by their signs.
        Neon::both(|half| unsafe {
            let (x, low, high) = (self.0[half], low.0[half], high.0[half]);
            let x = vbslq_f32(vcltq_f32(x, low), low, x);
            vbslq_f32(vcgtq_f32(x, high), high, x)
        })
    }

    #[inline(always)]
    unsafe fn larger(self, x: Self) -> Self {
        // SAFETY: see `load`.
        Neon::both(|half| unsafe {
            let (own, x) = (self.0[half], x.0[half]);
            let is_own = vbicq_u32(vceqq_f32(x, x), vcgtq_f32(x, own));
            vbslq_f32(is_own, own, x)
        })
    }
}

impl SummedVector for Neon {
    #[inline(always)]
    unsafe fn columns(source: *const f32, stride: isize) -> [Self; LANES] {
        // SAFETY: the caller's promises.
        unsafe {
            // A table of four lines and columns.
            let table = |line: usize, column: usize| {
                transposed(
                    [0, 1, 2, 3].map(|next| vld1q_f32(source.offset((line + next) as isize * stride).add(column))),
                )
            };
            let tables = [[table(0, 0), table(4, 0)], [table(0, 4), table(4, 4)]];
            std::array::from_fn(|column| Neon::both(|half| tables[column / 4][half][column % 4]))
        }
    }

    #[inline(always)]
    unsafe fn sums(four: [Self; 4]) -> [f32; 4] {
        // SAFETY: see `load`; four lanes are as large as four numbers.
        unsafe {
            let [low, high] = [0, 1].map(|half| {
                let [a, b, c, d] = transposed(four.map(|vector| vector.0[half]));
                vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d))
            });
            std::mem::transmute::<float32x4_t, [f32; 4]>(vaddq_f32(low, high))
        }
    }
}
