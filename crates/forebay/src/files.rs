//! Files that appear whole or not at all, and folder locks: the crate `forebay-files`, with this crate's errors.

use std::path::Path;

pub use forebay_files::{
    FolderLock, LockError, Pending, Unnamed, check_folder, check_writable, exit, free_bytes, write,
};

use crate::error::Error;

/// Replaces the contents of `path` with `bytes`, as a whole or not at all.
///
/// # Errors
/// Fails with [`Error::File`]; the old contents, if any, are then still there.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write(path, bytes).map_err(|error| write_error(path, error))
}

/// Returns an error about writing `path`.
pub(crate) fn write_error(path: &Path, reason: impl ToString) -> Error {
    Error::File { path: path.to_owned(), action: "write", reason: reason.to_string() }
}
