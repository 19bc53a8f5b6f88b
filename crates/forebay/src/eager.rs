//! Single operations that are launched on streams as they are called: a [`Context`] on a device, its [`Stream`]s and [`Event`]s, and
//! [`DeviceTensor`]s in its memory.
//!
//! ```
//! use forebay::{Context, ContextOptions, DeviceOptions, DeviceTensor, Tensor};
//!
//! # fn main() -> Result<(), forebay::Error> {
//! let context = Context::new(forebay::open_device(&DeviceOptions::default())?, &ContextOptions::default())?;
//! let a = DeviceTensor::from_host(&context, &Tensor::from_f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]))?;
//! let sum = a.add(&a)?;
//! assert_eq!(sum.to_host()?.to_f32(), Some(vec![2.0, 4.0, 6.0, 8.0]));
//! # Ok(())
//! # }
//! ```

pub use forebay_runtime::eager::{
    Context, ContextOptions, DeviceTensor, Event, Input, Operation, Races, Recording, Slice, Stream, StreamGuard,
};
