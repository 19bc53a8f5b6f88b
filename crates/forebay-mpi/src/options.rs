//! How to connect.

use std::time::Duration;

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The library; if not given, the first of the launcher's libraries that the system finds.
    pub library: Option<String>,
    /// How long an exchange may take before it is given up; if not given, there is no limit.
    pub timeout: Option<Duration>,
    /// How long the other processes may take to end the connection after this one does; if not given, there is no limit.
    pub end_timeout: Option<Duration>,
    /// Whether other threads of this process also call MPI, which MPI must then allow (`MPI_THREAD_MULTIPLE`).
    pub others_call: bool,
}
