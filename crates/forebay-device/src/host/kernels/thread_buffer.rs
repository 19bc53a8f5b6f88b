//! The buffer that every thread keeps: for packed operands, for sums that wait and for lists.

use std::cell::RefCell;

use super::PACKING_BYTES_PER_THREAD;

/// The most elements that one task can request.
pub(super) const ELEMENTS_MAX: usize = (PACKING_BYTES_PER_THREAD / 4) as usize - ALIGNMENT;
/// Elements per cache line.
pub(super) const ALIGNMENT: usize = 16;

thread_local! {
    static BUFFER: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Lends the calling thread's buffer: `count` elements that start at a cache line, with their previous contents. `work` must neither borrow
/// it again nor hand work to the thread pool.
pub(super) fn with_buffer<R>(count: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    assert!(count <= ELEMENTS_MAX, "{count} elements are more than the {ELEMENTS_MAX} that count as host memory");
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < count + ALIGNMENT {
            *buffer = vec![0.0; count + ALIGNMENT];
        }
        let start = buffer.as_ptr().align_offset(ALIGNMENT * 4).min(ALIGNMENT);
        work(&mut buffer[start..start + count])
    })
}
