//! Independent attempts, made in parallel.
//!
//! What is tried together is fixed beforehand and never depends on the number of threads, so neither do the results.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Returns the result of `work` for each item, in order. The calling thread takes part; no threads outlive the call.
///
/// # Panics
/// If `work` panics.
pub fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    if threads <= 1 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    let claim = || {
        let index = next.fetch_add(1, Ordering::Relaxed);
        Some((index, items.get(index)?))
    };
    let take = || {
        while let Some((index, item)) = claim() {
            let result = work(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // If the system provides no thread, the others do its work.
            let _ = thread::Builder::new().spawn_scoped(scope, take);
        }
        take();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::map;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        for count in [0, 1, 2, 7, 100] {
            let items: Vec<u64> = (0..count).collect();
            assert_eq!(map(&items, |item| item * item), items.iter().map(|item| item * item).collect::<Vec<_>>());
        }
    }

    #[test]
    #[should_panic]
    fn a_panic_comes_through() {
        map(&[1, 2, 3, 4], |item| assert!(item % 4 > 0, "{item}"));
    }
}
