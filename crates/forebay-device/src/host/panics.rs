//! Panics of work that threads do for streams, as errors.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::device::DeviceError;

/// Runs a job.
///
/// # Errors
/// The job's error; if it panics, [`DeviceError::Lost`], which says what panicked and why.
pub fn caught<R>(what: impl Display, job: impl FnOnce() -> Result<R, DeviceError>) -> Result<R, DeviceError> {
    catch_unwind(AssertUnwindSafe(job))
        .unwrap_or_else(|panic| Err(DeviceError::Lost { reason: format!("{what} panicked: {}", text_of(&*panic)) }))
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}
