//! What managed memory moved and waited for.

use std::time::Duration;

/// Numbers of one managed memory, since it was made.
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_memory::eviction::Policy;
/// use forebay_runtime::eager::{Context, ContextOptions, ManagedMemory, ManagedOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default())?;
/// let memory = ManagedMemory::new(&context, &ManagedOptions::new(1 << 20, Policy::Driver))?;
/// let buffer = memory.buffer(4 << 20)?;
/// buffer.fill([0; 4])?;
/// memory.synchronize()?;
/// println!("{} evictions", memory.statistics().evictions);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagedStatistics {
    /// Units that work found missing on the device and that were brought for it, with or without a copy.
    pub faults: u64,
    /// Units that left the device so that others could come.
    pub evictions: u64,
    /// Bytes copied from the host to the device, for work and for prefetches.
    pub fetched_bytes: u64,
    /// Bytes copied from the device to the host, because their units had to go, or were prefetched or read there.
    pub copied_back_bytes: u64,
    /// Bytes that came to the device without a copy, because they held nothing.
    pub mapped_bytes: u64,
    /// Bytes that left the device without a copy, because the host had them or no one needed them.
    pub dropped_bytes: u64,
    /// Prefetches of units that were carried out.
    pub prefetches: u64,
    /// Bytes copied from the host to spill files.
    pub spilled_bytes: u64,
    /// Bytes copied from spill files to the host.
    pub unspilled_bytes: u64,
    /// How often a thread waited for the device: for uses of units that had to go, or for copies to be complete.
    pub stalls: u64,
    /// How long it did so.
    pub stall: Duration,
    /// Bytes of units that are on the device now.
    pub resident_bytes: u64,
    /// Device memory that is held now, in bytes.
    pub device_bytes: u64,
    /// Host memory that is held now, in bytes.
    pub host_bytes: u64,
    /// Bytes of spill files that hold data now.
    pub file_bytes: u64,
}
