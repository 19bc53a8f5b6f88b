//! Writing files so that a crash leaves either the old content or the new, never a part.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Replaces `path` by `bytes`: written beside it, synced, then renamed over it.
///
/// # Errors
/// [`Error::File`]; the old content, if there was any, is then still there.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let file_name = path.file_name().ok_or_else(|| write_error(path, "it is not the path of a file"))?;
    let mut temporary_name = file_name.to_os_string();
    // The process id keeps two processes that write the same file from writing into each other's.
    temporary_name.push(format!(".{}.partial", std::process::id()));
    let temporary = path.with_file_name(temporary_name);
    let written = write_synced(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path));
    if let Err(error) = written {
        // The file was never complete, so nothing is lost with it; the error that matters is the first one.
        let _ = std::fs::remove_file(&temporary);
        return Err(write_error(path, error));
    }
    sync_directory(path.parent())
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes renames in a directory durable.
fn sync_directory(directory: Option<&Path>) -> Result<(), Error> {
    let directory = directory.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory).and_then(|file| file.sync_all()).map_err(|error| write_error(directory, error))
}

/// An error about writing `path`.
pub(crate) fn write_error(path: &Path, reason: impl ToString) -> Error {
    Error::File { path: PathBuf::from(path), action: "write", reason: reason.to_string() }
}
