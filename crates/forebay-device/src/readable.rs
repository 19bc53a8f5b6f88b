//! Bytes stored elsewhere, which a device reads when they are needed and never writes.

use std::fmt;

/// Bytes that several threads read piece by piece, such as weights that stay in the files of their model.
pub trait Readable: fmt::Debug + Send + Sync {
    /// Returns the number of bytes.
    fn size_bytes(&self) -> u64;

    /// Reads bytes into `into`, starting at `offset_bytes`.
    ///
    /// # Errors
    /// The reason why the bytes cannot be read.
    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), String>;
}
