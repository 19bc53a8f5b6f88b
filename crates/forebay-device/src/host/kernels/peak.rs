//! The highest speeds that one thread of this processor can reach, with which a kernel's speed is compared.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::simd::{Vector, dispatch_wide};

/// Sums that are added to in turn: more than the results for which a processor waits at once, and few enough for its registers.
const CHAINS: usize = 12;
/// Products that are added to each sum between two readings of the clock.
const STEPS: usize = 1 << 14;
/// The time spent searching for a peak.
const SEARCH_TIME: Duration = Duration::from_millis(200);

/// Returns the float32 operations (a multiplication and an addition are two) that this thread performs per second if every operand is in a
/// register and vectors are the widest that kernels use.
///
/// ```
/// assert!(forebay_device::host::peak::operations_per_second() > 1e6);
/// ```
pub fn operations_per_second() -> f64 {
    let mut tally = Tally { factor: black_box(1.0), summand: black_box(0.5), width: 0, sum: 0.0 };
    let seconds = least(|| {
        // SAFETY: no address is read or written beyond the tally.
        unsafe { multiply(&mut tally) };
    });
    black_box(tally.sum);
    (2 * CHAINS * STEPS * tally.width) as f64 / seconds
}

/// Returns the bytes that this thread moves per second when it copies `size_bytes` bytes, of which half are read and half are written. If
/// they fit into a cache, they are copied within it.
///
/// ```
/// assert!(forebay_device::host::peak::copied_bytes_per_second(1 << 16) > 1e6);
/// ```
pub fn copied_bytes_per_second(size_bytes: usize) -> f64 {
    let half = (size_bytes / 2).max(1);
    let (source, mut target) = (vec![1u8; half], vec![0u8; half]);
    // Repeated so often that reading the clock does not matter.
    let times = ((1 << 20) / half).max(1);
    let seconds = least(|| {
        for _ in 0..times {
            target.copy_from_slice(black_box(&source));
            black_box(&mut target);
        }
    });
    (2 * half * times) as f64 / seconds
}

/// The least time that work takes.
fn least(mut work: impl FnMut()) -> f64 {
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed() < SEARCH_TIME {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// The operands that are multiplied and added, the width of the vectors, and the result.
struct Tally {
    factor: f32,
    summand: f32,
    width: usize,
    sum: f32,
}

dispatch_wide! {
    /// # Safety
    /// Safe for all arguments: the dispatch checks what the CPU supports.
    fn multiply, multiply_with(tally: &mut Tally)
}

/// # Safety
/// The CPU must have the vector's instructions.
#[inline(always)]
unsafe fn multiply_with<V: Vector>(tally: &mut Tally) {
    let mut all = [0.0; super::simd::WIDTH_MAX];
    // SAFETY: the caller's promise; a vector fits the array.
    unsafe {
        let (factor, summand) = (V::splat(tally.factor), V::splat(tally.summand));
        let mut sums = [summand; CHAINS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = sum.add_product(factor, summand);
            }
        }
        for sum in sums {
            sum.store(all.as_mut_ptr());
            tally.sum += all[0];
        }
    }
    tally.width = V::WIDTH;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_multiply_and_add_in_every_lane() {
        let mut tally = Tally { factor: 2.0, summand: 0.5, width: 0, sum: 0.0 };
        // SAFETY: see the function.
        unsafe { multiply(&mut tally) };
        assert!(tally.width >= super::super::simd::LANES);
        assert_eq!(tally.sum, CHAINS as f32 * (0.5 + STEPS as f32));
    }

    #[test]
    fn peaks_are_numbers() {
        assert!(operations_per_second().is_finite());
        for size_bytes in [0, 1, 100_000] {
            assert!(copied_bytes_per_second(size_bytes).is_finite());
        }
    }
}
