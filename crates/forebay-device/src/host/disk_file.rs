//! What copies reach on a disk: a spill file, or bytes that are only read.

use std::sync::Arc;

use super::spill_file::SpillFile;
use crate::device::DeviceError;
use crate::readable::Readable;

/// A memory in disk space.
#[derive(Clone)]
pub enum DiskFile {
    /// Space for what leaves memory.
    Spill(Arc<SpillFile>),
    /// What lies in the files of others.
    ReadOnly(Arc<dyn Readable>),
}

impl DiskFile {
    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        match self {
            DiskFile::Spill(file) => file.size_bytes(),
            DiskFile::ReadOnly(bytes) => bytes.size_bytes(),
        }
    }

    /// Bytes that it takes of a disk.
    pub fn taken_bytes(&self) -> u64 {
        match self {
            DiskFile::Spill(file) => file.size_bytes(),
            DiskFile::ReadOnly(_) => 0,
        }
    }

    /// Reads whole blocks. What would be behind the end of bytes that are only read is left as it is.
    ///
    /// # Errors
    /// [`DeviceError::Spill`], [`DeviceError::Read`].
    pub fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        match self {
            DiskFile::Spill(file) => file.read(offset_bytes, into),
            DiskFile::ReadOnly(bytes) => {
                let count = bytes.size_bytes().saturating_sub(offset_bytes).min(into.len() as u64);
                read(&**bytes, offset_bytes, &mut into[..count as usize])
            }
        }
    }

    /// Writes whole blocks.
    ///
    /// # Errors
    /// [`DeviceError::Spill`]; [`DeviceError::Lost`] where nothing may be written.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        match self {
            DiskFile::Spill(file) => file.write(offset_bytes, bytes),
            DiskFile::ReadOnly(_) => Err(nothing_to_write()),
        }
    }

    /// What a full disk would answer to a write.
    pub fn full(&self, size_bytes: u64) -> DeviceError {
        match self {
            DiskFile::Spill(file) => file.full(size_bytes),
            DiskFile::ReadOnly(_) => nothing_to_write(),
        }
    }
}

fn nothing_to_write() -> DeviceError {
    DeviceError::Lost { reason: "a memory is written that is only read".to_string() }
}

/// Reads bytes that are only read.
///
/// # Errors
/// [`DeviceError::Read`].
pub fn read(bytes: &dyn Readable, offset_bytes: u64, into: &mut [u8]) -> Result<(), DeviceError> {
    bytes.read(offset_bytes, into).map_err(|reason| DeviceError::Read { reason })
}
