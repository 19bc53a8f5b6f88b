//! Vectors of x86-64 processors.

use std::arch::x86_64::*;

use super::{LANES, SummedVector, Vector, WINDOWS};
use crate::host::isa::{self, InstructionSet};

/// Whether kernels use AVX2 and FMA.
pub(in super::super) fn has_avx2() -> bool {
    isa::has(InstructionSet::Avx2)
}

/// Whether kernels use AVX-512.
pub(in super::super) fn has_avx512() -> bool {
    isa::has(InstructionSet::Avx512)
}

/// Whether kernels round products before they add them.
pub(in super::super) fn is_unfused() -> bool {
    isa::is_chosen(InstructionSet::Sse2)
}

/// a b + c in all lanes, rounded once, by instructions that every processor has; `None` if that takes more than rounding a sum of doubles.
#[inline(always)]
pub(super) fn fused_unless_in_the_middle(a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> Option<[f32; LANES]> {
    // SAFETY: every x86-64 processor has SSE2; pairs of numbers lie in the arrays.
    unsafe {
        let mut sums = [0.0; LANES];
        let mut is_special = _mm_setzero_si128();
        for pair in (0..LANES).step_by(2) {
            let doubles =
                |numbers: &[f32; LANES]| _mm_cvtps_pd(_mm_castpd_ps(_mm_load_sd(numbers.as_ptr().add(pair).cast())));
            // The product is exact, so only the sum is rounded, to the nearest double. Rounding that to the nearest single-precision number
            // gives what rounding once does, unless it lies in the middle between two of them, which 29 bits say of numbers that are not
            // near zero.
            let sum = _mm_add_pd(_mm_mul_pd(doubles(&a), doubles(&b)), doubles(&c));
            let low_bits = _mm_and_si128(_mm_castpd_si128(sum), _mm_set1_epi64x(0x1fff_ffff));
            let is_middle = _mm_cmpeq_epi32(low_bits, _mm_set_epi32(-1, 0x1000_0000, -1, 0x1000_0000));
            let size = _mm_andnot_pd(_mm_set1_pd(-0.0), sum);
            let is_near_zero = _mm_cmplt_pd(size, _mm_set1_pd(2.0 * f64::from(f32::MIN_POSITIVE)));
            let is_near_zero = _mm_and_pd(is_near_zero, _mm_cmpneq_pd(sum, _mm_setzero_pd()));
            is_special = _mm_or_si128(is_special, _mm_or_si128(is_middle, _mm_castpd_si128(is_near_zero)));
            _mm_store_sd(sums.as_mut_ptr().add(pair).cast(), _mm_castps_pd(_mm_cvtpd_ps(sum)));
        }
        (_mm_movemask_epi8(is_special) == 0).then_some(sums)
    }
}

/// AVX2 vectors, with FMA.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2(__m256);

/// Adds multiples to three sums. The compiler would read factors early, run out of registers and move sums around, at half the speed;
/// these four instructions need only one register besides the operands.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_three_multiples(sums: [Avx2; 3], factor: *const f32, seen: [Avx2; 3]) -> [Avx2; 3] {
    let [mut a, mut b, mut c] = sums.map(|sum| sum.0);
    // SAFETY: reads one number at an address that the caller promises; writes registers only.
    unsafe {
        std::arch::asm!(
            "vbroadcastss {factor}, dword ptr [{address}]",
            "vfmadd231ps {a}, {factor}, {x}",
            "vfmadd231ps {b}, {factor}, {y}",
            "vfmadd231ps {c}, {factor}, {z}",
            factor = out(ymm_reg) _,
            address = in(reg) factor,
            a = inout(ymm_reg) a,
            b = inout(ymm_reg) b,
            c = inout(ymm_reg) c,
            x = in(ymm_reg) seen[0].0,
            y = in(ymm_reg) seen[1].0,
            z = in(ymm_reg) seen[2].0,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [Avx2(a), Avx2(b), Avx2(c)]
}

/// See [`Vector::transpose`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn transpose(source: *const f32, stride: isize, target: *mut f32, target_stride: usize) {
    // SAFETY: the caller's promises.
    unsafe {
        for (row, column) in columns(source, stride).into_iter().enumerate() {
            _mm256_storeu_ps(target.add(row * target_stride), column);
        }
    }
}

/// See [`SummedVector::columns`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn columns(source: *const f32, stride: isize) -> [__m256; LANES] {
    // SAFETY: the caller's promises.
    unsafe {
        // The left halves of lines i and i + 4 in one vector, then the right halves: each half of a vector is then part of a table of
        // four lines and columns, which is transposed within that half.
        let halves: [__m256; 8] = std::array::from_fn(|i| {
            let line = source.offset((i % 4) as isize * stride).add(i / 4 * 4);
            let low = _mm256_castps128_ps256(_mm_loadu_ps(line));
            _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(line.offset(4 * stride)))
        });
        let pairs: [__m256; 8] = std::array::from_fn(|i| {
            let (a, b) = (halves[i / 2 * 2], halves[i / 2 * 2 + 1]);
            if i % 2 == 0 { _mm256_unpacklo_ps(a, b) } else { _mm256_unpackhi_ps(a, b) }
        });
        std::array::from_fn(|i| {
            let (a, b) = (pairs[i / 4 * 4 + i % 4 / 2], pairs[i / 4 * 4 + 2 + i % 4 / 2]);
            if i % 2 == 0 { _mm256_shuffle_ps::<0x44>(a, b) } else { _mm256_shuffle_ps::<0xee>(a, b) }
        })
    }
}

impl Vector for Avx2 {
    type Half = Avx2;
    const WIDTH: usize = LANES;
    const REGISTERS: usize = 16;

    #[inline(always)]
    unsafe fn outline(work: impl FnOnce()) {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn compiled(work: impl FnOnce()) {
            work();
        }
        // SAFETY: see `load`.
        unsafe { compiled(work) }
    }

    #[inline(always)]
    unsafe fn load(address: *const f32) -> Self {
        // SAFETY: by the caller's promises (as in all functions).
        Avx2(unsafe { _mm256_loadu_ps(address) })
    }

    #[inline(always)]
    unsafe fn load_even(address: *const f32) -> Self {
        // SAFETY: see `load`.
        unsafe {
            let [low, high] = [address, address.add(LANES)].map(|address| _mm256_loadu_ps(address));
            let pairs = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(low, high));
            Avx2(_mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(pairs)))
        }
    }

    #[inline(always)]
    unsafe fn load_thirds(address: *const f32) -> [Self; 3] {
        // SAFETY: see `load`. No two of the numbers of a third are in the same lane of their vectors.
        unsafe {
            let [a, b, c] = [0, 1, 2].map(|n| _mm256_loadu_ps(address.add(n * LANES)));
            let first = _mm256_blend_ps::<0b0010_0100>(_mm256_blend_ps::<0b1001_0010>(a, b), c);
            let second = _mm256_blend_ps::<0b0100_1001>(_mm256_blend_ps::<0b0010_0100>(a, b), c);
            let third = _mm256_blend_ps::<0b1001_0010>(_mm256_blend_ps::<0b0100_1001>(a, b), c);
            [
                Avx2(_mm256_permutevar8x32_ps(first, _mm256_setr_epi32(0, 3, 6, 1, 4, 7, 2, 5))),
                Avx2(_mm256_permutevar8x32_ps(second, _mm256_setr_epi32(1, 4, 7, 2, 5, 0, 3, 6))),
                Avx2(_mm256_permutevar8x32_ps(third, _mm256_setr_epi32(2, 5, 0, 3, 6, 1, 4, 7))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store(self, address: *mut f32) {
        // SAFETY: see `load`.
        unsafe { _mm256_storeu_ps(address, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, address: *mut f32, count: usize) {
        // SAFETY: see `load`.
        unsafe {
            let numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), numbers);
            _mm256_maskstore_ps(address, mask, self.0);
        }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see `load`.
        Avx2(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: see `load`.
        Avx2(unsafe { _mm256_fmadd_ps(a.0, b.0, self.0) })
    }

    #[inline(always)]
    unsafe fn add_multiples<const N: usize>(sums: [Self; N], factor: *const f32, seen: [Self; N]) -> [Self; N] {
        // SAFETY: see `load`.
        unsafe {
            let mut result = sums;
            let mut n = 0;
            while n + 3 <= N {
                let three = [result[n], result[n + 1], result[n + 2]];
                let three = add_three_multiples(three, factor, [seen[n], seen[n + 1], seen[n + 2]]);
                result[n..n + 3].copy_from_slice(&three);
                n += 3;
            }
            while n < N {
                result[n] = result[n].add_product(Self::splat(*factor), seen[n]);
                n += 1;
            }
            result
        }
    }

    #[inline(always)]
    unsafe fn transpose(source: *const f32, stride: isize, target: *mut f32, target_stride: usize) {
        // SAFETY: the caller's promises; the CPU has AVX2.
        unsafe { transpose(source, stride, target, target_stride) }
    }

    #[inline(always)]
    unsafe fn interleaved(self, other: Self) -> [Self; 2] {
        // SAFETY: see `load`.
        unsafe {
            let (low, high) = (_mm256_unpacklo_ps(self.0, other.0), _mm256_unpackhi_ps(self.0, other.0));
            [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)].map(Avx2)
        }
    }

    #[inline(always)]
    unsafe fn limited(self, low: Self, high: Self) -> Self {
        // SAFETY: see `load`. If two operands are equal or one is NaN, the instructions return the second.
        Avx2(unsafe { _mm256_min_ps(high.0, _mm256_max_ps(low.0, self.0)) })
    }

    #[inline(always)]
    unsafe fn larger(self, x: Self) -> Self {
        // SAFETY: see `load`. If two operands are equal or one is NaN, the maximum is the second.
        unsafe {
            let larger = _mm256_max_ps(x.0, self.0);
            Avx2(_mm256_blendv_ps(larger, x.0, _mm256_cmp_ps::<_CMP_UNORD_Q>(x.0, x.0)))
        }
    }
}

impl SummedVector for Avx2 {
    #[inline(always)]
    unsafe fn columns(source: *const f32, stride: isize) -> [Self; LANES] {
        // SAFETY: the caller's promises; the CPU has AVX2.
        unsafe { columns(source, stride).map(Avx2) }
    }

    #[inline(always)]
    unsafe fn sums(four: [Self; 4]) -> [f32; 4] {
        // SAFETY: see `load`; four lanes are as large as four numbers.
        unsafe {
            let [a, b, c, d] = four.map(|vector| vector.0);
            let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let abcd = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
            let sums = _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd));
            std::mem::transmute::<__m128, [f32; 4]>(sums)
        }
    }
}

/// AVX-512 vectors.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512(__m512);

impl Vector for Avx512 {
    type Half = Avx2;
    const WIDTH: usize = 16;
    const REGISTERS: usize = 32;

    #[inline(always)]
    unsafe fn outline(work: impl FnOnce()) {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx2,fma")]
        unsafe fn compiled(work: impl FnOnce()) {
            work();
        }
        // SAFETY: see `load`.
        unsafe { compiled(work) }
    }

    #[inline(always)]
    unsafe fn load(address: *const f32) -> Self {
        // SAFETY: by the caller's promises (as in all functions).
        Avx512(unsafe { _mm512_loadu_ps(address) })
    }

    #[inline(always)]
    unsafe fn load_even(address: *const f32) -> Self {
        // SAFETY: see `load`.
        unsafe {
            let [low, high] = [address, address.add(16)].map(|address| _mm512_loadu_ps(address));
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            Avx512(_mm512_permutex2var_ps(low, even, high))
        }
    }

    #[inline(always)]
    unsafe fn load_thirds(address: *const f32) -> [Self; 3] {
        // For each third, the places of its numbers in the first two vectors, then in those numbers and the third vector.
        const ORDERS: [[[i32; 16]; 2]; 3] = {
            let mut orders = [[[0; 16]; 2]; 3];
            let mut at = 0;
            while at < 48 {
                let (third, lane) = (at % 3, at / 3);
                orders[third][0][lane] = if at < 32 { at as i32 } else { 0 };
                orders[third][1][lane] = if at < 32 { lane as i32 } else { at as i32 - 16 };
                at += 1;
            }
            orders
        };
        // SAFETY: see `load`.
        unsafe {
            let [a, b, c] = [0, 1, 2].map(|n| _mm512_loadu_ps(address.add(16 * n)));
            ORDERS.map(|orders| {
                let [first, second] = orders.map(|order| _mm512_loadu_epi32(order.as_ptr()));
                Avx512(_mm512_permutex2var_ps(_mm512_permutex2var_ps(a, first, b), second, c))
            })
        }
    }

    /// Loads that are not aligned take two cycles; numbers of two aligned vectors are put together in one.
    #[inline(always)]
    unsafe fn windows(address: *const f32) -> [Self; WINDOWS] {
        // SAFETY: see `load`.
        unsafe {
            let [low, high] = [address, address.add(16)].map(|address| _mm512_castps_si512(_mm512_loadu_ps(address)));
            let vectors = [
                low,
                _mm512_alignr_epi32::<1>(high, low),
                _mm512_alignr_epi32::<2>(high, low),
                _mm512_alignr_epi32::<3>(high, low),
                _mm512_alignr_epi32::<4>(high, low),
                _mm512_alignr_epi32::<5>(high, low),
                _mm512_alignr_epi32::<6>(high, low),
            ];
            vectors.map(|vector| Avx512(_mm512_castsi512_ps(vector)))
        }
    }

    #[inline(always)]
    unsafe fn store(self, address: *mut f32) {
        // SAFETY: see `load`.
        unsafe { _mm512_storeu_ps(address, self.0) }
    }

    #[inline(always)]
    unsafe fn store_past(self, address: *mut f32) {
        // SAFETY: see `load`; the address is a multiple of 64.
        unsafe { _mm512_stream_ps(address, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, address: *mut f32, count: usize) {
        let mask = ((1u32 << count.min(16)) - 1) as u16;
        // SAFETY: see `load`.
        unsafe { _mm512_mask_storeu_ps(address, mask, self.0) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see `load`.
        Avx512(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: see `load`.
        Avx512(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
    }

    #[inline(always)]
    unsafe fn transpose(source: *const f32, stride: isize, target: *mut f32, target_stride: usize) {
        // SAFETY: the caller's promises; the CPU has AVX2.
        unsafe { transpose(source, stride, target, target_stride) }
    }

    #[inline(always)]
    unsafe fn interleaved(self, other: Self) -> [Self; 2] {
        // SAFETY: see `load`.
        unsafe {
            let first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            [first, second].map(|order| Avx512(_mm512_permutex2var_ps(self.0, order, other.0)))
        }
    }

    #[inline(always)]
    unsafe fn limited(self, low: Self, high: Self) -> Self {
        // SAFETY: see `load`. If two operands are equal or one is NaN, the instructions return the second.
        Avx512(unsafe { _mm512_min_ps(high.0, _mm512_max_ps(low.0, self.0)) })
    }

    #[inline(always)]
    unsafe fn larger(self, x: Self) -> Self {
        // SAFETY: see `load`; the maximum behaves like that of AVX2.
        unsafe {
            let larger = _mm512_max_ps(x.0, self.0);
            Avx512(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x.0, x.0), larger, x.0))
        }
    }
}
