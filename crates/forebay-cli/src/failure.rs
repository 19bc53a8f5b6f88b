//! The reasons for which the program ends early, and their exit codes.

use std::fmt;

use forebay::data::DataError;
use forebay::{Error, PlanError};

/// Why the program ends early.
#[derive(Debug)]
pub enum Failure {
    /// The command line is not valid.
    Usage(String),
    /// Something could not be done.
    Failed(String),
    /// A memory limit or budget is too small: the whole text, and the error that it quotes.
    Budget(String, Box<Error>),
    /// The device failed in the middle of its work, so the values on it may be those of half a step.
    Device(String),
    /// A loss or a gradient is not a finite number, so the values that it was computed from may be useless.
    Numbers(String),
    /// The user interrupted the program; everything was saved.
    Interrupted(String),
}

impl Failure {
    /// Returns 2 for usage errors, like the argument parser; 130 for an interruption, as shells report it; otherwise 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) | Failure::Budget(..) | Failure::Device(_) | Failure::Numbers(_) => 1,
            Failure::Interrupted(_) => 130,
        }
    }

    /// Returns the same failure, prefixed with the place where it happened.
    pub fn at(self, place: &str) -> Failure {
        self.map(|text| format!("{place}: {text}"))
    }

    /// Returns the same failure with another text.
    pub fn map(self, change: impl FnOnce(String) -> String) -> Failure {
        match self {
            Failure::Usage(text) => Failure::Usage(change(text)),
            Failure::Failed(text) => Failure::Failed(change(text)),
            Failure::Budget(text, error) => Failure::Budget(change(text), error),
            Failure::Device(text) => Failure::Device(change(text)),
            Failure::Numbers(text) => Failure::Numbers(change(text)),
            Failure::Interrupted(text) => Failure::Interrupted(change(text)),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text)
            | Failure::Failed(text)
            | Failure::Budget(text, _)
            | Failure::Device(text)
            | Failure::Numbers(text)
            | Failure::Interrupted(text) => f.write_str(text),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Option { .. } => Failure::Usage(error.to_string()),
            Error::Device { .. } | Error::Runtime(_) => Failure::Device(error.to_string()),
            Error::MemoryLimit { .. }
            | Error::FreeMemory { .. }
            | Error::Plan(PlanError::HostBudget { .. } | PlanError::DeviceBudget { .. }) => {
                Failure::Budget(error.to_string(), Box::new(error))
            }
            Error::Plan(PlanError::Stopped) => Failure::Interrupted(error.to_string()),
            Error::NanLoss { .. } | Error::NanGradients { .. } => Failure::Numbers(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Failure {
        Failure::Failed(error.to_string())
    }
}
