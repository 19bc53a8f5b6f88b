//! MPI, loaded at run time: how the processes of a run exchange bytes.
//!
//! [`started_by`] tells whether a launcher of MPI (`mpirun`, `srun`) started this process; [`connect`] loads the library that it used, and
//! gives a [`Communicator`](forebay_device::Communicator). All calls of MPI are made on one thread, which also begins and ends it.
//!
//! | module | holds |
//! |---|---|
//! | [`environment`] | what launchers tell the processes that they start |
//! | `options` | how to connect |
//! | `library` | the functions and handles of MPI, as each implementation has them |
//! | `exchanges` | messages that are under way |
//! | `connection` | the thread of MPI, and the communicator in front of it |

pub mod environment;

mod calls;
mod connection;
mod exchanges;
mod library;
#[cfg(all(test, feature = "shuttle"))]
mod model;
mod options;

use std::fmt;

pub use connection::{connect, connect_through};
pub use environment::{Launched, Launcher, started_by};
pub use options::Options;

/// Why there is no connection to other processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpiError {
    /// No library of MPI was found.
    Missing {
        /// The names that were tried, each with the system's words.
        tried: Vec<(String, String)>,
    },
    /// A library lacks a function of MPI.
    Incomplete {
        /// Its name.
        library: String,
        /// What it lacks.
        function: String,
    },
    /// MPI refused a call.
    Refused {
        /// The function.
        function: &'static str,
        /// MPI's error code.
        code: i32,
    },
    /// Several threads of this process would call MPI, which it does not allow.
    Threads,
    /// The system does not give a thread.
    Thread {
        /// The system's own words.
        reason: String,
    },
}

impl fmt::Display for MpiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MpiError::Missing { tried } => {
                let tried: Vec<String> = tried.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
                write!(
                    f,
                    "no library of MPI was found (tried {}); install the runtime of Open MPI or MPICH, or name its library in \
                     FOREBAY_MPI_LIBRARY",
                    tried.join("; ")
                )
            }
            MpiError::Incomplete { library, function } => {
                write!(f, "{library} has no function {function}: it is no library of MPI 3 or newer")
            }
            MpiError::Refused { function, code } => write!(f, "{function} failed with code {code}"),
            MpiError::Threads => write!(
                f,
                "MPI was begun for calls of one thread, and Forebay calls it from a thread of its own: begin it with MPI_THREAD_MULTIPLE \
                 (mpi4py does, unless mpi4py.rc.thread_level says something else)"
            ),
            MpiError::Thread { reason } => write!(f, "the system did not give a thread for MPI: {reason}"),
        }
    }
}

impl std::error::Error for MpiError {}
