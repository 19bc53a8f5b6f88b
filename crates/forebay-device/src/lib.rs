//! The machines: one trait, several devices.
//!
//! | module | device |
//! |---|---|
//! | [`null`] | records commands and runs nothing; with a tiled, a placed and a Direct3D-12-like profile |
//! | [`host`] | the CPU: heaps are memfd files, reservations are address space, streams are threads, kernels are SIMD Rust |
//! | [`chaos`] | any device, with random delays and the most permissive legal reordering, so that a missing barrier shows |
//!
//! Callers validate (bindings, ordering, budgets); devices report only what callers cannot foresee.

pub mod chaos;
pub mod device;
pub mod host;
pub mod null;

pub use device::{Device, DeviceError, DeviceUsage, TraceRecord};
