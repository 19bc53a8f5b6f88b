//! What can go wrong while a plan runs.

use std::fmt;

use forebay_device::DeviceError;

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
    /// The plan has no tensor of this name where it was looked for.
    UnknownTensor {
        /// `input`, `output` or `persistent`.
        kind: &'static str,
        /// The name asked for.
        name: String,
    },
    /// A tensor's bytes do not fit its home.
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
            RuntimeError::UnknownTensor { kind, name } => write!(f, "the plan has no {kind} '{name}'"),
            RuntimeError::Size { name, given_bytes, expected_bytes } => {
                write!(f, "'{name}' has {given_bytes} bytes, the plan expects {expected_bytes}")
            }
            RuntimeError::Broken => {
                f.write_str("an earlier step failed on the device; load the last checkpoint into a new trainer")
            }
            RuntimeError::Plan { reason } => write!(f, "the plan cannot run (a defect of Forebay): {reason}"),
        }
    }
}

impl std::error::Error for RuntimeError {}
