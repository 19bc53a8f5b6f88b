//! What can go wrong while a plan runs.

use std::fmt;

use forebay_device::DeviceError;
use forebay_memory::eviction::EvictionError;
use forebay_model::ModelError;

/// Why a plan cannot be loaded or run.
#[derive(Clone, Debug, PartialEq)]
pub enum RuntimeError {
    /// The device failed.
    Device {
        /// What was being done.
        action: &'static str,
        /// The device's words.
        error: DeviceError,
    },
    /// An index that was computed is out of range.
    Index {
        /// The launch, or the operation.
        name: String,
        /// The launch of the program that was planned, or the number of the operation.
        launch: u32,
        /// Which element of the indices it is, in row-major order.
        element: u64,
        /// The index.
        index: i64,
        /// Number of entries to choose from.
        limit: u64,
    },
    /// The plan has no tensor of this name where it was looked for.
    UnknownTensor {
        /// `input`, `output` or `persistent`.
        kind: &'static str,
        /// The name asked for.
        name: String,
    },
    /// A tensor's bytes do not fit its backing location.
    Size {
        /// The tensor.
        name: String,
        /// Bytes given.
        given_bytes: u64,
        /// Bytes that the plan has for it.
        expected_bytes: u64,
    },
    /// An earlier step failed on the device: what its memory holds is not known any more.
    Broken,
    /// An operation refuses its inputs.
    Operation(ModelError),
    /// A tensor cannot be what was asked for.
    Tensor {
        /// Why.
        reason: String,
    },
    /// Memory ran out, and nothing that could be waited for would free enough.
    OutOfMemory(Box<OutOfMemory>),
    /// Managed memory cannot do what was asked of it.
    Managed(EvictionError),
    /// The host budget of managed memory is full.
    HostMemory {
        /// The budget.
        cap_bytes: u64,
    },
    /// A variable of the environment makes no sense.
    Setting {
        /// The variable.
        variable: &'static str,
        /// What it says.
        text: String,
        /// What is wrong with that.
        reason: &'static str,
    },
    /// An event was waited for or asked before it was ever recorded.
    NeverRecorded,
    /// An event that does not measure time was asked for its time.
    NoTiming,
    /// An event was asked for its time before it fired, or after it was recorded again.
    NotComplete,
    /// Things of several contexts were used together.
    OtherContext {
        /// Which things.
        what: &'static str,
    },
    /// All events that may measure time do.
    EventLimit {
        /// How many there may be.
        limit: usize,
    },
    /// The plan breaks a rule of execution: a defect of Forebay, found before anything ran.
    Plan {
        /// Which rule, and where.
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
                 from {limit} entries, 0 to {} or -{limit} to -1: look at what the model computes its indices from",
                limit.saturating_sub(1)
            ),
            RuntimeError::UnknownTensor { kind, name } => write!(f, "the plan has no {kind} '{name}'"),
            RuntimeError::Size { name, given_bytes, expected_bytes } => {
                write!(f, "'{name}' has {given_bytes} bytes, the plan expects {expected_bytes}")
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
                "managed memory may keep {cap_bytes} bytes on the host, and needs all of them: allow more (--host-memory, \
                 ManagedOptions::host_bytes), or name a folder for what exceeds them (--spill-dir, spill_dir)"
            ),
            RuntimeError::Setting { variable, text, reason } => {
                write!(f, "the environment says {variable}={text}, which makes no sense: {reason}")
            }
            RuntimeError::NeverRecorded => {
                f.write_str("the event was never recorded, so it would never fire: record it first")
            }
            RuntimeError::NoTiming => {
                f.write_str("the event was made without timing: make it with Event::new(context, true)")
            }
            RuntimeError::NotComplete => {
                f.write_str("the event has not fired yet: synchronize it before asking for its time")
            }
            RuntimeError::OtherContext { what } => write!(f, "{what} belong to different contexts"),
            RuntimeError::EventLimit { limit } => write!(
                f,
                "all {limit} events that may measure time are in use: drop some, or raise ContextOptions::event_limit"
            ),
            RuntimeError::Plan { reason } => write!(f, "the plan cannot run (a defect of Forebay): {reason}"),
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

/// Everything that is known when memory runs out.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfMemory {
    /// Which memory.
    pub what: &'static str,
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// The most that may be taken from the device; none without a limit.
    pub cap_bytes: Option<u64>,
    /// Bytes taken from the device.
    pub reserved_bytes: u64,
    /// Bytes that hold something.
    pub in_use_bytes: u64,
    /// The largest range that is free.
    pub largest_free_bytes: u64,
    /// Who holds most, with bytes.
    pub holders: Vec<(String, u64)>,
    /// What the device said when it was asked for more; none where it was not, because of the cap.
    pub refusal: Option<String>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutOfMemory { what, requested_bytes, reserved_bytes, in_use_bytes, largest_free_bytes, .. } = self;
        write!(f, "out of {what}: {requested_bytes} bytes requested")?;
        if let Some(cap_bytes) = self.cap_bytes {
            write!(f, ", at most {cap_bytes} allowed")?;
        }
        write!(
            f,
            ", {reserved_bytes} reserved, {in_use_bytes} in use, the largest free range has {largest_free_bytes}"
        )?;
        if let Some(refusal) = &self.refusal {
            write!(f, "; {refusal}")?;
        }
        for (i, (owner, bytes)) in self.holders.iter().enumerate() {
            write!(f, "{}{owner} holds {bytes}", if i == 0 { "; " } else { ", " })?;
        }
        f.write_str("; drop tensors that are no longer needed, or allow more device memory")
    }
}
