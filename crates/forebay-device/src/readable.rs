//! Bytes that lie somewhere else, for a device that reads them when they are needed and never writes them.

use std::fmt;

/// Bytes that are read piece by piece, by several threads at once: weights that stay in the files of their model.
pub trait Readable: fmt::Debug + Send + Sync {
    /// How many there are.
    fn size_bytes(&self) -> u64;

    /// Reads some of them, from `offset_bytes` on.
    ///
    /// # Errors
    /// Why they cannot be read.
    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), String>;
}
