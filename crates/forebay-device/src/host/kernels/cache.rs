//! Hints about caches: prefetching, and stores that bypass the caches.
//!
//! An ordinary store reads its cache line from memory first, and evicts another one. For results that would not stay in the caches until
//! something reads them, that is a third of all traffic, and more if a kernel writes many channels at once: then a convolution of 16 to 96
//! channels takes 1.6 times as long.

use crate::host::isa::{self, InstructionSet};

/// The number of bytes from which a result is stored past the caches. On a CPU with 32 MiB of last-level cache, a chain of elementwise
/// operations on 16 MiB takes 1.16 times as long then, on 24 MiB 0.95, on 32 MiB 0.89 and on 48 MiB 0.70.
const BYPASSING_BYTES_MIN: u64 = 24 << 20;

/// The bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Prefetches the cache line of an address, which need not exist: data that is read once, in short pieces, would otherwise arrive late.
#[inline(always)]
pub(super) fn prefetch(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, which takes any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Like [`prefetch`], but only into the second-level cache. A core can have more lines on their way there than to the first level, so a long
/// stream of data that is read once arrives faster.
#[inline(always)]
pub(super) fn prefetch_stream(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
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

/// Copies bytes, past the caches as far as they fill whole lines of the target. Before another thread reads them, [`finish_stores`] must be
/// called.
///
/// # Safety
/// The source must be readable, the target writable, and they must not overlap.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy_past(source: *const u8, target: *mut u8, count: usize) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
    let before = target.align_offset(LINE_BYTES).min(count);
    let end = before + (count - before) / LINE_BYTES * LINE_BYTES;
    // SAFETY: the caller's promises; the three parts make up the range, and lines begin at multiples of 64. Every x86-64 CPU has SSE2.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target, before);
        for at in (before..end).step_by(16) {
            _mm_stream_si128(target.add(at).cast(), _mm_loadu_si128(source.add(at).cast()));
        }
        std::ptr::copy_nonoverlapping(source.add(end), target.add(end), count - end);
    }
}

/// Copies bytes.
///
/// # Safety
/// The source must be readable, the target writable, and they must not overlap.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy_past(source: *const u8, target: *mut u8, count: usize) {
    // SAFETY: the caller's promises.
    unsafe { std::ptr::copy_nonoverlapping(source, target, count) };
}

/// Completes the calling thread's stores past the caches, so that other threads see them when they are told about them.
#[inline(always)]
pub(super) fn finish_stores() {
    // SAFETY: every x86-64 CPU has SSE.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_at_any_alignment_and_none_beyond() {
        let source: Vec<u8> = (0..400).map(|i| (i % 251) as u8 + 1).collect();
        for first in 0..70 {
            for count in [0, 1, 15, 16, 63, 64, 65, 127, 128, 200, 300] {
                let mut target = vec![0u8; 400];
                // SAFETY: both ranges lie in their vectors.
                unsafe { copy_past(source.as_ptr(), target.as_mut_ptr().add(first), count) };
                finish_stores();
                assert_eq!(target[first..first + count], source[..count], "{first} {count}");
                assert!(target[..first].iter().chain(&target[first + count..]).all(|&byte| byte == 0));
            }
        }
    }
}
