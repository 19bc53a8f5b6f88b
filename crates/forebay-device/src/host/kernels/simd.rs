//! Eight or sixteen single-precision numbers at once, with fused multiply-adds.
//!
//! Kernels are written once over [`Vector`] and compiled for each type that implements it; the widest one that the CPU supports runs. All
//! give the same bits, except [`Plain<false>`](Plain), for x86-64 processors that have no instruction for fused multiply-adds.
//! Kernels that add up the numbers of a vector use eight of them on every CPU ([`dispatch`]), so that their sums have one order. Kernels
//! whose sums each stay in one lane can use sixteen ([`dispatch_wide`]).

#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(super) use neon::{Neon, has_neon};
pub(super) use plain::Plain;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512, has_avx2, has_avx512, is_unfused};

/// Numbers in a vector for kernels that add up the numbers of a vector.
pub(super) const LANES: usize = 8;
/// The most numbers in a vector.
pub(super) const WIDTH_MAX: usize = 16;
/// The number of vectors that [`Vector::windows`] reads.
pub(super) const WINDOWS: usize = 7;

/// Returns low if x is smaller, high if it is larger, otherwise x; NaN stays NaN.
#[inline(always)]
pub(super) fn limited<T: PartialOrd>(x: T, low: T, high: T) -> T {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// A vector of [`Vector::WIDTH`] numbers.
pub(super) trait Vector: Copy {
    /// The vector for a remainder that fills at most half of this one; the same type if there is no narrower one.
    type Half: Vector;
    /// How many numbers the vector has.
    const WIDTH: usize;
    /// How many vectors the processor's registers hold.
    const REGISTERS: usize;
    /// Runs `work` as a separate function, compiled for the vector's instructions: the compiler keeps the numbers of a small function in
    /// registers, but not those of a large one. Everything in `work` must inline.
    ///
    /// # Safety
    /// See [`Vector::load`].
    #[inline(never)]
    unsafe fn outline(work: impl FnOnce()) {
        work();
    }
    /// Reads adjacent numbers.
    ///
    /// # Safety
    /// The numbers must be readable, and the CPU must have the vector's instructions (this applies to all functions).
    unsafe fn load(address: *const f32) -> Self;
    /// Reads every second number, starting at an address.
    ///
    /// # Safety
    /// Twice as many adjacent numbers must be readable; see [`Vector::load`].
    unsafe fn load_even(address: *const f32) -> Self;
    /// Reads every third number, starting at an address and at the next two.
    ///
    /// # Safety
    /// Three times as many adjacent numbers must be readable; see [`Vector::load`].
    unsafe fn load_thirds(address: *const f32) -> [Self; 3];
    /// Reads adjacent numbers, starting at an address, at the next one, and so on.
    ///
    /// # Safety
    /// Twice as many adjacent numbers as a vector has must be readable, and at least `LANES + WINDOWS`; see [`Vector::load`].
    #[inline(always)]
    unsafe fn windows(address: *const f32) -> [Self; WINDOWS] {
        // SAFETY: the caller's promises.
        unsafe {
            let [b, c, d, e, f, g] = [1, 2, 3, 4, 5, 6].map(|first| address.add(first));
            [
                Self::load(address),
                Self::load(b),
                Self::load(c),
                Self::load(d),
                Self::load(e),
                Self::load(f),
                Self::load(g),
            ]
        }
    }
    /// Writes adjacent numbers.
    ///
    /// # Safety
    /// The numbers must be writable.
    unsafe fn store(self, address: *mut f32);
    /// Writes adjacent numbers, past the caches if a vector fills a line: before others read them, `copying::finish` must be called.
    ///
    /// # Safety
    /// As [`Vector::store`], and the address must be a multiple of the vector's size.
    #[inline(always)]
    unsafe fn store_past(self, address: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { self.store(address) }
    }
    /// Writes the first `count` numbers, at most as many as there are.
    ///
    /// # Safety
    /// The numbers must be writable; see [`Vector::load`].
    unsafe fn store_first(self, address: *mut f32, count: usize);
    /// Returns a vector with one number in all lanes.
    ///
    /// # Safety
    /// See [`Vector::load`].
    unsafe fn splat(value: f32) -> Self;
    /// self + a b.
    ///
    /// # Safety
    /// See [`Vector::load`].
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    /// sums\[n] + factor seen\[n], for each n.
    ///
    /// # Safety
    /// The factor must be readable; see [`Vector::load`].
    #[inline(always)]
    unsafe fn add_multiples<const N: usize>(sums: [Self; N], factor: *const f32, seen: [Self; N]) -> [Self; N] {
        // SAFETY: the caller's promises.
        unsafe {
            let factor = Self::splat(*factor);
            std::array::from_fn(|n| sums[n].add_product(factor, seen[n]))
        }
    }
    /// Transposes eight lines of eight numbers, `stride` apart from line to line, into eight rows, `target_stride` apart.
    ///
    /// # Safety
    /// The lines must be readable and the rows writable; see [`Vector::load`].
    #[inline(always)]
    unsafe fn transpose(source: *const f32, stride: isize, target: *mut f32, target_stride: usize) {
        for line in 0..8 {
            for i in 0..8 {
                // SAFETY: the caller's promises.
                unsafe { *target.add(i * target_stride + line) = *source.offset(line as isize * stride).add(i) };
            }
        }
    }
    /// Returns this vector's and another one's numbers in turn: the first half of each, then the second.
    ///
    /// # Safety
    /// See [`Vector::load`].
    unsafe fn interleaved(self, other: Self) -> [Self; 2];
    /// Returns low in lanes where it is smaller, high where it is larger, otherwise self; NaN stays NaN.
    ///
    /// # Safety
    /// See [`Vector::load`].
    unsafe fn limited(self, low: Self, high: Self) -> Self;
    /// Returns x in lanes where it is larger or NaN, otherwise self.
    ///
    /// # Safety
    /// See [`Vector::load`].
    unsafe fn larger(self, x: Self) -> Self;
}

/// A vector of [`LANES`] numbers, which can be added up.
pub(super) trait SummedVector: Vector {
    /// Returns the columns of eight lines of eight numbers, `stride` apart from line to line.
    ///
    /// # Safety
    /// The lines must be readable; see [`Vector::load`].
    unsafe fn columns(source: *const f32, stride: isize) -> [Self; LANES];
    /// Returns the sum over the lanes of each of four vectors, in an order that does not depend on values.
    ///
    /// # Safety
    /// See [`Vector::load`].
    unsafe fn sums(four: [Self; 4]) -> [f32; 4];
}

/// Defines a function that runs `$body::<V>` with the best [`SummedVector`] that this CPU has.
macro_rules! dispatch {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident, $body:ident($argument:ident: $type:ty)) => {
        $(#[$attribute])*
        $visibility unsafe fn $name($argument: $type) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                unsafe fn with_avx2($argument: $type) {
                    // SAFETY: the caller's promises, and the CPU has the instructions.
                    unsafe { $body::<$crate::host::kernels::simd::Avx2>($argument) }
                }
                if $crate::host::kernels::simd::has_avx2() {
                    // SAFETY: as above.
                    return unsafe { with_avx2($argument) };
                }
                if $crate::host::kernels::simd::is_unfused() {
                    // SAFETY: the caller's promises.
                    return unsafe { $body::<$crate::host::kernels::simd::Plain<false>>($argument) };
                }
            }
            #[cfg(target_arch = "aarch64")]
            if $crate::host::kernels::simd::has_neon() {
                // SAFETY: the caller's promises, and every aarch64 processor has NEON.
                return unsafe { $body::<$crate::host::kernels::simd::Neon>($argument) };
            }
            // SAFETY: the caller's promises.
            unsafe { $body::<$crate::host::kernels::simd::Plain<true>>($argument) }
        }
    };
}
pub(super) use dispatch;

/// Defines a function that runs `$body::<V>` with the widest [`Vector`] that this CPU has. No result may depend on the width.
macro_rules! dispatch_wide {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident, $body:ident($argument:ident: $type:ty)) => {
        $(#[$attribute])*
        $visibility unsafe fn $name($argument: $type) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx2,fma")]
                unsafe fn with_avx512($argument: $type) {
                    // SAFETY: the caller's promises, and the CPU has the instructions.
                    unsafe { $body::<$crate::host::kernels::simd::Avx512>($argument) }
                }
                if $crate::host::kernels::simd::has_avx512() {
                    // SAFETY: as above.
                    return unsafe { with_avx512($argument) };
                }
            }
            $crate::host::kernels::simd::dispatch! {
                fn narrow, $body($argument: $type)
            }
            // SAFETY: the caller's promises.
            unsafe { narrow($argument) }
        }
    };
}
pub(super) use dispatch_wide;

#[cfg(test)]
mod tests;
