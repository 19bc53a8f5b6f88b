//! Settings of a context, and what they mean for its memory on a device.

use forebay_base::Limits;

use super::store::{ALIGNMENT_BYTES, StoreOptions};
use crate::error::RuntimeError;

/// The most bytes of host blocks through which arrays are copied between the host and the device.
const STAGING_BYTES_MAX: u64 = 8 << 20;
/// Host blocks are multiples of this, or of a smaller tile, because nothing is mapped in them.
const STAGING_TILE_BYTES: u64 = 64 << 10;

/// Settings of a context.
///
/// ```
/// use forebay_runtime::eager::ContextOptions;
///
/// let options = ContextOptions::default().record(true).device_memory_bytes(1 << 30);
/// assert_eq!((options.record, options.device_memory_bytes), (true, Some(1 << 30)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContextOptions {
    /// The most device bytes that tensors can take, or `None` for as many as the device has.
    pub device_memory_bytes: Option<u64>,
    /// Whether more device memory is taken when tensors need it. If not, all of `device_memory_bytes`, which must then be set, is taken at
    /// the start.
    pub growth: bool,
    /// Device memory is taken in multiples of this if the cap allows it.
    pub segment_bytes: u64,
    /// The unit in which heaps are mapped: a power of two, whole tiles of the device, at most `heap_bytes`; `None` for the device's tile.
    pub tile_bytes: Option<u64>,
    /// The largest heap behind a reservation, or the device's own limit if that is smaller.
    pub heap_bytes: u64,
    /// Whether heaps are mapped tile by tile if the device supports it. If not, every segment is one placed heap.
    pub tiled: bool,
    /// The most bytes of host blocks through which copies from and to the host go; `None` for 8 MiB.
    pub staging_bytes: Option<u64>,
    /// The most events of the device, at least 2. Half of them, at most 32, serve streams; streams beyond that share. The others measure
    /// time.
    pub event_limit: usize,
    /// Whether everything is recorded from the start for [`Context::check`](super::Context::check).
    pub record: bool,
    /// The number of freed blocks that are kept in the history ([`Context::memory_history`](super::Context::memory_history)), which is
    /// recorded from the start; 0 for no history.
    pub memory_history: usize,
    /// Whether memory that is freed while another stream uses it is kept until that use has returned. If not, results are sometimes wrong;
    /// it can be turned off only to demonstrate that.
    pub extend_lifetimes: bool,
}

impl Default for ContextOptions {
    fn default() -> ContextOptions {
        ContextOptions {
            device_memory_bytes: None,
            growth: true,
            segment_bytes: 2 << 20,
            tile_bytes: None,
            heap_bytes: 32 << 20,
            tiled: true,
            staging_bytes: None,
            event_limit: 64,
            record: false,
            memory_history: 0,
            extend_lifetimes: true,
        }
    }
}

impl ContextOptions {
    /// Sets the most device bytes that tensors can take.
    pub fn device_memory_bytes(mut self, device_memory_bytes: u64) -> Self {
        self.device_memory_bytes = Some(device_memory_bytes);
        self
    }

    /// Sets whether more device memory is taken when tensors need it.
    pub fn growth(mut self, growth: bool) -> Self {
        self.growth = growth;
        self
    }

    /// Sets the size in multiples of which device memory is taken.
    pub fn segment_bytes(mut self, segment_bytes: u64) -> Self {
        self.segment_bytes = segment_bytes;
        self
    }

    /// Sets the unit in which heaps are mapped.
    pub fn tile_bytes(mut self, tile_bytes: u64) -> Self {
        self.tile_bytes = Some(tile_bytes);
        self
    }

    /// Sets the largest heap behind a reservation.
    pub fn heap_bytes(mut self, heap_bytes: u64) -> Self {
        self.heap_bytes = heap_bytes;
        self
    }

    /// Sets whether heaps are mapped tile by tile if the device supports it.
    pub fn tiled(mut self, tiled: bool) -> Self {
        self.tiled = tiled;
        self
    }

    /// Sets the most bytes of host blocks through which copies from and to the host go.
    pub fn staging_bytes(mut self, staging_bytes: u64) -> Self {
        self.staging_bytes = Some(staging_bytes);
        self
    }

    /// Sets the most events of the device.
    pub fn event_limit(mut self, event_limit: usize) -> Self {
        self.event_limit = event_limit;
        self
    }

    /// Sets whether everything is recorded from the start for [`Context::check`](super::Context::check).
    pub fn record(mut self, record: bool) -> Self {
        self.record = record;
        self
    }

    /// Sets the number of freed blocks that are kept in the memory history.
    pub fn memory_history(mut self, memory_history: usize) -> Self {
        self.memory_history = memory_history;
        self
    }

    /// Sets whether memory that is freed while another stream uses it is kept until that use has returned.
    pub fn extend_lifetimes(mut self, extend_lifetimes: bool) -> Self {
        self.extend_lifetimes = extend_lifetimes;
        self
    }
}

impl ContextOptions {
    /// How memory is taken on such a device: device memory, and host blocks.
    ///
    /// # Errors
    /// Fails if the tile size is not possible.
    pub(super) fn stores(&self, limits: &Limits) -> Result<[StoreOptions; 2], RuntimeError> {
        let device = StoreOptions {
            cap_bytes: self.device_memory_bytes.unwrap_or(u64::MAX),
            segment_bytes: self.segment_bytes,
            tile_bytes: self.tile_bytes_on(limits)?,
            heap_bytes: self.heap_bytes,
            grows: self.growth,
            tiled: self.tiled,
            tracks_uses: self.extend_lifetimes,
        };
        let staging = StoreOptions {
            cap_bytes: self.staging_bytes.unwrap_or(STAGING_BYTES_MAX),
            tile_bytes: device.tile_bytes.min(STAGING_TILE_BYTES),
            grows: true,
            tracks_uses: true,
            ..device
        };
        Ok([device, staging])
    }

    /// The unit in which heaps are mapped.
    fn tile_bytes_on(&self, limits: &Limits) -> Result<u64, RuntimeError> {
        let device_bytes = limits.tile_size_bytes;
        let heap_bytes = self.heap_bytes.min(limits.heap_size_max_bytes);
        let Some(tile_bytes) = self.tile_bytes else { return Ok(device_bytes.max(ALIGNMENT_BYTES)) };
        let reason = if !tile_bytes.is_power_of_two() {
            "the size must be a power of two".to_string()
        } else if tile_bytes % device_bytes != 0 {
            format!("the device was opened with tiles of {device_bytes} bytes, and the size must be a multiple of that")
        } else if tile_bytes > heap_bytes {
            format!("a heap of {heap_bytes} bytes cannot hold one; choose smaller tiles or larger heaps")
        } else {
            return Ok(tile_bytes.max(ALIGNMENT_BYTES));
        };
        Err(RuntimeError::Tensor { reason: format!("tiles of {tile_bytes} bytes are not supported: {reason}") })
    }
}
