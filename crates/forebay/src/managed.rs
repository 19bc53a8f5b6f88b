//! Managed memory: buffers larger than the device's memory.
//!
//! ```
//! use forebay::managed::{ManagedMemory, ManagedOptions, Policy};
//! use forebay::{Context, ContextOptions, DataType, DeviceOptions};
//!
//! # fn main() -> Result<(), forebay::Error> {
//! let context = Context::new(forebay::open_device(&DeviceOptions::default())?, &ContextOptions::default())?;
//! let memory = ManagedMemory::new(&context, &ManagedOptions::new(1 << 20, Policy::Driver))?; // 1 MiB of the device
//! let tensors = (0..4).map(|_| memory.tensor(DataType::Float32, &[1 << 17])).collect::<Result<Vec<_>, _>>()?; // 2 MiB
//! assert_eq!(tensors.len(), 4);
//! # Ok(())
//! # }
//! ```

pub use forebay_runtime::eager::managed::{
    Advice, Location, ManagedBuffer, ManagedMemory, ManagedOptions, ManagedStatistics, Policy,
};
