//! Copies between spaces that bypass the caches if the processor has the vector instructions for it.
//!
//! Data that moves between spaces is large and seldom used again soon. Ordinary stores first read each line of the target and evict the
//! data of kernels from the caches that they share with the copy. Streaming stores do neither.

#[cfg(target_arch = "x86_64")]
use super::isa::{self, InstructionSet};

/// The minimum size of a streamed copy, in bytes. Smaller copies may as well stay in the caches.
const STREAMED_MIN_BYTES: usize = 256 << 10;

/// Copies bytes.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if bytes >= STREAMED_MIN_BYTES && isa::has(InstructionSet::Avx2) {
        // SAFETY: the caller vouches for the bytes, and the processor has AVX2 and so AVX.
        return unsafe { stream(from, to, bytes) };
    }
    // SAFETY: the caller vouches for the bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

/// Copies bytes with streaming stores, except those before the first and after the last whole line of the target.
///
/// # Safety
/// As for [`copy`]; the processor must have AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m256i, _MM_HINT_NTA, _mm_prefetch, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    /// The size of a cache line, in bytes. Each iteration of the loop copies one, so that whole lines are written at once.
    const LINE_BYTES: usize = 64;
    /// How far ahead lines are prefetched, in bytes.
    const AHEAD_BYTES: usize = 1024;
    let head = to.align_offset(LINE_BYTES).min(bytes);
    let lines = (bytes - head) / LINE_BYTES;
    let tail = head + lines * LINE_BYTES;
    // SAFETY: all parts lie inside the ranges that the caller vouches for; a prefetch may name any address.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for offset in (head..tail).step_by(LINE_BYTES) {
            let (source, target) = (from.add(offset).cast::<__m256i>(), to.add(offset).cast::<__m256i>());
            _mm_prefetch::<_MM_HINT_NTA>(source.cast::<i8>().wrapping_add(AHEAD_BYTES));
            let (low, high) = (_mm256_loadu_si256(source), _mm256_loadu_si256(source.add(1)));
            _mm256_stream_si256(target, low);
            _mm256_stream_si256(target.add(1), high);
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
    }
    // Streaming stores are weakly ordered: a thread that learns that the copy is done must see them.
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_none_beside_them() {
        for (start, target, bytes) in
            [(0, 0, 0), (3, 1, 777), (0, 0, STREAMED_MIN_BYTES), (5, 60, STREAMED_MIN_BYTES + 1), (64, 7, 300_001)]
        {
            let source: Vec<u8> = (0..bytes + start).map(|byte| (byte * 31 % 251) as u8).collect();
            let mut copied = vec![255; target + bytes + 100];
            // SAFETY: both vectors are long enough.
            unsafe { copy(source.as_ptr().add(start), copied.as_mut_ptr().add(target), bytes) };
            assert!(copied[target..target + bytes] == source[start..], "{bytes} bytes from {start} to {target}");
            assert!(copied[..target].iter().chain(&copied[target + bytes..]).all(|&byte| byte == 255), "{bytes}");
        }
    }
}
