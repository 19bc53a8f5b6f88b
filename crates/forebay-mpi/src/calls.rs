//! The calls that the connection's thread makes, to MPI or to its replacement under a model checker.

use crate::MpiError;

/// One process's side of a run, for use by a single thread.
pub(crate) trait Calls {
    /// A message in flight.
    type Request;

    /// Returns the number of this process, from 0.
    fn rank(&self) -> Result<usize, MpiError>;

    /// Returns the number of processes.
    fn size(&self) -> Result<usize, MpiError>;

    /// Begins to send bytes.
    ///
    /// # Safety
    /// The bytes must stay alive, and nothing may write to them, until the request is done.
    unsafe fn send(&self, address: *const u8, bytes: i32, peer: usize, tag: u32) -> Result<Self::Request, MpiError>;

    /// Begins to receive bytes.
    ///
    /// # Safety
    /// The bytes must stay alive, and nothing may access them, until the request is done.
    unsafe fn receive(&self, address: *mut u8, bytes: i32, peer: usize, tag: u32) -> Result<Self::Request, MpiError>;

    /// Returns whether a request is done; all other requests also make progress.
    fn is_done(&self, request: &mut Self::Request) -> Result<bool, MpiError>;

    /// Ends all processes.
    fn abort(&self);

    /// Ends the run in this process if it began the run. Waits for the other processes.
    fn end(&mut self);
}
