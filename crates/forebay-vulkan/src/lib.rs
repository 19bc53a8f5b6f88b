//! Vulkan as a device of Forebay: GPUs of every vendor, loaded at run time.
//!
//! | module | subject |
//! |---|---|
//! | [`kernels`] | which shader runs a kernel, with which operands and parameters: plain data, in a separate crate |
//! | [`adapter`] | the Vulkan devices of a machine, and why some cannot be used |
//! | `system` | the loader, an instance, and the validation layer's messages |
//! | `gpu` | a logical device: queues, memory types, what it supports |
//! | `buffer` | the driver's buffers and memory, and its addresses on the host |
//! | `memory` | heaps, sparse buffers, placed buffers, host blocks: where a region's bytes are |
//! | `pipeline` | the shaders' pipelines, kept on disk between runs |
//! | `frame` | what a list of commands needs while it runs, reused afterwards |
//! | `record` | recording commands into command buffers |
//! | `stream` | streams as batches with timeline semaphores: what can be submitted when |
//! | `state` | all mutable state of a device |
//! | [`backend`] | the Vulkan devices, for the registry |
//! | `batches` | turning a list of commands into batches |
//! | `disk` | copies to and from spill files |
//! | `host_launch` | launches on the host |
//! | `workers` | the threads of the host that do both |
//! | [`device`] | the device itself |
//!
//! # How commands become submissions
//!
//! A stream is a timeline semaphore and a sequence of batches, each of which is one command buffer. A record ends a batch, and a wait
//! begins one, which waits for the value of the recording stream's semaphore. A barrier of the plan is one `vkCmdPipelineBarrier2`.
//! There are two other kinds of barriers. If the dispatches of a launch depend on each other, there is one between each two of them. If a
//! batch wrote to host blocks, or if the device's memory is the host's, a barrier at its end makes these bytes visible to the host, as the
//! specification requires. A batch is submitted only after everything that it waits for has been submitted, so that devices with a single
//! queue never deadlock.
//!
//! Work that a stream has the host do (copies of spill files, and launches with operands in host blocks) takes place between its batches: a
//! thread of the host waits for the semaphores, does the work, and signals the stream's semaphore. What waits for it is submitted only
//! then, so that no queue ever stalls for the host.
//!
//! # Tensors larger than a binding
//!
//! A binding of a shader holds at most `maxStorageBufferRange` bytes: 128 MiB on some devices, 4 GiB on most GPUs. If an operand is larger,
//! a kernel whose rows, images or elements are independent of each other runs as several dispatches, each on a part. What is summed or
//! looked up across the whole runs as one dispatch that accesses its operands through their addresses. Either way, the arithmetic and its
//! order are the same, and so are the bits. The validation layer sees bindings, but not accesses through addresses; the barriers around
//! such a launch are the same as those that it checks with smaller tensors. [`VulkanOptions::binding_bytes_max`] makes bindings small, so
//! that tests need no large tensors.
//!
//! Operands begin at multiples of 16 bytes. Devices whose bindings need a larger alignment (`minStorageBufferOffsetAlignment`) access other
//! operands through their addresses.
//!
//! # Queues
//!
//! Streams begin on a queue that only copies, if the hardware has one, and move to a compute queue with their first launch.

pub mod adapter;
pub mod backend;
mod batches;
mod buffer;
mod cooperative;
pub mod device;
mod disk;
mod frame;
mod gpu;
mod host_launch;
mod memory;
mod pipeline;
mod record;
mod state;
mod stream;
mod system;
mod workers;

pub use adapter::{Adapter, adapters};
pub use backend::VulkanBackend;
pub use device::{VulkanDevice, VulkanOptions};
pub use forebay_gpu_kernels as kernels;
pub use state::Counts;
