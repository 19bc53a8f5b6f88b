//! Eight float32 lanes with a fused multiply-add, for the few kernels that live off it.
//!
//! Every implementation computes the same IEEE operations, so the bits do not depend on which one runs.

/// Eight lanes.
pub(super) trait Lanes: Copy {
    /// The same value in every lane.
    fn splat(value: f32) -> Self;
    /// Eight adjacent elements.
    ///
    /// # Safety
    /// They must exist.
    unsafe fn load(from: *const f32) -> Self;
    /// Writes eight adjacent elements.
    ///
    /// # Safety
    /// They must exist and be the caller's.
    unsafe fn store(self, to: *mut f32);
    /// a x b + self, rounded once.
    fn multiply_add(self, a: Self, b: Self) -> Self;
    /// The lanes as an array.
    fn to_array(self) -> [f32; 8];
}

/// Lanes without vector instructions.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; 8]);

impl Lanes for Plain {
    #[inline(always)]
    fn splat(value: f32) -> Plain {
        Plain([value; 8])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Plain {
        // SAFETY: the caller promises that the elements exist.
        Plain(unsafe { from.cast::<[f32; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller promises that the elements exist and are its own.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    fn multiply_add(self, a: Plain, b: Plain) -> Plain {
        Plain(std::array::from_fn(|lane| a.0[lane].mul_add(b.0[lane], self.0[lane])))
    }

    #[inline(always)]
    fn to_array(self) -> [f32; 8] {
        self.0
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    //! Lanes of AVX2 with FMA. Values exist only in code that runs after [`available`] said so.

    use std::arch::x86_64::*;

    use super::Lanes;

    /// One AVX register.
    #[derive(Clone, Copy)]
    pub struct Avx2(__m256);

    /// Whether this CPU has AVX2 and FMA.
    pub fn available() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        fn splat(value: f32) -> Avx2 {
            // SAFETY: the module's rule: the CPU has AVX2.
            Avx2(unsafe { _mm256_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Avx2 {
            // SAFETY: the caller promises that the elements exist; the CPU has AVX2.
            Avx2(unsafe { _mm256_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller promises that the elements exist and are its own; the CPU has AVX2.
            unsafe { _mm256_storeu_ps(to, self.0) };
        }

        #[inline(always)]
        fn multiply_add(self, a: Avx2, b: Avx2) -> Avx2 {
            // SAFETY: the module's rule: the CPU has FMA.
            Avx2(unsafe { _mm256_fmadd_ps(a.0, b.0, self.0) })
        }

        #[inline(always)]
        fn to_array(self) -> [f32; 8] {
            // SAFETY: both are eight float32 lanes.
            unsafe { std::mem::transmute(self.0) }
        }
    }
}

/// Runs `$function::<L>(arguments)` with the best lanes that this CPU has. The function must be `#[inline(always)]` and
/// unsafe.
macro_rules! with_lanes {
    ($function:ident($($argument:ident: $type:ty),* $(,)?)) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma")]
            unsafe fn vector($($argument: $type),*) {
                // SAFETY: the caller's promises, handed on.
                unsafe { $function::<$crate::host::kernels::simd::x86::Avx2>($($argument),*) }
            }
            if $crate::host::kernels::simd::x86::available() {
                vector($($argument),*)
            } else {
                $function::<$crate::host::kernels::simd::Plain>($($argument),*)
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        $function::<$crate::host::kernels::simd::Plain>($($argument),*)
    }};
}
pub(super) use with_lanes;
