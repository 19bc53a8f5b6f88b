//! Hints about caches: prefetching, and which stores bypass the caches.
//!
//! An ordinary store reads its cache line from memory first, and evicts another one. For results that would not stay in the caches until
//! something reads them, that is a third of all traffic, and more if a kernel writes many channels at once: then a convolution of 16 to 96
//! channels (8 images of 112 x 112) takes 1.4 times as long.

use crate::host::isa::{self, InstructionSet};

/// The number of bytes from which a result is stored past the caches. On a CPU with 32 MiB of last-level cache, a loop that reads one of three
/// arrays and writes the next in turn takes 1.16 times as long then for arrays of 16 MiB, 0.95 for 24 MiB and 0.70 for 48 MiB.
const BYPASSING_BYTES_MIN: u64 = 24 << 20;

/// Elements per cache line.
pub(super) const LINE: usize = 16;

/// Prefetches the cache line of an address, which need not exist: data that is read once, in short pieces, would otherwise arrive late.
#[inline(always)]
pub(super) fn prefetch(address: *const f32) {
    prefetch_into::<1>(address);
}

/// Like [`prefetch`], but only into the second-level cache. A core can have more lines on their way there than to the first level, so a long
/// stream of data that is read once arrives faster.
#[inline(always)]
pub(super) fn prefetch_stream(address: *const f32) {
    prefetch_into::<2>(address);
}

/// Prefetches into the first-level or the second-level cache, if the processor has an instruction for it.
#[inline(always)]
fn prefetch_into<const LEVEL: u32>(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instructions, which take any address.
    unsafe {
        use std::arch::x86_64::*;
        match LEVEL {
            1 => _mm_prefetch::<{ _MM_HINT_T0 }>(address.cast()),
            _ => _mm_prefetch::<{ _MM_HINT_T1 }>(address.cast()),
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every aarch64 processor has the instructions, which take any address and change nothing.
    unsafe {
        use std::arch::asm;
        match LEVEL {
            1 => asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly)),
            _ => asm!("prfm pldl2keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly)),
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Returns whether a result of this size is stored past the caches. In unit tests, about half of all small ones are.
pub(super) fn is_bypassed_by(size_bytes: u64) -> bool {
    let is_large = match cfg!(test) {
        true => size_bytes >= 1 << 10 && (size_bytes / 64).is_multiple_of(2),
        false => size_bytes >= BYPASSING_BYTES_MIN,
    };
    cfg!(target_arch = "x86_64") && is_large
}

/// Whether vectors of kernels fill whole lines, so that results need not wait in a buffer.
pub(super) fn vectors_fill_lines() -> bool {
    isa::has(InstructionSet::Avx512)
}
