//! Files that hold the contents of tensors: described when a model is read, and read when the contents are needed.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::direct;
use crate::error::ModelError;

/// The most files that one model keeps open. A model can have a file for each tensor, and a process can open only a limited number of
/// files.
const OPEN_FILES_MAX: usize = 32;

/// What identifies a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// A file as it was when the model was read. If it changes afterwards, reading it is an error.
pub struct SourceFile {
    path: PathBuf,
    size_bytes: u64,
    /// `None` for a file that no other process can access.
    stamp: Option<Stamp>,
    open: Mutex<Option<Arc<File>>>,
    /// The file for direct reads; `None` before the first one, or if the file system does not support them.
    direct: Mutex<Option<Arc<File>>>,
    /// The number of files that the model keeps open.
    open_count: Arc<AtomicUsize>,
}

impl SourceFile {
    /// Creates a file that is opened when it is first read. `open_count` is shared by the files of a model.
    pub fn closed(path: &Path, metadata: &Metadata, open_count: Arc<AtomicUsize>) -> SourceFile {
        let (size_bytes, stamp) = (metadata.len(), Some(Stamp::of(metadata)));
        let (open, direct) = (Mutex::default(), Mutex::default());
        SourceFile { path: path.to_owned(), size_bytes, stamp, open, direct, open_count }
    }

    /// Creates a file that is already open and stays open.
    pub fn opened(path: &Path, file: Arc<File>, metadata: &Metadata) -> SourceFile {
        let open_count = Arc::new(AtomicUsize::new(1));
        SourceFile { open: Mutex::new(Some(file)), ..SourceFile::closed(path, metadata, open_count) }
    }

    /// Creates an unnamed file in a folder, which only this process can access.
    pub fn nameless(folder: &Path, file: File, size_bytes: u64) -> SourceFile {
        let (open, direct, open_count) = (Mutex::new(Some(Arc::new(file))), Mutex::default(), Arc::default());
        SourceFile { path: folder.to_owned(), size_bytes, stamp: None, open, direct, open_count }
    }

    /// Returns the size of the file when it was described.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns whether both are certain to be the same file.
    pub fn is(&self, other: &SourceFile) -> bool {
        std::ptr::eq(self, other) || self.stamp.is_some() && self.stamp == other.stamp
    }

    /// Reads bytes starting at `offset_bytes`; `what` names the tensor that they belong to.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or read, or has changed since the model was read.
    pub fn read(&self, what: &str, offset_bytes: u64, into: &mut [u8]) -> Result<(), ModelError> {
        let file = self.file().map_err(|error| self.error(what, &error.to_string()))?;
        self.check(&file, what)?;
        file.read_exact_at(into, offset_bytes).map_err(|error| self.unreadable(what, offset_bytes, into.len(), &error))
    }

    /// Like [`SourceFile::read`], but uses direct reads, which bypass the system's page cache, if the file system supports them. This is
    /// for files larger than the memory available to the cache, where nothing would still be cached when it is needed again.
    ///
    /// # Errors
    /// Fails if [`SourceFile::read`] would.
    pub fn read_directly(&self, what: &str, offset_bytes: u64, into: &mut [u8]) -> Result<(), ModelError> {
        // An unnamed file cannot be opened again.
        let named = self.stamp.is_some();
        let file = named.then(|| self.kept_open(&self.direct, forebay_limits::open_direct)).and_then(Result::ok);
        // Another file may have this name by now, while this one is still open.
        let Some(file) = file.filter(|file| self.check(file, what).is_ok()) else {
            return self.read(what, offset_bytes, into);
        };
        match direct::read(&file, offset_bytes, into) {
            // The file system accepts the flag but not the reads.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.read(what, offset_bytes, into),
            read => read.map_err(|error| self.unreadable(what, offset_bytes, into.len(), &error)),
        }
    }

    /// Rejects a file that has changed.
    fn check(&self, file: &File, what: &str) -> Result<(), ModelError> {
        let Some(stamp) = self.stamp else { return Ok(()) };
        let found = file.metadata().map_err(|error| self.error(what, &error.to_string()))?;
        if Stamp::of(&found) == stamp {
            return Ok(());
        }
        let reason = format!(
            "the file was changed after the model was read ({} bytes then, {} bytes now); read the model again",
            self.size_bytes,
            found.len()
        );
        Err(self.error(what, &reason))
    }

    fn unreadable(&self, what: &str, offset_bytes: u64, bytes: usize, error: &io::Error) -> ModelError {
        self.error(what, &format!("cannot read bytes {offset_bytes} to {offset_bytes} + {bytes}: {error}"))
    }

    fn error(&self, what: &str, reason: &str) -> ModelError {
        ModelError::File { path: self.path.display().to_string(), reason: format!("{what}: {reason}") }
    }

    /// Returns the open file.
    fn file(&self) -> io::Result<Arc<File>> {
        self.kept_open(&self.open, forebay_limits::open_regular)
    }

    /// Returns a file that is opened on first use and stays open unless the model has too many open files.
    fn kept_open(
        &self,
        place: &Mutex<Option<Arc<File>>>,
        open: fn(&Path) -> io::Result<File>,
    ) -> io::Result<Arc<File>> {
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*place {
            return Ok(file.clone());
        }
        let file = Arc::new(open(&self.path)?);
        let counted = self
            .open_count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < OPEN_FILES_MAX).then_some(count + 1));
        if counted.is_ok() {
            *place = Some(file.clone());
        }
        Ok(file)
    }
}

impl fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

/// A range of bytes in a file.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file.
    pub file: Arc<SourceFile>,
    /// The range of bytes.
    pub bytes: Range<u64>,
}

impl FileRange {
    /// Returns the number of bytes.
    pub fn size_bytes(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

impl PartialEq for FileRange {
    fn eq(&self, other: &FileRange) -> bool {
        self.bytes == other.bytes && self.file.is(&other.file)
    }
}
