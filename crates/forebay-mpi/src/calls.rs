//! The calls that the connection's thread makes: of MPI, or of what stands for it under a model checker.

use crate::MpiError;

/// One process's side of a run. For one thread.
pub(crate) trait Calls {
    /// A message that is under way.
    type Request;

    /// The number of this process, from 0.
    fn rank(&self) -> Result<usize, MpiError>;

    /// How many processes there are.
    fn size(&self) -> Result<usize, MpiError>;

    /// Begins to send bytes.
    ///
    /// # Safety
    /// They are live, and nothing writes them, until the request is done.
    unsafe fn send(&self, address: *const u8, bytes: i32, peer: usize, tag: u32) -> Result<Self::Request, MpiError>;

    /// Begins to receive bytes.
    ///
    /// # Safety
    /// They are live, and nothing touches them, until the request is done.
    unsafe fn receive(&self, address: *mut u8, bytes: i32, peer: usize, tag: u32) -> Result<Self::Request, MpiError>;

    /// Whether a request is done; all others go on, too.
    fn is_done(&self, request: &mut Self::Request) -> Result<bool, MpiError>;

    /// Ends all processes.
    fn abort(&self);

    /// Ends the run in this process, if it began it. Waits for the others.
    fn end(&mut self);
}
