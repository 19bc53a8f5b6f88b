//! The host's processor for other devices: it runs the launches whose operands are in host blocks, wherever the other launches run.

use forebay_base::{Kernel, Launch, TensorDesc};

use super::memory::{Address, system};
use super::pool::ThreadPool;
use super::work::{run, workspace_desc};
use super::{isa, kernels, threads_of};
use crate::device::{DeviceError, IndexFault};

/// Threads that run the kernels of the host device, with bit-identical results.
///
/// ```
/// use forebay_base::kernel::UnaryOp;
/// use forebay_base::{Binding, DataType, Kernel, Launch, MemoryId, Region, TensorDesc};
/// use forebay_device::host::processor::{LaunchAddresses, Processor};
///
/// let processor = Processor::new()?;
/// let desc = TensorDesc::packed(DataType::Float64, &[2]).unwrap();
/// let bind = |number| vec![Binding { region: Region::new(MemoryId(number), 0, 16), desc: desc.clone() }];
/// let launch = Launch { kernel: Kernel::Unary(UnaryOp::Sqrt), reads: bind(0), writes: bind(1), workspace: None, label: 0 };
/// #[repr(align(16))]
/// struct Aligned([f64; 2]);
/// let (mut x, mut y) = (Aligned([4.0, 9.0]), Aligned([0.0; 2]));
/// let at = |values: &mut Aligned| vec![values.0.as_mut_ptr().cast()];
/// let addresses = LaunchAddresses { reads: at(&mut x), writes: at(&mut y), workspace: None };
/// // SAFETY: the addresses are those of live arrays of 16 bytes, which no one else uses.
/// let fault = unsafe { processor.run(&launch, &addresses)? };
/// assert_eq!((y.0, fault), ([2.0, 3.0], None));
/// # Ok::<(), forebay_device::DeviceError>(())
/// ```
pub struct Processor {
    pool: ThreadPool,
}

/// The addresses of the operands of a launch.
pub struct LaunchAddresses {
    /// The address of the first byte of each read.
    pub reads: Vec<*mut u8>,
    /// The address of the first byte of each write.
    pub writes: Vec<*mut u8>,
    /// The address of the first byte of the workspace, if the launch has one.
    pub workspace: Option<*mut u8>,
}

// SAFETY: addresses; the caller of `Processor::run` promises who may access the bytes and when.
unsafe impl Send for LaunchAddresses {}
// SAFETY: as for `Send`.
unsafe impl Sync for LaunchAddresses {}

impl Processor {
    /// Creates as many threads as the machine runs at once.
    ///
    /// # Errors
    /// Returns an error if the system refuses them, or if `FOREBAY_ISA` names no vector instructions of this processor.
    pub fn new() -> Result<Processor, DeviceError> {
        isa::check()?;
        let pool = ThreadPool::new(threads_of(None), "host launches", || ());
        Ok(Processor { pool: pool.map_err(|error| system("threads for launches on the host", error))? })
    }

    /// Returns the number of bytes of host memory that [`Processor::new`] and launches take for packing buffers of kernels.
    pub fn memory_bytes() -> u64 {
        kernels::PACKING_BYTES_PER_THREAD * threads_of(None) as u64
    }

    /// Returns the number of temporary bytes that a launch of `kernel` with these operands needs.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if the host cannot run the kernel with these operands either.
    pub fn workspace_bytes(kernel: &Kernel, reads: &[TensorDesc], writes: &[TensorDesc]) -> Result<u64, DeviceError> {
        kernels::workspace_bytes(kernel, reads, writes)
    }

    /// Runs a launch to its end. Returns the first index out of range, if the launch found any.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if the kernel cannot run with these operands; [`DeviceError::Lost`] if it panicked.
    ///
    /// # Safety
    /// Each address must be that of live memory of at least the size of its binding's descriptor, or of the launch's workspace, aligned to
    /// 16 bytes. Nothing else may write the bytes read or touch the bytes written while this runs.
    pub unsafe fn run(&self, launch: &Launch, addresses: &LaunchAddresses) -> Result<Option<IndexFault>, DeviceError> {
        let LaunchAddresses { reads, writes, workspace } = addresses;
        let of = |addresses: &[*mut u8]| addresses.iter().map(|&address| Address(address)).collect::<Vec<_>>();
        let (reads, writes) = (of(reads), of(writes));
        let desc = launch.workspace.as_ref().map(workspace_desc).transpose()?.flatten();
        let workspace = desc.zip(workspace.map(Address));
        // SAFETY: the caller's promises.
        self.pool.install(|| unsafe { run(launch, &reads, &writes, workspace.as_ref()) })
    }
}
