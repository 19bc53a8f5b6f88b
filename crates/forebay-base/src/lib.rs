//! The shared vocabulary of Forebay: the types that every other crate uses, and no behavior.
//!
//! The lowest layer of the workspace. No logic beyond arithmetic, no dependency except `libm`.
//!
//! | module | holds |
//! |---|---|
//! | [`data_type`] | element types |
//! | [`narrow`] | narrow types: their numbers, and how files pack them |
//! | [`tensor`] | [`TensorDesc`]: the layout of a tensor in a buffer |
//! | [`host_tensor`] | [`Tensor`]: a tensor in host memory |
//! | [`sum_tree`] | the one order in which reduction blocks are added |
//! | [`region`] | memories, byte ranges, regions |
//! | [`random`] | random numbers that are the same on every machine |
//! | [`limits`] | the capabilities of a device |
//! | [`kernel`] | the closed set of kernels, and what each reads and writes |
//! | [`command`] | the closed set of commands: the narrow waist between planning and doing |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod command;
pub mod data_type;
pub mod host_tensor;
pub mod kernel;
pub mod limits;
pub mod narrow;
pub mod random;
pub mod region;
mod rounding;
pub mod sum_tree;
pub mod tensor;

pub use command::{Binding, Command, EventId, Launch, StreamId};
pub use data_type::DataType;
pub use host_tensor::{Tensor, TensorType};
pub use kernel::Kernel;
pub use limits::Limits;
pub use region::{ByteRange, HeapId, MemoryId, Region, Space};
pub use rounding::rounded_to_odd;
pub use sum_tree::SumTree;
pub use tensor::{TensorDesc, TensorError};
