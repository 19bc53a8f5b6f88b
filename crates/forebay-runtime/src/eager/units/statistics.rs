//! Statistics on what managed memory moved and waited for.

use std::time::Duration;

/// Statistics of one managed memory, since it was created.
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
    /// The number of units that work found missing on the device and that were brought there for it, with or without a copy.
    pub faults: u64,
    /// The number of units evicted from the device to make room for others.
    pub evictions: u64,
    /// Bytes copied from the host to the device, for work and for prefetches.
    pub fetched_bytes: u64,
    /// Bytes copied from the device to the host, because their units had to leave, or were prefetched or read there.
    pub copied_back_bytes: u64,
    /// Bytes that came to the device without a copy, because they held nothing.
    pub mapped_bytes: u64,
    /// Bytes that left the device without a copy, because the host had them or no one needed them.
    pub dropped_bytes: u64,
    /// The number of unit prefetches that were carried out.
    pub prefetches: u64,
    /// Bytes copied from the host to spill files.
    pub spilled_bytes: u64,
    /// Bytes copied from spill files to the host.
    pub unspilled_bytes: u64,
    /// How often a thread waited for the device: for uses of units that had to leave, or for copies to complete.
    pub stalls: u64,
    /// How long threads waited in total.
    pub stall: Duration,
    /// The bytes of units that are on the device now.
    pub resident_bytes: u64,
    /// Device memory that is held now, in bytes.
    pub device_bytes: u64,
    /// Host memory that is held now, in bytes.
    pub host_bytes: u64,
    /// Bytes of spill files that hold data now.
    pub file_bytes: u64,
}
