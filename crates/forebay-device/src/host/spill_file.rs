//! A spill file: an unnamed file in a folder, whose space is all allocated when it is created.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::sys;
use crate::device::DeviceError;

/// The size of a block, in bytes. Offsets, lengths and addresses of transfers are multiples of it.
pub const BLOCK_BYTES: u64 = 4096;

/// The number of the next file of this process, for file systems that require names.
static NEXT_FILE: AtomicU64 = AtomicU64::new(0);

/// A file without a name, with all of its space allocated. The system frees the space when the process ends, however it ends.
pub struct SpillFile {
    file: File,
    folder: PathBuf,
    size_bytes: u64,
    /// Whether transfers bypass the page cache.
    direct: bool,
}

impl SpillFile {
    /// Creates a file of `size_bytes`, rounded up to whole blocks.
    ///
    /// # Errors
    /// [`DeviceError::Spill`].
    pub fn new(folder: &Path, size_bytes: u64) -> Result<SpillFile, DeviceError> {
        let size_bytes = size_bytes.max(1).checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX);
        let failed = |action, error| failure(folder, action, size_bytes, &error);
        let file = unnamed(folder).map_err(|error| failed("create", error))?;
        if size_bytes > sys::file_size_max_bytes() {
            return Err(failed("reserve", io::Error::from_raw_os_error(libc::EFBIG)));
        }
        // Checked first because reserving takes all available space before it fails, and others share the disk.
        if let Some(available) = sys::available_disk_bytes(&file).filter(|&available| size_bytes > available) {
            let reason = format!("its file system has only {available} bytes available");
            return Err(DeviceError::Spill { folder: folder.to_owned(), action: "reserve", bytes: size_bytes, reason });
        }
        sys::reserve(&file, size_bytes).map_err(|error| failed("reserve", error))?;
        let direct = sys::set_direct(&file, true).is_ok();
        let mut spill = SpillFile { file, folder: folder.to_owned(), size_bytes, direct };
        spill.choose_way().map_err(|error| failed("read", error))?;
        Ok(spill)
    }

    /// Goes back to the page cache if the file system turns out not to bypass it for blocks of this size.
    fn choose_way(&mut self) -> io::Result<()> {
        let block = sys::AddressRange::host_block(BLOCK_BYTES)?;
        // SAFETY: the block belongs to this function alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(block.base(), BLOCK_BYTES as usize) };
        if self.direct && self.file.read_exact_at(bytes, 0).is_err() {
            sys::set_direct(&self.file, false)?;
            self.direct = false;
        }
        self.file.read_exact_at(bytes, 0)
    }

    /// Returns the size of the file.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reads whole blocks.
    ///
    /// # Errors
    /// [`DeviceError::Spill`].
    pub fn read(&self, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let size_bytes = bytes.len() as u64;
        let read = self.file.read_exact_at(bytes, offset_bytes);
        read.map_err(|error| failure(&self.folder, "read", size_bytes, &error))?;
        self.forget(offset_bytes, size_bytes);
        Ok(())
    }

    /// Writes whole blocks.
    ///
    /// # Errors
    /// [`DeviceError::Spill`].
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let written = self.file.write_all_at(bytes, offset_bytes);
        written.map_err(|error| failure(&self.folder, "write", bytes.len() as u64, &error))?;
        self.forget(offset_bytes, bytes.len() as u64);
        Ok(())
    }

    /// Returns the error that a write to a full disk would give.
    pub fn full(&self, size_bytes: u64) -> DeviceError {
        failure(&self.folder, "write", size_bytes, &io::Error::from_raw_os_error(libc::ENOSPC))
    }

    /// Keeps the page cache from filling memory with data that was spilled to save memory.
    fn forget(&self, offset_bytes: u64, size_bytes: u64) {
        if !self.direct {
            sys::forget_cached(&self.file, offset_bytes, size_bytes);
        }
    }
}

/// Creates a file without a name. If the file system does not support that, the file gets a name that is removed at once.
fn unnamed(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options.clone().custom_flags(libc::O_TMPFILE).open(folder).or_else(|_| {
        let number = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".forebay-spill-{}-{number}", std::process::id()));
        let file = options.create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    })
}

fn failure(folder: &Path, action: &'static str, bytes: u64, error: &io::Error) -> DeviceError {
    DeviceError::Spill { folder: folder.to_owned(), action, bytes, reason: error.to_string() }
}
