//! The host device: the CPU as a device.
#![allow(dead_code)] // until the stream module calls the kernels
pub(crate) mod kernels;
