//! Errors that occur while a plan is loaded or run.

use std::fmt;

use forebay_device::DeviceError;
use forebay_memory::eviction::EvictionError;
use forebay_model::ModelError;

/// Why a plan cannot be loaded or run.
#[derive(Clone, Debug, PartialEq)]
pub enum RuntimeError {
    /// The device failed.
    Device {
        /// The operation during which it failed.
        action: &'static str,
        /// The error that the device reported.
        error: DeviceError,
    },
    /// A computed index is out of range.
    Index {
        /// The name of the launch or operation.
        name: String,
        /// The number of the launch in the program that was planned, or of the operation.
        launch: u32,
        /// The position of the index among all indices, in row-major order.
        element: u64,
        /// The index.
        index: i64,
        /// The number of entries to choose from.
        limit: u64,
    },
    /// The plan has no tensor with this name among those of the requested kind.
    UnknownTensor {
        /// `input`, `output` or `persistent`.
        kind: &'static str,
        /// The requested name.
        name: String,
    },
    /// The number of bytes does not match a tensor's backing location.
    Size {
        /// The tensor.
        name: String,
        /// The number of bytes given.
        given_bytes: u64,
        /// The number of bytes that the plan expects.
        expected_bytes: u64,
    },
    /// An earlier step failed on the device, so the contents of its memory are no longer known.
    Broken,
    /// An operation rejects its inputs.
    Operation(ModelError),
    /// A tensor cannot be created or used as requested.
    Tensor {
        /// The reason.
        reason: String,
    },
    /// Memory ran out, and waiting for work in progress would not free enough.
    OutOfMemory(Box<OutOfMemory>),
    /// Managed memory cannot do what was requested.
    Managed(EvictionError),
    /// The host budget of managed memory is full.
    HostMemory {
        /// The budget.
        cap_bytes: u64,
    },
    /// An environment variable has an invalid value.
    Setting {
        /// The name of the variable.
        variable: &'static str,
        /// Its value.
        text: String,
        /// Why the value is invalid.
        reason: &'static str,
    },
    /// An event was waited for or queried before it was ever recorded.
    NeverRecorded,
    /// The time of an event that does not measure time was requested.
    NoTiming,
    /// The time of an event was requested before it fired, or after it was recorded again.
    NotComplete,
    /// Objects of different contexts were used together.
    OtherContext {
        /// Which objects.
        what: &'static str,
    },
    /// All events that can measure time are in use.
    EventLimit {
        /// The maximum number of such events.
        limit: usize,
    },
    /// The plan breaks a rule of execution. This is a bug in Forebay, found before anything ran.
    Plan {
        /// Which rule is broken, and where.
        reason: String,
    },
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuntimeError::Device { action, error } => write!(f, "{action}: {error}"),
            RuntimeError::Index { name, element, index, limit, .. } => write!(
                f,
                "node '{name}': element {element} of its indices (in row-major order) was computed as {index}, but it chooses \
                 from {limit} entries, 0 to {} or -{limit} to -1; check what the model computes its indices from",
                limit.saturating_sub(1)
            ),
            RuntimeError::UnknownTensor { kind, name } => write!(f, "the plan has no {kind} '{name}'"),
            RuntimeError::Size { name, given_bytes, expected_bytes } => {
                write!(f, "'{name}' has {given_bytes} bytes, but the plan expects {expected_bytes}")
            }
            RuntimeError::Broken => {
                f.write_str("an earlier step failed on the device; load the last checkpoint into a new trainer")
            }
            RuntimeError::Operation(error) => error.fmt(f),
            RuntimeError::Tensor { reason } => f.write_str(reason),
            RuntimeError::OutOfMemory(error) => error.fmt(f),
            RuntimeError::Managed(error) => error.fmt(f),
            RuntimeError::HostMemory { cap_bytes } => write!(
                f,
                "managed memory may keep {cap_bytes} bytes on the host, but needs more; allow more (--host-memory, \
                 ManagedOptions::host_bytes), or name a folder for what exceeds them (--spill-dir)"
            ),
            RuntimeError::Setting { variable, text, reason } => {
                write!(f, "invalid environment variable {variable}={text}: {reason}")
            }
            RuntimeError::NeverRecorded => {
                f.write_str("the event was never recorded, so it would never fire; record it first")
            }
            RuntimeError::NoTiming => {
                f.write_str("the event was created without timing; create it with Event::new(context, true)")
            }
            RuntimeError::NotComplete => {
                f.write_str("the event has not fired yet; synchronize it before requesting its time")
            }
            RuntimeError::OtherContext { what } => write!(f, "{what} belong to different contexts"),
            RuntimeError::EventLimit { limit } => write!(
                f,
                "all {limit} events that may measure time are in use; drop some, or raise ContextOptions::event_limit"
            ),
            RuntimeError::Plan { reason } => write!(f, "the plan cannot run (a bug in Forebay): {reason}"),
        }
    }
}

impl std::error::Error for RuntimeError {}

impl From<ModelError> for RuntimeError {
    fn from(error: ModelError) -> RuntimeError {
        RuntimeError::Operation(error)
    }
}

impl From<EvictionError> for RuntimeError {
    fn from(error: EvictionError) -> RuntimeError {
        RuntimeError::Managed(error)
    }
}

/// Everything known about memory when it runs out.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfMemory {
    /// Which memory ran out.
    pub what: &'static str,
    /// The number of bytes requested.
    pub requested_bytes: u64,
    /// The most bytes that may be taken from the device, or `None` without a limit.
    pub cap_bytes: Option<u64>,
    /// The number of bytes taken from the device.
    pub reserved_bytes: u64,
    /// The number of bytes in use.
    pub in_use_bytes: u64,
    /// The size of the largest free range.
    pub largest_free_bytes: u64,
    /// The largest holders of memory, with the bytes that each holds.
    pub holders: Vec<(String, u64)>,
    /// The device's reply when it was asked for more, or `None` if it was not asked because of the cap.
    pub refusal: Option<String>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutOfMemory { what, requested_bytes, reserved_bytes, in_use_bytes, largest_free_bytes, .. } = self;
        write!(f, "out of {what}: {requested_bytes} bytes requested")?;
        if let Some(cap_bytes) = self.cap_bytes {
            write!(f, ", at most {cap_bytes} allowed")?;
        }
        write!(f, ", {reserved_bytes} reserved, {in_use_bytes} in use, largest free range {largest_free_bytes}")?;
        if let Some(refusal) = &self.refusal {
            write!(f, "; {refusal}")?;
        }
        for (i, (owner, bytes)) in self.holders.iter().enumerate() {
            write!(f, "{}{owner} holds {bytes}", if i == 0 { "; " } else { ", " })?;
        }
        f.write_str("; drop tensors that are no longer needed, or allow more device memory")
    }
}
