//! Content that is complete and moves to its destination on request.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Cursor, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::destination::{Destination, Stream, folder_of};
use crate::temporary::Temporary;

/// A destination for content while it is written.
pub trait Content: Write + Seek {}

impl<T: Write + Seek> Content for T {}

/// Content that is complete and safe on its file system, but not yet at its destination. If dropped, it is discarded.
///
/// ```
/// use std::io::Write;
///
/// use forebay_files::Pending;
///
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("forebay-pending-{}", std::process::id()));
/// let pending = Pending::new(&path, |file| file.write_all(b"complete"))?;
/// assert!(!path.exists(), "the content is safe, and not in its place yet");
/// pending.commit()?;
/// assert_eq!(std::fs::read(&path)?, b"complete");
/// # std::fs::remove_file(&path)
/// # }
/// ```
#[derive(Debug)]
pub struct Pending {
    way: Way,
}

#[derive(Debug)]
enum Way {
    Replace { path: PathBuf, file: Temporary },
    Pass { to: Stream, bytes: Vec<u8> },
}

impl Pending {
    /// Takes the content that `fill` writes.
    ///
    /// # Errors
    /// If the path does not name anything that can be written, and errors of `fill` or the system; without the path.
    pub fn new(path: &Path, fill: impl FnOnce(&mut dyn Content) -> io::Result<()>) -> io::Result<Pending> {
        Pending::complete(path, fill).map_err(explained)
    }

    fn complete(path: &Path, fill: impl FnOnce(&mut dyn Content) -> io::Result<()>) -> io::Result<Pending> {
        match Destination::of(path)? {
            Destination::File { path, old } => {
                let mut file = Temporary::new(folder_of(&path), path.file_name().unwrap_or_default())?;
                let complete = written(file.file(), fill)?;
                if let Some(old) = &old {
                    keep_permissions(complete, old)?;
                }
                complete.sync_all()?;
                Ok(Pending { way: Way::Replace { path, file } })
            }
            Destination::Stream(to) => {
                let mut bytes = Cursor::new(Vec::new());
                fill(&mut bytes)?;
                Ok(Pending { way: Way::Pass { to, bytes: bytes.into_inner() } })
            }
        }
    }

    /// Moves the content to its destination.
    ///
    /// # Errors
    /// The system's error. An existing file is then unchanged, unless only the last part failed, making the replacement durable.
    pub fn commit(self) -> io::Result<()> {
        match self.way {
            Way::Replace { path, file } => {
                file.persist(&path)?;
                sync_folder(folder_of(&path))
            }
            Way::Pass { to, bytes } => {
                let mut stream = open(&to)?;
                stream.write_all(&bytes)?;
                stream.flush()
            }
        }
    }
}

/// Writes a file as a whole, or not at all.
///
/// # Errors
/// The reason why the file cannot be written, without the path. An existing file is then unchanged, with the exception in
/// [`Pending::commit`].
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Pending::new(path, |file| file.write_all(bytes))?.commit()
}

/// Rewords an error in writing a file to state which limit was reached, because a limit of the process is easily mistaken for one of the
/// disk.
pub fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ io::ErrorKind::FileTooLarge => {
            io::Error::new(kind, format!("{error}; `ulimit -f` shows how large a file this process can write"))
        }
        _ => error,
    }
}

/// Gives a new file the permissions of an old one, and its owner if the system allows it.
fn keep_permissions(file: &File, old: &Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        // Only a privileged user can give files away; other users get a file of their own with the same permissions.
        let _ = fchown(file, Some(old.uid()), Some(old.gid()));
    }
    file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))
}

/// Opens a destination that takes bytes as they come. Creates and truncates nothing.
fn open(stream: &Stream) -> io::Result<File> {
    match stream {
        Stream::Output => {
            io::stdout().flush().and_then(|()| Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?)))
        }
        Stream::Error => Ok(File::from(io::stderr().as_fd().try_clone_to_owned()?)),
        Stream::Path(path) => OpenOptions::new().append(true).open(path),
    }
}

/// Returns a file after `fill` has written to it.
pub(crate) fn written(file: &mut File, fill: impl FnOnce(&mut dyn Content) -> io::Result<()>) -> io::Result<&mut File> {
    let mut writer = BufWriter::new(file);
    fill(&mut writer)?;
    writer.into_inner().map_err(io::IntoInnerError::into_error)
}

/// Makes a rename in a folder durable. This is impossible for a folder that can be written but not read, and on file systems that store
/// folders in their own time, such as SMB; it need not fail there.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    let Ok(folder) = File::open(folder) else { return Ok(()) };
    match folder.sync_all() {
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_cannot_be_synchronized_are_no_failure() {
        // The system's own folders answer as those of SMB do.
        let folder = Path::new("/proc/self");
        assert_eq!(File::open(folder).unwrap().sync_all().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        sync_folder(folder).unwrap();
        sync_folder(tempfile::tempdir().unwrap().path()).unwrap();
    }
}
