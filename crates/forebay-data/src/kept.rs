//! Samples that stay in memory after they were read, so that small data sets are read only once.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The most bytes of samples that are kept.
const KEPT_BYTES_MAX: u64 = 1 << 30;

/// Samples by their numbers.
pub(crate) struct Kept<T> {
    samples: BTreeMap<u64, Arc<T>>,
    /// The bytes of these samples.
    bytes: u64,
    /// The most bytes that are kept.
    bytes_max: u64,
}

impl<T> Kept<T> {
    /// Keeps nothing yet.
    pub(crate) fn new() -> Kept<T> {
        Kept { samples: BTreeMap::new(), bytes: 0, bytes_max: KEPT_BYTES_MAX }
    }

    /// Returns a sample if it was kept.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        self.samples.get(&number).cloned()
    }

    /// Keeps a sample of this size if there is room, and returns it.
    pub(crate) fn keep(&mut self, number: u64, sample: T, size_bytes: u64) -> Arc<T> {
        let sample = Arc::new(sample);
        // Samples are kept only while memory is plentiful: as much has to be free as the next sample takes.
        let is_room = forebay_limits::check(2 * size_bytes, forebay_limits::Use::Private).is_ok();
        if self.bytes + size_bytes <= self.bytes_max && is_room {
            self.bytes += size_bytes;
            self.samples.insert(number, sample.clone());
        }
        sample
    }

    /// From now on, keeps samples only if all of them, which take `all_bytes`, fit into `bytes`. Keeping some of them would be useless,
    /// because samples are read in turn.
    pub(crate) fn keep_at_most(&mut self, bytes: u64, all_bytes: u64) {
        self.bytes_max = if all_bytes <= bytes { bytes.min(KEPT_BYTES_MAX) } else { 0 };
        if self.bytes > self.bytes_max {
            (self.samples, self.bytes) = (BTreeMap::new(), 0);
        }
    }
}
