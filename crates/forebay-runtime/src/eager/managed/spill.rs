//! The file behind the host's blocks: units that fit neither the device nor the host budget.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::RuntimeError;

/// Numbers files of this process.
static NEXT_FILE: AtomicU64 = AtomicU64::new(0);

/// A file without a name, cut into units: the system gives its space back when the process ends, however it ends.
#[derive(Debug)]
pub struct SpillFile {
    file: File,
    folder: PathBuf,
    unit_bytes: u64,
    count: u64,
    free: Vec<u64>,
}

impl SpillFile {
    /// A file in a folder.
    ///
    /// # Errors
    /// [`RuntimeError::Spill`] where the system refuses.
    pub fn new(folder: &Path, unit_bytes: u64) -> Result<SpillFile, RuntimeError> {
        let number = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".forebay-spill-{}-{number}", std::process::id()));
        let open = || {
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        };
        let file = open().map_err(|error| failed(folder, "make", &error))?;
        Ok(SpillFile { file, folder: folder.to_owned(), unit_bytes, count: 0, free: Vec::new() })
    }

    /// Writes a unit. Where it is.
    ///
    /// # Errors
    /// [`RuntimeError::Spill`], for example of a full disk; the file is then as before.
    pub fn write(&mut self, bytes: &[u8]) -> Result<u64, RuntimeError> {
        let place = self.free.last().copied().unwrap_or(self.count);
        let written = self.file.write_all_at(bytes, place * self.unit_bytes);
        written.map_err(|error| failed(&self.folder, "write", &error))?;
        if self.free.pop().is_none() {
            self.count += 1;
        }
        Ok(place)
    }

    /// Reads a unit.
    ///
    /// # Errors
    /// [`RuntimeError::Spill`].
    pub fn read(&self, place: u64, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        let read = self.file.read_exact_at(bytes, place * self.unit_bytes);
        read.map_err(|error| failed(&self.folder, "read", &error))
    }

    /// Takes a place back.
    pub fn give_back(&mut self, place: u64) {
        self.free.push(place);
    }

    /// Bytes that hold data.
    pub fn used_bytes(&self) -> u64 {
        (self.count - self.free.len() as u64) * self.unit_bytes
    }
}

fn failed(folder: &Path, action: &'static str, error: &io::Error) -> RuntimeError {
    RuntimeError::Spill { folder: folder.display().to_string(), action, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_no_name_and_uses_places_again() {
        let folder = std::env::temp_dir().join(format!("forebay-spill-test-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let mut file = SpillFile::new(&folder, 4).unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        assert_eq!((file.write(b"abcd").unwrap(), file.write(b"efgh").unwrap()), (0, 1));
        file.give_back(0);
        assert_eq!(file.used_bytes(), 4);
        assert_eq!(file.write(b"ijkl").unwrap(), 0);
        let mut bytes = [0; 4];
        file.read(1, &mut bytes).unwrap();
        assert_eq!(&bytes, b"efgh");
        file.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"ijkl");
        assert!(matches!(file.read(2, &mut bytes), Err(RuntimeError::Spill { action: "read", .. })));
        std::fs::remove_dir(&folder).unwrap();
        let error = SpillFile::new(&folder, 4).unwrap_err().to_string();
        assert!(error.contains("forebay-spill-test"), "{error}");
    }
}
