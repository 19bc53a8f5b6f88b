//! The files behind the host's blocks, for units that fit neither the device nor the host budget.

use std::path::{Path, PathBuf};

use forebay_base::MemoryId;
use forebay_device::{Device, DeviceError};

use super::slab_pool::{Slab, SlabPool};

/// The approximate size of files, unless one unit is larger; the space of a file is taken when it is created.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The device's spill files in one folder.
pub struct SpillFiles {
    folder: PathBuf,
    /// The places in the files.
    pub slab_pool: SlabPool<MemoryId>,
}

impl SpillFiles {
    /// Creates a first file, of one unit, so that an unusable folder is detected now.
    ///
    /// # Errors
    /// Fails if the device reports an error.
    pub fn new(device: &dyn Device, folder: &Path, unit_bytes: u64) -> Result<SpillFiles, DeviceError> {
        let mut files = SpillFiles { folder: folder.to_owned(), slab_pool: SlabPool::new(u64::MAX, FILE_BYTES_MAX) };
        let place = files.take(device, unit_bytes)?;
        files.slab_pool.give_back(place);
        Ok(files)
    }

    /// Takes a place for a unit.
    ///
    /// # Errors
    /// Fails if the device reports an error, for example for a full disk.
    pub fn take(&mut self, device: &dyn Device, size_bytes: u64) -> Result<Option<Slab<MemoryId>>, DeviceError> {
        self.slab_pool.take_or_grow(size_bytes, |size_bytes| device.create_spill(&self.folder, size_bytes))
    }
}
