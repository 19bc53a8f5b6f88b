//! Vulkan as a device of Forebay: GPUs of every vendor, loaded at run time.
//!
//! | module | subject |
//! |---|---|
//! | [`kernels`] | which shader runs a kernel, with which operands and parameters: plain data |

pub mod kernels;
