//! Copies that bypass the caches: between spaces, and of results that would not stay in the caches.
//!
//! Data that moves between spaces is large and seldom used again soon. Ordinary stores first read each line of the target and evict the
//! data of kernels from the caches that they share with the copy. Streaming stores do neither.

/// The minimum size of a streamed copy between spaces, in bytes. Smaller copies may as well stay in the caches.
const STREAMED_MIN_BYTES: usize = 256 << 10;
/// How far ahead lines of other spaces are prefetched, in bytes.
const AHEAD_BYTES: usize = 1024;

/// Copies bytes between spaces.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller vouches for the bytes.
    unsafe {
        if bytes < STREAMED_MIN_BYTES {
            return std::ptr::copy_nonoverlapping(from, to, bytes);
        }
        stream::<AHEAD_BYTES>(from, to, bytes);
    }
    finish();
}

/// Copies bytes with streaming stores if the processor has them, except those before the first and after the last whole line of the target.
/// Lines are prefetched `AHEAD` bytes ahead, unless that is 0. Before another thread reads the bytes, [`finish`] must be called.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn stream<const AHEAD: usize>(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _MM_HINT_NTA, _mm_loadu_si128, _mm_prefetch, _mm_stream_si128};
    /// The size of a cache line, in bytes. Each iteration of the loop copies one, so that whole lines are written at once.
    const LINE_BYTES: usize = 64;
    let head = to.align_offset(LINE_BYTES).min(bytes);
    let tail = head + (bytes - head) / LINE_BYTES * LINE_BYTES;
    // SAFETY: all parts lie inside the ranges that the caller vouches for; a prefetch may name any address. Every x86-64 processor has SSE2.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for offset in (head..tail).step_by(LINE_BYTES) {
            let (source, target) = (from.add(offset).cast::<__m128i>(), to.add(offset).cast::<__m128i>());
            if AHEAD > 0 {
                _mm_prefetch::<_MM_HINT_NTA>(source.cast::<i8>().wrapping_add(AHEAD));
            }
            let [a, b, c, d] = [0, 1, 2, 3].map(|quarter| _mm_loadu_si128(source.add(quarter)));
            _mm_stream_si128(target, a);
            _mm_stream_si128(target.add(1), b);
            _mm_stream_si128(target.add(2), c);
            _mm_stream_si128(target.add(3), d);
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
    }
}

/// The same, with ordinary stores.
///
/// # Safety
/// As for [`copy`].
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn stream<const AHEAD: usize>(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller vouches for the bytes.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}

/// Completes the calling thread's streaming stores. They are weakly ordered: a thread that learns that they are done must see them.
#[inline(always)]
pub(super) fn finish() {
    // SAFETY: every x86-64 processor has SSE.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
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

    #[test]
    fn streams_begin_and_end_anywhere() {
        let source: Vec<u8> = (0..400).map(|byte| (byte % 251) as u8 + 1).collect();
        for start in 0..70 {
            for bytes in [0, 1, 15, 16, 63, 64, 65, 127, 128, 200, 300] {
                let mut copied = vec![0u8; 400];
                // SAFETY: both ranges lie in their vectors.
                unsafe { stream::<0>(source.as_ptr(), copied.as_mut_ptr().add(start), bytes) };
                finish();
                assert_eq!(copied[start..start + bytes], source[..bytes], "{bytes} bytes to {start}");
                assert!(copied[..start].iter().chain(&copied[start + bytes..]).all(|&byte| byte == 0), "{bytes}");
            }
        }
    }
}
