//! Devices: one trait and several implementations.
//!
//! | module | device |
//! |---|---|
//! | [`null`] | records commands and runs nothing; has a tiled, a placed and a Direct3D-12-like profile |
//! | [`host`] | the CPU: heaps are memfd files, reservations are address space, streams share threads, kernels are SIMD Rust |
//! | [`chaos`] | any device, with random delays and the most permissive legal reordering, to expose missing barriers |
//!
//! [`backend`] is the interface of a kind of device to the registry of devices. [`signals`] is for programs: it turns signals that end a
//! process into errors. [`last_resort`] is for programs: it prints a message when memory runs out and no error can be returned. [`process`]
//! returns memory that a process no longer needs to the system.
//!
//! Callers validate bindings, ordering and budgets; devices report only what callers cannot foresee.
//!
//! # The host device alone
//!
//! This example copies a tensor to the device and back. It creates memory for the tensor and submits two copies, with a barrier between
//! them because the second reads what the first wrote.
//!
//! ```
//! use forebay_base::{Command, Region};
//! use forebay_device::host::{HostDevice, HostOptions};
//! use forebay_device::Device;
//!
//! let device = HostDevice::new(&HostOptions { threads: Some(2), ..HostOptions::default() })?;
//! let tile = device.limits().tile_size_bytes;
//!
//! // Physical memory and addresses are separate: the tiles of a heap are mapped to any addresses of a reservation.
//! let heap = device.create_heap(2 * tile)?;
//! let reservation = device.create_reservation(16 * tile)?;
//! let tensor = Region::new(reservation, 3 * tile, 2 * tile);
//! device.submit(&[Command::Map { region: tensor, heap, heap_offset_bytes: 0 }])?;
//!
//! let block = device.create_host_block(4 * tile)?;
//! let (input, output) = (Region::new(block, 0, 2 * tile), Region::new(block, 2 * tile, 2 * tile));
//! let bytes: Vec<u8> = (0..2 * tile).map(|i| i as u8).collect();
//! device.write_host(input, &bytes);
//!
//! let (stream, event) = (device.create_stream("copies", 0)?, device.create_event()?);
//! device.submit(&[
//!     Command::Copy { stream, from: input, to: tensor },
//!     Command::Barrier { stream },
//!     Command::Copy { stream, from: tensor, to: output },
//!     Command::Record { stream, event, generation: 1 },
//! ])?;
//! device.wait_event(event, 1)?;
//!
//! let mut returned = vec![0; bytes.len()];
//! device.read_host(output, &mut returned);
//! assert_eq!(returned, bytes);
//! assert_eq!(device.usage().heap_bytes, 2 * tile);
//! # Ok::<(), forebay_device::DeviceError>(())
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod backend;
pub mod chaos;
pub mod communicator;
pub mod device;
mod forward;
pub mod host;
pub mod last_resort;
pub mod loan;
pub mod mapping;
pub mod null;
pub mod process;
pub mod readable;
pub mod signals;
pub mod tile_size;

/// The crate whose items [`forward!`] names.
#[doc(hidden)]
pub use forebay_base as base;

pub use communicator::Communicator;
pub use device::{Device, DeviceError, DeviceUsage, IndexFault, TraceRecord};
pub use loan::Loan;
pub use readable::Readable;
