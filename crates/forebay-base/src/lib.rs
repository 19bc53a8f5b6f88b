//! The words of Forebay: what every other crate speaks, and nothing that acts.
//!
//! Floor 0 of the house. No logic beyond arithmetic, no dependency but `libm`.
//!
//! | module | holds |
//! |---|---|
//! | [`data_type`] | element types |
//! | [`narrow`] | those of at most 8 bits: their numbers, and how files pack them |
//! | [`tensor`] | [`TensorDesc`]: how a tensor lies in a buffer |
//! | [`host_tensor`] | [`Tensor`]: a tensor in host memory |
//! | [`sum_tree`] | the one order in which reduction blocks are added |
//! | [`region`] | memories, byte ranges, regions |
//! | [`random`] | random numbers that are the same on every machine |
//! | [`limits`] | what a device can do |
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
