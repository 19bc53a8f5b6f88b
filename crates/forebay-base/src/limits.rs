//! What a device can do, as numbers that planning may use.

/// The limits of one device. Plain data: planning reads it, devices fill it in.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Name of the device, for people.
    pub name: String,
    /// Whether heaps can be mapped tile by tile into reservations.
    pub tiled: bool,
    /// Whether device memory is the host's own, so that the host reads and writes it in place. Copies between the two are
    /// then a waste.
    pub unified: bool,
    /// Whether device memory is memory of this process: what it takes there counts against a limit on the process.
    pub in_process: bool,
    /// Unit of mapping in bytes; also the unit in which placed heaps are rounded.
    pub tile_size_bytes: u64,
    /// Largest heap in bytes when heaps back a reservation.
    pub heap_size_max_bytes: u64,
    /// Physical memory that the device has, in bytes.
    pub memory_bytes: u64,
    /// Alignment in bytes that every tensor's base offset has.
    pub offset_alignment_bytes: u64,
    /// Largest number of elements of one tensor (2^32 - 1 on Direct3D-like devices).
    pub tensor_elements_max: u64,
    /// Whether copies run next to kernels on streams of their own.
    pub copy_streams: bool,
    /// Whether copies run on the workers, so that kernels have fewer of them meanwhile. Elsewhere they have engines of their own.
    pub copies_use_workers: bool,
    /// Bytes per second, each way, of a simulated link between host and device; none where no link is simulated.
    pub link_bytes_per_second: Option<u64>,
    /// Whether products and convolutions of float32 apply any function to their results
    /// ([`Activation::Function`](crate::kernel::Activation::Function)), so that it takes no launch of its own.
    pub applies_functions: bool,
    /// Number of execution workers (threads, compute units), for cost estimates only: no result depends on it.
    pub workers: u32,
}
