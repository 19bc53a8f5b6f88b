//! The memories that copies access on disk: spill files and read-only bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::{MemoryId, Region};

use super::spill_file::SpillFile;
use crate::device::{DeviceError, DeviceUsage};
use crate::readable::Readable;

/// A memory in disk space.
pub enum DiskFile {
    /// Space for data that leaves memory.
    Spill(Arc<SpillFile>),
    /// Bytes in other files.
    ReadOnly(Arc<dyn Readable>),
}

impl DiskFile {
    fn size_bytes(&self) -> u64 {
        match self {
            DiskFile::Spill(file) => file.size_bytes(),
            DiskFile::ReadOnly(bytes) => bytes.size_bytes(),
        }
    }

    /// Returns the number of bytes of disk space that it takes.
    fn taken_bytes(&self) -> u64 {
        match self {
            DiskFile::Spill(file) => file.size_bytes(),
            DiskFile::ReadOnly(_) => 0,
        }
    }
}

/// A copy between memory and a disk.
pub struct DiskCopy {
    /// The direction and the file.
    pub way: DiskWay,
    /// The region on disk.
    pub on_disk: Region,
    /// The region in memory.
    pub in_memory: Region,
}

/// The direction of a copy, and the file.
#[derive(Clone)]
pub enum DiskWay {
    /// From a spill file.
    FromSpill(Arc<SpillFile>),
    /// To a spill file.
    ToSpill(Arc<SpillFile>),
    /// From a read-only file.
    FromReadOnly(Arc<dyn Readable>),
}

impl DiskWay {
    /// Returns whether the copy goes to the disk.
    pub fn is_to_disk(&self) -> bool {
        match self {
            DiskWay::ToSpill(_) => true,
            DiskWay::FromSpill(_) | DiskWay::FromReadOnly(_) => false,
        }
    }
}

/// The memories of a device that are in disk space.
#[derive(Default)]
pub struct DiskFiles {
    files: BTreeMap<MemoryId, DiskFile>,
}

impl DiskFiles {
    /// Adds a file and counts its disk space.
    pub fn add(&mut self, id: MemoryId, file: DiskFile, usage: &mut DeviceUsage) {
        usage.disk_bytes += file.taken_bytes();
        usage.disk_peak_bytes = usage.disk_peak_bytes.max(usage.disk_bytes);
        self.files.insert(id, file);
    }

    /// Removes a file, if the memory is one of these.
    pub fn remove(&mut self, id: MemoryId, usage: &mut DeviceUsage) {
        if let Some(file) = self.files.remove(&id) {
            usage.disk_bytes -= file.taken_bytes();
        }
    }

    /// Returns the parts of a copy if one of its ends is on a disk.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] for a region outside its file, for a copy from disk to disk, and for a copy to a read-only file.
    pub fn copy(&self, from: Region, to: Region) -> Result<Option<DiskCopy>, DeviceError> {
        let lost = |what: &str| Err(DeviceError::Lost { reason: format!("a copy from {from} to {to} {what}") });
        match (self.find(from)?, self.find(to)?) {
            (None, None) => Ok(None),
            (Some(file), None) => {
                let way = match file {
                    DiskFile::Spill(file) => DiskWay::FromSpill(file.clone()),
                    DiskFile::ReadOnly(bytes) => DiskWay::FromReadOnly(bytes.clone()),
                };
                Ok(Some(DiskCopy { way, on_disk: from, in_memory: to }))
            }
            (None, Some(DiskFile::Spill(file))) => {
                Ok(Some(DiskCopy { way: DiskWay::ToSpill(file.clone()), on_disk: to, in_memory: from }))
            }
            (None, Some(DiskFile::ReadOnly(_))) => lost("writes to a read-only file"),
            (Some(_), Some(_)) => lost("goes from disk to disk"),
        }
    }

    fn find(&self, region: Region) -> Result<Option<&DiskFile>, DeviceError> {
        let file = self.files.get(&region.memory);
        match file.map(DiskFile::size_bytes).filter(|&size_bytes| region.range.end > size_bytes) {
            Some(size_bytes) => {
                Err(DeviceError::Lost { reason: format!("{region} exceeds its file of {size_bytes} bytes") })
            }
            None => Ok(file),
        }
    }

    /// Returns the reason why a memory that is none of the others has no address.
    pub fn why_no_address(&self, id: MemoryId) -> DeviceError {
        let what = match self.files.contains_key(&id) {
            true => "is on a disk, which only copies can access",
            false => "does not exist",
        };
        DeviceError::Lost { reason: format!("{id} {what}") }
    }
}

/// Reads bytes of a read-only file.
///
/// # Errors
/// [`DeviceError::Read`].
pub fn read(bytes: &dyn Readable, offset_bytes: u64, into: &mut [u8]) -> Result<(), DeviceError> {
    bytes.read(offset_bytes, into).map_err(|reason| DeviceError::Read { reason })
}
