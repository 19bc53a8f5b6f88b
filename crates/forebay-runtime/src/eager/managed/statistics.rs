//! What managed memory moved and waited for.

use std::time::Duration;

/// Numbers of one managed memory, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagedStatistics {
    /// Units that work found missing on the device.
    pub faults: u64,
    /// Units that left the device so that others could come.
    pub evictions: u64,
    /// Bytes copied to the device.
    pub fetched_bytes: u64,
    /// Bytes copied from the device.
    pub copied_back_bytes: u64,
    /// Bytes that came to the device without a copy, because they held nothing.
    pub mapped_bytes: u64,
    /// Bytes that left the device without a copy, because the host had them or nobody needed them.
    pub dropped_bytes: u64,
    /// Prefetches of units that were carried out.
    pub prefetches: u64,
    /// Bytes written to the spill file.
    pub spilled_bytes: u64,
    /// Bytes read from the spill file.
    pub unspilled_bytes: u64,
    /// How often the host waited for the device.
    pub stalls: u64,
    /// How long it did so.
    pub stall: Duration,
    /// Bytes of units that are on the device now.
    pub resident_bytes: u64,
    /// Device memory that is held now, in bytes.
    pub device_bytes: u64,
    /// Host memory that is held now, in bytes.
    pub host_bytes: u64,
    /// Bytes of the spill file that hold data now.
    pub file_bytes: u64,
}
