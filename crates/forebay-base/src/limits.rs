//! The capabilities of a device, as numbers that planning can use.

/// The limits of one device. Plain data: devices fill it in, and planning reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Name of the device, for display.
    pub name: String,
    /// Whether heaps can be mapped tile by tile into reservations.
    pub tiled: bool,
    /// Whether device memory is the host's own memory, which the host reads and writes in place. Copies between the two are then wasted
    /// work.
    pub unified: bool,
    /// Whether device memory is memory of this process, so that allocations in it count against a limit on the process.
    pub in_process: bool,
    /// Unit of mapping in bytes; the sizes of placed heaps are also rounded to it.
    pub tile_size_bytes: u64,
    /// Largest heap in bytes when heaps back a reservation.
    pub heap_size_max_bytes: u64,
    /// Physical memory of the device, in bytes.
    pub memory_bytes: u64,
    /// Alignment of every tensor's base offset, in bytes.
    pub offset_alignment_bytes: u64,
    /// Largest number of elements of one tensor (2^32 - 1 on Direct3D-like devices).
    pub tensor_elements_max: u64,
    /// Whether copies run alongside kernels on separate streams.
    pub copy_streams: bool,
    /// Whether copies run on the workers, leaving fewer of them to kernels. Otherwise copies have dedicated engines.
    pub copies_use_workers: bool,
    /// Bytes per second in each direction of a simulated link between host and device; `None` if no link is simulated.
    pub link_bytes_per_second: Option<u64>,
    /// Whether products and convolutions of float32 can apply any function to their results
    /// ([`Activation::Function`](crate::kernel::Activation::Function)), so that the function needs no separate launch.
    pub applies_functions: bool,
    /// Number of execution workers (threads, compute units), used only for cost estimates: no result depends on it.
    pub workers: u32,
}
