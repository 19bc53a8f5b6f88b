//! Vulkan as a device of Forebay: GPUs of every vendor, loaded at run time.
//!
//! | module | subject |
//! |---|---|
//! | [`kernels`] | which shader runs a kernel, with which operands and parameters: plain data, a crate of its own |
//! | [`adapter`] | the Vulkan devices of a machine, and why some cannot be used |
//! | `system` | the loader, an instance, and the validation layer's messages |
//! | `gpu` | one logical device: queues, memory types, what it offers |
//! | `buffer` | the driver's buffers and memory, and where the host sees it |
//! | `memory` | heaps, sparse buffers, placed buffers, host blocks: where a region's bytes are |
//! | `pipeline` | pipelines of shaders, kept on disk between runs |
//! | `frame` | what a list of commands needs while it runs, used again afterwards |
//! | `record` | commands into command buffers |
//! | `stream` | streams as batches with timeline semaphores: who may be submitted when |
//! | `state` | everything of a device that changes |
//! | [`backend`] | its devices for the registry |
//! | `batches` | a list of commands into batches |
//! | `disk` | copies from and to spill files |
//! | `host_launch` | launches on the host |
//! | `workers` | the threads of the host that do both |
//! | [`device`] | the device itself |
//!
//! # How commands become submissions
//!
//! A stream is a timeline semaphore and a sequence of batches, each one command buffer. A record ends a batch, a wait begins
//! one: it waits for the value of the recording stream's semaphore. A barrier of the plan is one `vkCmdPipelineBarrier2`, and
//! there are no others but one kind: where a batch wrote host blocks, or the device's memory is the host's, its end makes these bytes
//! visible to the host, which the specification asks for. Batches are submitted in an order in which each one's waits have been submitted before, so that
//! devices with one queue never stand still.
//!
//! What a stream has the host do, copies of spill files and launches with operands in host blocks, stands between its batches: a
//! thread of the host waits for the semaphores, does it, and signals the stream's semaphore. What waits for it is submitted only
//! then, so that no queue ever stands still for the host.
//!
//! # Tensors larger than a binding
//!
//! A binding of a shader holds at most `maxStorageBufferRange` bytes: 128 MiB on some devices, 4 GiB on most GPUs. Where an
//! operand has more, a kernel whose rows, images or elements stand for themselves runs as several dispatches, each on a part.
//! What is summed or looked up across the whole runs as one dispatch that reaches its operands by their addresses. Either way
//! the arithmetic and its order are the same, and so are the bits. The validation layer sees bindings, and what goes by
//! addresses it does not: the barriers around such a launch are those that it judges where tensors are smaller.
//! [`VulkanOptions::binding_bytes_max`] makes bindings small, so that tests need no large tensors.
//!
//! Operands begin at multiples of 16 bytes. Devices whose bindings begin at multiples of more (`minStorageBufferOffsetAlignment`)
//! reach by its address what begins elsewhere.
//!
//! # Queues
//!
//! Streams begin on a queue that only copies, where the hardware has one, and move to one that computes with their first
//! launch.

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
