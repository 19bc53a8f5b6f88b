//! The reasons for which the program ends early, and their exit codes.

use std::fmt;

use forebay::Error;
use forebay::data::DataError;

/// Why the program ends early.
#[derive(Debug)]
pub enum Failure {
    /// The command line is not valid.
    Usage(String),
    /// Something could not be done.
    Failed(String),
    /// The user interrupted the program; everything was saved.
    Interrupted(String),
}

impl Failure {
    /// Returns 2 for usage errors, like the argument parser; 130 for an interruption, as shells report it; otherwise 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) => 1,
            Failure::Interrupted(_) => 130,
        }
    }

    /// Returns the same failure, prefixed with the place where it happened.
    pub fn at(self, place: &str) -> Failure {
        let add = |text| format!("{place}: {text}");
        match self {
            Failure::Usage(text) => Failure::Usage(add(text)),
            Failure::Failed(text) => Failure::Failed(add(text)),
            Failure::Interrupted(text) => Failure::Interrupted(add(text)),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) | Failure::Failed(text) | Failure::Interrupted(text) => f.write_str(text),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Option { .. } => Failure::Usage(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Failure {
        Failure::Failed(error.to_string())
    }
}
