//! How to connect.

use std::time::Duration;

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The library; the first one of the launcher's that the system finds, where not given.
    pub library: Option<String>,
    /// How long an exchange may take before it is given up; for ever, where not given.
    pub patience: Option<Duration>,
    /// Whether other threads of this process call MPI, too, which MPI then has to allow (`MPI_THREAD_MULTIPLE`).
    pub others_call: bool,
}
