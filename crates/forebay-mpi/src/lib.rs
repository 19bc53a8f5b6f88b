//! MPI, loaded at run time: how the processes of a run exchange bytes.
//!
//! [`started_by`] tells whether an MPI launcher (`mpirun`, `srun`) started this process; [`connect`] loads the library that the launcher
//! used, and returns a [`Communicator`](forebay_device::Communicator). All MPI calls are made on one thread, which also initializes and
//! finalizes MPI.
//!
//! | module | holds |
//! |---|---|
//! | [`environment`] | what launchers tell the processes that they start |
//! | `options` | how to connect |
//! | `library` | the functions and handles of MPI, as each implementation has them |
//! | `exchanges` | messages in progress |
//! | `endings` | the messages that end connections |
//! | `connection` | the MPI thread, and the communicator in front of it |

pub mod environment;

mod calls;
mod connection;
mod endings;
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
    /// No MPI library was found.
    Missing {
        /// The names that were tried, each with the system's error message.
        tried: Vec<(String, String)>,
    },
    /// A library lacks an MPI function.
    Incomplete {
        /// The library's name.
        library: String,
        /// The missing function.
        function: String,
    },
    /// MPI refused a call.
    Refused {
        /// The function.
        function: &'static str,
        /// MPI's error code.
        code: i32,
    },
    /// Several threads of this process would call MPI, which MPI does not allow.
    Threads,
    /// The system refused to create a thread.
    Thread {
        /// The system's error message.
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
                    "no MPI library was found (tried {}); install the runtime of Open MPI or MPICH, or name its library \
                     in FOREBAY_MPI_LIBRARY",
                    tried.join("; ")
                )
            }
            MpiError::Incomplete { library, function } => {
                write!(f, "{library} has no function {function}; it is not an MPI library of version 3 or newer")
            }
            MpiError::Refused { function, code } => write!(f, "{function} failed with code {code}"),
            MpiError::Threads => write!(
                f,
                "MPI was initialized for calls from one thread, but Forebay calls it from a separate thread; initialize it \
                 with MPI_THREAD_MULTIPLE (mpi4py does, unless mpi4py.rc.thread_level says otherwise)"
            ),
            MpiError::Thread { reason } => write!(f, "cannot create a thread for MPI: {reason}"),
        }
    }
}

impl std::error::Error for MpiError {}
