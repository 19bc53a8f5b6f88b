//! What a path names, and whether it can be written.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, StatxAttributes, StatxFlags, accessat, statx};

use crate::temporary::Temporary;

/// A longer chain of symbolic links is taken for a cycle.
const LINKS_MAX: usize = 40;
/// The number of bytes that a check writes and then discards: a block of most file systems, so that a full one is noticed.
const PROBE_BYTES: usize = 4096;

/// The destination of content.
#[derive(Debug)]
pub(crate) enum Destination {
    /// A regular file, existing or not: in its path, only the folders may still be symbolic links.
    File {
        /// The file itself.
        path: PathBuf,
        /// The metadata of the file if it exists.
        old: Option<Metadata>,
    },
    /// A destination that takes bytes as they come.
    Stream(Stream),
}

/// A destination that takes bytes as they come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// This process's standard output.
    Output,
    /// This process's standard error.
    Error,
    /// A device, a pipe, or an open file of this process by its number.
    Path(PathBuf),
}

impl Destination {
    /// The destination that a path names, after following all symbolic links.
    ///
    /// # Errors
    /// If the path names something that cannot be written as a file (a folder, a block device or a socket), or something that the user may
    /// not write.
    pub fn of(path: &Path) -> io::Result<Destination> {
        if path.as_os_str().is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name is empty"));
        }
        let (path, is_descriptor) = resolve(path)?;
        let old = match fs::metadata(&path) {
            Ok(old) => Some(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let kind = old.as_ref().map(Metadata::file_type);
        let refused = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        match kind {
            Some(kind) if kind.is_dir() => refused("it is a folder"),
            Some(kind) if kind.is_block_device() => {
                refused("it is a block device; writing a file to it would destroy its contents")
            }
            _ if is_descriptor => Ok(Destination::Stream(descriptor(path))),
            Some(kind) if kind.is_socket() => refused("it is a socket"),
            Some(kind) if !kind.is_file() => {
                may_write(&path)?;
                Ok(Destination::Stream(Stream::Path(path)))
            }
            None if path.as_os_str().as_bytes().ends_with(b"/") => {
                refused("there is no such folder, and a file needs a name")
            }
            None if path.file_name().is_none() => refused("it is not a file name"),
            _ => {
                if let Some(old) = &old {
                    may_replace(&path, old)?;
                    if is_mount_point(&path) {
                        return refused(
                            "it is mounted on its own, as a file in a container can be, and cannot be replaced; mount its folder \
                             instead, or choose another place",
                        );
                    }
                }
                Ok(Destination::File { path, old })
            }
        }
    }
}

/// Follows symbolic links, even to a path where nothing exists. Also returns whether the path names an open file of a process, which has no
/// name that could be replaced.
fn resolve(path: &Path) -> io::Result<(PathBuf, bool)> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => {}
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return Ok((path, false)),
        }
        let folder = folder_of(&path);
        let real = fs::canonicalize(folder)?;
        if real.starts_with("/proc") && real.ends_with("fd") {
            return Ok((real.join(path.file_name().unwrap_or_default()), true));
        }
        path = folder.join(fs::read_link(&path)?);
    }
    Err(io::Error::other(format!("more than {LINKS_MAX} levels of symbolic links")))
}

/// The folder that contains the last component of a path.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// An open file by its number. Standard output and standard error are recognized, so that both write at the same position of a file.
fn descriptor(path: PathBuf) -> Stream {
    let own = fs::canonicalize("/proc/self/fd").is_ok_and(|own| path.parent() == Some(&own));
    match path.file_name().map(OsStrExt::as_bytes) {
        Some(b"1") if own => Stream::Output,
        Some(b"2") if own => Stream::Error,
        _ => Stream::Path(path),
    }
}

/// Whether something is mounted at a path: a folder, or a single file. False if the system does not say.
fn is_mount_point(path: &Path) -> bool {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Fails for a file that the user has protected. A privileged user may write anything, so the permissions are checked as well.
fn may_replace(path: &Path, old: &Metadata) -> io::Result<()> {
    let mode = old.permissions().mode() & 0o7777;
    if mode & 0o222 == 0 {
        let reason = format!("the existing file is write-protected (mode {mode:04o}; chmod u+w makes it writable)");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    may_write(path)
}

/// Checks that the system would let this process write to the path.
fn may_write(path: &Path) -> io::Result<()> {
    Ok(accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS)?)
}

/// Fails now if a file could not be written later, because hours of work should not end at a folder that is full or missing. Leaves nothing
/// behind, and does not change an existing file.
///
/// # Errors
/// The reason, without the path.
pub fn check_writable(path: &Path) -> io::Result<()> {
    match Destination::of(path)? {
        Destination::File { path, .. } => check_room(folder_of(&path)),
        Destination::Stream(_) => Ok(()),
    }
}

/// Fails now if files could not be written into a folder later. A folder that does not exist is not created; the folder in which it would
/// be created is checked instead.
///
/// # Errors
/// The reason, without the path.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    let mut at = folder;
    loop {
        match fs::metadata(at) {
            Ok(found) if found.is_dir() => return check_room(at),
            Ok(_) if at == folder => return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a folder")),
            Ok(_) => {
                let reason = format!("{} is not a folder", at.display());
                return Err(io::Error::new(io::ErrorKind::NotADirectory, reason));
            }
            // A dangling link is a name that is taken.
            Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(at).is_err() => {
                at = folder_of(at);
                if at == Path::new(".") {
                    return check_room(at);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// The number of free bytes for files at a path, or where the path would be created.
///
/// # Errors
/// The system's reason, without the path.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let mut at = path;
    loop {
        match rustix::fs::statvfs(at) {
            Ok(found) => return Ok(found.f_bavail.saturating_mul(found.f_frsize)),
            Err(rustix::io::Errno::NOENT) if at != Path::new(".") => at = folder_of(at),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Checks that a file can be created in a folder and that it can hold some bytes.
fn check_room(folder: &Path) -> io::Result<()> {
    use std::io::Write;
    let mut probe = Temporary::new(folder, "forebay".as_ref())?;
    probe.file().write_all(&[0; PROBE_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"content").unwrap();
        assert!(is_mount_point(Path::new("/proc")));
        assert!(!is_mount_point(&file) && !is_mount_point(Path::new("/proc/version")));
        assert!(!is_mount_point(&folder.path().join("missing")));
    }
}
