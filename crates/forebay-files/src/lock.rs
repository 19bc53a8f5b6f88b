//! One writer per folder.
//!
//! The lock is a system lock (`flock`) on a file in the folder, which contains the process number. The system releases the lock when the
//! process ends, however it ends, so a leftover file locks nothing.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// The maximum number of retries if the file has been removed in the meantime.
const ATTEMPTS_MAX: usize = 1000;
/// The maximum number of attempts to read a process number, which a process writes right after taking the lock.
const NUMBER_ATTEMPTS: usize = 20;
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
/// Longer contents cannot be a number.
const NUMBER_BYTES_MAX: u64 = 20;

/// The reason why a folder cannot be locked.
///
/// ```
/// use forebay_files::{FolderLock, LockError};
///
/// # fn main() -> Result<(), LockError> {
/// # let folder = std::env::temp_dir().join(format!("forebay-held-{}", std::process::id()));
/// let lock = FolderLock::take(&folder, "lock")?;
/// let second = FolderLock::take(&folder, "lock");
/// assert!(matches!(second, Err(LockError::Held { process }) if process == Some(std::process::id())));
/// # drop(lock);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum LockError {
    /// Another writer has it.
    Held {
        /// The process of the writer, if the file states it.
        process: Option<u32>,
    },
    /// The folder or the file in it cannot be created.
    Io(io::Error),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::Held { process: Some(process) } if *process == std::process::id() => {
                write!(f, "this process (number {process}) is already writing to it")
            }
            LockError::Held { process: Some(process) } => write!(f, "process {process} is already writing to it"),
            LockError::Held { process: None } => write!(f, "another process is already writing to it"),
            LockError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LockError {}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> LockError {
        LockError::Io(error)
    }
}

/// A folder that only the holder writes to. It is released when this is dropped or the process ends.
///
/// ```
/// use forebay_files::FolderLock;
///
/// # fn main() -> Result<(), forebay_files::LockError> {
/// # let folder = std::env::temp_dir().join(format!("forebay-lock-{}", std::process::id()));
/// let lock = FolderLock::take(&folder, "lock")?;
/// // Only this process writes to the folder here.
/// drop(lock);
/// assert!(FolderLock::take(&folder, "lock").is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FolderLock {
    path: PathBuf,
    folder: PathBuf,
    /// Whether the folder was created for the lock.
    made: bool,
    /// The process that took the lock.
    process: u32,
    /// Holds the lock while it is open.
    file: File,
}

impl FolderLock {
    /// Locks a folder with a file of this name in it. Creates the folder if needed.
    ///
    /// # Errors
    /// [`LockError::Held`] if another writer has the lock; the system's error if the file cannot be created.
    pub fn take(folder: &Path, name: &str) -> Result<FolderLock, LockError> {
        let made = !folder.exists();
        let path = folder.join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o666);
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
        for _ in 0..ATTEMPTS_MAX {
            fs::create_dir_all(folder)?;
            let mut file = match options.open(&path) {
                Ok(file) => file,
                // The previous holder has just removed a folder that was created for its lock.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(LockError::Held { process: number(&mut file) }),
                Err(Errno::INTR) => continue,
                // A file system without locks: going without a lock is better than failing.
                Err(_) => {}
            }
            // The previous holder may have removed the file after it was opened here.
            if !is_at(&file, &path) {
                continue;
            }
            file.set_len(0)?;
            file.write_all(format!("{}\n", std::process::id()).as_bytes())?;
            return Ok(FolderLock { path, folder: folder.to_owned(), made, process: std::process::id(), file });
        }
        Err(LockError::Held { process: None })
    }

    /// Locks a folder like [`FolderLock::take`], but waits until it is free. Each time that it is not, `wait` is called with the process
    /// that holds it.
    ///
    /// # Errors
    /// The system's error if the file cannot be created.
    pub fn wait(folder: &Path, name: &str, mut wait: impl FnMut(Option<u32>)) -> io::Result<FolderLock> {
        loop {
            match FolderLock::take(folder, name) {
                Ok(lock) => return Ok(lock),
                Err(LockError::Held { process }) => {
                    wait(process);
                    std::thread::sleep(PAUSE);
                }
                Err(LockError::Io(error)) => return Err(error),
            }
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns whether the folder still has this lock. It may have been removed, and another one made and locked in its place.
    pub fn is_in_place(&self) -> bool {
        is_at(&self.file, &self.path)
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // In a fork, this is a copy, and the lock is still that of the process that took it.
        if self.process != std::process::id() {
            return;
        }
        if !self.is_in_place() {
            return;
        }
        // The lock is still held here. If the file stays, it locks nothing.
        let _ = fs::remove_file(&self.path);
        if self.made {
            // Fails if something has been written to the folder, as it should.
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Returns whether a path names this open file.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => (there.dev(), there.ino()) == (ours.dev(), ours.ino()),
        _ => false,
    }
}

/// The process number in a lock's file.
fn number(file: &mut File) -> Option<u32> {
    for _ in 0..NUMBER_ATTEMPTS {
        let mut text = String::new();
        file.rewind().ok()?;
        Read::take(&mut *file, NUMBER_BYTES_MAX).read_to_string(&mut text).ok()?;
        // A number without its newline is still being written.
        if let Some(number) = text.strip_suffix('\n') {
            return number.parse().ok();
        }
        std::thread::sleep(PAUSE);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_nothing_stays_behind() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("deep/folder");
        let lock = FolderLock::take(&folder, ".lock").unwrap();
        let error = FolderLock::take(&folder, ".lock").unwrap_err();
        assert!(matches!(error, LockError::Held { process: Some(id) } if id == std::process::id()), "{error}");
        let mut others = Vec::new();
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn({
            let folder = folder.clone();
            move || FolderLock::wait(&folder, ".lock", |process| sender.send(process).unwrap()).map(drop)
        });
        others.push(receiver.recv().unwrap());
        drop(lock);
        waiting.join().unwrap().unwrap();
        assert_eq!(others, [Some(std::process::id())]);
        assert!(!folder.exists(), "an empty folder that was made for the lock");
        fs::create_dir_all(&folder).unwrap();
        drop(FolderLock::take(&folder, ".lock").unwrap());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_was_left_over_locks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(".lock"), "4194304\n").unwrap();
        FolderLock::take(folder.path(), ".lock").unwrap();
    }

    #[test]
    fn a_lock_whose_folder_was_removed_leaves_the_next_one_alone() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("folder");
        let old = FolderLock::take(&folder, ".lock").unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let new = FolderLock::take(&folder, ".lock").unwrap();
        assert!(new.is_in_place() && !old.is_in_place());
        drop(old);
        assert!(matches!(FolderLock::take(&folder, ".lock"), Err(LockError::Held { .. })));
    }

    #[test]
    fn two_writers_never_hold_the_lock_at_once() {
        // If two threads ever counted at once, a count would be lost.
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count");
        fs::write(&count, "0").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let _lock = FolderLock::wait(folder.path(), ".lock", |_| {}).unwrap();
                        let before: u32 = fs::read_to_string(&count).unwrap().parse().unwrap();
                        fs::write(&count, (before + 1).to_string()).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(&count).unwrap(), "100");
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join(".lock")).unwrap();
        assert!(matches!(FolderLock::take(folder.path(), ".lock"), Err(LockError::Io(_))));
        assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
    }
}
