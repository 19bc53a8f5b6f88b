//! The message that a program prints when memory runs out and no error can be returned.
//!
//! Allocations whose size depends on a file or a flag return an error if they fail. The failure of any other (a small list under a small
//! limit) ends in the standard library's abort. A program that uses [`Allocator`] and calls [`install`] ends with a message and exit code 1
//! instead.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// The number of bytes of the thread's latest request if the system refused it, otherwise 0: an abort after a request that succeeded
    /// has another cause. It needs no initialization and no destructor, so allocators and signal handlers may use it.
    static REFUSED_BYTES: Cell<usize> = const { Cell::new(0) };
}

const BEFORE: &[u8] = b"error: out of memory: the system refused ";
const AFTER: &[u8] = b" bytes (lower --device-memory or --host-memory, use a smaller batch, or raise the limit)\n";

/// The system's allocator, which also remembers refused requests.
pub struct Allocator;

/// Remembers whether a request was refused.
fn watched(address: *mut u8, bytes: usize) -> *mut u8 {
    REFUSED_BYTES.set(if address.is_null() { bytes } else { 0 });
    address
}

// SAFETY: every method calls the system allocator's and passes its result on unchanged.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same as for the system's allocator.
        watched(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        watched(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as above.
        watched(unsafe { System.realloc(address, layout, new_size) }, new_size)
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(address, layout) }
    }
}

/// Makes an abort right after a refused allocation end the process with a message and exit code 1. Other aborts are unaffected. The
/// program's allocator has to be [`Allocator`].
pub fn install() {
    // SAFETY: the handler only calls functions that signal handlers may call.
    unsafe { libc::signal(libc::SIGABRT, aborted as extern "C" fn(libc::c_int) as libc::sighandler_t) };
}

/// Handles the signal of an abort. It allocates nothing and calls only async-signal-safe functions.
extern "C" fn aborted(_: libc::c_int) {
    // The thread that aborts gets the signal.
    let bytes = REFUSED_BYTES.get();
    if bytes == 0 {
        // The signal has another cause: it is raised again, without a handler, when this one returns. SAFETY: both calls are
        // async-signal-safe.
        unsafe {
            libc::signal(libc::SIGABRT, libc::SIG_DFL);
            libc::raise(libc::SIGABRT);
        }
        return;
    }
    let mut digits = [0; 20];
    for part in [BEFORE, decimal(bytes as u64, &mut digits), AFTER] {
        // SAFETY: the bytes outlive the call. A failure to write them no longer matters.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: the process ends here, and none of its code runs again.
    unsafe { libc::_exit(1) }
}

/// Formats a number in decimal digits.
fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[first..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_without_memory() {
        for number in [0, 7, 10, 4096, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }

    #[test]
    fn memory_is_the_systems_and_refusals_are_remembered() {
        let layout = Layout::from_size_align(64, 16).unwrap();
        // SAFETY: the layouts have a size, and every address is used and freed as it was allocated.
        unsafe {
            let address = Allocator.alloc_zeroed(layout);
            assert_eq!(address.read(), 0);
            address.write(5);
            let larger = Allocator.realloc(address, layout, 128);
            assert_eq!(larger.read(), 5);
            Allocator.dealloc(larger, Layout::from_size_align(128, 16).unwrap());
            let huge = Layout::from_size_align(isize::MAX as usize - 4096, 1).unwrap();
            // The compiler may omit an allocation if only its address is looked at.
            assert!(std::hint::black_box(Allocator.alloc(std::hint::black_box(huge))).is_null());
        }
        assert_eq!(REFUSED_BYTES.get(), isize::MAX as usize - 4096);
        // Someone handled the refusal and went on.
        // SAFETY: as above.
        unsafe { Allocator.dealloc(std::hint::black_box(Allocator.alloc(layout)), layout) };
        assert_eq!(REFUSED_BYTES.get(), 0);
    }
}
